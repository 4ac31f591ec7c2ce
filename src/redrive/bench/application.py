"""The application whose worker is measured: handlers that do next to nothing, and a watch on the worker's statements.

The worker is ``redrive worker redrive.bench.application:queue``, with everything on. What is added to it is a few
microseconds a statement, that is, a batch of jobs, and nothing a job. Where REDRIVE_BENCH_DIR is not set nothing is
added at all.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redrive.bench.tally import NANOSECONDS, Report, Tally, peak_mb
from redrive.connections import Control
from redrive.events import WorkerStarted, WorkerStopped, WorkerStopping, subscribe
from redrive.outcome import HandedBack
from redrive.queue import Queue
from redrive.sql import spoken

if TYPE_CHECKING:
    from redrive.statements import Statement

DIRECTORY = "REDRIVE_BENCH_DIR"
ASYNC, THREAD, STAMP, PAUSE = "bench_async", "bench_thread", "bench_stamp", "bench_pause"

queue = Queue()
report = Report()


@queue.handler(ASYNC)
async def nothing(_payload: Any) -> None:
    """Do nothing, on the event loop."""


@queue.handler(THREAD)
def nothing_in_a_thread(_payload: Any) -> None:
    """Do nothing, in a thread."""


@queue.handler(STAMP)
async def stamp(payload: Any) -> None:
    """Note how long ago the job was about to be inserted, by the clock that all processes of this machine share."""
    report.waited.append((time.monotonic_ns() - payload["at"]) / NANOSECONDS)


@queue.handler(PAUSE)
async def pause(payload: Any) -> None:
    """Take a while without using the processor."""
    report.begun.append(time.monotonic())
    await asyncio.sleep(payload["seconds"])
    report.ended.append(time.monotonic())


def watch(directory: Path) -> None:
    """Count what this process's engine says to the database, time its claims, and leave a report at the end."""
    tally = Tally(directory)
    say = Control.run
    began_with = time.process_time()

    async def run(self: Control, statement: Statement[Any], **how: Any) -> list[Any]:
        began = time.monotonic()
        rows = await say(self, statement, **how)
        claim = statement.sql is spoken("claim_jobs", self.schema)
        if claim:
            report.claimed(began, time.monotonic() - began, len(rows))
        elif statement.sql is spoken("finish_jobs", self.schema) and statement.params:
            report.given_back.extend([time.monotonic()] * statement.params["outcomes"].count(HandedBack.name))
        tally.add(statements=1, claims=claim)
        return rows

    def started(_: WorkerStarted) -> None:
        nonlocal began_with
        began_with = time.process_time()
        tally.add(ready=1)

    def stopping(_: WorkerStopping) -> None:
        report.cpu = time.process_time() - began_with

    def stopped(_: WorkerStopped) -> None:
        report.peak_mb = peak_mb()
        report.write(directory)

    Control.run = run  # type: ignore[method-assign] # the one place that all statements pass
    subscribe(started, WorkerStarted)
    subscribe(stopping, WorkerStopping)
    subscribe(stopped, WorkerStopped)


if directory := os.environ.get(DIRECTORY):
    watch(Path(directory))
