"""A worker of the project's queue in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from chaos.patience import wait_for
from redrive.django import queue


@contextmanager
def working(**settings) -> Iterator[None]:
    worker = queue.worker(**{"listen": False, "poll": 0.05, "grace": 1.0, **settings})
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


def ended(job, seconds=20.0):
    """The job's row, once it has ended or waits for another try."""
    return wait_for(lambda: (row := queue.get(job.id)).status != "running" and row.claims > 0 and row, seconds)
