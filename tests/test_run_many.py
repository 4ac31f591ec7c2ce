"""Many workers and many hands at the same table: each job runs once, none waits in vain, nobody gets in the way."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from aiosmtpd.controller import Controller

from redrive import Queue, backoff
from redrive.connections import Control
from redrive.ended import Ended
from redrive.pruner import EVERY, Pruner
from redrive.reaper import OWN_NAME
from redrive.service import Database
from redrive.settings import Settings
from redrive.statements import named, run
from support import wait_for
from support_engine import history, plain_insert, row, rows, states, until_state, working


@pytest.fixture
def queue(db):
    queue = Queue(db)
    yield queue
    queue.close()


class Effects:
    """What handlers did, counted without the queue's own bookkeeping."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.began: list[tuple[int, float]] = []
        self.ended: list[tuple[int, float]] = []

    def begin(self, job_id: int) -> None:
        with self._lock:
            self.began.append((job_id, time.monotonic()))

    def end(self, job_id: int) -> None:
        with self._lock:
            self.ended.append((job_id, time.monotonic()))

    def overlaps(self) -> bool:
        """Whether a run of a job began before its run before had ended."""
        for job_id in {one for one, _ in self.began}:
            marks = [(at, 1) for one, at in self.began if one == job_id]
            marks += [(at, -1) for one, at in self.ended if one == job_id]
            if max(itertools.accumulate(step for _, step in sorted(marks))) > 1:
                return True
        return False


class TestEachOnce:
    def test_four_processes_run_a_thousand_jobs_once_each(self, db, conn, start_worker):
        """CL-02."""
        conn.execute("create table public.effects (job_id bigint, pid int)")
        source = """
            import os, threading
            import psycopg
            from redrive import Queue

            queue, lock = Queue(), threading.Lock()
            conn = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)

            @queue.handler("k")
            def k(payload, job):
                with lock:
                    conn.execute("insert into public.effects values (%s, %s)", [job.id, os.getpid()])
        """
        for _ in range(4):
            start_worker(source, "--concurrency", "5")
        wait_for(lambda: rows(conn, "select count(*) as n from redrive.workers")[0]["n"] == 4, 30)
        for part in range(10):
            conn.execute("insert into redrive.jobs (kind) select 'k' from generate_series(1, 100)")
            wait_for(lambda part=part: states(conn).get("succeeded", 0) > part * 100, 20)
        wait_for(lambda: states(conn) == {"succeeded": 1000}, 30)
        [found] = rows(conn, "select count(*) as n, count(distinct job_id) as jobs from public.effects")
        assert found == {"n": 1000, "jobs": 1000}

    @pytest.mark.parametrize("level", ["repeatable read", "serializable"])
    def test_a_strict_default_isolation_of_the_database_surfaces_nowhere(self, db, conn, server_log, level):
        """CL-05: four workers, 500 jobs, every outcome among them."""
        conn.execute(f"alter database {conn.info.dbname} set default_transaction_isolation = '{level}'")
        effects = Effects()
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                queue = Queue(db)
                stack.callback(queue.close)

                @queue.handler("k", backoff=backoff.fixed(0.1), max_attempts=2)
                def k(payload, job):
                    effects.begin(job.id)
                    if payload % 5 == 0:
                        raise ValueError
                    return payload % 5 == 1 or None

                stack.enter_context(working(queue, concurrency=5, lease=2))
            assert queue.enqueue_many("k", range(500)) == 500
            wait_for(lambda: states(conn) == {"succeeded": 400, "dead": 100}, 30)
        assert Counter(Counter(one for one, _ in effects.began).values()) == {1: 400, 2: 100}
        assert server_log.errors() == []


class TestNoneWaits:
    def test_short_jobs_do_not_wait_behind_a_long_one_while_a_worker_is_idle(self, db, conn, queue):
        """CL-09: claimed only for free slots, and what was taken ahead in vain goes back."""
        release = threading.Event()

        @queue.handler("k")
        async def k(payload):
            if payload == "long":
                await asyncio.to_thread(release.wait, 30)
            else:
                await asyncio.sleep(0.1)

        try:
            with working(queue, concurrency=4), working(queue, concurrency=4):
                long = queue.enqueue("k", "long").id
                until_state(conn, long, "running")
                began = time.monotonic()
                queue.enqueue_many("k", ["short"] * 19)
                wait_for(lambda: states(conn) == {"running": 1, "succeeded": 19}, 15)
                assert time.monotonic() - began < 2
                release.set()
                until_state(conn, long, "succeeded")
        finally:
            release.set()

    def test_what_a_worker_had_taken_ahead_is_run_by_another_when_its_slots_stay_busy(self, db, conn):
        """CL-09: a hundred quick ones let it take more; then all its slots are held."""
        release, hoarder, helper = threading.Event(), Queue(db), Queue(db)
        ran_by: dict[int, str] = {}

        def k(payload, job):
            ran_by[job.id] = job.worker
            if payload == "hold":
                release.wait(30)

        for queue in (hoarder, helper):
            queue.handler("k")(k)
        try:
            with working(hoarder, concurrency=2) as first:
                hoarder.enqueue_many("k", range(100))
                wait_for(lambda: states(conn) == {"succeeded": 100})
                hoarder.enqueue_many("k", ["hold", "hold", *["quick"] * 50])
                wait_for(lambda: states(conn).get("running", 0) >= 2)
                with working(helper, concurrency=2) as second:
                    wait_for(lambda: states(conn) == {"running": 2, "succeeded": 150}, 10)
                    release.set()
                    wait_for(lambda: states(conn) == {"succeeded": 152}, 10)
        finally:
            release.set()
        by = Counter(ran_by.values())
        assert by[first.worker.name] == 102
        assert by[second.worker.name] == 50
        assert rows(conn, "select count(*) as n from redrive.jobs where attempts <> 1") == [{"n": 0}], "no try was lost"


class Hands:
    """Operators and upkeep, each at it without a pause, each on a connection of its own."""

    def __init__(self, db: str, queue: Queue, total: int) -> None:
        self.db, self.queue, self.total = db, queue, total
        self.errors: list[BaseException] = []
        self._over = threading.Event()
        work = (self.prune, self.prune, self.reap, self.requeue, self.cancel)
        self._threads = [threading.Thread(target=self._loop, args=(each,)) for each in work]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(20)

    def prune(self, own: psycopg.Connection) -> None:
        async def walk() -> None:
            control = Control(self.db, "redrive", "test")
            keep = {"retain_succeeded": 0.2, "retain_failed": 0, "retain_dead": 0, "archive": True}
            pruner = Pruner(Database("here:1:abcdef"), control, Settings(**keep))
            while await pruner.tick() != EVERY:
                pass
            control.drop()

        asyncio.run(walk())

    def reap(self, own: psycopg.Connection) -> None:
        judge = rows(own, "select min(name) as name from redrive.workers")[0]["name"]
        bounds = {"lease": 1.0, "foreign_age": 600.0, "max_crashes": 3, "orphaned": [], "own_name": OWN_NAME}
        run(own, named("reap_jobs", "redrive", judge=judge, kinds=["k"], **bounds))
        run(own, named("bury_hopeless", "redrive", kinds=["k"]))

    def requeue(self, own: psycopg.Connection) -> None:
        self.queue.requeue(Ended(statuses=("dead", "failed")), connection=own)

    def cancel(self, own: psycopg.Connection) -> None:
        self.queue.cancel(*range(1, self.total, 3), connection=own)

    def _loop(self, work: Callable[[psycopg.Connection], None]) -> None:
        with psycopg.connect(self.db, autocommit=True) as own:
            while not self._over.is_set() and not self.errors:
                try:
                    work(own)
                except Exception as error:  # noqa: BLE001 - the test's to see
                    self.errors.append(error)


def test_outcomes_prune_reap_requeue_and_cancel_at_once_never_deadlock(db, conn, queue, server_log):
    """CL-11: batches lock their rows in one order, upkeep passes over what is locked, and the totals are right."""
    total = 2000

    @queue.handler("k", max_attempts=1)
    def k(payload, job):
        if payload % 4 == 0 and job.claim < 3:
            raise ValueError("again")
        return {"n": payload} if payload % 3 else None

    hands = Hands(db, queue, total)
    with working(queue, concurrency=5, lease=2), working(queue, concurrency=5, lease=2):
        hands.start()
        for first in range(0, total, 100):
            queue.enqueue_many("k", range(first, first + 100))
            time.sleep(0.2)
        hands.stop()
        for _ in range(4):
            hands.requeue(conn)
            wait_for(lambda: not set(states(conn)) & {"pending", "running"}, 30)
        assert set(states(conn)) <= {"succeeded"}
    assert hands.errors == []
    assert server_log.errors() == []
    both = "select id, status from redrive.jobs union all select id, status from redrive.jobs_archive"
    query = f"select count(*) as n, count(distinct id) as jobs, min(status) as status from ({both}) all_of_them"
    assert rows(conn, query) == [{"n": total, "jobs": total, "status": "succeeded"}]


class TestLongRuns:
    def test_no_session_of_ours_is_in_a_transaction_while_handlers_run_bl_06(self, db, conn, queue, server_log):
        """BL-06, BL-01 (c): sampled all the while; and a short idle_in_transaction_session_timeout changes nothing."""
        conn.execute(f"alter database {conn.info.dbname} set idle_in_transaction_session_timeout = '1s'")
        inside = threading.Semaphore(0)

        @queue.handler("sync")
        def sync(payload):
            inside.release()
            time.sleep(2)

        @queue.handler("async")
        async def coroutine(payload):
            inside.release()
            await asyncio.sleep(2)

        look = """
            select application_name, state, query from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
              and (state like 'idle in transaction%%' or now() - xact_start > interval '0.5 s')
        """
        with working(queue):
            for kind in ("sync", "async"):
                queue.enqueue(kind)
                assert inside.acquire(timeout=10)
            seen = []
            while states(conn).get("running"):
                seen += rows(conn, look)
                time.sleep(0.02)
        assert seen == []
        assert states(conn) == {"succeeded": 2}
        assert server_log.errors() == []

    def test_a_job_of_a_kind_that_its_new_worker_does_not_know_is_still_taken_back(self, db, conn, queue):
        """CR-13: the lease needs no handler to run out."""
        one = plain_insert(conn, "gone", status="running", attempts=1, claims=1, locked_by="here:1:aaaaaa")
        conn.execute(
            "update redrive.jobs set locked_at = now() - interval '1 min', updated_at = now() - interval '1 min'"
        )
        queue.handler("other")(lambda: None)
        with working(queue, lease=1):
            found = until_state(conn, one, "pending")
        assert (found.locked_by, found.attempts) == (None, 0)

    def test_past_its_timeout_a_run_keeps_its_slot_and_the_next_try_never_overlaps(self, db, conn, queue):
        """CR-14: the handlers swallow whatever they are told, their leases live on, two workers stand by."""
        effects = Effects()
        options = {"timeout": 0.3, "backoff": backoff.fixed(0.1), "max_attempts": 2}
        quick_at = []
        queue.handler("quick")(lambda payload: quick_at.append(time.monotonic()))

        @queue.handler("sync", **options)
        def sync(payload, job):
            effects.begin(job.id)
            with contextlib.suppress(Exception):
                time.sleep(2.5)
            effects.end(job.id)
            if job.should_stop:
                return

        @queue.handler("async", **options)
        async def coroutine(payload, job):
            effects.begin(job.id)
            end = time.monotonic() + 2.5
            while time.monotonic() < end:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.1)
            effects.end(job.id)

        with working(queue, lease=1, concurrency=1), working(queue, lease=1, concurrency=1):
            ids = [queue.enqueue(kind).id for kind in ("sync", "async")]
            for one in ids:
                until_state(conn, one, "running")
            complaint = "select problem from redrive.workers where problem like '%%past its timeout%%'"
            wait_for(lambda: len(rows(conn, complaint)) == 2)
            behind = queue.enqueue("quick").id
            late = [until_state(conn, one, "dead", seconds=20) for one in ids]
            until_state(conn, behind, "succeeded")
        assert [(found.attempts, found.claims, found.crashes) for found in late] == [(2, 2, 0)] * 2
        assert len(effects.began) == len(effects.ended) == 4
        assert not effects.overlaps()
        assert min(quick_at) >= min(at for _, at in effects.ended), "both slots were kept"
        for one in ids:
            assert [each.error_type for each in history(conn, one)] == ["TimeoutError"] * 2
            assert all(each.duration > 2 for each in history(conn, one))

    def test_an_async_handler_past_its_timeout_is_gone_within_moments(self, db, conn, queue):
        """CR-14."""
        cancelled = threading.Event()

        @queue.handler("k", timeout=0.2, max_attempts=1)
        async def k(payload):
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        with working(queue):
            one = queue.enqueue("k").id
            found = until_state(conn, one, "dead", seconds=5)
        assert cancelled.is_set()
        assert "TimeoutError: passed its timeout of 0.2 s" in found.last_error


class Mailbox:
    """An SMTP server that knows a message by its Message-ID, as good providers do."""

    def __init__(self) -> None:
        self.received: list[str] = []

    @property
    def delivered(self) -> set[str]:
        return set(self.received)

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        [line] = [line for line in envelope.content.decode().splitlines() if line.startswith("Message-ID:")]
        self.received.append(line)
        return "250 OK"


@contextlib.contextmanager
def smtp(mailbox: Mailbox) -> Iterator[int]:
    controller = Controller(mailbox, hostname="127.0.0.1", port=0)
    controller.ready_timeout = 20
    with contextlib.suppress(OSError):  # it would greet port 0
        controller.start()
    try:
        yield controller.server.sockets[0].getsockname()[1]
    finally:
        controller.stop(no_assert=True)


def test_a_mail_whose_worker_died_before_it_could_say_so_is_delivered_once_un_07(db, conn, start_worker, tmp_path):
    """UN-07: at least once, said plainly; the key is the same at the second attempt, and the provider knows it."""
    source = """
        import os, signal, smtplib
        from email.message import EmailMessage
        from redrive import Queue

        queue = Queue()

        @queue.handler("mail")
        def mail(payload, job):
            message = EmailMessage()
            message["Message-ID"], message["From"], message["To"] = f"<{job.idempotency_key}@x>", "a@x", payload["to"]
            message.set_content("hello")
            with smtplib.SMTP("127.0.0.1", int(os.environ["SMTP_PORT"])) as server:
                server.send_message(message)
            if not os.path.exists(os.environ["FLAG"]):
                open(os.environ["FLAG"], "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
    """
    mailbox = Mailbox()
    with smtp(mailbox) as port:
        env = {"SMTP_PORT": str(port), "FLAG": os.fspath(tmp_path / "killed")}
        jobs = [plain_insert(conn, "mail", '{"to": "b@x"}')]
        first = start_worker(source, "--lease", "1", env=env)
        wait_for(lambda: not first.running, 20)
        assert len(mailbox.received) == 1
        assert row(conn, jobs[0]).status == "running"
        start_worker(source, "--lease", "1", env=env)
        until_state(conn, jobs[0], "succeeded", seconds=20)
        assert len(mailbox.received) == 2
        assert len(mailbox.delivered) == 1
        jobs.append(plain_insert(conn, "mail", '{"to": "b@x"}'))
        until_state(conn, jobs[1], "succeeded", seconds=20)
    assert len(mailbox.delivered) == 2, "another job is another mail"
