"""When to stop calling a service that is down: what a handler says of it, and what one worker has seen of one target.

Nothing here knows a database or what a job is. The state of a breaker is in the table, for all workers; this is how one
of them comes to ask for it to be opened.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from redrive.classify import Finding
from redrive.errors import InvalidOption

LATEST = 20
"""Of so many of the latest calls the share of outages is taken."""
MOST_PEAK = 100.0
LONGEST = 10 * 365 * 86_400.0

Classifier = Callable[[BaseException], bool | float | None]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, kw_only=True)
class Breaker:
    """When calls to a service are held back, how it is probed, and how the backlog is let out again."""

    failures: int = 3
    """So many different jobs must have failed by what looks like an outage; where the handler names its target, so many
    tries."""
    share: float = 0.5
    """And so large a share of the latest 20 calls."""
    window: float = 300.0
    """Seconds after which a failure is forgotten."""
    probe_every: float = 5.0
    """Seconds until the first probe, and until the second; from there on each waits twice as long."""
    probe_longest: float = 60.0
    """The longest wait between two probes, in seconds."""
    peak: float = 2.0
    """After the outage at most so many times the usual rate is let out."""
    give_up: float | None = 86_400.0
    """Seconds of an outage after which a failure is an attempt again, so that the jobs end dead and are seen; None for
    never."""
    outage: Classifier | None = None
    """Looks at an error first: True or False settles it, seconds (an hour at most) say how long the service asks to be
    left alone, None leaves it to others. The same as a handler's ``classify=``, where only outages matter."""

    def __post_init__(self) -> None:
        """Check.

        Raises:
            InvalidOption: naming the value and the remedy.
        """
        if isinstance(self.failures, bool) or not isinstance(self.failures, int) or not 1 <= self.failures <= LATEST:
            raise InvalidOption(f"failures is {self.failures!r}: must be a whole number from 1 to {LATEST}")
        if not _number(self.share) or not 0 < self.share <= 1:
            raise InvalidOption(f"share is {self.share!r}: must be more than 0 and at most 1")
        if not _number(self.peak) or not 1 < self.peak <= MOST_PEAK:
            raise InvalidOption(f"peak is {self.peak!r}: must be more than 1, else a backlog would never get less")
        for name in ("window", "probe_every", "probe_longest", "give_up"):
            value = getattr(self, name)
            if (value is not None or name != "give_up") and not (_number(value) and 0 < value <= LONGEST):
                raise InvalidOption(f"{name} is {value!r}: must be a number of seconds, more than 0")
        if self.probe_every > self.probe_longest:
            raise InvalidOption(
                f"probe_every is {self.probe_every:g} s: must be at most probe_longest, {self.probe_longest:g} s"
            )
        if self.outage is not None and not callable(self.outage):
            raise InvalidOption(f"outage is {self.outage!r:.80}: give a function from an error to True, False or None")

    def classify(self, error: BaseException) -> Finding | None:
        """Say in the words of :mod:`redrive.classify` what *outage* says of *error*."""
        said = None if self.outage is None else self.outage(error)
        if said is None:
            return None
        if isinstance(said, bool) or not _number(said):
            return Finding("outage" if said else "retryable")
        return Finding("outage", float(said))

    def enough(self, failed: Sequence[int], *, each_job_once: bool) -> bool:
        """Whether so many tries, each told by its job, are an outage."""
        return (len(set(failed)) if each_job_once else len(failed)) >= self.failures


DEFAULT = Breaker()


def breaker(value: Any) -> Breaker | None:
    """Read a handler's ``breaker=``: True for the usual one, False for none, or one of its own.

    Raises:
        InvalidOption: when it is something else.
    """
    if isinstance(value, Breaker):
        return value
    if not isinstance(value, bool):
        raise InvalidOption(f"breaker is {value!r:.80}: give True, False or a redrive.Breaker(...)")
    return DEFAULT if value else None


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Outages that one worker met, too few to open a breaker: others may have met the rest."""

    failed: list[int]
    """The job of each try."""
    fingerprint: str
    error: str


@dataclass(slots=True)
class Gauge:
    """The latest calls of one worker to one target, since the first that failed."""

    calls: deque[tuple[float, int | None]] = field(default_factory=lambda: deque(maxlen=LATEST))
    """When, in monotonic seconds, and for which job, where it failed."""

    def count(self, failed: int | None, now: float) -> None:
        """Count a call: *failed* is the id of the job whose call met the outage, or None for one that was answered."""
        self.calls.append((now, failed))

    def failed(self, limits: Breaker, now: float) -> list[int]:
        """List the jobs of the calls that failed; none where so many were answered that it is no outage."""
        since = now - limits.window
        calls = [job for when, job in self.calls if when >= since]
        failed = [job for job in calls if job is not None]
        return failed if len(failed) >= limits.share * len(calls) else []

    def stale(self, limits: Breaker, now: float) -> bool:
        """Whether there is nothing left to be remembered."""
        since = now - limits.window
        return all(job is None or when < since for when, job in self.calls)
