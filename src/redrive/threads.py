"""Daemon threads for sync handlers, started when first needed.

Not an executor of the standard library: its threads are joined when the interpreter ends, so one hung handler would
keep a worker that was told to go.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

endings: list[Callable[[], None]] = []
"""What each thread calls at its end, to put away what belongs to it; none may raise."""


class Threads:
    """At most *most* threads that run what they are given, one thing at a time each."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._started = 0
        self._idle = threading.Semaphore(0)

    def submit(self, work: Callable[[], None]) -> None:
        """Run *work* in a thread; it must not raise."""
        if not self._idle.acquire(blocking=False) and self._started < self._most:
            self._started += 1
            threading.Thread(target=self._run, name=f"{self._name}-{self._started}", daemon=True).start()
        self._work.put(work)

    def close(self) -> None:
        """Let idle threads end; a busy one ends after its work, or with the process."""
        for _ in range(self._started):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            self._idle.release()
        for put_away in endings:
            put_away()
