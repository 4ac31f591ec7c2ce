"""``redrive adopt status``: which tables are connected, where their rows are, and what is in the way of some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.exits import PROBLEM
from redrive.cli.options import as_json, database, examples
from redrive.cli.screen import Cell
from redrive.cli.session import session

if TYPE_CHECKING:
    from redrive.cli.session import Session


@click.command(
    short_help="Show the tables that are connected.",
    epilog=examples("redrive adopt status", "redrive adopt status mail_jobs --json | jq .owed"),
)
@click.argument("table", required=False)
@as_json
@database
def status(*, table: str | None, database_url: str | None, schema: str | None, as_json: bool) -> None:
    """Show which tables are connected, where their rows are, and what is in the way of some.

    Exit code 1 where something is: rows that could not be written, a table or a trigger that is gone.
    """
    from redrive.adopt import bridge

    with session(database_url, schema) as now:
        found = [bridge.demand(now.conn, now.schema, table)] if table else bridge.adoptions(now.conn, now.schema)
        notes = {row.id: bridge.notes(now.conn, now.schema, row.id) for row in found}
        troubles = {row.id: bridge.troubles(now.conn, now.schema, row) for row in found}
    if as_json:
        said = [
            {**row._asdict(), "notes": [each._asdict() for each in notes[row.id]], "troubles": troubles[row.id]}
            for row in found
        ]
        screen.document(said[0] if table else said)
    elif not found:
        screen.note("no table is connected")
    else:
        _show(found, troubles, now)
    if any(troubles.values()):
        raise click.exceptions.Exit(PROBLEM)


def _show(found: list[Any], troubles: dict[int, list[str]], now: Session) -> None:
    lines: list[list[str | Cell]] = [
        [
            row.name,
            Cell("ending", "yellow") if row.ending_at else Cell("paused", "yellow") if row.paused_at else "connected",
            screen.ago(row.since, now.now),
            " + ".join(["trigger"] * row.by_trigger + ["sweep"] * row.by_sweep),
            "goes on" if row.beside else "stopped",
            *(screen.number(number) for number in (row.waiting, row.claimed, row.owed, row.held, row.fresh, row.ended)),
        ]
        for row in found
    ]
    headers = ("TABLE", "STATE", "SINCE", "BY", "OLD WORKER", "WAITING", "RUNNING", "OWED", "HELD", "NEW", "ENDED")
    screen.table(headers, lines, right=headers[5:])
    for row in found:
        for trouble in troubles[row.id]:
            click.echo(f"{row.name}: {screen.one_line(trouble)}")
