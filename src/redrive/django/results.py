"""A job as the result of a task of Django's: its status, times, errors and workers, from its row and its history."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.utils import timezone
from django.utils.module_loading import import_string

from redrive.django.framework import Task, TaskError, TaskResult, TaskResultStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOTE = "task"
"""Under which name it is in a job's metadata how its task was called."""
UNSTORABLE = "redrive.django.running.UnstorableResult"
STATUSES = {
    "pending": TaskResultStatus.READY,
    "running": TaskResultStatus.RUNNING,
    "succeeded": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED,
    "dead": TaskResultStatus.FAILED,
}


def results(job: Any, failures: Sequence[Any]) -> Any:
    """Give a job as a task's result.

    Raises:
        ImportError: when its task's module is gone.
        SuspiciousOperation: when what goes by its name is no task.
    """
    payload = job.payload if isinstance(job.payload, dict) else {}
    counted = [row for row in failures if row.outcome != "held"]
    begun = [row.failed_at - timedelta(seconds=row.duration or 0) for row in counted]
    workers = [str(row.worker) for row in counted]
    if job.status in ("running", "succeeded") and job.locked_at is not None:
        begun.append(job.locked_at)
        workers.append(str(job.locked_by))
    finished = job.status in ("succeeded", "failed", "dead")
    result = TaskResult(
        task=task_of(job),
        id=str(job.id),
        status=STATUSES[job.status],
        enqueued_at=_time(job.created_at),
        started_at=_time(begun[0]) if begun else None,
        last_attempted_at=_time(begun[-1]) if begun else None,
        finished_at=_time(job.updated_at) if finished else None,
        args=payload.get("args", []),
        kwargs=payload.get("kwargs", {}),
        backend=str(_note(job).get("backend", "default")),
        errors=[_error(row) for row in counted],
        worker_ids=workers,
    )
    object.__setattr__(result, "_return_value", job.result if job.status == "succeeded" else None)
    return result


def task_of(job: Any) -> Any:
    """Find the task of a job, as it was enqueued.

    Raises:
        ImportError: when its module is gone.
        SuspiciousOperation: when what goes by its name is no task.
    """
    task = import_string(job.kind)
    if not isinstance(task, Task):
        raise SuspiciousOperation(f"job {job.id} does not point to a task ({job.kind})")
    how = _note(job)
    run_after = how.get("run_after")
    return replace(
        task,
        priority=how.get("priority", task.priority),
        queue_name=how.get("queue", task.queue_name),
        backend=how.get("backend", task.backend),
        run_after=None if run_after is None else _time(datetime.fromisoformat(run_after)),
    )


def _note(job: Any) -> Mapping[str, Any]:
    found = (job.metadata or {}).get(NOTE)
    return found if isinstance(found, dict) else {}


def _error(row: Any) -> Any:
    name = "TypeError" if row.error_type == UNSTORABLE else row.error_type  # what it is a case of, for whoever compares
    path = name if "." in name else f"builtins.{name}"
    return TaskError(exception_class_path=path, traceback=f"{row.traceback or row.message}\n")


def _time(value: datetime) -> datetime:
    return value if settings.USE_TZ else timezone.make_naive(value)
