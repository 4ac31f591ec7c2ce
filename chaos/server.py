"""A Postgres server to be stopped, crashed, frozen and brought back under the same URL.

It starts on what :class:`redrive.dev_server.DevServer` has made, whose supervisor stops whatever server runs there when
its user is gone: however often it was restarted here, none is left behind.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from pathlib import Path

import psycopg

from chaos.patience import wait_for
from redrive.dev_server import DevServer
from redrive.dev_server.supervisor import account

SIGNALS = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
    "crash": signal.SIGKILL,
}


class OwnServer:
    """A server for one test, to be stopped, crashed, frozen and brought back under the same URL."""

    def __init__(self, server: DevServer) -> None:
        self.url = server.url
        self.log = server.log
        self._data = server.directory / "data"
        self._again: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The postmaster."""
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def backends(self) -> list[int]:
        """All the postmaster's children."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                if int(stat.read_text().rpartition(")")[2].split()[1]) == self.pid:
                    found.append(int(stat.parent.name))
        return found

    def stop(self, mode: str = "fast") -> None:
        """Stop it (smart, fast, immediate or crash) and return when it and its backends are gone."""
        pid, children = self.pid, self.backends()
        os.kill(pid, SIGNALS[mode])
        wait_for(lambda: not any(map(self._alive, [pid, *children])), 30)

    def start(self) -> None:
        """Bring it back with the options and the port it had."""
        with self.log.open("ab") as log:
            self._again = subprocess.Popen(
                shlex.split((self._data / "postmaster.opts").read_text()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                **account(),
            )
        wait_for(self._answers, 30)

    def restart(self, mode: str = "fast") -> None:
        """Stop it and bring it back."""
        self.stop(mode)
        self.start()

    def pause(self) -> None:
        """Freeze the postmaster and every backend: connections stay open and nothing answers."""
        for pid in (self.pid, *self.backends()):
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Thaw it."""
        for pid in (*self.backends(), self.pid):
            os.kill(pid, signal.SIGCONT)

    def reap(self) -> None:
        """Take leave of a server that was killed."""
        if self._again is not None:
            self._again.wait(10)

    def close(self) -> None:
        """End the server that was brought back here, frozen or not."""
        with contextlib.suppress(OSError):  # it is down: nothing to thaw
            self.resume()
        if self._again is not None and self._again.poll() is None:
            self.stop("immediate")

    def _alive(self, pid: int) -> bool:
        if self._again is not None:
            self._again.poll()  # a zombie of ours would seem alive; the others are the supervisor's to reap
        return Path(f"/proc/{pid}").exists()

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url):
            return True
        return False
