"""The run: every system in turn, round by round, so that a slow minute of the machine hits all of them alike.

A system that fails is reported and the others go on. Nothing waits without an end.
"""

from __future__ import annotations

import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import psycopg

from benchmarks.peers import machine, stage
from benchmarks.peers.bench import Bench, NotApplicable, Run
from benchmarks.peers.child import Failed
from benchmarks.peers.results import Results
from benchmarks.peers.scenarios import Scenario
from benchmarks.peers.stage import Ready

LOOK = 1.0


@dataclass(frozen=True)
class Patience:
    """What is done about load that isn't ours. In cores, and seconds."""

    quiet: float = 0.15
    """A measurement begins once the rest of the machine uses less than this, or when `wait` is over."""
    wait: float = 20.0
    noisy: float = 0.25
    """A measurement beside more than this is noisy, and made again."""
    retries: int = 1


@dataclass(frozen=True)
class Measurement:
    """One to make."""

    scenario: Scenario
    ready: Ready
    number: int

    @property
    def label(self) -> str:
        """Its name in the progress."""
        return f"{self.scenario.name} {self.ready.system.name} #{self.number}"


class Rounds:
    """All measurements of a run."""

    def __init__(
        self, bench: Bench, results: Results, patience: Patience, say: Callable[[str], None] | None = None
    ) -> None:
        self._bench, self._results, self._patience = bench, results, patience
        self._say = say or _print
        self._took: dict[tuple[str, str], list[float]] = {}
        self._given_up: set[tuple[str, str]] = set()
        self._stopped = False

    def plan(
        self, scenarios: Sequence[Scenario], systems: Sequence[Ready], repeat: int, repeat_long: int
    ) -> list[Measurement]:
        """List what is missing yet, in the order of measuring."""
        plan = []
        for scenario in scenarios:
            for number in range(repeat_long if scenario.long else repeat):
                turn = number % max(1, len(systems))  # another one begins each round
                for ready in [*systems[turn:], *systems[:turn]]:
                    have = len(self._results.runs(scenario.name, ready.system.name))
                    if number < have or (ready.system.only and scenario.name not in ready.system.only):
                        continue
                    plan.append(Measurement(scenario, ready, number + 1))
        return plan

    def run(self, plan: Sequence[Measurement]) -> None:
        """Make all measurements of *plan*."""
        left = list(plan)
        while left:
            first = left[0]
            batch = [first]
            if first.scenario.together:
                batch = [each for each in left if (each.scenario, each.number) == (first.scenario, first.number)]
            left = left[len(batch) :]
            self._say(f"{first.label if len(batch) == 1 else first.scenario.name}: {self._left(batch, left)}")
            if first.scenario.together:
                self._together(batch)
            else:
                self._in_turn(first)

    def _in_turn(self, each: Measurement) -> None:
        if (each.scenario.name, each.ready.system.name) in self._given_up:
            return
        for attempt in range(self._patience.retries + 1):
            self._wait_until_quiet()
            with_load = _Load(self._bench)
            measured = self._measured(each)
            if measured is None:
                return
            run = measured | with_load.told(self._patience.noisy)
            if not run["noisy"] or attempt == self._patience.retries:
                self._note(each, run)
                return
            self._say(f"{each.label}: noisy ({run['foreign_cpu_cores']:.2f} cores used by others), made again")

    def _together(self, batch: Sequence[Measurement]) -> None:
        with_load = _Load(self._bench)
        waiting: list[tuple[Measurement, Future[Run | None]]] = []
        with ThreadPoolExecutor(len(batch)) as pool:
            try:
                for each in batch:
                    waiting.append((each, pool.submit(self._measured, each)))
                    time.sleep(1.0)  # they start processes: one after the other
                done = [(each, future.result()) for each, future in waiting]
            except BaseException:
                self._stopped = True
                stage.abort()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        load = with_load.told(self._patience.noisy)
        for each, run in done:
            if run is not None:
                self._note(each, run | load)

    def _measured(self, each: Measurement) -> Run | None:
        begin = time.monotonic()
        key = (each.scenario.name, each.ready.system.name)
        try:
            run = each.scenario.run(self._bench, each.ready)
        except NotApplicable as error:
            reason = str(error)
        except (Failed, psycopg.Error, OSError) as error:
            reason = str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
            if not self._stopped:
                self._say(f"{each.label}: FAILED: {reason}")
        except Exception as error:  # noqa: BLE001 - a peer that fails in a new way must not end the run of the others
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}"
        else:
            self._took.setdefault(key, []).append(time.monotonic() - begin)
            return run
        if self._stopped:  # that was us
            return None
        self._given_up.add(key)
        self._results.give_up(*key, reason)
        return None

    def _note(self, each: Measurement, run: Run) -> None:
        figure = run.get(each.scenario.figure)
        said = "none" if figure is None else f"{figure:,.1f} {each.scenario.unit}"
        self._say(f"{each.label}: {said}")
        self._results.add(each.scenario.name, each.ready.system.name, run)

    def _wait_until_quiet(self) -> None:
        if self._patience.wait <= 0:
            return
        for _ in machine.moments(time.time() + self._patience.wait, 1.0):
            load = _Load(self._bench)
            time.sleep(LOOK)
            if load.cores() <= self._patience.quiet:
                return

    def _left(self, batch: Sequence[Measurement], left: Sequence[Measurement]) -> str:
        seconds = self._guess(batch[0])
        groups: set[tuple[str, int]] = set()
        for each in left:
            if each.scenario.together:
                group = (each.scenario.name, each.number)
                seconds += 0 if group in groups else self._guess(each)
                groups.add(group)
            else:
                seconds += self._guess(each)
        return f"{len(batch) + len(left)} left, about {seconds / 60:.0f} min"

    def _guess(self, each: Measurement) -> float:
        """Say how long it will take: as before, or as others took, or as the scenario says."""
        key = (each.scenario.name, each.ready.system.name)
        if key in self._given_up:
            return 0.0
        if key in self._took:
            return statistics.fmean(self._took[key]) + LOOK
        others = [took for (name, _), all_took in self._took.items() if name == each.scenario.name for took in all_took]
        return (statistics.fmean(others) if others else each.scenario.seconds * self._bench.scale.pace) + LOOK


class _Load:
    """The load of the machine that isn't ours, from now on."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._begin = time.time()
        self._before = self._look()

    def _look(self) -> tuple[float, float, float]:
        return *machine.machine_seconds(), machine.own_seconds([self._bench.server.pid])

    def cores(self) -> float:
        """Say how many cores others used."""
        now, before = self._look(), self._before
        foreign = (now[0] - before[0]) - (now[2] - before[2])
        return max(0.0, foreign) / max(0.001, time.time() - self._begin)

    def told(self, noisy: float) -> Run:
        """Give it for the record of a run."""
        cores, took = self.cores(), time.time() - self._begin
        return {
            "foreign_cpu_cores": round(cores, 3),
            "stolen_cpu_s": round(self._look()[1] - self._before[1], 2),
            "noisy": cores > noisy,
            "took_s": round(took, 1),
            "at": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        }


def _print(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stderr.flush()
