"""A job's page: its row, its story from the enqueue to now, and what can be done with a job in its state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from redrive import store
from redrive.audit import Audit
from redrive.curtain import ends
from redrive.job import Job
from redrive.masking import mask_text
from redrive.sql import BROKER
from redrive.web import picture, shown
from redrive.web.page import Page
from redrive.web.pages import audited
from redrive.web.readings import at_broker
from redrive.words import one_line, span

if TYPE_CHECKING:
    from starlette.requests import Request

    from redrive.web.app import Desk

SHOWN = 100
"""Failed attempts of one job that are shown, the newest ones."""
DEEDS = {
    "dead": ("requeue",),
    "failed": ("requeue",),
    "pending": ("cancel",),
    "running": ("stop",),
    "succeeded": (),
}
"""What can be done with a job, by its state."""


@dataclass(frozen=True)
class Stretch:
    """A part of a job's life: what it did, from when to when, and what came of it."""

    what: str
    """waited, ran, or waits and runs where it still does."""
    start: datetime
    end: datetime
    tone: str = ""
    text: str = ""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return max(0.0, (self.end - self.start).total_seconds())


def job(desk: Desk, request: Request) -> Page:
    """Show one job."""
    text = request.path_params["id"]
    if not text.removeprefix("-").isdecimal() or len(text) > 19 or not text.isascii():  # noqa: PLR2004 - digits of a bigint
        raise HTTPException(404)
    found = desk.reader.ask(store.get(desk.queue.schema, int(text)))
    newest = desk.reader.ask(desk.reader.statement("desk_history", id=int(text), limit=SHOWN + 1))
    failures = newest[:SHOWN][::-1]
    if not found and not failures:
        there = at_broker(desk)
        way = ", is at the broker or was run from there" if there is not None else ""
        raise HTTPException(
            404, f"There is no job {int(text)}: it was never there{way}, or has outlived its retention."
        )
    now = desk.now()
    row = found[0] if found else None
    history = [desk.curtain.failure(each) for each in failures]
    large = row is not None and len(shown.data(row.payload)) > shown.MOST
    stretches = life(row, failures, now, whole=len(newest) <= SHOWN) if row else []
    context = {
        "nav": "jobs",
        "id": int(text),
        "job": desk.curtain.job(replace(row, last_error=ends(row.last_error))) if row else None,
        "history": list(reversed(history)),
        "left_out": len(newest) > SHOWN,
        "stretches": stretches,
        "drawing": picture.timeline(stretches, now) if stretches else "",
        "acts": [audited(desk, each) for each in Audit(desk.reader).list(job=int(text), limit=20)],
        "whole": row is not None and not large and desk.curtain.data(row.kind, row.payload) == row.payload,
        "large": large,
        "adopted": adopted(row) if row else None,
        "deeds": deeds(row, now) if row else (),
        "state": state(row, now) if row else "gone",
        "now": now,
    }
    return Page("job.html", context)


def adopted(row: Job) -> dict[str, Any] | None:
    """Tell of which row of an adopted table a job is; what a stranger wrote there is not believed."""
    found = row.metadata.get("adopted") if isinstance(row.metadata, dict) else None
    texts = isinstance(found, dict) and isinstance(found.get("table"), str) and isinstance(found.get("row"), str)
    return found if texts else None


def deeds(row: Job, now: datetime) -> tuple[str, ...]:
    """List what can be done with a job as it is."""
    if row.status == "running" and row.locked_by == BROKER:
        return ()  # nobody can be asked: it is not known who will run it
    early = ("hurry",) if row.status == "pending" and row.run_at > now else ()
    return (*early, *DEEDS.get(row.status, ()))


def state(row: Job, now: datetime) -> str:
    """Say in words what a job is doing."""
    if row.status == "running" and row.locked_by == BROKER:
        return "at the broker, where it waits or runs"
    if row.status == "running":
        return "is asked to stop" if row.cancel_requested_at else "running"
    if row.status != "pending":
        return str(row.status)
    if row.run_at > now:
        return "waits for its next try" if row.attempts else "scheduled"
    return "due"


def life(row: Job, failures: list[Any], now: datetime, *, whole: bool = True) -> list[Stretch]:
    """Tell a job's life in stretches; of tries that left no failure only the last is known.

    Where *failures* are not the *whole* of them, it begins with the first of these.
    """
    stretches: list[Stretch] = []
    at = row.created_at if whole else failures[0].failed_at - timedelta(seconds=failures[0].duration or 0.0)
    for failure in failures:
        began = failure.failed_at - timedelta(seconds=failure.duration or 0.0)
        if began > at:
            stretches.append(Stretch("waited", at, began))
        said = f"{failure.outcome}: {failure.error_type}"
        if failure.duration is None:
            stretches.append(Stretch("lost", failure.failed_at, failure.failed_at, "bad", one_line(mask_text(said))))
        else:
            stretches.append(Stretch("ran", began, failure.failed_at, "bad", one_line(mask_text(said))))
        at = max(at, failure.failed_at)
    stretches += _last(row, at, now)
    return stretches


def _last(row: Job, at: datetime, now: datetime) -> list[Stretch]:
    if row.status == "pending":
        text = f"due in {span((row.run_at - now).total_seconds())}" if row.run_at > now else "due now"
        return [Stretch("waits", at, max(at, now), "wait", text)]
    if row.status == "running" and row.locked_by == BROKER:
        # nobody tells the table when it begins there
        return [Stretch("there", at, max(at, now), "wait", "at the broker, where it waits or runs")]
    if row.status == "running":
        began = max(at, min(row.locked_at or row.updated_at, row.updated_at))
        return [*_gap(at, began), Stretch("runs", began, max(began, now), "run", f"held by {row.locked_by}")]
    if row.status == "succeeded":
        began = max(at, row.locked_at or row.updated_at)
        end = max(began, row.updated_at)
        return [*_gap(at, began), Stretch("ran", began, end, "good", "succeeded")]
    if row.status == "failed" and row.updated_at > at:
        began = row.locked_at if row.locked_at and at <= row.locked_at <= row.updated_at else row.updated_at
        return [*_gap(at, began), Stretch("ran", began, row.updated_at, "off", "ended on purpose")]
    return []


def _gap(start: datetime, end: datetime) -> list[Stretch]:
    return [Stretch("waited", start, end)] if end > start else []
