"""``redrive migrate``."""

from __future__ import annotations

import os

import psycopg
import pytest

from redrive.sql import migrations
from shell import complaint, process, redrive

STEPS = migrations()
UP_TO_DATE = f"schema redrive is at version {STEPS[-1].version}, up to date\n"
APPLIED = "".join(f"applied {step.version:04d} {step.name}\n" for step in STEPS)


def test_it_installs_says_what_it_did_and_finds_nothing_to_do_the_second_time(empty_db):
    assert redrive(empty_db, "migrate").stdout == APPLIED + UP_TO_DATE
    assert redrive(empty_db, "migrate").stdout == UP_TO_DATE


def test_check_exits_1_when_behind_and_changes_nothing(empty_db):
    result = redrive(empty_db, "migrate", "--check", code=1)
    assert complaint(result) == f"schema redrive lacks {len(STEPS)} of {len(STEPS)} migrations: run `redrive migrate`"
    assert result.stdout == ""
    with psycopg.connect(empty_db) as conn:
        assert conn.execute("select from pg_namespace where nspname = 'redrive'").fetchall() == []


def test_check_exits_0_when_current(db):
    assert redrive(db, "migrate", "--check").stdout == UP_TO_DATE


def test_sql_run_by_hand_installs_the_same(empty_db):
    script = redrive(empty_db, "migrate", "--sql", "--schema", "my-Queue").stdout
    with psycopg.connect(empty_db, autocommit=True) as conn:
        conn.execute(script)
    redrive(empty_db, "migrate", "--check", "--schema", "my-Queue")
    assert redrive(empty_db, "migrate", "--sql", "--schema", "my-Queue").stdout.startswith("-- schema my-Queue is at")


def test_sql_needs_no_database():
    assert "CREATE TABLE" in redrive(None, "migrate", "--sql").stdout


def test_sql_is_there_for_the_role_that_may_not_migrate(empty_db):
    role = f"nobody_{os.getpid()}"
    with psycopg.connect(empty_db, autocommit=True) as conn:
        conn.execute(f"create role {role} login superuser")
        try:
            dsn = psycopg.conninfo.make_conninfo(empty_db, user=role, password="x")
            conn.execute(f"alter role {role} nosuperuser password 'x'")
            line = complaint(redrive(dsn, "migrate", code=1))
            assert role in line
            assert "--sql" in line
            assert "CREATE TABLE" in redrive(dsn, "migrate", "--sql").stdout
        finally:
            conn.execute(f"drop role {role}")


def test_check_and_sql_exclude_each_other(db):
    assert "--check and --sql" in complaint(redrive(db, "migrate", "--check", "--sql", code=2))


def test_a_foreign_table_in_the_way_is_one_line_with_the_way_round_it(empty_db):
    with psycopg.connect(empty_db, autocommit=True) as conn:
        conn.execute("create schema redrive; create table redrive.jobs (id int)")
    for words in (["migrate"], ["migrate", "--check"]):
        assert "--schema" in complaint(redrive(empty_db, *words, code=1))


def test_two_schemas_live_in_one_database(db):
    assert "applied 0001 jobs" in redrive(db, "migrate", "--schema", 'a "b" c').stdout
    redrive(db, "enqueue", "mail", "--schema", 'a "b" c')
    assert redrive(db, "jobs").stdout == ""


def test_a_lock_in_the_way_is_waited_for_and_told(db, wait_for):
    with psycopg.connect(db) as holder, psycopg.connect(db, autocommit=True) as conn:
        conn.execute("delete from redrive.migrations; alter table redrive.migrations set schema public")
        conn.execute("drop schema redrive cascade; create schema redrive")
        conn.execute("alter table public.migrations set schema redrive")
        holder.execute("lock table redrive.migrations")
        child = process(db, "migrate")
        assert child.stderr
        assert "waiting for a lock, try 1 of" in child.stderr.readline()
        holder.rollback()
        out, err = child.communicate(timeout=20)
        assert (child.returncode, out) == (0, APPLIED + UP_TO_DATE), err


def test_a_wrong_schema_name_is_a_wrong_value(db):
    assert "1 to 63 bytes" in complaint(redrive(db, "migrate", "--schema", "x" * 64, code=2))


@pytest.mark.parametrize("flag", ["--check", "--sql"])
def test_looking_is_done_on_a_database_newer_than_this_code(db, conn, flag):
    conn.execute("insert into redrive.migrations (version, name) values (99, 'future')")
    assert "at version 99, up to date" in redrive(db, "migrate", flag).stdout
