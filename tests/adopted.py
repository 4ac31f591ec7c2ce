"""Tables of the application that are worked as jobs: a map for each shape, and what the tests do to their rows."""

from __future__ import annotations

import copy
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from redrive.adopt.bridge import Plan, Wanted, connect
from redrive.adopt.mapping import parse
from shapes_of_tables import MAIL_JOBS_MAP, SHAPES, UUIDS

EARLY = "2020-01-01T00:00:00+00:00"
LATER = "2999-01-01T00:00:00+00:00"
NAIVE = {"form": "timestamp", "zone": "UTC"}
ZONED = {"form": "timestamptz"}

MAPS: dict[str, dict[str, Any]] = {
    "mail_jobs": {
        **MAIL_JOBS_MAP,
        "kind": "work",
        "payload": {"form": "row"},
        "attempts": {"column": "retry_count", "max": 3},
    },
    "mail_flag": {
        "table": "public.mail_flag",
        "key": "id",
        "kind": "work",
        "created": "created_at",
        "due": "send_after",
        "runnable": {"column": "sent", "values": [False], "null": True},
        "times": {"send_after": NAIVE, "created_at": NAIVE},
        "attempts": {"column": "attempts", "max": 3},
        "succeeded": {"set": {"sent": True}},
    },
    "mail_null": {
        "table": "public.mail_null",
        "key": "id",
        "kind": "work",
        "created": "created_at",
        "due": "scheduled_at",
        "runnable": {"column": "sent_at", "null": True},
        "times": {"scheduled_at": ZONED, "created_at": ZONED, "sent_at": ZONED},
        "attempts": {"max": 3},
        "succeeded": {"now": ["sent_at"]},
    },
    "mail_simple": {
        "table": "public.mail_simple",
        "key": "id",
        "kind": "work",
        "created": "created_at",
        "runnable": {"column": "status", "values": ["queued"]},
        "times": {"created_at": NAIVE, "sent_at": NAIVE, "last_attempt_at": ZONED},
        "attempts": {"column": "attempts", "max": 3},
        "error": {"column": "last_error"},
        "claimed": {"set": {"status": "sending"}, "now": ["last_attempt_at"]},
        "waiting": {"set": {"status": "queued"}},
        "succeeded": {"set": {"status": "sent"}, "now": ["sent_at"]},
        "dead": {"set": {"status": "failed"}},
    },
    "hook_delivery": {
        "table": "public.hook_delivery",
        "key": "id",
        "kind": "work",
        "created": "created_at",
        "due": "next_attempt_at",
        "runnable": {"column": "status", "values": ["pending"]},
        "times": {"next_attempt_at": ZONED, "created_at": ZONED, "delivered_at": ZONED},
        "payload": {"form": "columns", "columns": ["id", "hook_id", "event", "payload"]},
        "attempts": {"column": "attempts", "max": 3},
        "error": {"column": "last_error"},
        "waiting": {"run_at": ["next_attempt_at"]},
        "succeeded": {"set": {"status": "delivered"}, "now": ["delivered_at"]},
        "dead": {"set": {"status": "abandoned"}, "null": ["next_attempt_at"]},
    },
    "bg_jobs": {
        "table": "public.bg_jobs",
        "key": "id",
        "kind_column": "job_type",
        "due": "scheduled_at",
        "created": "scheduled_at",
        "runnable": {"column": "status", "values": ["pending", "retrying"]},
        "times": dict.fromkeys(
            ("scheduled_at", "started_at", "completed_at", "failed_at", "locked_at", "updated_at"), ZONED
        ),
        "payload": {"form": "json", "columns": ["payload"]},
        "attempts": {"column": "attempts", "max_column": "max_attempts"},
        "priority": {"column": "priority", "first": "high"},
        "error": {"column": "error_message"},
        "claimed": {"set": {"status": "processing", "locked_by": "redrive"}, "now": ["started_at", "locked_at"]},
        "waiting": {"set": {"status": "retrying"}, "run_at": ["scheduled_at"], "null": ["locked_by", "locked_at"]},
        "succeeded": {"set": {"status": "completed"}, "now": ["completed_at"], "null": ["locked_by", "locked_at"]},
        "dead": {"set": {"status": "failed"}, "now": ["failed_at"], "null": ["locked_by", "locked_at"]},
    },
    "outbox": {
        "table": "public.outbox",
        "key": "id",
        "kind": "work",
        "created": "created_at",
        "runnable": {"column": "status", "values": ["PENDING"]},
        "times": {"created_at": NAIVE, "published_at": NAIVE},
        "payload": {"form": "json text", "columns": ["payload"]},
        "attempts": {"max": 3},
        "succeeded": {"set": {"status": "PUBLISHED"}, "now": ["published_at"]},
        "dead": {"set": {"status": "FAILED"}},
    },
    "mail_delete": {
        "table": "public.mail_delete",
        "key": "id",
        "kind": "work",
        "created": "created_at",
        "runnable": {"every_row": True},
        "times": {"created_at": {"form": "epoch s"}},
        "priority": {"column": "priority", "first": "high"},
        "attempts": {"column": "attempts", "max": 3},
        "succeeded": {"delete": True},
    },
}
"""By the name of the table; every one as a human would have answered what redrive proposes."""
BLIND = {"mail_jobs", "mail_simple", "bg_jobs"}
"""Those with a word for a row that is taken."""

_NOW = "now() AT TIME ZONE 'UTC'"
_INSERTS = {
    "mail_jobs": "(rcpt, subject) SELECT i || '@x', i::text",
    "mail_flag": f"(rcpt, body, created_at) SELECT i || '@x', i::text, {_NOW}",
    "mail_null": "(template) SELECT i::text",
    "mail_simple": "(rcpt, subject) SELECT i || '@x', i::text",
    "hook_delivery": "(event, payload) SELECT i::text, '{}'",
    "bg_jobs": "(job_type, payload) SELECT 'work', jsonb_build_object('n', i)",
    "outbox": "(payload, status, created_at) SELECT '{\"n\": ' || i || '}', 'PENDING', " + _NOW,
    "mail_delete": "(subject, created_at) SELECT i::text, extract(epoch FROM now())",
}
INSERTS = {table: f"INSERT INTO {table} {said} FROM generate_series(1, %s) i" for table, said in _INSERTS.items()}
"""So many new rows."""


def map_of(table: str, **changes: Any) -> dict[str, Any]:
    """The map of a shape, with changes at its top."""
    return {"cutover": EARLY, **copy.deepcopy(MAPS[table]), **changes}


def adopt(
    conn: psycopg.Connection,
    table: str,
    *,
    schema: str = "redrive",
    beside: bool = False,
    sweep: bool = False,
    trigger: bool | None = None,
    document: dict[str, Any] | None = None,
) -> dict[str, int]:
    """Connect a table by its map, as `redrive adopt connect` does."""
    wanted = Wanted(by_trigger=not sweep if trigger is None else trigger, by_sweep=sweep, legacy_stopped=not beside)
    return connect(conn, Plan(conn, schema, parse(document or map_of(table)), wanted))


def make(conn: psycopg.Connection, *tables: str) -> None:
    """Make tables of these shapes."""
    conn.execute(UUIDS.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
    for table in tables:
        conn.execute(SHAPES[table])


def insert(conn: psycopg.Connection, table: str, count: int = 1) -> None:
    """Insert rows as the application does."""
    conn.execute(INSERTS[table], [count])


def rows(conn: psycopg.Connection, table: str) -> list[dict[str, Any]]:
    """All rows of a table, in the order of their keys."""
    found = conn.execute(SQL("SELECT to_jsonb(t) FROM {} t ORDER BY id").format(Identifier(table)))
    return [row for (row,) in found]


def remembered(conn: psycopg.Connection) -> list[tuple[Any, ...]]:
    """What redrive remembers of rows."""
    return conn.execute("SELECT state, owed, note FROM redrive.adopted_rows ORDER BY row_key").fetchall()


def round_(conn: psycopg.Connection, number: int | None = None) -> Any:
    """What a worker's sweeper says, though it may have been said a moment ago."""
    conn.execute(
        "update redrive.adoptions set round_at = null, tidied_at = null;"
        "update redrive.adopted_rows set due_at = now() where due_at is not null"
    )
    number = number or conn.execute("select max(id) from redrive.adoptions").fetchone()[0]
    return conn.execute(f"select _took, _wrote, _seen from redrive.adoption_{number}_round(500)").fetchone()


def jobs(conn: psycopg.Connection) -> list[tuple[Any, ...]]:
    """The jobs: state, tries, error."""
    return conn.execute("select status, attempts, last_error from redrive.jobs order by id").fetchall()
