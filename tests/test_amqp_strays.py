"""Messages that are no jobs: moved to a queue of their own with all they came with, counted, and never thrown away."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import aio_pika
import pytest

from engine import Inside
from redrive import Queue
from redrive.amqp.management import ails, seen
from redrive.amqp.names import queue_name, strays_name
from redrive.amqp.parcel import opened
from redrive.job import Holder
from redrive.settings import Settings

STRAYS = strays_name("redrive")
MAIL = queue_name("redrive", "mail")
HOLDER = Holder("host:1:abcdef", "redrive", lambda *_: None, lambda *_: None, lambda *_: None)


@pytest.fixture
def queue(db, vhost):
    made = Queue(db, broker_url=vhost, poll=0.5)
    made.kinds.route("mail", "amqp", by="ada")
    yield made
    made.close()


async def publish(url: str, *messages: aio_pika.Message) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        for each in messages:
            await channel.default_exchange.publish(each, MAIL)


async def read(url: str, name: str) -> list[Any]:
    """Take all that is ready in a queue and leave it there."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        try:
            queue = await channel.get_queue(name)
        except aio_pika.exceptions.ChannelNotFoundEntity:
            return []
        found = []
        while (message := await queue.get(fail=False)) is not None:
            found.append(message)
        return found


def test_no_kind_shares_the_queue_of_strays():
    kinds = [("redrive", "strays"), ("a", "b.strays"), ("a.b", "strays"), ("redrive", "strays.high")]
    names = [queue_name(schema, kind) for schema, kind in kinds]
    strays = [strays_name(schema) for schema in ("redrive", "a", "a.b")]
    assert len({*names, *strays}) == len(names) + len(strays)


def test_a_stranger_is_moved_with_all_it_came_with_and_told_of_once(queue, vhost, rabbit, wait_for, caplog):
    ran: list[Any] = []

    @queue.handler("mail")
    async def mail(payload: Any) -> None:
        ran.append(payload)

    odd = aio_pika.Message(
        b"\xff\x00 by hand",
        message_id="seven",
        correlation_id="c",
        reply_to="answers",
        expiration=3_600_000,
        user_id=rabbit.url().split(":")[1].strip("/"),
        headers={"who": "bob", "n": 2**40, "CC": [MAIL + ".high"], "deep": {"a": [1, None, True]}},
    )
    queue.enqueue("mail", "ours")
    with Inside(queue.relay(), queue.worker(broker=vhost)), caplog.at_level(logging.ERROR, "redrive"):
        wait_for(lambda: ran == ["ours"], 30)
        asyncio.run(publish(vhost, odd, *(aio_pika.Message(b"{}", message_id=str(n)) for n in range(3))))
        # two of the first, by its CC: as it was sent. Moved, it is copied no more
        found = wait_for(lambda: len(there := asyncio.run(read(vhost, STRAYS))) >= 5 and there, 30)
        queue.enqueue("mail", "after")
        wait_for(lambda: ran == ["ours", "after"], 30)
    told = [each.getMessage() for each in caplog.records if "no job of redrive's" in each.getMessage()]
    assert len(told) == 1, told
    assert STRAYS in told[0]
    assert len(found) == 5
    assert asyncio.run(read(vhost, MAIL)) == [], "what was moved is acknowledged"
    first = next(each for each in found if each.message_id == "seven")
    assert first.expiration is None, "it would be thrown away"
    assert (first.body, first.correlation_id, first.reply_to) == (b"\xff\x00 by hand", "c", "answers")
    kept = {name: first.headers[name] for name in ("who", "n", "deep", "redrive-CC")}
    assert kept == {"who": "bob", "n": 2**40, "deep": {"a": [1, None, True]}, "redrive-CC": [MAIL + ".high"]}
    assert "invalid literal" in first.headers["redrive-reason"]
    assert first.headers["redrive-kind"] == "mail"
    assert first.headers["redrive-routing-key"] == MAIL
    settings = replace(Settings(), broker_management_url=rabbit.management_url, broker_url=vhost)
    now = wait_for(lambda: (now := seen(settings, ["mail"], timeout=10)).strays == 5 and now, 30)
    assert [each.kind for each in now.kinds] == ["mail"]
    assert [each.text for each in ails(now)] == [
        f"5 messages that are no jobs wait in the queue {STRAYS} for somebody to look"
    ]


def test_direct_jobs_of_a_kind_that_nobody_knows_are_taken_as_by_the_table_and_told_of(queue, vhost, rabbit, wait_for):
    queue.enqueue("typo", {}, direct=True)
    settings = replace(Settings(), broker_management_url=rabbit.management_url, broker_url=vhost)
    look = lambda: [each.text for each in ails(seen(settings, ["mail"], timeout=10))]  # noqa: E731 - asked often
    told = "1 job of kind typo waits at the broker, to which it is not routed, and no worker takes it"
    wait_for(lambda: look() == [told], 30)


def test_where_strays_can_have_no_queue_they_stay_and_jobs_go_on(queue, vhost, rabbit, wait_for):
    host = vhost.rpartition("/")[2]
    rabbit.api("PUT", f"queues/{host}/{STRAYS}", {"durable": True, "arguments": {"x-queue-type": "classic"}})
    ran: list[Any] = []

    @queue.handler("mail")
    async def mail(payload: Any) -> None:
        ran.append(payload)

    queue.enqueue("mail", "ours")
    worker = queue.worker(broker=vhost)
    with Inside(queue.relay(), worker):
        wait_for(lambda: ran == ["ours"], 30)
        asyncio.run(publish(vhost, aio_pika.Message(b"{}", message_id="x")))
        wait_for(lambda: "can't be moved" in worker.complaints(), 30)
        queue.enqueue("mail", "after")
        wait_for(lambda: ran == ["ours", "after"], 30)
    assert [each.message_id for each in asyncio.run(read(vhost, MAIL))] == ["x"]
    assert asyncio.run(read(vhost, STRAYS)) == []


BAD: dict[str, tuple[int, bytes, dict[str, Any]]] = {
    "no JSON": (1, b"to: ada", {}),
    "no UTF-8": (2, b"\xff\xfe", {}),
    "an id of 100 bits": (2**100, b"{}", {}),
    "a claim of 40 bits": (3, b"{}", {"claim": 2**40}),
    "a priority out of range": (4, b"{}", {"priority": 77}),
    "a lane with NUL": (5, b"{}", {"lane": "a\0b"}),
    "metadata that is no JSON": (6, b"{}", {"metadata": "nope"}),
    "what jsonb has no room for": (7, b'{"a": "\\u0000"}', {"suspect": True}),
}


def test_what_could_not_come_home_is_no_job_and_in_no_jobs_way(queue, vhost, rabbit, wait_for):
    """Its trial could not begin, and while it waited its worker began nothing else."""
    ran: list[Any] = []

    @queue.handler("mail")
    async def mail(payload: Any) -> None:
        ran.append(payload)

    times = {"due": 0, "created": 0}
    messages = [
        aio_pika.Message(body, message_id=str(number), type="mail", headers=times | headers)
        for number, body, headers in BAD.values()
    ]
    with Inside(queue.relay(), queue.worker(broker=vhost)):
        queue.enqueue("mail", "first")
        wait_for(lambda: ran == ["first"], 30)
        asyncio.run(publish(vhost, *messages))
        queue.enqueue("mail", "good")
        wait_for(lambda: ran == ["first", "good"], 30)
        wait_for(lambda: len(asyncio.run(read(vhost, STRAYS))) == len(BAD), 30)


@pytest.mark.parametrize("payload", ['{"n": ' + "9" * 5000 + "}", "[" * 5000 + "]" * 5000])
def test_what_python_cant_hold_is_a_job_all_the_same(payload):
    """By plain INSERT it may be there: its handler fails over it, in plain sight."""
    assert opened(HOLDER, 1, "mail", payload.encode(), {"due": 0, "created": 0, "max_attempts": 0}).id == 1
