"""redrive: background jobs on the Postgres you have. No job is lost, no job fails silently."""

from redrive.errors import (
    Dead,
    Discard,
    InvalidOption,
    InvalidPayload,
    LeaseLost,
    RedriveError,
    Retry,
    Snooze,
)
from redrive.job import ClaimedJob, Enqueued, Job
from redrive.queue import Queue

__all__ = [
    "ClaimedJob",
    "Dead",
    "Discard",
    "Enqueued",
    "InvalidOption",
    "InvalidPayload",
    "Job",
    "LeaseLost",
    "Queue",
    "RedriveError",
    "Retry",
    "Snooze",
]
