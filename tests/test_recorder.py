"""What workers counted gets into `stats`: once, whole, in few statements, and summed up when it is old."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from engine import Inside, insert, states
from redrive import Dead, Discard, Queue, Retry, Snooze
from redrive.connections import Control
from redrive.recorder import Recorder
from redrive.service import Database
from redrive.tally import Tally
from support import wait_for
from test_tally import ended


def rows(conn: psycopg.Connection) -> list[Any]:
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute("select * from redrive.stats order by minute, kind, worker").fetchall()


class Spy(Control):
    """A connection that remembers how often it was asked."""

    asked = 0

    async def run(self, *args: Any, **kwargs: Any) -> Any:
        self.asked += 1
        return await super().run(*args, **kwargs)


def with_recorder(db: str, work: Any, version: str = "") -> Any:
    async def turn() -> Any:
        control, tally = Spy(db, "redrive", "test"), Tally()
        try:
            return await work(Recorder(Database("w:1:abcdef"), control, tally, version=version), control, tally)
        finally:
            control.drop()

    return asyncio.run(turn())


def test_a_worker_writes_what_became_of_its_jobs_and_how_long_each_took(db, conn):
    queue = Queue(db)

    @queue.handler("mixed", max_attempts=2)
    def mixed(payload):
        raise {"retry": Retry(after=3600), "snooze": Snooze(3600), "discard": Discard("old"), "dead": Dead("bad")}[
            payload
        ]

    @queue.handler("fine")
    async def fine(payload):
        await asyncio.sleep(0.05)

    queue.enqueue_many("mixed", ["retry", "snooze", "discard", "discard", "dead"])
    queue.enqueue_many("fine", [{}] * 3)
    with Inside(queue):
        wait_for(lambda: states(conn) == {"pending": 2, "failed": 2, "dead": 1, "succeeded": 3})
    queue.close()
    [sums] = conn.cursor(row_factory=namedtuple_row).execute(
        "select sum(retried) retried, sum(snoozed) snoozed, sum(failed) failed, sum(died) died, sum(ran) ran "
        "from redrive.stats where kind = 'mixed'"
    )
    assert sums == (1, 1, 2, 1, 5)
    found = [row for row in rows(conn) if row.kind == "fine"]
    assert sum(row.succeeded for row in found) == 3
    assert 0.15 <= sum(row.run_seconds for row in found) < 3
    assert 0 < sum(row.wait_seconds for row in found) < 60
    assert sum(sum(row.runs) for row in found) == sum(sum(row.waits) for row in found) == 3
    [view] = conn.execute(
        "select sum(succeeded), min(run_p50) >= 0.04, bool_and(run_p95 >= run_p50) from redrive.throughput "
        "where kind = 'fine'"
    )
    assert view == (3, True, True)


def test_deaths_that_no_handler_saw_are_counted_too(db, conn):
    insert(conn, "export", max_attempts=1, attempts=1)  # nobody here runs it: it is buried
    queue = Queue(db, lease=1.5)
    queue.handler("mail")(lambda _payload: None)
    with Inside(queue):
        wait_for(lambda: states(conn) == {"dead": 1}, 20)
    queue.close()
    assert [(row.kind, row.died, row.ran) for row in rows(conn)] == [("export", 1, 0)]


def test_nothing_is_said_while_nothing_happens_and_a_row_written_twice_is_no_harm(db, conn):
    async def work(recorder: Recorder, control: Spy, tally: Tally) -> None:
        await recorder.tick()
        assert control.asked == 0
        tally.succeeded([ended("mail"), ended("export")])
        again = tally.unkept()
        await recorder.tick()
        await recorder.tick()
        assert control.asked == 1
        with tally._lock:
            for count in tally._open.values():
                count.kept = False  # as where the answer was lost
        assert len(again) == len(tally.unkept())
        await recorder.tick()
        assert control.asked == 2

    with_recorder(db, work)
    assert [(row.kind, row.succeeded, row.ran) for row in rows(conn)] == [("export", 1, 1), ("mail", 1, 1)]


def test_old_minutes_are_summed_up_step_by_step_and_what_comes_late_is_added(db, conn):
    def add(worker: str, hours: float, minute: int, succeeded: int) -> None:
        conn.execute(
            "insert into redrive.stats (minute, kind, worker, succeeded, ran, run_seconds, waits, runs) select "
            "to_timestamp(floor(extract(epoch from now()) / 3600) * 3600) - %s * interval '1 hour' "
            "+ %s * interval '1 minute', 'mail', %s, %s, %s, 1.5, '{}', ('[30:31]={0,' || %s || '}')::int[]",
            (hours, minute, worker, succeeded, succeeded, succeeded),
        )

    async def all_of_it(recorder: Recorder, _control: Spy, _tally: Tally) -> int:
        turns = 0
        while await recorder._sum_up():
            turns += 1
        return turns

    def sums() -> list[tuple[Any, ...]]:
        query = (
            "select minutes, count(*), sum(succeeded), sum(run_seconds), "
            "(redrive.merged(runs))[31], redrive.quantile(redrive.merged(runs), 0.5), "
            "bool_and(runs::text like '[30:31]=%') "
            "from redrive.stats where worker = '' group by minutes order by minutes"
        )
        return conn.execute(query).fetchall()

    p50 = pytest.approx(0.0001 * 2 ** (29.5 / 4))
    for worker in ("a", "b"):
        for minute in range(20):
            for hours in (1, 5, 30):
                add(worker, hours, minute, 2)
    assert with_recorder(db, all_of_it) > 2
    found = {minutes: rest for minutes, *rest in sums()}
    assert found == {
        1: [20, 80, 60.0, 80, p50, True],
        10: [2, 80, 60.0, 80, p50, True],
        60: [1, 80, 60.0, 80, p50, True],
    }
    assert conn.execute("select count(*) from redrive.stats where worker <> ''").fetchone() == (0,)
    add("c", 30, 3, 5)
    assert with_recorder(db, all_of_it) >= 1
    assert {minutes: rest for minutes, *rest in sums()}[60] == [1, 85, 61.5, 85, p50, True]


def test_minutes_that_are_not_old_stay_as_they_are_and_so_does_what_another_worker_is_at(db, conn):
    conn.execute(
        "insert into redrive.stats (minute, kind, worker) select now() - age, 'mail', 'a' "
        "from unnest(array[interval '0', '10 minutes', '29 minutes']) age"
    )

    async def work(recorder: Recorder, _control: Spy, _tally: Tally) -> bool:
        return await recorder._sum_up()

    assert not with_recorder(db, work)
    conn.execute("update redrive.stats set minute = minute - interval '1 day'")
    with psycopg.connect(db) as other:
        other.execute(_LOCK.format(key=_lock_key()))
        assert not with_recorder(db, work)
        other.rollback()
        assert with_recorder(db, work)


_LOCK = "select pg_advisory_xact_lock({key})"


def _lock_key() -> int:
    from redrive.sql import lock_key  # noqa: PLC0415 - asked for once

    return lock_key("redrive stats")


def test_a_version_of_the_application_is_marked_when_it_comes_and_when_it_comes_back(db, conn):
    async def work(recorder: Recorder, control: Spy, _tally: Tally) -> int:
        await recorder.tick()
        await recorder.tick()
        return control.asked

    assert with_recorder(db, work) == 0
    for version in ("v1", "v1", "v2", "v2", "v1"):
        assert with_recorder(db, work, version) == 1
        conn.execute("update redrive.deploys set at = at - interval '1 minute'")
    conn.execute(
        "insert into redrive.workers (name, host, pid, version, app_version, kinds, concurrency, lease, heartbeat_at) "
        "values ('other', 'h', 1, '0', 'v2', '{mail}', 1, '1 hour', now())"
    )
    with_recorder(db, work, "v2")  # restarted in the middle of a deploy: v2 was there all the time
    found = conn.execute("select version from redrive.deploys order by at").fetchall()
    assert [version for (version,) in found] == ["v1", "v2", "v1"]


def test_a_beat_tells_how_far_the_clocks_are_apart(db, conn):
    queue = Queue(db, lease=1.5)
    queue.handler("mail")(lambda _payload: None)
    with Inside(queue) as inside:
        wait_for(lambda: inside.worker.heartbeat.beats > 1)
        [(skew,)] = conn.execute("select clock_skew from redrive.workers").fetchall()
        assert abs(skew) < 5
        assert abs(inside.worker.writer.tally.ahead - (time.time() - time.monotonic())) < 5
    queue.close()
