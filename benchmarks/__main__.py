"""``make bench``: measure, show each figure beside its bar, and write benchmarks/results.json.

BENCH_QUICK=1 takes a twentieth of the rows; BENCH_PG=15 another major than the newest; DATABASE_URL a server that is
there, with the right to create databases; BENCH_OUT another file. `make bench ONLY=roads` measures that alone and
leaves the other figures as they were. `make bench-page` puts the results into docs/performance.md, docs/scale.md and
benchmarks/RESULTS.md, and what a job costs into redrive.capacity.costs.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from datetime import UTC, datetime
from importlib import reload
from pathlib import Path
from typing import Any

from benchmarks import scale_page
from benchmarks.bars import lines, page
from benchmarks.measurements import MEASUREMENTS, QUICK, Sizes, idling
from benchmarks.peers import report
from benchmarks.scale_page import settled, written
from benchmarks.stage import staged
from redrive.capacity import costs

RESULTS = Path(__file__).parent / "results.json"
OLDER = RESULTS.with_name("results-15.json")
"""Figures of an older Postgres, measured with BENCH_PG and BENCH_OUT: a column beside those of the newest."""
PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
FRAME = "<!-- results.json, by make bench-page -->", "<!-- end of results.json -->"


def measure(sizes: Sizes, *, quick: bool) -> dict[str, Any]:
    """Run everything and give the figures."""
    results: dict[str, Any] = {}
    with staged() as stage:
        about = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "quick": quick,
            "server": f"PostgreSQL {stage.version}",
            "durability": {name: stage.ask(f"show {name}") for name in ("fsync", "synchronous_commit")},
            "python": platform.python_version(),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
            "claims_timed_by": "the server's log" if stage.log else "the worker",
        }
        with idling(stage) as idle:
            for scenario in MEASUREMENTS:
                began = time.monotonic()
                results |= scenario(stage, sizes)
                sys.stderr.write(f"{scenario.__name__}: {time.monotonic() - began:.0f} s\n")
            results |= idle(sizes)
        return about | {"other_cores_busy": stage.other_cores()} | results


def measure_only(names: list[str], sizes: Sizes, before: dict[str, Any]) -> dict[str, Any]:
    """Measure what is named, and give its figures with those of *before*, which say when they were measured.

    Raises:
        SystemExit: for a name that there is not.
    """
    scenarios = {scenario.__name__: scenario for scenario in MEASUREMENTS}
    if unknown := [name for name in names if name not in scenarios]:
        raise SystemExit(f"there is no measurement {unknown[0]!r}: give one of {', '.join(scenarios)}")
    found: dict[str, Any] = {}
    with staged() as stage:
        for name in names:
            found |= scenarios[name](stage, sizes)
        told = {"server": f"PostgreSQL {stage.version}", "other_cores_busy": stage.other_cores()}
    now = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), **told}
    return before | found | {"apart": {**before.get("apart", {}), **dict.fromkeys(names, now)}}


def show(results: dict[str, Any]) -> None:
    """Print each figure beside its bar."""
    table = [("figure", "measured", "must be", ""), *lines(results)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")


def rounded(value: Any) -> Any:
    """Keep of figures what means something."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def paged(text: str, results: dict[str, Any], older: dict[str, Any] | None = None) -> str:
    """Give the page's *text* with the table of these results in its frame."""
    before, _, rest = text.partition(FRAME[0])
    _, _, after = rest.partition(FRAME[1])
    return f"{before}{FRAME[0]}\n\n{page(results, older)}\n\n{FRAME[1]}{after}"


def bring(results: dict[str, Any]) -> None:
    """Put results into the documentation, and into the code that reckons with them."""
    older = json.loads(OLDER.read_text()) if OLDER.exists() else None
    PAGE.write_text(paged(PAGE.read_text(), results, older))
    code = Path(costs.__file__)
    code.write_text(settled(code.read_text(), results))
    reload(costs)
    scale_page.PAGE.write_text(written(scale_page.PAGE.read_text(), results))
    report.write(RESULTS.parent)


def main() -> None:
    """Measure, show, write; with the word ``page``, put what was written into the documentation."""
    if sys.argv[1:] == ["page"]:
        bring(json.loads(RESULTS.read_text()))
        return
    quick = os.environ.get("BENCH_QUICK", "") not in ("", "0")
    sizes = QUICK if quick else Sizes()
    file = Path(os.environ.get("BENCH_OUT") or RESULTS)
    before = json.loads(file.read_text()) if file.exists() else {}
    if sys.argv[1:]:
        if not before:
            raise SystemExit(f"there is no {file} to put these figures into: let all be measured once")
        results = rounded(measure_only(sys.argv[1:], sizes, before))
    else:
        kept = {name: value for name, value in before.items() if name.startswith("broker_")}
        results = rounded(measure(sizes, quick=quick)) | kept
    file.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    show(results)
    where = f"{results['server']}, {results['machine']}, Python {results['python']}"
    sys.stdout.write(f"\n{where}{', a twentieth of the rows' if quick else ''}\n")


if __name__ == "__main__":
    main()
