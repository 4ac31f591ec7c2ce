"""How due jobs are looked for and taken: the statements of a claim, and who says them on one connection.

Which jobs, from which lanes and how many, is for the producer to decide.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from psycopg.rows import namedtuple_row, scalar_row
from psycopg.types.numeric import Int8BinaryLoader

from redrive.job import ClaimedJob, Holder
from redrive.sql import POSTGRES, spoken
from redrive.statements import Statement, T

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redrive.connections import Control

# Times are read as the number that comes, which is quick and can hold what Python's datetime can't.
_TIMES = (("timestamptz", Int8BinaryLoader),)


class Claims:
    """Takes due jobs, to be run here."""

    route = POSTGRES

    def __init__(self, control: Control, holder: Holder) -> None:
        self.holder = holder
        self._control = control

    async def survey(self, look: dict[str, Any]) -> list[Any]:
        """Look which lanes have what."""
        return await self._control.run(survey(self._control.schema, route=self.route, **look))

    async def due(self, **params: Any) -> list[Any]:
        """Take due jobs of lanes whose kinds have no limits."""
        return await self._control.run(claim(self.holder, **params))

    async def limited(self, asked: Sequence[str], /, **params: Any) -> list[Any]:
        """Take due jobs of the *asked* kinds, as many as their limits allow."""
        lock = lock_limits(self._control.schema, asked)
        return await self._control.run_both(
            lock, lambda locked: claim_limited(self.holder, locked=locked, **params) if locked else None
        )

    async def alone(self, kinds: Sequence[str]) -> list[Any]:
        """Take one job that may have killed its worker, for its trial."""
        lock = lock_limits(self._control.schema, kinds)
        return await self._control.run_both(
            lock, lambda locked: claim_alone(self.holder, kinds=list(kinds), locked=locked)
        )


def survey(schema: str, *, route: str = POSTGRES, **params: Any) -> Statement[Any]:
    """Look which lanes of kinds that go by *route* have what."""
    return Statement(spoken("survey_lanes", schema, route), namedtuple_row, params, binary=True, loaders=_TIMES)


def claim(holder: Holder, **params: Any) -> Statement[ClaimedJob]:
    """Take due jobs for *holder*; the columns stand as ClaimedJob takes them."""
    return taken("claim_jobs", holder, partial(ClaimedJob, holder), POSTGRES, params)


def lock_limits(schema: str, kinds: Sequence[str]) -> Statement[str]:
    """Lock what is set for *kinds*, for :func:`claim_limited` in the same transaction; gives those that it has."""
    return Statement(spoken("lock_limits", schema), scalar_row, {"kinds": list(kinds)})


def claim_limited(holder: Holder, **params: Any) -> Statement[ClaimedJob]:
    """Take due jobs of *locked* kinds, as many as their limits allow."""
    return taken("claim_limited", holder, partial(ClaimedJob, holder), POSTGRES, params)


def claim_alone(holder: Holder, **params: Any) -> Statement[ClaimedJob]:
    """Take one job that may have killed its worker, for its trial."""
    return taken("claim_alone", holder, partial(ClaimedJob.on_trial, holder), POSTGRES, params)


def taken(name: str, holder: Holder, row: Callable[..., T], route: str, params: dict[str, Any]) -> Statement[T]:
    """Take due jobs of kinds that go by *route*, as the claim called *name* does; each becomes a *row*."""
    params |= {"worker": holder.name}
    return Statement(spoken(name, holder.schema, route), lambda _cursor: row, params, binary=True, loaders=_TIMES)
