"""What a look from the head of a lane costs over dead entries that must be kept, and how long a late job waits for one.

``make sweep`` fills a lane with a million jobs that have ended while a long transaction holds the horizon, measures
what begins at a head, and lets a worker run under some load while jobs are committed that are due since yesterday.
Figures on standard output, as JSON; nothing is judged here, and nothing touched but a server of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from psycopg.sql import SQL, Literal

from redrive import Queue
from redrive.dev_server import DevServer
from redrive.lanes import PATIENCE, Lanes
from redrive.migrate import migrate
from redrive.reaper import OWN_NAME
from redrive.sql import query

ROOT = Path(__file__).parents[1]
FILL = """
    INSERT INTO redrive.jobs (kind, run_at, payload)
    SELECT 'mail', now() - interval '1 hour' + i * interval '1 ms', '{"to": "someone@example.com"}'
    FROM generate_series(1, %s) AS i
"""
RUN = """
    UPDATE redrive.jobs SET status = 'running', claims = 1, attempts = 1, locked_by = 'here:1:abcdef', locked_at = now()
    WHERE status = 'pending'
"""
END = "UPDATE redrive.jobs SET status = 'succeeded', updated_at = now() WHERE status = 'running'"
LAST = "SELECT run_at::text, id FROM redrive.jobs WHERE status = 'succeeded' ORDER BY run_at DESC, id DESC LIMIT 1"
RATE = 200
LATE = 12

queue = Queue()
"""What the worker runs."""


@queue.handler("mail")
async def mail(payload: dict[str, Any]) -> None:
    """Do nothing."""


def main() -> int:
    """Fill, measure, tell."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("--dead", type=int, default=1_000_000, help="dead entries at the head of the lane")
    dead = parser.parse_args().dead
    with DevServer() as server, psycopg.connect(server.url, autocommit=True, options="-c jit=off") as conn:
        migrate(server.url)
        conn.execute("SET enable_seqscan = off")
        with psycopg.connect(server.url) as report:
            tell(f"filling {dead:,} rows")
            conn.execute(FILL, [dead])
            report.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            report.execute("SELECT FROM redrive.jobs LIMIT 1")
            for change in (RUN, END):
                conn.execute(change)
            mark = conn.execute(LAST).fetchone() or ("-infinity", 0)
            conn.execute(FILL.replace("1 hour", "1 minute"), [1000])
            tell("measuring each statement")
            found: dict[str, Any] = {"dead": dead, "statements": statements(conn, mark)}
            conn.execute(RUN)
            conn.execute(END)
            tell("a worker, some load, and jobs that come late")
            found |= late(server.url, conn)
        look = found["statements"]["claim from the head"]["ms"] / 1000
        found["late_bound_s"] = round((PATIENCE + 1) * look, 2)
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


def statements(conn: psycopg.Connection, mark: tuple[str, int]) -> dict[str, dict[str, float]]:
    """Measure one of each kind of statement, the median of five."""
    claim: dict[str, Any] = {"kinds": ["mail"], "priorities": [5], "lanes": [""], "quotas": [100], "limit": 100}
    reap = {"own_name": OWN_NAME, "judge": "x", "orphaned": [], "lease": 30.0, "foreign_age": 600.0, "max_crashes": 3}
    reap["kinds"] = ["mail"]
    marked = {"starts": [mark[0]], "start_ids": [mark[1]]}
    head: dict[str, Any] = {"starts": ["-infinity"], "start_ids": [0], "ends": [], "end_ids": [], "worker": "me"}
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("claim from the head", "claim_jobs", claim | head),
        ("claim from the mark", "claim_jobs", claim | head | marked),
        ("survey from the heads", "survey_lanes", Lanes(["mail"]).look()),
        (
            "survey from the marks",
            "survey_lanes",
            Lanes(["mail"]).look() | marked,
        ),
        ("health: the oldest due", "oldest_due", {}),
        ("the reaper's sweep", "reap_jobs", reap),
        ("holders without a row", "survey_held", {"own_name": OWN_NAME}),
        ("look for mislaid jobs", "hand_back_mislaid", {"worker": "here:1:abcdef", "known": [], "age": 45.0}),
    ]
    return {what: measure(conn, name, params) for what, name, params in calls}


def measure(conn: psycopg.Connection, name: str, params: dict[str, Any]) -> dict[str, float]:
    """Explain a statement five times and take each back."""
    took, pages = [], 0
    text = query(name, "redrive").as_string(conn)
    said = re.sub(r"%\((\w+)\)s", lambda found: Literal(params[found[1]]).as_string(conn), text).replace("%%", "%")
    for _ in range(5):
        with conn.transaction(force_rollback=True):
            explain = SQL("EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT json) ").as_string(conn) + said
            [[plan]] = conn.execute(explain.encode()).fetchall()
        took.append(plan[0]["Execution Time"])
        pages = plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
    return {"ms": round(median(took), 2), "pages": pages}


def late(url: str, conn: psycopg.Connection) -> dict[str, Any]:
    """Run a worker under a steady load, and commit jobs that are due since yesterday."""
    over = threading.Event()

    def load() -> None:
        with psycopg.connect(url, autocommit=True) as own:
            while not over.wait(1 / RATE):
                own.execute("INSERT INTO redrive.jobs (kind) VALUES ('mail')")

    env = os.environ | {"DATABASE_URL": url}
    command = [sys.executable, "-m", "redrive", "worker", "benchmarks.sweep:queue"]
    worker = subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.DEVNULL)  # noqa: S603 - ourselves
    loader = threading.Thread(target=load)
    loader.start()
    waited: dict[str, list[float]] = {"busy": [], "idle": []}
    try:
        for state, waits in waited.items():
            if state == "idle":
                over.set()
                loader.join()
            for _ in range(LATE):
                time.sleep(3)
                waits.append(one_late(conn))
                tell(f"{state}: waited {waits[-1]:.2f} s")
    finally:
        over.set()
        loader.join()
        worker.terminate()
        worker.wait(60)
    return {
        f"late_{state}_s": {"p50": round(median(waits), 2), "max": round(max(waits), 2)}
        for state, waits in waited.items()
    }


def one_late(conn: psycopg.Connection) -> float:
    """Commit a job that is due since yesterday, and give the seconds until a worker has it."""
    insert = "INSERT INTO redrive.jobs (kind, run_at) VALUES ('mail', now() - interval '1 day') RETURNING id"
    [(job,)] = conn.execute(insert).fetchall()
    committed = time.monotonic()
    while conn.execute("SELECT claims FROM redrive.jobs WHERE id = %s", [job]).fetchone() == (0,):
        time.sleep(0.005)
    return time.monotonic() - committed


def tell(text: str) -> None:
    """Say how far it is."""
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
