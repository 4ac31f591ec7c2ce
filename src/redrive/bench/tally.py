"""What a worker under measure tells whoever measures it: a few counters while it works, a report when it ends.

The counters are memory that both processes see, so that reading them costs the worker nothing. One statement of the
engine's is one transaction, and each is counted.
"""

from __future__ import annotations

import json
import mmap
import sys
import threading
import time
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

COUNTERS = ("ready", "statements", "claims", "cpu")
_SIZE = 8 * len(COUNTERS)
NANOSECONDS = 1e9


class Tally:
    """The counters, in a file that is mapped into both processes."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "tally"
        if not self._path.exists():
            self._path.write_bytes(bytes(_SIZE))
        with self._path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SIZE)
        self._cells = memoryview(self._memory).cast("q")
        self._lock = threading.Lock()

    def add(self, **counts: int) -> None:
        """Add to counters; the heartbeat's thread counts too."""
        with self._lock:
            for name, count in counts.items():
                self._cells[COUNTERS.index(name)] += count
            self._cells[COUNTERS.index("cpu")] = time.process_time_ns()

    def read(self, name: str) -> int:
        """Read a counter; ``cpu`` is in nanoseconds, of all threads, as of the last statement."""
        return self._cells[COUNTERS.index(name)]

    def close(self) -> None:
        """Let go of the memory."""
        self._cells.release()
        self._memory.close()


@dataclass
class Report:
    """What one worker saw, in arrays: a million jobs must not be seen in its memory."""

    cpu: float = 0.0
    """Seconds of CPU of all its threads, from the start of work to the order to stop."""
    peak_mb: float | None = None
    """The most memory that was resident; None where the system does not say."""
    claim_at: array[float] = field(default_factory=lambda: array("d"))
    claim_took: array[float] = field(default_factory=lambda: array("d"))
    claim_rows: array[float] = field(default_factory=lambda: array("d"))
    """Of each claim that was answered: when (monotonic seconds), how long it took the worker, how many jobs it gave."""
    waited: array[float] = field(default_factory=lambda: array("d"))
    """Seconds from just before the INSERT to the handler's first line, of each stamped job."""
    begun: array[float] = field(default_factory=lambda: array("d"))
    ended: array[float] = field(default_factory=lambda: array("d"))
    """When each handler of a job with a pause began and ended, in monotonic seconds."""
    given_back: array[float] = field(default_factory=lambda: array("d"))
    """When each job that had found no slot was given back."""

    def claimed(self, at: float, took: float, rows: int) -> None:
        """Note a claim."""
        self.claim_at.append(at)
        self.claim_took.append(took)
        self.claim_rows.append(rows)

    def write(self, directory: Path) -> None:
        """Leave it for whoever measures."""
        plain = {name: list(value) if isinstance(value, array) else value for name, value in vars(self).items()}
        (directory / "report.json").write_text(json.dumps(plain))


def read_report(directory: Path) -> Report:
    """Read what a worker has left."""
    found: dict[str, Any] = json.loads((directory / "report.json").read_text())
    report = Report()
    for name, value in found.items():
        setattr(report, name, array("d", value) if isinstance(value, list) else value)
    return report


def peak_mb() -> float | None:
    """Give the most memory that this process has had resident, in MB; None where the system does not say."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 2**20 if sys.platform == "darwin" else most / 2**10
