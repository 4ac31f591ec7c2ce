"""The job that a handler holds, and the newest of its progress."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive.executor import CANCELLED, SHUTDOWN
from redrive.job import Holder, Latest
from support_engine import NOW, claimed


class TestClaimedJob:
    def test_the_payload_is_read_anew_at_each_access_so_that_no_change_reaches_another_try(self):
        job = claimed(payload='{"list": [1]}')
        job.payload["list"].append(2)
        assert job.payload == {"list": [1]}

    @pytest.mark.parametrize("scalar", ["1", '"text"', "null", "true", "[1, 2]"])
    def test_any_json_may_be_a_payload(self, scalar):
        """CN-07."""
        assert claimed(payload=scalar).payload == {"1": 1, '"text"': "text", "null": None, "true": True}.get(
            scalar, [1, 2]
        )

    def test_a_payload_that_python_cannot_hold_is_an_error_of_this_job_alone(self):
        """CN-07."""
        with pytest.raises(ValueError, match="digits"):
            _ = claimed(payload="9" * 5000).payload

    def test_deep_nesting_is_read(self):
        """CN-07."""
        payload = claimed(payload="[" * 600 + "]" * 600).payload
        depth = 0
        while payload:
            depth, payload = depth + 1, payload[0]
        assert depth == 599

    def test_metadata_is_a_dict_also_where_there_is_none(self):
        assert claimed().metadata == {}
        assert claimed(metadata='{"trace": "00-1"}').metadata == {"trace": "00-1"}

    def test_the_idempotency_key_is_the_same_at_every_attempt_and_by_every_worker(self):
        """UN-07."""
        first = claimed(id=7)
        there = Holder("there:2:ghijkl", "redrive")
        again = claimed(id=7, holder=there, attempts=3, claims=9, run_at=NOW + timedelta(hours=3))
        assert first.idempotency_key == again.idempotency_key

    def test_the_idempotency_key_differs_between_jobs_schemas_and_lives_of_a_table(self):
        """UN-07: a table that was emptied and restarted gives ids anew."""
        other_schema = claimed(id=7, holder=Holder("here:1:abcdef", "other"))
        jobs = [claimed(id=7), claimed(id=8), claimed(id=7, created_at=NOW + timedelta(microseconds=1)), other_schema]
        assert len({job.idempotency_key for job in jobs}) == 4

    def test_a_created_at_at_the_end_of_time_has_an_idempotency_key_too(self):
        for created_at in (datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)):
            assert claimed(created_at=created_at).idempotency_key

    def test_should_stop_is_false_until_told_and_remembers_that_it_was_seen(self):
        job = claimed()
        assert (job.should_stop, job.stopped) == (False, False)
        job.stop(SHUTDOWN, told=False)
        assert not job.stopped, "nobody has looked yet"
        assert (job.should_stop, job.stopped) == (True, True)

    def test_a_cancellation_tells_without_a_look(self):
        job = claimed()
        job.stop(CANCELLED, told=True)
        assert job.stopped

    def test_a_lost_lease_is_a_reason_to_stop(self):
        """CR-05."""
        job = claimed()
        job.lost = True
        assert job.should_stop

    def test_outside_a_worker_progress_is_ignored_and_complete_says_so(self):
        job = claimed()
        job.progress(50)
        with pytest.raises(RuntimeError, match="a job that a worker is running"):
            job.complete(None)

    def test_the_last_attempt_knows_itself(self):
        assert not claimed(attempts=4).last_attempt
        assert claimed(attempts=5).last_attempt
        assert claimed(attempts=-3, max_attempts=1).last_attempt is False

    def test_it_shows_what_it_is_and_not_what_it_carries(self):
        assert repr(claimed("mail", '{"password": "x"}', id=3)) == "<job 3 'mail', attempt 1 of 5>"


class TestLatest:
    @staticmethod
    def seen(latest: Latest) -> dict[Any, Any]:
        return {job.id: value for job, value in latest.take()}

    def test_the_newest_of_each_job_is_kept_and_taken_once(self):
        latest, one, two = Latest(), claimed(id=1), claimed(id=2)
        for value in range(3):
            latest.put(one, value)
        latest.put(two, "x")
        assert (len(latest), 1 in latest, 3 in latest) == (2, True, False)
        assert self.seen(latest) == {1: 2, 2: "x"}
        assert self.seen(latest) == {}

    def test_what_is_put_back_gives_way_to_what_came_meanwhile(self):
        latest, one, two = Latest(), claimed(id=1), claimed(id=2)
        latest.put(one, "old")
        latest.put(two, "old")
        taken = latest.take()
        latest.put(one, "new")
        latest.put_back(taken)
        assert self.seen(latest) == {1: "new", 2: "old"}
