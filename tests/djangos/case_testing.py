"""OR-07: the test kit in Django's own test cases: real tables, in the test's transaction."""

from __future__ import annotations

import pytest
from django.core import mail
from django.db import IntegrityError, transaction
from django.test import SimpleTestCase, TestCase

from redrive.django import queue
from redrive.django.testing import (
    assert_enqueued,
    captured_jobs,
    clear,
    clock,
    enqueued,
    run_pending,
    run_pending_async,
)
from shop.models import Order


@queue.handler("twice")
def twice(payload):
    Order.objects.create(email="one@x.example")
    if payload.get("fails"):
        Order.objects.create(email=None)
    if payload.get("caught"):
        with pytest.raises(IntegrityError), transaction.atomic():
            Order.objects.create(email=None)


@queue.handler("look_async")
async def look_async(payload):
    order = await Order.objects.aget(pk=payload["order"])
    return order.email


def jobs_there():
    return len(enqueued())


class InATransaction(TestCase):
    databases = {"default", "other"}

    @classmethod
    def setUpTestData(cls):
        clear()
        Order.objects.all().delete()
        cls.order = Order.objects.create(email="ada@x.example")
        cls.job = queue.enqueue("remind", {"order": cls.order.pk})

    def test_a_view_enqueues_and_the_jobs_run(self):
        answer = self.client.get("/orders/place", {"email": "ada@x.example"})
        assert_enqueued("confirm_order", payload={"order": answer.json()["order"]}, times=1)
        ran = sorted(one.kind for one in run_pending(raise_errors=True))
        assert ran == ["confirm_order", "export_invoice", "remind"]
        assert [each.to for each in mail.outbox] == [["ada@x.example"]]
        assert enqueued("export_invoice", status="succeeded")[0].result == {"pages": 1}
        assert run_pending() == []

    def test_a_view_that_fails_leaves_no_job(self):
        """OR-01"""
        with pytest.raises(ValueError, match="taken back"):
            self.client.get("/orders/place", {"email": "ada@x.example", "fail": "1"})
        assert jobs_there() == 1

    def test_what_each_test_began_with_is_what_was_set_up(self):
        assert jobs_there() == 1
        assert Order.objects.count() == 1

    async def test_an_async_view_enqueues_for_later(self):
        answer = await self.async_client.get("/orders/remind", {"order": self.order.pk})
        assert answer.status_code == 200
        [result] = await run_pending_async()
        assert result.id == self.job.id, "the other is for in three days"

    def test_async_handlers_see_the_transaction(self):
        job = queue.enqueue("look_async", {"order": self.order.pk})
        run_pending(kinds=["look_async"], raise_errors=True)
        assert queue.get(job.id).result == "ada@x.example"

    def test_a_query_that_fails_takes_back_what_its_job_wrote_and_no_more(self):
        queue.enqueue("twice", {"fails": True})
        [result] = run_pending(kinds=["twice"])
        assert (result.outcome, type(result.error)) == ("retried", IntegrityError)
        assert Order.objects.count() == 1, "the test's transaction lives on"

    def test_a_query_that_fails_within_atomic_is_the_handlers_own_business(self):
        queue.enqueue("twice", {"caught": True})
        run_pending(kinds=["twice"], raise_errors=True)
        assert Order.objects.count() == 2

    def test_retries_come_due_by_the_clock(self):
        order = Order.objects.create(email="a@x.example", lines=0)
        queue.enqueue("export_invoice", {"order": order.pk})
        missing = queue.enqueue("export_invoice", {"order": 0})
        assert sorted(one.outcome for one in run_pending(kinds=["export_invoice"])) == ["died", "retried"]
        with clock() as c:
            c.move(minutes=5)
            assert [one.id for one in run_pending(kinds=["export_invoice"])] == [missing.id]

    def test_jobs_are_captured(self):
        with captured_jobs() as jobs:
            queue.enqueue("twice", {}, key="k")
            queue.enqueue("twice", {}, key="k")
        assert [(job.kind, job.status) for job in jobs] == [("twice", "pending")]
        with captured_jobs(run=True) as jobs:
            queue.enqueue("look_async", {"order": self.order.pk})
        assert queue.get(jobs[0].id).status == "succeeded"

    def test_what_was_not_enqueued_is_said_with_what_was(self):
        with pytest.raises(AssertionError, match="there are:"):
            assert_enqueued("confirm_order")

    def test_another_database(self):
        with transaction.atomic(using="other"):
            clear(using="other")
            queue.enqueue("twice", {}, using="other")
            [result] = run_pending(using="other", raise_errors=True)
            assert (result.outcome, jobs_there()) == ("succeeded", 1)

    def test_complete_takes_a_connection_of_djangos(self):
        from django.db import connection

        def exact(payload, job):
            Order.objects.create(email="exact@x.example")
            job.complete(connection, {"done": True})

        if queue.handlers.get("exact") is None:
            queue.handler("exact")(exact)
        job = queue.enqueue("exact")
        run_pending(kinds=["exact"], raise_errors=True)
        assert (queue.get(job.id).status, queue.get(job.id).result) == ("succeeded", {"done": True})


class Committed(SimpleTestCase):
    """As in a TransactionTestCase, without its flush."""

    databases = {"default"}

    def setUp(self):
        clear()
        self.addCleanup(clear)

    def test_it_works_without_a_transaction_as_well(self):
        queue.enqueue("twice", {"fails": True})
        [result] = run_pending()
        assert result.outcome == "retried"
        Order.objects.filter(email="one@x.example").delete()


def test_a_plain_function_as_pytest_has_them():
    """As with pytest-django's db fixture: whatever transaction there is."""
    with transaction.atomic():
        clear()
        queue.enqueue("twice")
        assert [one.outcome for one in run_pending()] == ["succeeded"]
        transaction.set_rollback(True)
