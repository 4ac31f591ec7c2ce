"""What workers counted, read back: throughput, failures, waits and run times over a span, and the marks of deploys.

Counted is what redrive's own workers wrote, about ten seconds after it happened; not what a program of somebody else's
did to the rows, nor what operators cancelled before it began. Quantiles are right to 9 %, see
:mod:`redrive.histogram`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from psycopg.rows import class_row, tuple_row

from redrive import store
from redrive.drivers import AsyncBorrowed, Borrowed
from redrive.errors import InvalidOption
from redrive.handlers import Handler
from redrive.histogram import add, quantile
from redrive.settings import seconds
from redrive.sql import spoken
from redrive.statements import Statement, named
from redrive.tally import OUTCOMES, Count

if TYPE_CHECKING:
    from redrive.schedules import Desk

HOUR = 3600.0
STEPS = ((2 * HOUR, 60.0), (26 * HOUR, 600.0), (8 * 24 * HOUR, HOUR), (32 * 24 * HOUR, 6 * HOUR))
"""Spans, and the steps into which each is cut. What is older than two hours is there by ten minutes only, and after a
day by the hour."""
DAY = 24 * HOUR
LONGEST = 366 * DAY
MOST = 10_000
"""Jobs that are counted of a kind and sort: more would be dear, and say no more."""
MOST_KINDS = 500
NEWEST, INFLOW_WINDOW = 2000, 60.0
"""By how many rows, and over how many seconds, it is judged how many jobs come in."""


@dataclass(frozen=True, kw_only=True)
class Sum:
    """What became of jobs in a span of time, of one kind or of all."""

    kind: str
    """Empty where it is about all kinds together."""
    at: datetime
    """When the span begins."""
    seconds: float
    """How long it is; of the last in a series, how much of it is over."""
    succeeded: int = 0
    retried: int = 0
    failed: int = 0
    """Cancelled while they ran, and discarded."""
    died: int = 0
    snoozed: int = 0
    handed_back: int = 0
    reclaimed: int = 0
    """Taken back from workers that were lost."""
    ran: int = 0
    """Runs of handlers that ended."""
    wait_mean: float | None = None
    """Seconds from when they were due to their start; None where none ran, as in those below."""
    wait_p50: float | None = None
    wait_p95: float | None = None
    run_mean: float | None = None
    run_p50: float | None = None
    run_p95: float | None = None

    @property
    def ended(self) -> int:
        """Jobs that came to an end, whichever."""
        return self.succeeded + self.failed + self.died

    @property
    def errors(self) -> int:
        """Tries that failed."""
        return self.retried + self.died

    @property
    def rate(self) -> float:
        """Jobs that came to an end a second."""
        return self.ended / self.seconds if self.seconds else 0.0

    @property
    def error_rate(self) -> float | None:
        """Which share of the tries failed, 0 to 1; None where there were none."""
        tries = self.succeeded + self.errors
        return self.errors / tries if tries else None


@dataclass(frozen=True, kw_only=True)
class Deploy:
    """A version of the application, and when it first was there or was there again."""

    version: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Inflow:
    """How many jobs of a kind came in of late."""

    kind: str
    jobs: int
    seconds: float
    """Within how long: a minute, or less where more came in than are looked at."""

    @property
    def rate(self) -> float:
        """Jobs a second."""
        return self.jobs / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class Depth:
    """What there is of a kind now. A count that is *most* means: so many, or more."""

    kind: str
    pending: int
    due: int
    """Of the pending ones that were counted, those whose time has come."""
    retrying: int
    """Pending ones that have failed before."""
    running: int
    dead: int
    oldest_due: float | None
    """Seconds for which the oldest due job has waited; None where none is due."""
    most: int

    def capped(self, count: int) -> bool:
        """Tell whether *count* is only as far as was counted; so is due where pending is."""
        return count >= self.most


_SUMMED = (*OUTCOMES, "ran", "wait_seconds", "run_seconds")


class Stats:
    """What workers counted: ``queue.stats``."""

    def __init__(self, queue: Desk) -> None:
        self._queue = queue

    def series(
        self,
        span: float | timedelta | str,
        *,
        kind: str | Handler[Any, Any] | None = None,
        step: float | timedelta | str | None = None,
        connection: Borrowed | None = None,
    ) -> list[Sum]:
        """Cut the last *span* into steps and sum each up, those in which nothing happened too; the oldest first.

        Raises:
            InvalidOption: for a span over a year or no kind of time, or a step that makes more than 2,000 of it.
        """
        length, cut = _cut(span, step)
        now = self._queue.ask(_clock(self._queue.schema), connection)[0].now
        asked = self._sums(now, length, kind, cut)
        return _series(self._queue.ask(asked, connection), now, length, cut, _name(kind))

    async def series_async(
        self,
        span: float | timedelta | str,
        *,
        kind: str | Handler[Any, Any] | None = None,
        step: float | timedelta | str | None = None,
        connection: AsyncBorrowed | None = None,
    ) -> list[Sum]:
        """Cut the last *span* into steps from async code; see :meth:`series`."""
        length, cut = _cut(span, step)
        now = (await self._queue.ask_async(_clock(self._queue.schema), connection))[0].now
        asked = self._sums(now, length, kind, cut)
        return _series(await self._queue.ask_async(asked, connection), now, length, cut, _name(kind))

    def kinds(self, span: float | timedelta | str, *, connection: Borrowed | None = None) -> list[Sum]:
        """Sum up the last *span*, each kind by itself, by whole minutes.

        Raises:
            InvalidOption: as :meth:`series`.
        """
        length, _ = _cut(span, None)
        now = self._queue.ask(_clock(self._queue.schema), connection)[0].now
        return _whole(self._queue.ask(self._sums(now, length, None, None, by_kind=True), connection), now, length)

    async def kinds_async(self, span: float | timedelta | str, *, connection: AsyncBorrowed | None = None) -> list[Sum]:
        """Sum up each kind from async code; see :meth:`kinds`."""
        length, _ = _cut(span, None)
        now = (await self._queue.ask_async(_clock(self._queue.schema), connection))[0].now
        return _whole(
            await self._queue.ask_async(self._sums(now, length, None, None, by_kind=True), connection), now, length
        )

    def total(self, span: float | timedelta | str, *, connection: Borrowed | None = None) -> Sum:
        """Sum up the last *span*, all kinds together, by whole minutes.

        Raises:
            InvalidOption: as :meth:`series`.
        """
        length, _ = _cut(span, None)
        now = self._queue.ask(_clock(self._queue.schema), connection)[0].now
        return _all(self._queue.ask(self._sums(now, length, None, None), connection), now, length)

    async def total_async(self, span: float | timedelta | str, *, connection: AsyncBorrowed | None = None) -> Sum:
        """Sum up all kinds together from async code; see :meth:`total`."""
        length, _ = _cut(span, None)
        now = (await self._queue.ask_async(_clock(self._queue.schema), connection))[0].now
        return _all(await self._queue.ask_async(self._sums(now, length, None, None), connection), now, length)

    def deploys(self, span: float | timedelta | str, *, connection: Borrowed | None = None) -> list[Deploy]:
        """List which versions of the application came within the last *span*, the oldest first."""
        return self._queue.ask(self._deploys(span), connection)

    async def deploys_async(
        self, span: float | timedelta | str, *, connection: AsyncBorrowed | None = None
    ) -> list[Deploy]:
        """List the versions that came, from async code."""
        return await self._queue.ask_async(self._deploys(span), connection)

    def inflow(self, *, connection: Borrowed | None = None) -> list[Inflow]:
        """Say how many jobs of each kind came in within the last minute, by the newest 2,000 rows."""
        return self._queue.ask(self._inflow(), connection)

    async def inflow_async(self, *, connection: AsyncBorrowed | None = None) -> list[Inflow]:
        """Say how many jobs came in, from async code."""
        return await self._queue.ask_async(self._inflow(), connection)

    def depths(self, *, most: int = MOST, connection: Borrowed | None = None) -> list[Depth]:
        """Say what is pending, running and dead of each kind; of each sort no more than *most* are counted."""
        return self._queue.ask(depths(self._queue.schema, most), connection)

    async def depths_async(self, *, most: int = MOST, connection: AsyncBorrowed | None = None) -> list[Depth]:
        """Say what there is of each kind, from async code."""
        return await self._queue.ask_async(depths(self._queue.schema, most), connection)

    def _sums(
        self,
        now: float,
        length: float,
        kind: str | Handler[Any, Any] | None,
        cut: float | None,
        *,
        by_kind: bool = False,
    ) -> Statement[Any]:
        params = {
            "since": _floor(now - length, cut or 60.0),
            "until": now + 60.0,
            "step": cut or 0.0,
            "by_kind": by_kind,
            "kind": _name(kind) or None,
        }
        return Statement(spoken("read_stats", self._queue.schema), tuple_row, params, binary=True, kept=False)

    def _deploys(self, span: float | timedelta | str) -> Statement[Deploy]:
        params = {"span": _cut(span, None)[0]}
        return Statement(spoken("list_deploys", self._queue.schema), class_row(Deploy), params)

    def _inflow(self) -> Statement[Inflow]:
        params = {"newest": NEWEST, "window": INFLOW_WINDOW}
        return Statement(spoken("inflow", self._queue.schema), class_row(Inflow), params)


def depths(schema: str, most: int = MOST) -> Statement[Depth]:
    """Ask what there is of each kind; of each sort no more than *most* are counted."""
    params = {"most": most, "kinds": MOST_KINDS}
    return Statement(spoken("depths", schema), class_row(Depth), params, kept=False)


def _clock(schema: str) -> Statement[Any]:
    return named("stats_clock", schema)


def _name(kind: str | Handler[Any, Any] | None) -> str:
    return "" if kind is None else store.name(kind.kind if isinstance(kind, Handler) else kind, "kind")


def _cut(span: float | timedelta | str, step: float | timedelta | str | None) -> tuple[float, float]:
    length = seconds(span, "span")
    if not 60 <= length <= LONGEST:  # noqa: PLR2004 - a minute
        raise InvalidOption(f"span is {span!r}: must be from a minute to {LONGEST / DAY:.0f} days")
    if step is None:
        return length, next((cut for longest, cut in STEPS if length <= longest), DAY)
    cut = seconds(step, "step")
    if cut < 60 or cut % 60 or length / cut > 2000:  # noqa: PLR2004 - a minute; and what is a chart still
        raise InvalidOption(f"step is {step!r}: must be whole minutes, and the span at most 2000 of it")
    return length, cut


def _floor(at: float, step: float) -> float:
    return at // step * step


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _series(rows: list[Any], now: float, length: float, cut: float, kind: str) -> list[Sum]:
    found = _added(rows)
    first = int(_floor(now - length, cut))
    steps = range(first, int(now) + 1, int(cut))
    return [_sum(found.get((at, "")), at, min(cut, max(now - at, 1.0)), kind) for at in steps]


def _whole(rows: list[Any], now: float, length: float) -> list[Sum]:
    first = _floor(now - length, 60.0)
    return [_sum(count, first, now - first, kind) for (_, kind), count in sorted(_added(rows).items())]


def _all(rows: list[Any], now: float, length: float) -> Sum:
    return next(iter(_whole(rows, now, length)), _sum(None, _floor(now - length, 60.0), length, ""))


def _added(rows: list[Any]) -> dict[tuple[int, str], Count]:
    """Add up the rows of each step and kind, by the thousand."""
    found: dict[tuple[int, str], Count] = {}
    for at, kind, *numbers, first_wait, waits, first_run, runs in rows:
        count = found.get((at, kind))
        if count is None:
            count = found[at, kind] = Count()
        for name, number in zip(_SUMMED, numbers, strict=True):
            if number:
                setattr(count, name, getattr(count, name) + number)
        add(count.waits, first_wait, waits)
        add(count.runs, first_run, runs)
    return found


def _sum(count: Count | None, at: float, length: float, kind: str) -> Sum:
    if count is None:
        return Sum(kind=kind, at=_moment(at), seconds=length)
    return Sum(
        kind=kind,
        at=_moment(at),
        seconds=length,
        **{name: getattr(count, name) for name in (*OUTCOMES, "ran")},
        wait_mean=count.wait_seconds / count.ran if count.ran else None,
        wait_p50=quantile(count.waits, 0.5),
        wait_p95=quantile(count.waits, 0.95),
        run_mean=count.run_seconds / count.ran if count.ran else None,
        run_p50=quantile(count.runs, 0.5),
        run_p95=quantile(count.runs, 0.95),
    )
