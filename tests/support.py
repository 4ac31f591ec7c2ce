"""What tests hold in their hands: a worker process, a log, a server of their own, a pooler, and patience."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from redrive.dev_server import DevServer
from redrive.dev_server.supervisor import account

T = TypeVar("T")

# Where util-linux has it: a worker dies with the thread that started it, should pytest itself be killed.
TETHER = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
SIGNALS = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
    "crash": signal.SIGKILL,
}
ROOMY = 2**31  # a container's /dev/shm has 64 MB unless told otherwise
PGBOUNCER = """\
[databases]
* = {server}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
"""


def wait_for(predicate: Callable[[], T], seconds: float = 10, every: float = 0.02) -> T:
    """Poll until *predicate* is true and return its value; fail with the last one after *seconds*."""
    end = time.monotonic() + seconds
    while not (value := predicate()):
        if time.monotonic() > end:
            raise AssertionError(f"after {seconds} s still {value!r}")
        time.sleep(every)
    return value


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
        self.stop(mode)
        self.start()

    def pause(self) -> None:
        """Freeze the postmaster and every backend: connections stay open and nothing answers."""
        for pid in (self.pid, *self.backends()):
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in (*self.backends(), self.pid):
            os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
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


@contextlib.contextmanager
def database(server_url: str, template: str = "template1") -> Iterator[str]:
    """Make a database, give its DSN, and drop it, whoever is still connected."""
    name = f"t_{os.urandom(6).hex()}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        wait_for(lambda: _created(admin, name, template))
        try:
            yield make_conninfo(server_url, dbname=name)
        finally:
            admin.execute(f"alter database {name} allow_connections false")
            admin.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'")
            wait_for(lambda: _dropped(admin, name))


def _created(admin: psycopg.Connection, name: str, template: str) -> bool:
    try:
        admin.execute(f"create database {name} template {template}")
    except psycopg.errors.ObjectInUse:  # autovacuum is looking at the template
        return False
    return True


def _dropped(admin: psycopg.Connection, name: str) -> bool:
    try:
        admin.execute(f"drop database {name}")
    except psycopg.errors.ObjectInUse:  # a backend is still on its way out
        return False
    return True


def pgbouncer_program() -> str | None:
    """Find pgbouncer, or install Debian's as root."""
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    if not shutil.which("pgbouncer", path=search) and os.geteuid() == 0 and shutil.which("apt-get"):
        apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        # RUNLEVEL: install the program, don't start the service
        env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        for command in (["update"], ["install", "-y", "--no-install-recommends", "pgbouncer"]):
            subprocess.run([*apt, *command], env=env, check=False, timeout=300, **quiet)
    return shutil.which("pgbouncer", path=search)


@contextlib.contextmanager
def pooler(program: str, dsn: str) -> Iterator[str]:
    """Run pgbouncer in transaction mode, two server connections a database, in front of *dsn*'s server.

    It ignores the one startup parameter that the common drivers send unasked; `options` it refuses, as many a
    pooler in production does.
    """
    to = conninfo_to_dict(dsn)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    who = account()
    directory = Path(tempfile.mkdtemp(prefix="redrive-pgbouncer-"))  # pytest's own are closed to the account
    config = directory / "pgbouncer.ini"
    server = make_conninfo("", **{key: to[key] for key in ("host", "port", "user", "password") if to.get(key)})
    config.write_text(PGBOUNCER.format(server=server, port=port))
    if who:
        for path in (directory, config):
            os.chown(path, who["user"], who["group"])
    through = make_conninfo("", host="127.0.0.1", port=port, user=to.get("user") or "postgres", dbname=to["dbname"])
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([program, "-q", config], stdout=log, stderr=log, cwd="/", **who)
    try:
        wait_for(lambda: process.poll() is not None or _listens(port))
        assert process.poll() is None, (directory / "log").read_text()
        yield through
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
