"""Takes rows in that are older than the cut-over: only those that somebody names, counted first, and at a rate.

A row that doesn't wait by its own words is put back to waiting, with all its tries, in the transaction that makes its
job. What has a job already is left alone, so an interrupted backfill is said again and goes on where it was.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from psycopg.rows import namedtuple_row, scalar_row
from psycopg.sql import Literal

from redrive import audit
from redrive.adopt.bridge import BATCH, keys
from redrive.statements import Statement, run

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg
    from psycopg.sql import Composable

    from redrive.adopt.pieces import Pieces


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
