"""Removes what has outlived its retention, or moves it to the archive: in small batches, on every worker, no leader.

It walks the jobs in id order and stops where rows are too young for any retention to have passed, so it costs little
where there is nothing to do. Only finished rows are touched, whatever their age.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.sql import Identifier, Literal

from redrive.service import Database, Service
from redrive.sql import compose, text_of
from redrive.statements import Statement, named

if TYPE_CHECKING:
    from redrive.connections import Control
    from redrive.settings import Settings

WINDOW = 1000
REST = 0.1
EVERY = 300.0
NEVER = 100 * 365 * 86_400.0


class Pruner(Service):
    """Prunes jobs, their history and the rows of workers long gone."""

    name = "pruner"

    def __init__(self, database: Database, control: Control, settings: Settings) -> None:
        super().__init__(database)
        self._control = control
        self._settings = settings
        self.pruned = 0
        """Jobs removed so far."""
        self._after = 0
        self._window = WINDOW
        self._partitions_ready = not settings.archive
        keep = {
            "succeeded": settings.retain_succeeded,
            "failed": settings.retain_failed,
            "dead": settings.retain_dead,
        }
        self._keep = {state: seconds or NEVER for state, seconds in keep.items()}

    async def tick(self) -> float:
        """Prune one window; the window shrinks where the server's statement_timeout is short."""
        try:
            more = await self._prune()
        except psycopg.errors.QueryCanceled:
            if self._window == 1:
                raise
            self._window = max(1, self._window // 4)
            return REST
        self._window = min(WINDOW, self._window * 2)
        if more:
            return REST
        self._after = 0
        await self._prune_rest()
        return EVERY

    async def _prune(self) -> bool:
        """Look at a window of jobs; gives whether there is more to look at."""
        schema = self._control.schema
        if not self._partitions_ready:
            await self._add_partitions()
        [seen] = await self._control.run(
            named(
                "scan_finished",
                schema,
                after=self._after,
                window=self._window,
                shortest=min(self._keep.values()),
                **self._keep,
            )
        )
        if seen.expired:
            name = "archive_finished" if self._settings.archive else "delete_finished"
            self.pruned += len(await self._control.run(named(name, schema, ids=seen.expired)))
        self._after = seen.last_id
        return bool(seen.seen == self._window and not seen.young)

    async def _prune_rest(self) -> None:
        schema = self._control.schema
        keep = self._settings.retain_failures or NEVER
        while (
            len(await self._control.run(named("prune_failures", schema, window=self._window, failures=keep)))
            >= self._window
        ):
            pass
        await self._control.run(named("prune_workers", schema))
        self._partitions_ready = not self._settings.archive

    async def _add_partitions(self) -> None:
        """Add the archive's months; a role that may not finds its rows in the default partition."""
        schema = self._control.schema
        for month in await self._control.run(named("archive_months", schema)):
            names: dict[str, Any] = {
                "partition": Identifier(schema, f"jobs_archive_{month.name}"),
                "first": Literal(month.first),
                "past": Literal(month.past),
            }
            statement = Statement(compose(text_of("add_archive_month"), schema, **names), psycopg.rows.tuple_row)
            try:
                await self._control.run(statement)
            except (psycopg.errors.InsufficientPrivilege, psycopg.errors.CheckViolation):
                break
        self._partitions_ready = True
