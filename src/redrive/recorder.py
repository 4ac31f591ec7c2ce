"""Writes what this worker counted into ``stats``, now and then, and sums up what is old.

A row is written as a whole, so that writing it twice is no harm. Nothing is written while nothing happens. What was
counted since the last time is lost with a killed process, at most ten seconds of it; the jobs themselves are not.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from redrive.histogram import trimmed
from redrive.service import Database, Service
from redrive.statements import named
from redrive.tally import OUTCOMES, Count, Key, Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redrive.connections import Control

EVERY = 10.0
SUM_UP_EVERY = 300.0
HALF_AN_HOUR, TWO_HOURS, A_DAY = 1800, 7200, 26 * 3600
SUMS = ((HALF_AN_HOUR, 60, 1), (TWO_HOURS, 600, 1), (A_DAY, 3600, 10))
"""After how long, into how long a piece, and of rows of how many minutes sums are made. Half an hour, since a worker
that was cut off for longer writes a row anew that has gone into a sum already."""
PAGE = 500
"""Rows that one statement writes."""
_FIELDS = (*OUTCOMES, "ran", "wait_seconds", "run_seconds")


class Recorder(Service):
    """Keeps one worker's counts."""

    name = "recorder"

    def __init__(
        self, database: Database, control: Control, tally: Tally, *, version: str = "", every: float = EVERY
    ) -> None:
        super().__init__(database)
        self._control = control
        self._tally = tally
        self._version = version
        self._every = every
        self._marked = not version
        self._sum_up_in = SUM_UP_EVERY
        self._wrote = False

    async def tick(self) -> float:
        """Write what is new; sum up where this worker has had something to write at all."""
        if not self._marked:
            await self._control.run(
                named("mark_deploy", self._control.schema, version=self._version, worker=self.database.worker)
            )
            self._marked = True
        await self.write()
        self._sum_up_in -= self._every
        if self._wrote and self._sum_up_in <= 0:
            self._sum_up_in = 0.0 if await self._sum_up() else SUM_UP_EVERY
        return self._every

    async def write(self) -> None:
        """Write what the database has not yet."""
        waiting = self._tally.unkept()
        for start in range(0, len(waiting), PAGE):
            page = waiting[start : start + PAGE]
            await self._control.run(named("record_stats", self._control.schema, **self._parameters(page)))
            self._tally.keep(page)
            self._wrote = True

    async def _sum_up(self) -> bool:
        """Make one row of several, a piece of each sort; gives whether there may be more."""
        more = False
        for age, step, minutes in SUMS:
            asked = named("sum_up_stats", self._control.schema, age=age, step=step, of_minutes=minutes)
            more = bool(await self._control.run(asked)) or more
        return more

    def _parameters(self, page: Sequence[tuple[Key, Count]]) -> dict[str, Any]:
        rows = [asdict(count) for _, count in page]
        return {
            "worker": self.database.worker,
            "minutes": [minute * 60 for (minute, _), _ in page],
            "kinds": [kind for (_, kind), _ in page],
            "waits": [trimmed(count.waits) for _, count in page],
            "runs": [trimmed(count.runs) for _, count in page],
            **{name: [row[name] for row in rows] for name in _FIELDS},
        }
