"""``make bench-broker``: what a broker takes off the database, and how fast jobs go over it.

A Postgres with pg_stat_statements and a RabbitMQ, each of its own; the database's time is that of all statements as it
has them, per succeeded job. What it finds goes into benchmarks/results.json beside what ``make bench`` has found, each
figure under a name that begins with ``broker_``; ``make bench-page`` brings it to docs/scale.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.__main__ import rounded
from benchmarks.stage import SHIPPED
from chaos.programs import find_rabbitmq
from chaos.rabbit import Rabbit
from redrive import Queue
from redrive.amqp.direct import parcel
from redrive.amqp.link import Link
from redrive.dev_server import DevServer
from redrive.migrate import migrate
from redrive.store import Options

KIND = "broker_bench"
APP = "benchmarks.broker:application"
RESULTS = Path(__file__).parent / "results.json"
LOOK_EVERY = 0.02
MANY = 64

TIMES = os.environ.get("BENCH_BROKER_TIMES")
"""Of a worker process that is timed: the file for the times of its first and its last job."""
ran = 0
"""Jobs that this worker process has run."""
application = Queue()


@application.handler(KIND)
async def nothing(payload: Any) -> None:
    """Do nothing, but tell when the first and the last of so many ran: the broker's own counts are seconds old."""
    global ran  # noqa: PLW0603 - of this process
    ran += 1
    if TIMES and ran in (1, payload.get("of")):
        note_time(Path(TIMES))


def note_time(file: Path) -> None:
    """Add this moment to a file."""
    with file.open("a") as times:
        times.write(f"{time.monotonic()}\n")


class Bench:
    """Both servers, and what is measured on them."""

    def __init__(self, url: str, rabbit: Rabbit) -> None:
        self.url, self.rabbit = url, rabbit
        self.queue = Queue(url, broker_url=rabbit.amqp_url)
        self.conn = psycopg.connect(url, autocommit=True)
        self.conn.execute("create extension if not exists pg_stat_statements")
        migrate(url)

    def database_time(self) -> float:
        """Milliseconds of all statements so far."""
        row = self.conn.execute(
            "select coalesce(sum(total_exec_time + total_plan_time), 0) from pg_stat_statements s "
            "join pg_database d on d.oid = s.dbid and d.datname = current_database() "
            "where query !~ '^(select|truncate|create|checkpoint|WITH was AS)'"  # what this file says itself
        ).fetchone()
        assert row is not None  # noqa: S101 - an aggregate has one
        return float(row[0])

    def wal(self) -> float:
        """Bytes of write-ahead log so far."""
        row = self.conn.execute("select pg_current_wal_lsn() - '0/0'").fetchone()
        assert row is not None  # noqa: S101 - as above
        return float(row[0])

    def rows(self, status: str) -> int:
        """Count jobs."""
        row = self.conn.execute("select count(*) from redrive.jobs where status = %s", [status]).fetchone()
        assert row is not None  # noqa: S101 - as above
        return int(row[0])

    def at_broker(self) -> int:
        """Count what is ready or unacknowledged at the broker."""
        queues = self.rabbit.api("GET", "queues/%2F")
        return sum(each.get("messages", 0) for each in queues)

    @contextmanager
    def process(self, *words: str, count: int = 1, **also: str) -> Iterator[None]:
        """Have processes of the command line running, with these variables beside their own."""
        env = {**os.environ, **also, "REDRIVE_DATABASE_URL": self.url, "REDRIVE_BROKER_URL": self.rabbit.amqp_url}
        command = [sys.executable, "-m", "redrive", *words, "--log-level", "warning"]
        started = [subprocess.Popen(command, env=env) for _ in range(count)]  # noqa: S603 - ourselves
        try:
            yield
        finally:
            for each in started:
                each.terminate()
            for each in started:
                each.wait(60)

    def route(self, where: str) -> None:
        """Route the kind, on an empty table."""
        self.conn.execute("truncate redrive.jobs, redrive.failures")
        self.queue.kinds.route(KIND, where)

    def enqueue_singly(self, jobs: int, **how: Any) -> None:
        """Enqueue each job by itself, in a transaction of its own."""
        for n in range(jobs):
            self.queue.enqueue(KIND, {"n": n}, **how)

    def worker(self, **also: str) -> Any:
        """Have a worker process at the broker running."""
        return self.process("worker", APP, "--broker", self.rabbit.amqp_url, **also)


def until(done: Callable[[], bool], seconds: float = 300) -> float:
    """Wait; gives the seconds that it took."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > seconds:
            raise SystemExit("it did not come to an end")
        time.sleep(LOOK_EVERY)
    return time.monotonic() - began


def database_time(bench: Bench, jobs: int) -> dict[str, float]:
    """Compare the database's time of a succeeded job by each way; of the two over the table also enqueued at once."""
    found, wal = {}, {}
    for way in ("postgres", "amqp", "direct", "many_postgres", "many_amqp"):
        bench.route("postgres" if way.endswith("postgres") else "amqp")
        bench.conn.execute("checkpoint")  # or one way pays for whole pages that another has changed before it
        before, written = bench.database_time(), bench.wal()
        if way.startswith("many"):
            bench.queue.enqueue_many(KIND, ({"n": n} for n in range(jobs)))
        else:
            bench.enqueue_singly(jobs, **({"direct": True} if way == "direct" else {}))
        with ExitStack() as stack:
            if way.endswith("postgres"):
                stack.enter_context(bench.process("worker", APP))
                until(lambda: bench.rows("succeeded") == jobs)
            else:
                stack.enter_context(bench.worker())
                if way != "direct":
                    stack.enter_context(bench.process("relay"))
                until(lambda: bench.rows("pending") == 0 and bench.at_broker() == 0)
                time.sleep(2)  # the management API is a second late
                until(lambda: bench.at_broker() == 0)
        found[way] = (bench.database_time() - before) / jobs * 1000
        wal[way] = (bench.wal() - written) / jobs
    return {
        "wal_vs_postgres": wal["amqp"] / wal["postgres"],
        **{f"{way}_us": taken for way, taken in found.items()},
        "amqp_vs_postgres": found["amqp"] / found["postgres"],
        "direct_vs_postgres": found["direct"] / found["postgres"],
        "many_amqp_vs_postgres": found["many_amqp"] / found["many_postgres"],
    }


def speeds(bench: Bench, jobs: int) -> dict[str, float]:
    """Measure a relay, two of them, a worker, and the broker with nothing of ours around it but the library."""
    found: dict[str, float] = {"broker_alone_per_s": asyncio.run(alone(bench, jobs))}
    purge(bench)
    for relays in (1, 2):
        bench.route("amqp")
        bench.queue.kinds.pause(KIND)
        bench.queue.enqueue_many(KIND, ({"n": n, "of": jobs} for n in range(jobs)))
        with bench.process("relay", count=relays):
            time.sleep(3)  # to start and connect, which is not what is measured
            bench.queue.kinds.resume(KIND)
            found[f"relays_{relays}_per_s" if relays > 1 else "relay_per_s"] = jobs / until(
                lambda: bench.rows("pending") == 0
            )
        if relays == 1:
            found["worker_per_s"] = worked(bench, jobs)
    purge(bench)
    began = time.monotonic()
    bench.queue.enqueue_many(KIND, ({"n": n} for n in range(jobs)), direct=True)
    found["direct_per_s"] = jobs / (time.monotonic() - began)
    purge(bench)
    return found


def worked(bench: Bench, jobs: int) -> float:
    """Let one worker run what is at the broker: jobs a second from the first to the last."""
    until(lambda: bench.at_broker() >= jobs)
    with tempfile.TemporaryDirectory() as directory:
        times = Path(directory) / "times"
        with bench.worker(BENCH_BROKER_TIMES=str(times)):
            until(lambda: times.exists() and len(times.read_text().splitlines()) > 1)
            until(lambda: bench.at_broker() == 0)
        first, last = map(float, times.read_text().split())
    return jobs / (last - first)


def purge(bench: Bench) -> None:
    """Empty the broker."""
    bench.rabbit.purge()
    until(lambda: bench.at_broker() == 0)


async def alone(bench: Bench, jobs: int) -> float:
    """Publish with confirms, in batches, with no database: messages a second."""
    link = Link(bench.rabbit.amqp_url, "redrive", "bench")
    await link.open()
    parcels = [parcel("redrive", KIND, f'{{"n": {n}}}', Options()) for n in range(jobs)]
    await link.declare(KIND)
    began = time.monotonic()
    for start in range(0, jobs, 500):
        await link.publish(parcels[start : start + 500])
    took = time.monotonic() - began
    await link.close()
    return jobs / took


def sessions(bench: Bench, jobs: int) -> dict[str, float]:
    """Count the sessions at Postgres of many worker processes, while jobs go through them and succeed."""
    bench.route("amqp")
    asked = "select count(*) from pg_stat_activity where application_name like 'redrive home %'"
    seen = []
    with bench.process("worker", APP, "--broker", bench.rabbit.amqp_url, count=MANY):
        until(lambda: _workers(bench) >= MANY, 600)
        time.sleep(8)  # each has closed what it opened to say that it is there
        for start in range(0, jobs, 500):
            bench.queue.enqueue_many(KIND, ({"n": start + n} for n in range(500)), direct=True)
            row = bench.conn.execute(asked).fetchone()
            seen.append(row[0] if row else 0)
        until(lambda: bench.at_broker() == 0)
    return {"processes": MANY, "sessions_mean": sum(seen) / len(seen), "sessions_most": max(seen)}


def _workers(bench: Bench) -> int:
    row = bench.conn.execute("select count(*) from redrive.workers where heartbeat_at > now() - lease").fetchone()
    return int(row[0]) if row else 0


def main() -> None:
    """Measure all of it, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--without-sessions", action="store_true")
    parser.add_argument(
        "--only", choices=["database_time", "speeds", "sessions"], help="leave the other figures as they were"
    )
    given = parser.parse_args()
    scripts = find_rabbitmq()
    if scripts is None:
        raise SystemExit("no RabbitMQ here: apt-get install rabbitmq-server")
    settings = SHIPPED | {"shared_preload_libraries": "pg_stat_statements"}
    with DevServer(settings=settings) as server, Rabbit(scripts) as rabbit:
        bench = Bench(server.url, rabbit)
        found: dict[str, Any] = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "jobs": given.jobs,
            "machine": f"{os.cpu_count()} cores, {platform.machine()}",
            "python": platform.python_version(),
            "rabbitmq": rabbit.api("GET", "overview")["rabbitmq_version"],
        }
        measures: list[Callable[[Bench, int], dict[str, float]]] = [database_time, speeds]
        if not given.without_sessions:
            measures.append(sessions)
        for measure in (each for each in measures if given.only in (None, each.__name__)):
            began = time.monotonic()
            found |= measure(bench, given.jobs)
            sys.stderr.write(f"{measure.__name__}: {time.monotonic() - began:.0f} s\n")
        bench.queue.close()
        bench.conn.close()
    found = {f"broker_{name}": rounded(value) for name, value in found.items()}
    RESULTS.write_text(json.dumps(json.loads(RESULTS.read_text()) | found, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps(found, indent=2))  # noqa: T201 - for whoever runs it


if __name__ == "__main__":
    main()
