"""What surrounds a stranger's table: who asks and may do what, policies, triggers, zones; and what of it will trouble.

Read from the catalogs alone, like :mod:`redrive.adopt.look`. What it remarks comes with a remedy to run, and nothing of
it is run here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from psycopg.sql import SQL, Identifier

from redrive.adopt.look import ANYWHERE, TIMES, Table, look, untouched
from redrive.adopt.terms import COMMA, joined, remedy
from redrive.errors import InvalidOption
from redrive.statements import named, run

if TYPE_CHECKING:
    import psycopg


SECONDS = 15.0
"""How long the catalogs may take."""


@dataclass(frozen=True, kw_only=True)
class Remark:
    """Something to know before the table is connected."""

    level: str
    """``bad`` where nothing works until it is mended, else ``note``."""
    text: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """A constraint of the table, or a foreign key that leads to it."""

    name: str
    sort: str
    definition: str
    validated: bool
    referrer: str | None
    """The other table, of a foreign key that leads here."""


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """A trigger on the table."""

    name: str
    definition: str
    enabled: bool


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A policy of row-level security."""

    name: str
    command: str
    """``*`` for all, else the first letter as the catalog has it: r, a, w, d."""
    permissive: bool
    roles: tuple[str, ...]
    ours: bool
    """Whether it is about the role that asks."""
    condition: str | None


@dataclass(frozen=True, kw_only=True)
class Place:
    """Who asks, where, and with which rights."""

    version: int
    told: str
    database: str
    role: str
    super: bool
    bypasses: bool
    standby: bool
    zone: str
    """The session's TimeZone. It says nothing about the zone of a naive column."""
    now: datetime
    owns: bool
    rights: tuple[str, ...]
    enters: bool
    dead: int | None
    """Dead rows, as the statistics have it."""
    analyzed: datetime | None
    zones: tuple[str, ...]
    """TimeZone where it is set for a role or the database, as a hint for a human."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Where rows of the table are: itself, or a partition."""

    schema: str
    name: str
    estimate: float
    pages: int | None
    """None: a foreign table, which can't be read block by block."""
    readable: bool


@dataclass(frozen=True, kw_only=True)
class Survey:
    """A table and what surrounds it."""

    table: Table
    place: Place
    constraints: tuple[Constraint, ...]
    triggers: tuple[Trigger, ...]
    policies: tuple[Policy, ...]
    pieces: tuple[Piece, ...]
    remarks: tuple[Remark, ...]

    @property
    def naive(self) -> tuple[str, ...]:
        """The columns of times that don't say in which zone."""
        return tuple(column.name for column in self.table.columns if column.base in TIMES[1:])


def survey(conn: psycopg.Connection[Any], name: str) -> Survey:
    """Look at the table called *name* and at what surrounds it; *conn* is in autocommit.

    Raises:
        InvalidOption: when there is no such table, or this role may not read it.
        psycopg.errors.LockNotAvailable: when somebody alters the table just now.
    """
    with untouched(conn, SECONDS):
        return _survey(conn, name)


def _survey(conn: psycopg.Connection[Any], name: str) -> Survey:
    table = look(conn, name)

    def ask(statement: str) -> list[Any]:
        return run(conn, named(statement, ANYWHERE, table=table.oid))

    [found] = ask("adopt_place")
    place = Place(**{**found._asdict(), "rights": tuple(found.rights), "zones": tuple(found.zones)})
    if not place.enters or not any(column.readable for column in table.columns):
        role = Identifier(place.role)
        grants = [remedy("adopt_remedy_usage", schema=Identifier(table.schema), role=role)] * (not place.enters)
        grants.append(remedy("adopt_remedy_grant", rights=SQL("SELECT"), table=_named(table), role=role))
        raise InvalidOption(f"role {place.role} may not read {table.qualified}: {'; '.join(grants)}")
    policies = [Policy(**{**row._asdict(), "roles": tuple(row.roles)}) for row in ask("adopt_policies")]
    triggers = tuple(Trigger(**row._asdict()) for row in ask("adopt_triggers"))
    return Survey(
        table=table,
        place=place,
        constraints=tuple(Constraint(**row._asdict()) for row in ask("adopt_constraints")),
        triggers=triggers,
        policies=tuple(policies),
        pieces=tuple(Piece(**row._asdict()) for row in ask("adopt_pieces")),
        remarks=(
            *_of_key(table),
            *_of_security(table, place, policies),
            *_of_rights(table, place),
            *_of_rest(table, triggers),
        ),
    )


def _named(table: Table) -> Identifier:
    return Identifier(table.schema, table.name)


def _of_key(table: Table) -> list[Remark]:
    if not table.key:
        text = f"{table.qualified} has no primary key: a row can't be told from its copy, and can't be adopted"
        return [Remark(level="bad", text=text, remedy="give it a column GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY")]
    if len(table.key) > 1:
        text = f"the key is of several columns ({', '.join(table.key)}): such a table can be looked at, not adopted"
        return [Remark(level="bad", text=text, remedy="give it one column of its own that is unique and NOT NULL")]
    return []


def _of_security(table: Table, place: Place, policies: list[Policy]) -> list[Remark]:
    """Say what row-level security hides: it does so without an error, and a worker idles on a full table (AD-05)."""
    if not table.row_security:
        return []
    ours = [policy.name for policy in policies if policy.ours and policy.permissive]
    owner = "" if table.forced else f", or as {table.owner}, who owns it"
    if not table.filtered:
        who = "which owns it" if place.owns and not (place.super or place.bypasses) else "which sees all rows"
        text = (
            f"row-level security is on: this role, {place.role}, {who}, but another would see no rows and get no error"
        )
        return [Remark(level="note", text=text, remedy=f"let the workers run as a role with BYPASSRLS{owner}")]
    seen = (
        f"shows role {place.role} only what {', '.join(ours)} let{'s' if len(ours) == 1 else ''} through"
        if ours
        else f"hides every row from role {place.role}, without an error"
    )
    policy = remedy("adopt_remedy_policy", table=_named(table), role=Identifier(place.role))
    mend = f"ask as a role with BYPASSRLS{owner}; or {policy}"
    return [Remark(level="bad", text=f"row-level security {seen}: what follows counts those alone", remedy=mend)]


def _of_rights(table: Table, place: Place) -> list[Remark]:
    found = []
    if hidden := [column.name for column in table.columns if not column.readable]:
        text = f"role {place.role} may not read {', '.join(hidden)}"
        mend = remedy(
            "adopt_remedy_grant_columns",
            right=SQL("SELECT"),
            columns=joined(COMMA, map(Identifier, hidden)),
            table=_named(table),
            role=Identifier(place.role),
        )
        found.append(Remark(level="note", text=text + ": they were not looked at", remedy=mend))
    if place.standby:
        found.append(Remark(level="note", text="this is a standby: to connect the table, name the primary"))
    elif lacking := [right for right in ("UPDATE", "TRIGGER") if right not in place.rights]:
        text = f"role {place.role} may only look: to connect the table it needs {' and '.join(lacking)} as well"
        rights = joined(COMMA, [SQL(right) for right in lacking])
        mend = remedy("adopt_remedy_grant", rights=rights, table=_named(table), role=Identifier(place.role))
        found.append(Remark(level="note", text=text, remedy=mend))
    return found


def _of_rest(table: Table, triggers: tuple[Trigger, ...]) -> list[Remark]:
    found = []
    if table.unlogged:
        text = "the table is UNLOGGED: a crash of the server empties it, and no standby has it"
        found.append(Remark(level="note", text=text, remedy=remedy("adopt_remedy_logged", table=_named(table))))
    writing = [trigger.name for trigger in triggers if trigger.enabled and " UPDATE" in trigger.definition]
    if writing:
        text = f"{', '.join(writing)} will run at every write to a row, redrive's too"
        found.append(Remark(level="note", text=text))
    for index in table.indexes:
        if not index.valid:
            text = f"index {index.name} is invalid, left over from a CREATE INDEX CONCURRENTLY that failed"
            found.append(
                Remark(
                    level="note",
                    text=text,
                    remedy=remedy("adopt_remedy_reindex", index=Identifier(table.schema, index.name)),
                )
            )
    return found
