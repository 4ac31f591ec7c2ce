"""The exceptions: what they say, what they are, and that they travel between processes."""

from __future__ import annotations

import inspect
import math
import pickle
from datetime import timedelta

import pytest

from redrive import errors
from redrive.errors import (
    Dead,
    Discard,
    InvalidOption,
    InvalidPayload,
    NotMigrated,
    RedriveError,
    Retry,
    Snooze,
    Verdict,
)

ALL = [
    each
    for each in vars(errors).values()
    if inspect.isclass(each) and issubclass(each, (RedriveError, Verdict)) and each.__module__ == "redrive.errors"
]


@pytest.mark.parametrize("kind", [each for each in ALL if issubclass(each, RedriveError)])
def test_the_docstring_is_the_message_where_none_is_given(kind):
    assert str(kind()) == inspect.cleandoc(kind.__doc__)


@pytest.mark.parametrize("kind", ALL)
def test_every_exception_stands_in_the_tree_of_the_module(kind):
    assert kind.__name__ in errors.__doc__


def test_raise_not_migrated_is_enough():
    with pytest.raises(NotMigrated, match="redrive migrate"):
        raise NotMigrated


def test_bad_payloads_and_options_are_value_errors_too():
    assert issubclass(InvalidPayload, ValueError)
    assert issubclass(InvalidOption, ValueError)
    assert InvalidPayload().path == "payload"


def test_a_handler_that_catches_our_errors_does_not_swallow_its_own_verdict():
    assert not issubclass(Verdict, RedriveError)


@pytest.mark.parametrize(
    ("after", "seconds"), [(90, 90.0), (0.5, 0.5), (timedelta(minutes=2), 120.0), (-1, -1.0), (None, None)]
)
def test_retry_takes_seconds_or_a_timedelta(after, seconds):
    assert Retry("busy", after=after).after == seconds


@pytest.mark.parametrize("nonsense", ["soon", math.nan, math.inf, True, object(), 10**400])
def test_retry_and_snooze_refuse_at_the_raise_what_is_no_time(nonsense):
    with pytest.raises(InvalidOption, match="seconds or a timedelta"):
        Retry(after=nonsense)
    with pytest.raises(InvalidOption, match="seconds or a timedelta"):
        Snooze(nonsense)


@pytest.mark.parametrize(
    "error",
    [
        Retry("busy", after=90),
        Retry(),
        Snooze(60),
        Discard("gone"),
        Dead("410"),
        InvalidPayload("payload.x is a set", path="payload.x"),
        NotMigrated(),
    ],
    ids=repr,
)
def test_exceptions_survive_pickling(error):
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_a_verdict_shows_its_reason_or_its_name():
    assert [str(Discard("gone")), str(Dead()), str(Snooze(90))] == ["gone", "Dead", "snoozed for 90 s"]
