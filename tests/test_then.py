"""What follows a job: enqueued by its success, in the same commit, and by nothing else."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

import isolated_app
from redrive import ClaimedJob, Dead, InvalidOption, InvalidPayload, Queue, Retry
from redrive.ended import Ended
from redrive.outcome import Finished, Succeeded, parameters
from redrive.statements import named, run
from redrive.testing import run_pending
from support_engine import drain, due_now, history, row


@pytest.fixture
def queue(db):
    queue = Queue(db)
    queue.handler("next", priority=2, max_attempts=7)(lambda payload: None)
    yield queue
    queue.close()


def followers(conn: psycopg.Connection, kind: str = "next") -> list[Any]:
    """The payloads of what followed, in the order of their ids."""
    found = conn.execute("select payload from redrive.jobs where kind = %s order by id", [kind]).fetchall()
    return [payload for (payload,) in found]


def test_success_enqueues_what_is_to_follow_in_its_order_and_as_its_handler_says(conn, queue):
    @queue.handler("first")
    def first(payload: Any, job: ClaimedJob) -> str:
        job.then("next", {"number": 1})
        job.then(queue.handlers.demand("next"), {"number": 2}, priority=7, lane="a", delay=60, expires_in=3600)
        job.then("unknown to this queue")
        return "done"

    number = queue.enqueue("first").id
    drain(queue, kinds=("first",))
    assert (row(conn, number).status, row(conn, number).result) == ("succeeded", "done")
    assert followers(conn) == [{"number": 1}, {"number": 2}]
    assert followers(conn, "unknown to this queue") == [{}]
    found = conn.execute(
        "select priority, max_attempts, lane, run_at > now() + interval '50 s', expires_at > now() + interval '50 min' "
        "from redrive.jobs where kind = 'next' order by id"
    ).fetchall()
    assert found == [(2, 7, "", False, None), (7, 7, "a", True, True)]


def test_a_job_without_a_result_has_followers_too_also_of_an_async_handler(conn, queue):
    @queue.handler("first")
    async def first(payload: Any, job: ClaimedJob) -> None:
        job.then("next", {"from": payload["number"]})

    queue.enqueue_many("first", [{"number": number} for number in range(20)])
    drain(queue)
    assert sorted(each["from"] for each in followers(conn)) == list(range(20))
    assert conn.execute("select distinct status from redrive.jobs").fetchall() == [("succeeded",)]


@pytest.mark.parametrize("error", [ValueError("no"), Retry("later"), Dead("never")])
def test_a_try_that_fails_enqueues_nothing_and_the_one_that_succeeds_does_once(conn, queue, error):
    tries = []

    @queue.handler("first")
    def first(payload: Any, job: ClaimedJob) -> None:
        tries.append(job.attempt)
        job.then("next", {"try": job.attempt})
        if len(tries) == 1:
            raise error

    number = queue.enqueue("first").id
    drain(queue, kinds=("first",))
    assert followers(conn) == []
    queue.requeue(Ended(ids=[number])) if row(conn, number).status == "dead" else due_now(conn, number)
    drain(queue, kinds=("first",))
    assert (row(conn, number).status, len(tries), len(followers(conn))) == ("succeeded", 2, 1)


def test_what_could_not_be_enqueued_fails_the_try_where_it_is_said(conn, queue):
    said = [("next", {"when": object()}, {}), ("next", {}, {"priority": 12}), ("next", {}, {"prio": 1}), ("", {}, {})]
    errors = []

    @queue.handler("first")
    def first(payload: Any, job: ClaimedJob) -> None:
        for kind, value, options in said:
            with pytest.raises((InvalidOption, InvalidPayload, TypeError)) as caught:
                job.then(kind, value, **options)
            errors.append(str(caught.value))

    queue.enqueue("first")
    drain(queue)
    assert len(errors) == 4
    assert "when" in errors[0]
    assert "priority is 12" in errors[1]
    assert "prio" in errors[2]
    assert followers(conn) == []


def test_a_key_lives_once_and_a_job_may_hand_its_own_on(conn, queue):
    """UN-01 in spirit: a duplicate is no error."""

    @queue.handler("first")
    def first(payload: Any, job: ClaimedJob) -> None:
        job.then("next", {"of": "own"}, key="own")
        job.then("next", {"of": "lives"}, key="lives")
        job.then("next", {"of": "twice"}, key="twice")
        job.then("next", {"of": "twice again"}, key="twice")

    queue.enqueue("other", key="lives")
    number = queue.enqueue("first", key="own").id
    drain(queue, kinds=("first",))
    assert row(conn, number).status == "succeeded"
    assert followers(conn) == [{"of": "own"}, {"of": "twice"}]


class TestComplete:
    def test_what_follows_is_part_of_the_users_own_commit(self, db, conn, queue):
        @queue.handler("first")
        def first(payload: Any, job: ClaimedJob) -> None:
            with psycopg.connect(db) as own:
                job.then("next", {"paid": True})
                job.complete(own)
                with pytest.raises(RuntimeError, match=r"before job\.complete"):
                    job.then("next")
                assert followers(conn) == []

        queue.enqueue("first")
        drain(queue, kinds=("first",))
        assert followers(conn) == [{"paid": True}]

    def test_where_that_is_rolled_back_nothing_follows(self, db, conn, queue):
        @queue.handler("first")
        def first(payload: Any, job: ClaimedJob) -> None:
            with psycopg.connect(db) as own:
                job.then("next")
                job.complete(own)
                own.rollback()

        number = queue.enqueue("first").id
        drain(queue, kinds=("first",))
        assert (row(conn, number).status, followers(conn)) == ("pending", [])
        assert "was not committed" in history(conn, number)[0].message


def test_a_handler_in_a_child_process_says_the_same(db, conn, monkeypatch):
    monkeypatch.setattr(isolated_app.queue, "settings", replace(isolated_app.queue.settings, database_url=db))
    isolated_app.queue.enqueue("followed")
    drain(isolated_app.queue, kinds=("followed",))
    isolated_app.queue.close()
    isolated_app.queue._pool = None
    assert followers(conn) == [{"from": "a child"}]


def test_in_a_test_of_the_users_what_follows_runs_as_well(db, queue):
    ran = []
    queue.handler("last")(ran.append)

    @queue.handler("first")
    def first(payload: Any, job: ClaimedJob) -> None:
        job.then("last", {"after": "first"})

    with psycopg.connect(db) as own:
        queue.enqueue("first", connection=own)
        run_pending(queue, own, until_empty=True)
    assert ran == [{"after": "first"}]


def test_a_worker_that_sleeps_is_not_woken_by_jobs_that_are_followed_by_nothing(conn, queue):
    """The trigger of the wake-up is a statement's, and fires also where that inserts no row."""
    conn.execute("create table fired (at timestamptz default clock_timestamp())")
    body = "begin insert into fired default values; return null; end"
    conn.execute(f"create function fire() returns trigger language plpgsql as $$ {body} $$")
    conn.execute("create trigger fire before insert on redrive.jobs for each statement execute function fire()")

    @queue.handler("first")
    def first(payload: Any, job: ClaimedJob) -> None:
        raise ValueError("no")

    queue.enqueue("first")
    conn.execute("truncate fired")
    drain(queue)
    assert conn.execute("select count(*) from fired").fetchone() == (0,)


def test_batches_whose_followers_have_the_same_keys_crosswise_are_no_deadlock(db, conn, server_log):
    """Two workers write at the same time what followed; whoever is second finds the keys taken."""
    conn.execute(
        """create function redrive.slow() returns trigger language plpgsql as
        $$ begin perform pg_sleep(0.15); return new; end $$;
        create trigger slow before insert on redrive.jobs for each row when (new.key is not null)
        execute function redrive.slow();
        insert into redrive.jobs (kind, status, attempts, claims, locked_by, locked_at)
        select 'first', 'running', 1, 1, 'w', now() from generate_series(1, 4)"""
    )
    plain = {"priority": 5, "max_attempts": 5, "lane": "", "delay": 0}
    follow = {key: json.dumps({"kind": "next", "payload": "{}", "key": key, **plain}) for key in "ab"}

    def write(jobs: dict[int, str]) -> None:
        ended = [
            Finished(SimpleNamespace(id=job, claim=1), Succeeded(None, (follow[key],)), 0.1)
            for job, key in jobs.items()
        ]
        with psycopg.connect(db, autocommit=True) as own:
            run(own, named("finish_jobs", "redrive", worker="w", max_crashes=3, **parameters(ended)))

    with ThreadPoolExecutor() as both:
        list(both.map(write, [{1: "a", 2: "b"}, {3: "b", 4: "a"}]))
    assert server_log.errors() == []
    assert conn.execute("select key from redrive.jobs where key is not null order by key").fetchall() == [
        ("a",),
        ("b",),
    ]
