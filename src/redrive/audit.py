"""Who did what, when and why, and to how many: a row an act, written in the transaction of the deed.

Nothing here decides who may do what. A row says what was said: by whom is taken from the caller.
"""

from __future__ import annotations

import getpass
import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, Unpack

from redrive import store
from redrive.drivers import AsyncBorrowed, Borrowed
from redrive.settings import unknown
from redrive.statements import Statement, known, lenient, named

if TYPE_CHECKING:
    from collections.abc import Mapping


T = TypeVar("T")


class Asked(Protocol):
    """The queue as those see it who only ask it things."""

    @property
    def schema(self) -> str:
        """The schema of the tables."""

    def ask(self, statement: Statement[T], connection: Borrowed | None = None) -> list[T]:
        """Run a statement."""

    async def ask_async(self, statement: Statement[T], connection: AsyncBorrowed | None = None) -> list[T]:
        """Run a statement from async code."""


@dataclass(frozen=True, kw_only=True)
class Act:
    """What somebody did."""

    id: int
    at: datetime
    by: str | None
    action: str
    """cancel, requeue, requeue started, requeue done, requeue stopped, requeue failed, edit, edit and requeue, pause,
    resume, limit, breaker open, breaker close, prune, schedule add, schedule remove, schedule pause, schedule resume,
    schedule run, adopt, adopt pause, adopt resume, adopt backfill, adopt undo or adopt in place."""
    filter: dict[str, Any]
    """What was asked for."""
    reason: str | None
    moved: int
    """To how many it was done."""
    skipped: int
    """Of those that were meant, how many were in another state when their turn came."""
    job_id: int | None
    requeue_id: int | None
    before: Any
    """What was changed: a payload, a definition."""
    after: Any


class Which(TypedDict, total=False):
    """Which acts; what isn't given doesn't matter."""

    by: str | None
    action: str | None
    job: int | None
    """That a payload of this job was changed, or a schedule's job enqueued by hand."""
    requeue: int | None
    """What was sent back over time, by its number."""
    before: int | None
    """An act's id: those before it."""
    limit: int


Acts = list[Act]  # within Audit, list is its method


class Audit:
    """What operators of a queue did: ``queue.audit``."""

    def __init__(self, queue: Asked) -> None:
        self._queue = queue

    def list(self, *, connection: Borrowed | None = None, **which: Unpack[Which]) -> Acts:
        """List what was done, newest first, a page before a known id."""
        return self._queue.ask(self._list(which), connection)

    async def list_async(self, *, connection: AsyncBorrowed | None = None, **which: Unpack[Which]) -> Acts:
        """List what was done, from async code; see :meth:`list`."""
        return await self._queue.ask_async(self._list(which), connection)

    def _list(self, which: Which) -> Statement[Act]:
        given: dict[str, Any] = dict.fromkeys(Which.__annotations__) | {"limit": 50, **which}
        for name in given.keys() - Which.__annotations__.keys():
            raise unknown(name, Which.__annotations__)
        for name in ("by", "action"):
            store.said(given[name], name)
        return lenient("list_audit", self._queue.schema, known(Act), **given)


def signed(by: str, reason: str) -> dict[str, str | None]:
    """Give who does it, and why, as parameters; who isn't named is the user of this process.

    Raises:
        InvalidOption: when one can't be stored.
    """
    return {"who": store.remark(by, "by") or operator() or None, "why": store.remark(reason, "reason")}


def operator() -> str:
    """Name the user of this process; empty where the account has no name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def begin(
    schema: str, action: str, what: Mapping[str, Any], *, by: str = "", reason: str = "", moved: int = 0
) -> Statement[Any]:
    """Note an act of several statements; gives the row's id, for :func:`count`."""
    given = {"action": action, "filter": json.dumps(what, ensure_ascii=False), "moved": moved, **signed(by, reason)}
    return named("write_audit", schema, **given)


def count(schema: str, act: int, moved: int, skipped: int = 0) -> Statement[Any]:
    """Say to how many it has been done by now, and how many were in another state."""
    return named("count_audit", schema, id=act, moved=moved, skipped=skipped)
