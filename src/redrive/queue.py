"""The queue: what an application holds. It binds handlers, tables and workers together and adds nothing of its own."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

from redrive import child, store
from redrive.audit import Audit, signed
from redrive.batches import Batches
from redrive.breakers import Breakers
from redrive.bulk import Batch
from redrive.classify import Classify
from redrive.connections import apersistent, persistent
from redrive.definition import InCode
from redrive.drivers import AsyncBorrowed, Borrowed, demand
from redrive.ended import Ended
from redrive.errors import InvalidOption
from redrive.groups import Groups
from redrive.handlers import Handler, P, R
from redrive.job import Enqueued, Job
from redrive.kinds import Kinds
from redrive.once import insert as insert_once
from redrive.once import once
from redrive.publisher import Publisher
from redrive.requeues import Requeues
from redrive.schedules import Schedules
from redrive.settings import load
from redrive.statements import Statement, Steps, afollow, arun, follow, run
from redrive.stats import Stats
from redrive.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from redrive.amqp.direct import Direct
    from redrive.worker import Worker

_TRIES = 20


class Queue(Publisher):
    """Jobs in the tables of one schema of one database, and the handlers that run them.

    Args:
        database_url: where the jobs are; without it REDRIVE_DATABASE_URL or DATABASE_URL says so.
        classify: what errors tell where the handler does not say, see :mod:`redrive.classify`.
        settings: any field of :class:`redrive.settings.Settings`; each is also a REDRIVE_* variable.

    Raises:
        InvalidOption: for an unknown option, or a value that makes no sense.
    """

    worker_command = "redrive worker app.jobs:queue"
    """How a worker is started in this kind of project, for messages that say so."""

    def __init__(self, database_url: str | None = None, *, classify: Classify | None = None, **settings: Any) -> None:
        super().__init__(load({"database_url": database_url, **settings}), classify)
        self.schedules = Schedules(self)
        self.kinds = Kinds(self)
        self.stats = Stats(self)
        self.groups = Groups(self)
        self.requeues = Requeues(self)
        self.audit = Audit(self)
        self.breakers = Breakers(self)
        self.batches = Batches(self)
        self.topics = Topics(self)

    # -- handlers

    def schedule(self, cron: str | None = None, **how: Unpack[InCode]) -> Callable[[Handler[P, R]], Handler[P, R]]:
        """Run a handler by a schedule: put it above ``@queue.handler``. For *how*, see :meth:`Schedules.add`.

        Workers write it down when they start. Without a *name* it goes by the handler's kind.

        Raises:
            InvalidOption: for a value that makes no sense, or a name that is taken.
        """
        return self.schedules.of_handler(cron, how)

    # -- producers

    def enqueue(
        self,
        kind: str,
        payload: Any = None,
        *,
        connection: Borrowed | None = None,
        key: str | None = None,
        direct: bool = False,
        **options: Unpack[store.Wishes],
    ) -> Enqueued:
        """Enqueue a job, in the transaction of *connection* where one is given, else at once.

        Args:
            kind: which handler is to run it; no handler need be known here.
            payload: any JSON value, or an instance of what the handler's parameter is annotated with; ``{}`` if None.
            connection: the caller's, of psycopg, psycopg2, SQLAlchemy or Django (asyncpg and the async ones of these in
                :meth:`enqueue_async`). Its transaction is never begun, ended or broken.
            key: at most one pending or running job has it; a second enqueue answers with the first's id. In REPEATABLE
                READ, a key taken since the snapshot is a SerializationFailure: try the whole transaction again.
            direct: past the table, straight to the broker of ``broker_url``: for a job that needs no transaction, no
                key, no batch and no delay. It is safe there when this returns.
            options: see :class:`redrive.store.Wishes`; priority and max_attempts are the handler's where one is known.

        Raises:
            InvalidPayload: before any SQL, with the path of the value that can't be stored as it is.
            InvalidOption: before any SQL.
            TypeError: when *connection* is no sync connection of these.
        """
        if direct:
            return self._direct.one(kind, payload, options, key, connection)
        if connection is not None:
            demand(connection, "enqueue", "enqueue_async", is_async=False)
        statement = self._insert(kind, payload, key, options)
        self._demand_batch(options, connection)
        if connection is not None:
            return self._settled(kind, lambda: run(connection, statement))
        with self.pool.connection() as own:
            return self._settled(kind, lambda: persistent(own, statement))

    async def enqueue_async(
        self,
        kind: str,
        payload: Any = None,
        *,
        connection: AsyncBorrowed | None = None,
        key: str | None = None,
        direct: bool = False,
        **options: Unpack[store.Wishes],
    ) -> Enqueued:
        """Enqueue a job from async code; see :meth:`enqueue`."""
        if direct:
            return await self._direct.one_async(kind, payload, options, key, connection)
        if connection is not None:
            demand(connection, "enqueue_async", "enqueue", is_async=True)
        statement = self._insert(kind, payload, key, options)
        await self._demand_batch_async(options, connection)
        if connection is not None:
            return await self._asettled(kind, lambda: arun(connection, statement))
        async with self.pool.async_connection() as own:
            return await self._asettled(kind, lambda: apersistent(own, statement))

    def enqueue_many(
        self,
        kind: str,
        payloads: Iterable[Any],
        *,
        connection: Borrowed | None = None,
        key: Callable[[Any], str] | None = None,
        ids: list[int] | None = None,
        on_chunk: Callable[[int], object] | None = None,
        direct: bool = False,
        **options: Unpack[store.Wishes],
    ) -> int:
        """Enqueue a job for each payload and give the number of jobs made; all of them or, on an error, none.

        The payloads are read in chunks, so an iterator of any length does; more than one chunk is written within a
        savepoint of the caller's transaction, or on an autocommit connection in a transaction of its own. With *key*,
        a function from payload to key, those whose key lives already make no job and are not counted; the jobs are
        written in the order of their keys, so that two that write the same ones can't be deadlocked. *ids* is a list
        to which the ids of the new jobs are added, at some cost; *on_chunk* is told how many there are so far. On a
        connection that isn't psycopg's all payloads are read first, and written by one statement. With *direct*, as of
        :meth:`enqueue`, there is no transaction: what was sent before an error stays sent.

        Raises:
            InvalidPayload: with the place of the bad payload; nothing was written by this call.
        """
        if direct:
            return self._direct.many(kind, payloads, options, key, connection, ids=ids, on_chunk=on_chunk)
        if connection is not None:
            demand(connection, "enqueue_many", "enqueue_many_async", is_async=False)
        batch = self._batch(kind, payloads, options, key=key, ids=ids, on_chunk=on_chunk)
        self._demand_batch(options, connection)
        with nullcontext(connection) if connection is not None else self.pool.connection() as conn:
            return batch.write(conn)

    async def enqueue_many_async(
        self,
        kind: str,
        payloads: Iterable[Any],
        *,
        connection: AsyncBorrowed | None = None,
        key: Callable[[Any], str] | None = None,
        ids: list[int] | None = None,
        on_chunk: Callable[[int], object] | None = None,
        direct: bool = False,
        **options: Unpack[store.Wishes],
    ) -> int:
        """Enqueue a job for each payload from async code; see :meth:`enqueue_many`."""
        if direct:
            return await self._direct.many_async(kind, payloads, options, key, connection, ids=ids, on_chunk=on_chunk)
        if connection is not None:
            demand(connection, "enqueue_many_async", "enqueue_many", is_async=True)
        batch = self._batch(kind, payloads, options, key=key, ids=ids, on_chunk=on_chunk)
        await self._demand_batch_async(options, connection)
        async with nullcontext(connection) if connection is not None else self.pool.async_connection() as conn:
            return await batch.awrite(conn)

    # -- operators

    def get(self, job_id: int) -> Job | None:
        """Fetch a job's row, None where there is none."""
        rows = self.ask(store.get(self.schema, job_id))
        return rows[0] if rows else None

    def cancel(
        self,
        *ids: int,
        kind: str | None = None,
        key: str | None = None,
        reason: str = "",
        by: str = "",
        connection: Borrowed | None = None,
    ) -> dict[int, str]:
        """Cancel pending jobs and ask running ones to stop; gives each job's state as it was found.

        Raises:
            InvalidOption: when nothing says which jobs are meant.
        """
        return follow(self.ask, self._cancelling(ids, kind, key, reason, by), connection)

    async def cancel_async(
        self,
        *ids: int,
        kind: str | None = None,
        key: str | None = None,
        reason: str = "",
        by: str = "",
        connection: AsyncBorrowed | None = None,
    ) -> dict[int, str]:
        """Cancel jobs from async code; see :meth:`cancel`."""
        return await afollow(self.ask_async, self._cancelling(ids, kind, key, reason, by), connection)

    def requeue(
        self,
        which: Ended | int | Iterable[int],
        *,
        by: str = "",
        reason: str = "",
        connection: Borrowed | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> list[int]:
        """Send dead jobs back with a fresh budget, their history kept, in guarded batches; lists those that moved.

        *which* is an id, ids, or a filter as in ``Ended(kind="send_email", error="timeout")``.

        Raises:
            InvalidOption: for a filter that makes no sense.
        """
        return self.requeues.now(Ended.of(which), by=by, reason=reason, connection=connection, on_batch=on_batch)

    async def requeue_async(
        self,
        which: Ended | int | Iterable[int],
        *,
        by: str = "",
        reason: str = "",
        connection: AsyncBorrowed | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> list[int]:
        """Send dead jobs back from async code; see :meth:`requeue`."""
        how: dict[str, Any] = {"by": by, "reason": reason, "connection": connection, "on_batch": on_batch}
        return await self.requeues.now_async(Ended.of(which), **how)

    # -- workers

    def worker(self, *, broker: str | None = None, **settings: Any) -> Worker:
        """Make a worker for this queue's handlers; *settings* go over the queue's own.

        With *broker*, the address of a RabbitMQ or ``""`` for the setting ``broker_url``, it takes what a relay has
        sent there; that needs the extra ``amqp``.

        Raises:
            InvalidOption: for an unknown option, or a value that makes no sense.
        """
        if child.loading.is_set():
            raise InvalidOption(
                "this program starts a worker when it is imported, as the child process of an isolated handler has to: "
                "write `if __name__ == '__main__':` before queue.run()"
            )
        self.handlers.demand_findable()
        if broker is None:
            from redrive.postgres import PostgresWorker  # noqa: PLC0415 - a tenth of all imports, and who enqueues needs none

            return self._worker(PostgresWorker, settings)
        from redrive.amqp.worker import BrokerWorker  # noqa: PLC0415 - its library is an extra

        return self._worker(BrokerWorker, settings | ({"broker_url": broker} if broker else {}))

    def relay(self, **settings: Any) -> Worker:
        """Make a relay, which hands the due jobs of routed kinds to the broker; it needs the extra ``amqp``.

        Raises:
            InvalidOption: for an unknown option, or a value that makes no sense; and where no broker is named.
        """
        from redrive.amqp.relay import RelayWorker  # noqa: PLC0415 - as above

        return self._worker(RelayWorker, settings)

    def _worker(self, cls: type[Worker], settings: dict[str, Any]) -> Worker:
        own = {name: value for name, value in vars(self.settings).items() if name not in settings}
        return cls(load({**own, **settings}), self.handlers, self.schedules.of_code())

    def run(self, *, once: bool = False, **settings: Any) -> None:
        """Work until told to stop by SIGTERM, SIGINT or SIGHUP; with *once*, until nothing is due.

        Raises:
            NotMigrated: when the schema is missing or too old.
        """
        asyncio.run(self.run_async(once=once, **settings))

    async def run_async(self, *, once: bool = False, **settings: Any) -> None:
        """Work within the running event loop until told to stop; cancelling it hands back and ends."""
        if "processes" in settings:
            raise InvalidOption(
                "queue.run() works in this process alone: start several, or `redrive worker --processes`"
            )
        from redrive.worker import stop_signals  # noqa: PLC0415 - as above

        worker = self.worker(**settings)
        loop = asyncio.get_running_loop()
        caught = []
        for each in stop_signals():
            try:
                loop.add_signal_handler(each, worker.stop)
            except (NotImplementedError, RuntimeError, ValueError):  # not the main thread, or no signals here
                continue
            caught.append(each)
        try:
            await worker.run(once=once)
        finally:
            for each in caught:
                loop.remove_signal_handler(each)

    # -- how

    @cached_property
    def _direct(self) -> Direct:
        from redrive.amqp.direct import Direct  # noqa: PLC0415 - its library is an extra

        return Direct(self.settings.broker_url, self.schema, self._in_lane)

    def close(self) -> None:
        """Close the queue's own idle connections; it opens new ones when used again."""
        super().close()
        if "_direct" in vars(self):
            self._direct.close()

    def _insert(self, kind: str, payload: Any, key: str | None, options: Mapping[str, Any]) -> Statement[Any]:
        payload = {} if payload is None else payload
        how, only = self._in_lane(kind, payload, options), once(key, options)
        if only is None or key is None:
            return store.insert(self.schema, kind, payload, key, how)
        return insert_once(self.schema, kind, payload, how, key=key, once=only)

    def _cancelling(self, ids: Any, kind: str | None, key: str | None, reason: str, by: str) -> Steps[dict[int, str]]:
        which = {"ids": ids or None, "kind": kind, "key": key}
        return store.cancelling(self.schema, reason=reason, who=signed(by, reason)["who"], **which)

    def _batch(self, kind: str, payloads: Iterable[Any], options: Mapping[str, Any], *, key: Any, **more: Any) -> Batch:
        how, lane = self._options(kind, options), self._lane_of(kind, options)
        return Batch(self.schema, kind, payloads, key, how, lane=lane, **more)

    def _settled(self, kind: str, insert: Callable[[], list[Any]]) -> Enqueued:
        for _ in range(_TRIES):
            if rows := insert():
                return Enqueued(rows[0].id, rows[0].created, kind, getattr(rows[0], "replaced", False))
        raise self._unsettled(kind)

    async def _asettled(self, kind: str, insert: Callable[[], Awaitable[list[Any]]]) -> Enqueued:
        for _ in range(_TRIES):
            if rows := await insert():
                return Enqueued(rows[0].id, rows[0].created, kind, getattr(rows[0], "replaced", False))
        raise self._unsettled(kind)

    @staticmethod
    def _unsettled(kind: str) -> InvalidOption:
        return InvalidOption(
            f"the key of this {kind!r} job belongs to one that this transaction's snapshot can't see: "
            "enqueue in READ COMMITTED"
        )
