"""How Postgres answers the statements that run all day: by which index, and never by a walk.

Here with some ten thousand rows of each sort, where the planner has long made up its mind. `make plans` has the same
with half a million, and with a million dead entries (tests/test_plans_full.py).
"""

from __future__ import annotations

import itertools

import psycopg
import pytest

from plans import SHAPES, bury, call, fill, look, marks, matrix, pinned, prepare, table
from redrive import Queue

ROWS = 40_000


@pytest.mark.parametrize("shape", SHAPES)
def test_plans_hold_with_statistics_of_every_age(db, shape):
    with table(db) as conn:
        assert matrix(conn, shape, ROWS, ("force_custom_plan", "force_generic_plan")) == []


def test_dead_entries_that_must_be_kept_are_read_once_from_a_head_and_never_from_a_mark(db):
    """BL-01: what starts at a mark, or finds its rows by their ids, does not notice them."""
    with table(db) as conn:
        fill(conn, "pending", ROWS)
        with pinned(db):
            bury(conn)
            assert look(conn, "dead entries", start=marks(conn), dead=2 * ROWS) == []


def test_statistics_from_before_the_first_lease(db):
    """A column was all NULL at the ANALYZE: a join on it would read the whole table for each batch."""
    with table(db) as conn:
        fill(conn, "pending", ROWS)
        conn.execute("ANALYZE redrive.jobs")
        conn.execute("UPDATE redrive.jobs SET status = 'running', locked_by = 'me', claims = 1, locked_at = now()")
        assert look(conn, "before the first lease", ("succeed_jobs", "finish_jobs", "cancel_requests")) == []


def test_a_batch_with_keys_never_goes_by_a_plan_from_when_the_table_was_small(db):
    """In a session of the user's, where walks are allowed: half a million keys by half a million jobs."""
    queue = Queue(db)
    with table(db) as conn:
        conn.prepare_threshold = 0
        conn.execute("SET plan_cache_mode = force_generic_plan")
        conn.execute("ANALYZE redrive.jobs")
        for batch in range(7):
            queue.enqueue_many("mail", [{}] * 2, key=lambda _, batch=batch: f"first {batch}", connection=conn)
        fill(conn, "pending", ROWS)
        touched = "SELECT pg_stat_get_xact_blocks_fetched('redrive.jobs'::regclass)"
        with conn.transaction():
            before = conn.execute(touched).fetchone()[0]
            numbers = iter(range(500))
            queue.enqueue_many("mail", [{}] * 500, key=lambda _: f"new {next(numbers)}", connection=conn)
            assert conn.execute(touched).fetchone()[0] - before < 10_000
    queue.close()


SWITCHES = ("enable_hashjoin", "enable_mergejoin", "enable_material", "enable_hashagg", "enable_sort")
USERS_INDEXES = (
    "CREATE INDEX ON redrive.jobs (kind)",
    "CREATE INDEX ON redrive.jobs (run_at)",
    "CREATE INDEX ON redrive.jobs (status, run_at)",
)


@pytest.mark.parametrize(
    ("name", "indexes"),
    [("claim_jobs", ()), ("claim_jobs", USERS_INDEXES), ("claim_limited", USERS_INDEXES)],
    ids=["our indexes", "the user's indexes beside ours", "with limits"],
)
def test_a_claim_never_takes_or_locks_more_than_its_limit_whatever_the_plan(conn, db, name, indexes):
    """CL-01: under every combination of join and sort methods, before and after ANALYZE, on a table that grew since."""
    for each in indexes:
        conn.execute(each)
    if name == "claim_limited":
        conn.execute("INSERT INTO redrive.kinds (kind, running_most) VALUES ('mail', 100)")
    conn.execute("INSERT INTO redrive.jobs (kind) VALUES ('mail')")
    conn.execute("VACUUM ANALYZE redrive.jobs")
    conn.execute(
        "INSERT INTO redrive.jobs (kind, lane) SELECT 'mail', CASE WHEN i > 5 THEN 'a' ELSE '' END"
        " FROM generate_series(1, 10) AS i"
    )
    lanes = {"kinds": ["mail"] * 2, "priorities": [5] * 2, "lanes": ["", "a"], "starts": ["-infinity"] * 2}
    claim = lanes | {"quotas": [10, 10], "start_ids": [0, 0], "ends": [], "end_ids": [], "limit": 2, "worker": "me"}
    claim |= {"locked": ["mail"]}
    free = "SELECT count(*) FROM (SELECT FROM redrive.jobs FOR UPDATE SKIP LOCKED) unlocked"
    modes = ("generic", "custom")[: 2 - (name == "claim_limited")]  # which takes its time to plan; workers say generic
    states = itertools.product((False, True), *itertools.repeat((True, False), len(SWITCHES)), modes)
    prepare(conn, name)
    said = call(name, claim)
    with psycopg.connect(db, autocommit=True) as other:
        for analyze, *on, plan in states:
            if analyze:
                conn.execute("ANALYZE redrive.jobs")
            with conn.transaction(force_rollback=True):
                for switch, value in zip(SWITCHES, on, strict=True):
                    conn.execute(f"SET LOCAL {switch} = {value}")
                conn.execute(f"SET LOCAL plan_cache_mode = force_{plan}_plan")
                assert len(conn.execute(said).fetchall()) == 2, (analyze, on, plan)
                assert other.execute(free).fetchone() == (9,), (analyze, on, plan)
