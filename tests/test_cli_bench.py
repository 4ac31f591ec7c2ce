"""``redrive bench``: it measures what is in its table, in a schema of its own that is gone afterwards."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from array import array
from contextlib import suppress

import pytest
from psycopg.conninfo import make_conninfo

from redrive.bench.figures import Figure, percentile, plain, spread
from redrive.bench.loads import Load, drained, go_through, payloads
from redrive.bench.scratch import PREFIX, Place, scratch, scratch_name
from redrive.bench.slots import held_beyond, idle_while_due
from redrive.bench.subject import SubjectFailed, subject
from redrive.bench.tally import Report
from redrive.cli.bench import NAMES
from redrive.errors import InvalidOption
from shell import answer, complaint, insert, on_terminal, process, redrive
from support import wait_for

TINY = ["--jobs", "200", "--seconds", "0.5", "--rate", "100"]


def schemas(conn):
    return sorted(name for (name,) in conn.execute("select nspname from pg_namespace where nspname !~ '^pg_'"))


@pytest.fixture
def place(db):
    with scratch(db, scratch_name()) as there:
        yield there


# -- the command


def test_the_scenarios_of_the_help_are_those_there_are():
    from redrive.bench.scenarios import SCENARIOS  # noqa: PLC0415 - what the command imports, when it does

    assert tuple(SCENARIOS) == NAMES
    shown = redrive(None, "bench", "--help").stdout
    assert [name for name in NAMES if f"\n    {name} " not in shown] == []


def test_every_scenario_gives_its_figures_and_leaves_nothing(db, conn):
    insert(conn, "mail", 3)
    before = schemas(conn)
    found = answer(db, "bench", *TINY, *(name for name in NAMES if name != "slow"), "--yes")
    assert schemas(conn) == before
    assert conn.execute("select count(*) from redrive.jobs where status = 'pending'").fetchone() == (3,)
    assert (found["jobs"], found["seconds"], found["rate"], found["concurrency"]) == (200, 0.5, 100.0, None)
    figures = found["scenarios"]
    assert list(figures) == ["enqueue", "publish", "drain", "latency", "sustained", "horizon", "idle"]
    assert figures["enqueue"]["single_ms"]["count"] == 20
    assert figures["publish"]["one_ms"]["count"] == figures["publish"]["three_ms"]["count"] == 20
    assert figures["publish"]["many_per_s"] > 0
    assert figures["drain"]["jobs"] == figures["horizon"]["jobs"] == 200
    assert figures["drain"]["async_per_s"] > 0
    assert figures["drain"]["threads_per_s"] > 0
    assert figures["drain"]["cpu_us_per_job"] > 0
    assert figures["latency"]["pickup_ms"]["count"] == 20
    assert 0 < figures["sustained"]["rate_kept"] <= 102
    for figure in (figures["latency"]["pickup_ms"], figures["sustained"]["end_to_end_ms"]):
        assert 0 < figure["p50"] <= figure["p95"] <= figure["p99"] <= figure["max"]


def test_a_human_gets_a_table_with_percentiles(db):
    shown = redrive(db, "bench", "enqueue", "--jobs", 50, "--yes").stdout.splitlines()
    assert shown[0].split() == ["SCENARIO", "FIGURE", "P50", "P95", "P99", "MAX", "UNIT", "WHAT"]
    assert shown[1].startswith("enqueue ")
    assert len(shown) == 5


def test_without_a_terminal_it_wants_yes_and_says_what_it_would_do(db, conn):
    before = schemas(conn)
    said = complaint(redrive(db, "bench", "drain", code=2))
    for word in (PREFIX, "in database", "20,000 jobs", "drop the schema", "--yes"):
        assert word in said
    assert schemas(conn) == before


def test_on_a_terminal_it_asks_and_no_is_no(db, conn):
    before = schemas(conn)
    shown, code = on_terminal(db, "bench", "drain", typed="n\n")
    assert "Go on?" in shown
    assert code == 1
    assert schemas(conn) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_drops_its_schema_and_ends_its_workers(db, conn, number):
    before = schemas(conn)
    child = process(db, "bench", "sustained", "--seconds", "60", "--yes")
    seen = "select count(*) from pg_stat_activity where datname = current_database() and application_name ~ %s"
    wait_for(lambda: conn.execute(seen, ["redrive claim"]).fetchone()[0], 20)
    child.send_signal(number)
    _, said = child.communicate(timeout=20)
    assert child.returncode == 1
    assert "stopped; schema redrive_bench_" in said
    assert schemas(conn) == before
    wait_for(lambda: conn.execute(seen, ["redrive"]).fetchone()[0] == 0)


def test_a_worker_does_not_outlive_a_killed_bench_and_the_next_run_names_the_schema(db, conn):
    child = process(db, "bench", "sustained", "--seconds", "60", "--yes")
    seen = "select count(*) from pg_stat_activity where datname = current_database() and application_name ~ 'redrive'"
    wait_for(lambda: conn.execute(seen.replace("redrive'", "redrive claim'")).fetchone()[0], 20)
    child.kill()
    child.communicate()
    wait_for(lambda: conn.execute(seen).fetchone()[0] == 0)
    [left] = [name for name in schemas(conn) if name.startswith(PREFIX)]
    said = redrive(db, "bench", "enqueue", "--jobs", 10, "--yes").stderr
    assert f'DROP SCHEMA "{left}" CASCADE' in said
    assert left in schemas(conn)


def test_a_role_that_may_make_no_schema_is_told_so(db, conn):
    role = f"poor_{os.urandom(4).hex()}"
    conn.execute(f"create role {role} login password 'poor'")
    try:
        said = complaint(redrive(make_conninfo(db, user=role, password="poor"), "bench", "--yes", code=1))
    finally:
        conn.execute(f"drop role {role}")
    assert f'role "{role}" may not create a schema' in said
    assert "GRANT CREATE ON DATABASE" in said


@pytest.mark.parametrize("words", [["nonsense"], ["--jobs", "0"], ["--seconds", "0"], ["--seconds", "soon"]])
def test_what_makes_no_sense_is_refused(db, words):
    redrive(db, "bench", "--yes", *words, code=2)


def test_completion_completes_scenarios():
    env = {**os.environ, "_REDRIVE_COMPLETE": "bash_complete", "COMP_WORDS": "redrive bench la", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "redrive"], env=env, capture_output=True, text=True, check=False, timeout=30
    )
    assert done.stdout.split() == ["plain,latency"]


# -- the place


def test_only_a_scratch_schema_is_ever_dropped(db, conn):
    with pytest.raises(InvalidOption, match="would be dropped"), scratch(db, "redrive"):
        pass
    assert "redrive" in schemas(conn)


def test_the_schema_is_dropped_when_a_measurement_fails(db, conn):
    before = schemas(conn)
    with suppress(ZeroDivisionError), scratch(db, scratch_name()):
        there = schemas(conn)
        raise ZeroDivisionError
    assert len(there) == len(before) + 1
    assert schemas(conn) == before


# -- the worker under measure


def test_what_a_worker_reports_is_what_is_in_the_table(place, monkeypatch):
    """Whatever the operator's own workers are told by the environment."""
    for name, value in {"REDRIVE_KINDS": "mail", "REDRIVE_ONCE": "1", "REDRIVE_PROCESSES": "2"}.items():
        monkeypatch.setenv(name, value)
    with subject(place, 20) as worker:
        first = go_through(place, worker, "bench_async", 300)
        second = go_through(place, worker, "bench_thread", 100)
        said = worker.statements
        report = worker.stop()
    assert (first.jobs, second.jobs) == (300, 100)
    assert sum(report.claim_rows) == 400
    assert len(report.claim_at) <= said
    assert report.cpu > 0
    assert all(took > 0 for took in report.claim_took)


def test_a_job_that_did_not_succeed_spoils_the_figure(place):
    place.queue.enqueue_many("bench_async", payloads(3))
    with pytest.raises(SubjectFailed, match="3 of 3 jobs have not succeeded"):
        drained(place, after=0, began=0.0)


def test_a_worker_that_ends_is_no_figure_but_an_error_with_its_last_words(db):
    with pytest.raises(SubjectFailed, match=r"code 4 .*redrive migrate"), subject(Place(db, "nowhere")):
        pass


# -- arithmetic


def test_percentiles_are_values_that_were_measured():
    ordered = [1.0, 2.0, 3.0, 4.0]
    assert [percentile(ordered, share) for share in (0.5, 0.95, 0.25, 1.0)] == [2.0, 4.0, 1.0, 4.0]
    assert spread([]) is None
    found = spread([0.003, 0.001, 0.002])
    assert found is not None
    assert (found.count, found.p50, found.max) == (3, 2.0, 3.0)
    figures = [Figure("spread", "", found), Figure("nothing", "", math.nan), Figure("unknown", "", None)]
    assert plain(figures) == {"spread": vars(found), "nothing": None, "unknown": None}


def test_slots_are_idle_only_while_a_job_waits():
    """Two slots, three jobs due at 0; the second begins at 1 only, the third at 2 when the first ends."""
    assert idle_while_due([0.0, 1.0, 2.0], [2.0, 3.0, 3.0], slots=2, due_from=0.0) == 1.0
    assert idle_while_due([0.0, 0.0, 2.0], [2.0, 2.0, 3.0], slots=2, due_from=0.0) == 0.0


def test_what_a_worker_holds_is_what_it_claimed_and_has_not_ended():
    report = Report(claim_at=array("d", [0, 1]), claim_took=array("d", [0, 0]), claim_rows=array("d", [2, 3]))
    report.ended = array("d", [0.5, 2, 2, 2, 2])
    assert held_beyond(report, slots=1) == 3
    assert held_beyond(report, slots=5) == 0
    report.given_back = array("d", [0.75])
    assert held_beyond(report, slots=1) == 2


def test_the_default_load_is_small_enough_for_anybodys_database():
    assert Load().jobs <= 50_000
