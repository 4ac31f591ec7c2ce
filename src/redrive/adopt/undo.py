"""Ends an adoption: what waits is handed back in the table's own words, and nothing of ours is left on the table.

What runs is waited for, since its work can't be called back; nobody's outcome is lost on the way.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg.errors import UndefinedFunction
from psycopg.rows import namedtuple_row
from psycopg.sql import Identifier, Literal

from redrive import audit
from redrive.adopt import pieces
from redrive.adopt.bridge import BATCH, demand, patiently
from redrive.adopt.look import look
from redrive.errors import InvalidOption
from redrive.sql import compose, query, text_of
from redrive.statements import Statement, named, run

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg
    from psycopg.sql import Composable, Composed

    from redrive.adopt.look import Table

PATIENCE = 60.0
"""Seconds in which what runs may end."""
PAUSE = 0.2
ABANDONED = 2.0
"""Seconds in which the rows of jobs that are given up are written."""


@dataclass(frozen=True, kw_only=True)
class Undone:
    """What has become of an adoption that was to end."""

    table: str
    returned: int
    """Jobs that waited and were cancelled, their rows handed back."""
    running: int
    """Jobs that still run: while there are some, the adoption stays half ended."""
    owed: int
    """Rows that could not be written to yet."""
    unsaid: int
    """Rows whose job died or was cancelled, and whose table has no word for that: the old worker will take them."""

    @property
    def done(self) -> bool:
        """Whether nothing is left of it."""
        return not (self.running or self.owed)


def preview(conn: psycopg.Connection[Any], schema: str, name: str) -> tuple[Any, list[str]]:
    """Give the adoption as it is, and the statements that would take it away."""
    adoption = demand(conn, schema, name)
    end = _Ending(conn, schema, adoption)
    return adoption, pieces.spoken([*end.triggers(), *end.rest()])


def undo(
    conn: psycopg.Connection[Any],
    schema: str,
    name: str,
    *,
    by: str = "",
    reason: str = "",
    patience: float = PATIENCE,
    abandon: bool = False,
    on_wait: Callable[[Any], object] = lambda _left: None,
) -> Undone:
    """End the adoption of the table called *name*. Safe to say again where it did not come to its end.

    The connection is ours, in autocommit mode. With *abandon* jobs that still run after *patience* are taken out of
    their workers' hands, and what could not be written to rows is forgotten.
    """
    adoption = demand(conn, schema, name)
    end = _Ending(conn, schema, adoption)

    def begin() -> int | None:
        with conn.transaction():
            end.say(query("adopt_lock_timeout", schema))
            for statement in end.triggers():
                end.say(statement)
            run(conn, named("end_adoption", schema, id=adoption.id))
            if adoption.ending_at is None:
                act = audit.begin(schema, "adopt undo", {"table": adoption.name}, by=by, reason=reason)
                return int(run(conn, act)[0].id)
            return None

    act = patiently(begin)
    returned = end.come_to_rest(patience, on_wait)
    if abandon and end.left().running:
        run(conn, named("give_up_rows", schema, id=adoption.id, name=adoption.name))
        returned += end.come_to_rest(ABANDONED, on_wait)
    if act is not None:
        run(conn, audit.count(schema, act, returned))
    left = end.left()
    running = left.running + left.waiting
    if running or (left.owed and not abandon):
        return Undone(table=adoption.name, returned=returned, running=running, owed=left.owed, unsaid=adoption.ended)

    def finish() -> None:
        with conn.transaction():
            end.say(query("adopt_lock_timeout", schema))
            for statement in end.rest():
                end.say(statement)
            run(conn, named("forget_adoption", schema, id=adoption.id))

    if adoption.index_made and end.table is not None:  # first: without the adoption nobody would know of it
        end.say(end.composed("adopt_drop_index", index=Identifier(end.table.schema, adoption.index_made)))
    patiently(finish)
    return Undone(table=adoption.name, returned=returned, running=0, owed=0, unsaid=adoption.ended)


class _Ending:
    """The statements of one ending, and what they are said on."""

    def __init__(self, conn: psycopg.Connection[Any], schema: str, adoption: Any) -> None:
        self.conn, self.schema, self.adoption = conn, schema, adoption
        self.parts: dict[str, Composable] = pieces.names(schema, adoption.id)
        self.table: Table | None
        try:
            self.table = look(conn, adoption.place)  # which may be called otherwise by now
        except InvalidOption:  # it is gone, and its triggers with it
            self.table = None
        else:
            self.parts |= pieces.of_table(self.table.schema, self.table.name)

    def triggers(self) -> list[Composed]:
        """Give what takes our triggers off the table."""
        names = ("adopt_drop_trigger_inserted", "adopt_drop_trigger_updated")
        return [self.composed(name) for name in names] if self.table is not None else []

    def rest(self) -> list[Composed]:
        """Give what takes the trigger off the jobs, and the functions away."""
        return [self.composed(name) for name in ("adopt_drop_trigger_of_job", "adopt_drop_functions")]

    def composed(self, name: str, **more: Composable) -> Composed:
        return compose(text_of(name), self.schema, **{**self.parts, **more})

    def say(self, text: Composed) -> list[Any]:
        return run(self.conn, Statement(text, namedtuple_row, kept=False))

    def left(self) -> Any:
        [left] = run(self.conn, named("adoption_left", self.schema, id=self.adoption.id))
        return left

    def hand_back(self) -> int:
        """Cancel what waits, batch by batch; gives how many there were."""
        given = {"id": self.adoption.id, "name": self.adoption.name, "limit": BATCH}
        returned = 0
        while gone := run(self.conn, named("return_rows", self.schema, **given)):
            returned += len(gone)
        return returned

    def come_to_rest(self, patience: float, on_wait: Callable[[Any], object]) -> int:
        """Hand back what waits until nothing runs and nothing is owed, or *patience* is over."""
        returned, until = self.hand_back(), time.monotonic() + patience
        while ((left := self.left()).running or left.waiting or left.owed) and time.monotonic() < until:
            on_wait(left)
            time.sleep(PAUSE)
            self.settle()
            returned += self.hand_back()
        return returned

    def settle(self) -> None:
        """Try again to write what is owed."""
        with self.conn.transaction():
            run(self.conn, named("settle_adoption", self.schema, id=self.adoption.id))
            run(self.conn, named("rush_adoption", self.schema, id=self.adoption.id))
        try:
            self.say(self.composed("adoption_round", page=Literal(BATCH)))
        except UndefinedFunction:  # another has ended it
            return
