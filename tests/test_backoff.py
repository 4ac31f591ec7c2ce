"""Back-offs: their curves, their limits, and that a broken one never loses a job."""

from __future__ import annotations

import logging
import math
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.backoff import (
    DEFAULT,
    MAX_DELAY,
    MIN_DELAY,
    SHORTEST_DELAY,
    bounds,
    clamp_delay,
    exponential,
    fixed,
    quadratic,
    seconds_until_retry,
    steps,
)
from redrive.errors import InvalidOption

SAMPLES = [
    quadratic(),
    quadratic(cap=600),
    exponential(),
    exponential(1, 3, cap=None),
    exponential(10, 0.5, jitter=0),
    exponential(0),
    exponential(cap=0, jitter=0),
    exponential(1e-300, 1e8, cap=None),
    fixed(30),
    fixed(0),
    fixed(0, jitter=5),
    steps(1, 10, 60, jitter=2),
]


def test_the_default_is_the_tutorials():
    assert quadratic() == DEFAULT
    assert [bounds(DEFAULT, attempt) for attempt in range(1, 6)] == [
        (10, 15),
        (40, 45),
        (90, 95),
        (160, 165),
        (250, 255),
    ]


def test_the_curves_are_what_they_say():
    assert [exponential(jitter=0)(n) for n in range(1, 6)] == [10, 20, 40, 80, 160]
    assert [exponential(2, 3, jitter=0, cap=20)(n) for n in range(1, 5)] == [2, 6, 18, 20]
    assert [fixed(3)(n) for n in (1, 2, 99)] == [3, 3, 3]
    assert [steps(1, 10, 60)(n) for n in range(1, 6)] == [1, 10, 60, 60, 60]


@pytest.mark.parametrize("backoff", SAMPLES, ids=repr)
@pytest.mark.parametrize("attempt", [1, 63, 64, 1024, 100_000, 10**30])
def test_high_attempts_stay_within_cap_and_jitter_rb_01(backoff, attempt):
    low, high = backoff.bounds(attempt)
    delay = seconds_until_retry(backoff, attempt)
    assert low >= SHORTEST_DELAY
    assert low <= delay <= high
    assert high <= MAX_DELAY
    if backoff.cap:
        assert delay <= backoff.cap + backoff.jitter


@given(st.sampled_from(SAMPLES), st.integers(-5, 10**9))
def test_a_delay_is_always_within_its_printed_bounds_rb_04(backoff, attempt):
    low, high = bounds(backoff, attempt)
    assert low <= seconds_until_retry(backoff, attempt) <= high


def test_backoffs_print_as_they_are_written():
    assert repr(quadratic()) == "quadratic(base=10, jitter=5)"
    assert repr(exponential(2, 3, cap=60)) == "exponential(base=2, factor=3, jitter=5, cap=60)"
    assert repr(fixed(30)) == "fixed(seconds=30)"
    assert repr(steps(1, 10, 0.5, jitter=2)) == "steps(1, 10, 0.5, jitter=2)"


@pytest.mark.parametrize("nonsense", [-1, math.nan, math.inf, "10", None, True, MAX_DELAY * 2])
def test_nonsense_is_refused_where_it_is_written(nonsense):
    with pytest.raises(InvalidOption, match="base="):
        quadratic(nonsense) if nonsense is not None else quadratic("")
    with pytest.raises(InvalidOption, match="seconds="):
        steps(1, nonsense if nonsense is not None else "")


def test_steps_without_any_step_is_refused():
    with pytest.raises(InvalidOption, match="at least one"):
        steps()


def raising(attempt):
    raise ZeroDivisionError("no")


def overflowing(attempt):
    return 2.0 ** (attempt * 1024)


class Unprintable:
    def __repr__(self):
        raise RuntimeError


async def asynchronous(attempt):
    return 5


@pytest.mark.parametrize(
    "backoff",
    [
        raising,
        overflowing,
        asynchronous,
        lambda _: None,
        lambda _: math.nan,
        lambda _: -1,
        lambda _: 1e18,
        lambda _: math.inf,
        lambda _: "60",
        lambda _: True,
        lambda _: 10**400,
        lambda _: Decimal("NaN"),
        lambda _: timedelta(days=-1),
        lambda _: Unprintable(),
        lambda: 5,
        None,
    ],
)
def test_a_broken_backoff_falls_back_to_the_default_and_is_logged_rb_01(backoff, caplog):
    with caplog.at_level(logging.WARNING, "redrive"):
        assert 40 <= seconds_until_retry(backoff, 2) <= 45
    [record] = caplog.records
    assert record.name == "redrive"
    assert record.msg == "back-off is unusable, falling back to the default: %s"
    assert (record.attempt, record.args[0]) == (2, record.problem)


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        (7, 7),
        (timedelta(minutes=1), 60),
        (Decimal("2.5"), 2.5),
        (0, MIN_DELAY),
        (0.0, MIN_DELAY),
        (timedelta(0), MIN_DELAY),
        (0.001, SHORTEST_DELAY),
        (0.5, 0.5),
        (MAX_DELAY, MAX_DELAY),
    ],
)
def test_a_usable_answer_is_taken_and_nothing_becomes_the_floor_rb_03(answer, seconds, caplog):
    assert seconds_until_retry(lambda _: answer, 1) == seconds
    assert caplog.records == []


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (90, 90),
        (timedelta(seconds=90), 90),
        (0, MIN_DELAY),
        (-5, MIN_DELAY),
        (0.01, SHORTEST_DELAY),
        (1e18, MAX_DELAY),
        (math.nan, 10),
        (math.inf, 10),
        (None, 10),
    ],
)
def test_what_a_handler_asks_for_is_never_shortened_and_has_no_jitter_rb_06(asked, given):
    assert {clamp_delay(asked) for _ in range(20)} == {given}


def test_the_bounds_of_a_plain_callable_are_what_it_answers_rb_04():
    assert bounds(lambda attempt: attempt * 2, 3) == (6, 6)
