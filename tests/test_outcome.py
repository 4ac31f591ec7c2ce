"""How an outcome is said: as parameters, to listeners, and in ASCII."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive import Retry
from redrive.events import JobDied, JobFailed, JobHandedBack, JobRetried, JobSnoozed, JobSucceeded
from redrive.failure import describe
from redrive.outcome import (
    Crashed,
    Died,
    Failed,
    Finished,
    HandedBack,
    Outcome,
    Retried,
    Snoozed,
    Succeeded,
    event,
    in_ascii,
    parameters,
    uncommitted,
)
from redrive.payload import encode_result
from support_engine import claimed

FAILURE = describe(ValueError("bad news"))
EVERY: list[Outcome] = [
    Succeeded(),
    Succeeded("1"),
    Retried(FAILURE, 60),
    Snoozed(60),
    Failed(FAILURE),
    Died(FAILURE),
    Crashed(FAILURE, 60),
    HandedBack(),
]


def finished(outcome: Outcome, **columns: Any) -> Finished:
    return Finished(claimed(**columns), outcome, 0.5)


class TestParameters:
    def test_a_batch_is_arrays_of_one_length_in_the_order_of_the_batch(self):
        batch = [finished(outcome, id=number, claims=number * 2) for number, outcome in enumerate(EVERY)]
        params = parameters(batch)
        assert {len(values) for values in params.values()} == {len(EVERY)}
        assert params["ids"] == list(range(len(EVERY)))
        assert params["claims"] == [number * 2 for number in range(len(EVERY))]
        assert params["outcomes"] == [outcome.name for outcome in EVERY]
        assert params["delays"] == [0, 0, 60, 60, 0, 0, 60, 0]
        assert params["results"] == [None, "1", *[None] * 6]
        assert params["messages"] == [None, None, "bad news", None, "bad news", "bad news", "bad news", None]

    def test_only_a_success_with_nothing_to_say_is_plain(self):
        assert [finished(outcome).plain for outcome in EVERY] == [True] + [False] * 7

    def test_the_error_is_type_and_message_where_there_was_one(self):
        assert finished(Died(FAILURE)).error == "ValueError: bad news"
        assert finished(Succeeded()).error == ""


class TestEvent:
    @pytest.mark.parametrize(
        ("outcome", "status", "kind"),
        [
            (Succeeded(), "succeeded", JobSucceeded),
            (Retried(FAILURE, 7), "pending", JobRetried),
            (Crashed(FAILURE, 7), "pending", JobRetried),
            (Snoozed(7), "pending", JobSnoozed),
            (HandedBack(), "pending", JobHandedBack),
            (Failed(FAILURE), "failed", JobFailed),
            (Died(FAILURE), "dead", JobDied),
            (Retried(FAILURE, 7), "dead", JobDied),
            (Retried(FAILURE, 7), "failed", JobFailed),
            (Snoozed(7), "failed", JobFailed),
            (HandedBack(), "dead", JobDied),
            (Crashed(FAILURE, 7), "dead", JobDied),
        ],
    )
    def test_what_was_written_is_told_and_not_what_was_asked(self, outcome, status, kind):
        said = event(finished(outcome, id=7, kind="mail", attempts=3), status, "the reason")
        assert type(said) is kind
        assert (said.id, said.kind, said.attempt, said.duration) == (7, "mail", 3, 0.5)
        if kind in (JobDied, JobFailed):
            assert said.reason == "the reason"
        if kind in (JobRetried, JobSnoozed):
            assert said.delay == 7

    def test_a_retry_that_the_handler_asked_for_has_a_reason_and_no_error(self):
        asked = event(finished(Retried(describe(Retry("429")), 7)), "pending")
        assert (asked.reason, asked.error) == ("429", "")
        failed = event(finished(Retried(FAILURE, 7)), "pending")
        assert (failed.reason, failed.error) == ("", "ValueError: bad news")


class TestUncommitted:
    def test_a_success_whose_transaction_was_not_committed_was_a_failure(self):
        assert isinstance(uncommitted(finished(Succeeded("1"))).outcome, Retried)
        assert isinstance(uncommitted(finished(Succeeded(), attempts=5)).outcome, Died)

    @pytest.mark.parametrize("outcome", EVERY[2:], ids=repr)
    def test_any_other_outcome_stands(self, outcome):
        assert uncommitted(finished(outcome)).outcome == outcome


class TestAscii:
    """For a database whose encoding has no room for the text (PE-02)."""

    @pytest.mark.parametrize("outcome", EVERY, ids=repr)
    def test_what_is_ascii_already_stays_the_same(self, outcome):
        one = finished(outcome)
        assert in_ascii(one) == one

    @settings(max_examples=40)
    @given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
    def test_a_result_in_ascii_is_json_of_the_same_shape(self, value):
        text = encode_result(value)
        spelt = in_ascii(finished(Succeeded(text))).outcome.result
        if text is None:
            assert spelt is None
            return
        assert spelt.isascii()
        assert self.shape(json.loads(spelt)) == self.shape(json.loads(text))

    def shape(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.shape(each) for each in value]
        if isinstance(value, dict):
            return [self.shape(each) for each in value.values()]
        return type(value)

    def test_a_failure_is_spelt_out(self):
        failure = in_ascii(finished(Died(describe(ValueError("日 \\ 🙂"))))).outcome.failure
        assert failure.message == "\\u65e5 \\ \\U0001f642"
        assert failure.last_error.isascii()
        assert failure.traceback.isascii()
