"""``redrive dead``: what needs a human, grouped so that ten thousand deaths of one cause are one line."""

from __future__ import annotations

import shlex
from typing import Any

import click

from redrive.cli import screen
from redrive.cli.options import as_json, database, examples
from redrive.cli.session import session
from redrive.cli.times import When, before

TELLING = 8
"""Characters of an error below which it says too little to find its jobs by."""
LONGEST = 60


@click.command(
    short_help="Group dead jobs by kind and error.",
    epilog=examples("redrive dead", "redrive dead --kind send_email --since 2h", "redrive dead --json"),
)
@click.option("--kind", metavar="KIND", help="Only jobs of this kind.")
@click.option("--since", type=When(), metavar="TIME", help="Only what died since: 2h, 7d, 2030-01-31T09:00Z.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many groups at most.")
@as_json
@database
def dead(
    database_url: str | None, schema: str | None, kind: str | None, since: Any, *, limit: int, as_json: bool
) -> None:
    """Group dead jobs by kind and error, and say how to send each group back.

    A job that a worker other than redrive's ended as failed, without a reason, counts as dead.
    """
    from redrive import store

    with session(database_url, schema) as now:
        start = before(since, now.now)
        rows = now.ask(store.dead_groups(now.schema, kind=kind, since=start, limit=limit))
    where = [*(["--since", start.isoformat()] if start else []), *(["--schema", schema] if schema else [])]
    groups = [_group(row, where) for row in rows]
    if as_json:
        screen.document({"groups": groups})
        return
    if not groups:
        click.echo("no dead jobs")
        return
    headers = ("JOBS", "KIND", "FIRST", "LAST", "SAMPLE", "ERROR")
    lines = [
        [
            screen.number(group["jobs"]),
            group["kind"],
            screen.ago(group["first"], now.now),
            screen.ago(group["last"], now.now),
            " ".join(map(str, group["sample"])),
            screen.one_line(group["error"], 0 if screen.on_terminal() else 300),
        ]
        for group in groups
    ]
    screen.table(headers, lines, right=("JOBS",))
    screen.heading("once the cause is mended, send them back:")
    for group in groups:
        click.echo(f"  {group['requeue']}")


def _group(row: Any, where: list[str]) -> dict[str, Any]:
    from redrive.cli.curtain import text

    shown = text(row.error) or ""
    words, comment = ["redrive", "requeue", "--kind", row.kind], ""
    if (part := _searchable(row.error, shown)) is not None:
        words += ["--error", part]
    elif row.jobs <= len(row.sample):
        words = ["redrive", "requeue", *map(str, row.sample)]
    else:
        comment = "  # every dead job of this kind"
    command = screen.clean(shlex.join([*words, *where])) + comment
    return {
        "kind": row.kind,
        "error": shown,
        "jobs": row.jobs,
        "first": row.first,
        "last": row.last,
        "sample": row.sample,
        "requeue": command,
    }


def _searchable(error: str, shown: str) -> str | None:
    """Find the part of an error that finds its jobs again and has no secret in it; None where there is none."""
    from redrive.masking import HIDDEN

    parts = [part.strip()[:LONGEST].strip() for part in shown.split(HIDDEN)]
    good = [part for part in parts if len(part) >= TELLING and part in error and part == screen.clean(part)]
    return max(good, key=len, default=None) if error != "(no error text)" else None
