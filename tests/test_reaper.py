"""The reaper takes back what is orphaned and nothing else, and judges nobody without evidence."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest

from engine import Inside, failures, insert, row, sentries, status
from redrive import Queue, events
from redrive.reaper import OWN_NAME
from redrive.sql import lock_key
from redrive.statements import named, run
from support import wait_for

LEASE = 1.0
GONE = "elsewhere:77:abc123"
"""A name of the shape that our workers give themselves."""
JUDGE = "here:1:judge0"


@pytest.fixture
def queue(db):
    queue = Queue(db, lease=LEASE, foreign_lease=3600)
    queue.handler("known")(lambda payload: None)
    yield queue
    queue.close()


def running(conn, holder, *, kind="known", locked="1 hour", **columns):
    """A job that *holder* claimed long ago."""
    locked_at = conn.execute("select now() - %s::interval", (locked,)).fetchone()[0]
    columns = {"attempts": 1, "claims": 1, **columns}
    return insert(conn, kind, status="running", locked_by=holder, locked_at=locked_at, **columns)


def a_worker(conn, name=GONE, silent="1 hour", **columns):
    """A worker's row whose last beat is so long ago."""
    columns = {"host": "h", "pid": 1, "version": "0", "kinds": ["known"], "concurrency": 1, **columns}
    conn.execute(
        f"insert into redrive.workers (name, heartbeat_at, lease, {', '.join(columns)}) "
        f"values (%s, now() - %s::interval, '1 s', {', '.join(['%s'] * len(columns))}) "
        "on conflict (name) do update set heartbeat_at = excluded.heartbeat_at",
        (name, silent, *columns.values()),
    )


def reap(conn, orphaned=(), foreign_age=3600, kinds=("known",), max_crashes=3):
    """Judge as a worker whose heart has just beaten."""
    a_worker(conn, JUDGE, silent="0 s")
    return run(
        conn,
        named(
            "reap_jobs",
            "redrive",
            own_name=OWN_NAME,
            judge=JUDGE,
            orphaned=list(orphaned),
            lease=LEASE,
            foreign_age=foreign_age,
            max_crashes=max_crashes,
            kinds=list(kinds),
        ),
    )


def test_nobody_is_judged_within_the_judges_own_first_lease(queue, conn):
    """DESIGN 3: no verdict without evidence; and after it, at once."""
    a_worker(conn)
    job = running(conn, GONE)
    with Inside(queue, lease=2) as inside:
        wait_for(lambda: status(conn, job) == "succeeded")
        waited = conn.execute(
            "select extract(epoch from j.updated_at - w.started_at) from redrive.jobs j, redrive.workers w "
            "where w.name = %s",
            (inside.worker.name,),
        ).fetchone()[0]
    assert 1.9 < waited < 4
    assert (row(conn, job).attempts, row(conn, job).claims) == (1, 2)


def test_a_step_of_the_servers_clock_takes_nothing_from_the_living(queue, conn):
    """NTP's, or of a machine that was stopped and went on: each worker's last sign of life is an hour old then."""
    done = threading.Event()
    queue.handler("long", timeout=None)(lambda payload: done.wait(20))
    jobs = [insert(conn, "long") for _ in range(4)]
    with Inside(queue, lease=1.5, concurrency=2) as one, Inside(queue, lease=1.5, concurrency=2) as other:
        wait_for(lambda: [status(conn, job) for job in jobs] == ["running"] * 4)
        now = time.monotonic()
        wait_for(lambda: all(each.worker.heartbeat.evidence_since > now - 3 for each in (one, other)))
        wait_for(lambda: time.monotonic() > now + 2)  # both may judge
        conn.execute(
            "create or replace function redrive.clock() returns timestamptz language sql stable"
            " as $$ select statement_timestamp() + interval '1 hour' $$"
        )
        stepped = time.monotonic()
        wait_for(lambda: all(each.worker.heartbeat.evidence_since > stepped for each in (one, other)), 5)
        wait_for(lambda: time.monotonic() > stepped + 4, 5)
        assert [row(conn, job).claims for job in jobs] == [1] * 4
        done.set()
        wait_for(lambda: [status(conn, job) for job in jobs] == ["succeeded"] * 4)
    assert [failures(conn, job) for job in jobs] == [[]] * 4


def test_a_missing_row_a_missing_name_and_a_strangers_name_hide_no_job_cr_02(queue, conn):
    """And a stranger's job that is younger than the stranger's lease is left to the stranger."""
    orphans = [
        running(conn, GONE),  # its worker's row was deleted
        running(conn, "never-registered", locked="10 s"),
        running(conn, None, locked="10 s"),
        running(conn, "no-time-at-all", locked=None, updated_at="2020-01-01"),
    ]
    young = running(conn, "node-worker-1", locked="1 s")
    with Inside(queue, foreign_lease=5):
        wait_for(lambda: [status(conn, job) for job in orphans] == ["succeeded"] * 4)
        assert status(conn, young) == "running"
    for job in orphans:
        [failure] = failures(conn, job)
        assert failure.error_type == "WorkerLost"
        assert row(conn, job).attempts == 1
    assert row(conn, orphans[0]).crashes == 1  # ours, and alone: it may have killed its worker
    assert [row(conn, job).crashes for job in orphans[1:]] == [0, 0, 0]  # a stranger's loop has other reasons to go


def test_a_deleted_row_of_a_living_worker_comes_back_and_its_jobs_stay_its_own(queue, conn):
    """The deletion falls into the moment of another worker's sweep again and again."""
    done, starts = threading.Event(), []

    @queue.handler("long", timeout=None)
    def long(payload, job):
        starts.append(job.claim)
        done.wait(20)

    judge = Queue(queue.settings.database_url, lease=LEASE)
    judge.handler("other")(lambda payload: None)
    with Inside(queue) as holder, Inside(judge) as other:
        job = insert(conn, "long")
        wait_for(lambda: starts)
        conn.execute("update redrive.jobs set locked_at = now() - interval '1 hour' where id = %s", (job,))
        name = holder.worker.name
        reaper = other.worker.reaper
        wait_for(lambda: reaper._sweep_at)  # it has judged once: it has its evidence
        for _ in range(3):
            swept = reaper.turned
            conn.execute("delete from redrive.workers where name = %s", (name,))
            reaper._sweep_at = 0.0
            wait_for(lambda swept=swept: reaper.turned > swept and reaper._sweep_at)
            beats = holder.worker.heartbeat.beats
            wait_for(lambda beats=beats: holder.worker.heartbeat.beats > beats)
        assert status(conn, job) == "running"
        done.set()
        wait_for(lambda: status(conn, job) == "succeeded")
    assert starts == [1]
    judge.close()


GAPS = {
    "it has ended": "update redrive.jobs set status = 'succeeded' where id = {job}",
    "it has been claimed anew": "update redrive.jobs set claims = 2, locked_by = 'elsewhere:78:new' where id = {job}",
    "its worker has beaten": "update redrive.workers set heartbeat_at = now() where name = '" + GONE + "'",
    "it was deleted": "delete from redrive.jobs where id = {job}",
}


@pytest.mark.parametrize("gap", GAPS)
def test_between_the_reapers_look_and_its_write_the_job_may_change_hands_cr_04(db, conn, gap):
    """And what is still orphaned in the same batch is reaped all the same."""
    a_worker(conn)
    a_worker(conn, "elsewhere:79:def456")
    job, other = running(conn, GONE), running(conn, "elsewhere:79:def456")
    # the library's clock waits at a gate; volatile, so that no planner passes it before the statement has its snapshot
    conn.execute(
        "create or replace function redrive.clock() returns timestamptz language plpgsql volatile as $$ begin "
        "if current_setting('test.gate', true) = 'shut' then perform pg_advisory_xact_lock_shared(4711); end if; "
        "return statement_timestamp(); end $$"
    )
    reaped = []
    with psycopg.connect(db) as gate, psycopg.connect(db, autocommit=True) as reaper:
        gate.execute("select pg_advisory_xact_lock(4711)")
        reaper.execute("set test.gate = 'shut'")
        thread = threading.Thread(target=lambda: reaped.extend(reap(reaper)))
        thread.start()
        waits = "select count(*) from pg_stat_activity where pid = %s and wait_event = 'advisory'"
        wait_for(lambda: conn.execute(waits, (reaper.info.backend_pid,)).fetchone()[0])
        conn.execute(GAPS[gap].format(job=job))
        before = row(conn, job)
        gate.commit()
        thread.join(10)
    assert [one.id for one in reaped] == [other]
    assert row(conn, job) == before
    assert failures(conn, job) == []
    assert status(conn, other) == "pending"


def test_a_job_whose_outcome_is_being_written_is_left_alone_cr_04(db, conn):
    a_worker(conn)
    job = running(conn, GONE)
    with psycopg.connect(db) as writer:
        writer.execute("update redrive.jobs set status = 'succeeded' where id = %s", (job,))
        assert reap(conn) == []
    assert status(conn, job) == "succeeded"


def test_two_reapers_at_once_take_each_job_back_once(db, conn):
    a_worker(conn)
    jobs = [running(conn, GONE) for _ in range(50)]
    found = []

    def judge():
        with psycopg.connect(db, autocommit=True) as own:
            found.extend(one.id for one in reap(own))

    threads = [threading.Thread(target=judge) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == jobs
    assert conn.execute("select count(*) from redrive.failures").fetchone() == (50,)


def test_jobs_of_kinds_that_the_judge_does_not_know_are_taken_back_too_cr_13(queue, conn):
    a_worker(conn)
    job = running(conn, GONE, kind="unheard of", max_attempts=1)
    with Inside(queue):
        wait_for(lambda: status(conn, job) == "pending")
    assert (row(conn, job).attempts, row(conn, job).locked_by, row(conn, job).locked_at) == (0, None, None)


def test_an_orphan_past_its_deadline_dies_and_a_cancelled_one_ends(conn):
    a_worker(conn)
    late = running(conn, GONE, expires_at="2020-01-01", key="k")
    unwanted = running(conn, GONE, cancel_requested_at="2020-01-01")
    poison = running(conn, "elsewhere:79:def456", crashes=2, alone=True, key="p")
    a_worker(conn, "elsewhere:79:def456")
    assert {one.id: one.status for one in reap(conn)} == {late: "dead", unwanted: "failed", poison: "dead"}
    assert row(conn, late).last_error.startswith("deadline")
    assert row(conn, unwanted).last_error.startswith("cancelled")
    assert row(conn, poison).last_error.startswith("poison")
    for job in (late, poison):  # ready for any requeue
        found = row(conn, job)
        assert (found.key, found.expires_at, found.locked_by, found.crashes, found.alone) == (
            None,
            None,
            None,
            0,
            False,
        )
    assert [failure.key for failure in failures(conn, poison)] == ["p"]


def lost_before(conn, name, kind="other", silent="2 minutes"):
    """A worker that was lost with a job of that kind in its hands, which has been taken back."""
    a_worker(conn, name, silent)
    conn.execute(
        "insert into redrive.failures (job_id, kind, claim, attempt, outcome, worker, error_type, message, fingerprint,"
        " failed_at) values (1, %s, 1, 0, 'reclaimed', %s, 'WorkerLost', '', 'WorkerLost', now() - %s::interval)",
        (kind, name, silent),
    )


def test_while_workers_die_that_ran_nothing_of_its_kind_a_job_is_poison_after_twice_as_many_deaths(conn):
    """Machines or the network are going: that a job was the only one beside three deaths says little."""
    job = insert(conn, "known")
    lost_before(conn, "host:1:aaaaaa")
    for death in range(1, 7):
        name = f"host:{death}:bbbbbb"
        conn.execute(
            "update redrive.jobs set status = 'running', locked_at = now(), locked_by = %s, claims = claims + 1 "
            "where id = %s",
            (name, job),
        )
        a_worker(conn, name, "10 s")
        [reaped] = reap(conn)
        assert (reaped.status, row(conn, job).crashes) == (("pending", death) if death < 6 else ("dead", 0))
    assert "poison: its worker died 6 times while it ran alone, the last was host:6:" in row(conn, job).last_error


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "known"},  # such a job may have killed that one too
        {"silent": "15 minutes"},
        {"silent": "0 s"},  # it lives, or is back
    ],
    ids=str,
)
def test_a_death_that_says_nothing_of_the_surroundings_gives_a_killer_no_more_rope(conn, other):
    poison = running(conn, GONE, crashes=2, alone=True)
    a_worker(conn, silent="10 s")
    lost_before(conn, "host:1:aaaaaa", **other)
    assert [(one.id, one.status) for one in reap(conn)] == [(poison, "dead")]


def test_those_who_die_with_it_or_at_the_broker_say_nothing_and_one_death_is_enough_where_it_is_to_be(conn):
    poison = running(conn, GONE, crashes=2, alone=True)
    a_worker(conn, silent="10 s")
    neighbour = running(conn, "host:1:aaaaaa", kind="other")
    a_worker(conn, "host:1:aaaaaa", silent="10 s")
    a_worker(conn, "host:2:aaaaaa", silent="10 s", listener_pid=0)
    assert {one.id: one.status for one in reap(conn)} == {poison: "dead", neighbour: "pending"}
    strict = running(conn, "host:3:aaaaaa")
    a_worker(conn, "host:3:aaaaaa", silent="10 s")
    assert [(one.id, one.status) for one in reap(conn, max_crashes=1)] == [(strict, "dead")]
    assert "its worker died once while it ran alone" in row(conn, strict).last_error
    for_ever = running(conn, "host:4:aaaaaa", crashes=9)
    a_worker(conn, "host:4:aaaaaa", silent="10 s")
    assert [(one.id, one.status) for one in reap(conn, max_crashes=2**40)] == [(for_ever, "pending")]


def test_a_row_with_counts_at_their_limit_does_not_keep_the_others_from_being_reaped_cn_07(db, conn):
    most = 2**31 - 1
    odd = [running(conn, GONE, crashes=most, alone=True), running(conn, GONE, attempts=-most - 1)]
    plain = running(conn, GONE)
    a_worker(conn)
    found = {one.id: one.status for one in reap(conn)}
    assert found == {odd[0]: "dead", odd[1]: "pending", plain: "pending"}
    assert str(most + 1) in row(conn, odd[0]).last_error


def test_a_frozen_sentrys_session_is_ended_by_its_peers(queue, db, conn):
    """Whoever holds the lock and does not move would keep everybody asleep."""
    with (
        Inside(queue) as inside,
        psycopg.connect(db, autocommit=True, application_name="redrive listen frozen") as held,
    ):
        wait_for(lambda: inside.worker.reaper._sweep_at)
        wait_for(lambda: sentries(conn) == [inside.worker.name])
        pid = held.info.backend_pid
        # the next sentry is one whose worker stopped to beat
        conn.execute("select pg_terminate_backend(%s)", (inside.worker.listener.pid,))
        wait_for(
            lambda: held.execute("select pg_try_advisory_lock(%s)", (lock_key("redrive"),)).fetchone()[0], every=0.001
        )
        a_worker(conn, "elsewhere:80:frozen", silent="0 s", listener_pid=pid)
        wait_for(lambda: sentries(conn) == [inside.worker.name])
        with pytest.raises(psycopg.errors.AdminShutdown):
            held.execute("select 1")


def test_a_session_that_has_a_dead_sentrys_process_id_by_chance_is_left_alone(queue, db, conn):
    a_worker(conn, silent="1 minute", listener_pid=1)
    with Inside(queue) as inside:
        wait_for(lambda: sentries(conn) == [inside.worker.name])
        pid = inside.worker.listener.pid
        conn.execute("update redrive.workers set listener_pid = %s where name = %s", (pid, GONE))
        wait_for(lambda: inside.worker.reaper._sweep_at)
        swept = inside.worker.reaper.turned
        inside.worker.reaper._sweep_at = 0.0
        wait_for(lambda: inside.worker.reaper._sweep_at and inside.worker.reaper.turned > swept)
        assert inside.worker.listener.pid == pid
        assert sentries(conn) == [inside.worker.name]


def test_a_death_is_left_for_a_while_to_a_worker_that_knows_the_kind_and_its_hook_cr_17(db, queue, conn):
    """Who doesn't know it, of another application or an older version, has no on_dead to call."""
    told, strangers = [], {"kinds": ["known"]}
    knowing = Queue(db, lease=LEASE)
    knowing.handler("guarded", on_dead=lambda died: told.append(died.id))(lambda payload: None)
    a_worker(conn, silent="5 s")
    poison = running(conn, GONE, kind="guarded", crashes=5, alone=True)
    plain = running(conn, GONE, kind="guarded")
    late = insert(conn, "guarded", expires_at=conn.execute("select now() - interval '1 s'").fetchone()[0])
    a_worker(conn, "there:1:abcdef", silent="0 s", kinds=["guarded"])
    assert [one.id for one in reap(conn, **strangers)] == [plain]
    assert run(conn, named("bury_hopeless", "redrive", **strangers)) == []
    with conn.transaction(force_rollback=True):
        conn.execute("update redrive.workers set heartbeat_at = now() - interval '4 min' where name = %s", (GONE,))
        conn.execute("update redrive.jobs set expires_at = now() - interval '4 min' where id = %s", (late,))
        assert [(one.id, one.status) for one in reap(conn, **strangers)] == [(poison, "dead")]
        assert [one.id for one in run(conn, named("bury_hopeless", "redrive", **strangers))] == [late]
    with Inside(queue), Inside(knowing):
        wait_for(lambda: sorted(told) == [poison, late])
    assert {status(conn, job) for job in (poison, late)} == {"dead"}
    knowing.close()


def test_what_was_taken_back_is_told_to_those_who_listen(queue, conn):
    told = []
    end = events.subscribe(told.append, events.JobReclaimed, events.JobDied)
    a_worker(conn)
    job = running(conn, GONE)
    poison = running(conn, GONE, crashes=2, alone=True)
    with Inside(queue):
        wait_for(lambda: len(told) == 2)
    end()
    reclaimed, died = sorted(told, key=lambda event: event.id)
    assert (reclaimed.id, reclaimed.lost_worker, reclaimed.outcome) == (job, GONE, "pending")
    assert (died.id, died.kind) == (poison, "known")
    assert "poison" in died.reason


def test_a_judge_that_has_not_been_heard_itself_is_no_judge(conn):
    """A verdict that was sent before the server froze is carried out after, when nobody has been heard for long."""
    a_worker(conn)
    job = running(conn, GONE)
    a_worker(conn, JUDGE, silent="0.8 s")
    verdict = {"own_name": OWN_NAME, "judge": JUDGE, "orphaned": [], "lease": LEASE, "foreign_age": 3600}
    assert run(conn, named("reap_jobs", "redrive", max_crashes=3, kinds=[], **verdict)) == []
    assert [one.id for one in reap(conn)] == [job]


@pytest.mark.parametrize("holder", ["node-7", None])
@pytest.mark.parametrize("when", ["infinity", "9999-01-01 00:00+00", "-infinity"])
def test_a_strangers_lock_that_was_never_taken_is_no_sign_of_life(conn, db, holder, when):
    """CR-02: whatever stands in locked_at, its worker has a row that nobody will ever write again."""
    job = insert(conn, "known", status="running", locked_by=holder, locked_at=when, updated_at="infinity")
    orphaned = {"orphaned": [], "lease": 30.0, "foreign_age": 600.0, "kinds": []}
    [reaped] = run(conn, named("reap_jobs", "redrive", own_name=OWN_NAME, judge="", max_crashes=3, **orphaned))
    assert (reaped.id, reaped.status) == (job, "pending")
