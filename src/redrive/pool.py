"""The queue's own few connections for enqueuing and looking, when the caller brings none.

Safe between threads and after a fork: a connection is used by one thread at a time, and never by another process than
the one that opened it. It is not a general pool: what is idle is kept, a few at most, and anything in doubt is closed.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from redrive.connections import conninfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

KEPT = 4


class Pool:
    """Idle connections, sync ones shared by all threads, async ones per event loop."""

    def __init__(self, dsn: str) -> None:
        self._dsn = conninfo(dsn, application="redrive queue")
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[psycopg.Connection[Any]] = []
        self._async_idle: weakref.WeakKeyDictionary[Any, list[psycopg.AsyncConnection[Any]]] = (
            weakref.WeakKeyDictionary()
        )

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """Lend an autocommit connection; one that breaks is closed, and a stale idle one is replaced before use."""
        self._after_fork()
        conn = self._take()
        try:
            yield conn
        except BaseException:
            conn.close()
            raise
        self._after_fork()
        with self._lock:
            if len(self._idle) < KEPT and not conn.closed:
                self._idle.append(conn)
                return
        conn.close()

    @asynccontextmanager
    async def async_connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Lend an async autocommit connection of the running loop."""
        self._after_fork()
        idle = self._async_idle.setdefault(asyncio.get_running_loop(), [])
        while idle and not _usable(idle[-1]):
            await idle.pop().close()
        conn = (
            idle.pop()
            if idle
            else await psycopg.AsyncConnection.connect(self._dsn, autocommit=True, prepare_threshold=None)
        )
        try:
            yield conn
        except BaseException:
            await conn.close()
            raise
        if len(idle) < KEPT and not conn.closed:
            idle.append(conn)
        else:
            await conn.close()

    def close(self) -> None:
        """Close the idle connections of this process."""
        self._after_fork()
        with self._lock:
            idle, self._idle = self._idle, []
        for conn in idle:
            conn.close()

    async def aclose(self) -> None:
        """Close the idle async connections of the running loop."""
        for conn in self._async_idle.pop(asyncio.get_running_loop(), []):
            await conn.close()

    def _take(self) -> psycopg.Connection[Any]:
        while True:
            with self._lock:
                conn = self._idle.pop() if self._idle else None
            if conn is None:
                # No prepared statements: whether a pooler stands in between isn't known on this path.
                return psycopg.Connection.connect(self._dsn, autocommit=True, prepare_threshold=None)
            if _usable(conn):
                return conn
            conn.close()

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            # The parent's sockets: forget them without a word, a goodbye from here would end the parent's sessions.
            _FOREIGN.extend(self._idle)
            self._pid, self._lock, self._idle = os.getpid(), threading.Lock(), []
            self._async_idle = weakref.WeakKeyDictionary()


_FOREIGN: list[Any] = []


def _usable(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Tell whether an idle connection still has a server: an idle socket that can be read has been closed."""
    if conn.closed:
        return False
    try:
        conn.pgconn.consume_input()
    except psycopg.Error:
        return False
    return conn.pgconn.status == psycopg.pq.ConnStatus.OK and not conn.pgconn.is_busy()
