"""How a row of a stranger's table shows how it fares: by its state, its times and its tries; as values and as SQL.

Days are counted by the database's clock. A timestamp whose zone nobody has said counts as long ago only when it is so
in every zone there is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from psycopg.sql import Composable, Identifier, Literal

from redrive.adopt import terms
from redrive.adopt.reading import plain
from redrive.adopt.terms import say

if TYPE_CHECKING:
    from redrive.adopt.reading import Reading
    from redrive.adopt.survey import Survey

DAY = timedelta(days=1)
"""From when on something is long ago."""
MARGIN = timedelta(hours=14)
"""By how much a timestamp without a zone may be off."""
NOTHING, ODD, UNKNOWN = "nothing", "odd", "unknown"
"""The row says nothing (NULL); a word that is another's in another spelling; a word that nobody knows."""
NEVER_DUE, AHEAD, PAST, LATE = "none", "ahead", "past", "late"


@dataclass(frozen=True, kw_only=True)
class Signs:
    """What a group of rows has in common."""

    state: str | None = None
    """The text in the column of state, or of the flag; None where it is NULL or there is no such column."""
    finished: bool = False
    """The time that is set at the end is set."""
    spent: bool = False
    """No tries are left."""
    due: str = NEVER_DUE
    retry: str = NEVER_DUE
    """As `due`, where the column is of retries and not of a first time."""
    stale: bool = False
    """Taken long ago."""
    old: bool = False
    """Made long ago."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """How a row shows its signs, as terms of SQL; None where the table has no column for one."""

    state: Composable | None = None
    meanings: dict[str | None, str] = field(default_factory=dict)
    """What each text of `state` means, NULL too; without a column of state, that of None is every row's."""
    finished: Composable | None = None
    spent: Composable | None = None
    due: Composable | None = None
    retry: Composable | None = None
    stale: Composable | None = None
    old: Composable | None = None


def signs_of(survey: Survey, reading: Reading) -> Terms:
    """Say in SQL how a row of the table shows its signs, as far as the columns are there and may be read."""
    now = survey.place.now

    def known(name: str | None) -> bool:
        return name is not None and (column := survey.table.column(name)) is not None and column.readable

    def ago(name: str) -> Composable:
        return Literal(now - DAY - (timedelta() if reading.certain(name) else MARGIN))

    def time(name: str) -> Composable:
        return terms.read(reading.clocks[name], Identifier(name))

    def before(name: str | None) -> Composable | None:
        return say("adopt_group_before", time=time(name), cutoff=ago(name)) if name and known(name) else None

    due, most = None, reading.most_column
    if reading.due and known(reading.due):
        column = Identifier(reading.due)
        due = say("adopt_group_due", column=column, time=time(reading.due), now=Literal(now), cutoff=ago(reading.due))
    spent = None
    if reading.attempts and known(reading.attempts) and (known(most) or reading.most):
        limit = Identifier(most) if most and known(most) else Literal(reading.most)
        spent = say("adopt_group_reached", column=Identifier(reading.attempts), most=limit)

    def is_set(name: str | None) -> Composable:
        if not (name and known(name)):
            return Literal(False)  # noqa: FBT003 - it is the value
        return say("adopt_group_set", column=Identifier(name))

    stamp = is_set(reading.stamp) if known(reading.stamp) else None
    if reading.state:
        told: Composable = say("adopt_group_text", column=Identifier(reading.state))
    else:
        flag = Identifier(reading.flag) if reading.flag else None
        told = say(
            "adopt_group_fate",
            unknown=say("adopt_term_null", column=flag) if flag else Literal(False),  # noqa: FBT003 - it is the value
            done=flag or is_set(reading.stamp),
            died=is_set(reading.died),
            taken=is_set(reading.taken),
        )
        stamp = stamp if flag else None
    return Terms(
        state=told,
        finished=stamp,
        spent=spent,
        due=due,
        retry=due if any(word in plain(reading.due or "") for word in ("retry", "next", "attempt")) else None,
        stale=before(reading.since),
        old=before(reading.created),
    )
