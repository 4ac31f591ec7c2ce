"""``redrive capacity``: what it reads of a database, the walls it works out, the step it names; and docs/scale.md."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import support
from benchmarks.scale import TUNED
from benchmarks.scale_page import PAGE, settled, written
from engine import Inside
from pages import ROOT
from redrive import Queue
from redrive.capacity import costs
from redrive.capacity.costs import ASSUMED, BENCH, GIVEN, HERE, UNMEASURED, Cost
from redrive.capacity.facts import Facts, read
from redrive.capacity.steps import STEPS, ladder, next_step, way
from redrive.capacity.walls import holds, setup, walls
from redrive.dev_server import DevServer
from redrive.diagnosis import Patient
from redrive.migrate import migrate
from shell import NOBODY, answer, beat, complaint, redrive
from support import wait_for

RESULTS = json.loads((ROOT / "benchmarks" / "results.json").read_text())
BUSY = Facts(
    version="18.6",
    jobs_a_day=8_640_000,
    mean_rate=100.0,
    peak_rate=400.0,
    kinds={"mail": 0.9},
    run_mean=0.1,
    processes=2,
    hosts=1,
    slots=100,
    connections=28,
    connections_of_workers=8,
    connections_most=97,
    server_us=100.0,
    wal=1_000.0,
    rows=60_000_000,
    row_bytes=500.0,
    payload=100.0,
    keep=7 * 86_400.0,
)


def at(facts: Facts, rate: float = 1000.0, **given: Any) -> dict[str, float | None]:
    return {wall.name: wall.holds for wall in walls(setup(facts, **given), rate)}


class TestWalls:
    def test_each_is_plain_arithmetic_on_what_was_measured(self):
        found = at(BUSY, all_day=True, cores=8, disk=100)
        assert found["slots"] == pytest.approx(0.8 * 100 / 0.1)
        assert found["connections"] == pytest.approx(0.8 * 50 * (77 // 4) / 0.1)  # 20 are others'
        assert found["database's time"] == pytest.approx(0.5 * 8 * 1e6 / 100)
        assert found["WAL"] == pytest.approx(50e6 / 1000)
        assert found["disk"] == pytest.approx(100e9 / (7 * 86_400 * 500))

    def test_rows_gather_by_the_mean_unless_a_rate_is_for_all_day(self):
        assert at(BUSY)["disk"] == pytest.approx(4 * (at(BUSY, all_day=True)["disk"] or 0))
        idle = replace(BUSY, mean_rate=0.001)
        assert at(idle)["disk"] == pytest.approx(10 * (at(idle, all_day=True)["disk"] or 0)), (
            "but never by next to none"
        )

    def test_what_is_given_goes_before_what_is_measured_and_that_before_what_was_measured_elsewhere(self):
        here, given = setup(BUSY), setup(BUSY, payload=8000, run=2.0)
        nothing = setup(Facts(version="", jobs_a_day=0, mean_rate=0, peak_rate=0))
        assert [each.server_us.source for each in (here, given, nothing)] == [HERE, BENCH, BENCH]
        assert [each.run.source for each in (here, given, nothing)] == [HERE, GIVEN, ASSUMED]
        assert (given.wal.value or 0) > (here.wal.value or 0)

    def test_payloads_between_those_measured_lie_on_a_line(self):
        first, middle = (costs.WAL[place].value or 0 for place in (0, 1))
        halfway = (costs.SIZES[0] + costs.SIZES[1]) / 2
        assert costs.at(costs.WAL, halfway) == pytest.approx((first + middle) / 2)
        assert costs.at(costs.WAL, 1) == first
        assert costs.at(costs.WAL, 16_000) > costs.at(costs.WAL, 8_000)


class TestSteps:
    def test_none_is_due_where_the_rate_is_held(self):
        assert way(setup(BUSY, all_day=False), 100) == []

    def test_the_next_moves_the_nearest_wall_and_says_what_it_buys(self):
        now = setup(replace(BUSY, slots=10, processes=1), all_day=True)
        assert holds(now, 1000).name == "slots"
        found = next_step(now, 1000)
        assert found is not None
        assert found.step is STEPS[0]
        assert found.holds == holds(found.setup, 1000).holds

    def test_a_full_disk_asks_for_short_retention(self):
        found = next_step(setup(BUSY, all_day=True), 1000)
        assert found is not None
        assert found.step is not None
        assert (found.step.name, found.wall.name) == ("short retention", "slots")

    def test_the_way_to_a_rate_ends_where_a_figure_is_missing_and_none_is_made_up(self, monkeypatch):
        for name in ("BROKER", "BROKER_WAL"):
            monkeypatch.setattr(costs, name, Cost("a share", None, ""))
        path = way(setup(BUSY, all_day=True), 1_000_000)
        assert path[-1].step is not None
        assert path[-1].step.name == "broker"
        assert (path[-1].holds, path[-1].wall.source) == (None, UNMEASURED)
        by_name = {each.step.name: each.holds for each in ladder(setup(BUSY), 1_000_000) if each.step}
        assert by_name["several databases"] is not None, "what is not known of one step does not hide the next"

    def test_a_figure_of_the_broker_s_once_there_is_one_is_used_as_any_other(self, monkeypatch):
        for name in ("BROKER", "BROKER_WAL"):
            monkeypatch.setattr(costs, name, Cost("a share", 0.5, "", "a_key"))
        before, after = setup(BUSY), STEPS[3].apply(setup(BUSY), 1000)
        assert holds(after, 1000).holds == pytest.approx(2 * (at(BUSY)["database's time"] or 0))
        assert (after.server_us.source, before.server_us.source) == (BENCH, HERE)

    def test_the_table_takes_the_steps_in_the_order_of_the_way(self):
        """It said retention before hosts, and the way hosts before retention, each with other figures."""
        now = setup(
            replace(BUSY, slots=10, processes=1, keep=86_400.0, mean_rate=1.0), all_day=True, run=0.02, disk=200
        )
        path = way(now, 8000)
        names = [each.step.name for each in path if each.step]
        assert names == ["settings", "worker hosts", "short retention"]
        found = ladder(now, 8000)
        assert [(each.step, each.holds) for each in found[1:4]] == [(each.step, each.holds) for each in path]
        assert {each.step for each in found[1:]} == set(STEPS)

    def test_no_step_is_taken_twice(self):
        """A broker that was taken seven times over was to hold a million jobs a second."""
        for rate in (20_000, 1_000_000):
            names = [each.step.name for each in way(setup(BUSY, all_day=True), rate) if each.step]
            assert len(set(names)) == len(names)
            assert names[-1] == "several databases"

    def test_a_step_that_moves_the_nearest_wall_counts_though_another_stands_as_near(self):
        few, taken = replace(BUSY, slots=10, processes=1), {"all_day": True, "run": 0.024, "disk": 100}
        now = setup(few, **taken)
        disk, slots = (at(few, **taken)[wall] or 0 for wall in ("disk", "slots"))
        assert disk < slots < 1.05 * disk
        found = next_step(now, 0.1)
        assert found is not None
        assert found.step is not None
        assert (found.step.name, found.wall.name) == ("short retention", "slots")

    def test_without_a_worker_it_is_workers_that_are_next(self):
        found = next_step(setup(replace(BUSY, slots=0, processes=0)), 10)
        assert found is not None
        assert found.step is not None
        assert found.step.name == "worker hosts"


class TestReading:
    def test_rates_slots_connections_and_sizes_are_of_this_database(self, db, conn):
        beat(conn, concurrency=25)
        beat(conn, "relay:1:abcdef", kinds=[])  # it has no slots
        with psycopg.connect(db) as other:  # at its end it has told what it did, which would be counted beside ANALYZE
            other.execute(
                """insert into redrive.jobs (kind, status, payload)
                select 'mail', 'succeeded', '{"to": "user@example.com"}' from generate_series(1, 12000)"""
            )
        conn.execute(
            "insert into redrive.stats (minute, kind, worker, succeeded, ran, run_seconds) "
            "values (date_trunc('minute', now()) - interval '5 minutes', 'mail', 'a', 6000, 6000, 300)"
        )
        conn.execute("analyze redrive.jobs")
        found = answer(db, "capacity", "--rate", "2000")
        measured = found["measured"]
        assert (measured["slots"], measured["processes"], measured["peak_rate"]) == (25, 1, 100.0)
        assert measured["run_mean"] == pytest.approx(0.05)
        assert measured["payload"] == len('{"to": "user@example.com"}')
        assert 200 < measured["row_bytes"] < 1000
        assert measured["kinds"] == {"mail": 1.0}
        assert found["figures"]["run"] == {"value": pytest.approx(0.05), "source": HERE}
        assert found["next"]["wall"] in {wall["name"] for wall in found["walls"]}

    def test_what_a_job_costs_is_of_pg_stat_statements_where_that_is(self):
        """Real jobs by a real worker, on a server that has the extension."""
        directory = support.clusters() / "redrive-statements"
        settings = {"shared_preload_libraries": "pg_stat_statements"}
        server = DevServer(directory, keep=False, settings=settings)
        with server, psycopg.connect(server.url, autocommit=True) as conn:
            conn.execute("create extension pg_stat_statements")
            migrate(server.url)
            queue = Queue(server.url)
            queue.handler("mail")(lambda _payload: None)
            queue.enqueue_many("mail", ({"n": n} for n in range(3000)))
            with Inside(queue):
                done = "select count(*) from redrive.jobs where status = 'succeeded'"
                wait_for(lambda: conn.execute(done).fetchone() == (3000,))
            conn.read_only = True
            found = read(Patient(queue, conn))
            queue.close()
        assert found.statements == ""
        assert found.jobs_a_day == 3000
        assert 1 < (found.server_us or 0) < 10_000
        assert 200 < (found.wal or 0) < 100_000
        assert setup(found).server_us.source == HERE

    def test_it_changes_nothing(self, db):
        """On a session that could not; nor does it need anything that an empty installation has not."""
        shown = redrive(make_conninfo(db, options="-c default_transaction_read_only=on"), "capacity").stdout
        assert "no job ran within a day; wished: 100 jobs/s (assumed)" in shown
        assert "next:   worker hosts" in shown


class TestCommand:
    def test_it_says_why_the_server_s_part_is_not_measured_here(self, db):
        assert "pg_stat_statements is not installed" in redrive(db, "capacity").stderr

    @pytest.mark.parametrize(
        "words",
        [
            ("--rate", "0"),
            ("--rate", "nan"),
            ("--rate", "inf"),
            ("--rate", "soon"),
            ("--run", "0"),
            ("--run", "soon"),
            ("--payload", "-1"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, db, words):
        assert words[0] in complaint(redrive(db, "capacity", *words, code=2))

    @pytest.mark.parametrize(("given", "a_second"), [("200", 200.0), ("200/s", 200.0), ("30/m", 0.5)])
    def test_a_rate_is_said_as_to_limit_or_in_jobs_a_second(self, db, given, a_second):
        assert answer(db, "capacity", "--rate", given)["wished"] == {"rate": a_second, "source": "given"}

    def test_one_of_a_thing_is_said_in_the_singular(self, db, conn):
        beat(conn, concurrency=1)
        shown = redrive(db, "capacity", "--rate", "1", "--run", "0.5").stdout
        assert re.findall(r"\b1 (?:slots|rows|connections|processes)\b", shown) == []
        assert "1 slot " in shown

    def test_without_tables_or_a_database_it_says_so(self, empty_db):
        assert "redrive migrate" in complaint(redrive(empty_db, "capacity", code=4))
        assert "can't be reached" in complaint(redrive(NOBODY, "capacity", code=3))

    def test_a_kind_that_a_stranger_named_moves_no_cursor(self, db, conn):
        conn.execute(
            "insert into redrive.stats (minute, kind, worker, succeeded, ran) "
            "values (date_trunc('minute', now()) - interval '5 minutes', E'evil\\x1b[2J', 'a', 60, 60)"
        )
        beat(conn, concurrency=100_000)
        shown = redrive(db, "capacity", "--rate", "1e6", "--disk", "1e9").stdout
        assert "\x1b" not in shown
        assert "next:   broker" in shown
        assert "evil" in shown


class TestFigures:
    def test_they_are_those_of_make_bench_within_reason(self):
        """They are set by hand after a run: what another run says may differ, by a machine's mood and no more."""
        for cost in costs.MEASURED:
            measured = RESULTS[cost.key]
            assert 1 / 1.5 < (cost.value or 0) / measured < 1.5, (
                f"{cost.key}: {cost.value} in costs.py, {measured} measured"
            )

    def test_a_run_s_figures_are_brought_to_the_code(self):
        text = (ROOT / "src" / "redrive" / "capacity" / "costs.py").read_text()
        assert settled(text, {}) == text
        changed = settled(text, {cost.key: 1234.56 for cost in costs.MEASURED})
        assert changed.count("1_230.0") == len(costs.MEASURED)

    def test_none_is_made_up(self):
        for cost in (*costs.BROKERS, *costs.TAKEN):
            assert not cost.key or cost.key in RESULTS
        assert all(cost.key for cost in costs.MEASURED)

    def test_the_page_has_them(self):
        text = PAGE.read_text()
        assert written(text, RESULTS) == text, "make bench-page writes them"

    def test_the_page_has_the_settings_that_were_measured(self):
        found = dict(re.findall(r"^ *(\w+) = (\w+)", PAGE.read_text(), re.MULTILINE))
        assert found == TUNED

    def test_the_page_has_a_part_for_each_step(self):
        titles = {title.lower() for title in re.findall(r"^### (.+)$", PAGE.read_text(), re.MULTILINE)}
        assert {"kinds on a broker" if step.name == "broker" else step.name for step in STEPS} <= titles
