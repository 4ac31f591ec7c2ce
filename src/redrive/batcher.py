"""Ends the batches whose jobs have all ended, and enqueues what follows: on every worker, and each batch once.

It looks only where a look at the lanes has said that a batch is open, and seldomer the longer a look takes.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import psycopg

from redrive.connections import is_refusal
from redrive.service import FOR_EVER, Database, Service
from redrive.statements import named

if TYPE_CHECKING:
    from redrive.connections import Control

PATIENCE = 20
"""A look is followed by a pause of so many times its own duration."""
SHORTEST = 0.2
REFUSED_FOR = 60.0
"""Seconds after the last refusal of what follows a batch after which it is tried again."""

_log = logging.getLogger("redrive")


class Batcher(Service):
    """Ends batches."""

    name = "batches"

    def __init__(self, database: Database, control: Control) -> None:
        super().__init__(database)
        self.asked = False
        """Somebody has seen an open batch since the last look."""
        self.ended = 0
        """Batches that this worker has ended."""
        self._control = control
        self._rested_at = 0.0
        self._refused: dict[int, str] = {}
        """Batches whose follower the database has refused, each with what it said."""
        self._refused_at = 0.0

    def ask(self) -> None:
        """There is an open batch: look whether its jobs have ended."""
        self.asked = True
        self.wake()

    @property
    def rest(self) -> float:
        """Seconds until it may look again."""
        return max(0.0, self._rested_at - time.monotonic())

    async def tick(self) -> float:
        """Look once, where somebody asked."""
        if not self.asked:
            return FOR_EVER
        if (rest := self.rest) > 0:
            return rest
        began = time.monotonic()
        if began - self._refused_at > REFUSED_FOR:
            self._refused.clear()
        over = await self._control.run(named("over_batches", self._control.schema, refused=list(self._refused)))
        rows = await self._end([row.id for row in over]) if over else []
        self.remark = "; ".join(list(self._refused.values())[:3])
        now = time.monotonic()
        self.asked, self._rested_at = False, now + max(SHORTEST, PATIENCE * (now - began))
        self.ended += len(rows)
        for row in rows:
            _log.info(
                "batch %s (%s) has ended: %s of %s jobs succeeded, %s failed, %s dead",
                row.id,
                row.name or "no name",
                row.succeeded,
                row.jobs,
                row.failed,
                row.dead,
                extra={"batch": row.id},
            )
        return 0.0 if len(rows) else FOR_EVER

    async def _end(self, ids: list[int]) -> list[Any]:
        """End these; one whose follower the database refuses stays open, is complained of, and holds up no other."""
        try:
            return await self._control.run(named("end_batches", self._control.schema, ids=ids))
        except psycopg.Error as error:
            if not is_refusal(error):
                raise
            if len(ids) > 1:
                middle = len(ids) // 2
                return await self._end(ids[:middle]) + await self._end(ids[middle:])
            self._refused_at = time.monotonic()
            self._refused[ids[0]] = f"what follows batch {ids[0]} is refused: {error.diag.message_primary}"
            _log.warning("%s", self._refused[ids[0]], extra={"batch": ids[0]})
            return []
