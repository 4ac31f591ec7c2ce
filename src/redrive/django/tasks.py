"""A backend for Django's own tasks (``django.tasks`` of Django 6, or the package django-tasks before that).

    TASKS = {"default": {"BACKEND": "redrive.django.tasks.RedriveBackend"}}

A task is a kind of its own, named after its function's path; enqueueing one is enqueueing a job in the ORM's
transaction. OPTIONS are those of a handler: ``{"max_attempts": 3, "timeout": 60}``. Results are read from the job's
row, for as long as retention keeps it.
"""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import Any

from django.apps import apps
from django.core.checks import Error
from django.utils import timezone

from redrive import store
from redrive.django.framework import BaseTaskBackend, TaskResultDoesNotExist, normalize_json, signals
from redrive.django.ormqueue import project_queue
from redrive.django.results import NOTE, results
from redrive.django.running import UnstorableResult, awaited, called


class RedriveBackend(BaseTaskBackend):
    """Runs Django's tasks as jobs."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: Any) -> None:
        """Check a task, and let workers know it: each is made when its module is imported."""
        super().validate_task(task)
        queue, kind = project_queue(), path_of(task)
        if queue.handlers.get(kind) is None:
            how = {"dead_on": UnstorableResult, **self.options}
            make = awaited if iscoroutinefunction(task.func) else called
            queue.handler(kind, **how)(make(type(self), task))

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a job for a task, in the ORM's transaction."""
        self.validate_task(task)
        payload = {"args": normalize_json(list(args)), "kwargs": normalize_json(dict(kwargs))}
        run_after = task.run_after
        if run_after is not None and timezone.is_naive(run_after):
            run_after = timezone.make_aware(run_after)
        how = {"queue": task.queue_name, "backend": self.alias, "priority": task.priority}
        note = {NOTE: how | ({} if run_after is None else {"run_after": run_after.isoformat()})}
        queue = project_queue()
        job = queue.enqueue(path_of(task), payload, priority=place_of(task.priority), run_at=run_after, metadata=note)
        result = self.get_result(str(job.id))
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Read a result.

        Raises:
            TaskResultDoesNotExist: when there is no such job, or it is no task's.
        """
        queue = project_queue()
        number = int(result_id) if str(result_id).isdecimal() and len(str(result_id)) < 19 else 0  # noqa: PLR2004 - of a bigint
        job = queue.get(number) if number else None
        if job is None or not isinstance(job.metadata, dict) or NOTE not in job.metadata:
            raise TaskResultDoesNotExist(result_id)
        failures = queue.ask(store.failures(queue.schema, job.id)) if job.claims else []
        return results(job, failures)

    def check(self, **_: Any) -> Any:
        """Check that redrive is one of the project's apps."""
        if not apps.is_installed("redrive.django"):
            yield Error(
                f"TASKS[{self.alias!r}] is redrive's, and redrive is no app of this project",
                hint="Put 'redrive.django' into INSTALLED_APPS.",
                id="redrive.E006",
            )


def path_of(task: Any) -> str:
    """Name the kind of a task: the path of its function."""
    return f"{task.func.__module__}.{task.func.__qualname__}"


def place_of(priority: int) -> int:
    """Give redrive's priority, 0 (first) to 9, for one of Django's, 100 (first) to -100."""
    return 5 - round(priority / 20) if priority > 0 else 5 - round(priority / 25)
