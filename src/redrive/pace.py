"""How long jobs take, by kind, as far as a worker has seen; and how many may therefore wait beyond the free slots.

What is held is time, not a number: about 100 ms of work. Slow jobs hold nothing, so nobody hoards what others could do.
"""

from __future__ import annotations

import time

PREFETCH_SECONDS = 0.1
"""Work that is held beyond the free slots, by the measured duration of its kind."""
PREFETCH_MOST = 2000
STALE_AFTER = 0.5
"""Seconds without an end after which past durations say nothing, and a job that found no slot goes back to others."""
_WEIGHT = 0.1


class Pace:
    """The durations of one worker's jobs, as moving averages in seconds."""

    def __init__(self, concurrency: int) -> None:
        self.last_end = 0.0
        """When a job last ended, monotonic seconds."""
        self._work = concurrency * PREFETCH_SECONDS
        self._all: float | None = None
        self._of_kind: dict[str, float] = {}

    def measure(self, kind: str, seconds: float, ended: float) -> None:
        """Learn that a job of *kind* has ended, and how long it took."""
        self.last_end = ended
        before = seconds if self._all is None else self._all
        self._all = before + _WEIGHT * (seconds - before)
        before = self._of_kind.get(kind, seconds)
        self._of_kind[kind] = before + _WEIGHT * (seconds - before)

    @property
    def stale(self) -> bool:
        """Whether nothing has ended for a while."""
        return time.monotonic() - self.last_end > STALE_AFTER

    def ahead(self, kind: str = "") -> int:
        """How many jobs of *kind* (or of the usual mixture) may wait for a slot."""
        seconds = self._of_kind.get(kind) if kind else self._all
        return 0 if seconds is None else min(PREFETCH_MOST, int(self._work / max(seconds, 1e-6)))
