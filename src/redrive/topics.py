"""Who subscribes to what, as users hold it: ``queue.topics``. Subscriptions are rows, of the code or of an operator.

Those of the code are written down by the workers that have it, and by a producer that has it before its first publish;
those of an operator are the operator's alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.rows import class_row, namedtuple_row
from psycopg.sql import SQL

from redrive import store
from redrive.audit import signed
from redrive.drivers import AsyncBorrowed, Borrowed
from redrive.errors import InvalidOption, UnknownSubscription
from redrive.handlers import Handler
from redrive.schedules import Desk
from redrive.sql import compose, spoken, text_of
from redrive.statements import Statement, Steps, afollow, follow, named
from redrive.topic import pattern

UNHEARD = 100
"""Topics without a subscriber that are listed, the newest."""


@dataclass(frozen=True, kw_only=True)
class Subscription:
    """That a kind gets a job of each publish of a topic."""

    topic: str
    """Or a pattern of topics."""
    kind: str
    owner: str
    """``code`` or ``operator``."""
    priority: int
    max_attempts: int
    created_by: str | None
    created_at: datetime
    seen_at: datetime | None
    """When a live worker last had it in its code."""
    disabled_at: datetime | None
    """Since when it is in no code any more; it gets nothing."""

    @property
    def state(self) -> str:
        """One word: active or disabled."""
        return "disabled" if self.disabled_at else "active"


@dataclass(frozen=True, kw_only=True)
class Unheard:
    """A topic that is published, and nobody subscribes to."""

    topic: str
    since: datetime
    last: datetime
    """As of about an hour."""


Rows = list[Subscription]  # within Topics, list is its method
TopicsUnheard = list[Unheard]


class Topics:
    """The subscriptions of a queue. Each method has its twin for async code, ``..._async``."""

    def __init__(self, queue: Desk) -> None:
        self._queue = queue

    def list(
        self,
        topic: str | None = None,
        *,
        kind: str | Handler[Any, Any] | None = None,
        connection: Borrowed | None = None,
    ) -> Rows:
        """List the subscriptions; with *topic* those that a publish of it finds or that are called so.

        Raises:
            InvalidOption: for a topic or kind that can't be.
        """
        return self._queue.ask(self._list(topic, kind), connection)

    async def list_async(
        self,
        topic: str | None = None,
        *,
        kind: str | Handler[Any, Any] | None = None,
        connection: AsyncBorrowed | None = None,
    ) -> Rows:
        """List the subscriptions from async code; see :meth:`list`."""
        return await self._queue.ask_async(self._list(topic, kind), connection)

    def unheard(self, *, connection: Borrowed | None = None) -> TopicsUnheard:
        """List what was published within a week and has no subscriber, newest first."""
        return self._queue.ask(unheard(self._queue.schema), connection)

    async def unheard_async(self, *, connection: AsyncBorrowed | None = None) -> TopicsUnheard:
        """List what nobody subscribes to, from async code; see :meth:`unheard`."""
        return await self._queue.ask_async(unheard(self._queue.schema), connection)

    def add(
        self,
        topic: str,
        kind: str | Handler[Any, Any],
        *,
        priority: int | None = None,
        max_attempts: int | None = None,
        by: str = "",
        reason: str = "",
        connection: Borrowed | None = None,
    ) -> Subscription:
        """Let *kind* get a job of each publish of *topic*, whether or not the code says so.

        *priority* and *max_attempts* are the handler's where one is known. Where the code subscribes the same kind as
        well, what it says counts.

        Raises:
            InvalidOption: before anything is written.
        """
        how = {"priority": priority, "max_attempts": max_attempts}
        return follow(self._queue.ask, self._add(topic, kind, how, signed(by, reason)), connection)

    async def add_async(
        self,
        topic: str,
        kind: str | Handler[Any, Any],
        *,
        priority: int | None = None,
        max_attempts: int | None = None,
        by: str = "",
        reason: str = "",
        connection: AsyncBorrowed | None = None,
    ) -> Subscription:
        """Add a subscription from async code; see :meth:`add`."""
        how = {"priority": priority, "max_attempts": max_attempts}
        return await afollow(self._queue.ask_async, self._add(topic, kind, how, signed(by, reason)), connection)

    def remove(
        self,
        topic: str,
        kind: str | Handler[Any, Any],
        *,
        by: str = "",
        reason: str = "",
        connection: Borrowed | None = None,
    ) -> None:
        """Remove an operator's subscription, or one that is in no code any more; jobs that were made stay.

        Raises:
            UnknownSubscription: when there is none such.
            InvalidOption: when it is in the code of a live worker, which would bring it back.
        """
        follow(self._queue.ask, self._remove(topic, kind, by, reason), connection)

    async def remove_async(
        self,
        topic: str,
        kind: str | Handler[Any, Any],
        *,
        by: str = "",
        reason: str = "",
        connection: AsyncBorrowed | None = None,
    ) -> None:
        """Remove a subscription from async code; see :meth:`remove`."""
        await afollow(self._queue.ask_async, self._remove(topic, kind, by, reason), connection)

    def _list(self, name: str | None, kind: str | Handler[Any, Any] | None) -> Statement[Subscription]:
        which = {"topic": None if name is None else pattern(name), "kind": None if kind is None else _kind(kind)}
        return Statement(spoken("list_subscriptions", self._queue.schema), class_row(Subscription), which)

    def _add(
        self, name: str, kind: str | Handler[Any, Any], wished: dict[str, int | None], who: dict[str, str | None]
    ) -> Steps[Subscription]:
        row: dict[str, Any] = {"topic": pattern(name), "kind": _kind(kind)}
        handler = self._queue.handlers.get(row["kind"])
        given: dict[str, Any] = {key: value for key, value in wished.items() if value is not None}
        if handler is not None:
            given = {"priority": handler.priority, "max_attempts": handler.max_attempts} | given
        how = store.options(**given)
        row |= {"priority": how.priority, "max_attempts": how.max_attempts}
        yield named("add_subscription", self._queue.schema, **row, **who, by=who["who"])
        rows: Rows = yield self._list(row["topic"], row["kind"])
        return next(each for each in rows if each.owner == "operator" and each.topic == row["topic"])

    def _remove(self, name: str, kind: str | Handler[Any, Any], by: str, reason: str) -> Steps[None]:
        which = {"topic": pattern(name), "kind": _kind(kind)}
        if not (yield named("remove_subscription", self._queue.schema, **which, **signed(by, reason))):
            found = yield self._list(which["topic"], which["kind"])
            if any(each.topic == which["topic"] for each in found):
                raise InvalidOption(
                    f"{which['kind']!r} subscribes to {which['topic']!r} in the code: remove it there, "
                    f"or hold its jobs back with redrive pause"
                )
            raise UnknownSubscription(
                f"{which['kind']!r} has no subscription to {which['topic']!r}: see redrive topics list"
            )


def subscriptions(schema: str) -> Statement[Subscription]:
    """Fetch all subscriptions."""
    which = {"topic": None, "kind": None}
    return Statement(spoken("list_subscriptions", schema), class_row(Subscription), which)


def unheard(schema: str) -> Statement[Unheard]:
    """Fetch what is published and has no subscriber."""
    return Statement(spoken("list_unheard", schema), class_row(Unheard), {"limit": UNHEARD})


def in_code(handlers: Iterable[Handler[Any, Any]]) -> list[Handler[Any, Any]]:
    """Give those of *handlers* that subscribe to something."""
    return [handler for handler in handlers if handler.topics]


def register(schema: str, handlers: Iterable[Handler[Any, Any]], *, waits: bool) -> Statement[Any]:
    """Write down what *handlers* subscribe to; who does not wait has those left out that somebody has locked."""
    rows = [(name, handler) for handler in in_code(handlers) for name in handler.topics]
    params: dict[str, Any] = {
        "topics": [name for name, _ in rows],
        "kinds": [handler.kind for _, handler in rows],
        "priorities": [handler.priority for _, handler in rows],
        "max_attempts": [handler.max_attempts for _, handler in rows],
        "aliases": ["\x1f".join(handler.aliases) for _, handler in rows],
    }
    text = compose(text_of("register_subscriptions"), schema, patience=SQL("" if waits else "SKIP LOCKED"))
    return Statement(text, namedtuple_row, params, kept=False)


def _kind(kind: str | Handler[Any, Any]) -> str:
    return store.name(kind.kind if isinstance(kind, Handler) else kind, "kind")
