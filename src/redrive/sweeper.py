"""Does what adopted tables want done from time to time, on every worker, no leader: sweeps, and what is owed to rows.

A function of the database does it (``adopt_round``), which one worker at a time gets to say. Where no table is adopted
this looks once in a long while and waits to be told of one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from psycopg.errors import InsufficientPrivilege, UndefinedFunction
from psycopg.rows import namedtuple_row
from psycopg.sql import Identifier, Literal

from redrive.service import Database, Service
from redrive.sql import compose, text_of
from redrive.statements import Statement, named

if TYPE_CHECKING:
    from collections.abc import Callable

    from redrive.connections import Control

LOOK_EVERY = 600.0
"""Seconds between two looks for an adoption; a new one is told by NOTIFY, and this is for the deaf."""
AGAIN = 60.0
SHORTEST = 0.05
PAGE = 200
"""Rows that one round looks at: a few milliseconds."""

_log = logging.getLogger("redrive")


class Sweeper(Service):
    """Sweeps adopted tables and pays what is owed to their rows."""

    name = "sweeper"

    def __init__(self, database: Database, control: Control, on_taken: Callable[[], object]) -> None:
        """*on_taken* is told when rows were made jobs."""
        super().__init__(database)
        self._control = control
        self._on_taken = on_taken
        self._said: set[str] = set()

    async def tick(self) -> float:
        """Give each adoption its round where that is due; gives the seconds until the next is."""
        try:
            found = await self._control.run(named("active_adoptions", self._control.schema))
        except InsufficientPrivilege as error:
            self._tell(f"this worker does nothing for adopted tables, others have to: {error.diag.message_primary}")
            return LOOK_EVERY
        pauses = [each.due_in or await self._give_round(each) for each in found]
        return max(SHORTEST, min(pauses, default=LOOK_EVERY))

    async def _give_round(self, adoption: Any) -> float:
        schema, number, name = self._control.schema, adoption.id, adoption.name
        parts = {"round": Identifier(schema, f"adoption_{number}_round"), "page": Literal(PAGE)}
        statement: Statement[Any] = Statement(compose(text_of("adoption_round"), schema, **parts), namedtuple_row)
        try:
            [row] = await self._control.run(statement)
        except (InsufficientPrivilege, UndefinedFunction) as error:  # not for this role, or ended a moment ago
            self._tell(f"this worker does nothing for {name}: {error.diag.message_primary}")
            return AGAIN
        if row.took:
            self._on_taken()
        return float(row.seconds)

    def _tell(self, said: str) -> None:
        if said not in self._said:
            self._said.add(said)
            _log.warning("%s", said)
