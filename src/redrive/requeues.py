"""Sending back: at once, or over time with a canary first. What takes its time is a row, and any worker advances it.

Which jobs is said by :class:`redrive.ended.Ended`; those that came into another state meanwhile are left alone and
counted. The workers' part is :mod:`redrive.requeuer`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from redrive import ended, store
from redrive.audit import count, signed
from redrive.drivers import AsyncBorrowed, Borrowed
from redrive.ended import Ended
from redrive.errors import InvalidOption, UnknownRequeue
from redrive.payload import encode
from redrive.statements import Statement, Steps, afollow, follow, known, lenient, named
from redrive.typed import dump

if TYPE_CHECKING:
    from redrive.schedules import Desk

ACTIVE = ("waiting", "canary", "running")
RATES = (1e-6, 1e6)


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What would be sent back."""

    jobs: int
    first: datetime | None
    """When the first of them ended; *last* is when the last did."""
    last: datetime | None
    sample: list[int]
    last_id: int
    now: datetime
    most: int | None
    """Where the count ended, if it did not go on to the last."""

    @property
    def counted(self) -> str:
        """The number, with a + where there are more than were counted."""
        return f"{self.most:,}+" if self.most is not None and self.jobs > self.most else f"{self.jobs:,}"


@dataclass(frozen=True, kw_only=True)
class Requeue:
    """Jobs that are being sent back over time, or were."""

    id: int
    filter: Any
    rate: float | None
    """Jobs a second; None as quick as it goes."""
    canary: bool
    by: str | None
    reason: str | None
    status: str
    """waiting (for a worker), canary (one was sent), running, done, stopped or failed."""
    why: str | None
    """Why it was stopped or failed."""
    matched: int | None
    """How many there were at the start."""
    moved: int
    skipped: int
    """Came into another state before their turn; known when it is done."""
    canary_id: int | None
    canary_at: datetime | None
    after_id: int
    rounds: int
    started_at: datetime
    advanced_at: datetime | None
    ended_at: datetime | None

    @property
    def active(self) -> bool:
        """Whether it goes on."""
        return self.status in ACTIVE

    @property
    def left(self) -> int:
        """How many have not had their turn; those in another state are known at the end only."""
        return max(0, (self.matched or 0) - self.moved - self.skipped)


Rows = list[Requeue]  # within Requeues, list is its method
Ids = list[int]


class Requeues:
    """Sending back, of a queue: ``queue.requeues``. Each method has its twin for async code, ``..._async``."""

    def __init__(self, queue: Desk) -> None:
        self._queue = queue

    def preview(self, which: Ended, *, most: int | None = None, connection: Borrowed | None = None) -> Preview:
        """Count what *which* means, with a sample; up to *most*, where that is given.

        Raises:
            InvalidOption: for a filter that makes no sense.
        """
        return follow(self._queue.ask, self._preview(which, most), connection)

    async def preview_async(
        self, which: Ended, *, most: int | None = None, connection: AsyncBorrowed | None = None
    ) -> Preview:
        """Count what *which* means, from async code; see :meth:`preview`."""
        return await afollow(self._queue.ask_async, self._preview(which, most), connection)

    def now(
        self,
        which: Ended,
        *,
        by: str = "",
        reason: str = "",
        connection: Borrowed | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> Ids:
        """Send back at once, in guarded batches of a thousand; lists those that moved."""
        return follow(self._queue.ask, self._now(which, by, reason, on_batch), connection)

    async def now_async(
        self,
        which: Ended,
        *,
        by: str = "",
        reason: str = "",
        connection: AsyncBorrowed | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> Ids:
        """Send back at once, from async code; see :meth:`now`."""
        return await afollow(self._queue.ask_async, self._now(which, by, reason, on_batch), connection)

    def start(
        self,
        which: Ended,
        *,
        by: str = "",
        reason: str = "",
        canary: bool = True,
        rate: float | None = None,
        connection: Borrowed | None = None,
    ) -> Requeue:
        """Have the workers send back what *which* means now, and is still so when its turn comes.

        Args:
            which: the dead jobs that are meant.
            by: who; the user of this process without it.
            reason: why.
            canary: send one and wait for its outcome; go on only if it succeeds at its first try.
            rate: jobs a second; as quick as it goes without it.
            connection: the caller's, in whose transaction it is written.

        Raises:
            InvalidOption: for a filter or rate that makes no sense, or when no job is meant.
        """
        return follow(self._queue.ask, self._start(which, by, reason, rate, canary=canary), connection)

    async def start_async(
        self,
        which: Ended,
        *,
        by: str = "",
        reason: str = "",
        canary: bool = True,
        rate: float | None = None,
        connection: AsyncBorrowed | None = None,
    ) -> Requeue:
        """Have the workers send back, from async code; see :meth:`start`."""
        return await afollow(self._queue.ask_async, self._start(which, by, reason, rate, canary=canary), connection)

    def list(self, *, active: bool = False, limit: int = 50, connection: Borrowed | None = None) -> Rows:
        """List what is and was sent back over time, newest first; with *active*, what goes on."""
        return self._queue.ask(self._list(None, limit, active=active), connection)

    async def list_async(
        self, *, active: bool = False, limit: int = 50, connection: AsyncBorrowed | None = None
    ) -> Rows:
        """List what is and was sent back, from async code; see :meth:`list`."""
        return await self._queue.ask_async(self._list(None, limit, active=active), connection)

    def get(self, requeue_id: int, *, connection: Borrowed | None = None) -> Requeue:
        """Fetch one.

        Raises:
            UnknownRequeue: when there is none of that number.
        """
        return follow(self._queue.ask, self._get(requeue_id), connection)

    async def get_async(self, requeue_id: int, *, connection: AsyncBorrowed | None = None) -> Requeue:
        """Fetch one, from async code; see :meth:`get`."""
        return await afollow(self._queue.ask_async, self._get(requeue_id), connection)

    def stop(self, requeue_id: int, *, by: str = "", reason: str = "", connection: Borrowed | None = None) -> Requeue:
        """Send no more back; what was sent stays so. One that has ended is left as it is.

        Raises:
            UnknownRequeue: when there is none of that number.
        """
        return follow(self._queue.ask, self._stop(requeue_id, by, reason), connection)

    async def stop_async(
        self, requeue_id: int, *, by: str = "", reason: str = "", connection: AsyncBorrowed | None = None
    ) -> Requeue:
        """Send no more back, from async code; see :meth:`stop`."""
        return await afollow(self._queue.ask_async, self._stop(requeue_id, by, reason), connection)

    def edit(
        self,
        job_id: int,
        payload: Any,
        *,
        send: bool = True,
        by: str = "",
        reason: str = "",
        connection: Borrowed | None = None,
    ) -> bool:
        """Give a dead or failed job another payload, and with *send* send it back; what it was is kept in the audit.

        Gives whether it was still dead or failed. A handler of its kind that this queue knows has to take the payload.

        Raises:
            InvalidPayload: for one that can't be stored, or that the handler doesn't take.
        """
        return follow(self._queue.ask, self._edit(job_id, payload, by, reason, send=send), connection)

    async def edit_async(
        self,
        job_id: int,
        payload: Any,
        *,
        send: bool = True,
        by: str = "",
        reason: str = "",
        connection: AsyncBorrowed | None = None,
    ) -> bool:
        """Give a job another payload, from async code; see :meth:`edit`."""
        return await afollow(self._queue.ask_async, self._edit(job_id, payload, by, reason, send=send), connection)

    # -- how

    def _preview(self, which: Ended, most: int | None) -> Steps[Preview]:
        more = None if most is None else most + 1
        [row] = yield ended.requeue_preview(self._queue.schema, which, most=more)
        return Preview(**row._asdict() | {"sample": row.sample or []}, most=most)

    def _now(self, which: Ended, by: str, reason: str, on_batch: Callable[[int], None] | None) -> Steps[Ids]:
        schema = self._queue.schema
        preview = yield from self._preview(which, None)
        moved: Ids = []
        after, act, more = ended.FIRST, None, True
        while more:
            statement = ended.requeue(schema, which, after=after, last=preview.last_id, act=act, by=by, reason=reason)
            [batch] = yield statement
            after, act, more = batch.after_id, batch.audit, batch.more
            if batch.ids:
                moved += batch.ids
                yield named("wake", schema)
                if on_batch:
                    on_batch(len(batch.ids))
        if act is not None and len(moved) < preview.jobs:
            yield count(schema, act, len(moved), preview.jobs - len(moved))
        return moved

    def _start(self, which: Ended, by: str, reason: str, rate: float | None, *, canary: bool) -> Steps[Requeue]:
        given = {"filter": which.written(), "rate": checked_rate(rate), "canary": bool(canary), **signed(by, reason)}
        preview = yield from self._preview(which, None)
        if not preview.jobs:
            raise InvalidOption("no job is meant by that filter: there is nothing to send back")
        times = {"matched": preview.jobs, "started_at": preview.now}
        [made] = yield lenient("start_requeue", self._queue.schema, known(Requeue), **given, **times)
        return made  # type: ignore[no-any-return] # the rows of the statement just yielded

    def _list(self, requeue_id: int | None, limit: int, *, active: bool) -> Statement[Requeue]:
        how = {"id": requeue_id, "limit": limit, "active": active}
        return lenient("list_requeues", self._queue.schema, known(Requeue), **how)

    def _get(self, requeue_id: int) -> Steps[Requeue]:
        if rows := (yield self._list(requeue_id, 1, active=False)):
            return rows[0]  # type: ignore[no-any-return] # as above
        raise UnknownRequeue(f"nothing was sent back under the number {requeue_id}; see `redrive requeues list`")

    def _stop(self, requeue_id: int, by: str, reason: str) -> Steps[Requeue]:
        said = signed(by, reason)
        found = yield from self._get(requeue_id)
        why = f"stopped by {said['who'] or 'somebody'}" + (f": {said['why']}" if said["why"] else "")
        rows = yield end(self._queue.schema, found.id, "stopped", why=why, by=said["who"])
        return rows[0] if rows else (yield from self._get(requeue_id))

    def _edit(self, job_id: int, payload: Any, by: str, reason: str, *, send: bool) -> Steps[bool]:
        schema, data = self._queue.schema, {} if payload is None else dump(payload)
        given = {"id": job_id, "payload": encode(data), "send": send, **signed(by, reason)}
        for job in (yield store.get(schema, job_id)):
            if (handler := self._queue.handlers.get(job.kind)) is not None:
                handler.demand(data)
        edited = yield named("edit_payload", schema, **given)
        if edited and send:
            yield named("wake", schema)
        return bool(edited)


def end(
    schema: str,
    requeue_id: int,
    status: str,
    *,
    why: str | None = None,
    by: str | None = None,
    seen: str | None = None,
) -> Statement[Requeue]:
    """End one, with its row in the audit; no row in the answer where it has ended, or isn't as it was *seen*."""
    how = {"id": requeue_id, "status": status, "why": why, "by": by, "seen": seen}
    return lenient("end_requeue", schema, known(Requeue), **how)


def checked_rate(rate: Any) -> float | None:
    """Check a rate.

    Raises:
        InvalidOption: naming the value and the remedy.
    """
    if rate is None:
        return None
    number = isinstance(rate, int | float) and not isinstance(rate, bool) and math.isfinite(rate)
    if not number or not RATES[0] <= rate <= RATES[1]:
        raise InvalidOption(f"rate is {rate!r}: must be jobs a second over 0, such as 50 or 0.5, and at most 1000000")
    return float(rate)


def changed(payload: Any, path: str, value: Any) -> Any:
    """Give a payload with another *value* at *path*, as in ``to`` or ``items.0.sku``; the rest is shared.

    Raises:
        InvalidOption: when the path leads nowhere.
    """
    store.said(path, "path")
    name, _, rest = path.partition(".")
    if isinstance(payload, list) and name.isdecimal() and int(name) < len(payload):
        place = int(name)
        inner = changed(payload[place], rest, value) if rest else value
        return [*payload[:place], inner, *payload[place + 1 :]]
    if isinstance(payload, dict) and name and (not rest or name in payload):
        return {**payload, name: changed(payload[name], rest, value) if rest else value}
    there = f"an object with {', '.join(map(str, payload)) or 'nothing'}" if isinstance(payload, dict) else "no object"
    raise InvalidOption(f"path {path!r} leads nowhere: there is {there}; write it as in to, user.name or items.0.sku")


def loaded(text: str) -> Any:
    """Read a payload as JSON.

    Raises:
        InvalidOption: saying where it is wrong.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidOption(f"the payload is no JSON: {error}") from None
