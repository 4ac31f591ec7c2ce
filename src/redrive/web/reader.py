"""How the desk asks the database: read-only, within a time, on few connections, and once for all open tabs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from psycopg.rows import namedtuple_row

from redrive.drivers import AsyncBorrowed, Borrowed
from redrive.statements import Statement, lenient, named, run

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from datetime import datetime

    from redrive.queue import Queue

T = TypeVar("T")

CONNECTIONS = 3
TIMEOUT = 2.0
"""Seconds that a statement of the desk may take."""
KEPT = 100


@dataclass(frozen=True)
class Place:
    """Where the desk looks, and what it may do there."""

    now: datetime
    read_at: float
    """In monotonic seconds of this process."""
    database: str
    role: str
    version: str
    writable: bool
    why_not: str = ""


class Reader:
    """Asks statements, each in a read-only transaction of its own."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.schema = queue.schema
        self.handlers = queue.handlers
        self.asked = 0
        """Statements so far, for who wants to know what the desk costs."""
        self._room = threading.BoundedSemaphore(CONNECTIONS)

    def ask(self, statement: Statement[T], connection: Borrowed | None = None, *, timeout: float = TIMEOUT) -> list[T]:
        """Run *statement*, which can change nothing and is given up after *timeout* seconds.

        What reads on behalf of a queue (its statistics, its schedules) can so do it here; *connection* is not taken.

        Raises:
            psycopg.errors.QueryCanceled: when the time is up.
        """
        if connection is not None:
            raise TypeError("the desk reads on connections of its own")
        terms = named("desk_terms", self.schema, timeout=str(round(timeout * 1000)))
        with self._room, self.queue.pool.connection() as conn, conn.transaction():
            run(conn, terms)
            self.asked += 1
            return run(conn, replace(statement, kept=False))

    async def ask_async(self, statement: Statement[T], connection: AsyncBorrowed | None = None) -> list[T]:
        """Refuse: the pages are drawn in threads."""
        raise NotImplementedError

    def statement(self, name: str, **params: Any) -> Statement[Any]:
        """Make a statement of ``queries.sql`` whose answer may hold what strangers wrote."""
        return lenient(name, self.schema, namedtuple_row, **params)

    def place(self) -> Place:
        """Look where the desk is, and whether it may write there."""
        [row] = self.ask(self.statement("desk_place"))
        why = (
            "it is a replica"
            if row.replica
            else "its sessions are read-only by default"
            if row.read_only
            else f"role {row.role} has no right to change jobs"
            if not row.may_write
            else ""
        )
        return Place(row.now, time.monotonic(), row.database, row.role, row.version, not why, why)


@dataclass
class Shared:
    """Answers that all tabs of a process share: asked again when they are too old, by one thread at a time."""

    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _answers: dict[Hashable, tuple[float, Any]] = field(default_factory=dict)
    _busy: dict[Hashable, threading.Lock] = field(default_factory=dict)

    def get(self, key: Hashable, age: float, ask: Callable[[], T]) -> T:
        """Give the answer to *key*, at most *age* seconds old; while it is being asked anew, the one before."""
        with self._lock:
            when, answer = self._answers.get(key, (None, None))
            busy = self._busy.setdefault(key, threading.Lock())
        if when is not None and self.clock() - when < age:
            return answer  # type: ignore[return-value] # what was kept under this key
        if not busy.acquire(blocking=when is None):
            return answer  # type: ignore[return-value] # as above
        try:
            with self._lock:
                when, answer = self._answers.get(key, (None, None))
            if when is not None and self.clock() - when < age:
                return answer  # type: ignore[return-value] # as above
            fresh = ask()
            with self._lock:
                if len(self._answers) >= KEPT:
                    self._answers.clear()
                    self._busy.clear()
                self._answers[key] = (self.clock(), fresh)
            return fresh
        finally:
            busy.release()

    def forget(self) -> None:
        """Drop every answer: somebody has just changed something, and wants to see it."""
        with self._lock:
            self._answers.clear()
