"""What is to run when, checked: a schedule as code or an operator defines it, before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from redrive import store
from redrive.errors import InvalidOption
from redrive.handlers import Handler
from redrive.payload import encode
from redrive.settings import seconds, unknown
from redrive.statements import Statement, named
from redrive.timetable import timetable
from redrive.typed import dump

if TYPE_CHECKING:
    from redrive.handlers import Handlers

MISSED = ("skip", "latest", "all")
OVERLAP = ("skip", "queue one", "allow")
MOST = 1000


class Options(TypedDict, total=False):
    """How the jobs of a schedule run, and what becomes of slots that come to grief."""

    priority: int
    """0 to 9; the handler's, where one is known."""
    max_attempts: int
    """The handler's, where one is known."""
    lane: str
    missed: str
    """Slots at which no worker ran: ``skip``, ``latest`` (one run makes up for all of them) or ``all``."""
    most: int
    """With ``all``: how many are made up for, the newest ones (100)."""
    age: float | timedelta | str | None
    """How old a missed slot may be and still be made up for; seconds, or text like 6h."""
    overlap: str
    """While the last run's job is pending or running: ``skip``, ``queue one`` or ``allow``."""


class InCode(Options, total=False):
    """What the decorator takes beside a cron text."""

    every: float | timedelta | str | None
    """Seconds, a timedelta, or text like 5m."""
    timezone: str
    name: str | None
    payload: Any


@dataclass(frozen=True, kw_only=True)
class Definition:
    """What is to run when, checked."""

    name: str
    kind: str
    payload: str
    cron: str | None
    every: timedelta | None
    at: datetime | None
    timezone: str
    anchor: datetime
    anchored: bool
    """Whether the anchor was given, and goes over that of a schedule that is there already."""
    priority: int
    max_attempts: int
    lane: str
    missed: str
    most: int
    age: timedelta | None
    overlap: str


def define(
    handlers: Handlers,
    name: str,
    kind: str | Handler[Any, Any],
    cron: str | None,
    *,
    every: float | timedelta | str | None = None,
    at: datetime | None = None,
    timezone: str = "UTC",
    payload: Any = None,
    anchor: datetime | None = None,
    options: Options,
) -> Definition:
    """Check what a schedule was given; priority and attempts are the handler's where *handlers* know one.

    Raises:
        InvalidOption: naming the value and the remedy.
        InvalidPayload: for a payload that can't be stored.
    """
    if unheard := set(options) - set(Options.__annotations__):
        raise unknown(unheard.pop(), [*Options.__annotations__, "cron", "every", "at", "timezone", "payload", "name"])
    kind = kind.kind if isinstance(kind, Handler) else kind
    handler = handlers.get(kind) if isinstance(kind, str) else None
    wishes: dict[str, Any] = {"priority": handler.priority, "max_attempts": handler.max_attempts} if handler else {}
    wishes |= {key: value for key, value in options.items() if key in ("priority", "max_attempts", "lane")}
    how = store.options(**wishes)
    age = options.get("age")
    made = Definition(
        name=store.name(name, "name"),
        kind=store.name(kind, "kind"),
        payload=encode({} if payload is None else dump(payload)),
        cron=cron,
        every=None if every is None else _length(every, "every"),
        at=at,
        timezone=timezone,
        anchor=datetime.now(UTC).replace(microsecond=0) if anchor is None else anchor,
        anchored=anchor is not None,
        priority=how.priority,
        max_attempts=how.max_attempts,
        lane=how.lane,
        missed=_one_of(options.get("missed", "latest"), MISSED, "missed"),
        most=_most(options.get("most", 100)),
        age=None if age is None else _length(age, "age"),
        overlap=_one_of(str(options.get("overlap", "skip")).replace("-", " ").replace("_", " "), OVERLAP, "overlap"),
    )
    timetable(made.cron, made.every, made.at, made.timezone, made.anchor)
    return made


def register(schema: str, made: tuple[Definition, ...]) -> Statement[Any]:
    """Write down what a worker has in its code."""
    columns = {
        "names": "name",
        "kinds": "kind",
        "payloads": "payload",
        "crons": "cron",
        "everies": "every",
        "timezones": "timezone",
        "priorities": "priority",
        "max_attempts": "max_attempts",
        "lanes": "lane",
        "missed": "missed",
        "mosts": "most",
        "ages": "age",
        "overlaps": "overlap",
    }
    return named(
        "register_schedules", schema, **{key: [getattr(each, of) for each in made] for key, of in columns.items()}
    )


def _length(value: float | timedelta | str, name: str) -> timedelta:
    length = seconds(value, name)
    if not 0 <= length <= 36_500 * 86_400:
        raise InvalidOption(f"{name} is {length:g} s: must be from 0 to a hundred years")
    return timedelta(seconds=length)


def _most(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise InvalidOption(f"most is {value!r}: must be a whole number from 1 to {MOST}")
    return value


def _one_of(value: Any, known: tuple[str, ...], name: str) -> str:
    if value not in known:
        raise InvalidOption(f"{name} is {value!r}: must be {', '.join(known[:-1])} or {known[-1]}")
    return str(value)
