"""BL-01: a transaction that is open for long keeps every dead entry, and a claim must not walk them. Counted in pages.

Time says little on a busy machine, so it is not asked: the clock of these tests is the pages that claims touched.
"""

from __future__ import annotations

from itertools import pairwise

import psycopg
import pytest

from plans import pinned, table
from redrive import claims
from redrive.job import ClaimedJob, Holder
from redrive.lanes import LONGEST, PATIENCE, Lanes, Plan
from redrive.looks import DEAR
from redrive.statements import run
from redrive.trail import HEAD

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
        """Pages of each look at what lies behind the mark."""
        self.marked: list[int] = []
        """Pages of all other claims."""

    def turn(self, limit: int) -> list[int]:
        """Look at what lies behind, where that is due, and claim; give the jobs that were taken."""
        ids: list[int] = []
        if plan := self.lanes.sweep(limit, lambda _kind: limit, self.now):
            jobs, pages = self.claim(plan)
            self.looks.append(pages)
            ids = [job.id for job in self.lanes.swept(plan, jobs, pages * PAGE, self.now)]
        if len(ids) < limit:
            plan = self.lanes.plan(limit - len(ids), lambda _kind: limit, self.now)
            from_head = HEAD in plan.starts
            jobs, pages = self.claim(plan)
            (self.looks if from_head else self.marked).append(pages)
            ids += [job.id for job in self.lanes.claimed(plan, jobs, pages * PAGE, self.now)]
        return ids

    def claim(self, plan: Plan) -> tuple[list[ClaimedJob], int]:
        with self.conn.transaction():
            before = self.touched()
            jobs = run(self.conn, claims.claim(HOLDER, **plan.params()))
            pages = self.touched() - before
        self.now += pages * PAGE
        return jobs, pages

    def work_off(self, jobs: int) -> int:
        """Claim until so many were taken; give the most pages that a claim from the mark has touched."""
        self.marked, taken = [], 0
        while taken < jobs:
            ids = self.turn(50)
            assert ids, "there were jobs to take"
            taken += len(ids)
            self.conn.execute("UPDATE redrive.jobs SET status = 'succeeded' WHERE id = ANY(%s)", [ids])
        return max(self.marked)

    def touched(self) -> int:
        return self.conn.execute(TOUCHED).fetchone()[0]


def row_claims(conn: psycopg.Connection, job: int) -> int:
    return conn.execute("SELECT claims FROM redrive.jobs WHERE id = %s", [job]).fetchone()[0]


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


def test_a_claim_costs_the_same_at_the_end_as_at_the_start_and_recovers_by_itself_bl_01(db, jobs_table):
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
    for _ in range(200):
        claimer.now += LONGEST
        claimer.turn(1)
        if claimer.lanes.heads_are_cheap and row_claims(conn, late):
            break
    else:
        pytest.fail("it goes on as if the horizon were held")


def test_looks_at_what_lies_behind_are_a_fortieth_of_the_work_none_is_long_and_a_late_job_waits_for_a_round(
    db, jobs_table
):
    """BL-01: what the pacing promises, in docs/how-it-works.md."""
    conn, claimer = jobs_table, Claimer(jobs_table)
    add(conn, 3000)
    add(conn, 12_000, before="10 min", stride=1)
    with pinned(db):
        claimer.work_off(3000)
        while not claimer.looks or max(claimer.looks) * PAGE > 12 * DEAR:  # until what is dear was split
            claimer.looks = []
            for _ in range(40):
                claimer.now += LONGEST
                claimer.turn(1)
        whole = naive(conn) * PAGE
        claimer.looks, claimer.marked, began = [], [], claimer.now
        waited = []
        for _ in range(3):
            [late] = add(conn, 1, before="1 day")
            enqueued = claimer.now
            while late not in claimer.turn(2):
                claimer.now += 0.05
                assert claimer.now - enqueued < 3600
            waited.append(claimer.now - enqueued)
        rest = "SELECT EXISTS (SELECT FROM redrive.jobs WHERE status = 'pending')"
        assert conn.execute(rest).fetchone() == (True,), "the lane was full all the while"
    assert not claimer.lanes.heads_are_cheap
    assert max(claimer.looks) * PAGE <= 12 * DEAR < whole / 4, (claimer.looks, whole)
    pieces = sum(len(lane.trail.pieces()) for lane in claimer.lanes._lanes.values())
    assert pieces <= 2 * whole / DEAR, "a piece is split in two, and only one that was dear"
    a_round = whole + pieces * min(claimer.looks) * PAGE  # each look costs something, be there anything dead or not
    assert max(waited) <= 1.2 * PATIENCE * a_round, (waited, whole, pieces)
    assert sum(claimer.looks) * PAGE <= 1.2 * (claimer.now - began) / PATIENCE, (claimer.looks, claimer.now - began)
