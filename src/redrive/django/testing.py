"""For tests of a Django project: :mod:`redrive.testing`, on the project's queue and the ORM's connection.

In a ``TestCase`` all of it is in the test's transaction: what the code under test enqueues is there to be seen and run,
and gone with the test. In a ``TransactionTestCase`` it is committed, and Django's flush leaves redrive's tables alone:
``clear()`` empties them.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync, sync_to_async

import redrive.testing
from redrive.django import orm
from redrive.django.ormqueue import project_queue
from redrive.django.upkeep import called_here
from redrive.statements import named, run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from redrive.instruments import Call
    from redrive.job import Job
    from redrive.testing import Clock, Result

__all__ = [
    "assert_enqueued",
    "captured_jobs",
    "clear",
    "clock",
    "enqueued",
    "run_pending",
    "run_pending_async",
]


def run_pending(
    *,
    using: str | None = None,
    kinds: Iterable[str] | None = None,
    until_empty: bool = False,
    raise_errors: bool = False,
    at_most: int = 1000,
) -> list[Result]:
    """Run the jobs that are due now, on the ORM's connection; see :func:`redrive.testing.run_pending`.

    Async handlers run here as well, and their queries in the test's transaction.
    """
    queue = project_queue()
    with _connection(using) as connection, _async_handlers_here():
        return redrive.testing.run_pending(
            queue, connection, kinds=kinds, until_empty=until_empty, raise_errors=raise_errors, at_most=at_most
        )


async def run_pending_async(**how: Any) -> list[Result]:
    """Run the jobs that are due now, from an async test; see :func:`run_pending`."""
    return await sync_to_async(run_pending)(**how)


def enqueued(kind: Any = None, *, using: str | None = None, **wanted: Any) -> list[Job]:
    """List the jobs there are, oldest first; see :func:`redrive.testing.enqueued`."""
    with _connection(using) as connection:
        return redrive.testing.enqueued(project_queue(), kind, connection=connection, **wanted)


def assert_enqueued(kind: Any, *, using: str | None = None, **wanted: Any) -> list[Job]:
    """Demand that such a job was enqueued; see :func:`redrive.testing.assert_enqueued`.

    Raises:
        AssertionError: telling what was enqueued instead.
    """
    __tracebackhide__ = True
    with _connection(using) as connection:
        return redrive.testing.assert_enqueued(project_queue(), kind, connection=connection, **wanted)


@contextmanager
def captured_jobs(*, using: str | None = None, run: bool = False) -> Iterator[list[Job]]:
    """Give a list that at the end of the block holds the jobs enqueued within it; with *run*, those due have run."""
    before = {job.id for job in enqueued(using=using)}
    found: list[Job] = []
    yield found
    found += [job for job in enqueued(using=using) if job.id not in before]
    if run:
        run_pending(using=using, raise_errors=True)


@contextmanager
def clock(*, using: str | None = None) -> Iterator[Clock]:
    """Move redrive's time on the ORM's connection; see :func:`redrive.testing.clock`."""
    with _connection(using) as connection, redrive.testing.clock(connection) as moved:
        yield moved


def clear(*, using: str | None = None) -> None:
    """Remove every job, after a test whose transactions were committed."""
    queue = project_queue()
    with _connection(using) as connection:
        run(connection, named("clear_jobs", queue.schema))


@contextmanager
def _connection(using: str | None) -> Iterator[Any]:
    with orm.lent(using or project_queue().alias) as connection:
        yield connection


@contextmanager
def _async_handlers_here() -> Iterator[None]:
    """Let async handlers run in this thread, so that their queries are on its connection."""
    handlers = [handler for handler in project_queue().handlers if handler.is_async and handler.isolation is None]
    before = [handler.call_here for handler in handlers]
    for handler in handlers:
        handler.is_async, handler.call_here = False, called_here(_in_this_thread(handler.bare), in_child=False)
    try:
        yield
    finally:
        for handler, call in zip(handlers, before, strict=True):
            handler.is_async, handler.call_here = True, call


def _in_this_thread(call: Call) -> Call:
    async def awaiting(job: Any) -> Any:
        return await call(job)

    return async_to_sync(awaiting)
