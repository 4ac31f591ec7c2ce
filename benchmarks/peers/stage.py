"""What one measurement has to itself: a system, a fresh database with its schema, and processes; gone at the end."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psycopg

from benchmarks.peers.catalog import System
from benchmarks.peers.child import Child, Failed
from benchmarks.peers.server import Server, monitor

SESSION = 2
"""Transactions that Postgres counts for a session beside its statements, measured."""

_numbers = itertools.count(1)
_open: set[Stage] = set()


def abort() -> None:
    """End all that runs on any stage, now and from now on; for the end of the run."""
    for each in list(_open):
        each.abort()


@dataclass(frozen=True)
class Ready:
    """A system whose environment is there, and what its adapter says of itself."""

    system: System
    program: list[str]
    info: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The kind of handlers that it is measured with, wherever the scenario leaves that open."""
        return "sync" if "no_async" in self.info else "async"


def meet(system: System, program: list[str], home: Path, scratch: Path) -> Ready:
    """Ask a system's adapter for its settings, versions, and the queries that count its jobs.

    Raises:
        Failed: it did not say.
    """
    said = {"VARIANT": system.variant, "HOME": str(home)}
    child = Child(program, system.adapter, "info", scratch / f"{system.name}-info", said, asked=True)
    try:
        return Ready(system, program, child.answer(60))
    finally:
        child.kill()


class Stage:
    """A system at work on a database of its own.

    Args:
        server: the run's server.
        ready: the system.
        scratch: a folder for the processes' markers and logs.
        kind: async or sync handlers; what the system has by default.
        profile: bench, crash or crash_tuned.
    """

    def __init__(
        self, server: Server, ready: Ready, scratch: Path, home: Path, *, kind: str = "", profile: str = "bench"
    ) -> None:
        self.server = server
        self.ready = ready
        self.name = f"bench_{next(_numbers)}"
        self.children: list[Child] = []
        self.asked = 0
        """Transactions of our own looks at the database, since the last look away."""
        self._held = 0
        self._aborted = False
        self._scratch = scratch / self.name
        self._said = {
            "KIND": kind or ready.kind,
            "PROFILE": profile,
            "VARIANT": ready.system.variant,
            "HOME": str(home),
        }

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self._scratch, ignore_errors=True)
            self._said["DSN"] = self.url = stack.enter_context(self.server.database(self.name))
            stack.callback(self._end)
            _open.add(self)
            self._child("setup").finish(90)
            self.look()
            stack.callback(self._look_no_more)
            self.server.checkpoint()
            self._ends = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def abort(self) -> None:
        """Kill its processes and start no more."""
        self._aborted = True
        for child in list(self.children):
            child.kill()

    def _end(self) -> None:
        _open.discard(self)
        for child in self.children:
            child.kill()

    def _child(self, command: str, *, asked: bool = False, **said: str) -> Child:
        if self._aborted:
            raise Failed("stopped")
        scratch = self._scratch / f"{len(self.children)}-{command}"
        ready = self.ready
        child = Child(ready.program, ready.system.adapter, command, scratch, {**self._said, **said}, asked=asked)
        self.children.append(child)
        return child

    @contextlib.contextmanager
    def producer(self) -> Iterator[Child]:
        """Start a producer that is connected."""
        child = self._child("producer", asked=True)
        child.answer(60)
        yield child
        child.quit()

    def worker(self, handler: str = "noop", *, jobs: int = 0, wait: bool = True) -> Child:
        """Start a worker whose handlers leave a marker after *jobs* of them.

        Raises:
            Failed: it was not ready in time.
        """
        child = self._child("work", HANDLER=handler, JOBS=str(jobs))
        if wait:
            child.demand("ready", 45)
        return child

    def done(self) -> int:
        """Count the jobs that the database has as finished."""
        return int(self._ask(self.ready.info["done"]) or 0)

    def states(self) -> dict[str, int]:
        """Count the jobs by state, in the system's own words."""
        return {str(state): int(count or 0) for state, count in self.monitor.execute(self.ready.info["states"])}

    def analyze(self) -> None:
        """Give the planner what autovacuum would give it within a minute."""
        self.monitor.execute("analyze")

    def facts(self) -> dict[str, float]:
        """Look at what is left in the tables: dead rows, size, and whether autovacuum has been there."""
        dead, analyzed, vacuumed = self.monitor.execute(
            "select coalesce(sum(n_dead_tup), 0)::bigint, coalesce(sum(autoanalyze_count), 0)::bigint,"
            " coalesce(sum(autovacuum_count), 0)::bigint from pg_stat_user_tables"
        ).fetchone() or (0, 0, 0)
        size = self._ask("select pg_database_size(current_database())")
        return {"dead_rows": dead, "autoanalyzes": analyzed, "autovacuums": vacuumed, "database_mb": size / 1e6}

    @contextlib.contextmanager
    def snapshot(self, *, held: bool) -> Iterator[None]:
        """Hold a snapshot in another session meanwhile, so that nothing dead can be vacuumed; or not, as control."""
        if not held:
            yield
            return
        with psycopg.connect(self.url) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("select 1")
            self._held = 1
            yield
            self._held = 0
            connection.rollback()

    def look(self) -> None:
        """Open the session by which we look on."""
        self.monitor = monitor(self.url)
        self.asked = SESSION

    def look_away(self) -> None:
        """Close it and wait for the rest to settle: what a session did is counted exactly once it has ended."""
        self.monitor.close()
        self.server.settle(self.name, keep=self._held)

    def _look_no_more(self) -> None:
        self.monitor.close()  # the one that is open by then

    def _ask(self, query: str) -> Any:
        self.asked += 1
        row = self.monitor.execute(query.encode()).fetchone()
        return row[0] if row else None
