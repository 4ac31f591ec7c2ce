"""Schedules as users hold them: defined in code or at run time, looked at, paused, run by hand.

What is given is checked before anything is written; the workers do the rest (:mod:`redrive.scheduler`). A schedule of
the code is the code's to define and an operator's to pause; one that was added at run time is the operator's alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Protocol, TypeVar, Unpack, cast

from psycopg.rows import class_row

from redrive import store
from redrive.audit import signed
from redrive.definition import Definition, InCode, Options, define
from redrive.drivers import AsyncBorrowed, Borrowed
from redrive.errors import InvalidOption, UnknownSchedule
from redrive.handlers import Handler, Handlers, P, R
from redrive.job import Enqueued
from redrive.sql import spoken
from redrive.statements import Statement, Steps, afollow, follow, named
from redrive.timetable import timetable
from redrive.words import there_are

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule's row, and what became of its last slot."""

    name: str
    kind: str
    payload: Any
    cron: str | None
    every: timedelta | None
    at: datetime | None
    timezone: str
    anchor: datetime
    priority: int
    max_attempts: int
    lane: str
    missed: str
    most: int
    age: timedelta | None
    overlap: str
    owner: str
    """``code`` or ``operator``."""
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None
    disabled_at: datetime | None
    """Since when no live worker has had it in its code."""
    seen_at: datetime | None
    next_run_at: datetime | None
    """None until a worker has worked it out, and while it is paused."""
    waiting_slot: datetime | None
    last_run_at: datetime | None
    last_job_id: int | None
    ended_at: datetime | None
    problem: str | None
    created_at: datetime
    updated_at: datetime
    last_slot: datetime | None
    last_outcome: str | None
    """``enqueued`` or ``skipped``."""
    last_reason: str | None

    @property
    def state(self) -> str:
        """One word: active, paused, disabled, ended or broken."""
        if self.problem:
            return "broken"
        if self.paused_at:
            return "paused"
        return "disabled" if self.disabled_at else "ended" if self.ended_at else "active"


Rows = list[Schedule]  # within Schedules, list is its method


class Desk(Protocol):
    """The queue as its schedules see it."""

    handlers: Handlers

    @property
    def schema(self) -> str:
        """The schema of the tables."""

    def ask(self, statement: Statement[T], connection: Borrowed | None = None) -> list[T]:
        """Run a statement."""

    async def ask_async(self, statement: Statement[T], connection: AsyncBorrowed | None = None) -> list[T]:
        """Run a statement from async code."""


class Schedules:
    """The schedules of a queue: ``queue.schedules``. Each method has its twin for async code, ``..._async``."""

    def __init__(self, queue: Desk) -> None:
        self._queue = queue
        self._of_code: dict[str, Definition] = {}

    # -- in code

    def of_handler(self, cron: str | None, how: InCode) -> Callable[[Handler[P, R]], Handler[P, R]]:
        """Make the decorator that remembers a schedule of the code; workers write it down when they start.

        Raises:
            InvalidOption: for a value that makes no sense, or a name that is taken.
        """
        if cron is not None and not isinstance(cron, str):  # above a handler with no brackets it would never run
            raise InvalidOption(f"@queue.schedule: cron is {cron!r:.80}: give text, as in @queue.schedule('0 3 * * *')")

        def register(handler: Handler[P, R]) -> Handler[P, R]:
            if not isinstance(handler, Handler):
                raise InvalidOption(f"{handler!r:.80} is no handler: put @queue.schedule above @queue.handler")
            options: dict[str, Any] = {**how}
            own = {key: options.pop(key) for key in ("every", "timezone", "payload") if key in options}
            name = options.pop("name", None) or handler.kind
            made = define(self._queue.handlers, name, handler, cron, **own, options=cast("Options", options))
            if name in self._of_code:
                raise InvalidOption(f"there is a schedule {name!r} already: give this one a name of its own, name=...")
            self._of_code[name] = made
            return handler

        return register

    def of_code(self) -> tuple[Definition, ...]:
        """List the schedules that were registered in code."""
        return tuple(self._of_code.values())

    # -- at run time

    def add(
        self,
        name: str,
        kind: str | Handler[Any, Any],
        cron: str | None = None,
        *,
        every: float | timedelta | str | None = None,
        at: datetime | None = None,
        timezone: str = "UTC",
        payload: Any = None,
        anchor: datetime | None = None,
        by: str = "",
        reason: str = "",
        connection: Borrowed | None = None,
        **options: Unpack[Options],
    ) -> Schedule:
        """Add a schedule, or change the one of that name to this; said again unchanged, it changes nothing.

        Args:
            name: by which it is known, listed and paused.
            kind: of the jobs that it enqueues, or their handler.
            cron: five fields, six with the seconds first, or a name like ``@daily``; read in *timezone*.
            every: instead: seconds, a timedelta or text like ``5m`` between slots, counted from *anchor*.
            at: instead: once, an aware datetime.
            timezone: by name; fixed hours follow its clock, also when that is changed.
            payload: of each job; ``{}`` if None.
            anchor: from which *every* counts, and its first slot; one interval from now without it.
            by: who; the user of this process without it. It stands in the audit, as *reason* does.
            reason: why.
            connection: the caller's, in whose transaction it is written.
            options: see :class:`Options`.

        Raises:
            InvalidOption: before anything is written; or for a name that is a schedule of the code.
            InvalidPayload: for a payload that can't be stored.
        """
        made = define(
            self._queue.handlers,
            name,
            kind,
            cron,
            every=every,
            at=at,
            timezone=timezone,
            payload=payload,
            anchor=anchor,
            options=options,
        )
        return self._run(self._add(made, by, reason), connection)

    async def add_async(
        self,
        name: str,
        kind: str | Handler[Any, Any],
        cron: str | None = None,
        *,
        every: float | timedelta | str | None = None,
        at: datetime | None = None,
        timezone: str = "UTC",
        payload: Any = None,
        anchor: datetime | None = None,
        by: str = "",
        reason: str = "",
        connection: AsyncBorrowed | None = None,
        **options: Unpack[Options],
    ) -> Schedule:
        """Add a schedule from async code; see :meth:`add`."""
        made = define(
            self._queue.handlers,
            name,
            kind,
            cron,
            every=every,
            at=at,
            timezone=timezone,
            payload=payload,
            anchor=anchor,
            options=options,
        )
        return await self._arun(self._add(made, by, reason), connection)

    def remove(self, name: str, *, by: str = "", reason: str = "", connection: Borrowed | None = None) -> None:
        """Remove a schedule; the jobs that it has enqueued stay.

        Raises:
            UnknownSchedule: when there is none of that name.
            InvalidOption: when it is in the code of a live worker, which would bring it back.
        """
        self._run(self._remove(name, by, reason), connection)

    async def remove_async(
        self, name: str, *, by: str = "", reason: str = "", connection: AsyncBorrowed | None = None
    ) -> None:
        """Remove a schedule from async code; see :meth:`remove`."""
        await self._arun(self._remove(name, by, reason), connection)

    def pause(self, name: str, *, by: str = "", reason: str = "", connection: Borrowed | None = None) -> Schedule:
        """Enqueue nothing for a schedule until it is resumed; what comes due meanwhile is not made up for.

        Raises:
            UnknownSchedule: when there is none of that name.
        """
        return self._run(self._pause(name, by, reason), connection)

    async def pause_async(
        self, name: str, *, by: str = "", reason: str = "", connection: AsyncBorrowed | None = None
    ) -> Schedule:
        """Pause a schedule from async code; see :meth:`pause`."""
        return await self._arun(self._pause(name, by, reason), connection)

    def resume(self, name: str, *, by: str = "", reason: str = "", connection: Borrowed | None = None) -> Schedule:
        """Let a paused schedule go on from its next slot.

        Raises:
            UnknownSchedule: when there is none of that name.
        """
        return self._run(self._change("resume_schedule", name, **signed(by, reason)), connection)

    async def resume_async(
        self, name: str, *, by: str = "", reason: str = "", connection: AsyncBorrowed | None = None
    ) -> Schedule:
        """Resume a schedule from async code; see :meth:`resume`."""
        return await self._arun(self._change("resume_schedule", name, **signed(by, reason)), connection)

    def run(self, name: str, *, by: str = "", reason: str = "", connection: Borrowed | None = None) -> Enqueued:
        """Enqueue a schedule's job now, whatever its plan, overlap or pause say; it counts as its last run.

        Raises:
            UnknownSchedule: when there is none of that name.
        """
        return self._run(self._once(name, by, reason), connection)

    async def run_async(
        self, name: str, *, by: str = "", reason: str = "", connection: AsyncBorrowed | None = None
    ) -> Enqueued:
        """Enqueue a schedule's job now, from async code; see :meth:`run`."""
        return await self._arun(self._once(name, by, reason), connection)

    def get(self, name: str, *, connection: Borrowed | None = None) -> Schedule:
        """Fetch one schedule.

        Raises:
            UnknownSchedule: when there is none of that name.
        """
        return self._run(self._found(name), connection)

    def list(self, *, connection: Borrowed | None = None) -> Rows:
        """List the schedules, by name."""
        return self._queue.ask(get(self._queue.schema), connection)

    async def list_async(self, *, connection: AsyncBorrowed | None = None) -> Rows:
        """List the schedules from async code, by name."""
        return await self._queue.ask_async(get(self._queue.schema), connection)

    # -- how

    def _add(self, made: Definition, by: str, reason: str) -> Steps[Schedule]:
        [clock] = yield replace(named("clock", self._queue.schema), binary=True)
        given = vars(made)
        if not made.anchored:
            given = given | {"anchor": clock.now.replace(microsecond=0)}
        table = timetable(made.cron, made.every, made.at, made.timezone, given["anchor"])
        following = made.at or table.next(clock.now)
        if not (yield named("add_schedule", self._queue.schema, **given, next=following, **signed(by, reason))):
            raise InvalidOption(
                f"schedule {made.name!r} is one of the code's: change it there, or give this one another name"
            )
        return (yield from self._found(made.name))

    def _remove(self, name: str, by: str, reason: str) -> Steps[None]:
        yield from self._found(name)
        if not (yield named("remove_schedule", self._queue.schema, name=name, **signed(by, reason))):
            raise InvalidOption(f"schedule {name!r} is one of the code's: remove it there, or pause it")

    def _change(self, statement: str, name: str, **params: Any) -> Steps[Schedule]:
        yield from self._found(name)
        yield named(statement, self._queue.schema, name=name, **params)
        return (yield from self._found(name))

    def _pause(self, name: str, by: str, reason: str) -> Steps[Schedule]:
        said = {"by": store.remark(by, "by"), "reason": store.remark(reason, "reason")}
        return self._change("pause_schedule", name, **said, **signed(by, reason))

    def _once(self, name: str, by: str, reason: str) -> Steps[Enqueued]:
        yield from self._found(name)
        [row] = yield named("run_schedule", self._queue.schema, name=name, **signed(by, reason))
        return Enqueued(row.id, row.created, row.kind)

    def _found(self, name: str) -> Steps[Schedule]:
        if rows := (yield get(self._queue.schema, store.name(name, "name"))):
            return rows[0]  # type: ignore[no-any-return] # the rows of the statement just yielded
        names = [row.name for row in (yield get(self._queue.schema))]
        near = get_close_matches(name, names, n=1)
        there = f"did you mean {near[0]!r}?" if near else there_are(names)
        raise UnknownSchedule(f"no schedule {name!r}; {there}")

    def _run(self, steps: Steps[T], connection: Borrowed | None) -> T:
        return follow(self._queue.ask, steps, connection)

    async def _arun(self, steps: Steps[T], connection: AsyncBorrowed | None) -> T:
        return await afollow(self._queue.ask_async, steps, connection)


def get(schema: str, name: str | None = None) -> Statement[Schedule]:
    """Fetch the schedules, or the one of that name; in binary, for intervals as text have a style of the session's."""
    return Statement(spoken("list_schedules", schema), class_row(Schedule), {"name": name}, binary=True)


def slots(schema: str, name: str, limit: int = 50) -> Statement[Any]:
    """Fetch what became of a schedule's slots, newest first."""
    return named("list_slots", schema, name=name, limit=limit)
