"""The loop that every part of a worker turns in, written once.

A part is a :class:`Service` with a ``tick``; it never ends by an error. What the loop does with one is decided here: a
database that is away is waited for with a capped back-off and one line per change of state, anything else is told once
and tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING

from redrive.connections import is_outage, is_transient
from redrive.events import ConnectionLost, ConnectionRestored, TickFailed, emit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LONGEST_PAUSE = 5.0
ENDS_WITHIN = 1.5
"""Seconds that a service gets to end its round when it is told to stop."""
FOR_EVER = 3600.0


class Database:
    """What the loops of one worker know together of the database: whether it is away, and since when."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.away_since = 0.0
        """Monotonic seconds; 0 while the database answers."""
        self.outages = 0
        """How often it has gone away."""
        self.error = ""
        self.on_lost: Callable[[], object] = lambda: None
        """Told of each time, in the thread of whoever noticed."""
        self._missed_by: dict[str, Callable[[], object]] = {}

    def lost(self, by: str, error: BaseException, wake: Callable[[], object] = lambda: None) -> None:
        """Note that *by* got no answer; the first to miss it tells. *wake* is called when another part gets one."""
        self.error = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if not self._missed_by:
            self.away_since = time.monotonic()
            self.outages += 1
            emit(ConnectionLost(worker=self.worker, what=by, error=self.error))
            self.on_lost()
        self._missed_by[by] = wake

    def answered(self, by: str) -> None:
        """Note that *by* got an answer; the last that had missed it tells, and nobody waits his pause out."""
        if self._missed_by.pop(by, None) is not None:
            for wake in list(self._missed_by.values()):
                wake()
            if not self._missed_by:
                away = time.monotonic() - self.away_since
                self.away_since = 0.0
                emit(ConnectionRestored(worker=self.worker, what=by, away=away))


class Service:
    """One part of a worker: subclasses write ``tick`` and nothing else."""

    name = "service"
    longest_pause = LONGEST_PAUSE
    """Seconds between two tries while the database is away."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.turned = time.monotonic()
        """When the last tick ended well, monotonic seconds."""
        self.rounded = self.turned
        """When the last tick ended, well or not."""
        self.due_by = FOR_EVER
        """The pause that the last tick asked for: a loop is stuck when it is much later than that."""
        self.trouble = ""
        """What the last tick failed with; empty while all is well."""
        self.remark = ""
        """What it came upon that somebody has to mend, and no restart would: the loop itself is well."""
        self._wake = asyncio.Event()
        self._failures = 0
        self._told = ""

    async def tick(self) -> float:
        """Do one round and give the seconds until the next, unless woken before."""
        raise NotImplementedError

    def wake(self) -> None:
        """Begin the next round now. To be called in the service's own event loop."""
        self._wake.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Turn until *stopping* is set; whoever sets it wakes the service."""
        while not stopping.is_set():
            self._wake.clear()
            pause = await self._round(self.tick)
            self.rounded = time.monotonic()
            if pause > 0 and not stopping.is_set():
                await self._sleep(pause)

    async def _round(self, tick: Callable[[], Awaitable[float]]) -> float:
        try:
            pause = await tick()
        except Exception as error:  # noqa: BLE001 - the loop outlives everything but a cancellation
            return self._failed(error)
        if self._failures:
            self._failures, self.trouble, self._told = 0, "", ""
            self.database.answered(self.name)
        self.turned, self.due_by = time.monotonic(), pause
        return pause

    def _failed(self, error: Exception) -> float:
        self._failures += 1
        said = f"{type(error).__name__}: {str(error).strip()}"
        if is_outage(error):
            self.database.lost(self.name, error, self._waker())
        elif said != self._told and (self._failures > 3 or not is_transient(error)):  # noqa: PLR2004 - a collision or three are business as usual
            emit(TickFailed(worker=self.database.worker, service=self.name, error=said))
            self._told = said
        self.trouble = said
        if is_transient(error) and self._failures <= 3:  # noqa: PLR2004
            return random.uniform(0.01, 0.05) * self._failures
        return float(min(self.longest_pause, 0.1 * 2 ** min(self._failures, 10)) * random.uniform(0.75, 1.0))

    def _waker(self) -> Callable[[], object]:
        """Give a wake() that other threads may call."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # that loop has ended
                loop.call_soon_threadsafe(self.wake)

        return wake

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass


class Turning:
    """A service that turns as a task, and its end."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stopping = asyncio.Event()
        self._task = asyncio.create_task(service.run(self._stopping), name=f"redrive {service.name}")

    async def end(self, patience: float = ENDS_WITHIN) -> None:
        """Let the service end its round, and cancel it where that takes too long."""
        self._stopping.set()
        self._service.wake()
        await asyncio.wait({self._task}, timeout=patience)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=1.0)
