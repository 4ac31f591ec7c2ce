"""When a schedule runs: by a cron text in a time zone, at a steady interval, or once. No database, and no clock either.

A timetable is a function from one instant to the next slot after it. It remembers nothing, so all workers come to the
same slots, and what was missed can be worked out afterwards. Cron itself is cronsim's; what is ours is the change of
clocks: fixed hours run once a local day, the first time that they come, and where clocks skip them at the first instant
after; wildcard hours run every real hour.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from typing import NamedTuple, Protocol
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from redrive.errors import InvalidOption
from redrive.words import counted

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
LONGEST = 36_500 * DAY
LONGEST_TEXT = 500
"""Characters of a cron text."""
ON_TIME = timedelta(seconds=10)
"""A slot that is no later than this was not missed: a worker was busy or just begins."""
RECORDED = 1000
"""Slots of one schedule that are worked out at once; where more were missed the oldest share one row."""
FIRST, LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
ZONE_HELP = "give a name like Europe/Berlin or UTC"
CRON_HELP = "write five fields (minute hour day month weekday), six with the seconds first, or a name like @daily"
NAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
FIELDS, WITH_SECONDS, HOURS_A_DAY = 5, 6, 24


class Timetable(Protocol):
    """What gives the slots of a schedule."""

    def next(self, after: datetime) -> datetime | None:
        """Give the first slot later than *after*, in UTC; None where there is none any more."""


class Cron:
    """The slots of a cron text, read in a time zone."""

    def __init__(self, text: str, timezone: str = "UTC") -> None:
        """Read the text.

        Raises:
            InvalidOption: for a text that can't be read or never comes, or a zone that nobody knows.
        """
        self.zone = zone(timezone)
        fields = _fields(text)
        self._text = " ".join(fields)
        try:
            sim = CronSim(self._text, FIRST)
        except (CronSimError, ValueError) as error:
            raise InvalidOption(f"cron is {text!r}: {_reason(error, fields)}; {CRON_HELP}") from error
        self._every_hour = fields[2].startswith("*") or len(sim.hours) == HOURS_A_DAY
        if self.next(datetime(2026, 1, 1, tzinfo=UTC)) is None:
            raise InvalidOption(f"cron is {text!r}: no such day comes in the next fifty years; mend day or month")

    def next(self, after: datetime) -> datetime | None:
        """Give the first slot later than *after*."""
        after = after.astimezone(UTC)
        try:
            return self._every(after) if self._every_hour else self._fixed(after)
        except (StopIteration, OverflowError):
            return None

    def _fixed(self, after: datetime) -> datetime:
        """Walk the calendar and the clock on the wall, and only then ask at which instants these times are."""
        local = after.astimezone(self.zone)
        wall = _naive(local)
        if local.fold:  # the hour that comes twice, the second time: all of it has had its turn
            before, since = _offset(local.replace(fold=0)), _offset(local)
            wall = _naive(_change(self.zone, after - (before - since), after) + before) - SECOND
        times = CronSim(self._text, wall)
        while (slot := _first_instant(next(times), self.zone)) <= after:
            pass
        return slot

    def _every(self, after: datetime) -> datetime:
        """Give the earliest of what the clock on the wall has next, what it comes back to, and what it skipped.

        cronsim is asked about walls without a zone: its own steps through a change of half an hour lose slots. For a
        time that was skipped the clock that was goes on, so that no real hour is without its slot.
        """
        local = after.astimezone(self.zone)
        found = _instants(self._wall(_naive(local)), self.zone)
        last = found[-1]
        for low, high in {(after, min(last, after + DAY)), (max(after, last - DAY), last)}:
            if _offset(low.astimezone(self.zone)) != _offset(high.astimezone(self.zone)):
                change = _change(self.zone, low, high).astimezone(self.zone)
                found += _instants(self._wall(_naive(change) - SECOND), self.zone)
        before = _offset((after - DAY).astimezone(self.zone))
        if before < _offset(local):
            found += _instants(self._wall(_naive(after + before)), self.zone)
        return min(slot for slot in found if slot > after)

    def _wall(self, after: datetime) -> datetime:
        return next(CronSim(self._text, after))


@dataclass(frozen=True)
class Every:
    """Slots at a steady interval from an anchor, so that no restart shifts them."""

    interval: timedelta
    anchor: datetime

    def next(self, after: datetime) -> datetime | None:
        """Give the first slot later than *after*; the anchor itself is the first of all."""
        try:
            return max(
                self.anchor, self.anchor + ((after - self.anchor) // self.interval + 1) * self.interval
            ).astimezone(UTC)
        except OverflowError:
            return None


@dataclass(frozen=True)
class Once:
    """A single slot."""

    at: datetime

    def next(self, after: datetime) -> datetime | None:
        """Give the slot, where it is later than *after*."""
        return self.at.astimezone(UTC) if self.at > after else None


def timetable(
    cron: str | None, every: timedelta | None, at: datetime | None, timezone: str, anchor: datetime
) -> Timetable:
    """Make the timetable of a schedule's columns.

    Raises:
        InvalidOption: naming the value and the remedy.
    """
    if (cron is not None) + (every is not None) + (at is not None) != 1:
        raise InvalidOption("a schedule runs by cron, every so often, or at one time: give exactly one of these")
    if cron is not None:
        return Cron(cron, timezone)
    zone(timezone)
    if every is None:
        return Once(_within(at, "at"))
    if not SECOND <= every <= LONGEST:
        raise InvalidOption(f"every is {every.total_seconds():g} s: must be from 1 s to a hundred years")
    return Every(every, _within(anchor, "anchor"))


def zone(name: str) -> tzinfo:
    """Find a time zone by its name, in the system's data or in that of the package tzdata.

    Raises:
        InvalidOption: naming the nearest one that there is.
    """
    if not isinstance(name, str):
        raise InvalidOption(f"timezone is {name!r}: {ZONE_HELP}")
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # OSError: a folder of the zones, such as Europe
        known = available_timezones()
        near = get_close_matches(name, known, n=1) or [each for each in known if each.lower() == name.lower()]
        hint = f"did you mean {near[0]!r}?" if near else ZONE_HELP
        raise InvalidOption(f"timezone is {name!r}, which nobody knows: {hint}") from error


def preview(table: Timetable, after: datetime, count: int) -> list[datetime]:
    """List the next slots after an instant; fewer than *count* where there are no more."""
    slots: list[datetime] = []
    while len(slots) < count and (slot := table.next(slots[-1] if slots else after)) is not None:
        slots.append(slot)
    return slots


def _fields(text: str) -> list[str]:
    if not isinstance(text, str) or not 1 <= len(text) <= LONGEST_TEXT:
        raise InvalidOption(f"cron is {text!r:.80}: {CRON_HELP}")
    word = text.strip().lower()
    if word.startswith("@") and word not in NAMES:
        hint = "use every=" if word.startswith("@every") else f"there are {', '.join(NAMES)}"
        raise InvalidOption(f"cron is {text!r}: {hint}")
    fields = NAMES.get(word, text).split()
    if len(fields) not in (FIELDS, WITH_SECONDS):
        raise InvalidOption(f"cron is {text!r}, of {counted(len(fields), 'field')}: {CRON_HELP}")
    return ["0", *fields] if len(fields) == FIELDS else fields


def _reason(error: Exception, fields: list[str]) -> str:
    said = str(error)
    if "day-of-month" in said:
        try:
            CronSim(" ".join([*fields[:4], "*", fields[5]]), FIRST)
        except (CronSimError, ValueError):
            pass
        else:
            return "there is no such day in these months"
    return f"the {said.removeprefix('Bad ')} makes no sense" if said.startswith("Bad ") else "it makes no sense"


def _within(when: datetime | None, name: str) -> datetime:
    if not isinstance(when, datetime) or when.tzinfo is None or when.utcoffset() is None:
        raise InvalidOption(
            f"{name} is {when!r}: give a datetime with its zone, like datetime(2030, 1, 31, 9, tzinfo=UTC)"
        )
    if not FIRST <= when < LAST:
        raise InvalidOption(f"{name} is {when.isoformat()}: must be from 1970 to 9000")
    return when


def _naive(when: datetime) -> datetime:
    return when.replace(tzinfo=None, fold=0)


def _offset(local: datetime) -> timedelta:
    return local.utcoffset() or timedelta()


def _instants(wall: datetime, where: tzinfo) -> list[datetime]:
    """Give the instants at which clocks show this time: two where they come back to it, or when they would have."""
    first, second = (wall.replace(tzinfo=where, fold=fold).astimezone(UTC) for fold in (0, 1))
    return [first, second] if first < second else [first]


def _first_instant(wall: datetime, where: tzinfo) -> datetime:
    """Give the first instant at which clocks show this time, or had skipped it."""
    instant = wall.replace(tzinfo=where).astimezone(UTC)
    if _naive(instant.astimezone(where)) == wall:
        return instant
    return _change(where, wall.replace(tzinfo=where, fold=1).astimezone(UTC), instant)


def _change(where: tzinfo, before: datetime, after: datetime) -> datetime:
    """Find the second at which clocks were changed between two instants."""
    since = _offset(after.astimezone(where))
    while after - before > SECOND:
        middle = before + (after - before) // 2
        if _offset(middle.astimezone(where)) == since:
            after = middle
        else:
            before = middle
    return after.replace(microsecond=0) if after.microsecond == 0 else before.replace(microsecond=0) + SECOND


# -- what is owed after a while in which nobody looked


@dataclass(frozen=True)
class Policy:
    """What becomes of the slots at which no worker ran."""

    missed: str = "latest"
    """skip, latest or all."""
    most: int = 100
    age: timedelta | None = None


class Owed(NamedTuple):
    """A slot whose time has come."""

    slot: datetime
    reason: str | None
    """Why it is not to run; None where it is."""
    late: bool
    """It was missed."""


def owed(table: Timetable, first: datetime, now: datetime, policy: Policy) -> list[Owed]:
    """Judge the slots from *first*, which is one, to *now*: those on time run, what was missed goes by *policy*."""
    slots, cut = _until(table, first, now)
    missed = [slot for slot in slots if now - slot > ON_TIME]
    room = {"skip": 0, "latest": 1, "all": policy.most}[policy.missed] - (len(slots) - len(missed))
    made_up = {slot for slot in missed[len(missed) - max(0, room) :] if policy.age is None or now - slot <= policy.age}
    found = [Owed(slot, None if slot in made_up else _why(slot, now, policy), late=True) for slot in missed]
    if cut and found[0].reason:
        more = f"{found[0].reason}; so were all up to {slots[1].isoformat()}, which have no rows of their own"
        found[0] = found[0]._replace(reason=more)
    return found + [Owed(slot, None, late=False) for slot in slots[len(missed) :]]


def _why(slot: datetime, now: datetime, policy: Policy) -> str:
    late = str(now - slot).partition(".")[0]
    if policy.missed == "skip":
        rule = "what was missed is skipped"
    elif policy.age is not None and now - slot > policy.age:
        rule = f"nothing older than {policy.age} is made up for"
    elif policy.missed == "latest":
        rule = "only the latest is made up for"
    else:
        rule = f"no more than {policy.most} are made up for"
    return f"missed by {late}: {rule}"


def _until(table: Timetable, first: datetime, now: datetime) -> tuple[list[datetime], bool]:
    """List the slots up to *now*; where there are too many the first and the newest, and whether that is so."""
    slots = _from(table, first, now)
    if len(slots) <= RECORDED:
        return slots, False
    window = slots[-1] - first
    while len(newest := _from(table, table.next(now - window) or now, now)) > RECORDED:
        window /= 2
    return [first, *newest], True


def _from(table: Timetable, first: datetime, now: datetime) -> list[datetime]:
    slots = [first]
    while len(slots) <= RECORDED and (slot := table.next(slots[-1])) is not None and slot <= now:
        slots.append(slot)
    return slots
