"""Migrations: applied once whoever asks, whole or not at all, in any schema, with one line about what is in the way."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import redrive.sql
import support
from chaos.pooler import pooler
from engine import Inside
from redrive import Queue, Retry, events, migrate
from redrive.dev_server import binaries
from redrive.ended import Ended
from redrive.errors import MigrationFailed, NotMigrated
from redrive.migrate import demand_migrated, installed, latest, pending, script
from redrive.sql import Migration, migrations
from support import wait_for

SCHEMA_FILE = Path(redrive.sql.__file__).parent / "schema.sql"
REWRITE = "REDRIVE_WRITE_SCHEMA=1 make test TESTS=tests/test_migrate.py"
WRITE = bool(os.environ.get("REDRIVE_WRITE_SCHEMA"))  # read before the fixtures clear the environment


def run_all(dsn: str, sql: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(sql)


def versions(dsn: str, schema: str = "redrive") -> list[int]:
    with psycopg.connect(dsn) as conn:
        rows = conn.execute(f'SELECT version FROM "{schema}".migrations ORDER BY version').fetchall()
    return [row[0] for row in rows]


def dump(dsn: str, schema: str = "redrive") -> str:
    """The schema as pg_dump writes it, without what differs from one run and one release to the next."""
    try:
        program = binaries.find() / "pg_dump"
    except Exception as error:  # noqa: BLE001 - no server's programs here, only a URL
        pytest.skip(f"no pg_dump: {error}")
    if not program.exists():
        pytest.skip(f"no pg_dump in {program.parent}")
    command = [program, "--schema-only", "--no-owner", "--no-privileges", f'--schema="{schema}"', "-d", dsn]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "server version mismatch" in done.stderr:
        pytest.skip("pg_dump is older than the server")
    assert done.returncode == 0, done.stderr
    noise = re.compile(
        r"^(--.*|\\(un)?restrict .*|SET .*|SELECT pg_catalog\.set_config\('search_path', '', false\);)$", re.MULTILINE
    )
    return re.sub(r"\n{3,}", "\n\n", noise.sub("", done.stdout)).strip() + "\n"


@pytest.fixture
def role(server_url: str, empty_db: str) -> Iterator[Callable[..., str]]:
    """Make roles that may do nothing but connect to `empty_db`, and give the DSN of each."""
    made: list[str] = []

    def make() -> str:
        name, password = f"r_{secrets.token_hex(6)}", secrets.token_hex(8)
        run_all(server_url, f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        made.append(name)
        return make_conninfo(empty_db, user=name, password=password)

    yield make
    for name in made:
        run_all(empty_db, f"DROP OWNED BY {name} CASCADE")
        run_all(server_url, f"DROP ROLE {name}")


def user(dsn: str) -> str:
    return str(conninfo_to_dict(dsn)["user"])


@pytest.fixture
def two_steps(monkeypatch: pytest.MonkeyPatch) -> str:
    """A release to come, with one step more, on a table that is in use."""
    step = Migration(
        latest() + 1, "colour", "ALTER TABLE {jobs} ADD COLUMN colour text;\nCREATE TABLE {schema}.colours ()"
    )
    monkeypatch.setattr(migrate, "migrations", lambda: (*migrations(), step))
    return "colour"


def test_an_empty_database_gets_all_steps_and_a_current_one_none(empty_db):
    assert migrate.migrate(empty_db) == [step.version for step in migrations()]
    assert migrate.migrate(empty_db) == []
    assert versions(empty_db) == [step.version for step in migrations()]
    with psycopg.connect(empty_db) as conn:
        assert installed(conn, "redrive") == latest()
        assert installed(conn, "elsewhere") == 0


def test_pending_lists_the_steps_and_changes_nothing(empty_db, two_steps):
    assert pending(empty_db) == [*range(1, latest() + 1)]
    with psycopg.connect(empty_db) as conn:
        assert conn.execute("SELECT to_regnamespace('redrive')").fetchone() == (None,)
    migrate.migrate(empty_db)
    assert pending(empty_db) == []


@pytest.mark.slow
@pytest.mark.parametrize(("state", "processes"), [("empty", 6), ("current", 3)])
def test_several_processes_at_once_mg_06(empty_db, state, processes):
    """MG-06: all succeed, one applies."""
    if state == "current":
        migrate.migrate(empty_db)
    command = [sys.executable, "-m", "redrive", "migrate"]
    environment = {**os.environ, "DATABASE_URL": empty_db}
    pods = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(processes)
    ]
    said = [pod.communicate(timeout=60)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0] * processes, said
    assert sum("applied 0001" in each for each in said) == (1 if state == "empty" else 0), said
    assert versions(empty_db) == [step.version for step in migrations()]


@pytest.mark.parametrize("state", ["empty", "previous"])
def test_ten_at_once_from_any_version_mg_06(empty_db, two_steps, monkeypatch, state):
    """MG-06: the version before this one as well."""
    # slow enough for all ten to be there before the first is done
    slow = tuple(
        Migration(v, name, f"SELECT pg_sleep(0.3);\n{text}") for v, name, text in map(astuple, migrate.migrations())
    )
    monkeypatch.setattr(migrate, "migrations", lambda: slow)
    if state == "previous":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(migrate, "migrations", migrations)
            migrate.migrate(empty_db)
    with ThreadPoolExecutor(10) as pool:
        done = pool.map(lambda _: migrate.migrate(empty_db), range(10))
        applied = sorted(version for each in done for version in each)
    assert applied == [*range(latest() if state == "previous" else 1, latest() + 1)]
    assert versions(empty_db) == [*range(1, latest() + 1)]


def parts(text: str) -> list[str]:
    """A migration's statements, functions with their bodies in one piece."""
    found, begun = [], ""
    for piece in re.split(r"(?<=;)\n", text):
        begun += piece + "\n"
        if begun.count("$$") % 2 == 0:
            found.append(begun)
            begun = ""
    return found


@pytest.mark.parametrize("death", ["RAISE", "terminated"])
def test_a_crash_at_any_statement_leaves_nothing_and_the_next_run_does_all_mg_06(empty_db, monkeypatch, death):
    """MG-06: every step is one transaction."""
    [first, *_] = migrations()
    statements = parts(first.text)
    assert len(statements) > 20
    end = {
        "RAISE": "DO $do$ BEGIN RAISE 'crash'; END $do$;",
        "terminated": "SELECT pg_terminate_backend(pg_backend_pid());",
    }
    for number in range(0, len(statements) + 1, 3):
        broken = Migration(1, first.name, "".join(statements[:number]) + end[death])
        monkeypatch.setattr(migrate, "migrations", lambda broken=broken: (broken,))
        with pytest.raises(psycopg.Error):
            migrate.migrate(empty_db)
        with psycopg.connect(empty_db) as conn:
            left = conn.execute("SELECT relname FROM pg_class WHERE relnamespace = 'redrive'::regnamespace").fetchall()
        assert {name for (name,) in left} == {"migrations", "migrations_pkey"}
    monkeypatch.undo()
    assert migrate.migrate(empty_db) == [step.version for step in migrations()]


def test_a_migration_killed_from_outside_is_done_again(empty_db, server_url, monkeypatch):
    """MG-06: its session ended by an operator in the middle."""
    [first, *rest] = migrations()
    slow = Migration(1, first.name, first.text + "\n;SELECT pg_sleep(60)")
    monkeypatch.setattr(migrate, "migrations", lambda: (slow, *rest))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(migrate.migrate, empty_db)
        sleeping = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'redrive migrate'"
            " AND datname = %s AND wait_event = 'PgSleep'"
        )
        with psycopg.connect(server_url, autocommit=True) as conn:
            name = conninfo_to_dict(empty_db)["dbname"]
            support.wait_for(lambda: conn.execute(sleeping, (name,)).fetchone())
        with pytest.raises(psycopg.OperationalError):
            running.result(10)
    monkeypatch.undo()
    assert migrate.migrate(empty_db) == [step.version for step in migrations()]


def test_the_script_does_what_migrate_does(db, empty_db):
    """MG-06: for a DBA who runs it by hand."""
    run_all(empty_db, script("redrive", [step.version for step in migrations()]))
    assert versions(empty_db) == versions(db)
    assert migrate.migrate(empty_db) == []
    assert dump(empty_db) == dump(db)


def test_the_script_runs_in_psql_in_any_schema(empty_db):
    program = binaries.find() / "psql"
    if not program.exists():
        pytest.skip(f"no psql in {program.parent}")
    text = script("my-Queue", [step.version for step in migrations()])
    done = subprocess.run(
        [program, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", empty_db],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert migrate.migrate(empty_db, "my-Queue") == []
    assert Queue(empty_db, schema="my-Queue").enqueue("a").created


def test_the_script_of_nothing_is_empty():
    assert script("redrive", []) == ""


def test_the_script_of_a_later_step_leaves_the_first_alone(db, two_steps):
    text = script("redrive", [latest()])
    assert "CREATE SCHEMA" not in text
    assert text.count("BEGIN;") == text.count("COMMIT;") == 1
    assert "SET LOCAL lock_timeout" in text
    run_all(db, text)
    assert pending(db) == []


def test_the_committed_schema_is_the_sum_of_the_migrations(db):
    now = dump(db)
    with psycopg.connect(db) as conn:
        major = conn.info.server_version // 10000
    head = (
        "-- The sum of the migrations, for readers; redrive never runs it. A test holds it against them, and after a\n"
        f"-- new one writes it anew: {REWRITE}\n-- PostgreSQL {major}\n\n"
    )
    if WRITE:
        SCHEMA_FILE.write_text(head + now, encoding="utf-8")
    kept = SCHEMA_FILE.read_text(encoding="utf-8")
    if f"-- PostgreSQL {major}\n" not in kept:
        pytest.skip(f"schema.sql was written by another major than this server's, {major}")
    assert kept == head + now, f"a migration has changed the schema: {REWRITE}"


@pytest.mark.parametrize(
    ("there", "complaint"),
    [
        ("CREATE TABLE {s}.jobs (id serial)", 'schema "{s}" already has a table "jobs" that redrive did not make'),
        ("CREATE VIEW {s}.workers AS SELECT 1", 'schema "{s}" already has a table "workers" that redrive did not make'),
        (
            "CREATE TABLE {s}.migrations (id serial, name text)",
            'schema "{s}" has a table "migrations" that redrive did',
        ),
        ("CREATE TYPE {s}.job_status AS ENUM ('a')", 'type "job_status" already exists in schema "{s}"'),
        (
            "CREATE SEQUENCE {s}.failures_id_seq; CREATE SEQUENCE {s}.jobs_claim_idx",
            'relation "jobs_claim_idx" already',
        ),
    ],
)
@pytest.mark.parametrize("schema", ["redrive", "public"])
def test_what_is_in_the_way_is_named_and_left_alone(empty_db, schema, there, complaint):
    run_all(empty_db, f"CREATE SCHEMA IF NOT EXISTS {schema};" + there.format(s=schema))
    with pytest.raises(MigrationFailed) as caught:
        migrate.migrate(empty_db, schema)
    assert str(caught.value).startswith(complaint.format(s=schema))
    assert "--schema NAME" in str(caught.value)
    assert "\n" not in str(caught.value)
    with psycopg.connect(empty_db) as conn:
        tables = conn.execute(f"SELECT relname FROM pg_class WHERE relnamespace = '{schema}'::regnamespace").fetchall()
    assert ("failures",) not in tables


def test_pending_sees_what_is_in_the_way(empty_db):
    run_all(empty_db, "CREATE SCHEMA redrive; CREATE TABLE redrive.jobs ()")
    with pytest.raises(MigrationFailed, match="already has a table"):
        pending(empty_db)


def test_a_role_that_may_not_make_the_schema_is_told_what_to_do(role):
    dsn = role()
    with pytest.raises(MigrationFailed) as caught:
        migrate.migrate(dsn)
    assert str(caught.value).startswith(f'role "{user(dsn)}" may not create schema "redrive": have an owner run')
    assert f'CREATE SCHEMA "redrive" AUTHORIZATION "{user(dsn)}"' in str(caught.value)


def test_the_remedy_that_a_role_without_rights_is_told_works(role, empty_db):
    dsn = role()
    with pytest.raises(MigrationFailed) as caught:
        migrate.migrate(dsn)
    run_all(empty_db, re.search(r'CREATE SCHEMA "redrive" AUTHORIZATION "\w+"', str(caught.value))[0])
    assert migrate.migrate(dsn) == [step.version for step in migrations()]


def test_a_role_that_may_not_create_in_the_schema_is_told_so_in_one_line(role, empty_db):
    run_all(empty_db, "CREATE SCHEMA redrive; GRANT USAGE ON SCHEMA redrive TO public")
    with pytest.raises(MigrationFailed) as caught:
        migrate.migrate(role())
    assert str(caught.value).startswith("permission denied for schema redrive: the role needs CREATE")
    assert isinstance(caught.value.__cause__, psycopg.errors.InsufficientPrivilege)


def test_a_server_that_is_too_old_is_refused_in_one_line(empty_db, monkeypatch):
    monkeypatch.setattr(migrate, "OLDEST_SERVER", 99)
    with pytest.raises(MigrationFailed, match=r"^this server is PostgreSQL \d+, redrive needs 99 or newer$"):
        migrate.migrate(empty_db)
    with pytest.raises(MigrationFailed, match="redrive needs 99"):
        pending(empty_db)


def test_a_held_lock_is_waited_for_in_short_turns(empty_db, two_steps, monkeypatch):
    """MG-03: the step waits its lock_timeout, lets the others go first, and tries again."""
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT", "50ms")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "migrations", migrations)
        migrate.migrate(empty_db)
    waits: list[str] = []
    done = threading.Event()

    def on_wait(line: str) -> None:
        waits.append(line)
        if len(waits) == 2:
            done.set()

    with psycopg.connect(empty_db) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("LOCK redrive.migrations IN ACCESS EXCLUSIVE MODE")
        running = pool.submit(migrate.migrate, empty_db, on_wait=on_wait)
        assert done.wait(10)
        assert not running.done()
        holder.rollback()
        assert running.result(10) == [latest()]
    assert waits[0] == "waiting for a lock, try 1 of 30"


def test_enqueues_go_on_while_a_step_waits_for_a_reader_mg_03(empty_db, two_steps, monkeypatch):
    """MG-03: an ALTER that queues behind one reader holds up everybody behind it, but no longer than its timeout."""
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT", "100ms")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "migrations", migrations)
        migrate.migrate(empty_db)
    queue = Queue(empty_db)
    waits: list[str] = []
    took = []
    with psycopg.connect(empty_db) as reader, ThreadPoolExecutor(1) as pool:
        reader.execute("SELECT count(*) FROM redrive.jobs")
        running = pool.submit(migrate.migrate, empty_db, on_wait=waits.append)
        while len(waits) < 3:
            begin = time.monotonic()
            queue.enqueue("a")
            took.append(time.monotonic() - begin)
        reader.rollback()
        assert running.result(20) == [latest()]
    assert len(took) > 10
    assert max(took) < 1.5
    assert queue.enqueue("a").created
    queue.close()


def test_a_lock_that_is_never_given_up_ends_in_one_line(empty_db, monkeypatch):
    migrate.migrate(empty_db)
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT", "10ms")
    monkeypatch.setattr(migrate, "LOCK_TRIES", 2)
    with psycopg.connect(empty_db) as holder:
        holder.execute("LOCK redrive.migrations IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(
            MigrationFailed, match=r"held through 2 tries of 10ms each: .* run `redrive migrate` again$"
        ):
            migrate.migrate(empty_db)


def test_migrate_goes_through_a_pooler(pgbouncer_program, empty_db):
    with pooler(pgbouncer_program, empty_db) as through:
        assert migrate.migrate(through) == [step.version for step in migrations()]
        for _ in range(7):  # more often than psycopg says a statement before it prepares it
            assert migrate.migrate(through) == []


def test_the_tables_are_told_to_be_vacuumed_often_and_to_leave_room_bl_02(conn):
    """BL-02: defaults scale with the table's size."""
    options = dict(
        conn.execute("SELECT relname, reloptions FROM pg_class WHERE relnamespace = 'redrive'::regnamespace")
    )
    assert set(options["jobs"]) == {
        "fillfactor=50",
        "autovacuum_vacuum_scale_factor=0.02",
        "autovacuum_vacuum_threshold=1000",
        "autovacuum_analyze_scale_factor=0.05",
        "autovacuum_analyze_threshold=1000",
        "autovacuum_vacuum_cost_delay=1",
    }
    assert options["workers"] == ["fillfactor=50"]


def test_this_code_refuses_a_schema_that_is_too_old_and_names_both_versions(monkeypatch):
    monkeypatch.setattr(migrate, "OLDEST_SCHEMA", 6)
    demand_migrated(8, "redrive")
    demand_migrated(6, "redrive")
    with pytest.raises(
        NotMigrated, match='schema "redrive" is at version 5, this redrive needs 6: run `redrive migrate`'
    ):
        demand_migrated(5, "redrive")
    with pytest.raises(NotMigrated, match='schema "redrive" is not installed in this database: run `redrive migrate`'):
        demand_migrated(0, "redrive")


def bring(dsn: str, steps: Sequence[Migration]) -> list[int]:
    """Migrate as the release would of which *steps* are all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "migrations", lambda: tuple(steps))
        return migrate.migrate(dsn)


def test_a_worker_on_a_schema_that_is_too_old_says_so_in_a_line_touches_nothing_and_works_once_it_is_not(
    empty_db, start_worker
):
    """MG-06, MG-07: while an application goes on enqueueing."""
    bring(empty_db, [each for each in migrations() if each.version < migrate.OLDEST_SCHEMA])
    insert = "INSERT INTO redrive.jobs (kind, payload) VALUES ('mail', jsonb_build_object('to', %s::text))"
    with psycopg.connect(empty_db, autocommit=True) as conn:
        conn.execute(insert, ["ann"])
        before = conn.execute("SELECT * FROM redrive.jobs").fetchall()
        worker = start_worker(APP, dsn=empty_db)
        assert worker.process.wait(20) == 4
        needs = f"is at version {migrate.OLDEST_SCHEMA - 1}, this redrive needs {migrate.OLDEST_SCHEMA}: run"
        assert [needs in line for line in worker.log().splitlines()].count(True) == 1, worker.log()
        assert "Traceback" not in worker.log()
        assert conn.execute("SELECT * FROM redrive.jobs").fetchall() == before
        migrate.migrate(empty_db)
        worker = start_worker(APP, dsn=empty_db)
        conn.execute(insert, ["bob"])
        support.wait_for(
            lambda: conn.execute("SELECT count(*) FROM redrive.jobs WHERE status = 'succeeded'").fetchone() == (2,), 20
        )
        assert worker.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("newer", ["worker", "schema"])
def test_a_rolling_upgrade_under_load_costs_no_job_and_no_error_mg_07(empty_db, newer):
    """MG-07: workers of this release begin on the schema of the one before, and of this one on that of the next."""
    step = "ALTER TABLE {jobs} ADD COLUMN colour text;\nALTER TABLE {workers} ADD COLUMN colour text DEFAULT 'red'"
    later = (*migrations(), Migration(latest() + 1, "colour", step))
    oldest = tuple(each for each in migrations() if each.version <= migrate.OLDEST_SCHEMA)
    if newer == "worker" and oldest == migrations():
        pytest.skip("no release before this one on whose schema it could begin")
    before, after = (oldest, migrations()) if newer == "worker" else (migrations(), later)
    bring(empty_db, before)
    queue = Queue(empty_db, lease=2)
    ran: Counter[int] = Counter()
    troubles: list[events.TickFailed] = []

    @queue.handler("job")
    def job(payload, job):
        ran[payload["n"]] += 1
        if payload["n"] % 10 == 0 and job.attempt == 1:
            raise Retry("once more", after=0.01)

    end = events.subscribe(troubles.append, events.TickFailed)
    with Inside(queue, queue), psycopg.connect(empty_db, autocommit=True) as conn:
        for n in range(200):
            queue.enqueue("job", {"n": n})
            if n == 100:
                assert bring(empty_db, after) == [after[-1].version]
        wait_for(
            lambda: conn.execute("SELECT count(*) FROM redrive.jobs WHERE status <> 'succeeded'").fetchone() == (0,), 60
        )
    end()
    queue.close()
    assert troubles == []
    assert ran == {n: 2 if n % 10 == 0 else 1 for n in range(200)}
    assert installed_in(empty_db) == after[-1].version


def installed_in(dsn: str) -> int:
    with psycopg.connect(dsn) as conn:
        return installed(conn, "redrive")


APP = """
    from redrive import Queue
    queue = Queue()

    @queue.handler("mail", max_attempts=1)
    def mail(payload):
        if payload["to"] == "nobody":
            raise LookupError("no such address")
        return {"sent": payload["to"]}
"""


@pytest.mark.parametrize("schema", ["my-Queue", 'we"ird'])
def test_everything_works_in_a_schema_of_any_name_without_rights_elsewhere_mg_05(empty_db, role, start_worker, schema):
    """MG-05: search_path empty, no CREATE on public or on the database."""
    dsn = role()
    quoted = schema.replace('"', '""')
    run_all(empty_db, f'CREATE SCHEMA "{quoted}" AUTHORIZATION {user(dsn)}; REVOKE ALL ON SCHEMA public FROM public')
    run_all(empty_db, f"ALTER ROLE {user(dsn)} SET search_path = ''")
    assert migrate.migrate(dsn, schema) == [step.version for step in migrations()]
    queue = Queue(dsn, schema=schema)
    good = queue.enqueue("mail", {"to": "ann"}, key="ann")
    assert queue.enqueue("mail", {"to": "ann"}, key="ann").id == good.id
    bad = queue.enqueue("mail", {"to": "nobody"}, max_attempts=1)
    assert queue.enqueue_many("mail", [{"to": "bob"}] * 3) == 3
    assert queue.enqueue_many("mail", [{"to": "carl"}] * 2, key=lambda payload: payload["to"]) == 1
    later = queue.enqueue("mail", {"to": "dora"}, delay=3600)
    with psycopg.connect(dsn, autocommit=True) as conn:
        by_sql = conn.execute(f'SELECT "{quoted}".enqueue(\'mail\', \'{{"to": "eve"}}\')').fetchone()[0]
    worker = start_worker(APP, env={"REDRIVE_SCHEMA": schema}, dsn=dsn)
    for job in (good.id, by_sql):
        support.wait_for(lambda job=job: queue.get(job).status == "succeeded", 20)
    support.wait_for(lambda: queue.get(bad.id).status == "dead")
    assert queue.requeue(Ended(kind="mail")) == [bad.id]
    support.wait_for(lambda: queue.get(bad.id).status == "dead")
    assert queue.cancel(later.id) == {later.id: "pending"}
    assert queue.get(later.id).status == "failed"
    assert worker.stop() == 0
    with psycopg.connect(empty_db) as conn:
        outside = conn.execute(
            "SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace"
            " WHERE nspname <> %s AND nspname NOT LIKE 'pg\\_%%' AND nspname <> 'information_schema'",
            (schema,),
        ).fetchall()
    assert outside == []
    queue.close()


def test_two_installations_in_one_database_know_nothing_of_each_other_mg_05(empty_db, start_worker):
    """MG-05: two schemas side by side, each with its worker."""
    queues = {schema: Queue(empty_db, schema=schema) for schema in ("billing", "Mail")}
    for schema, queue in queues.items():
        migrate.migrate(empty_db, schema)
        queue.enqueue("mail", {"to": schema}, key="same")
    worker = start_worker(APP, env={"REDRIVE_SCHEMA": "Mail"}, dsn=empty_db)
    support.wait_for(lambda: queues["Mail"].get(1).status == "succeeded", 20)
    assert queues["Mail"].get(1).result == {"sent": "Mail"}
    assert queues["billing"].get(1).status == "pending"
    other = start_worker(APP, env={"REDRIVE_SCHEMA": "billing"}, dsn=empty_db)
    support.wait_for(lambda: queues["billing"].get(1).status == "succeeded", 20)
    assert worker.stop() == other.stop() == 0
    for queue in queues.values():
        queue.close()
