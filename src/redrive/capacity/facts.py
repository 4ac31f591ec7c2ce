"""What an installation's own database says of its load: read-only, in a handful of statements that stay quick.

What it can't say, because nothing ran yet, pg_stat_statements is not there or this role may not look, is None. The
statistics of Postgres and of the workers are read; no row is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg

from redrive import broker, figures

if TYPE_CHECKING:
    from redrive.diagnosis import Patient

NEWEST = 1000
DAY, LONGEST = 86_400.0, 30 * 86_400.0
FEWEST_ROWS = 10_000
"""In a table of fewer rows its pages, half empty, say nothing of a row."""
FEWEST_JOBS = 1000
"""Of fewer jobs it is the looks of idle workers that were paid, and not the jobs."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of an installation; None is not known."""

    version: str
    jobs_a_day: int
    mean_rate: float
    peak_rate: float
    """Jobs a second in the busiest minute of the last day, or ten minutes where it is longer ago."""
    kinds: dict[str, float] = field(default_factory=dict)
    """The kinds that most jobs of the last day were of, with their share."""
    run_mean: float | None = None
    """Seconds that a handler took on average within a day."""
    wait_p95: float | None = None
    processes: int = 0
    """Worker processes that live."""
    hosts: int = 0
    slots: int = 0
    in_flight: int = 0
    connections: int = 0
    """Taken of the server's, by whomever."""
    connections_of_workers: int = 0
    """Taken by workers of redrive's."""
    connections_most: int = 0
    """That there may be, without those kept for superusers."""
    share: float | None = None
    """Of the time of all statements in this database, since pg_stat_statements counts."""
    sessions: float | None = None
    """How many sessions work for jobs alone, on average."""
    server_us: float | None = None
    """Microseconds of statements a job, from its enqueue to its removal."""
    wal: float | None = None
    """Bytes a job, of the same."""
    statements: str = ""
    """Why the last two are not known; empty where they are."""
    rows: int = 0
    """Of the table, as Postgres estimates them."""
    table_bytes: int = 0
    """With its indexes."""
    row_bytes: float | None = None
    """A row with its index entries, and its part of what is empty."""
    payload: float | None = None
    """Bytes, the mean of the newest jobs."""
    keep: float = 0.0
    """Seconds for which succeeded jobs are kept, by the settings from here; 0 is for ever."""
    archive: bool = False
    buffers: float = 0.0
    """Bytes of shared_buffers."""
    wal_size: float = 0.0
    """Bytes of max_wal_size."""
    held: bool = False
    """Something holds the horizon for long: what is measured is that."""


def read(patient: Patient) -> Facts:
    """Ask for everything.

    Raises:
        psycopg.Error: what the server said; but where only pg_stat_statements may not be read it is done without.
    """
    measured = broker.measure(patient)
    stats = patient.queue.stats
    with patient.reading() as conn:
        day, by_kind = stats.total(DAY, connection=conn), stats.kinds(DAY, connection=conn)
        fleet = figures.look(patient.queue, conn)
    [server] = patient.ask("capacity_server")
    [workers] = patient.ask("capacity_processes")
    [payload] = patient.ask("capacity_payload", newest=NEWEST)
    table = next((row for row in patient.ask("desk_tables") if row.name == "jobs"), None)
    rows, size = (table.live or 0, table.bytes + table.index_bytes) if table else (0, 0)
    most = sorted(by_kind, key=lambda each: -each.ended)[:3]
    return Facts(
        version=str(server.version).split()[0],
        jobs_a_day=measured.jobs_a_day,
        mean_rate=measured.mean_rate,
        peak_rate=measured.peak_rate,
        kinds={each.kind: each.ended / day.ended for each in most if each.ended},
        run_mean=day.run_mean,
        wait_p95=measured.wait_p95,
        processes=workers.processes,
        hosts=workers.hosts,
        slots=fleet.slots,
        in_flight=fleet.in_flight,
        connections=server.connections - 1,  # this one is gone in a moment
        connections_of_workers=server.workers,
        connections_most=server.most - server.reserved,
        share=measured.share,
        sessions=measured.sessions,
        rows=rows,
        table_bytes=size,
        row_bytes=size / rows if rows >= FEWEST_ROWS else None,
        payload=payload.bytes,
        keep=patient.queue.settings.retain_succeeded,
        archive=patient.queue.settings.archive,
        buffers=server.buffers,
        wal_size=server.wal_size,
        held=measured.held,
        **_of_statements(patient),
    )


def _of_statements(patient: Patient) -> dict[str, Any]:
    """Work out what a job costs the server, from what all statements of redrive's did since they are counted."""
    try:
        spent = broker.statements(patient)
    except psycopg.errors.InsufficientPrivilege:
        return {"statements": "this role may not read pg_stat_statements"}
    if spent is None:
        return {"statements": "pg_stat_statements is not installed in this database, or not loaded"}
    if not spent.seconds or not spent.claims:
        return {
            "statements": "pg_stat_statements shows no claim: no worker ran since its reset, or this role sees none"
        }
    with patient.reading() as conn:
        since = patient.queue.stats.total(min(max(spent.seconds, 60.0), LONGEST), connection=conn)
    # Of a longer time than counts are kept for, as if it had all been as the last 30 days were.
    jobs = since.ended * max(1.0, spent.seconds / LONGEST)
    if jobs < FEWEST_JOBS or spent.claims > jobs:
        return {"statements": "most looks found nothing, and what those cost is not the jobs'"}
    return {"server_us": 1000 * spent.ours / jobs, "wal": spent.wal / jobs if spent.wal else None}
