"""What every scenario is given: the server, the sizes, and a stage for a system."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import cache
from benchmarks.peers.server import Server
from benchmarks.peers.stage import Ready, Stage

Run = dict[str, Any]
"""What one measurement gave: names with their units in them, and numbers."""


class NotApplicable(Exception):
    """The system has nothing that this scenario measures; the message says why."""


@dataclass(frozen=True)
class Scale:
    """How much is measured. Seconds and jobs."""

    factor: float = 1.0
    """Of the jobs that the catalog gives each system."""
    singles: int = 2_000
    ticks: int = 200
    drain_cap: float = 60.0
    rates: tuple[int, ...] = (500, 100)
    sustained_seconds: float = 20.0
    horizon_seconds: float = 60.0
    churn_jobs: int = 100_000
    churn_seconds: float = 80.0
    churn_drain: int = 10_000
    idle_warm: float = 5.0
    idle_seconds: float = 15.0
    crash_cap: float = 180.0
    pace: float = 1.0
    """How long a measurement takes, roughly, of what it takes at full size."""

    def told(self) -> dict[str, Any]:
        """List the sizes, for the record."""
        return asdict(self) | {"rates": list(self.rates)}


QUICK = Scale(
    factor=0.05,
    singles=200,
    ticks=40,
    drain_cap=20.0,
    rates=(200,),
    sustained_seconds=3.0,
    horizon_seconds=6.0,
    churn_jobs=4_000,
    churn_seconds=10.0,
    churn_drain=1_000,
    idle_warm=2.0,
    idle_seconds=5.0,
    crash_cap=20.0,
    pace=0.4,
)
LEAST = 500


@dataclass(frozen=True)
class Bench:
    """The means of a run."""

    server: Server
    scratch: Path
    scale: Scale
    kept_rate: Callable[[str], int | None] = lambda _: None
    """The highest steady rate that a system was seen to keep."""

    def jobs(self, ready: Ready) -> int:
        """Say how many jobs a drain of this system has."""
        return max(LEAST, round(ready.system.jobs * self.scale.factor))

    def stage(self, ready: Ready, *, kind: str = "", profile: str = "bench") -> Stage:
        """Make a stage, to be entered."""
        home = cache() / ready.system.environment.name
        return Stage(self.server, ready, self.scratch, home, kind=kind, profile=profile)
