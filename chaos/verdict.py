"""What a run comes to: the four counts, the recovery times against their bars, duplicates and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from chaos.conductor import Struck
from chaos.evidence import Evidence, Life
from chaos.invariants import COUNTS, INVARIANTS, check
from chaos.scene import HOPELESS
from chaos.tries import Repeat, repeats

BARS = {"restart, fast": 5.0, "restart, immediate": 5.0, "failover": 15.0}
"""Seconds in which all must be well again, from the moment that the server takes writes."""
SILENT = "its process ended without a word"


@dataclass
class Verdict:
    """The judgement of one run."""

    seed: int
    jobs: int
    """Jobs whose enqueue was confirmed."""
    struck: list[Struck]
    violations: dict[str, list[str]]
    repeated: list[Repeat]
    misdeeds: dict[str, int]
    """How often handlers ended in another way than by a return."""
    unknown: int = 0
    """Enqueues that failed, or whose answer never came."""
    lives: list[Life] = field(default_factory=list)
    """The worker processes."""
    recovery: dict[str, list[float]] = field(default_factory=dict)
    """By fault, in seconds."""

    @property
    def counts(self) -> dict[str, int]:
        """The four counts that must be 0."""
        found = Counter(dict.fromkeys(COUNTS, 0))
        for invariant in INVARIANTS:
            found[invariant.count] += len(self.violations[invariant.name])
        return dict(found)

    @property
    def line(self) -> dict[str, float]:
        """What the last line of the output says."""
        slowest = max((max(times) for times in self.recovery.values() if times), default=0.0)
        faults = sum(not each.skipped for each in self.struck)
        return {
            "seed": self.seed,
            "jobs": self.jobs,
            "faults": faults,
            **self.counts,
            "recovery_s_max": round(slowest, 2),
        }

    @property
    def broken_bars(self) -> list[str]:
        """Recoveries that took longer than they may."""
        return [
            f"{name}: {max(times):.1f} s, and {BARS.get(name, HOPELESS):g} s are the bar"
            for name, times in self.recovery.items()
            if times and max(times) >= BARS.get(name, HOPELESS)
        ]

    @property
    def reasons(self) -> dict[str, int]:
        """How often a job ran again, by what had happened to its worker."""
        return dict(Counter(repeat.why or "unexplained" for repeat in self.repeated).most_common())


def judge(seed: int, evidence: Evidence, struck: list[Struck]) -> Verdict:
    """Hold the evidence against every invariant."""
    recovery: dict[str, list[float]] = {}
    for each in struck:
        if each.recovery is not None:
            recovery.setdefault(each.fault.name, []).append(each.recovery)
    recovery["kill"] = reclaims(evidence)
    return Verdict(
        seed=seed,
        jobs=len(evidence.acknowledged),
        struck=struck,
        violations=check(evidence),
        repeated=list(repeats(evidence)),
        misdeeds=dict(Counter(each.how or SILENT for each in evidence.tries if each.how != "returned").most_common()),
        unknown=evidence.unknown,
        lives=evidence.lives,
        recovery=recovery,
    )


def reclaims(evidence: Evidence) -> list[float]:
    """Give, for each killed worker that held jobs, the seconds until the last of them was taken back."""
    last: dict[int, float] = {}
    for change in evidence.changes:
        if change.was == "running" and change.now != "running":
            life = evidence.life(change.holder_was, change.at)
            if life is not None and life.killed < change.at:
                last[id(life)] = max(last.get(id(life), 0.0), change.at - life.killed)
    return list(last.values())
