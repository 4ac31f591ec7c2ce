"""The scheduler: each slot once, whoever lives or dies; what was missed or overlaps; rows that make no sense."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from engine import Inside, sessions
from redrive import Queue, scheduler, timetable
from redrive.connections import Control, conninfo
from redrive.errors import InvalidOption
from redrive.scheduler import Scheduler
from redrive.service import Database
from redrive.settings import load
from redrive.sql import channel
from redrive.statements import named, run
from support import wait_for

HOUR = timedelta(hours=1)


@pytest.fixture
def queue(db):
    queue = Queue(db)
    queue.handler("k")(lambda payload: None)
    yield queue
    queue.close()


class Ticks:
    """Schedulers without their workers, each tick of which is the test's to make."""

    def __init__(self, db: str, queue: Queue | None = None, count: int = 1, up: float = 0, **settings: Any) -> None:
        definitions = queue.schedules.of_code() if queue else ()
        self._up = up
        self._db, self._count, self._settings, self._definitions = db, count, load(settings), definitions

    def __call__(self, times: int = 1) -> list[list[float]]:
        """Tick so many times, and give what each asked to pause for."""
        return asyncio.run(self._turn(times))

    async def _turn(self, times: int) -> list[list[float]]:
        controls = [Control(self._db, "redrive", f"heartbeat test{n}") for n in range(self._count)]
        try:
            all_ = [Scheduler(Database("here:1:abcdef"), each, self._settings, self._definitions) for each in controls]
            for each in all_:
                each._up_since -= self._up
            return [await asyncio.gather(*(each.tick() for each in all_)) for _ in range(times)]
        finally:
            for each in controls:
                each.drop()


def ask(conn: psycopg.Connection, query: str, *params: Any) -> list[Any]:
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(query, params).fetchall()


def schedule(conn: psycopg.Connection, name: str = "s", **columns: Any) -> Any:
    """Insert a schedule as any program could, or give its row."""
    if columns:
        # Half an hour away from the slots of this moment, which are the test's to say.
        columns = {"kind": "k", "anchor": datetime.now(UTC) - timedelta(days=1, minutes=30), **columns}
        conn.execute(
            f"insert into redrive.schedules (name, {', '.join(columns)}) values (%s{', %s' * len(columns)})",
            [name, *columns.values()],
        )
    return ask(conn, "select * from redrive.schedules where name = %s", name)[0]


def slots(conn: psycopg.Connection, name: str = "s") -> list[Any]:
    return ask(conn, "select * from redrive.schedule_slots where schedule = %s order by slot", name)


def jobs(conn: psycopg.Connection) -> list[Any]:
    return ask(conn, "select * from redrive.jobs order by id")


def clock(conn: psycopg.Connection) -> datetime:
    return ask(conn, "select redrive.clock() as now")[0].now.astimezone(UTC)


def down(conn: psycopg.Connection, since: datetime, name: str = "s") -> None:
    """As if no worker had run since then."""
    conn.execute("update redrive.schedules set next_run_at = %s where name = %s", (since, name))


def each_minute(conn: psycopg.Connection, **columns: Any) -> datetime:
    """A schedule of every minute that nobody looked after for an hour; its last slot is half a minute old."""
    last = clock(conn).replace(microsecond=0) - timedelta(seconds=30)
    schedule(conn, cron=f"{last.second} * * * * *", **columns)
    down(conn, last - timedelta(minutes=59))
    return last


def test_a_row_made_by_plain_sql_is_planned_by_the_next_worker_and_then_runs(db, conn):
    row = schedule(conn, cron="*/5 * * * *", timezone="Europe/Berlin", payload='{"a": 1}', priority=2, lane="x")
    assert row.next_run_at is None
    [[pause]] = Ticks(db)()
    row = schedule(conn)
    now = clock(conn)
    assert now < row.next_run_at <= now + timedelta(minutes=5)
    assert row.next_run_at.minute % 5 == row.next_run_at.second == 0
    assert 0 < pause <= 60.1
    down(conn, slot := row.next_run_at - timedelta(minutes=5))
    Ticks(db)()
    [job] = jobs(conn)
    assert (job.kind, job.payload, job.priority, job.lane) == ("k", {"a": 1}, 2, "x")
    spelt = f"{slot.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    assert job.metadata == {"schedule": "s", "slot": spelt}
    [done] = slots(conn)
    assert (done.slot, done.outcome, done.job_id) == (slot, "enqueued", job.id)
    row = schedule(conn)
    assert (row.last_run_at, row.last_job_id) == (slot, job.id)
    assert row.next_run_at > now


@pytest.mark.parametrize(
    ("columns", "constraint"),
    [
        ({"cron": "* * * * *", "every": "1 minute"}, "exactly_one_of_cron_every_at"),
        ({"kind": "k"}, "exactly_one_of_cron_every_at"),
        ({"every": "1 month"}, "every_is_1_second_to_100_years_without_months"),
        ({"every": "0.5 s"}, "every_is_1_second_to_100_years_without_months"),
        ({"every": "1 min", "missed": "none"}, "missed_is_skip_latest_or_all"),
        ({"every": "1 min", "overlap": "queue"}, "overlap_is_skip_queue_one_or_allow"),
        ({"every": "1 min", "missed_most": 0}, "missed_most_is_1_to_1000"),
        ({"every": "1 min", "priority": 10}, "priority_is_0_to_9"),
        ({"every": "1 min", "owner": "me"}, "owner_is_code_or_operator"),
        ({"at": "infinity"}, "times_are_from_1970_to_9000"),
        ({"every": "1 min", "next_run_at": "-infinity"}, "times_are_from_1970_to_9000"),
        ({"every": "1 min", "kind": ""}, "kind_is_1_to_1000_bytes"),
    ],
)
def test_what_postgres_can_tell_to_be_nonsense_it_refuses_and_says_what_is_asked_for(conn, columns, constraint):
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        schedule(conn, **columns)
    assert refused.value.diag.constraint_name == f"schedules_{constraint}"


def test_rows_that_make_no_sense_are_marked_and_disturb_no_other(db, conn, caplog):
    schedule(conn, "bad cron", cron="61 * * * *")
    schedule(conn, "never", cron="0 0 31 2 *")
    schedule(conn, "bad zone", cron="@daily", timezone="Mars/Olympus")
    schedule(conn, "good", every="1 hour")
    down(conn, clock(conn) - timedelta(seconds=1), "good")
    Ticks(db)(2)
    problems = dict(conn.execute("select name, problem from redrive.schedules").fetchall())
    assert problems["good"] is None
    assert "the minute makes no sense" in problems["bad cron"]
    assert "'0 0 31 2 *'" in problems["never"]
    assert "'Mars/Olympus', which nobody knows" in problems["bad zone"]
    assert [job.metadata["schedule"] for job in jobs(conn)] == ["good"]
    conn.execute("update redrive.schedules set cron = '1 * * * *' where name = 'bad cron'")
    assert schedule(conn, "bad cron").problem is None
    Ticks(db)()
    assert schedule(conn, "bad cron").next_run_at.minute == 1


def test_one_whose_job_the_database_refuses_is_marked_and_holds_up_no_other_cn_07(db, conn):
    """A table that was adopted in place may have constraints of its own."""
    conn.execute("alter table redrive.jobs add constraint ours_alone check (kind <> 'refused')")
    names = [f"s{number}" for number in range(5)]
    for name in names:
        schedule(conn, name, every="1 hour", kind="refused" if name == "s2" else "k")
        down(conn, clock(conn) - timedelta(seconds=1), name)
    Ticks(db)(2)
    assert sorted(job.metadata["schedule"] for job in jobs(conn)) == ["s0", "s1", "s3", "s4"]
    assert "ours_alone" in schedule(conn, "s2").problem
    assert [schedule(conn, name).problem for name in names if name != "s2"] == [None] * 4
    Ticks(db)()
    assert "ours_alone" in schedule(conn, "s2").problem, "it stays broken, and is not well until its next slot"
    conn.execute("alter table redrive.jobs drop constraint ours_alone")
    Ticks(db)()
    row = schedule(conn, "s2")
    assert (row.problem, row.next_run_at > clock(conn)) == (None, True)
    assert sorted(job.metadata["schedule"] for job in jobs(conn)) == names, "and no slot is lost"


def test_a_zone_that_one_machine_does_not_know_is_the_other_machines_business(db, conn, caplog, monkeypatch):
    """The poor one's looks neither break nor advance what the rich one has planned, which makes up for all slots."""
    schedule(conn, cron="0 * * * *", timezone="Asia/Tokyo", missed="all", overlap="allow")
    schedule(conn, "other", every="1 hour")
    known = timetable.zone

    def unknown(name):
        if name == "Asia/Tokyo":
            raise InvalidOption("timezone is 'Asia/Tokyo', which nobody knows")
        return known(name)

    def as_poor():
        with monkeypatch.context() as patched:
            patched.setattr(timetable, "zone", unknown)
            patched.setattr(scheduler, "zone", unknown)
            Ticks(db)(2)

    as_poor()
    assert "which nobody knows" in schedule(conn).problem, "nobody has planned it yet"
    Ticks(db)()
    assert (schedule(conn).problem, schedule(conn).next_run_at is None) == (None, False)
    down(conn, clock(conn).replace(minute=0, second=0, microsecond=0) - timedelta(hours=2))
    down(conn, clock(conn) - timedelta(seconds=1), "other")
    as_poor()
    assert schedule(conn).problem is None
    assert [job.metadata["schedule"] for job in jobs(conn)] == ["other"]
    assert caplog.text.count("are left to other workers") == 1
    Ticks(db)()
    assert len(jobs(conn)) == 1 + 3


def test_what_one_worker_found_to_be_broken_is_looked_at_again_by_those_that_run(db, conn):
    schedule(conn, every="1 hour")

    async def turn() -> None:
        control = Control(db, "redrive", "heartbeat test")
        one = Scheduler(Database("here:1:abcdef"), control, load({}), ())
        for ago, problem in ((0, "nobody knows its zone"), (0, "nobody knows its zone"), (61, None)):
            await one.tick()
            conn.execute("update redrive.schedules set problem = 'nobody knows its zone', next_run_at = null")
            one._retried -= ago
            await one.tick()
            assert schedule(conn).problem == problem
        control.drop()

    asyncio.run(turn())


def test_of_many_workers_at_once_one_advances_and_the_log_stays_empty_ct_04(db, conn, server_log):
    schedule(conn, every="1 hour", overlap="allow")
    Ticks(db)()
    for _ in range(10):
        down(conn, clock(conn) - timedelta(seconds=1))
        Ticks(db, count=5)()
    assert len(jobs(conn)) == len(slots(conn)) == 10
    assert server_log.errors() == []


def test_a_slot_that_is_recorded_is_not_run_again_even_if_the_clock_goes_back_ct_04(db, conn, server_log):
    schedule(conn, every="1 hour")
    down(conn, slot := clock(conn) - timedelta(seconds=1))
    Ticks(db)()
    down(conn, slot)
    Ticks(db)()
    assert len(jobs(conn)) == len(slots(conn)) == 1
    assert server_log.errors() == []


def test_the_latest_of_what_was_missed_is_made_up_for_unless_told_otherwise_ct_06(db, conn):
    last = each_minute(conn)
    Ticks(db)()
    [job] = jobs(conn)
    found = slots(conn)
    assert len(found) == 60
    assert [slot.outcome for slot in found] == ["skipped"] * 59 + ["enqueued"]
    assert (found[-1].slot, found[-1].job_id, found[-1].reason) == (last, job.id, "missed, and made up for")
    assert found[0].reason.startswith("missed by 0:59:3")
    assert found[0].reason.endswith(": only the latest is made up for")
    assert schedule(conn).next_run_at == last + timedelta(minutes=1)


def test_all_that_was_missed_is_made_up_for_up_to_a_number_and_an_age_ct_06(db, conn):
    last = each_minute(conn, missed="all", missed_most=10)
    Ticks(db)()
    assert len(jobs(conn)) == 10
    found = slots(conn)
    assert [slot.outcome for slot in found] == ["skipped"] * 50 + ["enqueued"] * 10
    assert found[0].reason.endswith(": no more than 10 are made up for")
    assert found[-1].slot == last
    conn.execute("truncate redrive.schedules, redrive.schedule_slots, redrive.jobs")
    each_minute(conn, missed="all", missed_age="5 min")
    Ticks(db)()
    assert len(jobs(conn)) == 5
    assert slots(conn)[0].reason.endswith(": nothing older than 0:05:00 is made up for")


def test_nothing_that_was_missed_is_made_up_for_where_that_is_the_policy_ct_06(db, conn):
    last = each_minute(conn, missed="skip")
    Ticks(db)()
    assert jobs(conn) == []
    assert [slot.outcome for slot in slots(conn)] == ["skipped"] * 60
    assert schedule(conn).next_run_at == last + timedelta(minutes=1)


def test_a_week_of_seconds_is_made_up_for_without_a_row_for_each(db, conn):
    schedule(conn, cron="* * * * * *", missed="all", missed_most=10, overlap="allow")
    down(conn, (clock(conn) - timedelta(days=7)).replace(microsecond=0))
    Ticks(db)()
    found = slots(conn)
    assert 100 < len(found) <= 1001
    assert "which have no rows of their own" in found[0].reason
    assert len(jobs(conn)) in (10, 11), "ten, or those that were on time"


def test_a_new_schedule_and_one_that_is_resumed_make_up_for_nothing_ct_06(db, conn, queue):
    conn.execute(
        "insert into redrive.schedules (name, kind, cron, created_at) values ('s', 'k', '* * * * *', '2020-01-01')"
    )
    Ticks(db)()
    queue.schedules.pause("s", by="ann", reason="audit")
    down(conn, clock(conn) - HOUR)
    Ticks(db)()
    assert jobs(conn) == []
    queue.schedules.resume("s")
    Ticks(db)()
    assert jobs(conn) == slots(conn) == []
    assert schedule(conn).next_run_at > clock(conn)


def test_five_hundred_schedules_due_at_one_instant_are_five_hundred_jobs_ct_07(db, conn):
    conn.execute(
        "insert into redrive.schedules (name, kind, every, next_run_at)"
        " select 's' || n, 'k', '1 hour', redrive.clock() - interval '1 s' from generate_series(1, 500) n"
    )
    turns = Ticks(db)
    turns(3)
    assert len(jobs(conn)) == 500
    assert ask(conn, "select count(distinct metadata ->> 'schedule') as n from redrive.jobs")[0].n == 500


def live(conn: psycopg.Connection, status: str) -> None:
    conn.execute("update redrive.jobs set status = %s, locked_by = 'x', locked_at = now()", (status,))


@pytest.mark.parametrize("status", ["pending", "running"])
def test_while_the_last_run_is_alive_the_next_is_skipped_and_says_why_ct_12(db, conn, status):
    schedule(conn, every="1 hour")
    down(conn, clock(conn) - timedelta(seconds=2))
    Ticks(db)()
    live(conn, status)
    down(conn, clock(conn) - timedelta(seconds=1))
    Ticks(db)()
    [job] = jobs(conn)
    assert slots(conn)[-1].reason == f"overlap: job {job.id} of the run before is {status}"


@pytest.mark.parametrize("end", ["dead", "failed", "succeeded", "deleted"])
def test_a_run_that_has_ended_blocks_nothing_however_it_ended_ct_12(db, conn, end):
    schedule(conn, every="1 hour")
    down(conn, clock(conn) - timedelta(seconds=2))
    Ticks(db)()
    live(conn, "running")
    conn.execute("delete from redrive.jobs" if end == "deleted" else f"update redrive.jobs set status = '{end}'")
    down(conn, clock(conn) - timedelta(seconds=1))
    Ticks(db)()
    assert [slot.outcome for slot in slots(conn)] == ["enqueued"] * 2


def test_with_queue_one_a_single_slot_waits_for_the_run_before_it_and_then_runs_ct_12(db, conn):
    schedule(conn, every="1 hour", overlap="queue one")
    for _ in range(3):
        down(conn, clock(conn) - timedelta(seconds=1))
        [[pause]] = Ticks(db)()
        live(conn, "running")
    assert len(jobs(conn)) == 1
    first, waiting = slots(conn)[0], schedule(conn).waiting_slot
    assert first.slot < waiting
    assert [slot.outcome for slot in slots(conn)] == ["enqueued", "skipped"]
    assert pause < 1.2, "it looks again soon"
    conn.execute("update redrive.jobs set status = 'succeeded'")
    Ticks(db)(2)
    assert len(jobs(conn)) == 2
    assert schedule(conn).waiting_slot is None
    [row] = [slot for slot in slots(conn) if slot.slot == waiting]
    assert (row.outcome, row.reason) == ("enqueued", "waited for the job before it to end")


def test_an_orphaned_run_blocks_the_next_until_its_lease_has_ended_and_somebody_else_ran_it_ct_12(db, conn, queue):
    schedule(conn, every="1 hour")
    down(conn, clock(conn) - timedelta(seconds=2))
    Ticks(db)()
    conn.execute(
        "insert into redrive.workers (name, host, pid, version, kinds, concurrency, lease, heartbeat_at)"
        " values ('elsewhere:77:abc123', 'h', 1, '0', '{k}', 1, '1 s', now())"
    )
    conn.execute(
        "update redrive.jobs set status = 'running', locked_by = 'elsewhere:77:abc123', locked_at = now(), claims = 1"
    )
    down(conn, clock(conn) - timedelta(seconds=1))
    Ticks(db)()
    assert [slot.outcome for slot in slots(conn)] == ["enqueued", "skipped"]
    with Inside(queue, lease=1):
        wait_for(lambda: jobs(conn)[0].status == "succeeded")
    down(conn, clock(conn) - timedelta(seconds=0.5))
    Ticks(db)()
    assert [slot.outcome for slot in slots(conn)] == ["enqueued", "skipped", "enqueued"]


def test_runs_that_take_longer_than_the_pause_between_them_never_overlap_and_do_not_pile_up_ct_12(db, conn):
    """Each second, by two workers with slots to spare; what was skipped is written down."""
    queues, running, most, go = [Queue(db), Queue(db)], [], [], threading.Event()

    def slow(payload):
        running.append(1)
        most.append(len(running))
        go.wait(20)
        running.pop()

    for queue in queues:
        queue.handler("k")(slow)
    with Inside(*queues) as inside:
        wait_for(lambda: all(worker.scheduler.settled for worker in inside.workers))
        conn.execute("insert into redrive.schedules (name, kind, every) values ('s', 'k', '1 s')")
        wait_for(lambda: [slot.outcome for slot in slots(conn)].count("skipped") >= 3)
        assert [job.status for job in jobs(conn)] == ["running"]
        go.set()
        wait_for(lambda: len(jobs(conn)) == 3)
    assert set(most) == {1}
    assert all("of the run before is" in slot.reason for slot in slots(conn) if slot.outcome == "skipped")
    for queue in queues:
        queue.close()


def test_with_allow_runs_pile_up_ct_12(db, conn):
    schedule(conn, every="1 hour", overlap="allow")
    for _ in range(3):
        down(conn, clock(conn) - timedelta(seconds=1))
        Ticks(db)()
    assert len(jobs(conn)) == 3


def test_what_runs_once_runs_once_and_is_done_with(db, conn, queue):
    queue.schedules.add("s", "k", at=clock(conn) - timedelta(minutes=5))
    Ticks(db)(2)
    Ticks(db)()
    assert len(jobs(conn)) == 1
    row = schedule(conn)
    assert row.ended_at is not None
    assert row.next_run_at is None
    queue.schedules.add("s", "k", at=row.at)
    Ticks(db)()
    assert len(jobs(conn)) == 1, "said again, it changes nothing"
    queue.schedules.add("s", "k", at=clock(conn) - timedelta(seconds=1))
    Ticks(db)(2)
    assert len(jobs(conn)) == 2


@pytest.mark.parametrize("place", ["TZ", "database", "session"])
def test_slots_are_the_same_whatever_zone_the_machine_and_the_server_are_in_ct_09(db, conn, monkeypatch, place):
    dsn = db
    if place == "TZ":
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
    elif place == "database":
        conn.execute(f"alter database {conn.info.dbname} set timezone = 'Asia/Tokyo'")
    else:
        dsn = psycopg.conninfo.make_conninfo(db, options="-c TimeZone=Asia/Tokyo")
    try:
        schedule(conn, "berlin", cron="30 9 * * *", timezone="Europe/Berlin")
        schedule(conn, "utc", cron="30 9 * * *")
        Ticks(dsn)()
    finally:
        monkeypatch.undo()
        time.tzset()
    utc = schedule(conn, "utc").next_run_at.astimezone(UTC)
    assert (utc.hour, utc.minute) == (9, 30)
    berlin = schedule(conn, "berlin").next_run_at.astimezone(UTC)
    assert (berlin.hour, berlin.minute) in {(8, 30), (7, 30)}


@pytest.mark.parametrize("hours", [-1, 1])
def test_the_servers_clock_alone_says_what_is_due_ct_11(db, conn, hours):
    """The server's is put an hour ahead or back, so every worker's is an hour off."""
    moved = psycopg.conninfo.make_conninfo(db, options=f"-c redrive.clock_offset={hours}h")
    now = clock(conn)
    schedule(conn, "soon", at=now + timedelta(minutes=30))
    schedule(conn, "now", at=now - timedelta(minutes=30))
    Ticks(moved)(2)
    ran = {job.metadata["schedule"] for job in jobs(conn)}
    assert ran == ({"soon", "now"} if hours == 1 else set())


def test_rules_of_a_zone_that_have_changed_hold_from_the_next_start_of_a_worker_on_ct_14(db, conn, monkeypatch):
    schedule(conn, cron="0 12 * * *", timezone="Europe/Berlin")
    Ticks(db)()
    before = schedule(conn).next_run_at
    monkeypatch.setattr(timetable, "zone", lambda name: ZoneInfo("Asia/Tokyo"))
    Ticks(db)()
    after = schedule(conn).next_run_at
    assert (after - before) % timedelta(days=1) in (timedelta(hours=16), timedelta(hours=17))


def test_a_row_that_somebody_has_locked_holds_up_neither_the_others_nor_the_heartbeat(db, conn):
    for name in ("locked", "free"):
        schedule(conn, name, every="1 hour")
    Ticks(db)()
    for name in ("locked", "free"):
        down(conn, clock(conn) - timedelta(seconds=1), name)
    with psycopg.connect(db) as holder:
        holder.execute("update redrive.schedules set payload = '1' where name = 'locked'")
        [[pause]] = Ticks(db)()
        assert [job.metadata["schedule"] for job in jobs(conn)] == ["free"]
        assert pause < 1.2, "it looks again soon"
    Ticks(db)()
    assert len(jobs(conn)) == 2


def test_a_database_of_another_style_of_dates_and_intervals_is_read_all_the_same(db, conn, queue):
    conn.execute(f"alter database {conn.info.dbname} set intervalstyle = 'iso_8601'")
    conn.execute(f"alter database {conn.info.dbname} set datestyle = 'German'")
    assert queue.schedules.add("s", "k", every="1h", age="2d").age == timedelta(days=2)
    down(conn, clock(conn) - timedelta(seconds=1))
    Ticks(db)()
    assert len(jobs(conn)) == 1
    assert queue.schedules.list()[0].every == HOUR


def test_no_statement_of_the_scheduler_walks_over_jobs_or_slots(db, conn):
    """Statistics from when both were empty, and a session as a worker has it."""
    conn.execute("analyze redrive.jobs, redrive.schedule_slots, redrive.schedules")
    conn.execute(
        "insert into redrive.schedules (name, kind, every, overlap, anchor, next_run_at, last_job_id, waiting_slot)"
        " select 's' || n, 'k', '1 hour', 'queue one', now(), now() - interval '1 s', n * 10, now() - interval '2 s'"
        " from generate_series(1, 50) n"
    )
    conn.execute("insert into redrive.jobs (kind, status) select 'k', 'succeeded' from generate_series(1, 40000)")
    conn.execute(
        "insert into redrive.schedule_slots (schedule, slot, outcome, decided_at)"
        " select 's' || n % 50, now() - n * interval '1 min', 'skipped', now() from generate_series(1, 40000) n"
    )
    touched = "select pg_stat_get_xact_blocks_fetched('redrive.{}'::regclass)"
    with psycopg.connect(conninfo(db, application="test", nonce="x")) as worker:
        now = clock(conn)
        look = {"mine": [], "judge": True, "grace": 900, "everything": False, "most": 200}
        look |= {"retry": True, "strange": ["Mars/Olympus"]}
        found = run(worker, named("look_at_schedules", "redrive", **look))
        assert len(found) == 50
        rows = {
            "names": [row.name for row in found],
            "revisions": [row.revision for row in found],
            "seen": [row.next_run_at for row in found],
            "nexts": [now + HOUR] * 50,
            "slot_names": [row.name for row in found],
            "slots": [row.next_run_at for row in found],
            "reasons": [None] * 50,
            "late": [False] * 50,
        }
        assert len(run(worker, named("advance_schedules", "redrive", **rows))) == 50
        run(worker, named("list_schedules", "redrive", name=None))
        for table, most in (("jobs", 1500), ("schedule_slots", 1500)):
            assert worker.execute(touched.format(table)).fetchone()[0] < most, table
        worker.rollback()


def test_who_saw_another_definition_writes_nothing(db, conn):
    """F8: the definition is changed between a worker's look and what it writes."""
    schedule(conn, cron="0 0 1 1 *")

    async def turn():
        control = Control(db, "redrive", "heartbeat test")
        try:
            one = Scheduler(Database("here:1:abcdef"), control, load({}))
            await one._register()
            rows = await one._look()
            conn.execute("update redrive.schedules set cron = '0 0 2 1 *'")
            await one._advance_all(rows)
        finally:
            control.drop()

    asyncio.run(turn())
    assert schedule(conn).next_run_at is None
    Ticks(db)()
    assert schedule(conn).next_run_at.astimezone(UTC).day == 2


def test_the_codes_own_are_registered_kept_and_left_paused_and_an_operators_are_never_touched(db, conn, caplog):
    def app(cron: str, payload: Any = None) -> Queue:
        queue = Queue(db)
        handler = queue.handler("k")(lambda payload: None)
        queue.schedule(cron, timezone="Europe/Berlin", payload=payload)(handler)
        queue.schedule(every="1h", name="taken")(handler)
        return queue

    schedule(conn, "taken", every="2 hours")
    Ticks(db, app("0 3 * * *"))()
    row = schedule(conn, "k")
    assert (row.owner, row.cron, row.timezone) == ("code", "0 3 * * *", "Europe/Berlin")
    assert row.seen_at is not None
    assert schedule(conn, "taken").every == timedelta(hours=2)
    assert "schedule taken of the code is not used" in caplog.text
    queue = app("0 4 * * *", {"new": True})
    queue.schedules.pause("k", by="ann")
    Ticks(db, queue)()
    changed = schedule(conn, "k")
    assert (changed.cron, changed.payload, changed.paused_by) == ("0 4 * * *", {"new": True}, "ann")
    assert changed.revision > row.revision
    Ticks(db, queue)()
    assert schedule(conn, "k").revision == changed.revision


def test_one_removed_from_the_code_is_disabled_after_a_grace_and_comes_back_with_it(db, conn):
    queue = Queue(db)
    queue.schedule(every="1h")(queue.handler("k")(lambda payload: None))
    Ticks(db, queue)()
    schedule(conn, "operators", every="1 hour")
    conn.execute(
        "update redrive.schedules set seen_at = now() - interval '1 hour', created_at = now() - interval '1 hour'"
    )
    Ticks(db, schedule_grace=200)()
    assert schedule(conn, "k").disabled_at is None, "a worker that has only just come up is no judge"
    Ticks(db, schedule_grace=200, up=200)()
    assert schedule(conn, "k").disabled_at is not None
    assert schedule(conn, "k").next_run_at is None
    assert schedule(conn, "operators").disabled_at is None
    Ticks(db, queue)()
    back = schedule(conn, "k")
    assert back.disabled_at is None
    assert back.next_run_at > clock(conn)


def test_a_worker_runs_a_schedule_at_once_when_it_is_told_of_one(db, conn, queue):
    """It sleeps for a minute, and is woken by the change."""
    with Inside(queue) as inside:
        wait_for(lambda: inside.worker.scheduler.settled and inside.worker.listener.hears)
        conn.execute("insert into redrive.schedules (name, kind, every) values ('s', 'k', '1 s')")
        wait_for(lambda: len(slots(conn)) >= 2)
        wait_for(lambda: any(job.status == "succeeded" for job in jobs(conn)))
        assert len(sessions(conn, inside.worker.name)) <= 4


def test_a_word_of_schedules_makes_nobody_claim(db, conn, queue, monkeypatch):
    with Inside(queue, poll=60) as inside:
        worker = inside.worker
        wait_for(lambda: worker.scheduler.settled and worker.listener.sentry)
        woken: list[str] = []
        monkeypatch.setattr(worker.listener, "on_wake", lambda: woken.append("claim"))
        monkeypatch.setitem(worker.listener.on_word, "schedules", lambda: woken.append("schedules"))
        conn.execute("select pg_notify(%s, 'a word that nobody knows')", (channel("redrive"),))
        conn.execute("insert into redrive.schedules (name, kind, every) values ('s', 'k', '1 hour')")
        wait_for(lambda: woken)
        conn.execute("update redrive.schedules set next_run_at = redrive.clock() + interval '1 day', seen_at = now()")
        conn.execute("update redrive.schedules set cron = '@daily', every = NULL")
        wait_for(lambda: len(woken) == 2)
        assert woken == ["schedules", "schedules"]


def test_a_handler_that_blocks_the_loop_holds_up_no_schedule_ct_07(db, conn, queue):
    """All slots busy and the event loop blocked: the slots of that time are enqueued at their time."""
    ended = threading.Event()

    @queue.handler("block")
    async def block(payload):
        ended.wait(20)

    with Inside(queue, concurrency=1) as inside:
        wait_for(lambda: inside.worker.scheduler.settled)
        queue.enqueue("block")
        wait_for(lambda: any(job.kind == "block" and job.status == "running" for job in jobs(conn)))
        schedule(conn, every="1 s", overlap="allow")
        conn.execute("update redrive.schedules set next_run_at = redrive.clock()")  # told of, and not heard
        with contextlib.suppress(RuntimeError):
            inside.worker._pulse.wake(inside.worker.scheduler)
        try:
            wait_for(lambda: len(slots(conn)) >= 2)
        finally:
            ended.set()


def test_a_worker_without_the_rights_runs_its_jobs_and_says_once_what_it_lacks(db, conn, caplog, server_log):
    """After an upgrade, before the grants were repeated."""
    role = f"r_{conn.info.dbname}"
    conn.execute(f"create role {role} login password 'x'; grant usage on schema redrive to {role}")
    conn.execute(
        f"grant all on all tables in schema redrive to {role};"
        f"revoke all on redrive.schedules, redrive.schedule_slots from {role}"
    )
    queue = Queue(psycopg.conninfo.make_conninfo(db, user=role, password="x"))
    queue.schedule(every="1h")(queue.handler("k")(lambda payload: None))
    try:
        with Inside(queue) as inside:
            queue.enqueue("k")
            wait_for(lambda: jobs(conn)[0].status == "succeeded" and inside.worker.scheduler.settled)
            inside.worker._pulse.wake(inside.worker.scheduler)
            assert inside.worker.complaints() == ""
        queue.close()
    finally:
        conn.execute(f"drop owned by {role}; drop role {role}")
    assert server_log.errors() == []
    said = [record.message for record in caplog.records if "without schedules" in record.message]
    assert len(said) == 1
    assert "lacks SELECT, INSERT, UPDATE on schedules" in said[0]


def test_a_worker_that_runs_once_enqueues_what_is_due_first(db, conn, queue):
    schedule(conn, at=clock(conn) - timedelta(seconds=1))
    queue.run(once=True)
    assert [job.status for job in jobs(conn)] == ["succeeded"]


def test_old_slots_are_pruned_and_the_young_are_kept(db, conn, queue):
    conn.execute(
        "insert into redrive.schedule_slots (schedule, slot, outcome, decided_at)"
        " select s, now() - n * interval '1 day', 'skipped', now() - n * interval '1 day'"
        " from unnest(array['a', 'b', 'c']) s, generate_series(1, 20) n"
    )
    gone = [len(queue.ask(named("prune_slots", "redrive", window=20, keep=7.5 * 86400))) for _ in range(3)]
    assert gone == [20, 19, 0]
    assert ask(
        conn, "select count(*) as n, min(slot) > now() - interval '8 days' as young from redrive.schedule_slots"
    )[0] == (21, True)


APP = """
from redrive import Queue, scheduler, timetable

queue = Queue()

@queue.schedule("* * * * * *", overlap="allow")
@queue.handler("tick")
def tick(payload):
    pass
"""


def prove(
    conn: psycopg.Connection, start_worker: Any, seconds: int, kill_every: float, *, workers: int = 5, app: str = APP
) -> None:
    """So many workers, a schedule each second, a worker killed now and then: each second's slot once."""
    alive = [start_worker(app) for _ in range(workers)]
    wait_for(lambda: conn.execute("select count(*) from redrive.schedule_slots").fetchone()[0], 30)
    first = slots(conn, "tick")[-1].slot + timedelta(seconds=1)
    last = first + timedelta(seconds=seconds - 1)
    killed = 0
    kill_at = time.monotonic() + kill_every
    while clock(conn) < last + timedelta(seconds=1):
        due = partial(lambda at: clock(conn) > last + timedelta(seconds=1) or time.monotonic() >= at, kill_at)
        wait_for(due, kill_every + 5)
        if time.monotonic() >= kill_at:
            kill_at += kill_every
            victim = alive.pop(0)
            os.kill(victim.pid, signal.SIGKILL)
            killed += 1
            alive.append(start_worker(app))
    wait_for(lambda: slots(conn, "tick")[-1].slot > last, 30)
    found = [slot for slot in slots(conn, "tick") if first <= slot.slot <= last]
    assert [slot.slot for slot in found] == [first + timedelta(seconds=n) for n in range(seconds)]
    assert {slot.outcome for slot in found} == {"enqueued"}
    ids = [slot.job_id for slot in found]
    made = ask(conn, "select id, metadata ->> 'slot' as slot from redrive.jobs where id = any(%s)", ids)
    assert len({job.slot for job in made}) == len(made) == seconds
    total = ask(conn, "select count(*) as n, count(distinct metadata ->> 'slot') as slots from redrive.jobs")[0]
    assert total.n == total.slots
    assert killed >= seconds // kill_every - 1
    print(f"{seconds} slots, {killed} workers killed, none doubled, none lost")  # noqa: T201 - the figure


def test_of_five_workers_that_are_killed_one_by_one_no_slot_is_lost_or_doubled_ct_04_ct_06(
    db, conn, start_worker, server_log
):
    prove(conn, start_worker, 8, 2)
    assert [line for line in server_log.errors() if "terminating connection" not in line] == []


@pytest.mark.proof
def test_of_five_workers_sixty_slots_and_a_kill_every_five_seconds_none_is_lost_or_doubled(
    db, conn, start_worker, server_log
):
    """The bar: five workers, a schedule every second for 60 s with a SIGKILL every 5 s."""
    prove(conn, start_worker, 60, 5)
    assert [line for line in server_log.errors() if "terminating connection" not in line] == []


@pytest.mark.proof
def test_killed_in_the_second_in_which_a_slot_is_due_twenty_times_no_slot_is_lost_or_doubled_ct_06(
    db, conn, start_worker, server_log
):
    """A crash between the advance and the enqueue, if there were such a place.

    They are killed as fast as they start. Where a slow machine has none for ten seconds, that is made up for.
    """
    prove(conn, start_worker, 30, 1.5, workers=3, app=APP.replace("allow", 'allow", missed="all'))
