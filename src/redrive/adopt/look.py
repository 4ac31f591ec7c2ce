"""What a stranger's table is: read from the catalogs, without touching a row of it.

It takes no lock that anything waits for, needs no table of redrive's own, and works on a standby and with a role that
may only read.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg.rows import tuple_row
from psycopg.sql import SQL, Composable

from redrive.errors import InvalidOption
from redrive.statements import ANYTHING, Statement, named, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

ANYWHERE = "redrive"
"""Statements about a stranger's table name none of ours, so that any schema composes them."""
TEXTS = ("text", "varchar", "bpchar", "citext", "name")
WHOLE = {"int2": 2**15, "int4": 2**31, "int8": 2**63}
NUMBERS = (*WHOLE, "numeric", "float4", "float8")
TIMES = ("timestamptz", "timestamp", "date")
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "i": "an index", "S": "a sequence"}
# The two spellings that Postgres gives back for column IN ('a', 'b') and for column = 'a', alone in their CHECK.
_LIST = re.compile(
    r"CHECK \(\(?\(?(?:\w+|\"[^\"]+\"|VALUE)\)?(?:::[\w ]+)? = ANY \(\(?ARRAY\[(.*?)\](?:\)?::[\w ]+\[\])?\)\)?\)\)?"
)
_TEXT = re.compile(r"'((?:[^']|'')*)'(?:::[\w ]+(?:\(\d+\))?)?")


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column, and what may stand in it."""

    name: str
    type: str
    """As Postgres spells it: ``character varying(20)``."""
    base: str
    """The name of the type beneath all domains: ``varchar``."""
    width: int | None
    """Characters that fit; None where any number does."""
    nullable: bool
    default: str | None
    generated: bool
    """Postgres makes the value, and nobody may write it."""
    labels: tuple[str, ...]
    """Of an enum."""
    allowed: tuple[str, ...] | None
    """The texts that a CHECK allows, where it is a plain list of them."""
    checks: tuple[str, ...]
    """The CHECKs of this column alone, as Postgres tells them."""
    readable: bool
    writable: bool

    @property
    def vocabulary(self) -> tuple[str, ...] | None:
        """The texts that may stand in it, None where nobody says so."""
        return self.labels or self.allowed


@dataclass(frozen=True, kw_only=True)
class Index:
    """An index."""

    name: str
    definition: str
    primary: bool
    unique: bool
    valid: bool
    predicate: str | None
    columns: tuple[str | None, ...]
    """None where it is an expression."""


_OWN = {"claims", "crashes", "alone", "superseded", "fingerprint", "locked_by"}
"""Columns that only redrive's own table has together."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table."""

    oid: int
    schema: str
    name: str
    qualified: str
    """With its schema, quoted where it must be."""
    partitioned: bool
    owner: str
    estimate: float
    """Rows, as the last ANALYZE had it; negative where there was none."""
    bytes: int
    unlogged: bool
    row_security: bool
    forced: bool
    filtered: bool
    """Whether this role sees only the rows that the policies let through."""
    columns: tuple[Column, ...]
    indexes: tuple[Index, ...]

    @property
    def is_redrives(self) -> bool:
        """Whether it is redrive's own table of jobs, here or of another schema: adopted it would make jobs of jobs."""
        return {column.name for column in self.columns} >= _OWN

    def column(self, name: str) -> Column | None:
        """Find a column by its name."""
        return next((column for column in self.columns if column.name == name), None)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the primary key, or else of a unique index without NULLs and predicate; empty: no key."""
        whole = [index for index in self.indexes if index.valid and index.unique and index.predicate is None]
        for index in whole:  # the primary key comes first
            columns = [self.column(name) if name else None for name in index.columns]
            if all(column is not None and not column.nullable for column in columns):
                return tuple(column.name for column in columns if column is not None)
        return ()


def look(conn: psycopg.Connection[Any], name: str) -> Table:
    """Read what the table called *name* is; it may be quoted, and without its schema the search path finds it.

    Raises:
        InvalidOption: when there is no such table, or it is none.
    """
    oid = _find(conn, name)
    rows = run(conn, named("adopt_table", ANYWHERE, table=oid))
    if not rows:  # a number is taken for a table's own, whether or not it is there
        raise InvalidOption(f"there is no table {name} in this database")
    [row] = rows
    if row.sort not in ("r", "p"):
        what = _KINDS.get(row.sort, "no table")
        raise InvalidOption(f"{row.qualified} is {what}: name the table that the application writes its rows into")
    columns = [_column(each) for each in run(conn, named("adopt_columns", ANYWHERE, table=oid))]
    indexes = [_index(each) for each in run(conn, named("adopt_indexes", ANYWHERE, table=oid))]
    return Table(
        oid=row.oid,
        schema=row.schema,
        name=row.name,
        qualified=row.qualified,
        partitioned=row.sort == "p",
        owner=row.owner,
        estimate=row.estimate,
        bytes=row.bytes,
        unlogged=row.persistence == "u",
        row_security=row.row_security,
        forced=row.forced,
        filtered=row.filtered,
        columns=tuple(columns),
        indexes=tuple(indexes),
    )


@contextmanager
def untouched(conn: psycopg.Connection[Any], seconds: float) -> Iterator[None]:
    """Open a transaction on an autocommit connection that can write nothing and soon gives up waiting for a lock.

    Even functions of the catalogs wait, for a table that somebody alters.
    """
    before, conn.read_only = conn.read_only, True
    try:
        with conn.transaction():
            run(conn, named("adopt_settings", ANYWHERE, timeout=f"{max(seconds, 0.1) * 1000:.0f}ms"))
            yield
    finally:
        conn.read_only = before


def asked(conn: psycopg.Connection[Any], text: Composable, seconds: float) -> list[Any]:
    """Ask what was composed, in a read-only transaction of its own, and give the rows as tuples.

    Whatever a stranger wrote can be read: times and JSON that Python has no room for.

    Raises:
        psycopg.errors.QueryCanceled: when it takes longer than *seconds*.
        psycopg.errors.LockNotAvailable: when somebody holds the table for himself.
    """
    with untouched(conn, seconds):
        return run(conn, Statement(SQL("{}").format(text), tuple_row, binary=True, loaders=ANYTHING, kept=False))


def _find(conn: psycopg.Connection[Any], name: str) -> int:
    import psycopg  # noqa: PLC0415 - its errors

    bare = name.rpartition(".")[2].strip('"')
    try:
        [row] = run(conn, named("adopt_find", ANYWHERE, name=name, bare=bare))
    except psycopg.errors.InvalidName as error:
        raise InvalidOption(
            f'{name!r} is no name of a table: write schema.table, and "Quoted" where it has to be'
        ) from error
    if row.oid is None:
        alike = f"; there are {', '.join(row.alike)}" if row.alike else ": give its schema as well, as in app.mail_jobs"
        raise InvalidOption(f"there is no table {name} in this database{alike}")
    return int(row.oid)


def _column(row: Any) -> Column:
    lists = [found for check in row.checks if (found := listed(check)) is not None]
    allowed = tuple(text for text in lists[0] if all(text in each for each in lists)) if lists else None
    return Column(**{**row._asdict(), "labels": tuple(row.labels), "checks": tuple(row.checks), "allowed": allowed})


def _index(row: Any) -> Index:
    return Index(**{**row._asdict(), "columns": tuple(row.columns)})


def listed(check: str) -> tuple[str, ...] | None:
    """Read the texts that a CHECK allows; None where it is anything but a plain list of them.

    What is not read here is still obeyed: Postgres itself is asked before a value is accepted.
    """
    found = _LIST.fullmatch(check.removesuffix(" NOT VALID"))
    if found is None:
        return None
    texts = _TEXT.findall(found[1])
    return tuple(text.replace("''", "'") for text in texts) or None
