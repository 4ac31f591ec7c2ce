"""Asks Postgres itself whether a map will do: whether its SQL is understood, and what each write would come to.

Rows of the table are taken as they are, changed in a query as the map would change them, and held against the table's
own constraints; nothing is written. What a CHECK of several columns, a domain or a type's input says is known to
nobody else.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.sql import SQL, Composable, Identifier, Literal

from redrive.adopt import terms
from redrive.adopt.look import ANYWHERE, asked, untouched
from redrive.adopt.mapping import MOMENTS, Mapping
from redrive.adopt.terms import say
from redrive.errors import InvalidMap
from redrive.statements import named, run

if TYPE_CHECKING:
    from redrive.adopt.look import Table

SECONDS = 10.0
ROWS = 50
"""Rows that each write is tried on."""


def prove(conn: psycopg.Connection[Any], mapping: Mapping, table: Table, name: str = "the map") -> None:
    """Try the map's conditions and writes on some rows, without writing; *conn* is in autocommit.

    Raises:
        InvalidMap: with what Postgres would refuse, each with its place in the map.
    """
    problems: list[str] = []
    if (found := _refused(conn, _rows(mapping, table))) is not None:
        problems.append(f"runnable: {found}")
    else:
        with untouched(conn, SECONDS):
            checks = run(conn, named("adopt_checks", ANYWHERE, table=table.oid))
        for moment in MOMENTS:
            if mapping.write(moment).columns:
                problems += [f"{moment}: {found}" for found in _tried(conn, mapping, table, moment, checks)]
    if problems:
        raise InvalidMap.of(name, problems)


def _tried(conn: psycopg.Connection[Any], mapping: Mapping, table: Table, moment: str, checks: list[Any]) -> list[str]:
    changed = _changed(mapping, table, moment)
    if (found := _refused(conn, changed)) is not None:
        return [found]
    problems = []
    for check in checks:
        if not set(check.columns) & set(mapping.write(moment).columns):
            continue
        text = say("adopt_prove_check", rows=changed, check=SQL("{}").format(_raw(check.expression)))
        try:
            refused = asked(conn, text, SECONDS)[0][0]
        except psycopg.Error:
            continue  # a function that this role may not call, or that wants more than a row: the table will tell
        if refused:
            problems.append(f"{refused} of {ROWS} rows would violate {check.name}: {check.definition}")
    return problems


def _rows(mapping: Mapping, table: Table) -> Composable:
    return say(
        "adopt_prove_rows",
        table=Identifier(table.schema, table.name),
        condition=terms.runnable(mapping, tries=False),
        most=Literal(ROWS),
    )


def _changed(mapping: Mapping, table: Table, moment: str) -> Composable:
    """Give rows that wait as they would be after the write; the JSON of a row is read as each column's type reads."""
    write = mapping.write(moment)
    values = {**write.values, **dict.fromkeys(write.null)}
    parts: list[Composable] = [say("adopt_prove_values", values=Literal(json.dumps(values)))]
    for column in (*write.now, *write.run_at, *write.later):
        when = terms.spell(mapping.clock(column), say("adopt_prove_now"))
        parts.append(say("adopt_prove_time", name=Literal(column), when=when))
    return say(
        "adopt_prove_changed",
        table=Identifier(table.schema, table.name),
        name=Identifier(table.name),
        changes=SQL(" || ").join(parts),
        rows=_rows(mapping, table),
    )


def _refused(conn: psycopg.Connection[Any], text: Composable) -> str | None:
    try:
        asked(conn, say("adopt_prove_count", rows=text), SECONDS)
    except psycopg.errors.QueryCanceled:
        return None  # no row that waits was found in the time
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError, psycopg.InternalError) as error:
        return f"Postgres refuses it: {error.diag.message_primary}"
    return None


def _raw(text: str) -> Composable:
    return SQL(text.replace("{", "{{").replace("}", "}}")).format()
