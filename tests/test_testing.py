"""The users' test kit: everything through the real table, in the test's own transaction, by a worker's rules. OR-07."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY

import psycopg
import pytest

from redrive import Dead, Discard, InvalidOption, InvalidPayload, LeaseLost, Queue, RedriveError, Retry, Snooze, testing
from redrive.backoff import fixed
from redrive.events import JobDied, JobEvent, JobRetried, JobStarted, JobSucceeded, subscribe
from redrive.testing import (
    assert_enqueued,
    assert_enqueued_async,
    clock,
    connected,
    enqueued,
    enqueued_async,
    run_pending,
    run_pending_async,
)


@pytest.fixture
def queue(db: str) -> Iterator[Queue]:
    queue = Queue(db)
    yield queue
    queue.close()


@pytest.fixture
def tx(db: str) -> Iterator[psycopg.Connection]:
    """A connection in a transaction that is rolled back, as an application's tests have it."""
    with psycopg.connect(db) as connection:
        yield connection
        connection.rollback()


def outcomes(results: list[testing.Result]) -> list[str]:
    return [result.outcome for result in results]


def row(connection: psycopg.Connection, job: int) -> Any:
    cursor = connection.cursor(row_factory=psycopg.rows.namedtuple_row)
    return cursor.execute("select * from redrive.jobs where id = %s", (job,)).fetchone()


def history(connection: psycopg.Connection, job: int) -> list[Any]:
    cursor = connection.cursor(row_factory=psycopg.rows.namedtuple_row)
    return cursor.execute("select * from redrive.failures where job_id = %s order by id", (job,)).fetchall()


# -- one transaction


def test_a_job_enqueued_in_the_tests_transaction_runs_in_it_and_a_rollback_leaves_nothing(queue, tx, conn):
    """OR-01: in the transaction the id is known at once; outside of it there never was a job."""
    tx.execute("create table public.mails (address text)")

    @queue.handler("send_email")
    def send_email(payload):
        tx.execute("insert into public.mails values (%s)", (payload["to"],))

    job = queue.enqueue("send_email", {"to": "ada@example.com"}, connection=tx)
    [result] = run_pending(queue, tx)
    assert (result.id, result.kind, result.attempt) == (job.id, "send_email", 1)
    assert (result.outcome, result.status, result.error) == ("succeeded", "succeeded", None)
    assert tx.execute("select address from public.mails").fetchall() == [("ada@example.com",)]
    assert conn.execute("select count(*) from redrive.jobs").fetchone() == (0,), "seen from outside"
    tx.rollback()
    assert conn.execute("select to_regclass('public.mails'), count(*) from redrive.jobs").fetchone() == (None, 0)


def test_it_commits_on_an_autocommit_connection_as_everything_there_does(queue, conn, db):
    queue.handler("work")(lambda payload: payload["n"])
    queue.enqueue("work", {"n": 7}, connection=conn)
    assert outcomes(run_pending(queue, conn)) == ["succeeded"]
    with psycopg.connect(db) as other:
        assert other.execute("select status, result from redrive.jobs").fetchall() == [("succeeded", 7)]


def test_without_a_connection_the_queues_own_is_taken(queue, conn):
    queue.handler("work")(lambda: None)
    queue.enqueue("work")
    assert outcomes(run_pending(queue)) == ["succeeded"]
    assert [job.status for job in enqueued(queue)] == ["succeeded"]


def test_a_force_rolled_back_block_of_psycopg_does_as_well(queue, conn):
    queue.handler("work")(lambda: None)
    with conn.transaction(force_rollback=True):
        queue.enqueue("work", connection=conn)
        assert outcomes(run_pending(queue, conn)) == ["succeeded"]
    assert enqueued(queue) == []


def test_rows_that_sql_wrote_count_as_much(queue, tx):
    """A plain INSERT, the SQL function, the tutorial's requeue: all of it in the transaction of the test."""
    queue.handler("send_email")(lambda payload: None)
    tx.execute("SET LOCAL search_path TO redrive, public")
    tx.execute("INSERT INTO jobs (kind, payload) VALUES ('send_email', '{\"n\": 1}')")
    tx.execute("SELECT enqueue('send_email', '{\"n\": 2}')")
    tx.execute("INSERT INTO jobs (kind, status, attempts, last_error) VALUES ('send_email', 'dead', 5, 'SMTPError')")
    tx.execute(
        "UPDATE jobs SET status = 'pending', attempts = 0, run_at = NOW(), last_error = NULL, updated_at = NOW() "
        "WHERE status = 'dead' AND kind = 'send_email'"
    )
    assert outcomes(run_pending(queue, tx)) == ["succeeded"] * 3


def test_sql_that_fails_in_a_handler_takes_back_what_that_handler_wrote_and_nothing_else(queue, tx):
    tx.execute("create table public.seen (n int primary key)")

    @queue.handler("insert", backoff=fixed(60))
    def insert(payload):
        tx.execute("insert into public.seen values (%s)", (payload["n"],))
        tx.execute("insert into public.seen values (%s)", (payload["n"] % 2,))

    jobs = [queue.enqueue("insert", {"n": n}, connection=tx).id for n in (2, 3, 5)]
    assert outcomes(run_pending(queue, tx)) == ["succeeded", "succeeded", "retried"]
    assert tx.execute("select n from public.seen order by n").fetchall() == [(0,), (1,), (2,), (3,)]
    assert "UniqueViolation" in row(tx, jobs[2]).last_error


def test_sql_that_fails_and_is_swallowed_costs_the_handler_its_writes_only(queue, tx):
    @queue.handler("careless")
    def careless():
        try:
            tx.execute("select 1 / 0")
        except psycopg.Error:
            return "went on"

    job = queue.enqueue("careless", connection=tx)
    assert outcomes(run_pending(queue, tx)) == ["succeeded"]
    assert row(tx, job.id).result == "went on"


def test_a_handlers_own_transaction_block_nests(queue, tx):
    tx.execute("create table public.seen (n int)")

    @queue.handler("pay", backoff=fixed(60))
    def pay():
        with tx.transaction():
            tx.execute("insert into public.seen values (1)")
            raise ConnectionError("no answer")

    queue.enqueue("pay", connection=tx)
    assert outcomes(run_pending(queue, tx)) == ["retried"]
    assert tx.execute("select count(*) from public.seen").fetchone() == (0,)


def test_a_commit_in_a_handler_can_not_spoil_the_tests_rollback(queue, tx):
    queue.handler("commits")(lambda payload: tx.commit())
    queue.enqueue("commits", connection=tx)
    with pytest.raises(psycopg.ProgrammingError, match="commit"):
        run_pending(queue, tx, raise_errors=True)


# -- as the real thing


def test_a_failure_is_retried_by_the_handlers_own_back_off_and_dies_with_its_budget(queue, tx):
    """OR-07: retry, back-off and run_at hold, and the clock is the test's to move."""
    died: list[JobDied] = []

    @queue.handler("flaky", max_attempts=3, backoff=lambda attempt: 100 * attempt, on_dead=died.append)
    def flaky(payload):
        raise ConnectionError("421 try again later")

    job = queue.enqueue("flaky", key="welcome:1", connection=tx)
    with clock(tx) as c:
        [result] = run_pending(queue, tx)
        assert (result.outcome, result.status) == ("retried", "pending")
        assert isinstance(result.error, ConnectionError)
        assert run_pending(queue, tx) == [], "not due"
        c.move(seconds=99)
        assert run_pending(queue, tx) == [], "not quite due"
        c.move(seconds=1)
        assert outcomes(run_pending(queue, tx)) == ["retried"]
        c.move(timedelta(seconds=200))
        [result] = run_pending(queue, tx)
    assert (result.outcome, result.status, result.attempt) == ("died", "dead", 3)
    found = row(tx, job.id)
    assert (found.attempts, found.key, found.locked_by, found.crashes) == (3, None, None, 0)
    assert found.last_error.endswith("ConnectionError: 421 try again later")
    assert [(one.attempt, one.outcome) for one in history(tx, job.id)] == [(1, "retried"), (2, "retried"), (3, "dead")]
    assert history(tx, job.id)[2].key == "welcome:1"
    assert [event.id for event in died] == [job.id]


def test_a_traceback_begins_in_the_handler(queue, tx):
    @queue.handler("fails", max_attempts=1)
    def fails():
        raise KeyError("user")

    @queue.handler("fails_async", max_attempts=1)
    async def fails_async():
        raise KeyError("user")

    for kind in ("fails", "fails_async"):
        job = queue.enqueue(kind, connection=tx)
        run_pending(queue, tx)
        [failure] = history(tx, job.id)
        assert failure.traceback.splitlines()[1].lstrip().startswith(f'File "{__file__}"'), failure.traceback


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Retry("later", after=30), ("retried", "pending", 1)),
        (Snooze(30), ("snoozed", "pending", 0)),
        (Discard("not wanted"), ("failed", "failed", 1)),
        (Dead("ask a human"), ("died", "dead", 1)),
        (SystemExit(1), ("crashed", "pending", 0)),
    ],
)
def test_what_a_handler_says_is_obeyed(queue, tx, verdict, expected):
    @queue.handler("says")
    def says():
        raise verdict

    job = queue.enqueue("says", connection=tx)
    [result] = run_pending(queue, tx, raise_errors=not isinstance(verdict, SystemExit))
    assert result.error is verdict
    assert result.status == row(tx, job.id).status
    assert (result.outcome, result.status, row(tx, job.id).attempts) == expected


def test_payloads_are_serialised_and_typed_as_in_production_or_07(queue, tx):
    """OR-07: what JSON can't hold is refused at the enqueue, and a handler gets what its annotation says."""

    @dataclass
    class Mail:
        to: str
        copies: int = 1

    got = []
    Mail.__module__ = __name__
    globals()["Mail"] = Mail  # annotations are looked up in the module

    @queue.handler("mail", max_attempts=1)
    def mail(payload: Mail):
        got.append(payload)

    with pytest.raises(InvalidPayload, match=r"payload\.when"):
        queue.enqueue("mail", {"when": datetime.now(UTC)}, connection=tx)
    queue.enqueue("mail", Mail("ada@example.com", 2), connection=tx)
    queue.enqueue("mail", {"to": 5}, connection=tx)
    assert outcomes(run_pending(queue, tx)) == ["succeeded", "died"]
    assert got == [Mail("ada@example.com", 2)]


def test_one_live_job_a_key_until_it_has_run(queue, tx):
    """OR-07: unique keys hold."""
    queue.handler("welcome")(lambda: None)
    first = queue.enqueue("welcome", key="welcome:42", connection=tx)
    again = queue.enqueue("welcome", key="welcome:42", connection=tx)
    assert (again.id, again.created) == (first.id, False)
    assert len(run_pending(queue, tx)) == 1
    assert queue.enqueue("welcome", key="welcome:42", connection=tx).created


def test_jobs_run_by_priority_and_then_by_time(queue, tx):
    ran = []
    for kind in ("a", "b"):
        queue.handler(kind)(lambda payload: ran.append(payload["n"]))
    for n, (kind, priority) in enumerate([("b", 5), ("a", 5), ("b", 1), ("a", 9), ("b", 5)]):
        queue.enqueue(kind, {"n": n}, priority=priority, lane=f"tenant {n}", connection=tx)
    run_pending(queue, tx)
    assert ran == [2, 0, 1, 4, 3]


def test_however_many_lanes_there_are_each_is_served(queue, tx):
    queue.handler("export")(lambda: None)
    tx.execute(
        "insert into redrive.jobs (kind, lane) select 'export', 'customer ' || n from generate_series(1, 1200) n"
    )
    assert outcomes(run_pending(queue, tx)) == ["succeeded"] * 1200


def test_a_delayed_job_waits_for_its_time_and_an_expired_one_dies_in_plain_sight(queue, tx):
    queue.handler("remind")(lambda: None)
    reminder = queue.enqueue("remind", delay=timedelta(days=3), connection=tx)
    hopeless = queue.enqueue("remind", delay=3600, expires_in=60, connection=tx)
    late = queue.enqueue("nobody knows me", expires_in=60, connection=tx)
    with clock(tx) as c:
        assert run_pending(queue, tx) == []
        c.move(minutes=2)
        results = run_pending(queue, tx)
        assert sorted((one.id, one.outcome) for one in results) == [(hopeless.id, "died"), (late.id, "died")]
        assert all("deadline" in one.reason for one in results)
        c.move_to(row(tx, reminder.id).run_at)
        assert [one.id for one in run_pending(queue, tx)] == [reminder.id]


def test_only_what_is_due_at_the_call_runs_and_with_until_empty_what_it_enqueues_as_well(queue, tx):
    @queue.handler("first")
    def first():
        queue.enqueue("second")

    @queue.handler("second")
    def second():
        queue.enqueue_many("third", [{}, {}])
        queue.enqueue("third", delay=60)

    queue.handler("third")(lambda: None)
    queue.enqueue("first", connection=tx)
    assert [one.kind for one in run_pending(queue, tx)] == ["first"]
    assert [one.kind for one in run_pending(queue, tx, until_empty=True)] == ["second", "third", "third"]
    assert [job.kind for job in enqueued(queue, status="pending", connection=tx)] == ["third"]
    tx.rollback()
    assert enqueued(queue) == [], "what handlers enqueued on the queue's own connection was in the transaction, too"


def test_a_job_that_enqueues_itself_without_end_is_told_from_one_that_ends(queue, tx):
    @queue.handler("again")
    def again():
        queue.enqueue("again")

    queue.enqueue("again", connection=tx)
    with pytest.raises(RedriveError, match=r"25 tries .* 'again', attempt 1 of 5.*until_empty"):
        run_pending(queue, tx, until_empty=True, at_most=25)
    assert len(enqueued(queue, status="pending", connection=tx)) == 1, "handed back"


def test_kinds_can_be_chosen_and_unknown_ones_wait_as_ever(queue, tx):
    for kind in ("mail", "export"):
        queue.handler(kind)(lambda: None)
    for kind in ("mail", "export", "of another service"):
        queue.enqueue(kind, connection=tx)
    assert [one.kind for one in run_pending(queue, tx, kinds=["export"])] == ["export"]
    assert [one.kind for one in run_pending(queue, tx)] == ["mail"]
    with pytest.raises(RedriveError, match="no handler for kind 'of another service'"):
        run_pending(queue, tx, kinds=["of another service"])


def test_a_queue_without_handlers_is_a_forgotten_import(db, tx):
    with pytest.raises(InvalidOption, match="import the modules that register them"):
        run_pending(Queue(db), tx)


def test_errors_come_out_when_asked_for_and_are_recorded_first(queue, tx):
    @queue.handler("breaks")
    def breaks():
        raise ZeroDivisionError("a bug")

    queue.handler("works")(lambda: None)
    broken = queue.enqueue("breaks", priority=0, connection=tx)
    other = queue.enqueue("works", connection=tx)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        run_pending(queue, tx, raise_errors=True)
    assert (row(tx, broken.id).status, row(tx, broken.id).attempts) == ("pending", 1)
    assert (row(tx, other.id).status, row(tx, other.id).attempts) == ("pending", 0), "handed back as if never claimed"
    assert outcomes(run_pending(queue, tx)) == ["succeeded"]


def test_what_is_meant_for_the_test_itself_is_never_swallowed(queue, tx):
    """pytest.fail() in a fake, Ctrl-C in a handler: no outcome of a job."""

    @queue.handler("fake")
    def fake():
        pytest.fail("must not be called")

    @queue.handler("fake_async")
    async def fake_async():
        raise KeyboardInterrupt

    queue.enqueue("fake", connection=tx)
    with pytest.raises(pytest.fail.Exception, match="must not be called"):
        run_pending(queue, tx, kinds=["fake"])
    queue.enqueue("fake_async", connection=tx)
    with pytest.raises(KeyboardInterrupt):
        run_pending(queue, tx, kinds=["fake_async"])


def test_listeners_hear_what_they_hear_in_production(queue, tx):
    heard: list[JobEvent] = []

    @queue.handler("flaky", backoff=fixed(5))
    def flaky(payload, job):
        if job.attempt == 1:
            raise OSError("down")

    queue.enqueue("flaky", connection=tx)
    end = subscribe(heard.append, JobEvent)
    try:
        with clock(tx) as c:
            run_pending(queue, tx)
            c.move(minutes=1)
            run_pending(queue, tx)
    finally:
        end()
    assert [type(one) for one in heard] == [JobStarted, JobRetried, JobStarted, JobSucceeded]
    assert heard[1].error == "OSError: down"
    assert heard[1].delay == 5


def test_progress_and_result_are_stored_and_the_key_stays_the_same_from_try_to_try(queue, tx):
    """UN-07: the idempotency key is the job's, not the attempt's."""
    keys = []

    @queue.handler("export", backoff=fixed(5))
    def export(payload, job):
        keys.append(job.idempotency_key)
        job.progress({"page": job.attempt})
        if job.attempt == 1:
            raise OSError("disk full")
        return {"pages": 2}

    job = queue.enqueue("export", connection=tx)
    with clock(tx) as c:
        run_pending(queue, tx)
        c.move(seconds=5)
        run_pending(queue, tx)
    assert (row(tx, job.id).progress, row(tx, job.id).result) == ({"page": 2}, {"pages": 2})
    assert len(set(keys)) == 1
    assert "OSError: disk full" in row(tx, job.id).last_error, "kept after success"


def test_complete_is_part_of_the_handlers_own_block(queue, tx):
    @queue.handler("pay", max_attempts=2, backoff=fixed(5))
    def pay(payload, job):
        with tx.transaction():
            job.complete(tx, {"paid": True})
            if job.attempt == 1:
                raise psycopg.Rollback  # the block is undone, and with it the success

    job = queue.enqueue("pay", connection=tx)
    with clock(tx) as c:
        [result] = run_pending(queue, tx)
        assert result.outcome == "retried"
        assert "complete() was called" in result.reason
        c.move(seconds=10)
        assert outcomes(run_pending(queue, tx)) == ["succeeded"]
    assert row(tx, job.id).result == {"paid": True}


def test_a_job_that_something_else_ended_meanwhile_is_lost_and_left_as_it_is(queue, tx):
    @queue.handler("by hand")
    def by_hand(payload, job):
        tx.execute("UPDATE redrive.jobs SET status='succeeded', updated_at=NOW() WHERE id=%s", (job.id,))
        with pytest.raises(LeaseLost):
            job.complete(tx)

    job = queue.enqueue("by hand", connection=tx)
    [result] = run_pending(queue, tx)
    assert (result.outcome, result.status) == ("lost", "")
    assert row(tx, job.id).status == "succeeded"


def test_a_timeout_stops_an_async_handler_and_tells_a_sync_one(queue, tx):
    """CR-14: the sync handler can't be stopped; it sees should_stop, and nothing else starts before it returns."""

    @queue.handler("slow_async", timeout=0.05, max_attempts=1)
    async def slow_async():
        await asyncio.sleep(30)

    @queue.handler("slow", timeout=0.05, max_attempts=1)
    def slow(payload, job):
        end = time.monotonic() + 30
        while not job.should_stop and time.monotonic() < end:
            time.sleep(0.005)

    for kind in ("slow_async", "slow"):
        queue.enqueue(kind, connection=tx)
    results = run_pending(queue, tx)
    assert outcomes(results) == ["died", "died"]
    assert all("passed its timeout of 0.05 s" in one.reason for one in results)
    queue.enqueue("slow_async", connection=tx)
    with pytest.raises(RuntimeError, match="passed its timeout"):
        run_pending(queue, tx, raise_errors=True)


def test_a_hook_that_fails_is_logged_or_raised(queue, tx, caplog):
    def hook(event):
        raise ValueError("the pager is down")

    @queue.handler("dies", on_dead=hook)
    def dies():
        raise Dead("now")

    queue.enqueue("dies", connection=tx)
    assert outcomes(run_pending(queue, tx)) == ["died"]
    assert "on_dead of kind dies raised" in caplog.text
    queue.enqueue("dies", connection=tx)
    with pytest.raises(ValueError, match="pager"):
        run_pending(queue, tx, raise_errors=True)


# -- async


def test_async_handlers_run_in_a_sync_test_and_share_one_loop(queue, tx):
    loops = set()

    @queue.handler("fetch")
    async def fetch(payload):
        await asyncio.sleep(0)
        loops.add(id(asyncio.get_running_loop()))
        await queue.enqueue_async("store", payload, key=f"store:{payload['n']}")
        await queue.enqueue_many_async("store", [{"n": 0}])

    queue.handler("store")(lambda payload: payload["n"])
    queue.enqueue_many("fetch", [{"n": 1}, {"n": 2}], connection=tx)
    results = run_pending(queue, tx, until_empty=True)
    assert [one.kind for one in results] == ["fetch"] * 2 + ["store"] * 4
    assert len(loops) == 1
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_the_sync_kit_works_inside_a_running_loop(queue, tx):
    threads = []

    @queue.handler("fetch")
    async def fetch():
        await asyncio.sleep(0)
        threads.append(threading.current_thread())

    queue.handler("plain")(lambda: threads.append(threading.current_thread()))

    async def test() -> list[testing.Result]:
        queue.enqueue("fetch", connection=tx)
        queue.enqueue("plain", connection=tx)
        return run_pending(queue, tx)

    assert outcomes(asyncio.run(test())) == ["succeeded"] * 2
    assert threads[0] is not threading.main_thread()
    assert threads[1] is threading.main_thread()


def test_an_async_test_has_the_same_on_an_async_connection(queue, db, conn):
    used: list[psycopg.AsyncConnection] = []

    @queue.handler("fetch", backoff=fixed(60))
    async def fetch(payload, job):
        await queue.enqueue_async("store", {"n": 1})
        await job.complete(used[0], "done")

    @queue.handler("store", max_attempts=2, backoff=fixed(60))
    def store(payload, job):
        queue.enqueue("last", {"of": job.id})
        assert queue.get(job.id).status == "running"
        raise OSError("once")

    queue.handler("last")(lambda: None)

    async def test() -> None:
        async with await psycopg.AsyncConnection.connect(db) as connection, clock(connection) as c:
            used.append(connection)
            await queue.enqueue_async("fetch", connection=connection)
            results = await run_pending_async(queue, connection, until_empty=True)
            assert [(one.kind, one.outcome) for one in results] == [
                ("fetch", "succeeded"),
                ("store", "retried"),
                ("last", "succeeded"),
            ]
            await c.move(minutes=1)
            with pytest.raises(OSError, match="once"):
                await run_pending_async(queue, connection, raise_errors=True)
            await assert_enqueued_async(queue, "last", times=2, connection=connection)
            with pytest.raises(AssertionError, match="was not enqueued"):
                await assert_enqueued_async(queue, "lost", connection=connection)
            [dead] = await enqueued_async(queue, status="dead", connection=connection)
            await c.move_to(dead.updated_at + timedelta(days=1))
            assert await c.now() > dead.updated_at
            await connection.rollback()

    asyncio.run(test())
    assert conn.execute("select count(*) from redrive.jobs").fetchone() == (0,)


def test_failed_sql_is_contained_on_an_async_connection_too(queue, db):
    async def test() -> None:
        async with await psycopg.AsyncConnection.connect(db) as connection:

            @queue.handler("breaks", max_attempts=1)
            async def breaks():
                await connection.execute("select 1 / 0")

            await queue.enqueue_async("breaks", connection=connection)
            [result] = await run_pending_async(queue, connection)
            assert (result.outcome, result.status) == ("died", "dead")
            await connection.rollback()

    asyncio.run(test())


def test_a_test_that_is_cancelled_stops_its_handler_and_no_job_is_judged(queue, db):
    begun, stopped = asyncio.Event(), []

    @queue.handler("hangs")
    async def hangs():
        begun.set()
        try:
            await asyncio.sleep(30)
        finally:
            stopped.append(True)

    async def test() -> None:
        async with await psycopg.AsyncConnection.connect(db) as connection:
            await queue.enqueue_async("hangs", connection=connection)
            running = asyncio.create_task(run_pending_async(queue, connection))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await connection.rollback()

    asyncio.run(test())
    assert stopped == [True]


def test_the_wrong_sort_of_connection_is_told_what_to_use(queue, db, tx):
    queue.handler("work")(lambda: None)

    @queue.handler("blocks")
    async def blocks():
        queue.enqueue("work")

    async def test() -> None:
        async with await psycopg.AsyncConnection.connect(db) as connection:
            with pytest.raises(TypeError, match=r"psycopg.AsyncConnection, .*with _async"):
                run_pending(queue, connection)
            with pytest.raises(TypeError, match=r"psycopg.Connection, .*without _async"):
                await run_pending_async(queue, tx)
            await queue.enqueue_async("blocks", connection=connection)
            with pytest.raises(TypeError, match="use enqueue_async"):
                await run_pending_async(queue, connection, raise_errors=True)
            await connection.rollback()

    asyncio.run(test())
    with pytest.raises(TypeError, match="pass psycopg's own"):
        run_pending(queue, object())


# -- the queue on the test's connection


def test_connected_the_application_enqueues_into_the_tests_transaction_whatever_it_passes(queue, tx, conn):
    handler = queue.handler("work")(lambda payload: None)
    with connected(queue, tx):
        queue.enqueue("work", {"n": 1})
        handler.enqueue({"n": 2})
        queue.enqueue_many("work", [{"n": 3}, {"n": 4}])
        asyncio.run(queue.enqueue_async("work", {"n": 5}))
        queue.close()
        assert_enqueued(queue, handler, times=5)
        assert conn.execute("select count(*) from redrive.jobs").fetchone() == (0,)
        assert len(run_pending(queue)) == 5
        assert queue.get(enqueued(queue)[0].id).status == "succeeded"
        with connected(queue, conn):
            assert enqueued(queue) == []
        assert len(enqueued(queue)) == 5
    assert "enqueue_async" not in vars(queue)
    queue.enqueue("work", {"n": 6})
    assert conn.execute("select payload from redrive.jobs").fetchall() == [({"n": 6},)]


def test_connected_a_failed_enqueue_leaves_the_connection_open(queue, tx):
    with connected(queue, tx):
        with pytest.raises(InvalidPayload):
            queue.enqueue("work", {"n": float("nan")})
        queue.enqueue("work")
        assert_enqueued(queue, "work")


def test_many_payloads_at_once_do_not_end_the_tests_transaction(queue, tx, conn):
    with connected(queue, tx):
        assert queue.enqueue_many("work", ({"n": n} for n in range(12_000))) == 12_000
    tx.rollback()
    assert conn.execute("select count(*) from redrive.jobs").fetchone() == (0,)


# -- what was enqueued


def test_assert_enqueued_finds_a_job_by_part_of_its_payload_and_gives_it_back(queue, tx):
    job = queue.enqueue(
        "send_email", {"to": "ada@example.com", "data": {"n": 1, "tags": ["a"]}}, key="welcome:1", connection=tx
    )
    [found] = assert_enqueued(queue, "send_email", payload={"to": "ada@example.com"}, connection=tx)
    assert (found.id, found.key) == (job.id, "welcome:1")
    assert_enqueued(queue, "send_email", payload={"data": {"tags": ["a"]}}, key="welcome:1", times=1, connection=tx)
    assert_enqueued(queue, "send_email", payload={"to": ANY}, status="pending", connection=tx)
    assert_enqueued(queue, "send_email", payload={"to": "bob@example.com"}, times=0, connection=tx)
    for wrong in ({"data": {"tags": ["a", "b"]}}, {"bcc": ANY}, [], "ada@example.com", {"data": {"tags": {}}}):
        with pytest.raises(AssertionError):
            assert_enqueued(queue, "send_email", payload=wrong, connection=tx)


def test_a_demand_that_fails_shows_what_was_enqueued_instead(queue, tx):
    queue.enqueue("export", {"n": 1}, connection=tx)
    first = queue.enqueue("send_email", {"to": "ada@example.com"}, key="welcome:1", connection=tx)
    with pytest.raises(AssertionError) as failed:
        assert_enqueued(queue, "send_email", payload={"to": "bob@example.com"}, connection=tx)
    lines = str(failed.value).splitlines()
    assert lines[:3] == [
        'send_email {"to": "bob@example.com"} was not enqueued',
        "there are:",
        f'  #{first.id} send_email {{"to": "ada@example.com"}} key=\'welcome:1\' pending',
    ]
    assert "export" in lines[3]
    queue.enqueue_many("send_email", [{}] * 30, connection=tx)
    with pytest.raises(AssertionError, match=r"was enqueued 31 times, not 2\nthere are:\n(?s:.*)and 12 more"):
        assert_enqueued(queue, "send_email", times=2, connection=tx)


def test_a_demand_on_an_empty_table_says_so(queue, tx):
    with pytest.raises(AssertionError, match="send_email was not enqueued 2 times\nno job was"):
        assert_enqueued(queue, "send_email", times=2, connection=tx)


def test_jobs_stay_enqueued_when_they_have_run(queue, tx):
    queue.handler("work")(lambda: None)
    queue.enqueue("work", connection=tx)
    run_pending(queue, tx)
    assert_enqueued(queue, "work", times=1, connection=tx)
    assert_enqueued(queue, "work", status="pending", times=0, connection=tx)


# -- the clock


def test_the_clock_is_the_sessions_and_is_put_back(queue, tx, conn):
    with clock(tx) as outer:
        before = outer.now()
        outer.move(hours=2)
        with clock(tx) as inner:
            inner.move(days=-1)
            assert timedelta(hours=-23) < inner.now() - before < timedelta(hours=-21)
        assert timedelta(hours=2) <= outer.now() - before < timedelta(hours=2, minutes=5)
        [(elsewhere,)] = conn.execute("select redrive.clock()").fetchall()
        assert elsewhere - before < timedelta(minutes=5)
    assert abs(tx.execute("select redrive.clock() - now()").fetchone()[0]) < timedelta(minutes=5)


def test_the_clock_does_not_hide_the_error_that_broke_the_transaction(tx):
    def break_it() -> None:
        with clock(tx) as c:
            c.move(hours=1)
            tx.execute("select 1 / 0")

    with pytest.raises(psycopg.errors.DivisionByZero):
        break_it()
    tx.rollback()
    assert abs(tx.execute("select redrive.clock() - now()").fetchone()[0]) < timedelta(minutes=5)


def test_another_installation_is_tested_the_same(empty_db):
    from redrive.migrate import migrate  # noqa: PLC0415

    migrate(empty_db, "my-Queue")
    queue = Queue(empty_db, schema="my-Queue")
    queue.handler("work")(lambda: None)
    with psycopg.connect(empty_db) as tx, clock(tx) as c:
        queue.enqueue("work", delay=60, connection=tx)
        c.move(minutes=1)
        assert outcomes(run_pending(queue, tx)) == ["succeeded"]


def test_the_kit_needs_no_pytest():
    block = "import sys; sys.modules['pytest'] = None; import redrive.testing"
    assert subprocess.run([sys.executable, "-c", block], check=False).returncode == 0
