"""What each process saw, in a file of its own: one line a fact, appended in one write, so that it survives SIGKILL.

It is kept apart from the database, which is under attack and would take its own witness down with it. Times are those
of the machine's monotonic clock, which all its processes share and no fault here moves.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ENDING = ".ledger"
LAST_LINES = 65_536
"""Bytes: some hundred lines."""
SLEW = 0.01
"""Seconds."""


class Ledger:
    """The file of one process, opened at the first line; a forked child opens another."""

    def __init__(self, directory: Path, who: str) -> None:
        self._directory, self._who = directory, who
        self._file = self._pid = -1
        self._lock = threading.Lock()

    def write(self, what: str, **facts: Any) -> None:
        """Append a fact, with the time; it is with the kernel when this returns."""
        line = json.dumps({"at": time.monotonic(), "what": what, **facts}, default=str) + "\n"
        os.write(self._opened(), line.encode())

    def under_way(self, who: str, pid: int, kind: str) -> bool:
        """Tell whether *who* has begun a job of *kind* and not ended it, by its own last lines."""
        begun: set[Any] = set()
        for path in self._directory.glob(f"{who}-{pid}-*{ENDING}"):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - LAST_LINES))
                last = file.read()
                if kind.encode() not in last:  # as a rule; this is asked often
                    continue
                for line in last.split(b"\n")[:-1]:
                    with contextlib.suppress(ValueError):  # the first may be half a line
                        fact = json.loads(line)
                        if fact["what"] == "start" and fact["kind"] == kind:
                            begun.add((fact["job"], fact["claim"]))
                        elif fact["what"] == "end":
                            begun.discard((fact["job"], fact["claim"]))
        return bool(begun)

    def _opened(self) -> int:
        if self._pid != os.getpid():
            with self._lock:
                name = f"{self._who}-{os.getpid()}-{time.monotonic_ns()}{ENDING}"
                self._file = os.open(self._directory / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                self._pid = os.getpid()
        return self._file


def keep_time(ledger: Ledger, over: threading.Event) -> None:
    """Note how far the wall's clock is ahead of the monotonic one, each time it is another: it is set, or slewed."""
    known = float("-inf")
    while True:
        ahead = time.time() - time.monotonic()
        if abs(ahead - known) > SLEW:
            ledger.write("wall clock", ahead=ahead)
            known = ahead
        if over.wait(0.1):
            return


def read(directory: Path, who: str = "") -> Iterator[dict[str, Any]]:
    """Read the lines of all files, or of *who* alone; a last line that its process did not live to end is left out."""
    for path in sorted(directory.glob(f"{who}*{ENDING}")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            fact: dict[str, Any] = json.loads(line)
            yield fact
