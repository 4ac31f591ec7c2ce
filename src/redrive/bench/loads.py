"""The work that is put before a worker under measure, and what the table says afterwards of how it went."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redrive.bench.subject import SubjectFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redrive.bench.scratch import Place
    from redrive.bench.subject import Subject

Tell = Callable[[float], None]
"""Told of progress, from 0 to 1."""

LOOKS = (0.005, 0.05)
"""Seconds between two looks at the table: at first, for runs that are soon over, and at most."""
STUCK = 60.0
"""Seconds without a claim after which the workers are taken for stuck."""
TICK = 0.01


@dataclass(frozen=True)
class Load:
    """How much of everything."""

    jobs: int = 20_000
    """Jobs in each of the scenarios that go through many."""
    seconds: float = 10.0
    """How long the scenarios that take their time go on."""
    rate: float = 500.0
    """Jobs a second under a steady load."""
    concurrency: int | None = None
    """Slots of the worker; its own default unless given."""


@dataclass(frozen=True)
class Drained:
    """Jobs that went through."""

    jobs: int
    seconds: float
    """From the first claim to the last outcome, by the database's clock."""
    began: float
    ended: float
    """Monotonic seconds between which it was."""

    @property
    def rate(self) -> float:
        """Jobs a second."""
        return self.jobs / self.seconds if self.seconds > 0 else float("nan")


def payloads(count: int, **more: Any) -> Iterator[dict[str, Any]]:
    """Make small payloads."""
    return ({"n": number, "to": "user@example.com", **more} for number in range(count))


def last_id(place: Place) -> int:
    """Give the newest job's id, 0 of an empty table."""
    [row] = place.ask("bench_last_id")
    return int(row.id)


def wait_until_done(place: Place, workers: list[Subject], *, after: int) -> None:
    """Wait until all jobs after that id have succeeded.

    Raises:
        SubjectFailed: when a worker ended, or claims nothing any more.
    """
    said, since, (pause, longest) = -1, time.monotonic(), LOOKS
    while place.ask("bench_unfinished", after=after):
        for worker in workers:
            worker.demand_alive()
        claims = sum(worker.claims for worker in workers)
        if claims != said:
            said, since = claims, time.monotonic()
        if time.monotonic() - since > STUCK:
            raise SubjectFailed(f"jobs wait and no worker has claimed any for {STUCK:g} s")
        time.sleep(pause)
        pause = min(longest, 1.5 * pause)


def drained(place: Place, *, after: int, began: float) -> Drained:
    """Read from the table how the jobs after that id went.

    Raises:
        SubjectFailed: when one of them has not succeeded.
    """
    [row] = place.ask("bench_drained", after=after)
    if row.jobs != row.rows:
        raise SubjectFailed(f"{row.rows - row.jobs} of {row.rows} jobs have not succeeded")
    return Drained(row.jobs, row.seconds, began, time.monotonic())


def go_through(place: Place, worker: Subject, kind: str, count: int) -> Drained:
    """Put *count* jobs before a worker that waits, and wait until they are done."""
    after, began = last_id(place), time.monotonic()
    place.queue.enqueue_many(kind, payloads(count))
    wait_until_done(place, [worker], after=after)
    return drained(place, after=after, began=began)


def steadily(place: Place, kind: str, *, rate: float, seconds: float, tell: Tell) -> float:
    """Enqueue at a steady rate, each job stamped just before its INSERT; gives the share of the rate that was kept."""
    queue, began, sent = place.queue, time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        if (count := int(passed * rate) - sent) == 1:
            queue.enqueue(kind, {"at": time.monotonic_ns()})
        elif count:
            queue.enqueue_many(kind, payloads(count, at=time.monotonic_ns()))
        sent += count
        tell(passed / seconds)
        time.sleep(TICK)
    return sent / (time.monotonic() - began) / rate
