"""Workers, relays and connections of the way over a broker are killed and cut: nothing is lost, only killers die."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest

from chaos.proxy import Proxy
from engine import APP, Inside, failures, insert, row, status
from redrive import Queue
from redrive.amqp.link import Link
from support import wait_for
from support_engine import states

KINDS = ("nap", "deadly", "doze")


@pytest.fixture
def queue(db, vhost):
    made = Queue(db, broker_url=vhost, poll=0.5, lease=1.5)
    for kind in KINDS:
        made.kinds.route(kind, "amqp")
    yield made
    made.close()


@pytest.fixture
def start(start_worker, effects, vhost):
    return lambda *flags: start_worker(APP, "--lease", "1.5", "--broker", vhost, *flags, env=effects.env)


def test_a_killed_workers_jobs_run_elsewhere_and_no_attempt_is_spent(start, queue, conn, effects):
    jobs = [insert(conn, "nap", '{"seconds": 2}') for _ in range(4)]
    with Inside(queue.relay()):
        first = start("--concurrency", "2")
        wait_for(lambda: len(effects.starts()) >= 2, 30)
        first.kill()
        start()
        wait_for(lambda: {one.job_id for one in effects.ends()} == set(jobs), 60)
        wait_for(lambda: not {"pending", "running"} & states(conn).keys(), 30)
    assert {one.attempt for one in effects.all()} == {1}


def test_what_kills_its_worker_dies_alone_and_in_plain_sight(start, queue, conn, effects):
    poison = insert(conn, "deadly")
    others = [insert(conn, "nap") for _ in range(20)]
    with Inside(queue.relay()):
        worker = start()

        def turn() -> bool:
            nonlocal worker
            if not worker.running:
                worker = start()
            return not states(conn).get("pending") and conn.execute(
                "select count(*) from redrive.jobs where id = %s and status = 'dead'", [poison]
            ).fetchone() == (1,)

        wait_for(turn, 90)
        wait_for(lambda: {one.job_id for one in effects.ends()} >= set(others), 30)
    found = row(conn, poison)
    assert "poison: its worker died 3 times while it ran alone" in found.last_error
    assert [failure.outcome for failure in failures(conn, poison)] == ["reclaimed", "reclaimed", "dead"]
    assert "dead" not in {
        status(conn, job) for job in others if conn.execute("select 1 from redrive.jobs where id=%s", [job]).fetchone()
    }


BLOCKING = """
    import time
    from redrive import Queue

    queue = Queue()

    @queue.handler("doze", max_attempts=1)
    async def doze(payload):
        print("it blocks", flush=True)
        time.sleep(5)
        print("it is through", flush=True)
"""


def test_a_job_on_trial_that_blocks_the_loop_for_longer_than_the_lease_is_no_killer(start_worker, queue, conn, vhost):
    """It was taken for dead, three times, and died of it."""
    job = insert(conn, "doze")
    conn.execute("update redrive.jobs set alone = true")
    with Inside(queue.relay()):
        worker = start_worker(BLOCKING, "--lease", "1.5", "--broker", vhost)
        wait_for(lambda: "it is through" in worker.log(), 60)
        wait_for(lambda: status(conn, job) == "succeeded", 30)
    assert worker.log().count("it blocks") == 1
    assert failures(conn, job) == []
    assert worker.stop() == 0


def test_a_worker_that_is_told_to_stop_while_it_sets_up_its_consumers_stops(db, vhost, monkeypatch):
    """It broke off its goodbye: what it held was given back by nobody but the broker."""
    queue = Queue(db, broker_url=vhost)
    for kind in KINDS:
        queue.handler(kind)(lambda _payload: None)
    begun = threading.Event()
    real_consume, real_cancel = Link.consume, Link.cancel

    async def consume(link: Link, *those: Any) -> Any:
        tags = await real_consume(link, *those)
        if begun.is_set():
            await asyncio.sleep(0.2)
        begun.set()
        return tags

    async def cancel(link: Link, tags: Any) -> None:
        await asyncio.sleep(0.5)
        await real_cancel(link, tags)

    monkeypatch.setattr(Link, "consume", consume)
    monkeypatch.setattr(Link, "cancel", cancel)
    with Inside(queue.worker(broker=vhost)):
        wait_for(begun.is_set, 30)
    queue.close()


def test_a_relay_that_is_cut_off_between_publish_and_commit_leaves_the_rows(conn, queue, vhost, monkeypatch):
    insert(conn, "nap")
    published = threading.Event()
    real = Link.publish

    async def publish(link: Link, parcels: Any) -> Any:
        refused = await real(link, parcels)
        if not published.is_set():
            published.set()
            raise ConnectionResetError("cut")
        return refused

    monkeypatch.setattr(Link, "publish", publish)
    with Inside(queue.relay()):
        wait_for(published.is_set, 30)
        wait_for(lambda: states(conn) == {}, 30)


def test_a_worker_whose_connection_is_cut_goes_on_and_what_ended_meanwhile_is_not_run_again(queue, conn, vhost):
    """The broker gives the message out once more, and it is found settled: here, or by another worker at home."""
    ran: list[int] = []
    go = threading.Event()

    @queue.handler("nap")
    def nap(_payload: Any, job: Any) -> None:
        ran.append(job.id)
        go.wait(30)

    job = insert(conn, "nap")
    asyncio.run(queue.relay().run(once=True))
    parts = urlsplit(vhost)
    with Proxy(f"host={parts.hostname} port={parts.port}") as proxy:
        port = dict(each.split("=", 1) for each in proxy.dsn.split())["port"]
        with Inside(queue.worker(broker=vhost.replace(f":{parts.port}", f":{port}"))) as inside:
            wait_for(lambda: ran, 30)
            proxy.cut()
            go.set()
            wait_for(lambda: inside.worker.slots.empty and inside.worker.writer.idle, 60)
            wait_for(lambda: not inside.worker.consumer._held, 60)
    marker = insert(conn, "nap")
    with Inside(queue.relay(), queue.worker(broker=vhost)):
        wait_for(lambda: marker in ran, 30)
    assert ran == [job, marker]
