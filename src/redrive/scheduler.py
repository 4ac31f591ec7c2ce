"""Enqueues what schedules owe, on every worker, no leader: the first advances a schedule, the others find it done.

The server's clock alone says what is due. The slots are worked out here, from the next one that the row names, and are
written with their jobs in one statement. It turns in the thread of the heartbeat and on its connection, so that a
handler that blocks the event loop holds up no schedule; hence each statement passes over what somebody has locked.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from redrive.connections import is_refusal
from redrive.definition import register
from redrive.errors import InvalidOption
from redrive.events import ScheduleBroken, ScheduleRan, ScheduleSkipped, emit
from redrive.service import Database, Service
from redrive.statements import named
from redrive.timetable import Owed, Policy, Timetable, owed, timetable, zone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from redrive.connections import Control
    from redrive.definition import Definition
    from redrive.settings import Settings

LOOK_EVERY = 60.0
"""Seconds between two looks where nothing is due: a change is told by NOTIFY, and this is for those who can't hear."""
SHORTEST_GRACE = 3 * LOOK_EVERY
"""A worker says with each look what it has in its code."""
NOT_THERE_EVERY = 300.0
JITTER = 0.05
"""Seconds after a slot within which the workers look: the first has mostly advanced it when the others do."""
SOON = 1.0
"""The pause while a slot waits for the job before it, or somebody else has a schedule's row locked."""
MOST, EVERYTHING = 200, 100_000
WRITTEN = 2000
"""Slots that one statement writes."""

_log = logging.getLogger("redrive")


class Due(NamedTuple):
    """A schedule that is to be advanced: the slots that it owes, and the next."""

    row: Any
    owed: list[Owed]
    following: datetime | None


class Scheduler(Service):
    """Enqueues the slots of all schedules when they come, each once however many workers there are."""

    name = "scheduler"

    def __init__(
        self, database: Database, control: Control, settings: Settings, definitions: Sequence[Definition] = ()
    ) -> None:
        super().__init__(database)
        self.settled = False
        """Whether nothing was left to do after the last tick."""
        self._looked = False
        self._control = control
        self._grace = max(settings.schedule_grace, SHORTEST_GRACE)
        self._definitions = tuple(definitions)
        self._mine: list[str] = []
        self._registered = self._lack_told = False
        self._strange: set[str] = set()
        """Zones that this machine doesn't know, and others do."""
        self._retried = time.monotonic()
        self._up_since = time.monotonic()

    async def tick(self) -> float:
        """Look once, and enqueue what is due."""
        if not self._registered and not await self._installed():
            self.settled = True
            return NOT_THERE_EVERY
        if not self._registered:
            await self._register()
        rows = await self._look()
        began = time.monotonic()
        pause = await self._advance_all(rows)
        self._looked, self.settled = True, pause > JITTER
        return max(0.0, pause - (time.monotonic() - began))

    async def _installed(self) -> bool:
        """Whether there are the tables, and the right to use them; says so once where not."""
        [state] = await self._control.run(named("scheduler_state", self._control.schema))
        if state.installed and state.allowed:
            return True
        if not self._lack_told:
            self._lack_told = True
            lack = (
                f"{state.role} lacks SELECT, INSERT, UPDATE on schedules or SELECT, INSERT, DELETE on schedule_slots"
                if state.installed
                else "its tables are not there yet: run `redrive migrate`"
            )
            _log.warning("this worker runs without schedules, %s", lack)
        return False

    async def _register(self) -> None:
        statement = register(self._control.schema, self._definitions)
        rows = await self._control.run(statement) if self._definitions else []
        ours = [row for row in rows if row.owner == "code"]
        self._mine = [row.name for row in ours if row.registered]
        self._registered = len(self._mine) == len(ours)  # else somebody has a row locked: again at the next look
        if self._registered:
            for row in rows:
                if row.owner != "code":
                    _log.warning("schedule %s of the code is not used: an operator's has that name", row.name)

    async def _look(self) -> list[Any]:
        everything, now = not self._looked, time.monotonic()
        if retry := now - self._retried >= LOOK_EVERY:
            self._retried = now
        statement = named(
            "look_at_schedules",
            self._control.schema,
            mine=self._mine,
            judge=time.monotonic() - self._up_since >= self._grace,
            grace=self._grace,
            everything=everything,
            retry=retry,
            strange=sorted(self._strange),
            most=EVERYTHING if everything else MOST,
        )
        # Binary, here and below: times and intervals as text have the style that the database is set to.
        rows = await self._control.run(replace(statement, binary=True))
        for name in rows[0].disabled or ():
            _log.warning("schedule %s is disabled: no live worker has had it in its code for %g s", name, self._grace)
        return rows

    async def _advance_all(self, rows: list[Any]) -> float:
        """Plan and advance what was found, and give the seconds until something is due again."""
        now: datetime = rows[0].now
        plans: list[Any] = []
        due: list[Due] = []
        ahead = [LOOK_EVERY] if rows[0].next_in is None else [LOOK_EVERY, rows[0].next_in]
        for row in rows:
            if row.name is None:  # of a look that found nothing due
                continue
            await asyncio.sleep(0)  # the heartbeat's turn: a thousand missed slots are some tenths of a second
            try:
                table = timetable(row.cron, row.every, row.at, row.timezone, row.anchor)
            except InvalidOption as error:
                if not self._is_others(row):
                    plans.append((row, None, str(error)))
                continue
            found = self._judge(row, table, now)
            if found is not None:
                due.append(found)
            else:
                # Also one that has its plan, at the first look: the rules of its zone may have changed since.
                plans.append((row, row.at or table.next(now), None))
        lost = await self._plan(plans)
        lost = await self._advance(due) or lost
        following = [plan[1] for plan in plans] + [each.following for each in due]
        ahead += [(slot - now).total_seconds() for slot in following if slot is not None]
        if lost or rows[0].waiting or not self._registered:
            ahead.append(SOON)
        elif len(rows) >= MOST and self._looked:
            return 0.0
        return max(0.0, min(ahead)) + random.uniform(0.0, JITTER)

    def _is_others(self, row: Any) -> bool:
        """Whether a schedule was planned by somebody who knows its zone: then it is theirs, and broken here alone."""
        try:
            zone(row.timezone)
        except InvalidOption as error:
            if row.next_run_at is None:
                return False
            self._strange.add(row.timezone)
            _log.warning(
                "schedules in zone %s, such as %s, are left to other workers (%s): is this machine's tzdata too old?",
                row.timezone,
                row.name,
                error,
            )
            return True
        return False

    def _judge(self, row: Any, table: Timetable, now: datetime) -> Due | None:
        if row.next_run_at is not None and row.next_run_at <= now:
            policy = Policy(row.missed, row.missed_most, row.missed_age)
            slots = owed(table, row.next_run_at, now, policy)
            return Due(row, slots, table.next(max(now, slots[-1].slot)))
        if row.may_go_on and row.next_run_at is not None:
            return Due(row, [], row.next_run_at)
        return None

    async def _plan(self, plans: list[tuple[Any, datetime | None, str | None]]) -> bool:
        """Write when the next slots are; gives whether some were another's to write."""
        changed = [
            (row, following, why) for row, following, why in plans if (following, why) != (row.next_run_at, row.problem)
        ]
        if not changed:
            return False
        written = await self._control.run(
            named(
                "plan_schedules",
                self._control.schema,
                **_seen([row for row, _, _ in changed]),
                nexts=[following for _, following, _ in changed],
                problems=[why for _, _, why in changed],
            )
        )
        mine = {row.name for row in written}
        for row, _, why in changed:
            if why and row.name in mine:
                emit(ScheduleBroken(worker=self.database.worker, schedule=row.name, problem=why))
        return len(mine) < len(changed)

    async def _advance(self, due: list[Due]) -> bool:
        """Write the slots and their jobs; gives whether some were another's to write."""
        return any([await self._write(batch) for batch in _batches(due)])

    async def _write(self, batch: list[Due]) -> bool:
        """Write some of them; one whose job the table refuses is broken, keeps its slot, and holds up no other."""
        flat = [(each.row.name, *one) for each in batch for one in each.owed]
        statement = named(
            "advance_schedules",
            self._control.schema,
            **_seen([each.row for each in batch]),
            nexts=[each.following for each in batch],
            slot_names=[one[0] for one in flat],
            slots=[one[1] for one in flat],
            reasons=[one[2] for one in flat],
            late=[one[3] for one in flat],
        )
        try:
            rows = await self._control.run(replace(statement, binary=True))
        except psycopg.Error as error:
            if not is_refusal(error):
                raise
            if len(batch) == 1:
                why = f"the database refuses its job: {error.diag.message_primary}"
                return await self._plan([(batch[0].row, batch[0].row.next_run_at, why)])
            middle = len(batch) // 2
            return any([await self._write(half) for half in (batch[:middle], batch[middle:])])
        for row in rows:
            self._tell(row)
        return {row.name for row in rows} != {each.row.name for each in batch}

    def _tell(self, row: Any) -> None:
        if row.slot is None:
            return
        common: dict[str, Any] = {"worker": self.database.worker, "schedule": row.name, "slot": row.slot.isoformat()}
        if row.outcome == "enqueued":
            emit(ScheduleRan(**common, kind=row.kind, job=row.job_id))
        else:
            emit(ScheduleSkipped(**common, reason=row.reason or ""))


def _batches(due: list[Due]) -> Iterator[list[Due]]:
    batch: list[Due] = []
    for each in due:
        batch.append(each)
        if sum(len(one.owed) for one in batch) >= WRITTEN:
            yield batch
            batch = []
    if batch:
        yield batch


def _seen(rows: list[Any]) -> dict[str, Any]:
    """Spell what the rows said when they were looked at: who finds them otherwise leaves them alone."""
    return {
        "names": [row.name for row in rows],
        "revisions": [row.revision for row in rows],
        "seen": [row.next_run_at for row in rows],
    }
