"""What a fault finds when it strikes: the stage, the crew, the ledger, and a way to ask whether all is well again.

All is well when every worker that was left alone meanwhile has run a job of its own kind, enqueued after the fault was
lifted. That is asked of each of them, so one quick worker does not hide a slow one. One whose event loop its own
handler blocks is of no use to anybody, fault or not.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
from collections.abc import Iterator

import psycopg

from chaos.crew import Crew, Slot, ages
from chaos.ledger import Ledger
from chaos.patience import wait_for
from chaos.stage import Stage

HOPELESS = 30.0
"""Seconds after which nobody waits for a recovery any more."""
ECHOES_FROM = 1_000_000_000
"""Where the numbers of these jobs begin, beyond those of all orders."""
ECHO = "INSERT INTO redrive.jobs (kind, payload, priority) VALUES (%s, jsonb_build_object('n', %s::bigint), 0)"
GROWN_UP = 1.5
"""Seconds after its start from which a worker is worth striking."""


class Skipped(Exception):
    """A fault that can't be made here, or that struck nobody, and why."""


class Scene:
    """The run, as faults see it."""

    def __init__(self, stage: Stage, crew: Crew, ledger: Ledger) -> None:
        self.stage, self.crew, self.ledger = stage, crew, ledger
        self._numbers = itertools.count(ECHOES_FROM)
        self._engaged: set[str] = set()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def victim(self, pick: float) -> Iterator[Slot]:
        """Choose a worker that runs and that no other fault strikes now."""
        slot = wait_for(lambda: self._engage(pick), 60)
        try:
            yield slot
        finally:
            self._engaged.discard(slot.name)

    @contextlib.contextmanager
    def cut_off(self, way: str) -> Iterator[None]:
        """Note that whoever comes that way is cut off from the database meanwhile."""
        since = time.monotonic()
        try:
            yield
        finally:
            self.ledger.write("cut off", way=way, since=since)

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """Note that the database is of no use to anybody meanwhile."""
        since = time.monotonic()
        try:
            yield
        finally:
            self.ledger.write("outage", since=since)

    @contextlib.contextmanager
    def complaints(self, pattern: bytes, otherwise: str, beside: int = 0) -> Iterator[None]:
        """Demand that the server's log tells of the fault, more than *beside* times: what nobody noticed struck nobody.

        Raises:
            Skipped: with the word *otherwise*.
        """
        log = self.stage.server.log
        so_far = log.stat().st_size
        yield
        with log.open("rb") as said:
            said.seek(so_far)
            if sum(1 for _ in re.finditer(pattern, said.read())) <= beside:
                raise Skipped(otherwise)

    def coming_by(self, way: str) -> list[Slot]:
        """List the workers that come that way."""
        return [slot for slot in self.crew.up() if slot.way == way]

    def recovered(self, slots: list[Slot], since: float) -> float | None:
        """Give the seconds from *since* until all of *slots* work that were left alone; None where nobody was."""
        asked = {slot.name: (slot, slot.pid) for slot in slots if slot.pid and not slot.frozen}
        if not asked:
            return None
        wait_for(lambda: self._echo(list(asked)), HOPELESS, every=0.1)
        while asked and time.monotonic() < since + HOPELESS:
            asked = {name: (slot, pid) for name, (slot, pid) in asked.items() if self._left_alone(slot, pid)}
            heard = self._heard(list(asked))
            if asked and heard >= set(asked):
                return time.monotonic() - since
            time.sleep(0.02)
        return HOPELESS if asked else None

    def _left_alone(self, slot: Slot, pid: int) -> bool:
        """Tell whether it is the same process still, held up by no fault and no handler that blocks its loop."""
        blocked = self.ledger.under_way(f"worker-{slot.name}", pid, "blocks")
        return slot.pid == pid and not slot.frozen and not blocked

    def _echo(self, names: list[str]) -> bool:
        with contextlib.suppress(psycopg.OperationalError), self.stage.connect() as conn:
            for name in names:
                number = next(self._numbers)
                self.ledger.write("meant", n=[number], road="echo", kind=f"echo.{name}", key=None, rolled_back=False)
                conn.execute(ECHO, [f"echo.{name}", number])
                self.ledger.write("acknowledged", n=[number], road="echo", ids=[])
            return True
        return False

    def _heard(self, names: list[str]) -> set[str]:
        """Of these workers, those that have no echo left to give."""
        kinds = [f"echo.{name}" for name in names]
        query = "SELECT DISTINCT kind FROM redrive.jobs WHERE kind = ANY(%s) AND status IN ('pending', 'running')"
        with contextlib.suppress(psycopg.OperationalError), self.stage.connect() as conn:
            left = {row[0] for row in conn.execute(query, [kinds])}
            return {name for name in names if f"echo.{name}" not in left}
        return set()

    def _engage(self, pick: float) -> Slot | None:
        with self._lock:
            up = [slot for slot in self.crew.up() if slot.name not in self._engaged and ages(slot) > GROWN_UP]
            if not up:
                return None
            slot = up[min(len(up) - 1, int(pick * len(up)))]
            self._engaged.add(slot.name)
            return slot
