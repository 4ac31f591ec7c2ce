"""Straight to the broker: for jobs that need no transaction, and no row until there is something to be said of them.

A thread of its own holds the connection, so that programs with and without an event loop send by the same one. What is
sent is safe when the call returns, and not before.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from itertools import islice
from typing import TYPE_CHECKING, Any

from redrive import store
from redrive.amqp.link import CONFIRM_TIMEOUT, CONNECT_TIMEOUT, Link, checked
from redrive.amqp.parcel import Parcel, now, portions
from redrive.errors import InvalidOption, NoBroker
from redrive.job import EPOCH, Enqueued, Holder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from redrive.store import Options

CHUNK = 500
"""Messages that are sent and confirmed together."""
ALL_IN_ALL = CONNECT_TIMEOUT + CONFIRM_TIMEOUT + 5.0
"""Seconds after which a call gives up waiting for the thread: by then it has failed or hangs."""
FIRST_ID = 2**62
"""Ids from here on are drawn by lot: the table's own, which are counted, never come so far."""


class Direct:
    """Sends jobs of one program to the broker."""

    def __init__(self, url: str, schema: str, how: Callable[[str, Any, Mapping[str, Any]], Options]) -> None:
        """*how* checks the options of a job of a kind with a payload."""
        self._url, self._schema, self._how = checked(url), schema, how
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: Link | None = None
        self._opening: asyncio.Lock | None = None

    def one(self, kind: str, payload: Any, options: Mapping[str, Any], key: Any, connection: Any) -> Enqueued:
        """Send one job.

        Raises:
            NoBroker: as of :meth:`send`.
        """
        parcels = self._parcels(kind, [payload], options, key, connection)
        self.send(parcels)
        return Enqueued(parcels[0].id, created=True, kind=kind)

    async def one_async(
        self, kind: str, payload: Any, options: Mapping[str, Any], key: Any, connection: Any
    ) -> Enqueued:
        """Send one job from async code."""
        parcels = self._parcels(kind, [payload], options, key, connection)
        await self.send_async(parcels)
        return Enqueued(parcels[0].id, created=True, kind=kind)

    def many(
        self, kind: str, payloads: Iterable[Any], options: Mapping[str, Any], key: Any, connection: Any, **told: Any
    ) -> int:
        """Send a job for each payload, in chunks; gives how many there are.

        Raises:
            NoBroker: as of :meth:`send`; the chunks before stay sent.
        """
        sent = 0
        for parcels in self._chunks(kind, payloads, options, key, connection):
            self.send(parcels)
            sent = _note(parcels, sent, **told)
        return sent

    async def many_async(
        self, kind: str, payloads: Iterable[Any], options: Mapping[str, Any], key: Any, connection: Any, **told: Any
    ) -> int:
        """Send a job for each payload from async code."""
        sent = 0
        for parcels in self._chunks(kind, payloads, options, key, connection):
            await self.send_async(parcels)
            sent = _note(parcels, sent, **told)
        return sent

    def send(self, parcels: Sequence[Parcel]) -> None:
        """Send jobs and wait until the broker has them for good.

        Raises:
            NoBroker: when it does not answer, or refuses some. What it was sent it may have all the same.
        """
        self._asked(parcels).result(ALL_IN_ALL)

    async def send_async(self, parcels: Sequence[Parcel]) -> None:
        """Send jobs from async code; see :meth:`send`."""
        async with asyncio.timeout(ALL_IN_ALL):
            await asyncio.wrap_future(self._asked(parcels))

    def close(self) -> None:
        """End the connection and its thread."""
        with self._lock:
            loop, link, self._loop = self._loop, self._link, None
            if loop is None or self._pid != os.getpid():
                return
        if link is not None:
            asyncio.run_coroutine_threadsafe(link.close(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)

    def _chunks(self, kind: str, payloads: Iterable[Any], *how: Any) -> Iterator[list[Parcel]]:
        rest = iter(payloads)
        while chunk := list(islice(rest, CHUNK)):
            yield from portions(self._parcels(kind, chunk, *how))

    def _parcels(
        self, kind: str, payloads: Iterable[Any], options: Mapping[str, Any], key: Any, connection: Any
    ) -> list[Parcel]:
        if key is not None or connection is not None:
            raise InvalidOption("direct=True goes past the table: it knows no key and no connection; leave direct away")
        name = store.name(kind, "kind")
        given = [{} if payload is None else payload for payload in payloads]
        return [
            parcel(self._schema, name, store.encoded_payload(each), self._how(name, each, options)) for each in given
        ]

    def _asked(self, parcels: Sequence[Parcel]) -> Future[None]:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():  # a child has no thread of its parent's
                self._start()
            assert self._loop is not None  # noqa: S101 - just started
            return asyncio.run_coroutine_threadsafe(self._send(parcels), self._loop)

    def _start(self) -> None:
        loop = self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._link = Link(self._url, self._schema, f"redrive direct {self._pid}")
        self._opening = asyncio.Lock()

        def turn() -> None:
            asyncio.set_event_loop(loop)
            try:
                loop.run_forever()
            finally:
                loop.close()

        threading.Thread(target=turn, name="redrive-direct", daemon=True).start()

    async def _send(self, parcels: Sequence[Parcel]) -> None:
        assert self._link is not None  # noqa: S101 - as in _asked
        assert self._opening is not None  # noqa: S101 - as in _asked
        async with self._opening:
            await self._link.open()
        refused = await self._link.publish(parcels)
        if refused:
            raise NoBroker(f"the broker has refused {len(refused)} of {len(parcels)} jobs: its queue is full")


def _note(
    parcels: Sequence[Parcel], sent: int, *, ids: list[int] | None, on_chunk: Callable[[int], object] | None
) -> int:
    sent += len(parcels)
    if ids is not None:
        ids.extend(each.id for each in parcels)
    if on_chunk is not None:
        on_chunk(sent)
    return sent


def parcel(schema: str, kind: str, payload: str, how: Options) -> Parcel:
    """Make a job that no table has seen.

    Raises:
        InvalidOption: for what only the table can do.
    """
    if how.batch is not None or how.delay or how.run_at is not None:
        raise InvalidOption("direct=True goes past the table: it knows no delay, run_at and batch; leave direct away")
    at = now()
    expires = None
    if how.expires_in is not None:
        expires = at + int(how.expires_in * 1e6)
    elif how.expires_at is not None:
        expires = int((how.expires_at - EPOCH).total_seconds() * 1e6)
    job_id = FIRST_ID + secrets.randbits(61)
    row: tuple[Any, ...] = (
        job_id,
        kind,
        payload,
        1,
        how.max_attempts,
        1,
        0,
        how.priority,
        how.lane,
        at,
        at,
        how.metadata,
    )
    return Parcel(Holder("", schema), (*row, None, expires, False, False))
