"""A statement runs the same on any psycopg connection, whatever its owner has set on it."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg.rows import dict_row, scalar_row
from psycopg.sql import SQL

from redrive.statements import Statement, arun, named, run

NOTE = "run `redrive migrate`"


def test_rows_are_what_the_statement_says_not_what_the_connection_says(db):
    with psycopg.connect(db, row_factory=dict_row) as conn:
        assert run(conn, Statement(SQL("SELECT 1 AS one").format(), scalar_row)) == [1]
        assert run(conn, named("backend_pid", "redrive"))[0].pid == conn.info.backend_pid


@pytest.mark.parametrize("factory", [psycopg.ClientCursor, psycopg.RawCursor, psycopg.Cursor])
def test_a_connection_with_another_sort_of_cursor_will_do(db, factory):
    with psycopg.connect(db, cursor_factory=factory) as conn:
        given = {"channel": "c", "message": "it's 100%"}
        assert len(run(conn, named("notify", "redrive", **given))) == 1


def test_a_statement_without_an_answer_gives_no_rows(conn):
    assert run(conn, Statement(SQL("SET lock_timeout = 0").format(), scalar_row)) == []


@pytest.mark.parametrize("autocommit", [True, False])
def test_an_answer_comes_back_from_within_a_pipeline(db, autocommit):
    with psycopg.connect(db, autocommit=autocommit) as conn, conn.pipeline():
        conn.execute("SELECT 1")
        assert run(conn, named("backend_pid", "redrive"))[0].pid == conn.info.backend_pid


def test_the_async_runner_does_the_same(db):
    async def play() -> None:
        async with await psycopg.AsyncConnection.connect(
            db, row_factory=dict_row, cursor_factory=psycopg.AsyncRawCursor
        ) as conn:
            [row] = await arun(conn, named("backend_pid", "redrive"))
            assert row.pid == conn.info.backend_pid
            async with conn.pipeline():
                [row] = await arun(conn, named("backend_pid", "redrive"))
            assert row.pid == conn.info.backend_pid
            assert await arun(conn, Statement(SQL("SET lock_timeout = 0").format(), scalar_row)) == []

    asyncio.run(play())


@pytest.mark.parametrize("name", ["oldest_due", "clock", "installed_version"])
def test_a_missing_table_is_the_drivers_own_error_with_a_note_on_what_to_run(empty_db, name):
    async def play() -> None:
        async with await psycopg.AsyncConnection.connect(empty_db) as conn:
            await arun(conn, named(name, "redrive"))

    with psycopg.connect(empty_db) as conn, pytest.raises(psycopg.ProgrammingError) as caught:
        run(conn, named(name, "redrive"))
    assert NOTE in caught.value.__notes__[0]
    with pytest.raises(psycopg.ProgrammingError) as caught:
        asyncio.run(play())
    assert NOTE in caught.value.__notes__[0]


def test_other_errors_carry_no_note(conn):
    with pytest.raises(psycopg.errors.DivisionByZero) as caught:
        run(conn, Statement(SQL("SELECT 1 / 0").format(), scalar_row))
    assert not hasattr(caught.value, "__notes__")
