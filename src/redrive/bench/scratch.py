"""A place to measure in: a schema that was not there before and is not there afterwards, however the measuring ends.

It makes and drops schemas whose names begin with redrive_bench_, and no others.
"""

from __future__ import annotations

import secrets
import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import psycopg

from redrive.connections import conninfo
from redrive.errors import InvalidOption, MigrationFailed, NoDatabase, RedriveError
from redrive.migrate import migrate
from redrive.queue import Queue
from redrive.statements import named, run
from redrive.worker import stop_signals

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "redrive_bench_"


@dataclass(frozen=True)
class Place:
    """A schema to measure in, of a database."""

    url: str
    schema: str

    @cached_property
    def queue(self) -> Queue:
        """A queue that enqueues there."""
        return Queue(self.url, schema=self.schema)

    def ask(self, name: str, **params: Any) -> list[Any]:
        """Run a statement of ``queries.sql`` there."""
        return self.queue.ask(named(name, self.schema, **params))

    def clear(self) -> None:
        """Empty the tables, as if they were new."""
        self.ask("bench_clear")

    def close(self) -> None:
        """Let go of the connections."""
        self.queue.close()


def scratch_name() -> str:
    """Make a name that nobody has."""
    return PREFIX + secrets.token_hex(4)


def demand_rights(url: str, schema: str) -> Any:
    """Look at the database, and refuse one in which *schema* can't be made; gives its name and its server's.

    Raises:
        MigrationFailed: when the role may not create schemas, with the remedy.
        NoDatabase: when the server takes no writes.
    """
    with psycopg.connect(conninfo(url, application="redrive bench"), autocommit=True, prepare_threshold=None) as conn:
        [place] = run(conn, named("bench_place", schema))
        [state] = run(conn, named("schema_state", schema))
    if place.standby:
        raise NoDatabase("this server is a standby and takes no writes: give the primary's URL")
    if not state.may_create_schema:
        raise MigrationFailed(
            f'role "{state.role}" may not create a schema in database "{place.database}", and bench measures in one '
            f'of its own: have an owner run GRANT CREATE ON DATABASE "{place.database}" TO "{state.role}", '
            "or give the URL of a database where it may"
        )
    return place


def leftovers(url: str) -> list[str]:
    """List scratch schemas that are there: of a run that was killed, or of one that is under way."""
    with psycopg.connect(conninfo(url, application="redrive bench"), autocommit=True, prepare_threshold=None) as conn:
        return [row.name for row in run(conn, named("bench_leftovers", PREFIX))]


@contextmanager
def scratch(url: str, schema: str) -> Iterator[Place]:
    """Make the schema with redrive's tables in it, and drop it at the end.

    Raises:
        InvalidOption: for a name that is not of :func:`scratch_name`.
        RedriveError: when it could not be dropped, with what to do about it.
    """
    if not schema.startswith(PREFIX):
        raise InvalidOption(f"schema {schema!r} is no scratch schema, and would be dropped")
    place = Place(url, schema)
    try:
        migrate(url, schema)
        yield place
    finally:
        with _undisturbed():
            _drop(place)


def _drop(place: Place) -> None:
    try:
        place.ask("bench_drop")
    except psycopg.Error as error:
        raise RedriveError(
            f'schema "{place.schema}" is still there ({str(error).strip().partition(chr(10))[0]}): '
            f'DROP SCHEMA "{place.schema}" CASCADE when the database can be reached'
        ) from error
    finally:
        place.close()


@contextmanager
def pinned(place: Place) -> Iterator[None]:
    """Hold a REPEATABLE READ snapshot: until its end nothing that dies in this database can be vacuumed away."""
    with psycopg.connect(conninfo(place.url, application="redrive bench snapshot"), prepare_threshold=None) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        run(conn, named("bench_last_id", place.schema))
        yield


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let another Ctrl-C wait until the schema is gone."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, signal.SIG_IGN) for number in stop_signals()} if main else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
