"""What a worker counts in memory: each job once, in the minute in which it ended, and nothing twice in the database."""

from __future__ import annotations

import time
from typing import Any

import pytest

from redrive.job import EPOCH, ClaimedJob, Holder
from redrive.outcome import DONE, Finished
from redrive.tally import MANY, MINUTE, OUTCOMES, Tally

UNIX_2000 = EPOCH.timestamp()


def job(kind: str, waited: float = 0.5) -> ClaimedJob:
    """A job that began just now, *waited* seconds after it was due."""
    due = int((time.time() - waited - UNIX_2000) * 1e6)
    made = ClaimedJob(Holder("w", "redrive"), (1, kind, "{}", 1, 5, 1, 0, 5, "", due, due, None, None))
    made.started = time.monotonic()
    return made


def ended(kind: str, duration: float | None = 0.25, **more: Any) -> Finished:
    return Finished(job(kind, **more), DONE, duration)


@pytest.fixture
def tally() -> Tally:
    return Tally()


def test_a_batch_is_counted_job_by_job_and_kind_by_kind(tally):
    tally.succeeded([ended("mail"), ended("export", 2.0), ended("mail"), ended("mail", None)])
    totals = tally.totals()
    assert {kind: (count.succeeded, count.ran) for kind, count in totals.items()} == {"mail": (3, 2), "export": (1, 1)}
    assert totals["mail"].run_seconds == 0.5
    assert totals["mail"].wait_seconds == pytest.approx(1.0, abs=0.05)
    assert sum(totals["mail"].runs) == sum(totals["mail"].waits) == 2


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_each_outcome_has_its_column(tally, outcome):
    tally.ended(ended("mail"), outcome)
    tally.count("mail", outcome)
    count = tally.totals()["mail"]
    assert {name: getattr(count, name) for name in OUTCOMES if getattr(count, name)} == {outcome: 2}
    assert count.ran == 1


def test_what_comes_many_at_once_is_counted_alike(tally):
    for _ in range(3):
        tally.succeeded([ended("mail") for _ in range(MANY)])
    count = tally.totals()["mail"]
    assert (count.succeeded, count.ran, sum(count.runs), sum(count.waits)) == (3 * MANY,) * 4


@pytest.mark.parametrize("waited", [-5.0, 1e10])
def test_a_wait_that_can_not_be_is_none(tally, waited):
    """A run_at of -infinity, or ahead of the clock, must not spoil the mean of the others."""
    tally.succeeded([ended("mail", waited=waited), ended("mail", waited=2.0)])
    count = tally.totals()["mail"]
    assert count.wait_seconds == pytest.approx(2.0, abs=0.05)
    assert sum(count.waits) == 2


def test_waits_go_by_the_clock_of_the_database(tally):
    tally.set_clock(time.time() - time.monotonic() + 100)
    tally.succeeded([ended("mail", waited=1.0)])
    assert tally.totals()["mail"].wait_seconds == pytest.approx(101.0, abs=0.05)


def test_what_changed_while_it_was_written_is_written_again(tally):
    tally.succeeded([ended("mail")])
    taken = tally.unkept()
    tally.succeeded([ended("mail")])
    tally.keep(taken)
    [(_, again)] = tally.unkept()
    assert again.succeeded == 2
    tally.keep([(taken[0][0], again)])
    assert tally.unkept() == []


def test_a_minute_that_is_over_and_written_leaves_the_memory_and_stays_in_the_sum(tally):
    tally.succeeded([ended("mail")])
    later = tally.ahead + 2 * MINUTE
    tally.set_clock(later)
    tally.succeeded([ended("mail")])
    assert len(tally.unkept()) == 2
    tally.keep(tally.unkept())
    assert len(tally._open) == 1
    assert tally.totals()["mail"].succeeded == 2
    tally.set_clock(later - 10 * MINUTE)  # a clock set back must not begin the row of an old minute anew
    tally.succeeded([ended("mail")])
    [(key, count)] = tally.unkept()
    assert (key[0], count.succeeded) == (max(minute for minute, _ in tally._open), 2)
