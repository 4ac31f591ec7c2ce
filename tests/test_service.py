"""One loop for every part of a worker: no error ends it, none makes it spin, an outage of the database is one line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from redrive.errors import NoDatabase
from redrive.events import ConnectionLost, ConnectionRestored, TickFailed
from redrive.service import FOR_EVER, LONGEST_PAUSE, Database, Service
from support_engine import hearing


class Scripted(Service):
    """Does what the script says, an entry a round: an error to raise, or a pause to ask for."""

    name = "scripted"

    def __init__(self, script: Iterator[Any], database: Database | None = None, name: str = "scripted") -> None:
        super().__init__(database or Database("here:1:abcdef"))
        self.name = name
        self.script = script
        self.rounds: list[float] = []

    async def tick(self) -> float:
        self.rounds.append(time.monotonic())
        step = next(self.script)
        if isinstance(step, BaseException):
            raise step
        return step


def turn(service: Scripted, rounds: int, seconds: float = 10) -> list[Any]:
    """Let *service* turn so many rounds and give the events that it made."""

    async def scenario() -> None:
        stopping = asyncio.Event()
        turning = asyncio.create_task(service.run(stopping))
        await until(lambda: len(service.rounds) >= rounds, seconds)
        stopping.set()
        service.wake()
        await turning

    with hearing() as heard:
        asyncio.run(scenario())
    return heard


async def until(condition: Callable[[], object], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - whatever it is, nothing tells of it
            await asyncio.sleep(0.005)


def outage() -> psycopg.Error:
    return psycopg.OperationalError("server closed the connection unexpectedly\n")


class TestRounds:
    @pytest.mark.parametrize(
        "error", [ValueError("bug"), outage(), NoDatabase(), TimeoutError(), KeyError("x")], ids=repr
    )
    def test_no_error_ends_the_loop(self, error):
        """CN-07."""
        turn(Scripted(iter([error, 0.0, error, 0.0, FOR_EVER])), 5)

    def test_an_error_that_stays_is_told_once_and_does_not_make_it_spin(self):
        """CN-07: at most a handful of rounds a second, and ever fewer."""
        service = Scripted(iter([ValueError("the same")] * 100))
        heard = turn(service, 4)
        assert [(type(event), event.error) for event in heard] == [(TickFailed, "ValueError: the same")]
        pauses = [later - earlier for earlier, later in zip(service.rounds, service.rounds[1:], strict=False)]
        assert pauses[0] > 0.1
        assert pauses == sorted(pauses)
        assert service.trouble == "ValueError: the same"

    def test_the_pause_grows_to_a_limit(self):
        service = Scripted(iter([]))
        pauses = [service._failed(ValueError(str(n))) for n in range(2000)]
        assert 0.7 * LONGEST_PAUSE <= pauses[-1] <= LONGEST_PAUSE

    def test_another_error_is_another_line(self):
        heard = turn(Scripted(iter([ValueError("a"), ValueError("b"), ValueError("b"), 0.0, FOR_EVER])), 4)
        assert [event.error for event in heard] == ["ValueError: a", "ValueError: b"]

    def test_a_collision_is_tried_again_at_once_and_only_told_when_it_stays(self):
        """CL-05, CL-11: serialization failures and deadlocks are business as usual."""
        errors = [psycopg.errors.SerializationFailure("x"), psycopg.errors.DeadlockDetected("y")]
        assert turn(Scripted(iter([*errors, 0.0, FOR_EVER])), 3) == []
        heard = turn(Scripted(iter([psycopg.errors.DeadlockDetected("y")] * 10)), 5)
        assert [type(event) for event in heard] == [TickFailed]

    def test_trouble_is_over_with_the_first_good_round(self):
        service = Scripted(iter([ValueError("a"), 0.0, FOR_EVER]))
        turn(service, 3)
        assert service.trouble == ""
        assert service.due_by == FOR_EVER

    def test_a_wake_up_ends_the_pause_and_one_during_a_round_is_not_lost(self):
        async def scenario() -> int:
            service = Scripted(iter([FOR_EVER] * 5))
            tick = service.tick

            async def woken_meanwhile() -> float:
                pause = await tick()
                if len(service.rounds) == 1:
                    service.wake()
                return pause

            service.tick = woken_meanwhile
            stopping = asyncio.Event()
            turning = asyncio.create_task(service.run(stopping))
            await until(lambda: len(service.rounds) == 2)
            service.wake()
            await until(lambda: len(service.rounds) == 3)
            stopping.set()
            service.wake()
            await turning
            return len(service.rounds)

        assert asyncio.run(scenario()) == 3

    def test_a_cancellation_ends_it(self):
        async def scenario() -> None:
            service = Scripted(iter([FOR_EVER]))
            turning = asyncio.create_task(service.run(asyncio.Event()))
            await until(lambda: service.rounds)
            turning.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turning

        asyncio.run(scenario())


class TestDatabase:
    def test_an_outage_is_one_line_when_it_begins_and_one_when_all_are_answered_again(self):
        database = Database("here:1:abcdef")
        services = [Scripted(iter([outage()] * 3 + [0.0, FOR_EVER]), database, name) for name in ("claim", "writer")]

        async def scenario() -> None:
            stopping = asyncio.Event()
            turning = [asyncio.create_task(service.run(stopping)) for service in services]
            await until(lambda: database.away_since)
            await until(lambda: all(len(service.rounds) >= 5 for service in services), 20)
            stopping.set()
            for service in services:
                service.wake()
            await asyncio.gather(*turning)

        with hearing() as heard:
            asyncio.run(scenario())
        assert [type(event) for event in heard] == [ConnectionLost, ConnectionRestored]
        assert heard[0].what == "claim"
        assert heard[1].away > 0
        assert database.away_since == 0.0

    def test_the_first_part_that_is_answered_wakes_those_that_still_wait(self):
        """After a long outage nobody waits his whole pause: recovery is as quick as the quickest."""
        database = Database("here:1:abcdef")
        patient = Scripted(iter([outage(), 0.0, FOR_EVER]), database, "patient")
        patient.longest_pause, patient._failures = FOR_EVER, 100
        first = Scripted(iter([outage(), 0.0, FOR_EVER]), database, "first")

        async def scenario() -> None:
            stopping = asyncio.Event()
            turning = [asyncio.create_task(service.run(stopping)) for service in (patient, first)]
            async with asyncio.timeout(20):
                while len(patient.rounds) < 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            stopping.set()
            for service in (patient, first):
                service.wake()
            await asyncio.gather(*turning)

        asyncio.run(scenario())
        assert database.away_since == 0.0
