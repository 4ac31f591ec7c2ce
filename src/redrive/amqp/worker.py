"""``redrive worker --broker``: jobs come from a broker, and Postgres is hardly asked while all is well.

One connection is opened for what has to come home, and once a minute to say that it lives and what it has counted; it
is closed again when there is nothing more to say. House is kept by the relay and by other workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import threading
import time
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import psycopg

from redrive.amqp.consumer import Consumer
from redrive.amqp.home import Home, complete_from_afar
from redrive.amqp.link import Link, checked
from redrive.amqp.quarantine import Quarantine
from redrive.claims import survey
from redrive.connections import conninfo
from redrive.errors import InvalidOption, NoDatabase
from redrive.guard import Guard
from redrive.job import Holder
from redrive.lanes import Lanes
from redrive.mislaid import SHOWN
from redrive.service import Database, Service
from redrive.slots import Slots
from redrive.sql import AMQP
from redrive.statements import Statement, named, run
from redrive.worker import PATIENCE, Worker, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from redrive.connections import Control
    from redrive.outcome import Finished
    from redrive.service import Turning

_log = logging.getLogger("redrive")

VISIT_EVERY = 60.0
LEASE = 3 * VISIT_EVERY
"""Seconds of silence after which such a worker is taken for dead, unless it holds jobs that have come home."""
LINGER = 5.0
"""Seconds after which the connection to Postgres is closed again."""
NEVER = 0
"""No process of a server's: the doctor knows by it that such a worker listens to nobody on purpose."""


class Vigil(threading.Thread):
    """Says that this worker lives while it holds rows: from a thread of its own, as a handler may block the loop."""

    def __init__(self, dsn: str, every: float, beat: Callable[[], Statement[Any]]) -> None:
        super().__init__(name="redrive-vigil", daemon=True)
        self._dsn, self._every, self._beat = dsn, every, beat
        self._over = threading.Event()

    def run(self) -> None:
        """Beat until told that it is over; a database that is away is told of by the loop."""
        while not self._over.wait(self._every):
            with contextlib.suppress(psycopg.Error), psycopg.connect(self._dsn, autocommit=True) as conn:
                while not self._over.is_set():
                    run(conn, self._beat())
                    self._over.wait(self._every)

    def end(self) -> None:
        """Beat no more."""
        self._over.set()


class Visits(Service):
    """Says now and then that this worker lives; as often as any worker while it holds jobs that have come home."""

    name = "visits"

    def __init__(self, database: Database, control: Control, worker: BrokerWorker) -> None:
        super().__init__(database)
        self._control = control
        self._worker = worker
        self._said = self._next = 0.0
        self._short = False
        """Whether it was said last that it holds rows."""
        self._vigil: Vigil | None = None

    async def tick(self) -> float:
        """Say it where it is due, and close the connection that nobody needs."""
        now, settings = time.monotonic(), self._worker.settings
        home = self._worker.consumer.holds_rows  # also before it runs, or a death in its first moment is told late
        if now >= self._next or home or self._short:
            await self.say(home=home)
        elif now - self._said > LINGER and self._worker.writer.idle and self._control.connection is not None:
            self._control.drop()
        return settings.beat_every if self._short else min(LINGER, max(0.1, self._next - now))

    async def say(self, *, home: bool) -> None:
        """Say that this worker lives, and for how long that holds: *home* where it is about to hold a row."""
        [row] = await self._control.run(named("beat", self._control.schema, **self._facts(home=home)))
        self._said = time.monotonic()
        self._worker.writer.tally.set_clock(row.clock - self._said)
        self._next = self._said + VISIT_EVERY * random.uniform(0.8, 1.0)
        self._short = home
        await self._hand_back_mislaid()
        if home and self._vigil is None:
            self._vigil = self._keep_vigil()
        elif not home:
            self.end()
        await self._ask_for_breakers()

    async def _hand_back_mislaid(self) -> None:
        """Give back what this worker holds by the table and not by its memory: some answer was lost on its way."""
        worker = self._worker
        known = [*worker.consumer.held(), *worker.slots.held(), *worker.guard.held(), *worker.writer.held()]
        # what comes home from here on does so after this: there is one line to the database, and each waits its turn
        found = await self._control.run(
            named("hand_back_mislaid", self._control.schema, worker=worker.name, known=known)
        )
        if found:
            ids = ", ".join(str(row.id) for row in found[:SHOWN])
            _log.warning("%d jobs were at home and in nobody's hands, they are given back: %s", len(found), ids)

    async def _ask_for_breakers(self) -> None:
        began = time.monotonic()
        look = Lanes(self._worker.kinds).look()
        rows = await self._control.run(survey(self._control.schema, route=AMQP, **look))
        self._worker.guard.learn(rows[-1].breakers or "", began)

    def end(self) -> None:
        """Say it from the loop alone again."""
        vigil, self._vigil = self._vigil, None
        if vigil is not None:
            vigil.end()

    def _keep_vigil(self) -> Vigil:
        schema, settings = self._control.schema, self._worker.settings
        dsn = conninfo(settings.database_url, application=f"redrive vigil {self._worker.name}", settled=True)
        vigil = Vigil(dsn, settings.beat_every, lambda: replace(self._beat(schema), kept=False))
        vigil.start()
        return vigil

    def _beat(self, schema: str) -> Statement[Any]:
        return named("beat", schema, **self._facts(home=True))

    def _facts(self, *, home: bool) -> dict[str, Any]:
        worker, settings = self._worker, self._worker.settings
        return {
            "name": worker.name,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": version("redrive"),
            "app_version": settings.app_version or None,
            "kinds": list(worker.kinds),
            "concurrency": settings.concurrency,
            "in_flight": worker.slots.in_flight,
            "lease": settings.lease if home else LEASE,
            "listener_pid": NEVER,
            "problem": worker.complaints() or None,
            "clock_skew": None,
        }


class BrokerWorker(Worker):
    """Runs jobs that a relay has handed to a broker."""

    _counted_every = VISIT_EVERY

    def _own_kinds(self) -> tuple[str, ...]:
        checked(self.settings.broker_url)
        return super()._own_kinds()

    async def run(self, *, once: bool = False) -> None:
        """Work until told to stop.

        Raises:
            InvalidOption: for *once*: it is not known of a broker whether more is on its way.
            NotMigrated: when the schema is missing or too old.
        """
        if once:
            raise InvalidOption("--once goes with the table: a worker with --broker can't tell when nothing is due")
        await super().run()

    def _build(self) -> None:
        settings = self.settings
        self._claim = self._write = self._control("home")
        self.link = Link(settings.broker_url, settings.schema, f"redrive worker {self.name}")
        self.writer = self.home = Home(self.database, self._write, self.name, settings.max_crashes)
        self.writer.on_dead = self._call_on_dead
        self.guard = Guard(self.database, self._write, self.handlers)
        self.slots = Slots(
            self.handlers,
            settings.concurrency,
            self.guard.take if settings.breaker else self._take,
        )
        self.slots.on_acquitted = self.writer.acquit
        self.guard.withdraw = self.slots.withdraw
        holder = Holder(
            self.name, settings.schema, self.writer.put_progress, complete_from_afar, self.handlers.follower
        )
        self.strays = Quarantine(
            self.database,
            Link(settings.broker_url, settings.schema, f"redrive strays {self.name}"),
            lambda channel: channel == self.link.number and self.link.ready,
        )
        self.consumer = Consumer(
            self.database, self.link, self.slots, self.home, self.strays, holder=holder, kinds=self.kinds
        )
        self.guard.put = self.consumer.take
        self.writer.on_ended = self.guard.count
        self.visits = Visits(self.database, self._write, self)
        self.home.before_bringing = lambda _job: self.visits.say(home=True)
        self.consumer.on_breakers = self.guard.learn

    def _lines(self) -> Iterable[Control]:
        return (self._write,)

    @property
    def fresh(self) -> bool:
        """Always: what it has of the broker is its own for as long as the connection holds."""
        return True

    def _take(self, finished: Finished) -> None:
        self.consumer.take(finished)

    def _in_loop(self) -> Iterable[Service]:
        # The first visit learns the database's clock, by which the deadlines of what comes are read.
        return (self.visits, self.consumer, self.writer, self.guard, self.strays, self.recorder, self.scrape)

    async def _claim_no_more(self, turning: dict[Service, Turning]) -> None:  # noqa: ARG002 - as of every worker
        await self.consumer.close()  # and goes on to acknowledge what ends

    async def _say_goodbye(self) -> None:
        await self.consumer.last_words()
        await until(lambda: self.writer.idle, PATIENCE)
        try:
            async with asyncio.timeout(PATIENCE):
                await self._claim.run(named("leave", self.settings.schema, name=self.name))
                await self.recorder.write()
        except (psycopg.Error, OSError, NoDatabase) as error:  # a TimeoutError is an OSError
            _log.debug("no goodbye: %s", error)

    async def _fall_silent(self, patience: float) -> None:  # noqa: ARG002 - as of every worker
        self.visits.end()

    async def _close(self) -> None:
        self.visits.end()  # once more: a last turn may have begun another vigil
        await self.link.close()
        await self.strays.close()

    async def _until_drained(self, stopping: asyncio.Event) -> None:
        raise NotImplementedError  # run() has refused
