"""Messages at the broker that are no jobs: moved to a durable queue of their own, and looked at by people.

Unacknowledged they would stay for ever, and RabbitMQ takes the channel of whoever holds a message for half an hour. So
what no worker here can run goes to the queue of strays, with all it came with and the reason, and is acknowledged once
the broker has it there. Nothing is thrown away, and nobody but people empties that queue. Where it can't be had, such
messages stay unacknowledged where they are.
"""

from __future__ import annotations

import copy
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from pamqp import frame
from pamqp.header import ContentHeader

from redrive.amqp.names import strays_name
from redrive.errors import NoBroker
from redrive.service import FOR_EVER, Service

if TYPE_CHECKING:
    from collections.abc import Callable

    from pamqp.commands import Basic

    from redrive.amqp.link import Link
    from redrive.amqp.parcel import Parcel
    from redrive.service import Database

ASK_AGAIN, ASK_AGAIN_MOST = 5.0, 300.0
"""Seconds until it is tried again to move what could not be moved: at first, and at most."""
LINGER = 5.0
"""Seconds for which the connection is kept when nothing is left to be moved."""
SPECIAL = ("CC", "BCC")
"""Headers that would have the broker send copies elsewhere."""

_log = logging.getLogger("redrive")


class Stray(NamedTuple):
    """A message that is no job, and not acknowledged."""

    tag: tuple[int, int]
    """The number of its channel, and its delivery there."""
    kind: str
    """In whose queues it was."""
    message: Any
    why: str


class Quarantine(Service):
    """Moves strays, by a connection of its own: one that publishes may be blocked, or lose its channel."""

    name = "strays"

    def __init__(self, database: Database, link: Link, holds: Callable[[int], bool]) -> None:
        """*holds* says whether what came by a channel of that number can still be acknowledged."""
        super().__init__(database)
        self._link = link
        self._holds = holds
        self._waiting: deque[Stray] = deque()
        self._kinds_told: set[str] = set()
        self._idle = True
        self._again = self._pause = 0.0
        self.moved = 0
        """Messages moved so far."""
        self.on_moved: Callable[[list[tuple[int, int]]], object] = lambda _tags: None
        """Told of deliveries that may be acknowledged."""

    def put(self, stray: Stray) -> None:
        """Take a message that is no job; the first of a kind is told of."""
        if stray.kind not in self._kinds_told:
            self._kinds_told.add(stray.kind)
            _log.error(
                "message %s in a queue of %s is no job of redrive's and goes to %s, as all others do: %s",
                stray.message.header.properties.message_id,
                stray.kind,
                strays_name(self._link.schema),
                stray.why,
            )
        self._waiting.append(stray)
        self.wake()

    def put_job(self, parcel: Parcel, why: str) -> None:
        """Take a job that can't be written to the table, whatever happens to it."""
        if parcel.tag is not None:
            self.put(Stray(parcel.tag, parcel.kind, parcel.message, why))

    async def tick(self) -> float:
        """Move what there is."""
        if (left := self._again - time.monotonic()) > 0:
            return left
        while self._waiting:
            if not self._holds(self._waiting[0].tag[0]):  # it comes again
                self._waiting.popleft()
                continue
            try:
                await self._move(self._waiting[0])
            except NoBroker as error:
                return self._fail(str(error))
        if self._pause:
            self._pause, self.trouble = 0.0, ""
            _log.info("strays are moved to %s again", strays_name(self._link.schema))
        if self._link.ready and self._idle:
            await self._link.close()
        self._idle = True
        return LINGER if self._link.ready else FOR_EVER

    async def _move(self, stray: Stray) -> None:
        self._idle = False
        await self._link.open()
        if not await self._link.set_aside(marked(stray), stray.message.body):
            raise NoBroker("the broker has refused it")
        self._waiting.popleft()
        self.moved += 1
        self.on_moved([stray.tag])

    def _fail(self, why: str) -> float:
        self._pause = min(ASK_AGAIN_MOST, 2 * self._pause) if self._pause else ASK_AGAIN
        self._again = time.monotonic() + self._pause
        trouble = f"messages that are no jobs can't be moved to {strays_name(self._link.schema)}, and stay: {why}"
        if trouble != self.trouble:
            _log.warning("%s", trouble)
        self.trouble = trouble
        self._waiting.rotate(-1)  # it may be this one
        return self._pause

    async def close(self) -> None:
        """End the connection; what has not been moved is the broker's again."""
        await self._link.close()


def marked(stray: Stray) -> Basic.Properties:
    """Make the properties with which a stray lies in its queue: its own, and whence and why."""
    given = stray.message.header.properties
    properties: Basic.Properties = copy.copy(given)
    where = stray.message.delivery
    said = {
        "redrive-reason": stray.why[:1000],
        "redrive-kind": stray.kind,
        "redrive-exchange": where.exchange,
        "redrive-routing-key": where.routing_key,
        # the broker would refuse another's name, and throw away what is over its time
        "redrive-user-id": given.user_id,
        "redrive-expiration": given.expiration,
    }
    headers = {f"redrive-{name}" if name in SPECIAL else name: value for name, value in (given.headers or {}).items()}
    headers |= {name: value for name, value in said.items() if value}
    properties.headers, properties.delivery_mode = headers, 2
    properties.user_id = properties.expiration = None
    try:
        frame.marshal(ContentHeader(properties=properties), 1)
    except Exception:  # noqa: BLE001 - whatever its library can read and can't write: as text
        properties.headers = {name: value if name in said else repr(value) for name, value in headers.items()}
    return properties
