"""One SQL statement as a value: built once, run on a sync or an async connection, of whatever driver.

The whole of the sync/async question is the two runners below. A statement never begins or ends a transaction, and
minds nothing that the caller has set on their connection: row factories, cursor classes, adapters, pipeline mode.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg import adapters as program
from psycopg.adapt import AdaptersMap, Loader
from psycopg.postgres import register_default_adapters
from psycopg.pq import ExecStatus, Format
from psycopg.rows import dict_row, namedtuple_row, scalar_row
from psycopg.types import TypesRegistry
from psycopg.types.array import register_all_arrays

from redrive import drivers
from redrive.drivers.strangers import any_json
from redrive.job import moment
from redrive.sql import spoken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from psycopg.abc import Buffer
    from psycopg.rows import BaseRowFactory
    from psycopg.sql import Composed

    from redrive.drivers import Answer, AsyncBorrowed, Borrowed, Copy

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
        return any_json(bytes(data[1:]).decode())  # after the version of the format


ANYTHING: Sequence[tuple[str, type[Loader]]] = (("timestamptz", AnyTime), ("jsonb", AnyJson))


class OwnConnection(Connection[T]):
    """One of redrive's own, for a person to read from: what it was told to make of values is made of them."""


class PlainCursor(Cursor[T]):
    """A cursor on the caller's connection that minds no adapter of theirs: their int8 may be text, and ours are ids."""

    @cached_property
    def adapters(self) -> AdaptersMap:
        """Give those of this cursor."""
        return AdaptersMap(self.connection.adapters if isinstance(self.connection, OwnConnection) else _shipped())


class AsyncPlainCursor(AsyncCursor[T]):
    """The same, for async code."""

    @cached_property
    def adapters(self) -> AdaptersMap:
        """Give those of this cursor."""
        return AdaptersMap(_shipped())


@cache
def _shipped() -> AdaptersMap:
    """Give how psycopg writes and reads values where nobody has told it otherwise, also not for the whole program."""

    class Context:
        adapters = AdaptersMap(types=TypesRegistry(program.types))
        connection = None

    context = Context()
    register_default_adapters(context)
    register_all_arrays(context)
    return context.adapters


_NOT_THERE = ("42P01", "42703", "42883", "3F000")
"""No such table, column, function or schema."""
_DEADLOCK = "40P01"
_NOT_PREPARED = ("26000", "42P05")
"""What the driver has prepared is not in this session of the server's, or somebody else's is there by that name."""
_OTHER_PREPARED = "08P01"
"""Or somebody else's, of other parameters, was about to be run; poolers call errors of their own so, too."""


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


def known(cls: Callable[..., T]) -> BaseRowFactory[T]:
    """Make rows of *cls*, a dataclass, out of the columns that it has: a newer schema may have more, or the user."""
    names = {field.name for field in fields(cls)}  # type: ignore[arg-type] # it is a dataclass

    def factory(cursor: Any) -> Callable[[Sequence[Any]], T]:
        row = dict_row(cursor)
        return lambda values: cls(**{name: value for name, value in row(values).items() if name in names})

    return factory


def numbered(name: str, schema: str, /, **params: Any) -> Statement[int]:
    """Build the statement *name* of ``queries.sql`` whose answer is ids: they come as plain numbers."""
    return Statement(spoken(name, schema), scalar_row, params, binary=True)


def as_array(numbers: list[int]) -> str:
    """Spell an array of numbers, which the server reads quicker than it converts one of another width."""
    return f"{{{str(numbers)[1:-1]}}}"


def run(conn: Borrowed, statement: Statement[T]) -> list[T]:
    """Run *statement* on the caller's connection, within whatever transaction it is in.

    Raises:
        TypeError: when that is no sync connection that redrive knows.
    """
    if not isinstance(conn, Connection):
        drivers.demand(conn, "redrive", "the method of the same name that ends in _async", is_async=False)
        driver = drivers.of(conn)
        with noted(conn, driver):
            return _read(statement, driver.say(conn, *_said(statement), typed=statement.binary))
    with noted(conn), PlainCursor(conn, row_factory=statement.row) as cursor:
        _prepare(cursor, statement)
        cursor.execute(statement.sql, statement.params, prepare=_prepared(statement), binary=statement.binary)
        return cursor.fetchall() if _answers(cursor) else []


async def arun(conn: AsyncBorrowed, statement: Statement[T]) -> list[T]:
    """Run *statement* on the caller's async connection; see :func:`run`."""
    if not isinstance(conn, AsyncConnection):
        drivers.demand(conn, "redrive", "the method of the same name without _async", is_async=True)
        driver = drivers.of(conn)
        with noted(conn, driver):
            return _read(statement, await driver.say(conn, *_said(statement), typed=statement.binary))
    with noted(conn):
        async with AsyncPlainCursor(conn, row_factory=statement.row) as cursor:
            _prepare(cursor, statement)
            await cursor.execute(statement.sql, statement.params, prepare=_prepared(statement), binary=statement.binary)
            return await cursor.fetchall() if _answers(cursor) else []


def say(conn: Borrowed, script: Composed) -> None:
    """Run one or several statements that take no parameters and have no answer."""
    if isinstance(conn, Connection):
        conn.execute(script)
    else:
        drivers.demand(conn, "redrive", "a sync connection", is_async=False)
        drivers.of(conn).script(conn, script.as_string(None))


def copy_in(conn: Borrowed, copy: Copy) -> bool:
    """Copy rows in over a connection that isn't psycopg's; False where that has no COPY."""
    driver = drivers.of(conn)
    with noted(conn, driver):
        return bool(driver.copy(conn, copy))


async def acopy_in(conn: AsyncBorrowed, copy: Copy) -> bool:
    """Copy rows in over an async connection that isn't psycopg's; see :func:`copy_in`."""
    driver = drivers.of(conn)
    with noted(conn, driver):
        return bool(await driver.copy(conn, copy))


def follow(ask: Callable[..., list[Any]], steps: Steps[T], connection: Borrowed | None) -> T:
    """Ask one statement after the other, on *connection* where one is given, and give what they come to."""
    try:
        statement = next(steps)
        while True:
            statement = steps.send(ask(statement, connection))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return] # StopIteration is not generic


async def afollow(ask: Callable[..., Awaitable[list[Any]]], steps: Steps[T], connection: AsyncBorrowed | None) -> T:
    """Ask one statement after the other from async code."""
    try:
        statement = next(steps)
        while True:
            statement = steps.send(await ask(statement, connection))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return] # as above


@contextmanager
def noted(conn: Any = None, driver: Any = None) -> Iterator[None]:
    """Let the driver's own error pass untouched, with a note on what to do where that is known."""
    try:
        yield
    except Exception as error:
        if _sqlstate(error) in _NOT_THERE:
            where = _place(conn, driver)
            error.add_note(
                f"redrive is not installed in {where} and schema, or is too old there: run `redrive migrate`"
            )
        elif _sqlstate(error) == _DEADLOCK:
            error.add_note(
                "two transactions waited for each other's rows or keys: say their enqueues in the order of their keys, "
                "or run the whole transaction again"
            )
        elif _is_of_prepared(error):
            error.add_note(
                "a pooler in between hands the server's sessions round, and with them what drivers prepare there: "
                "connect with prepare_threshold=None (psycopg) or statement_cache_size=0 (asyncpg); with SQLAlchemy "
                "by connect_args, and prepared_statement_cache_size=0 beside the latter"
            )
        elif conn is not None and (conn.closed if driver is None else driver.closed(conn)):
            error.add_note(
                "the connection that redrive was given is closed: give an open one, or none for one of the queue's own"
            )
        raise


def _place(conn: Any, driver: Any) -> str:
    name = "" if conn is None else conn.info.dbname if driver is None else driver.database(conn)
    return f"this database ({name})" if name else "this database"


def _is_of_prepared(error: Exception) -> bool:
    state = _sqlstate(error)
    return state in _NOT_PREPARED or (state == _OTHER_PREPARED and "prepared statement" in str(error))


def _sqlstate(error: BaseException | None) -> str | None:
    """Give what the server called *error*, whatever driver says it, and whatever is wrapped around that."""
    if error is None:
        return None
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state or _sqlstate(getattr(error, "orig", None) or error.__cause__)


def _said(statement: Statement[Any]) -> tuple[str, Mapping[str, Any] | None]:
    """Give a statement as drivers other than psycopg take it."""
    text = statement.sql
    return text.decode() if isinstance(text, bytes) else text.as_string(None), statement.params


def _read(statement: Statement[T], answer: Answer) -> list[T]:
    if not answer.rows:
        return []
    make = statement.row(_Columns(answer.names))  # type: ignore[arg-type] # as much of a cursor as a row factory asks for
    return [make(row) for row in answer.rows]


class _Columns:
    """What psycopg's row factories ask of a cursor: the names of the columns."""

    _encoding = "utf8"
    status = ExecStatus.TUPLES_OK

    def __init__(self, names: Sequence[str]) -> None:
        self.nfields = len(names)
        self._names = [name.encode() for name in names]

    @property
    def pgresult(self) -> _Columns:
        return self

    def fname(self, place: int) -> bytes:
        return self._names[place]


def _prepare(cursor: Cursor[Any] | AsyncCursor[Any], statement: Statement[Any]) -> None:
    for type_name, loader in statement.loaders:
        cursor.adapters.register_loader(type_name, loader)


def _prepared(statement: Statement[Any]) -> bool | None:
    return None if statement.kept else False


def _answers(cursor: Cursor[Any] | AsyncCursor[Any]) -> bool:
    # In pipeline mode nothing is known before it is fetched, and what is run there always answers.
    return cursor.pgresult is None or cursor.pgresult.status == ExecStatus.TUPLES_OK
