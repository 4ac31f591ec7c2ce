"""Outcomes reach the database once, fenced by the lease, and none holds up another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import support
from redrive import store
from redrive.connections import Control, conninfo
from redrive.events import JobDied, JobFailed, JobHandedBack, JobRetried, JobSnoozed, JobSucceeded, LeaseLost
from redrive.failure import describe
from redrive.job import ClaimedJob
from redrive.migrate import migrate
from redrive.outcome import (
    Crashed,
    Died,
    Failed,
    Finished,
    HandedBack,
    Outcome,
    Retried,
    Snoozed,
    Succeeded,
    parameters,
)
from redrive.service import Database
from redrive.statements import named, run
from redrive.writer import Writer, complete
from support_engine import claimed, hearing, history, plain_insert, row, rows

WORKER = "here:1:abcdef"
FAILURE = describe(ValueError("bad news"))

EVERY: dict[str, Outcome] = {
    "succeeded": Succeeded(),
    "with a result": Succeeded('{"sent":1}'),
    "retried": Retried(FAILURE, 60),
    "snoozed": Snoozed(60),
    "failed": Failed(FAILURE),
    "died": Died(FAILURE),
    "crashed": Crashed(FAILURE, 60),
    "handed back": HandedBack(),
}


@dataclass
class Rig:
    """A writer and the service loop's patience, in the test's hands."""

    writer: Writer
    control: Control

    async def until_idle(self, rounds: int = 200) -> None:
        for _ in range(rounds):
            pause = await self.writer.tick()
            if self.writer.idle:
                return
            await asyncio.sleep(min(pause, 0.05))
        raise AssertionError(f"still unwritten: {self.writer.held()}, {self.writer.remark}")


@contextlib.asynccontextmanager
async def rig(db: str, max_crashes: int = 3) -> AsyncIterator[Rig]:
    control = Control(db, "redrive", "test")
    try:
        yield Rig(Writer(Database(WORKER), control, WORKER, max_crashes), control)
    finally:
        control.drop()


def write(db: str, *finished: Finished) -> None:
    """Write these outcomes as one batch."""

    async def scenario() -> None:
        async with rig(db) as held:
            for one in finished:
                held.writer.put(one)
            await held.until_idle()

    asyncio.run(scenario())


def running(conn: psycopg.Connection, kind: str = "k", **columns: Any) -> ClaimedJob:
    """Insert a row that WORKER has claimed for the first time, and give the job as its handler would have it."""
    held = {"status": "running", "attempts": 1, "claims": 1, "locked_by": WORKER, **columns}
    job_id = plain_insert(conn, kind, **held)
    conn.execute("update redrive.jobs set locked_at = now() where id = %s", [job_id])
    return claimed(kind, id=job_id, attempts=held["attempts"], claims=held["claims"])


def ended(job: ClaimedJob, outcome: Outcome | None = None, duration: float | None = 0.25) -> Finished:
    return Finished(job, outcome or Succeeded(), duration)


def unchanged(conn: psycopg.Connection, job: ClaimedJob) -> Callable[[], bool]:
    """Remember a row, to the last column and version."""

    def look() -> Any:
        return rows(conn, "select xmin::text, * from redrive.jobs where id = %s", job.id)

    before = look()
    return lambda: look() == before


class TestOutcomes:
    """What each outcome leaves in the tables."""

    def test_success_keeps_the_last_error_and_the_lease_for_the_record(self, db, conn):
        job = running(conn, last_error="of an earlier try", attempts=2)
        write(db, ended(job))
        found = row(conn, job.id)
        assert (found.status, found.last_error, found.attempts) == ("succeeded", "of an earlier try", 2)
        assert found.locked_by == WORKER
        assert history(conn, job.id) == []

    def test_a_result_is_stored(self, db, conn):
        job = running(conn)
        write(db, ended(job, Succeeded('{"sent":[1,2]}')))
        assert (row(conn, job.id).status, row(conn, job.id).result) == ("succeeded", {"sent": [1, 2]})

    def test_a_retry_is_pending_after_its_delay_by_the_databases_clock(self, db, conn):
        job = running(conn, attempts=2, claims=7, key="k1")
        write(db, ended(job, Retried(FAILURE, 90)))
        found = row(conn, job.id)
        assert (found.status, found.attempts, found.locked_at, found.locked_by) == ("pending", 2, None, None)
        assert (found.claims, found.key) == (7, "k1")
        assert "ValueError: bad news" in found.last_error
        [(wait,)] = conn.execute("select extract(epoch from run_at - updated_at) from redrive.jobs").fetchall()
        assert wait == 90

    def test_a_failure_is_kept_with_all_that_is_known_of_it(self, db, conn):
        job = running(conn, kind="mail", attempts=3, claims=4, key="k1")
        write(db, ended(job, Retried(FAILURE, 90), duration=1.5))
        [kept] = history(conn, job.id)
        assert (kept.kind, kept.claim, kept.attempt, kept.outcome) == ("mail", 4, 3, "retried")
        assert (kept.duration, kept.worker, kept.key) == (1.5, WORKER, "k1")
        assert (kept.error_type, kept.message) == ("ValueError", "bad news")
        assert (kept.traceback, kept.fingerprint) == (FAILURE.traceback, FAILURE.fingerprint)
        assert kept.failed_at == row(conn, job.id).updated_at

    def test_death_makes_the_row_ready_for_any_requeue_in_the_same_update(self, db, conn):
        """RB-07: key, deadline, lease and crashes are gone from the row, and their originals in failures."""
        job = running(conn, key="k1", crashes=2, attempts=5, expires_at="2999-01-01", alone=True)
        write(db, ended(job, Died(FAILURE)))
        found = row(conn, job.id)
        assert (found.status, found.attempts, found.key, found.expires_at) == ("dead", 5, None, None)
        assert (found.locked_at, found.locked_by, found.crashes, found.alone) == (None, None, 0, False)
        assert (found.cancel_requested_at, found.last_error) == (None, FAILURE.last_error)
        [kept] = history(conn, job.id)
        assert (kept.outcome, kept.key, kept.expires_at.year) == ("dead", "k1", 2999)

    def test_death_is_one_update(self, db, conn):
        job = running(conn, key="k1", crashes=2)
        conn.execute("""
            create table public.seen (old text, new text);
            create function public.note() returns trigger language plpgsql as $$
            begin
                insert into public.seen values (old.status, new.status);
                return new;
            end $$;
            create trigger note after update on redrive.jobs for each row execute function public.note()
        """)
        write(db, ended(job, Died(FAILURE)))
        assert conn.execute("select * from public.seen").fetchall() == [("running", "dead")]

    def test_a_snooze_gives_the_attempt_back_and_leaves_no_trace_of_failure(self, db, conn):
        job = running(conn, attempts=5, last_error="before")
        write(db, ended(job, Snoozed(90)))
        found = row(conn, job.id)
        assert (found.status, found.attempts, found.last_error) == ("pending", 4, "before")
        assert 80 < (found.run_at - found.updated_at).total_seconds() <= 90
        assert history(conn, job.id) == []

    def test_a_hand_back_is_as_if_the_job_had_not_been_claimed(self, db, conn):
        job = running(conn, attempts=5, key="k1", last_error="before", alone=True)
        write(db, ended(job, HandedBack(), None))
        found = row(conn, job.id)
        assert (found.status, found.attempts, found.last_error) == ("pending", 4, "before")
        assert (found.key, found.alone, found.locked_by) == ("k1", True, None)
        assert found.run_at <= found.updated_at
        assert history(conn, job.id) == []

    def test_a_crash_takes_no_attempt_and_the_last_of_them_is_poison(self, db, conn):
        first, last = running(conn, attempts=5), running(conn, attempts=1, crashes=2)
        write(db, ended(first, Crashed(FAILURE, 7)), ended(last, Crashed(FAILURE, 7)))
        found = row(conn, first.id)
        assert (found.status, found.attempts, found.crashes) == ("pending", 4, 1)
        found = row(conn, last.id)
        assert (found.status, found.crashes) == ("dead", 0)
        assert found.last_error.startswith("poison")

    def test_a_discard_ends_as_failed_and_frees_the_key(self, db, conn):
        job = running(conn, key="k1")
        write(db, ended(job, Failed(FAILURE)))
        assert (row(conn, job.id).status, row(conn, job.id).key) == ("failed", None)
        assert [kept.outcome for kept in history(conn, job.id)] == ["failed"]

    def test_the_database_has_the_last_word_on_the_budget(self, db, conn):
        """RB-07: max_attempts was lowered while the job ran."""
        job = running(conn, attempts=3, max_attempts=2)
        write(db, ended(job, Retried(FAILURE, 90)))
        assert row(conn, job.id).status == "dead"
        assert "bad news" in row(conn, job.id).last_error

    def test_the_next_try_would_come_after_the_deadline(self, db, conn):
        """RB-04: so the job dies now, and the reason says why."""
        job = running(conn)
        conn.execute("update redrive.jobs set expires_at = now() + interval '30 s'")
        write(db, ended(job, Retried(FAILURE, 90)))
        found = row(conn, job.id)
        assert found.status == "dead"
        assert found.last_error.startswith("deadline: expires_at ")
        assert "bad news" in found.last_error
        [kept] = history(conn, job.id)
        assert (kept.error_type, kept.outcome) == ("ValueError", "dead")
        assert kept.expires_at is not None

    @pytest.mark.parametrize("outcome", [Retried(FAILURE, 9), Snoozed(9), HandedBack(), Crashed(FAILURE, 9)], ids=repr)
    def test_a_job_that_was_asked_to_stop_does_not_run_again(self, db, conn, outcome):
        job = running(conn, key="k1", cancel_requested_at="2026-01-01")
        write(db, ended(job, outcome))
        found = row(conn, job.id)
        assert (found.status, found.key) == ("failed", None)
        assert found.last_error.startswith("cancelled")

    def test_a_job_that_succeeded_before_it_heard_of_its_cancel_has_succeeded(self, db, conn):
        job, other = running(conn, cancel_requested_at="2026-01-01"), running(conn, cancel_requested_at="2026-01-01")
        write(db, ended(job), ended(other, Succeeded("1")))
        assert [row(conn, one.id).status for one in (job, other)] == ["succeeded"] * 2

    def test_every_outcome_in_one_batch_is_told_as_it_was_written(self, db, conn):
        jobs = {name: running(conn, name) for name in EVERY}
        with hearing() as heard:
            write(db, *(ended(job, EVERY[name]) for name, job in jobs.items()))
        assert {event.kind: type(event) for event in heard} == {
            "succeeded": JobSucceeded,
            "with a result": JobSucceeded,
            "retried": JobRetried,
            "snoozed": JobSnoozed,
            "failed": JobFailed,
            "died": JobDied,
            "crashed": JobRetried,
            "handed back": JobHandedBack,
        }


class TestFence:
    """Nothing is written by a worker that no longer holds the lease (CR-04, CR-05)."""

    LOST: ClassVar[dict[str, str]] = {
        "claimed again by another": "claims = 2, locked_by = 'there:2:ghijkl'",
        "claimed again by itself": "claims = 2",
        "taken by another under the same number": "locked_by = 'there:2:ghijkl'",
        "handed to nobody": "locked_by = null, status = 'pending'",
        "succeeded by the successor": "claims = 2, locked_by = 'there:2:ghijkl', status = 'succeeded'",
        "succeeded by hand, lease in place": "status = 'succeeded'",
        "failed by hand, lease in place": "status = 'failed', last_error = 'by hand'",
        "dead by hand, lease in place": "status = 'dead', last_error = 'by hand'",
        "requeued by hand, lease in place": "status = 'pending', attempts = 0",
    }

    @pytest.mark.parametrize("lost", LOST)
    def test_no_outcome_touches_a_job_that_was(self, db, conn, lost):
        """CR-04, CR-05: not the row, not the history; and it is told as a lost lease."""
        jobs = {name: running(conn, name) for name in EVERY}
        neighbour = running(conn, "neighbour")
        conn.execute(f"update redrive.jobs set {self.LOST[lost]} where kind <> 'neighbour'")
        untouched = [unchanged(conn, job) for job in jobs.values()]
        with hearing() as heard:
            write(db, *(ended(job, EVERY[name]) for name, job in jobs.items()), ended(neighbour, Retried(FAILURE, 9)))
        assert all(look() for look in untouched)
        assert [kept for job in jobs.values() for kept in history(conn, job.id)] == []
        assert sorted(event.kind for event in heard if isinstance(event, LeaseLost)) == sorted(EVERY)
        assert all(job.lost for job in jobs.values())
        assert (row(conn, neighbour.id).status, neighbour.lost) == ("pending", False)

    def test_no_outcome_brings_back_a_row_that_was_deleted(self, db, conn):
        jobs = {name: running(conn, name) for name in EVERY}
        conn.execute("delete from redrive.jobs")
        write(db, *(ended(job, EVERY[name]) for name, job in jobs.items()))
        assert conn.execute("select count(*) from redrive.jobs").fetchone() == (0,)
        assert conn.execute("select count(*) from redrive.failures").fetchone() == (0,)

    def test_progress_and_complete_are_fenced_too(self, db, conn):
        """CR-05."""
        job, other = running(conn), running(conn)
        conn.execute("update redrive.jobs set claims = 2 where id = %s", [job.id])
        look = unchanged(conn, job)

        async def scenario() -> None:
            async with rig(db) as held:
                held.writer.put_progress(job, 50)
                held.writer.put_progress(other, 50)
                await held.writer.tick()

        asyncio.run(scenario())
        with pytest.raises(Exception, match="is not this worker's any more"), psycopg.connect(db) as own:
            complete(job, own, None)
        assert job.lost
        assert look()
        assert row(conn, other.id).progress == 50

    def test_the_tutorials_own_success_while_ours_runs_is_not_turned_back_by_our_retry(self, db, conn):
        """CR-05: their statement leaves the lease in place; the state is part of the fence."""
        job = running(conn)
        conn.execute("set search_path = redrive")
        conn.execute("update jobs set status = 'succeeded', updated_at = now() where id = %s", [job.id])
        write(db, ended(job, Retried(FAILURE, 1)))
        assert row(conn, job.id).status == "succeeded"

    def test_an_outcome_whose_answer_was_lost_is_written_once_and_is_no_lost_lease(self, db, conn):
        """CN-04: the statement was committed and the connection went before its answer."""
        plain, result = running(conn), running(conn)

        async def scenario() -> None:
            async with rig(db) as held:
                ask, answers = held.control.run, iter([TimeoutError, TimeoutError])

                async def run(statement: Any, **more: Any) -> Any:
                    found = await ask(statement, **more)
                    if error := next(answers, None):
                        raise error
                    return found

                held.control.run = run
                held.writer.put(ended(plain))
                held.writer.put(ended(result, Succeeded("1")))
                for _ in range(2):
                    with pytest.raises(TimeoutError):
                        await held.writer.tick()
                await held.until_idle()

        with hearing(LeaseLost) as lost:
            asyncio.run(scenario())
        assert [row(conn, one.id).status for one in (plain, result)] == ["succeeded"] * 2
        assert lost == []


HOSTILE = """
    create function public.refuse() returns trigger language plpgsql as $$
    begin
        if new.kind = 'odd' and new.status = any(tg_argv) then
            raise exception 'not this one' using errcode = 'check_violation';
        end if;
        return new;
    end $$;
    create trigger refuse before update on redrive.jobs for each row execute function public.refuse({})
"""


class TestNeighbours:
    """One outcome that can't be stored holds up no other (PE-02, CN-07)."""

    @pytest.mark.parametrize("outcome", [Succeeded(), Succeeded("1"), Retried(FAILURE, 9), Failed(FAILURE)], ids=repr)
    def test_an_outcome_that_a_trigger_refuses_becomes_a_death_that_says_so(self, db, conn, outcome):
        """PE-02: a human sees it; the others of its batch are as if it were not there."""
        conn.execute(HOSTILE.format("'succeeded', 'pending', 'failed'"))
        odd = running(conn, "odd")
        others = [running(conn, "k") for _ in range(20)]
        write(db, *(ended(job, Retried(FAILURE, 9) if job.id % 2 else None) for job in others), ended(odd, outcome))
        found = row(conn, odd.id)
        assert (found.status, found.locked_by) == ("dead", None)
        assert "not this one" in found.last_error
        assert [kept.error_type for kept in history(conn, odd.id)] == ["OutcomeRefused"]
        assert {row(conn, job.id).status for job in others} == {"succeeded", "pending"}
        assert [len(history(conn, job.id)) for job in others] == [job.id % 2 for job in others]

    def test_an_outcome_that_nothing_can_be_said_of_waits_aside_and_is_complained_about(self, db, conn, caplog):
        conn.execute(HOSTILE.format("'succeeded', 'pending', 'failed', 'dead'"))
        odd, other, later = running(conn, "odd"), running(conn), running(conn)

        async def scenario() -> None:
            async with rig(db) as held:
                held.writer.put(ended(odd))
                held.writer.put(ended(other))
                await held.writer.tick()
                assert held.writer.held() == [odd.id]
                assert not held.writer.idle
                assert "not this one" in held.writer.remark
                held.writer.put(ended(later))
                await held.writer.tick()
                assert [row(conn, one.id).status for one in (odd, other, later)] == [
                    "running",
                    "succeeded",
                    "succeeded",
                ]
                conn.execute("drop trigger refuse on redrive.jobs")
                await held.until_idle()
                assert held.writer.remark == ""

        with caplog.at_level(logging.WARNING, "redrive"):
            asyncio.run(scenario())
        assert (row(conn, odd.id).status) == "succeeded"
        assert sum("waits" in message for message in caplog.messages) == 1

    def test_a_row_that_somebody_has_locked_holds_up_itself_alone(self, db, conn):
        """PE-02: a transaction that an operator, or the handler, forgot to end."""
        jobs = [running(conn, "k") for _ in range(9)]
        with psycopg.connect(db) as forgetful:
            forgetful.execute("update redrive.jobs set priority = 1 where id = any(%s)", [[jobs[3].id, jobs[6].id]])

            async def scenario() -> None:
                async with rig(db) as held:
                    for number, job in enumerate(jobs):
                        held.writer.put(ended(job, None if number < 5 else Retried(FAILURE, 9)))
                    await held.writer.tick()
                    written = [row(conn, job.id).status != "running" for job in jobs]
                    assert written == [n not in (3, 6) for n in range(9)]
                    assert sorted(held.writer.held()) == [jobs[3].id, jobs[6].id]
                    forgetful.rollback()
                    await held.until_idle()

            asyncio.run(scenario())
        assert [row(conn, jobs[n].id).status for n in (3, 6)] == ["succeeded", "pending"]

    @pytest.mark.parametrize("in_the_way", ["a lock", "a trigger"])
    def test_the_end_of_a_trial_that_cannot_be_written_holds_up_no_outcome_cn_07(self, db, conn, in_the_way):
        """The lock may be the job's own: complete() in a transaction that it goes on with."""
        tried, other = running(conn, "odd", alone=True), running(conn)
        with psycopg.connect(db) as own:
            if in_the_way == "a lock":
                complete(tried, own, None)
            else:
                conn.execute(HOSTILE.format("'running'"))

            async def scenario() -> None:
                async with rig(db) as held:
                    held.writer.acquit(tried)
                    held.writer.put(ended(other))
                    async with asyncio.timeout(1.5):  # less than a lock_timeout
                        await held.until_idle()

            asyncio.run(scenario())
            assert row(conn, other.id).status == "succeeded"

    def test_a_foreign_key_to_a_job_checked_in_an_open_transaction_is_not_in_the_way(self, db, conn):
        jobs = [running(conn), running(conn)]
        conn.execute("create table public.mail (job_id bigint references redrive.jobs (id))")
        with psycopg.connect(db) as open_for_long:
            for job in jobs:
                open_for_long.execute("insert into public.mail values (%s)", [job.id])
            write(db, ended(jobs[0]), ended(jobs[1], Retried(FAILURE, 9)))
            assert [row(conn, job.id).status for job in jobs] == ["succeeded", "pending"]
            open_for_long.commit()

    def test_a_deadlock_or_serialization_failure_is_tried_again_and_not_told(self, db, conn):
        """CL-05: a 40001 injected into the write of an outcome; the job ends as it should, once."""
        job = running(conn)
        conn.execute("""
            create sequence public.tries;
            create function public.collide() returns trigger language plpgsql as $$
            begin
                if nextval('public.tries') <= 2 then raise exception 'collision' using errcode = '40001'; end if;
                return new;
            end $$;
            create trigger collide before update on redrive.jobs for each row execute function public.collide()
        """)

        async def scenario() -> None:
            async with rig(db) as held:
                held.writer.put(ended(job, Died(FAILURE)))
                stopping = asyncio.Event()
                turning = asyncio.create_task(held.writer.run(stopping))
                await asyncio.to_thread(support.wait_for, lambda: held.writer.idle)
                stopping.set()
                held.writer.wake()
                await turning

        with hearing() as heard:
            asyncio.run(scenario())
        assert row(conn, job.id).status == "dead"
        assert [type(event) for event in heard] == [JobDied]
        assert len(history(conn, job.id)) == 1

    def test_a_short_statement_timeout_with_slow_rows_makes_smaller_batches(self, db, conn):
        conn.execute("""
            create function public.slow() returns trigger language plpgsql as $$
            begin perform pg_sleep(0.05); return new; end $$;
            create trigger slow before update on redrive.jobs for each row execute function public.slow()
        """)
        jobs = [running(conn) for _ in range(8)]
        write(make_conninfo(db, options="-c statement_timeout=220ms"), *(ended(job) for job in jobs))
        assert {row(conn, job.id).status for job in jobs} == {"succeeded"}

    @pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
    def test_text_that_the_database_has_no_letters_for_is_spelt_out(self, server_url, encoding):
        """PE-02: the outcome stays what it was."""
        odd = describe(ValueError("日本 ä 🙂 back\\slash"))
        with support.database(server_url, f"template0 encoding '{encoding}' lc_collate 'C' lc_ctype 'C'") as dsn:
            migrate(dsn)
            with psycopg.connect(dsn, autocommit=True, client_encoding="utf8") as conn:
                jobs = [running(conn) for _ in range(4)]
                outcomes = [Retried(odd, 9), Succeeded('{"a":"日 \\\\ ä","b":1}'), Died(odd), Succeeded()]
                write(dsn, *(ended(job, outcome) for job, outcome in zip(jobs, outcomes, strict=True)))
                states = [status for (status,) in conn.execute("select status::text from redrive.jobs order by id")]
                assert states == ["pending", "succeeded", "dead", "succeeded"]
                spelt = {"LATIN1": "\\u65e5 \\ \\xe4", "SQL_ASCII": "日 \\ ä"}[encoding]
                [(text,)] = conn.execute("select result->>'a' from redrive.jobs where result is not null").fetchall()
                assert (text if isinstance(text, str) else text.decode()) == spelt


class TestComplete:
    """job.complete() in the user's transaction (UN-07): what became of that transaction is the outcome."""

    def test_committed_is_success_and_nothing_more_is_written(self, db, conn):
        job = running(conn)
        with psycopg.connect(db) as own:
            complete(job, own, {"sent": 1})
        look = unchanged(conn, job)
        assert (row(conn, job.id).status, row(conn, job.id).result) == ("succeeded", {"sent": 1})
        with hearing() as heard:
            write(db, ended(job, Succeeded('"ignored"')))
        assert look()
        assert [type(event) for event in heard] == [JobSucceeded]

    def test_an_error_after_the_commit_changes_nothing_and_is_not_silent(self, db, conn, caplog):
        job = running(conn)
        with psycopg.connect(db) as own:
            complete(job, own, None)
        look = unchanged(conn, job)
        with caplog.at_level(logging.WARNING, "redrive"):
            write(db, ended(job, Retried(FAILURE, 9)))
        assert look()
        assert "bad news" in caplog.text

    def test_rolled_back_is_a_failed_attempt_that_says_so(self, db, conn):
        jobs = [running(conn), running(conn, attempts=5)]
        for job in jobs:
            with psycopg.connect(db) as own:
                complete(job, own, None)
                own.rollback()
        write(db, *map(ended, jobs))
        assert [row(conn, job.id).status for job in jobs] == ["pending", "dead"]
        assert "not committed" in row(conn, jobs[0].id).last_error

    def test_rolled_back_by_an_error_is_that_error(self, db, conn):
        job = running(conn)
        with psycopg.connect(db) as own:
            complete(job, own, None)
            own.rollback()
        write(db, ended(job, Retried(FAILURE, 60)))
        assert (row(conn, job.id).status, history(conn, job.id)[0].message) == ("pending", "bad news")

    def test_a_transaction_still_open_when_the_handler_returns_is_waited_for(self, db, conn):
        """Neither success nor failure is known yet, and the other outcomes are written meanwhile."""
        kept, dropped, other = running(conn), running(conn), running(conn)
        with psycopg.connect(db) as first, psycopg.connect(db) as second:
            complete(kept, first, None)
            complete(dropped, second, None)

            async def scenario() -> None:
                async with rig(db) as held:
                    for job in (kept, dropped, other):
                        held.writer.put(ended(job))
                    await held.writer.tick()
                    assert [row(conn, job.id).status for job in (kept, dropped, other)] == [
                        "running",
                        "running",
                        "succeeded",
                    ]
                    first.commit()
                    second.rollback()
                    await held.until_idle()

            with hearing(LeaseLost) as lost:
                asyncio.run(scenario())
        assert (row(conn, kept.id).status, row(conn, dropped.id).status) == ("succeeded", "pending")
        assert lost == []

    def test_an_async_connection_is_awaited(self, db, conn):
        job = running(conn)

        async def scenario() -> None:
            async with await psycopg.AsyncConnection.connect(db) as own:
                await complete(job, own, None)
                assert row(conn, job.id).status == "running"

        asyncio.run(scenario())
        assert (row(conn, job.id).status, job.completed) == ("succeeded", True)

    def test_what_is_no_psycopg_connection_is_refused(self):
        with pytest.raises(TypeError, match=r"connection is a builtins\.str"):
            complete(claimed(), "postgresql://", None)


class TestProgress:
    def progress(self, conn: psycopg.Connection, jobs: Iterable[ClaimedJob]) -> list[Any]:
        return [row(conn, job.id).progress for job in jobs]

    def test_the_newest_of_each_job_is_written_about_once_a_second(self, db, conn):
        jobs = [running(conn) for _ in range(3)]

        async def scenario() -> None:
            async with rig(db) as held:
                for value in range(10):
                    for job in jobs:
                        held.writer.put_progress(job, {"done": value + job.id})
                await held.writer.tick()
                assert self.progress(conn, jobs) == [{"done": 9 + job.id} for job in jobs]
                held.writer.put_progress(jobs[0], "more")
                pause = await held.writer.tick()
                assert 0.5 < pause <= 1.0, "the writer itself comes back for it, whatever else happens"
                assert self.progress(conn, jobs)[0] != "more"
                await asyncio.sleep(pause + 0.01)
                await held.writer.tick()
                assert self.progress(conn, jobs)[0] == "more"

        asyncio.run(scenario())

    def test_the_last_progress_of_a_job_is_written_before_its_outcome(self, db, conn):
        job = running(conn)

        async def scenario() -> None:
            async with rig(db) as held:
                for value in (10, 100):
                    held.writer.put_progress(job, value)
                    if value == 100:
                        held.writer.put(ended(job))
                    await held.writer.tick()

        asyncio.run(scenario())
        assert (row(conn, job.id).status, row(conn, job.id).progress) == ("succeeded", 100)

    def test_progress_that_cannot_be_written_holds_up_no_outcome(self, db, conn):
        job, locked = running(conn), running(conn)
        conn.execute("""
            create function public.refuse() returns trigger language plpgsql as $$
            begin
                if new.progress is not null then raise exception 'no progress'; end if;
                return new;
            end $$;
            create trigger refuse before update on redrive.jobs for each row execute function public.refuse()
        """)
        with psycopg.connect(db) as own:
            complete(locked, own, None)

            async def scenario() -> None:
                async with rig(db) as held:
                    held.writer.put_progress(locked, 1)
                    held.writer.put_progress(job, "\x00\ud800")
                    held.writer.put(ended(job))
                    async with asyncio.timeout(1.5):  # less than a lock_timeout
                        await held.until_idle()

            asyncio.run(scenario())
        assert row(conn, job.id).status == "succeeded"


def test_after_the_loop_has_ended_a_late_outcome_is_dropped_in_peace(db, conn):
    """A thread that outlived its worker: its job was handed back."""
    job = running(conn)

    async def scenario() -> Writer:
        async with rig(db) as held:
            return held.writer

    writer = asyncio.run(scenario())
    writer.put(ended(job))
    assert row(conn, job.id).status == "running"


class TestLockOrder:
    """Batches lock their rows in id order, whatever the planner makes of them, so that two never deadlock (CL-11)."""

    @staticmethod
    def shuffled(conn: psycopg.Connection, count: int, *, analyzed: str) -> list[int]:
        """Make running jobs whose place in the table has nothing to do with their ids."""
        conn.execute("alter table redrive.jobs set (autovacuum_enabled = off)")
        if analyzed == "when it was empty":
            plain_insert(conn, "k")
            conn.execute("analyze redrive.jobs")
            conn.execute("truncate redrive.jobs")
        conn.execute(
            "insert into redrive.jobs (id, kind, status, locked_by, claims, attempts) "
            "select n, 'k', 'running', %s, 1, 1 from generate_series(1, %s) n order by md5(n::text)",
            [WORKER, count],
        )
        if analyzed == "now":
            conn.execute("vacuum analyze redrive.jobs")
        return list(range(1, count + 1))

    @staticmethod
    def statement(name: str, ids: list[int]) -> Any:
        batch = parameters([ended(claimed("k", id=one), HandedBack()) for one in ids])
        params: dict[str, dict[str, Any]] = {
            "succeed_jobs": {"ids": ids, "claims": [1] * len(ids), "worker": WORKER},
            "finish_jobs": {"worker": WORKER, "max_crashes": 3, **batch},
        }
        if name == "cancel_jobs":
            return store.cancel("redrive", ids=ids)
        return named(name, "redrive", **params[name])

    @pytest.mark.parametrize("name", ["succeed_jobs", "finish_jobs", "cancel_jobs"])
    @pytest.mark.parametrize(
        "table", [(50, 5, "when it was empty"), (2000, 100, "now"), (2000, 1000, "never"), (20_000, 500, "now")]
    )
    def test_what_is_locked_before_a_row_that_is_taken_are_the_rows_of_lower_ids(self, db, conn, name, table):
        count, batch, analyzed = table
        ids = self.shuffled(conn, count, analyzed=analyzed)[:batch]
        middle = ids[batch // 2]
        as_a_worker = conninfo(db, application="test", nonce="0")
        with psycopg.connect(db) as holder, psycopg.connect(as_a_worker) as waiter:
            holder.execute("select from redrive.jobs where id = %s for update", [middle])
            waiting = threading.Thread(target=run, args=(waiter, self.statement(name, ids)))
            waiting.start()
            blocked = "select from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
            support.wait_for(lambda: conn.execute(blocked, [waiter.info.backend_pid]).fetchone() is not None, 20)
            query = "select id from redrive.jobs where id = any(%s) for update skip locked"
            free = {one["id"] for one in rows(conn, query, ids)}
            holder.rollback()
            waiting.join()
            waiter.rollback()
        assert set(ids) - free == set(ids[: batch // 2 + 1])
