"""``redrive batches``: what was enqueued together, and how far it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli import screen
from redrive.cli.options import as_json, database, examples
from redrive.cli.session import session

if TYPE_CHECKING:
    from redrive.batches import State


@click.command(
    short_help="List batches, and how far each is.",
    epilog=examples("redrive batches", "redrive batches --open", "redrive batches --json | jq '.[0].dead'"),
)
@click.option("--open", "left", is_flag=True, help="Only those of which jobs are left.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many at most.")
@as_json
@database
def batches(*, left: bool, limit: int, database_url: str | None, schema: str | None, as_json: bool) -> None:
    """List batches, newest first: their jobs, how many of them have ended and how, and what follows."""
    with session(database_url, schema) as now:
        rows = now.queue.batches.list(ended=not left, limit=limit, connection=now.conn)
    if as_json:
        screen.document([vars(row) for row in rows])
        return
    if not rows:
        screen.note("no batches" if not left else "no batch is open")
        return
    lines = [
        [
            str(row.id),
            row.name or "",
            screen.ago(row.created_at, now.now),
            _count(row, row.jobs),
            *(screen.number(each) for each in (row.succeeded, row.failed, row.dead)),
            f"{row.kind}, {screen.ago(row.ended_at, now.now)}" if row.ended_at else f"{row.kind}, when all have ended",
        ]
        for row in rows
    ]
    headers = ("ID", "NAME", "ENQUEUED", "JOBS", "SUCCEEDED", "FAILED", "DEAD", "THEN")
    screen.table(headers, lines, right=("ID", "JOBS", "SUCCEEDED", "FAILED", "DEAD"))


def _count(row: State, jobs: int) -> str:
    from redrive.batches import MOST_COUNTED

    return f"{screen.number(jobs)}{'+' if row.ended_at is None and jobs >= MOST_COUNTED else ''}"
