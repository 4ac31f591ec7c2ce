"""What a key means: which jobs count, for how long, and what becomes of one that waits (UN-03, UN-06)."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from redrive import ClaimedJob, InvalidOption, Queue, Retry, Snooze
from redrive.ended import Ended
from redrive.failure import describe
from redrive.job import Holder
from redrive.lanes import HEAD
from redrive.outcome import Finished, Retried, parameters
from redrive.reaper import OWN_NAME
from redrive.statements import named, run
from support import wait_for
from support_engine import claim_of, drain, row, states

ONES = ("until finished", "while pending")


@pytest.fixture
def queue(db):
    made = Queue(db)
    yield made
    made.close()


def set_state(conn: psycopg.Connection, job: int, state: str) -> None:
    conn.execute(
        "update redrive.jobs set status = %s, key = case when %s then null else key end where id = %s",
        [state, state in ("dead", "failed"), job],
    )


@pytest.mark.parametrize(
    ("state", "scope", "made"),
    [
        ("pending", "until finished", False),
        ("running", "until finished", False),
        ("pending", "while pending", False),
        ("running", "while pending", True),
        *((state, scope, True) for state in ("succeeded", "failed", "dead") for scope in ONES),
    ],
)
def test_which_jobs_of_a_key_count_is_said_by_the_newcomer_un_06(conn, queue, state, scope, made):
    first = queue.enqueue("sync", {"n": 1}, key="k")
    set_state(conn, first.id, state)
    second = queue.enqueue("sync", {"n": 2}, key="k", unique=scope)
    assert second.created is made
    assert (second.id == first.id) is not made
    assert row(conn, first.id).payload == {"n": 1}


class TestPeriod:
    def test_one_that_has_succeeded_counts_for_a_while(self, conn, queue):
        first = queue.enqueue("digest", key="k", unique_for=3600)
        set_state(conn, first.id, "succeeded")
        again = queue.enqueue("digest", key="k", unique_for=timedelta(hours=1))
        assert (again.id, again.created) == (first.id, False)
        conn.execute("update redrive.jobs set created_at = now() - interval '61 minutes'")
        assert queue.enqueue("digest", key="k", unique_for=3600).created

    def test_one_that_died_frees_the_key_un_04(self, conn, queue):
        first = queue.enqueue("digest", key="k", unique_for=3600)
        set_state(conn, first.id, "dead")
        assert queue.enqueue("digest", key="k", unique_for=3600).created

    def test_one_that_waits_or_runs_counts_however_old_it_is(self, conn, queue):
        first = queue.enqueue("digest", key="k")
        conn.execute("update redrive.jobs set created_at = '2020-01-01'")
        assert queue.enqueue("digest", key="k", unique_for=60).id == first.id


class TestReplace:
    def test_one_that_waits_gets_the_newest_payload_and_keeps_its_time(self, conn, queue):
        first = queue.enqueue("index", {"rev": 1}, key="doc:1", delay=600)
        before = row(conn, first.id).run_at
        second = queue.enqueue("index", {"rev": 2}, key="doc:1", priority=1, on_conflict="replace")
        assert (second.id, second.created, second.replaced) == (first.id, False, True)
        after = row(conn, first.id)
        assert (after.payload, after.priority, after.run_at) == ({"rev": 2}, 1, before)

    def test_one_that_was_to_be_tried_again_has_all_its_tries_for_the_new_payload(self, conn, queue):
        first = queue.enqueue("index", {"rev": 1}, key="doc:1")
        conn.execute("update redrive.jobs set attempts = 4")
        queue.enqueue("index", {"rev": 2}, key="doc:1", on_conflict="replace")
        assert row(conn, first.id).attempts == 0

    def test_debounced_it_waits_anew_each_time(self, conn, queue):
        first = queue.enqueue("index", {"rev": 1}, key="doc:1", delay=30, on_conflict="debounce")
        conn.execute("update redrive.jobs set run_at = now() + interval '1 s'")
        second = queue.enqueue("index", {"rev": 2}, key="doc:1", delay=30, on_conflict="debounce")
        assert (second.id, second.replaced) == (first.id, True)
        [(wait,)] = conn.execute("select extract(epoch from run_at - now())::float8 from redrive.jobs").fetchall()
        assert wait == pytest.approx(30, abs=5)

    def test_while_one_runs_the_newest_is_a_job_of_its_own_and_not_lost(self, conn, queue):
        first = queue.enqueue("index", {"rev": 1}, key="doc:1")
        set_state(conn, first.id, "running")
        second = queue.enqueue("index", {"rev": 2}, key="doc:1", on_conflict="replace")
        third = queue.enqueue("index", {"rev": 3}, key="doc:1", on_conflict="replace")
        assert (second.created, third.created, third.id) == (True, False, second.id)
        assert row(conn, second.id).payload == {"rev": 3}


class TestMerge:
    """UN-03: what comes back to waiting beside its successor is merged into it, and nothing else is touched."""

    @pytest.fixture
    def pair(self, conn, queue):
        def make(how: Any) -> tuple[int, int]:
            """Run a job that is superseded while it runs and ends by *how*; gives it and its successor."""
            made: list[int] = []

            @queue.handler("sync")
            def sync(payload: Any, job: ClaimedJob) -> None:
                if not made:
                    made.append(queue.enqueue("sync", key="k", unique="while pending", delay=600).id)
                    how(job)

            first = queue.enqueue("sync", key="k").id
            drain(queue)
            return first, made[0]

        return make

    @pytest.mark.parametrize("verdict", [Retry("later", after=1), Snooze(1), ValueError("no")])
    def test_one_that_would_be_tried_again_ends_as_failed_with_the_reason(self, conn, pair, verdict):
        def raises(_job: ClaimedJob) -> None:
            raise verdict

        first, second = pair(raises)
        assert row(conn, first).status == "failed"
        assert row(conn, first).last_error.startswith("cancelled: superseded by a job with the same key")
        assert (row(conn, second).status, row(conn, second).key) == ("pending", "k")

    def test_one_that_succeeds_has_succeeded(self, conn, pair):
        first, second = pair(lambda _job: None)
        assert (row(conn, first).status, row(conn, second).status) == ("succeeded", "pending")

    @pytest.mark.parametrize("way", ["reaped", "handed back"])
    def test_one_whose_worker_is_lost_is_not_taken_back_beside_it_and_fifty_others_are_un_03(self, conn, queue, way):
        first = queue.enqueue("sync", key="k").id
        others = [queue.enqueue("sync").id for _ in range(50)]
        claimed = run(
            conn,
            named(
                "claim_jobs",
                "redrive",
                worker="gone:1:aaaaaa",
                kinds=["sync"],
                priorities=[5],
                lanes=[""],
                quotas=[100],
                limit=100,
                starts=["-infinity"],
                start_ids=[HEAD[1]],
                ends=[],
                end_ids=[],
            ),
        )
        assert len(claimed) == 51
        second = queue.enqueue("sync", key="k", unique="while pending").id
        judge = {"own_name": OWN_NAME, "judge": "me", "orphaned": ["gone:1:aaaaaa"], "lease": 0.0, "foreign_age": 0.0}
        conn.execute(
            "update redrive.jobs set locked_at = now() - interval '1 hour', updated_at = now() - interval '1 hour'"
        )
        if way == "reaped":
            run(conn, named("reap_jobs", "redrive", max_crashes=3, kinds=[], **judge))
        else:
            run(conn, named("hand_back_mislaid", "redrive", worker="gone:1:aaaaaa", known=[]))
        assert row(conn, first).status == "failed"
        assert row(conn, first).last_error.startswith("cancelled: superseded by a job with the same key")
        assert {row(conn, job).status for job in (second, *others)} == {"pending"}
        assert states(conn) == {"pending": 51, "failed": 1}

    def test_what_was_superseded_can_be_sent_back_and_runs(self, conn, queue, pair):
        def raises(_job: ClaimedJob) -> None:
            raise ValueError("no")

        first, _ = pair(raises)
        queue.requeue(Ended(ids=[first], statuses=("failed",)))
        drain(queue)
        assert row(conn, first).status == "succeeded"

    @pytest.mark.parametrize("edited", [False, True])
    def test_what_was_superseded_and_is_sent_back_is_tried_again_as_any_other(self, conn, queue, pair, edited):
        """It has no successor any more that would do its work: ended at its first failure it would be forgotten."""

        def raises(_job: ClaimedJob) -> None:
            raise ValueError("no")

        first, _ = pair(raises)
        if edited:
            assert queue.requeues.edit(first, {"n": 1})
        else:
            queue.requeue(Ended(ids=[first], statuses=("failed",)))
        holder = Holder("here:1:abcdef", "redrive")
        [job] = run(conn, claim_of(holder, [("sync", 5, "")], 9, 9))
        batch = [Finished(job, Retried(describe(ValueError("not yet")), 0.0), 0.1)]
        run(conn, named("finish_jobs", "redrive", worker=holder.name, max_crashes=3, **parameters(batch)))
        assert (row(conn, first).status, row(conn, first).attempts) == ("pending", 1)

    def test_what_died_by_its_last_try_may_be_sent_back_by_the_tutorials_statement(self, conn, queue, pair):
        def raises(job: ClaimedJob) -> None:
            job.max_attempts = 1
            raise ValueError("no")

        first, _ = pair(raises)
        assert row(conn, first).status == "dead"
        conn.execute("update redrive.jobs set status = 'pending', attempts = 0 where status = 'dead'")
        assert not row(conn, first).superseded


def test_eight_at_once_make_one_job_and_the_last_payload_stands_un_01(db, conn, queue):
    queue.enqueue("index", {"rev": -1}, key="doc:1")
    errors: list[BaseException] = []

    def add(number: int) -> None:
        own = Queue(db)
        try:
            for turn in range(20):
                own.enqueue("index", {"rev": number * 100 + turn}, key="doc:1", on_conflict="replace")
        except psycopg.Error as error:
            errors.append(error)
        finally:
            own.close()

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert states(conn) == {"pending": 1}
    [(payload,)] = conn.execute("select payload from redrive.jobs").fetchall()
    assert payload["rev"] % 100 == 19


def test_no_newest_payload_is_lost_while_workers_run_them(db, conn, queue):
    """Each enqueue is run by a try that began after it."""
    seen: list[int] = []
    queue.handler("index")(lambda payload: seen.append(payload["rev"]))
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            queue.run(once=True, poll=1)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for rev in range(150):
            queue.enqueue("index", {"rev": rev}, key="doc:1", on_conflict="replace")
        wait_for(lambda: seen and seen[-1] == 149, 20)
    finally:
        stop.set()
        worker.join(30)
    assert seen == sorted(seen)
    assert states(conn).keys() == {"succeeded"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"unique": "for ever", "key": "k"}, "unique is 'for ever': must be one of 'until finished', 'while pending'"),
        ({"on_conflict": "merge", "key": "k"}, "on_conflict is 'merge'"),
        ({"on_conflict": "debounce", "key": "k"}, "on_conflict='debounce' needs a delay"),
        ({"unique": "while pending"}, "give a key"),
        ({"unique_for": 60}, "give a key"),
        ({"unique_for": 0, "key": "k"}, "unique_for is 0 s"),
        ({"on_conflict": "replace", "unique": "until finished", "key": "k"}, "the newest payload would be lost"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(conn, queue, options, said):
    with pytest.raises(InvalidOption, match=said.replace("(", r"\(").replace("*", r"\*")):
        queue.enqueue("sync", **options)
    assert states(conn) == {}


def test_many_at_once_and_what_follows_have_a_key_and_no_more(queue):
    with pytest.raises(InvalidOption, match="unique is for one job: enqueue each by itself"):
        queue.enqueue_many("sync", [{}], key=lambda _: "k", unique="while pending")


def test_async_code_has_the_same(queue):
    async def scenario() -> None:
        first = await queue.enqueue_async("sync", key="k")
        second = await queue.enqueue_async("sync", {"n": 2}, key="k", on_conflict="replace")
        assert (second.id, second.replaced) == (first.id, True)

    asyncio.run(scenario())


def test_in_a_transaction_of_the_callers_it_is_one_with_it(db, conn, queue):
    first = queue.enqueue("sync", {"n": 1}, key="k")
    with psycopg.connect(db) as own:
        queue.enqueue("sync", {"n": 2}, key="k", on_conflict="replace", connection=own)
        own.rollback()
    assert row(conn, first.id).payload == {"n": 1}
