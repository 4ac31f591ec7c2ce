"""The backend for Django's tasks: what Django's documentation says of a backend, and what its own tests ask of one."""

from __future__ import annotations

from datetime import timedelta
from unittest import mock

import pytest
from django.core.exceptions import SuspiciousOperation
from django.db import transaction
from django.test import TestCase, override_settings
from django.utils import timezone

pytest.importorskip("django_tasks" if not __import__("django").VERSION >= (6,) else "django.tasks")

from djangos import chores
from redrive.django import queue
from redrive.django.framework import TaskResultDoesNotExist, TaskResultStatus, signals
from redrive.django.tasks import RedriveBackend, place_of
from redrive.django.testing import clear, clock, run_pending, run_pending_async

try:
    from django.tasks import default_task_backend, task_backends
    from django.tasks.exceptions import InvalidTask
except ModuleNotFoundError:
    from django_tasks import default_task_backend, task_backends
    from django_tasks.exceptions import InvalidTaskError as InvalidTask


def heard(name):
    """Signals of that name, while the block lasts."""
    received = mock.Mock()
    signal = getattr(signals, name)
    signal.connect(received)
    return received, signal.disconnect


class Case(TestCase):
    databases = {"default"}

    def setUp(self):
        clear()
        chores.seen.clear()
        for name in ("task_enqueued", "task_started", "task_finished"):
            received, end = heard(name)
            setattr(self, name, received)
            self.addCleanup(end, received)

    def statuses(self, name):
        return [call.kwargs["task_result"].status for call in getattr(self, name).call_args_list]

    def test_it_is_the_projects_backend(self):
        assert isinstance(task_backends["default"], RedriveBackend)
        assert list(default_task_backend.check()) == []
        with override_settings(INSTALLED_APPS=["shop"]):
            [error] = default_task_backend.check()
        assert "INSTALLED_APPS" in error.hint

    def test_an_enqueued_task_is_ready_and_says_so(self):
        for task in (chores.noop, chores.noop_async):
            result = task.enqueue(1, two=3)
            assert result.status == TaskResultStatus.READY
            assert (result.is_finished, result.started_at, result.finished_at) == (False, None, None)
            assert (result.args, result.kwargs, result.attempts, result.errors) == ([1], {"two": 3}, 0, [])
            assert result.task == task
            assert result == default_task_backend.get_result(result.id) == task.get_result(result.id)
            with pytest.raises(ValueError, match="not finished"):
                _ = result.return_value
        assert [call.kwargs["sender"] for call in self.task_enqueued.call_args_list] == [RedriveBackend] * 2

    def test_it_runs_and_the_result_has_times_workers_and_value(self):
        result = chores.context.enqueue(41)
        assert [one.outcome for one in run_pending()] == ["succeeded"]
        assert result.status == TaskResultStatus.READY
        result.refresh()
        assert result.status == TaskResultStatus.SUCCESSFUL
        assert result.return_value == [result.id, 42]
        assert result.enqueued_at <= result.started_at <= result.finished_at
        assert (result.attempts, len(result.worker_ids), result.errors) == (1, 1, [])
        assert self.statuses("task_started") == self.statuses("task_finished") == [TaskResultStatus.SUCCESSFUL]

    def test_async_tasks_run_too(self):
        results = [chores.noop_async.enqueue("a"), chores.context_async.enqueue()]
        run_pending()
        for result in results:
            result.refresh()
        assert chores.seen == [(("a",), {})]
        assert [result.status for result in results] == [TaskResultStatus.SUCCESSFUL] * 2
        assert results[1].return_value == 1

    def test_a_failure_is_tried_again_and_each_try_is_kept(self):
        result = chores.failing.enqueue()
        with clock() as c:
            for attempt in range(1, 6):
                result.refresh()
                assert (result.status, result.attempts) == (TaskResultStatus.READY, attempt - 1)
                run_pending()
                c.move(hours=1)
        result.refresh()
        assert (result.status, result.attempts, result.is_finished) == (TaskResultStatus.FAILED, 5, True)
        assert [error.exception_class for error in result.errors] == [ValueError] * 5
        assert result.errors[0].traceback.endswith("ValueError: This one fails\n")
        assert result.started_at <= result.last_attempted_at <= result.finished_at
        with pytest.raises(ValueError, match="Task failed"):
            _ = result.return_value
        assert len(self.task_started.call_args_list) == 5
        assert self.statuses("task_finished") == [TaskResultStatus.FAILED], "and only when no other try will come"

    def test_what_is_no_json_fails_for_good(self):
        result = chores.unstorable.enqueue()
        assert [one.outcome for one in run_pending()] == ["died"]
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        assert result.errors[0].exception_class is TypeError
        with pytest.raises(TypeError, match="Unsupported type"):
            chores.noop.enqueue(object())

    def test_a_task_that_leaves_does_not_take_the_worker_along(self):
        result = chores.leaving.enqueue()
        with clock() as c:
            while [one for one in run_pending() if one.outcome != "died"]:
                c.move(hours=1)
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        assert result.errors[0].exception_class is SystemExit

    def test_run_after_and_priority(self):
        late = chores.noop.using(run_after=timezone.now() + timedelta(hours=10)).enqueue("late")
        chores.noop.using(priority=-50).enqueue("last")
        chores.noop.enqueue("middle")
        first = chores.noop.using(priority=100).enqueue("first")
        run_pending()
        assert [args[0] for args, _ in chores.seen] == ["first", "middle", "last"]
        assert first.task.priority == 100
        assert late.task.run_after is not None
        with clock() as c:
            c.move(hours=11)
            run_pending()
        assert chores.seen[-1][0] == ("late",)
        assert [place_of(each) for each in (100, 1, 0, -1, -100)] == [0, 5, 5, 5, 9]

    def test_it_is_in_the_transaction(self):
        """OR-01"""
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            lost = chores.noop.enqueue()
            assert default_task_backend.get_result(lost.id) == lost
            raise ZeroDivisionError
        with pytest.raises(TaskResultDoesNotExist):
            default_task_backend.get_result(lost.id)

    def test_what_is_no_result_of_a_task_does_not_exist(self):
        job = queue.enqueue("confirm_order")
        for name in ("123", "nothing", "9" * 40, str(job.id)):
            with pytest.raises(TaskResultDoesNotExist):
                default_task_backend.get_result(name)

    def test_a_name_that_leads_to_no_task_is_not_trusted(self):
        note = {"task": {"backend": "default"}}
        for kind, error in (("subprocess.check_output", SuspiciousOperation), ("missing.func", ImportError)):
            job = queue.enqueue(kind, {"args": [], "kwargs": {}}, metadata=note)
            with pytest.raises(error):
                default_task_backend.get_result(str(job.id))

    def test_a_task_of_another_function_is_a_mismatch(self):
        result = chores.noop.enqueue()
        with pytest.raises(Exception, match="does not match"):
            chores.failing.get_result(result.id)

    def test_what_a_backend_refuses(self):
        with pytest.raises(InvalidTask, match="Queue 'unknown' is not valid"):
            chores.noop.using(queue_name="unknown")
        with pytest.raises(InvalidTask, match="aware"):
            chores.noop.using(run_after=timezone.now().replace(tzinfo=None))

    async def test_from_async_code(self):
        result = await chores.context_async.aenqueue()
        assert (await default_task_backend.aget_result(result.id)) == result
        await run_pending_async()
        await result.arefresh()
        assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 1)
        with pytest.raises(TaskResultDoesNotExist):
            await default_task_backend.aget_result("123")
