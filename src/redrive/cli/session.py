"""One connection for one command: opened, checked for redrive's tables, able to read every row that Postgres can hold.

A row that Python could not read is the one that the operator looks for: a year 12000, an infinity, a number of 5000
digits. These come as NEVER, ALWAYS or text instead of an error.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from redrive.cli.exits import Trouble, told
from redrive.cli.options import connected, worker_command
from redrive.cli.screen import ALWAYS, NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    import psycopg

    from redrive.queue import Queue
    from redrive.statements import Statement

T = TypeVar("T")


@dataclass(frozen=True)
class Session:
    """A queue, a connection to its database, and the time that it is there."""

    queue: Queue
    conn: psycopg.Connection[Any]
    now: datetime

    @property
    def schema(self) -> str:
        """The schema that holds the installation."""
        return self.queue.schema

    def ask(self, statement: Statement[T]) -> list[T]:
        """Run a statement; its answer comes as numbers, which no setting of the database spells otherwise."""
        from redrive.connections import persistent

        return persistent(self.conn, replace(statement, binary=True, loaders=()))

    def elsewhere(self) -> str:
        """Say where a job may be that the table does not have; empty where no broker is used, nor was within a day."""
        from redrive import store
        from redrive.kinds import BROKER_WORKER
        from redrive.sql import AMQP
        from redrive.words import several

        sent = {row.kind for row in self.queue.kinds.list(connection=self.conn) if row.route == AMQP}
        # What is enqueued with direct=True needs no route.
        workers = self.ask(store.workers(self.schema))
        sent |= {kind for row in workers if row.works_as == BROKER_WORKER for kind in row.kinds}
        if not sent and not self.queue.settings.broker_url:
            return ""
        said = f"jobs of {several(sorted(sent))} go over the broker" if sent else "jobs may go straight to the broker"
        return f"{said}: it may be there, or have succeeded from there without a row"

    def missing(self, job_id: int) -> Trouble:
        """Make the error for a job that the table does not have."""
        seek = self.elsewhere() or "`redrive jobs` lists those that there are"
        return Trouble(f"there is no job {job_id} in schema {self.schema}; {seek}")

    @contextmanager
    def doubting(self, kind: str) -> Iterator[None]:
        """Do something about a kind, and tell the human where nothing here knows it: a slip of the pen is found late.

        It is looked for before, since what is done makes the kind known, and told after it was done.
        """
        said = self._doubt(kind)
        yield
        if said:
            from redrive.cli import screen

            screen.note(screen.one_line(f"note: {said}"))

    def _doubt(self, kind: str) -> str:
        import psycopg

        from redrive import stats, store
        from redrive.kinds import ALL
        from redrive.statements import named
        from redrive.text import storable
        from redrive.words import several

        handled = self.queue.handlers.kinds()
        if kind in {"", ALL, *handled} or storable(kind) != kind:  # what can't be a kind is refused by what is done
            return ""
        try:
            [heard] = self.ask(named("heard_of_kind", self.schema, kind=kind))
            if heard.known:
                return ""
            workers = self.ask(store.workers(self.schema))
            here = named("known_kinds", self.schema) if heard.worked else stats.depths(self.schema, 1)
            known = {*handled, *(row.kind for row in self.ask(here))} - {ALL}
        except psycopg.Error:  # a role that may do no more than enqueue: nothing is stopped by a doubt
            return ""
        known |= {each for row in workers for each in row.kinds}
        near = get_close_matches(kind, sorted(known), 3, 0.7)
        if not known or kind in known or not (heard.worked or near):
            return ""  # before the first worker has come nobody can tell
        hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
        alive = any(row.alive and row.kinds for row in workers)  # one without kinds is a relay
        nobody = "no live worker knows" if alive else "no worker is alive, and nothing is known of"
        return f"{nobody} kind {kind!r}{hint}; known are: {several(sorted(known))}"


@contextmanager
def session(database_url: str | None, schema: str | None) -> Iterator[Session]:
    """Open the session of a command; what fails in it is told in one line.

    Raises:
        Trouble: when there is no database, or no tables in it.
    """
    from redrive.connections import persistent
    from redrive.migrate import demand_migrated, installed
    from redrive.statements import named

    queue = connected(database_url, schema)
    queue.worker_command = worker_command()
    with told(queue.schema), _connect(queue.settings.database_url) as conn:
        demand_migrated(installed(conn, queue.schema), queue.schema)
        _read_everything(conn)
        [clock] = persistent(conn, replace(named("clock", queue.schema), binary=True))
        yield Session(queue, conn, clock.now)


def _connect(dsn: str) -> psycopg.Connection[Any]:
    import psycopg

    from redrive.connections import conninfo
    from redrive.statements import OwnConnection

    # No prepared statements: a pooler may stand in between, and a generic plan would miss the partial indexes.
    how: dict[str, Any] = {"autocommit": True, "prepare_threshold": None}
    try:
        return OwnConnection[Any].connect(conninfo(dsn, application="redrive cli", settled=True), **how)
    except psycopg.OperationalError as error:
        if "startup parameter" not in str(error):
            raise
    return OwnConnection[Any].connect(conninfo(dsn, application="redrive cli"), **how)  # a pooler, that passes none on


def _read_everything(conn: psycopg.Connection[Any]) -> None:
    from psycopg.types.json import set_json_loads

    set_json_loads(_json, conn)
    conn.adapters.register_loader("timestamptz", _timestamps())


def _json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text if isinstance(text, str) else text.decode()


@cache
def _timestamps() -> Any:
    from redrive.job import moment
    from redrive.statements import AnyTime

    first, last = moment(-(2**63)), moment(2**63)

    class Told(AnyTime):
        def load(self, data: Any) -> datetime:
            when = super().load(data)
            return ALWAYS if when == first else NEVER if when == last else when

    return Told
