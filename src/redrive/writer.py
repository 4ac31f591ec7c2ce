"""The one place that writes what became of jobs: in batches, in id order, fenced by the lease, until it is done.

What a handler did can't be undone, so an outcome is kept and written again until the database has it or says that the
lease is lost. One outcome that can't be stored, or whose row somebody has locked, never holds up the others.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from redrive import errors
from redrive.connections import Control, is_outage, is_refusal, is_transient
from redrive.drivers import awaited
from redrive.events import JobDied, JobSucceeded, LeaseLost, emit, heard
from redrive.failure import describe
from redrive.job import Latest
from redrive.outcome import (
    Crashed,
    Died,
    Finished,
    HandedBack,
    Held,
    Retried,
    Snoozed,
    Succeeded,
    event,
    in_ascii,
    listed,
    parameters,
    uncommitted,
)
from redrive.payload import encode_result
from redrive.service import FOR_EVER, Database, Service
from redrive.statements import Statement, arun, as_array, named, numbered, run
from redrive.tally import COUNTED_AS, Tally

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from redrive.job import ClaimedJob

BATCH = 1000
GATHER = 0.002
"""Under load, the pause in which outcomes gather for the next statement. A crash repeats at most what ended in it."""
PROGRESS_EVERY = 1.0
LOCKED_PAUSE = 0.5
REFUSED_PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)
HOPELESS_AFTER = 5
"""Tries after which an outcome that was set aside keeps a worker that wants to end waiting no more."""
REFUSED = "OutcomeRefused"
_COLLISION = "40"
_LOCKED = "55P03"

_log = logging.getLogger("redrive")


@dataclass(frozen=True, slots=True)
class Aside:
    """An outcome that could not be written while others could."""

    finished: Finished
    why: str
    tries: int
    due: float


class Writer(Service):
    """Writes outcomes, hand-backs and progress on a connection of its own."""

    name = "writer"

    def __init__(self, database: Database, control: Control, worker: str, max_crashes: int) -> None:
        super().__init__(database)
        self.tally = Tally()
        self.on_dead: Callable[[JobDied], None] = lambda _event: None
        self.on_later: Callable[[float], None] = lambda _seconds: None
        """Told of a job that is pending again, with the seconds until it is due."""
        self.on_ended: Callable[[Sequence[Finished]], None] = lambda _batch: None
        """Told of a batch whose outcomes are written."""
        self._control = control
        self._worker = worker
        self._max_crashes = max_crashes
        self._done: deque[Finished] = deque()
        self._batch: list[Finished] = []
        self._tried = False
        self._aside: dict[int, Aside] = {}
        self._woken = False
        self.handed_back = 0
        """Jobs given back unfinished so far."""
        self._progress = Latest()
        self._acquitted: deque[ClaimedJob] = deque()
        self._progress_at = 0.0
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def put(self, finished: Finished) -> None:
        """Take an outcome, from the loop or from a handler's thread."""
        self._done.append(finished)
        if not self._woken:
            self._call()

    def put_progress(self, job: ClaimedJob, value: Any) -> None:
        """Take a job's progress; the newest wins."""
        self._progress.put(job, encode_result(value))
        self._call()

    def acquit(self, job: ClaimedJob) -> None:
        """Take the word that a job has come through its trial."""
        self._acquitted.append(job)
        self._call()

    def hand_back(self, jobs: Iterable[ClaimedJob]) -> None:
        """Give jobs back as if they had not been claimed."""
        for job in jobs:
            self.put(Finished(job, HandedBack(), None))

    @property
    def idle(self) -> bool:
        """Whether everything has been written that can be."""
        waits = any(each.tries < HOPELESS_AFTER for each in self._aside.values())
        return not self._done and not self._batch and not waits

    def held(self) -> list[int]:
        """List the ids of jobs whose outcome is not written yet."""
        return [one.job.id for one in [*list(self._done), *self._batch]] + list(self._aside)

    @property
    def backlog(self) -> int:
        """Outcomes on their way to the database, those that were set aside not counted."""
        return len(self._done) + len(self._batch)

    @property
    def unwritten(self) -> int:
        """Outcomes that wait for the database."""
        return len(self._done) + len(self._batch) + len(self._aside)

    async def tick(self) -> float:
        """Write what there is; what fails stays for the next round."""
        self._batch = self._batch or self._take()
        size = len(self._batch)
        progress_due = await self._write_progress()
        await self._write_acquittals()
        if self._batch:
            again, self._tried = self._tried, True
            await self._write(self._batch, again=again)
            batch, self._batch, self._tried = self._batch, [], False
            self.on_ended(batch)
        aside_due = await self._write_aside() if self._aside else FOR_EVER
        self.remark = "; ".join(each.why for each in list(self._aside.values())[:3])
        if not self._done:
            return min(progress_due, aside_due)
        return GATHER if size > len(self._done) and size < BATCH else 0.0

    async def _write_acquittals(self) -> None:
        while self._acquitted:
            job = self._acquitted[0]
            params = {"id": job.id, "claim": job.claim, "worker": self._worker}
            try:
                await self._control.run(named("acquit_job", self._control.schema, **params))
            except Exception as error:
                if not is_refusal(error):  # no outcome waits for this one
                    raise
            self._acquitted.popleft()

    def _call(self) -> None:
        if self._woken:
            return
        self._woken = True
        here = threading.get_ident() == self._thread  # no need to wake the loop that is running this
        try:
            (self._loop.call_soon if here else self._loop.call_soon_threadsafe)(self._arrived)
        except RuntimeError:  # the loop is closed: a thread outlived its worker, whose jobs were handed back
            _log.debug("outcome after the worker's end")

    def _arrived(self) -> None:
        self._woken = False
        self.wake()

    def _take(self) -> list[Finished]:
        take = self._done.popleft  # others only append
        return sorted((take() for _ in range(min(len(self._done), BATCH))), key=_by_id)

    async def _write(self, batch: Sequence[Finished], *, again: bool) -> None:
        """Write a batch; *again* where it may have been written already and the answer was lost."""
        plain = [one for one in batch if one.plain and not one.job.completed]
        others = [one for one in batch if not one.plain and not one.job.completed] if len(plain) < len(batch) else []
        completed = [one for one in batch if one.job.completed] if len(plain) + len(others) < len(batch) else []
        if completed:
            others = sorted(others + await self._rolled_back(completed), key=_by_id)
        if plain:
            await self._apart(self._succeed, plain, again=again)
        if others:
            await self._apart(self._finish, others, again=again)

    async def _apart(self, write: Callable[..., Awaitable[None]], batch: Sequence[Finished], *, again: bool) -> None:
        """Say *write* of the batch; where the database says no, find out to which of them, and write the others."""
        try:
            await write(batch, again=again)
        except Exception as error:
            state = getattr(error, "sqlstate", None) or ""
            if is_outage(error) or state.startswith(_COLLISION):
                raise
            if state == _LOCKED:
                locked = await self._locked(batch)
                for one in batch:
                    if one.job.id in locked:
                        self._set_aside(one, "somebody has locked its row", LOCKED_PAUSE)
                batch = [one for one in batch if one.job.id not in locked]
            if len(batch) > 1:
                middle = len(batch) // 2
                await self._apart(write, batch[:middle], again=again)
                await self._apart(write, batch[middle:], again=again)
            elif batch:
                await self._refused(batch[0], error, again=again)

    async def _refused(self, one: Finished, error: Exception, *, again: bool) -> None:
        """Store what can be said of an outcome that can't be stored: in ASCII, or that it was refused."""
        failure = replace(describe(error), error_type=REFUSED, traceback="")
        for said in (in_ascii(one), replace(one, outcome=Died(failure))):
            if said == one or is_transient(error):
                continue
            try:
                await self._finish([said], again=again)
            except Exception as another:
                if is_outage(another) or is_transient(another):
                    raise
                continue
            if said.outcome.name != one.outcome.name:
                _log.error("outcome of job %s could not be stored: %s", one.job.id, error, extra={"job_id": one.job.id})
            return
        tries = self._aside[one.job.id].tries if one.job.id in self._aside else 0
        pause = REFUSED_PAUSES[min(tries, len(REFUSED_PAUSES) - 1)]
        self._set_aside(one, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}", pause)

    def _set_aside(self, one: Finished, why: str, pause: float) -> None:
        why = f"the outcome of job {one.job.id} ({one.job.kind}) waits: {why}"
        before = self._aside.get(one.job.id)
        if before is None:
            _log.warning("%s", why, extra={"job_id": one.job.id, "job_kind": one.job.kind})
        tries = 1 if before is None else before.tries + 1
        self._aside[one.job.id] = Aside(one, why, tries, time.monotonic() + pause)

    async def _write_aside(self) -> float:
        """Try again what was set aside and is due; gives the pause until the next is."""
        due = [each for each in self._aside.values() if each.due <= time.monotonic()]
        locked = await self._locked([each.finished for each in due]) if due else set()
        for each in due:
            one = each.finished
            if one.job.id in locked:  # not tried: that would hold up the others for as long as the lock_timeout
                self._set_aside(one, "somebody has locked its row", LOCKED_PAUSE)
                continue
            await self._write([one], again=True)
            if self._aside[one.job.id] is each:
                del self._aside[one.job.id]
        soonest = min((each.due for each in self._aside.values()), default=None)
        return FOR_EVER if soonest is None else max(0.01, soonest - time.monotonic())

    async def _succeed(self, batch: Sequence[Finished], *, again: bool) -> None:
        params: dict[str, Any] = {
            "ids": as_array([one.job.id for one in batch]),
            "claims": as_array([one.job.claim for one in batch]),
            "worker": self._worker,
        }
        found = await self._say(numbered("succeed_jobs", self._control.schema, **params), batch)
        if len(found) == len(batch) and not heard(JobSucceeded):
            self.tally.succeeded(batch)
            return
        there = set(found)
        ours = {one.job.id: one for one in batch if one.job.id in there}  # of two claims of a job the later one counts
        if len(ours) < len(batch):
            await self._not_ours([one for one in batch if ours.get(one.job.id) is not one], again=again)
        self.tally.succeeded(list(ours.values()))
        for one in ours.values():
            emit(event(one, "succeeded"))

    async def _say(self, statement: Statement[Any], batch: Sequence[Finished]) -> list[Any]:  # noqa: ARG002 - see amqp.home
        return await self._control.run(statement)

    async def _finish(self, batch: Sequence[Finished], *, again: bool) -> None:
        params = {"worker": self._worker, "max_crashes": self._max_crashes, **parameters(batch)}
        rows = await self._say(named("finish_jobs", self._control.schema, **params), batch)
        verdicts = {row.id: row for row in rows}
        for one in batch:
            if (row := verdicts.get(one.job.id)) is not None:
                self._tell(one, row.status, row.reason)
        if len(verdicts) < len(batch):
            await self._not_ours([one for one in batch if one.job.id not in verdicts], again=again)

    async def _rolled_back(self, completed: Sequence[Finished]) -> list[Finished]:
        """Of jobs that said complete(): those whose transaction never came to be. Their try failed."""
        locked = await self._locked(completed)
        written = await self._written(completed)  # asked after: where the row was free, the transaction had ended
        back = []
        for one in completed:
            if one.job.id in written:
                self.tally.ended(one, "succeeded")
                emit(event(one, "succeeded"))
                if not isinstance(one.outcome, Succeeded):
                    said = one.error or one.outcome.name
                    _log.warning("job %s succeeded by job.complete(), and then: %s", one.job.id, said)
            elif one.job.id in locked:
                self._set_aside(one, "the transaction of its job.complete() is still open", LOCKED_PAUSE)
            else:
                one.job.completed = False
                back.append(uncommitted(one))
        return back

    async def _written(self, batch: Sequence[Finished]) -> set[int]:
        return {row.id for row in await self._ask("was_written", batch)}

    async def _locked(self, batch: Sequence[Finished]) -> set[int]:
        ids = [one.job.id for one in batch]
        return {row.id for row in await self._control.run(named("locked_jobs", self._control.schema, ids=ids))}

    async def _ask(self, name: str, batch: Sequence[Finished]) -> list[Any]:
        params: dict[str, Any] = {
            "ids": [one.job.id for one in batch],
            "claims": [one.job.claim for one in batch],
            "worker": self._worker,
        }
        return await self._control.run(named(name, self._control.schema, **params))

    async def _not_ours(self, batch: Sequence[Finished], *, again: bool) -> None:
        written = {row.id: row for row in await self._ask("written_outcomes", batch)} if again else {}
        for one in batch:
            if (row := written.get(one.job.id)) is not None:
                self._tell(one, row.status, row.reason)
                continue
            one.job.lost = True
            emit(LeaseLost(id=one.job.id, kind=one.job.kind, attempt=one.job.attempt, worker=self._worker))

    async def _write_progress(self) -> float:
        """Write the newest progress about once a second, and a job's last before its end; gives when more is due."""
        if not self._progress:
            return FOR_EVER
        due = self._progress_at + PROGRESS_EVERY - time.monotonic()
        if due > 0 and not any(one.job.id in self._progress for one in self._batch):
            return due
        self._progress_at = time.monotonic()
        taken = self._progress.take()
        params: dict[str, Any] = {"ids": [job.id for job, _ in taken], "claims": [job.claim for job, _ in taken]}
        params |= {"values": [value for _, value in taken], "worker": self._worker}
        try:
            await self._control.run(named("write_progress", self._control.schema, **params))
        except Exception as error:
            if is_outage(error):
                self._progress.put_back(taken)
                raise
            _log.debug("progress not written: %s", error)  # the next of these jobs will be; no outcome waits for it
        return FOR_EVER

    def _tell(self, one: Finished, status: str, reason: str) -> None:
        said = event(one, status, reason)
        if status == "pending" and isinstance(one.outcome, Retried | Held | Snoozed | Crashed):
            self.on_later(one.outcome.delay)
        self.handed_back += isinstance(one.outcome, HandedBack)
        self.tally.ended(one, COUNTED_AS[type(said)])
        emit(said)
        if isinstance(said, JobDied):
            self.on_dead(said)


def complete(job: ClaimedJob, connection: Any, result: Any) -> Any:
    """Record a job's success in the transaction of the user's *connection*; to be awaited where that is an async one.

    Raises:
        LeaseLost: when the job isn't its worker's any more.
    """
    text = encode_result(result)
    then = listed(job.followers) if job.followers else None
    statement = named(
        "complete_job", job.schema, id=job.id, claim=job.claim, worker=job.worker, result=text, followers=then
    )
    if awaited(connection):
        return _acomplete(job, connection, statement)
    _completed(job, run(connection, statement))
    return None


async def _acomplete(job: ClaimedJob, connection: Any, statement: Statement[Any]) -> None:
    _completed(job, await arun(connection, statement))


def _completed(job: ClaimedJob, rows: list[Any]) -> None:
    if not rows:
        job.lost = True
        raise errors.LeaseLost(f"job {job.id} is not this worker's any more: roll back")
    job.completed = True


_by_id = attrgetter("job.id", "job.claim")
