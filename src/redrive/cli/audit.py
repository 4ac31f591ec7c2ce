"""``redrive audit``: who did what, when and why, and to how many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.options import application, as_json, database, examples
from redrive.cli.session import session

if TYPE_CHECKING:
    from redrive.audit import Act
    from redrive.cli.curtain import Curtain


@click.command(
    short_help="List who did what, newest first.",
    epilog=examples("redrive audit", "redrive audit --by ada --action requeue", "redrive audit --job 42 --json"),
)
@click.option("--by", metavar="TEXT", help="Only what this one did.")
@click.option("--action", metavar="TEXT", help="Only this: cancel, requeue, edit, pause, resume, limit, prune…")
@click.option("--job", type=int, metavar="ID", help="Only what was done to this job's payload.")
@click.option("--before", type=int, metavar="ID", help="Only what was done before this: the next page.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many at most.")
@application
@as_json
@database
def audit(
    *, limit: int, database_url: str | None, schema: str | None, app: str | None, as_json: bool, **which: Any
) -> None:
    """List what operators did: when, who, to which jobs or kinds, to how many, and why. Secrets are masked."""
    from redrive.cli.curtain import curtain

    hide = curtain(app)
    with session(database_url, schema) as now:
        rows = now.queue.audit.list(limit=limit, connection=now.conn, **which)
    shown = [_hidden(row, hide) for row in rows]
    if as_json:
        screen.document({"acts": shown, "next_before": rows[-1].id if len(rows) == limit else None})
        return
    if not rows:
        screen.note("nothing was done yet" if not any(which.values()) else "nothing matches")
        return
    lines = [
        [
            str(row["id"]),
            screen.moment(row["at"], now.now),
            row["by"] or "",
            row["action"],
            screen.number(row["moved"]) + (f", {screen.number(row['skipped'])} skipped" if row["skipped"] else ""),
            screen.compact(row["filter"], 0 if screen.on_terminal() else 200),
            row["reason"] or "",
        ]
        for row in shown
    ]
    screen.table(("ID", "WHEN", "BY", "ACTION", "JOBS", "WHICH", "WHY"), lines, right=("ID",))


def _hidden(act: Act, hide: Curtain) -> dict[str, Any]:
    """Give a row without secrets."""
    from redrive.cli.curtain import text

    kind = act.filter.get("kind") if act.action.startswith("edit") else ""
    shown = {**vars(act), "reason": text(act.reason), "filter": hide.data("", act.filter)}
    return shown | {name: hide.data(str(kind), shown[name]) for name in ("before", "after")}
