"""One SQL statement as a value: built once, run on a sync or an async connection.

The whole of the sync/async question is the two runners below. A statement never begins or ends a transaction, and
minds nothing that the caller has set on their connection: row factories, cursor classes, pipeline mode.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from psycopg import AsyncCursor, Cursor, errors
from psycopg.adapt import Loader
from psycopg.pq import ExecStatus, Format
from psycopg.rows import namedtuple_row, scalar_row

from redrive.job import moment
from redrive.sql import spoken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from psycopg import AsyncConnection, Connection
    from psycopg.abc import Buffer
    from psycopg.rows import BaseRowFactory
    from psycopg.sql import Composed

T = TypeVar("T")
Steps = Generator["Statement[Any]", list[Any], T]
"""Statements that depend on each other's answers, for a sync or an async connection to run."""


class AnyTime(Loader):
    """Reads whatever time a stranger wrote, infinity too, and whatever the session's DateStyle is."""

    format = Format.BINARY

    def load(self, data: Buffer) -> datetime:
        """Give the nearest time that Python has."""
        return moment(int.from_bytes(data, "big", signed=True))


class AnyJson(Loader):
    """Reads whatever JSON a stranger wrote."""

    format = Format.BINARY

    def load(self, data: Buffer) -> Any:
        """Give the value; where Python has no room for it, such as a number of 5000 digits, its text."""
        text = bytes(data[1:])  # after the version of the format
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text.decode()


ANYTHING: Sequence[tuple[str, type[Loader]]] = (("timestamptz", AnyTime), ("jsonb", AnyJson))

_NOT_THERE = (errors.UndefinedTable, errors.UndefinedColumn, errors.UndefinedFunction, errors.InvalidSchemaName)


@dataclass(frozen=True, slots=True)
class Statement(Generic[T]):
    """A query, its parameters, and the type of a row of its answer."""

    sql: bytes | Composed
    row: BaseRowFactory[T]
    params: Mapping[str, Any] | None = None
    binary: bool = False
    loaders: Sequence[tuple[str, type[Loader]]] = ()
    """How values of certain types are read, where the driver's way is not wanted."""
    kept: bool = True
    """The session may keep its plan. Not where one made while the table was small would walk it once it has grown, and
    the session is the user's, with settings of its own."""


def named(name: str, schema: str, /, **params: Any) -> Statement[Any]:
    """Build the statement *name* of ``queries.sql``; its rows are named tuples."""
    return Statement(spoken(name, schema), namedtuple_row, params)


def lenient(name: str, schema: str, /, row: BaseRowFactory[T], **params: Any) -> Statement[T]:
    """Build a statement whose answer may hold what strangers wrote: times and JSON that Python has no room for."""
    return Statement(spoken(name, schema), row, params, binary=True, loaders=ANYTHING)


def numbered(name: str, schema: str, /, **params: Any) -> Statement[int]:
    """Build the statement *name* of ``queries.sql`` whose answer is ids: they come as plain numbers."""
    return Statement(spoken(name, schema), scalar_row, params, binary=True)


def as_array(numbers: list[int]) -> str:
    """Spell an array of numbers, which the server reads quicker than it converts one of another width."""
    return f"{{{str(numbers)[1:-1]}}}"


def run(conn: Connection[Any], statement: Statement[T]) -> list[T]:
    """Run *statement* on the caller's connection, within whatever transaction it is in."""
    with noted(), Cursor(conn, row_factory=statement.row) as cursor:
        _prepare(cursor, statement)
        cursor.execute(statement.sql, statement.params, prepare=_prepared(statement), binary=statement.binary)
        return cursor.fetchall() if _answers(cursor) else []


async def arun(conn: AsyncConnection[Any], statement: Statement[T]) -> list[T]:
    """Run *statement* on the caller's async connection."""
    with noted():
        async with AsyncCursor(conn, row_factory=statement.row) as cursor:
            _prepare(cursor, statement)
            await cursor.execute(statement.sql, statement.params, prepare=_prepared(statement), binary=statement.binary)
            return await cursor.fetchall() if _answers(cursor) else []


def follow(ask: Callable[..., list[Any]], steps: Steps[T], connection: Connection[Any] | None) -> T:
    """Ask one statement after the other, on *connection* where one is given, and give what they come to."""
    try:
        statement = next(steps)
        while True:
            statement = steps.send(ask(statement, connection))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return] # StopIteration is not generic


async def afollow(
    ask: Callable[..., Awaitable[list[Any]]], steps: Steps[T], connection: AsyncConnection[Any] | None
) -> T:
    """Ask one statement after the other from async code."""
    try:
        statement = next(steps)
        while True:
            statement = steps.send(await ask(statement, connection))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return] # as above


@contextmanager
def noted() -> Iterator[None]:
    """Let the driver's error for a table that isn't there pass untouched, with a note on what to do about it."""
    try:
        yield
    except _NOT_THERE as error:
        error.add_note(
            "redrive is not installed in this database and schema, or is too old there: run `redrive migrate`"
        )
        raise


def _prepare(cursor: Cursor[Any] | AsyncCursor[Any], statement: Statement[Any]) -> None:
    for type_name, loader in statement.loaders:
        cursor.adapters.register_loader(type_name, loader)


def _prepared(statement: Statement[Any]) -> bool | None:
    return None if statement.kept else False


def _answers(cursor: Cursor[Any] | AsyncCursor[Any]) -> bool:
    # In pipeline mode nothing is known before it is fetched, and what is run there always answers.
    return cursor.pgresult is None or cursor.pgresult.status == ExecStatus.TUPLES_OK
