"""Takes jobs from the broker: into the slots by priority, and back out of the broker when they have ended.

A plain success is an acknowledgement. A message that was delivered before may have killed its worker, or have ended
there without a word: the table is asked, and what is not settled comes home and is run with nothing new beside it. So
deaths are counted by the table, as of every job, and not by a count of deliveries, which would be that of all that
waited beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

import psycopg

from redrive.amqp.acknowledgements import Acknowledgements
from redrive.amqp.intake import LOOK_EVERY, Intake
from redrive.amqp.link import PAUSES, Link
from redrive.amqp.names import band
from redrive.amqp.parcel import Parcel, opened
from redrive.amqp.quarantine import Stray
from redrive.amqp.rights import Withheld
from redrive.connections import is_outage
from redrive.errors import NoBroker
from redrive.events import JobSucceeded, emit, heard
from redrive.outcome import Finished, event
from redrive.service import Database, Service
from redrive.words import one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from redrive.amqp.home import Home
    from redrive.amqp.quarantine import Quarantine
    from redrive.job import ClaimedJob, Holder
    from redrive.slots import Slots

HOME_AFTER = 600.0
"""Seconds after which a job that runs on comes home: a broker takes back what is not acknowledged in half an hour."""
GATHER = 0.002
"""The pause in which acknowledgements gather: one for many that follow each other costs as much as one for one."""
SHARE = 10
"""Of so many jobs one is of the last priority that waits, so that it is run too."""
SETTLE_EVERY = 1.0
"""Seconds between two times that the broker is asked whether it has seen the acknowledgements. Should the connection be
lost, the successes since then come home, so that whoever gets their messages finds them settled."""
PATIENCE = 0.005
"""Seconds for which a slot waits for the next job of a more important queue whose last one has just been let go."""
ASK_AGAIN = 5.0
REMEMBERED = 10_000
"""Successes that are remembered, should the broker deliver them once more."""

_log = logging.getLogger("redrive")


class Consumer(Service):
    """One worker's jobs from the broker."""

    name = "broker"

    def __init__(
        self,
        database: Database,
        link: Link,
        slots: Slots,
        home: Home,
        strays: Quarantine,
        *,
        holder: Holder,
        kinds: Sequence[str],
    ) -> None:
        super().__init__(database)
        self.link = link
        self.strays = strays
        strays.on_moved = self._strays_moved
        self._slots = slots
        self._home = home
        self._holder = holder
        self._kinds = kinds
        self._bands: tuple[deque[Parcel], ...] = (deque(), deque(), deque())
        self._suspects: deque[Parcel] = deque()
        self._trials: deque[Parcel] = deque()
        self._ended: deque[Parcel] = deque()
        self._succeeded: deque[Finished] = deque()
        self._held: dict[int, Parcel] = {}
        self.receipts = Acknowledgements(link)
        self._lately: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._intake = Intake(link, slots, kinds)
        self._ask_at = self._look_at = 0.0
        self.on_breakers: Callable[[str, float], object] = lambda _breakers, _began: None
        """Told which breakers were not closed when a job was sent, as JSON, and when it came."""
        self._asked = [0.0, 0.0, 0.0]
        """Since when, of each band, a message was let go and none has come."""
        self._doubtful: list[Finished] = []
        """Successes whose acknowledgement the broker may not have seen."""
        self._settle_at = 0.0
        self._fed = self._misses = 0
        self._closing = False
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._woken = False
        slots.on_free = self._call
        home.on_home = self._came_home

    # -- what ends

    def take(self, finished: Finished) -> None:
        """Take an outcome, from the loop or from a handler's thread: acknowledged, or first written at home."""
        job = finished.job
        here = job.tag is not None and job.tag[0] == self.link.number and self.link.ready
        if here and finished.plain and not (job.kept or job.home or job.homing or job.completed):
            self._succeeded.append(finished)
            self._ended.append(job)
        else:
            self._home.put(finished)
        self._call()

    def _came_home(self, parcels: list[Parcel]) -> None:
        self._ended.extend(parcels)
        self._call()

    def _strays_moved(self, tags: list[tuple[int, int]]) -> None:
        for tag in tags:
            self.receipts.done(tag)
        self._call()

    def held(self) -> list[int]:
        """List the ids of all jobs of which this has a message, or that have come home and are here."""
        return list(self._held)

    @property
    def holds_rows(self) -> bool:
        """Whether a job has come home and has not ended."""
        return any(job.home or job.homing for job in self._held.values())

    async def _acknowledge(self) -> None:
        self._doubtful += [self._succeeded.popleft() for _ in range(len(self._succeeded))]
        while self._ended:
            job = self._ended.popleft()
            self._drop(job)
            if not job.lost:  # else it is not known that anything was written: if it comes again, it is run again
                self._lately[job.id, job.claim] = None
            if self.receipts.done(job.tag):
                self._asked[band(job.priority)] = time.monotonic()
            job.tag = None
        while len(self._lately) > REMEMBERED:
            self._lately.popitem(last=False)
        await self.receipts.send()

    async def settle(self) -> None:
        """Acknowledge what has ended, and count the successes of which the broker knows.

        Raises:
            NoBroker: when it does not answer; they are doubtful still.
        """
        await self._acknowledge()
        batch, self._doubtful = self._doubtful, []
        self._settle_at = time.monotonic() + SETTLE_EVERY
        try:
            await self.link.settle()
        except NoBroker:
            self._doubtful = batch + self._doubtful
            raise
        self._home.tally.succeeded(batch)
        for one in batch if heard(JobSucceeded) else ():
            emit(event(one, "succeeded"))

    # -- what comes

    async def _took(self, channel: int, kind: str, message: Any) -> None:
        here = (channel, message.delivery.delivery_tag)
        if not self.receipts.came(here):
            return  # delivered on a connection that was lost meanwhile: it comes again
        properties, ahead = message.header.properties, self._home.tally.ahead
        try:
            headers, sort = properties.headers or {}, properties.message_type
            parcel = opened(self._holder, int(properties.message_id), sort, message.body, headers, ahead=ahead)
            self._holder_knows(parcel)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"it has no header {error}" if isinstance(error, KeyError) else str(error)
            self.strays.put(Stray(here, kind, message, why))
            return
        if "breakers" in headers:
            self.on_breakers(str(headers["breakers"]), time.monotonic())
        self._asked[band(parcel.priority)] = 0.0
        parcel.tag = here
        if (parcel.id, parcel.claim) in self._lately:
            self._ended.append(parcel)
        elif (mine := self._held.get(parcel.id)) is not None and mine.claim > parcel.claim:
            self._ended.append(parcel)  # a later claim is there, so what became of this one is written
        elif mine is not None and mine.claim == parcel.claim:
            self.receipts.done(mine.tag)  # the relay has sent it again
            mine.tag = here  # of a connection that was lost: what runs here goes on, and this is its message now
        elif parcel.suspect or message.delivery.redelivered or headers.get("x-delivery-count"):
            self._held[parcel.id], parcel.message = parcel, message
            self._suspects.append(parcel)
        else:
            self._held[parcel.id] = parcel
            self._bands[band(parcel.priority)].append(parcel)
        self._call()

    def _holder_knows(self, parcel: Parcel) -> None:
        if parcel.kind not in self._kinds:
            raise ValueError(f"no handler for kind {parcel.kind!r}")

    # -- the loop

    async def tick(self) -> float:
        """Keep the connection, hand jobs to the slots, and let go of what has ended."""
        self._woken = False
        try:
            await self._attend()
        except Withheld:  # of one kind, and told of
            self._lose()
            return 0.0
        except NoBroker as error:
            self._lose()
            if str(error) != self.trouble:
                _log.warning("%s", error)
            self.trouble = str(error)
            self._misses += 1
            return PAUSES[min(self._misses, len(PAUSES)) - 1]
        if self._misses:
            _log.info("the broker at %s answers again", self.link.where)
            self._misses = 0
        self.trouble = self.link.denied.told
        await self._with_postgres(self._judge_suspects)
        await self._with_postgres(self._bring_home)
        more = self._feed()
        waits = any(self._bands) or self._trials or self._suspects
        self._slots.starved = bool(waits)
        return GATHER if self._ended or more else LOOK_EVERY

    async def _attend(self) -> None:
        if not self.link.ready:
            self._lose()
            await self.link.open()
            self.receipts.begin()
            self._intake.lost()
            _log.info("jobs come from the broker at %s", self.link.where)
        await self._acknowledge()
        if time.monotonic() >= self._settle_at:
            await self.settle()
        if not self._closing:
            await self._intake.adjust(self._took)
        if self._intake.full:  # others may have a slot for it
            self._give_home(self._bands)

    def _lose(self) -> None:
        """Forget what has not begun: the broker gives it to others, or once more to this worker, by another channel."""
        self.link.renew()  # whatever was amiss: on this channel a later acknowledgement would be one for these too
        for waiting in (*self._bands, self._suspects, self._trials):
            for parcel in waiting:
                self._drop(parcel)
            waiting.clear()
        for job in self._slots.take_unstarted():
            self._drop(job)
            if getattr(job, "home", False):
                self._home.hand_back([job])
        self.receipts.lose()
        for one in [*self._doubtful, *self._succeeded]:
            self._home.put(one)
        self._doubtful.clear()
        self._succeeded.clear()

    def _drop(self, job: ClaimedJob) -> None:
        """Have it no more in hand; another claim of the same job may be."""
        if self._held.get(job.id) is job:
            del self._held[job.id]

    async def _with_postgres(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do what the table is asked for, unless it did not answer a moment ago: then what needs no table goes on."""
        if time.monotonic() < self._ask_at:
            return
        try:
            await work()
        except Exception as error:
            self._ask_at = time.monotonic() + ASK_AGAIN
            if not is_outage(error):
                raise
            self.database.lost(self.name, error)
        else:
            self.database.answered(self.name)

    async def _judge_suspects(self) -> None:
        if self._suspects:
            await self._ask_at_home()
        if self._trials and self._slots.settled:
            await self._try(self._trials.popleft())

    async def _bring_home(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + HOME_AFTER / 60
        for job in list(self._slots.running.values()):
            if isinstance(job, Parcel) and not job.home and job.started and now - job.started > HOME_AFTER:
                job.homing = True  # should it end now: it comes home then, or is there already
                if await self._home.bring(job):
                    job.home = True
                    await self._release(job)
                else:
                    job.lost = True

    async def _ask_at_home(self) -> None:
        asked = list(self._suspects)
        settled = await self._home.settled(asked)
        for parcel in asked:
            self._suspects.popleft()
            (self._ended if (parcel.id, parcel.claim) in settled else self._trials).append(parcel)

    async def _try(self, parcel: Parcel) -> None:
        """Bring a suspect home, let its message go and run it with nothing new beside it."""
        parcel.suspect = parcel.homing = True
        try:
            came = await self._home.bring(parcel)
        except psycopg.DataError as error:  # no table of this database has room for it
            self._drop(parcel)
            self.strays.put_job(parcel, f"it can't come home: {one_line(str(error))}")
            return
        except BaseException:
            self._trials.append(parcel)
            raise
        if not came:
            self._ended.append(parcel)
            return
        parcel.home = parcel.alone = True
        parcel.message = None  # the job may go to a child process, which can't be given that
        await self._release(parcel)
        self._slots.add_alone(parcel)

    async def _release(self, parcel: Parcel) -> None:
        """Let the message of a job go that is at home, and runs on."""
        tag, parcel.tag = parcel.tag, None
        await self.receipts.release(tag)

    def _feed(self) -> bool:
        """Hand on what there is room for; gives whether to come again at once."""
        if self._closing or (self._trials and time.monotonic() >= self._ask_at):
            return False  # a trial wants the slots to settle
        room = self._slots.room()
        jobs: list[ClaimedJob] = []
        patient = False
        while len(jobs) < room and (first := self._next_band()) is not None:
            patient = first > 0 and time.monotonic() - max(self._asked[:first]) < PATIENCE
            if patient:
                break
            jobs.append(self._bands[first].popleft())
        if jobs:
            self._slots.add(jobs)
        return patient

    def _next_band(self) -> int | None:
        waiting = [place for place, each in enumerate(self._bands) if each]
        if not waiting:
            return None
        self._fed += 1
        return waiting[-1] if self._fed % SHARE == 0 else waiting[0]

    # -- the end

    async def last_words(self) -> None:
        """See to it that the broker knows of every success, or that it is written at home."""
        try:
            await self.settle()
        except NoBroker:
            self._lose()

    async def close(self) -> None:
        """Have no more delivered, and give home what waits here: a message given back would look like a killer's."""
        self._closing = True
        try:
            await self._intake.close()
        except NoBroker:
            self._lose()  # the broker gives to others what waits here; at home as well, it would run twice
            return
        for parcel in (*self._suspects, *self._trials):
            parcel.suspect = True
        self._give_home((*self._bands, self._suspects, self._trials))

    def _give_home(self, places: Iterable[deque[Parcel]]) -> None:
        for waiting in places:
            self._home.hand_back(waiting)
            waiting.clear()

    def _call(self) -> None:
        if self._woken:
            return
        self._woken = True
        if threading.get_ident() == self._thread:
            self.wake()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: a thread outlived its worker
                self._loop.call_soon_threadsafe(self.wake)
