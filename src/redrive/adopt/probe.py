"""A look at a few rows before all are counted: which columns hold states, and in what their numbers count time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from psycopg.sql import Identifier

from redrive.adopt.look import TEXTS, WHOLE, asked
from redrive.adopt.reading import Reading, plain
from redrive.adopt.terms import COMMA, joined, say

if TYPE_CHECKING:
    import psycopg

    from redrive.adopt.look import Column
    from redrive.adopt.survey import Survey

FEW = 40
"""Values in a few rows from which on a column is none of states."""
MOST = 5
"""Columns whose values are counted."""
MILLISECONDS = 1e11
"""From here on a number is no time in seconds any more: that is the year 5138."""
SECONDS = 5.0


def probe(conn: psycopg.Connection[Any], survey: Survey, reading: Reading) -> tuple[Reading, tuple[str, ...]]:
    """Look at a few rows; gives the reading with what they tell, and the columns whose values are worth counting."""
    likely = _likely(survey, reading)
    epochs = [name for name, clock in reading.clocks.items() if clock.form == "epoch s" and _readable(survey, name)]
    wanted = list(dict.fromkeys([*likely, *epochs]))
    if not wanted:
        return reading, ()
    columns = [say("adopt_probe_distinct", column=Identifier(name)) for name in likely]
    columns += [say("adopt_probe_largest", column=Identifier(name)) for name in epochs]
    text = say(
        "adopt_probe",
        columns=joined(COMMA, columns),
        wanted=joined(COMMA, map(Identifier, wanted)),
        table=Identifier(survey.table.schema, survey.table.name),
    )
    [row] = asked(conn, text, SECONDS)
    numbers = dict(zip(likely, row, strict=False))
    counted = [name for name in likely if numbers[name] <= FEW][:MOST]
    clocks = dict(reading.clocks)
    for name, largest in zip(epochs, row[len(likely) :], strict=True):
        if (largest or 0.0) > MILLISECONDS:
            clocks[name] = replace(clocks[name], form="epoch ms")
    return (
        replace(
            reading,
            clocks=clocks,
            state=reading.state if reading.state in counted else None,
            flag=reading.flag if reading.flag in counted else None,
        ),
        tuple(counted),
    )


def _likely(survey: Survey, reading: Reading) -> list[str]:
    """Name the columns that may hold states; the one that says how far a row is comes first."""
    first = [name for name in (reading.state, reading.flag, reading.kind) if name]
    others = [column.name for column in survey.table.columns if _is_likely(column)]
    return [name for name in dict.fromkeys([*first, *others]) if _readable(survey, name)]


def _is_likely(column: Column) -> bool:
    if column.vocabulary or column.base == "bool":
        return True
    named = plain(column.name).endswith(("status", "state", "phase", "stage"))
    return named and (column.base in TEXTS or column.base in WHOLE)


def _readable(survey: Survey, name: str) -> bool:
    column = survey.table.column(name)
    return column is not None and column.readable
