"""The comparison with other systems: what its report says of results, and that our own adapter does its work."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from benchmarks.peers import catalog, child, environments, machine, report, rounds, scenarios
from benchmarks.peers.bench import Bench, NotApplicable, Scale
from benchmarks.peers.ratios import ratio
from benchmarks.peers.results import Results, medians
from benchmarks.peers.stage import Ready

PEERS = Path(child.__file__).parent
HEAD = {
    "server_version": "18.6",
    "server_settings": {"fsync": "on"},
    "cores": 2,
    "processor": "a processor",
    "kernel": "6.1",
    "sync_ms": 0.25,
    "date": "2026-11-29",
    "foreign_cpu_cores": None,
    "scale": Scale().told(),
}


def told(**versions):
    return {"versions": versions, "settings": f"as {next(iter(versions))} says", "keeps": "the row"}


SYSTEMS = {
    "redrive": told(redrive="0.1.0"),
    "graphile-500": told(graphile="0.17.3"),
    "pgqueuer": told(pgqueuer="1.6.0"),
    "oban": {"not_run": "it needs Python 3.12 or newer, and there is none here"},
}


def drain(per_s, cores=0.01):
    return {"per_s": per_s, "jobs": 1000, "wal_bytes_per_job": 600.0, "foreign_cpu_cores": cores, "noisy": cores > 0.25}


@pytest.fixture
def results(tmp_path):
    made = Results(tmp_path / "peers.json", HEAD, SYSTEMS)
    for ours, node, python in ((40_000, 20_000, 10_000), (60_000, 25_000, 11_000), (50_000, 30_000, 12_000)):
        made.add("drain_async", "redrive", drain(ours))
        made.add("drain_async", "graphile-500", drain(node))
        made.add("drain_async", "pgqueuer", drain(python, cores=0.4))
    return made


def row(text, name, column=1):
    """The cells of the first line of a table that begins with *name*."""
    [line, *_] = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return line.strip("| ").split(" | ")[column:]


def written(results):
    return report.write(results.path.parent).read_text()


def test_a_figure_is_the_median_of_its_runs_and_the_report_shows_their_span(results):
    entry = json.loads(results.path.read_text())["scenarios"]["drain_async"]["systems"]["redrive"]
    assert entry["figure"] == 50_000
    assert [run["per_s"] for run in entry["runs"]] == [40_000, 60_000, 50_000]
    assert "50,000 (40,000 to 60,000)" in row(written(results), "redrive")


def test_ratios_are_those_of_medians_with_the_rounds_beside_them(results):
    found = ratio(results.content, "drain_async", "per_s", lambda name: name.startswith("graphile"))
    assert found == {
        "ours": 50_000,
        "best": "graphile-500",
        "theirs": 25_000,
        "ratio": 2.0,
        "rounds": pytest.approx([2.0, 2.4, 50 / 30]),
    }
    text = written(results)
    assert row(text, "drain, async: to Graphile Worker's best")[1:4] == [
        "25,000 (graphile-500)",
        "**2.00**",
        "1.67 to 2.40",
    ]
    assert row(text, "drain, async: to the fastest Python peer")[1:3] == ["11,000 (pgqueuer)", "**4.55**"]


def test_where_less_is_better_the_best_peer_is_the_one_with_least(results):
    found = ratio(results.content, "drain_async", "wal_bytes_per_job", lambda _: True)
    assert found["ratio"] == 1.0
    results.add("latency", "redrive", {"p50_ms": 2.0})
    results.add("latency", "pgqueuer", {"p50_ms": 4.0})
    results.add("latency", "graphile-500", {"p50_ms": 8.0})
    assert ratio(results.content, "latency", "p50_ms", lambda _: True)["best"] == "pgqueuer"


def test_what_was_not_measured_on_both_sides_has_no_ratio(results):
    results.give_up("enqueue_bulk", "redrive", "Failed: it ended with 1")
    results.add("enqueue_bulk", "pgqueuer", {"per_s": 40_000})
    assert ratio(results.content, "enqueue_bulk", "per_s", lambda _: True) is None
    assert "enqueue, bulk: to the fastest peer" not in written(results)


def test_a_missing_peer_and_a_failed_scenario_are_reported_with_the_reason(results):
    results.give_up("drain_sync", "pgqueuer", "Failed: no answer within 60 s")
    text = written(results)
    assert "- oban: not run: it needs Python 3.12 or newer, and there is none here" in text
    assert "- pgqueuer, drain_sync: not run: Failed: no answer within 60 s" in text
    assert row(text, "pgqueuer")[-1] == "not run"


def test_a_run_that_failed_after_others_leaves_theirs(results):
    results.give_up("drain_async", "pgqueuer", "Failed: it ended with 1")
    text = written(results)
    assert "- pgqueuer, drain_async: 3 runs, and one that failed: Failed: it ended with 1" in text
    assert "11,000 (10,000 to 12,000)" in row(text, "pgqueuer")


def test_the_report_says_how_noisy_it_was_and_what_each_system_is(results):
    text = written(results)
    assert "Others used 0.14 cores on average and 0.40 at most" in text
    assert "3 of 9 runs are marked noisy" in text
    assert "**pgqueuer** (pgqueuer 1.6.0). as pgqueuer says. Of a finished job it keeps the row." in text
    assert "not to be quoted" not in text


def test_the_report_takes_in_what_our_own_benchmark_left(results):
    own = {"quick": False, "server": "PostgreSQL 18.6", "machine": "2 cores", "python": "3.11", "date": "2026-11-29"}
    (results.path.parent / "results.json").write_text(json.dumps(own | {"drain_async_vs_floor": 0.91}))
    text = written(results)
    assert "## redrive alone" in text
    assert row(text, "drain, async handlers, by the bare-SQL floor") == ["0.91", "at least 0.8", "met"]


def test_medians_pass_over_what_is_no_number_or_is_missing():
    runs = [{"a": 1, "kept": False, "p": None}, {"a": 3, "kept": True, "p": 2.0}, {"a": 2.5, "kept": True, "p": 4.0}]
    assert medians(runs) == {"a": 2.5, "kept": True, "p": 3.0}


# -- split runs


def test_a_merge_keeps_earlier_runs_but_not_those_of_another_version(results):
    systems = SYSTEMS | {"pgqueuer": told(pgqueuer="1.7.0")}
    again = Results(results.path, HEAD, systems)
    assert again.merge() == ["pgqueuer"]
    assert len(again.runs("drain_async", "redrive")) == 3
    assert again.runs("drain_async", "pgqueuer") == []


def test_a_merge_does_not_forget_what_a_system_was_that_cannot_be_had_today(results):
    again = Results(
        results.path, HEAD, {"saq": told(saq="1.0"), "redrive": SYSTEMS["redrive"], "pgqueuer": {"not_run": "no"}}
    )
    again.merge()
    assert again.content["systems"]["pgqueuer"] == SYSTEMS["pgqueuer"]
    assert list(again.content["systems"]) == ["redrive", "graphile-500", "pgqueuer", "oban", "saq"]
    assert len(again.runs("drain_async", "pgqueuer")) == 3


def test_a_merge_with_another_server_is_refused(results):
    again = Results(results.path, HEAD | {"server_version": "15.18"}, SYSTEMS)
    with pytest.raises(ValueError, match=r"its server_version is '18.6', and this run's is '15.18'"):
        again.merge()


def a_ready(name, **info):
    [system] = [system for system in catalog.SYSTEMS if system.name == name]
    return Ready(system, [], {"versions": {}, **info})


def test_a_split_run_measures_what_is_missing_and_a_new_one_begins_each_round(results):
    systems = [a_ready("redrive"), a_ready("pgqueuer"), a_ready("awa")]
    plan = rounds.Rounds(Bench(None, results.path, Scale()), results, rounds.Patience()).plan(
        scenarios.chosen("drain_async"), systems, 4, 1
    )
    names = [(each.ready.system.name, each.number) for each in plan]
    assert names == [("awa", 1), ("awa", 2), ("awa", 3), ("redrive", 4), ("pgqueuer", 4), ("awa", 4)]


def test_one_system_that_fails_does_not_end_the_run(results, monkeypatch):
    def measure(_, ready):
        if ready.system.name == "pgqueuer":
            raise child.Failed("it ended with 1")
        return {"p50_ms": 3.0}

    scenario = scenarios.Scenario("latency", "", measure, "p50_ms", "ms", 1.0)
    said = []
    bench = Bench(type("Server", (), {"pid": 1})(), results.path, Scale())
    run = rounds.Rounds(bench, results, rounds.Patience(wait=0, retries=0), said.append)
    run.run(run.plan([scenario], [a_ready("pgqueuer"), a_ready("redrive")], 2, 1))
    shelf = results.content["scenarios"]["latency"]["systems"]
    assert shelf["pgqueuer"] == {"not_run": "it ended with 1"}
    assert [run["p50_ms"] for run in shelf["redrive"]["runs"]] == [3.0, 3.0]
    assert any("FAILED" in line for line in said)


# -- what is chosen


def test_names_choose_peers_with_all_their_forms_and_groups_of_scenarios():
    assert {system.name for system in catalog.chosen("graphile,saq")} >= {"graphile-500", "graphile-off", "saq"}
    assert [each.name for each in catalog.chosen("graphile-1000")] == ["graphile-1000"]
    assert [each.name for each in scenarios.chosen("horizon")] == ["horizon", "horizon_control"]
    with pytest.raises(ValueError, match="no peer 'celery'"):
        catalog.chosen("celery")
    with pytest.raises(ValueError, match="no scenario 'speed'"):
        scenarios.chosen("speed")


def test_a_scenario_that_a_system_has_nothing_for_says_why(results):
    ready = a_ready("oban", no_sync="there is no thread")
    with pytest.raises(NotApplicable, match="there is no thread"):
        scenarios.SCENARIOS["drain_sync"].run(Bench(None, results.path, Scale()), ready)


def test_every_version_is_pinned_and_every_system_has_an_adapter():
    for system in catalog.SYSTEMS:
        for wanted in system.environment.requires:
            assert "==" in wanted or "@" in wanted or wanted.startswith("--editable="), wanted
        assert list((PEERS / "adapters").glob(f"{system.adapter.removesuffix('.mjs')}.*")), system
        assert set(system.only) <= set(scenarios.SCENARIOS)


def test_an_environment_that_cannot_be_had_is_a_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(environments.Unavailable, match=r"needs Python 3\.99"):
        environments.program(catalog.Environment("future", (), python=(3, 99)))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(environments.Unavailable, match="node is not installed"):
        environments.program(catalog.GRAPHILE)


# -- processes


def test_percentiles_lie_between_the_values():
    assert machine.percentile([], 50) is None
    assert machine.percentile([4.0, 1.0], 50) == 2.5
    assert machine.percentile([1.0, 2.0, 3.0], 100) == 3.0


@pytest.mark.skipif(not machine.PROC.exists(), reason="reads /proc, which is Linux")
def test_a_process_and_its_descendants_are_found():
    command = [sys.executable, "-c", "import subprocess, sys; subprocess.run(['sleep', '60'], stdin=sys.stdin)"]
    with subprocess.Popen(command) as started:
        try:
            for _ in machine.moments(time.time() + 10, 0.01):
                if len(found := machine.tree(started.pid)) > 1:
                    break
            assert len(found) == 2
            assert machine.peak_memory(started.pid) > 1
        finally:
            for pid in reversed(machine.tree(started.pid)):
                subprocess.run(["kill", str(pid)], check=False)
    assert machine.cpu_seconds(started.pid) == 0.0


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_our_own_adapter_drains_jobs_that_its_producer_enqueued(db, tmp_path, kind):
    program = [sys.executable]
    said = {"DSN": db, "KIND": kind, "JOBS": "200"}
    told = child.Child(program, "redrive", "info", tmp_path / "info", said, asked=True)
    info = told.answer(60)
    told.kill()
    assert {"settings", "keeps", "versions", "done", "states"} <= set(info)
    producer = child.Child(program, "redrive", "producer", tmp_path / "producer", said, asked=True)
    worker = child.Child(program, "redrive", "work", tmp_path / "worker", said)
    try:
        producer.answer(60)
        assert producer.ask(60, op="bulk", n=199)["n"] == 199
        assert producer.ask(60, op="one", n=1)["n"] == 1
        worker.demand("all", 60)
        with psycopg.connect(db, autocommit=True) as conn:
            for _ in machine.moments(time.time() + 30, 0.01):
                [done] = conn.execute(info["done"]).fetchone()
                if done == 200:
                    break
            assert done == 200
            assert conn.execute(info["states"]).fetchall() == [("succeeded", 200)]
        assert worker.stop(20) == "SIGTERM"
        assert worker.process.returncode == 0
    finally:
        producer.quit()
        worker.kill()
