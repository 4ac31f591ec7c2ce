"""The report on a stranger's table: what it is, how its rows fare, and which of them are silently lost.

It is made by reading alone, holds no secret that :mod:`redrive.masking` knows, and can be given as a document; what is
printed or made a page of is the same.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.sql import Identifier, Literal

from redrive.adopt import limbo
from redrive.adopt.census import SOME, Census, Group, Told, count
from redrive.adopt.look import asked
from redrive.adopt.probe import probe
from redrive.adopt.reading import Reading, by_map
from redrive.adopt.shapes import reading_of
from redrive.adopt.signs import UNKNOWN
from redrive.adopt.survey import Remark, Survey
from redrive.adopt.terms import COMMA, joined, say
from redrive.masking import mask, mask_text
from redrive.words import exact, number

if TYPE_CHECKING:
    from redrive.adopt.mapping import Mapping

SAMPLES = 3
SECONDS = 45.0
"""How long the rows are counted, unless said."""
SHORT = 5.0
"""How long a look at a few rows may take."""


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Rows that are lost in the same way."""

    rule: limbo.Rule
    rows: int
    states: Counter[str | None]
    """By what stands in the column of the state."""
    oldest: datetime | None
    """Since when, by the column `since`."""
    since: str | None
    samples: tuple[dict[str, Any], ...]
    """Some of the rows, secrets hidden."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was found."""

    survey: Survey
    census: Census
    buckets: tuple[Bucket, ...]
    remarks: tuple[Remark, ...]
    copies: int | None = None
    """Rows that are another's exact copy, of a table without a key; None where that was not counted."""

    @property
    def reading(self) -> Reading:
        """What the columns were taken for."""
        return self.census.reading

    @property
    def lost(self) -> int:
        """Rows in all buckets."""
        return sum(bucket.rows for bucket in self.buckets)


def report(
    conn: psycopg.Connection[Any],
    survey: Survey,
    *,
    mapping: Mapping | None = None,
    zone: str | None = None,
    most: int | None = None,
    seconds: float = SECONDS,
    on_progress: Told | None = None,
) -> Report:
    """Count the rows of the surveyed table and find those that are lost.

    Args:
        conn: an autocommit connection; each question is a read-only transaction of its own.
        survey: of the table.
        mapping: what a human has said of it.
        zone: of its timestamps without one, where there is no mapping and a human has said so.
        most: tries in all, likewise.
        seconds: for the counting.
        on_progress: told which share of the table was read.

    Raises:
        psycopg.errors.QueryCanceled: when not even a part of the table could be read in that time.
    """
    reading = (
        by_map(survey.table, mapping) if mapping else reading_of(survey.table, survey.place.now, zone=zone, most=most)
    )
    reading, counted = probe(conn, survey, reading)
    remarks = []
    try:
        census = count(conn, survey, reading, counted, seconds=seconds, on_progress=on_progress)
    except psycopg.DataError as error:
        # A text or number in a column of times that is none: the column is left out, the others can still be told.
        odd = {name: clock for name, clock in reading.clocks.items() if clock.form not in ("timestamptz", "timestamp")}
        if not odd:
            raise
        text = f"{', '.join(odd)} hold what is no time ({error.diag.message_primary}): they were left out"
        remarks.append(Remark(level="note", text=text))
        reading = _without(reading, odd)
        census = count(conn, survey, reading, counted, seconds=seconds, on_progress=on_progress)
    return Report(
        survey=survey,
        census=census,
        buckets=tuple(_buckets(conn, survey, census)),
        remarks=(*survey.remarks, *remarks, *_of_times(survey, census), *_of_words(census), *_of_tries(census)),
        copies=None if survey.table.key else _copies(conn, survey),
    )


def _buckets(conn: psycopg.Connection[Any], survey: Survey, census: Census) -> list[Bucket]:
    inside: dict[str, list[Group]] = {}
    for group in census.groups:
        meaning = census.terms.meanings.get(group.signs.state, UNKNOWN)
        if rule := limbo.bucket(meaning, group.signs):
            inside.setdefault(rule.name, []).append(group)
    found = []
    for rule in limbo.RULES:
        if groups := inside.get(rule.name):
            since = _since(census.reading, rule, groups)
            states: Counter[str | None] = Counter()
            for group in groups:
                states[group.signs.state] += round(group.rows)
            found.append(
                Bucket(
                    rule=rule,
                    rows=round(sum(group.rows for group in groups)),
                    states=states,
                    since=since,
                    oldest=min((group.oldest[since] for group in groups if since in group.oldest), default=None),
                    samples=tuple(_samples(conn, survey, census, rule, groups)),
                )
            )
    return found


def _since(reading: Reading, rule: limbo.Rule, groups: list[Group]) -> str | None:
    for name in (getattr(reading, rule.time), reading.created, reading.due, reading.since):
        if name and any(name in group.oldest for group in groups):
            return str(name)
    return None


def _samples(
    conn: psycopg.Connection[Any], survey: Survey, census: Census, rule: limbo.Rule, groups: list[Group]
) -> list[dict[str, Any]]:
    """Read some of a bucket's rows again; one that has changed meanwhile and is not in it any more is left out."""
    places = [place for turn in range(SOME) for group in groups for place in group.places[turn : turn + 1]]
    names = [column.name for column in survey.table.columns if column.readable]
    columns = joined(
        COMMA, [say("adopt_sample_column", column=Identifier(each), name=Identifier(each)) for each in names]
    )
    condition = limbo.condition(rule.name, census.terms)
    asking = []
    for piece in dict.fromkeys(piece for piece, _ in places):
        table = Identifier(survey.pieces[piece].schema, survey.pieces[piece].name)
        rows = Literal([ctid for each, ctid in places if each == piece][: 2 * SAMPLES])
        asking.append(say("adopt_sample", columns=columns, table=table, rows=rows, condition=condition))
    if not places:  # where no row's place could be noted, the first that are met
        table = Identifier(survey.table.schema, survey.table.name)
        asking.append(say("adopt_sample_any", columns=columns, table=table, condition=condition, most=Literal(SAMPLES)))
    found: list[dict[str, Any]] = []
    for text in asking:
        with suppress(psycopg.errors.QueryCanceled):
            found += [shown(dict(zip(names, row, strict=True))) for row in asked(conn, text, SHORT)]
        if len(found) >= SAMPLES:
            break
    return found[:SAMPLES]


def shown(row: dict[str, str | None]) -> dict[str, Any]:
    """Hide the secrets of a row, in its JSON too."""
    found: dict[str, Any] = {}
    for name, text in row.items():
        value: Any = text
        if text is not None and text[:1] in ("{", "["):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                value = mask_text(text)
        found[name] = value
    return dict(mask(found))


def _copies(conn: psycopg.Connection[Any], survey: Survey) -> int | None:
    table = Identifier(survey.table.schema, survey.table.name)
    try:
        [(rows, _)] = asked(conn, say("adopt_copies", table=table), SHORT * 3)
    except psycopg.errors.QueryCanceled:
        return None
    return int(rows)


def _without(reading: Reading, odd: dict[str, Any]) -> Reading:
    def kept(name: str | None) -> str | None:
        return None if name in odd else name

    return replace(
        reading,
        created=kept(reading.created),
        due=kept(reading.due),
        since=kept(reading.since),
        failed_at=kept(reading.failed_at),
        stamp=kept(reading.stamp),
    )


def _of_times(survey: Survey, census: Census) -> list[Remark]:
    """Ask for the zone of naive columns, with what the rows give as a hint; nothing is guessed (AD-01)."""
    reading = census.reading
    open_ = [name for name in survey.naive if not reading.certain(name)]
    if not open_:
        return []
    text = f"{', '.join(open_)}: timestamps without a zone. Whose wall clock do they show?"
    for name in (reading.created, reading.since):
        if name in open_ and name in census.newest:
            ahead = (census.newest[name] - survey.place.now).total_seconds()
            way = f"{exact(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'}" if abs(ahead) >= 1 else "just"
            text += f" The newest {name} is {census.newest[name]:%Y-%m-%d %H:%M:%S}, {way} UTC now."
            break
    if survey.place.zones:
        text += f" TimeZone is set to {', '.join(survey.place.zones)}."
    remedy = "say so with --zone or in the map; until then a row counts as old only if it is so in every zone"
    return [Remark(level="note", text=text, remedy=remedy)]


def _of_words(census: Census) -> list[Remark]:
    odd = [word for word, meaning in census.terms.meanings.items() if meaning == UNKNOWN and word is not None]
    if not odd:
        return []
    rows = census.values(census.reading.state or "")
    told = ", ".join(f"{word!r} ({number(rows[word])})" for word in odd[:10])
    return [Remark(level="note", text=f"nobody can tell by the name what {told} mean in {census.reading.state}")]


def _of_tries(census: Census) -> list[Remark]:
    reading = census.reading
    if reading.attempts is None or reading.most or reading.most_column:
        return []
    text = f"{reading.attempts} counts tries, and how many there may be is in the application's code"
    return [Remark(level="note", text=text, remedy="say so with --max-attempts or in the map")]
