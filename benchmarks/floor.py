"""The bare-SQL floor: the engine's own two statements, said by hand in a loop, with no worker around them.

One connection with the session settings of a worker's; ``claim_jobs`` for 500 with a mark that moves on, then
``succeed_jobs`` for what it gave; prepared, with binary results, decoded by the driver into tuples. No lease is kept,
no handler is called, nothing is supervised, nothing could be retried: what is left out is the worker.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from redrive.bench.application import ASYNC
from redrive.bench.loads import Drained, drained, payloads
from redrive.bench.scratch import Place
from redrive.connections import conninfo
from redrive.sql import query

BATCH = 500
WORKER = "floor:1:aaaaaa"


def drain(place: Place, jobs: int) -> Drained:
    """Fill the table and drain it."""
    place.queue.enqueue_many(ASYNC, payloads(jobs))
    began = time.monotonic()
    with psycopg.connect(conninfo(place.url, application="bench floor", nonce="floor"), autocommit=True) as conn:
        _work(conn, place.schema)
    return drained(place, after=0, began=began)


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
