"""One process of an adapter: started, asked, and ended by us.

It only ever signals processes that it started and their descendants, and each of its waits has an end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers import machine

PEERS = Path(__file__).resolve().parent
FOREIGN = ("PG", "BENCH_", "DATABASE_URL", "DBOS", "OBAN", "PROCRASTINATE", "REDRIVE_", "PYTHON")


class Failed(Exception):
    """A system did not do what was asked within the time for it."""


class Child:
    """An adapter's process.

    Args:
        program: the interpreter of the system's environment.
        adapter: the adapter's name: a module of adapters/, or a file there.
        command: info, setup, producer or work.
        scratch: where its markers, records and log go.
        said: the BENCH_* variables for it, without their prefix.
        asked: whether it is spoken to by lines of JSON.
    """

    def __init__(
        self,
        program: list[str],
        adapter: str,
        command: str,
        scratch: Path,
        said: Mapping[str, str],
        *,
        asked: bool = False,
    ) -> None:
        self.scratch = scratch
        self.scratch.mkdir(parents=True)
        self._log = (scratch / "log").open("wb")
        env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        env |= {f"BENCH_{name}": value for name, value in said.items()}
        env |= {"BENCH_SCRATCH": str(scratch), "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(PEERS)}
        env |= {"NODE_PATH": str(PEERS), "BENCH_TUNE": os.environ.get("BENCH_TUNE", "")}
        entry = [str(PEERS / "adapters" / adapter)] if adapter.endswith(".mjs") else ["-m", "adapters", adapter]
        self.started = time.time()
        self.process = subprocess.Popen(
            [*program, *entry, command],
            env=env,
            cwd=scratch,
            stdin=subprocess.PIPE if asked else subprocess.DEVNULL,
            stdout=subprocess.PIPE if asked else self._log,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is the driver's: it ends them one by one
        )
        self.pid = self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    @property
    def last_words(self) -> str:
        """The end of what it said."""
        with contextlib.suppress(OSError):
            lines = (self.scratch / "log").read_text(errors="replace").strip().splitlines()
            return " | ".join(lines[-6:])[-600:]
        return ""

    def marker(self, name: str, seconds: float) -> str | None:
        """Wait for a marker file and give what it says; None after *seconds*.

        Raises:
            Failed: the process ended first.
        """
        path = self.scratch / name
        for _ in machine.moments(time.time() + seconds, 0.005):
            if path.exists():
                return path.read_text()
            if not self.alive:
                raise Failed(f"it ended with {self.process.returncode} before it was {name}: {self.last_words}")
        return None

    def demand(self, name: str, seconds: float) -> str:
        """Wait for a marker file that has to come.

        Raises:
            Failed: it did not.
        """
        said = self.marker(name, seconds)
        if said is None:
            raise Failed(f"it was not {name} within {seconds:g} s: {self.last_words}")
        return said

    def finish(self, seconds: float) -> None:
        """Wait for its end.

        Raises:
            Failed: it did not end in time, or not well.
        """
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"not finished within {seconds:g} s: {self.last_words}") from None
        if code:
            raise Failed(f"it ended with {code}: {self.last_words}")

    def records(self) -> list[list[str]]:
        """Read what its handlers wrote down so far, one list of words a line."""
        path = self.scratch / "records"
        lines = path.read_text().splitlines() if path.exists() else []
        return [words for line in lines if len(words := line.split()) > 1]

    def ask(self, seconds: float, **command: Any) -> dict[str, Any]:
        """Send a command and wait for the answer.

        Raises:
            Failed: it could not, or did not answer.
        """
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(command).encode() + b"\n")  # type: ignore[union-attr] # a pipe: we made it
            self.process.stdin.flush()  # type: ignore[union-attr] # as above
        return self.answer(seconds)

    def answer(self, seconds: float) -> dict[str, Any]:
        """Wait for a line of JSON.

        Raises:
            Failed: there was none, or it is an error.
        """
        pipe = self.process.stdout
        line = b""
        if pipe is not None and select.select([pipe], [], [], seconds)[0]:
            line = pipe.readline()
            if not line:
                raise Failed(f"it ended: {self.last_words}")
        if not line:
            raise Failed(f"no answer within {seconds:g} s: {self.last_words}")
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise Failed(str(said["error"]))
        return said

    def stop(self, seconds: float = 6.0) -> str:
        """Ask it to end, and say how it ended; killed after *seconds*."""
        how = f"had ended with {self.process.returncode}"
        if self.alive:
            how = "SIGTERM"
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                how = f"killed: still there {seconds:g} s after SIGTERM"
        self.kill()
        return how

    def quit(self) -> None:
        """Let a producer close its connections and end."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.kill()

    def kill(self) -> None:
        """Kill it and its descendants, at once."""
        if self.alive:
            for pid in reversed(machine.tree(self.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout, self._log):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
