"""Run the soak: ``python -m benchmarks.soak --minutes 15``, or ``make soak MINUTES=15``.

The last line on standard output is the verdict, as JSON; the exit code is 1 when a bar was broken. Ctrl-C ends the load
and judges what there is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.soak.load import Load
from benchmarks.soak.picture import draw
from benchmarks.soak.verdict import Bars, broken, figures
from benchmarks.soak.watch import Watch
from redrive.dev_server import DevServer
from redrive.migrate import migrate

ROOT = Path(__file__).parents[2]
APPLICATION = "benchmarks.soak.application:queue"
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "max_wal_size": "1GB"}
"""As Postgres comes, and not as a development server is set."""
DRAIN = 60.0
TELL_EVERY = 10


def main() -> int:
    """Set up, run, judge, tear down."""
    given = arguments()
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    with server(given.database) as dsn, tempfile.TemporaryDirectory() as notes:
        migrate(dsn)
        with psycopg.connect(dsn) as conn:
            [(version,)] = conn.execute("SHOW server_version").fetchall()
        with workers(dsn, Path(notes), given.workers) as pids:
            load = Load(dsn, given.rate, given.hold)
            watch = Watch(dsn, Path(notes), pids)
            try:
                soak(dsn, load, watch, given.minutes * 60, stopping)
            finally:
                load.stop()
                load.release()
        watch.close()
        found = figures(dsn, watch, Path(notes), load)
    if load.error:
        raise load.error
    faults = broken(found, given.rate, Bars(given.most_backlog, given.claim_p99, given.least_load))
    found = {
        **found,
        "backlog_s_max": round(found["backlog_jobs_max"] / given.rate, 2),
        "rate": given.rate,
        "workers": given.workers,
        "postgres": version.split()[0],
        "broken": faults,
    }
    if given.out:
        settings = {"rate": given.rate, "hold_s": given.hold, "most_backlog_s": given.most_backlog}
        settings["claim_p99_ms"] = given.claim_p99
        document = {"settings": settings, "verdict": found, "samples": watch.columns}
        given.out.with_suffix(".json").write_text(json.dumps(document) + "\n")
        given.out.with_suffix(".svg").write_text(draw(document))
    for fault in faults:
        say(fault)
    sys.stdout.write(json.dumps(found) + "\n")
    return 1 if faults else 0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0, help="how long the load goes on")
    parser.add_argument("--rate", type=float, default=800.0, help="jobs a second")
    parser.add_argument("--workers", type=int, default=1, help="worker processes")
    parser.add_argument("--hold", type=float, default=120.0, help="seconds that each of three transactions is open")
    parser.add_argument("--most-backlog", type=float, default=Bars.backlog, help="bar: seconds of work that may wait")
    parser.add_argument("--claim-p99", type=float, default=Bars.claim_p99, help="bar: milliseconds")
    parser.add_argument("--least-load", type=float, default=Bars.load, help="bar: the part of the rate to be reached")
    parser.add_argument("--database", help="URL of a database without jobs; a server of its own unless given")
    parser.add_argument("--out", type=Path, help="where picture and samples go, without the ending: benchmarks/soak")
    return parser.parse_args()


@contextlib.contextmanager
def server(url: str | None) -> Iterator[str]:
    """Give the database: one of a server of its own, with the durability of any other, or the one that was named."""
    if url is None:
        with DevServer(settings=DURABLE) as own:
            yield own.url
        return
    with psycopg.connect(url) as conn:
        if conn.execute("SELECT to_regclass('redrive.jobs')").fetchone() != (None,):
            has = conn.execute("SELECT EXISTS (SELECT FROM redrive.jobs)").fetchone()
            if has == (True,):
                sys.exit("there are jobs in that database: name one without")
    yield url


@contextlib.contextmanager
def workers(dsn: str, notes: Path, count: int) -> Iterator[list[int]]:
    """Run worker processes as a user does, and stop them as an operator does."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = os.environ | {"DATABASE_URL": dsn, "SOAK_NOTES": str(notes), "PYTHONPATH": path}
    command = [sys.executable, "-m", "redrive", "worker", APPLICATION]
    log = notes / "workers.log"
    with log.open("wb") as out:
        # a session of their own: Ctrl-C is ours to mean something by
        running = [
            subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=out, start_new_session=True)  # noqa: S603 - ourselves
            for _ in range(count)
        ]
    try:
        _until_they_beat(dsn, running)
        yield [each.pid for each in running]
        _still_there(running)
    except BaseException:
        say(log.read_text(errors="replace")[-4000:])
        raise
    finally:
        for each in running:
            each.terminate()
        for each in running:
            each.wait(60)


def soak(dsn: str, load: Load, watch: Watch, seconds: float, stopping: threading.Event) -> None:
    """Watch the load second by second, then let the workers finish while the horizon is still held."""
    load.start()
    began = time.monotonic()
    number = 0
    while not load.error and (left := began + seconds - time.monotonic()) > 0:
        number += 1
        if stopping.wait(max(0.0, min(left, began + number - time.monotonic()))):
            say("stopped: judging what there is")
            break
        watch.sample(load.count)
        if number % TELL_EVERY == 0:
            last: dict[str, Any] = {name: values[-1] for name, values in watch.columns.items()}
            say(
                "{at:6.0f} s  {committed:9.0f} jobs  {backlog:5.0f} wait  claim p99 {claim_ms_p99:6.2f} ms"
                "  {dead_tuples:8.0f} dead  {rss_mb:5.1f} MB".format(**last)
            )
    load.stop()
    end = time.monotonic() + DRAIN
    with psycopg.connect(dsn, autocommit=True) as conn:
        open_jobs = "SELECT EXISTS (SELECT FROM redrive.jobs WHERE id >= %s AND status IN ('pending', 'running'))"
        while time.monotonic() < end and conn.execute(open_jobs, [watch.low]).fetchone() == (True,):
            time.sleep(0.1)


def _still_there(running: list[subprocess.Popen[bytes]]) -> None:
    if any(each.poll() is not None for each in running):
        raise RuntimeError("a worker ended by itself")


def _until_they_beat(dsn: str, running: list[subprocess.Popen[bytes]]) -> None:
    end = time.monotonic() + 30
    with psycopg.connect(dsn, autocommit=True) as conn:
        while conn.execute("SELECT count(*) FROM redrive.workers").fetchone() != (len(running),):
            _still_there(running)
            if time.monotonic() > end:
                raise RuntimeError("the workers did not start")
            time.sleep(0.05)


def say(text: str) -> None:
    """Tell whoever watches."""
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
