"""A task of Django's as a redrive handler: called with what it was enqueued with, its signals sent.

``task_started`` is sent at every try, ``task_finished`` once: after the success, or when no other try will come.
"""

from __future__ import annotations

import functools
import sys
from traceback import format_exception
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.utils import timezone

from redrive import store
from redrive.django.framework import TaskContext, TaskError, TaskResultStatus, normalize_json, signals
from redrive.django.ormqueue import project_queue
from redrive.django.results import results
from redrive.errors import Dead, Discard, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from redrive.job import ClaimedJob


class UnstorableResult(TypeError):
    """A task gave back what is no JSON; no other try would mend that."""


def called(backend: type, task: Any) -> Callable[[Any, ClaimedJob], Any]:
    """Make the handler of a plain task."""

    @functools.wraps(task.func)
    def run(payload: Any, job: ClaimedJob) -> Any:
        trial = _Trial(backend, task, job, _earlier(job))
        with trial:
            return trial.returned(task.func(*trial.args(payload), **payload["kwargs"]))

    del run.__wrapped__  # redrive asks a handler what it takes, and this takes payload and job
    return run


def awaited(backend: type, task: Any) -> Callable[[Any, ClaimedJob], Any]:
    """Make the handler of an async task."""

    @functools.wraps(task.func)
    async def run(payload: Any, job: ClaimedJob) -> Any:
        earlier = await sync_to_async(_earlier)(job) if job.attempt > 1 else ()
        trial = _Trial(backend, task, job, earlier)
        await sync_to_async(trial.__enter__)()
        try:
            answer = trial.returned(await task.func(*trial.args(payload), **payload["kwargs"]))
        except BaseException:
            await sync_to_async(trial.__exit__)(*sys.exc_info())
            raise
        await sync_to_async(trial.__exit__)(None, None, None)
        return answer

    del run.__wrapped__  # as above
    return run


class _Trial:
    """One try of a task."""

    def __init__(self, backend: type, task: Any, job: ClaimedJob, earlier: Any) -> None:
        self._backend, self._task, self._job = backend, task, job
        self._result = results(_Row(job), earlier)
        self._set(last_attempted_at=timezone.now(), worker_ids=[*self._result.worker_ids, job.worker])
        if self._result.started_at is None:
            self._set(started_at=self._result.last_attempted_at)

    def args(self, payload: Any) -> list[Any]:
        """Give what the function is called with, the context first where it takes one."""
        context = [TaskContext(task_result=self._result)] if self._task.takes_context else []
        return [*context, *payload["args"]]

    def returned(self, value: Any) -> Any:
        """Take what the function gave back.

        Raises:
            UnstorableResult: when that is no JSON.
        """
        try:
            value = normalize_json(value)
        except (TypeError, ValueError) as error:
            raise UnstorableResult(f"the task's result can't be stored as JSON: {error}") from error
        self._set(_return_value=value)
        return value

    def __enter__(self) -> None:
        signals.task_started.send(sender=self._backend, task_result=self._result)

    def __exit__(self, _kind: object, error: BaseException | None, _stack: object) -> None:
        if error is None:
            self._finish("SUCCESSFUL")
            return
        ends = isinstance(error, Dead | Discard | UnstorableResult)
        if ends or (self._job.last_attempt and isinstance(error, Exception) and not isinstance(error, Verdict)):
            said = f"{type(error).__module__}.{type(error).__qualname__}", "".join(format_exception(error))
            failed = TaskError(exception_class_path=said[0], traceback=said[1])
            self._set(errors=[*self._result.errors, failed])
            self._finish("FAILED")

    def _finish(self, status: str) -> None:
        self._set(status=TaskResultStatus[status], finished_at=timezone.now())
        signals.task_finished.send(sender=self._backend, task_result=self._result)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self._result, name, value)


class _Row:
    """A claimed job, as far as a result is made of its row."""

    status, result, locked_by = "running", None, None
    locked_at = updated_at = None

    def __init__(self, job: ClaimedJob) -> None:
        self.id, self.kind, self.payload = job.id, job.kind, job.payload
        self.created_at, self.metadata = job.created_at, job.metadata


def _earlier(job: ClaimedJob) -> Any:
    queue = project_queue()
    return queue.ask(store.failures(queue.schema, job.id)) if job.attempt > 1 else ()
