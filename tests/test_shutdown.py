"""A stop hands everything back: within the grace, at once when asked twice, and also when the database is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from chaos.proxy import Proxy
from engine import APP, Inside, failures, insert, measured, row, states, status
from redrive import Queue, slots
from support import wait_for


@pytest.fixture
def start(start_worker, effects):
    return lambda *flags, dsn=None: start_worker(APP, *flags, env=effects.env, dsn=dsn)


@pytest.fixture
def queue_of_three(db):
    queue = Queue(db)

    @queue.handler("long", max_attempts=3)
    async def long(payload):
        await asyncio.sleep(60)

    return queue


def assert_handed_back(conn, jobs):
    """As if they had never been claimed, and due again."""
    for job in jobs:
        found = row(conn, job)
        assert (found.status, found.attempts, found.crashes, found.locked_by) == ("pending", 0, 0, None)
        assert found.last_error is None
        assert failures(conn, job) == []
        assert found.run_at <= conn.execute("select now()").fetchone()[0]


def test_within_the_grace_what_runs_comes_to_its_end_sd_01(start, conn, effects):
    """Async, sync and in a child; nothing new is begun, and nothing is left behind: no running job, no worker's row."""
    worker = start("--concurrency", "4", "--grace", "10")
    jobs = [insert(conn, "apart", '{"seconds": 2}') for _ in range(2)]
    wait_for(lambda: len(effects.starts()) == 2)  # a child takes its time to start
    jobs += [insert(conn, kind, '{"seconds": 1}') for kind in ("nap", "doze")]
    wait_for(lambda: len(effects.starts()) == 4)
    waiting = [insert(conn, "nap") for _ in range(3)]
    assert worker.stop() == 0
    assert states(conn) == {"succeeded": 4, "pending": 3}
    assert {effect.job_id for effect in effects.ends()} == set(jobs)
    assert {row(conn, job).claims for job in waiting} == {0}
    assert conn.execute("select count(*) from redrive.workers").fetchone() == (0,)
    assert "0 jobs handed back" in worker.log()


@pytest.mark.parametrize(
    "kinds", [("nap",) * 4, ("doze",) * 4, ("apart",) * 4, ("nap", "doze", "attentive", "attentive")]
)
def test_after_the_grace_what_runs_is_handed_back_and_no_try_is_spent_sd_01(start, conn, effects, kinds):
    """Exit within a second of the grace of 1 s, code 0, though threads that nobody can stop still run."""
    worker = start("--grace", "1")
    jobs = [insert(conn, kind, '{"seconds": 30}') for kind in kinds]
    wait_for(lambda: len(effects.starts()) == 4)
    began = time.monotonic()
    assert worker.stop() == 0
    took = time.monotonic() - began
    measured(f"{kinds}: gone {took:.2f} s after SIGTERM, grace 1 s")
    assert took < 2
    assert_handed_back(conn, jobs)
    assert effects.ends() == []
    assert not any(Path(f"/proc/{effect.pid}").exists() for effect in effects.starts())


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_hands_back_at_once_sd_01(start, conn, effects, second):
    worker = start("--grace", "60")
    jobs = [insert(conn, kind, '{"seconds": 30}') for kind in ("nap", "doze", "apart")]
    wait_for(lambda: len(effects.starts()) == 3)
    worker.send(signal.SIGTERM)
    wait_for(lambda: "stops and waits" in worker.log())
    time.sleep(0.2)
    assert worker.running
    began = time.monotonic()
    worker.send(second)
    assert worker.process.wait(5) == 0
    assert time.monotonic() - began < 1.5
    assert_handed_back(conn, jobs)


def test_ten_deploys_spend_nothing_of_the_budget_cr_10(queue_of_three, db, conn):
    """In one process each: a worker claims, is stopped without grace in mid-job, and hands back."""
    job = insert(conn, "long", max_attempts=3)
    for number in range(10):
        with Inside(queue_of_three, grace=0):
            wait_for(lambda: status(conn, job) == "running")
        assert status(conn, job) == "pending", number
    found = row(conn, job)
    assert (found.attempts, found.claims, found.crashes, found.last_error) == (0, 10, 0, None)
    assert failures(conn, job) == []
    last = Queue(db)
    last.handler("long")(lambda payload: "done")
    with Inside(last):
        wait_for(lambda: status(conn, job) == "succeeded")
    assert row(conn, job).attempts == 1


def test_jobs_that_were_claimed_and_had_not_begun_go_back_at_once(db, conn, monkeypatch):
    """While others of the same worker still drain."""
    monkeypatch.setattr(slots, "STALE_AFTER", 60)  # which hands back too, for another reason
    queue, end, begun = Queue(db, concurrency=2), threading.Event(), []

    @queue.handler("job")
    def job(payload):
        if payload:
            begun.append(payload)
            end.wait(20)

    with Inside(queue) as inside:
        conn.execute("insert into redrive.jobs (kind) select 'job' from generate_series(1, 50)")
        wait_for(lambda: states(conn) == {"succeeded": 50})  # quick by experience, so some are claimed ahead
        with conn.transaction():
            slow = [insert(conn, "job", "1") for _ in range(2)]
            quick = [insert(conn, "job") for _ in range(20)]
        wait_for(lambda: len(begun) == 2 and states(conn).get("running", 0) > 2)
        inside.worker.stop()
        wait_for(lambda: states(conn).get("running", 0) == 2, 2)
        assert {status(conn, job) for job in slow} == {"running"}
        assert_handed_back(conn, quick)
        end.set()
        assert inside.ended()
    assert {status(conn, job) for job in slow} == {"succeeded"}


def test_the_heartbeat_goes_on_and_a_cancel_is_seen_while_a_worker_drains_sd_03(start, conn, effects, db):
    """For three leases after the signal, beside a worker that would take over; the cancel within a second."""
    draining = start("--lease", "1", "--grace", "30")
    jobs = [insert(conn, kind, '{"seconds": 4}') for kind in ("nap", "doze")]
    unwanted = insert(conn, "nap", '{"seconds": 60}')
    queue = Queue(db, lease=1)
    queue.handler("other")(lambda payload: None)
    with Inside(queue) as peer:
        wait_for(lambda: len(effects.starts()) == 3)
        draining.send(signal.SIGTERM)
        wait_for(lambda: "stops and waits for 3 jobs" in draining.log())
        assert queue.cancel(unwanted) == {unwanted: "running"}
        wait_for(lambda: status(conn, unwanted) == "failed", 3)
        took = (row(conn, unwanted).updated_at - row(conn, unwanted).cancel_requested_at).total_seconds()
        measured(f"cancelled {took:.2f} s after it was asked for, in a drain")
        assert took < 1
        assert {status(conn, job) for job in jobs} == {"running"}
        assert draining.process.wait(15) == 0
        assert peer.worker.reaper._sweep_at  # there was a judge
    for job in jobs:
        assert status(conn, job) == "succeeded"
        assert len(effects.starts(job)) == 1
        assert failures(conn, job) == []
    queue.close()


@pytest.mark.slow
def test_a_database_that_is_gone_or_answers_nothing_holds_up_no_stop(db, conn, start, effects):
    """It ends within the grace and a few seconds for the last words; its jobs are found by the reapers of others."""
    flags = ("--grace", "0.5", "--lease", "2", "--concurrency", "1")
    with Proxy(db) as refusing, Proxy(db) as silent:
        workers = [start(*flags, dsn=proxy.dsn) for proxy in (refusing, silent)]
        jobs = [insert(conn, "nap", '{"seconds": 60}') for _ in range(2)]
        wait_for(lambda: len(effects.starts()) == 2)
        with refusing.down(), silent.black_hole():
            began = time.monotonic()
            for worker in workers:
                worker.send(signal.SIGTERM)
            gone: dict[int, float] = {}

            def both():
                gone.update((w.pid, time.monotonic() - began) for w in workers if not w.running and w.pid not in gone)
                return len(gone) == 2

            wait_for(both, 20)
            assert [worker.process.returncode for worker in workers] == [0, 0]
    measured(
        "gone {:.1f} s after SIGTERM without a database, {:.1f} s with a silent one".format(*sorted(gone.values()))
    )
    assert max(gone.values()) < 0.5 + 10  # seven on an idle machine
    conn.execute("update redrive.jobs set payload = '{}'")
    again = start("--lease", "2", "--kinds", "nap")
    wait_for(lambda: [status(conn, job) for job in jobs] == ["succeeded", "succeeded"], 15)
    assert again.stop() == 0


def test_a_stop_before_the_database_has_ever_answered_ends_the_worker(start):
    worker = start(dsn="postgresql://nobody@127.0.0.1:1/nothing")
    wait_for(lambda: "does not answer" in worker.log())
    began = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - began < 2


def test_queue_run_inside_a_program_stops_on_sigterm(db, conn, effects, tmp_path):
    """And hands control back to it, with the signal's own handler in place again."""
    source = APP + (
        "\nqueue.run(grace=0.3)\nprint('after', signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)\n"
    )
    (tmp_path / "program.py").write_text(source)
    env = {**os.environ, "DATABASE_URL": db, **effects.env}
    with subprocess.Popen([sys.executable, tmp_path / "program.py"], env=env, stdout=subprocess.PIPE, text=True) as run:
        jobs = [insert(conn, "nap", '{"seconds": 30}'), insert(conn, "doze")]
        wait_for(lambda: len(effects.starts()) == 2)
        run.send_signal(signal.SIGTERM)
        assert run.communicate(timeout=10)[0] == "after True\n"
        assert run.returncode == 0
    assert_handed_back(conn, jobs[:1])
    assert status(conn, jobs[1]) == "succeeded"
    assert conn.execute("select count(*) from redrive.workers").fetchone() == (0,)


def test_cancelling_run_async_hands_back_and_ends(queue_of_three, conn):
    async def program():
        running = asyncio.create_task(queue_of_three.run_async(grace=0.2))
        await asyncio.to_thread(wait_for, lambda: status(conn, job) == "running")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    job = insert(conn, "long", max_attempts=3)
    asyncio.run(program())
    assert_handed_back(conn, [job])
    assert conn.execute("select count(*) from redrive.workers").fetchone() == (0,)
