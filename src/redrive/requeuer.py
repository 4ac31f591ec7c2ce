"""Sends back over time what somebody has started, on every worker, no leader: who gets the row's lock advances it.

Each step is small and says how far it came, so that a death loses nothing, whoever's it is. It needs to know no kind:
that the jobs then run is the business of those workers that do.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from psycopg.errors import Error, InsufficientPrivilege
from psycopg.rows import namedtuple_row

from redrive import ended
from redrive.connections import is_refusal
from redrive.ended import FIRST, Ended
from redrive.errors import InvalidOption
from redrive.requeues import end
from redrive.service import Database, Service
from redrive.statements import lenient, named

if TYPE_CHECKING:
    from collections.abc import Callable

    from redrive.connections import Control

LOOK_EVERY = 60.0
"""Seconds between two looks for something to send back; a new one is told by NOTIFY, and this is for the deaf."""
NOT_ALLOWED_EVERY = 300.0
SOON = 0.5
REST = 0.05
STEP = 250
"""Jobs that one statement sends: it has its connection in common with the outcomes, which wait for it."""
LONGEST = 500
"""Characters of an error that are told of a canary."""

_log = logging.getLogger("redrive")


class Requeuer(Service):
    """Advances what is being sent back."""

    name = "requeuer"

    def __init__(self, database: Database, control: Control) -> None:
        super().__init__(database)
        self.on_moved: Callable[[], object] = lambda: None
        """Told when jobs are due again."""
        self._control = control
        self._lack_told = False

    async def tick(self) -> float:
        """Give each a step; gives the seconds until the next is worth while."""
        try:
            rows = await self._control.run(lenient("active_requeues", self._control.schema, namedtuple_row))
            pauses = [await self._step(row) for row in rows]
        except InsufficientPrivilege as error:
            if not self._lack_told:
                self._lack_told = True
                _log.warning("this worker sends nothing back over time, others have to: %s", error.diag.message_primary)
            return NOT_ALLOWED_EVERY
        return min(pauses, default=LOOK_EVERY)

    async def _step(self, row: Any) -> float:
        try:
            which = self._which(row)
        except InvalidOption as error:
            await self._end(row, "failed", why=str(error))
            return SOON
        return await (self._judge(row) if row.status == "canary" else self._send(row, which))

    async def _send(self, row: Any, which: Ended) -> float:
        """Send back as many as may go now; gives the seconds until more may."""
        canary = row.status == "waiting" and row.canary
        statement = ended.advance(self._control.schema, which, row=row, limit=1 if canary else STEP)
        try:
            rows = await self._control.run(statement)
        except Error as error:
            if not is_refusal(error):
                raise
            await self._end(row, "failed", why=f"the database refuses it: {error.diag.message_primary}")
            return SOON
        if not rows:  # another worker has it, or somebody stopped it
            return SOON
        [step] = rows
        if step.ids:
            await self._control.run(named("wake", self._control.schema))
            self.on_moved()
        if not step.more and not (canary and step.ids):
            return await self._come_to_end(row, step)
        if canary or row.rate is None or (step.quota and not step.ids):
            return SOON if step.ids and canary else REST
        rate = float(row.rate)
        return min(LOOK_EVERY, 1 / rate) if rate < 1 / SOON else max(REST, min(SOON, STEP / rate / 2))

    async def _come_to_end(self, row: Any, step: Any) -> float:
        """Begin again where some were passed over, since somebody may have had them locked; then it is done."""
        seen = row._replace(status=step.status, after_id=step.after_id)
        if row.rounds == 0 and (row.matched is None or row.moved + len(step.ids) < row.matched):
            await self._turn(seen, status=step.status, rounds=1, after=FIRST)
        else:
            await self._end(seen, "done")
        return SOON

    async def _judge(self, row: Any) -> float:
        """Go on where the canary succeeded, stop where it did not, and else wait."""
        said = next(reversed((row.canary_error or "").strip().splitlines()), "no error text").strip()[:LONGEST]
        if not row.canary_found:
            why = f"the canary, job {row.canary_id}, is gone: nobody knows what became of it"
        elif row.canary_status == "succeeded":
            await self._turn(row, status="running", rounds=row.rounds, after=row.after_id)
            return 0.0
        elif row.canary_status in ("dead", "failed") or row.canary_failed:
            became = "failed again" if row.canary_status in ("pending", "running") else f"is {row.canary_status}"
            why = f"the canary, job {row.canary_id}, {became}: {said}"
        else:
            return SOON
        await self._end(row, "failed", why=why)
        return SOON

    async def _turn(self, seen: Any, **turned: Any) -> None:
        about = {"id": seen.id, "seen": seen.status, "seen_after": seen.after_id}
        await self._control.run(named("turn_requeue", self._control.schema, **about, **turned))

    async def _end(self, row: Any, status: str, *, why: str | None = None) -> None:
        for each in await self._control.run(end(self._control.schema, row.id, status, why=why, seen=row.status)):
            _log.info("requeue %s is %s: %d moved, %d skipped", each.id, status, each.moved, each.skipped)

    def _which(self, row: Any) -> Ended:
        which = Ended.read(row.filter)
        until = row.started_at if which.until is None else min(which.until, row.started_at)
        return Ended(**{**vars(which), "until": until})
