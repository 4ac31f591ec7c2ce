"""``redrive requeue`` and ``redrive cancel``: what an operator does to many jobs at once, seen before it is done.

Neither takes "nothing said" for "all", and both say which jobs were not as expected when their turn came.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.exits import PROBLEM, Trouble
from redrive.cli.options import as_json, database, examples
from redrive.cli.session import Session, session
from redrive.cli.times import When, before

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redrive.job import Job
    from redrive.store import Ended

LONG = 1000
"""Jobs from which on a bar shows how far it is."""

certain = click.option("--yes", is_flag=True, help="Don't ask.")
rehearsal = click.option("--dry-run", is_flag=True, help="Say which jobs are meant, and change nothing.")


@click.command(
    short_help="Send dead jobs back.",
    epilog=examples(
        "redrive requeue 42 43",
        "redrive requeue --kind send_email --error 'connection refused' --dry-run",
        "redrive requeue --kind send_email --since 2h --yes",
        "redrive requeue --status failed --kind export      # cancelled and discarded ones",
    ),
)
@click.argument("ids", nargs=-1, type=int)
@click.option("--kind", metavar="KIND", help="Jobs of this kind.")
@click.option("--error", metavar="TEXT", help="Jobs whose last error contains this text, in any case.")
@click.option("--since", type=When(), metavar="TIME", help="Jobs that ended since: 2h, 7d, 2030-01-31T09:00Z.")
@click.option("--until", type=When(), metavar="TIME", help="Jobs that ended before.")
@click.option("--status", type=click.Choice(["dead", "failed"]), multiple=True, help="In which state (default: dead).")
@click.option("--all", "everything", is_flag=True, help="All of them, without any filter.")
@rehearsal
@certain
@as_json
@database
def requeue(
    *,
    ids: tuple[int, ...],
    database_url: str | None,
    schema: str | None,
    since: Any,
    until: Any,
    status: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """Send dead jobs back, each with all its attempts before it again; their history is kept.

    Say which: by IDS, or by filters, which must all match. Safe while workers run, and while somebody else does the
    same: each job moves once.
    """
    if not (ids or since or until or everything or any(filters.values())):
        raise click.UsageError("which jobs? Give ids, --kind, --error, --since or --until; or --all for all of them")
    from redrive import store

    with session(database_url, schema) as now:
        times: dict[str, Any] = {"since": before(since, now.now), "until": before(until, now.now)}
        which = store.Ended(ids=ids or None, statuses=status or ("dead",), **times, **filters)
        [found] = now.ask(store.requeue_preview(now.schema, which))
        strays = _strays(now, ids, lambda job: _ended(job) in which.statuses)
        if not as_json:
            _preview(f"{screen.jobs(found.jobs, ' or '.join(which.statuses))} found", found.sample, strays)
        moved: list[int] = []
        if found.jobs and not dry_run:
            _ask(f"Send back {screen.jobs(found.jobs)}?", yes=yes or bool(ids))
            moved = _send_back(now, which, found.jobs)
    skipped = 0 if dry_run else max(0, found.jobs - len(moved))
    if as_json:
        answer = {"matched": found.jobs, "requeued": len(moved), "skipped": skipped, "dry_run": dry_run}
        screen.document({**answer, "ids": moved, "sample": found.sample or [], "not_requeued": strays})
    elif not dry_run:
        click.echo(f"{screen.number(len(moved))} sent back, {skipped} skipped because their state changed")
    if strays:
        raise click.exceptions.Exit(PROBLEM)


def _send_back(now: Session, which: Ended, total: int) -> list[int]:
    from redrive import store

    with _bar("sending back", total) as advance:
        try:
            return now.queue.requeue(which, connection=now.conn, on_batch=advance)
        except KeyboardInterrupt:
            # Counted anew: the signal may have come between a batch's commit and our hearing of it.
            [left] = now.ask(store.requeue_preview(now.schema, which))
            raise Trouble(f"stopped: {screen.jobs(left.jobs)} left as they were, the others were sent back") from None


@click.command(
    short_help="Cancel jobs.",
    epilog=examples(
        "redrive cancel 42 --reason 'the customer left'",
        "redrive cancel --key welcome:42",
        "redrive cancel --kind export --dry-run",
    ),
)
@click.argument("ids", nargs=-1, type=int)
@click.option("--kind", metavar="KIND", help="Jobs of this kind.")
@click.option("--key", metavar="TEXT", help="The job with this key.")
@click.option("--reason", default="", metavar="TEXT", help="Why; kept with the jobs.")
@rehearsal
@certain
@as_json
@database
def cancel(
    *,
    ids: tuple[int, ...],
    database_url: str | None,
    schema: str | None,
    kind: str | None,
    key: str | None,
    reason: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Cancel pending jobs, and ask running ones to stop.

    A cancelled job is failed, with the reason, and needs nobody; `redrive requeue --status failed` brings it back. A
    running job ends when its handler does, or looks at job.should_stop.
    """
    if not (ids or kind or key):
        raise click.UsageError("which jobs? Give ids, --kind or --key")
    from redrive import store
    from redrive.job import LIVE

    with session(database_url, schema) as now:
        which: dict[str, Any] = {"kind": kind, "key": key}
        [found] = now.ask(store.cancel_preview(now.schema, ids=ids or None, **which))
        strays = _strays(now, ids, lambda job: job.status in LIVE)
        if not as_json:
            _preview(
                f"{screen.number(found.pending)} pending and {screen.jobs(found.running, 'running')} found",
                found.sample,
                strays,
            )
        states: list[str] = []
        if found.sample and not dry_run:
            _ask(f"Cancel {screen.jobs(found.pending + found.running)}?", yes=yes or bool(ids or key))
            states = list(now.queue.cancel(*ids, **which, reason=reason, connection=now.conn).values())
    cancelled, asked = states.count("pending"), states.count("running")
    if as_json:
        answer = {"cancelled": cancelled, "asked_to_stop": asked, "dry_run": dry_run}
        screen.document({**answer, "sample": found.sample or [], "not_cancelled": strays})
    elif not dry_run:
        click.echo(f"{screen.number(cancelled)} cancelled, {asked} running asked to stop")
    if strays:
        raise click.exceptions.Exit(PROBLEM)


def _strays(now: Session, ids: tuple[int, ...], fit: Callable[[Job], bool]) -> dict[int, str]:
    """Find which of the jobs named by their ids are in no state for this, or not there."""
    from redrive import store

    found = {job_id: now.ask(store.get(now.schema, job_id)) for job_id in dict.fromkeys(ids)}
    return {
        job_id: rows[0].status if rows else "not there"
        for job_id, rows in found.items()
        if not rows or not fit(rows[0])
    }


def _ended(job: Job) -> str:
    """Give a job's state as an operator sees it: failed without a reason of ours is as good as dead."""
    ours = (job.last_error or "").startswith(("cancelled", "discarded"))
    return "dead" if job.status == "failed" and not ours else job.status


def _preview(matched: str, sample: list[int] | None, strays: dict[int, str]) -> None:
    click.echo(f"{matched}{': ' if sample else ''}{' '.join(map(str, sample or []))}")
    for job_id, status in strays.items():
        click.secho(f"job {job_id} is {status}", fg="yellow", err=True)


def _ask(question: str, *, yes: bool) -> None:
    """Ask a human; a script that left --yes out has named a filter, and means it."""
    if not yes and sys.stdin.isatty():
        click.confirm(question, abort=True, err=True)


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    if total < LONG or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)
