"""The queue of a Django project: a Queue whose own connection is the ORM's.

What it enqueues, cancels or sends back is in the transaction that the ORM is in, with ``using=`` for another database
than the project's. Workers have connections of their own, as everywhere.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redrive import child
from redrive.django import orm
from redrive.django.options import options, url
from redrive.django.upkeep import called_here
from redrive.handlers import Handler, Handlers
from redrive.pool import Pool
from redrive.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from redrive.job import Enqueued, Published
    from redrive.settings import Settings


WORKER = "python manage.py redrive worker"


class DjangoQueue(Queue):
    """Jobs in one of the project's databases.

    Args:
        alias: the database, of DATABASES.
        settings: any field of :class:`redrive.settings.Settings`.

    Raises:
        InvalidOption: for an unknown option, or a value that makes no sense.
    """

    imported_first = ("redrive.django.project",)
    worker_command = WORKER

    def __init__(self, alias: str, **settings: Any) -> None:
        self.alias = alias
        self._database_url = ""
        super().__init__(None, **settings)
        self.handlers = _Handlers()
        self._pool: Any = orm.Lender(self)

    @property
    def settings(self) -> Settings:
        """What the queue goes by; the database is the one that Django has under the alias now."""
        return replace(self._settings, database_url=self._database_url or url(self.alias))

    @settings.setter
    def settings(self, settings: Settings) -> None:
        if hasattr(self, "_settings"):  # told by the command line, or the worker of an isolated handler's process
            self._database_url = settings.database_url
        self._settings = settings

    @property
    def schema(self) -> str:
        """The schema that holds this queue's tables."""
        return self._settings.schema

    def enqueue(
        self,
        kind: str,
        payload: Any = None,
        *,
        using: str | None = None,
        connection: Any = None,
        key: str | None = None,
        **options: Any,
    ) -> Enqueued:
        """Enqueue a job in the ORM's transaction; see :meth:`redrive.Queue.enqueue`.

        Args:
            kind: which handler is to run it.
            payload: any JSON value.
            using: an alias of DATABASES, for another database than the queue's: it has to have redrive's tables.
            connection: instead, one of ``django.db.connections`` or the driver's own.
            key: at most one pending or running job has it.
            options: see :class:`redrive.store.Wishes`.

        Raises:
            ImproperlyConfigured: for a database that isn't Postgres, or isn't there.
            SynchronousOnlyOperation: within a running event loop: use :meth:`enqueue_async`.
        """
        with self._lent(using, connection) as lent:
            return super().enqueue(kind, payload, connection=lent, key=key, **options)

    async def enqueue_async(
        self,
        kind: str,
        payload: Any = None,
        *,
        using: str | None = None,
        connection: Any = None,
        key: str | None = None,
        **options: Any,
    ) -> Enqueued:
        """Enqueue a job from async code, on the connection that the async ORM uses there; see :meth:`enqueue`."""
        if connection is not None and not orm.is_wrapper(connection):
            return await super().enqueue_async(kind, payload, connection=connection, key=key, **options)
        return await orm.in_orm_thread(self.enqueue)(
            kind, payload, using=using, connection=connection, key=key, **options
        )

    def enqueue_many(
        self,
        kind: str,
        payloads: Iterable[Any],
        *,
        using: str | None = None,
        connection: Any = None,
        **options: Any,
    ) -> int:
        """Enqueue a job for each payload in the ORM's transaction; see :meth:`redrive.Queue.enqueue_many`."""
        with self._lent(using, connection) as lent:
            return super().enqueue_many(kind, payloads, connection=lent, **options)

    async def enqueue_many_async(
        self,
        kind: str,
        payloads: Iterable[Any],
        *,
        using: str | None = None,
        connection: Any = None,
        **options: Any,
    ) -> int:
        """Enqueue a job for each payload from async code; see :meth:`enqueue_many`."""
        if connection is not None and not orm.is_wrapper(connection):
            return await super().enqueue_many_async(kind, payloads, connection=connection, **options)
        return await orm.in_orm_thread(self.enqueue_many)(kind, payloads, using=using, connection=connection, **options)

    async def publish_many_async(
        self, topic: str, payloads: Iterable[Any], *, connection: Any = None, **options: Any
    ) -> int:
        """Publish each payload from async code; see :meth:`publish_many`."""
        if connection is not None and not orm.is_wrapper(connection):
            return await super().publish_many_async(topic, payloads, connection=connection, **options)
        return await orm.in_orm_thread(self.publish_many)(topic, payloads, connection=connection, **options)

    async def publish_async(
        self, topic: str, payload: Any = None, *, connection: Any = None, **options: Any
    ) -> Published:
        """Publish from async code, on the connection that the async ORM uses there; see :meth:`publish`."""
        if connection is not None and not orm.is_wrapper(connection):
            return await super().publish_async(topic, payload, connection=connection, **options)
        return await orm.in_orm_thread(self.publish)(topic, payload, connection=connection, **options)

    @contextmanager
    def apart(self) -> Iterator[Any]:
        """Lend a connection that is in no transaction of the ORM's; what a test has put in its place is that."""
        if not isinstance(self._pool, orm.Lender):
            with super().apart() as lent:
                yield lent
            return
        pool = Pool(self.settings.database_url)
        try:
            with pool.connection() as own:
                yield own
        finally:
            pool.close()

    async def _announce_async(self) -> None:
        await asyncio.to_thread(self._announce)

    def ask(self, statement: Any, connection: Any = None) -> list[Any]:
        """Run a statement of :mod:`redrive.store` on *connection*, or on the ORM's."""
        with self._lent(None, connection) as lent:
            return super().ask(statement, lent)

    async def ask_async(self, statement: Any, connection: Any = None) -> list[Any]:
        """Run a statement from async code, on *connection* or on the ORM's."""
        if connection is not None and not orm.is_wrapper(connection):
            return await super().ask_async(statement, connection)
        return await orm.in_orm_thread(self.ask)(statement, connection)

    @contextmanager
    def _lent(self, using: str | None, connection: Any) -> Iterator[Any]:
        if using is not None and connection is not None:
            raise TypeError("using and connection were both given: give one of them")
        if connection is not None and not orm.is_wrapper(connection):
            yield connection
        elif connection is not None or using is not None:
            with orm.lent(connection if connection is not None else using) as lent:
                yield lent
        else:
            with self.pool.connection() as lent:  # the ORM's, or the one that a test has put in its place
                yield lent


class _Handlers(Handlers):
    """Handlers that look after the ORM's connections where no worker's threads do."""

    def add(self, handler: Handler[Any, Any]) -> None:
        """Register a handler."""
        handler.call_here = called_here(handler.call_here, in_child=child.loading.is_set())
        super().add(handler)


_lock = threading.Lock()
_made: list[DjangoQueue] = []


def project_queue() -> DjangoQueue:
    """Give the project's queue, made of its settings at the first call.

    Raises:
        ImproperlyConfigured: naming what is wrong in the settings.
    """
    with _lock:
        if not _made:
            found = options()
            _made.append(DjangoQueue(found.database, **found.settings))
        return _made[0]


def plain_queue(alias: str = "") -> Queue:
    """Make a queue with the project's handlers and connections of its own, for what serves many threads: the desk."""
    found = options()
    plain = Queue(url(alias or found.database), **found.settings)
    plain.handlers = project_queue().handlers
    plain.worker_command = WORKER
    return plain
