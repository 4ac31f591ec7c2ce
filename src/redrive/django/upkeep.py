"""What Django does around a request, around each job: the ORM's connections are looked after in their own thread.

A connection that the server has ended is closed before a job begins, whatever CONN_MAX_AGE and CONN_HEALTH_CHECKS say;
one that a job has left within a transaction is closed after it, and what was not committed fails that job instead of
being lost without a word. Nothing here opens a connection.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections import deque
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

import django.db
from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction
from psycopg.pq import TransactionStatus

from redrive import threads
from redrive.events import WorkerStopped, subscribe
from redrive.instruments import Instrument, add

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redrive.instruments import Call

SYNC_IN_ASYNC = (
    "this handler is async, and the ORM's plain methods would block the worker's loop: write it as `def`, then it runs "
    "in a thread of its own; or await the methods that begin with a (aget, acreate, asave), or asgiref's sync_to_async"
)

_log = logging.getLogger("redrive")


class TransactionLeftOpen(RuntimeError):
    """A handler returned within a transaction: what it wrote there was rolled back."""


def before() -> None:
    """Close what can't be used any more, so that the next query of this thread connects anew."""
    for wrapper in connections.all(initialized_only=True):
        wrapper.close_if_unusable_or_obsolete()
        if wrapper.vendor == "postgresql" and wrapper.connection is not None and _ended(wrapper.connection):
            wrapper.close()
        _check_pool(wrapper)


def after() -> list[str]:
    """Put the connections of this thread in order; lists the aliases of those left within a transaction."""
    spoilt = []
    for wrapper in connections.all(initialized_only=True):
        if _within_transaction(wrapper):
            spoilt.append(wrapper.alias)
            _forget(wrapper)
        else:
            wrapper.close_if_unusable_or_obsolete()
    return spoilt


def install() -> None:
    """Look after the connections in every worker that this process starts."""
    add(Instrument(note=lambda _kind: {}, wrap=_wrap))
    threads.endings.append(connections.close_all)
    subscribe(lambda _event: _end_places(), WorkerStopped)


def called_here(call: Call, *, in_child: bool) -> Call:
    """Wrap how a handler is called outside a worker's threads: in a child process of its own, or within a test."""
    return _tidied(call) if in_child else _held(call)


def _wrap(_kind: str, is_async: bool, call: Call) -> Call:  # noqa: FBT001 - as instruments are called
    return _Async(call) if is_async else _tidied(call)


def _tidied(call: Call) -> Call:
    @wraps(call)
    def tidied(job: Any) -> Any:
        before()
        try:
            answer = call(job)
        except BaseException:
            after()
            raise
        _demand_closed(after())
        return answer

    return tidied


def _held(call: Call) -> Call:
    """In a test's transaction: a query that fails is taken back to where the job began, as a worker's would be."""

    @wraps(call)
    def held(job: Any) -> Any:
        with _savepoints():
            return call(job)

    return held


@contextmanager
def _savepoints() -> Iterator[None]:
    points = [
        (wrapper.alias, transaction.savepoint(using=wrapper.alias))
        for wrapper in connections.all(initialized_only=True)
        if wrapper.in_atomic_block and not wrapper.needs_rollback and _is_thread_s_own(wrapper)
    ]
    try:
        yield
    finally:
        for alias, point in reversed(points):
            if connections[alias].needs_rollback or _status(connections[alias]) == TransactionStatus.INERROR:
                transaction.set_rollback(False, using=alias)
                transaction.savepoint_rollback(point, using=alias)
            else:
                transaction.savepoint_commit(point, using=alias)


class _Async:
    """An async handler, whose ORM queries run in a thread that no other job uses at the same time.

    The thread is kept with its connections for the next job, as many as there are slots; without a query there is none.
    """

    def __init__(self, call: Call) -> None:
        self._call = call

    async def __call__(self, job: Any) -> Any:
        place = _places.pop() if _places else ThreadSensitiveContext()
        token = SyncToAsync.thread_sensitive_context.set(place)
        spoilt: list[str] = []
        try:
            if (thread := _thread_of(place)) is not None:
                await asyncio.wrap_future(thread.submit(before))
            return await self._call(job)
        except SynchronousOnlyOperation as error:
            error.add_note(SYNC_IN_ASYNC)
            raise
        finally:
            SyncToAsync.thread_sensitive_context.reset(token)
            if (thread := _thread_of(place)) is None:
                _places.append(place)
            else:
                tidying = thread.submit(after)
                # Behind a query that a cancelled handler has left running: the place is free when that is over.
                tidying.add_done_callback(lambda done: _free(place, done))
                if not _cancelled():
                    spoilt = await asyncio.wrap_future(tidying)
            _demand_closed(spoilt)


_places: deque[ThreadSensitiveContext] = deque()


def _end_places() -> None:
    """End the threads that no async job uses now, and their connections with them."""
    while _places:
        place = _places.popleft()
        if (thread := _thread_of(place)) is not None:
            del SyncToAsync.context_to_thread_executor[place]
            thread.submit(connections.close_all)
            thread.shutdown(wait=False)


def _thread_of(place: ThreadSensitiveContext) -> Executor | None:
    found: Executor | None = SyncToAsync.context_to_thread_executor.get(place)
    return found


def _free(place: ThreadSensitiveContext, done: Future[list[str]]) -> None:
    if (error := done.exception()) is not None:
        _log.warning("a connection of the ORM's could not be put in order: %r", error)
    _places.append(place)


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and bool(task.cancelling())


def _demand_closed(spoilt: list[str]) -> None:
    if spoilt:
        raise TransactionLeftOpen(
            f"the handler returned within a transaction on {', '.join(map(repr, spoilt))}, which was rolled back: use "
            "`with transaction.atomic():`, or commit before it returns"
        )


def _within_transaction(wrapper: Any) -> bool:
    if wrapper.in_atomic_block or wrapper.closed_in_transaction:
        return True
    return wrapper.connection is not None and _status(wrapper) not in (None, TransactionStatus.IDLE)


def _status(wrapper: Any) -> TransactionStatus | None:
    connection = wrapper.connection
    if wrapper.vendor != "postgresql" or connection is None or connection.closed:
        return None
    if hasattr(connection, "get_transaction_status"):  # psycopg2, with the same numbers
        return TransactionStatus(connection.get_transaction_status())
    found: TransactionStatus = connection.info.transaction_status
    return found


def _forget(wrapper: Any) -> None:
    """Close a connection whatever it is in the middle of; the thread's next query gets a new one."""
    connection = wrapper.connection
    with suppress(django.db.Error):
        if connection is not None and wrapper.vendor == "postgresql":
            connection.close()  # itself: a pool would keep it
        wrapper.close()
    del connections[wrapper.alias]


def _ended(connection: Any) -> bool:
    """Tell whether the server has ended an idle session: what can be read from it is its goodbye."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN | select.POLLPRI)
    return bool(poll.poll(0))


def _check_pool(wrapper: Any) -> None:
    """Let Django's pool replace idle connections that have ended: without CONN_HEALTH_CHECKS it hands them out."""
    pool = getattr(wrapper, "pool", None) if wrapper.vendor == "postgresql" else None
    # The idle ones are no part of the pool's interface; where they are kept elsewhere, nothing is checked.
    if pool is not None and any(_ended(each) for each in list(getattr(pool, "_pool", ()))):
        pool.check()


def _is_thread_s_own(wrapper: Any) -> bool:
    try:
        wrapper.validate_thread_sharing()
    except django.db.DatabaseError:
        return False
    return True
