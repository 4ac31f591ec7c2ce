"""The load: single enqueues at a steady pace, commits that come late, and transactions that hold the horizon."""

from __future__ import annotations

import random
import threading
import time
from array import array
from collections.abc import Callable

import psycopg

KINDS = {"mail": 1, "hook": 5, "export": 9}
"""Each with its priority."""
FAILS = 0.03
"""The part of the jobs that fail the first time."""
LATE = (0.5, 3.0)
"""Seconds between a late INSERT and its COMMIT."""
PRODUCERS = 16
"""So many that a commit of 20 ms is no limit."""
PACE = 0.02
PLAIN = '{"to": "someone@example.com"}'
FAILING = '{"to": "someone@example.com", "fails": true}'
LATECOMERS = 4
HOLDERS = 3


class Load:
    """Threads that give the database work until they are told to stop.

    Args:
        dsn: the database.
        rate: jobs a second, the late ones come on top.
        hold: seconds for which each long transaction is open.
    """

    def __init__(self, dsn: str, rate: float, hold: float) -> None:
        self.error: BaseException | None = None
        self.late: dict[int, float] = {}
        """When a job's INSERT was committed, by time.time(), of those that were committed late."""
        self.seconds = 0.0
        """How long it lasted."""
        self._began = 0.0
        self._dsn, self._rate, self._hold = dsn, rate, hold
        self._given = [array("q") for _ in range(PRODUCERS)]
        self._over, self._released = threading.Event(), threading.Event()
        self._turns = [threading.Thread(target=self._turn, args=(self._produce, part)) for part in range(PRODUCERS)]
        self._turns += [threading.Thread(target=self._turn, args=(self._come_late, 0)) for _ in range(LATECOMERS)]
        self._holders = [threading.Thread(target=self._turn, args=(self._pin, n)) for n in range(HOLDERS)]

    def start(self) -> None:
        """Begin; the long transactions come first."""
        self._began = time.monotonic()
        for thread in (*self._holders, *self._turns):
            thread.start()

    def stop(self) -> None:
        """Give no more work; the horizon stays held."""
        self._over.set()
        self.seconds = self.seconds or time.monotonic() - self._began
        for thread in self._turns:
            thread.join()

    def release(self) -> None:
        """End the long transactions."""
        self._released.set()
        for thread in self._holders:
            thread.join()

    @property
    def committed(self) -> set[int]:
        """The ids of all jobs whose INSERT was committed; complete once it has stopped."""
        return set(self.late).union(*self._given)

    @property
    def count(self) -> int:
        """How many jobs were committed so far."""
        return len(self.late) + sum(map(len, self._given))

    def _turn(self, work: Callable[[int], None], part: int) -> None:
        try:
            work(part)
        except BaseException as error:  # noqa: BLE001 - told by whoever watches
            self.error = self.error or error
            self._over.set()

    def _produce(self, part: int) -> None:
        # By hand and not by enqueue(): whoever makes the load shares the machine with the worker that is watched.
        insert = "INSERT INTO redrive.jobs (kind, priority, payload) VALUES (%s, %s, %s::jsonb) RETURNING id"
        ids, chance = self._given[part], random.Random(part)
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            while not self._over.wait(PACE):
                due = (time.monotonic() - self._began) * self._rate / PRODUCERS
                while len(ids) < due and not self._over.is_set():
                    kind = chance.choice(list(KINDS))
                    payload = FAILING if chance.random() < FAILS else PLAIN
                    [(job,)] = conn.execute(insert, [kind, KINDS[kind], payload])
                    ids.append(job)

    def _come_late(self, _: int) -> None:
        insert = (
            "INSERT INTO redrive.jobs (kind, priority) SELECT k, p FROM unnest(%s::text[], %s::int[]) AS u(k, p)"
            " RETURNING id"
        )
        with psycopg.connect(self._dsn) as conn:
            while not self._over.is_set():
                rows = conn.execute(insert, [list(KINDS), list(KINDS.values())]).fetchall()
                self._over.wait(random.uniform(*LATE))
                conn.commit()
                self.late |= dict.fromkeys((row[0] for row in rows), time.time())

    def _pin(self, number: int) -> None:
        with psycopg.connect(self._dsn) as conn:
            conn.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            pause = self._hold * (number + 1) / HOLDERS  # so that one is always well in its course when another ends
            while not self._released.is_set():
                conn.execute("SELECT count(*) FROM redrive.workers")
                self._released.wait(pause)
                conn.commit()
                pause = self._hold
