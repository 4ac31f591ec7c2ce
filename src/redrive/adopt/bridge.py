"""Connects a table: its rows become jobs, and what becomes of the jobs is written back to the rows.

What does it are functions and triggers that are made here from the mapping, see "adoptions" in ``queries.sql``; no
process of ours stands in between. The rows stay the application's. Nothing older than the cut-over is touched.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.sql import SQL, Identifier, Literal

from redrive import audit
from redrive.adopt import pieces, terms
from redrive.adopt.fit import fitted
from redrive.adopt.look import ANYWHERE, look
from redrive.adopt.mapping import Mapping, parse
from redrive.adopt.pieces import Pieces
from redrive.adopt.proof import prove
from redrive.errors import AlreadyAdopted, InvalidMap, InvalidOption, UnknownAdoption
from redrive.sql import compose, query, text_of
from redrive.statements import Statement, named, run
from redrive.words import counted

if TYPE_CHECKING:
    from psycopg.sql import Composable, Composed

LOCK_TRIES = 30
LOCK_PAUSE = 0.5
BATCH = 500
LARGE = 100_000
"""Rows from which on a sweep without an index of its own would be a burden."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How a table is to be connected."""

    by_trigger: bool = True
    """A job is made in the transaction that writes its row."""
    by_sweep: bool = False
    """Workers look for rows that wait, once a second."""
    legacy_stopped: bool = False
    """Nothing else works the table any more: somebody has said so."""
    index: bool = False
    """Make the index that the sweep needs."""


class Plan:
    """What connecting a table would do, checked as far as it can be without doing it."""

    def __init__(self, conn: psycopg.Connection[Any], schema: str, mapping: Mapping, wanted: Wanted) -> None:
        """Check it.

        Raises:
            InvalidMap: where the map doesn't suit the table.
            InvalidOption: where the old worker would send rows again, or the sweep be a burden.
        """
        self.schema = schema
        self.table = look(conn, mapping.table)
        if self.table.is_redrives:
            raise InvalidOption(f"{self.table.qualified} is redrive's own table: its workers work it as it is")
        self.mapping = fitted(mapping, self.table)
        self.wanted = wanted
        self.beside = not wanted.legacy_stopped
        self._demand_sight()
        self._demand_no_delay(conn)
        prove(conn, self.mapping, self.table)
        if self.beside and not blinds(self.mapping):
            raise InvalidOption(risk(self.mapping))
        if wanted.by_sweep and not wanted.index and self.needs_index():
            made = self.index_statement().as_string(None)
            raise InvalidOption(
                f"{self.mapping.table} has about {self.table.estimate:,.0f} rows and no index by which those that wait "
                f"are found, so that every sweep would read much of it: have it made (--create-index), or run {made};"
            )

    def index_statement(self) -> Composed:
        """Give the statement that makes the index for the sweep."""
        return pieces.index(self.mapping, self.table, self.index_name)

    def needs_index(self) -> bool:
        """Tell whether a sweep has nothing to go by: no partial index that begins with the key."""
        served = any(
            index.valid and index.predicate is not None and index.columns[:1] == (self.mapping.key,)
            for index in self.table.indexes
        )
        return not served and self.table.estimate > LARGE

    def script(self) -> list[str]:
        """Spell all that would be run, with 0 for the number that the adoption would get."""
        made = Pieces(self.schema, 0, self.mapping, self.table, beside=self.beside)
        first = [self.index_statement()] if self.wanted.index else []
        return pieces.spoken([*first, *statements(made, self.wanted)])

    def half_done(self, conn: psycopg.Connection[Any]) -> Pieces:
        """Give the pieces of this very adoption, where connecting was broken off.

        Raises:
            AlreadyAdopted: where it was not, or the map or the way is another.
        """
        adoption = demand(conn, self.schema, self.mapping.table)
        mapping, wanted = parse(adoption.map), self.wanted
        how = (adoption.by_trigger, adoption.by_sweep, adoption.beside)
        same = mapping == self.mapping and how == (wanted.by_trigger, wanted.by_sweep, self.beside)
        if same and not adoption.ready and adoption.ending_at is None:
            return Pieces(self.schema, adoption.id, mapping, self.table, beside=self.beside)
        undo = f"`redrive adopt undo {adoption.name}`"
        if adoption.ending_at is not None:
            raise AlreadyAdopted(f"{adoption.name} is half undone: say {undo} again, and connect it then")
        state = "is connected already" if adoption.ready else "was being connected, which was broken off"
        raise AlreadyAdopted(
            f"{adoption.name} {state}, since {adoption.since:%Y-%m-%d %H:%M %Z} and "
            + (
                "in this very way: there is nothing to do"
                if same
                else f"in another way: to change it, say {undo} first"
            )
        )

    @property
    def index_name(self) -> str:
        """The name of the index that the sweep would get."""
        return f"{self.table.name[:40]}_redrive_idx"

    def _demand_no_delay(self, conn: psycopg.Connection[Any]) -> None:
        """Refuse what Postgres would check at the commit only: an error there is one of all outcomes in that commit."""
        deletes = self.mapping.succeeded.delete
        for row in run(conn, named("adopt_deferred", self.schema, table=self.table.oid, deletes=deletes)):
            raise InvalidOption(
                f"{row.name} of {row.of_table} is checked at the commit, where its error would be of other jobs as "
                "well: make it INITIALLY IMMEDIATE first"
            )

    def _demand_sight(self) -> None:
        if self.table.filtered:
            raise InvalidOption(
                f"row-level security hides rows of {self.mapping.table} from this role, so that they would never be "
                "worked, and nobody would be told: connect it as the table's owner, or as a role with BYPASSRLS"
            )


def connect(
    conn: psycopg.Connection[Any], plan: Plan, *, by: str = "", reason: str = "", patient: bool = True
) -> dict[str, int]:
    """Connect a table as *plan* has it; gives the adoption's id and how many rows were held and taken in.

    The connection is ours, in autocommit mode.

    Where an earlier call with the same map was broken off half way, this one goes on from there.

    Raises:
        AlreadyAdopted: where it is connected.
        psycopg.Error: where the role may not; nothing is left of it then.
    """
    schema, mapping, wanted = plan.schema, plan.mapping, plan.wanted
    made_index = _index(conn, plan) if wanted.index else None
    given = {
        "name": mapping.table,
        "table": plan.table.oid,
        "map": json.dumps(mapping.document()),
        "by_trigger": wanted.by_trigger,
        "by_sweep": wanted.by_sweep,
        "beside": plan.beside,
        "cutover": mapping.cutover,
        "by": audit.signed(by, reason)["who"],
        "index_made": made_index,
    }

    def make() -> Pieces:
        with conn.transaction():
            _say(conn, query("adopt_lock_timeout", schema))
            rows = run(conn, named("begin_adoption", schema, **given))
            if not rows:
                return plan.half_done(conn)
            made = Pieces(schema, rows[0].id, mapping, plan.table, beside=plan.beside)
            for statement in statements(made, wanted):
                _say(conn, statement)
            told = {"table": mapping.table, "by": "trigger" * wanted.by_trigger or "sweep"}
            run(conn, audit.begin(schema, "adopt", told, by=by, reason=reason))
            return made

    made = patiently(make, tries=LOCK_TRIES if patient else 1)
    ready = named("ready_adoption", schema, id=made.adoption)
    held = 0
    if wanted.by_sweep:  # it is ready as soon as it can tell the old rows, and finds the others by itself
        with conn.transaction():
            held = _hold(conn, made)
            run(conn, ready)
    taken = _catch_up(conn, made)
    run(conn, ready)
    return {"id": made.adoption, "held": held, "taken": taken}


def statements(made: Pieces, wanted: Wanted) -> list[Composed]:
    """Give what makes the bridge. The table's own triggers come last, for the sake of the lock that they take."""
    found = [*made.functions(), made.composed("adopt_rights"), made.composed("adopt_trigger_of_job")]
    if wanted.by_trigger:
        found += [made.composed("adopt_trigger_inserted"), made.composed("adopt_trigger_updated")]
    return found


def reconnected(conn: psycopg.Connection[Any], schema: str, adoption: Any) -> Pieces:
    """Give the pieces of an adoption that there is.

    Raises:
        InvalidOption: where its table is gone.
    """
    mapping = parse(adoption.map)
    return Pieces(schema, adoption.id, mapping, look(conn, mapping.table), beside=adoption.beside)


def adoptions(conn: psycopg.Connection[Any], schema: str, name: str | None = None) -> list[Any]:
    """List what is connected, with how many rows are where; or only the table called *name*."""
    try:
        return run(conn, named("list_adoptions", schema, name=name))
    except psycopg.errors.InvalidName as error:
        raise InvalidOption(f"{name!r} is no name of a table: write schema.table") from error


def demand(conn: psycopg.Connection[Any], schema: str, name: str) -> Any:
    """Give the adoption of the table called *name*.

    Raises:
        UnknownAdoption: naming those that there are.
    """
    found = adoptions(conn, schema, name)
    if not found:
        names = [row.name for row in adoptions(conn, schema)]
        there = f"connected are: {', '.join(names)}" if names else "no table is"
        raise UnknownAdoption(f"{name} is not connected; {there}")
    return found[0]


def notes(conn: psycopg.Connection[Any], schema: str, adoption: int) -> list[Any]:
    """List what stands in the way of rows of an adoption, with how many and an example."""
    return run(conn, named("adoption_notes", schema, id=adoption))


def troubles(conn: psycopg.Connection[Any], schema: str, adoption: Any) -> list[str]:
    """Say what is in the way of an adoption; nothing where all is well."""
    return _said(adoption, notes(conn, schema, adoption.id)) + ([] if adoption.gone else _unfit(conn, adoption))


def _unfit(conn: psycopg.Connection[Any], adoption: Any) -> list[str]:
    """Say how the table has been changed so that its map no longer suits it."""
    again = f"undo it, mend the map and connect it again, or mend {adoption.name}"
    try:
        table = look(conn, adoption.place)
        if table.qualified != adoption.name:
            return [f"it is called {table.qualified} now, and its map knows it by the old name: {again}"]
        fitted(parse(adoption.map), table)
    except InvalidMap as error:
        return [f"the table has been changed: {'; '.join(error.problems)}: {again}"]
    except InvalidOption as error:
        return [f"the table has been changed: {error}: {again}"]
    return []


def _said(adoption: Any, found: list[Any]) -> list[str]:
    said = (
        [f"{adoption.name} is gone: `redrive adopt undo {adoption.name}` takes the rest away"] if adoption.gone else []
    )
    if not adoption.ready and adoption.ending_at is None:
        said.append("connecting it was broken off, or is not at its end yet: say `redrive adopt connect` again")
    # that of the jobs, and two on the table
    if not adoption.gone and adoption.ending_at is None and adoption.triggers < 1 + 2 * adoption.by_trigger:
        said.append("a trigger is gone or disabled: undo it and connect it again")
    if adoption.ending_at is not None:
        said.append(f"it is half undone: say `redrive adopt undo {adoption.name}` again")
    said += [adoption.trouble] if adoption.trouble else []
    return said + [f"{counted(each.rows, 'row')}, such as {each.example}: {each.note}" for each in found]


def pause(
    conn: psycopg.Connection[Any], schema: str, name: str, *, paused: bool, by: str = "", reason: str = ""
) -> bool:
    """Make no jobs of the table's rows for now, or again; gives whether that is a change.

    Rows that come meanwhile are noted, and made jobs when it is resumed. Jobs that there are go on.
    """
    adoption = demand(conn, schema, name)
    who = audit.signed(by, reason)["who"]
    with conn.transaction():
        changed = bool(run(conn, named("pause_adoption", schema, id=adoption.id, paused=paused, by=who)))
        if changed:
            action = "adopt pause" if paused else "adopt resume"
            run(conn, audit.begin(schema, action, {"table": adoption.name}, by=by, reason=reason))
    return changed


def blinds(mapping: Mapping) -> bool:
    """Tell whether a row that is written as claimed no longer waits, so that the old worker doesn't see it.

    A time that is pushed ahead is no such mark: it runs out while the job waits for a worker.
    """
    column = mapping.runnable.column
    if column is None:
        return False
    if column in mapping.claimed.values:
        return mapping.claimed.values[column] not in mapping.runnable.values
    return column in mapping.claimed.null and not mapping.runnable.null


def risk(mapping: Mapping) -> str:
    """Spell out what the old worker would do beside us, and what to do about it."""
    parts = {"key": Identifier(mapping.key), "runnable": terms.runnable(mapping)}
    seen = compose(text_of("adopt_risk"), ANYWHERE, table=SQL(mapping.table), **parts).as_string(None)
    return (
        f"nothing that redrive could write to {mapping.table} tells the old worker that a row is taken: while a "
        f"job runs, {' '.join(seen.split())} still finds its row, so that it is done twice. Stop the old worker and "
        "say so (--legacy-stopped), or give the map's [claimed] a value of "
        f"{mapping.runnable.column or 'a column'} that its WHERE leaves out"
    )


def take(conn: psycopg.Connection[Any], made: Pieces, keys: list[str], *, again: bool, gap: float = 0.0) -> int:
    """Make jobs of the rows with *keys*, *again* where an earlier job of theirs has ended; gives how many."""
    parts: dict[str, Composable] = {"keys": Literal(keys), "again": Literal(again), "gap": Literal(f"{gap:.6f} s")}
    [row] = _say(conn, made.composed("take_rows", **parts))
    return int(row.taken)


def keys(
    conn: psycopg.Connection[Any], made: Pieces, which: Composable, after: str | None, most: int = BATCH
) -> list[str]:
    """List the keys of rows that could be made jobs, a batch after a known one."""
    parts: dict[str, Composable] = {"which": which, "after": Literal(after), "most": Literal(most)}
    name = "adopt_keys" if after is not None else "adopt_first_keys"
    return [row.row_key for row in _say(conn, made.composed(name, **parts))]


def patiently(work: Any, *, tries: int = LOCK_TRIES) -> Any:
    """Do what takes a lock; where it is not to be had at once, let the application go first and try again."""
    for left in range(tries - 1, -1, -1):
        try:
            return work()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            if not left:
                raise
            time.sleep(LOCK_PAUSE)
    raise AssertionError


def _index(conn: psycopg.Connection[Any], plan: Plan) -> str | None:
    """Make the sweep's index, where it needs one; gives the name of ours, though an earlier try may have made it."""
    there = {index.name: index.valid for index in plan.table.indexes}.get(plan.index_name)
    if there is None and not plan.needs_index():
        return None
    if there is False:  # CONCURRENTLY was broken off
        where = Identifier(plan.table.schema, plan.index_name)
        _say(conn, compose(text_of("adopt_drop_index"), plan.schema, index=where))
    if not there:
        _say(conn, plan.index_statement())
    return plan.index_name


def _hold(conn: psycopg.Connection[Any], made: Pieces) -> int:
    """Note the rows from before the cut-over, so that the sweep leaves them alone."""
    with psycopg.Cursor(conn) as cursor:
        return cursor.execute(made.composed("adopt_hold")).rowcount


def _catch_up(conn: psycopg.Connection[Any], made: Pieces) -> int:
    """Take in the rows that were created between the cut-over and now."""
    if made.mapping.created is None:
        return 0
    which = made.composed("adopt_both")
    taken, after = 0, None
    while found := keys(conn, made, which, after):
        taken += take(conn, made, found, again=False)
        after = found[-1]
    return taken


def _say(conn: psycopg.Connection[Any], text: Composed) -> list[Any]:
    return run(conn, Statement(text, namedtuple_row, kept=False))
