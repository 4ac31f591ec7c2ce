"""The exceptions, all of them.

What redrive raises::

    RedriveError
    ├── InvalidPayload (ValueError)    a payload that would not come back as it went in
    ├── InvalidOption  (ValueError)    an option with a value that makes no sense
    ├── InvalidMap     (ValueError)    the map of an adopted table is wrong, or doesn't suit the table
    ├── NotMigrated                    the tables are missing or too old
    ├── MigrationFailed                a migration stopped; nothing of it was kept
    ├── UnknownKind                    no handler goes by that name
    ├── UnknownSchedule                no schedule goes by that name
    ├── UnknownGroup                   no failure group goes by that name, or several
    ├── UnknownRequeue                 nothing is or was sent back under that number
    ├── UnknownSubscription            the kind has no subscription to the topic
    ├── UnknownAdoption                no table of that name is connected
    ├── AlreadyAdopted                 the table is connected already
    ├── NoDatabase                     no connection string anywhere
    ├── NoBroker                       the broker does not answer, or has refused
    ├── LeaseLost                      the job now belongs to somebody else
    └── HandlerCrashed                 the child process of an isolated handler died under its job
        └── MemoryLimitExceeded (MemoryError)    it asked for more memory than its limit

What a handler raises to say how its job ends::

    Verdict
    ├── Retry      try again, now or ``after`` some time
    ├── Snooze     come back later; this attempt does not count
    ├── Discard    stop without a fuss: the job is ``failed``
    └── Dead       stop and call a human: the job is ``dead``

A verdict is no RedriveError: a handler that enqueues inside ``try: ... except RedriveError`` must not swallow
its own ``raise Retry``. Errors of the driver pass through untouched, psycopg's are never wrapped.
"""

from __future__ import annotations

import inspect
import math
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class RedriveError(Exception):
    """Something is wrong between redrive and the code that uses it."""

    def __init__(self, message: str | None = None) -> None:
        """Take the class's own docstring for want of a *message*, so that ``raise NotMigrated`` is enough."""
        super().__init__(inspect.cleandoc(type(self).__doc__ or "") if message is None else message)


class InvalidPayload(RedriveError, ValueError):
    """The payload cannot be stored as JSON and come back equal; pass text, numbers, lists and dicts."""

    def __init__(self, message: str | None = None, *, path: str = "payload") -> None:
        """Say where: *path* leads to the value at fault, as in ``payload.user.name[3]``."""
        super().__init__(message)
        self.path = path


class InvalidOption(RedriveError, ValueError):
    """An option has a value that makes no sense; see the options of `Queue` and `Queue.handler`."""


class InvalidMap(RedriveError, ValueError):
    """The map of an adopted table is wrong, or doesn't suit the table; mend it and look with `redrive adopt --map`."""

    problems: tuple[str, ...] = ()
    """Each thing that is wrong, with its place in the map and the remedy."""

    @classmethod
    def of(cls, name: str, problems: Iterable[str]) -> InvalidMap:
        """Tell all *problems* of the map called *name*."""
        found = tuple(problems)
        error = cls(f"{name}: " + "; ".join(found))
        error.problems = found
        return error


class NotMigrated(RedriveError):
    """The tables of redrive are missing or older than this version needs; run `redrive migrate`."""


class MigrationFailed(RedriveError):
    """A migration stopped and was rolled back; mend what the database reports and run `redrive migrate`."""


class UnknownKind(RedriveError):
    """No handler of this queue has that kind; register it with `@queue.handler(kind)` or mend the name."""


class UnknownSchedule(RedriveError):
    """There is no schedule of that name; `redrive schedules list` shows those that there are."""


class UnknownGroup(RedriveError):
    """No failure group has that name, or several begin so; `redrive dead` lists them."""


class UnknownRequeue(RedriveError):
    """Nothing is or was sent back under that number; `redrive requeues list` shows what was."""


class UnknownSubscription(RedriveError):
    """The kind has no subscription to that topic: `redrive topics list` shows those that there are."""


class UnknownAdoption(RedriveError):
    """No table of that name is connected: `redrive adopt status` shows those that are."""


class AlreadyAdopted(RedriveError):
    """The table is connected already: `redrive adopt status` shows how; `redrive adopt undo` ends that."""


class NoDatabase(RedriveError):
    """No database is named; pass `Queue("postgresql://...")`, or set REDRIVE_DATABASE_URL or DATABASE_URL."""


class NoBroker(RedriveError):
    """The broker does not answer, or its connection was lost; see `redrive.amqp`."""


class LeaseLost(RedriveError):
    """The lease of this job ran out and another worker may have it; stop, this attempt no longer counts."""


class HandlerCrashed(RedriveError):
    """The child process of an isolated handler died; the attempt has failed, and its worker goes on."""

    def __init__(self, message: str | None = None, *, exit_code: int | None = None) -> None:
        """Say how: *exit_code* is the child's, or the negative number of the signal that killed it."""
        super().__init__(message)
        self.exit_code = exit_code


class MemoryLimitExceeded(HandlerCrashed, MemoryError):
    """An isolated handler asked for more memory than its memory_limit; raise that, or work in smaller pieces."""


class Verdict(Exception):
    """How a job ends, said by its handler; raise one of Retry, Snooze, Discard or Dead."""

    reason: str = ""

    def __str__(self) -> str:
        """Show the reason, or the name of the verdict where none was given."""
        return self.reason or type(self).__name__


class Retry(Verdict):
    """Try this job again: after the kind's own back-off, or ``after`` so many seconds.

    The attempt counts, and a job without attempts left is dead. Nothing is taken off or added to ``after``:
    a service that says "come back in 90 s" is not called sooner. With ``whole_target`` it is not called for other
    jobs either: those of the same target wait as well, without spending attempts.
    """

    def __init__(self, reason: str = "", *, after: float | timedelta | None = None, whole_target: bool = False) -> None:
        """Give a *reason* for the humans, and seconds or a timedelta for the clock."""
        self.reason = reason
        self.after = None if after is None else _seconds("Retry(after=...)", after)
        if whole_target and self.after is None:
            raise InvalidOption("Retry(whole_target=True): say with after= for how long")
        self.whole_target = whole_target


class Snooze(Verdict):
    """Come back to this job later; it is no failure and the attempt does not count."""

    def __init__(self, seconds: float | timedelta) -> None:
        """Say for how long, in seconds or as a timedelta."""
        self.seconds = _seconds("Snooze(...)", seconds)
        self.reason = f"snoozed for {self.seconds:g} s"


class Discard(Verdict):
    """Stop this job for good without calling anybody: it is no longer wanted and becomes ``failed``."""

    def __init__(self, reason: str = "") -> None:
        """Give a *reason*; it is kept with the job."""
        self.reason = reason


class Dead(Verdict):
    """Stop this job now, whatever attempts are left: no retry can help and a human has to look."""

    def __init__(self, reason: str = "") -> None:
        """Give a *reason*; it is kept with the job and shown to whoever looks."""
        self.reason = reason


def _seconds(what: str, value: float | timedelta) -> float:
    """Turn seconds or a timedelta into seconds, and refuse at the ``raise`` what is neither."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    try:
        seconds = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise InvalidOption(f"{what} takes seconds or a timedelta, not {value!r:.80}")
    return seconds
