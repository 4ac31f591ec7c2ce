"""Removes what has outlived its retention, or moves it to the archive: in small batches, on every worker, no leader.

It walks the jobs in id order and stops where all rows are too young for any retention to have passed, so it costs
little where there is nothing to do. Only finished rows are touched, whatever their age.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.sql import Identifier, Literal

from redrive.connections import is_outage, is_refusal, is_transient
from redrive.service import Database, Service
from redrive.sql import compose, text_of
from redrive.statements import Statement, named

if TYPE_CHECKING:
    from redrive.connections import Control
    from redrive.settings import Settings

WINDOW = 1000
REST = 0.1
DUTY = 2.0
"""It rests so many times as long as a window took, and never longer than REST: 0.1 s each would let more than 9,000
jobs a second pile up, however quick the server is."""
EVERY = 300.0
REFUSED_FOR = 3600.0
"""Seconds after which what could not be removed is tried again: each such try is an error in the server's log."""
REFUSED_MOST = 10_000
"""Such jobs after which no more are told apart, and what lies between them waits as well."""
NEVER = 100 * 365 * 86_400.0
FIRST = -(2**63)

_log = logging.getLogger("redrive")


class Window:
    """How many rows one statement looks at: less where the server's statement_timeout is short."""

    def __init__(self) -> None:
        self.size = WINDOW

    def shrink(self) -> bool:
        """Take less next time; False where one row is too much already."""
        smaller, self.size = self.size > 1, max(1, self.size // 4)
        return smaller

    def grow(self) -> None:
        """Take more next time, since this was not too much."""
        self.size = min(WINDOW, self.size * 2)


def pause(took: float) -> float:
    """Give the seconds to rest after a window that took so long."""
    return min(REST, DUTY * took)


class Pruner(Service):
    """Prunes jobs, their history and the rows of workers long gone."""

    name = "pruner"

    def __init__(self, database: Database, control: Control, settings: Settings) -> None:
        super().__init__(database)
        self._control = control
        self._settings = settings
        self.pruned = 0
        """Jobs removed so far."""
        self._after = FIRST
        self._walked = False
        self._jobs_window, self._history_window = Window(), Window()
        self._refused: set[int] = set()
        """Jobs that the database does not let go of, as where a table of the user's refers to them."""
        self._refused_at, self._refusal = 0.0, ""
        keep = {
            "succeeded": settings.retain_succeeded,
            "failed": settings.retain_failed,
            "dead": settings.retain_dead,
        }
        self._keep = {state: seconds or NEVER for state, seconds in keep.items()}

    async def tick(self) -> float:
        """Prune one window, first of the jobs and then of their history."""
        window = self._history_window if self._walked else self._jobs_window
        began = monotonic()
        try:
            more = await (self._prune_history(window.size) if self._walked else self._prune_jobs(window.size))
        except psycopg.errors.QueryCanceled:
            if not window.shrink():
                raise
            return REST
        window.grow()
        self.remark = f"{len(self._refused)} jobs are not pruned: {self._refusal}" if self._refused else ""
        if not more:
            self._walked = not self._walked
            self._after = FIRST
        return pause(monotonic() - began) if more or self._walked else EVERY

    async def _prune_jobs(self, window: int) -> bool:
        """Look at a window of jobs; gives whether there is more to look at."""
        schema = self._control.schema
        if self._refused and self._after == FIRST and monotonic() - self._refused_at > REFUSED_FOR:
            self._refused.clear()
        if self._settings.archive and self._after == FIRST:
            await self._add_partitions()
        scope = {"after": self._after, "window": window, "shortest": min(self._keep.values())}
        [seen] = await self._control.run(named("scan_finished", schema, **scope, **self._keep))
        await self._remove([each for each in seen.expired if each not in self._refused], scope["shortest"])
        self._after = seen.last_id
        return bool(seen.seen == window and not seen.young)

    async def _remove(self, ids: list[int], shortest: float) -> None:
        """Remove these jobs; one that the database does not let go of stays, and holds up no other."""
        if not ids:
            return
        name = "archive_finished" if self._settings.archive else "delete_finished"
        try:
            self.pruned += len(await self._control.run(named(name, self._control.schema, ids=ids, shortest=shortest)))
        except psycopg.Error as error:
            if not is_refusal(error):
                raise
            if len(ids) == 1:
                self._keep_refused(ids[0], f"{type(error).__name__}: {error.diag.message_primary}")
            if len(ids) == 1 or len(self._refused) >= REFUSED_MOST:
                return
            middle = len(ids) // 2
            await self._remove(ids[:middle], shortest)
            await self._remove(ids[middle:], shortest)

    def _keep_refused(self, job: int, why: str) -> None:
        if not self._refused:
            self._refused_at, self._refusal = monotonic(), why
            _log.warning("job %s is not pruned: %s", job, why, extra={"job_id": job})
        self._refused.add(job)

    async def _prune_history(self, window: int) -> bool:
        """Remove a window of old failures, and after the last the workers long gone; gives whether there is more."""
        schema = self._control.schema
        keep = self._settings.retain_failures or NEVER
        gone = await self._control.run(named("prune_failures", schema, window=window, failures=keep))
        if len(gone) == window:
            return True
        await self._control.run(named("prune_workers", schema))
        await self._control.run(named("prune_lane_rates", schema))
        await self._control.run(named("prune_breakers", schema, keep=keep))
        await self._control.run(named("prune_batches", schema, keep=keep))
        keep = self._settings.retain_audit or NEVER
        await self._control.run(named("prune_requeues", schema, keep=keep))
        if len(await self._control.run(named("prune_audit", schema, window=window, keep=keep))) == window:
            return True
        return await self._prune_slots(window) or await self._prune_stats(window)

    async def _prune_slots(self, window: int) -> bool:
        """Remove a window of what became of schedules' slots; gives whether there is more."""
        schema, keep = self._control.schema, self._settings.retain_slots
        if not keep or not (await self._control.run(named("scheduler_state", schema)))[0].allowed:
            return False
        return len(await self._control.run(named("prune_slots", schema, window=window, keep=keep))) == window

    async def _prune_stats(self, window: int) -> bool:
        """Remove a window of old counts; gives whether there is more."""
        schema, keep = self._control.schema, self._settings.retain_stats or NEVER
        gone = await self._control.run(named("prune_stats", schema, window=window, keep=keep))
        if len(gone) < window:
            await self._control.run(named("prune_deploys", schema, keep=keep))
        return len(gone) == window

    async def _add_partitions(self) -> None:
        """Add the archive's months; where that can't be done the rows are kept in the default partition."""
        schema = self._control.schema
        for month in await self._control.run(named("archive_months", schema)):
            names: dict[str, Any] = {
                "partition": Identifier(schema, f"jobs_archive_{month.name}"),
                "first": Literal(month.first),
                "past": Literal(month.past),
            }
            text = compose(text_of("add_archive_month"), schema, **names)
            statement = Statement(text, psycopg.rows.tuple_row, kept=False)  # two commands, which can't be prepared
            try:
                await self._control.run(statement)
            except psycopg.Error as error:
                # No right to, another worker was first, or the default partition has rows of that month already.
                if is_outage(error) or is_transient(error):
                    raise
                _log.debug("no partition for %s: %s", month.name, error)
