"""Many jobs in one call: payloads read in chunks, each chunk written by COPY or, where it needs a query, by one INSERT.

A chunk is one statement and so is whole or not at all. Several are held together by a savepoint of the caller's
transaction; only on an autocommit connection, where there is none, by a transaction of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from psycopg import AsyncCursor, Cursor
from psycopg.pq import PipelineStatus, TransactionStatus

from redrive import store
from redrive.errors import InvalidOption
from redrive.sql import query
from redrive.statements import Statement, arun, named, noted, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from psycopg import AsyncConnection, Connection

CHUNK = 5_000


class Batch:
    """Payloads of one kind on their way into the table; the first ones have been checked.

    Raises:
        InvalidOption: for a name that can't be stored, or payloads or a key that are not many.
        InvalidPayload: with the place of a bad payload.
    """

    def __init__(
        self, schema: str, kind: str, payloads: Iterable[Any], key: Callable[[Any], str] | None, how: store.Options
    ) -> None:
        if isinstance(payloads, str | bytes | Mapping):
            raise InvalidOption(f"payloads is a {type(payloads).__name__}: give a list or an iterator of payloads")
        if key is not None and not callable(key):
            raise InvalidOption(f"key is {key!r:.80}: for many jobs give a function from a payload to its key")
        self._schema, self._kind, self._how = schema, store.name(kind, "kind"), how
        rows = iter(store.encoded(payloads, key))
        chunks = iter(lambda: list(islice(rows, CHUNK)), [])
        first = list(islice(chunks, 2))
        self._single = len(first) < 2  # noqa: PLR2004 - one chunk, or none
        self._chunks = chain(first, chunks)

    def write(self, conn: Connection[Any]) -> int:
        """Write all of it and give the number of jobs made."""
        if self._single:
            return sum(self._write(conn, chunk) for chunk in self._chunks)
        if _would_begin(conn):
            run(conn, named("clock", self._schema))  # begins the caller's transaction, as any statement of theirs would
        with conn.transaction():
            return sum(self._write(conn, chunk) for chunk in self._chunks)

    async def awrite(self, conn: AsyncConnection[Any]) -> int:
        """Write all of it and give the number of jobs made."""
        if self._single:
            return sum([await self._awrite(conn, chunk) for chunk in self._chunks])
        if _would_begin(conn):
            await arun(conn, named("clock", self._schema))
        async with conn.transaction():
            return sum([await self._awrite(conn, chunk) for chunk in self._chunks])

    def _write(self, conn: Connection[Any], chunk: list[store.Row]) -> int:
        if _piped(conn) or not store.copyable(chunk, self._how):
            return len(run(conn, self._insert(chunk)))
        text = store.copy_text(self._kind, chunk, self._how)
        with noted(), Cursor(conn) as cursor, cursor.copy(query("copy_jobs", self._schema)) as copy:
            copy.write(text)
        return len(chunk)

    async def _awrite(self, conn: AsyncConnection[Any], chunk: list[store.Row]) -> int:
        if _piped(conn) or not store.copyable(chunk, self._how):
            return len(await arun(conn, self._insert(chunk)))
        text = store.copy_text(self._kind, chunk, self._how)
        with noted():
            async with AsyncCursor(conn) as cursor, cursor.copy(query("copy_jobs", self._schema)) as copy:
                await copy.write(text)
        return len(chunk)

    def _insert(self, chunk: list[store.Row]) -> Statement[Any]:
        return store.insert_many(self._schema, self._kind, chunk, self._how)


def _would_begin(conn: Connection[Any] | AsyncConnection[Any]) -> bool:
    return not conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE


def _piped(conn: Connection[Any] | AsyncConnection[Any]) -> bool:
    return conn.info.pipeline_status != PipelineStatus.OFF  # COPY can't be said there
