"""``redrive health``: OP-08."""

from __future__ import annotations

import json
from importlib import import_module

import psycopg
import pytest

from shell import NOBODY, answer, beat, insert, redrive

health = import_module("redrive.cli.health")  # the package's name of it is the command

APP = """
import time
from redrive import Queue

queue = Queue(poll=1, lease=3)

@queue.handler("mail")
def mail(payload): ...

@queue.handler("block", timeout=None)
async def block(payload):
    time.sleep(payload)
"""


def problems(db, *flags, code=1):
    document = answer(db, "health", *flags, code=code)
    assert document["healthy"] == (code == 0)
    return document["problems"]


def test_an_idle_worker_is_healthy(db, conn):
    """OP-08: nothing to do is no reason to call anybody."""
    beat(conn, started_at="2020-01-01")
    assert redrive(db, "health").stdout == "healthy: workers alive: 1, nothing is due\n"
    assert answer(db, "health") == {
        "healthy": True,
        "problems": [],
        "notes": [],
        "workers": 1,
        "oldest_due": 0.0,
    }


def test_a_job_that_runs_for_six_hours_is_healthy(db, conn):
    """OP-08."""
    beat(conn)
    insert(conn, "mail", status="running", locked_by="box:1:abcdef", locked_at="2020-01-01", attempts=1)
    assert problems(db, code=0) == []


def test_the_database_being_down_is_unhealthy_with_the_reason():
    """OP-08."""
    result = redrive(NOBODY, "health", code=3)
    assert "can't be reached" in result.stdout
    assert "hunter2" not in result.output
    document = json.loads(redrive(NOBODY, "health", "--json", code=3).stdout)
    assert document["healthy"] is False


def test_a_database_without_the_tables_is_unhealthy_with_the_reason(empty_db):
    assert "run `redrive migrate`" in redrive(empty_db, "health", code=4).stdout


def test_a_worker_whose_event_loop_is_blocked_is_unhealthy_soon_op_08(db, conn, start_worker, wait_for):
    """OP-08: the claim loop doesn't turn, and the heartbeat's own thread says so."""
    worker = start_worker(APP)
    wait_for(lambda: redrive(db, "health", code=0) if conn.execute("select from redrive.workers").fetchall() else False)
    insert(conn, "block", payload="60")
    said = wait_for(lambda: answer_whatever(db)["problems"] or not worker.running, 25)
    assert worker.running
    assert any("loop" in problem for problem in said), said


def answer_whatever(db):
    try:
        return answer(db, "health")
    except AssertionError:
        return answer(db, "health", code=1)


def test_what_a_worker_complains_of_is_told(db, conn):
    beat(conn, "box:1:aaaaaa", problem="producer loop: UndefinedColumn, password=hunter2")
    beat(conn, "box:2:bbbbbb")
    assert problems(db) == ["worker box:1:aaaaaa: producer loop: UndefinedColumn, password=***"]


def test_no_live_worker_is_unhealthy(db, conn):
    assert problems(db) == ["0 of 1 workers alive: start some with `redrive worker app.jobs:queue`"]
    beat(conn, silent="5 min")
    assert len(problems(db)) == 1


def test_how_many_workers_there_should_be_is_the_operators(db, conn):
    assert problems(db, "--workers", "0", code=0) == []
    beat(conn)
    assert problems(db, "--workers", "2") == ["1 of 2 workers alive: start some with `redrive worker app.jobs:queue`"]


def test_a_job_that_is_due_for_too_long_is_unhealthy(db, conn):
    beat(conn)
    insert(conn, "mail", run_at="2020-01-01")
    [problem] = problems(db)
    assert problem.startswith("the oldest job of kind mail is due for ")


@pytest.mark.parametrize(("age", "code"), [("10m", 1), ("20m", 0), ("700", 1)])
def test_how_long_a_due_job_may_wait_is_the_operators(db, conn, age, code):
    beat(conn)
    conn.execute("insert into redrive.jobs (kind, run_at) values ('mail', now() - interval '15 min')")
    assert len(problems(db, "--max-age", age, code=code)) == code


def test_a_job_that_is_not_due_is_healthy(db, conn):
    beat(conn)
    insert(conn, "mail", run_at="2999-01-01", created_at="2020-01-01")
    assert problems(db, code=0) == []


def test_a_kind_that_no_live_worker_knows_is_unhealthy_after_half_a_minute(db, conn):
    beat(conn)
    beat(conn, "box:2:bbbbbb", kinds=["fax"], silent="5 min")
    insert(conn, "fax")
    assert problems(db, code=0) == []
    conn.execute("update redrive.jobs set run_at = now() - interval '1 min'")
    [problem] = problems(db)
    assert problem.startswith("kind fax is due for ")
    assert problem.endswith("and no live worker knows it")


def test_a_kind_that_goes_over_the_broker_is_unhealthy_after_half_a_minute_without_a_relay(db, conn):
    beat(conn, listener_pid=0)
    redrive(db, "route", "mail", "amqp")
    insert(conn, "mail")
    assert problems(db, code=0) == []
    conn.execute("update redrive.jobs set run_at = now() - interval '1 min'")
    [problem] = problems(db)
    assert problem.startswith("kind mail is due for 1 min; it goes over the broker, and no relay is alive: start")
    redrive(db, "pause", "mail")
    assert problems(db, code=0) == []
    redrive(db, "resume", "mail")
    beat(conn, "relay:1:abcdef", kinds=[], silent="5 min")
    assert len(problems(db)) == 1
    conn.execute("update redrive.workers set heartbeat_at = now()")
    assert problems(db, code=0) == []


def test_a_relay_that_comes_from_cron_is_missed_once_jobs_are_too_old(db, conn):
    beat(conn, listener_pid=0)
    redrive(db, "route", "mail", "amqp")
    conn.execute("insert into redrive.jobs (kind, run_at) values ('mail', now() - interval '1 min')")
    assert problems(db, "--workers", "0", code=0) == []
    [problem] = problems(db, "--workers", "0", "--max-age", "30")
    assert problem.endswith("; the kind goes over the broker, and no relay is alive: start redrive relay")
    [problem] = problems(db)
    assert problem.endswith("it goes over the broker, and no relay is alive: start redrive relay")


def test_a_relay_is_none_of_the_workers_that_are_wanted(db, conn):
    beat(conn, "relay:1:abcdef", kinds=[])
    [problem] = problems(db)
    assert problem.startswith("0 of 1 workers alive")
    beat(conn)
    assert answer(db, "health")["workers"] == 1


def test_a_kind_that_no_live_worker_takes_from_the_broker_is_unhealthy_though_nothing_is_due(db, conn):
    beat(conn, "relay:1:abcdef", kinds=[])
    beat(conn, "box:1:aaaaaa")
    redrive(db, "route", "mail", "amqp")
    said = "kind mail goes over the broker, and no live worker takes it from there: start redrive worker app.jobs:queue"
    assert problems(db) == [f"{said} --broker"]
    beat(conn, "box:2:bbbbbb", kinds=["export"], listener_pid=0)
    assert len(problems(db)) == 1, "it has other kinds"
    beat(conn, "box:3:cccccc", listener_pid=0, silent="5 min")
    assert len(problems(db)) == 1, "it is silent"
    conn.execute("update redrive.workers set heartbeat_at = now()")
    assert problems(db, code=0) == []


def test_what_goes_over_the_broker_for_other_services_wants_no_worker(db, conn):
    beat(conn)
    redrive(db, "route", "redrive.topics", "amqp")
    assert problems(db, code=0) == []


def test_jobs_of_a_holder_that_fell_silent_are_unhealthy_once_they_should_have_been_taken_back(db, conn):
    beat(conn)
    beat(conn, "box:2:bbbbbb", silent="45 s")
    insert(conn, "mail", 2, status="running", locked_by="box:2:bbbbbb", locked_at="2020-01-01")
    assert problems(db, code=0) == []
    conn.execute("update redrive.workers set heartbeat_at = now() - interval '2 min' where name = 'box:2:bbbbbb'")
    [problem] = problems(db)
    assert problem.startswith("2 running jobs held by box:2:bbbbbb, which is silent for 2 min")


def test_jobs_of_a_holder_without_a_row_are_judged_by_the_age_of_their_lock(db, conn):
    beat(conn)
    conn.execute(
        "insert into redrive.jobs (kind, status, locked_by, locked_at) values"
        " ('mail', 'running', 'worker-7', now() - interval '15 min'),"
        " ('mail', 'running', 'worker-8', now() - interval '25 min')"
    )
    [problem] = problems(db)
    assert "1 running job held by worker-8" in problem


def test_jobs_that_a_stranger_ended_as_failed_without_a_reason_are_unhealthy_for_a_day(db, conn):
    beat(conn)
    insert(conn, "mail", status="failed", last_error="cancelled: spring")
    insert(conn, "mail", status="failed", last_error="discarded")
    assert problems(db, code=0) == []
    insert(conn, "mail", status="failed", last_error="smtp: 421")
    [problem] = problems(db)
    assert "redrive dead --kind mail" in problem
    conn.execute("update redrive.jobs set updated_at = now() - interval '2 days'")
    assert problems(db, code=0) == []


def test_dead_jobs_are_not_a_matter_of_health(db, conn):
    beat(conn)
    insert(conn, "mail", status="dead")
    assert problems(db, code=0) == []


class TestTheHorizon:
    """BL-01 (a): who keeps dead rows from being removed is named by process id, age and application."""

    @pytest.fixture(autouse=True)
    def many_dead(self, db, conn, monkeypatch):
        monkeypatch.setattr(health, "DEAD_MANY", 100)
        monkeypatch.setattr(health, "HELD_LONG", 0.0)
        beat(conn)
        insert(conn, "mail", 200, status="succeeded")
        conn.execute("alter table redrive.jobs set (autovacuum_enabled = off)")

    def notes(self, db, conn, wait_for):
        with psycopg.connect(db) as own:  # whose end tells the statistics at once
            own.execute("update redrive.jobs set updated_at = now()")
        dead = "select n_dead_tup from pg_stat_user_tables where relname = 'jobs'"
        wait_for(lambda: conn.execute(dead).fetchone()[0] >= 100)
        return answer(db, "health")["notes"]

    def test_a_session_is_named(self, db, conn, wait_for):
        with psycopg.connect(db, application_name="monthly report") as report:
            report.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            report.execute("select from redrive.jobs limit 1")
            [note] = self.notes(db, conn, wait_for)
            pid = report.info.backend_pid
            assert (
                f" dead rows in jobs can't be removed while session {pid} (monthly report) holds them, open for" in note
            )
            assert "idle in transaction" in note
            text = redrive(db, "health").stdout
            assert text.startswith("healthy: ")
            assert f"note: {note[:5]}" in text
        assert self.notes(db, conn, wait_for) == []

    def test_a_writer_without_a_snapshot_is_named(self, db, conn, wait_for):
        with psycopg.connect(db, application_name="forgotten") as writer:
            writer.execute("insert into redrive.jobs (kind) values ('mail')")
            [note] = self.notes(db, conn, wait_for)
            assert "(forgotten)" in note

    def test_a_prepared_transaction_is_named(self, db, conn, wait_for):
        with psycopg.connect(db) as two_phases:
            two_phases.execute("create table public.t ()")
            two_phases.execute("prepare transaction 'left over'")
            two_phases.rollback()
        [note] = self.notes(db, conn, wait_for)
        assert "prepared transaction left over" in note
        conn.execute("rollback prepared 'left over'")

    def test_a_young_transaction_is_not(self, db, conn, wait_for, monkeypatch):
        monkeypatch.setattr(health, "HELD_LONG", 3600.0)
        with psycopg.connect(db) as report:
            report.execute("insert into redrive.jobs (kind) values ('mail')")
            assert self.notes(db, conn, wait_for) == []

    def test_few_dead_rows_are_not(self, db, conn, wait_for, monkeypatch):
        with psycopg.connect(db) as report:
            report.execute("insert into redrive.jobs (kind) values ('mail')")
            assert self.notes(db, conn, wait_for) != []
            monkeypatch.setattr(health, "DEAD_MANY", 10**6)
            assert self.notes(db, conn, wait_for) == []


def test_every_reason_is_a_line(db, conn):
    beat(conn, problem="a\nb")
    insert(conn, "mail", run_at="2020-01-01")
    insert(conn, "fax", run_at="2020-01-01")
    assert len(redrive(db, "health", code=1).stdout.splitlines()) == 3


def test_an_age_that_is_none_is_a_wrong_value(db):
    redrive(db, "health", "--max-age", "old", code=2)


def test_a_pause_is_a_note_and_what_waits_because_of_it_is_told_so(db, conn):
    """A pause that somebody forgot stops jobs in silence."""
    beat(conn, kinds=["mail", "export"])
    redrive(db, "pause", "mail", "--by", "ada", "--reason", "the provider is down")
    [note] = answer(db, "health")["notes"]
    assert note.startswith("kind mail is paused ")
    assert note.endswith("by ada: the provider is down: `redrive resume mail`")
    insert(conn, "mail", run_at="2020-01-01")
    [late] = problems(db)
    assert late.endswith("; the kind is paused, see `redrive kinds`")
    redrive(db, "resume", "mail")
    redrive(db, "limit", "mail", "--running", 1)
    [late] = problems(db)
    assert late.endswith("; the kind has limits, see `redrive kinds`")
