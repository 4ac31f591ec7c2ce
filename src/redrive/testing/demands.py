"""What was enqueued, and the demand that something was: a look at the table, whatever state the jobs are in by now."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redrive import store
from redrive.statements import arun, run
from redrive.testing.lent import connection_of, connection_of_async
from redrive.text import clip
from redrive.typed import dump

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from redrive.handlers import Handler
    from redrive.job import Job
    from redrive.queue import Queue
    from redrive.statements import Statement

LOOKED_AT = 10_000
SHOWN = 20
_WIDTH = 300


def enqueued(
    queue: Queue,
    kind: str | Handler[Any, Any] | None = None,
    *,
    payload: Any = ...,
    key: str | None = None,
    status: str | None = None,
    connection: psycopg.Connection[Any] | None = None,
) -> list[Job]:
    """List the jobs there are, oldest first.

    Args:
        queue: whose table is looked at.
        kind: only of this kind, or of this handler's.
        payload: only with this payload; of a dict the items that are named must be there, others may.
        key: only with this key.
        status: only in this state.
        connection: where to look; without it the queue's own, see :func:`connected`.
    """
    wanted = _Wanted(kind, payload, key, status)
    with connection_of(queue, connection) as conn:
        return wanted.of(run(conn, _everything(queue)))


async def enqueued_async(
    queue: Queue,
    kind: str | Handler[Any, Any] | None = None,
    *,
    payload: Any = ...,
    key: str | None = None,
    status: str | None = None,
    connection: psycopg.AsyncConnection[Any] | None = None,
) -> list[Job]:
    """List the jobs there are, from async code; see :func:`enqueued`."""
    wanted = _Wanted(kind, payload, key, status)
    async with connection_of_async(queue, connection) as conn:
        return wanted.of(await arun(conn, _everything(queue)))


def assert_enqueued(
    queue: Queue,
    kind: str | Handler[Any, Any],
    *,
    payload: Any = ...,
    key: str | None = None,
    status: str | None = None,
    times: int | None = None,
    connection: psycopg.Connection[Any] | None = None,
) -> list[Job]:
    """Demand that such a job was enqueued, at least once or just so many *times*; see :func:`enqueued`.

    Raises:
        AssertionError: telling what was enqueued instead.
    """
    __tracebackhide__ = True
    wanted = _Wanted(kind, payload, key, status)
    with connection_of(queue, connection) as conn:
        return wanted.demanded(run(conn, _everything(queue)), times)


async def assert_enqueued_async(
    queue: Queue,
    kind: str | Handler[Any, Any],
    *,
    payload: Any = ...,
    key: str | None = None,
    status: str | None = None,
    times: int | None = None,
    connection: psycopg.AsyncConnection[Any] | None = None,
) -> list[Job]:
    """Demand that such a job was enqueued, from async code; see :func:`assert_enqueued`."""
    __tracebackhide__ = True
    wanted = _Wanted(kind, payload, key, status)
    async with connection_of_async(queue, connection) as conn:
        return wanted.demanded(await arun(conn, _everything(queue)), times)


def _everything(queue: Queue) -> Statement[Job]:
    return store.list_jobs(queue.schema, limit=LOOKED_AT)


@dataclass
class _Wanted:
    """What jobs are looked for."""

    kind: str | Handler[Any, Any] | None
    payload: Any
    key: str | None
    status: str | None

    def __post_init__(self) -> None:
        self.kind = getattr(self.kind, "kind", self.kind)
        self.payload = dump(self.payload)

    def of(self, newest_first: Sequence[Job]) -> list[Job]:
        """Pick those that are meant."""
        return [job for job in reversed(newest_first) if self._means(job)]

    def demanded(self, newest_first: Sequence[Job], times: int | None) -> list[Job]:
        """Pick those that are meant, or tell what there is instead."""
        __tracebackhide__ = True
        found = self.of(newest_first)
        if len(found) == times or (times is None and found):
            return found
        wanted = "" if times is None else f" {times} times"
        lines = [f"{self} was enqueued {len(found)} times" if found else f"{self} was not enqueued{wanted}"]
        if found:
            lines[0] += f", not {times}"
        there = sorted(newest_first, key=lambda job: (job.kind != self.kind, job.id))
        lines += [f"  {_shown(job)}" for job in there[:SHOWN]]
        lines += [f"  and {len(there) - SHOWN} more"] if len(there) > SHOWN else []
        lines.insert(1, "there are:" if there else "no job was")
        raise AssertionError("\n".join(lines))

    def __str__(self) -> str:
        return _line(str(self.kind), self.payload, self.key, self.status)

    def _means(self, job: Job) -> bool:
        return (
            self.kind in (None, job.kind)
            and self.key in (None, job.key)
            and self.status in (None, job.status)
            and _fits(self.payload, job.payload)
        )


def _fits(wanted: Any, actual: Any) -> bool:
    if wanted is ...:
        return True
    if isinstance(wanted, Mapping):
        return isinstance(actual, dict) and all(
            name in actual and _fits(value, actual[name]) for name, value in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        same = isinstance(actual, list) and len(actual) == len(wanted)
        return same and all(_fits(*pair) for pair in zip(wanted, actual, strict=True))
    return bool(wanted == actual)


def _shown(job: Job) -> str:
    return f"#{job.id} {_line(job.kind, job.payload, job.key, job.status)}"


def _line(kind: str, payload: Any, key: str | None, status: str | None) -> str:
    parts = [kind]
    parts += [] if payload is ... else [clip(json.dumps(payload, ensure_ascii=False, default=repr), _WIDTH)]
    parts += [f"key={key!r}"] if key is not None else []
    parts += [status] if status is not None else []
    return " ".join(parts)
