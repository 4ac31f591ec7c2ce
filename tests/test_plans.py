"""How Postgres answers the statements that run all day, at half a million rows: by which index, and never by a walk.

Each is explained as it stands in queries.sql, planned for its values and for any, on a table that was never analyzed,
on one that was, and on one whose statistics are of another time. What is bounded is the pages touched: a walk over the
table or over one of its indexes is thousands more.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg.sql import SQL, Composed, Literal

from redrive.lanes import Survey
from redrive.sql import query

ROWS = 500_000
KINDS = ["mail", "export", "hook"]
LANES = [(kind, priority, lane) for kind in KINDS for priority in (2, 5) for lane in ("", "a")]

FILL = """
    INSERT INTO redrive.jobs (kind, priority, lane, run_at, key, payload, status, claims, locked_by, locked_at,
                              updated_at, created_at)
    SELECT (array['mail', 'export', 'hook'])[1 + i %% 3], CASE WHEN i %% 2 = 0 THEN 2 ELSE 5 END,
           CASE WHEN i %% 4 < 2 THEN '' ELSE 'a' END, now() + %(begin)s::interval + i * interval '100 ms',
           CASE WHEN i %% 10 = 0 THEN %(prefix)s || i END, '{"to": "someone@example.com"}', %(status)s,
           CASE WHEN %(status)s <> 'pending' THEN 1 ELSE 0 END, CASE WHEN %(status)s <> 'pending' THEN 'me' END,
           CASE WHEN %(status)s <> 'pending' THEN now() END, now() - interval '8 days', now() - interval '9 days'
    FROM generate_series(1, %(rows)s) AS i
"""


class Pin(NamedTuple):
    """What the plan of a statement may look like."""

    indexes: set[str]
    """Those of jobs that it may use, and no other way to it."""
    needs: str
    pages: int
    ordered: bool = False
    """The order comes from the index, so nothing is sorted."""


PINS = {
    "claim_jobs": Pin({"jobs_claim_idx", "jobs_pkey"}, "jobs_claim_idx", 6000, ordered=True),
    "claim_alone": Pin({"jobs_alone_idx", "jobs_pkey"}, "jobs_alone_idx", 100),
    "survey_lanes": Pin({"jobs_claim_idx", "jobs_alone_idx"}, "jobs_claim_idx", 500, ordered=True),
    "oldest_due": Pin({"jobs_claim_idx"}, "jobs_claim_idx", 500),
    "succeed_jobs": Pin({"jobs_pkey"}, "jobs_pkey", 5000),
    "finish_jobs": Pin({"jobs_pkey"}, "jobs_pkey", 9000),
    "reap_jobs": Pin({"jobs_running_idx", "jobs_pkey"}, "jobs_running_idx", 9000),
    "bury_hopeless": Pin({"jobs_expiry_idx", "jobs_exhausted_idx", "jobs_pkey"}, "jobs_expiry_idx", 500),
    "scan_finished": Pin({"jobs_pkey"}, "jobs_pkey", 500, ordered=True),
    "delete_finished": Pin({"jobs_pkey"}, "jobs_pkey", 3000),
    "hand_back_strays": Pin({"jobs_running_idx"}, "jobs_running_idx", 500),
    "cancel_requests": Pin({"jobs_pkey"}, "jobs_pkey", 3000),
    "insert_job": Pin({"jobs_key_idx"}, "jobs_key_idx", 200),
    "insert_jobs": Pin({"jobs_key_idx"}, "jobs_key_idx", 12_000),
}


@pytest.fixture
def table(db: str) -> Iterator[psycopg.Connection]:
    """A connection like those of a worker, to a table that nobody analyzes unasked."""
    with psycopg.connect(db, autocommit=True, options="-c jit=off -c max_parallel_workers_per_gather=0") as conn:
        conn.execute("ALTER TABLE redrive.jobs SET (autovacuum_enabled = off)")
        yield conn


def fill(conn: psycopg.Connection, status: str, rows: int, begin: str = "-1 day", prefix: str = "k") -> None:
    with psycopg.ClientCursor(conn) as cursor:
        cursor.execute(FILL, {"status": status, "rows": rows, "begin": begin, "prefix": prefix})


def crowd(conn: psycopg.Connection) -> None:
    """Add what happens beside the many: jobs that run, some of them nobody's, suspects and deadlines."""
    conn.execute(
        "INSERT INTO redrive.workers (name, host, pid, version, kinds, concurrency, lease, heartbeat_at)"
        " SELECT 'w' || i, 'h', 1, '1', '{}', 10, '30 s', now() - CASE WHEN i % 5 = 0 THEN interval '1 h' ELSE '0' END"
        " FROM generate_series(1, 20) AS i"
    )
    changes = [
        ("status = 'running', claims = 1, locked_by = 'me', locked_at = now()", 200),
        ("status = 'running', claims = 1, locked_by = 'w' || (1 + id % 20), locked_at = now()", 500),
        ("alone = true", 20),
        ("expires_at = now() + interval '1 h'", 5000),
    ]
    for change, rows in changes:
        conn.execute(
            f"UPDATE redrive.jobs SET {change} WHERE id = ANY(ARRAY("
            f"SELECT id FROM redrive.jobs WHERE status = 'pending' AND NOT alone ORDER BY id LIMIT {rows}))"
        )


def params(conn: psycopg.Connection) -> dict[str, dict[str, Any]]:
    """What each statement is called with: a batch of 200 jobs, running ones where there are any."""
    running = "SELECT id FROM redrive.jobs WHERE status = 'running' AND locked_by = 'me' ORDER BY id LIMIT 200"
    ids = [row[0] for row in conn.execute(running)] or list(range(1001, 1201))
    n = len(ids)
    new = {"kind": "mail", "run_at": None, "delay": 0.0, "priority": 5, "max_attempts": 5, "lane": ""}
    new |= {"expires_at": None, "expires_in": None, "metadata": None}
    ended = {"outcomes": "retried", "delays": 1.0, "errors": "x", "results": None, "durations": 0.1}
    ended |= {"error_types": "E", "messages": "m", "tracebacks": "t", "fingerprints": "f"}
    return {
        "claim_jobs": {
            "kinds": [lane[0] for lane in LANES],
            "priorities": [lane[1] for lane in LANES],
            "lanes": [lane[2] for lane in LANES],
            "quotas": [20] * len(LANES),
            "marks": ["-infinity"] * len(LANES),
            "mark_ids": [0] * len(LANES),
            "limit": 100,
            "worker": "me",
        },
        "claim_alone": {"kinds": KINDS, "worker": "me"},
        "survey_lanes": Survey(KINDS).params(),
        "oldest_due": {},
        "succeed_jobs": {"ids": ids, "claims": [1] * n, "worker": "me"},
        "finish_jobs": {"ids": ids, "claims": [1] * n, "worker": "me", "max_crashes": 3}
        | {name: [value] * n for name, value in ended.items()},
        "reap_jobs": {
            "own_name": "^w",
            "judge": "w1",
            "orphaned": ["me"],
            "lease": 30.0,
            "foreign_age": 600.0,
            "max_crashes": 3,
        },
        "bury_hopeless": {},
        "scan_finished": {
            "after": 0,
            "window": 1000,
            "shortest": 86_400.0,
            "succeeded": 6e5,
            "failed": 2e6,
            "dead": 3e7,
        },
        "delete_finished": {"ids": ids, "shortest": 1.0},
        "hand_back_strays": {"worker": "me", "known": ids, "age": 1.0},
        "cancel_requests": {"ids": ids, "claims": [1] * n, "worker": "me"},
        "insert_job": new | {"key": "k70", "payload": "{}"},
        "insert_jobs": new | {"keys": [f"k{i}" for i in range(500)], "payloads": ["{}"] * 500},
    }


def executed(conn: psycopg.Connection, name: str, given: dict[str, Any]) -> Composed:
    """PREPARE the statement *name* and give the EXECUTE that calls it."""
    used: list[str] = []

    def numbered(match: re.Match[str]) -> str:
        if match[1] not in used:
            used.append(match[1])
        return f"${used.index(match[1]) + 1}"

    text = re.sub(r"%\((\w+)\)s", numbered, query(name, "redrive").as_string(conn)).replace("%%", "%")
    conn.execute("DEALLOCATE ALL")
    conn.execute(f"PREPARE it AS {text}")
    values = SQL(", ").join(Literal(given[each]) for each in used)
    return SQL("EXECUTE it ({})").format(values) if used else SQL("EXECUTE it").format()


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", []):
        yield from nodes(each)


def faults(conn: psycopg.Connection, when: str, names: set[str] = frozenset(PINS)) -> list[str]:
    """Explain every statement, planned for its values and for any, and list what is not as pinned."""
    found = []
    calls = params(conn)
    for name, mode in itertools.product(sorted(names), ("force_custom_plan", "force_generic_plan")):
        call = executed(conn, name, calls[name])
        with conn.transaction(force_rollback=True):
            conn.execute(f"SET LOCAL plan_cache_mode = {mode}")
            [[explained]] = conn.execute(SQL("EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT json) ") + call)
        found += [f"{when}, {mode}: {name} {fault}" for fault in _faults(explained[0]["Plan"], PINS[name])]
    return found


def _faults(plan: dict[str, Any], pin: Pin) -> Iterator[str]:
    parts = list(nodes(plan))
    indexes = {part["Index Name"] for part in parts if "Index Name" in part and part["Index Name"].startswith("jobs_")}
    if any(part["Node Type"] == "Seq Scan" and part["Relation Name"] == "jobs" for part in parts):
        yield "walks the table"
    if not indexes <= pin.indexes or pin.needs not in indexes:
        yield f"uses {sorted(indexes)}"
    if pin.ordered and any("Sort" in part["Node Type"] for part in parts):
        yield "sorts"
    if (pages := plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]) > pin.pages:
        yield f"touches {pages} pages"


@pytest.mark.slow
def test_half_a_million_pending_jobs(table):
    fill(table, "pending", ROWS)
    found = faults(table, "never analyzed")
    table.execute("ANALYZE redrive.jobs")
    assert found + faults(table, "analyzed") == []


@pytest.mark.slow
def test_half_a_million_finished_jobs_and_ten_pending(table):
    fill(table, "succeeded", ROWS)
    fill(table, "pending", 10, prefix="new")
    found = faults(table, "never analyzed")
    table.execute("ANALYZE redrive.jobs")
    assert found + faults(table, "analyzed") == []


@pytest.mark.slow
def test_statistics_of_a_quiet_hour_before_the_rush(table):
    """The planner believes that nothing is pending, and then there are more than it can look at one by one."""
    fill(table, "succeeded", ROWS // 2)
    table.execute("ANALYZE redrive.jobs")
    fill(table, "pending", ROWS // 2)
    found = faults(table, "stale")
    crowd(table)
    found += faults(table, "stale and crowded")
    table.execute("ANALYZE redrive.jobs")
    assert found + faults(table, "analyzed and crowded") == []


def test_statistics_from_before_the_first_lease(table):
    """A column was all NULL at the ANALYZE: a join on it would read the whole table for each batch."""
    fill(table, "pending", ROWS // 8)
    table.execute("ANALYZE redrive.jobs")
    table.execute("UPDATE redrive.jobs SET status = 'running', locked_by = 'me', claims = 1, locked_at = now()")
    found = faults(table, "before the first lease", {"succeed_jobs", "finish_jobs", "cancel_requests"})
    assert found == []


def test_everything_is_for_later(table):
    fill(table, "pending", ROWS // 5, begin="1 day")
    found = faults(table, "never analyzed")
    table.execute("ANALYZE redrive.jobs")
    assert found + faults(table, "analyzed") == []


SWITCHES = ("enable_hashjoin", "enable_mergejoin", "enable_material", "enable_hashagg", "enable_sort")
USERS_INDEXES = (
    "CREATE INDEX ON redrive.jobs (kind)",
    "CREATE INDEX ON redrive.jobs (run_at)",
    "CREATE INDEX ON redrive.jobs (status, run_at)",
)


@pytest.mark.parametrize("indexes", [(), USERS_INDEXES], ids=["our indexes", "the user's indexes beside ours"])
def test_a_claim_never_takes_or_locks_more_than_its_limit_whatever_the_plan(conn, db, indexes):
    """CL-01: under every combination of join and sort methods, before and after ANALYZE, on a table that grew since."""
    for each in indexes:
        conn.execute(each)
    conn.execute("INSERT INTO redrive.jobs (kind) VALUES ('mail')")
    conn.execute("VACUUM ANALYZE redrive.jobs")
    conn.execute(
        "INSERT INTO redrive.jobs (kind, lane) SELECT 'mail', CASE WHEN i > 5 THEN 'a' ELSE '' END"
        " FROM generate_series(1, 10) AS i"
    )
    lanes = {"kinds": ["mail"] * 2, "priorities": [5] * 2, "lanes": ["", "a"], "marks": ["-infinity"] * 2}
    claim = lanes | {"quotas": [10, 10], "mark_ids": [0, 0], "limit": 2, "worker": "me"}
    free = "SELECT count(*) FROM (SELECT FROM redrive.jobs FOR UPDATE SKIP LOCKED) unlocked"
    states = itertools.product((False, True), *itertools.repeat((True, False), len(SWITCHES)), ("custom", "generic"))
    with psycopg.connect(db, autocommit=True) as other:
        for analyze, *on, plan in states:
            if analyze:
                conn.execute("ANALYZE redrive.jobs")
            call = executed(conn, "claim_jobs", claim)
            with conn.transaction(force_rollback=True):
                for switch, value in zip(SWITCHES, on, strict=True):
                    conn.execute(f"SET LOCAL {switch} = {value}")
                conn.execute(f"SET LOCAL plan_cache_mode = force_{plan}_plan")
                assert len(conn.execute(call).fetchall()) == 2, (analyze, on, plan)
                assert other.execute(free).fetchone() == (9,), (analyze, on, plan)
