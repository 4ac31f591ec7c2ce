"""Proposes a map of a stranger's table from what its columns are taken for, and says why on every line.

What only a human knows stays a question in it, which the map is refused with until it is answered: the zone of a
timestamp, how many tries a row has where that is in the application's code, a word that nobody has ever written.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from redrive.adopt import mapfile
from redrive.adopt.look import NUMBERS, TEXTS, TIMES
from redrive.adopt.mapping import Attempts, Clock, Mapping, Payload, Priority, Runnable, Write
from redrive.adopt.reading import DONE, FAILED, WAITING, WORKING, plain
from redrive.adopt.shapes import known, shape
from redrive.words import counted

if TYPE_CHECKING:
    from redrive.adopt.document import Value
    from redrive.adopt.look import Column
    from redrive.adopt.report import Report

RETRY = ("retrying", "retry", "deferred", "retry_scheduled", "delayed")
FINAL = ("dead", "dead_letter", "deadletter", "abandoned", "exhausted", "gave_up", "undeliverable", "discarded")
UPDATED = ("updated_at", "modified_at", "updated", "modified", "last_updated")
OUTPUTS = ("result", "results", "response", "response_body", "last_http_code", "http_status", "status_code", "output")
RANKS = {"urgent": 0, "critical": 0, "immediate": 0, "highest": 1, "high": 2, "normal": 5, "medium": 5, "default": 5}
RANKS |= {"regular": 5, "standard": 5, "low": 8, "lowest": 9, "bulk": 9, "background": 9}
OURS = "redrive"
"""Written where the table says who works a row."""
TRIES = 5
KINDS = 12
"""Kinds that a remark names."""


@dataclass
class Draft:
    """A map as it is proposed."""

    mapping: Mapping
    title: str = ""
    """What the table was recognised as."""
    notes: dict[str, str] = field(default_factory=dict)
    """Why, by the place of a line or part."""
    questions: dict[str, str] = field(default_factory=dict)
    """What only a human knows, by the place of the line."""

    def text(self) -> str:
        """Write the file."""
        return mapfile.text(self.mapping, self.notes, self.questions)


def propose(made: Report) -> Draft:
    """Propose the map of the table that was reported on."""
    there = known(made.survey.table)
    if there is None or not there.map:
        return _Proposal(made).draft
    found = Draft(
        there.mapping(made.survey.table, made.survey.place.now.replace(microsecond=0)),
        title=f"the table of {there.name}",
        notes=dict(there.notes),
        questions={} if made.reading.most else dict(there.questions),
    )
    if made.reading.most:
        found.mapping = replace(found.mapping, attempts=replace(found.mapping.attempts, most=made.reading.most))
    if len(made.survey.table.key) > 1:
        found.notes["key"] = _several(made)
    found.mapping = replace(found.mapping, times=_times(made, found.mapping, found.questions))
    return found


def _several(made: Report) -> str:
    return f"the key is of several columns, {', '.join(made.survey.table.key)}: that can't be adopted"


def _times(made: Report, mapping: Mapping, questions: dict[str, str]) -> dict[str, Clock]:
    """Say how times stand in each column that the map uses as one; ask for what neither type nor rows tell."""
    names = [mapping.due, mapping.created]
    for write in (mapping.claimed, mapping.waiting, mapping.succeeded, mapping.dead):
        names += [*write.now, *write.run_at, *write.later]
    found = {}
    for name in dict.fromkeys(filter(None, names)):
        found[name] = clock = made.reading.clocks[name]
        if clock.form == "timestamp" and clock.zone is None:
            questions[f"times.{name}.zone"] = (
                f"{name} has no zone: whose wall clock does it show? Write its name, such as UTC or Europe/Paris."
            )
        elif clock.form.startswith("epoch") and name not in made.census.newest:
            questions[f"times.{name}.form"] = f"Does {name} count seconds or milliseconds? Write epoch s or epoch ms."
    return found


class _Proposal:
    def __init__(self, made: Report) -> None:
        self.made = made
        self.table = made.survey.table
        self.reading = made.reading
        self.notes: dict[str, str] = {}
        self.questions: dict[str, str] = {}
        self.state = self.table.column(self.reading.state) if self.reading.state else None
        self.words = self._words()
        kind, self.kind_column = self._kind()
        mapping = Mapping(
            table=self.table.qualified,
            key=self.table.key[0] if self.table.key else "",
            kind=kind,
            kind_column=self.kind_column,
            created=self.reading.created,
            cutover=made.survey.place.now.replace(microsecond=0),
            runnable=self._runnable(),
            due=self._due(),
            payload=self._payload(),
            attempts=self._attempts(),
            error=self.reading.error,
            error_width=self._width(),
            priority=self._priority(),
            claimed=self._claimed(),
            waiting=self._waiting(),
            succeeded=self._succeeded(),
            dead=self._dead(),
        )
        mapping = replace(mapping, times=_times(made, mapping, self.questions))
        if not self.table.key:
            self.questions["key"] = "The table has no key: give it one first."
        elif len(self.table.key) > 1:
            self.notes["key"] = _several(made)
        self.draft = Draft(mapping, shape(self.table, mapping), self.notes, self.questions)

    # -- words

    def _words(self) -> dict[str, list[str]]:
        """Sort the words that the column may hold, or was seen to, by what they mean."""
        if self.state is None:
            return {}
        rows = self.made.census.values(self.state.name)
        known = list(
            self.state.vocabulary or sorted((word for word in rows if word is not None), key=lambda w: -rows[w])
        )
        if (default := _default(self.state)) is not None and default not in known:
            known.insert(0, default)
        found: dict[str, list[str]] = {}
        for word in known:
            if (means := self.reading.means(word)) is not None:
                found.setdefault(means, []).append(word)
        if "" in known and WAITING not in found:  # an empty text, where no other word waits
            found[WAITING] = [""]
        return found

    def _word(self, means: str, first: tuple[str, ...] = ()) -> str | None:
        words = self.words.get(means, [])
        return next((word for wish in first for word in words if plain(word) == wish), words[0] if words else None)

    def _say_word(self, moment: str, means: str, first: tuple[str, ...] = ()) -> dict[str, Value]:
        """Choose the word to write; where the column takes any and none was seen, ask."""
        if self.state is None:
            return {}
        word = self._word(means, first)
        if word is not None:
            return {self.state.name: _typed(self.state, word)}
        if self.state.vocabulary is None:
            what = {WORKING: "is under way", DONE: "has succeeded", FAILED: "has failed for good"}[means]
            self.questions[f"{moment}.set.{self.state.name}"] = (
                f"Which word of {self.state.name} says that a row {what}? None was ever seen. "
                "Take the line out if there is none: redrive then keeps it in a table of its own."
            )
        return {}

    # -- which rows

    def _runnable(self) -> Runnable:
        reading = self.reading
        gone = f"{reading.deleted} IS NULL" if reading.deleted and plain(reading.deleted) == reading.deleted else None
        if self.state is not None:
            values = tuple(_typed(self.state, word) for word in self.words.get(WAITING, []))
            rows = self.made.census.values(self.state.name)[None]
            if rows:
                self.notes["runnable"] = _null_there(rows)
            if not values:
                self.questions["runnable.values"] = f"Which values of {self.state.name} wait? As a list, such as [0]."
            return Runnable(column=self.state.name, values=values, where=gone)
        if reading.flag:
            rows = self.made.census.values(reading.flag)[None]
            if rows:
                self.notes["runnable"] = _null_there(rows)
            return Runnable(column=reading.flag, values=(False,), where=gone)
        if reading.stamp:
            return Runnable(column=reading.stamp, null=True, where=gone)
        return Runnable(where=gone)

    def _due(self) -> str | None:
        due = self.reading.due
        if due and (column := self.table.column(due)) is not None and column.nullable:
            self.notes["due"] = "not before this time; NULL: at once"
        return due

    def _kind(self) -> tuple[str | None, str | None]:
        name = self.reading.kind
        rows = self.made.census.values(name) if name and name in self.made.census.counted else Counter[str | None]()
        if name is None or not rows or None in rows:
            return self.table.name, None
        kinds = [kind for kind, _ in rows.most_common(KINDS) if kind is not None]
        more = f" and {len(rows) - KINDS} more" if len(rows) > KINDS else ""
        self.notes["kind_column"] = f"each row's kind: register a handler for {', '.join(kinds)}{more}"
        return None, name

    def _payload(self) -> Payload:
        taken = {name for name in vars(self.reading).values() if isinstance(name, str)}
        taken -= {self.reading.payload, self.reading.kind}
        data = [
            column
            for column in self.table.columns
            if column.readable
            and column.name not in {*self.table.key, *taken, self.kind_column}
            and column.base not in TIMES
            and plain(column.name) not in OUTPUTS
        ]
        payload = next((column for column in data if column.name == self.reading.payload), None)
        if payload is None or len(data) > 1:
            names = tuple(column.name for column in data)
            return Payload(form="columns", columns=names) if names else Payload()
        if payload.base in ("json", "jsonb"):
            return Payload(form="json", columns=(payload.name,))
        self.questions["payload.form"] = (
            f"Is what {payload.name} holds JSON? Then write json text; if it is another text, write columns."
        )
        return Payload(form="columns", columns=(payload.name,))

    def _attempts(self) -> Attempts:
        reading = self.reading
        if reading.most_column:
            if "retr" in plain(reading.most_column):
                self.notes["attempts.max_column"] = (
                    "tries in all; if the application means retries, that is one too few"
                )
            return Attempts(column=reading.attempts, most_column=reading.most_column)
        if reading.attempts is None:
            self.notes["attempts.max"] = "tries in all: redrive's own number, since the table counts none"
            return Attempts(most=reading.most or TRIES)
        if reading.most is None:
            self.questions["attempts.max"] = (
                f"How many tries has a row? {reading.attempts} counts them, and how many there may be is in the "
                "application's code, such as WHERE attempts < 3."
            )
        return Attempts(column=reading.attempts, most=reading.most)

    def _width(self) -> int | None:
        column = self.table.column(self.reading.error) if self.reading.error else None
        return column.width if column else None

    def _priority(self) -> Priority | None:
        column = self.table.column(self.reading.priority) if self.reading.priority else None
        if column is None:
            return None
        if column.base in NUMBERS:
            default = _default(column)
            normal = int(default) if default is not None and default.lstrip("-").isdigit() else 0
            self.questions["priority.first"] = (
                f"Which numbers of {column.name} run first, low or high? Take the part out if none do."
            )
            return Priority(column=column.name, normal=normal)
        counted = column.name in self.made.census.counted
        words = column.vocabulary or tuple(filter(None, self.made.census.values(column.name) if counted else ()))
        ranks = {word: RANKS[plain(word)] for word in words if plain(word) in RANKS}
        return Priority(column=column.name, words=ranks) if ranks else None

    # -- what is written

    def _claimed(self) -> Write:
        reading = self.reading
        now = [name for name in (reading.taken, reading.since) if name and self._of_claims(name)]
        values = self._say_word("claimed", WORKING)
        if not values and not now and "claimed.set" not in str(self.questions):
            self.notes["claimed"] = (
                "The table has no word for a row under way: nothing blinds the old worker, so it must be stopped."
            )
        return self._write(values | self._owner(), now=now)

    def _waiting(self) -> Write:
        values: dict[str, Value] = {}
        if self.state is not None and (word := self._waiting_word()) is not None:
            values[self.state.name] = _typed(self.state, word)
        run_at = (self.reading.due,) if self.reading.due else ()
        return self._write(values, null=self._lease(), run_at=run_at)

    def _succeeded(self) -> Write:
        reading = self.reading
        now = [reading.stamp] if reading.stamp else []
        if self.state is not None:
            return self._write(self._say_word("succeeded", DONE), now=now, null=self._lease())
        if reading.flag:
            return self._write({reading.flag: True}, now=now, null=self._lease())
        if reading.stamp:
            return self._write({}, now=now, null=self._lease())
        self.notes["succeeded"] = "A row waits for as long as it exists, so success deletes it."
        return Write(delete=True)

    def _dead(self) -> Write:
        now = [self.reading.died] if self.reading.died else []
        return self._write(self._say_word("dead", FAILED, FINAL), now=now, null=self._lease())

    def _waiting_word(self) -> str | None:
        default = _default(self.state) if self.state else None
        words = self.words.get(WAITING, [])
        again = self._word(WAITING, RETRY)
        return again if again and plain(again) in RETRY else default if default in words else again

    def _lease(self) -> tuple[str, ...]:
        """Name the columns that say who works a row and since when, to be emptied when nobody does."""
        names = (self.reading.owner, self.reading.taken)
        return tuple(name for name in names if name and (column := self.table.column(name)) and column.nullable)

    def _owner(self) -> dict[str, Value]:
        column = self.table.column(self.reading.owner) if self.reading.owner else None
        return {column.name: OURS} if column is not None and column.base in TEXTS and column.vocabulary is None else {}

    def _of_claims(self, name: str) -> bool:
        """Tell whether a time is written when a row is taken, and not at its making or at every change."""
        return name not in (self.reading.created, self.reading.due) and plain(name) not in UPDATED

    def _write(
        self,
        values: dict[str, Value],
        *,
        now: list[str] | None = None,
        null: tuple[str, ...] = (),
        run_at: tuple[str, ...] = (),
    ) -> Write:
        stamps = dict.fromkeys(now or [])
        clocks = self.reading.clocks
        changed = [each.name for each in self.table.columns if plain(each.name) in UPDATED and each.name in clocks]
        stamps |= dict.fromkeys(changed[:1])
        return Write(
            values=values, now=tuple(stamps), null=tuple(name for name in null if name not in values), run_at=run_at
        )


def _default(column: Column) -> str | None:
    """Read the text of a column's default, where it is one."""
    text = (column.default or "").partition("::")[0].strip()
    if text.startswith("'") and text.endswith("'") and len(text) > 1:
        return text[1:-1].replace("''", "'")
    return text.strip("()") if text.strip("()").lstrip("-").isdigit() else None


def _null_there(rows: int) -> str:
    return f"{counted(rows, 'row has', 'rows have')} NULL there: add null = true if such rows wait, too."


def _typed(column: Column, word: str) -> Value:
    return int(word) if column.base in NUMBERS and word.lstrip("-").isdigit() else word
