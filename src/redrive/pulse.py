"""A thread with an event loop of its own, for the services that must turn when the main loop doesn't."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redrive.service import Service


class Pulse:
    """Runs *services* in a daemon thread until it is stopped."""

    def __init__(self, services: Sequence[Service], at_end: Callable[[], None]) -> None:
        self._services = services
        self._at_end = at_end
        self._lock = threading.Lock()
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._turn()), name="redrive-pulse", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self, service: Service) -> None:
        """Begin the next round of one of the services. Safe from any thread."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(service.wake)

    async def stop(self, timeout: float = 2.0) -> None:  # noqa: ASYNC109 - the thread's, which no scope can cancel
        """Stop the services and wait for the thread, *timeout* seconds at most. May be called twice."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                if self._loop is not None and self._end is not None:
                    self._loop.call_soon_threadsafe(self._end.set)
        await asyncio.to_thread(self._thread.join, timeout)

    async def _turn(self) -> None:
        end = asyncio.Event()
        with self._lock:
            self._loop, self._end = asyncio.get_running_loop(), end
            if self._stopped:
                end.set()
        running = [asyncio.create_task(service.run(end), name=f"redrive {service.name}") for service in self._services]
        try:
            await end.wait()
            for service in self._services:
                service.wake()
            if running:
                await asyncio.wait(running, timeout=1.0)
                for task in running:
                    task.cancel()
                await asyncio.wait(running, timeout=1.0)
        finally:
            with self._lock:
                self._loop = None
            self._at_end()
