"""What a job is: the row as operators see it, what an enqueue answers, and the claimed job that a handler holds.

A :class:`ClaimedJob` knows its lease but writes nothing by itself: what it asks for goes through the callables that its
worker gave it.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from redrive.payload import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LIVE = ("pending", "running")
FINISHED = ("succeeded", "failed", "dead")
STATES = LIVE + FINISHED

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""From which Postgres counts the microseconds of a timestamptz, in its binary format."""
_UNIX = 946_684_800_000_000
_FIRST = (datetime(1, 1, 2, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
_LAST = (datetime(9999, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def moment(microseconds: int) -> datetime:
    """Read a time as Postgres sends it; what Python has no room for, infinity too, becomes the first or last it has."""
    return EPOCH + timedelta(microseconds=min(max(microseconds, _FIRST), _LAST))


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The answer to an enqueue."""

    id: int
    created: bool
    """False where a live job already had the key: then *id* is that job's."""
    kind: str
    replaced: bool = False
    """That job waited, and has this payload now."""


@dataclass(frozen=True, slots=True)
class Published:
    """The answer to a publish."""

    topic: str
    jobs: tuple[Enqueued, ...]
    """One for each subscriber, by kind; empty where nobody subscribes."""

    @property
    def count(self) -> int:
        """How many jobs were made: without those whose key lived already."""
        return sum(job.created for job in self.jobs)


@dataclass(frozen=True, slots=True)
class Job:
    """A job's row, whole."""

    id: int
    kind: str
    payload: Any
    status: str
    attempts: int
    max_attempts: int
    run_at: datetime
    locked_at: datetime | None
    locked_by: str | None
    last_error: str | None
    created_at: datetime
    updated_at: datetime
    priority: int
    lane: str
    key: str | None
    claims: int
    crashes: int
    alone: bool
    counted: bool
    superseded: bool
    batch: int | None
    expires_at: datetime | None
    cancel_requested_at: datetime | None
    progress: Any
    result: Any
    metadata: dict[str, Any] | None
    fingerprint: str | None
    """Of its last failure: the same for the same fault."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the lease of a claimed job, and what becomes of what it asks for."""

    name: str
    schema: str
    progress: Callable[[ClaimedJob, Any], None] | None = None
    complete: Callable[[ClaimedJob, Any, Any], Any] | None = None
    follow: Callable[[ClaimedJob, Any, Any, str | None, dict[str, Any]], str] | None = None
    """Checks a job that is to follow, and gives it as JSON text."""


class ClaimedJob:
    """The job that a handler is running: its second parameter, where it has one."""

    # Made for every job that runs, so what is the same for nearly all of them stands here, and what is seldom asked for
    # is worked out when it is. Hence also no __slots__: they allow no values of the class.
    id: int
    kind: str
    attempt: int
    """1 at the first try."""
    max_attempts: int
    claim: int
    crashes: int
    priority: int
    lane: str
    due: int
    """run_at, in microseconds since 2000."""
    alone = False
    """It may have killed its worker, and is on trial."""
    reclaims = 0
    """How often its worker was lost; asked for where it is on trial."""
    deadline: float = float("inf")
    """When expires_at has passed, in monotonic seconds of this process."""
    started = 0.0
    lost = False
    """The lease is gone: another worker may run this job, and nothing written about it here will count."""
    completed = False
    """The handler recorded success in its own transaction."""
    followers: tuple[str, ...] = ()
    """What :meth:`then` was given, each as JSON text."""
    stop_reason = ""
    _told = False

    def __init__(self, holder: Holder, row: Sequence[Any]) -> None:
        """Take a row of the claim; its times in microseconds since 2000, as Postgres sends them."""
        (
            self.id,
            self.kind,
            self._payload,
            self.attempt,
            self.max_attempts,
            self.claim,
            self.crashes,
            self.priority,
            self.lane,
            self.due,
            self._created,
            self._metadata,
            expires_in,
        ) = row
        self.holder = holder
        if expires_in is not None:
            self.deadline = time.monotonic() + expires_in

    @classmethod
    def on_trial(cls, holder: Holder, row: Sequence[Any]) -> ClaimedJob:
        """Take a row of the claim of a job that may have killed its worker."""
        job = cls(holder, row[:-1])
        job.alone, job.reclaims = True, row[-1]
        return job

    @property
    def short_trials(self) -> int:
        """How many of its trials did not see the end of its worker; one in which it crashed was long enough."""
        return max(0, min(self.reclaims - self.crashes, 10) - 1)

    def __repr__(self) -> str:
        return f"<job {self.id} {self.kind!r}, attempt {self.attempt} of {self.max_attempts}>"

    @property
    def payload(self) -> Any:
        """The payload, read anew from its JSON text at each access.

        Raises:
            ValueError: when Python can't hold what a stranger wrote; it is the job's failure and no one else's.
        """
        return decode(self._payload)

    @property
    def worker(self) -> str:
        """The name of the worker that holds the lease."""
        return self.holder.name

    @property
    def schema(self) -> str:
        """The schema of the tables."""
        return self.holder.schema

    @property
    def run_at(self) -> datetime:
        """When it was due, as near as Python's datetime comes."""
        return moment(self.due)

    @property
    def created_at(self) -> datetime:
        """When it was enqueued, as near as Python's datetime comes."""
        return moment(self._created)

    @property
    def metadata(self) -> dict[str, Any]:
        """What was noted beside the payload at the enqueue, such as a trace context."""
        return json.loads(self._metadata) if self._metadata else {}

    @property
    def topic(self) -> str | None:
        """The topic that was published, whose subscriber this job's kind is; None for a job that was enqueued."""
        return self.metadata.get("topic")

    @property
    def idempotency_key(self) -> str:
        """The same text at every attempt of this job, for the mail provider or the payment API to tell a repeat by."""
        return f"{self.schema}-{self.id}-{(self._created + _UNIX) % 2**64:x}"

    @property
    def expired(self) -> bool:
        """Whether its deadline has passed, also while it waited here to begin."""
        return time.monotonic() >= self.deadline

    @property
    def last_attempt(self) -> bool:
        """Whether a failure of this try would be the job's death."""
        return self.attempt >= self.max_attempts

    @property
    def should_stop(self) -> bool:
        """Whether to stop now: the worker is going, the job was cancelled or timed out, or its lease is lost.

        A handler that returns after it has seen True has *stopped*, not finished: after a shutdown its job is handed
        back, after a cancel it is ``failed``, after a timeout the attempt failed.
        """
        if self.stop_reason or self.lost:
            self._told = True
            return True
        return False

    @property
    def stopped(self) -> bool:
        """Whether the handler has been told to stop."""
        return self._told

    def stop(self, reason: str, *, told: bool) -> None:
        """Ask the handler to stop; *told* where it learns so by a cancellation and need not look."""
        self.stop_reason = reason
        self._told = self._told or told

    def progress(self, value: Any) -> None:
        """Show *value* (any JSON) as the job's progress; the newest is written about once a second."""
        if self.holder.progress is not None:
            self.holder.progress(self, value)

    def then(self, kind: Any, payload: Any = None, *, key: str | None = None, **options: Any) -> None:
        """Enqueue a job of *kind* when this one succeeds, in the same commit; a try that fails enqueues nothing.

        *kind* is its name or its handler, and the rest is as of :meth:`redrive.Queue.enqueue`; a delay counts from the
        success. With a *key* that lives already there is no second job.

        Raises:
            InvalidPayload: with the path of the value that can't be stored as it is.
            InvalidOption: naming the value and the remedy.
            RuntimeError: after :meth:`complete`, or for a job that no worker is running.
        """
        if self.holder.follow is None or self.completed:
            late = "job.then() comes before job.complete()"
            raise RuntimeError(late if self.completed else "job.then() needs a job that a worker is running")
        self.followers = (*self.followers, self.holder.follow(self, kind, payload, key, options))

    def complete(self, connection: Any, result: Any = None) -> Any:
        """Record success in the transaction of *connection*, so that the handler's own writes and it are one commit.

        On an async connection the answer is to be awaited. Nothing may be left to do after the commit.

        Raises:
            LeaseLost: when this job isn't the worker's any more: roll back.
        """
        if self.holder.complete is None:
            raise RuntimeError("job.complete() needs a job that a worker is running")
        return self.holder.complete(self, connection, result)


@dataclass(slots=True)
class Latest:
    """The newest value per job waiting to be written, safe between a handler's thread and the loop."""

    _values: dict[int, tuple[ClaimedJob, Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, job: ClaimedJob, value: Any) -> None:
        """Replace what waits for *job*."""
        with self._lock:
            self._values[job.id] = (job, value)

    def __contains__(self, job_id: int) -> bool:
        """Whether something waits for the job."""
        return job_id in self._values

    def __len__(self) -> int:
        """Count the jobs for which something waits."""
        return len(self._values)

    def put_back(self, taken: list[tuple[ClaimedJob, Any]]) -> None:
        """Let what was taken wait again, where nothing newer does."""
        with self._lock:
            for job, value in taken:
                self._values.setdefault(job.id, (job, value))

    def take(self) -> list[tuple[ClaimedJob, Any]]:
        """Take everything that waits."""
        with self._lock:
            taken, self._values = list(self._values.values()), {}
        return taken
