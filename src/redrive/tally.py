"""What one worker counts: outcomes, waits and run times, by minute and kind, in memory.

It counts what is written, a batch at a time, since jobs end by the ten thousand a second. It knows no database: the
recorder takes the minutes from here, and whoever measures reads the sums. Safe between the threads of a worker.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redrive.events import (
    JobDied,
    JobEvent,
    JobFailed,
    JobHandedBack,
    JobHeld,
    JobReclaimed,
    JobRetried,
    JobSnoozed,
    JobSucceeded,
)
from redrive.histogram import PLACES, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redrive.outcome import Finished

OUTCOMES = ("succeeded", "retried", "failed", "died", "snoozed", "handed_back", "reclaimed")
"""As what a job can be counted, each a column of ``stats``."""
COUNTED_AS: dict[type[JobEvent], str] = dict(
    zip((JobSucceeded, JobRetried, JobFailed, JobDied, JobSnoozed, JobHandedBack, JobReclaimed), OUTCOMES, strict=True)
) | {JobHeld: "retried"}
MINUTE = 60
MANY = 2000
_ABSURD = 1e9
"""Seconds of waiting, over 30 years: not a wait, but a run_at such as -infinity."""


@dataclass(slots=True)
class Count:
    """What was counted of a kind."""

    succeeded: int = 0
    retried: int = 0
    failed: int = 0
    died: int = 0
    snoozed: int = 0
    handed_back: int = 0
    reclaimed: int = 0
    ran: int = 0
    wait_seconds: float = 0.0
    run_seconds: float = 0.0
    waits: list[int] = field(default_factory=lambda: [0] * PLACES)
    runs: list[int] = field(default_factory=lambda: [0] * PLACES)
    kept: bool = False
    """Whether the database has it as it is."""
    new_waits: list[float] = field(default_factory=list)
    new_runs: list[float] = field(default_factory=list)
    """What is not in the sums and histograms yet: many at once are quicker to count."""

    def settle(self) -> None:
        """Bring what is new into the sums and histograms."""
        waits, runs = self.new_waits, self.new_runs
        self.new_waits, self.new_runs = [], []
        waits.sort()
        runs.sort()
        if waits and (waits[0] < 0 or waits[-1] > _ABSURD):
            waits = sorted([wait if 0 <= wait <= _ABSURD else 0.0 for wait in waits])
        self.ran += len(runs)
        self.wait_seconds += sum(waits)
        self.run_seconds += sum(runs)
        spread(waits, self.waits)
        spread(runs, self.runs)

    def add(self, other: Count) -> None:
        """Add what another counted."""
        other.settle()
        for name in (*OUTCOMES, "ran", "wait_seconds", "run_seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.waits = [a + b for a, b in zip(self.waits, other.waits, strict=True)]
        self.runs = [a + b for a, b in zip(self.runs, other.runs, strict=True)]


_2000 = 946_684_800
"""From which Postgres counts, in seconds since 1970."""

Key = tuple[int, str]
"""A minute, counted from 1970, and a kind."""


class Tally:
    """Counts for one worker."""

    def __init__(self) -> None:
        self.ahead = time.time() - time.monotonic()
        self._minute = 0
        self._open: dict[Key, Count] = {}
        self._closed: dict[str, Count] = {}
        self._lock = threading.Lock()

    def set_clock(self, ahead: float) -> None:
        """Learn what the database's clock says, in seconds since 1970, beyond this process' monotonic one.

        Until the first heartbeat has asked it, this machine's own is taken.
        """
        self.ahead = ahead

    def succeeded(self, batch: Sequence[Finished]) -> None:
        """Count jobs that succeeded: most of all that there are, so this is paid for by the batch."""
        with self._lock:
            self._turn()
            ahead = self.ahead - _2000
            counts: dict[str, tuple[Count, int, Callable[[float], None], Callable[[float], None]]] = {}
            kind: str | None = None
            add_wait: Callable[[float], None]
            add_run: Callable[[float], None]
            add_wait = add_run = _nothing
            for one in batch:
                job = one.job
                if job.kind != kind:
                    kind = job.kind
                    if kind not in counts:
                        count = self._count(kind)
                        counts[kind] = count, len(count.new_runs), count.new_waits.append, count.new_runs.append
                    _, _, add_wait, add_run = counts[kind]
                if (ran := one.duration) is None:
                    counts[job.kind][0].succeeded += 1
                else:
                    add_wait(job.started + ahead - job.due * 1e-6)
                    add_run(ran)
            for count, before, _, _ in counts.values():
                count.succeeded += len(count.new_runs) - before
                if len(count.new_runs) > MANY:
                    count.settle()

    def ended(self, one: Finished, outcome: str) -> None:
        """Count a job by what became of it, one of :data:`OUTCOMES`."""
        with self._lock:
            self._turn()
            job, count = one.job, self._count(one.job.kind)
            setattr(count, outcome, getattr(count, outcome) + 1)
            if one.duration is not None:
                count.new_waits.append(job.started + self.ahead - _2000 - job.due * 1e-6)
                count.new_runs.append(one.duration)

    def count(self, kind: str, outcome: str) -> None:
        """Count an outcome of a job that did not run here."""
        with self._lock:
            self._turn()
            count = self._count(kind)
            setattr(count, outcome, getattr(count, outcome) + 1)

    def _turn(self) -> None:
        # Never back to a minute that is over, whatever a clock says: its row is written as a whole.
        self._minute = max(self._minute, int((time.monotonic() + self.ahead) // MINUTE))

    def _count(self, kind: str) -> Count:
        key = (self._minute, kind)
        count = self._open.get(key)
        if count is None:
            count = self._open[key] = Count()
        count.kept = False
        return count

    # -- readers

    def unkept(self) -> list[tuple[Key, Count]]:
        """Copy what the database has not as it is."""
        with self._lock:
            return [(key, _copy(count)) for key, count in self._open.items() if not count.kept]

    def keep(self, taken: Sequence[tuple[Key, Count]]) -> None:
        """Learn that the database has *taken*; what belongs to minutes that are over is not needed any more."""
        with self._lock:
            for key, copied in taken:
                count = self._open.get(key)
                if count is not None and _same(count, copied):
                    count.kept = True
            for key in [key for key, count in self._open.items() if count.kept and key[0] < self._minute]:
                self._closed.setdefault(key[1], Count()).add(self._open.pop(key))

    def totals(self) -> dict[str, Count]:
        """Sum up what was counted since the worker began, by kind."""
        with self._lock:
            whole = {kind: _copy(count) for kind, count in self._closed.items()}
            for (_, kind), count in self._open.items():
                whole.setdefault(kind, Count()).add(count)
        return whole


def _copy(count: Count) -> Count:
    copied = Count()
    copied.add(count)
    return copied


def _same(count: Count, copied: Count) -> bool:
    return all(getattr(count, name) == getattr(copied, name) for name in (*OUTCOMES, "ran"))


def _nothing(_value: float) -> None:
    """Stand in for where a value goes before the first job's kind is known."""
