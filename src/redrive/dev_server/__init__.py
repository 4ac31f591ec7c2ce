"""A Postgres server for development, demonstrations and tests, without a Postgres to install or to clean up.

``with DevServer() as server:`` gives a throw-away server, gone when the process ends, however it ends;
``DevServer(Path("pg"))`` one that is kept, and shared by every process that opens the same directory. It is
for data that may be lost: a throw-away server does not sync to disk. It refuses nothing to whoever holds its
URL, and it runs on POSIX systems only.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Self, cast

from redrive.dev_server import binaries, supervisor
from redrive.errors import NoDatabase

__all__ = ["DevServer"]

FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "256MB"}


class DevServer:
    """Start a server or attach to the one that runs in *directory*; the last user out stops it.

    Args:
        directory: where the cluster lives; a new temporary one unless given.
        keep: whether the cluster outlives its last user; by default it does where a directory is given.
        bindir: the directory of `initdb` and `postgres`, before any that would be found.
        settings: Postgres settings for a server that this call starts.
    """

    url: str
    socket_url: str
    directory: Path
    attached: bool

    def __init__(
        self,
        directory: Path | None = None,
        *,
        keep: bool | None = None,
        bindir: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._directory = directory
        self._keep = directory is not None if keep is None else keep
        self._bindir = bindir
        self._settings = ({} if self._keep else FAST) | dict(settings or {})
        self._supervisor: subprocess.Popen[str] | None = None
        self._owner = 0

    @property
    def log(self) -> Path:
        """The server's own log."""
        return self.directory / "server.log"

    def start(self) -> Self:
        """Start or attach, and return when the server takes connections.

        Raises:
            NoDatabase: there are no binaries, no account to run them as, or the server did not start.
        """
        try:
            bindir = binaries.find(self._bindir)
        except (supervisor.Unavailable, OSError) as error:
            raise NoDatabase(str(error)) from error
        order = supervisor.Order(
            directory=str(self._directory.resolve()) if self._directory else None,
            keep=self._keep,
            bindir=str(bindir),
            settings=self._settings,
        )
        self._owner = os.getpid()
        # A session of its own: Ctrl-C must not stop the database before its users have drained.
        self._supervisor = held = subprocess.Popen(
            [sys.executable, "-I", supervisor.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        to, back = cast("IO[str]", held.stdin), cast("IO[str]", held.stdout)
        _started.add(self)
        atexit.register(self.stop)
        to.write(json.dumps(order) + "\n")
        to.flush()
        answer = json.loads(back.readline() or '{"error": "its supervisor died"}')
        if "error" in answer:
            self.stop()
            raise NoDatabase(answer["error"])
        self.url, self.socket_url = answer["url"], answer["socket_url"]
        self.directory, self.attached = Path(answer["directory"]), answer["attached"]
        return self

    def stop(self) -> None:
        """Leave the server; return when it has stopped, if this was its last user."""
        held, self._supervisor = self._supervisor, None
        if held is None:
            return
        atexit.unregister(self.stop)
        for pipe in (held.stdin, held.stdout):
            if pipe is not None:
                pipe.close()
        if self._owner == os.getpid():
            held.wait()
        else:
            held.returncode = 0  # the parent's child, not ours to wait for

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


_started: weakref.WeakSet[DevServer] = weakref.WeakSet()


def _let_go() -> None:
    """Close a forked child's copies of the pipes: they would keep the server after the parent's end."""
    for server in list(_started):
        server.stop()


os.register_at_fork(after_in_child=_let_go)
