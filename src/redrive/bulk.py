"""Many jobs in one call: payloads read in chunks, each chunk written by COPY or, where it needs a query, by one INSERT.

A chunk is one statement and so is whole or not at all. Several are held together by a savepoint of the caller's
transaction; only on an autocommit connection, where there is none, by a transaction of their own. On a connection that
isn't psycopg's all of it is one statement, for which all payloads are read first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from psycopg import AsyncConnection, Connection
from psycopg.pq import PipelineStatus, TransactionStatus

from redrive import store
from redrive.connections import apersistent, persistent
from redrive.drivers import AsyncBorrowed, Borrowed, Copy
from redrive.errors import InvalidOption
from redrive.rows import COPIED, Row, copy_text, copyable, encoded, insert_many
from redrive.sql import query
from redrive.statements import AsyncPlainCursor, PlainCursor, Statement, acopy_in, arun, copy_in, named, noted, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

CHUNK = 5_000
"""Payloads a statement: while the server reads one chunk from the socket, the next is encoded here."""
SORTED = 10 * CHUNK
"""Payloads that are read and put in the order of their keys before the first of them is written."""


class Batch:
    """Payloads of one kind on their way into the table; the first chunks have been checked.

    Raises:
        InvalidOption: for a name that can't be stored, or payloads or a key that are not many.
        InvalidPayload: with the place of a bad payload.
    """

    def __init__(
        self,
        schema: str,
        kind: str,
        payloads: Iterable[Any],
        key: Callable[[Any], str] | None,
        how: store.Options,
        *,
        ids: list[int] | None = None,
        on_chunk: Callable[[int], object] | None = None,
        lane: Callable[[Any], str] | None = None,
    ) -> None:
        if isinstance(payloads, str | bytes | Mapping):
            raise InvalidOption(f"payloads is a {type(payloads).__name__}: give a list or an iterator of payloads")
        if key is not None and not callable(key):
            raise InvalidOption(f"key is {key!r:.80}: for many jobs give a function from a payload to its key")
        self._schema, self._kind, self._key, self._how = schema, store.name(kind, "kind"), key, how
        self._lane = lane
        self._ids, self._on_chunk = ids, on_chunk or (lambda _made: None)
        self._payloads, self._places = iter(payloads), count(step=CHUNK if key is None else SORTED)
        self._sorted: deque[_Chunk] = deque()
        self._ready = deque(chunk for chunk in (self._read(), self._read()) if chunk.rows())

    def write(self, conn: Borrowed) -> int:
        """Write all of it and give the number of jobs made."""
        if not isinstance(conn, Connection):
            rows = self._rest()
            if not rows or (self._plain(rows) and copy_in(conn, self._copy(rows))):
                return self._wrote_whole(len(rows))
            return self._wrote_whole(self._made(run(conn, self._insert(rows))))
        if len(self._ready) > 1 and would_begin(conn):
            run(conn, named("clock", self._schema))  # begins the caller's transaction, as any statement of theirs would
        made = 0
        with conn.transaction() if len(self._ready) > 1 else nullcontext():
            while self._ready:
                chunk, following = self._ready.popleft(), self._read()
                made += self._write(conn, chunk, following)
                self._wrote(made, following)
        return made

    async def awrite(self, conn: AsyncBorrowed) -> int:
        """Write all of it and give the number of jobs made."""
        if not isinstance(conn, AsyncConnection):
            rows = self._rest()
            if not rows or (self._plain(rows) and await acopy_in(conn, self._copy(rows))):
                return self._wrote_whole(len(rows))
            return self._wrote_whole(self._made(await arun(conn, self._insert(rows))))
        if len(self._ready) > 1 and would_begin(conn):
            await arun(conn, named("clock", self._schema))
        made = 0
        async with conn.transaction() if len(self._ready) > 1 else nullcontext():
            while self._ready:
                chunk, following = self._ready.popleft(), self._read()
                made += await self._awrite(conn, chunk, following)
                self._wrote(made, following)
        return made

    def _read(self) -> _Chunk:
        if self._key is None:
            return _Chunk(list(islice(self._payloads, CHUNK)), None, next(self._places), self._lane)
        if not self._sorted:
            # Two that write the same keys in another order wait for each other, and the server ends one of them.
            read = _Chunk(list(islice(self._payloads, SORTED)), self._key, next(self._places), self._lane).rows()
            read.sort(key=_by_key)
            self._sorted.extend(_Chunk.of(read[at : at + CHUNK]) for at in range(0, len(read), CHUNK))
        return self._sorted.popleft() if self._sorted else _Chunk.of([])

    def _wrote(self, made: int, following: _Chunk) -> None:
        self._on_chunk(made)
        if following.rows():
            self._ready.append(following)

    def _rest(self) -> list[Row]:
        """Read all that is left, for the one statement that writes it."""
        rows: list[Row] = []
        while self._ready:
            rows += self._ready.popleft().rows()
            if (following := self._read()).rows():
                self._ready.append(following)
        return rows

    def _wrote_whole(self, made: int) -> int:
        if made:
            self._on_chunk(made)
        return made

    def _write(self, conn: Connection[Any], chunk: _Chunk, following: _Chunk) -> int:
        if not self._copyable(conn, chunk):
            return self._made(persistent(conn, self._insert(chunk.rows())))
        with noted(), PlainCursor(conn) as cursor, cursor.copy(query("copy_jobs", self._schema)) as copy:
            copy.write(chunk.text(self._kind, self._how))
            following.encode()
        return len(chunk.rows())

    async def _awrite(self, conn: AsyncConnection[Any], chunk: _Chunk, following: _Chunk) -> int:
        if not self._copyable(conn, chunk):
            return self._made(await apersistent(conn, self._insert(chunk.rows())))
        with noted():
            async with AsyncPlainCursor(conn) as cursor, cursor.copy(query("copy_jobs", self._schema)) as copy:
                await copy.write(chunk.text(self._kind, self._how))
                following.encode()
        return len(chunk.rows())

    def _copyable(self, conn: Connection[Any] | AsyncConnection[Any], chunk: _Chunk) -> bool:
        piped = conn.info.pipeline_status != PipelineStatus.OFF  # COPY can't be said there
        return not piped and self._plain(chunk.rows())

    def _plain(self, rows: Sequence[Row]) -> bool:
        return self._ids is None and bool(rows) and copyable(rows, self._how)

    def _copy(self, rows: Sequence[Row]) -> Copy:
        text = copy_text(self._kind, rows, self._how)
        return Copy(query("copy_jobs", self._schema).as_string(None), self._schema, "jobs", COPIED, text)

    def _insert(self, rows: Sequence[Row]) -> Statement[Any]:
        return insert_many(self._schema, self._kind, rows, self._how)

    def _made(self, rows: Sequence[Any]) -> int:
        if self._ids is not None:
            self._ids += [row.id for row in rows]
        return len(rows)


class _Chunk:
    """Some of the payloads: read while the connection is free, for the caller's code may want it; encoded any time."""

    def __init__(
        self,
        payloads: list[Any],
        key: Callable[[Any], str] | None,
        start: int,
        lane: Callable[[Any], str] | None = None,
    ) -> None:
        self._payloads, self._key, self._start, self._lane = payloads, key, start, lane
        self._rows: list[Row] | None = None
        self._error: Exception | None = None

    @classmethod
    def of(cls, rows: list[Row]) -> _Chunk:
        """Make one of what is encoded."""
        chunk = cls([], None, 0)
        chunk._rows = rows
        return chunk

    def encode(self) -> None:
        """Encode them; what is wrong with one is raised by :meth:`rows`, when the caller can be told."""
        if self._rows is None:
            try:
                self._rows = list(encoded(self._payloads, self._key, self._start, self._lane))
            except Exception as error:  # noqa: BLE001 - kept, not lost
                self._rows, self._error = [], error
            self._payloads = []

    def rows(self) -> list[Row]:
        """Give them encoded, each with its key."""
        self.encode()
        if self._error is not None:
            raise self._error
        return self._rows or []

    def text(self, kind: str, how: store.Options) -> str:
        """Give them as the text that ``copy_jobs`` takes."""
        return copy_text(kind, self.rows(), how)


def _by_key(row: Row) -> str:
    return row[1] or ""  # by code points, which is the order of the bytes in UTF-8, and so COLLATE "C"


def would_begin(conn: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Whether the next statement begins a transaction of the caller's: a block of ours would end it, too."""
    return not conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE
