"""``redrive relay``: a worker that hands the due jobs of routed kinds to the broker instead of running them.

It claims as every worker does, lane by lane and within limits; but its claim takes the rows off the table, in a
transaction that ends once the broker has confirmed each message. Killed or cut off before that, nothing has happened
but that some messages may be sent again. It keeps house as every worker does, too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from psycopg.rows import scalar_row

from redrive.amqp.link import PAUSES, Link, checked
from redrive.amqp.parcel import Parcel, of_home, portions
from redrive.amqp.rights import Withheld
from redrive.claims import Claims, lock_limits, taken
from redrive.errors import NoBroker
from redrive.lanes import Lanes
from redrive.limits import Limits
from redrive.outcome import Finished, HandedBack, Snoozed, parameters
from redrive.postgres import PostgresWorker
from redrive.producer import Producer
from redrive.sql import AMQP, spoken
from redrive.statements import Statement, arun, named
from redrive.worker import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import psycopg

    from redrive.connections import Control
    from redrive.job import ClaimedJob, Holder

BATCH = 500
"""Messages that one transaction waits for."""
SEND_FOR = 5.0
"""Seconds after which what has not been sent of a batch waits for the next, which is smaller: a transaction that is
open for longer than it may be would be rolled back, and all of it sent once more, for ever."""
REFUSED_PAUSE = 5.0
"""Seconds after which a message that the broker has refused is offered again."""
MISSES = 3
"""Times that one that runs once looks for the broker again: seconds, as whoever runs it will do so again."""
KINDS_EVERY = 30.0
"""Seconds between two looks at what is routed, where nobody says that it has changed."""

_log = logging.getLogger("redrive")


class Sending(Claims):
    """Takes due jobs off the table and sends them."""

    route = AMQP

    def __init__(self, control: Control, holder: Holder, link: Link, max_crashes: int) -> None:
        super().__init__(control, holder)
        self._link = link
        self._max_crashes = max_crashes
        self._renewed = 0.0
        self.most = BATCH
        """Messages that a batch may have, as the last ones went."""
        self.sent = 0
        """Messages that the broker has confirmed so far."""
        self.limits = Limits()
        """What the last survey has found."""

    async def due(self, **params: Any) -> list[Any]:
        """Send due jobs of lanes whose kinds have no limits."""
        return await self._control.run_both(None, lambda _none: self._taken("send_jobs", params), self._send)

    async def limited(self, asked: Sequence[str], /, **params: Any) -> list[Any]:
        """Send due jobs of the *asked* kinds, as many as their limits allow."""

        def claim(locked: list[str]) -> Statement[Parcel] | None:
            return self._taken("claim_limited", params | {"locked": locked}) if locked else None

        return await self._control.run_both(lock_limits(self._control.schema, asked), claim, self._send)

    async def alone(self, kinds: Sequence[str]) -> list[Any]:
        """Send one job that may have killed its worker, marked so."""

        def claim(locked: list[str]) -> Statement[Parcel]:
            return self._taken("claim_alone", {"kinds": list(kinds), "locked": locked})

        return await self._control.run_both(lock_limits(self._control.schema, kinds), claim, self._send)

    def _taken(self, name: str, params: dict[str, Any]) -> Statement[Parcel]:
        return taken(name, self.holder, partial(Parcel, self.holder), self.route, dict(params))

    async def _send(self, conn: psycopg.AsyncConnection[Any], parcels: list[Parcel]) -> None:
        for each in parcels if self.limits.breakers else ():
            if each.kind in self.limits.broken:
                each.breakers = self.limits.breakers
        await arun(conn, named("wait_for_broker", self._control.schema))
        began, refused, unsent = time.monotonic(), [], []
        for some in portions(parcels):
            if time.monotonic() - began > SEND_FOR:
                unsent += some
            else:
                refused += await self._link.publish(some)
        self.sent += len(parcels) - len(refused) - len(unsent)
        if unsent:
            self.most = len(parcels) - len(unsent)
            await self._put_back(conn, unsent, HandedBack())
        elif len(parcels) >= self.most:
            self.most = min(BATCH, 2 * self.most)
        if refused:
            _log.warning("the broker has refused %s of %s jobs: they wait in the table", len(refused), len(parcels))
            await self._put_back(conn, refused, Snoozed(REFUSED_PAUSE))
            if time.monotonic() - self._renewed > REFUSED_PAUSE:
                # RabbitMQ 3.10 goes on to refuse what comes by this channel when the queue's limit is taken away
                self._renewed = time.monotonic()
                self._link.renew()

    async def _put_back(
        self, conn: psycopg.AsyncConnection[Any], those: Sequence[Parcel], how: Snoozed | HandedBack
    ) -> None:
        schema, worker = self._control.schema, self.holder.name
        those = sorted(those, key=lambda each: each.id)
        await arun(conn, named("come_home", schema, worker=worker, **of_home(those)))
        back = [Finished(each, how, None) for each in those]
        said = {"worker": worker, "max_crashes": self._max_crashes, **parameters(back)}
        await arun(conn, named("finish_jobs", schema, **said))


class Outbox:
    """What the relay has in place of slots: room for a batch, whatever else is going on."""

    concurrency = 1
    empty = settled = True

    def __init__(self) -> None:
        self.room: Callable[[], int] = lambda: BATCH
        """Asked how many jobs to send now."""
        self.running: dict[int, ClaimedJob] = {}
        self.starved = False
        self.on_free: Callable[[], None] = lambda: None

    @property
    def free(self) -> int:
        """The same."""
        return self.room()

    def share(self, _kind: str) -> int:
        """How many of them may be of one kind."""
        return self.room()

    def add(self, jobs: Sequence[ClaimedJob]) -> None:
        """Take jobs that were claimed: they are at the broker by now."""

    def add_alone(self, job: ClaimedJob) -> None:
        """Take one that may have killed its worker: as above."""


class Relay(Producer):
    """Claims due jobs of routed kinds, which sends them."""

    name = "relay"

    def __init__(self, *parts: Any, link: Link, max_crashes: int, **more: Any) -> None:
        database, control, _slots, listener = parts
        outbox = Outbox()
        super().__init__(database, control, outbox, listener, **more)  # type: ignore[arg-type] # all of it that is asked for
        self.link = link
        self.sending = self._claims = Sending(control, more["holder"], link, max_crashes)
        outbox.room = lambda: self.sending.most
        self._kinds_at = 0.0
        self.misses = 0
        """Times in a row that there was no broker."""

    async def tick(self) -> float:
        """Send once, where there is a broker; gives the pause until the next."""
        try:
            await self.link.open()
            if self._loop.time() >= self._kinds_at:
                await self._look_at_routes()
            if self._kinds:
                pause = await super().tick()
            else:
                self.found, pause = False, self._poll
        except Withheld:  # of one kind, and told of
            self._kinds_at = 0.0
            return 0.0
        except NoBroker as error:
            self._kinds_at = 0.0
            if str(error) != self.trouble:
                _log.warning("jobs wait in the table: %s", error)
            self.trouble = str(error)
            self.misses += 1
            return PAUSES[min(self.misses, len(PAUSES)) - 1]
        if self.misses:
            _log.info("the broker at %s answers again", self.link.where)
            self.misses = 0
        self.trouble = self.link.denied.told
        return pause

    async def _take(self, claim: Awaitable[list[ClaimedJob]]) -> list[ClaimedJob]:
        self.sending.limits = self._lanes.limits
        return await super()._take(claim)

    def reconsider(self) -> None:
        """What may be sent has changed: look anew."""
        self._kinds_at = 0.0
        super().reconsider()

    async def _look_at_routes(self) -> None:
        text = spoken("routed_kinds", self._control.schema, AMQP)
        rows = await self._control.run(Statement(text, scalar_row))
        withheld = await self.link.withheld(rows)
        kinds = [kind for kind in rows if kind not in withheld]
        self._kinds_at = self._loop.time() + KINDS_EVERY
        if kinds != self._kinds:
            self._kinds, self._lanes, self._survey_at = kinds, Lanes(kinds), 0.0
            none = "none whose queues can be had" if rows else "no kind is routed, see `redrive route`"
            _log.info("the relay sends jobs of: %s", ", ".join(kinds) or none)


class RelayWorker(PostgresWorker):
    """The process around a relay: a worker that runs no handler, and keeps house."""

    producer: Relay

    def _own_kinds(self) -> tuple[str, ...]:
        checked(self.settings.broker_url)
        return ()

    def _make_producer(self, *parts: Any, **more: Any) -> Producer:
        self.link = Link(self.settings.broker_url, self.settings.schema, f"redrive relay {self.name}")
        return Relay(*parts, link=self.link, max_crashes=self.settings.max_crashes, **more)

    async def _until_drained(self, stopping: asyncio.Event) -> None:
        drained = asyncio.ensure_future(super()._until_drained(stopping))
        await until(lambda: drained.done() or self.producer.misses > MISSES)
        if not drained.done():
            drained.cancel()
            raise NoBroker(f"jobs wait in the table: {self.producer.trouble}")
        await drained

    async def run(self, *, once: bool = False) -> None:
        """Send until told to stop; with *once*, until nothing is due.

        Raises:
            NoBroker: with *once*, where none answered in some seconds.
            Others as :meth:`PostgresWorker.run`.
        """
        try:
            await super().run(once=once)
        finally:
            await self.link.close()
