"""The one place that writes what became of jobs: in batches, in id order, fenced by the lease, until it is done.

What a handler did can't be undone, so an outcome is kept and written again until the database has it or says that the
lease is lost. One outcome that can't be stored never holds up the others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from psycopg import AsyncConnection, Connection

from redrive import errors
from redrive.connections import Control, is_outage, is_transient
from redrive.events import JobDied, JobSucceeded, LeaseLost, emit, heard
from redrive.failure import describe
from redrive.job import Latest
from redrive.outcome import (
    Crashed,
    Died,
    Failed,
    Finished,
    HandedBack,
    Retried,
    Snoozed,
    Succeeded,
    event,
    parameters,
    uncommitted,
)
from redrive.payload import encode_result
from redrive.service import FOR_EVER, Database, Service
from redrive.statements import Statement, arun, named, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from redrive.job import ClaimedJob

BATCH = 1000
GATHER = 0.002
"""Under load, the pause in which outcomes gather for the next statement. A crash repeats at most what ended in it."""
PROGRESS_EVERY = 1.0

_log = logging.getLogger("redrive")


class Writer(Service):
    """Writes outcomes, hand-backs and progress on a connection of its own."""

    name = "writer"

    def __init__(self, database: Database, control: Control, worker: str, max_crashes: int) -> None:
        super().__init__(database)
        self.on_dead: Callable[[JobDied], None] = lambda _event: None
        self.on_later: Callable[[float], None] = lambda _seconds: None
        """Told of a job that is pending again, with the seconds until it is due."""
        self._control = control
        self._worker = worker
        self._max_crashes = max_crashes
        self._done: deque[Finished] = deque()
        self._batch: list[Finished] = []
        self._tried = False
        self._woken = False
        self._progress = Latest()
        self._progress_at = 0.0
        self._loop = asyncio.get_running_loop()

    def put(self, finished: Finished) -> None:
        """Take an outcome, from the loop or from a handler's thread."""
        self._done.append(finished)
        self._call()

    def put_progress(self, job: ClaimedJob, value: Any) -> None:
        """Take a job's progress; the newest wins."""
        self._progress.put(job, encode_result(value))
        self._call()

    def hand_back(self, jobs: Iterable[ClaimedJob]) -> None:
        """Give jobs back as if they had not been claimed."""
        for job in jobs:
            self.put(Finished(job, HandedBack(), None))

    @property
    def idle(self) -> bool:
        """Whether everything has been written."""
        return not self._done and not self._batch

    def held(self) -> list[int]:
        """List the ids of jobs whose outcome is not written yet."""
        return [one.job.id for one in [*list(self._done), *self._batch]]

    @property
    def unwritten(self) -> int:
        """Outcomes that wait for the database."""
        return len(self._done) + len(self._batch)

    async def tick(self) -> float:
        """Write what there is; what fails stays for the next round."""
        await self._write_progress()
        if not self._batch:
            self._batch = self._take()
        if not self._batch:
            return FOR_EVER
        size = len(self._batch)
        await self._write(self._batch)
        self._batch, self._tried = [], False
        if not self._done:
            return FOR_EVER
        return GATHER if size > len(self._done) and size < BATCH else 0.0

    def _call(self) -> None:
        if self._woken:
            return
        self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._arrived)
        except RuntimeError:  # the loop is closed: a thread outlived its worker, whose jobs were handed back
            _log.debug("outcome after the worker's end")

    def _arrived(self) -> None:
        self._woken = False
        self.wake()

    def _take(self) -> list[Finished]:
        taken: list[Finished] = []
        while self._done and len(taken) < BATCH:
            taken.append(self._done.popleft())
        return sorted(taken, key=lambda finished: int(finished.job.id))

    async def _write(self, batch: Sequence[Finished]) -> None:
        completed = [one for one in batch if one.job.completed]
        plain = [one for one in batch if one.plain and not one.job.completed]
        others = [one for one in batch if not one.plain and not one.job.completed]
        if completed:
            others += await self._rolled_back(completed)
        again, self._tried = self._tried, True
        if plain:
            found = await self._succeed(plain)
            if len(found) < len(plain):
                await self._not_ours([one for one in plain if one.job.id not in found], again=again)
            if heard(JobSucceeded):
                self._tell_successes(one for one in plain if one.job.id in found)
        if others:
            await self._finish(sorted(others, key=lambda one: int(one.job.id)), again=again)

    async def _succeed(self, batch: Sequence[Finished]) -> set[int]:
        params: dict[str, Any] = {
            "ids": [one.job.id for one in batch],
            "claims": [one.job.claim for one in batch],
        }
        return {
            row.id
            for row in await self._control.run(
                named("succeed_jobs", self._control.schema, worker=self._worker, **params)
            )
        }

    async def _finish(self, batch: Sequence[Finished], *, again: bool) -> None:
        try:
            rows = await self._control.run(
                named(
                    "finish_jobs",
                    self._control.schema,
                    worker=self._worker,
                    max_crashes=self._max_crashes,
                    **parameters(batch),
                )
            )
        except Exception as error:
            if is_outage(error) or is_transient(error):
                raise
            await self._one_by_one(batch, error, again=again)
            return
        verdicts = {row.id: row for row in rows}
        for one in batch:
            if (row := verdicts.get(one.job.id)) is not None:
                self._tell(one, row.status, row.reason)
        if len(verdicts) < len(batch):
            await self._not_ours([one for one in batch if one.job.id not in verdicts], again=again)

    async def _one_by_one(self, batch: Sequence[Finished], error: Exception, *, again: bool) -> None:
        """One of the batch can't be stored: find it, and store what can be said of it in its place."""
        if len(batch) > 1:
            for one in batch:
                await self._finish([one], again=again)
            return
        [one] = batch
        plain = _in_ascii(one)
        if plain != one:
            await self._finish([plain], again=again)
            return
        if isinstance(one.outcome, Died) and one.outcome.failure.error_type == "OutcomeRefused":
            raise error
        _log.error("outcome of job %s could not be stored: %s", one.job.id, error, extra={"job": one.job.id})
        refused = replace(describe(error), error_type="OutcomeRefused", traceback="")
        await self._finish([replace(one, outcome=Died(refused))], again=again)

    async def _rolled_back(self, completed: Sequence[Finished]) -> list[Finished]:
        """Of jobs that said complete(): those whose transaction never came to be. Their try failed."""
        written = await self._written(completed)
        back = []
        for one in completed:
            if one.job.id in written:
                emit(event(one, "succeeded"))
                continue
            one.job.completed = False
            back.append(uncommitted(one))
        return back

    async def _written(self, batch: Sequence[Finished]) -> set[int]:
        params: dict[str, Any] = {
            "ids": [one.job.id for one in batch],
            "claims": [one.job.claim for one in batch],
        }
        return {
            row.id
            for row in await self._control.run(
                named("was_written", self._control.schema, worker=self._worker, **params)
            )
        }

    async def _not_ours(self, batch: Sequence[Finished], *, again: bool) -> None:
        written = await self._written(batch) if again else set()
        for one in batch:
            if one.job.id not in written:
                one.job.lost = True
                emit(LeaseLost(id=one.job.id, kind=one.job.kind, attempt=one.job.attempt, worker=self._worker))

    async def _write_progress(self) -> None:
        if time.monotonic() - self._progress_at < PROGRESS_EVERY:
            return
        for job, value in self._progress.take():
            self._progress_at = time.monotonic()
            params = {"id": job.id, "claim": job.claim, "worker": self._worker, "progress": value}
            if not await self._control.run(named("write_progress", self._control.schema, **params)):
                job.lost = job.id is not None and not job.completed

    def _tell_successes(self, batch: Iterable[Finished]) -> None:
        for one in batch:
            emit(event(one, "succeeded"))

    def _tell(self, one: Finished, status: str, reason: str) -> None:
        said = event(one, status, reason)
        if status == "pending" and isinstance(one.outcome, Retried | Snoozed | Crashed):
            self.on_later(one.outcome.delay)
        emit(said)
        if isinstance(said, JobDied):
            self.on_dead(said)


def complete(job: ClaimedJob, connection: Any, result: Any) -> Any:
    """Record a job's success in the transaction of the user's *connection*; to be awaited where that is an async one.

    Raises:
        LeaseLost: when the job isn't its worker's any more.
    """
    text = encode_result(result)
    statement = named("complete_job", job.schema, id=job.id, claim=job.claim, worker=job.worker, result=text)
    if isinstance(connection, AsyncConnection):
        return _acomplete(job, connection, statement)
    if not isinstance(connection, Connection):
        raise TypeError(f"job.complete: connection is a {type(connection).__qualname__}, not a psycopg connection")
    _completed(job, run(connection, statement))
    return None


async def _acomplete(job: ClaimedJob, connection: AsyncConnection[Any], statement: Statement[Any]) -> None:
    _completed(job, await arun(connection, statement))


def _completed(job: ClaimedJob, rows: list[Any]) -> None:
    if not rows:
        job.lost = True
        raise errors.LeaseLost(f"job {job.id} is not this worker's any more: roll back")
    job.completed = True


def _in_ascii(one: Finished) -> Finished:
    """Spell an outcome in ASCII, for a database whose encoding has no room for its text."""

    def spelt(text: str) -> str:
        return text.encode("ascii", "backslashreplace").decode()

    outcome = one.outcome
    match outcome:
        case Succeeded(result=str(result)):
            return replace(one, outcome=Succeeded(spelt(result)))
        case Retried() | Failed() | Died() | Crashed():
            failure = outcome.failure
            plain = replace(
                failure,
                message=spelt(failure.message),
                traceback=spelt(failure.traceback),
                last_error=spelt(failure.last_error),
            )
            return replace(one, outcome=replace(outcome, failure=plain))
        case _:
            return one
