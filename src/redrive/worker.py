"""The life of a worker process, wherever its jobs come from: it starts the services and stops them in the right order.

Order of the end: claim nothing more, hand back what has not begun, let what runs finish within the grace, then stop it
and hand it back, write what is left, and only then fall silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import psycopg

from redrive import children
from redrive.connections import Control, is_outage
from redrive.errors import InvalidOption, NoDatabase
from redrive.events import JobDied, WorkerStarted, WorkerStopped, WorkerStopping, emit
from redrive.heartbeat import worker_name
from redrive.migrate import demand_migrated
from redrive.recorder import EVERY, Recorder
from redrive.scrape import Scrape
from redrive.service import FOR_EVER, Database, Service, Turning
from redrive.statements import named
from redrive.text import ascii_only, clip, storable
from redrive.threads import Threads
from redrive.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from redrive.definition import Definition
    from redrive.handlers import Handlers
    from redrive.metrics import Gauge
    from redrive.settings import Settings
    from redrive.slots import Slots
    from redrive.writer import Writer

LAST_WORDS = 5.0
"""Seconds in which the last outcomes must be written once the handlers have ended."""
COOPERATION = 0.3
"""Seconds that stopped handlers have to come to an end before their jobs are handed back under their feet."""
PATIENCE = 1.5
BRIEFLY = 0.5
"""Seconds that one step of the end may take, and one that has nothing left to say."""
LATE = 15.0
LONGEST_COMPLAINT = 2000
"""Characters."""

_log = logging.getLogger("redrive")


class Worker(ABC):
    """Runs jobs of a queue's handlers until it is told to stop, wherever they come from."""

    slots: Slots
    writer: Writer
    _claim: Control
    """The first line to the database that is opened."""
    _write: Control
    _counted_every = EVERY

    def __init__(self, settings: Settings, handlers: Handlers, schedules: Sequence[Definition] = ()) -> None:
        if not settings.database_url:
            raise NoDatabase
        self.settings = settings
        self.handlers = handlers
        self.schedules = schedules
        self.name = worker_name()
        handlers.instrument()
        self.kinds = self._own_kinds()
        self.database = Database(self.name)
        self.running_threads = False
        """Whether handlers were left running in threads at the end: the process must exit to be rid of them."""
        self._stop_asked = 0
        self._stopping: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Ask for the end; asked twice, running jobs are handed back at once. Safe from any thread."""
        self._stop_asked += 1
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped already
                self._loop.call_soon_threadsafe(self._stopping.set)

    async def run(self, *, once: bool = False) -> None:
        """Work until told to stop; with *once*, until nothing is due.

        Raises:
            NotMigrated: when the schema is missing or too old.
            NoDatabase: when the database was away longer than ``exit_on_db_loss``.
        """
        self._loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        self._stopping = stopping
        if self._stop_asked:
            stopping.set()
        self._hooks = Threads(1, "redrive-hooks")
        self._build()
        self._build_accounts()
        try:
            await self._demand_migrated(stopping)
            if not stopping.is_set() and not self._away_too_long():
                await self._work(stopping, once=once)
        finally:
            for control in self._lines():
                control.drop()
        if self._away_too_long():
            raise NoDatabase(
                f"the database was away for more than {self.settings.exit_on_db_loss:g} s: {self.database.error}"
            )

    # -- what each kind of worker has of its own

    @abstractmethod
    def _build(self) -> None:
        """Make the parts."""

    @abstractmethod
    def _in_loop(self) -> Iterable[Service]:
        """List the services that turn in the main loop."""

    def _services(self) -> Iterable[Service]:
        """List all services, in whatever thread they turn."""
        return self._in_loop()

    @abstractmethod
    def _lines(self) -> Iterable[Control]:
        """List the lines to the database that are this loop's to close."""

    @property
    @abstractmethod
    def fresh(self) -> bool:
        """Whether the last sign of life is young enough for this worker to hold jobs."""

    @property
    def turning(self) -> bool:
        """Whether its sign of life goes on: what systemd's watchdog is told by."""
        return True

    @property
    def loop_blocked(self) -> bool:
        """Whether a handler blocks the event loop, as far as another thread can tell."""
        return False

    def _begin(self) -> None:
        """Start what does not turn in the main loop."""
        self.slots.start()

    @abstractmethod
    async def _claim_no_more(self, turning: dict[Service, Turning]) -> None:
        """Take no new jobs; what ends is still written."""

    @abstractmethod
    async def _fall_silent(self, patience: float) -> None:
        """Give no further sign of life."""

    @abstractmethod
    async def _say_goodbye(self) -> None:
        """Take back what others know of this worker; the database answers."""

    @abstractmethod
    async def _close(self) -> None:
        """Close what only this kind of worker has."""

    @abstractmethod
    async def _until_drained(self, stopping: asyncio.Event) -> None:
        """Wait until nothing is due."""

    # -- parts

    def _own_kinds(self) -> tuple[str, ...]:
        for kind in self.settings.kinds:
            self.handlers.demand(kind)
        if not (kinds := self.settings.kinds or self.handlers.kinds()):
            raise InvalidOption(
                'this queue has no handlers: decorate a function with @queue.handler("kind") before the worker starts'
            )
        return kinds

    def _build_accounts(self) -> None:
        """Make what tells how the others are: the recorder, the scrape and the watch."""
        tally, settings = self.writer.tally, self.settings
        self.recorder = Recorder(
            self.database, self._write, tally, version=settings.app_version, every=self._counted_every
        )
        self.scrape = Scrape(
            self.database,
            self._write,
            settings,
            tally,
            complaints=self.ailment,
            in_flight=lambda: self.slots.in_flight,
            unwritten=lambda: self.writer.unwritten,
            more=self._gauges(),
        )
        self.watch = Watch(self.database, self.slots, self.writer, self._give_up_on_database)

    def _gauges(self) -> dict[str, Gauge]:
        """List what only this kind of worker tells of itself."""
        return {}

    def _control(self, role: str) -> Control:
        return Control(self.settings.database_url, self.settings.schema, f"{role} {self.name}")

    # -- life

    async def _work(self, stopping: asyncio.Event, *, once: bool) -> None:
        self._begin()
        parts: list[Service] = [*self._in_loop(), self.watch]
        turning = {part: Turning(part) for part in parts}
        emit(WorkerStarted(worker=self.name, kinds=self.kinds, concurrency=self.settings.concurrency))
        try:
            await (self._until_drained(stopping) if once else stopping.wait())
        finally:
            handed_back = await asyncio.shield(asyncio.ensure_future(self._wind_down(turning)))
            emit(WorkerStopped(worker=self.name, handed_back=handed_back))

    async def _wind_down(self, turning: dict[Service, Turning]) -> int:
        emit(WorkerStopping(worker=self.name, in_flight=self.slots.in_flight))
        await self._claim_no_more(turning)
        self.writer.hand_back(self.slots.take_unstarted())
        self.slots.tell_all()
        await until(lambda: self.slots.empty or self._stop_asked > 1, self.settings.grace)
        self.slots.stop_all()
        await until(lambda: self.slots.empty, COOPERATION)
        left = list(self.slots.running.values())
        self.running_threads = bool(left)
        self.writer.hand_back(left)
        await until(lambda: self.writer.idle or self._hopeless(), LAST_WORDS)
        # Before the worker's row goes, since a last beat would bring it back.
        await self._fall_silent(BRIEFLY if self.database.away_since else PATIENCE)
        if not self.database.away_since:
            await self._say_goodbye()
        await asyncio.gather(*(part.end(BRIEFLY) for part in turning.values()))
        await asyncio.to_thread(self.scrape.close)
        await self._close()
        await self.slots.close()
        await children.close()
        self._hooks.close()
        return self.writer.handed_back

    def _hopeless(self) -> bool:
        """The database is gone: what isn't written now is found by the reapers of others."""
        return bool(self.database.away_since) and (self._stop_asked > 1 or self._away_too_long())

    async def _demand_migrated(self, stopping: asyncio.Event) -> None:
        pause = 0.1
        while not stopping.is_set() and not self._away_too_long():
            try:
                [row] = await self._claim.run(named("installed_version", self.settings.schema))
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                demand_migrated(0, self.settings.schema)
            except (psycopg.Error, OSError, NoDatabase) as error:
                if not is_outage(error):
                    raise
                self.database.lost("start", error)
                pause = min(5.0, pause * 2)
                await until(lambda: stopping.is_set() or self._away_too_long(), pause)
            else:
                self.database.answered("start")
                demand_migrated(row.version or 0, self.settings.schema)
                await self._demand_letters()
                return

    async def _demand_letters(self) -> None:
        """Refuse to begin with a kind that this database can't spell: every claim would fail over it."""
        facts = self._claim.facts
        if facts is None or self._spells_all:
            return
        for kind in self.kinds:
            try:
                await self._claim.run(named("spell", self.settings.schema, text=kind))
            except psycopg.errors.UntranslatableCharacter as error:
                raise InvalidOption(
                    f"the kind {kind!r} can't be spelt in this database, whose encoding is {facts.encoding}: "
                    "name the kind in its letters, or use a database in UTF8"
                ) from error

    @property
    def _spells_all(self) -> bool:
        """Whether the database has letters for any text, as far as is known."""
        facts = self._claim.facts
        return facts is None or facts.encoding in ("UTF8", "SQL_ASCII")

    # -- what handlers and operators ask

    def _call_on_dead(self, event: JobDied) -> None:
        handler = self.handlers.get(event.kind)
        if handler is None or handler.on_dead is None:
            return
        hook = handler.on_dead

        def call() -> None:
            try:
                hook(event)
            except BaseException:  # noqa: BLE001 - the user's code, logged; sys.exit() would end the thread of all hooks
                _log.exception(
                    "on_dead of kind %s raised", event.kind, extra={"job_kind": event.kind, "job_id": event.id}
                )

        self._hooks.submit(call)

    def complaints(self) -> str:
        """Say what is wrong with this worker's loops, or what they came upon, in a line; empty while all is well.

        It goes with the beat, whatever was said by whom: a beat that the database refuses would be the worker's death.
        """
        return self._line([*self._troubles(), *(each.remark for each in self._services() if each.remark)])

    def _troubles(self) -> list[str]:
        now = time.monotonic()
        said = [f"{service.name} loop: {service.trouble}" for service in self._services() if service.trouble]
        said += [
            f"{service.name} loop has not turned for {now - service.turned:.0f} s"
            for service in self._services()
            if service.due_by < FOR_EVER and now - service.turned > service.due_by + LATE
        ]
        if self.loop_blocked:
            said.append("the event loop is blocked by a handler")
        said += [f"job {job.id} ({job.kind}) is past its timeout and can't be stopped" for job in self.slots.overdue()]
        return said

    def _line(self, said: list[str]) -> str:
        text = storable(clip(" ".join("; ".join(said).split()), LONGEST_COMPLAINT))
        return text if self._spells_all else ascii_only(text)

    def ailment(self) -> str:
        """Say why this worker should be taken for ill: its loops are, or nobody has heard it of late."""
        return self._line(self._troubles()) or ("" if self.fresh else "the last sign of life is too old")

    def _give_up_on_database(self) -> None:
        if self._away_too_long():
            self.stop()
            self.stop()

    def _away_too_long(self) -> bool:
        limit, since = self.settings.exit_on_db_loss, self.database.away_since
        return bool(limit and since) and time.monotonic() - since >= limit


async def until(condition: Callable[[], bool], seconds: float = float("inf")) -> None:
    """Wait for *condition*, at most *seconds*. Polled: what is waited for changes in other threads too."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:  # noqa: ASYNC110 - see above
        await asyncio.sleep(0.01)


def stop_signals() -> list[signal.Signals]:
    """List the signals that mean the end: a closed terminal says SIGHUP, unless nohup has it ignored."""
    hang_up = getattr(signal, "SIGHUP", None)  # not on Windows
    heard = hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([hang_up] if heard and hang_up else [])]
