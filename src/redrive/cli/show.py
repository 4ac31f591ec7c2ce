"""``redrive show``: everything that is known of one job, its failures as a timeline."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.options import application, as_json, database, examples
from redrive.cli.screen import Cell
from redrive.cli.session import session
from redrive.words import counted

if TYPE_CHECKING:
    from datetime import datetime

    from redrive.audit import Act
    from redrive.cli.curtain import Curtain
    from redrive.job import Job


@click.command(
    short_help="Show one job and its history.",
    epilog=examples("redrive show 42", "redrive show 42 --tracebacks", "redrive show 42 --json | jq .failures"),
)
@click.argument("job_id", metavar="ID", type=int)
@click.option("--tracebacks", is_flag=True, help="Show the traceback of every failure, not of the last alone.")
@application
@as_json
@database
def show(
    job_id: int, database_url: str | None, schema: str | None, app: str | None, *, tracebacks: bool, as_json: bool
) -> None:
    """Show the job ID: its row, and each of its failed attempts. Secrets are masked."""
    from redrive import store
    from redrive.cli.curtain import curtain

    hide = curtain(app)
    with session(database_url, schema) as now:
        found = now.ask(store.get(now.schema, job_id))
        history = [hide.failure(row) for row in now.ask(store.failures(now.schema, job_id))]
        edits = [
            row for row in now.queue.audit.list(job=job_id, limit=100, connection=now.conn) if row.before is not None
        ]
        if not found and not history:
            raise now.missing(job_id)
    job = hide.job(found[0]) if found else None
    if as_json:
        screen.document({"job": job, "failures": history, "edits": [_edit(row, found, hide) for row in edits]})
        return
    if job is None:
        click.echo(f"job {job_id} ({screen.clean(history[-1]['kind'])}) is gone from the table; its failures are kept")
    else:
        _show_row(job, now.now)
    _show_edits([_edit(row, found, hide) for row in edits], now.now)
    _show_history(history, now.now)
    _show_tracebacks(history if tracebacks else history[-1:], job)


def _show_row(job: dict[str, Any], now: datetime) -> None:
    text, style = screen.state(job["status"])
    title = click.style(f"job {job['id']}  {screen.clean(job['kind'])}  ", bold=True)
    click.echo(title + click.style(text, fg=style.split()[-1], bold="bold" in style))
    click.echo()
    for name, value in _facts(job, now):
        if value:
            click.echo(click.style(f"{name:<12}", dim=True) + value)
    for name in ("payload", "progress", "result", "metadata"):
        if job[name] is not None:
            screen.heading(name)
            click.echo(screen.clean(json.dumps(job[name], indent=2, ensure_ascii=False, default=str)))


def _facts(job: dict[str, Any], now: datetime) -> list[tuple[str, str]]:
    def at(name: str) -> str:
        return screen.moment(job[name], now)

    running = job["status"] == "running"
    tries = f"{job['attempts']} of {job['max_attempts']}"
    crashes = f", {counted(job['crashes'], 'worker death')}" if job["crashes"] else ""
    return [
        ("tries", f"{tries}{crashes}, claimed {job['claims']} {'time' if job['claims'] == 1 else 'times'}"),
        ("created", at("created_at")),
        ("run at", at("run_at")),
        ("updated", at("updated_at")),
        ("claimed", at("locked_at") if running else ""),
        ("by", screen.clean(job["locked_by"] or "")),
        ("cancel", f"asked for {at('cancel_requested_at')}" if job["cancel_requested_at"] else ""),
        ("expires", at("expires_at")),
        ("key", screen.clean(job["key"] or "")),
        ("lane", screen.clean(job["lane"])),
        ("priority", str(job["priority"])),
        ("alone", "runs with nothing beside it: its worker died while it may have run" if job["alone"] else ""),
    ]


def _edit(act: Act, found: list[Job], hide: Curtain) -> dict[str, Any]:
    """Give one change of the payload, masked; of a job that is gone nobody knows whether all of it is secret."""
    kind = found[0].kind if found else ""
    payloads = {name: hide.data(kind, getattr(act, name)) for name in ("before", "after")}
    return {"id": act.id, "at": act.at, "by": act.by, "reason": act.reason, **payloads}


def _show_edits(edits: list[dict[str, Any]], now: datetime) -> None:
    for edit in reversed(edits):
        by = f" by {edit['by']}" if edit["by"] else ""
        why = f": {edit['reason']}" if edit["reason"] else ""
        screen.heading(screen.one_line(f"payload changed {screen.ago(edit['at'], now)}{by}{why}; before that"))
        click.echo(screen.clean(json.dumps(edit["before"], indent=2, ensure_ascii=False, default=str)))


def _show_history(history: list[dict[str, Any]], now: datetime) -> None:
    if not history:
        return
    screen.heading(f"failures ({len(history)})")
    rows = [
        [
            screen.moment(row["failed_at"], now),
            str(row["attempt"]),
            screen.state(row["outcome"]),
            "" if row["duration"] is None else screen.span(row["duration"]),
            row["worker"] or "",
            Cell(f"{row['error_type']}: {row['message']}"),
        ]
        for row in history
    ]
    screen.table(("WHEN", "TRY", "OUTCOME", "AFTER", "WORKER", "ERROR"), rows, right=("TRY",))


def _show_tracebacks(history: list[dict[str, Any]], job: dict[str, Any] | None) -> None:
    texts = [(f"traceback of try {row['attempt']}", row["traceback"]) for row in history if row["traceback"]]
    if not texts and job is not None and job["last_error"]:
        texts = [("last error", job["last_error"])]  # of a worker that isn't redrive's, or with no traceback
    for title, text in texts:
        screen.heading(title)
        click.echo(screen.clean(text.rstrip()))
