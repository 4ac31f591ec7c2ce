"""The questions of somebody on call, and when each is green or red. OP-08: by what is done, not by who is alive."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from redrive import Queue, situation
from redrive.stats import Stats
from support import wait_for

HERE = "web:1:abcdef"


@pytest.fixture
def queue(db):
    queue = Queue(db)
    yield queue
    queue.close()


@pytest.fixture
def reading(queue):
    return situation.Reading(queue.ask, queue.settings, {"export": 60.0})


@pytest.fixture
def worker(conn):
    """A row of a worker that knows mail; call it to give a sign of life so long ago."""

    def beat(ago="0 s", problem=None):
        conn.execute(
            "insert into redrive.workers (name, host, pid, version, kinds, concurrency, lease, heartbeat_at, problem)"
            " values (%s, 'web', 1, '0.1.0', '{mail}', 10, '30 s', now() - %s::interval, %s)"
            " on conflict (name) do update set heartbeat_at = excluded.heartbeat_at, problem = excluded.problem",
            (HERE, ago, problem),
        )

    beat()
    return beat


def late(reading):
    return situation.late(reading, situation.working(reading).rows["workers"])


def said(part):
    return {(finding.level, finding.text) for finding in part.findings}


def test_work_is_late_by_the_age_of_what_is_due_and_not_by_how_much_there_is(queue, conn, reading, worker):
    queue.enqueue_many("mail", [{}] * 500)
    queue.enqueue("mail", delay=3600)
    assert late(reading).level == "good"
    conn.execute("update redrive.jobs set run_at = now() - interval '6 min' where id = 7")
    part = late(reading)
    assert part.level == "bad"
    assert said(part) == {("bad", "the oldest job of kind mail is due for 6 min")}
    assert part.findings[0].query == 'kind:"mail"'


def test_a_due_kind_that_nobody_knows_is_bad_and_a_paused_one_is_a_note_sd_04(queue, conn, reading, worker):
    conn.execute("insert into redrive.jobs (kind, run_at) values ('fax', now() - interval '40 s')")
    conn.execute("insert into redrive.jobs (kind, run_at) values ('mail', now() - interval '1 h')")
    queue.kinds.pause("mail", by="ada", reason="the provider is down")
    assert said(late(reading)) == {
        ("bad", "kind fax is due for 40 s and no live worker knows it"),
        ("note", "kind mail is paused by ada: the provider is down; the oldest job is due for 1 h"),
    }


def test_it_fails_while_something_dead_is_new(conn, reading, worker):
    conn.execute("insert into redrive.jobs (kind, status, last_error) values ('mail', 'dead', 'boom')")
    part = situation.failing(reading, late(reading).rows["jobs by kind"])
    assert said(part) == {("note", "1 dead job, none of them new")}
    conn.execute(
        "insert into redrive.failures (job_id, kind, claim, attempt, outcome, failed_at, error_type, message)"
        " values (1, 'mail', 1, 1, 'dead', now(), 'ValueError', 'boom')"
    )
    part = situation.failing(reading, late(reading).rows["jobs by kind"])
    assert said(part) == {("bad", "1 dead job; one death within a day")}
    conn.execute("update redrive.jobs set status = 'succeeded'")  # sent back, and done
    assert situation.failing(reading, late(reading).rows["jobs by kind"]).level == "good"
    conn.execute("insert into redrive.jobs (kind, status) values ('fax', 'failed')")
    [finding] = situation.failing(reading, []).findings
    assert finding.text == "1 job of kind fax failed within a day and gave no reason: another worker wrote so"


def test_workers_are_judged_by_their_beats_and_what_they_complain_of(conn, reading, worker):
    assert situation.working(reading).level == "good"
    worker(problem="claim: password=hunter2 refused")
    assert said(situation.working(reading)) == {("bad", f"worker {HERE}: claim: password=*** refused")}
    worker(ago="2 min")
    assert {level for level, _ in said(situation.working(reading))} == {"bad", "note"}
    conn.execute("delete from redrive.workers")
    [finding] = situation.working(reading).findings
    assert finding.text.startswith("no worker is alive")


def test_stuck_is_what_a_silent_worker_holds_what_killed_one_and_what_runs_past_its_timeout(conn, reading, worker):
    assert situation.stuck(reading).level == "good"
    worker(ago="2 min")
    conn.execute(
        "insert into redrive.jobs (kind, status, locked_by, locked_at, updated_at, crashes, alone) values"
        " ('mail', 'running', %(here)s, now() - interval '2 min', now() - interval '2 min', 0, false),"
        " ('mail', 'pending', null, null, now(), 2, true),"
        " ('export', 'running', 'other:1:abcdef', now(), now() - interval '5 min', 0, false)",
        {"here": HERE},
    )
    assert said(situation.stuck(reading)) == {
        ("bad", f"1 running job held by {HERE}, which is silent for 2 min"),
        ("bad", "job 2 of kind mail has 2 worker deaths against it"),
        ("bad", "job 3 of kind export runs for 5 min, past its timeout of 1 min"),
    }


def test_schedules_are_late_when_nobody_has_enqueued_them(queue, conn, reading):
    queue.schedules.add("nightly", "report", "0 3 * * *")
    assert situation.planned(reading).level == "good"
    conn.execute("update redrive.schedules set next_run_at = now() - interval '10 min'")
    assert said(situation.planned(reading)) == {
        ("bad", "schedule nightly is due for 10 min and no worker has enqueued it")
    }


def test_postgres_is_the_cause_when_somebody_holds_the_horizon(db, reading, monkeypatch):
    def clock():
        return datetime.now(UTC)

    assert situation.postgres(reading, clock).level == "good"
    monkeypatch.setattr(situation, "HELD_LONG", 0.0)
    monkeypatch.setattr(situation, "HELD_TOO_LONG", 0.001)
    with psycopg.connect(db, application_name="analytics") as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select 'a report' from redrive.jobs")
        wait_for(lambda: situation.postgres(reading, clock).level == "bad")
        part = situation.postgres(reading, clock)
        [row] = part.rows["horizon"]
        assert (row.name, row.application, row.query) == (
            str(holder.info.backend_pid),
            "analytics",
            "select 'a report' from redrive.jobs",
        )
        assert "(analytics) keeps dead rows from being removed" in part.findings[0].text


def test_a_clock_that_is_elsewhere_is_named(reading):
    part = situation.postgres(reading, lambda: datetime.now(UTC) - timedelta(minutes=5))
    assert ("note", "the database's clock is 5 min ahead of this machine's") in said(part)


def test_what_goes_out_is_counted_by_the_workers(queue, conn):
    conn.execute(
        "insert into redrive.stats (minute, kind, worker, succeeded, ran) "
        "values (date_trunc('minute', now()) - interval '2 min', 'mail', 'w', 300, 300)"
    )
    queue.enqueue("mail")
    part = situation.flow(Stats(queue))
    assert [(row.kind, row.succeeded) for row in part.rows["out"]] == [("mail", 300)]
    assert [(row.kind, row.jobs) for row in part.rows["in"]] == [("mail", 1)]


def test_what_takes_too_long_is_not_known_and_hides_nothing(queue, conn, reading):
    conn.execute("begin")
    conn.execute("lock table redrive.schedules")
    with queue.pool.connection() as own:
        own.execute("set statement_timeout = '200ms'")
        slow = situation.Reading(lambda statement: queue.ask(statement, own), queue.settings)
        part = situation.planned(slow)
        assert (part.level, part.unknown) == ("unknown", ["late schedules: not read, it took too long"])
        assert situation.working(slow).level == "bad"
    conn.execute("rollback")
