"""What is large on its way over a broker: it holds up neither itself nor others, and is not sent again for ever."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from engine import Inside, row
from redrive import Queue
from redrive.amqp.parcel import LONGEST_METADATA, PORTION, Parcel, opened, portions
from redrive.amqp.publishing import message
from redrive.job import Holder
from redrive.sql import TOPICS
from support import wait_for
from support_engine import states

HOLDER = Holder("host:1:abcdef", "redrive", lambda *_: None, lambda *_: None, lambda *_: None)
LONG_KIND = "größe." * 40
LARGE = {"trace": "ü" * LONGEST_METADATA}


def parcel(kind: str = "mail", payload: str = "{}", metadata: str | None = None) -> Parcel:
    return Parcel(HOLDER, (1, kind, payload, 1, 5, 1, 0, 5, "", 0, 0, metadata, None, None, False, False))


@pytest.fixture
def queue(db, vhost):
    made = Queue(db, broker_url=vhost, poll=0.5)
    for kind in ("mail", LONG_KIND):
        made.kinds.route(kind, "amqp", by="ada")
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["mail", LONG_KIND])
def test_a_long_kind_and_large_metadata_run_over_the_broker_and_come_home_whole(conn, queue, vhost, kind):
    """One that the broker's protocol has no room for once kept the relay from sending anything at all."""
    ran: list[Any] = []

    @queue.handler(kind)
    async def large(payload: Any, job: Any) -> int:
        ran.append((payload, job.kind, job.metadata))
        return 1

    made = queue.enqueue(kind, {"n": "ä"}, metadata=LARGE)
    with Inside(queue.relay(), queue.worker(broker=vhost)):
        wait_for(lambda: states(conn) == {"succeeded": 1}, 30)
    assert ran == [({"n": "ä"}, kind, LARGE)]
    found = row(conn, made.id)
    assert (found.kind, found.payload, found.metadata) == (kind, {"n": "ä"}, LARGE)


def test_breakers_of_thousands_of_targets_hold_up_nothing(conn, queue, vhost):
    """Each message tells which are open, and once there was room for no message beside that."""
    ran: list[int] = []

    @queue.handler("mail")
    async def mail(_payload: Any, job: Any) -> None:
        ran.append(job.id)

    queue.breakers.open("mail", target="first", by="ada")
    columns = [
        name
        for (name,) in conn.execute(
            "select column_name from information_schema.columns "
            "where table_schema = 'redrive' and table_name = 'breakers' and column_name <> 'target'"
        )
    ]
    listed = ", ".join(columns)
    conn.execute(
        f"insert into redrive.breakers (target, {listed}) select 'host-' || n || '.example.com', {listed} "
        "from redrive.breakers, generate_series(1, 3000) n"
    )
    made = queue.enqueue("mail")
    with Inside(queue.relay(), queue.worker(broker=vhost)):
        wait_for(lambda: ran == [made.id], 30)


def test_others_get_the_payload_of_a_topic_alone():
    sent = message("redrive", parcel(TOPICS, '{"n":1}', f'{{"topic":"a.b","x":"{"y" * LONGEST_METADATA}"}}'))
    assert sent.body == b'{"n":1}'


def test_a_message_tells_where_its_payload_ends():
    metadata = f'{{"x":"{"ü" * LONGEST_METADATA}"}}'
    given = parcel(LONG_KIND, '{"n":"ä"}', metadata)
    found = opened(HOLDER, 1, given.message_type, given.body, given.headers)
    assert (found.kind, found.payload, found._metadata) == (LONG_KIND, {"n": "ä"}, metadata)
    assert given.message_type is None
    assert len(str(given.headers)) < LONGEST_METADATA


def test_no_portion_is_larger_than_one_message_has_to_be():
    sizes = [1, PORTION, 3, PORTION - 3, 1, 2 * PORTION, 5]
    parcels = [parcel(payload="x" * size) for size in sizes]
    found = list(portions(parcels))
    assert [[len(each.body) for each in some] for some in found] == [
        [1],
        [PORTION],
        [3, PORTION - 3],
        [1],
        [2 * PORTION],
        [5],
    ]
    assert list(portions([])) == []


def test_more_than_the_way_takes_in_time_is_sent_in_smaller_batches_and_once(conn, db, vhost):
    """A batch of large jobs took longer than its transaction may: rolled back, and sent once more, for ever."""
    queue = Queue(db, broker_url=vhost, poll=0.5)
    queue.kinds.route("mail", "amqp", by="ada")
    queue.enqueue_many("mail", ({"x": "x" * 900_000} for _ in range(20)))
    with narrow(vhost, bytes_a_second=1_200_000) as url, Inside(queue.relay(broker_url=url)) as inside:
        wait_for(lambda: states(conn) == {}, 60)
        assert inside.worker.producer.sending.sent == 20
        assert inside.worker.producer.sending.most < 20
    queue.close()


@contextlib.contextmanager
def narrow(url: str, *, bytes_a_second: int) -> Iterator[str]:
    """Give a way to the broker by which no more goes out."""
    there = urlsplit(url)
    ready, over = threading.Event(), threading.Event()
    ports: list[int] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: int) -> None:
        with contextlib.suppress(OSError), contextlib.closing(writer):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(len(data) / rate if rate else 0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_connection(there.hostname, there.port)
        await asyncio.gather(pump(reader, their_writer, bytes_a_second), pump(their_reader, writer, 0))

    async def turn() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            ports.append(server.sockets[0].getsockname()[1])
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(turn(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield url.replace(f":{there.port}", f":{ports[0]}")
    finally:
        over.set()
        thread.join(10)
