"""One SQL statement as a value: built once, run on a sync or an async connection.

The whole of the sync/async question is the two runners below. A statement never begins or ends a transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from psycopg.rows import namedtuple_row

from redrive.sql import query

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psycopg import AsyncConnection, Connection
    from psycopg.rows import BaseRowFactory
    from psycopg.sql import Composed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Statement(Generic[T]):
    """A query, its parameters, and the type of a row of its answer."""

    sql: Composed
    row: BaseRowFactory[T]
    params: Mapping[str, Any] | None = None
    binary: bool = False


def named(name: str, schema: str, /, **params: Any) -> Statement[Any]:
    """Build the statement *name* of ``queries.sql``; its rows are named tuples."""
    return Statement(query(name, schema), namedtuple_row, params)


def run(conn: Connection[Any], statement: Statement[T]) -> list[T]:
    """Run *statement* on the caller's connection, within whatever transaction it is in."""
    with conn.cursor(row_factory=statement.row, binary=statement.binary) as cursor:
        cursor.execute(statement.sql, statement.params)
        return cursor.fetchall() if cursor.description else []


async def arun(conn: AsyncConnection[Any], statement: Statement[T]) -> list[T]:
    """Run *statement* on the caller's async connection."""
    async with conn.cursor(row_factory=statement.row, binary=statement.binary) as cursor:
        await cursor.execute(statement.sql, statement.params)
        return await cursor.fetchall() if cursor.description else []
