"""How much a worker has delivered to it, of each kind: prefetch by time, as of the table, and nothing while it is full.

What a broker has delivered to one worker no other can have. So a worker whose slots are all taken by slow jobs has its
deliveries stopped, and gives back what waits; the first free slot begins them again.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from redrive.pace import PREFETCH_MOST
from redrive.sql import TOPICS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from redrive.amqp.link import Link
    from redrive.slots import Slots

LOOK_EVERY = 1.0
"""Seconds between two looks at how much of each kind is wanted."""
FULL_FOR = 2.0
"""Seconds for which all slots were taken and no job ended, after which nothing more is delivered."""


class Intake:
    """The consumers of one worker."""

    def __init__(self, link: Link, slots: Slots, kinds: Sequence[str]) -> None:
        self._closed = False
        self.full = False
        """Whether deliveries are stopped, since no slot has been free for a while."""
        self._link = link
        self._slots = slots
        self._kinds = [kind for kind in kinds if kind != TOPICS]  # that one is an exchange, for others
        self._prefetch: dict[str, tuple[int, list[tuple[str, str]]]] = {}
        self._look_at = 0.0
        self._full_since = float("inf")
        link.on_cancel = self.cancelled

    def cancelled(self, tag: str) -> None:
        """Learn that the broker has ended a consumer: its kind gets another, and its queue, should that be gone."""
        for kind in [kind for kind, (_, tags) in self._prefetch.items() if any(tag == each for _, each in tags)]:
            del self._prefetch[kind]
            self._look_at = 0.0

    def lost(self) -> None:
        """Learn that the channel is another: it has no consumers."""
        self._prefetch, self.full, self._look_at = {}, False, 0.0
        self._full_since = float("inf")

    async def adjust(self, took: Callable[[int, str, Any], Coroutine[Any, Any, None]]) -> None:
        """Have as much delivered as is wanted now; each delivery is *took*, with its channel's number and its kind.

        Raises:
            NoBroker: when the connection is lost.
        """
        now = time.monotonic()
        free = self._slots.free > 0
        if free or self._slots.ahead():
            self._full_since = float("inf")
        else:
            self._full_since = min(self._full_since, now)
        if self.full and free:
            self.full, self._look_at = False, 0.0
        elif now - self._full_since > FULL_FOR and not self.full:
            self.full = True
            await self.stop()
        if not self.full and now >= self._look_at:
            self._look_at = now + LOOK_EVERY
            withheld = await self._link.withheld(self._kinds, to_read=True)
            for kind in self._kinds:
                if kind not in withheld:
                    await self._adjust(kind, partial(took, self._link.number, kind))

    async def close(self) -> None:
        """Have nothing more delivered, for good, also if a turn that sets up consumers is under way.

        Raises:
            NoBroker: when the connection is lost.
        """
        self._closed = True
        await self.stop()

    async def stop(self) -> None:
        """Have nothing more delivered."""
        stopped, self._prefetch = self._prefetch, {}
        for _, tags in stopped.values():
            await self._link.cancel(tags)

    async def _adjust(self, kind: str, took: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        if self._closed:
            return
        want = min(PREFETCH_MOST, self._slots.concurrency + self._slots.ahead(kind))
        have, tags = self._prefetch.get(kind, (0, []))
        if have and have / 4 <= want <= have * 2:
            return
        if tags:
            await self._link.cancel(tags)
        self._prefetch[kind] = want, await self._link.consume(kind, want, took)
