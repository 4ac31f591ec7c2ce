"""Gunicorn's hooks: a worker of redrive in each of its processes, where WORKER=yes asks for that.

It is started after the fork, since a thread does not survive one, and ended before the process is.
"""

from __future__ import annotations

import os
from typing import Any

from redrive.inside import WorkerThread

inside: list[WorkerThread] = []


def post_worker_init(_worker: Any) -> None:
    """The application is loaded in this process: begin."""
    if os.environ.get("WORKER") == "yes":
        from app import queue  # noqa: PLC0415 - which is loaded by now, before or after the fork

        inside.append(WorkerThread(queue, concurrency=4, grace=5).start())


def worker_exit(_server: Any, _worker: Any) -> None:
    """This process ends: let what runs finish, and hand the rest back."""
    for thread in inside:
        thread.stop()
