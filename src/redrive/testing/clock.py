"""The clock of one session, for a test to move: the one by which jobs are due. What Postgres calls now() stays."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, overload

import psycopg
from psycopg.pq import TransactionStatus

from redrive.statements import arun, named, run

if TYPE_CHECKING:
    from datetime import datetime


@overload
def clock(connection: psycopg.Connection[Any]) -> Clock: ...


@overload
def clock(connection: psycopg.AsyncConnection[Any]) -> AsyncClock: ...


def clock(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Clock | AsyncClock:
    """Move redrive's clock in the session of *connection*, so that retries, delayed jobs and deadlines come due.

    ``with clock(connection) as c: c.move(hours=2)``; on an async connection ``async with``, and each call is awaited.
    """
    return AsyncClock(connection) if isinstance(connection, psycopg.AsyncConnection) else Clock(connection)


class Clock:
    """The clock of a session, put back at the end of its block. A rollback takes back what was moved since."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._before = ""

    def __enter__(self) -> Self:
        self._before = self._ask("read_clock").moved
        return self

    def __exit__(self, *_: object) -> None:
        if _can_ask(self._connection):
            self._ask("set_clock", moved=self._before)

    def now(self) -> datetime:
        """Read the clock."""
        now: datetime = self._ask("read_clock").now
        return now

    def move(self, by: timedelta | None = None, **span: float) -> None:
        """Move the clock on, by a timedelta or by what makes one, as in ``move(hours=2)``."""
        self._ask("move_clock", seconds=_seconds(by, span))

    def move_to(self, when: datetime) -> None:
        """Move the clock to a time, such as a job's ``run_at``."""
        self.move(when - self.now())

    def _ask(self, name: str, **params: Any) -> Any:
        return run(self._connection, named(name, "", **params))[0]


class AsyncClock:
    """The clock of an async connection's session, see :class:`Clock`."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._before = ""

    async def __aenter__(self) -> Self:
        self._before = (await self._ask("read_clock")).moved
        return self

    async def __aexit__(self, *_: object) -> None:
        if _can_ask(self._connection):
            await self._ask("set_clock", moved=self._before)

    async def now(self) -> datetime:
        """Read the clock."""
        now: datetime = (await self._ask("read_clock")).now
        return now

    async def move(self, by: timedelta | None = None, **span: float) -> None:
        """Move the clock on, by a timedelta or by what makes one, as in ``move(hours=2)``."""
        await self._ask("move_clock", seconds=_seconds(by, span))

    async def move_to(self, when: datetime) -> None:
        """Move the clock to a time, such as a job's ``run_at``."""
        await self.move(when - await self.now())

    async def _ask(self, name: str, **params: Any) -> Any:
        return (await arun(self._connection, named(name, "", **params)))[0]


def _seconds(by: timedelta | None, span: dict[str, float]) -> float:
    return ((by or timedelta()) + timedelta(**span)).total_seconds()


def _can_ask(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    # In a failed transaction nothing can be said, and its rollback takes the moves back, too.
    return not connection.closed and connection.info.transaction_status != TransactionStatus.INERROR
