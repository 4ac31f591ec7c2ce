"""A worker inside another program's process, such as a web server's: for deployments too small for one of its own.

It leaves all signals to that program and ends when it is told to. What it can't do there is said in docs/deploy.md:
it shares the interpreter, the memory and the end of its host, and there is one for each process of the web server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING, Any, Self

from redrive.errors import RedriveError
from redrive.events import Event, WorkerStarted, subscribe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redrive.queue import Queue
    from redrive.worker import Worker

LOOK_EVERY = 0.01
BEYOND = 15.0
"""Seconds beyond its grace after which a thread is no longer waited for."""

_log = logging.getLogger("redrive")


@contextlib.asynccontextmanager
async def working(queue: Queue, **settings: Any) -> AsyncIterator[Worker]:
    """Run a worker in this event loop while the block lasts, as a web application's lifespan does.

    *settings* go over the queue's own, such as ``grace=5``. At the end of the block running jobs have the grace to
    finish, and the rest is handed back. A database that is away is waited for, within the block.

    Raises:
        NotMigrated: when the schema is missing or too old.
        InvalidOption: for an unknown setting, or a value that makes no sense.
    """
    worker = queue.worker(**settings)
    with _started(worker) as started:
        task = asyncio.create_task(worker.run(), name="redrive worker")
        while not (task.done() or started.is_set() or worker.database.away_since):  # noqa: ASYNC110 - set from elsewhere
            await asyncio.sleep(LOOK_EVERY)
    if task.done():
        await task
    task.add_done_callback(_told)
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait({task})


class WorkerThread:
    """A worker in a thread, for programs without an event loop: a WSGI server's process.

    Start it in the process in which it is to work, after a fork and not before: a child has no thread of its parent's.
    """

    def __init__(self, queue: Queue, **settings: Any) -> None:
        self._queue, self._settings = queue, settings
        self._worker: Worker | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._pid = 0

    def start(self) -> Self:
        """Start it and return once it is ready, or waits for its database.

        Raises:
            NotMigrated: when the schema is missing or too old.
            RedriveError: when it runs already.
        """
        if self.running:
            raise RedriveError("this worker runs already in this process: stop it first, or make another")
        worker = self._queue.worker(**self._settings)
        self._worker, self._error, self._pid = worker, None, os.getpid()
        self._thread = threading.Thread(target=self._run, args=[worker], name="redrive-worker", daemon=True)
        with _started(worker) as started:
            self._thread.start()
            while self._thread.is_alive() and not (started.is_set() or worker.database.away_since):
                started.wait(LOOK_EVERY)
        if self._error is not None:
            raise self._error
        return self

    @property
    def running(self) -> bool:
        """Whether it runs, in this process."""
        return self._pid == os.getpid() and self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Let running jobs finish within the grace, hand the rest back, and return when that is written."""
        if not self.running or self._worker is None or self._thread is None:
            return
        self._worker.stop()
        self._thread.join(self._worker.settings.grace + BEYOND)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, worker: Worker) -> None:
        try:
            asyncio.run(worker.run())
        except BaseException as error:  # noqa: BLE001 - a thread has nobody to tell but the log and start()
            self._error = error
            _log.error("the worker in this process has ended: %s: %s", type(error).__name__, error)


@contextlib.contextmanager
def _started(worker: Worker) -> Any:
    started = threading.Event()

    def heard(event: Event) -> None:
        if event.worker == worker.name:
            started.set()

    end = subscribe(heard, WorkerStarted)
    try:
        yield started
    finally:
        end()


def _told(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("the worker in this process has ended: %s: %s", type(error).__name__, error)
