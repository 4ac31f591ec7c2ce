"""Searches over jobs as people type them: qualifiers in one line, read into a filter, answered within a time.

``kind:send_email status:dead error:timeout payload.to:x@y older:2h``. No index serves every filter, and none need: the
table is read piece by piece from the newest job on, and where the time is up the answer says how far it came. What is
masked where it is shown can't be found by searching for it.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from redrive.ended import Ended
from redrive.errors import InvalidOption
from redrive.job import STATES
from redrive.masking import is_secret
from redrive.settings import seconds
from redrive.statements import Statement, lenient
from redrive.text import storable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

from psycopg.rows import namedtuple_row

STATUSES = (*STATES, "due", "scheduled", "retrying")
WAITING = {"pending", "due", "scheduled", "retrying"}
DOCUMENTS = ("payload", "metadata", "result")
QUALIFIERS = {
    "status": "pending, running, succeeded, failed, dead; or due, scheduled, retrying",
    "kind": "one kind, or several with commas; -kind: leaves them out",
    "id": "one id, or several with commas",
    "key": "the job's key",
    "lane": "the job's lane",
    "batch": "the number of its batch",
    "worker": "the worker that holds it, or held it last",
    "error": "text of its last error, in any case",
    "payload.": "a value in the payload by its path, as in payload.to:x@y; * stands for anything",
    "metadata.": "a value in the metadata, as in metadata.schedule:nightly",
    "result.": "a value in the result",
    "older": "enqueued before: 2h, 7d, or a date with its zone",
    "newer": "enqueued since",
    "since": "changed since, which for a job that ended is when it did",
    "until": "changed before",
}
"""Each qualifier and what it is for; any other word is looked for in kind, key, lane and error."""

_WORD = re.compile(
    r'\s*(?P<not>-)?(?:(?P<name>[A-Za-z_][\w.\-\[\]]*):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>\S+))'
)
_SPAN = re.compile(r"[\d.]+(ms|s|m|h|d|w)", re.ASCII)
_NUMBERS = {"id": "an id", "batch": "the number of a batch"}
_MOST = 2**63 - 1
FIRST_PIECE = 4000
"""Ids of the first piece of a search; the next ones are as large as the time that it took allows."""
PIECE_SECONDS = 0.04


class Value(NamedTuple):
    """What is to stand at a path of a document."""

    document: str
    path: str
    value: str
    """With a * for anything."""

    @property
    def array(self) -> str:
        """The path as a literal of text[]."""
        return "{" + ",".join('"' + re.sub(r'(["\\])', r"\\\1", part) + '"' for part in self.path.split(".")) + "}"


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is looked for; what isn't given doesn't matter."""

    text: str = ""
    statuses: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    not_kinds: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()
    lanes: tuple[str, ...] | None = None
    workers: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    errors: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    values: tuple[Value, ...] = ()
    older: timedelta | datetime | None = None
    newer: timedelta | datetime | None = None
    since: timedelta | datetime | None = None
    until: timedelta | datetime | None = None

    @property
    def way(self) -> str:
        """Which rows have to be looked at."""
        if self.ids:
            return "ids"
        if self.batches:
            return "batch"
        if set(self.statuses) == {"dead", "failed"}:
            return "ended"
        if self.statuses and set(self.statuses) <= WAITING:
            return "waiting"
        alone = self.statuses[0] if len(self.statuses) == 1 else ""
        return alone if alone in ("dead", "failed", "running") else "all"

    @property
    def plain(self) -> bool:
        """Whether it asks for nothing in particular."""
        return self == Search(text=self.text)

    def ended(self, now: datetime) -> Ended | None:
        """Give the same filter as all sending back takes it, where it can say it; dead jobs unless it says failed."""
        sayable = replace(self, text="", statuses=(), kinds=(), errors=(), values=(), since=None, until=None)
        # Kinds are left out also because they are sensitive: no filter for sending back can say so.
        if sayable != Search() or len(self.kinds) > 1 or len(self.errors) > 1:
            return None
        if any(value.document != "payload" or "*" in value.value for value in self.values):
            return None
        if not set(self.statuses) <= {"dead", "failed"}:
            return None
        return Ended(
            kind=next(iter(self.kinds), None),
            error=next(iter(self.errors), None),
            payload={value.path: value.value for value in self.values} or None,
            since=_at(self.since, now),
            until=_at(self.until, now),
            statuses=self.statuses or ("dead",),
        )

    def params(self, now: datetime) -> dict[str, Any]:
        """Give the filter as the parameters of ``desk_search``."""

        def given(values: Iterable[Any]) -> list[Any] | None:
            return list(values) or None

        return {
            "way": self.way,
            "ids": list(self.ids),
            "statuses": given(self.statuses),
            "kinds": given(self.kinds),
            "not_kinds": given(self.not_kinds),
            "keys": given(self.keys),
            "lanes": None if self.lanes is None else list(self.lanes),
            "workers": given(self.workers),
            "batches": given(self.batches),
            "errors": given(map(_containing, self.errors)),
            "words": given(map(_containing, self.words)),
            "documents": given(value.document for value in self.values),
            "paths": given(value.array for value in self.values),
            "values": given(_like(value.value).replace("*", "%") for value in self.values),
            "created_before": _at(self.older, now),
            "created_after": _at(self.newer, now),
            "since": _at(self.since, now),
            "until": _at(self.until, now),
        }


def read(text: str, *, sensitive: Iterable[str] = ()) -> Search:
    """Read what somebody typed; the documents of *sensitive* kinds are not searched.

    Raises:
        InvalidOption: naming the word and the remedy.
    """
    if storable(text) != text:
        raise InvalidOption("NUL and lone surrogates can't be stored, so there is nothing such to be found")
    found: dict[str, list[Any]] = {}
    for match in _WORD.finditer(text):
        value = match["bare"] if match["quoted"] is None else re.sub(r"\\(.)", r"\1", match["quoted"])
        _read_word((match["name"] or "").lower(), match["name"] or "", value, found, without=bool(match["not"]))
    if found.get("values"):
        found["not_kinds"] = [*found.get("not_kinds", []), *sensitive]
    single: dict[str, Any] = {
        name: found.pop(name)[-1] for name in ("older", "newer", "since", "until") if name in found
    }
    single |= {name: tuple(values) for name, values in found.items()}
    return Search(text=text.strip(), **single)


def _read_word(name: str, spelt: str, value: str, found: dict[str, list[Any]], *, without: bool) -> None:
    def add(field_name: str, *values: Any) -> None:
        found.setdefault(field_name, []).extend(values)

    document, _, path = name.partition(".")
    if without and name != "kind":
        raise InvalidOption(f"-{spelt or value}: only kinds can be left out, as in -kind:send_email")
    if not name:
        add("ids", int(value)) if value.isdecimal() and value.isascii() and int(value) <= _MOST else add("words", value)
    elif document in DOCUMENTS and path:
        add("values", _value(document, spelt.partition(".")[2], value))
    elif name == "status":
        add("statuses", *map(_status, value.split(",")))
    elif name in ("id", "batch"):
        add("ids" if name == "id" else "batches", *(_id(name, each) for each in value.split(",")))
    elif name in ("kind", "key", "lane", "worker"):
        add("not_kinds" if without else f"{name}s", *(value.split(",") if name == "kind" else [value]))
    elif name == "error":
        add("errors", value)
    elif name in ("older", "newer", "since", "until"):
        add(name, _when(name, value))
    else:
        near = get_close_matches(name, [each.rstrip(".") for each in QUALIFIERS], n=1)
        known = f"did you mean {near[0]}:?" if near else f"there are {', '.join(QUALIFIERS)}"
        raise InvalidOption(f"{spelt}: is no qualifier: {known}. To look for the text itself, write it in quotes")


def _status(value: str) -> str:
    if value not in STATUSES:
        near = get_close_matches(value, STATUSES, n=1)
        raise InvalidOption(
            f"status:{value}: " + (f"did you mean {near[0]}?" if near else f"one of {', '.join(STATUSES)}")
        )
    return value


def _id(name: str, value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = _MOST + 1
    if not -_MOST <= number <= _MOST:
        raise InvalidOption(f"{name}:{value}: {_NUMBERS[name]} is a whole number")
    return number


def _value(document: str, path: str, value: str) -> Value:
    parts = [part for part in re.split(r"[.\[\]]", path) if part]
    if secret := next(filter(is_secret, parts), None):
        raise InvalidOption(f"{document}.{path}: what stands under {secret} is masked, and not searched either")
    return Value(document, ".".join(parts), value)


def _when(name: str, value: str) -> timedelta | datetime:
    if _SPAN.fullmatch(value):
        try:
            return timedelta(seconds=seconds(value, name))
        except OverflowError:
            raise InvalidOption(f"{name}:{value}: that is before all time") from None
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidOption(f"{name}:{value}: give a span like 90s, 2h, 7d, or a date like 2030-01-31T09:00Z") from None
    if when.tzinfo is None:
        raise InvalidOption(f"{name}:{value}: say in which zone, as in {when.isoformat()}Z")
    return when


def _at(when: timedelta | datetime | None, now: datetime) -> datetime | None:
    return now - when if isinstance(when, timedelta) else when


def _like(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _containing(text: str) -> str:
    return f"%{_like(text)}%"


@dataclass(frozen=True)
class Found:
    """A page of an answer."""

    rows: list[Any]
    after: str | None
    """From where to go on, for :meth:`Finder.page`; None at the end."""
    searched: bool = True
    """Whether it was full, or at its end, before the time was up."""
    upto: int | None = None
    """The id up to which it came, where they are looked at by their ids."""


@dataclass
class Finder:
    """Answers searches piece by piece."""

    schema: str
    ask: Callable[[Statement[Any]], list[Any]]
    budget: float = 0.2
    """Seconds after which it stops and says how far it came."""
    clock: Callable[[], float] = field(default=time.monotonic)

    def page(self, search: Search, now: datetime, *, after: str | None = None, limit: int = 50) -> Found:
        """Find the next *limit* jobs: the newest first, or those that wait in the order in which they are taken.

        Raises:
            InvalidOption: when *after* is not what a page before said.
        """
        end = self.clock() + self.budget
        filters = search.params(now)
        if search.way == "waiting":
            kind = search.kinds[0] if len(search.kinds) == 1 else None
            return self._waiting(filters | {"way": "ids"}, kind, _place(after), limit, end)
        [bounds] = self.ask(lenient("desk_bounds", self.schema, namedtuple_row))
        before = min(bounds.last + 1, bounds.last + 1 if after is None else _whole(after))
        if search.way == "ids":
            rows = self._piece(filters, bounds.first, before, limit + 1)
            return Found(rows[:limit], str(rows[limit - 1].id) if len(rows) > limit else None)
        return self._by_id(filters, bounds.first, before, limit, end)

    def _by_id(self, filters: dict[str, Any], first: int, before: int, limit: int, end: float) -> Found:
        rows: list[Any] = []
        size = FIRST_PIECE
        while before > first:
            low = max(before - size, first)
            began = self.clock()
            rows += self._piece(filters, low, before, limit + 1 - len(rows))
            if len(rows) > limit:
                return Found(rows[:limit], str(rows[limit - 1].id))
            before = low
            if self.clock() > end and before > first:
                return Found(rows, str(before), searched=False, upto=before)
            size = _next_size(size, self.clock() - began)
        return Found(rows, None)

    def _waiting(
        self, filters: dict[str, Any], kind: str | None, after: tuple[Any, ...] | None, limit: int, end: float
    ) -> Found:
        rows: list[Any] = []
        size = FIRST_PIECE // 4
        while True:
            began = self.clock()
            place = dict(zip(_PLACE, after or (None,) * len(_PLACE), strict=True))
            statement = lenient("desk_first_waiting", self.schema, namedtuple_row, kind=kind, limit=size, **place)
            places = {row.id: row for row in self.ask(replace(statement, kept=False))}
            found = self._piece(filters | {"ids": list(places)}, -_MOST, _MOST, size)
            order = {job_id: number for number, job_id in enumerate(places)}
            rows += sorted(found, key=lambda row: order[row.id])
            if len(rows) > limit:
                return Found(rows[:limit], _spelt(places[rows[limit - 1].id]))
            if len(places) < size:
                return Found(rows, None)
            last = next(reversed(places.values()))
            after = (last.kind, last.priority, last.lane, last.run_at, last.id)
            if self.clock() > end:
                return Found(rows, _spelt(last), searched=False)
            size = _next_size(size, self.clock() - began)

    def _piece(self, filters: dict[str, Any], low: int, before: int, limit: int) -> list[Any]:
        limits = {"low": low, "before": before, "limit": limit}
        statement = lenient("desk_search", self.schema, namedtuple_row, **filters, **limits)
        return self.ask(replace(statement, kept=False))


_PLACE = ("after_kind", "after_priority", "after_lane", "after_run_at", "after_id")


def _next_size(size: int, took: float) -> int:
    return max(100, int(size * min(8.0, max(0.25, PIECE_SECONDS / max(took, 1e-4)))))


def _spelt(row: Any) -> str:
    return json.dumps([row.kind, row.priority, row.lane, row.run_at, row.id])


def _place(after: str | None) -> tuple[Any, ...] | None:
    if after is None:
        return None
    try:
        kind, priority, lane, run_at, job_id = json.loads(after)
    except (ValueError, TypeError):
        raise InvalidOption(f"from is {after!r:.40}: it is where a page of the same search ended") from None
    return str(kind), _whole(priority), str(lane), str(run_at), _whole(job_id)


def _whole(text: Any) -> int:
    try:
        return min(max(int(text), -_MOST), _MOST)
    except (ValueError, TypeError):
        raise InvalidOption(f"from is {text!r:.40}: it is where a page of the same search ended") from None
