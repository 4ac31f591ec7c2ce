"""The breakers of a queue, for operators: which are open and why, and to open and close them by hand.

A breaker holds the jobs of a kind, or of one target within it, while what they call is down. Workers open them by what
fails (see `guard`) and close them by what a probe is answered; the state is a row, in force at the next claim of every
worker. Everything is checked before it is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from redrive import store
from redrive.audit import signed
from redrive.breaker import DEFAULT, LONGEST
from redrive.drivers import AsyncBorrowed, Borrowed
from redrive.errors import InvalidOption
from redrive.handlers import Handler
from redrive.settings import seconds
from redrive.sql import spoken
from redrive.statements import Statement, known
from redrive.words import counted, number

if TYPE_CHECKING:
    from redrive.schedules import Desk

MOST_COUNTED = 10_000
"""Jobs that wait are counted up to so many."""


@dataclass(frozen=True, kw_only=True)
class State:
    """A breaker as it stands."""

    kind: str
    target: str
    """The lane that is meant; empty for all jobs of the kind."""
    state: str
    """open: jobs are held; closing: they are let out at a rising rate; closed: over."""
    opened_at: datetime
    opened_by: str | None
    """The worker that saw the outage, or the operator."""
    reason: str | None
    by_hand: bool
    """It is open until somebody closes it."""
    probe_at: datetime | None
    """When one job is let through as a probe; None where it waits for somebody."""
    probes: int
    usual_rate: float
    """Jobs a second before the outage, or that came in during it, whichever was more; 0 while not known."""
    closed_at: datetime | None
    closed_by: str | None
    rate: float | None = None
    """While it is closing: jobs a second that are let through now."""
    waiting: int = 0
    """Jobs that wait, due or not; of more than 10,000, so many."""
    due: int = 0
    """Of these, the ones that would run now: a try that met the outage has put its job off for a while."""
    opened: bool = False
    """It was closed before."""

    @property
    def name(self) -> str:
        """Its kind, and its target where it has one."""
        return f"{self.kind} {self.target}" if self.target else self.kind

    @property
    def waiting_in_words(self) -> str:
        """Say how many jobs wait, and how many of them are due where not all are."""
        if not self.waiting:
            return "no job waits"
        many = counted(self.waiting, "job waits", "jobs wait", more=self.waiting >= MOST_COUNTED)
        if self.due == self.waiting:
            return many
        if self.waiting >= MOST_COUNTED:
            return f"{many}, {number(self.due)} or more of them due"
        return f"{many}, {number(self.due) if self.due else 'none'} of them due"


Rows = list[State]  # within Breakers, list is its method
AnyHandler = Handler[Any, Any]


class Breakers:
    """The breakers of a queue: ``queue.breakers``. Each method has its twin for async code, ``..._async``."""

    def __init__(self, queue: Desk) -> None:
        self._queue = queue

    def open(
        self,
        kind: str | AnyHandler,
        target: str = "",
        *,
        by: str = "",
        reason: str = "",
        hold: float | timedelta | None = None,
        connection: Borrowed | None = None,
    ) -> State:
        """Hold the jobs of *kind*, or of one *target* within it, until it is closed; what runs goes on.

        With *hold*, seconds or a timedelta, one job is let through after that as a probe, and more if it is answered.

        Raises:
            InvalidOption: naming the value and the remedy.
        """
        return self._queue.ask(self._open(kind, target, by, reason, hold), connection)[0]

    async def open_async(
        self,
        kind: str | AnyHandler,
        target: str = "",
        *,
        by: str = "",
        reason: str = "",
        hold: float | timedelta | None = None,
        connection: AsyncBorrowed | None = None,
    ) -> State:
        """Open a breaker from async code; see :meth:`open`."""
        return (await self._queue.ask_async(self._open(kind, target, by, reason, hold), connection))[0]

    def close(
        self,
        kind: str | AnyHandler,
        target: str = "",
        *,
        by: str = "",
        reason: str = "",
        at_once: bool = False,
        connection: Borrowed | None = None,
    ) -> State | None:
        """Let the jobs go that are held, at a rising rate or all *at once*; gives None where none were."""
        rows = self._queue.ask(self._close(kind, target, by, reason, at_once=at_once), connection)
        return rows[0] if rows else None

    async def close_async(
        self,
        kind: str | AnyHandler,
        target: str = "",
        *,
        by: str = "",
        reason: str = "",
        at_once: bool = False,
        connection: AsyncBorrowed | None = None,
    ) -> State | None:
        """Close a breaker from async code; see :meth:`close`."""
        rows = await self._queue.ask_async(self._close(kind, target, by, reason, at_once=at_once), connection)
        return rows[0] if rows else None

    def list(self, kind: str | None = None, *, closed: bool = False, connection: Borrowed | None = None) -> Rows:
        """List the breakers that hold jobs or let them out, and on demand those *closed* within the last days."""
        return self._queue.ask(self._list(kind, closed=closed), connection)

    async def list_async(
        self, kind: str | None = None, *, closed: bool = False, connection: AsyncBorrowed | None = None
    ) -> Rows:
        """List breakers from async code; see :meth:`list`."""
        return await self._queue.ask_async(self._list(kind, closed=closed), connection)

    def _open(
        self, kind: str | AnyHandler, target: str, by: str, reason: str, hold: float | timedelta | None
    ) -> Statement[State]:
        wait = None if hold is None else seconds(hold, "hold")
        if wait is not None and not 0 < wait <= LONGEST:
            raise InvalidOption(f"hold is {wait:g} s: must be more than 0, or left out to hold until it is closed")
        limits = (kind.breaker if isinstance(kind, Handler) else None) or DEFAULT
        return self._said(
            "open_breaker",
            **_names(kind, target),
            by=store.remark(by, "by"),
            reason=store.remark(reason, "reason"),
            hold=wait,
            asked=0.0,
            pause=limits.probe_every,
            longest=limits.probe_longest,
            peak=limits.peak,
            usual_rate=0.0,
            by_hand=True,
            **signed(by, reason),
        )

    def _close(self, kind: str | AnyHandler, target: str, by: str, reason: str, *, at_once: bool) -> Statement[State]:
        given = {"by": store.remark(by, "by"), "by_hand": True, "at_once": bool(at_once), **signed(by, reason)}
        return self._said("close_breaker", **_names(kind, target), **given)

    def _list(self, kind: str | None, *, closed: bool) -> Statement[State]:
        return self._said("list_breakers", kind=kind, closed=bool(closed), most=MOST_COUNTED)

    def _said(self, statement: str, **params: Any) -> Statement[State]:
        return Statement(spoken(statement, self._queue.schema), known(State), params)


def _names(kind: str | AnyHandler, target: str) -> dict[str, str]:
    kind = kind.kind if isinstance(kind, Handler) else kind
    return {"kind": store.name(kind, "kind"), "target": store.name(target, "target", empty=True)}
