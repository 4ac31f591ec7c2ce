"""A worker may be quicker than its relay, whose transaction is open until all is confirmed: nothing is lost by that."""

from __future__ import annotations

import asyncio
import threading

import aio_pika
import psycopg
import pytest

from engine import Inside
from redrive import Queue
from redrive.amqp.home import Home
from redrive.amqp.names import queue_name
from redrive.amqp.parcel import Parcel, of_home, opened
from redrive.job import Holder
from redrive.sql import BROKER
from redrive.statements import named, run
from shell import answer
from support import wait_for
from support_engine import Running, states

WORKER = "host:1:abcdef"
TAKES = {
    "moved": "delete from redrive.jobs where id = %(id)s",
    "kept": (
        "update redrive.jobs set status = 'running', claims = 1, attempts = 1, locked_by = %(broker)s where id = %(id)s"
    ),
}
"""What the relay's claim does to a row."""


@pytest.fixture
def job_id(db):
    queue = Queue(db)
    made = queue.enqueue("mail", {"n": 1})
    queue.close()
    return made.id


def message(job_id: int, *, kept: bool, claim: int = 1) -> Parcel:
    holder = Holder(WORKER, "redrive", lambda *_: None, lambda *_: None, lambda *_: None)
    headers = {"due": 0, "created": 0, "kept": kept, "claim": claim}
    return opened(holder, job_id, "mail", b'{"n": 1}', headers)


def home(conn: psycopg.Connection, parcel: Parcel) -> list[int]:
    return [row.id for row in run(conn, named("come_home", "redrive", worker=WORKER, **of_home([parcel])))]


def settled(conn: psycopg.Connection, parcel: Parcel) -> bool:
    params = {"ids": [parcel.id], "claims": [parcel.claim], "kept": [parcel.kept]}
    return bool(run(conn, named("settled_at_home", "redrive", **params)))


def row(conn: psycopg.Connection) -> tuple[str, int, str] | None:
    return conn.execute("select status, claims, locked_by from redrive.jobs").fetchone()


@pytest.mark.parametrize("way", TAKES)
def test_a_message_that_comes_again_before_its_relay_has_committed_is_not_settled(db, conn, job_id, way):
    """Taken for settled it was acknowledged, and then the relay's commit took the row: lost."""
    parcel = message(job_id, kept=way == "kept")
    with psycopg.connect(db) as relay:
        relay.execute(TAKES[way], {"id": job_id, "broker": BROKER})
        assert not settled(conn, parcel)
    assert not settled(conn, parcel)
    assert home(conn, parcel) == [job_id]
    assert settled(conn, parcel)


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("way", TAKES)
def test_an_outcome_waits_for_the_relay_and_is_written_however_that_ends(db, conn, job_id, way, commits):
    """Where the relay has rolled back, its row is the job's: it does not go out again."""
    parcel, came = message(job_id, kept=way == "kept"), []

    def bring() -> None:
        with psycopg.connect(db, autocommit=True) as worker:
            came.append(home(worker, parcel))

    with psycopg.connect(db) as relay:
        relay.execute(TAKES[way], {"id": job_id, "broker": BROKER})
        thread = threading.Thread(target=bring)
        thread.start()
        waits = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        wait_for(lambda: came or conn.execute(waits).fetchone())
        assert came == [], "it did not wait"
        if not commits:
            relay.rollback()
    thread.join(10)
    assert came == [[job_id]]
    assert row(conn) == ("running", 1, WORKER)


@pytest.mark.parametrize("way", TAKES)
def test_what_has_ended_does_not_come_home_again(conn, job_id, way):
    parcel = message(job_id, kept=way == "kept")
    conn.execute("update redrive.jobs set status = 'pending', claims = 1")
    assert settled(conn, parcel)
    assert home(conn, parcel) == []
    assert row(conn)[:2] == ("pending", 1)


@pytest.mark.parametrize("way", TAKES)
def test_what_came_home_by_a_try_whose_answer_was_lost_has_come_home(conn, job_id, way):
    """Taken for settled it was let go: running by the table for as long as its worker lived, and in nobody's hands."""
    parcel = message(job_id, kept=way == "kept")
    conn.execute(TAKES[way], {"id": job_id, "broker": BROKER})
    assert home(conn, parcel) == [job_id]
    assert home(conn, parcel) == [job_id]
    conn.execute("update redrive.jobs set locked_by = 'host:2:abcdef'")
    assert home(conn, parcel) == [], "another has it"


def test_a_trial_whose_first_answer_was_lost_is_held(conn, db, vhost, monkeypatch):
    queue, ran, lost = Queue(db, broker_url=vhost, poll=0.5), [], []
    queue.kinds.route("mail", "amqp", by="ada")
    bring = Home.bring

    async def bring_and_lose_the_answer(self, parcel):
        came = await bring(self, parcel)
        if not lost:
            lost.append(parcel.id)
            raise psycopg.OperationalError("the connection was lost")
        return came

    @queue.handler("mail")
    async def mail(_payload, job):
        assert job.message is None, "it could not be sent to a child process"
        ran.append(job.id)

    monkeypatch.setattr(Home, "bring", bring_and_lose_the_answer)
    made = queue.enqueue("mail")
    conn.execute("update redrive.jobs set alone = true")
    with Inside(queue.relay(), queue.worker(broker=vhost)):
        wait_for(lambda: ran, 30)
        wait_for(lambda: row(conn)[:2] == ("succeeded", 1))
    queue.close()
    assert lost == ran == [made.id]


def test_what_is_a_workers_by_the_table_and_in_nobodys_hands_is_given_back(conn, db, vhost, job_id):
    """Its connection to the broker was lost as well, so that nobody asks for it again."""
    queue, started = Queue(db, broker_url=vhost), threading.Event()
    queue.kinds.route("mail", "amqp", by="ada")

    @queue.handler("mail")
    async def mail(payload):
        started.set()
        await asyncio.sleep(payload.get("seconds", 0))

    queue.enqueue("mail", {"seconds": 3600})
    conn.execute("update redrive.jobs set alone = true where id <> %s", [job_id])
    conn.execute("update redrive.jobs set run_at = now() + interval '1 h' where id = %s", [job_id])
    with Inside(queue.relay(), queue.worker(broker=vhost, lease=1.5, grace=0.1)) as inside:
        assert started.wait(30)
        queue.kinds.pause("mail")
        name = inside.workers[1].name
        conn.execute(
            "update redrive.jobs set status = 'running', claims = 1, locked_by = %s where id = %s", [name, job_id]
        )
        wait_for(lambda: states(conn) == {"pending": 1, "running": 1}, 30)
        assert conn.execute("select locked_by from redrive.jobs where id = %s", [job_id]).fetchone() == (None,)
        assert conn.execute("select locked_by from redrive.jobs where id <> %s", [job_id]).fetchone() == (name,)
    queue.close()


def test_no_vigil_outlives_its_worker(db, conn):
    """A turn during the goodbye began one more: its worker would look alive for good, in a process that lives on."""
    queue = Queue(db)
    queue.handler("mail")(lambda _payload: None)
    worker = queue.worker(broker="amqp://guest:guest@127.0.0.1:1/", grace=1.0)
    running = Running(worker)
    wait_for(lambda: hasattr(worker, "visits") and worker.visits._said > 0)

    async def words() -> None:  # a job that is at home has not ended, and its turn comes meanwhile
        await worker.visits.say(home=True)
        assert worker.visits._vigil is not None

    worker.consumer.last_words = words
    running.stop()
    queue.close()
    assert worker.visits._vigil is None


def test_a_job_with_a_row_whose_message_was_thrown_away_is_sent_again_by_requeue(conn, db, vhost):
    queue, ran = Queue(db, broker_url=vhost, poll=0.5), []
    queue.kinds.route("mail", "amqp", by="ada")

    @queue.handler("mail")
    async def mail(_payload, job):
        ran.append(job.id)

    queue.enqueue("mail", key="a")
    asyncio.run(queue.relay().run(once=True))
    asyncio.run(purge(vhost, queue_name("redrive", "mail")))
    assert row(conn) == ("running", 1, BROKER)
    assert answer(db, "requeue", "--at-broker", 1)["ids"] == [1]
    with Inside(queue.relay(), queue.worker(broker=vhost)):
        wait_for(lambda: states(conn) == {"succeeded": 1}, 30)
    queue.close()
    assert len(ran) == 1


async def purge(url: str, name: str) -> None:
    async with await aio_pika.connect(url) as connection:
        await (await (await connection.channel()).get_queue(name)).purge()
