"""Which dead (or failed) jobs an operator means, and the statements that count them and send them back.

One filter for the command line, the pages and a program; one statement behind all sending back, at once or over time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from psycopg.rows import namedtuple_row

from redrive import store
from redrive.audit import signed
from redrive.errors import InvalidOption
from redrive.settings import unknown
from redrive.statements import Statement, lenient

FIRST, LAST = -(2**63), 2**63 - 1
BATCH = 1000
WINDOW = 2000
"""Jobs that one statement looks at for those that are meant."""
BURST = 5.0
"""Seconds of a rate that may be made up for at once, after a time in which nobody advanced it."""
MOST_PATHS = 4


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Which dead (or failed) jobs an operator means. What isn't given doesn't matter."""

    ids: Sequence[int] | None = None
    kind: str | None = None
    group: str | None = None
    """A failure group's key, with its kind: see :attr:`redrive.groups.Group.which`."""
    error: str | None = None
    """Text that last_error contains, in any case."""
    since: datetime | None = None
    until: datetime | None = None
    payload: Mapping[str, Any] | None = None
    """By its path, as in ``{"to": "x@y", "items.0.sku": 7}``, what stands there in the payload."""
    statuses: tuple[str, ...] = ("dead",)

    def params(self) -> dict[str, Any]:
        """Give the filter as parameters.

        Raises:
            InvalidOption: for a state that a job can't be sent back from, a naive datetime, a group without its kind.
        """
        for status in self.statuses:
            if status not in ("dead", "failed"):
                raise InvalidOption(f"status is {status!r}: only dead and failed jobs are sent back")
        if self.group is not None and self.kind is None:
            raise InvalidOption(f"group is {self.group!r}: give its kind as well")
        return {
            "ids": None if self.ids is None else [store.number(each, "id") for each in self.ids],
            "kind": store.said(self.kind, "kind"),
            "group": store.said(self.group, "group"),
            "error": store.containing(self.error),
            "since": store.instant(self.since, "since"),
            "until": store.instant(self.until, "until"),
            "statuses": list(self.statuses),
            **_paths(self.payload),
        }

    def written(self) -> str:
        """Write the filter as JSON, without what isn't given."""
        self.params()
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.statuses == ("dead",):
            del given["statuses"]
        given = {name: value for name, value in given.items() if value is not None}
        return json.dumps(given, default=_plain, ensure_ascii=False)  # not every encoding takes escapes

    @classmethod
    def of(cls, which: Ended | int | Iterable[int]) -> Ended:
        """Give the filter that is meant by *which*: itself, or the dead jobs with that id or those ids.

        Raises:
            InvalidOption: for anything else, text too.
        """
        if isinstance(which, Ended):
            return which
        ids = [which] if isinstance(which, int) else which
        if isinstance(ids, Iterable) and not isinstance(ids, str | bytes | Mapping):
            listed = list(ids)
            if all(isinstance(each, int) and not isinstance(each, bool) for each in listed):
                return cls(ids=listed)
        raise InvalidOption(f"which is {which!r:.80}: give an id, ids, or a filter as in Ended(kind='send_email')")

    @classmethod
    def read(cls, given: Any) -> Ended:
        """Read a filter that was written, by us or by hand.

        Raises:
            InvalidOption: naming what is wrong with it.
        """
        if not isinstance(given, Mapping):
            raise InvalidOption(f"filter is {given!r:.80}: must be a JSON object")
        names = [field.name for field in fields(cls)]
        for name in given:
            if name not in names:
                raise unknown(name, names)
        made = dict(given)
        try:
            for name in ("since", "until"):
                if made.get(name) is not None:
                    made[name] = datetime.fromisoformat(made[name])
            if made.get("ids") is not None:
                made["ids"] = [int(each) for each in made["ids"]]
            which = cls(**made | {"statuses": tuple(made.get("statuses") or ("dead",))})
            which.params()
        except (TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InvalidOption):
                raise
            raise InvalidOption(f"filter is {dict(given)!r:.200}, which can't be read: {error}") from None
        return which


def requeue_preview(schema: str, which: Ended, *, most: int | None = None) -> Statement[Any]:
    """Count what :func:`requeue` would send back, with a sample; up to *most*, where that is given."""
    statement = lenient("requeue_preview", schema, namedtuple_row, **which.params(), most=most)
    return replace(statement, kept=False)  # a plan for any values can't use the index of the groups


def requeue(
    schema: str,
    which: Ended,
    *,
    after: int = FIRST,
    last: int = LAST,
    limit: int = BATCH,
    act: int | None = None,
    by: str = "",
    reason: str = "",
) -> Statement[Any]:
    """Send one batch back, ids above *after* up to *last*; *act* is the audit's row that counts it, None at first."""
    how: dict[str, Any] = {"requeue": None, "seen": None, "audit": act, "filter": which.written(), **signed(by, reason)}
    return _batch(schema, which.params(), after=after, last=last, limit=limit, **how)


def advance(schema: str, which: Ended, *, row: Any, limit: int) -> Statement[Any]:
    """Send back as many as the *row* of requeues has open now."""
    how = {"requeue": row.id, "seen": row.status, "audit": None, "filter": None, "who": None, "why": None}
    return _batch(schema, which.params(), after=row.after_id, last=LAST, limit=limit, **how)


def _batch(schema: str, which: dict[str, Any], **how: Any) -> Statement[Any]:
    return lenient("requeue_jobs", schema, namedtuple_row, **which, **how, window=WINDOW, burst=BURST)


def _paths(payload: Mapping[str, Any] | None) -> dict[str, Any]:
    if payload is not None and (not isinstance(payload, Mapping) or len(payload) > MOST_PATHS):
        raise InvalidOption(f"payload is {payload!r:.80}: give up to {MOST_PATHS} paths, each with its value")
    given: dict[str, Any] = dict.fromkeys(f"{what}{n}" for n in range(1, MOST_PATHS + 1) for what in ("path", "value"))
    for number, (path, value) in enumerate((payload or {}).items(), 1):
        if not isinstance(path, str) or not path or not all(path.split(".")):
            raise InvalidOption(f"payload path is {path!r:.80}: write it as in to, user.name or items.0.sku")
        store.said(path, "payload path")
        given |= {f"path{number}": path.split("."), f"value{number}": _spelt(value)}
    return given


def _spelt(value: Any) -> str | None:
    """Write what stands at a path as ``#>>`` gives it."""
    if value is None or isinstance(value, str):
        return store.said(value, "payload value")
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise InvalidOption(f"payload value is {value!r:.80}: give text, a number, true, false or null")


def _plain(value: Any) -> Any:
    return (
        value.isoformat() if isinstance(value, datetime) else list(value) if isinstance(value, Sequence) else str(value)
    )
