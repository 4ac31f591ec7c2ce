"""The child processes of a worker's isolated handlers: started, kept for the next job, killed, and never left behind.

Why not a pool of processes from a library: its children share one pipe, and one that is killed while it holds the lock
of that stalls the others; nor can a job there be told to stop, or tell its progress. Here each child has a socket of
its own, and what one does can hurt no other. Nothing here knows what a handler is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from redrive.child import SIZE, START, Order
from redrive.errors import HandlerCrashed

if TYPE_CHECKING:
    from redrive.job import ClaimedJob
    from redrive.outcome import Outcome

IDLE = 60.0
"""Seconds after which a child that has nothing to do is given up."""
LOOK_EVERY = 0.1
FAREWELL = 2.0
LAST_FAREWELL = 0.5
"""Seconds that a child gets to end by itself, with what the application does at its exit; and when its worker ends."""
GONE_WITHIN = 1.0

Done = tuple["Outcome", bool]
"""A job's outcome, and whether its child will do for another job."""


class Child(asyncio.Protocol):
    """A child process as its worker sees it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.jobs = 0
        self.begun = False
        self.expiry: asyncio.TimerHandle | None = None
        self.lost = asyncio.get_running_loop().create_future()
        """Done when there is nothing more to hear."""
        self._buffer = bytearray()
        self._transport: Any = None
        self._job: ClaimedJob | None = None
        self._done: asyncio.Future[Done | None] = asyncio.get_running_loop().create_future()

    async def run(self, order: Order, job: ClaimedJob) -> Done | None:
        """Run a job; gives its outcome and whether the child will do for another, or None when the child died."""
        done: asyncio.Future[Done | None] = asyncio.get_running_loop().create_future()
        self._done = done
        self._job, self.begun, told = job, False, False
        self.jobs += 1
        if self.lost.done():
            return None
        self.send(order)
        dead = False
        while not done.done():
            await asyncio.wait({done}, timeout=LOOK_EVERY)
            if not told and (job.stop_reason or job.lost):
                told = True
                self.send(job.stop_reason or "lease lost")
            if not done.done() and self.process.poll() is not None:
                if dead:  # it has been, for a while: others hold the other end of the socket, and have nothing to say
                    return None
                dead = True
                self.kill()
        return await done

    def send(self, message: Any) -> None:
        """Send a message: an order, a reason to stop, or None for the end."""
        self._transport.write(pickle.dumps(message))

    def kill(self) -> None:
        """Kill the process and what it has started; it leads a group of its own."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def end(self, farewell: float = 0.0) -> int | None:
        """See the process off, killed unless it goes by itself within *farewell* seconds; gives its exit code."""
        if farewell and not self.lost.done():
            self.send(None)
            await self._gone(farewell)
        self.kill()
        await self._gone(GONE_WITHIN)
        await asyncio.wait({self.lost}, timeout=LOOK_EVERY)  # its last words: a job.complete() that was committed
        self.hang_up()
        return self.process.returncode

    def hang_up(self) -> None:
        """Close the socket."""
        if self._done.done():
            self._done.exception()  # seen, also where nobody waits for it any more
        if self._transport is not None:
            self._transport.abort()

    async def _gone(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.005)

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the child with what it needs before it can import anything."""
        self._transport = transport
        self.send((sys.argv, sys.path, os.getpid()))

    def data_received(self, data: bytes) -> None:
        """Take what came, and heed the messages that are whole."""
        self._buffer += data
        while len(self._buffer) >= SIZE.size:
            end = SIZE.size + SIZE.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            message = bytes(self._buffer[SIZE.size : end])
            del self._buffer[:end]
            self._heed(*pickle.loads(message))  # noqa: S301 - its own child's

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        """Note that there is nothing more to hear."""
        if not self.lost.done():
            self.lost.set_result(None)
        if not self._done.done():
            self._done.set_result(None)

    def _heed(self, what: str, *said: Any) -> None:
        job = self._job
        if what == "log":
            record = logging.makeLogRecord(said[0])
            logger = logging.getLogger(record.name)
            if logger.isEnabledFor(record.levelno):
                logger.handle(record)
        elif job is None or self._done.done():
            return
        elif what == "begun":
            self.begun = True
            job.started = time.monotonic()  # the start of a child and its imports are not the handler's time
        elif what == "progress":
            job.progress(said[0])
        elif what == "completed":
            job.completed = True
        elif what == "done":
            self._done.set_result((said[0], said[1]))
        elif what == "broken":
            error = HandlerCrashed(f"a child process can't run the handler: {said[0]}")
            error.__cause__ = ChildTraceback(said[1])
            self._done.set_exception(error)


class ChildTraceback(Exception):
    """The traceback of an error in a child, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}".rstrip()


class Children:
    """The children of the workers of one event loop."""

    def __init__(self) -> None:
        self._idle: dict[int | None, list[Child]] = {}
        self._ending: set[asyncio.Task[int | None]] = set()

    def take(self, limit: int | None, jobs: int) -> Child | None:
        """Take an idle child with that memory limit that has run fewer *jobs* than that."""
        idle = self._idle.get(limit, [])
        for child in list(reversed(idle)):
            if child.lost.done():
                self._give_up(child)
            elif child.jobs < jobs:
                idle.remove(child)
                if child.expiry is not None:
                    child.expiry.cancel()
                return child
        return None

    async def start(self) -> Child:
        """Start a child, from the loop's own thread: the kernel ends a child with the thread that started it."""
        ours, theirs = socket.socketpair()
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001 - as multiprocessing
        command = [sys.executable, *flags, "-c", START, str(theirs.fileno())]
        try:
            process = subprocess.Popen(  # noqa: S603, ASYNC220 - ourselves; it returns once the child has begun
                command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        child = Child(process)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: child, sock=ours)
        except BaseException:
            ours.close()
            await self.end(child)
            raise
        return child

    def give_back(self, child: Child, limit: int | None, jobs: int, *, fit: bool) -> None:
        """Keep a child for the next job, where it will do for one."""
        if not fit or child.jobs >= jobs or child.lost.done():
            self._see_off(child, FAREWELL)
            return
        self._idle.setdefault(limit, []).append(child)
        child.expiry = asyncio.get_running_loop().call_later(IDLE, self._give_up, child)

    async def end(self, child: Child) -> int | None:
        """Kill a child and wait for its end; that goes on where the wait for it is cancelled."""
        child.kill()
        return await asyncio.shield(self._see_off(child))

    async def close(self) -> None:
        """See off all that are idle, and wait until those that were told to end have ended."""
        for idle in list(self._idle.values()):
            for child in list(idle):
                self._give_up(child, LAST_FAREWELL)
        if self._ending:
            await asyncio.wait(self._ending, timeout=FAREWELL + GONE_WITHIN)

    def _give_up(self, child: Child, farewell: float = FAREWELL) -> None:
        for idle in self._idle.values():
            if child in idle:
                idle.remove(child)
        if child.expiry is not None:
            child.expiry.cancel()
        self._see_off(child, farewell)

    def _see_off(self, child: Child, farewell: float = 0.0) -> asyncio.Task[int | None]:
        task = asyncio.ensure_future(child.end(farewell))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task


_children: WeakKeyDictionary[asyncio.AbstractEventLoop, Children] = WeakKeyDictionary()


def of_this_loop() -> Children:
    """Give the children of the running event loop."""
    loop = asyncio.get_running_loop()
    if (children := _children.get(loop)) is None:
        children = _children[loop] = Children()
    return children


async def close() -> None:
    """Let the idle children of this event loop go."""
    if (children := _children.get(asyncio.get_running_loop())) is not None:
        await children.close()
