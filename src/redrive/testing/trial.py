"""One try of a job in a test: its handler called as a worker would, what it raised kept, its failed SQL contained."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from contextlib import nullcontext as nothing
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from redrive.errors import Verdict
from redrive.events import JobOverdue, emit
from redrive.executor import TIMED_OUT, execute, execute_here
from redrive.outcome import Crashed, Died, Finished, Retried

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from redrive.handlers import Handler
    from redrive.job import ClaimedJob

T = TypeVar("T")


class Trial:
    """A job about to run: what the executor needs to know of its handler, and what that raised."""

    def __init__(self, job: ClaimedJob, handler: Handler[Any, Any]) -> None:
        self.job = job
        # An isolated handler runs here like any sync one: a child would not see what the test's transaction holds.
        self.is_async = handler.is_async and handler.isolation is None
        self.timeout, self.backoff = handler.timeout, handler.backoff
        self.retry_on, self.dead_on, self.breaker = handler.retry_on, handler.dead_on, handler.breaker
        self.rules = handler.rules
        self.error: BaseException | None = None
        self._call = handler.call_here

    def call(self, job: ClaimedJob) -> Any:
        """Call the handler and note what it raises."""
        if self.is_async:
            return self._acall(job)
        with self._noted():
            return self._call(job)

    async def _acall(self, job: ClaimedJob) -> Any:
        with self._noted():
            answer = self._call(job)
            return await answer if hasattr(answer, "__await__") else answer

    def overdue(self) -> None:
        """Tell the job that its time is up."""
        job = self.job
        emit(JobOverdue(id=job.id, kind=job.kind, attempt=job.attempt, worker=job.worker, timeout=self.timeout or 0.0))
        job.stop(TIMED_OUT, told=self.is_async)

    def to_raise(self, finished: Finished) -> BaseException | None:
        """Give the error to raise out of *finished*, if it was one."""
        if not isinstance(finished.outcome, Retried | Died | Crashed) or isinstance(self.error, Verdict):
            return None
        return self.error if isinstance(self.error, Exception) else RuntimeError(finished.error)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.error = error
            raise


def perform_here(trial: Trial) -> Finished:
    """Run a sync handler in this thread; past its timeout it sees job.should_stop, and nothing more can be done."""
    if trial.timeout is None:
        return execute_here(trial.job, trial)
    timer = threading.Timer(min(trial.timeout, threading.TIMEOUT_MAX), trial.overdue)
    timer.daemon = True
    timer.start()
    try:
        return execute_here(trial.job, trial)
    finally:
        timer.cancel()


async def perform(trial: Trial) -> Finished:
    """Run an async handler, or a sync one in a thread, as a task of its own, with its timeout."""
    work = execute(trial.job, trial) if trial.is_async else asyncio.to_thread(execute_here, trial.job, trial)
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=trial.timeout)
        if not task.done():
            trial.overdue()
            if trial.is_async:
                task.cancel()
            await asyncio.wait({task})
    except asyncio.CancelledError:  # the test itself is at an end
        task.cancel()
        await asyncio.wait({task})
        raise
    return task.result()


def savepoint(conn: psycopg.Connection[Any]) -> AbstractContextManager[None]:
    """Hold a transaction that is open against what a handler does to it; see :func:`_held`."""
    return _held(conn) if conn.info.transaction_status == TransactionStatus.INTRANS else nothing()


def savepoint_async(conn: psycopg.AsyncConnection[Any]) -> AbstractAsyncContextManager[None]:
    """Hold a transaction of an async connection, as :func:`savepoint` does."""
    return _held_async(conn) if conn.info.transaction_status == TransactionStatus.INTRANS else nothing()


@contextmanager
def _held(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Where a handler's SQL has failed, take back what it wrote: the outcome is to be written in this transaction."""
    with conn.transaction() as savepoint:
        yield
        if conn.info.transaction_status == TransactionStatus.INERROR:
            raise psycopg.Rollback(savepoint)


@asynccontextmanager
async def _held_async(conn: psycopg.AsyncConnection[Any]) -> AsyncIterator[None]:
    async with conn.transaction() as savepoint:
        yield
        if conn.info.transaction_status == TransactionStatus.INERROR:
            raise psycopg.Rollback(savepoint)


class Loop:
    """The event loop for the async handlers of one call, in another thread where one runs in this already."""

    def __enter__(self) -> Self:
        # Not Runner.run: it would turn Ctrl-C into a cancellation of the handler, and that into a crash of its job.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        return self

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* to its end."""
        return _beside(lambda: self._runner.get_loop().run_until_complete(work))

    def __exit__(self, *_: object) -> None:
        _beside(self._runner.close)


def _beside(function: Callable[[], T]) -> T:
    if not _in_a_loop():
        return function()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(contextvars.copy_context().run, function).result()


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
