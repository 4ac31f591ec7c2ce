"""OR-03: the ORM's connections in a worker, whatever the settings say and whatever a job has left behind."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager, suppress

import django
import psycopg
import pytest
from django.db import DatabaseError, connection, connections, transaction

from chaos.patience import wait_for
from djangos.working import ended, working
from redrive.django import queue, upkeep
from redrive.django.options import url
from redrive.django.testing import clear
from shop.models import Order


@queue.handler("touch")
def touch(payload):
    Order.objects.exists()
    return connection.connection.info.backend_pid


@queue.handler("touch_async")
async def touch_async(payload):
    await Order.objects.aexists()
    await Order.objects.acount()


@queue.handler("blocking_async", max_attempts=1)
async def blocking_async(payload):
    Order.objects.exists()


@queue.handler("spoil", max_attempts=1)
def spoil(payload):
    match payload["how"]:
        case "atomic":
            transaction.atomic().__enter__()
            Order.objects.create(email="lost@x.example")
        case "broken":
            block = transaction.atomic()
            block.__enter__()
            with suppress(DatabaseError):
                Order.objects.create(email=None)
        case "autocommit":
            transaction.set_autocommit(False)
            Order.objects.create(email="lost@x.example")
        case "autocommit, committed":
            transaction.set_autocommit(False)
            Order.objects.create(email="kept@x.example")
            transaction.commit()
        case "by hand":
            connection.cursor().execute("BEGIN; SELECT 1")
        case "raised":
            transaction.atomic().__enter__()
            raise LookupError("a fault of its own")


@pytest.fixture(autouse=True)
def _empty():
    clear()
    Order.objects.all().delete()


@contextmanager
def set_to(**settings):
    """Settings of the database, in all threads."""
    own = connections.settings["default"]
    before = {name: own[name] for name in settings}
    connections.close_all()
    own.update(settings)
    try:
        yield
    finally:
        connections.close_all()
        own.update(before)


def sessions(which="application_name = ''", act="count(*)"):
    """The ORM's sessions in the database, but for this thread's own."""
    connection.ensure_connection()
    with psycopg.connect(url("default"), autocommit=True, application_name="redrive test") as other:
        mine = connection.connection.info.backend_pid
        where = f"datname = current_database() AND pid NOT IN (pg_backend_pid(), {mine}) AND {which}"
        return other.execute(f"SELECT {act} FROM pg_stat_activity WHERE {where}").fetchall()


def kill(which="application_name = ''"):
    return sessions(which, "pg_terminate_backend(pid, 5000)")


POOL = {"min_size": 1, "max_size": 4}
POOLS = pytest.mark.skipif(django.VERSION < (5, 1), reason="Django has a pool from 5.1 on")


@pytest.mark.parametrize("pooled", [False, pytest.param(True, marks=POOLS)])
def test_the_first_query_after_a_lost_connection_works_or_03(pooled):
    """OR-03: CONN_MAX_AGE 0, 60 and None, health checks on and off, Django's pool: one worker, killed in between."""
    options = {**connections.settings["default"]["OPTIONS"], "pool": POOL} if pooled else None
    more = {"OPTIONS": options} if pooled else {}
    try:
        with set_to(**more), working(concurrency=1):
            for age in (0,) if pooled else (0, 60, None):
                for checks in (False, True):
                    with set_to(CONN_MAX_AGE=age, CONN_HEALTH_CHECKS=checks):
                        first = ended(queue.enqueue("touch"))
                        killed = kill()
                        assert killed or (age == 0 and not pooled)
                        second = ended(queue.enqueue("touch"))
                        assert (second.status, second.attempts) == ("succeeded", 1), second.last_error
                        assert (second.result == first.result) is False
    finally:
        if pooled:
            with set_to(**more):
                connection.close_pool()


def test_the_end_of_every_session_is_survived():
    """OR-03: the worker's own as well."""
    with set_to(CONN_MAX_AGE=None), working(concurrency=2):
        assert ended(queue.enqueue("touch")).status == "succeeded"
        assert len(kill("true")) >= 3
        for kind in ("touch", "touch_async"):
            job = ended(queue.enqueue(kind))
            assert (job.status, job.attempts) == ("succeeded", 1), job.last_error


def test_a_thousand_jobs_use_no_more_connections_than_slots_or_03():
    """OR-03: of sync and async handlers."""
    with set_to(CONN_MAX_AGE=None), working(concurrency=3):
        queue.enqueue_many("touch", [{}] * 900)
        queue.enqueue_many("touch_async", [{}] * 100)
        most = 0

        def done():
            nonlocal most
            most = max(most, sessions()[0][0])
            return not queue.ask(waiting())

        wait_for(done, 60)
        assert 1 <= most <= 6, "three threads for sync handlers, three for the queries of async ones"


def waiting():
    from redrive.store import list_jobs

    return list_jobs("redrive", status="pending", limit=1)


def test_a_hungry_worker_never_finds_a_job_before_its_row():
    """OR-01: what another session enqueues meanwhile is run, and proves that the worker has looked."""
    with working(concurrency=1), transaction.atomic():
        order = Order.objects.create(email="a@x.example", lines=7)
        job = queue.enqueue("export_invoice", {"order": order.pk})
        with psycopg.connect(url("default"), autocommit=True) as other:
            [number] = other.execute("INSERT INTO redrive.jobs (kind) VALUES ('touch') RETURNING id").fetchone()
            said = "SELECT FROM redrive.jobs WHERE id = %s AND status = 'succeeded'"
            wait_for(lambda: other.execute(said, [number]).fetchone() is not None, 20)
    with working(concurrency=1):
        row = ended(job)
    assert (row.status, row.attempts, row.result) == ("succeeded", 1, {"pages": 7})


@pytest.mark.parametrize("how", ["atomic", "broken", "autocommit", "by hand"])
def test_a_transaction_left_open_fails_its_job_and_no_other_or_03(how):
    """OR-03: what it wrote would be lost without a word."""
    with set_to(CONN_MAX_AGE=None), working(concurrency=1):
        job = ended(queue.enqueue("spoil", {"how": how}))
        assert job.status == "dead"
        assert "returned within a transaction on 'default', which was rolled back" in job.last_error
        assert not Order.objects.exists()
        after = ended(queue.enqueue("touch"))
        assert (after.status, after.attempts) == ("succeeded", 1), after.last_error


def test_autocommit_left_off_reaches_no_other_job():
    """OR-03"""
    with set_to(CONN_MAX_AGE=None), working(concurrency=1):
        assert ended(queue.enqueue("spoil", {"how": "autocommit, committed"})).status == "succeeded"
        assert Order.objects.filter(email="kept@x.example").exists()
        job = ended(queue.enqueue("spoil", {"how": "raised"}))
        assert "LookupError: a fault of its own" in job.last_error, "and not what came after it"
        assert ended(queue.enqueue("touch")).status == "succeeded"


def test_the_plain_orm_in_an_async_handler_is_told_what_to_do_or_09():
    """OR-09"""
    with working(concurrency=1):
        job = ended(queue.enqueue("blocking_async"))
    assert job.status == "dead"
    assert "write it as `def`, then it runs in a thread" in job.last_error


def test_a_handler_in_a_process_of_its_own_has_the_project():
    """OR-03: its child sets Django up by itself, and has a connection of its own."""
    from djangos import apart  # noqa: F401 - registers it

    Order.objects.create(email="apart@x.example")
    with working(concurrency=1):
        job = ended(queue.enqueue("apart", {"email": "apart@x.example"}), 40)
    assert job.status == "succeeded", job.last_error
    assert job.result["orders"] == 1
    assert job.result["pid"] != os.getpid()


def test_a_cancelled_async_handler_leaves_its_place_to_the_next():
    async def play():
        begun, done = asyncio.Event(), []

        async def slow(job):
            await Order.objects.acount()
            begun.set()
            await asyncio.sleep(60)

        async def quick(job):
            done.append(await Order.objects.acount())

        task = asyncio.ensure_future(upkeep._Async(slow)(None))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await upkeep._Async(quick)(None)
        upkeep._end_places()
        return done

    assert asyncio.run(play()) == [0]


def test_a_worker_that_stops_leaves_no_connection_behind():
    """OR-03: also where it ran in a thread of a web process."""
    with set_to(CONN_MAX_AGE=None):
        with working(concurrency=2):
            for kind in ("touch", "touch_async"):
                assert ended(queue.enqueue(kind)).status == "succeeded"
            assert sessions()[0][0] == 2
        wait_for(lambda: sessions()[0][0] == 0, 10)
