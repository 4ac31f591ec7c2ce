"""What can be asked of the tables and done to them, each as a statement for any connection.

Options are checked here, before any SQL: a caller's transaction is never broken by a bad argument.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import index
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypedDict

from psycopg.rows import namedtuple_row

from redrive.errors import InvalidOption, InvalidPayload
from redrive.job import STATES, Job
from redrive.payload import encode
from redrive.settings import seconds
from redrive.sql import spoken
from redrive.statements import Statement, Steps, known, lenient, named
from redrive.text import storable
from redrive.typed import dump

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_ATTEMPTS = 2**31 - 1
MAX_ID = 2**63 - 1
MAX_NAME = 1000
"""Bytes of a kind, lane or key: two of them share a row of jobs_claim_idx, which holds 2,700."""


class Wishes(TypedDict, total=False):
    """How a job is to run, as an enqueue is given it."""

    delay: float | timedelta | None
    """Seconds from now by the database's clock; or run_at, not both."""
    run_at: datetime | None
    """An aware datetime."""
    priority: int
    """0 to 9, lower runs first."""
    max_attempts: int
    lane: str
    expires_at: datetime | None
    """A job that could not run by then is dead; or expires_in, not both."""
    expires_in: float | timedelta | None
    metadata: dict[str, Any] | None
    """What is to be known beside the payload, such as a trace context."""
    batch: int | None
    """The id of a batch that was opened in the same transaction; see :class:`redrive.batches.Batches`."""
    unique: Literal["until finished", "while pending"]
    """Which jobs of the same key count: those that are pending or running, or only those that are pending."""
    unique_for: float | timedelta
    """Seconds for which a job of the same key that has succeeded counts as well."""
    on_conflict: Literal["keep", "replace", "debounce"]
    """What becomes of a pending job of the same key: it stays, or gets this payload, and with debounce its time too."""


class Opened(int):
    """The id of a batch, from who has just opened it in the same transaction: it need not be looked for."""


ABOUT_KEYS = ("unique", "unique_for", "on_conflict")
"""Of these, what says more of a key."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a job is to run, checked."""

    run_at: datetime | None = None
    delay: float = 0.0
    priority: int = 5
    max_attempts: int = 5
    lane: str = ""
    expires_at: datetime | None = None
    expires_in: float | None = None
    metadata: str | None = None
    batch: int | None = None


def options(
    *,
    delay: float | timedelta | None = None,
    run_at: datetime | None = None,
    priority: int = 5,
    max_attempts: int = 5,
    lane: str = "",
    expires_at: datetime | None = None,
    expires_in: float | timedelta | None = None,
    metadata: dict[str, Any] | None = None,
    batch: int | None = None,
) -> Options:
    """Check what an enqueue was given.

    Raises:
        InvalidOption: naming the value and the remedy.
    """
    if delay is not None and run_at is not None:
        raise InvalidOption("delay and run_at were both given: give one of them")
    if expires_at is not None and expires_in is not None:
        raise InvalidOption("expires_at and expires_in were both given: give one of them")
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 9:  # noqa: PLR2004 - the column's range
        raise InvalidOption(f"priority is {priority!r}: must be a whole number from 0 (first) to 9 (last)")
    if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or not 1 <= max_attempts <= MAX_ATTEMPTS:
        raise InvalidOption(f"max_attempts is {max_attempts!r}: must be a whole number from 1 to {MAX_ATTEMPTS}")
    return Options(
        run_at=instant(run_at, "run_at"),
        delay=_wait(delay, "delay") or 0.0,
        priority=priority,
        max_attempts=max_attempts,
        lane=name(lane, "lane", empty=True),
        expires_at=instant(expires_at, "expires_at"),
        expires_in=_wait(expires_in, "expires_in"),
        metadata=_metadata(metadata),
        batch=None if batch is None else int(number(batch, "batch")),
    )


def insert(schema: str, kind: str, payload: Any, key: str | None, how: Options) -> Statement[Any]:
    """Enqueue one job. No row in the answer: say it again, see ``insert_keyed_job``."""
    job = {"kind": name(kind, "kind"), "payload": encoded_payload(payload), **vars(how)}
    if key is None:
        return named("insert_job", schema, **job)
    return named("insert_keyed_job", schema, key=name(key, "key"), **job)


def follower(kind: str, payload: Any, key: str | None, how: Options) -> str:
    """Give a job that is to follow another as JSON text, as ``finish_jobs`` and ``insert_followers`` take it."""
    job = {"kind": name(kind, "kind"), "payload": encoded_payload(payload), **vars(how)}
    job["key"] = None if key is None else name(key, "key")
    for time in ("run_at", "expires_at"):
        job[time] = None if job[time] is None else job[time].isoformat()
    return json.dumps(job, ensure_ascii=False)


def batch_is_ours(schema: str, batch: Any) -> Statement[Any] | None:
    """Look for the batch that an enqueue names; None where there is nothing to look for."""
    if batch is None or isinstance(batch, Opened):
        return None
    return named("batch_is_ours", schema, batch=number(batch, "batch"))


def get(schema: str, job_id: int) -> Statement[Job]:
    """Fetch a job's row."""
    return lenient("get_job", schema, known(Job), id=job_id)


def failures(schema: str, job_id: int) -> Statement[Any]:
    """Fetch the history of a job's failed attempts, oldest first."""
    return lenient("failures_of_job", schema, namedtuple_row, id=job_id)


def list_jobs(
    schema: str,
    *,
    status: str | None = None,
    kind: str | None = None,
    key: str | None = None,
    error: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> Statement[Job]:
    """Fetch jobs, newest first, a page before a known id."""
    params = {
        "status": _state(status),
        "kind": said(kind, "kind"),
        "key": said(key, "key"),
        "error": containing(error),
        "before": before,
        "limit": limit,
    }
    return lenient("list_jobs", schema, known(Job), **params)


def cancel(
    schema: str,
    *,
    ids: Sequence[int] | None = None,
    kind: str | None = None,
    key: str | None = None,
    reason: str = "",
    who: str | None = None,
    act: int | None = None,
    after: int = 0,
    limit: int = 1000,
) -> Statement[Any]:
    """Cancel pending jobs and ask running ones to stop; a row a job, with the state that it was in.

    *act* is the audit's row that counts it, None at first.

    Raises:
        InvalidOption: when nothing says which jobs are meant.
    """
    if ids is None and kind is None and key is None:
        raise InvalidOption("cancel: say which jobs, by ids, kind or key")
    words = f"cancelled: {said(reason, 'reason')}" if reason else "cancelled"
    chosen = None if ids is None else [number(each, "id") for each in ids]
    which = {"ids": chosen, "kind": said(kind, "kind"), "key": said(key, "key")}
    given = {name: value for name, value in which.items() if value is not None}
    noted = {"filter": json.dumps(given, ensure_ascii=False), "act": act}
    signed = {"who": who, "why": reason or None}
    return named("cancel_jobs", schema, **which, **noted, **signed, words=words, after=after, limit=limit)


def cancelling(schema: str, **which: Any) -> Steps[dict[int, str]]:
    """Cancel all that :func:`cancel` means, batch by batch; gives each job's state as it was found."""
    found: dict[int, str] = {}
    act = None
    while True:
        batch = cancel(schema, **which, act=act, after=max(found, default=0))
        rows = yield batch
        found |= {row.id: row.was for row in rows}
        if len(rows) < batch.params["limit"]:  # type: ignore[index]
            return found
        act = rows[0].act


def cancel_preview(
    schema: str, *, ids: Sequence[int] | None = None, kind: str | None = None, key: str | None = None
) -> Statement[Any]:
    """Count what :func:`cancel` would cancel or ask to stop, with a sample."""
    chosen = None if ids is None else list(ids)
    return named("cancel_preview", schema, ids=chosen, kind=said(kind, "kind"), key=said(key, "key"))


def counts(schema: str) -> Statement[Any]:
    """Count jobs by kind and state."""
    return Statement(spoken("count_jobs", schema), namedtuple_row)


def workers(schema: str) -> Statement[Any]:
    """List the worker processes and how long ago each gave a sign of life."""
    return lenient("list_workers", schema, namedtuple_row)


def oldest_due(schema: str) -> Statement[Any]:
    """Give the age of the oldest due job of each kind that has one, in seconds."""
    return Statement(spoken("oldest_due", schema), namedtuple_row)


def _state(status: str | None) -> str | None:
    if status is not None and status not in STATES:
        raise InvalidOption(f"status is {status!r}: must be one of {', '.join(STATES)}")
    return status


def said(text: str | None, what: str) -> str | None:
    """Check a text to look for; None where none is given.

    Raises:
        InvalidOption: when it can't be in the tables.
    """
    if text is not None and storable(text) != text:
        raise InvalidOption(f"{what} is {text!r:.80}: NUL and lone surrogates can't be stored, so there is none such")
    return text


def containing(text: str | None) -> str | None:
    """Give the pattern of what contains *text*, in any case."""
    if (text := said(text, "error")) is None:
        return None
    return "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"


def instant(value: datetime | None, name: str) -> datetime | None:
    """Check a time.

    Raises:
        InvalidOption: for one without a zone.
    """
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidOption(f"{name} is {value!r}: give an aware datetime")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidOption(
            f"{name} is the naive datetime {value.isoformat()}: say in which zone, "
            "e.g. datetime.now(timezone.utc) + timedelta(minutes=5)"
        )
    return value


def _wait(value: float | timedelta | None, name: str) -> float | None:
    if value is None:
        return None
    wait = seconds(value, name)
    if not 0 <= wait <= 100 * 365 * 86_400:
        raise InvalidOption(f"{name} is {wait:g} s: must be from 0 to a hundred years")
    return wait


def number(value: Any, what: str) -> int:
    """Check an id.

    Raises:
        InvalidOption: for what no row can have as its id.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or not -MAX_ID <= index(value) <= MAX_ID:
        raise InvalidOption(f"{what} is {value!r:.80}: give an id, a whole number")
    return index(value)


def name(value: Any, what: str, *, empty: bool = False) -> str:
    """Check a kind, a lane or a key.

    Raises:
        InvalidOption: when it can't be stored, or not found again by its index.
    """
    if not isinstance(value, str):
        raise InvalidOption(f"{what} is {value!r}: give text")
    if not value and not empty:
        raise InvalidOption(f"{what} is empty")
    _demand_storable(value, what)
    if (size := len(value.encode())) > MAX_NAME:
        raise InvalidOption(f"{what} is {value[:40]!r}… of {size} bytes: at most {MAX_NAME}; a hash of it would do")
    return value


def remark(value: Any, what: str) -> str | None:
    """Check what operators say of what they do; None where they say nothing.

    Raises:
        InvalidOption: when it can't be stored.
    """
    if not isinstance(value, str):
        raise InvalidOption(f"{what} is {value!r}: give text")
    _demand_storable(value, what)
    return value or None


def _demand_storable(value: str, what: str) -> None:
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidOption(f"{what} is {value!r:.80}: NUL and lone surrogates can't be stored")


def encoded_payload(payload: Any) -> str:
    """Give a payload as JSON text; none is an empty one."""
    return encode({} if payload is None else payload if payload.__class__ is dict else dump(payload))


def _metadata(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidOption(f"metadata is {value!r:.80}: give a dict")
    try:
        return encode(value)
    except InvalidPayload as error:
        raise InvalidOption(str(error).replace("payload", "metadata", 1)) from error
