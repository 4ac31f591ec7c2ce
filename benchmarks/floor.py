"""The bare-SQL floor: the engine's own two statements, said by hand in a loop, with no worker around them.

One connection with the session settings of a worker's; ``claim_jobs`` for 500 with a mark that moves on, then
``succeed_jobs`` for what it gave; prepared, with binary results, decoded by the driver into tuples. No lease is kept,
no handler is called, nothing is supervised, nothing could be retried: what is left out is the worker.

The floor of a pick-up is the same claim, said for one job as soon as the notification arrives, by a process that does
nothing else: one session that waits for it and holds the sentry's lock, one that claims.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import namedtuple_row

from redrive.bench.application import ASYNC, STAMP
from redrive.bench.loads import Drained, drained, payloads
from redrive.bench.scenarios import BETWEEN, WARM_UP
from redrive.bench.scratch import Place
from redrive.bench.tally import NANOSECONDS
from redrive.connections import conninfo
from redrive.sql import channel, query

BATCH = 500
WORKER = "floor:1:aaaaaa"


class Bare(NamedTuple):
    """How a drain went."""

    drained: Drained
    cpu: float
    """Seconds of this process: what the driver takes for the same rows."""

    @property
    def rate(self) -> float:
        """Jobs a second."""
        return self.drained.rate


def drain(place: Place, jobs: int) -> Bare:
    """Fill the table and drain it."""
    place.queue.enqueue_many(ASYNC, payloads(jobs))
    began, cpu = time.monotonic(), time.process_time()
    with psycopg.connect(conninfo(place.url, application="bench floor", nonce="floor"), autocommit=True) as conn:
        _work(conn, place.schema)
    cpu = time.process_time() - cpu
    return Bare(drained(place, after=0, began=began), cpu)


def pickups(place: Place, count: int) -> list[float]:
    """Give the seconds from just before each INSERT until the job was claimed, as ``redrive bench latency`` does."""
    command = [sys.executable, "-m", "benchmarks.floor", place.schema, str(WARM_UP + count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ourselves
        assert process.stdin is not None  # noqa: S101 - it was asked for
        assert process.stdout is not None  # noqa: S101 - it was asked for
        process.stdin.write(f"{place.url}\n")  # not for the list of processes: it may hold a password
        process.stdin.flush()
        try:
            if process.stdout.readline() != "ready\n":
                raise SystemExit("the floor of pick-ups did not begin")
            for _ in range(WARM_UP + count):
                place.queue.enqueue(STAMP, {"at": time.monotonic_ns()})
                time.sleep(random.uniform(*BETWEEN))
            return [float(line) for line in process.stdout][WARM_UP:]
        finally:
            process.kill()


def _pick_up(url: str, schema: str, count: int) -> None:
    claim, waited = query("claim_jobs", schema), []
    lane: dict[str, Any] = {"kinds": [STAMP], "priorities": [5], "lanes": [""], "quotas": [1], "limit": 1}
    where = {"starts": ["-infinity"], "start_ids": [-(2**63)], "ends": [], "end_ids": [], "worker": WORKER}
    ears = psycopg.connect(make_conninfo(url, application_name="bench floor"), autocommit=True)
    conn = psycopg.connect(conninfo(url, application="bench floor", nonce="floor"), autocommit=True)
    cursor = conn.cursor(row_factory=namedtuple_row)
    cursor.execute(claim, lane | where, prepare=True, binary=True)
    ears.execute(query("try_sentry", schema))
    ears.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(channel(schema))))
    _tell("ready")
    for _ in ears.notifies():
        rows = cursor.execute(claim, lane | where, prepare=True, binary=True).fetchall()
        waited += [(time.monotonic_ns() - json.loads(row.payload)["at"]) / NANOSECONDS for row in rows]
        if len(waited) >= count:
            break
    _tell(*waited)


def _tell(*lines: object) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def _work(conn: psycopg.Connection[Any], schema: str) -> None:
    claim, succeed = query("claim_jobs", schema), query("succeed_jobs", schema)
    lane: dict[str, Any] = {"kinds": [ASYNC], "priorities": [5], "lanes": [""], "quotas": [BATCH], "limit": BATCH}
    mark: tuple[str, int] = ("-infinity", -(2**63))
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        while True:
            where = {"starts": [mark[0]], "start_ids": [mark[1]], "ends": [], "end_ids": [], "worker": WORKER}
            cursor.execute(claim, lane | where, prepare=True, binary=True)
            rows: list[Any] = sorted(cursor.fetchall(), key=_by_id)
            if not rows:
                return
            run_at, last = max((row.run_at, row.id) for row in rows)
            mark = (run_at.isoformat(), last)
            leases = {"ids": [row.id for row in rows], "claims": [row.claims for row in rows], "worker": WORKER}
            cursor.execute(succeed, leases, prepare=True, binary=True)
            cursor.fetchall()


def _by_id(row: Any) -> int:
    return int(row.id)


if __name__ == "__main__":
    _pick_up(sys.stdin.readline().strip(), sys.argv[1], int(sys.argv[2]))
