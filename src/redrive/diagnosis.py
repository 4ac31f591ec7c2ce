"""What a doctor's look at an installation is made of: questions asked one by one, and findings with their remedy.

A question that this role may not ask, or that takes too long, is a finding by itself and spoils no other. Each runs in
a transaction of its own that is read-only, with a time limit.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.sql import Composable

from redrive.sql import compose, text_of
from redrive.statements import Statement, lenient, named, run
from redrive.words import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redrive.queue import Queue

Level = Literal["bad", "note", "unknown"]
TIMEOUT = "10s"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Something that was found."""

    check: str
    level: Level
    """bad: mend it; note: know it; unknown: it could not be looked at."""
    text: str
    evidence: dict[str, Any] = field(default_factory=dict)
    """What the verdict rests on."""
    remedy: str = ""
    """What to do or to run, word for word where that can be said."""


class Patient:
    """An installation, and what was found of it so far."""

    def __init__(self, queue: Queue, conn: psycopg.Connection[Any]) -> None:
        self.queue = queue
        self.found: list[Diagnosis] = []
        self._conn = conn
        self._check = ""

    @property
    def schema(self) -> str:
        """The schema of the tables."""
        return self.queue.schema

    def begin(self, check: str) -> None:
        """Note for which check the next questions are."""
        self._check = check

    def ask(self, name: str, **params: Any) -> list[Any]:
        """Ask a statement of ``queries.sql``.

        Raises:
            psycopg.Error: what the server said.
        """
        return self.say(lenient(name, self.schema, namedtuple_row, **params))

    def say(self, statement: Statement[Any]) -> list[Any]:
        """Run a statement in a read-only transaction of its own.

        Raises:
            psycopg.Error: what the server said.
        """
        with self.reading() as conn:
            return run(conn, statement)

    @contextmanager
    def reading(self) -> Iterator[psycopg.Connection[Any]]:
        """Give the connection within a read-only transaction that no statement holds up for long."""
        with self._conn.transaction():
            run(self._conn, named("doctor_timeout", self.schema, timeout=TIMEOUT))
            yield self._conn

    def remedy(self, name: str, **names: Composable) -> str:
        """Write out a statement that somebody is to run."""
        return compose(text_of(name), self.schema, **names).as_string(None)

    def note(self, text: str, remedy: str = "", **evidence: Any) -> None:
        """Find something that is worth knowing."""
        self._find("note", text, remedy, evidence)

    def bad(self, text: str, remedy: str = "", **evidence: Any) -> None:
        """Find something that should be mended."""
        self._find("bad", text, remedy, evidence)

    def unknown(self, error: Exception) -> None:
        """Find that a check could not look."""
        if isinstance(error, psycopg.errors.QueryCanceled):
            self._find("unknown", f"it took longer than {TIMEOUT} to look", "", {})
        elif isinstance(error, psycopg.errors.InsufficientPrivilege):
            remedy = "run the doctor as the owner of the schema, or as a role that is granted SELECT on its tables"
            self._find("unknown", f"this role may not look: {error.diag.message_primary}", remedy, {})
        else:
            self._find("unknown", f"could not look: {type(error).__name__}: {error}", "", {})

    def _find(self, level: Level, text: str, remedy: str, evidence: dict[str, Any]) -> None:
        self.found.append(
            Diagnosis(check=self._check, level=level, text=one_line(text), evidence=evidence, remedy=remedy)
        )
