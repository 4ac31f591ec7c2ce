"""One connection to the broker: queues by their names, messages out with confirms, and nothing of what is in them.

Every broken connection is one sort of error here, :class:`redrive.errors.NoBroker`; whoever gets it opens the link
anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from redrive.amqp.names import exchange_name, queue_names, strays_name
from redrive.errors import InvalidOption, NoBroker
from redrive.masking import mask_text
from redrive.sql import TOPICS

try:
    import aio_pika
    import aiormq
    from aio_pika.exceptions import CONNECTION_EXCEPTIONS, AMQPError, DeliveryError
    from aiormq.exceptions import (
        AMQPChannelError,
        ChannelAccessRefused,
        ChannelPreconditionFailed,
        InvalidFrameError,
    )
    from pamqp.commands import Basic
except ModuleNotFoundError as error:
    raise InvalidOption(f"a broker needs {error.name}: pip install 'redrive[amqp]'") from None

from redrive.amqp.publishing import message, publish
from redrive.amqp.rights import REMEDY, Denied, Forbidden, Missing, Withheld, refusal, said

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence

    from redrive.amqp.parcel import Parcel

CONNECT_TIMEOUT = 10.0
CONFIRM_TIMEOUT = 25.0
"""Seconds in which a batch must be confirmed: where the broker has no memory or disk left, it says nothing at all."""
ANSWER_TIMEOUT = 15.0
UNCONFIRMED = "no confirmation from the broker"
HEARTBEAT = 20
"""Seconds of silence after which either side takes the other for gone, at most three times that."""
ENDED_MOST = 1000
PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between two tries while the broker is away."""
DELIVERIES = 1_000_000
"""No limit that matters, and said in so many words, since newer brokers have one of 20 and drop what is over it. What
was delivered before is run with nothing beside it, and counted in the table where it kills its worker: a count of
deliveries would be that of all that waited beside it as well."""
ARGUMENTS: dict[str, Any] = {"x-queue-type": "quorum", "x-delivery-limit": DELIVERIES}
_BROKEN = (*CONNECTION_EXCEPTIONS, AMQPError, OSError, asyncio.TimeoutError, asyncio.InvalidStateError)


def checked(url: str) -> str:
    """Check the address of a broker.

    Raises:
        InvalidOption: for none, or another sort of address.
    """
    if not url:
        raise InvalidOption(
            "no broker: give broker_url, REDRIVE_BROKER_URL or --broker-url (of a worker: --broker), as in amqp://user@host/"
        )
    if urlsplit(url).scheme not in ("amqp", "amqps"):
        raise InvalidOption(f"broker_url is {mask_text(url)!r}: must begin with amqp:// or amqps://")
    return url


class Consumers(dict[str, Any]):
    """Who gets what is delivered on a channel: for a while also after the end of a consumer.

    A quorum queue's deliveries may come after the answer to the cancellation. aiormq knows nobody for them then, and
    drops them; they would stay unacknowledged, or be acknowledged together with later ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ended: deque[str] = deque()

    def pop(self, tag: str, default: Any = None) -> Any:
        """Forget nobody but those that ended long ago."""
        self._ended.append(tag)
        while len(self._ended) > ENDED_MOST:
            super().pop(self._ended.popleft(), None)
        return self.get(tag, default)


class Link:
    """A connection with one channel, opened when needed."""

    def __init__(self, url: str, schema: str, name: str) -> None:
        self.schema = schema
        self.number = 0
        """Which channel of this process it is: what was delivered on an earlier one can't be acknowledged any more."""
        self._url = checked(url)
        self._name = name
        self._connection: aio_pika.abc.AbstractConnection | None = None
        self._channel: aiormq.Channel | None = None
        self._whole: aio_pika.abc.AbstractChannel | None = None
        self._declared: set[str] = set()
        self.denied = Denied()
        """Kinds whose queues can't be had."""
        self._prefetch = 1
        self.on_cancel: Callable[[str], object] = lambda _tag: None
        """Told of a consumer that the broker has ended, as when somebody deletes the queue."""

    @property
    def ready(self) -> bool:
        """Whether there is a channel that is not known to be closed."""
        return self._channel is not None and not self._channel.is_closed

    @property
    def where(self) -> str:
        """The address, without its password."""
        return mask_text(self._url)

    async def open(self) -> None:
        """Open the connection where it isn't.

        Raises:
            NoBroker: when nobody answers there.
        """
        if self.ready:
            return
        await self.close()
        with self._told(f"no broker at {self.where}"):
            async with asyncio.timeout(CONNECT_TIMEOUT):
                connection = await self._connect()
                self._connection = connection
                self._whole = await connection.channel(publisher_confirms=True, on_return_raises=True)
                self._channel = cast("aiormq.Channel", await self._whole.get_underlay_channel())
        self._channel.consumers = Consumers()
        self._channel.on_consumer_cancel_callbacks.add(self._cancelled)
        self.number += 1
        self._declared.clear()

    def renew(self) -> None:
        """Have the connection opened anew before it is used again."""
        self._channel = None

    async def _connect(self) -> aio_pika.abc.AbstractConnection:
        try:
            return await aio_pika.connect(
                self._url, client_properties={"connection_name": self._name}, heartbeat=HEARTBEAT
            )
        except InvalidFrameError as error:  # its text is an address in memory, and not what the broker said
            raise NoBroker(
                f"no broker at {self.where}: it knows the user and closed the connection: is there a virtual host of "
                "that name, and may the user go there?"
            ) from error

    async def close(self) -> None:
        """Close the connection, whether or not anybody listens at the other end."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(1.0):
                    await connection.close()

    async def declare(self, kind: str) -> None:
        """Make the queues of *kind*, where they are not there.

        Raises:
            Withheld: when there is a queue of that name that was made otherwise, or the user may not make it.
            NoBroker: when the connection is lost.
        """
        if kind == TOPICS:
            name = exchange_name(self.schema)
            await self._made(
                f"the exchange {name}",
                name,
                lambda channel, **how: channel.exchange_declare(name, exchange_type="topic", durable=True, **how),
            )
            return
        for name in queue_names(self.schema, kind):
            await self._made_queue(name)

    async def _made_queue(self, name: str) -> None:
        await self._made(
            f"the queue {name}",
            name,
            lambda channel, **how: channel.queue_declare(name, durable=True, arguments=ARGUMENTS, **how),
        )

    async def _made(self, what: str, name: str, make: Callable[..., Awaitable[Any]]) -> None:
        if name in self._declared:
            return
        try:
            async with self._aside(f"{what} can't be had") as channel:
                await make(channel)
        except Forbidden:  # to make it; it may be there
            try:
                async with self._aside(f"{what} can't be had") as channel:
                    await make(channel, passive=True)
            except Missing:
                raise Forbidden(f"{what} is not there, and this user may not make it{REMEDY}") from None
        self._declared.add(name)

    async def withheld(self, kinds: Sequence[str], *, to_read: bool = False) -> set[str]:
        """Make the queues of *kinds*, and find those whose queues can't be had: they hold up no other.

        Raises:
            NoBroker: when the connection is lost.
        """
        for kind in kinds:
            if self.denied.waits(kind):
                continue
            try:
                await self.declare(kind)
                if to_read and self.denied.doubts(kind):
                    await self._ask_to_read(kind)
            except Withheld as error:
                self.denied.add(kind, error)
            else:
                self.denied.allow(kind, proven=not to_read and kind != TOPICS)
        return self.denied.kinds & set(kinds)

    async def _ask_to_read(self, kind: str) -> None:
        """Ask whether this user may read, by what is no proper wish: the broker looks at the rights first.

        A true consumer would have a message or two delivered to it, which then come again as a killer's do.
        """
        for name in queue_names(self.schema, kind):
            async with self._aside(f"the queue {name} can't be read") as channel:
                with contextlib.suppress(ChannelPreconditionFailed):
                    await channel.basic_consume(name, _nothing, arguments={"x-priority": "none"})

    @contextlib.asynccontextmanager
    async def _aside(self, what: str) -> AsyncIterator[aiormq.Channel]:
        """Give a channel of its own: the broker closes one on which something can't be had, with all that is on it."""
        self._there()
        with self._told(what):
            async with asyncio.timeout(ANSWER_TIMEOUT):
                whole = await cast("aio_pika.abc.AbstractConnection", self._connection).channel()
                channel = cast("aiormq.Channel", await whole.get_underlay_channel())
                try:
                    yield channel
                except AMQPChannelError as error:
                    raise refusal(what, error) from error
                if not channel.is_closed:
                    await whole.close()

    async def publish(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """Send messages and wait until the broker has them for good; gives those that it has refused.

        Raises:
            NoBroker: when it is not known what has become of some.
        """
        for kind in {each.kind for each in parcels}:
            await self.declare(kind)
        public = [each for each in parcels if each.kind == TOPICS]
        others = [each for each in parcels if each.kind != TOPICS] if public else parcels
        refused = self._refused(others, await self._confirmed(self._there(), others)) if others else []
        return refused + await self._publish_topics(public) if public else refused

    async def _confirmed(self, channel: aiormq.Channel, parcels: Sequence[Parcel]) -> list[Any]:
        with self._told(UNCONFIRMED):
            async with asyncio.timeout(CONFIRM_TIMEOUT):
                return await publish(channel, [message(self.schema, each) for each in parcels])

    async def _publish_topics(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """Send to the exchange, by a channel of its own: the right to write there is one of its own."""
        async with self._aside(UNCONFIRMED) as channel:
            answers = await self._confirmed(channel, parcels)
        if forbidden := next((each for each in answers if isinstance(each, ChannelAccessRefused)), None):
            self.denied.add(TOPICS, refusal(f"nothing can be sent to {exchange_name(self.schema)}", forbidden))
            return list(parcels)
        self.denied.allow(TOPICS, proven=True)
        return self._refused(parcels, answers)

    def _refused(self, parcels: Sequence[Parcel], answers: Sequence[Any]) -> list[Parcel]:
        refused = []
        for each, answer in zip(parcels, answers, strict=True):
            if isinstance(answer, DeliveryError | Basic.Nack | Basic.Return):
                refused.append(each)
            elif isinstance(answer, ChannelAccessRefused):
                self.renew()
                raise NoBroker(f"nothing can be sent: {said(answer)}{REMEDY}") from answer
            elif isinstance(answer, BaseException):
                with self._told(UNCONFIRMED):
                    raise answer
        return refused

    async def set_aside(self, properties: Basic.Properties, body: bytes) -> bool:
        """Send a message to the queue of strays, and wait until the broker has it for good; False if it refuses.

        Raises:
            Withheld: when there can be no such queue.
            NoBroker: when it is not known what has become of it.
        """
        name = strays_name(self.schema)
        await self._made_queue(name)
        channel = self._there()
        with self._told(UNCONFIRMED):
            try:
                async with asyncio.timeout(CONFIRM_TIMEOUT):
                    answer = await channel.basic_publish(body, routing_key=name, mandatory=True, properties=properties)
            except DeliveryError:
                self.renew()  # the queue may be gone
                return False
            except ChannelAccessRefused as error:
                self.renew()
                raise refusal(f"nothing can be sent to {name}", error) from error
        return isinstance(answer, Basic.Ack)

    async def consume(
        self, kind: str, prefetch: int, took: Callable[[Any], Coroutine[Any, Any, None]]
    ) -> list[tuple[str, str]]:
        """Have what is in the queues of *kind* delivered, *prefetch* of each at most unacknowledged; gives the tags."""
        await self.declare(kind)
        channel, tags = self._there(), []
        with self._told(f"the queues of {kind} can't be read"):
            await channel.basic_qos(prefetch_count=prefetch)
            self._prefetch = prefetch
            for name in queue_names(self.schema, kind):
                try:
                    answer = await channel.basic_consume(name, took)
                except ChannelAccessRefused as error:  # which costs this channel: the next is asked for aside
                    self.renew()
                    denied = refusal(f"the queue {name} can't be read", error)
                    self.denied.add(kind, denied)
                    raise denied from error
                tags.append((name, str(answer.consumer_tag)))
        self.denied.allow(kind, proven=True)
        return tags

    async def cancel(self, tags: Sequence[tuple[str, str]]) -> None:
        """Have no more delivered."""
        with self._told("the broker is gone"):
            for _, tag in tags:
                await self._there().basic_cancel(tag)

    async def give_back(self, tag: int) -> None:
        """Let the broker deliver a message once more."""
        with self._told("the broker is gone"):
            await self._there().basic_nack(tag, requeue=True, wait=False)

    async def acknowledge(self, tag: int, *, also_before: bool = False) -> None:
        """Let the broker forget a message, or with it all that were delivered on this channel before."""
        with self._told("the broker is gone"):
            await self._there().basic_ack(tag, multiple=also_before, wait=False)

    async def settle(self) -> None:
        """Wait until the broker has seen all that was said on this channel: it answers in order.

        Raises:
            NoBroker: when it does not answer.
        """
        with self._told(f"no answer from the broker at {self.where}"):
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await self._there().basic_qos(prefetch_count=self._prefetch)

    def _cancelled(self, frame: Any) -> None:
        self._declared.clear()
        self.on_cancel(str(frame.consumer_tag))

    def _there(self) -> aiormq.Channel:
        if self._channel is None or self._channel.is_closed:
            raise NoBroker(f"no broker at {self.where}: the connection was lost")
        return self._channel

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except NoBroker:
            raise
        except _BROKEN as error:
            self._channel = None
            raise NoBroker(f"{what}: {said(error)}") from error


async def _nothing(_message: Any) -> None:
    """Take what never comes."""
