"""Jobs that were enqueued together, and what follows when the last of them has ended."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest

from engine import Inside
from redrive import ClaimedJob, Dead, Discard, InvalidOption, InvalidPayload, Queue
from redrive.statements import named, run
from support import wait_for
from support_engine import drain, states


@pytest.fixture
def queue(db):
    queue = Queue(db)
    queue.handler("page")(page)
    yield queue
    queue.close()


def page(payload: Any) -> None:
    if payload.get("ends"):
        raise {"dead": Dead("no"), "failed": Discard("no")}[payload["ends"]]


def followers(conn: psycopg.Connection) -> list[Any]:
    found = conn.execute("select payload from redrive.jobs where kind = 'report' order by id").fetchall()
    return [payload for (payload,) in found]


def test_when_the_last_has_ended_what_follows_is_told_how(conn, queue):
    with queue.batches.open("report", {"month": "May"}, name="may", priority=2, delay=60) as batch:
        batch.enqueue("page", {"number": 1})
        dead = batch.enqueue("page", {"ends": "dead"}).id
        assert batch.enqueue_many("page", [{"ends": "failed"}, {"number": 2}, {}]) == 3
    drain(queue)
    assert followers(conn) == [
        {
            "batch": batch.id,
            "name": "may",
            "jobs": 5,
            "succeeded": 3,
            "failed": 1,
            "dead": [dead],
            "payload": {"month": "May"},
        }
    ]
    found = conn.execute(
        "select priority, run_at > now() + interval '50 s', batch from redrive.jobs where kind = 'report'"
    )
    assert found.fetchall() == [(2, True, None)]
    [state] = queue.batches.list()
    assert (state.name, state.kind, state.jobs, state.succeeded, state.failed, state.dead) == (
        "may",
        "report",
        5,
        3,
        1,
        1,
    )
    assert queue.batches.list(ended=False) == []


def test_nothing_follows_while_one_is_to_be_tried_again(conn, queue):
    tries = []

    @queue.handler("slow", backoff=lambda _attempt: 3600)
    def slow(payload: Any) -> None:
        tries.append(payload)
        if len(tries) == 1:
            raise ValueError("again")

    with queue.batches.open("report") as batch:
        batch.enqueue("slow")
        batch.enqueue("page")
    drain(queue)
    assert followers(conn) == []
    [state] = queue.batches.list(ended=False)
    assert (state.jobs, state.succeeded, state.ended_at) == (2, 1, None)
    conn.execute("update redrive.jobs set run_at = now() where kind = 'slow'")
    drain(queue)
    assert [each["succeeded"] for each in followers(conn)] == [2]


def test_a_batch_is_whole_or_not_at_all(conn, queue):
    def fill() -> None:
        with queue.batches.open("report") as batch:
            batch.enqueue("page")
            batch.enqueue_many("page", [{}] * 10)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fill()
    assert (states(conn), queue.batches.list()) == ({}, [])


def test_in_a_transaction_of_the_callers_it_is_part_of_that(db, conn, queue):
    with psycopg.connect(db) as own:
        with queue.batches.open("report", connection=own) as batch:
            batch.enqueue("page")
        assert queue.batches.list() == []
        own.rollback()
    assert queue.batches.list() == []
    with psycopg.connect(db) as own, queue.batches.open("report", connection=own) as batch:
        batch.enqueue("page")
    drain(queue)
    assert len(followers(conn)) == 1


def test_an_empty_batch_is_over_at_once(conn, queue):
    with queue.batches.open("report"):
        pass
    drain(queue)
    assert [(each["jobs"], each["dead"]) for each in followers(conn)] == [(0, [])]


@pytest.mark.parametrize("rest", [0.2, 2.0])
def test_a_worker_that_runs_once_runs_what_follows_too(conn, queue, monkeypatch, rest):
    """Also where a look for ended batches is dear, and followed by a pause of some seconds."""
    monkeypatch.setattr("redrive.batcher.SHORTEST", rest)
    ran = []
    queue.handler("report")(ran.append)
    with queue.batches.open("report") as batch:
        batch.enqueue_many("page", [{}] * 20)
    queue.run(once=True)
    assert [each["succeeded"] for each in ran] == [20]
    assert queue.batches.list(ended=False) == []


def test_of_many_workers_one_ends_it_and_idle_ones_need_no_push(db, conn):
    queues, ran = [Queue(db, poll=1) for _ in range(3)], []
    for queue in queues:
        queue.handler("page")(page)
        queue.handler("report")(ran.append)
    with Inside(*queues):
        for _ in range(10):
            with queues[0].batches.open("report") as batch:
                batch.enqueue_many("page", [{}] * 10)
        wait_for(lambda: len(ran) == 10, 30)
        wait_for(lambda: states(conn) == {"succeeded": 110}, 10)
    assert sorted(each["batch"] for each in ran) == sorted({each["batch"] for each in ran})
    for queue in queues:
        queue.close()


def test_one_whose_follower_the_database_refuses_is_complained_of_and_holds_up_no_other_cn_07(conn, queue):
    conn.execute("alter table redrive.jobs add constraint ours_alone check (kind <> 'refused')")
    queue.handler("report")(lambda payload: None)
    batches = []
    for follower in ("report", "refused", "report"):
        with queue.batches.open(follower) as batch:
            batch.enqueue("page")
        batches.append(batch.id)
    with Inside(queue, poll=0.5) as inside:
        wait_for(lambda: states(conn) == {"succeeded": 5})
        wait_for(lambda: f"what follows batch {batches[1]} is refused" in inside.worker.complaints())
        assert inside.worker.ailment() == ""  # a restart would mend nothing
        assert [batch.id for batch in queue.batches.list(ended=False)] == [batches[1]]


def test_two_at_once_end_it_once(db, conn, queue):
    with queue.batches.open("report") as batch:
        batch.enqueue("page")
    conn.execute("update redrive.jobs set status = 'succeeded'")
    go = threading.Barrier(4)

    def end() -> None:
        with psycopg.connect(db, autocommit=True) as own:
            go.wait(20)
            run(own, named("end_batches", "redrive", ids=[batch.id]))

    threads = [threading.Thread(target=end) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(followers(conn)) == 1


def test_a_job_with_a_key_that_lives_is_no_part_of_it(conn, queue):
    queue.enqueue("page", key="k", delay=3600)
    with queue.batches.open("report") as batch:
        assert not batch.enqueue("page", key="k").created
        assert batch.enqueue("page", key="own", unique="while pending").created
    drain(queue)
    assert [each["jobs"] for each in followers(conn)] == [1]


def test_dead_jobs_that_are_sent_back_make_it_follow_no_second_time(conn, queue):
    with queue.batches.open("report") as batch:
        batch.enqueue("page", {"ends": "dead"})
    drain(queue)
    conn.execute("update redrive.jobs set status = 'pending', payload = '{}' where kind = 'page'")
    drain(queue)
    assert len(followers(conn)) == 1


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"then": ""}, InvalidOption),
        ({"then": "report", "payload": {"at": object()}}, InvalidPayload),
        ({"then": "report", "priority": 11}, InvalidOption),
        ({"then": "report", "key": "k"}, InvalidOption),
        ({"then": "report", "name": "a\0b"}, InvalidOption),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(queue, given, error):
    with pytest.raises(error), queue.batches.open(**given):
        pass
    assert queue.batches.list() == []


def test_async_code_has_the_same(conn, queue):
    async def scenario() -> None:
        async with queue.batches.open_async("report") as batch:
            await batch.enqueue("page")
            assert await batch.enqueue_many("page", [{}] * 3) == 3
        assert len(await queue.batches.list_async(ended=False)) == 1

    asyncio.run(scenario())
    drain(queue)
    assert [each["jobs"] for each in followers(conn)] == [4]


def test_what_follows_may_begin_the_next_stage(conn, queue):
    @queue.handler("report")
    def report(payload: Any, job: ClaimedJob) -> None:
        with queue.batches.open("last") as batch:
            batch.enqueue_many("page", [{}] * payload["succeeded"])

    with queue.batches.open("report") as batch:
        batch.enqueue_many("page", [{}] * 2)
    queue.run(once=True)
    assert conn.execute("select kind, count(*)::int from redrive.jobs group by kind order by kind").fetchall() == [
        ("last", 1),
        ("page", 4),
        ("report", 1),
    ]


class TestPartOfNone:
    """What is enqueued into a batch that is not there, or not open here, would be waited for by nobody."""

    @pytest.fixture
    def own(self, db):
        with psycopg.connect(db) as own:
            yield own

    def refused(self, call: Any) -> None:
        with pytest.raises(InvalidOption, match="no such batch was opened in this transaction"):
            call()

    def test_an_unknown_one_is_refused_on_every_way(self, conn, queue, own):
        for connection in (None, own):
            self.refused(lambda how={"connection": connection}: queue.enqueue("page", batch=77, **how))
            self.refused(lambda how={"connection": connection}: queue.enqueue("page", batch=77, key="k", **how))
            self.refused(lambda how={"connection": connection}: queue.enqueue_many("page", [1], batch=77, **how))
            self.refused(lambda how={"connection": connection}: queue.publish("t", batch=77, **how))
            self.refused(lambda how={"connection": connection}: queue.publish_many("t", [1], batch=77, **how))
        assert states(conn) == {}

    def test_from_async_code_too(self, conn, queue):
        for name, arguments in (
            ("enqueue", ["page"]),
            ("enqueue_many", ["page", [1]]),
            ("publish", ["t"]),
            ("publish_many", ["t", [1]]),
        ):
            self.refused(
                lambda name=name, arguments=arguments: asyncio.run(
                    getattr(queue, f"{name}_async")(*arguments, batch=77)
                )
            )
        assert states(conn) == {}

    def test_in_the_same_transaction_its_id_will_do(self, conn, queue, own):
        """Also where a savepoint opened it, which has a number of its own."""
        with queue.batches.open("report", connection=own) as batch:
            queue.enqueue("page", batch=batch.id, connection=own)
        queue.enqueue("page", batch=batch.id, connection=own)
        assert batch.enqueue_many("page", [1, 2]) == 2
        own.commit()
        assert conn.execute("select count(*) from redrive.jobs where batch = %s", [batch.id]).fetchone() == (4,)

    def test_after_its_commit_it_is_closed_ended_or_not(self, conn, queue, own):
        with queue.batches.open("report") as batch:
            batch.enqueue("page")
        self.refused(lambda: batch.enqueue("page"))
        self.refused(lambda: batch.enqueue_many("page", [1]))
        self.refused(lambda: queue.enqueue("page", batch=batch.id))
        self.refused(lambda: queue.enqueue("page", batch=batch.id, connection=own))
        drain(queue)
        own.rollback()
        self.refused(lambda: queue.enqueue("page", batch=batch.id, connection=own))
        assert states(conn) == {"succeeded": 1, "pending": 1} or len(followers(conn)) == 1

    def test_what_follows_a_job_is_part_of_none(self, queue):
        @queue.handler("first")
        def first(_payload: Any, job: ClaimedJob) -> None:
            job.then("page", batch=1)

        queue.enqueue("first", max_attempts=1)
        drain(queue)
        [job] = [queue.get(1)]
        assert job is not None
        assert "part of no batch" in (job.last_error or "")
