"""Takes rows in that are older than the cut-over: only those that somebody names, counted first, and at a rate.

A row that doesn't wait by its own words is put back to waiting, with all its tries, in the transaction that makes its
job. What has a job already is left alone, so an interrupted backfill is said again and goes on where it was.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from psycopg.rows import namedtuple_row, scalar_row
from psycopg.sql import SQL, Literal

from redrive import audit
from redrive.adopt import limbo
from redrive.adopt.bridge import BATCH, keys
from redrive.adopt.report import report
from redrive.adopt.survey import survey
from redrive.adopt.terms import OR, joined, say
from redrive.errors import InvalidOption
from redrive.statements import Statement, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import psycopg
    from psycopg.sql import Composable

    from redrive.adopt.pieces import Pieces

DONE = "done_but_open"


def count(conn: psycopg.Connection[Any], made: Pieces, which: Composable) -> Any:
    """Count the rows that *which* means and that have no job, with the keys of some of them."""
    [row] = run(conn, Statement(made.composed("adopt_count", which=which), namedtuple_row, kept=False))
    return row


def backfill(
    conn: psycopg.Connection[Any],
    made: Pieces,
    which: Composable,
    *,
    rate: float,
    what: dict[str, Any],
    by: str = "",
    reason: str = "",
    most: int | None = None,
    on_taken: Callable[[int], object] = lambda _taken: None,
) -> int:
    """Make jobs of the rows that *which* means, *rate* a second, at most *most*; gives how many there were.

    Takes as long as that takes; it may be broken off at any time. *what* is what the audit says of it.
    """
    taken, after = 0, None
    [act] = run(conn, audit.begin(made.schema, "adopt backfill", what, by=by, reason=reason))
    size = max(1, min(BATCH, int(rate)))
    while found := keys(conn, made, which, after, min(size, size if most is None else most - taken)):
        began, after = time.monotonic(), found[-1]
        parts: dict[str, Composable] = {"keys": Literal(found), "gap": Literal(f"{1 / rate:.6f} s")}
        [now] = run(conn, Statement(made.composed("adopt_readmit", **parts), scalar_row, kept=False))
        taken += now
        run(conn, audit.count(made.schema, act.id, taken))
        on_taken(taken)
        if most is not None and taken >= most:
            break
        time.sleep(max(0.0, now / rate - (time.monotonic() - began)))
    return taken


class Lost:
    """The buckets of an adopted table's lost rows, read as the report on it reads them."""

    def __init__(self, conn: psycopg.Connection[Any], made: Pieces) -> None:
        self._conn, self._made = conn, made
        self._report = report(conn, survey(conn, made.mapping.table), mapping=made.mapping)

    def which(self, buckets: Sequence[str]) -> Composable:
        """Say as a condition that a row is in one of *buckets*.

        Raises:
            InvalidOption: for one that there isn't, or whose rows have been worked already.
        """
        for name in buckets:
            if name not in limbo.BUCKETS:
                known = ", ".join(name for name in limbo.BUCKETS if name != DONE)
                raise InvalidOption(f"there is no bucket {name!r}; there are {known}")
            if name == DONE:
                raise InvalidOption(
                    f"the rows in {DONE} have been worked already, and would be a second time: have them marked as "
                    f"done{self._marking()}"
                )
        ways = [limbo.condition(name, self._report.census.terms) for name in buckets]
        return SQL("({})").format(joined(OR, ways)) if ways else say("adopt_never")

    def _marking(self) -> str:
        """Spell the statement that would mark as done what is done, in the map's words; it is for a human to run."""
        which = limbo.condition(DONE, self._report.census.terms)
        write = self._made.composed("adopt_mark", sets=self._made.success(), which=which)
        return f": {' '.join(write.as_string(None).split())}"

    def count(self, buckets: Sequence[str]) -> list[dict[str, Any]]:
        """Count the rows without a job in each of *buckets*, or in all there are, with the keys of some."""
        names = list(buckets) or [bucket.rule.name for bucket in self._report.buckets]
        found = []
        for name in names:
            row = count(self._conn, self._made, limbo.condition(name, self._report.census.terms))
            rule = limbo.BUCKETS[name]
            told = {"bucket": name, "rows": row.rows, "title": rule.title, "action": rule.action}
            found.append({**told, "examples": row.examples or []})
        return found
