"""Where a queue's tables are: one schema of one database, and the few connections of its own by which it asks there."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from redrive.connections import apersistent, persistent
from redrive.errors import NoDatabase
from redrive.pool import Pool
from redrive.statements import ANYTHING, Statement, arun, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redrive.drivers import AsyncBorrowed, Borrowed
    from redrive.settings import Settings

T = TypeVar("T")


class Installation:
    """Tables, by their schema, and the way to them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._pool: Pool | None = None

    @property
    def schema(self) -> str:
        """The schema that holds this queue's tables."""
        return self.settings.schema

    def ask(self, statement: Statement[T], connection: Borrowed | None = None) -> list[T]:
        """Run a statement of :mod:`redrive.store` on *connection*, or on one of the queue's own."""
        statement = _legible(statement)
        if connection is not None:
            return run(connection, statement)
        with self.pool.connection() as own:
            return persistent(own, statement)

    async def ask_async(self, statement: Statement[T], connection: AsyncBorrowed | None = None) -> list[T]:
        """Run a statement from async code, on *connection* or on one of the queue's own."""
        statement = _legible(statement)
        if connection is not None:
            return await arun(connection, statement)
        async with self.pool.async_connection() as own:
            return await apersistent(own, statement)

    @contextmanager
    def apart(self) -> Iterator[Any]:
        """Lend a connection that is in no transaction of the caller's."""
        with self.pool.connection() as own:
            yield own

    def close(self) -> None:
        """Close the queue's own idle connections; it opens new ones when used again."""
        if self._pool is not None:
            self._pool.close()

    @property
    def pool(self) -> Pool:
        """The queue's own few connections, made at first use.

        Raises:
            NoDatabase: when no database is named anywhere.
        """
        if self._pool is None:
            if not self.settings.database_url:
                raise NoDatabase
            self._pool = Pool(self.settings.database_url)
        return self._pool


def _legible(statement: Statement[T]) -> Statement[T]:
    """Let the answer come as numbers, which no DateStyle spells otherwise, and be read whatever strangers wrote."""
    return replace(statement, binary=True, loaders=statement.loaders or ANYTHING)
