"""A worker that is busy, blocked or slow is not taken for dead, and what it is told through its heartbeat arrives."""

from __future__ import annotations

import asyncio
import threading
import time

import psycopg
import pytest

from engine import APP, Inside, failures, insert, row, status
from redrive import Queue, heartbeat
from redrive.errors import InvalidOption
from redrive.migrate import migrate
from support import database, wait_for

LEASE = 1.0


@pytest.fixture
def queue(db):
    queue = Queue(db, lease=LEASE)
    queue.handler("other")(lambda payload: None)
    yield queue
    queue.close()


@pytest.fixture
def judge(queue):
    """A peer that would take back what is orphaned, and knows none of the kinds that the tests run."""
    with Inside(queue) as inside:
        yield inside.worker


@pytest.fixture
def start(start_worker, effects):
    return lambda *flags: start_worker(APP, "--lease", str(LEASE), *flags, env=effects.env)


def problem(conn, worker):
    return conn.execute("select problem from redrive.workers where pid = %s", (worker.pid,)).fetchone()[0] or ""


def test_a_blocked_loop_and_a_busy_interpreter_are_not_death_and_are_told_cr_07(start, judge, conn, effects):
    """For three leases each; the line that blocks stands in the log, and the worker's row complains."""
    worker = start("--concurrency", "1")
    blocking = insert(conn, "block", '{"seconds": 3}')
    wait_for(lambda: effects.starts(blocking))
    busy = insert(conn, "spin", '{"seconds": 3}')
    wait_for(lambda: "the event loop is blocked" in problem(conn, worker))
    wait_for(lambda: status(conn, busy) == "succeeded", 15)
    assert status(conn, blocking) == "succeeded"
    assert (len(effects.starts(blocking)), len(effects.starts(busy))) == (1, 1)
    assert failures(conn, blocking) == failures(conn, busy) == []
    told = [line for line in worker.log().splitlines() if "event loop stood still" in line]
    assert [line.rpartition(" in ")[2] for line in told] == ["block", "spin"]
    wait_for(lambda: not problem(conn, worker))
    assert judge.reaper._sweep_at  # there was a judge


SEIZED = """

import ctypes


@queue.handler("seize", timeout=None)
async def seize(payload, job):
    note(job, "start")
    if job.claim == 1:
        ctypes.PyDLL(None).sleep(3)  # a call into C that does not let go of the interpreter
    note(job, "end")
"""


def test_a_c_call_that_holds_the_interpreter_longer_than_the_lease_ends_in_one_recorded_outcome_cr_07(
    start_worker, judge, conn, effects
):
    """Not even the heartbeat's thread can run: it is taken for dead, and what it says after that is not written."""
    workers = [start_worker(APP + SEIZED, "--lease", str(LEASE), env=effects.env) for _ in range(2)]
    wait_for(lambda: conn.execute("select count(*) from redrive.workers").fetchone()[0] == 3)
    job = insert(conn, "seize")
    wait_for(lambda: status(conn, job) == "succeeded", 20)
    wait_for(lambda: len(effects.ends(job)) == 2)  # the first too: at least once
    wait_for(lambda: any("was taken from this worker" in worker.log() for worker in workers))
    found = row(conn, job)
    assert (found.status, found.claims) == ("succeeded", 2)
    assert [each.error_type for each in failures(conn, job)] == ["WorkerLost"]
    assert {effect.pid for effect in effects.ends(job)} == {worker.pid for worker in workers}


OFF = """
import os, time

right = time.time
time.time = lambda: right() + float(os.environ["AHEAD"])
"""


@pytest.mark.slow
def test_jobs_ten_times_as_long_as_the_lease_run_once_without_any_setting_cr_06_cr_08_cr_13_ct_11(
    start_worker, judge, queue, conn, effects
):
    """And so does one that is due in ten leases: it is begun once by one of four, at its first attempt.

    The clocks of two of them are an hour ahead, those of the others and of who enqueues an hour behind.
    """
    for ahead in (3600, 3600, -3600, -3600):
        start_worker(OFF + APP, "--lease", str(LEASE), env={**effects.env, "AHEAD": str(ahead)})
    wait_for(lambda: conn.execute("select count(*) from redrive.workers").fetchone() == (5,), 20)
    jobs = [insert(conn, kind, '{"seconds": 10}') for kind in ("nap", "doze")]
    with pytest.MonkeyPatch.context() as patched:
        right = time.time
        patched.setattr(time, "time", lambda: right() - 3600)
        later = queue.enqueue("nap", delay=10).id
    wait_for(lambda: len(effects.starts()) == 2)
    slack = []

    def done():
        query = "select extract(epoch from min(heartbeat_at + lease) - clock_timestamp())::float8 from redrive.workers"
        slack.append(conn.execute(query).fetchone()[0])
        return all(status(conn, job) == "succeeded" for job in (*jobs, later))

    wait_for(done, 20)
    for job in (*jobs, later):
        assert [effect.attempt for effect in effects.starts(job)] == [1]
        assert row(conn, job).claims == 1
        assert failures(conn, job) == []
    waited = "select extract(epoch from at - created_at)::float8 from public.effects join redrive.jobs on id = job_id"
    assert 10 <= conn.execute(f"{waited} where id = %s and event = 'start'", [later]).fetchone()[0] < 11
    assert min(slack) > 0  # two of three beats may be missed, not three
    assert sorted(slack)[len(slack) // 100] > LEASE / 3


def test_a_heartbeat_too_slow_for_its_lease_is_refused_in_one_line_cr_06(db, conn, start_worker, effects):
    """In code, by flag and by variable alike; nothing was claimed by then."""
    for options in ({"lease": 2, "heartbeat": 2}, {"lease": 30, "heartbeat": 10.1}):
        with pytest.raises(InvalidOption, match="a lease must see three beats"):
            Queue(db, **options)
    assert Queue(db, lease=3, heartbeat=1).settings.beat_every == 1
    assert Queue(db).settings.beat_every == 10
    job = insert(conn, "nap")
    flagged = start_worker(APP, "--lease", "2", "--heartbeat", "1", env=effects.env)
    by_variable = start_worker(APP, "--lease", "2", env={**effects.env, "REDRIVE_HEARTBEAT": "1"})
    for worker in (flagged, by_variable):
        assert worker.process.wait(10) == 2
        [line] = worker.log().splitlines()
        assert "heartbeat is 1 s and lease 2 s" in line
    assert status(conn, job) == "pending"


def test_a_sync_job_past_its_timeout_keeps_slot_and_lease_until_it_returns_cr_14(start, judge, conn, effects):
    worker = start("--concurrency", "1")
    job = insert(conn, "stubborn", '{"seconds": 3}')
    wait_for(lambda: effects.starts(job))
    wait_for(lambda: "past its timeout" in problem(conn, worker))
    assert (status(conn, job), effects.ends(job)) == ("running", [])
    assert f"job {job} (stubborn)" in worker.log()
    wait_for(lambda: effects.ends(job))
    wait_for(lambda: status(conn, job) != "running")
    assert [effect.event for effect in effects.all(job=job)] == ["start", "end"]
    assert (status(conn, job), row(conn, job).attempts, row(conn, job).claims) == ("pending", 1, 1)
    assert [failure.error_type for failure in failures(conn, job)] == ["TimeoutError"]
    assert judge.reaper._sweep_at


def test_a_complaint_is_told_at_once_and_not_with_the_next_beat_op_08(db, conn):
    said = "select coalesce(problem, '') from redrive.workers"
    queue = Queue(db, lease=300)
    queue.handler("other")(lambda payload: None)
    with Inside(queue) as inside:
        wait_for(lambda: conn.execute(said).fetchone() == ("",))
        for trouble, told in (("it hangs", "requeuer loop: it hangs"), ("", "")):
            inside.worker.requeuer.trouble = trouble
            wait_for(lambda told=told: conn.execute(said).fetchone() == (told,), 5)
    queue.close()


def test_a_deleted_row_comes_back_with_the_next_beat(queue, judge, conn):
    judge.heartbeat.beats = 1
    conn.execute("delete from redrive.workers")
    [name, kinds, in_flight, pid, silent] = wait_for(
        lambda: conn.execute(
            "select name, kinds, in_flight, listener_pid, now() - heartbeat_at > lease from redrive.workers"
        ).fetchone()
    )
    assert (name, kinds, in_flight, pid, silent) == (judge.name, ["other"], 0, judge.listener.pid, False)


@pytest.mark.parametrize(
    ("encoding", "said"),
    [("UTF8", "\ufffd\ufffd \u65e5x"), ("LATIN1", r"\ufffd\ufffd \u65e5x")],
    ids=["UTF8", "LATIN1"],
)
def test_a_complaint_that_the_database_cannot_store_as_it_is_stops_no_heart_cn_07_pe_02(server_url, encoding, said):
    """Its worker would be taken for dead, and its jobs run elsewhere."""
    with database(server_url, f"template0 encoding '{encoding}' lc_collate 'C' lc_ctype 'C'") as dsn:
        migrate(dsn)
        queue = Queue(dsn, lease=LEASE)
        queue.handler("other")(lambda payload: None)
        with Inside(queue) as inside, psycopg.connect(dsn, autocommit=True, client_encoding="utf8") as conn:
            inside.worker.sweeper.trouble = "\x00\udcff\n\u65e5" + "x" * 100_000
            beats = inside.worker.heartbeat.beats
            wait_for(lambda: inside.worker.heartbeat.beats > beats + 1, 5)
            [(problem,)] = conn.execute("select problem from redrive.workers").fetchall()
            assert problem.startswith(f"sweeper loop: {said}")
            assert len(problem) < 2100
        queue.close()


def test_handlers_learn_that_the_lease_was_lost_and_async_ones_are_stopped_cr_05(queue, conn):
    """Whatever they say then is not written."""
    learned = []

    @queue.handler("sync", timeout=None)
    def sync(payload, job):
        while not job.should_stop:
            time.sleep(0.01)
        learned.append(("sync", job.lost))
        return "late"

    @queue.handler("async", timeout=None)
    async def asynchronous(payload, job):
        try:
            await asyncio.sleep(60)
        finally:
            learned.append(("async", job.lost))

    with Inside(queue) as inside:
        jobs = [insert(conn, "sync"), insert(conn, "async")]
        wait_for(lambda: [status(conn, job) for job in jobs] == ["running"] * 2)
        conn.execute("update redrive.jobs set claims = claims + 1, locked_by = 'other'")
        before = [row(conn, job) for job in jobs]
        wait_for(lambda: sorted(learned) == [("async", True), ("sync", True)], 5)
        wait_for(lambda: inside.worker.slots.empty and inside.worker.writer.idle)
        assert [row(conn, job) for job in jobs] == before
        assert failures(conn, jobs[0]) == failures(conn, jobs[1]) == []
    assert [row(conn, job) for job in jobs] == before


def test_a_cancel_reaches_running_jobs_through_the_heartbeat(start, conn, effects, db):
    """Also while the event loop stands still: a sync handler sees it as soon as one that can be told."""
    start()
    jobs = [insert(conn, "attentive"), insert(conn, "nap", '{"seconds": 60}')]
    wait_for(lambda: len(effects.starts()) == 2)
    queue = Queue(db)
    assert queue.cancel(*jobs) == dict.fromkeys(jobs, "running")
    queue.close()
    wait_for(lambda: [status(conn, job) for job in jobs] == ["failed", "failed"], 5)
    assert [effect.event for effect in effects.all(job=jobs[0])] == ["start", "asked"]
    assert effects.ends(jobs[1]) == []
    assert {row(conn, job).last_error for job in jobs} == {"cancelled while it ran"}


def test_the_lock_time_of_a_long_run_follows_the_clock(queue, conn, monkeypatch):
    """For reapers of the tutorial's kind, which go by its age."""
    monkeypatch.setattr(heartbeat, "RENEW_AFTER", 0.1)
    monkeypatch.setattr(heartbeat, "RENEW_EVERY", 0.1)
    end = threading.Event()
    queue.handler("long", timeout=None)(lambda payload: end.wait(20))
    with Inside(queue):
        job = insert(conn, "long")
        wait_for(lambda: status(conn, job) == "running")
        conn.execute("update redrive.jobs set locked_at = now() - interval '9 minutes' where id = %s", (job,))
        age = "select now() - locked_at < '1 minute' from redrive.jobs where id = %s"
        wait_for(lambda: conn.execute(age, (job,)).fetchone()[0])
        end.set()
        wait_for(lambda: status(conn, job) == "succeeded")
    assert row(conn, job).claims == 1
