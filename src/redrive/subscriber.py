"""Writes down what this worker's code subscribes to, and disables what is in no code any more; on every worker.

A publish reads the rows and nothing else, so a subscription has to be there from the first worker that has it in its
code to the last. It looks so seldom that an idle worker says hardly more for it.
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING

from psycopg.errors import InsufficientPrivilege

from redrive.service import Database, Service
from redrive.statements import named
from redrive.topics import in_code, register

if TYPE_CHECKING:
    from redrive.connections import Control
    from redrive.handlers import Handlers
    from redrive.settings import Settings

LOOK_EVERY = 300.0
"""Seconds between two looks of a worker that has subscriptions in its code: each says that it has."""
ELSE_EVERY = 900.0
SHORTEST_GRACE = 2 * LOOK_EVERY + 60.0
SILENCE = 7 * 86_400.0
"""Seconds for which a subscription goes on whose kind no live worker runs: jobs are made for it, and wait."""
SOON = 1.0

_log = logging.getLogger("redrive")


class Subscriber(Service):
    """Keeps the subscriptions of the code as the code has them."""

    name = "subscriber"

    def __init__(self, database: Database, control: Control, settings: Settings, handlers: Handlers) -> None:
        super().__init__(database)
        self.settled = False
        """Whether what is in this worker's code was written down, as far as its role may."""
        self._control = control
        self._grace = max(settings.schedule_grace, SHORTEST_GRACE)
        self._handlers = in_code(handlers)
        self._rows = [(topic, handler.kind) for handler in self._handlers for topic in handler.topics]
        self._up_since = time.monotonic()
        self._lack_told = False

    async def tick(self) -> float:
        """Write down what is in the code, once; from then on say now and then that it still is."""
        every = LOOK_EVERY if self._rows else ELSE_EVERY
        try:
            if not self.settled:
                self.settled = await self._register()
                return every * random.uniform(0.9, 1.0) if self.settled else SOON
            await self._look()
        except InsufficientPrivilege as error:
            self.settled = True
            if not self._lack_told:
                self._lack_told = True
                _log.warning("this worker minds no subscriptions, others have to: %s", error.diag.message_primary)
        return every * random.uniform(0.9, 1.0)

    async def _register(self) -> bool:
        """Give whether all are written; what somebody has locked is left for the next time."""
        if not self._rows:
            return True
        rows = await self._control.run(register(self._control.schema, self._handlers, waits=False))
        return {(row.topic, row.kind) for row in rows} == set(self._rows)

    async def _look(self) -> None:
        statement = named(
            "look_at_subscriptions",
            self._control.schema,
            topics=[topic for topic, _ in self._rows],
            kinds=[kind for _, kind in self._rows],
            fresh=LOOK_EVERY / 2,
            judge=time.monotonic() - self._up_since >= self._grace,
            grace=self._grace,
            silence=max(self._grace, SILENCE),
        )
        for row in await self._control.run(statement):
            _log.warning("%s subscribes to %s no more: it is in no live worker's code", row.kind, row.topic)
