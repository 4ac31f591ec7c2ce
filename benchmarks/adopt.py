"""What an adopted table of five million rows costs: the application's INSERT, the sweep, a job's begin and its end.

``make adopt-proof`` says it, after the proof that nothing is done twice. It makes a table in which 999 of 1,000 rows
are done, connects it with triggers and with the sweep, and measures. Above the bar is exit code 1.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import psycopg

from redrive import claims
from redrive.adopt import bridge, undo
from redrive.adopt.mapping import parse
from redrive.connections import conninfo
from redrive.dev_server import DevServer
from redrive.job import Holder
from redrive.migrate import migrate
from redrive.statements import as_array, numbered, run
from redrive.sweeper import PAGE

if TYPE_CHECKING:
    from collections.abc import Callable

BAR = 0.005
"""Seconds that the triggers and a round of the sweep may take, in the middle."""
EACH = 0.0004
"""Seconds that an UPDATE of very many rows may take for each that comes to wait."""
TABLE = """
    CREATE TABLE mail (
        id bigserial PRIMARY KEY, rcpt text, body text, status varchar(20) NOT NULL DEFAULT 'pending',
        attempts int NOT NULL DEFAULT 0, next_at timestamptz, error text, created_at timestamptz DEFAULT now()
    )
"""
FILL = """
    INSERT INTO mail (rcpt, body, status, created_at)
    SELECT 'user' || i || '@example.com', repeat('x', 100), CASE WHEN i %% 1000 = 0 THEN 'pending' ELSE 'sent' END,
           now() - interval '1 day'
    FROM generate_series(1, %s) i
"""
MAP: dict[str, Any] = {
    "table": "public.mail",
    "key": "id",
    "kind": "mail",
    "created": "created_at",
    "due": "next_at",
    "runnable": {"column": "status", "values": ["pending"]},
    "times": {"next_at": {"form": "timestamptz"}, "created_at": {"form": "timestamptz"}},
    "attempts": {"column": "attempts", "max": 5},
    "error": {"column": "error"},
    "claimed": {"set": {"status": "working"}},
    "waiting": {"set": {"status": "pending"}, "run_at": ["next_at"]},
    "succeeded": {"set": {"status": "sent"}},
    "dead": {"set": {"status": "failed"}},
}
HOLDER = Holder("here:1:abcdef", "redrive")


def timed(work: Callable[[], object], times: int) -> list[float]:
    """Say how long *work* takes, each time."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return took


def told(what: str, took: list[float], *, per: int = 1) -> float:
    """Print the middle and the end of a measurement, in milliseconds; gives the middle, in seconds."""
    cuts = [cut / per for cut in statistics.quantiles(took, n=20)]
    print(f"{what:<60} p50 {cuts[9] * 1000:8.3f} ms   p95 {cuts[18] * 1000:8.3f} ms")
    return cuts[9]


def measure(dsn: str, rows: int) -> bool:
    """Measure all of it; tells whether the bars hold."""
    migrate(dsn)
    as_worker = conninfo(dsn, application="worker", nonce="x")
    with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(as_worker, autocommit=True) as worker:
        conn.execute(TABLE)
        conn.execute(FILL, [rows])
        conn.execute("VACUUM ANALYZE mail")

        def insert() -> None:
            conn.execute("INSERT INTO mail (rcpt, body) VALUES ('a@example.com', 'x')")

        def touch() -> None:
            conn.execute("UPDATE mail SET body = 'y' WHERE id = 1")

        bare, bare_touch = told("INSERT of a row, not adopted", timed(insert, 500)), timed(touch, 500)
        told("UPDATE of a done row, not adopted", bare_touch)
        [[now]] = conn.execute("SELECT now()::text").fetchall()
        wanted = bridge.Wanted(by_trigger=True, by_sweep=True, legacy_stopped=True, index=True)
        began = time.perf_counter()
        plan = bridge.Plan(conn, "redrive", parse({**MAP, "cutover": now}), wanted)
        done = bridge.connect(conn, plan)
        print(f"connected in {time.perf_counter() - began:.1f} s with its index; {done['held']} rows held")
        adopted = told("INSERT of a row, adopted", timed(insert, 500))
        told("UPDATE of a done row, adopted", timed(touch, 500))

        def sweep() -> None:
            conn.execute("UPDATE redrive.adoptions SET round_at = NULL")
            began = time.perf_counter()
            worker.execute("SELECT redrive.adoption_1_round(%s)", [PAGE])
            swept.append(time.perf_counter() - began)

        swept: list[float] = []
        timed(sweep, 200)
        swept = swept[5:]  # the first ones plan
        slowest = told("a round of the sweep", swept)
        many = 10_000
        bulk = timed(
            lambda: conn.execute("INSERT INTO mail (rcpt) SELECT 'b@example.com' FROM generate_series(1, %s)", [many]),
            3,
        )
        told(f"INSERT of {many:,} rows, adopted, each", [*bulk, *bulk], per=many)
        bulk_update = woken(conn, min(100_000, rows // 2))
        told("a job's claim with its row's begin, in batches of 100", claims := timed(claim(worker), 50), per=100)
        told("a job's success with its row's, in batches of 100", timed(succeed(worker), len(claims)), per=100)
        undo.undo(conn, "redrive", "mail", patience=5, abandon=True)
    cost = adopted - bare
    print(f"the triggers add {cost * 1000:.3f} ms to an INSERT, a round of {PAGE} rows takes {slowest * 1000:.3f} ms")
    return cost < BAR and slowest < BAR and bulk_update < EACH


def woken(conn: psycopg.Connection, most: int) -> float:
    """Have done rows wait again in one UPDATE, then put off in another; gives the first's seconds a row."""
    first = "UPDATE mail SET status = 'pending' WHERE id <= %s AND status = 'sent'"
    then = "UPDATE mail SET next_at = now() + interval '1 h' WHERE id <= %s AND status = 'pending'"
    took = []
    for said, what in ((first, "by which they come to wait"), (then, "of their due time")):
        began = time.perf_counter()
        count = conn.execute(said, [most]).rowcount
        took.append((time.perf_counter() - began) / count)
        print(f"UPDATE of {count:,} rows {what}, adopted, each {took[-1] * 1000:.3f} ms")
    return took[0]


def claim(worker: psycopg.Connection) -> Callable[[], object]:
    """Claim a hundred jobs as a worker does."""
    how = {"kinds": ["mail"], "priorities": [5], "lanes": [""], "quotas": [100], "limit": 100}
    ways = {"starts": ["-infinity"], "start_ids": [0], "ends": [None], "end_ids": [None]}
    return lambda: run(worker, claims.claim(HOLDER, **how, **ways))


def succeed(worker: psycopg.Connection) -> Callable[[], object]:
    """Write the success of a hundred jobs as a worker does."""

    def work() -> None:
        running = "SELECT id, claims FROM redrive.jobs WHERE status = 'running' ORDER BY id LIMIT 100"
        found = worker.execute(running).fetchall()
        given = {"ids": as_array([row[0] for row in found]), "claims": as_array([row[1] for row in found])}
        run(worker, numbered("succeed_jobs", "redrive", worker=HOLDER.name, **given))

    return work


def main() -> None:
    """Make a server, measure, and say whether the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    given = parser.parse_args()
    with DevServer() as server:
        good = measure(server.url, given.rows)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
