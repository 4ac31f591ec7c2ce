"""The library's whole conversation with Postgres, as text, and the names that go into it.

``queries.sql`` holds every statement under a line ``-- name: …``; ``migrations/`` holds the schema's history. Names of
tables and functions are composed by :mod:`psycopg.sql`, never substituted as text. Nothing here runs anything.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

POSTGRES, AMQP = ROUTES = ("postgres", "amqp")
"""The ways on which a kind's jobs may go to be run."""
BROKER = "amqp broker"
"""Who holds a job that keeps its row while it is at the broker."""
TOPICS = "redrive.topics"
"""The kind whose jobs the relay sends to the exchange of topics; it subscribes to what other services may hear."""
_TAKEN = {"claim_limited": "taken_to_run", "claim_alone": "taken_on_trial"}
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_REMARK = re.compile(r"^--.*\n?", re.MULTILINE)


@dataclass(frozen=True)
class Migration:
    """One numbered step of the schema."""

    version: int
    name: str
    text: str


@cache
def _queries() -> dict[str, str]:
    parts = _NAME.split(_folder().joinpath("queries.sql").read_text(encoding="utf-8"))
    # The essays are for readers: the server and its logs get the statement alone.
    return {name: _REMARK.sub("", text).strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def _folder() -> Traversable:
    return files(__package__)


@cache
def migrations() -> tuple[Migration, ...]:
    """List the migrations in the order in which they run."""
    found = (path for path in _folder().joinpath("migrations").iterdir() if path.name.endswith(".sql"))
    steps = (Migration(int(path.name[:4]), path.name[5:-4], path.read_text(encoding="utf-8")) for path in found)
    return tuple(sorted(steps, key=lambda step: step.version))


def channel(schema: str, worker: str = "") -> str:
    """Name the notification channel of an installation, or of one worker in it; short, whatever those are called."""
    digest = hashlib.sha256(f"{schema}\0{worker}".encode()).hexdigest()
    return f"redrive_{digest[:20]}"


def lock_key(schema: str) -> int:
    """Give the advisory lock that the sentry of an installation holds: a signed 64-bit number of ours."""
    return int.from_bytes(hashlib.sha256(f"redrive sentry {schema}".encode()).digest()[:8], "big", signed=True)


@cache
def _names(schema: str) -> dict[str, Composable]:
    def within(name: str) -> Identifier:
        return Identifier(schema, name)

    return {
        "schema": Identifier(schema),
        "jobs": within("jobs"),
        "failures": within("failures"),
        "workers": within("workers"),
        "archive": within("jobs_archive"),
        "schedules": within("schedules"),
        "slots": within("schedule_slots"),
        "kinds": within("kinds"),
        "breakers": within("breakers"),
        "batches": within("batches"),
        "lane_rates": within("lane_rates"),
        "audit": within("audit"),
        "requeues": within("requeues"),
        "stats": within("stats"),
        "deploys": within("deploys"),
        "alerts": within("alerts"),
        "alert_state": within("alert_state"),
        "alert_messages": within("alert_messages"),
        "adoptions": within("adoptions"),
        "adopted_rows": within("adopted_rows"),
        "subscriptions": within("subscriptions"),
        "unheard_topics": within("unheard_topics"),
        "migrations": within("migrations"),
        "clock": within("clock"),
        "claimed_job": SQL(text_of("claimed_job")).format(clock=within("clock")),
        "works_as": SQL(text_of("works_as")),
        "broker": Literal(BROKER),
        "topics": Literal(TOPICS),
        "wake": within("wake"),
        "failure_group": within("failure_group"),
        "schema_name": Literal(schema),
        "lock": Literal(lock_key(schema)),
        "stats_lock": Literal(lock_key(f"{schema} stats")),
        "channel": Literal(channel(schema)),
    }


def compose(text: str, schema: str, **more: Composable) -> Composed:
    """Put the installation's names into *text*."""
    return SQL(text).format(**_names(schema), **more)


def text_of(name: str) -> str:
    """Give the text of a statement that wants more names than an installation has."""
    return _queries()[name]


def query(name: str, schema: str, route: str = POSTGRES) -> Composed:
    """Compose the statement called *name* of ``queries.sql`` for one installation, about kinds that go by *route*."""
    return _query(name, schema, route)


def spoken(name: str, schema: str, route: str = POSTGRES) -> bytes | Composed:
    """Give the statement as it is best sent: its bytes, which the driver need not compose anew each time.

    A schema that is spelt in other letters than ASCII waits for the connection that knows the encoding.
    """
    return _spoken(name, schema, route)


@cache
def _query(name: str, schema: str, route: str) -> Composed:
    text, more = text_of(name), {"route": Literal(route)}
    parts: dict[str, Composable] = {}
    if "{due_jobs}" in text:
        parts["due_jobs"] = compose(text_of("due_jobs"), schema, **more)
    if "{taken}" in text:
        parts["taken"] = compose(text_of("taken_to_send" if route == AMQP else _TAKEN[name]), schema)
    return compose(text, schema, **more, **parts)


@cache
def _spoken(name: str, schema: str, route: str) -> bytes | Composed:
    composed = _query(name, schema, route)
    return composed.as_bytes(None) if schema.isascii() else composed
