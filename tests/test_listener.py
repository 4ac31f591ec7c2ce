"""New jobs wake one sleeping worker at once; nobody is woken in vain, and without a word polling finds everything."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from functools import partial

import psycopg
import pytest

from engine import Inside, insert, measured, row, sentries, sessions, states, status
from redrive import Queue
from redrive.connections import Control
from redrive.producer import Producer
from redrive.sql import channel, lock_key
from support import wait_for

SOURCE = """
import time
from redrive import Queue

queue = Queue()


@queue.handler("job")
async def job(payload):
    return time.time()
"""
RARELY = 60
"""Seconds between two polls: whatever is found at once was then not found by polling."""


def a_queue(db, *kinds, **settings):
    queue = Queue(db, **{"poll": RARELY, "lease": 3, **settings})
    for kind in kinds or ("job",):
        queue.handler(kind)(lambda payload: time.time())
    return queue


@pytest.fixture
def queue(db):
    return a_queue(db)


@pytest.fixture
def nap():
    """A sync handler that runs until it is told to end; all of them are at the test's end."""
    ended = threading.Event()

    def nap(payload):
        ended.wait(20)

    nap.end = ended.set
    yield nap
    ended.set()


@pytest.fixture
def woken(monkeypatch):
    """How often each worker was woken."""
    count = Counter()
    after_wake_up = Producer._after_wake_up

    def counted(producer, room):
        count[producer._claims.holder.name] += 1
        return after_wake_up(producer, room)

    monkeypatch.setattr(Producer, "_after_wake_up", counted)
    return count


@pytest.fixture
def said(monkeypatch):
    """What the workers said to the server, statement by statement."""
    texts = []
    run = Control.run

    async def noted(control, statement, **options):
        texts.append(control._application.split()[1])
        return await run(control, statement, **options)

    monkeypatch.setattr(Control, "run", noted)
    return texts


def asleep(conn, *names):
    """One of the workers is sentry, and all are past their looks after falling asleep."""
    wait_for(lambda: [name for name in sentries(conn) if name in names or not names])
    time.sleep(0.6)


def soon(conn, job, seconds=1.0):
    wait_for(lambda: status(conn, job) == "succeeded", seconds, every=0.005)


def latencies(conn, since="created_at"):
    """Seconds from the insert (or another time) to the handler's first line, sorted."""
    query = f"select result::float8 - extract(epoch from {since})::float8 from redrive.jobs where result is not null"
    return sorted(value for (value,) in conn.execute(query))


def told(text, values):
    p50, p99 = values[len(values) // 2], values[int(len(values) * 0.99)]
    measured(f"{text}: p50 {1000 * p50:.1f} ms, p99 {1000 * p99:.1f} ms, of {len(values)}")
    return p50, p99


def test_an_idle_worker_takes_up_a_plain_insert_at_once(start_worker, conn):
    """Of another process; the bars of the reference machine, 5 and 20 ms, are printed against and not asserted."""
    start_worker(SOURCE, "--poll", str(RARELY))
    asleep(conn)
    for _ in range(100):
        job = insert(conn, "job")
        wait_for(lambda job=job: status(conn, job) == "succeeded", 2, every=0.002)
        time.sleep(random.uniform(0, 0.03))
    p50, p99 = told("pick-up", latencies(conn))
    assert p50 < 0.05
    assert p99 < 0.5


def test_rows_committed_30_ms_after_their_insert_start_within_half_a_second(start_worker, db, conn):
    """Whether the worker was awake, falling asleep or asleep at either moment."""
    start_worker(SOURCE, "--poll", str(RARELY))
    asleep(conn)
    conn.execute("create table public.commits (job bigint, at float8)")

    def slowly():
        with psycopg.connect(db) as own:
            for _ in range(25):
                job = insert(own, "job")
                time.sleep(0.03)
                own.execute("insert into public.commits values (%s, %s)", (job, time.time()))
                own.commit()
                time.sleep(random.uniform(0, 0.05))

    threads = [threading.Thread(target=slowly) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        insert(conn, "job")  # so that it wakes up and falls asleep all the time
        time.sleep(random.uniform(0, 0.04))
    wait_for(lambda: set(states(conn)) == {"succeeded"})
    query = "select result::float8 - at from redrive.jobs join public.commits on job = id"
    late = sorted(value for (value,) in conn.execute(query))
    assert len(late) == 75
    _, p99 = told("committed 30 ms later", late)
    assert p99 < 0.5


def test_delayed_jobs_start_when_they_are_due(queue, conn):
    with Inside(queue):
        asleep(conn)
        for delay in (0.9, 0.3, 1.4):
            insert(conn, "job", run_at=conn.execute("select now() + %s * interval '1 s'", (delay,)).fetchone()[0])
        wait_for(lambda: states(conn) == {"succeeded": 3})
        found = latencies(conn, "run_at")
    told("delayed", found)
    assert found[0] >= 0
    assert found[-1] < 0.3


def test_a_busy_worker_is_told_nothing_and_a_sleeping_one_once(db, conn, nap):
    """LN-05: while the sentry is awake writers pay no NOTIFY, and so no lock at commit."""
    queue = a_queue(db, concurrency=1)
    queue.handler("nap")(nap)
    with Inside(queue), psycopg.connect(db, autocommit=True) as ears:
        ears.execute(f"listen {channel('redrive')}")
        asleep(conn)
        insert(conn, "nap")
        assert len(list(ears.notifies(timeout=5, stop_after=1))) == 1
        wait_for(lambda: states(conn) == {"running": 1} and not sentries(conn))
        for _ in range(20):
            insert(conn, "job")
        assert list(ears.notifies(timeout=0.3)) == []
        nap.end()
        wait_for(lambda: states(conn) == {"succeeded": 21})


def test_a_bulk_insert_is_one_notification_and_a_rolled_back_one_is_none_ln_05(db, conn):
    with psycopg.connect(db, autocommit=True) as ears, psycopg.connect(db, autocommit=True) as sentry:
        ears.execute(f"listen {channel('redrive')}")
        sentry.execute("select pg_advisory_lock(%s)", (lock_key("redrive"),))
        conn.execute("insert into redrive.jobs (kind) select 'job' from generate_series(1, 10000)")
        [one] = ears.notifies(timeout=1)
        assert one.payload == ""
        with conn.transaction(force_rollback=True):
            insert(conn, "job")
        assert list(ears.notifies(timeout=0.2)) == []


def test_of_many_idle_workers_one_wakes_ln_08(db, conn, woken):
    queues = [a_queue(db, lease=30) for _ in range(6)]
    with Inside(*queues) as inside:
        asleep(conn)
        names = {worker.name for worker in inside.workers}
        wait_for(lambda: sum(worker.listener.hears for worker in inside.workers) == 6)
        time.sleep(0.5)
        woken.clear()
        for _ in range(5):
            soon(conn, insert(conn, "job"))
            asleep(conn, *names)
    assert sum(woken.values()) == 5


def test_more_work_than_one_can_take_wakes_another_and_another(db, conn, nap):
    """One by one, each by the one before: six workers with a slot each take six jobs of one transaction."""
    queues = [Queue(db, poll=RARELY, lease=30, concurrency=1) for _ in range(6)]
    for queue in queues:
        queue.handler("nap")(nap)
    with Inside(*queues) as inside:
        asleep(conn)
        wait_for(lambda: sum(worker.listener.hears for worker in inside.workers) == 6)
        beat_with_ears(conn, inside)
        conn.execute("insert into redrive.jobs (kind) select 'nap' from generate_series(1, 6)")
        wait_for(lambda: states(conn) == {"running": 6}, 3)
        assert len({holder for (holder,) in conn.execute("select locked_by from redrive.jobs")}) == 6
        nap.end()


def beat_with_ears(conn, inside):
    """Whom to wake is known from the workers' rows, which are as old as their last beat."""
    now = conn.execute("select clock_timestamp()").fetchone()[0]
    for worker in inside.workers:
        worker.heartbeat._beat_at = 0.0
    known = "select count(*) from redrive.workers where listener_pid is not null and heartbeat_at > %s"
    wait_for(lambda: conn.execute(known, [now]).fetchone()[0] == len(inside.workers))


def test_what_the_sentry_does_not_know_wakes_one_who_does(db, conn, woken):
    queues = [a_queue(db, "job", lease=30), a_queue(db, "job", "rare", lease=30)]
    with Inside(queues[0]) as ignorant:
        asleep(conn)
        with Inside(queues[1]) as learned:
            wait_for(lambda: learned.worker.listener.hears)
            beat_with_ears(conn, learned)
            assert sentries(conn) == [ignorant.worker.name]
            soon(conn, insert(conn, "rare"), 2)
            assert woken[learned.worker.name]


def test_a_sentry_that_becomes_busy_hands_on_its_watch(db, conn, nap):
    queues = [Queue(db, poll=RARELY, lease=30, concurrency=1) for _ in range(2)]
    for queue in queues:
        queue.handler("nap")(nap)
    with Inside(*queues) as inside:
        asleep(conn)
        beat_with_ears(conn, inside)
        first = sentries(conn)
        # it is not woken for this one: it knows when it is due
        insert(conn, "nap", run_at=conn.execute("select now() + interval '0.4 s'").fetchone()[0])
        wait_for(lambda: states(conn) == {"running": 1}, 10)
        wait_for(lambda: sentries(conn) and sentries(conn) != first, 10)
        insert(conn, "nap")
        wait_for(lambda: states(conn) == {"running": 2}, 10)
        nap.end()


def test_a_call_to_who_has_become_busy_since_its_last_beat_is_passed_on(db, conn, nap, woken):
    queues = [Queue(db, poll=RARELY, lease=30, concurrency=1) for _ in range(2)]
    for queue in queues:
        queue.handler("nap")(nap)
    with Inside(*queues) as inside:
        asleep(conn)
        beat_with_ears(conn, inside)
        busy = sentries(conn)[0]
        insert(conn, "nap")
        [idle] = {worker.name for worker in inside.workers} - {busy}
        asleep(conn, idle)
        before = woken[idle]
        conn.execute("select pg_notify(%s, '')", [channel("redrive", busy)])
        wait_for(lambda: woken[idle] > before, 10)
        nap.end()


def counted(conn, found, state, count):
    return conn.execute(found, [state]).fetchone() == (count,)


def test_a_sentry_that_becomes_busy_hands_on_its_watch_however_lately_it_has_woken_another(db, conn, nap, monkeypatch):
    """Else nobody watched until a poll; the pause between two calls is for those behind whom somebody watches."""
    monkeypatch.setattr("redrive.producer.WAKE_EVERY", 3600.0)
    queues = [Queue(db, poll=RARELY, lease=30, concurrency=1) for _ in range(2)]
    for queue in queues:
        queue.handler("nap")(nap)
        queue.handler("job")(lambda payload: None)
    with Inside(*queues) as inside:
        asleep(conn)
        found = "select count(*) from redrive.jobs where status = %s"
        for kind, state, counts in (("job", "succeeded", (1, 2)), ("nap", "running", (1, 2))):
            beat_with_ears(conn, inside)
            for count in counts:
                wait_for(lambda: sentries(conn), 10)
                insert(conn, kind)
                wait_for(partial(counted, conn, found, state, count), 10)
        nap.end()


def test_when_the_sentry_is_stopped_killed_or_frozen_another_takes_its_place(db, conn, start_worker):
    """A stopped one says so, a dead one's lock is free, and a frozen one's session is ended by its peers."""
    start = lambda: start_worker(SOURCE, "--lease", "1", "--poll", str(RARELY))  # noqa: E731
    first = start()
    asleep(conn)
    with Inside(a_queue(db, lease=1, poll=1)) as inside:
        name = inside.worker.name
        beat_with_ears(conn, inside)
        assert name not in sentries(conn)
        assert first.stop() == 0
        wait_for(lambda: sentries(conn) == [name], 2)

        second = start()
        take_over(conn, inside, second)
        second.kill()
        soon(conn, insert(conn, "job"), 3)  # by polling, once
        wait_for(lambda: sentries(conn) == [name], 2)

        third = start()
        take_over(conn, inside, third)
        third.pause()
        wait_for(lambda: sentries(conn) == [name], 5)
        soon(conn, insert(conn, "job"))
        third.resume()
        wait_for(lambda: "listen" in sessions(conn, f"%:{third.pid}:"), 5)
        assert third.stop() == 0


def take_over(conn, inside, other):
    """Make the other worker the sentry, as happens when the present one was busy for a moment."""
    listener = inside.worker.listener

    async def awake():
        pass

    listener.doze = awake
    conn.execute("select pg_terminate_backend(%s, 1000)", (listener.pid,))
    [name] = wait_for(lambda: conn.execute("select name from redrive.workers where pid = %s", (other.pid,)).fetchone())

    said = "select listener_pid from redrive.workers where name = %s"
    wait_for(lambda: conn.execute(said, (name,)).fetchone()[0])
    asked = 0.0

    def watches():
        nonlocal asked
        if time.monotonic() - asked > 3:  # not all the time: who is woken in vain stays up
            asked = time.monotonic()
            conn.execute("select pg_notify(%s, '')", (channel("redrive", name),))
        return sentries(conn) == [name]

    wait_for(watches)
    asleep(conn, name)  # the word may have come after, and woken it once more
    wait_for(watches)
    del listener.doze


def test_jobs_that_nobody_can_run_now_do_not_make_a_worker_spin(queue, conn, said):
    """LN-08: of unknown kinds, and due in an hour; one a commit, as fast as they come, for two seconds."""
    later = conn.execute("select now() + interval '1 hour'").fetchone()[0]
    with Inside(queue):
        asleep(conn)
        said.clear()
        began, rows = time.monotonic(), 0
        while time.monotonic() - began < 2:
            insert(conn, "unheard of")
            insert(conn, "job", run_at=later)
            rows += 2
        seconds = time.monotonic() - began
        statements = len(said)
        measured(f"{rows / seconds:.0f} inserts/s that nobody can run now: {statements / seconds:.0f} statements/s")
        soon(conn, insert(conn, "job"))
    assert statements / seconds < 100
    assert statements < rows / 2


@pytest.mark.slow
def test_an_idle_worker_says_less_than_one_word_in_two_seconds_ln_09(db, conn, said, monkeypatch):
    """With the settings it has by default, and with twenty slots as with one; looks are cheap on any machine."""
    monkeypatch.setattr("redrive.looks.DEAR", 1.0)
    queue = Queue(db, concurrency=20)
    queue.handler("job")(lambda payload: None)
    with Inside(queue):
        asleep(conn)
        time.sleep(4)  # the looks after falling asleep, and the first two polls
        said.clear()
        time.sleep(12)
        spoken = Counter(said)
    measured(f"an idle worker: {sum(spoken.values()) / 12:.2f} statements/s, {dict(spoken)}")
    assert sum(spoken.values()) <= 6
    assert spoken["outcome"] <= 1, "whose turn comes twice a minute or less"


def test_a_transaction_that_is_to_be_prepared_switches_the_wake_up_off(db, conn):
    with Inside(a_queue(db, poll=1)), psycopg.connect(db) as two_phases:
        asleep(conn)
        insert(two_phases, "job")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="PREPARE"):
            two_phases.execute("prepare transaction 'refused'")
        two_phases.rollback()
        two_phases.execute("set redrive.notify = off")
        two_phases.commit()
        job = insert(two_phases, "job")
        two_phases.execute("prepare transaction 'taken'")
        two_phases.rollback()
        two_phases.autocommit = True
        two_phases.execute("commit prepared 'taken'")
        wait_for(lambda: status(conn, job) == "succeeded", 3)


def test_the_tutorials_own_notify_is_heard(queue, conn):
    with Inside(queue):
        asleep(conn)
        conn.execute("set redrive.notify = off")
        job = insert(conn, "job")
        time.sleep(0.3)
        assert status(conn, job) == "pending"
        conn.execute("notify jobs, '42'")
        soon(conn, job)


def test_a_worker_that_does_not_listen_polls_ln_01(start_worker, conn):
    """With three sessions instead of four, and a job waits a second at most."""
    worker = start_worker(SOURCE, "--no-listen")
    wait_for(lambda: "heartbeat" in sessions(conn))
    time.sleep(0.5)
    for _ in range(2):
        soon(conn, insert(conn, "job"), 2)
    assert set(sessions(conn)) == {"claim", "outcome", "heartbeat"}
    assert sentries(conn) == []
    assert "LISTEN" not in worker.log()


def test_a_worker_listens_to_nothing_that_is_not_its_own(queue, db, conn):
    """Of another schema in the same database, another channel and another lock: LN-02."""
    assert channel("redrive") != channel("other") != channel("other", "w")
    assert lock_key("redrive") != lock_key("other")
    for name in ("redrive", "x" * 63, 'häßlich, with "quotes"'):
        assert len(channel(name, "worker:1:abc")) <= 63
        assert -(2**63) <= lock_key(name) < 2**63
    with Inside(queue) as inside:
        asleep(conn)
        pid = inside.worker.listener.pid
        held = "select count(*), min(mode) from pg_locks where locktype = 'advisory' and pid = %s"
        assert conn.execute(held, (pid,)).fetchone() == (1, "ExclusiveLock")
    assert conn.execute(held, (pid,)).fetchone()[0] == 0
    assert row(conn, insert(conn, "job")).status == "pending"
