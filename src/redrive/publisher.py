"""What a queue publishes, and to whom: a job for each subscriber of a topic, in one statement.

Who subscribes stands in the table of subscriptions, and nowhere else. What this process has in its own code it writes
there before its first publish, on a connection of its own: in the caller's transaction is nothing but the jobs. Other
services hear of it by a subscriber too: the kind ``redrive.topics``, whose jobs the relay sends to a topic exchange.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Unpack

from psycopg.errors import InsufficientPrivilege

from redrive import store
from redrive.bulk import Batch
from redrive.drivers import AsyncBorrowed, Borrowed, demand
from redrive.errors import InvalidOption
from redrive.installation import Installation
from redrive.instruments import noted
from redrive.job import Enqueued, Published
from redrive.registry import Registry
from redrive.settings import unknown
from redrive.statements import Statement, arun, named, run
from redrive.topic import matches
from redrive.topic import topic as checked
from redrive.topics import in_code, register
from redrive.typed import dump

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from redrive.classify import Classify
    from redrive.rows import Row
    from redrive.settings import Settings

_log = logging.getLogger("redrive")


class Publisher(Installation, Registry):
    """Handlers, tables, and what is published to the ones through the others."""

    def __init__(self, settings: Settings, classify: Classify | None = None) -> None:
        Installation.__init__(self, settings)
        Registry.__init__(self, classify)
        self._announced: tuple[Any, ...] = ()
        self._told: set[str] = set()

    def publish(
        self,
        topic: str,
        payload: Any = None,
        *,
        connection: Borrowed | None = None,
        key: str | None = None,
        **options: Unpack[store.Wishes],
    ) -> Published:
        """Enqueue a job for each subscriber of *topic*, in the transaction of *connection* where one is given.

        The answer names the jobs; where nobody subscribes it has none, and that is logged once and noted for
        ``redrive doctor``.

        Args:
            topic: words between dots, such as ``invoice.paid``.
            payload: any JSON value, the same for all; ``{}`` if None.
            connection: as of :meth:`Queue.enqueue`.
            key: at most one pending or running job of each subscriber has it; its own key is ``key@kind``.
            options: see :class:`redrive.store.Wishes`; priority and max_attempts go over what each subscriber has.

        Raises:
            InvalidPayload: before any SQL, with the path of the value that can't be stored as it is.
            InvalidOption: before any SQL.
            TypeError: when *connection* is no sync connection of these.
        """
        if connection is not None:
            demand(connection, "publish", "publish_async", is_async=False)
        statement = self._publish(topic, payload, key, options)
        self._announce()
        self._demand_batch(options, connection)
        return self._answer(topic, self.ask(statement, connection))

    async def publish_async(
        self,
        topic: str,
        payload: Any = None,
        *,
        connection: AsyncBorrowed | None = None,
        key: str | None = None,
        **options: Unpack[store.Wishes],
    ) -> Published:
        """Publish from async code; see :meth:`publish`."""
        if connection is not None:
            demand(connection, "publish_async", "publish", is_async=True)
        statement = self._publish(topic, payload, key, options)
        await self._announce_async()
        await self._demand_batch_async(options, connection)
        return self._answer(topic, await self.ask_async(statement, connection))

    def publish_many(
        self,
        topic: str,
        payloads: Iterable[Any],
        *,
        connection: Borrowed | None = None,
        key: Callable[[Any], str] | None = None,
        ids: list[int] | None = None,
        on_chunk: Callable[[int], object] | None = None,
        **options: Unpack[store.Wishes],
    ) -> int:
        """Publish each payload to the subscribers of *topic* and give the number of jobs made.

        All of them or, on an error, none; the rest is as of :meth:`Queue.enqueue_many`.

        Raises:
            InvalidPayload: with the place of the bad payload; nothing was written by this call.
        """
        if connection is not None:
            demand(connection, "publish_many", "publish_many_async", is_async=False)
        batch = self._fan_out(topic, payloads, options, key=key, ids=ids, on_chunk=on_chunk)
        self._announce()
        self._demand_batch(options, connection)
        with nullcontext(connection) if connection is not None else self.pool.connection() as conn:
            made = batch.write(conn)
            if not made and batch.read and run(conn, named("note_unheard", self.schema, topic=topic)):
                self._tell_unheard(topic)
        return made

    async def publish_many_async(
        self,
        topic: str,
        payloads: Iterable[Any],
        *,
        connection: AsyncBorrowed | None = None,
        key: Callable[[Any], str] | None = None,
        ids: list[int] | None = None,
        on_chunk: Callable[[int], object] | None = None,
        **options: Unpack[store.Wishes],
    ) -> int:
        """Publish each payload, from async code; see :meth:`publish_many`."""
        if connection is not None:
            demand(connection, "publish_many_async", "publish_many", is_async=True)
        batch = self._fan_out(topic, payloads, options, key=key, ids=ids, on_chunk=on_chunk)
        await self._announce_async()
        await self._demand_batch_async(options, connection)
        async with nullcontext(connection) if connection is not None else self.pool.async_connection() as conn:
            made = await batch.awrite(conn)
            if not made and batch.read and await arun(conn, named("note_unheard", self.schema, topic=topic)):
                self._tell_unheard(topic)
        return made

    # -- how

    def _demand_batch(self, options: Mapping[str, Any], connection: Borrowed | None) -> None:
        """Refuse a batch that is not of this transaction: what follows it may have been enqueued already."""
        look = store.batch_is_ours(self.schema, options.get("batch"))
        if look is not None and not self.ask(look, connection):
            raise _no_batch(options)

    async def _demand_batch_async(self, options: Mapping[str, Any], connection: AsyncBorrowed | None) -> None:
        look = store.batch_is_ours(self.schema, options.get("batch"))
        if look is not None and not await self.ask_async(look, connection):
            raise _no_batch(options)

    def _publish(self, topic: str, payload: Any, key: str | None, options: Mapping[str, Any]) -> Statement[Any]:
        how = _how(topic, options)
        params: dict[str, Any] = {"topic": topic, "payload": store.encoded_payload(payload), **how}
        params["key"] = None if key is None else store.name(key, "key")
        lanes = self._lanes(topic, options)
        params["lanes"] = lanes(dump({} if payload is None else payload)) if lanes else None
        return named("publish", self.schema, **params)

    def _fan_out(self, topic: str, payloads: Any, options: Mapping[str, Any], **more: Any) -> _FanOut:
        how = _how(topic, options)
        return _FanOut(self.schema, topic, payloads, how, lane=self._lanes(topic, options), **more)

    def _lanes(self, topic: str, options: Mapping[str, Any]) -> Callable[[Any], str] | None:
        """Give what says of a payload in which lane each subscriber that names its target is, as JSON text."""
        if "lane" in options:
            return None
        named_targets = [
            each
            for each in in_code(self.handlers)
            if each.target is not None and any(matches(one, topic) for one in each.topics)
        ]
        if not named_targets:
            return None

        def targets(payload: Any) -> str:
            return json.dumps({each.kind: each.target_of(payload) for each in named_targets}, ensure_ascii=False)

        return targets

    def _answer(self, topic: str, rows: Sequence[Any]) -> Published:
        if not rows:
            self._tell_unheard(topic)
        return Published(topic, tuple(Enqueued(row.id, row.created, row.kind) for row in rows))

    def _tell_unheard(self, topic: str) -> None:
        if topic not in self._told and len(self._told) < store.MAX_NAME:
            self._told.add(topic)
            _log.warning(
                "nobody subscribes to %s: what is published there makes no job; see `redrive topics list`", topic
            )

    # -- what this process subscribes to

    def _news(self) -> tuple[Any, ...]:
        """Tell which subscriptions are to be written down, and where; the same again when that was done."""
        count = sum(len(handler.topics) for handler in in_code(self.handlers))
        return (os.getpid(), self.pool, count) if count and (self._pool or self.settings.database_url) else ()

    def _announce(self) -> None:
        """Write down what this process has in its code, at its first publish."""
        if (news := self._news()) == self._announced:
            return
        try:
            with self.apart() as own:
                run(own, self._registration())
        except InsufficientPrivilege as error:
            self._tell_refused(error)
        self._announced = news

    async def _announce_async(self) -> None:
        if (news := self._news()) == self._announced:
            return
        try:
            async with self.pool.async_connection() as own:
                await arun(own, self._registration())
        except InsufficientPrivilege as error:
            self._tell_refused(error)
        self._announced = news

    def _registration(self) -> Statement[Any]:
        return register(self.schema, self.handlers, waits=True)

    def _tell_refused(self, error: Exception) -> None:
        _log.warning("the subscriptions in this process's code are left to the workers to write down: %s", error)


class _FanOut(Batch):
    """Payloads on their way to the subscribers of a topic: each chunk is one INSERT for all of them."""

    def __init__(
        self, schema: str, topic: str, payloads: Iterable[Any], params: dict[str, Any], *, key: Any, **more: Any
    ) -> None:
        self._params = {"topic": topic, **params}
        super().__init__(schema, topic, payloads, key, store.Options(), **more)
        self.read = bool(self._ready)
        """Whether there was anything to publish."""

    def _plain(self, rows: Sequence[Row]) -> bool:  # noqa: ARG002 - whatever they are: who subscribes is to be asked
        return False

    def _insert(self, rows: Sequence[Row]) -> Statement[Any]:
        first = {row[1]: row for row in reversed(rows)}
        rows = [row for row in rows if row[1] is None or first[row[1]] is row]  # a conflict would burn an id
        params = {"payloads": [row[0] for row in rows], "keys": [row[1] for row in rows]}
        params["lanes"] = [row[2] if len(row) > 2 else None for row in rows]  # noqa: PLR2004 - where kinds name a target
        return named("publish_many", self._schema, **self._params, **params)


def _no_batch(options: Mapping[str, Any]) -> InvalidOption:
    return InvalidOption(
        f"batch is {options['batch']!r}: no such batch was opened in this transaction and has not ended; open it with "
        "queue.batches.open(..., connection=...) and enqueue on that connection"
    )


def _how(topic: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check what a publish was given; what is the subscriber's to say, and wasn't said, is None."""
    checked(topic)
    for name in options:
        if name == "direct":
            raise InvalidOption("direct is for queue.enqueue: what is published goes through the table")
        if name not in store.Wishes.__annotations__:
            raise unknown(name, [*store.Wishes.__annotations__, "connection", "key"])
        if name in store.ABOUT_KEYS:
            raise InvalidOption(
                f"{name} is for queue.enqueue: of what is published, a key that lives makes no second job"
            )
    how = vars(store.options(**noted(topic, options)))
    return how | {name: None for name in ("priority", "max_attempts", "lane") if name not in options}
