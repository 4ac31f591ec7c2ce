"""Batches: jobs that are enqueued together, and one that follows when the last of them has ended, however it ended.

A batch is whole or not at all: it is opened, filled and committed in one transaction. Workers see to what follows.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import psycopg
from psycopg.rows import class_row

from redrive import store
from redrive.bulk import would_begin
from redrive.drivers import AsyncBorrowed, Borrowed
from redrive.errors import InvalidOption
from redrive.handlers import Enqueuer
from redrive.sql import spoken
from redrive.statements import Statement, arun, named, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from redrive.job import Enqueued
    from redrive.pool import Pool
    from redrive.store import Wishes

MOST_COUNTED = 10_000
"""Jobs of a batch that has not ended are counted up to so many."""


class Desk(Enqueuer, Protocol):
    """The queue as its batches see it."""

    @property
    def schema(self) -> str:
        """The schema of the tables."""

    @property
    def pool(self) -> Pool:
        """The queue's own connections."""

    def ask(self, statement: Statement[Any], connection: Borrowed | None = None) -> list[Any]:
        """Run a statement."""

    async def ask_async(self, statement: Statement[Any], connection: AsyncBorrowed | None = None) -> list[Any]:
        """Run a statement from async code."""


@dataclass(frozen=True, kw_only=True)
class State:
    """A batch as it stands."""

    id: int
    name: str | None
    kind: str
    """Of the job that follows."""
    created_at: datetime
    ended_at: datetime | None
    """When the last of its jobs had ended; None while some have not."""
    jobs: int
    """How many there are; before the end they are counted up to 10,000, the others among them."""
    succeeded: int
    failed: int
    dead: int


class Batch:
    """A batch that is being filled."""

    def __init__(self, queue: Desk, number: int, connection: Any) -> None:
        self.id = number
        self._queue, self._connection = queue, connection
        self._part: int = store.Opened(number)

    def leave(self, connection: Any) -> None:
        """After the block it may be committed any time: what is still to be part of it is looked at closely."""
        self._connection, self._part = connection, self.id

    def enqueue(self, kind: str, payload: Any = None, *, key: str | None = None, **options: Unpack[Wishes]) -> Enqueued:
        """Enqueue a job of the batch; as :meth:`redrive.Queue.enqueue`. With a key that lives, that job is no part."""
        options["batch"] = self._part
        return self._queue.enqueue(kind, payload, connection=self._connection, key=key, **options)

    def enqueue_many(
        self,
        kind: str,
        payloads: Iterable[Any],
        *,
        key: Callable[[Any], str] | None = None,
        **options: Unpack[Wishes],
    ) -> int:
        """Enqueue a job of the batch for each payload; as :meth:`redrive.Queue.enqueue_many`."""
        options["batch"] = self._part
        return self._queue.enqueue_many(kind, payloads, connection=self._connection, key=key, **options)


class AsyncBatch:
    """A batch that is being filled from async code."""

    def __init__(self, queue: Desk, number: int, connection: Any) -> None:
        self.id = number
        self._queue, self._connection = queue, connection
        self._part: int = store.Opened(number)

    def leave(self, connection: Any) -> None:
        """After the block; see :meth:`Batch.leave`."""
        self._connection, self._part = connection, self.id

    async def enqueue(
        self, kind: str, payload: Any = None, *, key: str | None = None, **options: Unpack[Wishes]
    ) -> Enqueued:
        """Enqueue a job of the batch; see :meth:`Batch.enqueue`."""
        options["batch"] = self._part
        return await self._queue.enqueue_async(kind, payload, connection=self._connection, key=key, **options)

    async def enqueue_many(
        self,
        kind: str,
        payloads: Iterable[Any],
        *,
        key: Callable[[Any], str] | None = None,
        **options: Unpack[Wishes],
    ) -> int:
        """Enqueue a job of the batch for each payload; see :meth:`Batch.enqueue_many`."""
        options["batch"] = self._part
        return await self._queue.enqueue_many_async(kind, payloads, connection=self._connection, key=key, **options)


Rows = list[State]  # within Batches, list is its method


class Batches:
    """The batches of a queue: ``queue.batches``."""

    def __init__(self, queue: Desk) -> None:
        self._queue = queue

    @contextmanager
    def open(
        self,
        then: Any,
        payload: Any = None,
        *,
        name: str = "",
        connection: Borrowed | None = None,
        **options: Unpack[Wishes],
    ) -> Iterator[Batch]:
        """Fill a batch: ``with queue.batches.open("report", {...}) as batch: batch.enqueue(...)``.

        When the last of its jobs has ended, a job of the kind *then* (or of that handler) is enqueued. Its payload says
        how: ``batch``, ``name``, ``jobs``, ``succeeded``, ``failed``, ``dead`` (a list of ids, a thousand at most), and
        *payload*. The batch is committed at the end of the block, or with the transaction of *connection*. What a block
        that fails has enqueued is undone at once where *connection* is psycopg's, and else with its transaction.

        Raises:
            InvalidPayload: with the path of the value that can't be stored as it is.
            InvalidOption: naming the value and the remedy.
        """
        statement = self._opened(then, payload, name, options)
        if connection is not None and not isinstance(connection, psycopg.Connection):
            _one_transaction(run(connection, self._began()), run(connection, self._began()))
            batch = Batch(self._queue, run(connection, statement)[0].id, connection)
            yield batch
            batch.leave(connection)
            return
        if connection is not None and would_begin(connection):
            run(connection, named("clock", self._queue.schema))  # begins it, as any statement of theirs would
        given = nullcontext(connection) if connection is not None else self._queue.pool.connection()
        with given as own, own.transaction():
            batch = Batch(self._queue, run(own, statement)[0].id, own)
            try:
                yield batch
            finally:
                batch.leave(connection)

    @asynccontextmanager
    async def open_async(
        self,
        then: Any,
        payload: Any = None,
        *,
        name: str = "",
        connection: AsyncBorrowed | None = None,
        **options: Unpack[Wishes],
    ) -> AsyncIterator[AsyncBatch]:
        """Fill a batch from async code; see :meth:`open`."""
        statement = self._opened(then, payload, name, options)
        if connection is not None and not isinstance(connection, psycopg.AsyncConnection):
            _one_transaction(await arun(connection, self._began()), await arun(connection, self._began()))
            batch = AsyncBatch(self._queue, (await arun(connection, statement))[0].id, connection)
            yield batch
            batch.leave(connection)
            return
        if connection is not None and would_begin(connection):
            await arun(connection, named("clock", self._queue.schema))
        given = nullcontext(connection) if connection is not None else self._queue.pool.async_connection()
        async with given as own, own.transaction():
            batch = AsyncBatch(self._queue, (await arun(own, statement))[0].id, own)
            try:
                yield batch
            finally:
                batch.leave(connection)

    def list(self, *, ended: bool = True, limit: int = 50, connection: Borrowed | None = None) -> Rows:
        """List batches, newest first; without *ended* those of which jobs are left."""
        return self._queue.ask(self._list(ended=ended, limit=limit), connection)

    async def list_async(self, *, ended: bool = True, limit: int = 50, connection: AsyncBorrowed | None = None) -> Rows:
        """List batches from async code; see :meth:`list`."""
        return await self._queue.ask_async(self._list(ended=ended, limit=limit), connection)

    def _opened(self, then: Any, payload: Any, name: str, options: Wishes) -> Statement[Any]:
        if "key" in options:
            raise InvalidOption("a key of what follows a batch would keep it from following where another has it")
        follower = self._queue.follower(then, payload, None, options)
        return named("open_batch", self._queue.schema, name=store.remark(name, "name"), follower=follower)

    def _began(self) -> Statement[Any]:
        return named("transaction_began", self._queue.schema)

    def _list(self, *, ended: bool, limit: int) -> Statement[State]:
        return listed(self._queue.schema, ended=ended, limit=limit)


def listed(schema: str, *, ended: bool = True, limit: int = 50) -> Statement[State]:
    """List batches, newest first; without *ended* those of which jobs are left."""
    params = {"ended": bool(ended), "limit": limit, "most": MOST_COUNTED}
    return Statement(spoken("list_batches", schema), class_row(State), params)


def _one_transaction(first: list[Any], second: list[Any]) -> None:
    if first != second:
        raise InvalidOption(
            "a batch is opened, filled and committed in one transaction, and this connection commits each statement: "
            "begin one first"
        )
