"""How Postgres answers the statements that run all day: what is pinned of each, and the tables to try it on.

A statement is explained as it stands in queries.sql and as a worker says it: prepared, planned for its values or for
any. What is pinned is the index, that nothing is sorted, and how many rows of jobs and pages are touched. A walk over
the table or over one of its indexes is thousands more.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import psycopg
from psycopg.sql import SQL, Composed, Identifier, Literal

from redrive.lanes import Lanes
from redrive.sql import query

KINDS = ["mail", "export", "hook"]
LANES = [(kind, priority, lane) for kind in KINDS for priority in (2, 5) for lane in ("", "a")]
HEAD = ("-infinity", 0)
SESSION = "-c jit=off -c max_parallel_workers_per_gather=0"

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
    """With room for the dead versions that explained batches leave behind when they are taken back."""
    rows: int = 2000
    """Rows of jobs that it may read, those filtered away included, on any one road."""
    ordered: bool = False
    """The order comes from the index, so nothing is sorted."""
    helped: bool = False
    """It needs what a worker's session has off: reading tables whole."""
    limited: bool = False
    """All kinds have limits, so that there is something to count."""
    walks: bool = False
    """It begins at the head of an index, so it reads over what is dead there; whoever says it says it seldom."""


PINS = {
    "claim_jobs": Pin({"jobs_claim_idx", "jobs_pkey"}, "jobs_claim_idx", 6000, ordered=True),
    "claim_limited": Pin({"jobs_claim_idx", "jobs_counted_idx"}, "jobs_claim_idx", 6000, limited=True),
    "claim_alone": Pin({"jobs_alone_idx", "jobs_counted_idx"}, "jobs_alone_idx", 120),
    "survey_lanes": Pin(
        {"jobs_claim_idx", "jobs_alone_idx"}, "jobs_claim_idx", 500, ordered=True, helped=True, walks=True
    ),
    "oldest_due": Pin({"jobs_claim_idx"}, "jobs_claim_idx", 500, walks=True),
    "succeed_jobs": Pin({"jobs_pkey"}, "jobs_pkey", 5000),
    "finish_jobs": Pin({"jobs_pkey"}, "jobs_pkey", 9000),
    "reap_jobs": Pin({"jobs_running_idx", "jobs_pkey"}, "jobs_running_idx", 9000, walks=True),
    "bury_hopeless": Pin({"jobs_expiry_idx", "jobs_exhausted_idx", "jobs_pkey"}, "jobs_expiry_idx", 500),
    "scan_finished": Pin({"jobs_pkey"}, "jobs_pkey", 2500, ordered=True),
    "delete_finished": Pin({"jobs_pkey"}, "jobs_pkey", 3000),
    "hand_back_mislaid": Pin({"jobs_running_idx"}, "jobs_running_idx", 2500, walks=True),
    "cancel_requests": Pin({"jobs_pkey"}, "jobs_pkey", 3000),
    "renew_leases": Pin({"jobs_pkey"}, "jobs_pkey", 5000),
    "write_progress": Pin({"jobs_pkey"}, "jobs_pkey", 5000),
    "complete_job": Pin({"jobs_pkey"}, "jobs_pkey", 100),
    "acquit_job": Pin({"jobs_pkey"}, "jobs_pkey", 100),
    "locked_jobs": Pin({"jobs_pkey"}, "jobs_pkey", 5000),
    "was_written": Pin({"jobs_pkey"}, "jobs_pkey", 3000),
    "written_outcomes": Pin({"jobs_pkey"}, "jobs_pkey", 12_000),
    "survey_held": Pin(
        {"jobs_running_idx", "jobs_expiry_idx", "jobs_exhausted_idx"}, "jobs_running_idx", 500, walks=True
    ),
    "silent_holders": Pin({"jobs_running_idx"}, "jobs_running_idx", 6000, rows=100_000, walks=True),
    "archive_finished": Pin({"jobs_pkey"}, "jobs_pkey", 9000),
    "depths": Pin(
        {
            "jobs_claim_idx",
            "jobs_running_idx",
            "jobs_dead_idx",
            "jobs_strange_idx",
            "jobs_ended_idx",
            "jobs_retrying_idx",
        },
        "jobs_claim_idx",
        6000,
        walks=True,
    ),
    "insert_keyed_job": Pin({"jobs_key_idx"}, "jobs_key_idx", 200),
    "insert_jobs": Pin({"jobs_key_idx"}, "jobs_key_idx", 12_000),
}


PRODUCERS = {"insert_keyed_job", "insert_jobs"}
"""Said in sessions of the user's, with the user's settings."""


@contextlib.contextmanager
def table(dsn: str) -> Iterator[psycopg.Connection]:
    """Give a connection like those of a worker, to a table that nobody analyzes unasked."""
    with psycopg.connect(dsn, autocommit=True, options=SESSION) as conn:
        conn.prepare_threshold = None  # psycopg's own housekeeping of prepared statements would take ours along
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


def pending(conn: psycopg.Connection, rows: int) -> None:
    """All are due."""
    fill(conn, "pending", rows)


def crowded(conn: psycopg.Connection, rows: int) -> None:
    """All are due, and much goes on beside."""
    fill(conn, "pending", rows)
    crowd(conn)


def done(conn: psycopg.Connection, rows: int) -> None:
    """All are finished, and ten are due."""
    fill(conn, "succeeded", rows)
    fill(conn, "pending", 10, prefix="new")


def future(conn: psycopg.Connection, rows: int) -> None:
    """All are for later."""
    fill(conn, "pending", rows, begin="1 day")


def bury(conn: psycopg.Connection) -> None:
    """Run all that is pending to its end; inside :func:`pinned` Postgres must keep an index entry of each step."""
    for change in ("status = 'running', claims = 1, locked_by = 'me', locked_at = now()", "status = 'succeeded'"):
        was = "pending" if "running" in change else "running"
        conn.execute(f"UPDATE redrive.jobs SET {change} WHERE status = '{was}'")
    fill(conn, "pending", 10, begin="-1 min", prefix="new")


SHAPES: dict[str, Callable[[psycopg.Connection, int], None]] = {
    shape.__name__: shape for shape in (pending, crowded, done, future)
}


@contextlib.contextmanager
def pinned(dsn: str) -> Iterator[None]:
    """Hold a snapshot, as a long report does: nothing that dies meanwhile can be removed."""
    with psycopg.connect(dsn) as report:
        report.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        report.execute("SELECT FROM redrive.jobs LIMIT 1")
        yield


def forget_statistics(conn: psycopg.Connection) -> None:
    """Make the table one that was never analyzed."""
    jobs = "(SELECT oid FROM pg_class WHERE relnamespace = 'redrive'::regnamespace AND relname LIKE 'jobs%')"
    conn.execute(f"DELETE FROM pg_statistic WHERE starelid IN {jobs}")
    # -1 is "never" from 14 on, and 0 is before
    never = -1 if conn.info.server_version >= 140_000 else 0
    conn.execute(
        f"UPDATE pg_class SET reltuples = {never}, relpages = 0, relallvisible = 0"
        f" WHERE oid IN {jobs} AND relkind IN ('r', 'i')"
    )


def marks(conn: psycopg.Connection) -> list[tuple[str, int]]:
    """Where a worker is that has taken all that was due: behind the last row of each lane that has ended."""
    last = (
        "SELECT run_at::text, id FROM redrive.jobs"
        " WHERE status = 'succeeded' AND kind = %s AND priority = %s AND lane = %s"
        " ORDER BY run_at DESC, id DESC LIMIT 1"
    )
    return [conn.execute(last, lane).fetchone() or HEAD for lane in LANES]


def params(conn: psycopg.Connection, start: list[tuple[str, int]] | None = None) -> dict[str, dict[str, Any]]:
    """Give what each statement is called with: a batch of 200 jobs, running ones where there are any."""
    running = "SELECT id FROM redrive.jobs WHERE status = 'running' AND locked_by = 'me' ORDER BY id LIMIT 200"
    ids = [row[0] for row in conn.execute(running)] or list(range(1001, 1201))
    n = len(ids)
    new = {"kind": "mail", "run_at": None, "delay": 0.0, "priority": 5, "max_attempts": 5, "lane": ""}
    new |= {"expires_at": None, "expires_in": None, "metadata": None, "batch": None}
    ended = {"outcomes": "retried", "delays": 1.0, "errors": "x", "results": None, "durations": 0.1}
    ended |= {
        "error_types": "E",
        "messages": "m",
        "tracebacks": "t",
        "fingerprints": "f",
        "lanes": None,
        "followers": None,
    }
    start = start or [HEAD] * len(LANES)
    return {
        "claim_jobs": {
            "kinds": [lane[0] for lane in LANES],
            "priorities": [lane[1] for lane in LANES],
            "lanes": [lane[2] for lane in LANES],
            "quotas": [20] * len(LANES),
            "starts": [mark for mark, _ in start],
            "start_ids": [mark_id for _, mark_id in start],
            "ends": [],
            "end_ids": [],
            "limit": 100,
            "worker": "me",
        },
        "claim_limited": {
            "kinds": [lane[0] for lane in LANES],
            "priorities": [lane[1] for lane in LANES],
            "lanes": [lane[2] for lane in LANES],
            "quotas": [20] * len(LANES),
            "starts": [mark for mark, _ in start],
            "start_ids": [mark_id for _, mark_id in start],
            "ends": [],
            "end_ids": [],
            "limit": 100,
            "locked": KINDS,
            "worker": "me",
        },
        "claim_alone": {"kinds": KINDS, "locked": [], "worker": "me"},
        "survey_lanes": Lanes(KINDS).look(),
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
            "kinds": KINDS,
        },
        "bury_hopeless": {"kinds": KINDS},
        "scan_finished": {
            "after": 0,
            "window": 1000,
            "shortest": 86_400.0,
            "succeeded": 6e5,
            "failed": 2e6,
            "dead": 3e7,
        },
        "delete_finished": {"ids": ids, "shortest": 1.0},
        "hand_back_mislaid": {"worker": "me", "known": ids},
        "cancel_requests": {"ids": ids, "claims": [1] * n, "worker": "me"},
        "renew_leases": {"ids": ids, "worker": "me"},
        "write_progress": {"ids": ids, "claims": [1] * n, "values": ["1"] * n, "worker": "me"},
        "complete_job": {"id": ids[0], "claim": 1, "worker": "me", "result": None, "followers": None},
        "acquit_job": {"id": ids[0], "claim": 1, "worker": "me"},
        "locked_jobs": {"ids": ids},
        "was_written": {"ids": ids, "claims": [1] * n, "worker": "me"},
        "written_outcomes": {"ids": ids, "claims": [1] * n, "worker": "me"},
        "survey_held": {"own_name": "^w"},
        "silent_holders": {"slack": 2.0, "own_name": "^w", "lease": 30.0, "foreign_age": 600.0},
        "archive_finished": {"ids": ids, "shortest": 1.0},
        "depths": {"most": 500, "kinds": 500},
        "insert_keyed_job": new | {"key": "k70", "payload": "{}"},
        "insert_jobs": new | {"keys": [f"k{i}" for i in range(500)], "payloads": ["{}"] * 500, "lanes": None},
    }


def spoken(name: str) -> tuple[str, list[str]]:
    """Give a statement as PREPARE takes it, and the names of its parameters in their order."""
    used: list[str] = []

    def numbered(match: re.Match[str]) -> str:
        if match[1] not in used:
            used.append(match[1])
        return f"${used.index(match[1]) + 1}"

    text = re.sub(r"%\((\w+)\)s", numbered, query(name, "redrive").as_string(None))
    return text.replace("%%", "%"), used


def is_prepared(conn: psycopg.Connection, name: str) -> bool:
    return conn.execute("SELECT FROM pg_prepared_statements WHERE name = %s", [name]).fetchone() is not None


def prepare(conn: psycopg.Connection, name: str) -> None:
    """PREPARE a statement under its own name, instead of what had it before."""
    if is_prepared(conn, name):
        conn.execute(f"DEALLOCATE {name}")
    conn.execute(f"PREPARE {name} AS {spoken(name)[0]}")


def call(name: str, given: dict[str, Any]) -> Composed:
    """Give the EXECUTE of a prepared statement."""
    values = SQL(", ").join(Literal(given[each]) for each in spoken(name)[1])
    return (
        SQL("EXECUTE {} ({})").format(Identifier(name), values) if given else SQL("EXECUTE {}").format(Identifier(name))
    )


def explain(
    conn: psycopg.Connection, said: Composed, mode: str, *, times: int = 0, free: bool = True, limited: bool = False
) -> dict[str, Any]:
    """Explain a call that is carried out and taken back, after as many of the same.

    *free*: the planner may do what it likes, and is not held to indexes as in a worker's session.
    """
    with conn.transaction(force_rollback=True):
        if not free:
            conn.execute("SET LOCAL enable_seqscan = off")
            conn.execute("SET LOCAL enable_bitmapscan = off")
        conn.execute(f"SET LOCAL plan_cache_mode = {mode}")
        if limited:
            conn.execute(
                "INSERT INTO redrive.kinds (kind, running_most, rate, lane_running_most, lane_rate)"
                " SELECT unnest(%s::text[]), 100, 1000, 100, 1000",
                [KINDS],
            )
        for _ in range(times):
            with conn.transaction(force_rollback=True):
                conn.execute(said)
        [[explained]] = conn.execute(SQL("EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT json) ") + said)
    plan: dict[str, Any] = explained[0]["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", []):
        yield from nodes(each)


def touched(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def most_rows(plan: dict[str, Any]) -> int:
    """The most rows of jobs that one node of the plan has read, in all of its loops."""
    reads = [
        part["Actual Loops"] * (part["Actual Rows"] + part.get("Rows Removed by Filter", 0))
        for part in nodes(plan)
        if part.get("Relation Name") == "jobs" and "Scan" in part["Node Type"]
    ]
    return round(max(reads, default=0))


def faults(plan: dict[str, Any], pin: Pin, dead: int = 0) -> Iterator[str]:
    """Say what is not as pinned; *dead* entries may lie in the way of what begins at a head."""
    parts = list(nodes(plan))
    indexes = {part["Index Name"] for part in parts if part.get("Index Name", "").startswith("jobs_")}
    if any(part["Node Type"] == "Seq Scan" and part["Relation Name"] == "jobs" for part in parts):
        yield "walks the table"
    if not indexes <= pin.indexes or pin.needs not in indexes:
        yield f"uses {sorted(indexes)}"
    if pin.ordered and any("Sort" in part["Node Type"] for part in parts):
        yield "sorts"
    if (rows := most_rows(plan)) > pin.rows:
        yield f"reads {rows} rows"
    if (pages := touched(plan)) > pin.pages + (dead if pin.walks else 0):
        yield f"touches {pages} pages"


def look(
    conn: psycopg.Connection,
    when: str,
    names: Iterable[str] = PINS,
    *,
    modes: Iterable[str] = ("force_custom_plan", "force_generic_plan"),
    start: list[tuple[str, int]] | None = None,
    dead: int = 0,
    kept: bool = False,
) -> list[str]:
    """Explain statements in each mode and list what is not as pinned.

    *kept*: by the plans of last time, if there are any, in a session as a worker has it. Otherwise the planner is left
    all of its freedom: a pooler may have refused to pass the worker's settings on.
    """
    given = params(conn, start)
    found = []
    for name in names:
        if not kept or not is_prepared(conn, name):
            prepare(conn, name)
        for mode in modes:
            # the sixth time is the first for which Postgres may prefer the plan for any values
            times = 6 if mode == "auto" else 0
            plan = explain(
                conn,
                call(name, given[name]),
                mode,
                times=times,
                free=not (kept or PINS[name].helped),
                limited=PINS[name].limited,
            )
            found += [f"{when}, {mode}: {name} {fault}" for fault in faults(plan, PINS[name], dead)]
    return found


def matrix(conn: psycopg.Connection, shape: str, rows: int, modes: Iterable[str]) -> list[str]:
    """Look at a shape of the table with statistics of every age.

    The first are of a quiet hour, in which little was there and nothing waited or ran; so are the first plans, which a
    worker keeps that began in it.
    """
    fill(conn, "succeeded", 100, prefix="old")
    conn.execute("ANALYZE redrive.jobs")
    workers = [name for name in PINS if name not in PRODUCERS]
    look(conn, "", workers, modes=("force_generic_plan",), kept=True)
    SHAPES[shape](conn, rows)
    found = look(conn, f"{shape}, planned in a quiet hour", workers, modes=("force_generic_plan",), kept=True)
    found += look(conn, f"{shape}, statistics of a quiet hour", modes=modes)
    forget_statistics(conn)
    found += look(conn, f"{shape}, never analyzed", modes=modes)
    conn.execute("ANALYZE redrive.jobs")
    return found + look(conn, f"{shape}, analyzed", modes=modes)
