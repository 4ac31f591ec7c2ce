"""Which faults strike when, drawn from a seed: the same seed and length give the same plan, on any machine."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

GRAND = {
    # name: how long it lasts, seconds, from and to
    "restart, fast": (0.0, 4.0),
    "failover": (0.0, 0.0),
    "read-only": (1.0, 5.0),
    "restart, immediate": (0.0, 4.0),
    "table lock": (1.0, 4.0),
    "disk full": (1.0, 3.0),
    "connection limit": (1.0, 4.0),
    "timeouts": (1.0, 3.0),
}
"""One at a time, and alone: they strike everybody."""
SMALL = {
    "kill": (0.0, 0.0),
    "freeze": (6.0, 8.0),
    "stop": (0.0, 0.0),
    "end a session": (0.0, 0.0),
    "cut": (0.0, 0.0),
    "delay": (1.0, 3.0),
    "half-close": (0.0, 0.0),
    "black hole": (1.0, 7.0),
    "refuse": (0.5, 2.0),
    "swallow an answer": (1.0, 2.0),
    "row locks": (1.0, 3.0),
    "snapshot": (6.0, 12.0),
    "clock": (0.0, 0.0),
}
"""Side by side with each other."""
OFTEN = {"kill": 3, "freeze": 2, "stop": 2, "end a session": 2}
"""How often each is drawn before the others come again."""
SMALL_BETWEEN = 8
"""Small faults between two grand ones."""
GAP = (0.5, 1.7)
"""Seconds between two small faults."""
CALM = 4.0
"""Seconds that a grand fault takes beyond its own, until all is well again."""
FAILOVER = 9.0


@dataclass(frozen=True)
class Planned:
    """A fault to come."""

    at: float
    """Seconds after the beginning."""
    name: str
    lasts: float
    pick: float
    """From 0 to 1: which of those that it might strike."""

    @property
    def grand(self) -> bool:
        """Whether it strikes everybody and is therefore alone."""
        return self.name in GRAND


def plan(
    seed: int,
    seconds: float,
    small_ones: Mapping[str, tuple[float, float]] = SMALL,
    grand_ones: Mapping[str, tuple[float, float]] = GRAND,
    often: Mapping[str, int] = OFTEN,
    *,
    between: int = SMALL_BETWEEN,
) -> list[Planned]:
    """Draw the faults of a run of that many seconds. Each comes once before any comes again."""
    draw = random.Random(f"faults {seed}")
    small = _bag(draw, [name for name in small_ones for _ in range(often.get(name, 1))])
    grand = _bag(draw, list(grand_ones))
    faults: list[Planned] = []
    at = 1.0
    until_grand = draw.randint(2, between)
    while True:
        if until_grand:
            until_grand -= 1
            name = small()
            lasts, takes = draw.uniform(*small_ones[name]), draw.uniform(*GAP)
        else:
            until_grand = between
            name = grand()
            lasts = draw.uniform(*grand_ones[name])
            takes = CALM + (FAILOVER if name == "failover" else lasts)
        if at + takes > seconds:
            return faults
        faults.append(Planned(round(at, 3), name, round(lasts, 3), round(draw.random(), 6)))
        at += takes


class _bag:  # noqa: N801 - called like the function that it stands for
    """Draws from a bag that is filled again when it is empty."""

    def __init__(self, draw: random.Random, names: list[str]) -> None:
        self._draw, self._names = draw, names
        self._left: list[str] = []

    def __call__(self) -> str:
        if not self._left:
            self._left = self._draw.sample(self._names, len(self._names))
        return self._left.pop()
