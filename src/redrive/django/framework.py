"""Which framework of tasks there is: ``django.tasks`` came with Django 6, and before that it is a package."""

from __future__ import annotations

try:
    from django.tasks import signals
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.utils.json import normalize_json
except ModuleNotFoundError:
    try:
        from django_tasks import signals
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.utils import normalize_json
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "django.tasks came with Django 6; before that it is a package: pip install django-tasks", name=error.name
        ) from error

__all__ = [
    "BaseTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "signals",
]
