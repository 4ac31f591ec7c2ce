"""A database's password stands in no log, no list of processes, no session's name, no traceback and no repr."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import traceback
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from redrive import Queue
from redrive.settings import load
from shell import redrive
from support import wait_for
from support_engine import plain_insert

SECRET = "hunter2-or-so"
APP = """
import os
from redrive import Queue

queue = Queue()


@queue.handler("apart", isolation="process")
def apart(payload):
    return os.getpid()


@queue.handler("fails", max_attempts=1)
def fails(payload):
    raise RuntimeError("could not reach " + os.environ["DATABASE_URL"])
"""


@pytest.fixture
def secret(db, conn):
    """The DSN of a role with a password of its own."""
    role = f"r_{os.urandom(5).hex()}"
    conn.execute(SQL("create role {} superuser login password {}").format(Identifier(role), SECRET))
    yield make_conninfo(db, user=role, password=SECRET)
    conn.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [role])
    wait_for(lambda: not conn.execute("select from pg_stat_activity where usename = %s", [role]).fetchall())
    conn.execute(SQL("drop role {}").format(Identifier(role)))


def family(pid: int) -> list[int]:
    """A process and all that it has started."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="no /proc to look into")
def test_a_worker_and_its_children_tell_the_password_to_nobody(conn, secret, start_worker):
    worker = start_worker(APP, "--processes", "2", "--lease", "1.5", dsn=secret)
    jobs = [plain_insert(conn, kind, max_attempts=1) for kind in ("apart", "fails")]
    ended = "select count(*) from redrive.jobs where status in ('succeeded', 'dead')"
    wait_for(lambda: conn.execute(ended).fetchone() == (2,), 30)
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in family(worker.pid)]
    assert len(lines) >= 3
    assert not [line for line in lines if SECRET.encode() in line]
    activity = conn.execute("select application_name, query from pg_stat_activity where query !~ 'pg_stat'").fetchall()
    assert SECRET not in str(activity)
    # it loses every session, and tells of it
    ours = "datname = current_database() and application_name like 'redrive %'"
    conn.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {ours}")
    wait_for(lambda: "does not answer" in worker.log(), 15)
    worker.stop()
    assert SECRET not in worker.log()
    # what a handler itself puts into its error is the application's, and stays in its tables; it is shown without
    assert SECRET not in redrive(secret, "show", jobs[1]).output + redrive(secret, "dead").output


@pytest.mark.parametrize("given", ["flag", "environment"])
def test_a_database_that_refuses_is_told_of_without_the_password(db, tmp_path, given):
    dsn = make_conninfo(db, user="nobody-of-that-name", password=SECRET)
    (tmp_path / "app.py").write_text(APP)
    flags = ["--database-url", dsn] if given == "flag" else []
    env = os.environ | {"PYTHONPATH": str(tmp_path)} | ({} if flags else {"DATABASE_URL": dsn})
    for words in (["jobs"], ["worker", "app:queue", "--exit-on-db-loss", "0.2"]):
        command = [sys.executable, "-m", "redrive", *words, *flags]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode
        assert SECRET not in done.stdout + done.stderr


def test_what_is_printed_pickled_or_raised_has_no_password_in_it(db, caplog):
    dsn = make_conninfo(db, user="nobody-of-that-name", password=SECRET)
    settings = load({"database_url": dsn, "listen_dsn": dsn})
    queue = Queue(dsn)
    assert SECRET not in repr(settings) + str(settings) + repr(queue) + repr(queue.settings)
    assert load({"database_url": dsn}) == pickle.loads(pickle.dumps(load({"database_url": dsn})))  # noqa: S301 - our own
    with caplog.at_level(logging.DEBUG), pytest.raises(psycopg.OperationalError) as caught:
        queue.enqueue("k")
    assert SECRET not in "".join(traceback.format_exception(caught.value)) + caplog.text
