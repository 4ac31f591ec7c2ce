"""What workers counted, read back: by steps and by kinds, with nothing left out and nothing made up."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import psycopg
import pytest

from engine import insert
from redrive import InvalidOption, Queue
from redrive.stats import Sum


@pytest.fixture
def queue(db):
    queue = Queue(db)
    yield queue
    queue.close()


def add(conn: psycopg.Connection, kind: str, minutes_ago: float, **columns: object) -> None:
    names = "".join(f", {name}" for name in columns)
    conn.execute(
        f"insert into redrive.stats (minute, kind, worker{names}) values "
        f"(date_trunc('minute', now()) - %s * interval '1 minute', %s, 'w'{', %s' * len(columns)})",
        [minutes_ago, kind, *columns.values()],
    )


def test_a_series_has_every_step_also_those_in_which_nothing_happened(conn, queue):
    add(conn, "mail", 0, succeeded=3, ran=3, run_seconds=6.0, wait_seconds=3.0, runs=[0, 0, 3], waits=[3])
    add(conn, "export", 0, died=1, retried=2, ran=3, run_seconds=0.3, runs=[0, 3])
    add(conn, "mail", 30, succeeded=7, failed=1, ran=7)
    add(conn, "mail", 90, succeeded=100)
    series = queue.stats.series("1h")
    assert len(series) in (60, 61)
    assert {later.at - before.at for before, later in pairwise(series)} == {timedelta(minutes=1)}
    assert [step.ended for step in series if step.ended] == [8, 4]
    last = next(step for step in reversed(series) if step.ended)
    assert (last.succeeded, last.died, last.errors, last.ran) == (3, 1, 3, 6)
    assert last.error_rate == 0.5
    assert last.run_mean == pytest.approx(1.05)
    assert last.run_p50 == pytest.approx(0.0001 * 2 ** (0.5 / 4))
    assert last.wait_p95 == 0.0001
    assert 0 < last.seconds <= 60
    empty = series[0]
    assert (empty.ended, empty.rate, empty.error_rate, empty.wait_p50) == (0, 0.0, None, None)
    only = queue.stats.series("1h", kind="export")
    assert sum(step.ended for step in only) == 1
    assert {step.kind for step in only} == {"export"}


def test_long_spans_come_in_long_steps(conn, queue):
    for minutes in range(0, 24 * 60 * 7, 600):
        add(conn, "mail", minutes, succeeded=1)
    day, week = queue.stats.series(timedelta(days=1)), queue.stats.series("7d")
    assert day[1].at - day[0].at == timedelta(minutes=10)
    assert week[1].at - week[0].at == timedelta(hours=1)
    assert sum(step.succeeded for step in day) == 3
    last = day[-1]  # of which only a part is over
    assert last.seconds == pytest.approx((datetime.now(UTC) - last.at).total_seconds(), abs=20)
    assert sum(step.succeeded for step in week) == 17
    assert len(queue.stats.series("7d", step="2h")) in (84, 85)


def test_kinds_are_summed_up_each_by_itself(conn, queue):
    add(conn, "mail", 0, succeeded=3)
    add(conn, "mail", 5, succeeded=4)
    add(conn, "export", 5, failed=1)
    add(conn, "export", 500, failed=1)
    assert [(row.kind, row.succeeded, row.failed) for row in queue.stats.kinds("1h")] == [
        ("export", 0, 1),
        ("mail", 7, 0),
    ]


def test_the_twins_for_async_code_say_the_same(conn, queue):
    add(conn, "mail", 3, succeeded=3)
    insert(conn, "mail")
    conn.execute("insert into redrive.deploys values ('v1', now())")

    async def ask() -> tuple[list[Sum], list[Sum], int, int]:
        series, kinds = await queue.stats.series_async("1h"), await queue.stats.kinds_async("1h")
        return series, kinds, len(await queue.stats.deploys_async("1h")), len(await queue.stats.inflow_async())

    series, kinds, deploys, inflow = asyncio.run(ask())
    assert sum(step.succeeded for step in series) == kinds[0].succeeded == 3
    assert (deploys, inflow) == (1, 1)


def test_deploys_are_listed_within_the_span(conn, queue):
    conn.execute(
        "insert into redrive.deploys values ('v1', now() - interval '2 days'), ('v2', now() - interval '1 minute')"
    )
    assert [deploy.version for deploy in queue.stats.deploys("1d")] == ["v2"]
    assert [deploy.version for deploy in queue.stats.deploys("7d")] == ["v1", "v2"]


def test_what_comes_in_is_judged_by_the_last_minute_or_by_the_newest_rows(conn, queue):
    insert(conn, "mail", created_at=datetime.now(UTC) - timedelta(hours=1))
    insert(conn, "mail", created_at=datetime.now(UTC) + timedelta(hours=1))
    assert queue.stats.inflow() == []
    for _ in range(3):
        insert(conn, "mail")
    insert(conn, "export")
    assert [(row.kind, row.jobs, row.seconds) for row in queue.stats.inflow()] == [
        ("export", 1, 60.0),
        ("mail", 3, 60.0),
    ]
    conn.execute(
        "insert into redrive.jobs (kind, created_at) "
        "select 'flood', now() - interval '10 seconds' from generate_series(1, 3000)"
    )
    [flood] = queue.stats.inflow()
    assert (flood.jobs, flood.kind) == (2000, "flood")
    assert 10 <= flood.seconds < 30
    assert 60 < flood.rate <= 200


@pytest.mark.parametrize("span", ["10s", "400d", "soon", -1])
def test_a_span_that_makes_no_sense_is_refused(queue, span):
    with pytest.raises(InvalidOption, match="span"):
        queue.stats.series(span)


@pytest.mark.parametrize("step", ["30s", "90s", "0"])
def test_a_step_that_makes_no_sense_is_refused(queue, step):
    with pytest.raises(InvalidOption, match="step"):
        queue.stats.series("1d", step=step)


def test_the_views_say_what_is_there(conn):
    insert(conn, "mail", status="dead", last_error="Traceback\nValueError: bad")
    insert(conn, "mail", status="failed", last_error="discarded: old")
    insert(conn, "mail", status="failed")
    insert(conn, "mail", run_at=datetime.now(UTC) - timedelta(seconds=10))
    insert(conn, "mail", run_at=datetime.now(UTC) + timedelta(hours=1), attempts=1)
    insert(conn, "mail", status="running", locked_by="w")
    insert(conn, "mail", status="succeeded")
    dead = conn.execute("select kind, error from redrive.dead_letters order by id").fetchall()
    assert dead == [("mail", "ValueError: bad"), ("mail", "(no error text)")]
    [depth] = conn.execute("select kind, pending, due, retrying, running, oldest_due > 9 from redrive.queue_depth")
    assert depth == ("mail", 2, 1, 1, 1, True)
    conn.execute(
        "insert into redrive.workers (name, host, pid, version, kinds, concurrency, lease, heartbeat_at) values "
        "('a', 'h', 1, '0', '{mail}', 1, '30 s', now()), "
        "('b', 'h', 2, '0', '{mail}', 1, '30 s', now() - interval '1 minute')"
    )
    alive = conn.execute("select name, alive from redrive.workers_alive order by name").fetchall()
    assert alive == [("a", True), ("b", False)]


def test_depths_count_what_there_is_of_each_kind_up_to_a_bound(conn, queue):
    insert(conn, "mail", run_at=datetime.now(UTC) - timedelta(seconds=10), lane="a")
    insert(conn, "mail", run_at=datetime.now(UTC) + timedelta(hours=1), attempts=1, fingerprint="f")
    insert(conn, "mail", status="running", locked_by="w")
    for _ in range(3):
        insert(conn, "old", status="dead")
    insert(conn, "old", status="failed")
    insert(conn, "none", status="succeeded")
    insert(conn, "none", status="failed", last_error="cancelled")
    insert(conn, "runs", status="running", locked_by="w")
    found = {row.kind: row for row in queue.stats.depths()}
    assert sorted(found) == ["mail", "old", "runs"]
    mail, old = found["mail"], found["old"]
    assert (mail.pending, mail.due, mail.retrying, mail.running, mail.dead) == (2, 1, 1, 1, 0)
    assert mail.oldest_due >= 10
    assert (old.dead, old.oldest_due, old.capped(old.dead)) == (4, None, False)
    capped = {row.kind: row for row in queue.stats.depths(most=3)}["old"]
    assert (capped.dead, capped.capped(capped.dead)) == (3, True)
