"""How it stands with all workers and kinds together, now: what a scrape, a screen and an alert begin with.

Two statements that stay quick on a large table. No counts beyond a bound, and what is only a bound is known as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redrive import stats
from redrive.statements import Statement, named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import AsyncConnection, Connection

    from redrive.schedules import Desk
    from redrive.stats import Depth

LATE = 90.0
"""Seconds after which a schedule is late: workers enqueue within the first, and find a new one within a minute."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """How it stands."""

    depths: list[Depth]
    alive: int
    """Workers that were heard within their lease; a relay, which runs no job, is none."""
    silent: int
    """Workers and relays that were not, and have not said goodbye, within the last day."""
    slots: int
    """Handlers that the living ones can run at once."""
    in_flight: int
    """Jobs that they hold."""
    complaining: int
    """Living workers and relays that complain of one of their loops."""
    late: int
    """Schedules that are due for long, or can't be planned."""
    known: frozenset[str]
    """Kinds that a living worker has a handler for."""

    @property
    def unknown(self) -> list[str]:
        """Kinds that are due and that no living worker knows."""
        return [depth.kind for depth in self.depths if depth.oldest_due is not None and depth.kind not in self.known]

    @property
    def oldest_due(self) -> float:
        """Seconds for which the oldest due job of all has waited; 0 where nothing is due."""
        return max((depth.oldest_due or 0.0 for depth in self.depths), default=0.0)


def fleet(schema: str) -> Statement[Any]:
    """Ask for all but the depths."""
    return named("fleet", schema, patience=LATE)


def figures(depths: list[Depth], rows: Sequence[Any]) -> Figures:
    """Put the two answers together."""
    [row] = rows
    return Figures(
        depths=depths,
        alive=row.alive,
        silent=row.silent,
        slots=row.slots,
        in_flight=row.in_flight,
        complaining=row.complaining,
        late=row.late,
        known=frozenset(row.known),
    )


def look(queue: Desk, connection: Connection[Any] | None = None) -> Figures:
    """Ask how it stands."""
    depths = queue.ask(stats.depths(queue.schema), connection)
    return figures(depths, queue.ask(fleet(queue.schema), connection))


async def look_async(queue: Desk, connection: AsyncConnection[Any] | None = None) -> Figures:
    """Ask how it stands, from async code."""
    depths = await queue.ask_async(stats.depths(queue.schema), connection)
    return figures(depths, await queue.ask_async(fleet(queue.schema), connection))
