"""``redrive doctor``: each ailment, brought about for real, is found with its evidence, and its remedy mends it."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from engine import Inside, insert
from pages import ROOT
from redrive import Queue
from redrive.broker import Answer, Measured, judge
from redrive.diagnosis import Diagnosis, Patient
from redrive.doctor import CHECKS, WORKER_RIGHTS, examine
from shell import NOBODY, answer, beat, complaint, redrive
from support import wait_for

WORKER = (
    "insert into redrive.workers (name, host, pid, version, kinds, concurrency, lease, heartbeat_at, clock_skew, "
    "listener_pid) values (%(name)s, %(host)s, 1, '1', '{mail}', 10, '30 s', now(), %(skew)s, %(pid)s)"
)


@pytest.fixture
def queue(db):
    queue = Queue(db)
    yield queue
    queue.close()


def look(db: str, queue: Queue, check: str) -> list[Diagnosis]:
    with psycopg.connect(db, autocommit=True) as conn:
        return [found for found in examine(queue, conn) if found.check == check]


def one(db: str, queue: Queue, check: str) -> Diagnosis:
    [found] = look(db, queue, check)
    return found


def carry_out(conn: psycopg.Connection, found: Diagnosis) -> None:
    """Run the remedy, which is a statement."""
    conn.execute(found.remedy)


def test_of_a_new_installation_nothing_is_bad_and_nothing_unknown(db, queue):
    with psycopg.connect(db, autocommit=True) as conn:
        found = examine(queue, conn)
    assert [each for each in found if each.level != "note"] == []


def test_what_a_living_worker_or_relay_complains_of_is_bad(db, conn, queue):
    beat(conn, problem="jobs of mail wait: ACCESS_REFUSED, amqp://jobs:hunter2@mq/")
    found = one(db, queue, "workers")
    assert found.level == "bad"
    assert found.text == "worker box:1:abcdef: jobs of mail wait: ACCESS_REFUSED, amqp://jobs:***@mq/"
    assert found.remedy == "see the log of process 1 on box"
    conn.execute("update redrive.workers set kinds = '{}'")
    assert one(db, queue, "workers").text.startswith("relay box:1:abcdef: ")
    conn.execute("update redrive.workers set heartbeat_at = now() - interval '1 hour'")
    assert look(db, queue, "workers") == [], "it is gone"


def test_who_holds_the_horizon_is_named_with_what_ends_it_bl_01(db, conn, queue, monkeypatch):
    monkeypatch.setattr("redrive.doctor.HELD_LONG", 0.0)
    with psycopg.connect(db, application_name="a forgotten shell") as other:
        other.execute("select txid_current(), 'password=hunter2'")
        found = one(db, queue, "horizon")
        assert f"session {other.info.backend_pid} (a forgotten shell) keeps Postgres" in found.text
        assert found.evidence["state"] == "idle in transaction"
        assert "hunter2" not in found.evidence["query"]
        conn.execute(found.remedy.partition(": ")[2])
        with pytest.raises(psycopg.OperationalError):
            other.execute("select 1")
        other.close()
    assert look(db, queue, "horizon") == []


def test_a_forgotten_prepared_transaction_is_one_too(db, conn, queue, monkeypatch):
    monkeypatch.setattr("redrive.doctor.HELD_LONG", 0.0)
    with psycopg.connect(db) as other:
        other.execute("create table public.left_behind ()")
        other.execute("prepare transaction 'it''s left'")
    found = one(db, queue, "horizon")
    assert "prepared transaction it's left" in found.text
    conn.execute(found.remedy.partition(": ")[2])
    assert look(db, queue, "horizon") == []


def test_a_missing_index_comes_with_the_statement_that_makes_it(db, conn, queue):
    indexes = "select indexname, indexdef from pg_indexes where schemaname = 'redrive' order by 1"
    before = conn.execute(indexes).fetchall()
    conn.execute("drop index redrive.jobs_claim_idx, redrive.jobs_key_idx, redrive.jobs_dead_idx")
    found = look(db, queue, "indexes")
    assert {each.level for each in found} == {"bad"}
    assert len(found) == 3
    for each in found:
        assert "CONCURRENTLY" in each.remedy
        carry_out(conn, each)
    assert look(db, queue, "indexes") == []
    assert conn.execute(indexes).fetchall() == before


def test_an_index_whose_building_was_broken_off_is_invalid(db, conn, queue):
    conn.execute("update pg_index set indisvalid = false where indexrelid = 'redrive.jobs_claim_idx'::regclass")
    found = one(db, queue, "indexes")
    assert (found.level, found.remedy) == ("bad", 'REINDEX INDEX CONCURRENTLY "redrive"."jobs_claim_idx";')
    carry_out(conn, found)
    assert look(db, queue, "indexes") == []


def test_a_trigger_that_is_off_or_gone_is_found(db, conn, queue):
    conn.execute("alter table redrive.jobs disable trigger jobs_wake")
    carry_out(conn, one(db, queue, "triggers"))
    conn.execute("drop trigger jobs_wake on redrive.jobs; drop trigger kinds_tell on redrive.kinds")
    for each in look(db, queue, "triggers"):
        carry_out(conn, each)
    assert look(db, queue, "triggers") == []


def test_autovacuum_that_is_off_for_a_table_is_found_bl_02(db, conn, queue):
    conn.execute("alter table redrive.jobs set (autovacuum_enabled = false)")
    found = one(db, queue, "vacuum")
    assert found.text == "autovacuum is off for jobs"
    carry_out(conn, found)
    assert look(db, queue, "vacuum") == []


def test_dead_rows_that_nobody_removes_are_found(db, conn, queue, monkeypatch):
    monkeypatch.setattr("redrive.doctor.DEAD_ROWS", 50)
    conn.execute("alter table redrive.audit set (autovacuum_enabled = false)")
    conn.execute("insert into redrive.audit (action) select 'x' from generate_series(1, 100)")
    conn.execute("delete from redrive.audit")
    conn.close()  # a session tells what it has done when it ends

    def found_dead() -> list[Diagnosis]:
        return [found for found in look(db, queue, "vacuum") if "dead rows" in found.text]

    wait_for(found_dead)
    [found] = found_dead()
    assert (found.level, found.evidence["dead"]) == ("note", 100)
    assert found.remedy.endswith('VACUUM (ANALYZE) "redrive"."audit";')


def test_rights_that_the_workers_lack_are_found_and_granted(db, conn, queue):
    role = "t_" + conn.info.dbname
    conn.execute(f"create role {role} login password 'x'")
    try:
        with psycopg.connect(db, user=role, password="x", application_name="redrive claim w:1:abcdef"):
            found = look(db, queue, "rights")
            assert f'GRANT USAGE ON SCHEMA "redrive" TO "{role}";' in [each.remedy for each in found]
            assert len(found) == 1 + len(WORKER_RIGHTS)
            for each in found:
                carry_out(conn, each)
            assert look(db, queue, "rights") == []
    finally:
        conn.execute(f"drop owned by {role}; drop role {role}")


def test_the_rights_are_those_of_the_docs():
    page = (ROOT / "docs" / "migrations.md").read_text()
    granted: dict[str, set[str]] = {}
    for rights, tables in re.findall(r"GRANT ([A-Z, ]+) ON (redrive\.[\w., ]+) TO shop_worker;", page):
        for table in tables.split(", "):
            granted.setdefault(table.removeprefix("redrive."), set()).update(rights.split(", "))
    assert granted == {table: set(rights) for table, rights in WORKER_RIGHTS.items()}


def test_a_role_that_may_not_look_gets_an_answer_all_the_same(db, conn):
    role = "t_" + conn.info.dbname
    conn.execute(f"create role {role} login password 'x'; grant usage on schema redrive to {role}")
    conn.execute(f"grant select on redrive.migrations to {role}")
    poor = Queue(psycopg.conninfo.make_conninfo(db, user=role, password="x"))
    try:
        with psycopg.connect(poor.settings.database_url, autocommit=True) as other:
            found = examine(poor, other)
        unknown = {each.check for each in found if each.level == "unknown"}
        assert {"kinds", "retention", "broker", "listening"} <= unknown
        assert any("pg_monitor" in each.remedy for each in found)
        assert [each for each in found if each.check == "rights" and each.level == "bad"] == []  # it is no worker
    finally:
        poor.close()
        conn.execute(f"drop owned by {role}; drop role {role}")


def test_workers_that_hear_nothing_and_clocks_that_differ_are_found(db, conn, queue):
    conn.execute(WORKER, {"name": "a", "host": "fast", "skew": 40.0, "pid": None})
    conn.execute(WORKER, {"name": "b", "host": "slow", "skew": -3.0, "pid": 999_999_999})
    conn.execute(WORKER, {"name": "c", "host": "right", "skew": 0.1, "pid": conn.info.backend_pid})
    deaf, gone = look(db, queue, "listening")
    assert "no wake-up reaches 1 of 3 living workers" in deaf.text
    assert deaf.evidence["workers"] == ["a"]
    assert gone.evidence["workers"] == ["b"]
    clocks = {each.evidence["host"]: (each.level, each.text) for each in look(db, queue, "clocks")}
    assert clocks == {
        "fast": ("bad", "the clock of fast is 40 s ahead of the database's"),
        "slow": ("note", "the clock of slow is 3 s behind the database's"),
    }


def test_a_real_worker_hears_and_nothing_is_said_of_it(db, queue):
    queue.handler("mail")(lambda _payload: None)
    with Inside(queue) as inside:
        wait_for(lambda: inside.worker.listener.hears and inside.worker.heartbeat._said_pid)
        assert look(db, queue, "listening") == look(db, queue, "rights") == look(db, queue, "pooler") == []


def test_a_pooler_is_known_as_one(db, pgbouncer):
    queue = Queue(pgbouncer)
    found = one(db, queue, "pooler")
    assert "shares sessions" in found.text
    assert "REDRIVE_LISTEN_DSN" in found.remedy
    queue.close()


def test_due_jobs_that_no_worker_knows_are_found_sd_04(db, conn, queue):
    insert(conn, "export\x1b[2J")
    assert one(db, queue, "kinds").remedy == "redrive worker app.jobs:queue"
    queue.worker_command = "python manage.py redrive worker"  # of a Django project
    assert one(db, queue, "kinds").remedy == "python manage.py redrive worker"
    conn.execute(WORKER, {"name": "a", "host": "h", "skew": 0.0, "pid": None})
    found = one(db, queue, "kinds")
    assert (found.level, found.evidence["due"]) == ("bad", 1)
    assert "\x1b" not in found.text + found.remedy


def test_a_sequence_near_its_end_is_found(db, conn, queue):
    conn.execute("alter sequence redrive.failures_id_seq maxvalue 1000")
    conn.execute("select setval('redrive.failures_id_seq', 990)")
    found = one(db, queue, "sequences")
    assert (found.level, found.evidence) == ("bad", {"last": 990, "most": 1000})


def test_old_succeeded_jobs_say_that_nobody_prunes(db, conn, queue):
    insert(conn, "mail", status="succeeded")
    assert look(db, queue, "retention") == []
    conn.execute("update redrive.jobs set updated_at = now() - interval '20 days'")
    assert "20 d old" in one(db, queue, "retention").text
    for_ever = Queue(db, retain_succeeded=0)
    assert look(db, for_ever, "retention") == []
    for_ever.close()


def test_a_session_is_left_as_it_was_and_nothing_is_changed(db, queue):
    with psycopg.connect(db, autocommit=True) as conn:
        examine(queue, conn)
        assert conn.execute("show statement_timeout").fetchone() == ("0",)
        conn.read_only = None
        conn.execute("create temp table still_writable ()")
    with psycopg.connect(db, autocommit=True) as conn:
        conn.read_only = True
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            Patient(queue, conn).ask("prune_workers")


class TestBroker:
    QUIET = Measured(
        jobs_a_day=86_400,
        mean_rate=1.0,
        peak_rate=20.0,
        wait_p95=0.02,
        wait_p95_before=0.02,
        slots_taken=0.1,
        share=0.02,
        sessions=0.3,
        claim_ms=0.5,
        held=False,
    )

    @pytest.mark.parametrize(
        ("change", "verdict", "says"),
        [
            ({}, "no", "20.0 jobs/s at the peak"),
            ({"jobs_a_day": 0}, "unknown", "nothing to measure"),
            ({"held": True, "share": 0.9}, "not yet", "horizon"),
            ({"wait_p95": 30.0, "slots_taken": 1.0}, "no", "100% of the slots are taken"),
            ({"wait_p95": 30.0, "slots_taken": 0.2}, "not yet", "waits grow"),
            ({"share": 0.3}, "not yet", "30% of the database's time"),
            ({"share": 0.6}, "not yet", "60% of the database's time"),
            ({"share": 0.6, "sessions": 2.0}, "worth measuring", "60% of the database's time"),
            ({"share": 0.9, "sessions": 0.01}, "no", "20.0 jobs/s at the peak, 1.0 on average"),
            ({"peak_rate": 9000.0}, "worth measuring", "9,000.0 jobs/s"),
            ({"claim_ms": 80.0}, "worth measuring", "a claim takes 80 ms"),
            (
                {"share": None, "claim_ms": None, "wait_p95": None, "wait_p95_before": None, "slots_taken": None},
                "no",
                "",
            ),
        ],
    )
    def test_the_answer_goes_by_what_was_measured(self, change, verdict, says):
        found = judge(Measured(**{**vars(self.QUIET), **change}))
        assert isinstance(found, Answer)
        assert found.verdict == verdict
        assert says in found.why

    def test_it_is_measured_on_the_database(self, db, conn, queue):
        conn.execute(
            "insert into redrive.stats (minute, kind, worker, succeeded, ran, waits) "
            "values (date_trunc('minute', now()) - interval '5 minutes', 'mail', 'a', 6000, 6000, '[50:50]={6000}')"
        )
        found = one(db, queue, "broker")
        assert found.evidence["verdict"] == "no"
        assert found.evidence["peak_rate"] == 100.0
        assert found.evidence["jobs_a_day"] == 6000
        assert found.evidence["wait_p95"] == pytest.approx(0.0001 * 2 ** (48.5 / 4))


class TestCommand:
    def test_it_says_what_is_wrong_by_what_and_what_mends_it(self, db, conn):
        assert "0 bad" in redrive(db, "doctor").stdout
        conn.execute("drop index redrive.jobs_claim_idx")
        shown = redrive(db, "doctor", code=1).stdout
        first, by, do = shown.splitlines()[:3]
        assert first == "bad     indexes: the index jobs_claim_idx is missing"
        assert by.split() == ["by:", "index", "jobs_claim_idx"]
        assert do.strip().startswith("do: CREATE INDEX CONCURRENTLY jobs_claim_idx ON")
        found: Any = answer(db, "doctor", code=1)
        assert found["healthy"] is False
        assert found["checks"] == list(CHECKS)
        assert found["findings"][0]["check"] == "indexes"

    def test_notes_are_no_failure_unless_asked_and_no_database_is_one(self, db, conn):
        conn.execute("alter table redrive.jobs set (fillfactor = 50)")
        assert "note" in redrive(db, "doctor").stdout
        redrive(db, "doctor", "--strict", code=1)
        assert "can't be reached" in complaint(redrive(NOBODY, "doctor", code=3))
