"""What the workers of a run do: handlers that work, and handlers that misbehave in every way known to us.

Each writes its start and its end to the ledger, which is not redrive's and not in the database. What they do is said by
the payload, so that a seed decides it. It is also loaded by an older redrive, so what that does not know is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

import redrive
from chaos.ledger import Ledger
from chaos.orders import down
from redrive import Dead, Discard, Queue, Retry, Snooze, backoff

SLOT = os.environ["CHAOS_SLOT"]
DIRECT = os.environ["CHAOS_DIRECT"]
"""The way to the database for the handlers' own writes, round the faults of the network."""
BLOCK = float(os.environ["CHAOS_LEASE"]) * 1.3
LATE = 1.2
TICK = 0.1
STARVED = 0.4
"""A thread that sleeps for a tick and comes back this much later was not let run by the machine."""
MOVED = 60.0
"""Seconds by which a clock that is moved on purpose is moved at least."""

queue = Queue()
LEDGERS = Path(os.environ["CHAOS_LEDGER"])
ledger = Ledger(LEDGERS, f"worker-{SLOT}")
soon = backoff.fixed(0.3, jitter=0.3)


def pause(seconds: float) -> None:
    """Sleep by a call that libfaketime leaves alone; it makes time.sleep() fail."""
    select.select([], [], [], seconds)


@contextlib.contextmanager
def witnessed(payload: dict[str, Any], job: Any) -> Iterator[None]:
    """Write down that this try began, and how it ended."""
    about = {"job": job.id, "n": payload["n"], "claim": job.claim, "worker": job.worker}
    ledger.write("start", attempt=job.attempt, kind=job.kind, **about)
    try:
        yield
    except BaseException as error:
        ledger.write("end", how=type(error).__name__, **about)
        raise
    ledger.write("end", how="returned", **about)


@queue.handler("quick", backoff=soon)
async def quick(payload: dict[str, Any], job: Any) -> None:
    """Do next to nothing."""
    with witnessed(payload, job):
        await asyncio.sleep(payload["for"])


@queue.handler("threaded", backoff=soon)
def threaded(payload: dict[str, Any], job: Any) -> None:
    """Do next to nothing, in a thread."""
    with witnessed(payload, job):
        pause(payload["for"])


@queue.handler("steady", backoff=soon)
async def steady(payload: dict[str, Any], job: Any) -> None:
    """Take long enough to be hit by a fault in the middle."""
    with witnessed(payload, job):
        await asyncio.sleep(payload["for"])


class Unspeakable(Exception):
    """An error that can't even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@queue.handler("raises", backoff=soon)
async def raises(payload: dict[str, Any], job: Any) -> None:
    """Fail until the try that the payload names; some of the errors can't be stored as they are."""
    with witnessed(payload, job):
        await asyncio.sleep(payload["for"])
        if job.attempt < payload["until"]:
            match payload["error"]:
                case "nul":
                    raise ValueError("a NUL \0 in the message")
                case "surrogate":
                    raise ValueError("half a character \ud800")
                case "huge":
                    raise ValueError("x" * 5_000_000)
                case "unspeakable":
                    raise Unspeakable
                case "retry":
                    raise Retry(after=0.5)
                case _:
                    raise RuntimeError("as told")


@queue.handler("ends", backoff=soon)
async def ends(payload: dict[str, Any], job: Any) -> None:
    """Say how it is to end."""
    with witnessed(payload, job):
        match payload["as"]:
            case "discarded":
                raise Discard("as told")
            case "dead":
                raise Dead("as told")
            case "snoozed" if job.claim <= payload["until"]:
                raise Snooze(0.4)


@queue.handler("hangs", backoff=soon, timeout=LATE)
async def hangs(payload: dict[str, Any], job: Any) -> None:
    """Wait for ever at the first try: of claims, since one that a breaker holds back is no attempt."""
    with witnessed(payload, job):
        await asyncio.sleep(3600 if job.claim == 1 else 0)


@queue.handler("late", backoff=soon, timeout=LATE)
def late(payload: dict[str, Any], job: Any) -> None:
    """Pass the timeout in a thread, where nobody can stop it."""
    with witnessed(payload, job):
        pause(LATE * 1.5 if job.claim == 1 else 0)


@queue.handler("exits", backoff=soon)
async def exits(payload: dict[str, Any], job: Any) -> None:
    """Try to end the process the polite way, once."""
    with witnessed(payload, job):
        if not job.crashes:
            sys.exit(3)


@queue.handler("kills", backoff=soon)
async def kills(payload: dict[str, Any], job: Any) -> None:
    """End the process without a word, as often as the payload says."""
    with witnessed(payload, job):
        if job.claim <= payload["deaths"]:
            ledger.write("suicide", job=job.id, claim=job.claim, worker=job.worker, pid=os.getpid())
            os.kill(os.getpid(), signal.SIGKILL)


@queue.handler("allocates", backoff=soon)
def allocates(payload: dict[str, Any], job: Any) -> None:
    """Take a lot of memory for a moment."""
    with witnessed(payload, job):
        memory = bytearray(payload["megabytes"] << 20)
        memory[::4096] = b"\1" * len(memory[::4096])


@queue.handler("blocks", backoff=soon)
async def blocks(payload: dict[str, Any], job: Any) -> None:
    """Block the event loop for longer than the lease."""
    with witnessed(payload, job):
        pause(BLOCK)


@queue.handler("completes", backoff=soon)
async def completes(payload: dict[str, Any], job: Any) -> None:
    """Make an effect in the database and the job's success one commit: the effect must be there once."""
    with witnessed(payload, job):
        async with await psycopg.AsyncConnection.connect(DIRECT, connect_timeout=5) as conn:
            await conn.execute("INSERT INTO chaos.effects (job, claim) VALUES (%s, %s)", [job.id, job.claim])
            await job.complete(conn)


@queue.handler("isolated", backoff=soon, isolation="process", timeout=20)
def isolated(payload: dict[str, Any], job: Any) -> None:
    """Work in a child process, which dies of it the first time where the payload says so."""
    with witnessed(payload, job):
        if payload["dies"] and job.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        pause(payload["for"])


@queue.handler(f"echo.{SLOT}", backoff=soon, priority=0)
async def echo(payload: dict[str, Any], job: Any) -> None:
    """Answer: this worker works again."""
    with witnessed(payload, job):
        pass


if hasattr(redrive, "Breaker"):  # the older one knows neither limits nor breakers, and leaves these kinds alone

    @queue.handler("limited", backoff=soon)
    async def limited(payload: dict[str, Any], job: Any) -> None:
        """Work where only a few may at once, in all workers together."""
        with witnessed(payload, job):
            await asyncio.sleep(payload["for"])

    @queue.handler(
        "calls",
        backoff=soon,
        target=lambda payload: payload["to"],
        breaker=redrive.Breaker(failures=2, share=0.3, window=30, probe_every=0.5, probe_longest=2),
    )
    async def calls(payload: dict[str, Any], job: Any) -> None:
        """Call a service that is down now and then, for longer than all the tries of a job would take."""
        with witnessed(payload, job):
            await asyncio.sleep(payload["for"])
            if down(payload["to"], time.monotonic()):
                raise ConnectionError(payload["to"])


def _watch() -> None:
    """Note when the machine did not let this process run, which nobody is to blame for, and what its clock shows."""
    clock, showed = Ledger(LEDGERS, f"clock-{SLOT}"), 0.0
    while True:
        began = time.monotonic()
        pause(TICK)
        if (late_by := time.monotonic() - began - TICK) > STARVED:
            ledger.write("starved", pid=os.getpid(), since=began, seconds=late_by)
        if abs((shows := time.time() - time.monotonic()) - showed) > MOVED:
            clock.write("clock", shows=shows)
            showed = shows


threading.Thread(target=_watch, name="chaos-watch", daemon=True).start()
