"""What tests hold in their hands: a worker process, a log, a server of their own, a pooler, and patience."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL

from chaos.patience import wait_for

# Where util-linux has it: a worker dies with the thread that started it, should pytest itself be killed.
TETHER = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
ROOMY = 2**31  # a container's /dev/shm has 64 MB unless told otherwise


def clusters() -> Path:
    """Where test servers live: in memory if there is plenty, since copying a database makes 300 files.

    Never in pytest's own directories, which as root are closed to the server's account.
    """
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOMY:
        return memory
    return Path(tempfile.gettempdir())


class Worker:
    """A ``python -m redrive worker`` of its own process group, and its log."""

    def __init__(self, app: str, flags: tuple[str, ...], env: Mapping[str, str], directory: Path) -> None:
        """*app* is source text (which names its queue ``queue``), a module, or ``module:queue``."""
        self.number = len(list(directory.glob("*.log")))
        self.path = directory / f"worker_{self.number}.log"
        if "\n" in app:
            module = f"app_{self.number}"
            (directory / f"{module}.py").write_text(textwrap.dedent(app))
            app = module
        target = app if ":" in app else f"{app}:queue"
        search = [str(directory), *filter(None, [env.get("PYTHONPATH")])]
        with self.path.open("wb") as log:
            self.process = subprocess.Popen(
                [*TETHER, sys.executable, "-m", "redrive", "worker", target, *flags],
                env={**env, "PYTHONPATH": os.pathsep.join(search), "PYTHONUNBUFFERED": "1"},
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def log(self) -> str:
        return self.path.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Signal the worker itself, not what it started."""
        self.process.send_signal(number)

    def stop(self, seconds: float = 15) -> int:
        """SIGTERM, as an operator's restart does; return the exit code."""
        self.send(signal.SIGTERM)
        return self.process.wait(seconds)

    def pause(self) -> None:
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to the worker and all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


class ServerLog:
    """The lines that the server wrote about one database."""

    def __init__(self, path: Path, database: str) -> None:
        self.path = path
        self._mark = f"] {database} "  # as log_line_prefix in conftest.SETTINGS writes it
        self._begin = path.stat().st_size

    def lines(self) -> list[str]:
        with self.path.open("rb") as file:
            file.seek(self._begin)
            text = file.read().decode(errors="replace")
        return [line for line in text.splitlines() if self._mark in line]

    def errors(self) -> list[str]:
        """Lines of ERROR, FATAL and PANIC; the statement that follows each is in lines()."""
        return [line for line in self.lines() if any(f"{level}:  " in line for level in ("ERROR", "FATAL", "PANIC"))]


_kept: dict[str, psycopg.Connection] = {}
"""Of each server whose databases are made by the thousand: the connection that makes them."""


@contextlib.contextmanager
def kept(server_url: str) -> Iterator[str]:
    """Keep a connection to the server for `database`: a third of what each cost was to log in anew."""
    yield server_url
    if server_url in _kept:
        _kept.pop(server_url).close()


@contextlib.contextmanager
def _admin(server_url: str, *, keep: bool) -> Iterator[psycopg.Connection]:
    if not keep:
        with psycopg.connect(server_url, autocommit=True) as connection:
            yield connection
        return
    if server_url not in _kept or _kept[server_url].closed:
        _kept[server_url] = psycopg.connect(server_url, autocommit=True)
    yield _kept[server_url]


@contextlib.contextmanager
def database(server_url: str, template: str = "template1", *, keep: bool = False) -> Iterator[str]:
    """Make a database, give its DSN, and drop it, whoever is still connected; *keep* is for who is within `kept`."""
    name = f"t_{os.urandom(6).hex()}"
    with _admin(server_url, keep=keep) as admin:
        wait_for(lambda: _created(admin, name, template))
        if "MATRIX_ENCODING" in os.environ:  # of the tests' own sessions; where it is SQL_ASCII the driver reads bytes
            admin.execute(f"alter database {name} set client_encoding = 'utf8'")
        try:
            yield make_conninfo(server_url, dbname=name)
        finally:
            wait_for(lambda: _dropped(admin, name))


def plant(seed: Path, directory: Path) -> Path:
    """Copy a stopped cluster, for the tenth of what it takes to make one, and give the new one's directory."""
    directory.mkdir()
    directory.chmod(seed.stat().st_mode)
    subprocess.run(["cp", "-a", seed / "data", seed / "password", directory], check=True)
    return directory


def cheap_logins(url: str) -> None:
    """Let the server's user keep his password, and log in for a fifth of the work.

    Each login hashes the password 4096 times over, on both sides. That guards secrets; tests log in thousands of times.
    """
    with psycopg.connect(url, autocommit=True) as admin:
        if admin.info.server_version >= 160000:
            admin.execute("set scram_iterations = 1")
            admin.execute(SQL("alter role current_user password {}").format(admin.info.password))


def _created(admin: psycopg.Connection, name: str, template: str) -> bool:
    encoding = os.environ.get("MATRIX_ENCODING")  # of make matrix
    if encoding and template == "template1":
        admin.execute(f"create database {name} template template0 encoding '{encoding}' lc_collate 'C' lc_ctype 'C'")
        return True
    # Files are copied twice as fast as they are logged, unless each has to reach a disk.
    [(fsync,)] = admin.execute("show fsync").fetchall()
    how = " strategy file_copy" if fsync == "off" and admin.info.server_version >= 150000 else ""
    try:
        admin.execute(f"create database {name} template {template}{how}")
    except psycopg.errors.ObjectInUse:  # autovacuum is looking at the template
        return False
    return True


def _dropped(admin: psycopg.Connection, name: str) -> bool:
    force = " with (force)" if admin.info.server_version >= 130000 else ""
    try:
        if not force:
            admin.execute(f"alter database {name} allow_connections false")
            admin.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'")
        admin.execute(f"drop database {name}{force}")
    except psycopg.errors.ObjectInUse:  # a backend is still on its way out
        return False
    return True
