"""What redrive has to know of a stranger's table to work it: which rows wait, since when, and what to write at the end.

A mapping is a value. It comes from a document, which is a TOML file (:mod:`redrive.adopt.mapfile`) or the JSON that is
stored with an adoption; whether it suits the table that it names is for :mod:`redrive.adopt.fit` to say. Nothing is
guessed: what is missing is missing, and a question that nobody has answered is refused.
"""

from __future__ import annotations

from collections.abc import Mapping as Dict
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, get_args
from zoneinfo import available_timezones

from redrive.adopt.document import Reader, Value
from redrive.errors import InvalidMap

Form = Literal["timestamptz", "timestamp", "epoch s", "epoch ms", "iso"]
Contents = Literal["row", "columns", "json", "json text"]

FORMS: tuple[str, ...] = get_args(Form)
CONTENTS: tuple[str, ...] = get_args(Contents)
MOMENTS = ("claimed", "waiting", "succeeded", "dead")
"""When something is written to a row."""
_ZONED = ("timestamp", "iso")

zones = cache(available_timezones)
"""The names of the zones: looked for in the file system, and hence once."""


@dataclass(frozen=True, kw_only=True)
class Runnable:
    """Which rows wait to be worked: by the values of a column, or all that exist."""

    column: str | None = None
    """None: every row waits, for as long as it exists."""
    values: tuple[Value, ...] = ()
    """Rows with one of these; ``(False,)`` for a flag that is not set."""
    null: bool = False
    """Rows with NULL in the column, alone or beside *values*."""
    where: str | None = None
    """SQL that must hold as well, such as ``deleted_at IS NULL``."""


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How times stand in a column."""

    form: Form
    zone: str | None = None
    """Whose wall clock it is, for a timestamp that doesn't say so; for ``iso`` texts that have no offset."""


@dataclass(frozen=True, kw_only=True)
class Payload:
    """What the handler gets of a row."""

    form: Contents = "row"
    columns: tuple[str, ...] = ()
    """Those of the form ``columns``; the one of ``json`` and ``json text``."""


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """Where tries are counted, and how many there are; at least one of *most* and *most_column*."""

    column: str | None = None
    """None: redrive counts in its own table alone."""
    most: int | None = None
    most_column: str | None = None


@dataclass(frozen=True, kw_only=True)
class Priority:
    """Who goes first: numbers around a normal one, or words."""

    column: str
    first: Literal["low", "high"] | None = None
    """Whether low or high numbers run first; None where there are *words*."""
    normal: int = 0
    """The number that means redrive's own default, 5."""
    words: Dict[str, int] = field(default_factory=dict)
    """redrive's priority for each, 0 (first) to 9."""


@dataclass(frozen=True, kw_only=True)
class Write:
    """What is written to the row at one moment; nothing at all where the table has no word for it."""

    values: Dict[str, Value] = field(default_factory=dict)
    now: tuple[str, ...] = ()
    """Columns that get the time."""
    null: tuple[str, ...] = ()
    run_at: tuple[str, ...] = ()
    """Columns that get the time of the next try."""
    later: Dict[str, float] = field(default_factory=dict)
    """Columns that get a time so many seconds ahead: a lease that the old worker respects."""
    delete: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """All that it writes to."""
        return (*self.values, *self.now, *self.null, *self.run_at, *self.later)

    def __bool__(self) -> bool:
        """Tell whether it writes anything."""
        return self.delete or bool(self.columns)


@dataclass(frozen=True, kw_only=True)
class Mapping:
    """How a table is worked."""

    table: str
    """With its schema, quoted where Postgres would: ``public.mail_jobs``."""
    key: str
    """The column that names a row."""
    kind: str | None = None
    kind_column: str | None = None
    """The kind of each row's job; one of *kind* and *kind_column*."""
    cutover: datetime
    """Rows created before it are left alone unless a bucket of them is asked for."""
    created: str | None = None
    runnable: Runnable
    due: str | None = None
    """The column with the time from which a row may run; None: at once."""
    times: Dict[str, Clock] = field(default_factory=dict)
    """How times stand in each column of times that is read or written here."""
    payload: Payload = Payload()
    attempts: Attempts
    error: str | None = None
    """The column for the text of the last error."""
    error_width: int | None = None
    """Characters that fit into it; None: any number."""
    priority: Priority | None = None
    claimed: Write = Write()
    """When a worker takes the row."""
    waiting: Write = Write()
    """When a try has failed and another will follow, and when a row is handed back."""
    succeeded: Write = Write()
    dead: Write = Write()

    def write(self, moment: str) -> Write:
        """Give what is written at one of MOMENTS."""
        found: Write = getattr(self, moment)
        return found

    def clock(self, column: str) -> Clock:
        """Give how times stand in a column that the map uses as one."""
        return self.times[column]

    def document(self) -> dict[str, Any]:
        """Give the document that :func:`parse` reads back as an equal mapping; it is JSON."""
        least = {
            "table": self.table,
            "key": self.key,
            "kind": self.kind,
            "kind_column": self.kind_column,
            "created": self.created,
            "cutover": self.cutover.isoformat(),
            "runnable": {
                "every_row": self.runnable.column is None,
                "column": self.runnable.column,
                "values": list(self.runnable.values),
                "null": self.runnable.null,
                "where": self.runnable.where,
            },
            "due": self.due,
            "times": {name: {"form": each.form, "zone": each.zone} for name, each in self.times.items()},
            "payload": {"form": self.payload.form, "columns": list(self.payload.columns)},
            "attempts": {
                "column": self.attempts.column,
                "max": self.attempts.most,
                "max_column": self.attempts.most_column,
            },
            "error": {"column": self.error, "width": self.error_width},
            "priority": _priority(self.priority),
            **{moment: _write(self.write(moment)) for moment in MOMENTS},
        }
        return _lean(least)


def parse(document: Dict[str, Any], name: str = "the map") -> Mapping:
    """Make a mapping of a document, of which every name and value is looked at.

    Raises:
        InvalidMap: with all that is wrong in it, each with its place and the remedy.
    """
    read = Reader(document, "", [])
    kind, kind_column = read.text("kind"), read.text("kind_column")
    if (kind is None) == (kind_column is None):
        read.wrong("kind", "give one of kind (a text) and kind_column (a column), so that a handler can be found")
    error = read.part("error")
    found: dict[str, Any] = {
        "table": read.text("table", "the table's name with its schema, such as public.mail_jobs") or "",
        "key": read.text("key", "the column that names a row") or "",
        "kind": kind,
        "kind_column": kind_column,
        "created": read.text("created"),
        "cutover": read.moment("cutover"),
        "runnable": _runnable(read.part("runnable")),
        "due": read.text("due"),
        "times": {name: _clock(part) for name, part in read.parts("times")},
        "payload": _payload(read.part("payload")),
        "attempts": _attempts(read.part("attempts")),
        "error": error.text("column", "the column, or leave the whole part out") if error.given else None,
        "error_width": error.whole("width", least=1),
        "priority": _read_priority(read.part("priority")),
        **{moment: _read_write(read.part(moment)) for moment in MOMENTS},
    }
    error.done()
    read.done()
    if read.problems:
        raise InvalidMap.of(name, read.problems)
    return Mapping(**found)


def _runnable(read: Reader) -> Runnable:
    every, column = read.flag("every_row"), read.text("column")
    found = Runnable(column=column, values=read.values("values"), null=read.flag("null"), where=read.text("where"))
    if not read.sound:
        return found
    if every is (column is not None):
        read.wrong("", "give column, or every_row = true where a row waits for as long as it exists")
    elif column is None and (found.values or found.null):
        read.wrong("", "values and null are of a column, and every_row has none")
    elif column is not None and not found.values and not found.null:
        read.wrong("", "say which rows wait: values = [...], or null = true for those where the column is NULL")
    read.done()
    return found


def _clock(read: Reader) -> Clock:
    form: Any = read.choice("form", FORMS)
    zone = read.text("zone")
    if zone is not None and form is not None and form not in _ZONED:
        read.wrong("zone", f"{form} says by itself what time it is: leave the zone out")
    elif zone is not None and zone not in zones():
        near = get_close_matches(zone, zones(), 1)
        read.wrong("zone", f"{zone!r} is no zone" + (f", did you mean {near[0]!r}?" if near else ": write it as UTC"))
    elif zone is None and form == "timestamp" and read.lacks("zone"):
        read.wrong("zone", 'is missing: whose wall clock do the times show? Such as "UTC" or "Europe/Paris"')
    read.done()
    return Clock(form=form, zone=zone)


def _payload(read: Reader) -> Payload:
    form: Any = read.choice("form", CONTENTS) if read.given else "row"
    columns = read.names("columns")
    if form == "columns" and not columns:
        read.wrong("columns", "name the columns that the handler gets")
    elif form in ("json", "json text") and len(columns) != 1:
        read.wrong("columns", f"name the one column that holds the {form}")
    elif form == "row" and columns:
        read.wrong("columns", 'the whole row has them all: write form = "columns" for some')
    read.done()
    return Payload(form=form, columns=columns)


def _attempts(read: Reader) -> Attempts:
    found = Attempts(column=read.text("column"), most=read.whole("max", least=1), most_column=read.text("max_column"))
    if found.most is None and found.most_column is None and read.lacks("max"):
        read.wrong("max", "is missing: how many tries has a row? A number, or max_column for a column that says so")
    elif found.most is not None and found.most_column is not None:
        read.wrong("max", "give one of max and max_column")
    read.done()
    return found


def _read_priority(read: Reader) -> Priority | None:
    if not read.given:
        return None
    column, words = read.text("column", "the column that says who goes first") or "", read.numbers("words")
    first: Any = None if words else read.choice("first", ("low", "high"))
    if any(int(each) != each or not 0 <= each <= 9 for each in words.values()):  # noqa: PLR2004 - as in 0001_jobs.sql
        read.wrong("words", "give each word a number from 0 (first) to 9")
    found = Priority(
        column=column,
        first=first,
        normal=read.whole("normal", least=-(2**31)) or 0,
        words={word: int(number) for word, number in words.items()},
    )
    read.done()
    return found


def _read_write(read: Reader) -> Write:
    found = Write(
        values={name: value for name, value in read.table("set").items() if read.plain(f"set.{name}", value)},
        now=read.names("now"),
        null=read.names("null"),
        run_at=read.names("run_at"),
        later=read.numbers("later"),
        delete=read.flag("delete"),
    )
    if found.delete and found.columns:
        read.wrong("delete", "a row that is deleted can't be written to: leave the others out")
    for name in sorted({name for name in found.columns if found.columns.count(name) > 1}):
        read.wrong("", f"{name} is written to twice")
    read.done()
    return found


def _priority(priority: Priority | None) -> dict[str, Any]:
    if priority is None:
        return {}
    said = {"column": priority.column, "words": dict(priority.words)}
    return said if priority.words else {**said, "first": priority.first, "normal": priority.normal}


def _write(write: Write) -> dict[str, Any]:
    return {
        "set": dict(write.values),
        "now": list(write.now),
        "null": list(write.null),
        "run_at": list(write.run_at),
        "later": dict(write.later),
        "delete": write.delete,
    }


def _lean(document: Dict[str, Any]) -> dict[str, Any]:
    """Leave out what says nothing: None, False, and the empty."""
    found = {name: _lean(value) if isinstance(value, dict) else value for name, value in document.items()}
    return {
        name: value
        for name, value in found.items()
        if value is not None and value is not False and value not in ([], {})
    }
