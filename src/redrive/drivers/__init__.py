"""Connections that callers bring, of whatever driver: how each is recognised, and how a statement is said on it.

A driver here knows the connection and nothing of redrive. It never begins or ends a transaction, and leaves the
connection as it was: no cursor class, codec or setting of the caller's is touched. No library is imported before a
connection of it is seen. psycopg's own connections need none of this: :mod:`redrive.statements` speaks psycopg.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from psycopg import AsyncConnection, Connection

from redrive.drivers.borrowed import AsyncBorrowed, Borrowed

__all__ = ["Answer", "AsyncBorrowed", "AsyncDriver", "Borrowed", "Copy", "Driver", "awaited", "demand", "of"]

_OURS = "redrive.drivers."
_KNOWN = {
    "psycopg2.extensions.connection": "psycopg2:Psycopg2",
    "asyncpg.connection.Connection": "asyncpg:Asyncpg",
    "asyncpg.pool.PoolConnectionProxy": "asyncpg:Asyncpg",
    "django.db.backends.base.base.BaseDatabaseWrapper": "django:Django",
    "django.utils.connection.ConnectionProxy": "django:Django",
    "sqlalchemy.engine.base.Connection": "sqlalchemy:Alchemy",
    "sqlalchemy.orm.session.Session": "sqlalchemy:Alchemy",
    "sqlalchemy.orm.scoping.scoped_session": "sqlalchemy:Alchemy",
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": "sqlalchemy:AsyncAlchemy",
    "sqlalchemy.ext.asyncio.session.AsyncSession": "sqlalchemy:AsyncAlchemy",
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": "sqlalchemy:AsyncAlchemy",
}
_NEARLY = {
    "sqlalchemy.engine.base.Engine": "open one of it: `with engine.begin() as connection`",
    "sqlalchemy.ext.asyncio.engine.AsyncEngine": "open one of it: `async with engine.begin() as connection`",
    "sqlalchemy.orm.session.sessionmaker": "call it: `with Session.begin() as session`",
    "sqlalchemy.ext.asyncio.session.async_sessionmaker": "call it: `async with Session.begin() as session`",
    "sqlalchemy.pool.base._ConnectionFairy": "pass its .driver_connection",
    "asyncpg.pool.Pool": "take one of it: `async with pool.acquire() as connection`",
    "psycopg_pool.pool.ConnectionPool": "take one of it: `with pool.connection() as connection`",
    "psycopg_pool.pool_async.AsyncConnectionPool": "take one of it: `async with pool.connection() as connection`",
    "psycopg.Cursor": "pass its .connection",
    "psycopg.AsyncCursor": "pass its .connection",
    "psycopg2.extensions.cursor": "pass its .connection",
    "builtins.str": "a connection string is for Queue(...); without connection= the queue opens its own",
}
_REMEDY = "pass one of psycopg, psycopg2, asyncpg, SQLAlchemy or Django"


class Answer(NamedTuple):
    """What a statement gave."""

    names: Sequence[str]
    """Of the columns."""
    rows: Sequence[Sequence[Any]]


class Copy(NamedTuple):
    """Rows on their way into a table, as drivers ask for it."""

    sql: str
    """``COPY ... FROM STDIN``, for those that take it whole."""
    schema: str
    table: str
    columns: Sequence[str]
    text: str
    """The rows, in COPY's text format."""


class Driver(Protocol):
    """How statements are said on one kind of connection."""

    awaited: bool
    """False; what is true of an :class:`AsyncDriver`."""

    def say(self, connection: Any, sql: str, params: Mapping[str, Any] | None, *, typed: bool) -> Answer:
        """Run *sql*, with its parameters as ``%(name)s``; *typed* where the answer may hold JSON, to be read."""

    def script(self, connection: Any, sql: str) -> None:
        """Run one or several statements that take no parameters and have no answer."""

    def copy(self, connection: Any, copy: Copy) -> bool:
        """Run a COPY; False where this kind of connection has none."""

    def closed(self, connection: Any) -> bool:
        """Whether the connection is known to be closed."""

    def database(self, connection: Any) -> str:
        """Name the database at the other end; empty where the driver doesn't tell."""


class AsyncDriver(Protocol):
    """How statements are said on a kind of connection that is awaited; see :class:`Driver`."""

    awaited: bool

    def say(self, connection: Any, sql: str, params: Mapping[str, Any] | None, *, typed: bool) -> Awaitable[Answer]:
        """Run *sql*."""

    def copy(self, connection: Any, copy: Copy) -> Awaitable[bool]:
        """Run a COPY."""

    def closed(self, connection: Any) -> bool:
        """Whether the connection is known to be closed."""

    def database(self, connection: Any) -> str:
        """Name the database at the other end; empty where the driver doesn't tell."""


def of(connection: Any) -> Any:
    """Give the driver of a connection that isn't psycopg's: a :class:`Driver` or :class:`AsyncDriver`.

    Raises:
        TypeError: for what is no connection that redrive knows, with the remedy.
    """
    found = _driver_of(connection)
    if found is None:
        raise _refused("redrive", connection)
    return found


def awaited(connection: Any) -> bool:
    """Whether *connection* is of an async driver.

    Raises:
        TypeError: for what is no connection that redrive knows, with the remedy.
    """
    if isinstance(connection, Connection):
        return False
    return isinstance(connection, AsyncConnection) or bool(of(connection).awaited)


def demand(connection: Any, method: str, other: str, *, is_async: bool) -> None:
    """Refuse a connection that *method* can't use, before anything else is looked at; *other* is its twin.

    Raises:
        TypeError: naming what was given and the remedy.
    """
    if not isinstance(connection, Connection | AsyncConnection) and _driver_of(connection) is None:
        raise _refused(method, connection)
    if awaited(connection) != is_async:
        sort = "async" if awaited(connection) else "sync"
        raise TypeError(f"{method}: connection is {_called(connection)}, which is {sort}: use {other}")


def _driver_of(connection: Any) -> Driver | AsyncDriver | None:
    kind: type = type(connection)
    return _of_type(kind)


@cache
def _of_type(kind: type) -> Driver | AsyncDriver | None:
    for base in kind.__mro__:
        if place := _KNOWN.get(f"{base.__module__}.{base.__qualname__}"):
            module, _, name = place.partition(":")
            driver: Driver | AsyncDriver = getattr(import_module(_OURS + module), name)()
            return driver
    return None


def _refused(method: str, connection: Any) -> TypeError:
    names = (f"{base.__module__}.{base.__qualname__}" for base in type(connection).__mro__)
    remedy = next((_NEARLY[name] for name in names if name in _NEARLY), _REMEDY)
    return TypeError(f"{method}: connection is {_called(connection)}, which is no connection: {remedy}")


def _called(connection: Any) -> str:
    kind = type(connection)
    return f"a {kind.__module__}.{kind.__qualname__}"
