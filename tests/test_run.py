"""Jobs through a whole worker: from the row that somebody inserted to the row that says what became of it."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import support
from redrive import ClaimedJob, Discard, InvalidOption, Queue, Retry, Snooze, backoff
from redrive.errors import Dead
from redrive.migrate import migrate
from support_engine import drain, due_now, history, plain_insert, row, rows, states, until_state, working

SOON = backoff.fixed(0.1)
# not every encoding of `make matrix` has the letter that the escape means
ODD = "\\ufeff" if os.environ.get("MATRIX_ENCODING", "UTF8") == "UTF8" else ""


@pytest.fixture
def queue(db):
    queue = Queue(db)
    yield queue
    queue.close()


def both(queue: Queue, name: str, **options: Any) -> Any:
    """Register a plain function of payload and job as the sync kind *name* and the async kind ``a_name``."""

    def register(function: Any) -> Any:
        queue.handler(name, **options)(function)

        @queue.handler(f"a_{name}", **options)
        async def coroutine(payload, job):
            await asyncio.sleep(0)
            return function(payload, job)

        return function

    return register


class TestSuccess:
    def test_jobs_of_every_origin_run_once_and_are_done(self, db, conn, queue):
        ran = []
        both(queue, "k")(lambda payload, job: ran.append(payload))
        queue.enqueue("k", 1)
        queue.enqueue_many("a_k", [2, 3])
        plain_insert(conn, "k", "4")
        conn.execute("insert into redrive.jobs (kind, payload) values ('a_k', '5')")
        conn.execute("select redrive.enqueue('k', '6')")
        drain(queue)
        assert sorted(ran) == [1, 2, 3, 4, 5, 6]
        assert states(conn) == {"succeeded": 6}
        assert rows(conn, "select * from redrive.failures") == []

    def test_what_a_handler_returns_is_kept_as_the_result(self, conn, queue):
        both(queue, "k")(lambda payload, job: {"sum": sum(payload), "odd": float("inf")})
        ids = [queue.enqueue(kind, [1, 2]).id for kind in ("k", "a_k")]
        drain(queue)
        assert [row(conn, one).result for one in ids] == [{"sum": 3, "odd": None}] * 2

    def test_once_runs_what_is_due_and_what_that_enqueues_and_leaves_the_rest(self, conn, queue):
        ran = []

        @queue.handler("chain")
        def chain(payload):
            ran.append(payload)
            if payload:
                chain.enqueue(payload - 1)

        chain.enqueue(5)
        later = chain.enqueue(9, delay=3600)
        drain(queue)
        assert ran == [5, 4, 3, 2, 1, 0]
        assert row(conn, later.id).status == "pending"

    def test_the_handlers_job_knows_its_row(self, conn, queue):
        seen = []
        queue.handler("k", max_attempts=3)(lambda payload, job: seen.append(job))
        made = queue.enqueue("k", {"a": 1}, priority=2, lane="x", metadata={"trace": "00-1"})
        drain(queue)
        [job] = seen
        found = row(conn, made.id)
        assert (job.id, job.kind, job.payload, job.attempt, job.max_attempts) == (made.id, "k", {"a": 1}, 1, 3)
        assert (job.priority, job.lane, job.metadata) == (2, "x", {"trace": "00-1"})
        assert (job.created_at, job.run_at, job.worker) == (found.created_at, found.run_at, found.locked_by)

    def test_while_a_worker_idles_a_plain_insert_wakes_it(self, conn, queue):
        both(queue, "k")(lambda payload, job: None)
        with working(queue):
            for kind in ("k", "a_k"):
                until_state(conn, plain_insert(conn, kind), "succeeded")


class TestRetries:
    def test_a_job_that_fails_twice_succeeds_and_its_history_is_complete(self, conn, queue):
        """The row keeps its last error, failures the rest."""

        @both(queue, "flaky", backoff=SOON)
        def flaky(payload, job):
            if job.attempt < 3:
                raise ConnectionError(f"refused, try {job.attempt}")

        ids = [queue.enqueue(kind, key=f"key of {kind}").id for kind in ("flaky", "a_flaky")]
        with working(queue) as running:
            for one in ids:
                until_state(conn, one, "succeeded")
        for one in ids:
            found, kept = row(conn, one), history(conn, one)
            assert (found.attempts, found.claims, found.crashes) == (3, 3, 0)
            assert "ConnectionError: refused, try 2" in found.last_error
            assert [(each.attempt, each.claim, each.outcome) for each in kept] == [(1, 1, "retried"), (2, 2, "retried")]
            assert [each.message for each in kept] == ["refused, try 1", "refused, try 2"]
            assert {each.error_type for each in kept} == {"ConnectionError"}
            assert {each.worker for each in kept} == {running.worker.name}
            assert {each.key for each in kept} == {f"key of {found.kind}"}
            assert all(0 <= each.duration < 5 and "in flaky" in each.traceback for each in kept)
            assert len({each.fingerprint for each in kept}) == 1

    def test_the_last_failure_is_the_death_and_the_tutorials_requeue_works(self, conn, queue):
        """RB-07, and the article's own statement to send a dead job back."""
        broken = True

        @both(queue, "export", backoff=SOON, max_attempts=2)
        def export(payload, job):
            if broken:
                raise OSError("disk full")

        ids = [queue.enqueue(kind, key=kind, expires_in=3600).id for kind in ("export", "a_export")]
        with working(queue, poll=0.5):
            for one in ids:
                until_state(conn, one, "dead")
            for one in ids:
                found, kept = row(conn, one), history(conn, one)
                assert (found.attempts, found.key, found.expires_at) == (2, None, None)
                assert (found.locked_at, found.locked_by, found.crashes) == (None, None, 0)
                assert "OSError: disk full" in found.last_error
                assert [each.outcome for each in kept] == ["retried", "dead"]
                assert (kept[-1].key, kept[-1].expires_at is None) == (found.kind, False)
            broken = False
            conn.execute("set search_path = redrive")
            conn.execute(
                "update jobs set status = 'pending', attempts = 0, run_at = now(), last_error = null, "
                "updated_at = now() where status = 'dead'"
            )
            for one in ids:
                assert until_state(conn, one, "succeeded").attempts == 1
                assert len(history(conn, one)) == 2

    @pytest.mark.parametrize(
        "curve",
        [backoff.quadratic(), backoff.exponential(cap=60), backoff.fixed(7, jitter=2), backoff.steps(1, 30, 600)],
    )
    def test_the_printed_schedule_is_what_is_written(self, conn, queue, curve):
        """RB-04: `redrive explain` shows these bounds."""
        queue.handler("k", backoff=curve, max_attempts=6)(_raise)
        job_id = queue.enqueue("k").id
        for attempt in range(1, 6):
            drain(queue)
            low, high = backoff.bounds(curve, attempt)
            failed_at = history(conn, job_id)[-1].failed_at
            assert low <= (row(conn, job_id).run_at - failed_at).total_seconds() <= high + 0.001
            due_now(conn, job_id)
        drain(queue)
        assert row(conn, job_id).status == "dead"

    @pytest.mark.parametrize("attempts", [62, 63, 1023, 99_999])
    def test_no_number_of_attempts_overflows_a_timestamp(self, conn, queue, attempts):
        """RB-01."""
        both(queue, "quadratic")(lambda payload, job: 1 / 0)
        both(queue, "exponential", backoff=backoff.exponential(cap=None))(lambda payload, job: 1 / 0)
        both(queue, "capped", backoff=backoff.exponential(cap=3600))(lambda payload, job: 1 / 0)
        both(queue, "broken", backoff=lambda attempt: 2.0**attempt * attempt**1000)(lambda payload, job: 1 / 0)
        for name in ("quadratic", "exponential", "capped", "broken"):
            for kind in (name, f"a_{name}"):
                queue.enqueue(kind, max_attempts=2**31 - 1)
        conn.execute("update redrive.jobs set attempts = %s", [attempts])
        drain(queue)
        for found in rows(conn, "select kind, status, attempts, run_at - updated_at as wait from redrive.jobs"):
            assert (found["status"], found["attempts"]) == ("pending", attempts + 1)
            longest = 3605 if found["kind"].endswith("capped") else backoff.MAX_DELAY
            assert 1 <= found["wait"].total_seconds() <= longest

    def test_a_job_that_fails_at_once_with_a_back_off_of_nothing_runs_once_a_second_at_most(self, conn, queue):
        """RB-03: and a hundred others are not kept waiting."""
        ran = []

        @queue.handler("hot", backoff=lambda _attempt: 0, max_attempts=1000)
        def hot(payload):
            ran.append(time.monotonic())
            raise ValueError

        queue.handler("b")(lambda payload: None)
        with working(queue, concurrency=2):
            queue.enqueue("hot")
            queue.enqueue_many("b", range(100))
            began = time.monotonic()
            while len(ran) < 3 and time.monotonic() < began + 10:
                time.sleep(0.02)
        assert states(conn, "b") == {"succeeded": 100}
        assert len(ran) == 3
        assert min(later - earlier for earlier, later in itertools.pairwise(ran)) >= 0.99

    def test_retry_after_comes_when_it_was_told_to(self, conn, queue):
        """RB-06."""

        @both(queue, "k", backoff=backoff.fixed(1))
        def limited(payload, job):
            raise Retry("429", after=90)

        ids = [queue.enqueue(kind).id for kind in ("k", "a_k")]
        drain(queue)
        for one in ids:
            found = row(conn, one)
            assert (found.status, found.attempts) == ("pending", 1)
            assert 90 <= (found.run_at - history(conn, one)[0].failed_at).total_seconds() < 90.1
            assert "429" in found.last_error

    def test_snooze_gives_the_attempt_back(self, conn, queue):
        @both(queue, "k")
        def waits(payload, job):
            if not payload["ready"]:
                raise Snooze(timedelta(minutes=1))

        ids = [queue.enqueue(kind, {"ready": False}, max_attempts=1).id for kind in ("k", "a_k")]
        for _ in range(4):
            drain(queue)
            for one in ids:
                found = row(conn, one)
                assert (found.status, found.attempts, found.last_error) == ("pending", 0, None)
                assert 50 < (found.run_at - datetime.now(UTC)).total_seconds() <= 60
            due_now(conn, *ids)
        conn.execute("update redrive.jobs set payload = '{\"ready\": true}'")
        drain(queue)
        assert states(conn) == {"succeeded": 2}
        assert rows(conn, "select * from redrive.failures") == []
        assert [row(conn, one).claims for one in ids] == [5, 5]

    def test_discard_is_failed_with_its_reason_and_nobody_is_called(self, conn, queue):
        @both(queue, "k")
        def unwanted(payload, job):
            raise Discard("user is gone")

        ids = [queue.enqueue(kind, key=kind).id for kind in ("k", "a_k")]
        drain(queue)
        for one in ids:
            found = row(conn, one)
            assert (found.status, found.last_error, found.key) == ("failed", "discarded: user is gone", None)
            assert [each.outcome for each in history(conn, one)] == ["failed"]

    def test_a_permanent_error_is_dead_at_the_first_attempt(self, conn, queue):
        """RB-06: Dead, dead_on, and what retry_on leaves out; subclasses count."""

        class Gone(ValueError):
            pass

        def raising(error):
            def handler(payload, job):
                raise error

            return handler

        both(queue, "says")(raising(Dead("410 Gone")))
        both(queue, "listed", dead_on=ValueError)(raising(Gone("410")))
        both(queue, "unlisted", retry_on=ConnectionError)(raising(Gone("410")))
        both(queue, "worth", retry_on=OSError, dead_on=ValueError)(raising(ConnectionResetError("later")))
        kinds = [prefix + name for prefix in ("", "a_") for name in ("says", "listed", "unlisted", "worth")]
        ids = {kind: queue.enqueue(kind).id for kind in kinds}
        drain(queue)
        for kind, one in ids.items():
            assert row(conn, one).status == ("pending" if kind.endswith("worth") else "dead"), kind
            assert row(conn, one).attempts == 1

    def test_no_job_ends_in_limbo(self, conn, queue):
        """RB-07: after any run no waiting or running row has used up its attempts."""

        @queue.handler("k", backoff=backoff.fixed(0.1), max_attempts=3)
        def chance(payload, job):
            if (job.id + job.attempt) % 3:
                raise ValueError

        queue.enqueue_many("k", range(60))
        with working(queue):
            _until(lambda: not set(states(conn)) & {"pending", "running"})
        assert set(states(conn)) <= {"succeeded", "dead"}
        over = "select id from redrive.jobs where status in ('pending', 'running') and attempts >= max_attempts"
        assert rows(conn, over) == []

    def test_rows_that_are_over_their_budget_are_buried_with_the_reason(self, conn, queue):
        """RB-07: seeded so, or max_attempts was lowered while they waited; of unknown kinds too."""
        ran = []
        queue.handler("k")(ran.append)
        seeded = plain_insert(conn, "k", attempts=7, max_attempts=5)
        lowered = plain_insert(conn, "k", attempts=2, run_at="2999-01-01")
        stranger = plain_insert(conn, "nobody knows", attempts=5, run_at="2999-01-01")
        conn.execute("update redrive.jobs set max_attempts = 2 where id = %s", [lowered])
        with working(queue, lease=1):
            for one, used in ((seeded, "7 of 5"), (lowered, "2 of 2"), (stranger, "5 of 5")):
                found = until_state(conn, one, "dead")
                assert found.last_error == f"no attempt left: {used} were used"
                assert [each.error_type for each in history(conn, one)] == ["AttemptsExhausted"]
        assert ran == []


def _raise(payload: Any) -> None:
    raise ValueError("bad news")


def _until(condition: Any, seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


class TestDeadlines:
    def test_a_job_past_its_deadline_does_not_start(self, conn, queue):
        """RB-04."""
        ran = []
        both(queue, "k")(lambda payload, job: ran.append(payload))
        ids = [queue.enqueue(kind, expires_in=0, key=kind).id for kind in ("k", "a_k")]
        drain(queue)
        assert ran == []
        for one in ids:
            found = row(conn, one)
            assert (found.status, found.key, found.expires_at) == ("dead", None, None)
            assert found.last_error.startswith("deadline")
            assert history(conn, one)[0].expires_at is not None

    def test_a_job_whose_next_try_would_come_too_late_dies_with_the_reason(self, conn, queue):
        """RB-04: at once, and not when the deadline has come."""
        starts = []

        @both(queue, "k", backoff=backoff.steps(0.1, 90), max_attempts=100)
        def failing(payload, job):
            starts.append(job.id)
            raise ConnectionError("down")

        ids = [queue.enqueue(kind, expires_in=60).id for kind in ("k", "a_k")]
        with working(queue):
            for one in ids:
                found = until_state(conn, one, "dead")
                assert found.last_error.startswith("deadline: expires_at ")
                assert "ConnectionError: down" in found.last_error
        assert Counter(starts) == dict.fromkeys(ids, 2)

    def test_a_job_that_fails_each_time_never_starts_after_its_deadline(self, conn, queue):
        """RB-04: with many tries left."""
        starts = []

        @both(queue, "k", backoff=SOON, max_attempts=100)
        def failing(payload, job):
            starts.append((job.id, datetime.now(UTC)))
            raise ConnectionError("down")

        deadlines = {}
        for kind in ("k", "a_k"):
            one = queue.enqueue(kind, expires_in=1).id
            deadlines[one] = row(conn, one).expires_at
        with working(queue):
            for one in deadlines:
                assert until_state(conn, one, "dead").last_error.startswith("deadline")
        assert len(starts) > 4
        assert all(at < deadlines[one] for one, at in starts)

    def test_a_job_of_a_kind_that_nobody_knows_dies_of_its_deadline_too(self, conn, queue):
        queue.handler("k")(lambda: None)
        one = queue.enqueue("nobody knows", expires_in=0.1).id
        with working(queue, lease=1):
            assert until_state(conn, one, "dead").last_error.startswith("deadline")


class TestLeaving:
    def test_a_job_that_tries_to_end_its_worker_is_poison_after_a_few_tries(self, conn, queue):
        """RB-06: not counted as failures of the work, bounded all the same, and the worker lives."""

        @both(queue, "poison", backoff=SOON, max_attempts=50)
        def poison(payload, job):
            sys.exit(3)

        queue.handler("b")(lambda payload: None)
        ids = [queue.enqueue(kind).id for kind in ("poison", "a_poison")]
        with working(queue, max_crashes=3):
            for one in ids:
                found = until_state(conn, one, "dead")
                assert found.last_error.startswith("poison")
                assert (found.claims, found.attempts, found.crashes) == (3, 0, 0)
                assert [each.error_type for each in history(conn, one)] == ["SystemExit"] * 3
            until_state(conn, queue.enqueue("b", 1).id, "succeeded")

    @pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError])
    def test_neither_an_interrupt_nor_a_cancellation_that_it_raises_is_counted_as_a_failure(self, conn, queue, error):
        """RB-06."""

        @both(queue, "k")
        def leaves(payload, job):
            raise error

        ids = [queue.enqueue(kind, max_attempts=1).id for kind in ("k", "a_k")]
        drain(queue)
        for one in ids:
            assert (row(conn, one).status, row(conn, one).attempts, row(conn, one).crashes) == ("pending", 0, 1)


class TestAlone:
    def test_a_job_that_may_have_killed_its_worker_runs_with_nothing_beside_it(self, conn, queue):
        inside, beside, lock = 0, [], threading.Lock()

        @both(queue, "k")
        def watched(payload, job):
            nonlocal inside
            with lock:
                inside += 1
                if job.alone:
                    beside.append(inside)
            time.sleep(0.02)
            with lock:
                if job.alone:
                    beside.append(inside)
                inside -= 1

        for number in range(40):
            plain_insert(conn, ("k", "a_k")[number % 2], alone=number % 10 == 0)
        drain(queue, concurrency=4)
        assert states(conn) == {"succeeded": 40}
        assert beside == [1] * 8


class TestKinds:
    def test_what_a_worker_does_not_know_it_leaves_to_those_who_do(self, db, conn, queue):
        """SD-04: an old and a new worker side by side; nothing is lost or counted."""
        old, new = Queue(db), queue
        ran_by: Counter[str] = Counter()

        def count(payload, job):
            ran_by[job.worker] += 1

        for each, kinds in ((old, ["a"]), (new, ["a", "b"])):
            for kind in kinds:
                each.handler(kind)(count)
        with working(old) as first:
            new.enqueue_many("b", range(100))
            new.enqueue_many("a", range(10))
            _until(lambda: states(conn, "a") == {"succeeded": 10})
            waiting = rows(conn, "select xmin::text, * from redrive.jobs where kind = 'b' order by id")
            assert {each["status"] for each in waiting} == {"pending"}
            assert {each["claims"] for each in waiting} == {0}
            with working(new) as second:
                _until(lambda: states(conn, "b") == {"succeeded": 100})
        assert rows(conn, "select * from redrive.failures") == []
        assert set(ran_by) == {first.worker.name, second.worker.name}
        done_by = rows(conn, "select distinct locked_by from redrive.jobs where kind = 'b'")
        assert done_by == [{"locked_by": second.worker.name}]

    def test_rows_enqueued_under_a_former_name_still_run(self, conn, queue):
        """SD-04."""
        ran = []
        queue.handler("send_mail", aliases=["mail", "send"])(lambda payload, job: ran.append(job.kind))
        for kind in ("mail", "send", "send_mail"):
            plain_insert(conn, kind)
        drain(queue)
        assert sorted(ran) == ["mail", "send", "send_mail"]
        assert states(conn) == {"succeeded": 3}

    def test_a_worker_of_chosen_kinds_takes_only_those(self, conn, queue):
        both(queue, "k")(lambda payload, job: None)
        for kind in ("k", "a_k"):
            queue.enqueue(kind)
        drain(queue, kinds=("a_k",))
        assert (states(conn, "k"), states(conn, "a_k")) == ({"pending": 1}, {"succeeded": 1})

    def test_a_payload_that_lacks_a_field_waits_for_the_code_that_fits_it(self, db, conn, queue):
        """SD-05: retried with the field's name in the message; after the rollback it completes."""

        @dataclasses.dataclass
        class New:
            x: int
            y: int

        @queue.handler("k", backoff=backoff.fixed(60))
        def newer(payload: New):
            raise AssertionError("called")

        newer.call = newer.bare = queue.handler("probe")(_typed(New)).call
        one = queue.enqueue("k", {"x": 1}).id
        drain(queue)
        found = row(conn, one)
        assert (found.status, found.attempts) == ("pending", 1)
        assert "y" in history(conn, one)[0].message
        rolled_back = Queue(db)
        rolled_back.handler("k")(lambda payload: payload["x"])
        due_now(conn, one)
        drain(rolled_back)
        assert (row(conn, one).status, row(conn, one).result) == ("succeeded", 1)


def _typed(annotation: type) -> Any:
    def handler(payload):
        raise AssertionError("called")

    handler.__annotations__["payload"] = annotation
    return handler


NASTY: dict[str, Any] = {
    "nul": ValueError("a\x00b"),
    "surrogate": ValueError("\ud800"),
    "huge": ValueError("x" * 50_000_000),
    "hostile": type("Hostile", (Exception,), {"__str__": lambda self: 1 / 0, "__repr__": lambda self: 1 / 0})(),
    "discard": Discard("\x00\ud800" * 10_000),
    "dead": Dead("\x00\ud800" * 10_000),
    "group": ExceptionGroup("many", [ValueError("\x00" * 100) for _ in range(1000)]),
}


class TestUnstorable:
    """A job's own words can't keep it, or its neighbours, from ending (PE-02, PE-04, PE-05)."""

    def test_each_ends_in_its_state_within_one_attempt_and_its_neighbours_are_unaffected_pe_02(
        self, conn, queue, server_log
    ):
        """PE-02, PE-05: nothing of it even reaches the server as an error."""

        @both(queue, "nasty")
        def nasty(payload, job):
            if payload == "deep":
                return nasty(payload, job)
            raise NASTY[payload]

        both(queue, "good")(lambda payload, job: {"x": "\x00\ud800", "nan": float("nan")})
        ids = {}
        for prefix in ("", "a_"):
            for name in (*NASTY, "deep"):
                ids[prefix, name] = queue.enqueue(f"{prefix}nasty", name).id
                queue.enqueue(f"{prefix}good")
        drain(queue)
        expected = {"discard": "failed", "dead": "dead"}
        for (_, name), one in ids.items():
            found = row(conn, one)
            assert (found.status, found.attempts) == (expected.get(name, "pending"), 1), name
            [kept] = history(conn, one)
            assert kept.error_type != "OutcomeRefused"
            assert len(kept.traceback or "") + len(kept.message) + len(found.last_error) < 20_000
        for kind in ("good", "a_good"):
            assert states(conn, kind) == {"succeeded": len(ids) // 2}
        assert rows(conn, "select distinct result from redrive.jobs where kind like '%%good'") == [
            {"result": {"x": "��", "nan": None}}
        ]
        assert server_log.errors() == []

    def test_after_two_hundred_attempts_the_row_is_still_small_pe_05(self, conn, queue):
        """PE-05: recursion with a message of a megabyte, again and again."""

        @queue.handler("k", max_attempts=200)
        def deep(payload, job):
            try:
                return deep.function(payload, job)
            except RecursionError:
                raise RuntimeError("x" * 1_000_000) from None

        conn.execute("""
            create function public.at_once() returns trigger language plpgsql as $$
            begin
                if new.status = 'pending' then new.run_at = now(); end if;
                return new;
            end $$;
            create trigger at_once before update on redrive.jobs for each row execute function public.at_once()
        """)
        one = queue.enqueue("k").id
        drain(queue)
        assert (row(conn, one).status, row(conn, one).attempts) == ("dead", 200)
        [size] = rows(conn, "select pg_column_size(j.*) as bytes from redrive.jobs j")
        assert size["bytes"] < 64_000
        [sizes] = rows(conn, "select count(*) as n, max(pg_column_size(f.*)) as bytes from redrive.failures f")
        assert sizes["n"] == 200
        assert sizes["bytes"] < 64_000


class TestOddRows:
    """A row that a stranger wrote ends in plain sight, and no other waits for it (CN-07)."""

    @pytest.mark.parametrize(
        ("payload", "columns", "ends"),
        [
            ("7", {}, "dead"),
            ("null", {}, "dead"),
            ('"text"', {}, "dead"),
            ("[1, 2]", {}, "dead"),
            ("9" * 5000, {}, "dead"),
            ('{"n": ' + "9" * 5000 + "}", {}, "dead"),
            ('{"n": 1e400}', {}, "succeeded"),
            ('{"n": ' + "[" * 600 + "]" * 600 + "}", {}, "succeeded"),
            ('{"n": ' + "[" * 5000 + "]" * 5000 + "}", {}, "dead"),
            (f'{{"n": "\\u0001{ODD}"}}', {}, "succeeded"),
            ('{"n": 1}', {"run_at": "-infinity"}, "succeeded"),
            ('{"n": 1}', {"created_at": "infinity"}, "succeeded"),
            ('{"n": 1}', {"attempts": -(2**31)}, "succeeded"),
            ('{"n": 1}', {"attempts": 2**31 - 1}, "dead"),
            ('{"n": 1}', {"claims": 2**31 - 1}, "succeeded"),
            ('{"n": 1}', {"max_attempts": 0}, "dead"),
            ('{"n": 1}', {"expires_at": "-infinity"}, "dead"),
            ('{"n": 1}', {"lane": "\t{\"'}"}, "succeeded"),
            ('{"n": 1}', {"metadata": "7"}, "succeeded"),
            ('{"n": 1}', {"progress": "[]", "result": "7", "crashes": -5}, "succeeded"),
        ],
        ids=lambda value: value[:12] if isinstance(value, str) else "".join(value),
    )
    def test_twenty_others_complete_beside(self, conn, queue, payload, columns, ends):
        """CN-07."""

        @both(queue, "k")
        def reads(payload, job):
            assert job.idempotency_key
            return type(payload["n"]).__name__

        odd = [plain_insert(conn, kind, payload, **{"max_attempts": 1, **columns}) for kind in ("k", "a_k")]
        others = [plain_insert(conn, kind, '{"n": 1}') for kind in ("k", "a_k") for _ in range(10)]
        drain(queue)
        found = {one["id"]: one for one in rows(conn, "select id, status, last_error from redrive.jobs")}
        assert {found[one]["status"] for one in others} == {"succeeded"}
        assert [found[one]["status"] for one in odd] == [ends, ends]
        assert all(found[one]["last_error"] for one in odd if ends == "dead")

    def test_a_priority_out_of_range_is_refused_by_the_table(self, conn):
        with pytest.raises(psycopg.errors.CheckViolation):
            plain_insert(conn, "k", priority=10)


class TestOrder:
    @pytest.mark.parametrize("kind", ["k", "a_k"])
    def test_lower_priorities_run_first_and_the_oldest_of_each_first(self, conn, queue, kind):
        ran = []
        both(queue, "k")(lambda payload, job: ran.append(job.id))
        expected = {}
        for number in range(30):
            one = queue.enqueue(kind, priority=(number * 7) % 10).id
            expected[one] = ((number * 7) % 10, one)
        drain(queue, concurrency=1)
        assert ran == sorted(expected, key=expected.__getitem__)

    def test_a_flood_of_one_kind_does_not_keep_another_waiting(self, conn, queue):
        """A thousand exports were there first; the mails are through long before they are."""
        order = []
        queue.handler("export")(lambda payload: order.append("export"))
        queue.handler("mail")(lambda payload: order.append("mail"))
        queue.enqueue_many("export", range(1000))
        queue.enqueue_many("mail", range(20))
        drain(queue, concurrency=2)
        assert len(order) == 1020
        assert max(place for place, kind in enumerate(order) if kind == "mail") < 500

    def test_behind_a_flood_of_important_jobs_the_last_priority_runs_once_it_has_waited_a_minute(self, conn, queue):
        """CL-07: the flood is not over by then."""
        order = []

        @queue.handler("urgent")
        def urgent(payload):
            time.sleep(0.004)  # so that no claim takes much of it ahead
            order.append("urgent")

        queue.handler("late")(lambda payload: order.append("late"))
        queue.enqueue_many("urgent", range(150), priority=0)
        plain_insert(conn, "late", priority=9, run_at=datetime.now(UTC) - timedelta(seconds=61))
        drain(queue, concurrency=1)
        assert len(order) == 151
        assert order.index("late") < 75


class TestCancel:
    def test_a_pending_job_is_cancelled_at_once_and_never_runs(self, conn, queue):
        ran = []
        both(queue, "k")(lambda payload, job: ran.append(payload))
        ids = [queue.enqueue(kind, key=kind).id for kind in ("k", "a_k")]
        assert queue.cancel(*ids, reason="ordered by mistake") == dict.fromkeys(ids, "pending")
        drain(queue)
        assert ran == []
        for one in ids:
            found = row(conn, one)
            assert (found.status, found.last_error, found.key) == ("failed", "cancelled: ordered by mistake", None)

    def test_a_running_job_is_stopped_async_by_cancellation_and_sync_by_should_stop(self, conn, queue):
        cleaned, started = [], threading.Semaphore(0)

        @queue.handler("sync")
        def sync(payload, job):
            started.release()
            while not job.should_stop:
                time.sleep(0.01)
            cleaned.append("sync")

        @queue.handler("async")
        async def coroutine(payload):
            started.release()
            try:
                await asyncio.sleep(30)
            finally:
                cleaned.append("async")

        ids = [queue.enqueue(kind, key=kind).id for kind in ("sync", "async")]
        with working(queue):
            for _ in ids:
                assert started.acquire(timeout=10)
            assert queue.cancel(*ids) == dict.fromkeys(ids, "running")
            for one in ids:
                found = until_state(conn, one, "failed")
                assert found.last_error.startswith("cancelled")
                assert (found.key, found.attempts) == (None, 1)
        assert sorted(cleaned) == ["async", "sync"]

    def test_a_cancel_that_comes_while_the_job_succeeds_leaves_one_clear_end(self, conn, queue):
        """Whoever is first wins, and what is said is what happened."""
        done = []
        both(queue, "k")(lambda payload, job: done.append(job.id))
        with working(queue, concurrency=4):
            ids = []
            for number in range(60):
                ids.append(queue.enqueue(("k", "a_k")[number % 2]).id)
                queue.cancel(ids[-1])
            _until(lambda: not set(states(conn)) & {"pending", "running"})
        for one in ids:
            found = row(conn, one)
            if one in done:
                assert found.status == "succeeded"
            else:
                assert (found.status, found.claims) == ("failed", 0)
                assert found.last_error == "cancelled"
        assert len(done) == len(set(done))


class TestComplete:
    """job.complete(): the handler's own writes and the job's success are one commit."""

    @pytest.fixture(autouse=True)
    def ledger(self, conn):
        conn.execute("create table public.ledger (job_id bigint, attempt int)")

    def entries(self, conn: psycopg.Connection) -> list[tuple[int, int]]:
        return [(one["job_id"], one["attempt"]) for one in rows(conn, "select * from public.ledger order by attempt")]

    def test_committed(self, db, conn, queue):
        seen = []

        @queue.handler("k")
        def pays(payload, job):
            with psycopg.connect(db) as own:
                own.execute("insert into public.ledger values (%s, %s)", [job.id, job.attempt])
                job.complete(own, {"paid": True})
                seen.append(row(conn, job.id).status)

        one = queue.enqueue("k").id
        drain(queue)
        assert seen == ["running"], "not before the commit"
        assert (row(conn, one).status, row(conn, one).result) == ("succeeded", {"paid": True})
        assert self.entries(conn) == [(one, 1)]

    def test_rolled_back_the_job_is_tried_again_and_its_writes_are_there_once(self, db, conn, queue):
        @queue.handler("k", backoff=SOON)
        def pays(payload, job):
            with psycopg.connect(db) as own:
                own.execute("insert into public.ledger values (%s, %s)", [job.id, job.attempt])
                job.complete(own)
                if job.attempt == 1:
                    raise ConnectionError("after complete, before the commit")
                if job.attempt == 2:
                    own.rollback()

        one = queue.enqueue("k").id
        for _ in range(3):
            drain(queue)
            due_now(conn, one)
        assert (row(conn, one).status, row(conn, one).attempts) == ("succeeded", 3)
        assert self.entries(conn) == [(one, 3)]
        kept = history(conn, one)
        assert [each.error_type for each in kept] == ["ConnectionError", "RuntimeError"]
        assert "not committed" in kept[1].message

    def test_an_error_after_the_commit_does_not_run_the_job_again(self, db, conn, queue):
        @queue.handler("k", backoff=SOON)
        def pays(payload, job):
            with psycopg.connect(db) as own:
                own.execute("insert into public.ledger values (%s, %s)", [job.id, job.attempt])
                job.complete(own)
            raise RuntimeError("too late")

        one = queue.enqueue("k").id
        drain(queue)
        assert (row(conn, one).status, row(conn, one).attempts) == ("succeeded", 1)
        assert (self.entries(conn), history(conn, one)) == ([(one, 1)], [])

    def test_on_an_async_connection(self, db, conn, queue):
        @queue.handler("k")
        async def pays(payload, job):
            async with await psycopg.AsyncConnection.connect(db) as own:
                await own.execute("insert into public.ledger values (%s, %s)", [job.id, job.attempt])
                await job.complete(own, "paid")

        one = queue.enqueue("k").id
        drain(queue)
        assert (row(conn, one).status, row(conn, one).result) == ("succeeded", "paid")
        assert self.entries(conn) == [(one, 1)]

    def test_a_job_that_another_has_taken_cannot_be_completed(self, db, conn, queue):
        """CR-05: the user's transaction hears of it and rolls back."""

        @queue.handler("k")
        def pays(payload, job):
            conn.execute("update redrive.jobs set claims = claims + 1, locked_by = 'there:2:ghijkl'")
            with psycopg.connect(db) as own:
                own.execute("insert into public.ledger values (%s, %s)", [job.id, job.attempt])
                job.complete(own)

        one = queue.enqueue("k").id
        drain(queue)
        assert (row(conn, one).status, row(conn, one).locked_by) == ("running", "there:2:ghijkl")
        assert self.entries(conn) == []


class TestProgress:
    def test_progress_is_seen_while_the_job_runs_and_its_last_word_stays(self, conn, queue):
        go_on = threading.Event()

        @queue.handler("k")
        def works(payload, job):
            job.progress({"done": 1, "of": 3})
            job.progress({"done": 2, "of": 3})
            assert go_on.wait(15)
            job.progress({"done": 3, "of": 3})

        one = queue.enqueue("k").id
        with working(queue):
            _until(lambda: row(conn, one).progress == {"done": 2, "of": 3})
            assert row(conn, one).status == "running"
            go_on.set()
            assert until_state(conn, one, "succeeded").progress == {"done": 3, "of": 3}


class TestIdempotency:
    def test_the_key_is_the_same_at_every_attempt_and_differs_between_jobs(self, conn, queue):
        """UN-07."""
        keys: dict[int, list[str]] = {}

        @both(queue, "k", backoff=SOON, max_attempts=3)
        def presents(payload, job: ClaimedJob):
            keys.setdefault(job.id, []).append(job.idempotency_key)
            raise ValueError

        for kind in ("k", "a_k", "k"):
            queue.enqueue(kind)
        with working(queue):
            _until(lambda: states(conn) == {"dead": 3})
        assert [len(each) for each in keys.values()] == [3, 3, 3]
        assert len({key for each in keys.values() for key in each}) == 3


@pytest.mark.parametrize(("kind", "refused"), [("größe", False), ("大", True)])
def test_a_kind_that_the_database_cannot_spell_is_refused_at_the_start(server_url, kind, refused):
    """PE-02: a database in LATIN1; every claim would fail over it."""
    with support.database(server_url, "template0 encoding 'LATIN1' lc_collate 'C' lc_ctype 'C'") as dsn:
        migrate(dsn)
        queue = Queue(dsn)
        queue.handler("plain")(lambda payload: None)
        queue.handler(kind)(lambda payload: None)
        queue.enqueue("plain")
        if refused:
            with pytest.raises(InvalidOption, match=r"大.*LATIN1.*UTF8"):
                queue.run(once=True)
        else:
            queue.run(once=True)
        queue.close()
        with psycopg.connect(dsn) as conn:
            found = conn.execute("select status from redrive.jobs").fetchone()
        assert found == ("pending" if refused else "succeeded",)
