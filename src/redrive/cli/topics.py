"""``redrive topics``: who gets a job of what is published, seen and changed; and a publish by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.enqueue import read_payload
from redrive.cli.options import application, as_json, database, examples, signed
from redrive.cli.screen import Cell
from redrive.cli.session import session
from redrive.cli.target import load_queue

if TYPE_CHECKING:
    from redrive.topics import Subscription


@click.group(
    short_help="See and change who gets a job of what is published.",
    epilog=examples(
        "redrive topics list",
        "redrive topics list invoice.paid                    # who gets a job of this one",
        "redrive topics add 'audit.#' write_audit --reason 'the auditors want it'",
        """redrive topics publish invoice.paid '{"id": 7}'""",
    ),
)
def topics() -> None:
    """See and change who gets a job of what is published.

    A subscription lets a kind have a job of each publish of a topic. Those that stand in the code of an application are
    the code's to change; to hold one back, pause its kind: its jobs wait.
    """


@topics.command(
    "list",
    epilog=examples(
        "redrive topics list",
        "redrive topics list invoice.paid --json | jq -r '.subscriptions[].kind'",
        "redrive topics list --kind send_receipt",
    ),
)
@click.argument("topic", required=False)
@click.option("--kind", metavar="KIND", help="Of this kind only.")
@as_json
@database
def list_(topic: str | None, *, kind: str | None, database_url: str | None, schema: str | None, as_json: bool) -> None:
    """List the subscriptions; with TOPIC those that a publish of it finds. Below: what is published and nobody gets."""
    with session(database_url, schema) as now:
        rows = now.queue.topics.list(topic, kind=kind, connection=now.conn)
        lost = [] if kind else now.queue.topics.unheard(connection=now.conn)
    lost = [each for each in lost if topic in (None, each.topic)]
    if as_json:
        screen.document({"subscriptions": [_record(row) for row in rows], "unheard": [vars(each) for each in lost]})
        return
    if rows:
        headers = ("TOPIC", "KIND", "STATE", "PRIORITY", "ATTEMPTS", "OWNER", "REMARK")
        lines: list[list[str | Cell]] = [
            [
                row.topic,
                row.kind,
                Cell(row.state, "yellow" if row.disabled_at else "green"),
                str(row.priority),
                str(row.max_attempts),
                row.owner,
                _remark(row, now.now),
            ]
            for row in rows
        ]
        screen.table(headers, lines, right=("PRIORITY", "ATTEMPTS"))
    else:
        screen.note("no subscriptions: write @queue.subscribe in the code, or add one with `redrive topics add`")
    for each in lost:
        when = screen.ago(each.last, now.now)
        screen.note(screen.one_line(f"{each.topic} is published, last about {when}, and nobody subscribes to it"))


@topics.command(
    epilog=examples(
        "redrive topics add invoice.paid send_receipt",
        "redrive topics add 'audit.#' write_audit --priority 9 --max-attempts 20",
    )
)
@click.argument("topic")
@click.argument("kind")
@click.option("--priority", type=click.IntRange(0, 9), help="0 runs first, 9 last (default: 5).")
@click.option("--max-attempts", type=int, metavar="N", help="Tries before a job is dead (default: 5).")
@signed
@application
@as_json
@database
def add(
    *, topic: str, kind: str, database_url: str | None, schema: str | None, app: str | None, as_json: bool, **how: Any
) -> None:
    """Let KIND get a job of each publish of TOPIC, where * stands for one word and # for any number of them.

    Priority and attempts are those of the kind's handler where --app or REDRIVE_APP names the application.
    """
    handlers = load_queue(app).handlers if app else None
    with session(database_url, schema) as now:
        now.queue.handlers = handlers or now.queue.handlers
        with now.doubting(kind):
            row = now.queue.topics.add(topic, kind, connection=now.conn, **how)
    if as_json:
        screen.document(_record(row))
    else:
        click.echo(screen.one_line(f"{row.kind} subscribes to {row.topic}"))


@topics.command(epilog=examples("redrive topics remove 'audit.#' write_audit"))
@click.argument("topic")
@click.argument("kind")
@signed
@database
def remove(*, topic: str, kind: str, by: str, reason: str, database_url: str | None, schema: str | None) -> None:
    """Remove a subscription that was added here, or one that is in no code any more. Its jobs stay."""
    with session(database_url, schema) as now:
        now.queue.topics.remove(topic, kind, by=by, reason=reason, connection=now.conn)
    click.echo(screen.one_line(f"{kind} subscribes to {topic} no more"))


@topics.command(
    epilog=examples(
        """redrive topics publish invoice.paid '{"id": 7}'""",
        "redrive topics publish user.deleted '{\"id\": 7}' --key user:7 --delay 10m",
        "jq -c .invoice order.json | redrive topics publish invoice.paid -",
    )
)
@click.argument("topic")
@click.argument("payload", default="{}")
@click.option("--delay", metavar="SECONDS", help="Run the jobs this much later: 90, 90s, 5m, 2h, 7d.")
@click.option("--priority", type=click.IntRange(0, 9), help="0 runs first, 9 last (default: each subscriber's own).")
@click.option("--max-attempts", type=int, metavar="N", help="Tries before one is dead (default: each one's own).")
@click.option("--key", metavar="TEXT", help="At most one pending or running job of each subscriber has this key.")
@click.option("--lane", metavar="TEXT", help="A lane within each kind, such as a tenant.")
@click.option("--expires-in", metavar="SECONDS", help="Dead, unless it has run by then.")
@as_json
@database
def publish(
    *,
    topic: str,
    payload: str,
    database_url: str | None,
    schema: str | None,
    as_json: bool,
    key: str | None,
    **given: Any,
) -> None:
    """Publish PAYLOAD, a JSON text (default: {}) or - to read it from stdin, as TOPIC: a job for each subscriber."""
    data = read_payload(payload)
    options = {name: value for name, value in given.items() if value is not None}
    with session(database_url, schema) as now:
        answer = now.queue.publish(topic, data, connection=now.conn, key=key, **options)
    if as_json:
        made = [{"id": job.id, "kind": job.kind, "created": job.created} for job in answer.jobs]
        screen.document({"topic": topic, "count": answer.count, "jobs": made})
        return
    for job in answer.jobs:
        said = "enqueued" if job.created else f"has the key {screen.clean(key or '')} already"
        click.echo(screen.one_line(f"job {job.id} of {job.kind} {said}"))
    if not answer.jobs:
        click.echo("no job made")


def _record(row: Subscription) -> dict[str, Any]:
    return {**vars(row), "state": row.state}


def _remark(row: Subscription, now: Any) -> str:
    if row.disabled_at:
        return f"no live worker has had it in its code, {screen.ago(row.disabled_at, now)}"
    return f"by {row.created_by}" if row.created_by else ""
