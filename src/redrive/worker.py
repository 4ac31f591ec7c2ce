"""One worker process: starts the services, stops them in the right order, and knows nothing else.

Order of the end: claim nothing more, hand back what has not begun, let what runs finish within the grace, then stop it and
hand it back, write what is left, and only then fall silent. The heartbeat stops last.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import string
import threading
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import psycopg

from redrive.connections import Control, is_outage
from redrive.errors import InvalidOption, LeaseLost, NoDatabase, NotMigrated
from redrive.events import JobDied, WorkerStarted, WorkerStopped, WorkerStopping, emit
from redrive.heartbeat import Heartbeat
from redrive.listener import Listener, NoListener
from redrive.migrate import demand_migrated
from redrive.payload import encode_result
from redrive.producer import Producer
from redrive.pruner import Pruner
from redrive.reaper import Reaper
from redrive.service import FOR_EVER, Database, Service
from redrive.slots import Slots
from redrive.statements import arun, named, run
from redrive.threads import Threads
from redrive.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from redrive.handlers import Handlers
    from redrive.job import ClaimedJob
    from redrive.settings import Settings

WATCH_EVERY = 0.1
LAST_WORDS = 5.0
"""Seconds in which the last outcomes must be written once the handlers have ended; a database that is gone gets no more."""
COOPERATION = 0.3
"""Seconds that stopped handlers have to come to an end before their jobs are handed back under their feet."""
LATE = 15.0
_ALPHABET = string.digits + string.ascii_lowercase

_log = logging.getLogger("redrive")


class Worker:
    """Runs jobs of a queue's handlers until it is told to stop."""

    def __init__(self, settings: Settings, handlers: Handlers) -> None:
        if not settings.database_url:
            raise NoDatabase
        self.settings = settings
        self.handlers = handlers
        self.name = worker_name()
        self.kinds = handlers.kinds()
        if settings.kinds:
            for kind in settings.kinds:
                handlers.demand(kind)
            self.kinds = settings.kinds
        if not self.kinds:
            raise InvalidOption("this queue has no handlers: decorate a function with @queue.handler(\"kind\") before the worker starts")
        self.database = Database(self.name)
        self.running_threads = False
        """Whether handlers were left running in threads at the end: the process must exit to be rid of them."""
        self._stop_asked = 0
        self._stopping: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Ask for the end; asked twice, running jobs are handed back at once. Safe from any thread and signal handler."""
        self._stop_asked += 1
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def run(self, *, once: bool = False) -> None:
        """Work until told to stop; with *once*, until nothing is due.

        Raises:
            NotMigrated: when the schema is missing or too old.
            NoDatabase: when the database was away longer than ``exit_on_db_loss``.
        """
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        if self._stop_asked:
            self._stopping.set()
        self._build()
        try:
            await self._demand_migrated()
            if not self._stopping.is_set():
                await self._work(once=once)
        finally:
            for control in (self._claim, self._write, self._listen):
                control.drop()
        if self._away_too_long():
            raise NoDatabase(f"the database was away for more than {self.settings.exit_on_db_loss:g} s: {self.database.error}")

    # -- parts

    def _build(self) -> None:
        settings = self.settings
        self._claim = self._control("claim")
        self._write = self._control("outcome")
        self._beat = self._control("heartbeat")
        self._listen = Control(settings.listen_dsn or settings.database_url, settings.schema, f"listen {self.name}")
        self._hooks = Threads(1, "redrive-hooks")
        self.writer = Writer(self.database, self._write, self.name, settings.max_crashes)
        self.writer.on_dead = self._call_on_dead
        self.slots = Slots(self.handlers, settings.concurrency, self.writer.put)
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
            main_loop=asyncio.get_running_loop(),
        )
        self.reaper = Reaper(self.database, self._beat, self.heartbeat, settings, self._call_on_dead)
        self.producer = Producer(
            self.database,
            self._claim,
            self.slots,
            self.listener,
            worker=self.name,
            kinds=self.kinds,
            poll=settings.poll,
            adopt=self._adopt,
            known=self._known,
            alive=lambda: self.heartbeat.fresh,
        )
        self.listener.on_wake = self.producer.woken
        self.pruner = Pruner(self.database, self._write, settings)
        self.watch = Watch(self)

    def _control(self, role: str) -> Control:
        return Control(self.settings.database_url, self.settings.schema, f"{role} {self.name}")

    def _adopt(self, job: ClaimedJob) -> None:
        job.bind(self.name, self.settings.schema, self.writer.put_progress, self._complete)

    def _known(self) -> list[int]:
        return [*self.slots.held(), *self.writer.held()]

    # -- life

    async def _work(self, *, once: bool) -> None:
        assert self._stopping is not None  # noqa: S101 - set by run()
        quiet = Quiet()
        pulse = threading.Thread(target=self._live, args=(quiet,), name="redrive-heartbeat", daemon=True)
        pulse.start()
        ends = {service: asyncio.Event() for service in (self.producer, self.writer, self.listener, self.pruner, self.watch)}
        tasks = {service: asyncio.create_task(service.run(end), name=f"redrive {service.name}") for service, end in ends.items()}
        self.slots.start()
        emit(WorkerStarted(worker=self.name, kinds=self.kinds, concurrency=self.settings.concurrency))
        try:
            await (self._until_drained() if once else self._stopping.wait())
        finally:
            handed_back = await asyncio.shield(asyncio.ensure_future(self._wind_down(ends, tasks, quiet, pulse)))
            emit(WorkerStopped(worker=self.name, handed_back=handed_back))

    async def _wind_down(
        self,
        ends: dict[Service, asyncio.Event],
        tasks: dict[Service, asyncio.Task[None]],
        quiet: Quiet,
        pulse: threading.Thread,
    ) -> int:
        settings = self.settings
        emit(WorkerStopping(worker=self.name, in_flight=self.slots.in_flight))
        await self._end(self.producer, ends, tasks)
        await self._end(self.pruner, ends, tasks)
        unstarted = self.slots.take_unstarted()
        self.writer.hand_back(unstarted)
        self.slots.tell_all()
        end = time.monotonic() + settings.grace
        while not self.slots.empty and time.monotonic() < end and self._stop_asked < 2:  # noqa: PLR2004 - asked twice
            await asyncio.sleep(0.02)
        self.slots.stop_all()
        end = time.monotonic() + COOPERATION
        while not self.slots.empty and time.monotonic() < end:
            await asyncio.sleep(0.01)
        left = list(self.slots.running.values())
        self.running_threads = bool(left)
        self.writer.hand_back(left)
        end = time.monotonic() + LAST_WORDS
        while not self.writer.idle and time.monotonic() < end and not self._hopeless(end):
            self.writer.wake()
            await asyncio.sleep(0.01)
        if not self.database.away_since:
            await self._say_goodbye(quiet, pulse)
        await self._end(self.watch, ends, tasks)
        await self._end(self.listener, ends, tasks)
        await self.listener.close()
        await self._end(self.writer, ends, tasks)
        await self.slots.close()
        quiet.fall()
        await asyncio.to_thread(pulse.join, 2.0)
        self._hooks.close()
        return len(unstarted) + len(left)

    def _hopeless(self, end: float) -> bool:
        """The database is gone: what is not written now is found by the reapers of others."""
        return bool(self.database.away_since) and (self._stop_asked > 1 or time.monotonic() > end - LAST_WORDS + 2.0)

    async def _end(self, service: Service, ends: dict[Service, asyncio.Event], tasks: dict[Service, asyncio.Task[None]]) -> None:
        ends[service].set()
        service.wake()
        await asyncio.wait({tasks[service]}, timeout=2.0)
        if not tasks[service].done():
            tasks[service].cancel()
            await asyncio.wait({tasks[service]}, timeout=1.0)

    async def _say_goodbye(self, quiet: Quiet, pulse: threading.Thread) -> None:
        quiet.fall()
        await asyncio.to_thread(pulse.join, 2.0)
        try:
            await self.producer.hand_back_strays()
            await self._claim.run(named("leave", self.settings.schema, name=self.name), timeout=2.0)
        except (psycopg.Error, OSError, NoDatabase, TimeoutError) as error:
            _log.debug("no goodbye: %s", error)

    def _live(self, quiet: Quiet) -> None:
        """Run heartbeat and reaper in this thread, on a loop of their own, until quiet falls."""

        async def turn() -> None:
            end = quiet.begin()
            services = (self.heartbeat, self.reaper)
            try:
                async with asyncio.TaskGroup() as group:
                    running = [group.create_task(service.run(end)) for service in services]
                    await end.wait()
                    for service in services:
                        service.wake()
                    await asyncio.wait(running, timeout=1.0)
                    for task in running:
                        task.cancel()
            finally:
                self._beat.drop()

        asyncio.run(turn())

    async def _until_drained(self) -> None:
        assert self._stopping is not None  # noqa: S101 - set by run()
        while not self._stopping.is_set():
            if self.slots.empty and self.writer.idle:
                self.producer.nothing_due = False
                self.producer.wake()
                while not self.producer.nothing_due and self.slots.empty and not self._stopping.is_set():
                    await asyncio.sleep(0.01)
                if self.producer.nothing_due and self.slots.empty and self.writer.idle:
                    return
            await asyncio.sleep(0.01)

    async def _demand_migrated(self) -> None:
        assert self._stopping is not None  # noqa: S101 - set by run()
        pause = 0.1
        while not self._stopping.is_set():
            try:
                [row] = await self._claim.run(named("installed_version", self.settings.schema))
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                demand_migrated(0, self.settings.schema)
            except Exception as error:
                if not is_outage(error):
                    raise
                self.database.lost("start", error)
                if self._away_too_long():
                    return
                pause = min(5.0, pause * 2)
                await self._rest(pause)
            else:
                self.database.answered("start")
                demand_migrated(row.version or 0, self.settings.schema)
                return

    async def _rest(self, seconds: float) -> None:
        assert self._stopping is not None  # noqa: S101 - set by run()
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    # -- what handlers and operators ask

    def _complete(self, job: ClaimedJob, connection: Any, result: Any) -> Any:
        text = encode_result(result)
        statement = named("complete_job", job.schema, id=job.id, claim=job.claim, worker=job.worker, result=text)
        if isinstance(connection, psycopg.AsyncConnection):
            return self._acomplete(job, connection, statement)
        if not isinstance(connection, psycopg.Connection):
            raise TypeError(f"job.complete: connection is a {type(connection).__qualname__}, not a psycopg connection")
        self._completed(job, run(connection, statement))
        return None

    async def _acomplete(self, job: ClaimedJob, connection: Any, statement: Any) -> None:
        self._completed(job, await arun(connection, statement))

    @staticmethod
    def _completed(job: ClaimedJob, rows: list[Any]) -> None:
        if not rows:
            job.lost = True
            raise LeaseLost(f"job {job.id} is not this worker's any more: roll back")
        job.completed = True

    def _call_on_dead(self, event: JobDied) -> None:
        handler = self.handlers.get(event.kind)
        if handler is None or handler.on_dead is None:
            return
        hook = handler.on_dead

        def call() -> None:
            try:
                hook(event)
            except Exception:
                _log.exception("on_dead of kind %s raised", event.kind, extra={"kind": event.kind, "job": event.id})

        self._hooks.submit(call)

    def complaints(self) -> str:
        """Say what is wrong with this worker's loops, in a line; empty while all of them turn."""
        now = time.monotonic()
        said = [f"{service.name} loop: {service.trouble}" for service in self._services() if service.trouble]
        said += [
            f"{service.name} loop has not turned for {now - service.turned:.0f} s"
            for service in self._services()
            if service.due_by < FOR_EVER and now - service.turned > service.due_by + LATE
        ]
        if self.heartbeat.loop_blocked:
            said.append("the event loop is blocked by a handler")
        said += [f"job {job.id} ({job.kind}) is past its timeout and can't be stopped" for job in self.slots.overdue()]
        return "; ".join(said)

    def _services(self) -> Iterable[Service]:
        return (self.producer, self.writer, self.listener, self.reaper, self.pruner)

    def _away_too_long(self) -> bool:
        limit, since = self.settings.exit_on_db_loss, self.database.away_since
        return bool(limit and since) and time.monotonic() - since >= limit


class Watch(Service):
    """Timeouts, jobs that wait too long for a slot here, and a database that has been away too long."""

    name = "watch"

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker.database)
        self._worker = worker

    async def tick(self) -> float:
        """Look once."""
        worker = self._worker
        worker.slots.watch()
        worker.writer.hand_back(worker.slots.take_stale())
        if worker._away_too_long():  # noqa: SLF001 - one class in two
            worker.stop()
            worker.stop()
        return WATCH_EVERY


class Quiet:
    """The end of the heartbeat's thread, to be called for from another thread."""

    def __init__(self) -> None:
        self._fallen = False
        self._lock = threading.Lock()
        self._call: Callable[[], Any] = lambda: None

    def begin(self) -> asyncio.Event:
        """Make the event in the thread's own loop."""
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        with self._lock:
            if self._fallen:
                event.set()
            self._call = lambda: loop.call_soon_threadsafe(event.set)
        return event

    def fall(self) -> None:
        """End it."""
        with self._lock:
            if not self._fallen:
                self._fallen = True
                self._call()


def worker_name() -> str:
    """Make a name: host, process and boot, short because every claim writes it."""
    boot = "".join(secrets.choice(_ALPHABET) for _ in range(6))
    return f"{socket.gethostname()[:16].replace(':', '-')}:{os.getpid()}:{boot}"
