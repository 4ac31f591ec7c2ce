"""The test's connection in the place of the queue's own: what the application enqueues is in the test's transaction."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from redrive.statements import arun

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from redrive.queue import Queue
    from redrive.statements import Statement

ENQUEUING = ("enqueue", "enqueue_many", "publish", "publish_many")
AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


@contextmanager
def connected(queue: Queue, connection: AnyConnection) -> Iterator[None]:
    """Let what *queue* does on a connection of its own be done on *connection*, until the end of the block.

    Jobs that the application enqueues are in the test's transaction, whether or not it passes a connection. Async code
    may be given a sync connection; sync code an async one where it runs in another thread than the event loop.
    """
    methods = _through_the_loop(queue) if isinstance(connection, psycopg.AsyncConnection) else _without_awaiting(queue)
    before = {name: vars(queue)[name] for name in (*methods, "_pool") if name in vars(queue)}
    vars(queue).update(methods, _pool=_Lent(connection))
    try:
        yield
    finally:
        for name in methods:
            del vars(queue)[name]
        vars(queue).update(before)


@contextmanager
def connection_of(queue: Queue, connection: Any = None) -> Iterator[psycopg.Connection[Any]]:
    """Give *connection*, or without it the queue's own.

    Raises:
        TypeError: when it is not a sync psycopg connection.
    """
    if connection is None:
        with queue.pool.connection() as own:
            yield own
    elif isinstance(connection, psycopg.Connection):
        yield connection
    else:
        raise _refused(connection, psycopg.Connection, "the function of the same name with _async")


@asynccontextmanager
async def connection_of_async(queue: Queue, connection: Any = None) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Give *connection*, or without it the queue's own.

    Raises:
        TypeError: when it is not an async psycopg connection.
    """
    if connection is None:
        async with queue.pool.async_connection() as own:
            yield own
    elif isinstance(connection, psycopg.AsyncConnection):
        yield connection
    else:
        raise _refused(connection, psycopg.AsyncConnection, "the function of the same name without _async")


class _Lent:
    """As much of a pool as a queue needs, around one connection that is never closed."""

    def __init__(self, connection: AnyConnection) -> None:
        self._connection = connection

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        if not isinstance(self._connection, psycopg.Connection):
            raise _refused(self._connection, psycopg.Connection, "the async function in its place")
        yield self._connection

    @asynccontextmanager
    async def async_connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        if not isinstance(self._connection, psycopg.AsyncConnection):
            raise _refused(self._connection, psycopg.AsyncConnection, "the sync function in its place")
        yield self._connection

    def close(self) -> None:
        """Leave the connection open: it is the test's."""


def _without_awaiting(queue: Queue) -> dict[str, Callable[..., Any]]:
    """Make async methods that do as the sync ones do, for a connection that can't be awaited."""

    def as_async(name: str) -> Callable[..., Any]:
        async def method(*args: Any, connection: Any = None, **options: Any) -> Any:
            if connection is not None:
                return await getattr(type(queue), f"{name}_async")(queue, *args, connection=connection, **options)
            return getattr(queue, name)(*args, **options)

        return method

    return {f"{name}_async": as_async(name) for name in ENQUEUING}


def _through_the_loop(queue: Queue) -> dict[str, Callable[..., Any]]:
    """Make sync methods that let the connection's event loop do it, for handlers in threads."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return {}

    def as_sync(name: str, twin: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any, connection: Any = None, **options: Any) -> Any:
            if connection is not None:
                return getattr(type(queue), name)(queue, *args, connection=connection, **options)
            if _in(loop):
                raise TypeError(
                    f"{name}: it would block the event loop that the test's connection needs: use {name}_async"
                )
            return asyncio.run_coroutine_threadsafe(twin(*args, **options), loop).result()

        return method

    async def ask_async(statement: Statement[Any]) -> list[Any]:
        async with queue.pool.async_connection() as own:
            return await arun(own, statement)

    twins: dict[str, Callable[..., Any]] = {name: getattr(queue, f"{name}_async") for name in ENQUEUING}
    twins["ask"] = ask_async
    return {name: as_sync(name, twin) for name, twin in twins.items()}


def _in(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _refused(connection: Any, wanted: type, other: str) -> TypeError:
    kind = type(connection)
    twin = isinstance(connection, psycopg.Connection | psycopg.AsyncConnection)
    remedy = f"use {other}" if twin else "pass psycopg's own"
    return TypeError(
        f"the connection is a {kind.__module__}.{kind.__qualname__}, not a psycopg.{wanted.__name__}: {remedy}"
    )
