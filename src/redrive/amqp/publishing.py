"""Many messages in one write, each confirmed by itself.

aiormq sends each message by itself, with a lock, two timers and three frames made anew: a third of a millisecond, and a
batch is what a relay has. Here the frames of a batch are made with what is the same in all of them made once, and sent
together; the confirmations are awaited as aiormq's own are, in its own books. A message that needs several frames goes
its way.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from aiormq.abc import ChannelFrame
from pamqp import frame
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from redrive.amqp.names import exchange_name, queue_name
from redrive.sql import TOPICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import aiormq

    from redrive.amqp.parcel import Parcel

_BODY = struct.Struct(">BHI")
_BODY_FRAME, _FRAME_END = 3, b"\xce"
"""AMQP 0-9-1, 4.2.3: type, channel and size before a frame's payload, and one octet after it."""


class Message(NamedTuple):
    """A message, and where it goes."""

    exchange: str
    routing_key: str
    mandatory: bool
    properties: Basic.Properties
    """With a message_id of its own, by which the broker returns what it can't route."""
    body: bytes


def message(schema: str, parcel: Parcel) -> Message:
    """Make the message of a job: to a queue of its kind, or to the exchange, where others want the payload alone."""
    topic = (parcel.topic or "") if parcel.kind == TOPICS else None
    return Message(
        exchange="" if topic is None else exchange_name(schema),
        routing_key=queue_name(schema, parcel.kind, parcel.priority) if topic is None else topic,
        mandatory=topic is None,  # who listens to an exchange is nobody's business here
        properties=Basic.Properties(
            content_type="application/json",
            delivery_mode=2,
            message_id=str(parcel.id),
            message_type=parcel.message_type if topic is None else topic,
            headers=parcel.headers,
        ),
        body=parcel.body if topic is None else parcel.payload_sent,
    )


async def publish(channel: aiormq.Channel, messages: Sequence[Message]) -> list[Any]:
    """Send *messages* and wait for what the broker says of each: a confirmation, or an error in its place.

    What is on its way when the channel is lost has the channel's error.
    """
    short = [each for each in messages if len(each.body) < channel.max_content_size]
    if len(short) < len(messages):
        return await asyncio.gather(*(_alone(channel, each) for each in messages), return_exceptions=True)
    waiting = await _send(channel, short)
    try:
        return await asyncio.gather(*waiting, return_exceptions=True)
    finally:
        for each in short:
            channel.message_id_delivery_tag.pop(str(each.properties.message_id), None)


async def _send(channel: aiormq.Channel, messages: Sequence[Message]) -> list[asyncio.Future[Any]]:
    made: dict[tuple[str, str, bool], bytes] = {}
    parts: list[bytes] = []
    waiting: list[asyncio.Future[Any]] = []
    async with channel.lock:
        for exchange, routing_key, mandatory, properties, body in messages:
            place = (exchange, routing_key, mandatory)
            if (begins := made.get(place)) is None:
                method = Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
                begins = made[place] = frame.marshal(method, channel.number)
            header = frame.marshal(ContentHeader(body_size=len(body), properties=properties), channel.number)
            parts += (begins, header, _BODY.pack(_BODY_FRAME, channel.number, len(body)), body, _FRAME_END)
            channel.delivery_tag += 1
            confirmed = channel.create_future()
            channel.confirmations[channel.delivery_tag] = confirmed
            channel.message_id_delivery_tag[str(properties.message_id)] = channel.delivery_tag
            waiting.append(confirmed)
        await channel.write_queue.put(ChannelFrame(payload=b"".join(parts), should_close=False))
    return waiting


async def _alone(channel: aiormq.Channel, message: Message) -> Any:
    exchange, routing_key, mandatory, properties, body = message
    return await channel.basic_publish(
        body, exchange=exchange, routing_key=routing_key, mandatory=mandatory, properties=properties
    )
