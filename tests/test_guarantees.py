"""What the README promises, with everything going wrong at once: no job is lost, and no odd one holds up the others."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from engine import APP, Inside, failures, insert, measured, row, sessions, states, status
from redrive import Queue, events, worker
from support import wait_for


@pytest.fixture
def queue(db):
    queue = Queue(db, lease=3)
    queue.handler("job")(lambda payload: None)
    yield queue
    queue.close()


class Crew:
    """Workers under a supervisor, to whom things happen."""

    def __init__(self, start, size):
        self.start = start
        self.workers = [start() for _ in range(size)]
        self.frozen = []

    def supervise(self):
        """Start again whoever is gone, and thaw whoever has been frozen for long."""
        self.workers = [one if one.running else self.start() for one in self.workers]
        for since, one in self.frozen:
            if one.running and time.monotonic() - since > 1.5:
                one.resume()

    def strike(self, deed, victim, conn):
        match deed:
            case "kill":
                victim.kill()
            case "stop":
                victim.send(signal.SIGTERM)
            case "freeze":
                victim.pause()
                self.frozen.append((time.monotonic(), victim))
            case "cut":
                for pid in sessions(conn, f"%:{victim.pid}:").values():
                    conn.execute("select pg_terminate_backend(%s)", (pid,))


def tell(conn, crew):
    """What is left, who holds it and what everybody is at, for whoever reads of a failure."""
    for query in (
        "select * from redrive.jobs where status <> 'succeeded' order by id limit 20",
        "select name, heartbeat_at, problem, listener_pid from redrive.workers order by heartbeat_at",
        "select n, job_id, attempt, pid, event, at from public.effects order by n desc limit 20",
        "select pid, application_name, state, wait_event, query_start, query from pg_stat_activity",
    ):
        print(*conn.execute(query), sep="\n")  # noqa: T201 # pytest shows it
    for one in crew.workers:
        state = Path(f"/proc/{one.pid}/stat").read_text().rpartition(") ")[2][:1] if one.running else "gone"
        print(one.path.name, one.pid, state)  # noqa: T201 # as above


def test_what_is_tried_here_is_what_make_matrix_asked_for(conn):
    """A cell whose setting went unheard would pass, and prove nothing."""
    asked = dict(each.split("=", 1) for each in os.environ.get("MATRIX_SETTINGS", "").split(";") if each)
    assert asked == {name: conn.execute("select current_setting(%s)", [name]).fetchone()[0] for name in asked}
    found = {
        "MATRIX_POSTGRES": str(conn.info.server_version // 10_000),
        "MATRIX_PYTHON": ".".join(map(str, sys.version_info[:2])),
        "MATRIX_ENCODING": conn.execute("select current_setting('server_encoding')").fetchone()[0],
    }
    assert found | {name: os.environ[name] for name in found if name in os.environ} == found


@pytest.mark.slow
def test_no_job_is_lost_while_workers_are_killed_stopped_frozen_and_cut_off(conn, effects, start_worker):
    """Three workers, something happens to one of them every 0.2 s, and jobs come in all the while."""
    flags = ("--lease", "1", "--grace", "0.2", "--concurrency", "4", "--max-crashes", "100")
    crew, fate = Crew(lambda: start_worker(APP, *flags, env=effects.env), 3), random.Random(7)
    jobs, happened = [], Counter()
    wait_for(lambda: conn.execute("select count(*) from redrive.workers").fetchone()[0])
    end = time.monotonic() + 8
    while time.monotonic() < end:
        kinds = ("nap", "nap", "doze", "doze")
        jobs += [insert(conn, kind, f'{{"seconds": {fate.uniform(0, 0.2):.3f}}}') for kind in kinds]
        crew.supervise()
        deed = fate.choice(("kill", "stop", "freeze", "cut", "nothing", "nothing"))
        happened[deed] += 1
        crew.strike(deed, fate.choice(crew.workers), conn)
        time.sleep(0.2)

    def all_done():
        crew.supervise()
        return set(states(conn)) == {"succeeded"}

    try:
        wait_for(all_done, 30)
    except AssertionError:
        tell(conn, crew)
        raise
    assert states(conn) == {"succeeded": len(jobs)}
    assert {effect.job_id for effect in effects.ends()} == set(jobs)
    twice = len(effects.ends()) - len(jobs)
    measured(f"{len(jobs)} jobs, {dict(happened)}: none lost, {twice} ran to their end twice")
    assert conn.execute("select max(attempts) from redrive.jobs").fetchone() == (1,)
    assert {name for (name,) in conn.execute("select distinct error_type from redrive.failures")} <= {"WorkerLost"}


def vacuumed(conn):
    """Dead rows of the jobs' table that VACUUM had to leave because somebody might still see them."""
    notices = []
    conn.add_notice_handler(lambda notice: notices.append(f"{notice.message_primary} {notice.message_detail}"))
    conn.execute("vacuum (verbose, index_cleanup on) redrive.jobs")
    words = r"(\d+) (?:are dead but not yet removable|dead row versions cannot be removed yet)"  # since 14, and before
    return sum(int(left) for left in re.findall(words, "\n".join(notices)))


def test_no_transaction_is_open_while_a_handler_runs_and_none_pins_the_horizon_bl_01(db, conn, queue):
    """(c) and (d): a stranger's long query makes dead rows stay, its end is all it takes, no worker is restarted."""
    ended = threading.Event()
    queue.handler("long", timeout=None)(lambda payload: ended.wait(20))
    with Inside(queue) as inside, psycopg.connect(db) as stranger:
        long = insert(conn, "long")
        wait_for(lambda: status(conn, long) == "running")
        stranger.execute("set transaction isolation level repeatable read")
        stranger.execute("select 1")
        conn.execute("insert into redrive.jobs (kind) select 'job' from generate_series(1, 2000)")
        wait_for(lambda: states(conn).get("succeeded") == 2000)
        assert vacuumed(conn) >= 2000
        stranger.rollback()
        wait_for(lambda: vacuumed(conn) == 0, 3)
        query = (
            "select count(*) filter (where state = 'idle' and xact_start is null and backend_xmin is null), count(*) "
            "from pg_stat_activity where datname = current_database() and application_name like 'redrive %'"
        )
        wait_for(lambda: conn.execute(query).fetchone() == (4, 4))  # as long as it lasts, but for a beat's instant
        conn.execute("insert into redrive.jobs (kind) select 'job' from generate_series(1, 500)")
        wait_for(lambda: states(conn).get("succeeded") == 2500, 3)
        assert inside.worker.slots.running
        ended.set()
        wait_for(lambda: status(conn, long) == "succeeded")


def test_a_worker_process_has_four_sessions_whatever_it_does(conn, queue):
    """Small plans allow twenty."""
    counted = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    most = 0
    with Inside(queue, concurrency=50):
        conn.execute("insert into redrive.jobs (kind) select 'job' from generate_series(1, 5000)")

        def done():
            nonlocal most
            most = max(most, conn.execute(counted).fetchone()[0])
            return states(conn).get("succeeded") == 5000

        wait_for(done, 20)
    assert most == 4


def test_an_old_worker_leaves_what_it_does_not_know_to_the_new_sd_04(db, conn, queue):
    """A rolling deploy: both run, the new kind is new, and nobody counts it as a failure."""
    old, new = Queue(db, lease=3), Queue(db, lease=3)
    ran = []
    for one in (old, new):
        one.handler("a")(lambda payload: None)
    new.handler("b", aliases=("former b",))(lambda payload, job: ran.append(job.worker))
    with Inside(old):
        lonely = [insert(conn, "b") for _ in range(10)] + [insert(conn, "a")]
        wait_for(lambda: status(conn, lonely[-1]) == "succeeded")
        time.sleep(0.5)
        assert {(row(conn, job).status, row(conn, job).claims) for job in lonely[:-1]} == {("pending", 0)}
        with Inside(new) as fresh:
            conn.execute("insert into redrive.jobs (kind) select 'b' from generate_series(1, 100)")
            insert(conn, "former b")
            wait_for(lambda: states(conn) == {"succeeded": 112})
            assert set(ran) == {fresh.worker.name}
    assert conn.execute("select count(*) from redrive.failures").fetchone() == (0,)


ODD_ROWS = {
    "an unknown kind": {"kind": "unheard of"},
    "a scalar for a payload": {"payload": "42"},
    "a payload that Python can't hold": {"payload": "[1" + "0" * 5000 + "]"},
    "a number without end": {"payload": "1e400"},
    "a surrogate": {"payload": r'"\ud83d\ude00"'},
    "due since for ever": {"run_at": "-infinity"},
    "due before Christ": {"run_at": "0044-03-15 BC"},
    "due never": {"run_at": "infinity"},
    "made after the end of time": {"created_at": "infinity"},
    "odd metadata": {"metadata": "5"},
    "negative attempts": {"attempts": -3},
    "no attempts at all": {"max_attempts": 0},
    "a lane of its own": {"lane": "\u2603 or ' or \\"},
    "a kind in capitals with a quote": {"kind": "ODD'\""},
    "past its deadline": {"expires_at": "2020-01-01"},
}


class Unspeakable(Exception):
    """An error that can't be described."""

    def __str__(self):
        raise RuntimeError("no words")


def test_one_odd_row_or_outcome_stops_neither_a_loop_nor_the_others_cn_07(conn, queue):
    """Twenty good jobs among rows that any program could have written, and results that no database takes."""

    def raises(error):
        def handler(payload):
            raise error

        return handler

    odd = {
        "nul": raises(ValueError("a \0 in the text, and \ud800 beside it")),
        "unspeakable": raises(Unspeakable()),
        "object": lambda payload: object(),
        "nan": lambda payload: {"value": float("nan"), "\0": "\0"},
        "exit": raises(SystemExit(3)),
        "ODD'\"": lambda payload: None,
    }
    for kind, handler in odd.items():
        queue.handler(kind, max_attempts=1, on_dead=raises(RuntimeError("the hook")))(handler)
    failed = []
    stop_listening = [
        events.subscribe(failed.append, events.TickFailed),
        events.subscribe(raises(RuntimeError("a listener")), events.JobDied, events.JobRetried),
    ]
    for columns in ODD_ROWS.values():
        with contextlib.suppress(psycopg.errors.UntranslatableCharacter, UnicodeEncodeError):  # LATIN1 can't hold all
            insert(conn, **{"kind": "job", "payload": "{}", **columns})
    for kind in odd:
        insert(conn, kind, max_attempts=1)
    good = [insert(conn, "job") for _ in range(20)]
    with Inside(queue, lease=1) as inside:
        wait_for(lambda: all(status(conn, job) == "succeeded" for job in good), 5)
        waits = "select kind, run_at::text from redrive.jobs where status in ('pending', 'running') and run_at <= now()"
        wait_for(lambda: conn.execute(waits).fetchall() == [("unheard of", conn.execute(waits).fetchone()[1])], 10)
        after = insert(conn, "job")
        wait_for(lambda: status(conn, after) == "succeeded", 10)
        assert inside.worker.complaints() == ""
    for stop in stop_listening:
        stop()
    assert failed == []
    dead = dict(conn.execute("select kind, last_error from redrive.jobs where status = 'dead' and kind <> 'job'"))
    assert set(dead) >= {"nul", "unspeakable"}
    assert "in the text" in dead["nul"]


def test_a_claim_loop_that_fails_or_hangs_is_complained_of_and_an_idle_or_busy_one_is_not_op_08(
    db, conn, queue, monkeypatch
):
    monkeypatch.setattr(worker, "LATE", 1.0)
    problem = "select coalesce(problem, '') from redrive.workers"
    ended = threading.Event()
    queue.handler("long", timeout=None)(lambda payload: ended.wait(30))
    soon = "select now() + interval '0.3 s'"
    with Inside(queue, poll=0.5) as inside:
        busy = insert(conn, "long")
        wait_for(lambda: status(conn, busy) == "running")
        beats = inside.worker.heartbeat.beats
        wait_for(lambda: inside.worker.heartbeat.beats > beats + 1)
        assert conn.execute(problem).fetchone() == ("",)

        job = insert(conn, "job", run_at=conn.execute(soon).fetchone()[0])
        with psycopg.connect(db) as blocker:
            blocker.execute("lock table redrive.jobs in share mode")
            wait_for(lambda: "claim loop: LockNotAvailable" in conn.execute(problem).fetchone()[0], 8)
        wait_for(lambda: status(conn, job) == "succeeded", 8)
        wait_for(lambda: conn.execute(problem).fetchone() == ("",), 5)

        pid = sessions(conn)["claim"]
        with stopped(pid):
            wait_for(lambda: "claim loop has not turned" in conn.execute(problem).fetchone()[0], 8)
        wait_for(lambda: conn.execute(problem).fetchone() == ("",), 5)
        ended.set()
        wait_for(lambda: status(conn, busy) == "succeeded")


@contextlib.contextmanager
def stopped(pid):
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


ONE_COMMIT = """
import os, signal
import psycopg
from redrive import Queue

queue = Queue()


@queue.handler("pay")
def pay(payload, job):
    with psycopg.connect(os.environ["DATABASE_URL"]) as conn:
        def maybe(point):
            if job.crashes == 0 and payload == point:
                os.kill(os.getpid(), signal.SIGKILL)
        conn.execute("insert into public.business values (%s)", (job.id,))
        maybe("written")
        job.complete(conn)
        maybe("completed")
        conn.commit()
        maybe("committed")
"""


def test_business_row_and_success_are_one_commit_wherever_the_worker_is_killed_cn_04(conn, queue, start_worker):
    conn.execute("create table public.business (job bigint)")
    with Inside(queue, lease=1):
        for point in ("written", "completed", "committed"):
            job = insert(conn, "pay", f'"{point}"')
            victim = start_worker(ONE_COMMIT, "--lease", "1")
            victim.process.wait(10)
            done = status(conn, job) == "succeeded"
            assert conn.execute("select count(*) from public.business where job = %s", (job,)).fetchone()[0] == done
            assert done == (point == "committed")
        start_worker(ONE_COMMIT, "--lease", "1")
        wait_for(lambda: states(conn) == {"succeeded": 3})
    assert conn.execute("select count(*), count(distinct job) from public.business").fetchone() == (3, 3)
    assert failures(conn, job) == []


def test_suspects_that_run_long_hold_up_other_work_for_a_trial_and_not_for_their_length(start_worker, conn):
    """A worker is killed with long exports in its hands: the one that is left goes on sending mail meanwhile."""
    app = """
import os, time
import psycopg
import redrive.slots
from redrive import Queue

redrive.slots.TRIAL = 1.0  # seconds; ten in earnest
queue = Queue()

@queue.handler("export")
def export(payload, job):
    time.sleep(12)

@queue.handler("mail")
def mail(payload, job):
    pass
"""
    first = start_worker(app, "--lease", "2", "--concurrency", "4")
    conn.execute("INSERT INTO redrive.jobs (kind) SELECT 'export' FROM generate_series(1, 3)")
    running = "SELECT count(*) FROM redrive.jobs WHERE kind = 'export' AND status = 'running' AND locked_by LIKE %s"
    wait_for(lambda: conn.execute(running, [f"%:{first.pid}:%"]).fetchone() == (3,))
    second = start_worker(app, "--lease", "2", "--concurrency", "4")
    wait_for(lambda: conn.execute("SELECT count(*) FROM redrive.workers").fetchone() == (2,))
    first.kill()
    wait_for(lambda: conn.execute(running, [f"%:{second.pid}:%"]).fetchone() == (3,), 11)
    conn.execute("INSERT INTO redrive.jobs (kind) VALUES ('mail')")
    mail = "SELECT status FROM redrive.jobs WHERE kind = 'mail'"
    wait_for(lambda: conn.execute(mail).fetchone() == ("succeeded",), 4)
    assert conn.execute(running, [f"%:{second.pid}:%"]).fetchone() == (3,), "the exports still run"
    wait_for(lambda: conn.execute("SELECT count(*) FROM redrive.jobs WHERE alone").fetchone() == (0,))
