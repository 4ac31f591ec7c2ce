"""`make plans`: the plans of tests/test_plans.py at half a million rows and a million dead entries. Minutes."""

from __future__ import annotations

import pytest

from plans import SHAPES, bury, fill, look, marks, matrix, pinned, table

pytestmark = pytest.mark.plans

ROWS = 500_000
DEAD = 1_000_000
MODES = ("force_custom_plan", "force_generic_plan", "auto")


@pytest.mark.parametrize("shape", SHAPES)
def test_half_a_million_rows(db, shape):
    with table(db) as conn:
        assert matrix(conn, shape, ROWS, MODES) == []


def test_a_million_dead_entries_that_must_be_kept(db):
    """BL-01: read once from a head, and never from a mark."""
    with table(db) as conn:
        fill(conn, "pending", DEAD)
        with pinned(db):
            bury(conn)
            found = look(conn, "never analyzed", modes=MODES[:2], start=marks(conn), dead=2 * DEAD)
            conn.execute("ANALYZE redrive.jobs")
            assert found + look(conn, "analyzed", modes=MODES[:2], start=marks(conn), dead=2 * DEAD) == []
