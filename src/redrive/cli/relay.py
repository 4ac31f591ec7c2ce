"""``redrive relay`` and ``redrive route``: kinds whose jobs go over a broker."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.options import as_json, because, database, examples, setting, signed
from redrive.cli.session import session
from redrive.cli.worker import FORMAT, log_level, work

if TYPE_CHECKING:
    from redrive.kinds import Kind
    from redrive.settings import Settings


@click.command(
    short_help="Say where the jobs of a kind go to be run.",
    epilog=examples(
        "redrive route send_email amqp       # over the broker, from the next claim on",
        "redrive route send_email postgres   # from the table again",
        "redrive route                       # what goes over the broker",
    ),
)
@click.argument("kind", required=False)
@click.argument("route", required=False, type=click.Choice(["amqp", "postgres"]))
@signed
@as_json
@database
def route(
    *,
    kind: str | None,
    route: str | None,
    by: str,
    reason: str,
    database_url: str | None,
    schema: str | None,
    as_json: bool,
) -> None:
    """Let the jobs of KIND be run over a broker (amqp) or from the table (postgres); without KIND, list the routes.

    It holds at once, both ways. What waits in the table goes the new way; what is at the broker is run from there, so
    keep its workers until its queues are empty. redrive relay hands the jobs over, redrive worker --broker runs them.
    """
    from redrive import store
    from redrive.amqp import management
    from redrive.kinds import relayed, taken
    from redrive.sql import AMQP

    if kind is not None and route is None:
        raise click.UsageError("which way? Say amqp or postgres")
    strays = left = ""
    with session(database_url, schema) as now:
        if kind is None or route is None:
            rows = [row for row in now.queue.kinds.list(connection=now.conn) if row.route != "postgres"]
            if now.queue.settings.broker_management_url:
                strays = management.seen(now.queue.settings, management.routed(rows)).strays_in_words
        else:
            before = management.routed(now.queue.kinds.list(connection=now.conn))
            with now.doubting(kind):
                rows = [now.queue.kinds.route(kind, route, by=by, reason=reason, connection=now.conn)]
            if route != AMQP:
                alone = kind not in taken(now.ask(store.workers(now.schema)))
                left = _left(now.queue.settings, kind, alone=alone, routed=kind in before)
        sent = [row.kind for row in rows if row.route == AMQP]
        unrelayed = bool(sent) and not relayed(now.ask(store.workers(now.schema)))
    _tell(rows, because(by, reason), named=kind is not None, as_json=as_json)
    if unrelayed:
        wait = f"jobs of kind {', '.join(sent)} wait in the table until one is started"
        screen.note(screen.one_line(f"note: no relay is alive: {wait}, `redrive relay --broker-url URL`"))
    for said in filter(None, (left, strays)):
        screen.note(screen.one_line(f"note: {said}"))


def _left(settings: Settings, kind: str, *, alone: bool, routed: bool) -> str:
    """Say of a kind that is run from the table again what may be left of it at the broker, and who is to take it."""
    from redrive.amqp import management

    there, known = None, ""
    if settings.broker_management_url:
        now = management.seen(settings, (), [kind])
        there = now.of(kind)
        known = now.why or f"{screen.jobs(there.messages if there else 0)} there now"
    if not routed and not there:
        return ""
    nobody = "; none is alive: start `redrive worker app.jobs:queue --broker`" if alone else ""
    return "keep workers with --broker until its queues are empty" + (f" ({known})" if known else "") + nobody


def _tell(rows: list[Kind], why: str, *, named: bool, as_json: bool) -> None:
    if as_json:
        said: list[dict[str, Any]] = [{"kind": row.kind, "route": row.route} for row in rows]
        screen.document(said[0] if named else said)
    elif not rows:
        screen.note("every kind is run from the table")
    elif named:
        click.echo(screen.one_line(f"{rows[0].kind}: {rows[0].route}{why}"))
    else:
        screen.table(("KIND", "ROUTE"), [[row.kind, row.route] for row in rows])


@click.command(
    short_help="Hand jobs of routed kinds to a broker.",
    epilog=examples(
        "redrive relay --broker-url amqp://jobs@mq.internal/",
        "redrive relay app.jobs:queue        # with the code: its schedules, and what is called when a job dies",
        "redrive relay --once                # what is due, then exit",
    ),
)
@click.argument("target", required=False, envvar="REDRIVE_APP")
@setting("--broker-url", "The RabbitMQ, as amqp://user:password@host:5672/vhost.", metavar="URL")
@setting("--processes", "Processes; one that dies is replaced (default: 1).", metavar="N")
@setting("--lease", "Silence after which it is taken for dead (default: 30).")
@setting("--listen/--no-listen", "Wake by LISTEN, or find new jobs by polling alone (default: listen).")
@setting("--listen-dsn", "A direct connection for LISTEN, where the database URL goes through a pooler.", metavar="URL")
@setting("--poll", "The longest that an idle relay waits between two looks (default: 5).")
@setting("--metrics-port", "Answer /metrics and /health at this port, 0 for none (default: 0).", metavar="PORT")
@setting("--metrics-host", "Address at which to do so (default: 127.0.0.1).", metavar="ADDRESS")
@setting("--exit-on-db-loss", "Exit 3 when the database was away this long, 0 to wait for ever (default: 0).")
@click.option("--once", is_flag=True, help="Send what is due, then exit.")
@log_level
@database
@click.pass_context
def relay(
    ctx: click.Context,
    /,
    *,
    target: str | None,
    database_url: str | None,
    schema: str | None,
    log_level: str,
    once: bool,
    **given: Any,
) -> None:
    """Hand the due jobs of routed kinds to the broker, until told to stop; any number of these may run.

    A job leaves the table when the broker has confirmed it. What fails comes back to the table, and goes out again when
    it is due. Like a worker it keeps house: reclaims, schedules, pruning, alerts. It needs the extra redrive[amqp].
    """
    from redrive.cli.target import load_queue
    from redrive.queue import Queue

    logging.basicConfig(level=log_level.upper(), format=FORMAT, stream=sys.stderr)
    queue = load_queue(target) if target else Queue()
    where: dict[str, Any] = {"database_url": database_url, "schema": schema}
    queue.settings = replace(queue.settings, **{name: value for name, value in where.items() if value is not None})
    ctx.exit(work(queue.relay, once=once, settings={name: value for name, value in given.items() if value is not None}))
