"""The worker under measure: a ``redrive worker`` in a process of its own, which never outlives whoever measures it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from redrive.bench.application import DIRECTORY
from redrive.bench.tally import NANOSECONDS, Report, Tally, read_report
from redrive.errors import RedriveError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redrive.bench.scratch import Place

START = 30.0
STOP = 40.0
LOOK = 0.02
_NOT_MEANT_FOR_IT = tuple(f"REDRIVE_{name}" for name in ("KINDS", "ONCE", "LOG_LEVEL", "EXIT_ON_DB_LOSS", "PROCESSES"))


class SubjectFailed(RedriveError):
    """A worker under measure ended, or did not begin, or stopped working."""


class Subject:
    """One worker process, and what it tells."""

    def __init__(self, place: Place, directory: Path, *flags: str) -> None:
        self._directory = directory
        self._log = directory / "log"
        self._tally = Tally(directory)
        env = {name: value for name, value in os.environ.items() if name not in _NOT_MEANT_FOR_IT}
        where = {"REDRIVE_DATABASE_URL": place.url, "REDRIVE_SCHEMA": place.schema, DIRECTORY: str(directory)}
        command = ["-m", "redrive.demo.tether", "worker", "redrive.bench.application:queue", "--log-level", "warning"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, *command, *flags],
                env=env | where,
                stdin=subprocess.PIPE,  # never written to: its end is the worker's, see tether
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C is for whoever measures
            )

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def demand_alive(self) -> None:
        """Refuse to go on without the worker.

        Raises:
            SubjectFailed: with the end of its log.
        """
        if self._process.poll() is not None:
            said = self._log.read_text(errors="replace").strip().splitlines()
            tail = " / ".join(line for line in said[-3:]) or "nothing"
            raise SubjectFailed(f"the worker ended with code {self._process.returncode} and said: {tail}")

    def wait_until_ready(self) -> None:
        """Wait until it works."""
        end = time.monotonic() + START
        while not self._tally.read("ready"):
            self.demand_alive()
            if time.monotonic() > end:
                raise SubjectFailed(f"the worker did not begin to work within {START:g} s")
            time.sleep(LOOK)

    @property
    def statements(self) -> int:
        """Transactions of the engine's so far."""
        return self._tally.read("statements")

    @property
    def claims(self) -> int:
        """Claims so far."""
        return self._tally.read("claims")

    @property
    def cpu(self) -> float:
        """Seconds of CPU since the process began, as of its last statement."""
        return self._tally.read("cpu") / NANOSECONDS

    @property
    def resident_mb(self) -> float | None:
        """Memory that is resident now, in MB; None where /proc does not say."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except OSError:
            return None
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def stop(self) -> Report:
        """Stop it in good order, and read its report."""
        self.demand_alive()
        self._process.terminate()
        try:
            self._process.wait(STOP)
        except subprocess.TimeoutExpired:
            raise SubjectFailed(f"the worker did not stop within {STOP:g} s") from None
        return read_report(self._directory)

    def close(self) -> None:
        """End it at once if it is still there."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._tally.close()


@contextmanager
def subject(place: Place, concurrency: int | None = None, *flags: str) -> Iterator[Subject]:
    """Start a worker on *place* and wait until it works; at the end it is gone."""
    if concurrency is not None:
        flags = ("--concurrency", str(concurrency), *flags)
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as directory:
        worker = Subject(place, Path(directory), *flags)
        try:
            worker.wait_until_ready()
            yield worker
        finally:
            worker.close()
