"""What systemd is told of a worker: ready, stopping, and at each turn of its watchdog that it is alive.

The protocol is a datagram to the socket that NOTIFY_SOCKET names. Where it names none, nothing is said, and what can't
be said is no reason to stop working.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING, Protocol

from redrive.events import Event, WorkerStarted, WorkerStopping, subscribe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

EVERY = 10.0
"""Seconds between two words where there is no watchdog."""
_MICROSECONDS = 1e6

_log = logging.getLogger("redrive")


class Attended(Protocol):
    """A worker as its service manager sees it."""

    name: str

    def state(self) -> str:
        """Say in a line what it is at."""

    def turns(self) -> bool:
        """Whether what keeps it alive goes on: the sign of life, beside the event loop that asks this."""


class Manager:
    """The service manager, if there is one."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._socket: socket.socket | None = None
        limit = environment.get("WATCHDOG_USEC", "")
        # The watchdog is for one process, which need not be this one.
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog = int(limit) / _MICROSECONDS if ours and limit.isdecimal() and int(limit) else None
        """Seconds of silence after which the manager ends this process; None where it doesn't."""

    @property
    def there(self) -> bool:
        """Whether anybody listens."""
        return bool(self._address)

    @property
    def every(self) -> float:
        """Seconds between two words: half of what the watchdog allows."""
        return EVERY if self.watchdog is None else min(EVERY, self.watchdog / 2)

    def say(self, *words: str) -> None:
        """Send one message; *words* are lines such as ``READY=1``."""
        if not self._address:
            return
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)  # noqa: FBT003 - its only parameter
            self._socket.sendto("\n".join(words).encode(errors="replace"), self._address)
        except OSError as error:
            _log.debug("the service manager at %s was not told %s: %s", self._address, words, error)

    def alive(self, state: str) -> None:
        """Say what this process is at, and that it is alive where the watchdog wants to know."""
        self.say(*(["WATCHDOG=1"] if self.watchdog is not None else []), f"STATUS={state}")

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()


@contextlib.asynccontextmanager
async def attended(worker: Attended, manager: Manager) -> AsyncIterator[None]:
    """Tell *manager* of *worker* while the block runs it, from the same event loop: a blocked one says nothing."""
    if not manager.there:
        yield
        return
    attendance = _Attendance(worker, manager)
    end = subscribe(attendance.heard, WorkerStarted, WorkerStopping)
    task = asyncio.create_task(attendance.run(), name="redrive notify")
    try:
        yield
    finally:
        end()
        task.cancel()
        await asyncio.wait({task})
        manager.close()


class _Attendance:
    def __init__(self, worker: Attended, manager: Manager) -> None:
        self._worker, self._manager = worker, manager
        self._started = False

    def heard(self, event: Event) -> None:
        if event.worker != self._worker.name:
            return
        if isinstance(event, WorkerStarted):
            self._started = True
            self._manager.say("READY=1", f"STATUS={self._worker.state()}")
        else:
            self._manager.say("STOPPING=1", "STATUS=waits for the jobs that run")

    async def run(self) -> None:
        while True:
            every = self._manager.every
            if not self._started:  # it waits for its database, which is no reason to start it anew
                more = int(3 * EVERY * _MICROSECONDS)
                self._manager.say(f"EXTEND_TIMEOUT_USEC={more}", f"STATUS={self._worker.state()}")
            elif self._worker.turns():
                self._manager.alive(self._worker.state())
            await asyncio.sleep(every)
