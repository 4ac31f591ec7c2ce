"""A worker on the table: makes its services, binds them together, and knows nothing else. Its heartbeat stops last."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from importlib.metadata import version
from typing import TYPE_CHECKING

import psycopg

from redrive.alerter import Alerter
from redrive.batcher import Batcher
from redrive.connections import Control
from redrive.errors import NoDatabase
from redrive.guard import Guard
from redrive.heartbeat import Heartbeat
from redrive.job import Holder
from redrive.listener import Listener, NoListener
from redrive.mislaid import Mislaid
from redrive.producer import Producer
from redrive.pruner import Pruner
from redrive.pulse import Pulse
from redrive.reaper import Reaper
from redrive.requeuer import Requeuer
from redrive.scheduler import Scheduler
from redrive.slots import Slots
from redrive.statements import named
from redrive.subscriber import Subscriber
from redrive.sweeper import Sweeper
from redrive.worker import PATIENCE, Worker, until
from redrive.writer import Writer, complete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from redrive.metrics import Gauge
    from redrive.outcome import Finished
    from redrive.service import Service, Turning

_log = logging.getLogger("redrive")


class PostgresWorker(Worker):
    """Claims its jobs in the table, and keeps house."""

    _make_producer: Callable[..., Producer] = Producer

    def _build(self) -> None:
        settings = self.settings
        self._claim = self._control("claim")
        self._write = self._control("outcome")
        self._claim.outages = self._write.outages = lambda: self.database.outages  # the heartbeat finds out
        self._beat = self._control("heartbeat")
        self._listen = Control(settings.listen_dsn or settings.database_url, settings.schema, f"listen {self.name}")
        self.writer = Writer(self.database, self._write, self.name, settings.max_crashes)
        self.writer.on_dead = self._call_on_dead
        self.guard = Guard(self.database, self._write, self.handlers)
        self.guard.put = self.writer.put
        done = self.guard.take if settings.breaker else self.writer.put
        self.slots = Slots(self.handlers, settings.concurrency, done)
        self.guard.withdraw = self.slots.withdraw
        self.batcher = Batcher(self.database, self._write)
        listener = Listener if settings.listen else NoListener
        self.listener = listener(self.database, self._listen, self._claim, self.name)
        self.heartbeat = Heartbeat(
            self.database,
            self._beat,
            settings,
            worker=self.name,
            version=version("redrive"),
            kinds=self.kinds,
            running=lambda: list(self.slots.running.values()),
            in_flight=lambda: self.slots.in_flight,
            listener_pid=lambda: self.listener.pid,
            complaints=self.complaints,
            cancel=self.slots.cancel,
            lose=self.slots.lose,
            give_up=self._begin_anew,
            clock=self.writer.tally.set_clock,
            main_loop=asyncio.get_running_loop(),
        )
        self.reaper = Reaper(self.database, self._beat, self.heartbeat, settings, self._call_on_dead)
        self.reaper.count, self.reaper.kinds = self.writer.tally.count, self.handlers.kinds()
        holder = Holder(self.name, settings.schema, self.writer.put_progress, complete, self.handlers.follower)
        self.producer = self._make_producer(
            self.database,
            self._claim,
            self.slots,
            self.listener,
            holder=holder,
            kinds=self.kinds,
            poll=settings.poll,
            mislaid=Mislaid(self._claim, holder, self._known),
            alive=lambda: self.heartbeat.fresh,
            backlog=lambda: self.writer.backlog,
        )
        self.slots.alive = lambda: self.heartbeat.fresh
        self.listener.on_wake = self.producer.woken
        loop = asyncio.get_running_loop()
        self.database.on_lost = lambda: self._ping_listener(loop)
        self.reaper.on_reaped = lambda: loop.call_soon_threadsafe(self.producer.woken)
        self.writer.on_later, self.writer.on_ended = self.producer.expect, self._ended
        self.producer.on_batches = self.batcher.ask
        self.producer.on_survey, self.producer.admit = self.guard.learn, self.guard.admit
        self.slots.on_acquitted = self.writer.acquit
        self.pruner = Pruner(self.database, self._write, settings)
        self.alerter = Alerter(self.database, self._write, settings)
        self.requeuer = Requeuer(self.database, self._write)
        self.requeuer.on_moved = self.producer.woken
        self.sweeper = Sweeper(self.database, self._write, self.producer.woken)
        self.subscriber = Subscriber(self.database, self._write, settings, self.handlers)
        self.scheduler = Scheduler(self.database, self._beat, settings, self.schedules)
        self._pulse = Pulse((self.heartbeat, self.reaper, self.scheduler), self._beat.drop)
        words = {"kinds": self.producer.reconsider, "requeues": self.requeuer.wake, "adoptions": self.sweeper.wake}
        self.listener.on_word = {**words, "schedules": lambda: self._pulse.wake(self.scheduler)}

    def _lines(self) -> Iterable[Control]:
        return (self._claim, self._write, self._listen)

    @property
    def fresh(self) -> bool:
        """Whether the last beat that was answered is young enough."""
        return self.heartbeat.fresh

    def _gauges(self) -> dict[str, Gauge]:
        """Say whether new jobs wake it."""
        text = "Whether new jobs wake it; at 0 it finds them by polling alone."
        return {"listens": (text, lambda: self.listener.hears)}

    @property
    def turning(self) -> bool:
        """Whether the heartbeat's thread turns."""
        return self.heartbeat.turning

    @property
    def loop_blocked(self) -> bool:
        """Whether the heartbeat, from its thread, sees the main loop stand still."""
        return self.heartbeat.loop_blocked

    def _ping_listener(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ping the session that LISTENs: a server that was demoted lets it be, and says nothing more to it."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self.listener.wake)

    def _begin_anew(self) -> None:
        """After a silence in which others may have taken this worker's jobs: begin none of those claimed before."""
        self.producer.breaks += 1
        self.writer.hand_back(self.slots.take_unstarted())

    def _ended(self, batch: Sequence[Finished]) -> None:
        self.producer.ended(one.job.kind for one in batch)
        self.guard.count(batch)

    def _known(self) -> list[int]:
        return [*self.slots.held(), *self.guard.held(), *self.writer.held()]  # in the order in which a job passes

    # -- life

    def _begin(self) -> None:
        self._pulse.start()
        super()._begin()

    async def _fall_silent(self, patience: float) -> None:
        await self._pulse.stop(patience)

    async def _close(self) -> None:
        await self.listener.close()

    async def _claim_no_more(self, turning: dict[Service, Turning]) -> None:
        first = (self.producer, *(part for part in self._others() if part is not self.scrape))
        await asyncio.gather(*(turning[part].end() for part in first))

    async def _say_goodbye(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self.producer.mislaid.hand_back()
                await self._claim.run(named("leave", self.settings.schema, name=self.name))
                await self.listener.leave()
                await self.recorder.write()
        except (psycopg.Error, OSError, NoDatabase) as error:  # a TimeoutError is an OSError
            _log.debug("no goodbye: %s", error)

    async def _until_drained(self, stopping: asyncio.Event) -> None:
        def quiet() -> bool:
            return self.slots.empty and self.writer.idle

        await until(lambda: (self.scheduler.settled and self.subscriber.settled) or stopping.is_set(), PATIENCE)
        while not stopping.is_set():
            await until(lambda: quiet() or stopping.is_set())
            ended = self.batcher.ended
            self.producer.ask()
            await until(lambda: self.producer.found is not None or stopping.is_set())
            looks_in = PATIENCE + self.batcher.rest  # what follows a batch is due
            await until(lambda: not self.batcher.asked or stopping.is_set(), looks_in)
            if self.producer.found is False and quiet() and ended == self.batcher.ended:
                return

    def _services(self) -> Iterable[Service]:
        return (*self._in_loop(), self.reaper, self.scheduler)

    def _in_loop(self) -> Iterable[Service]:
        workers_own = (self.producer, self.writer, self.guard, self.batcher, self.listener)
        return (*workers_own, *self._others())

    def _others(self) -> tuple[Service, ...]:
        upkeep = (self.pruner, self.requeuer, self.sweeper, self.subscriber, self.alerter, self.recorder)
        return (*upkeep, self.scrape)
