"""Bring the schema up to date: numbered steps, forward only, each in one transaction, safe in ten processes at once.

A step waits for a lock only briefly and tries again, so an upgrade never makes the application queue behind it.
"""

from __future__ import annotations

import re
import shlex
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.sql import Composed, Literal

from redrive.connections import conninfo
from redrive.drivers import Borrowed
from redrive.errors import MigrationFailed, NotMigrated
from redrive.sql import Migration, compose, lock_key, migrations, query, text_of
from redrive.statements import named, run, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

OLDEST_SERVER = 12
OLDEST_SCHEMA = 12
"""That this code can work on: the first that was released, and one step behind the latest from then on."""
DEFAULT_SCHEMA = "redrive"
LOCK_TIMEOUT = "2s"
LOCK_TRIES = 30
_IN_THE_WAY = (psycopg.errors.DuplicateObject, psycopg.errors.DuplicateTable, psycopg.errors.DuplicateFunction)
_OURS = {
    "jobs",
    "failures",
    "workers",
    "jobs_archive",
    "jobs_archive_default",
    "schedules",
    "schedule_slots",
    "kinds",
    "batches",
    "breakers",
    "lane_rates",
    "audit",
    "requeues",
    "stats",
    "deploys",
    "alerts",
    "alert_state",
    "alert_messages",
    "adoptions",
    "adopted_rows",
    "subscriptions",
    "unheard_topics",
    "throughput",
    "dead_letters",
    "queue_depth",
    "workers_alive",
}
_MONTH = re.compile(r"jobs_archive_\d{6}")


def latest() -> int:
    """Give the version of the schema that this code was written for."""
    return migrations()[-1].version


def migrate(dsn: str, schema: str = "redrive", *, on_wait: Callable[[str], None] | None = None) -> list[int]:
    """Apply the missing steps and list their versions; an up-to-date schema gives an empty list.

    Raises:
        MigrationFailed: with the reason and the remedy in one line.
    """
    with _told(schema), _connected(dsn) as conn:
        _prepare(conn, schema)
        return [step.version for step in migrations() if patiently(partial(_apply, conn, schema, step), on_wait)]


def pending(dsn: str, schema: str = "redrive") -> list[int]:
    """List the versions that :func:`migrate` would apply, changing nothing.

    Raises:
        MigrationFailed: where the database can't take them.
    """
    with _told(schema), _connected(dsn) as conn:
        demand_possible(_state(conn, schema), schema)
        there = applied(conn, schema)
        return [step.version for step in migrations() if step.version not in there]


def migrate_within(
    connection: Borrowed, schema: str = "redrive", *, only: int | None = None, lock_timeout: str | None = None
) -> list[int]:
    """Apply the missing steps within the transaction of *connection*, and list their versions.

    For a migration tool that has begun one: Alembic's ``op.get_bind()``, Django's ``connection``. It waits for locks as
    that transaction does, or for *lock_timeout* at the most; *only* one step is for a tool that has a step of its own
    for each. What it has applied is there when the caller commits.

    Raises:
        MigrationFailed: where the database can't take them.
    """
    state = _state(connection, schema)
    demand_possible(state, schema)
    if not state.has_schema:
        say(connection, query("create_schema", schema))
    if not state.has_migrations:
        say(connection, query("create_migrations", schema))
    say(connection, locked(schema))
    if lock_timeout is not None:
        run(connection, named("migration_timeout", schema, timeout=lock_timeout))
    there = applied(connection, schema)
    missing = [step for step in migrations() if step.version not in there and only in (None, step.version)]
    for step in missing:
        say(connection, compose(step.text, schema))
        say(connection, record(schema, step))
    return [step.version for step in missing]


def is_ours(table: str) -> bool:
    """Whether an installation has a table of that name."""
    return table in _OURS or table == "migrations" or _MONTH.fullmatch(table) is not None


def script(schema: str, versions: list[int]) -> str:
    """Write what :func:`migrate` would run for *versions* as one text for a DBA's hands."""
    parts = []
    if 1 in versions:
        parts += [_text(query("create_schema", schema)), _text(query("create_migrations", schema))]
    for step in migrations():
        if step.version in versions:
            parts += [
                f"BEGIN;\nSET LOCAL lock_timeout = '{LOCK_TIMEOUT}'",
                _text(compose(step.text, schema)).rstrip().removesuffix(";"),
                _text(record(schema, step)) + ";\nCOMMIT",
            ]
    return ";\n\n".join(parts) + ";\n" if parts else ""


def applied(conn: Borrowed, schema: str) -> set[int]:
    """Give the versions that were applied, as *conn* sees them."""
    if not _state(conn, schema).has_migrations:
        return set()
    return {row.version for row in run(conn, named("applied_migrations", schema))}


def installed(conn: Borrowed, schema: str) -> int:
    """Give the schema's version as *conn* sees it, 0 where redrive isn't installed."""
    return max(applied(conn, schema), default=0)


def demand_migrated(version: int, schema: str) -> None:
    """Refuse to work on a schema that this code can't use.

    Raises:
        NotMigrated: naming the versions and the command that mends it.
    """
    command = "redrive migrate" if schema == DEFAULT_SCHEMA else f"redrive migrate --schema {shlex.quote(schema)}"
    if version == 0:
        raise NotMigrated(f'schema "{schema}" is not installed in this database: run `{command}`')
    if version < OLDEST_SCHEMA:
        raise NotMigrated(
            f'schema "{schema}" is at version {version}, this redrive needs {OLDEST_SCHEMA}: run `{command}`'
        )


def demand_possible(state: Any, schema: str) -> None:
    """Refuse to install where that can't work; *state* is what ``schema_state`` answers.

    Raises:
        MigrationFailed: with the reason and the remedy in one line.
    """
    if state.server_version < OLDEST_SERVER * 10000:
        raise MigrationFailed(
            f"this server is PostgreSQL {state.server_version // 10000}, redrive needs {OLDEST_SERVER} or newer"
        )
    if state.has_migrations:
        return
    if foreign := sorted(_OURS & set(state.tables)):
        raise MigrationFailed(
            f'schema "{schema}" already has a table "{foreign[0]}" that redrive did not make: '
            "install into another schema with --schema NAME, or move that table away"
        )
    if not state.has_schema and not state.may_create_schema:
        raise MigrationFailed(
            f'role "{state.role}" may not create schema "{schema}": have an owner run '
            f'CREATE SCHEMA "{schema}" AUTHORIZATION "{state.role}", or `redrive migrate --sql` and its output'
        )


def _connected(dsn: str) -> psycopg.Connection[Any]:
    # Nothing prepared: a pooler may stand in between.
    conn = psycopg.connect(conninfo(dsn, application="redrive migrate"), autocommit=True, prepare_threshold=None)
    conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return conn


def _prepare(conn: psycopg.Connection[Any], schema: str) -> None:
    state = _state(conn, schema)
    demand_possible(state, schema)
    if state.has_migrations:
        return
    with conn.transaction():
        _lock(conn, schema)
        if not _state(conn, schema).has_schema:
            conn.execute(query("create_schema", schema))
        conn.execute(query("create_migrations", schema))


def _apply(conn: psycopg.Connection[Any], schema: str, step: Migration) -> bool:
    with conn.transaction():
        _lock(conn, schema)
        run(conn, named("migration_timeout", schema, timeout=LOCK_TIMEOUT))
        if step.version in applied(conn, schema):
            return False
        conn.execute(compose(step.text, schema))
        conn.execute(record(schema, step))
    return True


def _lock(conn: psycopg.Connection[Any], schema: str) -> None:
    conn.execute(locked(schema))


def locked(schema: str) -> Composed:
    """Take the lock under which an installation is changed, for the transaction."""
    key = Literal(lock_key(f"{schema} migrations"))
    return compose(text_of("migration_lock"), schema, migration_lock=key)


def record(schema: str, step: Migration) -> Composed:
    """Write down that a step was applied."""
    return compose(text_of("record_migration"), schema, version=Literal(step.version), name=Literal(step.name))


def patiently(step: Callable[[], T], on_wait: Callable[[str], None] | None, *, again: str = "redrive migrate") -> T:
    """Try a step that waits for its lock only briefly, again and again.

    Raises:
        MigrationFailed: when the lock was held through all tries; *again* is the command to say then.
    """
    for attempt in range(1, LOCK_TRIES + 1):
        try:
            return step()
        except psycopg.errors.LockNotAvailable as error:
            if attempt == LOCK_TRIES:
                raise MigrationFailed(
                    f"a lock on redrive's tables was held through {LOCK_TRIES} tries of {LOCK_TIMEOUT} each: "
                    f"end the long transaction that holds it (see pg_stat_activity) and run `{again}` again"
                ) from error
            if on_wait:
                on_wait(f"waiting for a lock, try {attempt} of {LOCK_TRIES}")
            time.sleep(min(0.1 * 2**attempt, 2.0))
    raise AssertionError


def _state(conn: Borrowed, schema: str) -> Any:
    return run(conn, named("schema_state", schema))[0]


@contextmanager
def _told(schema: str) -> Iterator[None]:
    """Turn the errors that an installation meets into one line each; the driver's stays as the cause."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise MigrationFailed(
            f'{error.diag.message_primary}: the role needs CREATE on schema "{schema}"; '
            "`redrive migrate --sql` prints what to run"
        ) from error
    except _IN_THE_WAY as error:
        raise MigrationFailed(
            f'{error.diag.message_primary} in schema "{schema}", and redrive did not make it: '
            "install into another schema with --schema NAME, or move it away"
        ) from error
    except psycopg.errors.UndefinedColumn as error:
        raise MigrationFailed(
            f'schema "{schema}" has a table "migrations" that redrive did not make: '
            "install into another schema with --schema NAME"
        ) from error


def _text(sql: Any) -> str:
    return str(sql.as_string(None))
