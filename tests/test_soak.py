"""`make soak` in small: it loses nothing, judges truly, and draws."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from array import array
from pathlib import Path

import pytest

from benchmarks.soak.picture import draw, spread, thinned
from benchmarks.soak.verdict import Bars, broken, ended

ROOT = Path(__file__).parents[1]
LENIENT = ("--most-backlog", "600", "--claim-p99", "60000", "--least-load", "0")
GOOD = {"jobs": 800, "jobs_s": 800.0, "claims": 90, "backlog_jobs_max": 800, "claim_ms_p99": 19.9}
GOOD |= {"lost": 0, "unfinished": 0}


def soak(db, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.soak", "--database", db, "--rate", "60", *LENIENT, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_soak_of_seconds_loses_nothing_and_draws_what_it_saw(db, conn, tmp_path):
    process = soak(db, "--minutes", "0.05", "--out", str(tmp_path / "soak"))
    out, err = process.communicate(timeout=60)
    verdict = json.loads(out.splitlines()[-1])
    assert (process.returncode, verdict["broken"], verdict["lost"]) == (0, [], 0), err
    assert verdict["jobs"] > 100
    assert verdict["retried"] > 0
    assert verdict["late"] > 0
    assert verdict["claims"] > 0
    assert conn.execute("SELECT count(*) FROM redrive.jobs WHERE status = 'succeeded'").fetchone() == (verdict["jobs"],)
    document = json.loads((tmp_path / "soak.json").read_text())
    [samples] = {len(column) for column in document["samples"].values()}
    assert samples >= 2
    assert document["verdict"] == verdict
    assert max(document["samples"]["horizon_age"]) > 0
    ET.fromstring((tmp_path / "soak.svg").read_text())  # noqa: S314 - ours


def test_ctrl_c_ends_it_with_a_verdict_on_what_there_is(db, conn, wait_for):
    process = soak(db, "--minutes", "60")
    wait_for(lambda: conn.execute("SELECT count(*) FROM redrive.jobs").fetchone()[0] > 20, 20)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    verdict = json.loads(out.splitlines()[-1])
    assert (process.returncode, verdict["lost"]) == (0, 0), err
    assert verdict["jobs"] > 20
    assert conn.execute("SELECT count(*) FROM redrive.workers").fetchone() == (0,), "the workers stopped in good order"


def test_what_holds_every_bar_is_not_broken():
    assert broken(GOOD, 800, Bars()) == []


@pytest.mark.parametrize(
    ("found", "word"),
    [
        ({"jobs": 0, "jobs_s": 0.0}, "nothing was measured"),
        ({"claims": 0}, "nothing was measured"),
        ({"jobs_s": 700.0}, "800 were meant"),
        ({"backlog_jobs_max": 1700}, "the backlog was 2.1 s of work"),
        ({"claim_ms_p99": 20.5}, "claim p99 was 20.5 ms"),
        ({"lost": 1}, "jobs lost: 1"),
        ({"unfinished": 3}, "not ended: 3"),
    ],
)
def test_each_bar_can_be_broken(found, word):
    assert word in broken(GOOD | found, 800, Bars())[0]


def test_ends_are_counted_over_all_workers(tmp_path):
    (tmp_path / "1.ended").write_bytes(array("q", [1, 2]).tobytes())
    (tmp_path / "2.ended").write_bytes(array("q", [2, 3]).tobytes())
    assert ended(tmp_path) == {1: 1, 2: 2, 3: 1}


def test_a_long_line_is_thinned_without_losing_its_spikes():
    points = [(float(second), 1.0) for second in range(3600)]
    points[1801] = (1801.0, 90.0)
    thin = thinned(points, most=400)
    assert len(thin) == 400
    assert (1801.0, 90.0) in thin


def test_labels_do_not_hide_each_other_and_keep_their_order():
    placed = spread([(50.0, "a", "low"), (48.0, "b", "high"), (10.0, "c", "far")], bottom=50.0)
    assert [words for _, _, words in placed] == ["low", "high", "far"]
    assert [place for place, _, _ in placed] == [50.0, 35.0, 10.0]


def test_the_picture_reads_on_paper_and_on_a_dark_screen_and_holds_an_empty_run():
    names = ("at", "backlog", "dead_tuples", "table_mb", "index_mb", "rss_mb", "cpu", "claim_ms_p50", "claim_ms_p99")
    verdict = GOOD | {"rate": 800.0, "workers": 1, "postgres": "18", "claim_ms_p50": 1.0, "backlog_s_max": 1.0}
    settings = {"rate": 800.0, "most_backlog_s": 2.0, "claim_p99_ms": 20.0}
    for values in ([], [1.0, 2.0]):
        drawn = draw({"settings": settings, "verdict": verdict, "samples": dict.fromkeys(names, values)})
        styled = set(re.findall(r'class="([\w ]+)"', drawn))
        dark = drawn.partition("prefers-color-scheme: dark")[2].partition("</style>")[0]
        colours = {name for group in styled for name in group.split()} - {"big", "name", "line"}
        assert all(f".{name} " in dark for name in colours), colours
