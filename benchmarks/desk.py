"""What the pages of the desk cost where the table is large: 4,900,000 finished jobs, 50,000 dead in 300 groups.

``make desk-proof`` makes such a database, asks for every page with nothing kept from before, and then lets ten tabs
poll for a minute. Figures on standard output, as JSON, in milliseconds: "busy" is processor time, "least" what the
quickest of nine took on the clock. The exit code is 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
from starlette.testclient import TestClient

from redrive import Queue
from redrive.dev_server import DevServer
from redrive.migrate import migrate
from redrive.web import desk

BAR = 0.3
"""Seconds of server time that a page may take."""
BUDGETED = 0.55
"""Seconds that a page may take whose search no index serves: its budget, and what is around it."""
TRIES = 9
TABS, POLLED = 10, 60.0
FINISHED, DEAD, GROUPS, KINDS, WAITING = 4_900_000, 50_000, 300, 12, 50_000

JOBS = """
    INSERT INTO redrive.jobs (kind, payload, status, attempts, run_at, created_at, updated_at, locked_at, locked_by,
                              lane, last_error, fingerprint)
    SELECT 'kind_' || CASE WHEN dead THEN g %% %(kinds)s ELSE n %% %(kinds)s END,
           jsonb_build_object('to', 'user' || n || '@example.com', 'order', n, 'text', repeat('x', 60)),
           CASE WHEN dead THEN 'dead' WHEN waits THEN 'pending' ELSE 'succeeded' END, CASE WHEN dead THEN 5 ELSE 1 END,
           at, at, at + interval '2 s', CASE WHEN dead OR waits THEN NULL ELSE at + interval '1 s' END,
           CASE WHEN dead OR waits THEN NULL ELSE 'web:12:abcdef' END, 'tenant' || n %% 50,
           CASE WHEN dead THEN E'Traceback (most recent call last):\\n  File "app/jobs.py", line 12, in send\\n'
                               || repeat('    some line of the code that failed\\n', 20)
                               || 'Error' || g || ': connection ' || n || ' refused' END,
           CASE WHEN dead THEN left(md5(g::text), 16) END
    FROM (
        SELECT n, n %% 100 = 7 AS dead, n %% 100 = 8 AS waits, (n / 100) %% %(groups)s AS g,
               now() - interval '7 days' * ((%(total)s - n)::float8 / %(total)s) AS at
        FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
    ) s
"""
FAILURES = """
    INSERT INTO redrive.failures (job_id, kind, claim, attempt, outcome, failed_at, duration, worker, error_type,
                                  message, traceback, fingerprint)
    SELECT id, kind, a, a, CASE a WHEN 3 THEN 'dead' ELSE 'retried' END, updated_at + a * interval '1 s', 0.4,
           'web:12:abcdef', 'Error' || substring(last_error FROM 'Error(\\d+)'),
           'connection ' || id || ' refused', last_error, fingerprint
    FROM redrive.jobs, generate_series(1, 3) AS a
    WHERE status = 'dead'
"""
STATS = """
    INSERT INTO redrive.stats (minute, kind, worker, minutes, succeeded, retried, died, ran, wait_seconds, run_seconds,
                               waits, runs)
    SELECT to_timestamp(floor(extract(epoch FROM now() - ago) / (60 * minutes)) * 60 * minutes), 'kind_' || k,
           CASE workers WHEN 4 THEN w::text ELSE '' END, minutes,
           (20 + 10 * sin(extract(epoch FROM ago) / 7000))::int * minutes, k %% 3, 0, 22 * minutes, 40, 60,
           ARRAY[0, 0, 3, 9, 12, 5, 1]::int[], ARRAY[0, 1, 2, 9, 20, 12, 4, 1]::int[]
    FROM (VALUES (1, 4, '0 h'::interval, '30 min'::interval, '1 min'::interval), (1, 1, '30 min', '2 h', '1 min'),
                 (10, 1, '2 h', '26 h', '10 min'), (60, 1, '26 h', '30 d', '1 h')
         ) AS v(minutes, workers, since, until, step)
    CROSS JOIN generate_series(0, %(kinds)s - 1) AS k
    CROSS JOIN generate_series(1, workers) AS w
    CROSS JOIN LATERAL (
        SELECT since + i * step AS ago FROM generate_series(0, 1000) AS i WHERE since + i * step < until
    ) t
    ON CONFLICT DO NOTHING
"""
WORKERS = """
    INSERT INTO redrive.workers (name, host, pid, version, kinds, concurrency, in_flight, lease, heartbeat_at)
    SELECT 'web:' || n || ':abcdef', 'web', n, '0.1.0',
           array(SELECT 'kind_' || k FROM generate_series(0, %(kinds)s - 1) k), 10, 3, interval '1 hour', now()
    FROM generate_series(1, 8) AS n
    ON CONFLICT (name) DO UPDATE SET heartbeat_at = now()
"""
RUNNING = """
    UPDATE redrive.jobs
    SET status = 'running', locked_by = 'web:1:abcdef', locked_at = now(), claims = 1, updated_at = now()
    WHERE id IN (
        SELECT id FROM redrive.jobs WHERE status = 'pending' ORDER BY kind, priority, lane, run_at, id LIMIT 24
    )
"""
PAGES = {
    "now": "/",
    "now, a day": "/?span=24h",
    "now, a week": "/?span=7d",
    "dead letters": "/dead",
    "dead letters of a kind": "/dead?kind=kind_3",
    "jobs": "/jobs",
    "jobs: dead": "/jobs?q=status:dead",
    "jobs: dead, by kind and error": "/jobs?q=status:dead+kind:kind_7+error:refused",
    "jobs: pending": "/jobs?q=status:pending",
    "jobs: running": "/jobs?q=status:running",
    "jobs: due, of a kind": "/jobs?q=status:due+kind:kind_4",
    "a job that is dead": "/jobs/100007",
    "a job that succeeded": "/jobs/4000000",
    "send back all of a kind?": "/jobs/confirm?do=requeue&all=1&q=status:dead+kind:kind_3",
    "kinds": "/kinds?kind=kind_1",
    "workers": "/workers",
    "schedules": "/schedules",
    "audit": "/audit",
}
SEARCHES = {
    "a payload that is not there": "/jobs?q=payload.to:nobody@example.com",
    "an error that is not there": "/jobs?q=status:dead+error:nothing-such",
    "a word that is not there": "/jobs?q=nothing-such",
}


def main() -> int:
    """Make the database, or take the one that was made, and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.desk", description=__doc__)
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep the database there, and use it again")
    parser.add_argument("--rows", type=int, default=FINISHED + DEAD + WAITING)
    parser.add_argument("--url", action="store_true", help="only say where the database is, and hold it until Enter")
    given = parser.parse_args()
    fresh = given.keep is None or not given.keep.exists()
    with DevServer(given.keep, keep=given.keep is not None, settings={"shared_buffers": "512MB"}) as server:
        if fresh:
            fill(server.url, given.rows)
        freshen(server.url)
        if given.url:
            print(server.url, flush=True)  # noqa: T201 - for whoever looks at it
            sys.stdin.readline()
            return 0
        queue = Queue(server.url)
        report = measure(queue) | {"ten tabs": tabs(queue)}
        queue.close()
    print(json.dumps(report, indent=2))  # noqa: T201 - the answer
    return 0 if report["missed"] == [] and report["ten tabs"]["statements_a_second"] <= 1 else 1


def fill(url: str, rows: int) -> None:
    """Make the jobs and their history."""
    migrate(url)
    with psycopg.connect(url, autocommit=True) as conn:
        for first in range(1, rows + 1, 500_000):
            last = min(first + 499_999, rows)
            conn.execute(JOBS, {"first": first, "last": last, "total": rows, "kinds": KINDS, "groups": GROUPS})
            print(f"{last:,} rows", file=sys.stderr, flush=True)  # noqa: T201 - it takes a while
        for statement in (FAILURES, RUNNING):
            conn.execute(statement)
        conn.execute("VACUUM ANALYZE")


def freshen(url: str) -> None:
    """Bring a database that was kept up to date: its schema, and what has to be of the last minutes."""
    migrate(url)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("TRUNCATE redrive.stats")
        for statement in (STATS, WORKERS):
            conn.execute(statement, {"kinds": KINDS})
        conn.execute("VACUUM ANALYZE redrive.stats")


def measure(queue: Queue) -> dict[str, Any]:
    """Ask for each page with nothing kept from before."""
    pages = desk(queue, local=True)
    browser = TestClient(pages, base_url="http://localhost", client=("127.0.0.1", 1))
    figures: dict[str, dict[str, int]] = {}
    missed = []
    for name, path in {**PAGES, **SEARCHES}.items():
        browser.get(path)
        times, busy = [], Busy(queue)
        for _ in range(TRIES):
            pages.shared.forget()  # type: ignore[attr-defined] # desk() says no more than that it is an application
            began = time.perf_counter()
            answer = browser.get(path)
            times.append(time.perf_counter() - began)
            if answer.status_code != 200:  # noqa: PLR2004 - all is well
                missed.append(f"{name}: {answer.status_code}")
        took = busy.took() / TRIES
        figures[name] = {"busy": round(took * 1000), "least": round(min(times) * 1000)}
        if took > (BUDGETED if name in SEARCHES else BAR):
            missed.append(name)
    return {"milliseconds": figures, "missed": missed, "load": round(os.getloadavg()[0], 1)}


class Busy:
    """The processor time of this process and of its sessions: what a page costs, whatever else the machine does."""

    def __init__(self, queue: Queue) -> None:
        self._url = queue.settings.database_url
        self._began = self._spent()

    def took(self) -> float:
        """Give the seconds since it was made."""
        return self._spent() - self._began

    def _spent(self) -> float:
        with psycopg.connect(self._url) as conn:
            rows = conn.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'redrive queue'").fetchall()
        ticks = 0
        for (pid,) in rows:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def tabs(queue: Queue) -> dict[str, Any]:
    """Let ten tabs poll the first page as the script of the desk does, every five seconds."""
    pages = desk(queue, local=True)
    until = time.monotonic() + POLLED
    asked, requests = pages.reader.asked, [0]  # type: ignore[attr-defined] # as above

    def tab(number: int) -> None:
        browser = TestClient(pages, base_url="http://localhost", client=("127.0.0.1", 1))
        time.sleep(number * 0.5)
        while time.monotonic() < until:
            browser.get("/")
            requests[0] += 1
            time.sleep(5)

    threads = [threading.Thread(target=tab, args=(number,)) for number in range(TABS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statements = pages.reader.asked - asked  # type: ignore[attr-defined] # as above
    return {"requests": requests[0], "statements": statements, "statements_a_second": round(statements / POLLED, 2)}


if __name__ == "__main__":
    os.environ.pop("REDRIVE_UI_PASSWORD", None)
    sys.exit(main())
