"""A table made from the tutorial becomes redrive's own where it stands, while its hand-written worker goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import support
from redrive import Queue
from redrive.adopt.inplace import Step, plan, script
from redrive.adopt.survey import survey
from redrive.adopt.upgrade import carry_out
from redrive.errors import InvalidOption
from redrive.migrate import migrate
from shell import complaint, redrive
from support import TETHER, wait_for

ENUM = "CREATE TYPE job_status AS ENUM ('pending', 'running', 'succeeded', 'failed', 'dead');"
TABLE = """
CREATE TABLE jobs (
  id BIGSERIAL PRIMARY KEY, kind TEXT NOT NULL, payload JSONB NOT NULL DEFAULT '{}'::jsonb,
  status job_status NOT NULL DEFAULT 'pending', attempts INT NOT NULL DEFAULT 0, max_attempts INT NOT NULL DEFAULT 5,
  run_at TIMESTAMPTZ NOT NULL DEFAULT NOW(), locked_at TIMESTAMPTZ, locked_by TEXT, last_error TEXT,
  created_at TIMESTAMPTZ NOT NULL DEFAULT NOW(), updated_at TIMESTAMPTZ NOT NULL DEFAULT NOW());
CREATE INDEX idx_jobs_claim ON jobs (run_at) WHERE status = 'pending';
CREATE INDEX idx_jobs_status ON jobs (status, updated_at) WHERE status IN ('failed', 'dead') OR kind = 'status';
"""
TUTORIAL = ENUM + TABLE
PLAIN = TABLE.replace("status job_status NOT NULL", "status TEXT")
POOR = """
CREATE TABLE jobs (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind VARCHAR(40), payload JSONB,
  status TEXT, attempts INT, max_attempts INT DEFAULT 3, run_at TIMESTAMPTZ,
  CHECK (status IN ('pending', 'running', 'succeeded', 'failed', 'dead')));
"""

# The tutorial's loop, as its readers have it: no retries here, the effects are what counts.
LOOP = """
import os, time
import psycopg

CLAIM = '''
WITH claimed AS (
  SELECT id FROM jobs WHERE status = 'pending'::job_status AND run_at <= NOW()
  ORDER BY run_at FOR UPDATE SKIP LOCKED LIMIT 1
)
UPDATE jobs j SET status = 'running', attempts = j.attempts + 1, locked_at = NOW(), locked_by = %s, updated_at = NOW()
FROM claimed WHERE j.id = claimed.id
RETURNING j.id, j.kind, j.payload, j.attempts, j.max_attempts;
'''
conn = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
while True:
    row = conn.execute(CLAIM, (f"by-hand:{os.getpid()}",)).fetchone()
    if row is None:
        time.sleep(0.01)
        continue
    conn.execute("INSERT INTO effects VALUES (%s, 'hand')", (row[0],))
    conn.execute("UPDATE jobs SET status='succeeded', updated_at=NOW() WHERE id=%s", row[:1])
"""
APP = """
import os
import psycopg
from redrive import Queue

queue = Queue(os.environ["DATABASE_URL"], schema="public")

@queue.handler("mail")
def mail(payload, job):
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        conn.execute("INSERT INTO effects VALUES (%s, 'ours')", (job.id,))
"""
COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = 'jobs'::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attname <> 'id' ORDER BY 1
"""
THINGS = {
    "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1",
    "checks": "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'c' ORDER BY 1, 2",
    "triggers": "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1",
    "functions": "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1",
    "tables": "SELECT relname, relkind FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1",
    "storage": "SELECT reloptions FROM pg_class WHERE oid = 'jobs'::regclass",
    "versions": "SELECT version, name FROM migrations ORDER BY 1",
    "columns": COLUMNS,
}
THEIRS = ("idx_jobs_claim", "idx_jobs_status", "effects")


@pytest.fixture
def conn(empty_db) -> Iterator[psycopg.Connection]:
    with psycopg.connect(empty_db, autocommit=True) as connection:
        yield connection


def upgrade(conn: psycopg.Connection, **how: object) -> None:
    carry_out(conn, plan(conn, survey(conn, "jobs")), **how)


def things(conn: psycopg.Connection) -> dict[str, list]:
    """What is in the schema, but for what was the tutorial's."""
    found = {name: conn.execute(question).fetchall() for name, question in THINGS.items()}
    return {name: [row for row in rows if row[0] not in THEIRS] for name, rows in found.items()}


@pytest.fixture(scope="module")
def fresh(server_url: str) -> dict[str, list]:
    """What `redrive migrate --schema public` makes of an empty database."""
    with support.database(server_url) as dsn:
        migrate(dsn, "public")
        with closing(psycopg.connect(dsn, autocommit=True)) as connection:
            return things(connection)


# -- what it becomes


def test_it_ends_as_redrives_migrations_would_have_made_it(conn, fresh):
    conn.execute(TUTORIAL)
    conn.execute("INSERT INTO jobs (kind, status) SELECT 'mail', 'succeeded' FROM generate_series(1, 5000)")
    upgrade(conn)
    made = things(conn)
    for name in THINGS:
        if name == "checks":  # the domain's is not looked over again, for that would hold up every writer
            assert [(row[0], row[1].removesuffix(" NOT VALID")) for row in made[name]] == fresh[name]
        else:
            assert made[name] == fresh[name], name
    assert plan(conn, survey(conn, "jobs")).steps == ()
    assert conn.execute("SELECT status, count(*) FROM jobs GROUP BY 1").fetchall() == [("succeeded", 5000)]
    ends = "ARRAY['failed'::text, 'dead'::text]"
    theirs = conn.execute("SELECT indexdef FROM pg_indexes WHERE indexname LIKE 'idx%' ORDER BY 1").fetchall()
    assert [row[0].partition(" USING ")[2] for row in theirs] == [
        "btree (run_at) WHERE ((status)::text = 'pending'::text)",
        f"btree (status, updated_at) WHERE (((status)::text = ANY ({ends})) OR (kind = 'status'::text))",
    ]
    assert conn.execute("SELECT to_regtype('job_status_was'), to_regtype('redrive_job_status')").fetchone() == (
        None,
        None,
    )
    with pytest.raises(psycopg.errors.CheckViolation):
        conn.execute("INSERT INTO jobs (kind, status) VALUES ('mail', 'lost')")


@pytest.mark.parametrize("table", [PLAIN, POOR], ids=["text", "poor"])
def test_what_is_there_serves_and_what_is_missing_is_added(conn, fresh, table):
    conn.execute(table)
    conn.execute(
        "INSERT INTO jobs (kind, payload, status, attempts, run_at) VALUES ('mail', '{}', 'pending', 0, now())"
    )
    upgrade(conn)
    made = things(conn)
    for name in ("triggers", "functions", "tables", "versions", "storage"):
        assert made[name] == fresh[name], name
    assert [row[0] for row in made["columns"]] == [row[0] for row in fresh["columns"]]
    assert [row[2] for row in made["columns"]] == [row[2] for row in fresh["columns"]]
    assert [row[0] for row in made["indexes"]] == [row[0] for row in fresh["indexes"]]
    conn.execute("INSERT INTO jobs (kind) VALUES ('mail')")
    assert conn.execute("SELECT status = 'pending'::job_status FROM jobs").fetchall() == [(True,), (True,)]
    with pytest.raises(psycopg.errors.CheckViolation):
        conn.execute("INSERT INTO jobs (kind, status) VALUES ('mail', 'lost')")


class Stopped(Exception):
    pass


def test_wherever_it_stops_it_goes_on_from_there(conn, fresh):
    conn.execute(TUTORIAL)
    conn.execute("INSERT INTO jobs (kind) SELECT 'mail' FROM generate_series(1, 100)")

    def stop(number: int, step: Step) -> None:
        if number == 3:
            raise Stopped

    for _ in range(60):
        try:
            upgrade(conn, on_step=stop)
        except Stopped:
            continue
        break
    else:
        raise AssertionError("it does not come to an end")
    made = things(conn)
    assert all(made[name] == fresh[name] for name in THINGS if name != "checks")


def test_an_index_that_failed_half_way_is_made_anew(conn):
    conn.execute(PLAIN)
    conn.execute("INSERT INTO jobs (kind) VALUES ('a'), ('a')")
    conn.execute("ALTER TABLE jobs ADD COLUMN alone int")
    with pytest.raises(psycopg.errors.UniqueViolation):
        conn.execute("CREATE UNIQUE INDEX CONCURRENTLY jobs_running_idx ON jobs (kind)")
    conn.execute("ALTER TABLE jobs DROP COLUMN alone")
    upgrade(conn)
    [[definition]] = conn.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'jobs_running_idx'").fetchall()
    assert "(locked_by, id)" in definition


# -- while it goes on


def test_the_hand_written_worker_goes_on_and_ours_beside_it(empty_db, conn, tmp_path, start_worker):
    """Jobs come, the tutorial's loop works them all the while, ours joins it: each job is run once."""
    conn.execute(TUTORIAL + "CREATE TABLE effects (job bigint, by text)")
    conn.execute("INSERT INTO jobs (kind, status) SELECT 'mail', 'succeeded' FROM generate_series(1, 6000)")
    (tmp_path / "loop.py").write_text(LOOP)
    env = {**os.environ, "DATABASE_URL": empty_db}
    enough = threading.Event()
    made: list[int] = []

    def produce() -> None:
        with psycopg.connect(empty_db, autocommit=True) as own:
            while not enough.wait(0.005):
                made.append(own.execute("INSERT INTO jobs (kind) VALUES ('mail') RETURNING id").fetchone()[0])

    def by(whom: str) -> int:
        return conn.execute("SELECT count(*) FROM effects WHERE by = %s", (whom,)).fetchone()[0]

    producer = threading.Thread(target=produce)
    with (tmp_path / "loop.log").open("w") as log:
        loop = subprocess.Popen([*TETHER, sys.executable, str(tmp_path / "loop.py")], env=env, stdout=log, stderr=log)
    try:
        producer.start()
        wait_for(lambda: by("hand") > 10)
        with psycopg.connect(empty_db, autocommit=True) as own:
            carry_out(own, plan(own, survey(own, "jobs")))
        start_worker(APP, dsn=empty_db)
        before = by("hand")
        wait_for(lambda: by("ours") > 10 and by("hand") > before, 60)
        enough.set()
        producer.join()
        wait_for(lambda: conn.execute("SELECT count(*) FROM jobs WHERE status <> 'succeeded'").fetchone() == (0,), 60)
    finally:
        enough.set()
        loop.kill()
        loop.wait()
    assert (tmp_path / "loop.log").read_text() == ""
    runs, distinct = conn.execute("SELECT count(*), count(DISTINCT job) FROM effects").fetchone()
    assert runs == distinct == len(made)


def test_nobody_queues_behind_a_step_that_waits_for_its_lock_mg_03(empty_db, conn):
    """MG-03: a step gives up after a moment and tries again; a reader holds it up, and others get through."""
    conn.execute(TUTORIAL)
    told: list[str] = []
    with psycopg.connect(empty_db) as reader:
        reader.execute("SELECT * FROM jobs")

        def waits(line: str) -> None:
            told.append(line)
            with psycopg.connect(empty_db, autocommit=True) as other:
                other.execute("SET statement_timeout = '1s'; INSERT INTO jobs (kind) VALUES ('mail')")
            reader.rollback()

        upgrade(conn, on_wait=waits)
    assert told
    assert plan(conn, survey(conn, "jobs")).steps == ()


# -- what it refuses


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER TABLE jobs RENAME TO work", "it is not called jobs"),
        ("ALTER TABLE jobs DROP COLUMN max_attempts", "it has no column max_attempts"),
        ("ALTER TABLE jobs ALTER COLUMN run_at TYPE timestamp", "run_at is timestamp without time zone"),
        ("ALTER TABLE jobs ALTER COLUMN id TYPE int", "id is integer, and would have to be bigint"),
        ("ALTER TYPE job_status ADD VALUE 'lost'", "its states lost are none of redrive's"),
        ("CREATE VIEW seen AS SELECT status FROM jobs", "seen read its column status"),
        ("CREATE TABLE workers (id int); CREATE TABLE audit (id int)", "public has audit, workers already"),
        ("CREATE TABLE migrations (id int, batch int)", "a table migrations that redrive did not make"),
    ],
)
def test_what_is_in_the_way_is_told_before_anything_is_changed(conn, change, said):
    conn.execute(TUTORIAL)
    conn.execute(change)
    name = "work" if "RENAME" in change else "jobs"
    with pytest.raises(InvalidOption, match=said) as caught:
        plan(conn, survey(conn, name))
    assert "redrive adopt public" in str(caught.value)


# -- at its front door


def test_a_dry_run_prints_the_sql_and_changes_nothing(empty_db, conn):
    conn.execute(TUTORIAL)
    before = conn.execute("SELECT count(*) FROM pg_class").fetchone()
    text = redrive(empty_db, "adopt", "jobs", "--in-place", "--dry-run").stdout
    assert conn.execute("SELECT count(*) FROM pg_class").fetchone() == before
    assert "CREATE INDEX CONCURRENTLY jobs_claim_idx" in text
    assert text == script(plan(conn, survey(conn, "jobs")))


def test_the_lost_are_told_before_it_asks(empty_db, conn):
    conn.execute(TUTORIAL)
    conn.execute("INSERT INTO jobs (kind, status, locked_at) VALUES ('mail', 'running', now() - interval '3 days')")
    refused = redrive(empty_db, "adopt", "jobs", "--in-place", stdin="n\n", code=1)
    assert "SILENTLY LOST: 1 row\n" in refused.stdout
    assert "redrive's workers take back what is in progress" in refused.stderr
    assert "redrive_status" not in [row[0] for row in conn.execute(COLUMNS)]
    [ours, mapped] = redrive(empty_db, "adopt", "jobs").stderr.splitlines()
    assert ours.startswith("to have it worked there are two ways. ")
    assert "`redrive adopt jobs --in-place --dry-run` shows the SQL" in ours
    assert mapped.startswith("or it stays as it is")
    assert mapped.endswith("`redrive adopt jobs --map FILE` proposes one")
    done = redrive(empty_db, "adopt", "jobs", "--in-place", "--yes", "--by", "ann", "--reason", "at last")
    assert "start workers with REDRIVE_SCHEMA=public" in done.stdout
    assert Queue(empty_db, schema="public").get(1).status == "running"
    again = redrive(empty_db, "adopt", "jobs", "--in-place", "--yes")
    assert "nothing to do" in again.stdout
    [act] = Queue(empty_db, schema="public").audit.list()
    assert (act.action, act.by, act.reason, act.filter["table"]) == ("adopt in place", "ann", "at last", "public.jobs")


@pytest.mark.parametrize("words", [("--in-place", "--json"), ("--dry-run",), ("--in-place", "--map", Path("x.toml"))])
def test_flags_that_do_not_go_together_are_refused(empty_db, words):
    assert "--in-place" in complaint(redrive(empty_db, "adopt", "jobs", *words, code=2))
