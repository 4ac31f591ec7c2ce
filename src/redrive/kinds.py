"""What operators set for a kind: pauses, limits and its route, in force at the next claim of every worker.

A limit holds for all workers together. It counts what runs in the table, so nothing can leak; what is over it stays
pending, at no cost to the other kinds. Everything is checked before it is written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from psycopg.rows import class_row

from redrive import store
from redrive.audit import signed
from redrive.drivers import AsyncBorrowed, Borrowed
from redrive.errors import InvalidOption
from redrive.handlers import Handler
from redrive.sql import AMQP, ROUTES, TOPICS, spoken
from redrive.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from redrive.schedules import Desk

ALL = "*"
"""Every kind, for a pause."""
MOST = 2**31 - 1
NO_RELAY = "goes over the broker, and no relay is alive: start redrive relay"
"""What is to be said of a routed kind whose jobs wait where :func:`relayed` is false."""
NO_TAKER = "goes over the broker, and no live worker takes it from there: start redrive worker app.jobs:queue --broker"
"""What is to be said of the kinds that :func:`untaken` gives."""
RELAY, BROKER_WORKER = "relay", "worker --broker"
"""What a process works as, in the rows of :func:`redrive.store.workers`; any other is a worker on the table."""
RATES = (1e-6, 1e6)
YEAR = 31_536_000


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is set for a kind, and how much of it runs."""

    kind: str
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None
    paused_until: datetime | None
    paused: bool
    """Whether the pause is in force now: one that had an end may be over."""
    running_most: int | None
    rate: float | None
    burst: int | None
    lane_running_most: int | None
    lane_rate: float | None
    lane_burst: int | None
    route: str
    """Where its jobs go to be run: ``postgres``, or ``amqp`` for a broker."""
    running: int
    """Jobs of the kind that run, in all workers; of those at a broker the ones that keep their row."""

    @property
    def limited(self) -> bool:
        """Whether it has limits."""
        return any((self.running_most, self.rate, self.lane_running_most, self.lane_rate))

    def pause_in_words(self, since: str) -> str:
        """Say since when it is paused, as *since* has it, by whom, until when and why."""
        by = f" by {self.paused_by}" if self.paused_by else ""
        until = f", until {self.paused_until:%Y-%m-%d %H:%M:%S %Z}" if self.paused_until else ""
        return f"paused {since}{by}{until}" + (f": {self.paused_reason}" if self.paused_reason else "")


class Limits(TypedDict, total=False):
    """How much of a kind may run; what isn't given is not limited."""

    running: int
    """Jobs at once, in all workers together."""
    rate: float
    """Starts a second, in all workers together."""
    burst: int
    """Starts at once after a pause; a tenth of *rate* unless given, and at least 2."""
    lane_running: int
    """As *running*, for each lane by itself: a tenant, a target."""
    lane_rate: float
    """As *rate*, for each lane by itself."""
    lane_burst: int
    """As *burst*, for each lane by itself."""


Rows = list[Kind]  # within Kinds, list is its method


class Kinds:
    """The kinds of a queue: ``queue.kinds``. Each method has its twin for async code, ``..._async``."""

    def __init__(self, queue: Desk) -> None:
        self._queue = queue

    def pause(
        self,
        kind: str | Handler[Any, Any] = ALL,
        *,
        by: str = "",
        reason: str = "",
        until: datetime | None = None,
        connection: Borrowed | None = None,
    ) -> Kind:
        """Start no job of *kind*, or of any, until it is resumed or *until* has come; what runs goes on.

        Raises:
            InvalidOption: for an empty kind, a naive datetime or one that is over.
        """
        return _paused(self._queue.ask(self._pause(kind, by, reason, until), connection), until)

    async def pause_async(
        self,
        kind: str | Handler[Any, Any] = ALL,
        *,
        by: str = "",
        reason: str = "",
        until: datetime | None = None,
        connection: AsyncBorrowed | None = None,
    ) -> Kind:
        """Pause a kind from async code; see :meth:`pause`."""
        return _paused(await self._queue.ask_async(self._pause(kind, by, reason, until), connection), until)

    def resume(
        self,
        kind: str | Handler[Any, Any] = ALL,
        *,
        by: str = "",
        reason: str = "",
        connection: Borrowed | None = None,
    ) -> bool:
        """Let jobs of *kind* start again; gives whether it was paused. A pause of all kinds is one of its own."""
        return bool(self._queue.ask(self._said("resume_kind", kind, **signed(by, reason)), connection))

    async def resume_async(
        self,
        kind: str | Handler[Any, Any] = ALL,
        *,
        by: str = "",
        reason: str = "",
        connection: AsyncBorrowed | None = None,
    ) -> bool:
        """Resume a kind from async code; see :meth:`resume`."""
        return bool(await self._queue.ask_async(self._said("resume_kind", kind, **signed(by, reason)), connection))

    def limit(
        self,
        kind: str | Handler[Any, Any],
        *,
        by: str = "",
        reason: str = "",
        connection: Borrowed | None = None,
        **limits: Unpack[Limits],
    ) -> Kind:
        """Set the limits of *kind* to these, and no others: without any, it has none.

        Raises:
            InvalidOption: naming the value and the remedy.
        """
        return self._queue.ask(self._limit(kind, limits, by, reason), connection)[0]

    async def limit_async(
        self,
        kind: str | Handler[Any, Any],
        *,
        by: str = "",
        reason: str = "",
        connection: AsyncBorrowed | None = None,
        **limits: Unpack[Limits],
    ) -> Kind:
        """Set the limits of a kind from async code; see :meth:`limit`."""
        return (await self._queue.ask_async(self._limit(kind, limits, by, reason), connection))[0]

    def route(
        self,
        kind: str | Handler[Any, Any],
        route: str,
        *,
        by: str = "",
        reason: str = "",
        connection: Borrowed | None = None,
    ) -> Kind:
        """Let the jobs of *kind* be run over a broker from now on, or again from the table: ``amqp`` or ``postgres``.

        What waits in the table goes the new way, what is at the broker is run from there.

        Raises:
            InvalidOption: naming the value and the remedy.
        """
        return self._queue.ask(self._route(kind, route, by, reason), connection)[0]

    async def route_async(
        self,
        kind: str | Handler[Any, Any],
        route: str,
        *,
        by: str = "",
        reason: str = "",
        connection: AsyncBorrowed | None = None,
    ) -> Kind:
        """Route a kind from async code; see :meth:`route`."""
        return (await self._queue.ask_async(self._route(kind, route, by, reason), connection))[0]

    def list(self, *, broken: bool = False, connection: Borrowed | None = None) -> Rows:
        """List the kinds for which something is set, and on demand those that only a breaker holds or lets out."""
        return self._queue.ask(self._said("list_kinds", None, broken=broken), connection)

    async def list_async(self, *, broken: bool = False, connection: AsyncBorrowed | None = None) -> Rows:
        """List kinds from async code; see :meth:`list`."""
        return await self._queue.ask_async(self._said("list_kinds", None, broken=broken), connection)

    def _pause(self, kind: str | Handler[Any, Any], by: str, reason: str, until: datetime | None) -> Statement[Kind]:
        if until is not None and not isinstance(until, datetime):
            raise InvalidOption(f"until is {until!r}: must be a datetime")
        if until is not None and until.tzinfo is None:
            raise InvalidOption(f"until is {until!r}: give it a timezone")
        said = {"by": store.remark(by, "by"), "reason": store.remark(reason, "reason"), "until": until}
        return self._said("pause_kind", kind, **said, **signed(by, reason))

    def _limit(self, kind: str | Handler[Any, Any], limits: Limits, by: str, reason: str) -> Statement[Kind]:
        given: dict[str, Any] = dict.fromkeys(Limits.__annotations__) | dict(limits)
        if unknown := given.keys() - Limits.__annotations__.keys():
            raise TypeError(f"limit() has no option {min(unknown)!r}")
        for name in ("running", "burst", "lane_running", "lane_burst"):
            given[name] = _count(given[name], name)
        for name in ("rate", "lane_rate"):
            given[name] = _rate(given[name], name)
        for rate, burst in (("rate", "burst"), ("lane_rate", "lane_burst")):
            if given[burst] is not None and given[rate] is None:
                raise InvalidOption(f"{burst} is {given[burst]!r} without a {rate}: give both")
            if given[burst] is not None and given[burst] / given[rate] > YEAR:
                raise InvalidOption(f"{burst} is {given[burst]!r}: must be at most what {rate} allows in a year")
        if _name(kind) == ALL and any(value is not None for value in given.values()):
            raise InvalidOption("all kinds can be paused together, but each has limits of its own: name one")
        return self._said("limit_kind", kind, **given, **signed(by, reason))

    def _route(self, kind: str | Handler[Any, Any], route: str, by: str, reason: str) -> Statement[Kind]:
        if route not in ROUTES:
            raise InvalidOption(f"route is {route!r}: must be one of {', '.join(ROUTES)}")
        if _name(kind) == ALL:
            raise InvalidOption("each kind is routed by itself: name one")
        return self._said("route_kind", kind, route=route, **signed(by, reason))

    def _said(self, statement: str, kind: str | Handler[Any, Any] | None, **params: Any) -> Statement[Kind]:
        said = {"kind": None if kind is None else _name(kind), **params}
        return Statement(spoken(statement, self._queue.schema), class_row(Kind), said)


def relayed(workers: Iterable[Any]) -> bool:
    """Tell from the rows of :func:`redrive.store.workers` whether a relay is alive."""
    return any(worker.alive and worker.works_as == RELAY for worker in workers)


def taken(workers: Iterable[Any]) -> set[str]:
    """Tell from the same rows which kinds a live worker takes from the broker."""
    return {kind for worker in workers if worker.alive and worker.works_as == BROKER_WORKER for kind in worker.kinds}


def untaken(kinds: Iterable[Kind], workers: Iterable[Any]) -> Sequence[str]:
    """Give those of these kinds that a relay hands to the broker while no live worker takes them from there."""
    runs = taken(workers) | {TOPICS}  # which is for other services to take
    return sorted(row.kind for row in kinds if row.route == AMQP and row.kind not in runs)


def _paused(rows: Rows, until: datetime | None) -> Kind:
    if not rows:
        raise InvalidOption(f"until is {until}: that is over by the database's clock")
    return rows[0]


def _name(kind: str | Handler[Any, Any]) -> str:
    return store.name(kind.kind if isinstance(kind, Handler) else kind, "kind")


def _count(value: Any, name: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST):
        raise InvalidOption(f"{name} is {value!r}: must be a whole number from 1; to stop a kind, pause it")
    return value


def _rate(value: Any, name: str) -> float | None:
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not RATES[0] <= value <= RATES[1]:
        raise InvalidOption(
            f"{name} is {value!r}: must be a number of starts a second over 0, such as 10 or 0.5, and at most 1000000"
        )
    return float(value)
