"""Where claimed jobs wait and run: a deque, long-lived slots that feed from it, threads for sync handlers.

No task is made for a job and no thread hop for a run of sync jobs: a slot lends itself to a thread, which goes on
taking sync jobs until the next in line is not one. Nothing here knows the database; a finished job goes to a callable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from typing import TYPE_CHECKING

from redrive.events import JobOverdue, JobStarted, emit, heard
from redrive.executor import CANCELLED, LOST, SHUTDOWN, TIMED_OUT, begin, execute_here
from redrive.outcome import Finished, HandedBack
from redrive.pace import STALE_AFTER, Pace
from redrive.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from typing import Any

    from redrive.handlers import Handlers
    from redrive.job import ClaimedJob

TRIAL = 10.0
"""Seconds that a job which may have killed its worker runs with nothing new beside it. What has run as long has settled
and is no longer in its way, so one long job holds up neither the trial of another nor, after its own, the rest."""
TRIAL_GROWS = 4
"""Each time that its worker was lost all the same the next trial is so many times as long: slow killers are found."""
TRIAL_LONGEST = 3600.0
FORKED = 70
"""The exit code of a process that a handler forked and did not end."""
BREATH = 0.002
"""Seconds that one slot goes from job to job without letting the loop turn."""
ALIVE_FOR = 0.005
"""Seconds for which the answer holds that this worker lives. A freeze is longer, and the next look comes after it."""

_log = logging.getLogger("redrive")


class Slots:
    """*concurrency* slots, the jobs that run in them, and those that wait for one."""

    def __init__(self, handlers: Handlers, concurrency: int, done: Callable[[Finished], None]) -> None:
        self.concurrency = concurrency
        self.running: dict[int, ClaimedJob] = {}
        """Jobs whose handler has begun. Read from other threads too."""
        self.starved = False
        """Whether :attr:`on_free` is to be called when a slot is free, from the loop or from a thread."""
        self.on_free: Callable[[], None] = lambda: None
        self.on_acquitted: Callable[[ClaimedJob], None] = lambda _job: None
        """Told of a job whose trial is over, though it runs on."""
        self.alive: Callable[[], bool] = lambda: True
        """Whether claimed jobs are still this worker's to begin: it may have been frozen, and they another's by now."""
        self._handlers = handlers
        self._done = done
        self._ready: deque[ClaimedJob] = deque()
        self._alone: ClaimedJob | None = None
        self._waiting_since = self._alive_at = 0.0
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._task_of: dict[int, asyncio.Task[None]] = {}
        self._pace = Pace(concurrency)
        self._lent = 0
        self._closing = False
        self._forks = _forks
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(concurrency, "redrive")

    def start(self) -> None:
        """Start the slots; they wait for jobs."""
        for _ in range(self.concurrency):
            self._start_slot()

    def add(self, jobs: Iterable[ClaimedJob]) -> None:
        """Take claimed jobs, in the order in which they are to begin."""
        if not self._ready:
            self._waiting_since = time.monotonic()
        self._ready.extend(jobs)
        self._feed()

    def add_alone(self, job: ClaimedJob) -> None:
        """Take a job for its trial, once :attr:`settled`; until that is over there is no room for others."""
        self._alone = job
        self._waiting_since = time.monotonic()
        self._feed()

    @property
    def settled(self) -> bool:
        """Whether nothing waits here, and what runs has run long enough not to be in the way of a trial."""
        since = time.monotonic() - TRIAL
        return not (self._ready or self._alone) and all(job.started <= since for job in list(self.running.values()))

    @property
    def empty(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not (self.running or self._ready or self._alone or self._lent)

    def held(self) -> list[int]:
        """List the ids of all jobs that run or wait here."""
        waiting = [job.id for job in list(self._ready)]
        alone = self._alone
        return [*list(self.running), *waiting, *([alone.id] if alone and self._alone_waits else [])]

    @property
    def in_flight(self) -> int:
        """Jobs that run or wait here."""
        return len(self.running) + len(self._ready) + self._alone_waits

    @property
    def _alone_waits(self) -> bool:
        return self._alone is not None and self._alone.id not in self.running

    def room(self) -> int:
        """How many more jobs to claim now: the free slots, and what about 100 ms of work beyond them may wait."""
        if self._alone is not None:
            return 0
        waiting = len(self._ready)
        open_slots = self.concurrency - len(self.running)
        ahead = self.ahead()
        if waiting >= open_slots and waiting - open_slots > ahead // 2:
            return 0
        return max(0, open_slots + ahead - waiting)

    def ahead(self, kind: str = "") -> int:
        """How many jobs of *kind* (or of the usual mixture) may wait for a slot: about 100 ms of their work."""
        return 0 if self.running and self._pace.stale else self._pace.ahead(kind)

    @property
    def free(self) -> int:
        """How many slots have nothing to run, now or next."""
        return max(0, self.concurrency - len(self.running) - len(self._ready))

    def share(self, kind: str) -> int:
        """How many jobs of *kind* to claim at most: what is free, and ahead of that what the kind's own speed allows.

        There may be room for many quick jobs; slow ones that were taken with them would only wait here.
        """
        return self.free + self.ahead(kind)

    def take_unstarted(self) -> list[ClaimedJob]:
        """Take out every job that has not begun, to be handed back."""
        taken = []
        while True:
            try:
                taken.append(self._ready.popleft())
            except IndexError:
                break
        if self._alone is not None and self._alone.id not in self.running:
            taken.append(self._alone)
            self._alone = None
        return taken

    def withdraw(self, unwanted: Callable[[ClaimedJob], bool]) -> list[ClaimedJob]:
        """Take out those jobs that have not begun and are not to."""
        waiting = self.take_unstarted() if self._alone is None else []
        self._ready.extend(job for job in waiting if not unwanted(job))
        return [job for job in waiting if unwanted(job)]

    def take_stale(self) -> list[ClaimedJob]:
        """Take out jobs that have waited too long for a slot here, while other workers may be idle."""
        waited = time.monotonic() - self._waiting_since
        if self._ready and waited > STALE_AFTER and self._pace.stale:
            return self.take_unstarted()
        return []

    def stop_job(self, job: ClaimedJob, reason: str) -> None:
        """Stop a running job: an async handler is cancelled, a sync one sees ``job.should_stop``."""
        if job.stop_reason in (CANCELLED, TIMED_OUT):
            return
        task = self._task_of.get(job.id)
        job.stop(reason, told=task is not None)
        if task is not None:
            task.cancel()

    def tell_all(self) -> None:
        """Let every running job see that the worker is going; those that don't look may finish in the grace."""
        for job in list(self.running.values()):
            if not job.stop_reason:
                job.stop(SHUTDOWN, told=False)

    def stop_all(self) -> None:
        """Stop every running job, since the grace is over."""
        for job in list(self.running.values()):
            self.stop_job(job, SHUTDOWN)

    def cancel(self, job_id: int) -> None:
        """Stop the job because an operator cancelled it."""
        if (job := self.running.get(job_id)) is not None:
            self.stop_job(job, CANCELLED)

    def lose(self, job: ClaimedJob) -> None:
        """Stop the job because its lease is lost: another worker may be running it."""
        if self.running.get(job.id) is job:
            self.stop_job(job, LOST)

    def watch(self) -> None:
        """Stop what has passed its timeout; to be called several times a second."""
        now = time.monotonic()
        for job in list(self.running.values()):
            limit = self._limit(job)
            if limit is not None and job.started and now - job.started > limit and job.stop_reason in ("", SHUTDOWN):
                emit(JobOverdue(id=job.id, kind=job.kind, attempt=job.attempt, worker=job.worker, timeout=limit))
                self.stop_job(job, TIMED_OUT)
        self._end_trial(now)

    def overdue(self) -> list[ClaimedJob]:
        """List jobs that were told to stop because of their timeout and still run."""
        return [job for job in list(self.running.values()) if job.stop_reason == TIMED_OUT]

    async def close(self) -> None:
        """End the slots. What still runs in a thread can't be stopped; its thread dies with the process."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        self._threads.close()

    def _start_slot(self) -> None:
        task = self._loop.create_task(self._slot(), name="redrive slot")
        self._tasks.add(task)
        task.add_done_callback(self._slot_ended)

    def _slot_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._closing:  # it never ends by itself; whatever ended it, the others' jobs want a slot in its place
            error = None if task.cancelled() else task.exception()
            _log.error("a slot ended and is replaced: %r", error, exc_info=error)
            self._start_slot()

    async def _slot(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a slot is a task by construction
        breath = time.monotonic()
        while True:
            job = self._next()
            if job is None:
                await self._pause(task, self._wait())
                breath = time.monotonic()
                continue
            handler = self._handlers.demand(job.kind)
            self.running[job.id] = job
            if heard(JobStarted):
                _tell_start(job)
            if not handler.is_async:
                await self._lend(job)
                breath = time.monotonic()
                continue
            finished = begin(job, handler)
            if not isinstance(finished, Finished):
                self._task_of[job.id] = task
                finished = await finished
                del self._task_of[job.id]
                breath = time.monotonic()
            self._still_here()
            self._end(finished)
            if task.cancelling() or self._pace.last_end - breath > BREATH:
                await self._pause(task, asyncio.sleep(0))
                breath = time.monotonic()

    async def _pause(self, task: asyncio.Task[None], pause: Coroutine[Any, Any, None]) -> None:
        """Wait between two jobs. A cancel that the last handler left behind ends here and never reaches the next."""
        while task.cancelling():
            task.uncancel()
        try:
            await pause
        except asyncio.CancelledError:
            if self._closing:
                raise
            while task.cancelling():
                task.uncancel()

    async def _lend(self, job: ClaimedJob) -> None:
        """Lend this slot to a thread until no sync job is next."""
        back: asyncio.Future[None] = self._loop.create_future()
        self._lent += 1
        self._threads.submit(lambda: self._run_in_thread(job, back))
        await back
        self._lent -= 1
        self.on_free()

    def _run_in_thread(self, first: ClaimedJob, back: asyncio.Future[None]) -> None:
        job: ClaimedJob | None = first
        try:
            while job is not None:
                finished = execute_here(job, self._handlers.demand(job.kind))
                self._still_here()
                self._end(finished)
                if (job := self._next(sync_only=True)) is not None:
                    self.running[job.id] = job
                    if heard(JobStarted):
                        _tell_start(job)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the worker went without us
                self._loop.call_soon_threadsafe(_set, back)

    def _still_here(self) -> None:
        """End a process that a handler forked and that came back from it: what runs and waits here is its parent's."""
        if _forks != self._forks:
            os._exit(FORKED)

    def _next(self, *, sync_only: bool = False) -> ClaimedJob | None:
        # From several threads: popleft is atomic, and the wrong one is put back where it was.
        while True:
            try:
                job = self._ready.popleft()
            except IndexError:
                return None if sync_only else self._next_alone()
            if sync_only and self._handlers.demand(job.kind).is_async:
                self._ready.appendleft(job)
                return None
            now = time.monotonic()
            if now - self._alive_at > ALIVE_FOR and self.alive():
                self._alive_at = now
            if now - self._alive_at <= ALIVE_FOR:
                self._waiting_since = now
                return job
            self._refuse(job)

    def _next_alone(self) -> ClaimedJob | None:
        job = self._alone
        if job is None or not self._alone_waits:
            return None
        if self.alive():
            return job
        self._alone = None
        self._refuse(job)
        return None

    def _refuse(self, job: ClaimedJob) -> None:
        self._done(Finished(job, HandedBack(), None))
        self.on_free()

    def _end(self, finished: Finished) -> None:
        job = finished.job
        if self.running.get(job.id) is job:  # else a later claim of the same job runs here
            del self.running[finished.job.id]
        if job is self._alone:
            self._alone = None
        if finished.duration is None:
            self._pace.last_end = time.monotonic()
        else:
            self._pace.measure(job.kind, finished.duration, job.started + finished.duration)
        self._done(finished)
        if self.starved:
            self.on_free()

    def _end_trial(self, now: float) -> None:
        job = self._alone
        if job is None or self._alone_waits or not job.started:  # a thread may not have begun it yet
            return
        if now - job.started > min(TRIAL_LONGEST, TRIAL * TRIAL_GROWS**job.short_trials):
            self._alone = None
            self.on_acquitted(job)
            self.on_free()

    def _feed(self) -> None:
        needed = len(self._ready) + (self._alone is not None)
        while needed and self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():  # of a slot that woke by itself: it has put another in its place
                waiter.set_result(None)
                needed -= 1

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._idle.append(waiter)
        await waiter

    def _limit(self, job: ClaimedJob) -> float | None:
        handler = self._handlers.get(job.kind)
        return handler.timeout if handler is not None else None


def _tell_start(job: ClaimedJob) -> None:
    emit(JobStarted(id=job.id, kind=job.kind, attempt=job.attempt, worker=job.worker))


_forks = 0
"""How many forks lie between the first process and this one."""


def _forked() -> None:
    global _forks  # noqa: PLW0603 - asked for every job, and dearly if it were asked of the kernel
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
