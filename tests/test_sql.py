"""The SQL that redrive says: every statement is understood by Postgres as it stands, and names stay what they are."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from string import Formatter

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.sql import Identifier, Literal

import redrive
from redrive.sql import _names, _queries, channel, compose, lock_key, migrations, query, text_of

SOURCE = Path(redrive.__file__).parent
STATEMENTS = sorted(_queries())
TEXT = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))


def said(name: str) -> str:
    """A statement without its comments."""
    return re.sub(r"--.*", "", text_of(name)).strip()


def names_in(text: str) -> set[str]:
    return {field for _, field, _, _ in Formatter().parse(text) if field}


def test_what_is_said_can_be_spelt_in_every_encoding():
    """A database in LATIN1 refuses a statement with a letter that it has not."""
    assert [name for name in STATEMENTS if not text_of(name).isascii()] == []
    assert [step.name for step in migrations() if not step.text.isascii()] == []


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_is_said_somewhere(name):
    assert f'"{name}"' in TEXT


def test_postgres_understands_every_statement(conn):
    """Their tables, columns and types; what can't be prepared (DDL, COPY, LISTEN) is left to the tests that use it."""
    prepared = []
    for name in STATEMENTS:
        verb = said(name).split()[0].upper()
        if verb not in {"SELECT", "INSERT", "UPDATE", "DELETE", "WITH"} or names_in(text_of(name)) - set(_names("x")):
            continue
        text = query(name, "redrive").as_string(conn)
        for number, parameter in enumerate(dict.fromkeys(re.findall(r"%\(\w+\)s", text)), 1):
            text = text.replace(parameter, f"${number}")
        conn.execute(f"PREPARE {name} AS " + text.replace("%%", "%"))
        prepared.append(name)
    whole = [name for name in STATEMENTS if not name.startswith("adopt_")]  # those are parts, for a stranger's table
    assert len(prepared) > 0.7 * len(whole)


def test_no_statement_compares_the_state_with_a_parameter_where_an_index_is_meant():
    """A generic plan can't know that $1 is 'pending', and would not use the partial index."""
    engine = ["claim_jobs", "claim_alone", "survey_lanes", "oldest_due", "reap_jobs", "bury_hopeless", "succeed_jobs"]
    for name in engine:
        assert not re.search(r"status\s*=\s*%\(", said(name))
        assert "::job_status" not in said(name)


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_names_a_table_without_its_schema(name):
    tables = r"\b(FROM|JOIN|INTO|UPDATE|TABLE)\s+(jobs|failures|workers|migrations|jobs_archive)\b"
    assert re.findall(tables, said(name)) == []


def test_migrations_are_numbered_without_a_gap():
    assert [step.version for step in migrations()] == list(range(1, len(migrations()) + 1))


def test_names_are_composed_and_never_substituted():
    """A schema's name is an identifier, whatever it holds."""
    text = compose("SELECT {clock}() FROM {jobs}", 'my"; DROP TABLE x; --').as_string(None)
    assert text == 'SELECT "my""; DROP TABLE x; --"."clock"() FROM "my""; DROP TABLE x; --"."jobs"'
    more = compose("{what} = {value}", "s", what=Identifier("a b"), value=Literal("it's"))
    assert more.as_string(None) == "\"a b\" = 'it''s'"


@pytest.mark.parametrize("schema", ["redrive", "ü" * 31, "my-Queue", 'a"b'])
def test_a_channel_is_short_whatever_the_schema_is_called(schema):
    """LN-04: names of channels end at 63 bytes."""
    assert re.fullmatch(r"redrive_[0-9a-f]{20}", channel(schema))
    assert len({channel(schema), channel(schema, "w1"), channel(schema, "w2"), channel(schema + "x")}) == 4


def test_a_lock_key_fits_a_bigint_and_is_its_schemas_own(conn):
    keys = [lock_key(f"schema {i}") for i in range(200)]
    assert len(set(keys)) == 200
    assert all(-(2**63) <= key < 2**63 for key in keys)
    assert min(keys) < 0 < max(keys)
    for key in (min(keys), max(keys)):
        assert conn.execute("SELECT pg_try_advisory_lock_shared(%s::bigint)", (key,)).fetchone() == (True,)


def test_the_wake_up_of_a_schema_takes_the_lock_and_the_channel_of_that_schema(conn):
    source = conn.execute("SELECT prosrc FROM pg_proc WHERE oid = 'redrive.wake'::regproc").fetchone()[0]
    assert str(lock_key("redrive")) in source
    assert channel("redrive") in source


def test_the_clock_moves_with_the_setting_and_stays_an_index_condition(conn):
    """A function that is not inlined would be a filter, and a claim would walk all that is not due yet."""
    [[now, moved]] = conn.execute(
        "WITH set AS MATERIALIZED (SELECT redrive.clock() AS at, set_config('redrive.clock_offset', '1 hour', false))"
        " SELECT at, redrive.clock() FROM set"
    )
    assert 3599 < (moved - now).total_seconds() < 3601
    plan = conn.execute(
        "EXPLAIN SELECT id FROM redrive.jobs WHERE status = 'pending' AND kind = 'a' AND priority = 5 AND lane = ''"
        " AND run_at <= redrive.clock()"
    )
    assert any("Index Cond" in row[0] and "statement_timestamp()" in row[0] for row in plan)


def test_the_clock_goes_on_within_a_long_transaction(conn):
    with conn.transaction():
        [[first, begin]] = conn.execute("SELECT redrive.clock(), now()")
        conn.execute("SELECT pg_sleep(0.05)")
        [[second, still]] = conn.execute("SELECT redrive.clock(), now()")
    assert second > first
    assert still == begin


def test_the_domain_takes_the_tutorials_cast_and_refuses_other_states(conn):
    conn.execute("SET search_path = redrive")
    assert conn.execute("SELECT 'dead'::job_status").fetchone() == ("dead",)
    with pytest.raises(psycopg.errors.CheckViolation):
        conn.execute("INSERT INTO redrive.jobs (kind, status) VALUES ('a', 'lost')")


# -- the SQL door: redrive.enqueue(...)


def job(conn: psycopg.Connection, number: int) -> dict[str, object]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute("SELECT * FROM redrive.jobs WHERE id = %s", (number,)).fetchone()


def enqueue(conn: psycopg.Connection, arguments: str, *values: object) -> int:
    return conn.execute(f"SELECT redrive.enqueue({arguments})", values).fetchone()[0]


def test_the_door_makes_the_job_that_an_insert_makes(conn):
    given = enqueue(conn, "'mail'")
    [[plain]] = conn.execute("INSERT INTO redrive.jobs (kind) VALUES ('mail') RETURNING id")
    differ = {"id", "run_at", "created_at", "updated_at"}
    assert {k: v for k, v in job(conn, given).items() if k not in differ} == {
        k: v for k, v in job(conn, plain).items() if k not in differ
    }


def test_the_door_takes_all_that_a_job_has(conn):
    at, end = datetime(2030, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)
    number = enqueue(
        conn,
        "kind => 'mail', payload => '{\"a\": 1}', run_at => %s, priority => 1, max_attempts => 9, key => 'k',"
        " lane => 'eu', expires_at => %s, metadata => '{\"trace\": \"x\"}'",
        at,
        end,
    )
    found = job(conn, number)
    assert (found["kind"], found["payload"], found["run_at"], found["priority"]) == ("mail", {"a": 1}, at, 1)
    assert (found["max_attempts"], found["key"], found["lane"], found["expires_at"]) == (9, "k", "eu", end)
    assert (found["metadata"], found["status"], found["attempts"]) == ({"trace": "x"}, "pending", 0)


def test_a_delay_at_the_door_counts_from_the_statement(conn):
    """CT-11: not from the begin of the transaction."""
    with conn.transaction():
        conn.execute("SELECT pg_sleep(0.2)")
        number = enqueue(conn, "'mail', delay => '5 s'")
        [[ahead]] = conn.execute("SELECT run_at - now() FROM redrive.jobs WHERE id = %s", (number,))
    assert timedelta(seconds=5.2) <= ahead < timedelta(seconds=6)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("'mail', run_at => now(), delay => '5 s'", "give run_at or delay, not both"),
        ("''", "kind is empty"),
        ("NULL", "kind is empty"),
    ],
)
def test_the_door_refuses_what_makes_no_sense(conn, arguments, complaint):
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=complaint):
        enqueue(conn, arguments)


def test_a_second_call_with_a_live_key_gives_the_first_job_and_no_error_in_the_log(conn, server_log):
    """UN-01: by SQL too."""
    with conn.transaction():
        first = enqueue(conn, "'mail', key => 'k'")
        assert enqueue(conn, "'mail', key => 'k'") == first
        assert enqueue(conn, "'other', key => 'k'") == first
    conn.execute("UPDATE redrive.jobs SET status = 'succeeded'")
    assert enqueue(conn, "'mail', key => 'k'") != first
    assert server_log.errors() == []


def test_a_duplicate_at_the_door_burns_no_id(conn):
    """MG-02: the live job is looked for first."""
    first = enqueue(conn, "'mail', key => 'k'")
    for _ in range(10):
        enqueue(conn, "'mail', key => 'k'")
    assert enqueue(conn, "'mail', key => 'k2'") == first + 1


def test_a_trigger_enqueues_in_the_transaction_of_its_row(conn, server_log):
    conn.execute(
        "CREATE TABLE public.users (name text);"
        "CREATE FUNCTION public.welcome() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM redrive.enqueue('welcome', jsonb_build_object('name', NEW.name), key => 'welcome:' || NEW.name);"
        " RETURN NEW; END $$;"
        "CREATE TRIGGER welcome AFTER INSERT ON public.users FOR EACH ROW EXECUTE FUNCTION public.welcome()"
    )
    conn.execute("SET search_path = ''")
    conn.execute("INSERT INTO public.users VALUES ('ann'), ('bob'), ('ann')")
    with conn.transaction(force_rollback=True):
        conn.execute("INSERT INTO public.users VALUES ('carl')")
    rows = conn.execute("SELECT payload->>'name', key FROM redrive.jobs ORDER BY id").fetchall()
    assert rows == [("ann", "welcome:ann"), ("bob", "welcome:bob")]
    assert server_log.errors() == []


def test_callers_that_race_for_a_key_at_the_door_all_get_the_one_job(db, server_log):
    def race(number: int) -> list[int]:
        with psycopg.connect(db, autocommit=True) as conn:
            conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            found = []
            for turn in range(20):
                start.wait(20)
                with conn.transaction():
                    found.append(enqueue(conn, "'mail', key => %s", f"k{turn}"))
            return found

    start = threading.Barrier(6)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(race, range(6)))
    assert [len(set(each)) for each in zip(*answers, strict=True)] == [1] * 20
    assert server_log.errors() == []
