"""What is measured, in which order, and which of its numbers is the figure that is compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.peers import crashes, drains, pickup
from benchmarks.peers.bench import Bench, NotApplicable, Run
from benchmarks.peers.stage import Ready


@dataclass(frozen=True)
class Scenario:
    """One thing to measure."""

    name: str
    what: str
    measure: Callable[[Bench, Ready], Run]
    figure: str
    unit: str
    seconds: float
    """Roughly, for one system: until it is known better."""
    higher: bool = True
    """Whether more is better."""
    long: bool = False
    """Whether it is measured --repeat-long times and not --repeat times."""
    together: bool = False
    """Whether all systems are measured at the same time, each on its database: they sleep."""
    lacks: str = ""
    """What an adapter says under this name is why the system can't be measured."""

    def run(self, bench: Bench, ready: Ready) -> Run:
        """Measure once.

        Raises:
            NotApplicable: the system has no such thing.
            Failed: it did not do what was asked.
        """
        if reason := ready.info.get(self.lacks):
            raise NotApplicable(str(reason))
        return self.measure(bench, ready)


_TABLE = (
    Scenario(
        "enqueue_single",
        "jobs enqueued one after the other by one producer, each its own commit",
        drains.enqueue_single,
        "per_s",
        "jobs/s",
        8,
    ),
    Scenario(
        "enqueue_bulk",
        "jobs enqueued by the fastest documented call, some seconds' worth",
        drains.enqueue_bulk,
        "per_s",
        "jobs/s",
        9,
    ),
    Scenario(
        "drain_async",
        "waiting jobs run by one worker process with no-op async handlers; the table analyzed after the preload",
        drains.drain_async,
        "per_s",
        "jobs/s",
        14,
        lacks="no_async",
    ),
    Scenario(
        "drain_async_never_analyzed",
        "the same on a table that was never analyzed (tutorial: its sync handlers)",
        drains.drain_async_never_analyzed,
        "per_s",
        "jobs/s",
        14,
    ),
    Scenario(
        "drain_sync",
        "the same as drain_async with no-op sync handlers",
        drains.drain_sync,
        "per_s",
        "jobs/s",
        14,
        lacks="no_sync",
    ),
    Scenario(
        "latency",
        "from just before an enqueue to the handler's start, idle worker, a job each 25 ms",
        pickup.latency,
        "p50_ms",
        "ms, median of the jobs",
        13,
        higher=False,
    ),
    Scenario(
        "idle",
        "transactions of a worker that has nothing to do",
        pickup.idle,
        "transactions_per_s",
        "transactions/s",
        32,
        higher=False,
        long=True,
    ),
    Scenario(
        "sustained",
        "a steady rate in groups, 20 a second; a lower rate where it was not kept",
        pickup.sustained,
        "p99_ms",
        "ms, 99th percentile",
        30,
        higher=False,
        long=True,
    ),
    Scenario(
        "horizon",
        "the highest rate kept, while another session holds a snapshot from before the start: first 10 s against last",
        pickup.horizon,
        "growth_p50",
        "times",
        72,
        higher=False,
        long=True,
    ),
    Scenario(
        "horizon_control",
        "the same with no snapshot held",
        pickup.horizon_control,
        "growth_p50",
        "times",
        72,
        higher=False,
        long=True,
    ),
    Scenario(
        "churn",
        "jobs fed and run while a snapshot is held, then pick-up and a drain on what that left",
        drains.churn,
        "drain_after_per_s",
        "jobs/s",
        75,
        long=True,
    ),
    Scenario(
        "churn_control",
        "the same with no snapshot held",
        drains.churn_control,
        "drain_after_per_s",
        "jobs/s",
        75,
        long=True,
    ),
    Scenario(
        "crash",
        "20 jobs of 1 s, five at a time, the worker killed after 1.5 s, defaults: until all have run and are recorded",
        crashes.crash,
        "recovered_s",
        "s",
        200,
        higher=False,
        long=True,
        together=True,
    ),
    Scenario(
        "crash_tuned",
        "the same with the documented knobs of recovery turned to quick",
        crashes.crash_tuned,
        "recovered_s",
        "s",
        100,
        higher=False,
        long=True,
        together=True,
    ),
)
SCENARIOS = {scenario.name: scenario for scenario in _TABLE}
GROUPS = {
    "enqueue": ("enqueue_single", "enqueue_bulk"),
    "bulk": ("enqueue_bulk",),
    "drain": ("drain_async", "drain_async_never_analyzed", "drain_sync"),
    # a figure with the snapshot means nothing without the one beside it
    "horizon": ("horizon", "horizon_control"),
    "churn": ("churn", "churn_control"),
    "crash": ("crash", "crash_tuned"),
}


def chosen(names: str) -> list[Scenario]:
    """Find the scenarios that *names*, with commas between, mean; all where it is empty.

    Raises:
        ValueError: for a name that there is not.
    """
    wanted: set[str] = set()
    for name in filter(None, (name.strip() for name in names.split(","))):
        if name not in GROUPS and name not in SCENARIOS:
            raise ValueError(f"no scenario {name!r}: there are {', '.join(dict.fromkeys([*GROUPS, *SCENARIOS]))}")
        wanted |= set(GROUPS.get(name, (name,)))
    return [scenario for scenario in SCENARIOS.values() if not wanted or scenario.name in wanted]
