"""The claim loop: looks for due jobs, takes as many as there is room for, and falls asleep in the right order.

Falling asleep: after a claim that left room, wait a moment, look again, take the sentry's lock, look once more, then at
growing intervals, since a row may have been inserted before the lock and committed after the last look. Polling is the
truth; a wake-up only ends the pause. Nothing here runs or writes a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING

from redrive.claims import Claims
from redrive.lanes import PATIENCE, Lanes, Plan
from redrive.looks import DEAR
from redrive.mislaid import Mislaid
from redrive.service import Database, Service

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from redrive.connections import Control
    from redrive.job import ClaimedJob, Holder
    from redrive.listener import Listener
    from redrive.slots import Slots

MOMENT = 0.002
"""The pause awake, before the worker begins to fall asleep."""
FLOW = 0.004
"""The pause while every claim finds something: a claim costs the same for one job as for ten."""
LOOKS = (0.0, 0.005, 0.02, 0.08, 0.32)
"""Pauses between the looks after the lock was taken: for rows whose commit was on its way."""
POLLS = (1.0, 2.0)
TOGETHER = 0.001
"""The pause after a slot was freed, in which others may be."""
VAIN_PAUSE = (0.05, 0.1)
VAIN_LOOKS = 3
"""Looks at due jobs that can't be had, since others have locked them, before a worker that runs once leaves them."""
VAIN_MOST = 16
VAIN_STREAM = 1.0
DEAF_POLL = 1.0
DOZE_AGAIN = 12
"""Of this many looks one tries to become sentry again, in case the sentry went without a word."""
SURVEY_EVERY = 0.25
SURVEY_MOST = 0.5
"""Seconds after which of very many lanes those found due are served first: each page costs what all before it did."""
SUSPECT_AFTER = 1.0
TRIAL_LOOK = 0.1
WAKE_EVERY = 0.05
CLAIM_MOST = 1000
BACKLOG_MOST = 2000
"""Outcomes on their way to the database above which no more is claimed: a crash would run all of them again."""
BACKLOG_PAUSE = 0.01
NOT_ALIVE_PAUSE = 0.1
"""While this worker's own heartbeat gets no answer it takes nothing: others would soon take it back."""


class Producer(Service):
    """Claims jobs for the slots of one worker."""

    name = "claim"

    def __init__(
        self,
        database: Database,
        control: Control,
        slots: Slots,
        listener: Listener,
        *,
        holder: Holder,
        kinds: Sequence[str],
        poll: float,
        mislaid: Mislaid,
        alive: Callable[[], bool],
        backlog: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(database)
        self.found: bool | None = None
        """Whether there was anything to take since the last :meth:`ask`; None while that isn't known."""
        self.breaks = 0
        """How often this worker was silent for so long that others may have taken its jobs."""
        self.on_survey: Callable[[str, float], frozenset[str]] = lambda _breakers, _began: frozenset()
        """Told which breakers are not closed, as JSON, and when that was asked; gives their kinds."""
        self.on_batches: Callable[[], object] = lambda: None
        """Told that there is a batch which has not ended."""
        self.admit: Callable[[list[ClaimedJob]], list[ClaimedJob]] = lambda jobs: jobs
        """Asked which of the claimed jobs are to run."""
        self._control = control
        self._slots = slots
        self._listener = listener
        self._claims = Claims(control, holder)
        self._kinds = list(kinds)
        self._poll = poll
        self.mislaid = mislaid
        self._alive = alive
        self._backlog = backlog
        self._lanes = Lanes(kinds)
        self._step = 0
        self._due_at = self._asleep_until = float("inf")
        self._called = False
        """Whether something other than the time has ended the pause."""
        self._survey_at = self._survey_held = 0.0
        self._suspects_since = 0.0
        self._trial_was_last = False
        self._vain = self._vain_rounds = 0
        self._vain_at = 0.0
        self._explained = False
        self._flowing = False
        """Whether the last claim found something: then the next probably will."""
        self._woken = self._freed = False
        self._slots.starved = False
        self._asked = self._question = self._vain_looks = 0
        self._woke_other_at = 0.0
        slots.on_free = self._slot_freed
        self._loop = asyncio.get_running_loop()

    def woken(self) -> None:
        """There may be work: end the pause, or pass it on, since who called may have known an older beat of ours."""
        self._woken = True
        self._call()

    def ask(self) -> None:
        """Look, beginning after this, whether anything is due that this worker could take; ``found`` is the answer."""
        self.found, self._vain_looks = None, 0
        self._asked += 1
        self._call()

    def expect(self, seconds: float) -> None:
        """A job of this worker's kinds is due in *seconds*: don't sleep past it."""
        self._due_at = min(self._due_at, time.monotonic() + seconds)
        if self._due_at < self._asleep_until:
            self._call()

    async def tick(self) -> float:
        """Claim once, after a look where that is cheaper; gives the pause until the next."""
        self._question, called, self._called = self._asked, self._called, False
        if not self._alive() or self._backlog() >= BACKLOG_MOST:
            return BACKLOG_PAUSE if self._alive() else NOT_ALIVE_PAUSE
        await self.mislaid.hand_back()
        if self._trial_is_due():
            return await self._hold_trial()
        if self._freed:  # jobs that began together end together: one claim for all of them
            self._freed = False
            await asyncio.sleep(TOGETHER)
        self._slots.starved = True  # before looking: a slot that is freed in a thread meanwhile wakes this loop
        room = min(CLAIM_MOST, self._slots.room())
        if room <= 0:
            if not self._survey_at:  # what runs here may meet an outage that others have met before
                await self._survey()
            await self._let_another_watch(full=self._woken)
            return self._poll
        self._slots.starved = False
        swept = await self._sweep(room)
        if not swept and not called and time.monotonic() < self._asleep_until < float("inf"):
            return self._rest()
        self._asleep_until = float("inf")
        return await self._look(room - swept) if swept < room else 0.0

    async def _look(self, room: int) -> float:
        if self._woken:
            self._woken = False
            return await self._after_wake_up(room)
        now = time.monotonic()
        # In a flow, and where a look is too dear, claim at once; a claim that finds nothing writes nothing either.
        due = self._lanes.any_rich or self._flowing or now < self._survey_held or self._lanes.asks_limits(now)
        if not due or now >= self._survey_at:
            due = await self._survey() or due
        first = self._trial_is_due()
        jobs = await self._claim(room) if due and not first else []
        if not jobs and self._trial_is_due():
            return await self._hold_trial()
        return await self._pause(jobs, room)

    async def _after_wake_up(self, room: int) -> float:
        """Claim at once. Then the lock is let go, so that writers notify nobody while this worker is awake."""
        self._lanes.limits.arrived()
        if not self._survey_at:  # the very first look: as yet no lane is known but the kinds' own
            await self._survey()
        try:
            jobs = await self._claim(room)
            if not jobs and await self._survey() and not self._trial_is_due():
                jobs = await self._claim(room)
            await asyncio.sleep(0)  # the handlers first
        finally:
            await self._listener.rise()
        if jobs:
            return await self._pause(jobs, room)
        self._step = 0
        if self._trial_is_due():
            return await self._hold_trial()
        await self._answer()
        if self._explained:  # by jobs that a look had found before the word of them arrived
            self._explained = False
            return MOMENT
        await self._wake_other(other_kinds=True)
        return self._stay_up()

    async def _answer(self) -> None:
        """Nothing was found: tell who asked, once a look at all lanes agrees or others hold what is there."""
        lanes = self._lanes
        held = lanes.limits.next_at(lanes.due_kinds(), broken=False) < float("inf")  # an outage is not waited for
        if self.found is None and self._question == self._asked and not held:
            self._vain_looks += 1
            if not await self._survey() or self._vain_looks > VAIN_LOOKS:
                self.found = False

    def _stay_up(self) -> float:
        """Woken for nothing: a delayed job, a kind that only others know. Look now and then instead of sleeping.

        Off the lock, so that a stream of those doesn't make every writer notify; the longer it lasts, the longer.
        """
        now = time.monotonic()
        stream = now - self._vain_at < VAIN_STREAM
        self._vain_rounds = min(VAIN_MOST, 4 * self._vain_rounds) if stream and self._vain_rounds else 1
        self._vain_at, self._vain = now, self._vain_rounds
        return random.uniform(*VAIN_PAUSE)

    async def _pause(self, jobs: Sequence[ClaimedJob], room: int) -> float:
        flowing, self._flowing = self._flowing, bool(jobs)
        if jobs:
            self.found = True
        else:
            await self._answer()
        if len(jobs) >= room:
            self._step = 0
            if self._slots.room() <= 0 or self._listener.sentry:
                await self._let_another_watch(full=True)
            return 0.0
        if jobs:
            self._step = self._vain = 0
            self._explained = True
            return FLOW if flowing else MOMENT
        if self._vain > 0:
            self._vain, self._vain_at = self._vain - 1, time.monotonic()
            return random.uniform(*VAIN_PAUSE)
        return await self._fall_asleep()

    async def _fall_asleep(self) -> float:
        step, self._step = self._step, self._step + 1
        if self._slots.free:
            self._due_at = min(self._due_at, self._lanes.limits.next_at(self._lanes.due_kinds()))
        if step % DOZE_AGAIN == 0:
            await self._listener.doze()
        looks = LOOKS if self._listener.hears else ()
        now = time.monotonic()
        if step < len(looks):
            return min(looks[step], max(0.0, self._due_at - now))
        polls = [poll for poll in POLLS if poll < self._poll]
        number = step - len(looks)
        pause = polls[number] if number < len(polls) else self._poll
        if not self._listener.hears:
            pause = min(DEAF_POLL, self._poll)
        self._asleep_until = min(now + pause * random.uniform(1.0, 1.15), self._due_at)
        return self._rest()

    def _rest(self) -> float:
        """Give the pause of a worker that is asleep: until the next poll, or the next look at what lies behind."""
        until = self._asleep_until if self._lanes.heads_are_cheap else min(self._asleep_until, self._lanes.swept_until)
        return max(0.0, until - time.monotonic())

    async def _survey(self) -> bool:
        more, due, from_heads = True, False, self._lanes.heads_are_cheap
        await self._control.ready()  # to open it is not to be counted
        first = time.monotonic()
        while more and not (due and time.monotonic() - first > SURVEY_MOST):
            began = time.monotonic()
            rows = await self._claims.survey(self._lanes.look())
            now = time.monotonic()
            took = now - began
            due, due_in, suspects, more, batches = self._lanes.surveyed(rows, took, now)
            self._lanes.limits.broken = self.on_survey(self._lanes.limits.breakers, began)
        if batches:
            self.on_batches()
        self._survey_held = now + (took * PATIENCE if took > DEAR and not from_heads else 0.0)
        self._survey_at = max(self._survey_held, now + SURVEY_EVERY)
        self._due_at = now + due_in
        self._suspects_since = (self._suspects_since or now) if suspects else 0.0
        return due

    async def _claim(self, room: int) -> list[ClaimedJob]:
        self._trial_was_last = False
        jobs: list[ClaimedJob] = []
        plan = self._lanes.plan(room, self._slots.share, time.monotonic())
        if plan.lanes:
            jobs = await self._take_planned(plan, self._lanes.claimed)
        if len(jobs) < room and self._lanes.asks_limits(now := time.monotonic()):
            self._slots.starved = True  # before looking: the next that is freed is to wake this loop
            free = self._slots.free  # what is counted as running, and as started, is not to wait here
            if free > 0:
                self._slots.starved = False
                plan = self._lanes.plan(min(free, room - len(jobs)), lambda _kind: free, now, limited=True)
                jobs += await self._take_planned(plan, self._lanes.claimed) if plan.lanes else []
        return jobs

    async def _sweep(self, room: int) -> int:
        """Look through a piece of the way behind, where that is due; gives how many jobs it brought."""
        plan = self._lanes.sweep(room, self._slots.share, time.monotonic())
        if plan is None:
            return 0
        jobs = await self._take_planned(plan, self._lanes.swept)
        self.found = bool(jobs) or self.found
        return len(jobs)

    async def _take_planned(
        self, plan: Plan, learn: Callable[[Plan, list[ClaimedJob], float, float], list[ClaimedJob]]
    ) -> list[ClaimedJob]:
        began = time.monotonic()
        if plan.limited:
            kinds = sorted({lane.kind for lane in plan.lanes})
            jobs = await self._take(self._claims.limited(kinds, **plan.params()))
        else:
            jobs = await self._take(self._claims.due(**plan.params()))
        now = time.monotonic()
        self._slots.add(self.admit(learn(plan, jobs, now - began, now)))
        return jobs

    def _trial_is_due(self) -> bool:
        """Whether it is the turn of a job that may have killed its worker: at once where nothing runs, else soon.

        Turn and turn about with the other jobs, however many there are to be tried.
        """
        waited = time.monotonic() - self._suspects_since > SUSPECT_AFTER or self._slots.empty
        room = len(self._slots.running) < self._slots.concurrency
        return bool(self._suspects_since) and waited and room and not self._trial_was_last

    async def _hold_trial(self) -> float:
        """Claim a suspect once nothing fresh runs here; until then claim nothing else, so that this comes soon."""
        if not self._slots.settled:
            if time.monotonic() >= self._survey_at + SUSPECT_AFTER:
                await self._survey()  # another worker may have taken it
            return TRIAL_LOOK
        jobs = await self._take(self._claims.alone(self._kinds))
        if jobs:
            self._trial_was_last, self.found = True, True
            self._slots.add_alone(jobs[0])
        else:
            self._suspects_since = 0.0
        return 0.0

    async def _take(self, claim: Awaitable[list[ClaimedJob]]) -> list[ClaimedJob]:
        doubt, breaks = self.mislaid.in_doubt, self.breaks
        self.mislaid.in_doubt = True
        jobs = await claim
        if breaks != self.breaks:  # others may have them by now: what is still ours goes back with the next turn
            self._call()
            return []
        self.mislaid.in_doubt = doubt  # of an earlier claim of this turn, of which this answer says nothing
        return jobs

    def reconsider(self) -> None:
        """What may be claimed has changed: look anew."""
        self._survey_at = 0.0
        self._call()

    def ended(self, kinds: Iterable[str]) -> None:
        """Jobs of *kinds* have ended, and it is written: where that made room under a limit, look at once."""
        if self._lanes.limits and self._lanes.limits.freed(kinds):
            self._call()

    async def _let_another_watch(self, *, full: bool = False) -> None:
        """A sentry without room would be woken for nothing: let go of the lock, and wake one that may take it."""
        await self._listener.rise()
        if full or self._listener.watched:
            await self._wake_other(other_kinds=False)

    async def _wake_other(self, *, other_kinds: bool) -> None:
        """There is more than this worker can take, or something that it can't: wake one other that sleeps."""
        now = time.monotonic()
        sure = self._listener.watched and not other_kinds  # nobody else watches, so a job may wait for that
        if not self._listener.hears or (now - self._woke_other_at < WAKE_EVERY and not sure):
            return
        self._woke_other_at = now
        await self._listener.wake_another(kinds=self._kinds, other_kinds=other_kinds)

    def _call(self) -> None:
        self._called = True
        self.wake()

    def _slot_freed(self) -> None:
        # Called for every job, from the loop and from threads.
        if self._slots.starved and self._slots.room() > 0:
            self._slots.starved = False
            self._freed = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: a thread outlived its worker
                self._loop.call_soon_threadsafe(self._call)
