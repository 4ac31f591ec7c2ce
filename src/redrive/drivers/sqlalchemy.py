"""SQLAlchemy 2: a Session or Connection, sync or async, over psycopg, psycopg2 or asyncpg.

What is said goes through SQLAlchemy itself, as any statement of the caller's would: it begins its transaction where it
would begin it, it is echoed, traced and counted, and its errors are SQLAlchemy's. Nothing is flushed: what a Session
holds back and the job are committed together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, CursorResult
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.util import await_only

from redrive.drivers import Answer, Copy
from redrive.drivers.placeholders import numbered
from redrive.drivers.strangers import JSON, with_json
from redrive.sql import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.engine import Dialect

DRIVERS = ("psycopg", "psycopg2", "asyncpg")
_WHOLE = {"stream_results": False, "yield_per": None, "max_row_buffer": None}
"""What a connection may be set to that is for long answers to SELECT: a server's cursor takes no INSERT."""


class Alchemy:
    """How statements are said on a Session or Connection."""

    awaited = False

    def say(self, connection: Any, sql: str, params: Mapping[str, Any] | None, *, typed: bool) -> Answer:
        """Run *sql*."""
        own = connection if isinstance(connection, Connection) else _bound(connection)
        text, values = _spelt(own.dialect, sql, params)
        return _answer(own.exec_driver_sql(text, values, _WHOLE), typed=typed)

    def script(self, connection: Any, sql: str) -> None:
        """Run one or several statements."""
        own = connection if isinstance(connection, Connection) else _bound(connection)
        if own.dialect.driver == "asyncpg":  # beneath run_sync; prepared, as SQLAlchemy says all there, it is one only
            own.exec_driver_sql(text_of("transaction_began"))  # to begin the transaction, if need be
            await_only(own.connection.driver_connection.execute(sql))  # type: ignore[union-attr] # it is open
        else:
            own.exec_driver_sql(sql, execution_options={"no_parameters": True})

    def copy(self, _connection: Any, _copy: Copy) -> bool:
        """Decline: SQLAlchemy has no COPY."""
        return False

    def closed(self, connection: Any) -> bool:
        """Whether the Connection is closed; a Session never is."""
        return isinstance(connection, Connection) and connection.closed

    def database(self, connection: Any) -> str:
        """Name the database, where one engine is known."""
        engine = getattr(connection, "engine", None) or getattr(connection, "bind", None)
        return str(getattr(getattr(engine, "url", None), "database", None) or "")


class AsyncAlchemy:
    """How statements are said on an AsyncSession or AsyncConnection."""

    awaited = True

    async def say(self, connection: Any, sql: str, params: Mapping[str, Any] | None, *, typed: bool) -> Answer:
        """Run *sql*."""
        own = connection if isinstance(connection, AsyncConnection) else await _abound(connection)
        text, values = _spelt(own.dialect, sql, params)
        return _answer(await own.exec_driver_sql(text, values, _WHOLE), typed=typed)

    async def copy(self, _connection: Any, _copy: Copy) -> bool:
        """Decline: SQLAlchemy has no COPY."""
        return False

    def closed(self, connection: Any) -> bool:
        """Whether the AsyncConnection is closed; an AsyncSession never is."""
        return isinstance(connection, AsyncConnection) and connection.closed

    def database(self, connection: Any) -> str:
        """Name the database, where one engine is known."""
        engine = getattr(connection, "engine", None) or getattr(connection, "bind", None)
        return str(getattr(getattr(engine, "url", None), "database", None) or "")


def _bound(session: Any) -> Connection:
    try:
        connection: Connection = session.connection()
    except UnboundExecutionError as error:
        raise _unbound(error) from error
    return connection


async def _abound(session: Any) -> AsyncConnection:
    try:
        connection: AsyncConnection = await session.connection()
    except UnboundExecutionError as error:
        raise _unbound(error) from error
    return connection


def _unbound(error: UnboundExecutionError) -> TypeError:
    return TypeError(
        f"this Session doesn't say which database is meant ({error}): pass "
        "session.connection(bind_arguments={'bind': engine}) with the engine that has redrive's tables"
    )


def _spelt(dialect: Dialect, sql: str, params: Mapping[str, Any] | None) -> tuple[str, Any]:
    if dialect.name != "postgresql" or dialect.driver not in DRIVERS:
        raise TypeError(
            f"this connection of SQLAlchemy is {dialect.name}+{dialect.driver}: redrive's tables are reached over "
            f"postgresql+{', +'.join(DRIVERS)}"
        )
    if dialect.driver == "psycopg2":
        from redrive.drivers.psycopg2 import arrays  # noqa: PLC0415 - only where psycopg2 is there

        return sql, arrays(params)
    if dialect.driver != "asyncpg":
        return sql, None if params is None else dict(params)
    return numbered(sql, params)


def _answer(result: CursorResult[Any], *, typed: bool) -> Answer:
    if not result.returns_rows:
        return Answer((), ())
    columns = result.cursor.description if result.cursor is not None else ()
    rows: Sequence[Sequence[Any]] = [tuple(row) for row in result.all()]
    if typed and result.dialect.driver == "asyncpg":  # whose JSON SQLAlchemy leaves to its own column types
        rows = with_json(rows, [place for place, column in enumerate(columns) if column[1] in JSON])
    return Answer(list(result.keys()), rows)
