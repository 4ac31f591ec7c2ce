"""Run what is due, here and now, one job after the other: a worker's statements and rules without a worker.

What is done is said once, in steps; how a step is done on a sync and on an async connection are the two loops that
answer them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redrive import claims
from redrive.errors import InvalidOption, RedriveError
from redrive.events import JobDied, JobStarted, LeaseLost, emit
from redrive.heartbeat import worker_name
from redrive.job import Holder, Latest
from redrive.lanes import Lanes
from redrive.outcome import Finished, HandedBack, event, parameters, uncommitted
from redrive.payload import encode_result
from redrive.statements import Statement, arun, named, run
from redrive.testing.lent import connected, connection_of, connection_of_async
from redrive.testing.trial import Loop, Trial, perform, perform_here, savepoint, savepoint_async
from redrive.writer import complete

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    import psycopg

    from redrive.job import ClaimedJob
    from redrive.queue import Queue

AT_ONCE = 1000
_ENDED = {"succeeded": "succeeded", "failed": "failed", "dead": "died"}
_OURS = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
"""What a handler may raise for a worker to judge; anything else (Ctrl-C, pytest.fail) is meant for the test."""

_log = logging.getLogger("redrive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one try of a job."""

    id: int
    kind: str
    attempt: int
    outcome: str
    """succeeded, retried, snoozed, failed, died or crashed; lost where something else ended the job meanwhile."""
    status: str
    """The state that the job is in now; empty where it was lost."""
    reason: str = ""
    """Why, in the words of the job's history."""
    error: BaseException | None = None
    """What the handler raised."""


def run_pending(
    queue: Queue,
    connection: psycopg.Connection[Any] | None = None,
    *,
    kinds: Iterable[str] | None = None,
    until_empty: bool = False,
    raise_errors: bool = False,
    at_most: int = 1000,
) -> list[Result]:
    """Run the jobs that are due now, by priority and then by time, and list what became of each.

    Sync handlers run in the calling thread; async ones in an event loop of this call's, in another thread where one
    runs in this already. Meanwhile the queue is :func:`connected` to *connection*.

    Args:
        queue: whose handlers run.
        connection: where the jobs are; without it the queue's own.
        kinds: run only these.
        until_empty: go on with what the handlers enqueue, until nothing is due.
        raise_errors: raise what a handler raised once it is recorded; Retry, Snooze, Discard and Dead are no errors.
        at_most: with *until_empty*, the tries after which not to believe in an end any more.

    Raises:
        RedriveError: when jobs are due after *at_most* tries.
    """
    with connection_of(queue, connection) as conn, connected(queue, conn), Loop() as loop:
        steps = _Bench(queue, kinds, raise_errors=raise_errors).run(until_empty=until_empty, at_most=at_most)
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return list(end.value)
            if isinstance(step, Statement):
                answer = run(conn, step)
                continue
            with savepoint(conn):
                answer = loop.run(perform(step)) if step.is_async else perform_here(step)


async def run_pending_async(
    queue: Queue,
    connection: psycopg.AsyncConnection[Any] | None = None,
    *,
    kinds: Iterable[str] | None = None,
    until_empty: bool = False,
    raise_errors: bool = False,
    at_most: int = 1000,
) -> list[Result]:
    """Run the jobs that are due now, from async code; see :func:`run_pending`. Sync handlers run in a thread."""
    async with connection_of_async(queue, connection) as conn:
        with connected(queue, conn):
            steps = _Bench(queue, kinds, raise_errors=raise_errors).run(until_empty=until_empty, at_most=at_most)
            answer: Any = None
            while True:
                try:
                    step = steps.send(answer)
                except StopIteration as end:
                    return list(end.value)
                if isinstance(step, Statement):
                    answer = await arun(conn, step)
                    continue
                async with savepoint_async(conn):
                    answer = await perform(step)


class _Bench:
    """The steps: a statement is answered with its rows, a try with what became of it."""

    def __init__(self, queue: Queue, kinds: Iterable[str] | None, *, raise_errors: bool) -> None:
        self._queue = queue
        self._schema = queue.schema
        self._raise_errors = raise_errors
        self._worker = worker_name()
        self._progress = Latest()
        self._kinds = list(kinds or queue.settings.kinds or queue.handlers.kinds())
        for kind in self._kinds:
            queue.handlers.demand(kind)
        if not self._kinds:
            raise InvalidOption("this queue has no handlers: import the modules that register them, then run")

    def run(self, *, until_empty: bool, at_most: int) -> Generator[Any, Any, list[Result]]:
        """Run what is due; with *until_empty* again and again."""
        results: list[Result] = []
        while True:
            jobs = yield from self._claim()
            if jobs and results and len(results) >= at_most:
                yield from self._hand_back(jobs)
                raise RedriveError(
                    f"{len(results)} tries and there are due jobs, {jobs[0]!r} the next: does a job enqueue itself? "
                    "Run without until_empty, or raise at_most"
                )
            for number, job in enumerate(jobs, 1):
                result, error = yield from self._one(job)
                results.append(result)
                if error is not None:
                    yield from self._hand_back(jobs[number:])
                    raise error
            buried = yield from self._bury()
            results += buried
            if not until_empty or not (jobs or buried):
                return results

    def _claim(self) -> Generator[Any, Any, list[ClaimedJob]]:
        """Take everything that is due, before any of it runs, as a worker with free slots does."""
        jobs: list[ClaimedJob] = []
        holder = Holder(self._worker, self._schema, self._note, complete, self._queue.handlers.follower)
        while True:
            lanes, seen = Lanes(self._kinds), None
            while seen is None or seen.more:
                seen = lanes.surveyed((yield claims.survey(self._schema, **lanes.look())), 0.0, 0.0)
            if not seen.due:
                break
            plan = lanes.plan(AT_ONCE, lambda _kind: AT_ONCE, 0.0)
            taken = yield claims.claim(holder, **plan.params())
            if lanes.limits:
                locked = yield claims.lock_limits(self._schema, list(lanes.limits))
                plan = lanes.plan(AT_ONCE, lambda _kind: AT_ONCE, 0.0, limited=True)
                taken += yield claims.claim_limited(holder, locked=locked, **plan.params())
            if not taken:
                break
            jobs += taken
        while taken := (yield claims.claim_alone(holder, kinds=self._kinds, locked=[])):
            jobs += taken
        return sorted(jobs, key=lambda job: (job.priority, job.due, job.id))

    def _one(self, job: ClaimedJob) -> Generator[Any, Any, tuple[Result, BaseException | None]]:
        """Run one job, write what became of it and tell those who listen."""
        known: dict[str, Any] = {"id": job.id, "kind": job.kind, "attempt": job.attempt}
        trial = Trial(job, self._queue.handlers.demand(job.kind))
        emit(JobStarted(**known, worker=self._worker))
        finished = yield trial
        yield from self._write_progress()
        finished, written = yield from self._write(finished)
        known["error"] = trial.error
        if written is None:
            job.lost = True
            emit(LeaseLost(id=job.id, kind=job.kind, attempt=job.attempt, worker=self._worker))
            result = Result(**known, outcome="lost", status="", reason="something else ended it while it ran")
        else:
            status, reason = written
            outcome = _ENDED.get(status, finished.outcome.name)
            result = Result(**known, outcome=outcome, status=status, reason=reason)
            said = event(finished, status, reason)
            emit(said)
            self._call_on_dead(said)
        error = trial.error
        if error is not None and not isinstance(error, _OURS):
            return result, error
        return result, trial.to_raise(finished) if self._raise_errors else None

    def _write(self, one: Finished) -> Generator[Any, Any, tuple[Finished, tuple[str, str] | None]]:
        """Write an outcome; gives it, and the state and reason that the database came to, None where all is lost."""
        lease: dict[str, Any] = {"ids": [one.job.id], "claims": [one.job.claim], "worker": self._worker}
        if one.job.completed:
            if (yield self._named("was_written", **lease)):
                return one, ("succeeded", "")
            one.job.completed = False
            one = uncommitted(one)
        if one.plain:
            return one, ("succeeded", "") if (yield self._named("succeed_jobs", **lease)) else None
        limit = self._queue.settings.max_crashes
        rows = yield self._named("finish_jobs", worker=self._worker, max_crashes=limit, **parameters([one]))
        return one, (rows[0].status, rows[0].reason) if rows else None

    def _write_progress(self) -> Generator[Any, Any, None]:
        if taken := self._progress.take():
            jobs, values = [job for job, _ in taken], [value for _, value in taken]
            lease = {"ids": [job.id for job in jobs], "claims": [job.claim for job in jobs], "worker": self._worker}
            yield self._named("write_progress", values=values, **lease)

    def _hand_back(self, jobs: Sequence[ClaimedJob]) -> Generator[Any, Any, None]:
        back = [Finished(job, HandedBack(), None) for job in jobs]
        limit = self._queue.settings.max_crashes
        if back:
            yield self._named("finish_jobs", worker=self._worker, max_crashes=limit, **parameters(back))

    def _bury(self) -> Generator[Any, Any, list[Result]]:
        """Let jobs die that can't run any more, as every worker does now and then: past their deadline, above all."""
        results = []
        while buried := (yield self._named("bury_hopeless", kinds=list(self._queue.handlers.kinds()))):
            for row in buried:
                known: dict[str, Any] = {"id": row.id, "kind": row.kind, "attempt": row.attempts, "reason": row.reason}
                died = JobDied(**known, worker=self._worker, duration=0.0)
                emit(died)
                self._call_on_dead(died)
                results.append(Result(**known, outcome="died", status="dead"))
        return results

    def _call_on_dead(self, said: Any) -> None:
        handler = self._queue.handlers.get(said.kind)
        if not isinstance(said, JobDied) or handler is None or handler.on_dead is None:
            return
        try:
            handler.on_dead(said)
        except Exception:
            if self._raise_errors:
                raise
            _log.exception("on_dead of kind %s raised", said.kind, extra={"job_kind": said.kind, "job_id": said.id})

    def _note(self, job: ClaimedJob, value: Any) -> None:
        self._progress.put(job, encode_result(value))

    def _named(self, name: str, **params: Any) -> Statement[Any]:
        return named(name, self._schema, **params)
