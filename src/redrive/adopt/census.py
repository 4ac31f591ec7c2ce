"""Counts the rows of a stranger's table in one pass, stretch by stretch, and stops when its time is up.

Each stretch is a read-only transaction of its own, so that no lock above ACCESS SHARE is taken and the horizon is held
for a moment only. Where the time does not do for all of a large table, stretches from everywhere in it stand for the
rest, and the counts say that they are estimates.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.sql import Composable, Identifier, Literal

from redrive.adopt import terms
from redrive.adopt.look import asked
from redrive.adopt.reading import DONE, FAILED, WAITING, WORKING, Reading, plain
from redrive.adopt.signs import NOTHING, ODD, UNKNOWN, Signs, Terms, signs_of
from redrive.adopt.terms import COMMA, joined, say
from redrive.job import moment
from redrive.words import ALWAYS, NEVER

if TYPE_CHECKING:
    from redrive.adopt.survey import Survey

STRETCH = 4096
"""Pages that are read in one go: 32 MB."""
STRETCHES = 140_000
"""The first version of the server that reads a stretch of pages without the rest, and compares places."""
MOST_GROUPS = 20_000
SHARE = 1.0
"""Percent of a table that is read where it can be read neither in stretches nor, in the time, as a whole."""
SOME = 6
"""Places that are kept of a group."""
SIGNS = ("state", "finished", "spent", "due", "stale", "old")
ENDS = ("adopt_group_least", "adopt_group_greatest")
Told = Callable[[float], object]


@dataclass
class Group:
    """Rows that are alike: in their states, and in what their times and tries say."""

    values: dict[str, str | None]
    """The text in each counted column."""
    signs: Signs
    rows: float = 0
    oldest: dict[str, datetime] = field(default_factory=dict)
    """The least of each time."""
    places: list[tuple[int, str]] = field(default_factory=list)
    """Where some of the rows are: the number of the piece, and the ctid."""


@dataclass(frozen=True, kw_only=True)
class Census:
    """What was counted."""

    reading: Reading
    counted: tuple[str, ...]
    """The columns whose values were counted."""
    groups: tuple[Group, ...]
    share: float
    """How much of the table was read; below 1 all counts are estimates."""
    seconds: float
    newest: dict[str, datetime]
    """The greatest of each time."""
    terms: Terms

    @property
    def rows(self) -> int:
        """All rows."""
        return round(sum(group.rows for group in self.groups))

    def values(self, column: str) -> Counter[str | None]:
        """Count the rows by what stands in a counted column."""
        found: Counter[str | None] = Counter()
        for group in self.groups:
            found[group.values[column]] += round(group.rows)
        return found


def count(
    conn: psycopg.Connection[Any],
    survey: Survey,
    reading: Reading,
    counted: tuple[str, ...],
    *,
    seconds: float,
    on_progress: Told | None = None,
) -> Census:
    """Count all rows by the *counted* columns and by their signs, for as long as *seconds* allow.

    Args:
        conn: an autocommit connection.
        survey: of the table.
        reading: what its columns are taken for.
        counted: columns with few values; the one of the state is among them.
        seconds: after which no further stretch is begun.
        on_progress: told which share of the table was read.

    Raises:
        psycopg.errors.QueryCanceled: when not even the first stretch could be read in that time.
    """
    began = time.monotonic()
    passed = _Pass(conn, survey, reading, counted, began + seconds)
    share = passed.run(on_progress)
    groups = tuple(passed.groups.values())
    for group in groups:
        group.rows /= share
    return Census(
        reading=reading,
        counted=counted,
        groups=groups,
        share=share,
        seconds=time.monotonic() - began,
        newest=passed.newest,
        terms=replace(passed.terms, meanings=meanings(reading, groups)),
    )


def meanings(reading: Reading, groups: tuple[Group, ...]) -> dict[str | None, str]:
    """Say what each value in the column of the state means, as far as anybody can tell."""
    if reading.state is None:  # as adopt_group_fate has it
        return {"true": DONE, "dead": FAILED, "taken": WORKING, "false": WAITING, None: reading.nothing or NOTHING}
    rows: Counter[str] = Counter()
    for group in groups:
        if (word := group.values[reading.state]) is not None:
            rows[word] += round(group.rows)
    usual: dict[str, str] = {}
    for word in sorted(rows, key=lambda word: (-rows[word], word)):
        if word in reading.words or plain(word) not in usual:
            usual[plain(word)] = word
    found: dict[str | None, str] = {
        word: ODD if usual[plain(word)] != word and word not in reading.words else reading.means(word) or UNKNOWN
        for word in rows
    }
    return {**found, None: reading.nothing or NOTHING}


def told(at: datetime | None) -> datetime | None:
    """Give a time as it is told: infinity is NEVER, whatever Python makes of it."""
    return {moment(-(2**63)): ALWAYS, moment(2**63): NEVER}.get(at, at) if at is not None else None


class _Pass:
    """One pass over the rows."""

    def __init__(
        self, conn: psycopg.Connection[Any], survey: Survey, reading: Reading, counted: tuple[str, ...], until: float
    ) -> None:
        self.conn = conn
        self.survey = survey
        self.counted = counted
        self.until = until
        self.groups: dict[tuple[Any, ...], Group] = {}
        self.newest: dict[str, datetime] = {}
        self.terms = signs_of(survey, reading)
        self.shown = {name: term for name in SIGNS if (term := getattr(self.terms, name)) is not None}
        self.times = {
            name: terms.read(reading.clocks[name], Identifier(name))
            for name in dict.fromkeys((reading.created, reading.due, reading.since, reading.failed_at))
            if name is not None and (column := survey.table.column(name)) is not None and column.readable
        }

    def run(self, on_progress: Told | None) -> float:
        """Read all there is time for, and give which share of the table that was."""
        stretches = list(self._stretches())
        if not stretches:
            return self._whole()
        random.Random(self.survey.table.oid).shuffle(stretches)  # so that those read stand for those that are not
        done, total = 0, sum(size for *_, size in stretches)
        for number, source, size in stretches:
            try:
                self._count(number, source)
            except psycopg.errors.QueryCanceled:
                if not done:
                    raise
                break
            done += size
            if on_progress:
                on_progress(done / total)
            if time.monotonic() > self.until:
                break
        return done / total

    def _stretches(self) -> Iterator[tuple[int, Composable, int]]:
        """Cut the pieces into stretches: the number of the piece, what to read, and how many pages that is."""
        pieces = self.survey.pieces
        if self.survey.place.version < STRETCHES or not all(
            each.readable and each.pages is not None for each in pieces
        ):
            return
        for number, piece in enumerate(pieces):
            pages = piece.pages or 1
            for first in range(0, pages, STRETCH):
                last = first + STRETCH >= pages
                source = say(
                    "adopt_source_rest" if last else "adopt_source_stretch",
                    table=Identifier(piece.schema, piece.name),
                    begin=Literal(f"({first},0)"),
                    end=Literal(f"({first + STRETCH},0)"),
                )
                yield number, source, min(STRETCH, pages - first)

    def _whole(self) -> float:
        """Read the table as one, or a sample of it where there is no time for that."""
        table = Identifier(self.survey.table.schema, self.survey.table.name)
        piece = 0 if len(self.survey.pieces) == 1 else -1  # places in many pieces say nothing without the piece
        try:
            self._count(piece, say("adopt_source_whole", table=table))
        except psycopg.errors.QueryCanceled:
            self.until = time.monotonic() + 20
            self._count(piece, say("adopt_source_sample", table=table, percent=Literal(SHARE)))
            return SHARE / 100
        return 1.0

    def _count(self, piece: int, source: Composable) -> None:
        what: list[Composable] = [say("adopt_group_text", column=Identifier(name)) for name in self.counted]
        what = [*what, *self.shown.values()] or [Literal(1)]
        place: Composable = Identifier("ctid") if "SELECT" in self.survey.place.rights else Literal(None)
        if self.survey.place.version < STRETCHES:
            place = say("adopt_group_text", column=place)
        ends = [say(end, time=each) for each in self.times.values() for end in ENDS]
        named_groups = [say("adopt_group", what=each, name=Identifier(f"g{i}")) for i, each in enumerate(what)]
        text = say(
            "adopt_census",
            groups=joined(COMMA, named_groups),
            ends=joined(COMMA, [*ends, *(say("adopt_group_text", column=say(end, time=place)) for end in ENDS)]),
            source=source,
            places=joined(COMMA, map(Literal, range(1, len(what) + 1))),
            most=Literal(MOST_GROUPS),
        )
        for row in asked(self.conn, text, max(self.until - time.monotonic(), 2.0)):
            self._add(piece, row)

    def _add(self, piece: int, row: Any) -> None:
        key = row[: max(len(self.counted) + len(self.shown), 1)]
        rows, *ends, first, last = row[len(key) :]
        group = self.groups.get(key)
        if group is None:
            signs = dict(zip(self.shown, key[len(self.counted) :], strict=False))
            if self.terms.retry is not None:
                signs["retry"] = signs["due"]
            group = self.groups[key] = Group(dict(zip(self.counted, key, strict=False)), Signs(**signs))
        group.rows += rows
        for name, least, greatest in zip(self.times, map(told, ends[::2]), map(told, ends[1::2]), strict=True):
            if least is not None and greatest is not None:
                group.oldest[name] = min(group.oldest.get(name, least), least)
                self.newest[name] = max(self.newest.get(name, greatest), greatest)
        if piece >= 0 and first is not None and len(group.places) < SOME:
            group.places += dict.fromkeys([(piece, str(first)), (piece, str(last))])
