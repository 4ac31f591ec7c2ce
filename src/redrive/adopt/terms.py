"""A mapping's parts as terms of SQL: which rows wait, from when, how a time is read from a column and written to it.

Every value is a literal in its term, so that a trigger's WHEN, an index's predicate and a query can all say the same.
No session's TimeZone has a say in any of them. A percent sign in one stands as it is: what holds terms is run without
parameters of the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from redrive.sql import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redrive.adopt.mapping import Clock, Mapping

READ = {
    "timestamptz": "adopt_time_timestamptz",
    "timestamp": "adopt_time_timestamp",
    "epoch s": "adopt_time_epoch_s",
    "epoch ms": "adopt_time_epoch_ms",
    "iso": "adopt_time_iso",
}
SPELL = {
    "timestamptz": "adopt_spell_timestamptz",
    "timestamp": "adopt_spell_timestamp",
    "epoch s": "adopt_spell_epoch_s",
    "epoch ms": "adopt_spell_epoch_ms",
    "iso": "adopt_spell_iso",
}
AND, OR, COMMA = SQL(" AND "), SQL(" OR "), SQL(", ")


def column(name: str, row: str | None = None) -> Identifier:
    """Name a column, of the row called *row* where one is given: an alias, or NEW in a trigger."""
    return Identifier(row, name) if row else Identifier(name)


def runnable(mapping: Mapping, row: str | None = None, *, tries: bool = True) -> Composable:
    """Say that a row waits, whether it is due or not; *tries* also demands that it has one left.

    Where the map has SQL of its own in ``runnable.where``, its columns are bare, so the row must be the only one.
    """
    parts: list[Composable] = []
    rule, attempts = mapping.runnable, mapping.attempts
    if rule.column is not None:
        ways: list[Composable] = []
        if rule.values:
            values = joined(COMMA, map(Literal, rule.values))
            ways.append(say("adopt_term_in", column=column(rule.column, row), values=values))
        if rule.null:
            ways.append(say("adopt_term_null", column=column(rule.column, row)))
        parts.append(_either(ways))
    if rule.where is not None:
        parts.append(say("adopt_term_where", where=SQL(rule.where.replace("{", "{{").replace("}", "}}")).format()))
    if tries and attempts.column is not None:
        parts.append(say("adopt_term_tries_left", column=column(attempts.column, row), most=most(mapping, row)))
    return joined(AND, parts) if parts else SQL(text_of("adopt_term_true"))


def most(mapping: Mapping, row: str | None = None) -> Composable:
    """Give how many tries a row has in all; where its own column has NULL, what the map says or 5."""
    attempts = mapping.attempts
    if attempts.most_column is None:
        return Literal(attempts.most)
    return say("adopt_term_most", column=column(attempts.most_column, row), most=Literal(attempts.most or 5))


def time(mapping: Mapping, name: str, row: str | None = None) -> Composable:
    """Read the time in the column *name* as a timestamptz; NULL stays NULL."""
    return read(mapping.clock(name), column(name, row))


def read(clock: Clock, what: Composable) -> Composable:
    """Read a time that stands in *what* in the way of *clock*, as a timestamptz."""
    return say(READ[clock.form], column=what, zone=Literal(clock.zone or "UTC"))


def spell(clock: Clock, when: Composable) -> Composable:
    """Write the timestamptz *when* in the way of *clock*."""
    offset = Literal("Z" if clock.zone is None else "")
    return say(SPELL[clock.form], time=when, zone=Literal(clock.zone or "UTC"), offset=offset)


def _either(ways: list[Composable]) -> Composable:
    return ways[0] if len(ways) == 1 else SQL("({})").format(joined(OR, ways))


def joined(glue: SQL, parts: Iterable[Composable]) -> Composed:
    """Put *glue* between *parts*."""
    return glue.join(parts)


def say(name: str, /, **parts: Composable) -> Composed:
    """Put *parts* into the statement or term called *name* of ``queries.sql``."""
    return SQL(text_of(name)).format(**parts)


def remedy(name: str, /, **parts: Composable) -> str:
    """Write out a statement for an operator to run."""
    return say(name, **parts).as_string(None)
