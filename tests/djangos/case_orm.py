"""OR-01, OR-02, OR-09: what is enqueued is in the ORM's transaction, whichever way that goes."""

from __future__ import annotations

import asyncio
import threading

import psycopg
import pytest
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.db import OperationalError, ProgrammingError, connection, connections, transaction
from django.test import SimpleTestCase
from django.test.utils import CaptureQueriesContext

from redrive import InvalidPayload, Queue
from redrive.django import queue
from redrive.django.options import url
from redrive.django.testing import clear, enqueued
from redrive.store import list_jobs
from shop.models import Order


def seen_elsewhere(alias="default"):
    """The kinds of the jobs that another session sees."""
    with psycopg.connect(url(alias), autocommit=True) as other:
        return [row[0] for row in other.execute("SELECT kind FROM redrive.jobs ORDER BY id")]


class Case(SimpleTestCase):
    databases = {"default", "other"}

    def setUp(self):
        for alias in self.databases:
            clear(using=alias)

    def test_outside_a_transaction_it_is_there_at_once(self):
        queue.enqueue("a", {"n": 1})
        assert seen_elsewhere() == ["a"]

    def test_it_commits_and_rolls_back_with_atomic(self):
        """OR-01"""
        with transaction.atomic():
            Order.objects.create(email="a@x.example")
            queue.enqueue("kept")
            queue.enqueue_many("many", [{"n": n} for n in range(3)])
            assert seen_elsewhere() == []
        assert seen_elsewhere() == ["kept", "many", "many", "many"]
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            queue.enqueue("lost")
            queue.enqueue_many("lost", [{}, {}])
            raise ZeroDivisionError
        assert len(seen_elsewhere()) == 4

    def test_a_publish_is_in_atomic_and_what_the_code_subscribes_to_is_written_apart(self):
        queue.subscribe("case.orm", kind="case_orm")(lambda payload: None)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            assert queue.publish("case.orm", {"n": 1}).count == 1
            assert queue.publish_many("case.orm", [1, 2], connection=connection) == 2
            raise ZeroDivisionError
        assert seen_elsewhere() == []
        with psycopg.connect(url("default"), autocommit=True) as other:
            there = other.execute("SELECT kind FROM redrive.subscriptions WHERE topic = 'case.orm'").fetchall()
        assert there == [("case_orm",)]

        async def publish():
            assert (await queue.publish_async("case.orm")).count == 1
            assert await queue.publish_many_async("case.orm", [1]) == 1
            async with await psycopg.AsyncConnection.connect(url("default"), autocommit=True) as own:
                assert (await queue.publish_async("case.orm", connection=own)).count == 1

        asyncio.run(publish())
        assert seen_elsewhere() == ["case_orm"] * 3

    def test_a_savepoint_takes_its_own_job_back_and_no_other(self):
        """OR-01"""
        with transaction.atomic():
            queue.enqueue("outer")
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                queue.enqueue("inner")
                raise ZeroDivisionError
            queue.enqueue("after")
        assert seen_elsewhere() == ["outer", "after"]

    def test_with_autocommit_off_it_waits_for_the_commit(self):
        transaction.set_autocommit(False)
        try:
            queue.enqueue("a")
            queue.enqueue_many("b", ({"n": n} for n in range(6000)))
            assert seen_elsewhere() == []
            transaction.rollback()
            assert seen_elsewhere() == []
            queue.enqueue("c")
            transaction.commit()
        finally:
            transaction.set_autocommit(True)
        assert seen_elsewhere() == ["c"]

    def test_many_chunks_are_one_with_the_transaction_they_are_in(self):
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            assert queue.enqueue_many("bulk", ({"n": n} for n in range(11_000))) == 11_000
            raise ZeroDivisionError
        assert seen_elsewhere() == []

    def test_another_database_goes_by_its_alias_or_its_connection(self):
        """OR-02"""
        with transaction.atomic(using="other"):
            queue.enqueue("by alias", using="other")
            queue.enqueue("by connection", connection=connections["other"])
            assert seen_elsewhere("other") == []
        assert seen_elsewhere("other") == ["by alias", "by connection"]
        queue.enqueue("by the driver's own", connection=connections["other"].connection)
        queue.enqueue("by the proxy", connection=connection)
        assert seen_elsewhere("other")[2:] == ["by the driver's own"]
        assert seen_elsewhere() == ["by the proxy"]

    def test_a_handler_enqueues_on_an_alias_too(self):
        from shop.jobs import confirm_order

        confirm_order.enqueue({"order": 1}, using="other")
        assert seen_elsewhere("other") == ["confirm_order"]

    def test_cancel_and_requeue_are_in_the_transaction_as_well(self):
        """OR-02"""
        job = queue.enqueue("a")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            assert queue.cancel(job.id) == {job.id: "pending"}
            raise ZeroDivisionError
        assert queue.get(job.id).status == "pending"
        with transaction.atomic():
            queue.cancel(job.id)
        assert queue.get(job.id).status == "failed"

    def test_any_queue_takes_a_connection_of_djangos(self):
        """OR-02: not the project's alone; and Django counts the statement among its own."""
        plain = Queue(url("other"))
        with CaptureQueriesContext(connections["other"]) as said, transaction.atomic(using="other"):
            job = plain.enqueue("a", {"n": 1}, connection=connections["other"])
            plain.enqueue_many("b", [{}, {}], connection=connections["other"])
            assert [each.status for each in plain.ask(list_jobs("redrive"), connections["other"])] == ["pending"] * 3
            assert seen_elsewhere("other") == []
        assert len(said) == 3 + 2  # and Django's own BEGIN and COMMIT
        assert plain.get(job.id).payload == {"n": 1}
        plain.enqueue("c", connection=connection)
        assert seen_elsewhere() == ["c"]
        with pytest.raises(TypeError, match="'lite', is SQLite"):
            plain.enqueue("d", connection=connections["lite"])
        plain.close()

    def test_a_key_is_unique_and_no_error(self):
        with transaction.atomic():
            first, second = (queue.enqueue("a", key="k") for _ in range(2))
            Order.objects.create(email="still@fine.example")
        assert (first.created, second.created, first.id) == (True, False, second.id)

    def test_bad_input_leaves_the_transaction_whole(self):
        with transaction.atomic():
            with pytest.raises(InvalidPayload):
                queue.enqueue("a", {"n": object()})
            queue.enqueue("b")
        assert seen_elsewhere() == ["b"]

    def test_sqlite_is_refused_by_name_and_with_the_remedy(self):
        """OR-02"""
        with pytest.raises(ImproperlyConfigured, match=r"DATABASES\['lite'\] is SQLite.*'default', 'other' would do"):
            queue.enqueue("a", using="lite")
        with pytest.raises(ImproperlyConfigured, match="DATABASES has no 'nowhere', only default, lite, other"):
            queue.enqueue("a", using="nowhere")
        with pytest.raises(TypeError, match="using and connection were both given"):
            queue.enqueue("a", using="other", connection=connection)

    def test_errors_are_djangos_and_say_what_to_run(self):
        with connections["other"].cursor() as cursor:
            cursor.execute("ALTER SCHEMA redrive RENAME TO elsewhere")
        try:
            with pytest.raises(ProgrammingError) as caught, transaction.atomic(using="other"):
                queue.enqueue("a", using="other")
            assert "manage.py migrate redrive --database other" in "".join(caught.value.__notes__)
        finally:
            with connections["other"].cursor() as cursor:
                cursor.execute("ALTER SCHEMA elsewhere RENAME TO redrive")

    def test_a_lost_connection_is_noticed_by_django(self):
        queue.enqueue("a")
        pid = connection.connection.info.backend_pid
        with psycopg.connect(url("default"), autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 1000)", [pid])
        with pytest.raises(OperationalError):
            queue.enqueue("b")
        connection.close_if_unusable_or_obsolete()
        queue.enqueue("c")
        assert seen_elsewhere() == ["a", "c"]

    def test_no_statement_of_ours_ends_the_callers_transaction(self):
        """OR-02: the database counts commits and rollbacks: there is one, the caller's own."""

        def xacts(other):
            other.execute("SELECT pg_stat_clear_snapshot()")
            return other.execute(
                "SELECT backend_xid FROM pg_stat_activity WHERE pid = %s", [connection.connection.info.backend_pid]
            ).fetchone()

        with psycopg.connect(url("default"), autocommit=True) as other, transaction.atomic():
            Order.objects.create(email="a@x.example")
            [before] = xacts(other)
            queue.enqueue("a")
            queue.enqueue("b", key="b")
            queue.enqueue_many("c", [{}] * 3)
            queue.enqueue_many("c", ({"n": n} for n in range(6000)))
            queue.cancel(queue.enqueue("d").id)
            assert xacts(other) == (before,)
            assert before is not None


def closing(function, *args):
    """Call it, and close the connection of this thread, which nobody looks after."""
    try:
        return function(*args)
    finally:
        connections.close_all()


class AsyncCase(SimpleTestCase):
    databases = {"default"}

    def setUp(self):
        clear()

    async def test_async_code_enqueues_where_its_queries_are(self):
        await queue.enqueue_async("a", {"n": 1})
        assert await queue.enqueue_many_async("b", [{}, {}]) == 2
        assert await asyncio.to_thread(seen_elsewhere) == ["a", "b", "b"]

    async def test_sync_code_in_a_running_loop_is_told_what_to_do_and_hangs_nobody(self):
        """OR-09"""
        async with asyncio.timeout(5):
            with pytest.raises(SynchronousOnlyOperation, match=r"such as queue\.enqueue_async"):
                queue.enqueue("a")
            await asyncio.to_thread(closing, queue.enqueue, "b")
        assert await asyncio.to_thread(seen_elsewhere) == ["b"]

    async def test_a_connection_of_psycopgs_own_can_be_awaited(self):
        async with await psycopg.AsyncConnection.connect(url("default")) as own:
            await queue.enqueue_async("a", connection=own)
            assert await asyncio.to_thread(seen_elsewhere) == []
            await own.rollback()

    def test_threads_have_each_their_own_connection(self):
        with transaction.atomic():
            thread = threading.Thread(target=closing, args=(queue.enqueue, "there"))
            thread.start()
            thread.join()
            assert seen_elsewhere() == ["there"]


def test_jobs_can_be_looked_at_with_the_orm():
    from redrive.django.models import Job

    clear()
    queue.enqueue("a", {"n": 1})
    job = Job.objects.get(payload__n=1)
    assert (job.kind, job.status, str(job)) == ("a", "pending", f"a {job.pk}")
    with pytest.raises(TypeError, match=r"queue\.enqueue"):
        job.save()
    with pytest.raises(TypeError, match="retention"):
        job.delete()
    assert len(enqueued("a")) == 1
