"""The database goes away, comes back, turns read-only or falls silent: workers wait, go on, and lose nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from chaos.proxy import Proxy
from engine import APP, Inside, failures, insert, measured, row, sentries, sessions, states, status
from redrive import Dead, Discard, Queue, Retry, Snooze, events, listener
from redrive.migrate import migrate
from redrive.service import Service
from support import wait_for

RARELY = ("--poll", "60")
"""Whatever is found at once was then not found by polling."""


@pytest.fixture
def start(start_worker, effects):
    return lambda *flags, dsn=None: start_worker(APP, *flags, env=effects.env, dsn=dsn)


@pytest.fixture
def queue(db):
    queue = Queue(db, poll=60, lease=3)
    queue.handler("job")(lambda payload: None)
    yield queue
    queue.close()


def news(worker):
    """What a worker had to say of the database."""
    words = ("answer", "goes on", "LISTEN", "Traceback", "ERROR")
    return [line for line in worker.log().splitlines() if any(word in line for word in words)]


def runs_at_once(conn, kind="job", seconds=1.0):
    """A job that is inserted now starts within *seconds*; gives how soon it was done."""
    began = time.monotonic()
    job = insert(conn, kind)
    wait_for(lambda: status(conn, job) == "succeeded", seconds, every=0.005)
    return time.monotonic() - began


def test_after_each_restart_of_the_server_the_worker_works_and_hears_again_cn_01(own_server, start, effects):
    """However the server ended; one line tells of the loss and one of the return, and a running job runs on."""
    migrate(own_server.url)
    worker = start(*RARELY, "--lease", "9", dsn=own_server.url)
    with psycopg.connect(own_server.url, autocommit=True) as conn:
        wait_for(lambda: sentries(conn))
        busy = insert(conn, "nap", '{"seconds": 4}')
        wait_for(lambda: effects.starts(busy))
    for number, mode in enumerate(("fast", "immediate", "crash"), 1):
        own_server.stop(mode)
        wait_for(lambda number=number: worker.log().count("does not answer") == number)
        own_server.start()
        back = time.monotonic()
        wait_for(lambda number=number: worker.log().count("answers again") == number, 12)
        with psycopg.connect(own_server.url, autocommit=True) as conn:
            wait_for(lambda conn=conn: sentries(conn))
            measured(f"{mode}: listens {time.monotonic() - back:.2f} s after the server was back")
            measured(f"{mode}: the first job was done {runs_at_once(conn, 'doze'):.3f} s after its insert")
    with psycopg.connect(own_server.url, autocommit=True) as conn:
        wait_for(lambda: states(conn) == {"succeeded": 4})
        assert (len(effects.starts(busy)), failures(conn, busy)) == (1, [])
    assert len(news(worker)) == 6
    assert worker.stop() == 0


def test_an_outage_of_as_many_tries_as_fit_into_ninety_seconds_is_over_as_soon_as_a_short_one_cn_01(
    db, conn, monkeypatch
):
    """Many leases long. What was enqueued meanwhile runs, what ran through it ran once, and the worker hears again."""
    monkeypatch.setattr(Service, "longest_pause", 0.1)
    tries = 25  # with the pauses as they are, of which all but the first five are five seconds or nearly so
    ended = threading.Event()
    with Proxy(db) as proxy:
        queue = Queue(proxy.dsn, poll=60, lease=1)
        queue.handler("job")(lambda payload: None)
        queue.handler("long", timeout=None)(lambda payload: ended.wait(30))
        with Inside(queue) as inside:
            wait_for(lambda: sentries(conn) == [inside.worker.name])
            long = insert(conn, "long")
            wait_for(lambda: status(conn, long) == "running")
            with proxy.down():
                meanwhile = [insert(conn, "job") for _ in range(20)]
                parts = (inside.worker.listener, inside.worker.heartbeat)
                wait_for(lambda: min(part._failures for part in parts) >= tries, 30)
                ended.set()
            wait_for(lambda: {status(conn, job) for job in (long, *meanwhile)} == {"succeeded"}, 5)
            wait_for(lambda: sentries(conn) == [inside.worker.name], 5)
            measured(f"the first job after it was done {runs_at_once(conn):.3f} s after its insert")
        queue.close()
    assert [row(conn, job).claims for job in (long, *meanwhile)] == [1] * 21
    assert failures(conn, long) == []


def test_every_session_may_be_ended_by_an_administrator_and_comes_back_cn_01(start, conn, effects):
    """One after the other and all at once, while the worker is idle."""
    worker = start(*RARELY, "--lease", "3")
    wait_for(lambda: sentries(conn))
    runs_at_once(conn, "doze", 3)
    roles = ("claim", "outcome", "heartbeat", "listen")
    for ended in [*((role,) for role in roles), roles]:
        before = wait_for(lambda: set(roles) <= set(sessions(conn)) and sessions(conn))
        for role in ended:
            conn.execute("select pg_terminate_backend(%s, 2000)", (before[role],))
        if "listen" in ended:
            wait_for(lambda before=before: sentries(conn) and sessions(conn).get("listen") != before["listen"], 3)
        runs_at_once(conn, "doze", 3)
        if "heartbeat" in ended:
            age = "select max(heartbeat_at) > now() - interval '1 s' from redrive.workers"
            conn.execute("update redrive.workers set heartbeat_at = now() - interval '5 s'")
            wait_for(lambda age=age: conn.execute(age).fetchone()[0], 12)
        after = sessions(conn)
        assert all(after.get(role) != before[role] for role in ended)
    assert worker.running
    assert [line for line in news(worker) if "ERROR" in line or "Traceback" in line] == []


def test_a_worker_that_starts_before_its_database_waits_for_it_quietly_cn_03(db, start, conn):
    """With a line when it began to wait and none a try, of which a minute has sixteen."""
    with Proxy(db) as proxy:
        with proxy.down():
            worker = start(dsn=proxy.dsn)
            wait_for(lambda: "does not answer" in worker.log())
            wait_for(lambda: proxy.refused >= 5, 15)
            assert len(worker.log().splitlines()) <= 3
        job = insert(conn, "doze")
        wait_for(lambda: status(conn, job) == "succeeded", 8)
        wait_for(lambda: "answers again" in worker.log())
        assert len(news(worker)) == 2
        assert worker.stop() == 0


def test_a_worker_may_be_told_to_leave_when_the_database_is_lost_cn_03(db, start, conn, effects):
    """Before it ever had one, and in the middle of its work."""
    with Proxy(db) as proxy, Proxy(db) as never:
        working = start("--exit-on-db-loss", "2", dsn=proxy.dsn)
        job = insert(conn, "nap", '{"seconds": 30}')
        wait_for(lambda: effects.starts(job))
        with proxy.down(), never.down():
            began = time.monotonic()
            starting = start("--exit-on-db-loss", "2", dsn=never.dsn)
            for worker in (working, starting):
                assert worker.process.wait(10) == 3
                seconds = time.monotonic() - began
                assert 2 <= seconds < 6  # from before the process was there
                measured(f"left {seconds:.1f} s after the loss")
                assert "the database was away for more than 2 s" in worker.log().splitlines()[-1]
                assert "Traceback" not in worker.log()


def test_a_server_that_turned_read_only_is_left_and_taken_up_again_cn_05(own_server, start, effects):
    """As after a failover: sessions live on there, and LISTEN still works, but nothing can be written.

    So none of the old ones is kept, not even the one that listens, and five seconds after it is over all goes on.
    """
    migrate(own_server.url)
    worker = start("--lease", "9", "--poll", "0.5", dsn=own_server.url)
    with psycopg.connect(own_server.url, autocommit=True) as conn:
        wait_for(lambda: sentries(conn))
        running = insert(conn, "nap", '{"seconds": 1.5}')
        wait_for(lambda: effects.starts(running))
        before = sessions(conn)
        conn.execute("alter system set default_transaction_read_only = on")
        conn.execute("select pg_reload_conf()")
        wait_for(lambda: "read-only" in worker.log() or "ReadOnly" in worker.log(), 8)
        wait_for(lambda: set(before.values()).isdisjoint(sessions(conn).values()), 8)
        conn.execute("set default_transaction_read_only = off")
        waiting = insert(conn, "doze")
        conn.execute("alter system reset default_transaction_read_only")
        conn.execute("select pg_reload_conf()")
        back = time.monotonic()
        wait_for(lambda: [status(conn, job) for job in (waiting, running)] == ["succeeded"] * 2, 5)
        measured(f"worked {time.monotonic() - back:.1f} s after the server could be written to")
        assert len(effects.starts(running)) == 1
        wait_for(lambda: sentries(conn) and set(sessions(conn)) == set(before))
        assert failures(conn, running) == failures(conn, waiting) == []
    wait_for(lambda: "answers again" in worker.log())
    assert len(news(worker)) == 2


@pytest.mark.slow
def test_an_outage_longer_than_the_lease_reaps_nobody_who_lived_through_it(own_server, start, effects):
    """Stopped and started again, then frozen: neither worker has been heard for twice its lease, and both are alive."""
    migrate(own_server.url)
    workers = [start("--lease", "1", "--concurrency", "1", dsn=own_server.url) for _ in range(2)]
    with psycopg.connect(own_server.url, autocommit=True) as conn:
        jobs = [insert(conn, kind, '{"seconds": 9}') for kind in ("nap", "doze")]
        wait_for(lambda: len(effects.starts()) == 2)
    own_server.stop("immediate")
    time.sleep(2)
    own_server.start()
    wait_for(lambda: all("answers again" in worker.log() for worker in workers))
    time.sleep(1.5)  # in which each of them judges
    own_server.pause()
    time.sleep(2)
    own_server.resume()
    with psycopg.connect(own_server.url, autocommit=True) as conn:
        wait_for(lambda: [status(conn, job) for job in jobs] == ["succeeded"] * 2, 20)
        assert conn.execute("select * from redrive.failures").fetchall() == []
        assert [row(conn, job).claims for job in jobs] == [1, 1]
    assert len(effects.starts()) == 2


@pytest.mark.parametrize("cut", ["cut", "half_close"])
def test_connections_cut_or_half_closed_on_the_way_are_opened_again(db, queue, conn, cut):
    with Proxy(db) as proxy:
        proxied = Queue(proxy.dsn, poll=60, lease=3)
        proxied.handler("job")(lambda payload: None)
        with Inside(proxied) as inside:
            wait_for(lambda: sentries(conn) == [inside.worker.name])
            runs_at_once(conn, seconds=3)
            for role in ("claim", "outcome", "heartbeat", "listen"):
                links = proxy.of(role)
                getattr(proxy, cut)(role)
                if role == "listen":
                    wait_for(lambda links=links: set(proxy.of("listen")) - set(links), 3)
                    wait_for(lambda: sentries(conn) == [inside.worker.name], 3)
                runs_at_once(conn, seconds=3)


def test_a_slow_line_is_no_outage(db, conn):
    with Proxy(db) as proxy:
        proxy.delay = 0.02
        queue = Queue(proxy.dsn, lease=3)
        queue.handler("job")(lambda payload: None)
        lost = []
        end = events.subscribe(lost.append, events.ConnectionLost, events.TickFailed, events.ListenerDeaf)
        with Inside(queue):
            conn.execute("insert into redrive.jobs (kind) select 'job' from generate_series(1, 300)")
            wait_for(lambda: states(conn) == {"succeeded": 300})
        end()
        assert lost == []


@contextlib.contextmanager
def frozen(pid):
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_listener_whose_server_process_is_frozen_is_replaced_cn_02(queue, conn, monkeypatch):
    """No error, no word: only the ping finds it out. Meanwhile the heartbeat goes on, and jobs are found by polling."""
    monkeypatch.setattr(listener, "PING_EVERY", 0.5)
    monkeypatch.setattr(listener, "PING_TIMEOUT", 0.5)
    with Inside(queue, poll=1) as inside:
        wait_for(lambda: sentries(conn) == [inside.worker.name])
        before = inside.worker.listener.pid
        with frozen(before):
            job, beats = insert(conn, "job"), inside.worker.heartbeat.beats
            wait_for(lambda: status(conn, job) == "succeeded", 3)
            wait_for(lambda: inside.worker.listener.pid not in (None, before), 3)
            wait_for(lambda: inside.worker.heartbeat.beats > beats, 3)
            assert inside.worker.listener.hears
        # the frozen session had the sentry's lock: its end, ordered meanwhile, gives it back to who sleeps next
        ghost = "select count(*) from pg_stat_activity where pid = %s"
        wait_for(lambda: conn.execute(ghost, (before,)).fetchone() == (0,))
        runs_at_once(conn, seconds=3)
        wait_for(lambda: sentries(conn) == [inside.worker.name])


def test_a_listener_whose_line_is_dead_takes_the_sentrys_lock_from_its_own_ghost_cn_02(db, conn, monkeypatch):
    monkeypatch.setattr(listener, "PING_EVERY", 0.5)
    monkeypatch.setattr(listener, "PING_TIMEOUT", 0.5)
    with Proxy(db) as proxy:
        queue = Queue(db, poll=1, lease=3, listen_dsn=proxy.dsn)
        queue.handler("job")(lambda payload: None)
        with Inside(queue) as inside:
            wait_for(lambda: sentries(conn) == [inside.worker.name])
            before = inside.worker.listener.pid
            ghosts = proxy.of("listen")
            for link in ghosts:
                link.dead = True
            job = insert(conn, "job")
            wait_for(lambda: status(conn, job) == "succeeded", 3)
            wait_for(lambda: inside.worker.listener.pid not in (None, before), 5)
            wait_for(lambda: sentries(conn) == [inside.worker.name], 5)
            assert sessions(conn)["listen"] == inside.worker.listener.pid
            runs_at_once(conn)
        queue.close()


def test_an_outcome_waits_for_a_database_that_is_away_when_the_handler_returns_cn_04(db, start, conn, effects):
    with Proxy(db) as proxy:
        worker = start("--lease", "10", dsn=proxy.dsn)
        jobs = [insert(conn, kind, '{"seconds": 0.5}') for kind in ("nap", "fall")]
        wait_for(lambda: len(effects.starts()) == 2)
        with proxy.down():
            wait_for(lambda: len(effects.ends()) == 2)
            tries = proxy.refused
            wait_for(lambda: proxy.refused >= tries + 6, 15)  # it has asked again and again, as in an outage that lasts
            assert [status(conn, job) for job in jobs] == ["running", "running"]
        wait_for(lambda: [status(conn, job) for job in jobs] == ["succeeded", "pending"], 8)
        assert len(effects.starts()) == 2
        assert [failure.error_type for failure in failures(conn, jobs[1])] == ["RuntimeError"]
        wait_for(lambda: "answers again" in worker.log())
        assert len(news(worker)) == 2


def test_an_outcome_that_comes_after_the_lease_is_not_written_and_ends_nobody_cn_04(db, start, conn, effects):
    with Proxy(db) as proxy:
        cut_off = start("--lease", "1.5", "--concurrency", "2", dsn=proxy.dsn)
        jobs = [insert(conn, kind, '{"seconds": 0.5}') for kind in ("nap", "doze")]
        wait_for(lambda: len(effects.starts()) == 2)
        with proxy.down():
            other = start("--lease", "1.5")
            wait_for(lambda: [status(conn, job) for job in jobs] == ["succeeded", "succeeded"])
            before = [row(conn, job) for job in jobs]
        wait_for(lambda: cut_off.log().count("was taken from this worker") == 2, 8)
        assert [row(conn, job) for job in jobs] == before
        assert [len(effects.starts(job)) for job in jobs] == [2, 2]
        assert (cut_off.stop(), other.stop()) == (0, 0)


def test_jobs_of_a_claim_whose_answer_was_lost_are_handed_back_and_run(db, conn, effects, start):
    with Proxy(db) as proxy:
        worker = start(dsn=proxy.dsn)
        wait_for(lambda: sentries(conn))
        proxy.swallow_answer("claim", of=b"on its way")  # which only a claim is answered with
        with conn.transaction():
            jobs = [insert(conn, "doze", '{"lost": "on its way"}') for _ in range(5)]
        assert proxy.swallowed.wait(5)
        wait_for(lambda: states(conn) == {"succeeded": 5})
        for job in jobs:
            assert (row(conn, job).attempts, row(conn, job).claims, len(effects.starts(job))) == (1, 2, 1)
            assert failures(conn, job) == []
        assert worker.running


def test_an_outcome_whose_answer_was_lost_is_written_and_told_once_cn_04(db, conn):
    """Whichever it was: the lease is gone with it, and yet it was not lost."""
    told, dead = [], []
    end = events.subscribe(told.append, events.JobEvent)
    with Proxy(db) as proxy:
        queue = Queue(proxy.dsn, lease=5)

        @queue.handler("job", on_dead=dead.append)
        def job(payload):
            match payload:
                case "retry":
                    raise Retry("not yet", after=60)
                case "dead":
                    raise Dead("never")
                case "snooze":
                    raise Snooze(60)
                case "discard":
                    raise Discard("unwanted")
            return payload

        with Inside(queue):
            for payload in ("result", "retry", "dead", "snooze", "discard"):
                proxy.swallow_answer("outcome", to=b"'crashed'")
                one = insert(conn, "job", f'"{payload}"')
                assert proxy.swallowed.wait(5)
                wait_for(lambda one=one: [event for event in told if event.id == one and "Start" not in str(event)], 8)
                history = failures(conn, one)
                assert len(history) == (payload in ("retry", "dead", "discard"))
                assert row(conn, one).claims == 1
        queue.close()
    end()
    ended = [type(event) for event in told if not isinstance(event, events.JobStarted)]
    expected = [events.JobSucceeded, events.JobRetried, events.JobDied, events.JobSnoozed, events.JobFailed]
    assert ended == expected
    assert [type(event) for event in dead] == [events.JobDied]


def test_a_claim_that_is_committed_after_it_was_given_up_is_found_by_the_audit(queue, conn):
    """While what the worker has in its hands is left alone, however long ago it was claimed."""
    ended = threading.Event()
    queue.handler("long", timeout=None)(lambda payload: ended.wait(20))
    with Inside(queue, poll=0.2) as inside:
        held = insert(conn, "long")
        wait_for(lambda: status(conn, held) == "running")
        claimed = {"status": "running", "locked_by": inside.worker.name, "attempts": 1, "claims": 1}
        young = insert(conn, "job", locked_at=conn.execute("select now()").fetchone()[0], **claimed)
        mislaid = insert(conn, "job", locked_at="2020-01-01", **claimed)
        conn.execute("update redrive.jobs set locked_at = '2020-01-01' where id = %s", (held,))
        inside.worker.producer.mislaid._looks = [0.0]  # some time after a claim whose answer did not come
        wait_for(lambda: status(conn, mislaid) == "succeeded", 5)
        wait_for(lambda: status(conn, young) == "succeeded", 5)
        assert status(conn, held) == "running"
        ended.set()
        wait_for(lambda: status(conn, held) == "succeeded")
    assert (row(conn, mislaid).attempts, row(conn, mislaid).claims, row(conn, held).claims) == (1, 2, 1)


def test_what_was_claimed_across_a_silence_is_given_back_though_the_next_claim_is_answered(queue, conn):
    """Two claims in one turn: the second one's answer says nothing of the first, whose jobs would be held for good."""
    with Inside(queue, poll=0.2) as inside:
        producer, claimed = inside.worker.producer, []
        due = producer._claims.due

        async def across_a_silence(**params):
            jobs = await due(**params)
            if jobs and not claimed:
                claimed.extend(job.id for job in jobs)
                insert(conn, "job")  # for the second look of the same turn
                inside.worker._begin_anew()
            return jobs

        producer._claims.due = across_a_silence
        first = insert(conn, "job")
        wait_for(lambda: status(conn, first) == "succeeded", 5)
        assert claimed == [first]
        assert (row(conn, first).attempts, row(conn, first).claims) == (1, 2)


def test_a_worker_with_nothing_in_its_hands_gives_back_what_it_holds_by_the_table(queue, conn, caplog):
    """The net under whatever loses a job between the table and a slot: held by the living, it would be nobody's.

    One that was to be cancelled meanwhile ends, and does not run.
    """
    with Inside(queue, poll=0.2) as inside:
        done = insert(conn, "job")
        wait_for(lambda: status(conn, done) == "succeeded" and inside.worker.writer.idle)
        held = {
            "status": "running",
            "locked_by": inside.worker.name,
            "locked_at": "2020-01-01",
            "attempts": 1,
            "claims": 1,
        }
        with conn.transaction():
            mislaid = insert(conn, "job", **held)
            cancelled = insert(conn, "job", cancel_requested_at="2020-01-01", key="k", **held)
        inside.worker.producer.mislaid._audit_at = 0.0
        wait_for(lambda: status(conn, mislaid) == "succeeded", 5)
    assert (row(conn, mislaid).attempts, row(conn, mislaid).claims) == (1, 2)
    found = row(conn, cancelled)
    assert (found.status, found.claims, found.key, found.last_error[:9]) == ("failed", 1, None, "cancelled")
    assert f"in nobody's hands, they are given back: {mislaid}, {cancelled}" in caplog.text


def test_a_job_whose_outcome_is_still_judged_is_in_somebodys_hands(queue, conn):
    """The user's `target` may take its time; given back meanwhile, the job ran twice and its first outcome was lost."""
    ran, judged, go = [], threading.Event(), threading.Event()

    def target(_payload):
        judged.set()
        return go.wait(20) and "provider"

    @queue.handler("calls", target=target)
    def calls(_payload):
        ran.append(1)
        if len(ran) == 1:
            raise ConnectionRefusedError

    with Inside(queue, poll=0.2) as inside:
        job = insert(conn, "calls")
        assert judged.wait(10)
        assert inside.worker._known() == [job]
        go.set()
        wait_for(lambda: status(conn, job) != "running", 10)


def test_a_connection_limit_is_waited_for(db, start, conn):
    """A worker that gets one connection and not the next goes on when it gets it."""
    role = f"small_{os.urandom(4).hex()}"
    conn.execute(f"create role {role} login password 'p' connection limit 1")
    try:
        conn.execute(f"grant usage on schema redrive to {role}")
        conn.execute(f"grant select, insert, update, delete on all tables in schema redrive to {role}")
        worker = start("--lease", "3", dsn=make_conninfo(db, user=role, password="p"))
        job = insert(conn, "doze")
        wait_for(lambda: "too many connections" in worker.log())
        time.sleep(1)
        conn.execute(f"alter role {role} connection limit 4")
        wait_for(lambda: status(conn, job) == "succeeded", 10)
        wait_for(lambda: "answers again" in worker.log(), 8)
        assert len(worker.log().splitlines()) < 10
        assert worker.stop() == 0
    finally:
        conn.execute(f"drop owned by {role}")
        conn.execute(f"drop role {role}")
