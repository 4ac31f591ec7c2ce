"""The verdict: one line of figures, and the bars that were broken."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.soak.load import Load
from benchmarks.soak.watch import Watch, quantile

LEFT = "SELECT id, status::text FROM redrive.jobs WHERE status <> 'succeeded'"
PICK_UP = """
    SELECT extract(epoch FROM locked_at - created_at)::float8 * 1000
    FROM redrive.jobs WHERE status = 'succeeded' AND claims = 1 AND NOT id = ANY(%s)
"""
LATE = "SELECT id, extract(epoch FROM locked_at)::float8 FROM redrive.jobs WHERE claims = 1 AND id = ANY(%s)"
WARM = 0.1
"""The part of the run after which the worker's memory should no longer grow."""


@dataclass(frozen=True)
class Bars:
    """What must not be passed."""

    backlog: float = 2.0
    """Seconds of work."""
    claim_p99: float = 20.0
    """Milliseconds."""
    load: float = 0.95
    """The part of the rate that must be reached: else the machine was too slow, or too busy, to show anything."""


def ended(notes: Path) -> Counter[int]:
    """Count how often each job ran to its end, by what the handlers noted."""
    counted: Counter[int] = Counter()
    for path in notes.glob("*.ended"):
        counted.update(array("q", path.read_bytes()))
    return counted


def figures(dsn: str, watch: Watch, notes: Path, load: Load) -> dict[str, Any]:
    """Sum a run up.

    A job is lost when its INSERT was committed and no handler came to its end, whatever the table says of it.
    """
    done, committed, late = ended(notes), load.committed, load.late
    with psycopg.connect(dsn) as conn:
        left = conn.execute(LEFT).fetchall()
        ids = list(late)
        pick_up = sorted(row[0] for row in conn.execute(PICK_UP, [ids]))
        after = sorted(at - late[job] for job, at in conn.execute(LATE, [ids]).fetchall())
        [(retried,)] = conn.execute("SELECT count(*) FROM redrive.failures").fetchall()
    columns = watch.columns
    claims = sorted(watch.claims)
    rss = columns["rss_mb"]
    cpu = _mean(columns["cpu"]) * load.seconds / max(1, len(done)) * 1e6
    return {
        "minutes": round(load.seconds / 60, 2),
        "jobs": len(committed),
        "jobs_s": round(len(committed) / load.seconds, 1),
        "retried": retried,
        "late": len(late),
        "lost": len(committed - done.keys()),
        "unfinished": len(left),
        "ran_twice": sum(1 for times in done.values() if times > 1),
        "backlog_jobs_max": int(max(columns["backlog"], default=0)),
        "oldest_due_s_max": round(max(columns["oldest_due_s"], default=0.0), 2),
        "claims": len(claims),
        "claim_ms_p50": round(quantile(claims, 0.5), 2),
        "claim_ms_p99": round(quantile(claims, 0.99), 2),
        "claim_ms_max": round(claims[-1], 1) if claims else 0.0,
        "pickup_ms_p50": round(quantile(pick_up, 0.5), 1),
        "pickup_ms_p99": round(quantile(pick_up, 0.99), 1),
        "late_pickup_ms_p50": round(1000 * quantile(after, 0.5), 1),
        "late_pickup_ms_p99": round(1000 * quantile(after, 0.99), 1),
        "dead_tuples_max": int(max(columns["dead_tuples"], default=0)),
        "table_mb": round((columns["table_mb"] or [0.0])[-1]),
        "index_mb": round((columns["index_mb"] or [0.0])[-1]),
        "rss_mb_max": round(max(rss, default=0.0), 1),
        "rss_growth_mb": round(rss[-1] - rss[int(len(rss) * WARM)], 1) if rss else 0.0,
        "cpu_us_per_job": round(cpu),
    }


def broken(found: Mapping[str, Any], rate: float, bars: Bars) -> list[str]:
    """Say which bars were broken, in words. A run without a claim or a job has shown nothing, and passes none."""
    faults = []
    if not found["jobs"] or not found["claims"]:
        faults.append("nothing was measured")
    if found["jobs_s"] < bars.load * rate:
        faults.append(f"the load was {found['jobs_s']:g} jobs/s: {rate:g} were meant, so this says nothing of them")
    if (backlog := found["backlog_jobs_max"] / rate) > bars.backlog:
        faults.append(f"the backlog was {backlog:.1f} s of work: more than {bars.backlog:g}")
    if found["claim_ms_p99"] > bars.claim_p99:
        faults.append(f"claim p99 was {found['claim_ms_p99']} ms: more than {bars.claim_p99:g}")
    if found["lost"] or found["unfinished"]:
        faults.append(f"jobs lost: {found['lost']}, not ended: {found['unfinished']}")
    return faults


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
