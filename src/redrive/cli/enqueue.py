"""``redrive enqueue``: one job from a shell, checked and written as a program's would be."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from redrive.cli import screen
from redrive.cli.options import application, as_json, database, examples
from redrive.cli.session import session
from redrive.cli.target import load_queue
from redrive.cli.times import When, after


@click.command(
    short_help="Enqueue a job.",
    epilog=examples(
        """redrive enqueue send_email '{"to": "user@example.com"}'""",
        "redrive enqueue export --delay 10m --priority 9 --max-attempts 3",
        "redrive enqueue welcome '{\"user\": 42}' --key welcome:42      # one live job a key",
        "redrive enqueue index '{\"doc\": 7}' --key doc:7 --delay 30s --on-conflict debounce",
        "jq -c .invoice order.json | redrive enqueue invoice -",
    ),
)
@click.argument("kind")
@click.argument("payload", default="{}")
@click.option("--delay", metavar="SECONDS", help="Run it this much later: 90, 90s, 5m, 2h, 7d.")
@click.option("--run-at", type=When(), metavar="TIME", help="Run it then: 2030-01-31T09:00+01:00.")
@click.option("--priority", type=click.IntRange(0, 9), help="0 runs first, 9 last (default: 5).")
@click.option("--max-attempts", type=int, metavar="N", help="Tries before it is dead (default: 5).")
@click.option("--key", metavar="TEXT", help="At most one pending or running job has this key.")
@click.option(
    "--unique",
    type=click.Choice(["until-finished", "while-pending"]),
    help="With --key: which jobs count (default: until-finished).",
)
@click.option("--unique-for", metavar="SECONDS", help="With --key: one that succeeded counts so long as well: 1h, 1d.")
@click.option(
    "--on-conflict",
    type=click.Choice(["keep", "replace", "debounce"]),
    help="With --key: a pending job stays (default), gets this payload, or its time as well.",
)
@click.option("--lane", metavar="TEXT", help="A lane within its kind, such as a tenant.")
@click.option("--expires-in", metavar="SECONDS", help="Dead, unless it has run by then.")
@click.option("--expires-at", type=When(), metavar="TIME", help="The same, as a date.")
@application
@as_json
@database
def enqueue(
    *,
    kind: str,
    payload: str,
    database_url: str | None,
    schema: str | None,
    app: str | None,
    run_at: Any,
    expires_at: Any,
    as_json: bool,
    key: str | None,
    **given: Any,
) -> None:
    """Enqueue a job of KIND with PAYLOAD, a JSON text (default: {}) or - to read it from stdin.

    No application is needed: any worker that knows the kind runs it. With one, named by --app or REDRIVE_APP, the
    priority and the attempts are those of the kind's handler.
    """
    data = read_payload(payload)
    handlers = load_queue(app).handlers if app else None
    options = {name: value for name, value in given.items() if value is not None}
    if "unique" in options:
        options["unique"] = options["unique"].replace("-", " ")
    with session(database_url, schema) as now:
        now.queue.handlers = handlers or now.queue.handlers
        times = {"run_at": after(run_at, now.now), "expires_at": after(expires_at, now.now)}
        options |= {name: value for name, value in times.items() if value is not None}
        with now.doubting(kind):
            answer = now.queue.enqueue(kind, data, connection=now.conn, key=key, **options)
    if as_json:
        screen.document({"id": answer.id, "kind": kind, "created": answer.created, "replaced": answer.replaced})
    elif answer.created:
        click.echo(f"job {answer.id} enqueued")
    elif answer.replaced:
        click.echo(f"job {answer.id} with the key {screen.clean(key or '')} has this payload now")
    else:
        click.echo(f"job {answer.id} has the key {screen.clean(key or '')} already: nothing enqueued")


def read_payload(payload: str) -> Any:
    """Read a payload's JSON text, from stdin where it is -.

    Raises:
        click.BadParameter: when it is no JSON.
    """
    text = sys.stdin.read() if payload == "-" else payload
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(
            f'it is no JSON ({error}): quote it for the shell, as in \'{{"to": "user@example.com"}}\'',
            param_hint="PAYLOAD",
        ) from None
