"""Carries out the plan of :mod:`redrive.adopt.inplace`, step by step, beside whoever works the table meanwhile."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.sql import SQL, Composable, Literal

from redrive import audit
from redrive.adopt.inplace import SLICE
from redrive.migrate import LOCK_TIMEOUT, locked, patiently
from redrive.sql import compose, text_of
from redrive.statements import named, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from redrive.adopt.inplace import Plan, Step
    from redrive.statements import Statement

AGAIN = "redrive adopt jobs --in-place"
LEAST = -(2**63)


def carry_out(
    conn: psycopg.Connection[Any],
    plan: Plan,
    *,
    by: str = "",
    reason: str = "",
    on_step: Callable[[int, Step], object] | None = None,
    on_wait: Callable[[str], None] | None = None,
    on_rows: Callable[[int], object] | None = None,
) -> None:
    """Do what the plan says; what was done stays done if a step fails, and a new plan goes on from there.

    Args:
        conn: an autocommit connection, not through a pooler in transaction mode.
        plan: of the table.
        by: who does it, for the audit, which there is when all is done.
        reason: why.
        on_step: told each step before it begins, with its number from 1.
        on_wait: told when a lock is waited for.
        on_rows: told how many rows have been written so far, where they must be.

    Raises:
        MigrationFailed: when a lock was not to be had.
        psycopg.Error: what Postgres says to a step.
    """
    what = {"table": f"{plan.schema}.jobs", "steps": len(plan.steps)}
    note = audit.begin(plan.schema, "adopt in place", what, by=by, reason=reason)
    for number, step in enumerate(plan.steps, 1):
        last = number == len(plan.steps)
        if on_step:
            on_step(number, step)
        if step.how == "copy":
            _copy(conn, plan.schema, on_wait, on_rows)
        elif step.how == "alone":
            _alone(conn, step)
        else:
            patiently(partial(_together, conn, plan.schema, step, note if last else None), on_wait, again=AGAIN)
            continue
        if last:
            run(conn, note)


def _together(conn: psycopg.Connection[Any], schema: str, step: Step, note: Statement[Any] | None) -> None:
    with conn.transaction():
        conn.execute(locked(schema))
        run(conn, named("migration_timeout", schema, timeout=LOCK_TIMEOUT))
        for statement in step.statements:
            _say(conn, statement)
        if note is not None:
            run(conn, note)


def _alone(conn: psycopg.Connection[Any], step: Step) -> None:
    """Run what may not stand in a transaction; it waits for transactions, and nobody waits for it."""
    try:
        for statement in step.statements:
            _say(conn, statement)
    except psycopg.Error:
        if step.undo is not None and not conn.closed:
            with suppress(psycopg.Error):
                _say(conn, step.undo)
        raise


def _say(conn: psycopg.Connection[Any], statement: Composable) -> None:
    conn.execute(SQL("{}").format(statement))


def _copy(
    conn: psycopg.Connection[Any],
    schema: str,
    on_wait: Callable[[str], None] | None,
    on_rows: Callable[[int], object] | None,
) -> None:
    last, rows = LEAST, 0

    def slice_() -> Any:
        statement = compose(text_of("inplace_copy"), schema, after=Literal(last), most=Literal(SLICE))
        with conn.transaction():
            run(conn, named("migration_timeout", schema, timeout=LOCK_TIMEOUT))
            return conn.execute(statement).fetchone()

    while True:
        found = patiently(slice_, on_wait, again=AGAIN)
        if found is None or found[0] is None:
            return
        last, rows = found[0], rows + found[1]
        if on_rows:
            on_rows(rows)
