"""What one adoption's functions and triggers are made of: its names, and its mapping's terms where each of them stands.

The templates are in ``queries.sql``; here they are filled in. Nothing is run, and nothing of the table is looked up.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from redrive.adopt import terms
from redrive.adopt.mapping import Clock
from redrive.adopt.terms import AND, COMMA, column
from redrive.sql import compose, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redrive.adopt.look import Table
    from redrive.adopt.mapping import Mapping, Write

FUNCTIONS = {
    "take": "adopt_take",
    "note": "adopt_note",
    "write": "adopt_write",
    "inserted": "adopt_inserted",
    "updated": "adopt_updated",
    "of_job": "adopt_job",
    "round": "adopt_round",
}
"""The functions of an adoption and the statement that makes each, in the order in which they need each other."""
_LATER = "adopt_value_later"


class Pieces:
    """The parts of one adoption, by the names that the templates have for them."""

    def __init__(self, schema: str, adoption: int, mapping: Mapping, table: Table, *, beside: bool) -> None:
        self.schema = schema
        self.adoption = adoption
        self.mapping = mapping
        self.table = table
        self._beside = beside
        self.parts: dict[str, Composable] = {
            **names(schema, adoption),
            **of_table(table.schema, table.name),
            "adoption": Literal(adoption),
            "table_name": Literal(mapping.table),
            "mark": Literal(json.dumps({"adopted": {"adoption": adoption}})),
            "beside": Literal(beside),
            "planned": SQL(text_of("adopt_planned")),
            "deletes": Literal(mapping.succeeded.delete),
            **self._key(),
            **self._terms(),
        }
        self.parts["noted"] = self.composed("adopt_noted")
        self.parts |= {name: self._write(name) for name in ("claimed", "waiting", "returned", "succeeded", "dead")}

    def functions(self) -> list[Composed]:
        """Give the statements that make the functions."""
        return [self.composed(template) for template in FUNCTIONS.values()]

    def composed(self, name: str, **more: Composable) -> Composed:
        """Fill the template *name* in."""
        return compose(text_of(name), self.schema, **{**self.parts, **more})

    def success(self) -> Composable:
        """Give what success sets of a row."""
        return COMMA.join(self._sets(self.mapping.succeeded))

    # -- how

    def _key(self) -> dict[str, Composable]:
        key = self.table.column(self.mapping.key)
        # without its width: a cast to varchar(10) would cut a longer text in silence, and find another row
        base = SQL(key.base) if key else SQL("text")  # the name of a type of Postgres's own
        return {"key": Identifier(self.mapping.key), "key_type": base, "key_name": Literal(self.mapping.key)}

    def _terms(self) -> dict[str, Composable]:
        mapping = self.mapping
        never = SQL(text_of("adopt_never"))
        now = self._part("adopt_value_clock")
        kind = Literal(mapping.kind) if mapping.kind_column is None else column(mapping.kind_column)
        due = now if mapping.due is None else self._part("adopt_due", time=terms.time(mapping, mapping.due))
        tries = mapping.attempts.column
        return {
            "runnable": terms.runnable(mapping),
            "waits": terms.runnable(mapping, tries=False),
            "is_claimed": self._is(mapping.claimed) or never,
            "is_dead": self._is(mapping.dead) or never,
            "kind": _part("adopt_text", column=kind),
            "due": due,
            "due_column": never if mapping.due is None else column(mapping.due),
            "priority": self._priority(),
            "most": terms.most(mapping),
            "tries": Literal(0) if tries is None else _part("adopt_tries", column=column(tries)),
            "payload": self._payload(),
            "young": self._young(now),
            "since": self._since(),
            "row_lock": SQL(text_of("adopt_lock")) if self._beside else SQL(""),
            "blinded": self._blinded(),
        }

    def _young(self, now: Composable) -> Composable:
        """Say that a row is from after the cut-over: by itself, or because that has come."""
        mapping = self.mapping
        created = now if mapping.created is None else terms.time(mapping, mapping.created)
        return _part("adopt_young", created=created, cutover=self._cutover())

    def _since(self) -> Composable:
        """Say that a row is known to be from after the cut-over."""
        mapping = self.mapping
        if mapping.created is None:
            return SQL(text_of("adopt_never"))
        created = terms.time(mapping, mapping.created)
        return _part("adopt_since", created=created, cutover=self._cutover())

    def _cutover(self) -> Composable:
        """Give the cut-over as fine as the column of creation tells times: what is of its second is not from before."""
        mapping, cutover = self.mapping, self.mapping.cutover
        if mapping.created is not None:
            made, form = self.table.column(mapping.created), mapping.clock(mapping.created).form
            if made is not None and made.base == "date":
                cutover = cutover.replace(hour=0, minute=0, second=0, microsecond=0)
            elif form == "epoch s":
                cutover = cutover.replace(microsecond=0)
            elif form in ("epoch ms", "iso"):
                cutover = cutover.replace(microsecond=cutover.microsecond // 1000 * 1000)
        return Literal(cutover.isoformat())

    def _blinded(self) -> Composable:
        if not self._beside:
            return SQL("")
        return self._part("adopt_blinded", sets=COMMA.join(self._sets(self.mapping.claimed)), **self._key())

    def _priority(self) -> Composable:
        priority = self.mapping.priority
        if priority is None:
            return SQL(text_of("adopt_priority_none"))
        if priority.words:
            pairs: list[Composable] = []
            for word, number in priority.words.items():
                pairs += [Literal(word), Literal(number)]
            words = _part("adopt_payload_columns", pairs=COMMA.join(pairs))
            return _part("adopt_priority_words", column=column(priority.column), words=words)
        name = "adopt_priority_low" if priority.first == "low" else "adopt_priority_high"
        return _part(name, column=column(priority.column), normal=Literal(priority.normal))

    def _payload(self) -> Composable:
        payload = self.mapping.payload
        if payload.form == "row":
            return SQL(text_of("adopt_payload_row"))
        if payload.form == "columns":
            pairs: list[Composable] = []
            for name in payload.columns:
                pairs += [_part("adopt_text", column=Literal(name)), column(name)]
            return _part("adopt_payload_columns", pairs=COMMA.join(pairs))
        found = self.table.column(payload.columns[0])
        name = "adopt_payload_bytes" if found and found.base == "bytea" else "adopt_payload_json"
        return _part(name, column=column(payload.columns[0]))

    def _is(self, write: Write) -> Composable | None:
        """Say that a row is as *write* leaves it, as far as that can be told."""
        said: list[Composable] = [
            _part("adopt_is", column=column(name), value=Literal(value)) for name, value in write.values.items()
        ]
        said += [_part("adopt_term_null", column=column(name)) for name in write.null]
        return AND.join(said) if said else None

    def _write(self, moment: str) -> Composable:
        """Give the statement that writes one moment to the row."""
        mapping = self.mapping
        if moment == "succeeded" and mapping.succeeded.delete:
            return self.composed("adopt_write_delete")
        write = mapping.write("waiting" if moment == "returned" else moment)
        if moment == "waiting" and self._beside:  # the old worker is not to see it again
            write = mapping.claimed
        sets = [*self._sets(write), *self._waits_again(moment, write)]
        counts, error = mapping.attempts.column, mapping.error
        if moment not in ("claimed", "succeeded") and counts is not None and counts not in write.columns:
            sets.append(_set(counts, SQL(text_of("adopt_value_tries"))))
        if moment in ("waiting", "dead") and error is not None and error not in write.columns:
            sets.append(_set(error, self._error()))
        return self.composed("adopt_write_update", sets=COMMA.join(sets)) if sets else _part("adopt_write_nothing")

    def _waits_again(self, moment: str, write: Write) -> list[Composable]:
        """Give what makes a row wait by its own words, where the map's words for waiting leave that out."""
        rule = self.mapping.runnable
        back = moment == "returned" or (
            moment == "waiting" and not self._beside and rule.column in self.mapping.claimed.columns
        )
        if not back or rule.column is None or rule.column in write.columns:
            return []
        return [_set(rule.column, Literal(rule.values[0] if rule.values else None))]

    def _error(self) -> Composable:
        error, width = SQL(text_of("adopt_value_whole_error")), self.mapping.error_width
        return error if width is None else _part("adopt_value_error", error=error, width=Literal(width))

    def _sets(self, write: Write) -> list[Composable]:
        now = self._part("adopt_value_clock")
        sets: list[Composable] = [_set(name, Literal(value)) for name, value in write.values.items()]
        sets += [_set(name, self._spelt(name, now)) for name in write.now]
        sets += [_set(name, SQL(text_of("adopt_value_null"))) for name in write.null]
        sets += [_set(name, self._spelt(name, SQL(text_of("adopt_value_run_at")))) for name in write.run_at]
        for name, seconds in write.later.items():
            sets.append(_set(name, self._spelt(name, self._part(_LATER, seconds=Literal(seconds)))))
        return sets

    def _spelt(self, name: str, when: Composable) -> Composable:
        return terms.spell(self.mapping.times.get(name, Clock(form="timestamptz")), when)

    def _part(self, name: str, **parts: Composable) -> Composed:
        return compose(text_of(name), self.schema, **of_table(self.table.schema, self.table.name), **parts)


def names(schema: str, adoption: int) -> dict[str, Composable]:
    """Give the names of what is made for an adoption."""
    mark = "" if schema == "redrive" else hashlib.sha256(schema.encode()).hexdigest()[:8] + "_"
    return {
        **{name: Identifier(schema, f"adoption_{adoption}_{name}") for name in FUNCTIONS},
        "trigger_inserted": Identifier(f"redrive_{mark}adoption_{adoption}_inserted"),
        "trigger_updated": Identifier(f"redrive_{mark}adoption_{adoption}_updated"),
        "trigger_of_job": Identifier(f"adoption_{adoption}"),
        "job_ids": _part("adopt_sequence", name=Literal(Identifier(schema, "jobs_id_seq").as_string(None))),
    }


def of_table(schema: str, name: str) -> dict[str, Composable]:
    """Give the names of the table."""
    return {"table": Identifier(schema, name), "home": Identifier(schema)}


def index(mapping: Mapping, table: Table, name: str) -> Composed:
    """Give the statement that makes an index for the sweep: of the rows that wait, in the order of their keys."""
    parts: dict[str, Composable] = {"index": Identifier(name), "key": Identifier(mapping.key)}
    parts |= of_table(table.schema, table.name)
    return _part("adopt_index", **parts, runnable=terms.runnable(mapping))


def _set(name: str, value: Composable) -> Composed:
    return _part("adopt_set", column=Identifier(name), value=value)


def _part(template: str, **parts: Composable) -> Composed:
    return SQL(text_of(template)).format(**parts)


def spoken(statements: Iterable[Composable]) -> list[str]:
    """Spell statements as text, for a human to read or to run."""
    return [statement.as_string(None) + ";" for statement in statements]
