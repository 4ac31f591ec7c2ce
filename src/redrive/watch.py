"""Looks ten times a second for what comes with time alone: timeouts, and jobs that wait too long for a slot here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redrive.service import Database, Service

if TYPE_CHECKING:
    from collections.abc import Callable

    from redrive.slots import Slots
    from redrive.writer import Writer

EVERY = 0.1


class Watch(Service):
    """Tells handlers that their time is up, and gives back what found no slot in time."""

    name = "watch"

    def __init__(self, database: Database, slots: Slots, writer: Writer, also: Callable[[], None]) -> None:
        super().__init__(database)
        self._slots = slots
        self._writer = writer
        self._also = also

    async def tick(self) -> float:
        """Look once."""
        self._slots.watch()
        self._writer.hand_back(self._slots.take_stale())
        self._also()
        return EVERY
