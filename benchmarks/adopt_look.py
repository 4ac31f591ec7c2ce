"""How long ``redrive adopt`` looks at a table of five million rows of which 999 in 1,000 are done, and what it locks.

Part of ``make adopt-proof``. Another session notes, all the while, which locks the look holds on the table; a third
writes rows as an application does, and notes how long each takes. Above the bars is exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

import psycopg

from benchmarks.adopt import FILL, TABLE
from redrive.dev_server import DevServer

BAR = 60.0
"""Seconds that a look may take."""
LOST = """
    UPDATE mail SET status = CASE WHEN id % 3000 = 0 THEN 'failed' WHEN id % 3000 = 1000 THEN 'sending' ELSE status END,
                    created_at = now() - interval '5 days'
    WHERE id % 1000 = 0
"""
LOCKS = """
    SELECT DISTINCT l.mode FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.relation = 'mail'::regclass AND a.application_name = 'redrive adopt'
"""


def measure(dsn: str, rows: int) -> bool:
    """Look at such a table, from a process of its own; tells whether the bars hold."""
    modes: set[str] = set()
    slowest = 0.0
    over = threading.Event()
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(TABLE)
        conn.execute(FILL, [rows])
        conn.execute(LOST)
        conn.execute("VACUUM ANALYZE mail")
        conn.execute("CHECKPOINT")

        def write() -> None:
            nonlocal slowest
            with psycopg.connect(dsn, autocommit=True) as own:
                while not over.wait(0.02):
                    began = time.perf_counter()
                    own.execute("INSERT INTO mail (rcpt) VALUES ('a@example.com')")
                    slowest = max(slowest, time.perf_counter() - began)

        writer = threading.Thread(target=write)
        writer.start()
        began = time.perf_counter()
        command = [sys.executable, "-m", "redrive", "adopt", "mail", "--max-attempts", "5", "--json"]
        env = {**os.environ, "DATABASE_URL": dsn}
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as look:  # noqa: S603 - our own
            answers: list[str] = []
            reader = threading.Thread(target=lambda: answers.append(look.stdout.read() if look.stdout else ""))
            reader.start()
            while look.poll() is None:
                modes |= {row[0] for row in conn.execute(LOCKS)}
                time.sleep(0.005)
            reader.join()
        seconds = time.perf_counter() - began
        over.set()
        writer.join()
    found: dict[str, Any] = json.loads(answers[0])
    told = {
        "rows": found["rows"],
        "megabytes": round(found["bytes"] / 1e6),
        "share_read": found["share_read"],
        "seconds": round(seconds, 2),
        "counted_in": found["seconds"],
        "locks": sorted(modes),
        "slowest_insert_beside_it_ms": round(slowest * 1000, 1),
        "lost": {bucket["bucket"]: bucket["rows"] for bucket in found["lost"]},
    }
    sys.stdout.write(json.dumps(told, indent=2) + "\n")
    return seconds < BAR and modes == {"AccessShareLock"} and found["share_read"] == 1


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
