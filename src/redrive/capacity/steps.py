"""The steps, in the order in which they are taken: what each changes, how it is done, what it costs, what it buys.

A step buys what the walls say once it is taken. The next is the first that moves the wall that is nearest; one whose
figures nobody has measured is named with that, and none are made up for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from redrive.capacity import costs
from redrive.capacity.costs import UNMEASURED, Known
from redrive.capacity.walls import ORDER, Setup, Wall, grown, holds, walls

WORTH = 1.05
"""A step that moves the wall by less than a twentieth is none."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Something to do, once and for all jobs."""

    name: str
    does: str
    costs: str
    moves: frozenset[str]
    """The walls that it moves."""
    apply: Callable[[Setup, float], Setup]
    """Gives the setup after it, for so many jobs a second."""


@dataclass(frozen=True, kw_only=True)
class Reached:
    """How far it goes with a step taken."""

    step: Step | None
    """None is how it stands."""
    setup: Setup
    wall: Wall

    @property
    def holds(self) -> float | None:
        """Jobs a second; None is not known."""
        return self.wall.holds


def _scaled(known: Known, by: costs.Cost) -> Known:
    if known.value is None or by.value is None:
        return Known(None, UNMEASURED)
    return Known(known.value * by.value, max(known.source, by.source, key=ORDER.index))


def _tuned(now: Setup, _: float) -> Setup:
    each = max(now.each, int(costs.ASYNC_SLOTS.value or 0))
    return replace(
        now,
        each=each,
        slots=now.processes * each if now.slots else 0,
        server_us=_scaled(now.server_us, costs.TUNED_SERVER),
        wal=_scaled(now.wal, costs.TUNED_WAL),
    )


def _short(now: Setup, _: float) -> Setup:
    return replace(now, keep=min(now.keep, costs.KEPT.value or now.keep))


def _workers(now: Setup, _: float) -> Setup:
    return grown(now)


def _broker(now: Setup, _: float) -> Setup:
    return replace(
        now,
        server_us=_scaled(now.server_us, costs.BROKER),
        wal=_scaled(now.wal, costs.BROKER_WAL),
        at_broker=True,
        elastic=True,
    )


def _databases(now: Setup, rate: float) -> Setup:
    """As many as the rate needs, with workers of their own each, which are as many as are needed."""
    one = replace(now, elastic=True)
    most = holds(one, rate).holds or 1.0
    return replace(one, databases=max(2, -int(-rate // most)))


STEPS = (
    Step(
        name="settings",
        does="more slots a process (--concurrency, for handlers that wait), and the server's settings of docs/scale.md",
        costs="memory, a restart of the server; handlers that compute gain nothing by slots",
        moves=frozenset({"slots", "connections", "WAL", "database's time"}),
        apply=_tuned,
    ),
    Step(
        name="short retention",
        does="REDRIVE_RETAIN_SUCCEEDED=1m for all workers",
        costs="succeeded jobs can be looked at for minutes, not for days; dead and failed ones stay",
        moves=frozenset({"disk"}),
        apply=_short,
    ),
    Step(
        name="worker hosts",
        does="redrive worker --processes N, on as many hosts as the handlers want",
        costs="hosts, and four connections a process",
        moves=frozenset({"slots", "workers' own speed", "pruning"}),
        apply=_workers,
    ),
    Step(
        name="broker",
        does="redrive route KIND amqp: the largest kind over a broker, see docs/broker.md",
        costs="a broker to run; its jobs are no rows while they wait there",
        moves=frozenset({"connections", "database's time", "WAL", "disk", "pruning"}),
        apply=_broker,
    ),
    Step(
        name="several databases",
        does="an installation in each of several databases, by tenant or by kind, each with its own workers",
        costs="an enqueue is in your transaction only where your data is in the same database; a desk each",
        moves=frozenset({"connections", "database's time", "WAL", "disk", "pruning"}),
        apply=_databases,
    ),
)
"""From the cheapest to the dearest."""


def ladder(now: Setup, rate: float) -> list[Reached]:
    """Take one step after the other: those to the rate as :func:`way` has them, then the others, from the cheapest on.

    What is not known of one does not hide the next.
    """
    found, at = [Reached(step=None, setup=now, wall=holds(now, rate))], now
    first = [each.step for each in way(now, rate) if each.step]
    for step in (*first, *(each for each in STEPS if each not in first)):
        after = step.apply(at, rate)
        reached = Reached(step=step, setup=after, wall=holds(after, rate))
        found.append(reached)
        if reached.holds is not None:
            at = after
    return found


def choices(now: Setup, rate: float, taken: Collection[Step] = ()) -> list[Reached]:
    """List the steps that move the nearest wall, and those that may, but for those *taken*; the cheapest first."""
    wall, found = holds(now, rate), []
    for step in STEPS:
        after = step.apply(now, rate)
        if step in taken or wall.name not in step.moves or after == now:
            continue
        reached = Reached(step=step, setup=after, wall=holds(after, rate))
        if _moved(wall, after, rate) and (reached.holds is None or reached.holds >= (wall.holds or 0.0)):
            found.append(reached)
    return found


def _moved(wall: Wall, after: Setup, rate: float) -> bool:
    """Say whether a wall is gone or farther; that another stands as near is the next step's to mend."""
    there = next((each for each in walls(after, rate) if each.name == wall.name), None)
    return there is None or there.holds is None or there.holds > WORTH * (wall.holds or 0.0)


def next_step(now: Setup, rate: float, taken: Collection[Step] = ()) -> Reached | None:
    """Find the first of them; None where there is none."""
    return next(iter(choices(now, rate, taken)), None)


def way(now: Setup, rate: float) -> list[Reached]:
    """List the steps to a rate, until it is held, or a step is not measured, or none is left."""
    found: list[Reached] = []
    at = now
    while (wall := holds(at, rate)).holds is not None and wall.holds < rate:
        reached = next_step(at, rate, [each.step for each in found if each.step])
        if reached is None:
            break
        found.append(reached)
        at = reached.setup
    return found
