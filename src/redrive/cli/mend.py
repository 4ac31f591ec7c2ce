"""``redrive cancel``, and what it has in common with ``redrive requeue``: many jobs at once, seen before it is done.

Neither takes "nothing said" for "all", and both say which jobs were not as expected when their turn came.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.exits import PROBLEM
from redrive.cli.options import as_json, database, examples, signed
from redrive.cli.session import Session, session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redrive.job import Job

LONG = 1000
"""Jobs from which on a bar shows how far it is."""

certain = click.option("--yes", is_flag=True, help="Don't ask.")
rehearsal = click.option("--dry-run", is_flag=True, help="Say which jobs are meant, and change nothing.")


class JobId(click.ParamType[int]):
    """The id of a job; what is none is most often a kind or a group, which go by flags."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the text."""
        try:
            return int(value)
        except ValueError:
            flags = {flag for each in (ctx.command.params if ctx else ()) for flag in each.opts}
            flag = "--group" if ":" in str(value) and "--group" in flags else "--kind"
            self.fail(f"{value!r} is no id of a job: perhaps {flag} {value}?", param, ctx)


@click.command(
    short_help="Cancel jobs.",
    epilog=examples(
        "redrive cancel 42 --reason 'the customer left'",
        "redrive cancel --key welcome:42",
        "redrive cancel --kind export --dry-run",
    ),
)
@click.argument("ids", nargs=-1, type=JobId())
@click.option("--kind", metavar="KIND", help="Jobs of this kind.")
@click.option("--key", metavar="TEXT", help="The job with this key.")
@signed
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
    by: str,
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
        missing = unfit(now, ids, lambda job: job.status in LIVE)
        if not as_json:
            preview(
                f"{screen.number(found.pending)} pending and {screen.jobs(found.running, 'running')} found",
                found.sample,
                missing,
            )
        if "not there" in missing.values() and (seek := now.elsewhere()):
            screen.note(screen.one_line(f"note: {seek}; what is at the broker can't be cancelled any more"))
        states: list[str] = []
        if found.sample and not dry_run:
            ask(f"Cancel {screen.jobs(found.pending + found.running)}?", yes=yes or bool(ids or key))
            states = list(now.queue.cancel(*ids, **which, by=by, reason=reason, connection=now.conn).values())
    cancelled, asked = states.count("pending"), states.count("running")
    if as_json:
        answer = {"cancelled": cancelled, "asked_to_stop": asked, "dry_run": dry_run}
        screen.document({**answer, "sample": found.sample or [], "not_cancelled": missing})
    elif not dry_run:
        click.echo(f"{screen.number(cancelled)} cancelled, {asked} running asked to stop")
    if missing:
        raise click.exceptions.Exit(PROBLEM)


def unfit(now: Session, ids: tuple[int, ...], fit: Callable[[Job], bool]) -> dict[int, str]:
    """Find which of the jobs named by their ids are in no state for this, or not there."""
    from redrive import store

    found = {job_id: now.ask(store.get(now.schema, job_id)) for job_id in dict.fromkeys(ids)}
    return {
        job_id: rows[0].status if rows else "not there"
        for job_id, rows in found.items()
        if not rows or not fit(rows[0])
    }


def ended(job: Job) -> str:
    """Give a job's state as an operator sees it: failed without a reason of ours is as good as dead."""
    ours = (job.last_error or "").startswith(("cancelled", "discarded"))
    return "dead" if job.status == "failed" and not ours else job.status


def preview(matched: str, sample: list[int] | None, missing: dict[int, str]) -> None:
    """Say which jobs were found, and which of those that were named were not."""
    click.echo(f"{matched}{': ' if sample else ''}{' '.join(map(str, sample or []))}")
    for job_id, status in missing.items():
        click.secho(f"job {job_id} is {status}", fg="yellow", err=True)


def ask(question: str, *, yes: bool) -> None:
    """Ask a human; a script that left --yes out has named a filter, and means it."""
    if not yes and sys.stdin.isatty():
        click.confirm(question, abort=True, err=True)


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how far a long act has come."""
    if total < LONG or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)
