"""``redrive replay``: the handler runs here and now, and nothing is written of the job."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shell import answer, complaint, insert, process, redrive

APP = """
import psycopg, os
from redrive import Discard, Queue
queue = Queue()

@queue.handler("divide", sensitive=False)
def divide(payload, job):
    job.progress({"half": 1})
    with psycopg.connect(os.environ["DATABASE_URL"]) as conn:
        job.complete(conn)
    return inner(payload["n"])

def inner(number):
    secret = "password=hunter2"
    if number == 0:
        raise ZeroDivisionError(secret)
    return {"result": 12 / number, "attempt": 1}

@queue.handler("later")
async def later(payload, job):
    with await psycopg.AsyncConnection.connect(os.environ["DATABASE_URL"]) if False else open(os.devnull):
        pass
    return job.idempotency_key

@queue.handler("stop", isolation="process")
def stop(payload):
    raise Discard("enough")

@queue.handler("hidden", sensitive=True)
def hidden(payload):
    return payload
"""


@pytest.fixture(autouse=True)
def app(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "replayed_app.py").write_text(APP)
    monkeypatch.setenv("REDRIVE_APP", "replayed_app:queue")
    monkeypatch.delitem(sys.modules, "replayed_app", raising=False)  # its queue is of the test before


def whole(conn):
    return conn.execute("select * from redrive.jobs order by id").fetchall()


def test_it_shows_what_the_handler_returns_and_writes_nothing(db, conn):
    insert(conn, "divide", status="dead", attempts=5, payload='{"n": 3}', last_error="x")
    insert(conn, "later", status="dead")
    insert(conn, "hidden", status="failed", payload='{"n": "k-123456"}')
    before = whole(conn)
    shown = redrive(db, "replay", 1).stdout
    assert 'progress: {"half": 1}\njob.complete() was called; nothing was written of it\nsucceeded after ' in shown
    assert shown.endswith(': {"result": 4.0, "attempt": 1}\n')
    assert answer(db, "replay", 2)["result"].startswith("redrive-2-")
    assert answer(db, "replay", 3)["result"] == "***"
    assert whole(conn) == before
    assert conn.execute("select count(*) from redrive.failures").fetchone() == (0,)


def test_it_shows_what_the_handler_raises_without_secrets(db, conn):
    """OP-04."""
    insert(conn, "divide", status="dead", payload='{"n": 0}')
    insert(conn, "stop", status="dead")
    shown = redrive(db, "replay", 1, code=1).stdout
    assert "in inner" in shown
    assert "ZeroDivisionError: password=***\nfailed after " in shown
    found = answer(db, "replay", 1, code=1)
    assert (found["succeeded"], found["error"], found["completed"]) == (False, "ZeroDivisionError: password=***", True)
    assert "a worker would discard it" in redrive(db, "replay", 2, code=1).stdout


def test_the_debugger_opens_where_it_raised(db, conn, tmp_path):
    insert(conn, "divide", status="dead", payload='{"n": 0}')
    child = process(db, "replay", 1, "--pdb", cwd=tmp_path, stdin=subprocess.PIPE)
    out, _ = child.communicate("p 'number is', number\nup\np payload\nq\n", timeout=30)
    assert "('number is', 0)" in out
    assert "{'n': 0}" in out
    assert child.returncode == 1


def test_what_cannot_be_replayed_is_said(db, conn):
    insert(conn, "divide", status="running")
    insert(conn, "unknown", status="dead")
    assert "job 1 is running: a worker may run it at the same time" in complaint(redrive(db, "replay", 1, code=2))
    assert "unknown" in complaint(redrive(db, "replay", 2, code=2))
    assert "there is no job 9" in complaint(redrive(db, "replay", 9, code=1))
    assert "which application?" in complaint(redrive(db, "replay", 1, code=2, env={"REDRIVE_APP": ""}))
    assert "--pdb is for a human" in complaint(redrive(db, "replay", 1, "--pdb", "--json", code=2))
