"""The worker in Node of examples/node, beside one of redrive's: leases, fencing, retries, cancels, and a clean end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pages import ROOT, blocks
from support import TETHER, wait_for
from ways import url

NODE = shutil.which("node")
EXAMPLE = ROOT / "examples" / "node"
MAIN = """
    import { existsSync } from 'node:fs'
    import pg from 'pg'
    import { Worker } from './worker.mjs'

    const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL })
    pool.on('error', () => {})
    const told = (signal) => new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
    const worker = new Worker(pool, {
      add: async ({ a, b }) => a + b,
      fail: async () => { throw new RangeError('no\\u0000 way') },
      odd: async () => 'a\\u0000b',
      wait: async ({ file }, { signal }) => {
        while (!existsSync(file)) { signal.throwIfAborted(); await new Promise((r) => setTimeout(r, 10)) }
      },
      deaf: async ({ file }) => { while (!existsSync(file)) await new Promise((r) => setTimeout(r, 10)) },
    }, { lease: Number(process.env.LEASE ?? 30), poll: 0.05, grace: Number(process.env.GRACE ?? 20) })
    process.on('SIGTERM', () => worker.stop())
    await worker.run()
    await pool.end()
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with its one dependency."""
    npm = shutil.which("npm")
    if NODE is None or npm is None:
        pytest.skip("no node and npm here")
    place = tmp_path_factory.mktemp("node") / "node"
    shutil.copytree(EXAMPLE, place, ignore=shutil.ignore_patterns("node_modules"))
    command = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False, timeout=100)
    if done.returncode:
        pytest.skip(f"npm can't install pg here: {done.stderr[-200:]}")
    (place / "test.mjs").write_text(MAIN)
    return place


class Program:
    """A program of the example, and what it has said."""

    def __init__(self, place: Path, script: str, db: str, log: Path, **env: str) -> None:
        self._log = log
        where = url(db, "x").set(drivername="postgresql").render_as_string(hide_password=False)
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*TETHER, NODE, script],
                cwd=place,
                env=os.environ | {"DATABASE_URL": where} | env,
                stdout=out,
                stderr=out,
            )

    def log(self) -> str:
        return self._log.read_text()


@pytest.fixture
def node(installed: Path, db: str, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start a program of the example on `db`."""
    programs: list[Program] = []

    def start(script: str = "test.mjs", **env: str) -> Program:
        programs.append(Program(installed, script, db, tmp_path / f"node_{len(programs)}.log", **env))
        return programs[-1]

    yield start
    for program in programs:
        program.process.kill()
        program.process.wait()
        print(program.log())  # noqa: T201 # pytest shows it when the test failed


def enqueue(conn: psycopg.Connection[Any], kind: str, payload: Any = None, **options: Any) -> int:
    names = {"max_attempts": 5, "key": None} | options
    made = conn.execute(
        "SELECT redrive.enqueue(%s, %s, max_attempts => %s, key => %s)",
        [kind, json.dumps(payload or {}), names["max_attempts"], names["key"]],
    )
    return made.fetchone()[0]


def job(conn: psycopg.Connection[Any], number: int) -> Any:
    row = "SELECT status, attempts, result, last_error, key, locked_by FROM redrive.jobs WHERE id = %s"
    return conn.execute(row, [number]).fetchone()


def test_it_runs_retries_and_buries_and_hears_a_cancel(node, conn, tmp_path):
    added, failing = enqueue(conn, "add", {"a": 2, "b": 3}), enqueue(conn, "fail", key="k")
    last, odd = enqueue(conn, "fail", max_attempts=1, key="last"), enqueue(conn, "odd", max_attempts=1)
    paused = enqueue(conn, "deaf", {"file": "/"})
    conn.execute("INSERT INTO redrive.kinds (kind, paused_at) VALUES ('deaf', now())")
    waiting = enqueue(conn, "wait", {"file": str(tmp_path / "never")})
    worker = node(LEASE="3")
    wait_for(lambda: job(conn, added)[:3] == ("succeeded", 1, 5), 20)
    wait_for(lambda: job(conn, failing)[0] == "pending" and job(conn, failing)[1] == 1)
    wait_for(lambda: job(conn, last)[0] == job(conn, odd)[0] == "dead")
    assert job(conn, failing)[3:] == ("RangeError: no\ufffd way", "k", None)
    assert job(conn, last)[3:] == ("RangeError: no\ufffd way", None, None)
    assert job(conn, odd)[3].startswith("NotStorable: ")
    failures = conn.execute(
        "SELECT outcome, attempt, error_type, key, traceback LIKE '%%at %%' FROM redrive.failures"
        " WHERE job_id IN (%s, %s) ORDER BY job_id",
        [failing, last],
    ).fetchall()
    assert failures == [("retried", 1, "RangeError", "k", True), ("dead", 1, "RangeError", "last", True)]
    wait_for(lambda: job(conn, waiting)[0] == "running")
    conn.execute("UPDATE redrive.jobs SET cancel_requested_at = now() WHERE id = %s", [waiting])
    wait_for(lambda: job(conn, waiting)[0] == "failed", 20)
    assert job(conn, waiting)[3] == "cancelled while it ran"
    assert job(conn, paused)[0] == "pending"
    worker.process.terminate()
    assert worker.process.wait(20) == 0
    assert conn.execute("SELECT count(*) FROM redrive.workers").fetchone() == (0,)


def test_a_lost_lease_counts_for_nothing_and_a_stop_hands_back(node, conn, tmp_path):
    go = tmp_path / "go"
    lost, kept = enqueue(conn, "deaf", {"file": str(go)}), enqueue(conn, "wait", {"file": str(tmp_path / "never")})
    worker = node(GRACE="0")
    wait_for(lambda: job(conn, lost)[0] == job(conn, kept)[0] == "running", 20)
    conn.execute("UPDATE redrive.jobs SET claims = claims + 1, locked_by = 'another' WHERE id = %s", [lost])
    go.touch()
    wait_for(lambda: f"job {lost} is not this worker's any more" in worker.log())
    assert (job(conn, lost)[0], job(conn, lost)[5]) == ("running", "another")
    worker.process.terminate()
    assert worker.process.wait(20) == 0
    assert job(conn, kept)[:2] == ("pending", 0)


def test_its_jobs_are_kept_as_long_as_it_lives_and_taken_back_when_it_is_killed(node, conn, start_worker, tmp_path):
    number = enqueue(conn, "deaf", {"file": str(tmp_path / "never")})
    worker = node(LEASE="1")
    wait_for(lambda: job(conn, number)[0] == "running", 20)
    other = 'from redrive import Queue\nqueue = Queue()\nqueue.handler("other")(print)\n'
    start_worker(other, "--lease", "1", "--heartbeat", "0.3")
    beats = "SELECT heartbeat_at FROM redrive.workers WHERE version = 'node'"
    begun = conn.execute(beats).fetchone()[0]
    wait_for(lambda: (conn.execute(beats).fetchone()[0] - begun).total_seconds() > 2)
    assert job(conn, number)[:2] == ("running", 1), "twice its lease is over, and it beats"
    worker.process.send_signal(signal.SIGKILL)
    wait_for(lambda: job(conn, number)[0] == "pending", 20)
    assert "fell silent" in job(conn, number)[3]


def test_the_example_enqueues_in_its_own_transaction_and_works_it_off(node, conn):
    made = node("enqueue.mjs")
    assert made.process.wait(20) == 0
    assert made.log() == "1\n"
    assert conn.execute("SELECT name FROM pictures").fetchall() == [("cat.png",)]
    worker = node("main.mjs")
    wait_for(lambda: job(conn, 1)[:3] == ("succeeded", 1, {"width": 100}), 20)
    worker.process.terminate()
    assert worker.process.wait(20) == 0
    assert worker.log() == "resized cat.png\n"


def test_the_page_has_the_statements_of_the_example():
    """docs/polyglot.md runs them; each is the example's word for word, but for the PREPARE before it."""
    source = (EXAMPLE / "worker.mjs").read_text()
    said = dict(re.findall(r"^  (\w+): `\n(.*?)`,$", source, re.MULTILINE | re.DOTALL))
    shown = " ".join(" ".join(block.text.split()) for block in blocks(ROOT / "docs" / "polyglot.md"))
    assert {name for name, text in said.items() if " ".join(text.split()) not in shown} == set()
    assert len(said) == 7
