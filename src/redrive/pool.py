"""The queue's own few connections for enqueuing and looking, when the caller brings none.

Safe between threads and after a fork: a connection is used by one thread at a time, and never by another process than
the one that opened it. It is not a general pool: what is idle is kept, a few at most, and anything in doubt is closed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import threading
import weakref
from collections import defaultdict
from contextlib import asynccontextmanager, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from redrive.connections import conninfo, is_outage
from redrive.statements import arun, named, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

KEPT = 4
PREPARE_AFTER = 2
"""Uses after which a statement is prepared: planning an enqueue costs as much again as running it."""

AnyConnection = psycopg.BaseConnection[Any]
C = TypeVar("C", psycopg.Connection[Any], psycopg.AsyncConnection[Any])


class Pool:
    """Idle connections, sync ones shared by all threads, async ones per event loop."""

    def __init__(self, dsn: str) -> None:
        self._dsn = conninfo(dsn, application="redrive queue")
        self._settled = conninfo(dsn, application="redrive queue", settled=True)
        self._direct: bool | None = None
        """Whether a session is ours alone, so that statements can be prepared in it; the first connection finds out."""
        self._outages = 0
        self._begin()

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """Lend an autocommit connection; one that breaks is closed, and a stale idle one is replaced before use."""
        self._after_fork()
        outages = self._outages
        conn = self._take(self._idle) or self._connect()
        try:
            yield conn
        except BaseException as error:
            conn.close()
            self._distrust(error)
            raise
        self._keep(self._idle, conn, outages)

    @asynccontextmanager
    async def async_connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Lend an async autocommit connection of the running loop."""
        self._after_fork()
        self._forget_closed_loops()
        with self._lock:
            idle, outages = self._async_idle[asyncio.get_running_loop()], self._outages
        conn = self._take(idle) or await self._aconnect()
        try:
            yield conn
        except BaseException as error:
            await conn.close()
            self._distrust(error)
            raise
        self._keep(idle, conn, outages)

    def close(self) -> None:
        """Close the idle connections of this process, those of every loop included."""
        self._after_fork()
        with self._lock:
            _end_all(self._pid, self._idle, self._async_idle)

    def _connect(self) -> psycopg.Connection[Any]:
        if self._direct is not None:
            return psycopg.Connection.connect(self._settled if self._direct else self._dsn, **self._how())
        marked, nonce = _marked(self._settled)
        try:
            conn = psycopg.Connection.connect(marked, autocommit=True, prepare_threshold=None)
        except psycopg.OperationalError as error:
            self._refused(error)
            return self._connect()
        try:
            [facts] = run(conn, named("session_facts", ""))
        except BaseException:
            conn.close()
            raise
        self._direct = facts.nonce == nonce
        conn.prepare_threshold = self._how()["prepare_threshold"]
        return conn

    async def _aconnect(self) -> psycopg.AsyncConnection[Any]:
        if self._direct is not None:
            dsn = self._settled if self._direct else self._dsn
            return await psycopg.AsyncConnection.connect(dsn, **self._how())
        marked, nonce = _marked(self._settled)
        try:
            conn = await psycopg.AsyncConnection.connect(marked, autocommit=True, prepare_threshold=None)
        except psycopg.OperationalError as error:
            self._refused(error)
            return await self._aconnect()
        try:
            [facts] = await arun(conn, named("session_facts", ""))
        except BaseException:
            await conn.close()
            raise
        self._direct = facts.nonce == nonce
        conn.prepare_threshold = self._how()["prepare_threshold"]
        return conn

    def _how(self) -> dict[str, Any]:
        return {"autocommit": True, "prepare_threshold": PREPARE_AFTER if self._direct else None}

    def _refused(self, error: psycopg.OperationalError) -> None:
        if "startup parameter" not in str(error):
            raise error
        self._direct = False  # by a pooler, to which the mark is no parameter it knows

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[psycopg.Connection[Any]] = []
        self._async_idle: dict[Any, list[psycopg.AsyncConnection[Any]]] = defaultdict(list)
        # A queue that is dropped, or still there when the program ends, leaves no session behind.
        weakref.finalize(self, _end_all, self._pid, self._idle, self._async_idle)

    def _take(self, idle: list[C]) -> C | None:
        while True:
            with self._lock:
                if not idle:
                    return None
                conn = idle.pop()
            if _usable(conn):
                return conn
            _end(conn)

    def _distrust(self, error: BaseException) -> None:
        """Keep nothing from before an outage: after a failover it may lead to the old server, which answers."""
        if is_outage(error):
            self._after_fork()
            with self._lock:  # both at once: who gives one back in between would leave it here
                self._outages += 1
                _end_all(self._pid, self._idle, self._async_idle)

    def _keep(self, idle: list[C], conn: C, outages: int) -> None:
        self._after_fork()
        with self._lock:
            if len(idle) < KEPT and not conn.closed and outages == self._outages:
                idle.append(conn)
                return
        _end(conn)

    def _forget_closed_loops(self) -> None:
        # asyncio.run() makes a loop a call, and nobody tells us of its end.
        with self._lock:
            ended = [loop for loop in self._async_idle if loop.is_closed()]
            idle = [conn for loop in ended for conn in self._async_idle.pop(loop)]
        for conn in idle:
            _end(conn)

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            _end_all(self._pid, self._idle, self._async_idle)
            self._begin()


def _marked(dsn: str) -> tuple[str, str]:
    """Give *dsn* with a mark in its session's settings, and the mark: a session that doesn't show it is shared."""
    nonce = secrets.token_hex(8)
    options = conninfo_to_dict(dsn).get("options") or ""
    return make_conninfo(dsn, options=f"{options} -c redrive.session={nonce}".strip()), nonce


def _usable(conn: AnyConnection) -> bool:
    """Tell whether an idle connection still has a server: what can be read from an idle socket is its goodbye."""
    if conn.closed:
        return False
    poll = select.poll()
    poll.register(conn.fileno(), select.POLLIN | select.POLLPRI)
    return not poll.poll(0)


def _end(conn: AnyConnection) -> None:
    # As close() does on either sort, with no loop needed: an idle connection has nothing to wait for.
    conn.pgconn.finish()


def _end_all(
    pid: int, idle: list[psycopg.Connection[Any]], async_idle: dict[Any, list[psycopg.AsyncConnection[Any]]]
) -> None:
    for conn in chain(idle, *async_idle.values()):
        if pid != os.getpid() and not conn.closed:
            # It is the parent's session, which a goodbye from here would end: say it to nobody.
            nobody = os.open(os.devnull, os.O_RDWR)
            os.dup2(nobody, conn.pgconn.socket)
            os.close(nobody)
        _end(conn)
    idle.clear()
    async_idle.clear()
