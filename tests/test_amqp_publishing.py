"""A batch of messages is one write, and the broker's word on each of them is its own."""

from __future__ import annotations

import asyncio
from typing import Any

import aio_pika

from redrive.amqp.direct import parcel
from redrive.amqp.link import Link
from redrive.amqp.names import queue_name
from redrive.store import Options

LARGE = '"' + "x" * 300_000 + '"'


def sent(vhost: str, *payloads: str, before: Any = None) -> tuple[list[Any], list[bytes]]:
    """Send payloads of a kind; gives those that were refused, and what is in its queue then."""

    async def scenario() -> tuple[list[Any], list[bytes]]:
        link = Link(vhost, "redrive", "a test")
        await link.open()
        await link.declare("mail")
        connection = await aio_pika.connect(vhost)
        channel = await connection.channel()
        if before is not None:
            await before(channel)
        parcels = [parcel("redrive", "mail", payload, Options()) for payload in payloads]
        refused = await link.publish(parcels)
        there = []
        if before is None:
            queue = await channel.get_queue(queue_name("redrive", "mail"))
            for _ in payloads:
                message = await queue.get(timeout=10)
                there.append(message.body)
                await message.ack()
        await connection.close()
        await link.close()
        return [parcels.index(each) for each in refused], there

    return asyncio.run(scenario())


def test_a_batch_arrives_in_its_order_whatever_the_size_of_each(vhost):
    payloads = [f'{{"n": {n}}}' for n in range(300)]
    assert sent(vhost, *payloads) == ([], [each.encode() for each in payloads])
    mixed = ['{"n": 1}', LARGE, '"ü"']
    assert sent(vhost, *mixed) == ([], [each.encode() for each in mixed])


def test_what_the_broker_cannot_route_is_told_of_each_message_and_no_confirmation_hides_it(vhost):
    async def delete(channel: Any) -> None:
        await channel.queue_delete(queue_name("redrive", "mail"), if_unused=False, if_empty=False)

    for payloads in (["1", "2", "3"], ["1", LARGE]):
        refused, _ = sent(vhost, *payloads, before=delete)
        assert refused == list(range(len(payloads)))
