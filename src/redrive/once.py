"""At most one job a key: which jobs count, for how long, and what becomes of one that waits when another comes.

Without more said, jobs that are pending or running count, and the one that is there stays as it is. Nothing here runs a
statement.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from redrive import store
from redrive.errors import InvalidOption
from redrive.settings import seconds
from redrive.statements import named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redrive.statements import Statement

Scope = Literal["until finished", "while pending"]
Conflict = Literal["keep", "replace", "debounce"]
SCOPES: tuple[Scope, ...] = ("until finished", "while pending")
CONFLICTS: tuple[Conflict, ...] = ("keep", "replace", "debounce")
LONGEST = 10 * 365 * 86_400.0


@dataclass(frozen=True, kw_only=True)
class Once:
    """What a key is to mean, checked."""

    while_pending: bool = False
    lately: float | None = None
    """Seconds for which a job that succeeded counts as well."""
    replace: bool = False
    retimed: bool = False
    """A job that waits gets the newcomer's time."""


def once(key: str | None, options: Mapping[str, Any]) -> Once | None:
    """Check what an enqueue says of its *key*; None where that is no more than the key.

    Raises:
        InvalidOption: naming the value and the remedy.
    """
    scope, conflict = options.get("unique", SCOPES[0]), options.get("on_conflict", CONFLICTS[0])
    lately = options.get("unique_for")
    if scope not in SCOPES:
        raise InvalidOption(f"unique is {scope!r}: must be one of {', '.join(map(repr, SCOPES))}")
    if conflict not in CONFLICTS:
        raise InvalidOption(f"on_conflict is {conflict!r}: must be one of {', '.join(map(repr, CONFLICTS))}")
    timed = options.get("delay") is not None or options.get("run_at") is not None
    if conflict == "debounce" and not timed:
        raise InvalidOption("on_conflict='debounce' needs a delay: how long to wait after the last of them")
    if key is None and (scope, conflict, lately) != (SCOPES[0], CONFLICTS[0], None):
        raise InvalidOption("unique, unique_for and on_conflict say what a key means: give a key")
    if (scope, conflict, lately) == (SCOPES[0], CONFLICTS[0], None):
        return None
    if conflict != "keep" and "unique" not in options:
        scope = "while pending"  # else the newest would be lost where one runs with what was known before
    if conflict != "keep" and scope != "while pending":
        raise InvalidOption(
            f"on_conflict={conflict!r} with unique={scope!r}: while a job runs the newest payload would be lost; "
            "use unique='while pending'"
        )
    return Once(
        while_pending=scope == "while pending",
        lately=None if lately is None else _period(lately),
        replace=conflict != "keep",
        retimed=conflict == "debounce" or timed,
    )


def insert(schema: str, kind: str, payload: Any, how: store.Options, *, key: str, once: Once) -> Statement[Any]:
    """Enqueue one job, as its key allows. No row in the answer: say it again."""
    job = {"kind": store.name(kind, "kind"), "payload": store.encoded_payload(payload), "key": store.name(key, "key")}
    return named("insert_job_once", schema, **job, **vars(how), **vars(once))


def _period(value: float | timedelta) -> float:
    period = seconds(value, "unique_for")
    if not 0 < period <= LONGEST:
        raise InvalidOption(f"unique_for is {period:g} s: must be more than 0 and at most ten years")
    return period
