"""Which deliveries of a channel the broker may forget, and how it is told: one word for many, never for one too many.

What is acknowledged together with later ones must have ended. So every delivery is noted until it has, also those that
reached nobody here, which are given back. Nothing is known of jobs here.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from redrive.errors import NoBroker

if TYPE_CHECKING:
    from redrive.amqp.link import Link


class Acknowledgements:
    """Those of one worker. A delivery is told by the number of its channel, and its place on that."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.channel = 0
        self._open: dict[int, None] = {}
        """Deliveries of this channel that have not ended, in their order."""
        self._last = 0
        self._missed: list[int] = []
        """Deliveries of this channel that did not arrive here."""
        self._done: list[int] = []
        """Deliveries of this channel that have ended, and the broker has not been told."""

    def begin(self) -> None:
        """Learn that the channel is another."""
        self.channel, self._last = self._link.number, 0
        self._missed.clear()
        self._done.clear()
        self.lose()

    def lose(self) -> None:
        """Forget what is open: the channel is lost, and all of it comes again."""
        self._open.clear()

    def came(self, tag: tuple[int, int]) -> bool:
        """Note a delivery; False for one of a channel that is lost."""
        channel, place = tag
        if channel != self.channel:
            return False
        for missed in range(self._last + 1, place):  # delivered to nobody: never to be acknowledged with others
            self._open[missed] = None
            self._missed.append(missed)
        self._last = place
        self._open[place] = None
        return True

    def done(self, tag: tuple[int, int] | None) -> bool:
        """Note that a delivery has ended; False for one of a channel that is lost."""
        if tag is None or tag[0] != self.channel:
            return False
        self._open.pop(tag[1], None)
        self._done.append(tag[1])
        return True

    async def send(self) -> None:
        """Tell the broker what has ended, and give it back what has reached nobody.

        Raises:
            NoBroker: when the connection is lost.
        """
        done, self._done = self._done, []
        await self._let_go(done)
        while self._missed:
            await self._link.give_back(self._missed[-1])
            self._open.pop(self._missed.pop(), None)

    async def release(self, tag: tuple[int, int] | None) -> None:
        """Tell the broker at once of one; should it not hear, that one comes again."""
        if self.done(tag):
            with contextlib.suppress(NoBroker):
                await self.send()  # all of them: none may be told of twice

    async def _let_go(self, places: list[int]) -> None:
        first = next(iter(self._open), None)
        together = [place for place in places if first is None or place < first]
        if together:
            await self._link.acknowledge(max(together), also_before=True)
        for place in places:
            if first is not None and place > first:
                await self._link.acknowledge(place)
