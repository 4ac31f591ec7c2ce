"""Workers are killed and frozen: their jobs run elsewhere, nobody's attempts are spent, and only the guilty die."""

from __future__ import annotations

import asyncio

import pytest

from engine import APP, Inside, failures, insert, measured, row, states, status
from redrive import Queue
from redrive.outcome import HandedBack
from redrive.slots import Slots
from support import wait_for
from support_engine import claimed

LEASE = 1.5
HASTY = ("--lease", str(LEASE))
BYSTANDER = (*HASTY, "--kinds", "nap")
"""A worker that runs none of the jobs which kill, and so lives to judge."""


@pytest.fixture
def start(start_worker, effects):
    """Start a worker of the application whose jobs leave traces."""
    return lambda *flags: start_worker(APP, *(flags or HASTY), env=effects.env)


def seconds_up(conn, worker):
    """How long a worker has been beating; 0 before its first beat."""
    query = "select extract(epoch from clock_timestamp() - started_at)::float8 from redrive.workers where pid = %s"
    found = conn.execute(query, (worker.pid,)).fetchone()
    return found[0] if found else 0


def wait_until_it_judges(conn, worker):
    wait_for(lambda: seconds_up(conn, worker) > LEASE + 0.2)


def supervise(start, done, *flags, seconds=40):
    """Start a worker again whenever it has died, as an init system does."""
    worker = start(*(flags or HASTY))

    def turn():
        nonlocal worker
        if not worker.running:
            worker = start(*(flags or HASTY))
        return done()

    wait_for(turn, seconds)
    return worker


def test_a_killed_workers_job_runs_elsewhere_within_lease_and_2_s_and_no_attempt_is_spent_cr_01(start, conn, effects):
    """The death is told: a row in failures, and a crash counted, since the job ran with nothing beside it."""
    other = start(*BYSTANDER, "--no-listen")
    wait_until_it_judges(conn, other)
    other.pause()  # so that the victim has the job
    victim = start()
    wait_for(lambda: seconds_up(conn, victim))
    job = insert(conn, "nap", '{"seconds": 0.3}')
    wait_for(lambda: effects.starts(job))
    holder = row(conn, job).locked_by
    victim.kill()
    conn.execute("insert into public.effects (job_id, event) values (%s, 'killed')", (job,))
    other.resume()
    wait_for(lambda: status(conn, job) == "succeeded")
    found = row(conn, job)
    took = effects.pause("killed", "start", job)
    measured(f"recovered {took:.2f} s after the kill, at a lease of {LEASE} s")
    assert took < LEASE + 2
    assert (found.attempts, found.claims, found.crashes) == (1, 2, 1)
    assert [(effect.attempt, effect.pid) for effect in effects.starts(job)] == [(1, victim.pid), (1, other.pid)]
    [failure] = failures(conn, job)
    assert (failure.error_type, failure.outcome, failure.worker) == ("WorkerLost", "reclaimed", holder)
    assert holder in failure.message


def test_without_a_survivor_a_worker_started_later_recovers_after_a_lease_of_its_own_cr_01_un_04(start, conn, effects):
    """And the key, which the dead worker's job still holds, is free when that job has ended."""
    another = "select redrive.enqueue('doze', key => 'k', delay => '1 hour')"
    victim = start()
    job = insert(conn, "doze", '{"seconds": 0.3}', key="k")
    wait_for(lambda: effects.starts(job))
    victim.kill()
    assert conn.execute(another).fetchone() == (job,)
    wait_for(lambda: conn.execute("select bool_and(heartbeat_at < now() - lease) from redrive.workers").fetchone()[0])
    later = start()
    wait_for(lambda: seconds_up(conn, later))
    wait_for(lambda: status(conn, job) == "succeeded")
    [own_lease] = conn.execute(
        "select extract(epoch from e.at - w.started_at) from public.effects e join redrive.workers w using (pid) "
        "where event = 'start' and pid = %s",
        (later.pid,),
    ).fetchone()
    assert LEASE - 0.1 <= own_lease < LEASE + 2
    assert conn.execute(another).fetchone()[0] > job


def test_a_frozen_worker_that_wakes_up_writes_nothing_cr_05(start, conn, effects):
    """Not the success of an async nor of a sync handler, not a failure, and it schedules no retry."""
    frozen = start()
    jobs = [insert(conn, kind, '{"seconds": 0.4}') for kind in ("nap", "doze", "fall")]
    wait_for(lambda: len(effects.starts()) == 3)
    frozen.pause()
    other = start()
    wait_for(lambda: len(effects.ends()) == 3)
    wait_for(lambda: [status(conn, job) for job in jobs] == ["succeeded", "succeeded", "pending"])
    before = [(row(conn, job), failures(conn, job)) for job in jobs]
    assert {effect.pid for effect in effects.ends()} == {other.pid}
    frozen.resume()
    wait_for(lambda: len(effects.ends()) == 6)
    wait_for(lambda: frozen.log().count("was taken from this worker") == 3)
    assert [(row(conn, job), failures(conn, job)) for job in jobs] == before
    assert [failure.error_type for failure in before[2][1]] == ["WorkerLost", "RuntimeError"]
    assert "was taken from" not in other.log()
    assert (frozen.stop(), other.stop()) == (0, 0)


def test_a_frozen_worker_that_ends_while_its_successor_runs_leaves_the_lease_alone_cr_05(start, conn, effects):
    frozen = start()
    job = insert(conn, "nap", '{"seconds": 3}')
    wait_for(lambda: effects.starts(job))
    first = row(conn, job)
    frozen.pause()
    other = start()
    wait_for(lambda: len(effects.starts(job)) == 2)
    second = row(conn, job)
    assert (second.status, second.claims) == ("running", 2)
    assert second.locked_by != first.locked_by
    frozen.resume()
    wait_for(lambda: "was taken from this worker" in frozen.log())
    assert row(conn, job) == second
    wait_for(lambda: status(conn, job) == "succeeded")
    assert row(conn, job).locked_by == second.locked_by
    assert effects.ends(job)[-1].pid == other.pid


def test_a_frozen_worker_that_wakes_up_begins_nothing_of_what_it_had_claimed_ahead_cr_05(start, conn, effects):
    frozen = start(*HASTY, "--concurrency", "1")
    quiet = """insert into redrive.jobs (kind, payload) select 'doze', '{"quiet": true}' from generate_series(1, 30)"""
    conn.execute(quiet)
    wait_for(lambda: states(conn) == {"succeeded": 30})  # quick by experience, so some are claimed ahead
    with conn.transaction():
        slow = insert(conn, "doze", '{"seconds": 1}')
        ahead = [insert(conn, "doze") for _ in range(5)]
    wait_for(lambda: effects.starts(slow) and "running" in {status(conn, job) for job in ahead}, 3, every=0.002)
    frozen.pause()
    conn.execute("update redrive.jobs set payload = '{}' where id = %s", (slow,))
    start()
    wait_for(lambda: all(status(conn, job) == "succeeded" for job in (slow, *ahead)))
    frozen.resume()
    wait_for(lambda: f"job {slow} (doze) was taken from this worker" in frozen.log())
    after = insert(conn, "doze")
    wait_for(lambda: status(conn, after) == "succeeded")
    assert [len(effects.starts(job)) for job in ahead] == [1] * 5


def test_a_job_that_kills_its_worker_dies_after_max_crashes_and_its_hook_runs_once_where_it_was_reaped(
    start, conn, effects
):
    """CR-09 and CR-17; the next job then runs."""
    bystanders = [start(*BYSTANDER), start(*BYSTANDER)]
    poison = insert(conn, "deadly")
    worker = supervise(start, lambda: status(conn, poison) == "dead")
    assert len(effects.starts(poison)) == 3
    found = row(conn, poison)
    assert "poison: its worker died 3 times while it ran alone" in found.last_error
    assert f":{effects.starts(poison)[-1].pid}:" in found.last_error.rpartition("the last was ")[2]
    assert (found.crashes, found.locked_by, found.attempts) == (0, None, 0)
    assert [failure.outcome for failure in failures(conn, poison)] == ["reclaimed", "reclaimed", "dead"]
    [hook] = wait_for(lambda: effects.all("on_dead", poison))
    assert "poison" in hook.event
    [judge] = [one for one in (*bystanders, worker) if f"job {poison} (deadly) is dead" in one.log()]
    assert hook.pid == judge.pid
    after = insert(conn, "doze")
    if not worker.running:
        worker = start()
    wait_for(lambda: status(conn, after) == "succeeded")
    assert len(effects.all("on_dead", poison)) == 1


def test_crashes_are_counted_by_themselves_and_spend_no_attempt_cr_10(start, conn, effects, db):
    """Of three attempts and five crashes the fifth crash ends it; each worker is killed from outside, in mid-job."""
    queue = Queue(db, lease=1, max_crashes=5)
    queue.handler("other")(lambda payload: None)
    job = insert(conn, "nap", '{"seconds": 60}', max_attempts=3)
    with Inside(queue):
        for number in range(1, 6):
            victim = start("--lease", "1", "--max-crashes", "5")
            wait_for(lambda number=number: len(effects.starts(job)) == number)
            assert (row(conn, job).attempts, row(conn, job).crashes) == (1, number - 1)
            victim.kill()
            # as if the lease had run out by now
            conn.execute("update redrive.workers set heartbeat_at = now() - 2 * lease where pid = %s", (victim.pid,))
            wait_for(lambda: status(conn, job) != "running")
    found = row(conn, job)
    assert (found.status, found.attempts, found.max_attempts) == ("dead", 0, 3)
    assert "poison: its worker died 5 times while it ran alone" in found.last_error
    told = [(failure.error_type, failure.outcome) for failure in failures(conn, job)]
    assert told == [("WorkerLost", "reclaimed")] * 4 + [("WorkerLost", "dead")]
    assert len(effects.starts(job)) == 5
    queue.close()


def test_neighbours_of_jobs_that_kill_their_worker_lose_nothing_cr_09(start, conn, effects):
    """Two are guilty; the others in the same process are never dead and have no crash to their name."""
    start(*BYSTANDER, "--max-crashes", "2")
    guilty = [insert(conn, "deadly", '{"seconds": 0.3}') for _ in range(2)]
    innocent = [insert(conn, "doze", '{"seconds": 0.2}') for _ in range(3)]
    flags = (*HASTY, "--max-crashes", "2", "--kinds", "deadly,doze")
    supervise(start, lambda: all(status(conn, job) == "dead" for job in guilty), *flags)
    wait_for(lambda: all(status(conn, job) == "succeeded" for job in innocent), 20)
    for job in innocent:
        found = row(conn, job)
        assert (found.attempts, found.crashes, found.alone) == (1, 0, False)
        assert not any(failure.outcome == "dead" for failure in failures(conn, job))
    for job in guilty:
        assert 2 <= len(effects.starts(job)) <= 3  # once beside others, for which nobody is judged
        assert "poison" in row(conn, job).last_error


def test_a_job_that_crashes_its_worker_can_be_cancelled_cr_09(start, conn, effects, db):
    start(*BYSTANDER)
    job = insert(conn, "deadly", '{"seconds": 0.5}')
    worker = start()
    wait_for(lambda: effects.starts(job))
    queue = Queue(db)
    assert queue.cancel(job) == {job: "running"}
    queue.close()
    worker.process.wait(10)
    wait_for(lambda: status(conn, job) == "failed")
    assert row(conn, job).last_error.startswith("cancelled")
    assert len(effects.starts(job)) == 1
    assert effects.all("on_dead", job) == []


def test_a_worker_that_is_not_sure_to_be_alive_begins_nothing_and_hands_it_back_cr_05(db):
    queue, ran = Queue(db), []
    queue.handler("sync")(ran.append)
    queue.handler("async")(lambda payload: asyncio.sleep(0, ran.append(payload)))

    async def work():
        done = []
        slots = Slots(queue.handlers, 1, done.append)
        slots.alive = lambda: False
        slots.start()
        jobs = [
            claimed(kind, "1", id=number, alone=number == 2) for number, kind in enumerate(("sync", "async", "sync"))
        ]
        slots.add(jobs[:2])
        slots.add_alone(jobs[2])
        await asyncio.to_thread(wait_for, lambda: slots.empty and len(done) == 3)
        await slots.close()
        return done

    done = asyncio.run(work())
    assert [(one.job.id, one.outcome) for one in done] == [(number, HandedBack()) for number in range(3)]
    assert ran == []
    queue.close()


FROZEN = """
import os, select, time
import psycopg
from redrive import Queue

queue = Queue()


@queue.handler("quick")
async def quick(payload, job):
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        conn.execute("insert into public.begun values (%s, %s)", [job.id, os.getpid()])


@queue.handler("blocks", priority=1)
async def blocks(payload, job):
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        conn.execute("insert into public.blocked values (%s)", [job.id])
    select.select([], [], [], 4.5)
"""


def test_what_was_claimed_before_a_freeze_is_not_begun_after_it_though_the_heart_beats_again(conn, start_worker):
    """The loop is blocked when the worker is thawed, so its next beat is answered before it looks at what waits."""
    conn.execute("create table public.begun (job bigint, pid int); create table public.blocked (job bigint)")
    frozen = start_worker(FROZEN, *HASTY, "--concurrency", "1")
    conn.execute("insert into redrive.jobs (kind) select 'quick' from generate_series(1, 300)")
    wait_for(lambda: states(conn) == {"succeeded": 300}, 30)
    conn.execute(
        "insert into redrive.jobs (kind, priority) select case i when 1 then 'blocks' else 'quick' end, i"
        " from generate_series(1, 6) i"
    )
    waiting = (  # while the only slot is taken by the one that blocks, none of them has begun
        "select count(*) from redrive.jobs where kind = 'quick' and status = 'running'"
        " and exists (select from public.blocked)"
    )
    wait_for(lambda: conn.execute(waiting).fetchone()[0] >= 1)
    frozen.pause()
    start_worker(FROZEN, *HASTY, "--kinds", "quick")
    wait_for(lambda: conn.execute("select count(distinct job) from public.begun").fetchone() == (305,), 20)
    own = "select count(*) from public.begun where pid = %s"
    before = conn.execute(own, [frozen.pid]).fetchone()
    frozen.resume()
    wait_for(lambda: conn.execute("select bool_and(status = 'succeeded') from redrive.jobs").fetchone() == (True,), 30)
    assert conn.execute(own, [frozen.pid]).fetchone() == before
