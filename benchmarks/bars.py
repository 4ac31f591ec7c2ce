"""The bars: what each figure must be, and how figures and bars are shown, to a terminal and on a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


QUIET = 0.1
"""Cores of other work that are not worth a word."""


@dataclass(frozen=True)
class Bar:
    """What a figure must be."""

    key: str
    label: str
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""

    def met(self, value: float) -> bool:
        """Tell whether it is."""
        if self.at_least is not None:
            return value >= self.at_least
        return self.at_most is None or value <= self.at_most

    @property
    def text(self) -> str:
        """The bar in words."""
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        return f"at most {self.at_most:g}" if self.at_most is not None else ""


ROADS = {
    "psycopg": "psycopg",
    "psycopg_async": "psycopg, async",
    "psycopg2": "psycopg2",
    "asyncpg": "asyncpg",
    "session_psycopg": "Session over psycopg",
    "session_psycopg2": "Session over psycopg2",
    "async_session_psycopg": "AsyncSession over psycopg",
    "async_session_asyncpg": "AsyncSession over asyncpg",
}
"""The connections of :mod:`benchmarks.roads`, in words."""
BARS = (
    Bar("drain_async_vs_floor", "drain, async handlers, by the bare-SQL floor", at_least=0.8),
    Bar("drain_threads_vs_async", "drain, handlers in threads, by async", at_least=0.5),
    Bar("pickup_ms_p50", "INSERT to handler, idle worker, p50", at_most=3, unit="ms"),
    Bar("pickup_ms_p99", "the same, p99", at_most=6, unit="ms"),
    Bar("horizon_claim_growth", "claim p50 under a pinned snapshot, end by start", at_most=1.2),
    Bar("horizon_drain_ratio", "drain at the end of that, by a fresh table's", at_least=0.95),
    Bar("future_rows_claim_growth", "claim p50 beside future jobs, by an empty table's", at_most=1.2),
    Bar("finished_rows_claim_growth", "claim p50 beside finished jobs, by an empty table's", at_most=1.2),
    Bar("limited_rows_claim_growth", "claim p50 beside jobs that a limit holds back, by an empty table's", at_most=1.2),
    Bar(
        "fair_start_ms_most", "one tenant's job behind another's flood, its end at the latest", at_most=1000, unit="ms"
    ),
    Bar("transactions_per_1000_jobs", "transactions, drain", at_most=20, unit="/1000 jobs"),
    Bar("wal_bytes_per_job", "WAL, drain", at_most=650, unit="bytes/job"),
    Bar("cpu_us_per_job", "worker's CPU, drain, async", at_most=12, unit="µs/job"),
    Bar("idle_transactions_per_s", "transactions of an idle worker", at_most=0.4, unit="/s"),
    Bar("worker_growth_mb", "worker's memory, all jobs of the horizon run by the first", at_most=20, unit="MB"),
    Bar("worker_peak_mb", "worker's memory at its peak", at_most=150, unit="MB"),
    Bar("slow_idle_slot_share", "jobs of 1 s: slots' time idle while a job was due", at_most=1, unit="%"),
    Bar("slow_held_beyond_slots", "jobs of 1 s: held beyond the slots (100 ms of work: 2)", at_most=2, unit="jobs"),
    Bar("drain_async_per_s", "drain, async handlers", unit="jobs/s"),
    Bar("drain_threads_per_s", "drain, handlers in threads", unit="jobs/s"),
    Bar("drain_floor_per_s", "drain, bare SQL", unit="jobs/s"),
    Bar("floor_cpu_us_per_job", "CPU of bare SQL, drain: the driver alone", unit="µs/job"),
    Bar("enqueue_single_per_s", "enqueue, one a call and commit", unit="jobs/s"),
    Bar("enqueue_copy_per_s", "enqueue_many (COPY)", unit="jobs/s"),
    Bar("enqueue_keyed_per_s", "enqueue_many with keys", unit="jobs/s"),
    *(
        Bar(f"road_{road}_{what}_us", label.format(called), unit="µs")
        for road, called in ROADS.items()
        for what, label in (("enqueue", "enqueue within a transaction, {}"), ("insert", "an INSERT of one's own, {}"))
    ),
    Bar("fair_start_ms_p50", "one tenant's job behind another's flood, its end, p50", unit="ms"),
    Bar("fair_same_lane_s", "the flood, if all ran in the order of their coming", unit="s"),
    Bar("pickup_floor_ms_p50", "INSERT to claim, bare SQL, p50", unit="ms"),
    Bar("pickup_vs_floor", "INSERT to handler, idle worker, by that", unit=""),
    Bar("sustained_ms_p50", "INSERT to handler under a steady load, p50", unit="ms"),
    Bar("sustained_ms_p99", "the same, p99", unit="ms"),
    Bar("sustained_backlog_most", "the same, backlog at the worst moment", unit="jobs"),
    Bar("horizon_claim_vs_fresh", "claim p50 at the pinned end, by a fresh table's", unit=""),
    Bar("horizon_control_claim_growth", "claim p50 without the snapshot, end by start", unit=""),
    Bar("claim_ms_p50", "a claim of a thousand jobs, where there are no others, p50", unit="ms"),
    Bar("idle_cpu_ms_per_s", "CPU of an idle worker", unit="ms/s"),
)


def lines(results: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Give what was measured, line by line: the figure, its value, its bar, and how it did."""
    found = []
    for bar in BARS:
        value = results.get(bar.key)
        shown = "not known here" if value is None else f"{_number(value)} {bar.unit}".strip()
        judged = "" if value is None or not bar.text else "met" if bar.met(value) else "NOT MET"
        found.append((bar.label, shown, bar.text, judged))
    return found


def page(results: dict[str, Any], older: dict[str, Any] | None = None) -> str:
    """Write the table for the documentation; with the figures of an *older* Postgres in a column of their own."""
    beside = older or {}
    also = {bar.label: shown for bar, (_, shown, _, _) in zip(BARS, lines(beside), strict=True) if bar.key in beside}
    rows: list[tuple[str, ...]] = [("what", "measured", "must be", ""), *lines(results)]
    if older:
        head = f"on {older['server']}"
        column = [head, *(also.get(what, "") for what, *_ in rows[1:])]
        rows = [(what, shown, cell, *rest) for (what, shown, *rest), cell in zip(rows, column, strict=True)]
    ruled = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    told = " ".join(_run(each) for each in (results, beside) if each)
    return "\n".join([told, "", *(_row(each) for each in ruled)])


def _row(cells: Sequence[str]) -> str:
    if set(cells) == {"---"}:
        return f"|{'|'.join(cells)}|"
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def _run(results: dict[str, Any]) -> str:
    """Say where and when it was measured."""
    how = ", a twentieth of the rows and a busy machine: no figures to quote" if results["quick"] else ""
    where = f"{results['server']}, {results['machine']}, Python {results['python']}, {results['date']}{how}."
    for name, told in results.get("apart", {}).items():
        where += f" `{name}` by itself: {told['server']}, {told['date']}{beside_others(told['other_cores_busy'])}."
    return where


def beside_others(cores: float | None) -> str:
    """Say what other processes took of the machine meanwhile; nothing where that is little, or not known."""
    return f", beside other work on {cores:g} cores" if (cores or 0.0) >= QUIET else ""


def _number(value: float) -> str:
    if abs(value) >= 100:  # noqa: PLR2004 - three digits that mean something
        return f"{value:,.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".") if abs(value) < 10 else f"{value:.1f}"  # noqa: PLR2004 - as above
