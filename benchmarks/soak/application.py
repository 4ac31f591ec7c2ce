"""What the soak's workers run: three kinds that do next to nothing, and a note of every claim and every success.

The notes go to files in the directory that SOAK_NOTES names, apart from all that redrive writes itself: a job that
vanished, or ran to its end twice, shows by comparison. They are buffered and written twice a second, so that watching
costs the worker little and its memory does not grow by it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from array import array
from pathlib import Path
from typing import Any

from redrive import Queue, backoff
from redrive.connections import Control
from redrive.sql import query
from redrive.statements import Statement

CLAIMS = ("claim_jobs", "claim_alone")
MARK = "SET status = 'running'"
"""What every claim says, and no other statement."""
WORK = 0.002
FLUSH = 0.5

queue = Queue()


class Notes:
    """Numbers in two files: of each claim when it ended (s), how long it took (ms), how many it got; ids of ends."""

    def __init__(self, directory: Path) -> None:
        self._claims, self._ended = array("d"), array("q")
        self._files = [directory / f"{os.getpid()}.{what}" for what in ("claims", "ended")]
        self._lock = threading.Lock()
        threading.Thread(target=self._write_on, name="notes", daemon=True).start()
        atexit.register(self.write)

    def claim(self, took: float, jobs: int) -> None:
        """Note a claim."""
        self._claims.extend((time.time(), took * 1000, jobs))

    def end(self, job_id: int) -> None:
        """Note that a handler did all of its work."""
        self._ended.append(job_id)

    def write(self) -> None:
        """Append what has been noted to the files."""
        with self._lock:
            self._append(self._claims, 3, self._files[0])
            self._append(self._ended, 1, self._files[1])

    @staticmethod
    def _append(noted: array[Any], width: int, path: Path) -> None:
        whole = len(noted) - len(noted) % width
        with path.open("ab") as file:
            file.write(noted[:whole].tobytes())
        del noted[:whole]

    def _write_on(self) -> None:
        while True:
            time.sleep(FLUSH)
            self.write()


notes = Notes(Path(os.environ["SOAK_NOTES"]))
_run = Control.run
_claims: dict[int, tuple[Any, bool]] = {}


def _text(statement: Statement[Any]) -> str:
    return statement.sql.decode() if isinstance(statement.sql, bytes) else statement.sql.as_string(None)


async def _timed(self: Control, statement: Statement[Any], **how: Any) -> list[Any]:
    """Say a statement; if it is a claim, note how long the worker had to wait for its answer."""
    known = _claims.get(id(statement.sql))
    if known is None or known[0] is not statement.sql:
        known = _claims[id(statement.sql)] = statement.sql, MARK in _text(statement)
    if not known[1]:
        return await _run(self, statement, **how)
    began = time.monotonic()
    rows = await _run(self, statement, **how)
    notes.claim(time.monotonic() - began, len(rows))
    return rows


assert all(MARK in query(name, "redrive").as_string(None) for name in CLAIMS), "no claim would be heard"  # noqa: S101 - a soak without its claims says nothing
Control.run = _timed  # type: ignore[method-assign] # the one place that all statements pass


async def work(payload: dict[str, Any], job: Any) -> None:
    """Take two milliseconds; fail the first time where the payload says so."""
    await asyncio.sleep(WORK)
    if payload.get("fails") and job.attempt == 1:
        raise RuntimeError("as told")
    notes.end(job.id)


for _kind in ("mail", "hook", "export"):
    queue.handler(_kind, backoff=backoff.fixed(1.0, jitter=0.5))(work)
