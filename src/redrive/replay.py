"""Runs a job's handler here and now, with its payload: to see it fail, or to see that it no longer does.

Nothing of the job is written: not its row, its count of tries, its progress or its completion. What the handler itself
does is real.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from redrive.drivers import awaited
from redrive.errors import InvalidOption
from redrive.job import EPOCH, LIVE, ClaimedJob, Holder

if TYPE_CHECKING:
    from redrive.handlers import Handler
    from redrive.job import Job


@dataclass(kw_only=True)
class Replay:
    """What a handler came to."""

    result: Any = None
    error: BaseException | None = None
    """What it raised, with its traceback; a verdict, such as Retry or Discard, too."""
    seconds: float = 0.0
    progress: list[Any] = field(default_factory=list)
    """What it said by job.progress()."""
    completed: bool = False
    """Whether it said job.complete()."""


def replay(handler: Handler[Any, Any], job: Job, schema: str) -> Replay:
    """Call *handler* with *job* in this thread and process, without a timeout, and give what it came to.

    Raises:
        InvalidOption: for a job that is pending or running: a worker may run it at the same time.
    """
    demand_at_rest(job)
    made = Replay()
    claimed = _claimed(job, schema, made, handler)
    began = time.monotonic()
    try:
        answer = handler.call_here(claimed)
        made.result = asyncio.run(_awaited(answer)) if hasattr(answer, "__await__") else answer
    except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001 - it is what was asked for
        made.error = error
    made.seconds = time.monotonic() - began
    return made


def demand_at_rest(job: Job) -> None:
    """Refuse a job that a worker may run.

    Raises:
        InvalidOption: naming its state.
    """
    if job.status in LIVE:
        raise InvalidOption(f"job {job.id} is {job.status}: a worker may run it at the same time; cancel it first")


async def _awaited(answer: Any) -> Any:
    return await answer


def _claimed(job: Job, schema: str, made: Replay, handler: Handler[Any, Any]) -> ClaimedJob:
    def note(_job: ClaimedJob, value: Any) -> None:
        made.progress.append(value)

    def complete(_job: ClaimedJob, connection: Any, _result: Any) -> Any:
        made.completed = True
        return _nothing() if awaited(connection) else None

    row = (
        job.id,
        job.kind,
        json.dumps(job.payload),
        max(1, job.attempts),
        job.max_attempts,
        job.claims,
        job.crashes,
        job.priority,
        job.lane,
        _microseconds(job.run_at),
        _microseconds(job.created_at),
        None if job.metadata is None else json.dumps(job.metadata),
        None,
    )
    return ClaimedJob(Holder("replay", schema, note, complete, lambda _job, *what: handler.queue.follower(*what)), row)


async def _nothing() -> None:
    pass


def _microseconds(when: datetime) -> int:
    return (when - EPOCH) // timedelta(microseconds=1)
