"""``redrive requeues``: what is being sent back over time, seen and stopped."""

from __future__ import annotations

import click

from redrive.cli import screen
from redrive.cli.exits import PROBLEM
from redrive.cli.options import as_json, database, examples, signed
from redrive.cli.requeue import document, told
from redrive.cli.screen import Cell
from redrive.cli.session import session

STYLES = {"waiting": "cyan", "canary": "cyan", "running": "blue", "done": "green", "stopped": "yellow", "failed": "red"}


@click.group(
    short_help="See and stop what is sent back over time.",
    epilog=examples("redrive requeues list", "redrive requeues stop 7 --reason 'the provider is down again'"),
)
def requeues() -> None:
    """See and stop what `redrive requeue --canary` and `--rate` have begun. Workers go on with it by themselves."""


@requeues.command("list", epilog=examples("redrive requeues list", "redrive requeues list --active --json"))
@click.option("--active", is_flag=True, help="Only what goes on.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many at most.")
@as_json
@database
def list_(*, active: bool, limit: int, database_url: str | None, schema: str | None, as_json: bool) -> None:
    """List what is and was sent back over time, newest first."""
    with session(database_url, schema) as now:
        rows = now.queue.requeues.list(active=active, limit=limit, connection=now.conn)
    if as_json:
        screen.document([document(row) for row in rows])
        return
    if not rows:
        screen.note("nothing is being sent back" if active else "nothing was ever sent back over time")
        return
    lines: list[list[str | Cell]] = [
        [
            str(row.id),
            Cell(row.status, STYLES[row.status]),
            screen.ago(row.started_at, now.now),
            row.by or "",
            screen.compact(document(row)["filter"], 0 if screen.on_terminal() else 200),
            told(row),
        ]
        for row in rows
    ]
    screen.table(("ID", "STATUS", "BEGUN", "BY", "WHICH", "HOW FAR"), lines, right=("ID",))


@requeues.command(epilog=examples("redrive requeues stop 7 --reason 'the provider is down again'"))
@click.argument("number", metavar="ID", type=int)
@signed
@as_json
@database
def stop(*, number: int, by: str, reason: str, database_url: str | None, schema: str | None, as_json: bool) -> None:
    """Send no more back of ID; what was sent stays so. Exit code 1 where it had ended already."""
    with session(database_url, schema) as now:
        was = now.queue.requeues.get(number, connection=now.conn)
        row = now.queue.requeues.stop(number, by=by, reason=reason, connection=now.conn)
    if as_json:
        screen.document(document(row))
    else:
        click.echo(f"requeue {row.id} " + told(row))
    if not was.active:
        raise click.exceptions.Exit(PROBLEM)
