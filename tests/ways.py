"""Each way in which an application may hold a connection to Postgres, with one face for the tests: it is awaited.

A way is in a transaction when a test gets it; what the test does with ``execute`` is the application's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import psycopg2
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from redrive import Queue


@dataclass
class Way:
    """A connection, and what its application does with it."""

    connection: Any
    execute: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]
    savepoint: Callable[[], Any]
    """A context manager, sync or async, that undoes what was done within when an exception leaves it."""
    is_async: bool = False
    begin: Callable[[], Any] = lambda: None
    """Begin another transaction; most begin it by themselves."""

    async def ask(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a method of the queue's, or its twin for async code, on this connection."""
        if self.is_async:
            method = getattr(method.__self__, f"{method.__name__}_async")
        return await _settled(method(*args, connection=self.connection, **options))

    async def say(self, sql: str) -> None:
        """Run a statement of the application's."""
        await _settled(self.execute(sql))

    async def end(self, *, commit: bool) -> None:
        """Commit, or roll back."""
        await _settled(self.commit() if commit else self.rollback())

    async def again(self) -> None:
        """Begin another transaction."""
        await _settled(self.begin())

    @contextlib.asynccontextmanager
    async def undone(self) -> AsyncIterator[None]:
        """Roll back what is done within, and nothing else."""
        with contextlib.suppress(_UndoneError):
            block = self.savepoint()
            if hasattr(block, "__aenter__"):
                async with block:
                    yield
                    raise _UndoneError
            with block:
                yield
                raise _UndoneError


class _UndoneError(Exception):
    """Leaves the block of a savepoint."""


async def _settled(answer: Any) -> Any:
    return await answer if hasattr(answer, "__await__") else answer


def url(dsn: str, driver: str, database: str | None = None) -> sa.URL:
    """Give the URL that SQLAlchemy takes for *dsn*."""
    given = conninfo_to_dict(dsn)
    where = {"username": given["user"], "password": given.get("password"), "database": database or given["dbname"]}
    return sa.URL.create(f"postgresql+{driver}", host=given["host"], port=int(given["port"]), **where)


def asyncpg_of(dsn: str) -> dict[str, Any]:
    """Give what asyncpg.connect takes for *dsn*."""
    given = conninfo_to_dict(dsn)
    return {name: given[name] for name in ("host", "port", "user", "password") if name in given} | {
        "database": given["dbname"]
    }


@contextlib.asynccontextmanager
async def with_psycopg(dsn: str) -> AsyncIterator[Way]:
    with psycopg.connect(dsn) as conn:
        yield Way(conn, conn.execute, conn.commit, conn.rollback, conn.transaction)
        conn.rollback()


@contextlib.asynccontextmanager
async def with_psycopg_async(dsn: str) -> AsyncIterator[Way]:
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        yield Way(conn, conn.execute, conn.commit, conn.rollback, conn.transaction, is_async=True)
        await conn.rollback()


@contextlib.asynccontextmanager
async def with_psycopg2(dsn: str) -> AsyncIterator[Way]:
    conn = psycopg2.connect(dsn)

    def execute(sql: str) -> None:
        with conn.cursor() as cursor:
            cursor.execute(sql)

    @contextlib.contextmanager
    def savepoint() -> Any:
        execute("SAVEPOINT theirs")
        try:
            yield
        except BaseException:
            execute("ROLLBACK TO SAVEPOINT theirs")
            raise

    yield Way(conn, execute, conn.commit, conn.rollback, savepoint)
    conn.close()


class _Begun:
    """What one does with asyncpg's transactions, one after the other."""

    def __init__(self, conn: Any) -> None:
        self.conn = conn

    async def begin(self) -> None:
        self.transaction = self.conn.transaction()
        await self.transaction.start()

    async def commit(self) -> None:
        await self.transaction.commit()

    async def rollback(self) -> None:
        await self.transaction.rollback()


async def _asyncpg(conn: Any) -> Way:
    begun = _Begun(conn)
    await begun.begin()
    return Way(conn, conn.execute, begun.commit, begun.rollback, conn.transaction, is_async=True, begin=begun.begin)


@contextlib.asynccontextmanager
async def with_asyncpg(dsn: str) -> AsyncIterator[Way]:
    conn = await asyncpg.connect(**asyncpg_of(dsn))
    yield await _asyncpg(conn)
    await conn.close()


@contextlib.asynccontextmanager
async def with_asyncpg_pool(dsn: str) -> AsyncIterator[Way]:
    async with asyncpg.create_pool(**asyncpg_of(dsn), min_size=1, max_size=1) as pool, pool.acquire() as conn:
        yield await _asyncpg(conn)


def with_session(driver: str) -> Callable[[str], Any]:
    @contextlib.asynccontextmanager
    async def way(dsn: str) -> AsyncIterator[Way]:
        engine = sa.create_engine(url(dsn, driver), poolclass=NullPool)
        with Session(engine) as session:
            execute = lambda sql: session.execute(sa.text(sql))  # noqa: E731 - one expression
            yield Way(session, execute, session.commit, session.rollback, session.begin_nested)

    return way


@contextlib.asynccontextmanager
async def with_scoped_session(dsn: str) -> AsyncIterator[Way]:
    session = scoped_session(sessionmaker(sa.create_engine(url(dsn, "psycopg2"), poolclass=NullPool)))
    yield Way(
        session, lambda sql: session.execute(sa.text(sql)), session.commit, session.rollback, session.begin_nested
    )
    session.remove()


@contextlib.asynccontextmanager
async def with_alchemy_connection(dsn: str) -> AsyncIterator[Way]:
    engine = sa.create_engine(url(dsn, "psycopg"), poolclass=NullPool)
    with engine.connect() as conn:
        yield Way(conn, conn.exec_driver_sql, conn.commit, conn.rollback, conn.begin_nested)


def with_async_session(driver: str) -> Callable[[str], Any]:
    @contextlib.asynccontextmanager
    async def way(dsn: str) -> AsyncIterator[Way]:
        engine = create_async_engine(url(dsn, driver), poolclass=NullPool)
        async with AsyncSession(engine) as session:
            execute = lambda sql: session.execute(sa.text(sql))  # noqa: E731 - one expression
            yield Way(session, execute, session.commit, session.rollback, session.begin_nested, is_async=True)

    return way


@contextlib.asynccontextmanager
async def with_async_alchemy_connection(dsn: str) -> AsyncIterator[Way]:
    engine = create_async_engine(url(dsn, "asyncpg"), poolclass=NullPool)
    async with engine.connect() as conn:
        yield Way(conn, conn.exec_driver_sql, conn.commit, conn.rollback, conn.begin_nested, is_async=True)


class _RunSync:
    """The sync Session within an AsyncSession, as ``run_sync`` hands it out."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def ask(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return await self.session.run_sync(lambda sync: method(*args, connection=sync, **options))


@contextlib.asynccontextmanager
async def with_run_sync(dsn: str) -> AsyncIterator[Way]:
    async with with_async_session("asyncpg")(dsn) as way:
        way.ask = _RunSync(way.connection).ask
        yield way


WAYS: dict[str, Callable[[str], Any]] = {
    "psycopg": with_psycopg,
    "psycopg async": with_psycopg_async,
    "psycopg2": with_psycopg2,
    "asyncpg": with_asyncpg,
    "asyncpg's pool": with_asyncpg_pool,
    "Session over psycopg": with_session("psycopg"),
    "Session over psycopg2": with_session("psycopg2"),
    "scoped_session": with_scoped_session,
    "SQLAlchemy's Connection": with_alchemy_connection,
    "AsyncSession over asyncpg": with_async_session("asyncpg"),
    "AsyncSession over psycopg": with_async_session("psycopg"),
    "SQLAlchemy's AsyncConnection": with_async_alchemy_connection,
    "Session of run_sync": with_run_sync,
}

__all__ = ["WAYS", "Queue", "Way", "asyncpg_of", "url"]
