"""BL-01: a transaction that is open for long keeps every dead entry, and a claim must not walk them. Counted in pages.

Time says little on a busy machine, so it is not asked: the clock of these tests is the pages that claims touched.
"""

from __future__ import annotations

from itertools import pairwise

import psycopg
import pytest

from plans import pinned, table
from redrive import store
from redrive.job import Holder
from redrive.lanes import PATIENCE, Lanes
from redrive.statements import run

PAGE = 1e-4
"""Seconds that a page is said to take, so that a look from the head over some thousand is a dear one."""
HOLDER = Holder("me", "redrive", None, None)
TOUCHED = """
    SELECT sum(pg_stat_get_xact_blocks_fetched(oid))::int
    FROM pg_class WHERE relnamespace = 'redrive'::regnamespace AND relname LIKE 'jobs%'
"""


class Claimer:
    """A worker's claims without the worker: each ends in success at once."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self.conn = conn
        self.lanes = Lanes(["mail"])
        self.now = 1000.0
        self.looks: list[int] = []
        """Pages of each claim from the head."""
        self.marked = 0
        """Pages of all others."""

    def claim(self, limit: int) -> tuple[int, list[int]]:
        """Claim once; give the pages that it touched and the jobs that it took."""
        plan = self.lanes.plan(limit, lambda _kind: limit, self.now)
        with self.conn.transaction():
            before = self.touched()
            jobs = run(self.conn, store.claim(HOLDER, **plan.params()))
            pages = self.touched() - before
        self.now += pages * PAGE
        self.lanes.claimed(plan, jobs, pages * PAGE, self.now)
        if plan.whole:
            self.looks.append(pages)
        else:
            self.marked += pages
        return pages, [job.id for job in jobs]

    def work_off(self, jobs: int) -> int:
        """Claim until so many were taken; give the most pages that a claim from the mark has touched."""
        most, taken = 0, 0
        while taken < jobs:
            heads = len(self.looks)
            pages, ids = self.claim(50)
            assert ids, "there were jobs to take"
            taken += len(ids)
            self.conn.execute("UPDATE redrive.jobs SET status = 'succeeded' WHERE id = ANY(%s)", [ids])
            most = max(most, pages if len(self.looks) == heads else 0)
        return most

    def touched(self) -> int:
        return self.conn.execute(TOUCHED).fetchone()[0]


def naive(conn: psycopg.Connection) -> int:
    """Give the pages that a claim touches which begins at the head, as the tutorial's does."""
    with conn.transaction(force_rollback=True):
        before = conn.execute(TOUCHED).fetchone()[0]
        conn.execute(
            "SELECT id FROM redrive.jobs"
            " WHERE status = 'pending' AND kind = 'mail' AND priority = 5 AND lane = ''"
            " AND run_at <= now() ORDER BY run_at, id FOR UPDATE SKIP LOCKED LIMIT 50"
        )
        return conn.execute(TOUCHED).fetchone()[0] - before


def add(conn: psycopg.Connection, jobs: int, before: str = "1 hour", stride: int = 7919) -> list[int]:
    """Add due jobs; neighbours in time lie *stride* rows apart, so that a walk over them shows in the pages."""
    insert = (
        "INSERT INTO redrive.jobs (kind, run_at)"
        " SELECT 'mail', now() - %s::interval + i * %s %% %s * interval '1 ms'"
        " FROM generate_series(1, %s) AS i RETURNING id"
    )
    return [row[0] for row in conn.execute(insert, [before, stride, jobs, jobs])]


@pytest.fixture
def jobs_table(db):
    with table(db) as conn:
        yield conn


def test_a_claim_costs_the_same_at_the_end_as_at_the_start_and_recovers_by_itself(db, jobs_table):
    """BL-01 (b), (d): while the horizon is held, and after; a claim that begins at the head gets dearer and dearer."""
    conn, claimer = jobs_table, Claimer(jobs_table)
    add(conn, 12_000)
    with pinned(db):
        marked, from_head = [], []
        for _ in range(4):
            marked.append(claimer.work_off(2500))
            conn.execute("VACUUM redrive.jobs")
            from_head.append(naive(conn))
    assert max(marked) <= 1.3 * marked[0], marked
    assert all(later > earlier + 2000 for earlier, later in pairwise(from_head)), from_head
    conn.execute("VACUUM redrive.jobs")
    assert naive(conn) < 200
    [late] = add(conn, 1, before="1 day")
    claimer.now = max(claimer.now, claimer.lanes.head_held_until) + 1
    assert claimer.claim(50)[1][0] == late


def test_dear_looks_from_the_head_are_a_twentieth_of_the_work_and_a_late_job_waits_for_one_at_most(db, jobs_table):
    """BL-01: what the pacing promises, in docs/how-it-works.md: a pause of PATIENCE times as long as the look took."""
    conn, claimer = jobs_table, Claimer(jobs_table)
    add(conn, 500)
    add(conn, 6000, before="10 min", stride=1)
    with pinned(db):
        claimer.work_off(500)
        claimer.looks, claimer.marked = [], 0
        waited = []
        for _ in range(3):
            [late] = add(conn, 1, before="1 day")
            began = claimer.now
            while late not in claimer.claim(20)[1]:
                assert claimer.now - began < 3600
            waited.append(claimer.now - began)
        rest = "SELECT EXISTS (SELECT FROM redrive.jobs WHERE status = 'pending')"
        assert conn.execute(rest).fetchone() == (True,), "the lane was full all the while"
    look, claim = max(claimer.looks) * PAGE, 500 * PAGE
    assert min(claimer.looks) > 500, "each of them walked"
    assert max(waited) <= max(1.0, PATIENCE * look) + look + claim, (waited, look)
    assert claimer.marked >= PATIENCE * sum(claimer.looks[:-1]), (claimer.marked, claimer.looks)
