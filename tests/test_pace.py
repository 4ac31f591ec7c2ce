"""Durations of jobs as moving averages, and how many jobs of a kind may wait: about 100 ms of work."""

from __future__ import annotations

import time

import pytest

from redrive.pace import PREFETCH_MOST, STALE_AFTER, Pace


def seen(*measured: tuple[str, float], concurrency: int = 10) -> Pace:
    pace = Pace(concurrency)
    for kind, seconds in measured:
        pace.measure(kind, seconds, time.monotonic())
    return pace


def test_before_anything_has_ended_nothing_waits():
    assert (seen().ahead(), seen().ahead("k")) == (0, 0)
    assert seen(("k", 0.001)).ahead("another") == 0


@pytest.mark.parametrize(("seconds", "ahead"), [(1.0, 1), (2.0, 0), (0.1, 10), (0.01, 100), (0.000001, PREFETCH_MOST)])
def test_what_may_wait_is_100_ms_of_work_for_all_slots_and_never_more_than_a_limit(seconds, ahead):
    assert seen(("k", seconds)).ahead("k") == ahead


def test_a_kind_is_measured_by_itself_and_the_mixture_by_all():
    pace = seen(*[("quick", 0.001)] * 50, *[("slow", 1.0)] * 2)
    assert (pace.ahead("quick"), pace.ahead("slow")) == (1000, 1)
    assert 1 <= pace.ahead() < 10


def test_one_odd_duration_moves_the_average_by_a_tenth():
    assert seen(("k", 0.1), ("k", 1.1)).ahead("k") == 5


def test_after_a_while_without_an_end_what_was_measured_is_stale():
    pace = seen(("k", 0.001))
    assert not pace.stale
    pace.last_end -= STALE_AFTER
    assert pace.stale
