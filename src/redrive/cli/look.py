"""``redrive jobs`` and ``redrive workers``: what there is, in lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.options import application, as_json, database, examples, worker_command
from redrive.cli.screen import Cell
from redrive.cli.session import Session, session

if TYPE_CHECKING:
    from datetime import datetime

STATES = ("pending", "running", "succeeded", "failed", "dead")


@click.command(
    short_help="List jobs, newest first.",
    epilog=examples(
        "redrive jobs",
        "redrive jobs --status dead --kind send_email",
        "redrive jobs --error 'connection refused' --limit 200 --json",
        "redrive jobs --counts                       # how many of each kind and state",
    ),
)
@click.option("--status", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("--kind", metavar="KIND", help="Only jobs of this kind.")
@click.option("--key", metavar="TEXT", help="Only jobs with this key.")
@click.option("--error", metavar="TEXT", help="Only jobs whose last error contains this text, in any case.")
@click.option("--before", type=int, metavar="ID", help="Only jobs older than this one: the next page.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many at most.")
@click.option("--counts", is_flag=True, help="Count by kind and state instead; on a large table it takes a while.")
@application
@as_json
@database
def jobs(
    database_url: str | None,
    schema: str | None,
    app: str | None,
    *,
    limit: int,
    counts: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """List jobs, newest first. Secrets in payloads and errors are masked."""
    if counts:
        if given := [name for name, value in filters.items() if value is not None]:
            raise click.UsageError(f"--counts counts all jobs: leave --{given[0]} out")
        with session(database_url, schema) as now:
            _show_counts(now, as_json=as_json)
        return
    from redrive import store
    from redrive.cli.curtain import curtain

    hide = curtain(app)
    with session(database_url, schema) as now:
        rows = now.ask(store.list_jobs(now.schema, **filters, limit=limit))
    shown = [hide.job(row) for row in rows]
    more = rows[-1].id if len(rows) == limit else None
    if as_json:
        screen.document({"jobs": shown, "next_before": more})
        return
    headers = ("ID", "KIND", "STATUS", "TRIES", "WHEN", "ERROR OR PAYLOAD")
    screen.table(headers, [_line(row, now.now) for row in shown], right=("ID", "TRIES"))
    if more:
        screen.note(f"{limit} shown; older ones: add --before {more}")
    elif not rows:
        screen.note("no job matches" if any(filters.values()) else "no jobs")


def _line(job: dict[str, Any], now: datetime) -> list[str | Cell]:
    from redrive.cli.curtain import gist

    limit = 0 if screen.on_terminal() else 200
    error = gist(job["last_error"]) if job["status"] != "succeeded" else ""
    detail = screen.one_line(error, limit) if error else screen.compact(job["payload"], limit or 1000)
    return [
        str(job["id"]),
        job["kind"],
        screen.state(job["status"]),
        f"{job['attempts']}/{job['max_attempts']}",
        _when(job, now),
        Cell(detail, "" if error else "dim"),
    ]


def _when(job: dict[str, Any], now: datetime) -> str:
    if job["status"] == "pending":
        waits = job["run_at"] > now
        return screen.ago(job["run_at"], now) if waits else f"due {screen.ago(job['run_at'], now)}"
    if job["status"] == "running":
        return f"for {screen.span((now - (job['locked_at'] or job['updated_at'])).total_seconds())}"
    return screen.ago(job["updated_at"], now)


def _show_counts(now: Session, *, as_json: bool) -> None:
    from redrive import store

    rows = now.ask(store.counts(now.schema))
    if as_json:
        screen.document({"counts": [row._asdict() for row in rows]})
        return
    headers = ("KIND", "STATUS", "JOBS", "DUE", "RETRYING", "OLDEST DUE")
    lines = [
        [
            row.kind,
            screen.state(row.status),
            screen.number(row.jobs),
            screen.number(row.due) if row.due else "",
            screen.number(row.retrying) if row.retrying else "",
            screen.span(row.oldest_due) if row.oldest_due is not None else "",
        ]
        for row in rows
    ]
    screen.table(headers, lines, right=("JOBS", "DUE", "RETRYING", "OLDEST DUE"))


def _running(row: Any) -> str:
    from redrive.kinds import BROKER_WORKER

    return "?" if row.works_as == BROKER_WORKER else str(row.in_flight)


@click.command(
    short_help="List the worker processes.",
    epilog=examples("redrive workers", "redrive workers --json | jq '.workers[] | select(.problem)'"),
)
@as_json
@database
def workers(database_url: str | None, schema: str | None, *, as_json: bool) -> None:
    """List the worker processes that gave a sign of life within the last day."""
    from redrive import store
    from redrive.cli.curtain import text
    from redrive.kinds import BROKER_WORKER, RELAY

    with session(database_url, schema) as now:
        rows = [row._replace(problem=text(row.problem)) for row in now.ask(store.workers(now.schema))]
    if as_json:
        screen.document({"workers": [row._asdict() for row in rows]})
        return
    headers = ("WORKER", "STATE", "JOBS", "STARTED", "LAST BEAT", "APP", "REDRIVE", "WORKS AS", "KINDS", "PROBLEM")
    lines = [
        [
            row.name,
            screen.state("alive" if row.alive else "silent"),
            "" if row.works_as == RELAY else f"{_running(row)}/{row.concurrency}",
            screen.ago(row.started_at, now.now),
            f"{screen.span(row.silent_for)} ago",
            row.app_version or "",
            row.version,
            row.works_as,
            ", ".join(row.kinds),
            Cell(row.problem or "", "red"),
        ]
        for row in rows
    ]
    screen.table(headers, lines, right=("JOBS",))
    if any(row.works_as == BROKER_WORKER for row in rows):
        screen.note("?: with --broker a worker tells once a minute how many jobs it has; --json has what it told last")
    if not rows:
        screen.note(f"no worker: start one with `{worker_command()}`")
