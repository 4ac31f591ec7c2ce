"""Adopted tables at work: real workers, the old script beside them where the table has a word for that, nothing twice.

A few rows of each shape in every run; 200 of each by ``make adopt-proof``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from adopted import BLIND, INSERTS, MAPS, adopt, insert, make, map_of, rows
from redrive.adopt.proposal import propose
from redrive.adopt.report import report
from redrive.adopt.survey import survey
from support import wait_for

APP = """
import os, signal
import psycopg
from redrive import Dead, Queue, Retry
from redrive.backoff import fixed

queue = Queue()
conns = {}


def note(job, said):
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        conn.execute(
            "insert into public.done (row_key, by, attempt, idempotency_key) values (%s, %s, %s, %s)",
            (
                job.metadata["adopted"]["table"].removeprefix("public.") + " " + job.metadata["adopted"]["row"],
                said,
                job.attempt,
                job.idempotency_key,
            ),
        )


@queue.handler("work", backoff=fixed(0.3))
def work(payload, job):
    number = next(int(payload[name]) for name in ("n", "subject", "body", "template", "event") if name in payload)
    if number % 10 == 3:
        note(job, "no such address")
        raise Dead("no such address")
    if number % 10 == 7 and job.attempt < 3:
        note(job, "not now")
        raise RuntimeError("not now")
    if number == 1_000_000 and job.crashes == 0 and job.claim == 1:
        note(job, "redrive")
        os.kill(os.getpid(), signal.SIGKILL)
    note(job, "redrive")
"""
OLD = Path(__file__).with_name("old_cron.py")
DONE = "CREATE TABLE done (row_key text, by text, attempt int, idempotency_key text, at timestamptz DEFAULT now())"
FIND = {
    "mail_jobs": "SELECT id FROM mail_jobs WHERE status IN ('pending', 'deferred') AND retry_count < 5 LIMIT 20",
    "mail_simple": "SELECT id FROM mail_simple WHERE status = 'queued' AND attempts < 3 LIMIT 20",
    "bg_jobs": "SELECT id FROM bg_jobs WHERE status IN ('pending', 'retrying') AND scheduled_at <= now() LIMIT 20",
    "mail_flag": "SELECT id FROM mail_flag WHERE sent = false",
}
MARK = {
    "mail_jobs": "UPDATE mail_jobs SET status = 'sent', processed_at = now() WHERE id = %s",
    "mail_simple": "UPDATE mail_simple SET status = 'sent', sent_at = now() WHERE id = %s",
    "bg_jobs": "UPDATE bg_jobs SET status = 'completed', completed_at = now() WHERE id = %s",
    "mail_flag": "UPDATE mail_flag SET sent = true WHERE id = %s",
}
ENDS = {
    "mail_jobs": ("status", "sent", "failed"),
    "mail_flag": ("sent", True, False),
    "mail_null": ("sent_at", ..., None),
    "mail_simple": ("status", "sent", "failed"),
    "hook_delivery": ("status", "delivered", "abandoned"),
    "bg_jobs": ("status", "completed", "failed"),
    "outbox": ("status", "PUBLISHED", "FAILED"),
    "mail_delete": None,
}


class Cron:
    """The old script, as a process of its own."""

    def __init__(self, dsn: str, table: str, name: str = "cron", seconds: float = 60) -> None:
        command = [sys.executable, str(OLD), dsn, table, FIND[table], MARK[table], name, str(seconds)]
        self.process = subprocess.Popen(command, env={**os.environ})

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def done(conn: psycopg.Connection, by: str) -> Counter[str]:
    """How often each row was done by somebody whose name begins so."""
    return Counter(row[0] for row in conn.execute("SELECT row_key FROM done WHERE by LIKE %s", [by + "%"]))


def prove(db: str, conn: psycopg.Connection, start_worker: Any, counts: dict[str, int], *, proposed: bool) -> None:
    """Connect tables, insert so many rows into each, and look at what became of every one."""
    make(conn, *counts)
    conn.execute(DONE)
    for table in BLIND & counts.keys():
        insert(conn, table, 20)
    old = {table: keys(conn, table) for table in counts}
    [now] = conn.execute(
        "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.USZ')"
    ).fetchone()
    for table in counts:
        document = proposal(conn, table) if proposed else map_of(table)
        adopt(conn, table, beside=table in BLIND, document={**document, "cutover": now})
    crons = [Cron(db, table) for table in BLIND & counts.keys()]
    try:
        start_worker(APP, "--concurrency", "8", "--lease", "5")
        for table, count in counts.items():
            insert_new(conn, table, count)
        wait_for(lambda: ended(conn) == sum(counts.values()), 90)
        wait_for(lambda: set(done(conn, "cron")) == set().union(*old.values()), 30)
    finally:
        for cron in crons:
            cron.stop()
    once, not_now, never = done(conn, "redrive"), done(conn, "not now"), done(conn, "no such address")
    assert set(once.values()) == {1}, "each is done once"
    assert not set(once) & set(done(conn, "cron")), "by one of the two"
    assert set(not_now.values()) == {2}
    assert set(never.values()) == {1}
    for table, count in counts.items():
        dead = sum(number % 10 == 3 for number in range(1, count + 1))
        assert len([key for key in never if key.startswith(f"{table} ")]) == dead
        assert len([key for key in once if key.startswith(f"{table} ")]) == count - dead
        assert len([key for key in not_now if key.startswith(f"{table} ")]) == dead, "as many"
        there = {f"{table} {row['id']}": row for row in rows(conn, table)}
        if (words := ENDS[table]) is None:
            assert there.keys() == {key for key in never if key.startswith(f"{table} ")}
            continue
        column, good, bad = words
        found = {
            (key in once, row[column] if good is not ... else row[column] is not None)
            for key, row in there.items()
            if key not in old[table]
        }
        assert found == {(True, True if good is ... else good), (False, False if good is ... else bad)}


def proposal(conn: psycopg.Connection, table: str) -> dict[str, Any]:
    """What `redrive adopt TABLE --map` proposes, with the answers of a human who knows the application."""
    draft = propose(report(conn, survey(conn, table), zone="UTC", most=3))
    document = tomllib.loads(draft.text())
    answers = map_of(table)
    for part in document:
        if isinstance(document[part], dict) and "?" in str(document[part]):
            document[part] = answers[part]
    document.pop("kind_column", None)
    # of the proposals' own kinds and payloads each test of them knows; the handler here wants the row's number
    return {**document, "kind": "work", "payload": answers.get("payload", {"form": "row"})}


def keys(conn: psycopg.Connection, table: str) -> set[str]:
    return {f"{table} {row['id']}" for row in rows(conn, table)}


def insert_new(conn: psycopg.Connection, table: str, count: int) -> None:
    """Insert in a few statements, as an application does."""
    for first in range(1, count + 1, 50):
        past = min(first + 50, count + 1)
        said = INSERTS[table].replace("generate_series(1, %s)", "generate_series(%s::int, %s::int)")
        conn.execute(said, [first, past - 1])


def ended(conn: psycopg.Connection) -> int:
    found = conn.execute("select count(*) from redrive.jobs where status in ('succeeded', 'dead', 'failed')").fetchone()
    return int(found[0])


def test_rows_fail_succeed_and_die_each_done_once_beside_the_old_script_ad_04(db, conn, start_worker):
    """AD-03, AD-04: the eight shapes, of which three have a word for a row that is taken."""
    counts = {table: 200 if table in ("mail_jobs", "bg_jobs") else 20 for table in MAPS}
    prove(db, conn, start_worker, counts, proposed=False)


@pytest.mark.proof
def test_two_hundred_rows_of_every_shape(db, conn, start_worker):
    """Looked at, mapped by what is proposed, connected, and worked."""
    prove(db, conn, start_worker, dict.fromkeys(MAPS, 200), proposed=True)


def test_four_old_scripts_do_everything_several_times_and_redrive_once(db, conn, start_worker):
    """CL-03."""
    make(conn, "mail_flag")
    conn.execute(DONE)
    insert(conn, "mail_flag", 200)
    conn.execute("BEGIN; LOCK TABLE done IN ACCESS EXCLUSIVE MODE")  # so that all four have read before any has done
    scripts = [Cron(db, "mail_flag", f"cron {number}", 5) for number in range(4)]
    waiting = "SELECT count(*) = 4 FROM pg_locks WHERE NOT granted AND relation = 'done'::regclass"
    wait_for(lambda: conn.execute(waiting).fetchone()[0], 20)
    conn.execute("COMMIT")
    wait_for(lambda: sum(done(conn, "cron").values()) >= 790, 30)
    for script in scripts:
        script.stop()
    assert {count > 1 for count in done(conn, "cron").values()} == {True}
    conn.execute("UPDATE mail_flag SET sent = false; TRUNCATE done")
    adopt(conn, "mail_flag")
    for _ in range(2):
        start_worker(EVERYTHING, "--concurrency", "8")
    wait_for(lambda: sum(done(conn, "redrive").values()) == 200, 30)
    wait_for(lambda: all(row["sent"] for row in rows(conn, "mail_flag")))
    assert set(done(conn, "redrive").values()) == {1}


def test_a_worker_that_dies_between_the_deed_and_its_note_shows_the_same_key_at_the_next_try(conn, start_worker):
    """UN-07: at least once, and the receiver can tell a repeat."""
    make(conn, "mail_simple")
    conn.execute(DONE)
    adopt(conn, "mail_simple")
    worker = start_worker(APP, "--lease", "2")
    conn.execute("INSERT INTO mail_simple (subject) VALUES ('1000000')")
    wait_for(lambda: not worker.running, 20)
    assert [row["status"] for row in rows(conn, "mail_simple")] == ["sending"]
    start_worker(APP, "--lease", "2")
    wait_for(lambda: [row["status"] for row in rows(conn, "mail_simple")] == ["sent"], 30)
    keys = conn.execute("SELECT count(*), count(DISTINCT idempotency_key) FROM done").fetchone()
    assert keys == (2, 1)


@pytest.mark.proof
def test_an_application_that_inserts_while_the_table_is_disconnected_loses_nothing(db, conn, start_worker):
    """--undo under load: each row is done by redrive or waits by its own words."""
    from redrive.adopt import undo  # noqa: PLC0415 - as in the command

    make(conn, "mail_simple")
    conn.execute(DONE)
    adopt(conn, "mail_simple")
    start_worker(APP, "--concurrency", "4")
    stop = threading.Event()

    def insert_on() -> None:
        with psycopg.connect(db, autocommit=True) as application:
            while not stop.wait(0.02):
                application.execute("INSERT INTO mail_simple (subject) SELECT '1' FROM generate_series(1, 5)")

    inserting = threading.Thread(target=insert_on)
    inserting.start()
    wait_for(lambda: ended(conn) > 20, 30)
    done_ = undo.undo(conn, "redrive", "mail_simple", patience=30)
    stop.set()
    inserting.join()
    assert done_.done
    once = done(conn, "redrive")
    assert set(once.values()) == {1}
    for row in rows(conn, "mail_simple"):
        assert row["status"] == ("sent" if f"mail_simple {row['id']}" in once else "queued")


EVERYTHING = APP.replace("number % 10 == 3", "False").replace("number % 10 == 7", "False")
