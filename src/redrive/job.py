"""What a job is: the row as operators see it, what an enqueue answers, and the claimed job that a handler holds.

A :class:`ClaimedJob` knows its lease but writes nothing by itself: what it asks for goes through the callables that its
worker gave it.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

LIVE = ("pending", "running")
FINISHED = ("succeeded", "failed", "dead")
STATES = LIVE + FINISHED


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The answer to an enqueue."""

    id: int
    created: bool
    """False where a live job already had the key: then *id* is that job's."""
    kind: str


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
    expires_at: datetime | None
    cancel_requested_at: datetime | None
    progress: Any
    result: Any
    metadata: dict[str, Any] | None


class ClaimedJob:
    """The job that a handler is running: its second parameter, where it has one."""

    __slots__ = (
        "_complete",
        "_metadata",
        "_payload",
        "_progress",
        "_told",
        "alone",
        "attempt",
        "claim",
        "completed",
        "crashes",
        "created_at",
        "deadline",
        "id",
        "kind",
        "lane",
        "lost",
        "max_attempts",
        "priority",
        "reclaims",
        "run_at",
        "schema",
        "started",
        "stop_reason",
        "worker",
    )

    def __init__(  # noqa: PLR0917 - a row of the claim, positional by nature
        self,
        id: int,  # noqa: A002 - the column's name
        kind: str,
        payload: str,
        attempts: int,
        max_attempts: int,
        claims: int,
        crashes: int,
        priority: int,
        lane: str,
        run_at: datetime,
        created_at: datetime,
        metadata: str | None,
        expires_in: float | None,
        alone: bool,  # noqa: FBT001
        reclaims: int = 0,
    ) -> None:
        self.id = id
        self.kind = kind
        self._payload = payload
        self.attempt = attempts
        """1 at the first try."""
        self.max_attempts = max_attempts
        self.claim = claims
        self.crashes = crashes
        self.priority = priority
        self.lane = lane
        self.run_at = run_at
        self.created_at = created_at
        self._metadata = metadata
        self.deadline = float("inf") if expires_in is None else time.monotonic() + expires_in
        """When expires_at has passed, in monotonic seconds of this process."""
        self.alone = alone
        """It may have killed its worker, and is on trial."""
        self.reclaims = reclaims
        """How often its worker was lost; asked for where it is on trial."""
        self.worker = ""
        self.schema = ""
        self.started = 0.0
        self.lost = False
        """The lease is gone: another worker may run this job, and nothing written about it here will count."""
        self.completed = False
        """The handler recorded success in its own transaction."""
        self.stop_reason = ""
        self._told = False
        self._progress: Callable[[ClaimedJob, Any], None] | None = None
        self._complete: Callable[[ClaimedJob, Any, Any], Any] | None = None

    def __repr__(self) -> str:
        return f"<job {self.id} {self.kind!r}, attempt {self.attempt} of {self.max_attempts}>"

    @property
    def payload(self) -> Any:
        """The payload, read anew from its JSON text at each access.

        Raises:
            ValueError: when Python can't hold what a stranger wrote; it is the job's failure and no one else's.
        """
        return json.loads(self._payload)

    @property
    def metadata(self) -> dict[str, Any]:
        """What was noted beside the payload at the enqueue, such as a trace context."""
        return json.loads(self._metadata) if self._metadata else {}

    @property
    def idempotency_key(self) -> str:
        """The same text at every attempt of this job, for the mail provider or the payment API to tell a repeat by."""
        return f"{self.schema}-{self.id}-{int(self.created_at.timestamp() * 1_000_000):x}"

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

    def bind(
        self,
        worker: str,
        schema: str,
        progress: Callable[[ClaimedJob, Any], None] | None,
        complete: Callable[[ClaimedJob, Any, Any], Any] | None,
    ) -> None:
        """Tie the job to the worker that claimed it."""
        self.worker, self.schema = worker, schema
        self._progress, self._complete = progress, complete

    def progress(self, value: Any) -> None:
        """Show *value* (any JSON) as the job's progress; the newest is written about once a second."""
        if self._progress is not None:
            self._progress(self, value)

    def complete(self, connection: Any, result: Any = None) -> Any:
        """Record success in the transaction of *connection*, so that the handler's own writes and it are one commit.

        On an async connection the answer is to be awaited. Nothing may be left to do after the commit.

        Raises:
            LeaseLost: when this job isn't the worker's any more: roll back.
        """
        if self._complete is None:
            raise RuntimeError("job.complete() needs a job that a worker is running")
        return self._complete(self, connection, result)


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
