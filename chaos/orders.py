"""What is enqueued, and how, drawn from a seed: every kind of work, well-behaved and not, by every road there is."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

KINDS = {
    # of a thousand jobs
    "quick": 510,
    "threaded": 200,
    "steady": 55,
    "raises": 90,
    "ends": 40,
    "completes": 35,
    "limited": 20,
    "calls": 30,
    "isolated": 8,
    "hangs": 4,
    "late": 2,
    "exits": 3,
    "allocates": 2,
    "kills": 1,
    "blocks": 0.5,
}
ROADS = {"api": 30, "insert": 20, "order": 20, "many": 20, "pooled": 10}
"""api: queue.enqueue(); insert: a plain INSERT; order: in a transaction with a row of the application's own; many:
enqueue_many(); pooled: queue.enqueue() through pgbouncer."""
ERRORS = ("plain", "plain", "retry", "nul", "surrogate", "huge", "unspeakable")
ROLLED_BACK = 0.25
"""Of the orders, which are transactions of the application's."""
KEYED = 0.15
LANES = ("", "", "acme", "globex")
POISON = 99
LIMIT = 3
"""Of the limited ones so many may run at once."""
SERVICES = {"provider.example": 0.0, "partner.example": 17.0}
"""What the calls go to, each down at times of its own."""
DOWN, EVERY = 8.0, 34.0
"""Seconds for which a service is down, and after which it is so again: the tries of a job are used up in five."""


@dataclass(frozen=True)
class Order:
    """Jobs to be enqueued together."""

    numbers: tuple[int, ...]
    kind: str
    payloads: tuple[dict[str, Any], ...]
    road: str
    rolled_back: bool = False
    key: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


def orders(seed: int, jobs: int, by: Mapping[str, float] = ROADS) -> Iterator[Order]:
    """Draw orders until there are *jobs* of them."""
    draw = random.Random(f"orders {seed}")
    kinds, roads = list(KINDS), list(by)
    number = poisons = 0
    while number < jobs:
        [kind] = draw.choices(kinds, list(KINDS.values()))
        [road] = draw.choices(roads, list(by.values()))
        if road == "many" and KINDS[kind] < min(KINDS["quick"], KINDS["threaded"]):
            road = "api"
        size = draw.randint(5, 30) if road == "many" else 1
        numbers = tuple(range(number, number + size))
        number += size
        payloads = [{"n": n, **_does(draw, kind)} for n in numbers]
        if kind == "kills" and payloads[0]["deaths"] == POISON:
            poisons += 1
            payloads[0]["deaths"] = 1 if poisons > 1 + jobs // 10_000 else POISON  # each costs several workers
        key = f"key-{draw.randrange(40)}" if road != "many" and draw.random() < KEYED else None
        options: dict[str, Any] = {"priority": draw.choice((1, 5, 5, 5, 9)), "lane": draw.choice(LANES)}
        if road != "many" and draw.random() < 0.1:  # noqa: PLR2004 - a tenth
            options["delay"] = draw.uniform(0.1, 6.0)
        if kind == "calls":
            options["lane"] = ""  # the lane that somebody gives is the target
        if kind == "raises" and draw.random() < 0.1:  # noqa: PLR2004 - a tenth
            payloads[0]["until"], options["max_attempts"] = POISON, 2
        yield Order(numbers, kind, tuple(payloads), road, road == "order" and draw.random() < ROLLED_BACK, key, options)


def down(service: str, now: float) -> bool:
    """Whether a service is down at that time of the machine's monotonic clock, which all processes share."""
    return (now + SERVICES[service]) % EVERY < DOWN


def _does(draw: random.Random, kind: str) -> dict[str, Any]:  # noqa: PLR0911 - a table
    match kind:
        case "quick" | "threaded":
            return {"for": draw.uniform(0, 0.02)}
        case "steady":
            return {"for": draw.uniform(0.3, 1.5)}
        case "limited":
            return {"for": draw.uniform(0.2, 0.8)}
        case "calls":
            return {"for": draw.uniform(0, 0.05), "to": draw.choice(list(SERVICES))}
        case "raises":
            return {"for": draw.uniform(0, 0.02), "until": draw.choice((2, 2, 3)), "error": draw.choice(ERRORS)}
        case "ends":
            return {"as": draw.choice(("discarded", "dead", "snoozed", "snoozed")), "until": draw.choice((1, 2))}
        case "isolated":
            return {"for": draw.uniform(0.01, 0.1), "dies": draw.random() < 0.3}  # noqa: PLR2004 - a third
        case "allocates":
            return {"megabytes": draw.randint(20, 120)}
        case "kills":
            return {"deaths": draw.choice((1, 1, 1, 2, POISON))}
        case _:
            return {}
