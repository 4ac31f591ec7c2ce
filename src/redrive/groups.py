"""Failure groups: what failed for the same reason, put together, so that ten thousand deaths of one cause are one line.

A group is a kind and a fingerprint (:mod:`redrive.failure`); jobs that a stranger ended go by the last line of what he
wrote. Counts end at a cap and say so. Nothing is masked here: that is for whoever shows it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from psycopg.rows import namedtuple_row

from redrive import store
from redrive.drivers import AsyncBorrowed, Borrowed
from redrive.ended import Ended
from redrive.errors import UnknownGroup
from redrive.job import Job
from redrive.statements import Statement, Steps, afollow, follow, known, lenient
from redrive.words import there_are

if TYPE_CHECKING:
    from redrive.audit import Asked

CAP = 10_000
"""Jobs of a group that are counted."""
HISTORY = 2_000
"""Failures of a group that are counted, on a page of many."""
MOST = 5_000
"""Groups that are looked at."""
SHORT = 8
_HASH = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True)
class Group:
    """What failed for the same reason."""

    kind: str
    key: str
    """The fingerprint; of jobs that a stranger ended, one made of what he wrote."""
    dead: int
    """Jobs that need a human; see :attr:`capped`."""
    retrying: int
    """Jobs that will be tried again."""
    failures: int
    """Failed attempts that are kept; see :attr:`history`."""
    first: datetime | None
    """When it was first seen, by what is kept."""
    last: datetime | None
    last_hour: int
    """Failed attempts within the last hour."""
    day_before: int
    """Failed attempts within the 24 hours before that."""
    versions: list[str]
    """Of the application, in which it was seen."""
    sample: list[int]
    """The newest of its dead jobs."""
    newest_id: int | None
    """A job to look at: dead, or the last that failed."""
    error_type: str | None
    message: str | None
    last_error: str | None
    """Of the newest job, where no failure of ours tells of it."""
    now: datetime
    cap: int
    history: int

    @property
    def id(self) -> str:
        """How people name it: the kind and the first digits of its key."""
        return f"{self.kind}:{self.key[:SHORT] if _HASH.fullmatch(self.key) else self.key}"

    @property
    def which(self) -> Ended:
        """The filter that means its dead jobs."""
        return Ended(kind=self.kind, group=self.key)

    @property
    def error(self) -> str:
        """Type and message, or the last line of what a stranger wrote."""
        if self.error_type is not None:
            return f"{self.error_type}: {self.message}" if self.message else self.error_type
        lines = [line.strip() for line in (self.last_error or "").splitlines() if line.strip()]
        return lines[-1] if lines else "(no error text)"

    @property
    def trend(self) -> str:
        """One word: new, rising, steady, falling or quiet."""
        if not self.last_hour:
            return "quiet"
        if not self.day_before:
            return "new" if self.failures <= self.last_hour else "rising"
        hours = 24.0
        if self.first is not None and self.failures <= self.history:
            hours = min(24.0, max(1.0, (self.now - self.first).total_seconds() / 3600 - 1))
        usual = self.day_before / hours
        return "rising" if self.last_hour > 2 * usual else "falling" if 2 * self.last_hour < usual else "steady"

    def counted(self, name: str) -> str:
        """Write a count, with a + where there are more than were counted."""
        number = getattr(self, name)
        cap = self.cap if name in ("dead", "retrying") else self.history
        if number > cap:
            return f"{cap:,}+"
        # Of the failures the newest are counted: those before the last hour may go on behind them.
        return f"{number:,}+" if name == "day_before" and self.failures > self.history else f"{number:,}"


Rows = list[Group]  # within Groups, list is its method
Jobs = list[Job]


class Groups:
    """The failure groups of a queue: ``queue.groups``. Each method has its twin for async code, ``..._async``."""

    def __init__(self, queue: Asked) -> None:
        self._queue = queue

    def list(
        self,
        *,
        kind: str | None = None,
        since: datetime | None = None,
        retrying: bool = True,
        limit: int = 50,
        connection: Borrowed | None = None,
    ) -> Rows:
        """List the groups, those with the most dead jobs first; with *since*, of jobs that failed or died since.

        Without *retrying* those are left out of which no job is dead.
        """
        how: dict[str, Any] = {"kind": kind, "since": since, "retrying": retrying, "limit": limit}
        return self._queue.ask(listed(self._queue.schema, **how), connection)

    async def list_async(
        self,
        *,
        kind: str | None = None,
        since: datetime | None = None,
        retrying: bool = True,
        limit: int = 50,
        connection: AsyncBorrowed | None = None,
    ) -> Rows:
        """List the groups from async code; see :meth:`list`."""
        how: dict[str, Any] = {"kind": kind, "since": since, "retrying": retrying, "limit": limit}
        return await self._queue.ask_async(listed(self._queue.schema, **how), connection)

    def find(self, name: str, *, connection: Borrowed | None = None) -> Group:
        """Find the group that people call *name*: ``kind:3fa9c1d2``, the first digits alone, or a kind with one group.

        Raises:
            UnknownGroup: when none is called so, or more than one.
        """
        return follow(self._queue.ask, self._find(name), connection)

    async def find_async(self, name: str, *, connection: AsyncBorrowed | None = None) -> Group:
        """Find a group from async code; see :meth:`find`."""
        return await afollow(self._queue.ask_async, self._find(name), connection)

    def sample(self, group: Group, *, connection: Borrowed | None = None) -> Any:
        """Fetch the last failure of a group, with its traceback and causes; None where none is kept."""
        return next(iter(self._queue.ask(self._sample(group), connection)), None)

    async def sample_async(self, group: Group, *, connection: AsyncBorrowed | None = None) -> Any:
        """Fetch the last failure of a group from async code; see :meth:`sample`."""
        return next(iter(await self._queue.ask_async(self._sample(group), connection)), None)

    def jobs(
        self,
        group: Group,
        *,
        before: int | None = None,
        limit: int = 50,
        connection: Borrowed | None = None,
    ) -> Jobs:
        """Fetch the dead jobs of a group, newest first, a page before a known id."""
        return self._queue.ask(self._jobs(group, before, limit), connection)

    async def jobs_async(
        self,
        group: Group,
        *,
        before: int | None = None,
        limit: int = 50,
        connection: AsyncBorrowed | None = None,
    ) -> Jobs:
        """Fetch the dead jobs of a group from async code; see :meth:`jobs`."""
        return await self._queue.ask_async(self._jobs(group, before, limit), connection)

    def _sample(self, group: Group) -> Statement[Any]:
        which = {"kind": group.kind, "group": group.key}
        return lenient("last_failure_of_group", self._queue.schema, namedtuple_row, **which)

    def _jobs(self, group: Group, before: int | None, limit: int) -> Statement[Job]:
        which = {"kind": group.kind, "group": group.key, "before": before, "limit": limit}
        return lenient("dead_of_group", self._queue.schema, known(Job), **which)

    def _find(self, name: str) -> Steps[Group]:
        schema = self._queue.schema
        kind, _, key = store.name(name, "group").rpartition(":")
        found = yield listed(schema, kind=kind or None, prefix=key, limit=MOST, brief=True)
        found = found or (yield listed(schema, kind=name, limit=MOST, brief=True))
        # The whole of a name is that name, whatever else begins with it.
        found = [row for row in found if row.key == key] or found
        if len(found) != 1:
            known = found or (yield listed(schema, limit=20, brief=True))
            names = [row.id if not found else f"{row.kind}:{row.key}" for row in known[:20]]
            if found:
                several = f"{name!r} begins the names of several groups: {', '.join(names)}"
                raise UnknownGroup(f"{several}; name one of them, or a whole kind with kind instead of group")
            raise UnknownGroup(f"no group is called {name!r}; {there_are(names)}")
        [whole] = yield listed(schema, kind=found[0].kind, group=found[0].key)
        return whole  # type: ignore[no-any-return] # the rows of the statement just yielded


def listed(
    schema: str,
    *,
    kind: str | None = None,
    group: str | None = None,
    prefix: str = "",
    since: datetime | None = None,
    retrying: bool = True,
    limit: int = 50,
    brief: bool = False,
) -> Statement[Group]:
    """Find the groups, or one; *brief* without their counts. For a connection that isn't the queue's."""
    params: dict[str, Any] = {
        "kind": store.said(kind, "kind"),
        "group": group,
        "prefix": store.said(prefix, "group"),
        "since": store.instant(since, "since"),
        "retrying": retrying,
        "limit": limit,
        "cap": 0 if brief else CAP,
        "history": 0 if brief else CAP if group is not None else HISTORY,
        "groups": MOST,
    }
    statement = lenient("failure_groups", schema, known(Group), **params)
    return replace(statement, kept=False)  # a plan for any values can't use the indexes of the groups
