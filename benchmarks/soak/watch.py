"""What is looked at every second: the backlog, the table, the horizon, and the worker processes from outside."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

import psycopg

TICKS = os.sysconf("SC_CLK_TCK")
WINDOW = 10.0
"""Seconds for which rows are looked at again although all before them have ended: some are committed late."""

# Not count(*) of what is pending, which would read every dead entry of the index each second and be load itself: rows
# by their ids, from the first that had not ended a while ago.
BACKLOG = """
    SELECT coalesce(max(id), 0), min(id) FILTER (WHERE status IN ('pending', 'running')),
           count(*) FILTER (WHERE status = 'pending' AND run_at <= clock_timestamp()),
           coalesce(extract(epoch FROM clock_timestamp() - min(run_at) FILTER (
               WHERE status = 'pending' AND run_at <= clock_timestamp())), 0)::float8
    FROM redrive.jobs WHERE id >= %s
"""
TABLE = """
    SELECT n_dead_tup, pg_relation_size(relid)::float8, pg_indexes_size(relid)::float8,
           (SELECT coalesce(max(age(backend_xmin)), 0) FROM pg_stat_activity)
    FROM pg_stat_user_tables WHERE schemaname = 'redrive' AND relname = 'jobs'
"""
COLUMNS = (
    *("at", "committed", "backlog", "oldest_due_s", "dead_tuples", "table_mb", "index_mb", "horizon_age"),
    *("rss_mb", "cpu", "claims", "claim_ms_p50", "claim_ms_p99", "claim_ms_max"),
)


class Watch:
    """Samples, a column each; what workers noted is read along."""

    def __init__(self, dsn: str, notes: Path, pids: Sequence[int]) -> None:
        self.columns: dict[str, list[float]] = {name: [] for name in COLUMNS}
        self.claims: array[float] = array("d")
        """How long each claim of the whole run took, ms."""
        self._conn = psycopg.connect(dsn, autocommit=True)
        self._notes, self._pids = notes, pids
        self._read: dict[Path, int] = {}
        self.low = 0
        self._ids: list[tuple[float, int]] = []
        self._began = self._cpu_at = time.monotonic()
        self._cpu = self._cpu_seconds()

    def sample(self, committed: int) -> None:
        """Look once."""
        last, first_open, due, oldest = self._conn.execute(BACKLOG, [self.low]).fetchone() or (0, None, 0, 0.0)
        dead, table, indexes, age = self._conn.execute(TABLE).fetchone() or (0, 0.0, 0.0, 0)
        now = time.monotonic()
        self._ids.append((now, last))
        while now - self._ids[0][0] > WINDOW:
            self.low = self._ids.pop(0)[1]
        if first_open is not None:
            self.low = min(self.low, first_open)
        took = sorted(self._noted())
        cpu, self._cpu = self._cpu, self._cpu_seconds()
        load, self._cpu_at = (self._cpu - cpu) / max(0.1, now - self._cpu_at), now
        mb = 1 / 2**20
        row = [now - self._began, committed, due, oldest, dead, table * mb, indexes * mb, age]
        row += [self.rss(), load, len(took), quantile(took, 0.5), quantile(took, 0.99), took[-1] if took else 0.0]
        for name, value in zip(COLUMNS, row, strict=True):
            self.columns[name].append(round(float(value), 3))

    def close(self) -> None:
        """Read the last notes and leave the database."""
        self._noted()
        self._conn.close()

    def rss(self) -> float:
        """Give the memory of all workers, MB."""
        total = 0
        for pid in self._pids:
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    total += int(line.split()[1])
        return total / 1024

    def _cpu_seconds(self) -> float:
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self._pids]
        return sum(int(stat[11]) + int(stat[12]) for stat in stats) / TICKS

    def _noted(self) -> list[float]:
        took: list[float] = []
        for path in self._notes.glob("*.claims"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                new = file.read()
            whole = len(new) - len(new) % 24
            self._read[path] = self._read.get(path, 0) + whole
            took += array("d", new[:whole])[1::3]
        self.claims.extend(took)
        return took


def quantile(values: Sequence[float], part: float) -> float:
    """Give the value below which *part* of the sorted *values* lies; 0 where there is none."""
    return values[min(len(values) - 1, int(len(values) * part))] if values else 0.0
