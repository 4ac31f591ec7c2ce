"""Postgres goes away and comes back at the same address while a worker at the broker has failures to write."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import psycopg

from chaos.proxy import Proxy
from engine import Inside
from redrive import Queue
from support import wait_for
from support_engine import states

JOBS = 12


def test_failures_of_a_time_without_postgres_are_written_in_their_order_and_once(conn, db, rabbit, vhost):
    """Their messages are the broker's until then, so that none is lost with its worker; successes are told at once."""
    queue, ran = Queue(db, broker_url=vhost), []
    queue.kinds.route("mail", "amqp", by="ada")
    for n in range(JOBS):
        queue.enqueue("mail", n)
    with Proxy(db) as proxy:
        behind = Queue(proxy.dsn, broker_url=vhost, breaker=False)

        @behind.handler("mail", backoff=lambda _attempt: 3600.0)
        async def mail(payload: Any) -> None:
            ran.append(payload)
            if payload % 2:
                raise ValueError(payload)

        worker = behind.worker(broker=vhost, concurrency=1)
        with Inside(worker):
            wait_for(lambda: listens(worker), 30)
            with proxy.down():
                asyncio.run(queue.relay().run(once=True))
                wait_for(lambda: len(ran) == JOBS, 60)
                wait_for(lambda: unacknowledged(rabbit, vhost) == JOBS // 2, 30)
                assert written(conn) == []
            wait_for(lambda: states(conn) == {"pending": JOBS // 2}, 60)
            wait_for(lambda: unacknowledged(rabbit, vhost) == 0, 30)
        behind.close()
    queue.close()
    assert ran == list(range(JOBS)), "each ran once"
    assert written(conn) == [(f"ValueError: {n}", 1) for n in range(1, JOBS, 2)]
    assert conn.execute("select distinct attempts, payload is not null from redrive.jobs").fetchall() == [(1, True)]


def test_a_worker_that_is_cut_from_both_gives_its_failures_to_another(conn, db, vhost):
    """Its memory is gone: what it had not written was not acknowledged either."""
    queue, ran = Queue(db, broker_url=vhost), []
    queue.kinds.route("mail", "amqp", by="ada")

    @queue.handler("mail", max_attempts=1)
    async def mail(payload: Any) -> None:
        ran.append(payload)
        raise ValueError(payload)

    queue.enqueue("mail", 1)
    with Proxy(db) as proxy:
        behind = Queue(proxy.dsn, broker_url=vhost, breaker=False)
        behind.handlers = queue.handlers
        with contextlib.ExitStack() as away, Inside(behind.worker(broker=vhost)) as first:
            wait_for(lambda: listens(first.worker), 30)
            away.enter_context(proxy.down())
            asyncio.run(queue.relay().run(once=True))
            wait_for(lambda: ran == [1], 60)
            wait_for(lambda: first.worker.writer.unwritten == 1)
        behind.close()
    with Inside(queue.worker(broker=vhost)):
        wait_for(lambda: states(conn) == {"dead": 1}, 60)
    assert ran == [1, 1]
    queue.close()


def listens(worker: Any) -> bool:
    link = getattr(worker, "link", None)  # made as it starts
    return link is not None and link.ready


def written(conn: psycopg.Connection) -> list[Any]:
    return conn.execute("select error_type || ': ' || message, attempt from redrive.failures order by id").fetchall()


def unacknowledged(rabbit: Any, vhost: str) -> int:
    found = rabbit.api("GET", f"queues/{vhost.rpartition('/')[2]}")
    return sum(each.get("messages_unacknowledged", 0) for each in found)
