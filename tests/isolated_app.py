"""An application of isolated handlers, for test_isolation: children import it by its name."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg

from redrive import Dead, Discard, Queue, Retry, Snooze
from redrive.child import loading

queue = Queue("postgresql://nobody@127.0.0.1:1/nothing", poll=1)  # where jobs come from is told by the worker
isolated = functools.partial(queue.handler, isolation="process", max_attempts=3)
log = logging.getLogger("isolated_app")
kept = []


@dataclass
class Page:
    number: int


class Unsendable(Exception):
    """Neither it nor what it holds can be pickled."""

    def __init__(self, text):
        super().__init__(text)
        self.held = lambda: text


@isolated("fine")
def fine(page: Page, job):
    log.warning("page %s", page.number, extra={"page": page.number, "odd": lambda: None})
    job.progress({"pid": os.getpid()})
    return {"page": page.number + 1, "pid": os.getpid()}


def segfault():
    ctypes.string_at(0)


def fork_and_segfault():
    """What it has forked holds on to whatever the child has open."""
    if os.fork() == 0:
        time.sleep(600)
    segfault()


ERRORS = {
    "retry": Retry("later", after=90),
    "snooze": Snooze(60),
    "discard": Discard("not wanted"),
    "dead": Dead("a human must look"),
    "dead_on": PermissionError("for good"),
    "raise": Unsendable("it failed"),
    "exit": SystemExit(4),
}
DEATHS = {
    "_exit": lambda: os._exit(3),
    "segfault": segfault,
    "segfault beside a fork": fork_and_segfault,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


@isolated("says", timeout=60, dead_on=PermissionError)
def says(payload, job):
    if (error := ERRORS.get(payload["what"])) is not None:
        raise error
    DEATHS[payload["what"]]()


@isolated("picky", retry_on=ConnectionError)
def picky(payload):
    raise ValueError("no use")


@isolated("greedy", memory_limit="400MB")
def greedy(payload, job):
    kept.append(bytearray(payload["megabytes"] << 20))
    return os.getpid()


@isolated("once", jobs_per_child=1)
def once(payload):
    return os.getpid()


@isolated("stubborn", timeout=1)
def stubborn(payload, job):
    other = subprocess.Popen(["sleep", "600"])
    job.progress({"pids": [os.getpid(), other.pid]})
    while True:
        try:
            time.sleep(600)
        except BaseException:  # noqa: BLE001, S112 - as bad code does
            continue


@isolated("endless", timeout=None)
def endless(payload, job):
    other = subprocess.Popen(["sleep", "600"])
    job.progress({"pids": [os.getpid(), other.pid]})
    time.sleep(600)


@isolated("deaf", timeout=None)
def deaf(payload, job):
    """Nothing of Python's runs any more, no thread and no signal's handler."""
    Path(os.environ["PID_FILE"]).write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(600)


@isolated("attentive", timeout=None)
def attentive(payload, job):
    os.kill(os.getpid(), signal.SIGTERM)  # as a service manager does to the whole group
    job.progress({"pids": [os.getpid()]})
    while not job.should_stop:
        time.sleep(0.02)


@isolated("told")
def told(payload, job):
    return {
        name: str(getattr(job, name))
        for name in (
            "id",
            "kind",
            "payload",
            "attempt",
            "max_attempts",
            "idempotency_key",
            "metadata",
            "lane",
            "worker",
        )
    }


@isolated("complete")
def complete(payload, job):
    with psycopg.connect(queue.settings.database_url) as connection:
        connection.execute("insert into public.done values (%s)", (job.id,))
        job.complete(connection, {"by": "complete"})
        if payload["die"] == "before":
            os._exit(1)
    if payload["die"] == "after":
        os._exit(1)


@isolated("chain")
def chain(payload):
    queue.enqueue("told", {"from": "a child"})


if not loading.is_set():

    @isolated("hidden")
    def hidden(payload): ...


@isolated("followed")
def followed(payload, job):
    job.then("next", {"from": "a child"})
