"""The sign of life: one row a process, from a thread and a connection of its own.

A blocked event loop or a busy interpreter must not look like death, and a heartbeat that works must not hide a loop
that is stuck: the row says so. What needs the same independence turns here too: cancel requests, leases of long runs.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import string
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from redrive.events import LoopBlocked, emit
from redrive.service import Database, Service
from redrive.statements import named

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from redrive.connections import Control
    from redrive.job import ClaimedJob
    from redrive.settings import Settings

LOOK_EVERY = 0.5
LOOK_AFTER = 0.5
RENEW_AFTER = 120.0
RENEW_EVERY = 30.0
BLOCKED_AFTER = 2.0
STUCK_AFTER = 30.0
"""Seconds after which a round of this has no end any more: longer than any timeout of a connection."""
_ALPHABET = string.digits + string.ascii_lowercase
QUICK = 0.1
"""Seconds within which a beat is answered whose word for the time is taken."""


class Heartbeat(Service):
    """Says that this worker lives, and hears what operators want of its jobs."""

    name = "heartbeat"

    def __init__(
        self,
        database: Database,
        control: Control,
        settings: Settings,
        *,
        worker: str,
        version: str,
        kinds: Sequence[str],
        running: Callable[[], list[ClaimedJob]],
        in_flight: Callable[[], int],
        listener_pid: Callable[[], int | None],
        complaints: Callable[[], str],
        cancel: Callable[[int], None],
        lose: Callable[[ClaimedJob], None],
        give_up: Callable[[], None],
        clock: Callable[[float], None] = lambda _ahead: None,
        main_loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(database)
        # After an outage every living worker must be heard before another has gathered a lease of evidence.
        self.longest_pause = min(self.longest_pause, settings.beat_every / 2)
        self.evidence_since = 0.0
        """Since when every beat has been answered in time, monotonic seconds; 0 for not at all. Who has been away
        himself, or whose server has, is no judge of the others' silence."""
        self.next_silent = float("inf")
        """When the next of the other workers will have been silent for its lease, monotonic seconds."""
        self.beats = 0
        self._control = control
        self._settings = settings
        self._facts = {"name": worker, "host": socket.gethostname(), "pid": os.getpid(), "version": version}
        self._kinds = list(kinds)
        self._running = running
        self._in_flight = in_flight
        self._listener_pid = listener_pid
        self._complaints = complaints
        self._cancel = cancel
        self._lose = lose
        self._give_up = give_up
        self._clock = clock
        self._skew: float | None = None
        self._server_ahead: float | None = None
        self._broken = False
        self._main_loop = main_loop
        self._main_thread = threading.get_ident()
        self._beat_at = 0.0
        self._said_pid: int | None = None
        self._complained = False
        self._answered_at = 0.0
        self._renewed_at = 0.0
        self._pulse = self._pulse_asked = time.monotonic()
        self._blocked = False

    async def tick(self) -> float:
        """Beat when it is time; look after the running jobs in between."""
        self._feel_pulse()
        now = time.monotonic()
        # Peers wake by the row, and now they can; and what operators look at is not as old as a beat.
        news = self._listener_pid() != self._said_pid or bool(self._complaints()) is not self._complained
        if now >= self._beat_at or news:
            await self._beat()
        long_running = [job for job in self._running() if job.started and now - job.started > LOOK_AFTER]
        if long_running:
            await self._look_after(long_running, now)
        until_beat = max(0.0, self._beat_at - time.monotonic())
        return min(until_beat, LOOK_EVERY)

    async def _beat(self) -> None:
        settings = self._settings
        started, listener_pid, complaints = time.monotonic(), self._listener_pid(), self._complaints()
        try:
            [row] = await self._control.run(
                named(
                    "beat",
                    self._control.schema,
                    **self._facts,
                    kinds=self._kinds,
                    app_version=settings.app_version or None,
                    concurrency=settings.concurrency,
                    in_flight=self._in_flight(),
                    lease=settings.lease,
                    listener_pid=listener_pid,
                    problem=complaints or None,
                    clock_skew=self._skew,
                ),
                timeout=max(1.0, settings.beat_every),
            )
        except BaseException:
            self.evidence_since = 0.0
            raise
        now = time.monotonic()
        jumped = self._compare_clocks(row, now - started)
        if self._answered_at and now - self._answered_at > settings.lease * 2 / 3:
            # Taken for dead meanwhile, perhaps, and this beat would hide it from what was claimed before.
            self._broken = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, and so will this thread
                self._main_loop.call_soon_threadsafe(self._begin_anew)
        # Late or slow by more than a beat: frozen, cut off, or the server was; begin to gather evidence anew. So too
        # where the server's clock has jumped: what the others said last looks older than it is.
        if jumped or not self.evidence_since or now - self._answered_at > 2 * settings.beat_every + 1.0:
            self.evidence_since = now
        self._answered_at = now
        self.next_silent = now + row.next_silent if row.next_silent is not None else float("inf")
        self._beat_at, self._said_pid = started + settings.beat_every, listener_pid
        self._complained = bool(complaints)
        self.beats += 1

    def _compare_clocks(self, row: Any, took: float) -> bool:
        """Learn the database's time, as of the middle of the beat; a slow one tells less than what is known.

        Tells whether it has jumped ahead since the last beat, by half a lease or more: a step of the server's clock, or
        a machine that was stopped and went on.
        """
        if self._skew is None or took < QUICK:
            self._clock(row.clock - (time.monotonic() - took / 2))
            self._skew = time.time() - took / 2 - row.server_clock
        before, self._server_ahead = self._server_ahead, row.clock - time.monotonic() + took / 2
        return before is not None and self._server_ahead - before > self._settings.lease / 2

    async def _look_after(self, jobs: list[ClaimedJob], now: float) -> None:
        schema, worker = self._control.schema, self._facts["name"]
        params: dict[str, Any] = {"ids": [job.id for job in jobs], "worker": worker}
        asked = named("cancel_requests", schema, claims=[job.claim for job in jobs], **params)
        # The jobs may be locked, and behind a pooler there is no lock_timeout; the next beat must not wait for that.
        found = {row.id: row for row in await self._control.run(asked, timeout=max(0.5, self._settings.beat_every / 2))}
        for job in jobs:
            row = found.get(job.id)
            if row is None:
                continue
            if row.cancelled:
                self._main_loop.call_soon_threadsafe(self._cancel, job.id)
            elif row.lost and not job.completed:
                job.lost = True
                self._main_loop.call_soon_threadsafe(self._lose, job)
        if now - self._renewed_at > RENEW_EVERY and any(now - job.started > RENEW_AFTER for job in jobs):
            self._renewed_at = now
            await self._control.run(named("renew_leases", schema, **params))

    def _feel_pulse(self) -> None:
        """Ask the event loop for a sign and see how old the last one is."""
        if self._pulse >= self._pulse_asked:
            self._blocked = False
            self._pulse_asked = time.monotonic()
            try:
                self._main_loop.call_soon_threadsafe(self._sign)
            except RuntimeError:  # the loop has ended, and so will this thread
                return
            return
        late = time.monotonic() - self._pulse_asked
        if late > BLOCKED_AFTER and not self._blocked:
            self._blocked = True
            emit(LoopBlocked(worker=str(self._facts["name"]), duration=late, stack=_where(self._main_thread)))

    @property
    def fresh(self) -> bool:
        """Whether the last beat is young enough for this worker to take on more."""
        unbroken = bool(self.beats) and not self._broken
        return unbroken and time.monotonic() - self._answered_at < self._settings.lease * 2 / 3

    @property
    def turning(self) -> bool:
        """Whether this goes on, answered or not: a database that is away is no fault of the worker's."""
        return time.monotonic() - self.rounded < STUCK_AFTER

    @property
    def loop_blocked(self) -> bool:
        """Whether the event loop has not turned for a while: a handler blocks it."""
        return self._blocked

    def _begin_anew(self) -> None:
        self._give_up()
        self._broken = False

    def _sign(self) -> None:
        self._pulse = time.monotonic()


def _where(thread: int) -> str:
    """Name the line of Python at which *thread* is."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - the only way to see it
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}" if frame else ""


def worker_name() -> str:
    """Make a name: host, process and boot, short because every claim writes it."""
    boot = "".join(secrets.choice(_ALPHABET) for _ in range(6))
    return f"{socket.gethostname()[:16].replace(':', '-')}:{os.getpid()}:{boot}"
