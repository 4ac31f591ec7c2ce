"""Hearing: a session that LISTENs, and the sentry's lock. A hint only; without it the worker polls.

The session is tested before it is trusted, since a pooler in between takes LISTEN and grants locks without meaning
it. Of the workers that sleep one at a time is the sentry: it holds an exclusive advisory lock, by which an INSERT knows
that somebody must be woken. The session is always drained and pinged with a hard timeout; no transaction stays open
in it.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.sql import Identifier

from redrive.connections import Control, is_outage
from redrive.events import ListenerDeaf, emit
from redrive.service import FOR_EVER, Database, Service
from redrive.sql import channel, compose, text_of
from redrive.statements import Statement, named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PING_EVERY = 40.0
PING_TIMEOUT = 3.0
TEST_TIMEOUT = 2.0
TEST_AGAIN = 300.0
LOCK_TRIES = 3
TUTORIAL_CHANNEL = "jobs"


class Listener(Service):
    """One worker's ears."""

    name = "listener"

    def __init__(self, database: Database, control: Control, speaker: Control, worker: str) -> None:
        super().__init__(database)
        self.hears = False
        self.sentry = False
        self.watched = False
        """Whether it has been the sentry since it fell asleep, and has not handed that on."""
        self.pid: int | None = None
        """The backend of the listening session, for peers to end it when this worker is frozen."""
        self.on_wake: Callable[[], None] = lambda: None
        self.on_word: dict[str, Callable[[], None]] = {}
        """Whom to tell of a notification to all with this payload; such a one wakes nobody for a job, known or not."""
        self._last_pid: int | None = None
        self._control = control
        self._speaker = speaker
        self._worker = worker
        self._own = channel(control.schema, worker)
        self._all = channel(control.schema)
        self._nonce = ""
        self._heard = asyncio.Event()
        self._saying = asyncio.Lock()
        self._deaf_told = False
        self._reading: int | None = None
        self._conn: psycopg.AsyncConnection[Any] | None = None

    async def tick(self) -> float:
        """Keep the session: open it, or ping it."""
        if self.hears and self._control.connection is not None:
            [found] = await self._say(named("session_facts", self._control.schema), PING_TIMEOUT)
            if not found.read_only:
                return PING_EVERY
            # LISTEN goes on working on a server that was demoted, and nothing will ever be heard there.
        self._deafen()
        if not await self._listen():
            self._control.drop()
            if not self._deaf_told:
                self._deaf_told = True
                emit(ListenerDeaf(worker=self._worker, duration=TEST_TIMEOUT))
            return TEST_AGAIN
        self.hears, self._deaf_told = True, False
        self.on_wake()  # whatever was said while nobody heard it
        for told in self.on_word.values():
            told()
        return PING_EVERY

    async def doze(self) -> None:
        """Become the sentry, unless another is: a failed try may have met an INSERT's passing probe, so try thrice."""
        self.watched = self.sentry
        for attempt in range(LOCK_TRIES):
            if not self.hears or self.sentry:
                return
            if attempt:
                await asyncio.sleep(0.001)
            rows = await self._tolerantly(named("try_sentry", self._control.schema))
            self.sentry = bool(rows) and rows[0].held

    async def rise(self) -> None:
        """Let go of the sentry's lock."""
        if self.sentry:
            self.sentry, self.watched = False, True
            await self._tolerantly(named("leave_sentry", self._control.schema))

    async def wake_another(self, *, kinds: Sequence[str], other_kinds: bool) -> None:
        """Wake one other worker with free slots, or one that knows kinds which this one does not."""
        schema = self._control.schema
        self.watched = self.watched and other_kinds
        asked = named("wake_another", schema, worker=self._worker, kinds=list(kinds), other_kinds=other_kinds)
        for row in await self._tolerantly(asked):
            await self._tolerantly(named("notify", schema, channel=channel(schema, row.name), message=""))

    async def leave(self) -> None:
        """Let another be the sentry, who would else learn at some later poll that there is none."""
        await self.rise()
        await self.wake_another(kinds=(), other_kinds=False)

    async def close(self) -> None:
        """End the session, and the lock with it."""
        self._deafen()
        self._control.drop()

    async def _listen(self) -> bool:
        """Open the session and test it: one backend throughout, and a word from elsewhere arrives while it idles."""
        schema = self._control.schema
        self._conn = await self._control.open()
        facts = self._control.facts
        if facts is None or facts.shared:
            return False
        self._conn.add_notify_handler(self._on_notify)
        for name in (self._all, self._own, TUTORIAL_CHANNEL):
            listen = compose(text_of("listen"), schema, heard=Identifier(name))
            await self._say(Statement(listen, psycopg.rows.tuple_row))
        self._nonce = secrets.token_hex(8)
        self._heard.clear()
        await self._speaker.run(named("notify", schema, channel=self._own, message=self._nonce))
        try:
            async with asyncio.timeout(TEST_TIMEOUT):
                await self._heard.wait()
        except TimeoutError:
            return False
        [row] = await self._say(named("backend_pid", schema))
        if row.pid != facts.pid:
            return False
        if self._last_pid not in (None, facts.pid):
            # It may be frozen or cut off with the sentry's lock in its hands.
            await self._say(named("end_last_session", schema, pid=self._last_pid))
        self.pid = self._last_pid = facts.pid
        return True

    async def _tolerantly(self, statement: Statement[Any]) -> list[Any]:
        """Say something on the listening session; a failure makes it deaf until the next round mends it."""
        if not self.hears:
            return []
        try:
            return await self._say(statement, PING_TIMEOUT)
        except Exception as error:
            self._deafen()
            self.wake()
            if not isinstance(error, psycopg.Error) and not is_outage(error):
                raise
            return []

    async def _say(self, statement: Statement[Any], timeout: float = PING_TIMEOUT) -> list[Any]:  # noqa: ASYNC109 - see Control.run
        # One at a time: psycopg takes the socket's reader for itself, and who is done first must not give it away.
        async with self._saying:
            self._stop_reading()
            try:
                found = await self._control.run(statement, timeout=timeout)
            finally:
                self._start_reading()
            if self._control.connection is not self._conn:  # opened anew in place of a dead one: nothing listens there
                raise psycopg.OperationalError("the listening session was lost")
            return found

    def _on_notify(self, notify: psycopg.Notify) -> None:
        if notify.payload and notify.payload == self._nonce:
            self._heard.set()
        elif notify.channel == self._all and notify.payload:
            if (told := self.on_word.get(notify.payload)) is not None:
                told()
        elif notify.channel == self._own or self.sentry:
            self.on_wake()

    def _start_reading(self) -> None:
        conn = self._control.connection
        if conn is not None and self._reading is None:
            self._reading = conn.pgconn.socket
            asyncio.get_running_loop().add_reader(self._reading, self._read)
            self._read()  # what came with the last answer is no longer in the socket

    def _stop_reading(self) -> None:
        if self._reading is not None:
            asyncio.get_running_loop().remove_reader(self._reading)
            self._reading = None

    def _read(self) -> None:
        conn = self._control.connection
        try:
            if conn is None:
                raise psycopg.OperationalError("the listening session is closed")
            conn.pgconn.consume_input()
            while (notify := conn.pgconn.notifies()) is not None:
                self._on_notify(psycopg.Notify(notify.relname.decode(), notify.extra.decode(), notify.be_pid))
        except psycopg.Error as error:
            self._failed(error)
            self._deafen()
            self.wake()

    def _deafen(self) -> None:
        self.hears = self.sentry = False
        self.pid = None
        self._stop_reading()
        self._control.drop()


class NoListener(Listener):
    """The ears of a worker that was told not to listen: it polls."""

    async def tick(self) -> float:
        """Hear nothing, for ever."""
        return FOR_EVER
