"""Claimed jobs run in the slots there are, in their order, and none is kept waiting while others are idle."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from redrive import Queue
from redrive.events import JobOverdue, JobStarted
from redrive.executor import CANCELLED, SHUTDOWN, TIMED_OUT
from redrive.outcome import Died, Failed, Finished, HandedBack, Retried, Succeeded
from redrive.pace import PREFETCH_MOST, STALE_AFTER
from redrive.slots import FORKED, TRIAL, Slots
from support import wait_for
from support_engine import claimed, hearing

NUMBER = itertools.count(1)


def job(kind: str, payload: str = "{}", **columns: Any) -> Any:
    return claimed(kind, payload, id=next(NUMBER), **columns)


def ended(one: Any, seconds: float) -> Finished:
    """A job that has succeeded just now, after so many seconds."""
    one.started = time.monotonic() - seconds
    return Finished(one, Succeeded(), seconds)


class Gate:
    """A sync and an async kind whose jobs stay until they are let go; counts how many are inside at once."""

    def __init__(self, queue: Queue) -> None:
        self.inside = self.most = 0
        self.order: list[Any] = []
        self._open = threading.Event()
        self._lock = threading.Lock()
        queue.handler("sync")(self._sync)
        queue.handler("async")(self._async)

    def open(self) -> None:
        self._open.set()

    def _enter(self, payload: Any) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.order.append(payload)

    def _leave(self) -> None:
        with self._lock:
            self.inside -= 1

    def _sync(self, payload: Any) -> None:
        self._enter(payload)
        self._open.wait(20)
        self._leave()

    async def _async(self, payload: Any) -> None:
        self._enter(payload)
        while not self._open.is_set():  # noqa: ASYNC110 - set from anywhere
            await asyncio.sleep(0.002)
        self._leave()


class Rig:
    """Slots, and what came out of them."""

    def __init__(self, queue: Queue, concurrency: int) -> None:
        self.done: list[Finished] = []
        self.slots = Slots(queue.handlers, concurrency, self.done.append)

    async def until(self, condition: Callable[[], object], seconds: float = 10) -> None:
        await asyncio.to_thread(wait_for, condition, seconds, 0.002)

    async def watch_until(self, condition: Callable[[], object]) -> None:
        """Look for those past their timeout, as the worker's loop does, until *condition* is true."""
        async with asyncio.timeout(10):
            while not condition():
                self.slots.watch()
                await asyncio.sleep(0.002)

    def outcome(self, one: Any) -> Any:
        return next((finished.outcome for finished in self.done if finished.job is one), None)


@pytest.fixture
def queue() -> Queue:
    return Queue("postgresql://nobody@nowhere/none")


@pytest.fixture
def gate(queue: Queue) -> Gate:
    return Gate(queue)


@contextlib.asynccontextmanager
async def rig(queue: Queue, concurrency: int = 4) -> AsyncIterator[Rig]:
    held = Rig(queue, concurrency)
    held.slots.start()
    try:
        yield held
    finally:
        await held.slots.close()


class TestConcurrency:
    @pytest.mark.parametrize("kinds", [["sync"], ["async"], ["sync", "async"], ["async", "async", "sync"]])
    def test_never_more_handlers_run_than_there_are_slots_and_never_fewer(self, queue, gate, kinds):
        async def scenario():
            async with rig(queue, 4) as held:
                held.slots.add(job(kind) for kind, _ in zip(itertools.cycle(kinds), range(30), strict=False))
                await held.until(lambda: gate.inside == 4)
                await asyncio.sleep(0.05)
                assert (gate.most, len(held.slots.running), held.slots.in_flight) == (4, 4, 30)
                gate.open()
                await held.until(lambda: len(held.done) == 30)
                await held.until(lambda: held.slots.empty)
                assert gate.most == 4

        asyncio.run(scenario())

    def test_an_avalanche_of_mixed_jobs_keeps_to_the_slots(self, queue):
        inside, most, lock = 0, 0, threading.Lock()

        def enter(by):
            nonlocal inside, most
            with lock:
                inside += by
                most = max(most, inside)

        @queue.handler("quick")
        def quick():
            enter(1)
            enter(-1)

        @queue.handler("quick_async")
        async def quick_async(payload):
            enter(1)
            await asyncio.sleep(0)
            enter(-1)

        async def scenario():
            async with rig(queue, 3) as held:
                kinds = itertools.cycle(["quick", "quick", "quick_async", "quick", "quick_async"])
                jobs = [job(kind) for kind, _ in zip(kinds, range(3000), strict=False)]
                for start in range(0, 3000, 50):
                    held.slots.add(jobs[start : start + 50])
                    await asyncio.sleep(0)
                await held.until(lambda: len(held.done) == 3000 and held.slots.empty)
                assert {finished.job.id for finished in held.done} == {one.id for one in jobs}

        asyncio.run(scenario())
        assert 1 <= most <= 3

    def test_jobs_begin_in_the_order_in_which_they_were_added(self, queue):
        order = []
        queue.handler("a")(order.append)
        queue.handler("b")(_append_async(order))

        async def scenario():
            async with rig(queue, 1) as held:
                held.slots.add(job("ab"[n % 3 == 0], str(n)) for n in range(50))
                held.slots.add(job("a", str(n)) for n in range(50, 60))
                await held.until(lambda: len(held.done) == 60)

        asyncio.run(scenario())
        assert order == list(range(60))

    def test_handlers_that_never_pause_leave_the_loop_its_breath(self, queue):
        queue.handler("busy")(_append_async([]))

        async def scenario():
            async with rig(queue, 1) as held:
                held.slots.add(job("busy") for _ in range(1000))
                await asyncio.sleep(0)
                assert 0 < len(held.done) < 1000, "another task had its turn in between"
                await held.until(lambda: len(held.done) == 1000)

        asyncio.run(scenario())

    def test_a_start_is_told_once(self, queue, gate):
        gate.open()

        async def scenario():
            async with rig(queue) as held:
                held.slots.add([job("sync"), job("async")])
                await held.until(lambda: len(held.done) == 2)

        with hearing(JobStarted) as heard:
            asyncio.run(scenario())
        assert sorted(event.kind for event in heard) == ["async", "sync"]


def _append_async(order: list[Any]) -> Any:
    async def append(payload):
        order.append(payload)

    return append


def test_the_end_of_one_claim_is_not_that_of_a_later_one_of_the_same_job(queue):
    gates = [threading.Event(), threading.Event()]
    ran: list[int] = []
    ended: list[Finished] = []

    @queue.handler("twice")
    def twice(_payload: Any, job: Any) -> None:
        ran.append(job.attempt)
        gates[len(ran) - 1].wait(10)

    async def main() -> None:
        slots = Slots(queue.worker().handlers, 2, ended.append)
        slots.start()
        for claim in (1, 2):
            slots.add([claimed("twice", id=1, claims=claim)])
            await asyncio.to_thread(wait_for, lambda claim=claim: len(ran) == claim)
        gates[0].set()
        await asyncio.to_thread(wait_for, lambda: ended)
        assert (slots.held(), slots.in_flight) == ([1], 1)
        gates[1].set()
        await asyncio.to_thread(wait_for, lambda: slots.empty)
        await slots.close()

    asyncio.run(asyncio.wait_for(main(), 10))


class TestRoom:
    """How much to claim: the free slots, and about 100 ms of work beyond them (CL-09)."""

    def test_as_long_as_nothing_was_measured_only_the_free_slots_count(self, queue, gate):
        async def scenario():
            async with rig(queue, 4) as held:
                assert held.slots.room() == 4
                held.slots.add(job("async") for _ in range(3))
                assert held.slots.room() == 1
                held.slots.add([job("async")])
                assert held.slots.room() == 0
                gate.open()
                await held.until(lambda: held.slots.empty)

        asyncio.run(scenario())

    @pytest.mark.parametrize(
        ("seconds", "ahead"), [(10.0, 0), (0.2, 2), (0.1, 4), (0.01, 40), (0.001, 400), (0.0, PREFETCH_MOST)]
    )
    def test_what_may_wait_is_about_100_ms_of_work_by_the_kinds_own_duration(self, queue, seconds, ahead):
        """CL-09: nothing is prefetched of a slow kind."""
        queue.handler("k")(lambda: None)
        queue.handler("other")(lambda: None)

        async def scenario():
            async with rig(queue, 4) as held:
                held.slots._end(ended(job("k"), seconds))
                assert held.slots.ahead("k") == pytest.approx(ahead, abs=1)
                assert held.slots.ahead("other") == 0, "not measured yet"
                assert held.slots.room() == 4 + held.slots.ahead("k")
                assert held.slots.ahead("k") <= PREFETCH_MOST

        asyncio.run(scenario())

    def test_of_a_slow_kind_no_more_is_taken_than_slots_are_free_although_others_are_quick(self, queue, gate):
        """CL-09: the usual mixture is quick, so there is room for many; the slow kind's share is what is free."""
        queue.handler("quick")(lambda: None)
        queue.handler("slow")(lambda: None)

        async def scenario():
            async with rig(queue, 4) as held:
                held.slots.add(job("async") for _ in range(3))
                held.slots._end(ended(job("slow"), 10.0))
                for _ in range(200):
                    held.slots._end(ended(job("quick"), 0.0001))
                assert held.slots.room() > 100
                assert held.slots.share("slow") == 1
                assert held.slots.share("quick") > 100
                gate.open()
                await held.until(lambda: held.slots.empty)

        asyncio.run(scenario())

    def test_when_nothing_has_ended_for_a_while_nothing_more_is_prefetched(self, queue, gate):
        async def scenario():
            async with rig(queue, 2) as held:
                held.slots._end(ended(job("async"), 0.001))
                held.slots.add([job("async")])
                await held.until(lambda: gate.inside == 1)
                assert held.slots.room() > 1
                held.slots._pace.last_end -= STALE_AFTER + 0.01
                assert held.slots.room() == 1
                gate.open()
                await held.until(lambda: held.slots.empty)

        asyncio.run(scenario())

    def test_what_did_not_run_is_not_measured(self, queue):
        queue.handler("k")(lambda: None)

        async def scenario():
            async with rig(queue, 4) as held:
                held.slots.add([job("k", expires_in=-1.0)])
                await held.until(lambda: held.done)
                assert held.slots.ahead("k") == 0

        asyncio.run(scenario())


class TestHandingBack:
    def test_what_has_not_begun_can_be_taken_out_and_what_has_stays(self, queue, gate):
        async def scenario():
            async with rig(queue, 2) as held:
                jobs = [job("async") for _ in range(5)]
                held.slots.add(jobs)
                await held.until(lambda: gate.inside == 2)
                assert held.slots.take_unstarted() == jobs[2:]
                assert sorted(held.slots.held()) == [one.id for one in jobs[:2]]
                gate.open()
                await held.until(lambda: held.slots.empty)
                assert [finished.job for finished in held.done] == jobs[:2]

        asyncio.run(scenario())

    def test_what_has_waited_in_vain_goes_back_to_the_others(self, queue, gate):
        """CL-09: the prefetched jobs behind slow ones, while other workers may be idle."""

        async def scenario():
            async with rig(queue, 1) as held:
                jobs = [job("async") for _ in range(3)]
                held.slots.add(jobs)
                await held.until(lambda: gate.inside == 1)
                assert held.slots.take_stale() == []
                held.slots._waiting_since -= STALE_AFTER + 0.01
                held.slots._pace.last_end = time.monotonic()
                assert held.slots.take_stale() == [], "one has just ended: the slot may soon be free"
                held.slots._pace.last_end -= STALE_AFTER + 0.01
                assert held.slots.take_stale() == jobs[1:]
                assert held.slots.take_stale() == []
                gate.open()
                await held.until(lambda: held.slots.empty)

        asyncio.run(scenario())

    def test_a_deadline_that_passes_while_the_job_waits_here_is_kept(self, queue, gate):
        """RB-04."""

        async def scenario():
            async with rig(queue, 1) as held:
                first, second = job("async"), job("sync", expires_in=0.05)
                held.slots.add([first, second])
                await held.until(lambda: gate.inside == 1)
                await asyncio.sleep(0.06)
                gate.open()
                await held.until(lambda: held.outcome(second))
                assert isinstance(held.outcome(second), Died)
                assert len(gate.order) == 1, "it did not begin"

        asyncio.run(scenario())


class TestAlone:
    """A job that may have killed its worker runs with nothing beside it."""

    def test_it_waits_for_the_others_and_lets_none_in_until_it_has_ended(self, queue, gate):
        beside = []

        @queue.handler("suspect")
        async def suspect(payload, job):
            beside.append(set(held.slots.running) - {job.id})
            await asyncio.sleep(0.02)
            beside.append(set(held.slots.running) - {job.id})

        async def scenario():
            nonlocal held
            async with rig(queue, 3) as held:
                held.slots.add([job("async"), job("sync")])
                await held.until(lambda: gate.inside == 2)
                assert not held.slots.settled, "what runs has begun only now"
                gate.open()
                await held.until(lambda: held.slots.settled)
                alone = job("suspect", alone=True)
                held.slots.add_alone(alone)
                assert held.slots.room() == 0
                assert not held.slots.empty
                await held.until(lambda: held.outcome(alone))
                assert held.slots.room() >= 3

        held: Any = None
        asyncio.run(scenario())
        assert beside == [set(), set()]

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_on_an_idle_worker_it_begins_at_once_and_counts_once(self, queue, gate, kind):
        async def scenario():
            async with rig(queue, 3) as held:
                held.slots.add_alone(job(kind, alone=True))
                await held.until(lambda: gate.inside == 1)
                assert (held.slots.in_flight, len(held.slots.held())) == (1, 1)
                assert held.slots.room() == 0
                assert held.slots.take_unstarted() == [], "it has begun"
                gate.open()
                await held.until(lambda: held.slots.empty)
                assert held.slots.room() >= 3

        asyncio.run(scenario())

    def test_what_has_run_as_long_as_a_trial_is_not_in_its_way(self, queue, gate):
        """Else one job of an hour would keep a suspect waiting, and other work with it, for that hour."""

        async def scenario():
            async with rig(queue, 2) as held:
                long = job("async")
                held.slots.add([long])
                await held.until(lambda: gate.inside == 1)
                assert not held.slots.settled
                long.started -= TRIAL
                assert held.slots.settled
                held.slots.add_alone(job("sync", alone=True))
                await held.until(lambda: gate.inside == 2)
                gate.open()
                await held.until(lambda: held.slots.empty)

        asyncio.run(scenario())

    def test_a_trial_is_not_over_before_a_thread_has_begun_it(self, queue, gate):
        """Between its place among the running and the first line of its handler it has no start yet."""

        async def scenario():
            async with rig(queue, 2) as held:
                suspect, acquitted = job("sync", alone=True, reclaims=1), []
                held.slots.on_acquitted = acquitted.append
                held.slots.add_alone(suspect)
                await held.until(lambda: gate.inside == 1)
                began, suspect.started = suspect.started, 0.0
                held.slots.watch()
                assert acquitted == []
                suspect.started = began
                gate.open()
                await held.until(lambda: held.slots.empty)

        asyncio.run(scenario())

    @pytest.mark.parametrize(
        ("reclaims", "crashes", "seconds"),
        [
            (1, 0, 10),
            (2, 0, 40),
            (3, 0, 160),
            (4, 0, 640),
            (5, 0, 2560),
            (60, 0, 3600),
            (3, 2, 10),
            (5, 3, 40),
            (1, 2, 10),
        ],
    )
    def test_after_its_trial_there_is_room_again_though_it_runs_on(self, queue, gate, reclaims, crashes, seconds):
        """A trial that did not see the end of its worker was too short; one in which it crashed was not."""

        async def scenario():
            async with rig(queue, 2) as held:
                suspect, acquitted = job("sync", alone=True, reclaims=reclaims, crashes=crashes), []
                held.slots.on_acquitted = acquitted.append
                held.slots.add_alone(suspect)
                await held.until(lambda: gate.inside == 1)
                suspect.started -= seconds - 2
                held.slots.watch()
                assert (held.slots.room(), acquitted) == (0, [])
                suspect.started -= 3
                held.slots.watch()
                assert (held.slots.room(), acquitted) == (1, [suspect])
                held.slots.watch()
                assert acquitted == [suspect], "once"
                gate.open()
                await held.until(lambda: held.slots.empty)

        asyncio.run(scenario())


class TestStopping:
    def test_an_async_handler_is_cancelled(self, queue):
        @queue.handler("long")
        async def long(payload):
            await asyncio.sleep(30)

        async def scenario():
            async with rig(queue, 1) as held:
                first, second = job("long"), job("long")
                held.slots.add([first, second])
                await held.until(lambda: first.id in held.slots.running)
                held.slots.cancel(first.id)
                await held.until(lambda: held.outcome(first))
                assert isinstance(held.outcome(first), Failed)
                await held.until(lambda: second.id in held.slots.running)
                held.slots.cancel(first.id)
                await asyncio.sleep(0.01)
                assert held.outcome(second) is None, "the cancel of one job is no cancel of the next in its slot"
                held.slots.stop_all()
                await held.until(lambda: held.outcome(second))
                assert held.outcome(second) == HandedBack()

        asyncio.run(scenario())

    def test_a_slot_is_whole_after_a_cancel(self, queue):
        """A cancellation that the handler swallowed, or asyncio.timeout, must not hit the next job."""

        @queue.handler("swallows")
        async def swallows(payload):
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                return "went on"

        @queue.handler("timed")
        async def timed(payload):
            before = asyncio.current_task().cancelling()
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(30)
            except TimeoutError:
                return [before, asyncio.current_task().cancelling()]

        async def scenario():
            async with rig(queue, 1) as held:
                first, second = job("swallows"), job("timed")
                held.slots.add([first, second])
                await held.until(lambda: first.id in held.slots.running)
                held.slots.cancel(first.id)
                await held.until(lambda: held.outcome(second))
                assert isinstance(held.outcome(first), Failed)
                assert held.outcome(second) == Succeeded("[0,0]")

        asyncio.run(scenario())

    def test_a_sync_handler_sees_should_stop(self, queue):
        @queue.handler("looks")
        def looks(payload, job):
            while not job.should_stop:
                time.sleep(0.002)

        async def scenario():
            async with rig(queue, 2) as held:
                cancelled, stopped = job("looks"), job("looks")
                held.slots.add([cancelled, stopped])
                await held.until(lambda: len(held.slots.running) == 2)
                held.slots.cancel(cancelled.id)
                held.slots.tell_all()
                await held.until(lambda: len(held.done) == 2)
                assert isinstance(held.outcome(cancelled), Failed)
                assert held.outcome(stopped) == HandedBack()

        asyncio.run(scenario())

    def test_the_end_of_a_worker_is_no_reason_to_cancel_before_the_grace_is_over(self, queue, gate):
        async def scenario():
            async with rig(queue, 2) as held:
                sync, coroutine = job("sync"), job("async")
                held.slots.add([sync, coroutine])
                await held.until(lambda: gate.inside == 2)
                held.slots.tell_all()
                assert (sync.stop_reason, coroutine.stop_reason) == (SHUTDOWN, SHUTDOWN)
                gate.open()
                await held.until(lambda: len(held.done) == 2)
                assert held.outcome(sync) == held.outcome(coroutine) == Succeeded()

        asyncio.run(scenario())

    def test_a_cancel_of_what_does_not_run_here_is_nothing(self, queue):
        async def scenario():
            async with rig(queue, 1) as held:
                held.slots.cancel(12345)
                assert held.slots.empty

        queue.handler("k")(lambda: None)
        asyncio.run(scenario())


class TestTimeouts:
    """No handler hangs in silence (CR-14)."""

    def test_an_async_handler_past_its_timeout_is_cancelled_and_its_attempt_failed(self, queue):
        @queue.handler("long", timeout=0.05)
        async def long(payload):
            await asyncio.sleep(30)

        async def scenario():
            async with rig(queue, 1) as held:
                one = job("long")
                held.slots.add([one])
                await held.until(lambda: one.id in held.slots.running)
                held.slots.watch()
                assert one.stop_reason == ""
                await held.watch_until(lambda: held.outcome(one))
                assert isinstance(held.outcome(one), Retried)
                assert held.outcome(one).failure.error_type == "TimeoutError"
                assert "0.05 s" in held.outcome(one).failure.message

        with hearing(JobOverdue) as heard:
            asyncio.run(scenario())
        assert [event.timeout for event in heard] == [0.05]

    def test_a_handler_that_swallows_its_cancellation_keeps_its_slot_until_it_ends(self, queue):
        """CR-14: and is cancelled once, not again at every look."""
        cancels = []

        @queue.handler("stubborn", timeout=0.02)
        async def stubborn(payload):
            for _ in range(2):
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    cancels.append(1)
            return "finished after all"

        async def scenario():
            nonlocal release
            release = asyncio.Event()
            async with rig(queue, 1) as held:
                one = job("stubborn")
                held.slots.add([one])
                await held.watch_until(lambda: cancels)
                for _ in range(5):
                    held.slots.watch()
                    await asyncio.sleep(0.005)
                assert held.slots.overdue() == [one]
                assert (held.slots.room(), held.slots.held(), held.done) == (0, [one.id], [])
                release.set()
                await held.until(lambda: held.outcome(one))
                assert isinstance(held.outcome(one), Retried)
                assert held.slots.overdue() == []

        release: Any = None
        with hearing(JobOverdue) as heard:
            asyncio.run(scenario())
        assert (len(cancels), len(heard)) == (1, 1)

    @pytest.mark.parametrize("looks", [True, False])
    def test_a_sync_handler_past_its_timeout_keeps_its_slot_until_it_returns(self, queue, looks):
        """CR-14: a thread can't be stopped; what it did counts, unless it says that it has stopped."""
        release = threading.Event()

        @queue.handler("hangs", timeout=0.02)
        def hangs(payload, job):
            with contextlib.suppress(Exception):
                release.wait(20)
            if looks and job.should_stop:
                return None
            return "done"

        async def scenario():
            async with rig(queue, 1) as held:
                one, two = job("hangs"), job("hangs")
                held.slots.add([one, two])
                await held.until(lambda: one.id in held.slots.running)
                await held.watch_until(held.slots.overdue)
                for _ in range(3):
                    held.slots.watch()
                    await asyncio.sleep(0.005)
                assert held.slots.overdue() == [one]
                assert list(held.slots.running) == [one.id]
                assert held.done == []
                release.set()
                await held.until(lambda: held.outcome(one))
                assert isinstance(held.outcome(one), Retried), "late is failed, whether it looked or not"
                await held.until(lambda: held.outcome(two))

        with hearing(JobOverdue) as heard:
            asyncio.run(scenario())
        assert heard[0].kind == "hangs"

    def test_without_a_timeout_a_job_may_run_for_ever(self, queue, gate):
        """CR-13."""
        queue.handler("endless", timeout=None)(gate._async)

        async def scenario():
            async with rig(queue, 1) as held:
                one = job("endless")
                held.slots.add([one])
                await held.until(lambda: gate.inside == 1)
                one.started -= 10 * 365 * 86_400
                held.slots.watch()
                assert one.stop_reason == ""
                gate.open()
                await held.until(lambda: held.outcome(one) == Succeeded())

        asyncio.run(scenario())

    def test_a_timeout_is_still_one_while_the_worker_stops_but_no_longer_after_a_cancel(self, queue, gate):
        queue.handler("short", timeout=0.01)(gate._sync)

        async def scenario():
            async with rig(queue, 2) as held:
                stopping, cancelled = job("short"), job("short")
                held.slots.add([stopping, cancelled])
                await held.until(lambda: gate.inside == 2)
                held.slots.tell_all()
                held.slots.cancel(cancelled.id)
                await held.watch_until(lambda: stopping.stop_reason == TIMED_OUT)
                assert cancelled.stop_reason == CANCELLED
                gate.open()
                await held.until(lambda: held.slots.empty)

        asyncio.run(scenario())


class TestWhatHandlersLeaveBehind:
    def test_a_cancel_that_comes_after_the_end_does_not_cost_the_slot(self, queue):
        ran, cancelled = [], []

        @queue.handler("late")
        async def late(payload, job):
            slot = asyncio.current_task()
            asyncio.get_running_loop().call_later(0.02, lambda: cancelled.append(slot.cancel()))

        @queue.handler("next")
        async def follows(payload, job):
            ran.append(job.id)

        async def scenario():
            async with rig(queue, 1) as held:
                first, second = job("late"), job("next")
                held.slots.add([first])
                await held.until(lambda: held.outcome(first))
                await held.until(lambda: cancelled)
                held.slots.add([second])
                await held.until(lambda: held.outcome(second))
                assert ran == [second.id]

        asyncio.run(scenario())

    def test_a_slot_that_ends_all_the_same_is_replaced_and_told(self, queue, gate, caplog):
        async def scenario():
            async with rig(queue, 1) as held:
                [task] = held.slots._tasks
                held.slots._next = lambda: 1 / 0
                held.slots.add([job("async")])
                await held.until(task.done)
                del held.slots._next
                gate.open()
                await held.until(lambda: held.slots.empty and held.done)

        asyncio.run(scenario())
        assert "a slot ended and is replaced" in caplog.text

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_a_forked_child_that_returns_runs_nothing_of_its_parents(self, queue, kind, tmp_path):
        log = tmp_path / "ran"

        def forks(payload, job):
            with log.open("a") as file:
                file.write(f"{job.id}\n")
            if payload == 1 and os.fork() == 0:
                return  # the child has forgotten to end

        async def forks_async(payload, job):
            forks(payload, job)

        queue.handler("forks")(forks if kind == "sync" else forks_async)

        async def scenario():
            async with rig(queue, 1) as held:
                held.slots.add([job("forks", "1"), job("forks", "2"), job("forks", "3")])
                await held.until(lambda: len(held.done) == 3)

        asyncio.run(scenario())
        _, status = os.wait()
        assert os.waitstatus_to_exitcode(status) == FORKED
        assert len(log.read_text().split()) == 3
