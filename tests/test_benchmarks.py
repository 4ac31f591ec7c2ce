"""``make bench``: what it compares, what it reads from the server's log, and what it writes."""

from __future__ import annotations

import json
import os

import psycopg
import pytest

import support
from benchmarks import floor
from benchmarks.__main__ import FRAME, PAGE, RESULTS, measure_only, paged, rounded
from benchmarks.bars import BARS, lines, page
from benchmarks.measurements import Sizes, crowded, drain, enqueue, horizon
from benchmarks.roads import roads
from benchmarks.scale import life
from benchmarks.stage import LOG as LOGGING
from benchmarks.stage import Stage, claims_of, staged
from redrive.bench.scenarios import WARM_UP
from redrive.bench.scratch import Place
from redrive.capacity.costs import SIZES
from redrive.dev_server import DevServer

PROMISED = {
    "drain_async_vs_floor",
    "drain_threads_vs_async",
    "pickup_ms_p50",
    "pickup_ms_p99",
    "horizon_claim_growth",
    "horizon_drain_ratio",
    "future_rows_claim_growth",
    "finished_rows_claim_growth",
    "transactions_per_1000_jobs",
    "worker_growth_mb",
}
TINY = Sizes(
    runs=1,
    enqueue=20,
    drain=60,
    rounds=2,
    round=30,
    ends=1,
    beside_fresh=1,
    control=False,
    future=50,
    finished=50,
    beside=30,
)
LOG = """\
1764439200.123 [41] redrive claim box:7:abcdef: LOG:  duration: 1.000 ms  parse _pg3_0: WITH due AS MATERIALIZED (
\t    SELECT j.id
\t    FROM unnest($1::text[]) l
\t        FOR UPDATE SKIP LOCKED
1764439200.124 [41] redrive claim box:7:abcdef: LOG:  duration: 0.500 ms  bind _pg3_0: WITH due AS MATERIALIZED (
\t    FROM unnest($1::text[]) l
\t        FOR UPDATE SKIP LOCKED
1764439200.125 [43] redrive outcome box:7:abcdef: LOG:  duration: 9.000 ms  execute _pg3_0: WITH held
\t FROM unnest
1764439200.126 [41] redrive claim box:7:abcdef: LOG:  duration: 2.500 ms  execute _pg3_0: WITH due AS MATERIALIZED (
\t    FROM unnest($1::text[]) l
\t        FOR UPDATE SKIP LOCKED
1764439200.127 [41] redrive claim box:7:abcdef: LOG:  duration: 7.000 ms  execute _pg3_1: WITH RECURSIVE found
1764439200.128 [41] redrive claim box:7:abcdef: LOG:  duration: 7.000 ms  execute _pg3_2: WITH due AS MATERIALIZED (
\t    SELECT id FROM jobs WHERE alone
\t    FOR UPDATE SKIP LOCKED
1764439200.129 [44] redrive claim box:77:abcdef: LOG:  duration: 8.000 ms  execute _pg3_0: WITH due
\t    FROM unnest($1::text[]) l FOR UPDATE SKIP LOCKED
1764439200.130 [41] redrive claim box:7:abcdef: LOG:  duration: 3.000 ms  execute _pg3_0: WITH due AS MATERIALIZED (
\t    FROM unnest($1::text[]) l
\t        FOR UPDATE SKIP LOCKED
"""


def test_two_servers_at_once_are_refused(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://nowhere.invalid/x")
    monkeypatch.setenv("BENCH_PG", "15")
    with pytest.raises(SystemExit, match="give one of them"):
        staged()


@pytest.mark.parametrize(("major", "said"), [("3", "no PostgreSQL 3 here"), ("fifteen", "give a major")])
def test_a_postgres_that_is_not_here_is_refused_in_a_line(monkeypatch, major, said):
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setenv("BENCH_PG", major)
    with pytest.raises(SystemExit, match=said):
        staged()


def test_a_claim_takes_what_the_log_says_of_its_parts_and_others_are_left_out(tmp_path):
    (tmp_path / "log").write_text("older\n" + LOG)
    assert claims_of(tmp_path / "log", 7, len("older\n")) == pytest.approx([0.004, 0.003])


def test_what_is_promised_has_a_bar():
    assert PROMISED - {bar.key for bar in BARS if bar.text} == set()


def test_a_figure_stands_beside_its_bar_and_is_judged():
    told = {line[0]: line[1:] for line in lines({"drain_async_vs_floor": 0.79, "pickup_ms_p50": 2.5})}
    assert told["drain, async handlers, by the bare-SQL floor"] == ("0.79", "at least 0.8", "NOT MET")
    assert told["INSERT to handler, idle worker, p50"] == ("2.5 ms", "at most 3", "met")
    assert told["WAL, drain"] == ("not known here", "at most 650", "")


@pytest.mark.parametrize("quick", [True, False])
def test_the_page_shows_the_results_and_says_when_they_were_quick(quick):
    results = {"quick": quick, "server": "S", "machine": "M", "python": "P", "date": "D", "wal_bytes_per_job": 600}
    shown = paged(PAGE.read_text(), results)
    assert "| WAL, drain | 600 bytes/job | at most 650 | met |" in shown
    assert ("no figures to quote" in shown) == quick
    assert page(results) in shown
    assert paged(shown, results) == shown
    assert shown.split(FRAME[0])[0] == PAGE.read_text().split(FRAME[0])[0]
    assert shown.split(FRAME[1])[1] == PAGE.read_text().split(FRAME[1])[1]


def test_the_figures_of_an_older_postgres_stand_in_a_column_of_their_own():
    known = {"quick": False, "machine": "M", "python": "P", "date": "D"}
    newest = known | {"server": "PostgreSQL 18", "wal_bytes_per_job": 600, "pickup_ms_p50": 2}
    shown = page(newest, known | {"server": "PostgreSQL 15", "wal_bytes_per_job": 640}).splitlines()
    assert "PostgreSQL 18, M" in shown[0]
    assert "PostgreSQL 15, M" in shown[0]
    assert shown[2:4] == ["| what | measured | on PostgreSQL 15 | must be | |", "|---|---|---|---|---|"]
    assert "| WAL, drain | 600 bytes/job | 640 bytes/job | at most 650 | met |" in shown
    assert "| INSERT to handler, idle worker, p50 | 2 ms | | at most 3 | met |" in shown


def test_figures_keep_what_means_something():
    assert rounded({"a": [1.23456, 7], "b": None}) == {"a": [1.235, 7], "b": None}


def test_the_floor_does_all_jobs_by_the_engine_s_own_statements(db, conn):
    done = floor.drain(Place(db, "redrive"), 1_100)
    assert done.drained.jobs == 1_100
    assert done.cpu > 0
    assert done.rate > 0
    rows = conn.execute("select status, attempts, claims, locked_by, count(*) from redrive.jobs group by 1, 2, 3, 4")
    assert rows.fetchall() == [("succeeded", 1, 1, floor.WORKER, 1_100)]


def test_the_floor_of_a_pick_up_claims_each_job_by_the_engine_s_own_statement(db, conn):
    waited = floor.pickups(Place(db, "redrive"), 3)
    assert len(waited) == 3
    assert min(waited) > 0
    rows = conn.execute("select status, claims, locked_by, count(*) from redrive.jobs group by 1, 2, 3")
    assert rows.fetchall() == [("running", 1, floor.WORKER, 3 + WARM_UP)]


def test_a_tiny_run_gives_the_figures():
    server = DevServer(support.clusters() / f"redrive-bench-{os.urandom(4).hex()}", keep=False, settings=LOGGING)
    found = {}
    with Stage(server) as stage:
        for measurement in (drain, horizon, crowded):
            found |= measurement(stage, TINY)
        lived = life(stage, SIZES[0], 60)
    assert lived.row > 100
    assert min(lived.enqueue.wal, lived.run.wal, lived.prune.wal) > 0
    apart = {"pickup_ms_p50", "pickup_ms_p99"}  # of a scenario that `redrive bench` has, too
    assert PROMISED - apart - set(found) == set()
    assert [key for key in PROMISED - apart if not isinstance(found[key], float)] == []
    assert found["horizon_jobs"] == 60
    assert len(found["drain_runs"]["floor"]) == 1


def test_a_part_is_measured_by_itself_and_the_other_figures_stay(server_url, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", server_url)
    before = json.loads(RESULTS.read_text())
    found = measure_only(["enqueue"], TINY, before)
    changed = {name for name in found if found[name] != before.get(name)}
    assert changed == {"apart", "enqueue_single_per_s", "enqueue_copy_per_s", "enqueue_keyed_per_s"}
    assert "`enqueue` by itself: PostgreSQL " in page(found)
    with pytest.raises(SystemExit, match="no measurement 'road': give one of enqueue, "):
        measure_only(["road"], TINY, before)


def test_on_a_server_that_is_there_no_database_is_left(server_url):
    with Stage(url=server_url) as stage:
        assert enqueue(stage, TINY)["enqueue_copy_per_s"] > 0
        found = roads(stage, TINY)
        assert set(found) == {bar.key for bar in BARS if bar.key.startswith("road_")}
        assert min(found.values()) > 0
        assert stage.log is None
        assert stage.other_cores() is None
        ours = stage.databases
    with psycopg.connect(server_url) as conn:
        left = conn.execute("select datname from pg_database where datname = any(%s)", [ours]).fetchall()
    assert (len(ours), left) == (1, [])
