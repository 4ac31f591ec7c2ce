"""``redrive prune``: what every worker does in the background, now and seen to its end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.options import as_json, database, examples, setting, signed
from redrive.cli.session import Session, session

if TYPE_CHECKING:
    from redrive.settings import Settings

STATES = ("succeeded", "failed", "dead")


@click.command(
    short_help="Remove what has outlived its retention.",
    epilog=examples(
        "redrive prune --dry-run", "redrive prune --succeeded 1d", "redrive prune --failures 30d --archive"
    ),
)
@setting(
    "--succeeded", "How long succeeded jobs are kept, 0 for ever (default: 7d).", variable="REDRIVE_RETAIN_SUCCEEDED"
)
@setting("--failed", "How long cancelled and discarded jobs are kept (default: 30d).", variable="REDRIVE_RETAIN_FAILED")
@setting("--dead", "How long dead jobs are kept (default: 365d).", variable="REDRIVE_RETAIN_DEAD")
@setting("--failures", "How long the history of failures is kept (default: 90d).", variable="REDRIVE_RETAIN_FAILURES")
@setting("--archive/--no-archive", "Move jobs to jobs_archive, or delete them (default: delete).")
@click.option("--dry-run", is_flag=True, help="Count the jobs, and change nothing.")
@signed
@as_json
@database
def prune(
    database_url: str | None,
    schema: str | None,
    *,
    archive: bool | None,
    dry_run: bool,
    by: str,
    reason: str,
    as_json: bool,
    **keep: Any,
) -> None:
    """Remove finished jobs, and the history of failures, that are older than their retention.

    Workers do so all the time; this is for the impatient, and for other retentions than the workers'. A retention of 0
    is for ever. Only finished jobs are touched.
    """
    import asyncio

    from redrive import audit
    from redrive.settings import load

    typed = {f"retain_{name}": value for name, value in keep.items()} | {"archive": archive}
    with session(database_url, schema) as now:
        given = {name: value for name, value in vars(load(typed)).items() if name in typed}
        settings = replace(now.queue.settings, **given)
        if dry_run:
            count = _count(now, settings)
        else:
            # Begun before the first row goes, so that nothing is pruned unsaid; the number is known at the end.
            keep = {name: getattr(settings, f"retain_{name}") for name in (*STATES, "failures")}
            what = {"kept": keep, "archived": settings.archive}
            [act] = now.ask(audit.begin(now.schema, "prune", what, by=by, reason=reason))
            count = asyncio.run(_prune(settings))
            now.ask(audit.count(now.schema, act.id, count))
    if as_json:
        screen.document({"jobs": count, "archived": settings.archive, "dry_run": dry_run})
        return
    verb = "would be " * dry_run + ("archived" if settings.archive else "deleted")
    kept = ", ".join(f"{name} {_kept(getattr(settings, f'retain_{name}'))}" for name in (*STATES, "failures"))
    click.echo(f"{screen.jobs(count)} {verb} (kept: {kept})")


def _kept(seconds: float) -> str:
    return screen.span(seconds) if seconds else "for ever"


def _count(now: Session, settings: Settings) -> int:
    from redrive.pruner import NEVER, WINDOW
    from redrive.statements import named

    keep = {name: getattr(settings, f"retain_{name}") or NEVER for name in STATES}
    count, after = 0, 0
    while True:
        # As Pruner does, which stops where rows are too young for any retention to have passed.
        scan = named("scan_finished", now.schema, after=after, window=WINDOW, shortest=min(keep.values()), **keep)
        [seen] = now.ask(scan)
        count += len(seen.expired)
        if seen.young or seen.seen < WINDOW:
            return count
        after = seen.last_id


async def _prune(settings: Settings) -> int:
    from redrive.connections import Control
    from redrive.pruner import EVERY, Pruner
    from redrive.service import Database

    control = Control(settings.database_url, settings.schema, "prune")
    pruner = Pruner(Database("prune"), control, settings)
    try:
        while await pruner.tick() < EVERY:
            pass
    finally:
        control.drop()
    return pruner.pruned
