"""Hold one Postgres server for as long as somebody uses it, then stop it: a process of its own.

The parent talks to it through a pipe, which the kernel closes however the parent ends, so no server outlives
a ``kill -9``. Users of one directory are counted with ``flock``, which a crash cannot leave stale: the first
one starts the server, later ones attach, the last one out stops it, whoever started it.

It runs as a file, apart from the caller's environment (``python -I``): it imports nothing but the standard
library, and it never looks for binaries or decides where a cluster lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypedDict

# sun_path takes 107 bytes on Linux, 103 on macOS; the name of the socket is 15 of them
LONGEST_SOCKET_DIRECTORY = 85
SOCKET_PREFIX = "pgsock-"


class Unavailable(RuntimeError):
    """No server can be had here."""


class Account(TypedDict, total=False):
    """Whom the server runs as, in the words of :class:`subprocess.Popen`; empty for the caller himself."""

    user: int
    group: int
    extra_groups: list[int]


class Order(TypedDict):
    """What the parent asks for, the one line on standard input."""

    directory: str | None
    keep: bool
    bindir: str
    settings: dict[str, str]


def account() -> Account:
    """Find an account for the server: Postgres refuses uid 0, so root lends it one that exists already."""
    if os.geteuid() != 0:
        try:
            pwd.getpwuid(os.geteuid())
        except KeyError:
            msg = f"uid {os.geteuid()} has no passwd entry, so initdb would fail: set DATABASE_URL"
            raise Unavailable(msg) from None
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    raise Unavailable("no account but root here, and Postgres refuses to run as root: set DATABASE_URL")


def reachable(path: Path, who: Account) -> bool:
    """Say whether *who* may pass every directory down to *path*."""
    if not who:
        return True
    for step in (path, *path.parents):
        stat = step.stat()
        if stat.st_uid == who["user"]:
            bit = 0o100
        elif stat.st_gid == who["group"]:
            bit = 0o010
        else:
            bit = 0o001
        if not stat.st_mode & bit:
            return False
    return True


class Cluster:
    """One data directory and the server that runs on it, ours or somebody else's."""

    def __init__(self, order: Order) -> None:
        self.who = account()
        self.bindir = Path(order["bindir"])
        self.keep = order["keep"]
        self.settings = order["settings"]
        self.fresh = order["directory"] is None
        self.root = Path(order["directory"] or tempfile.mkdtemp(prefix="redrive-pg-"))
        self.data = self.root / "data"
        self.password = self.root / "password"
        self.log = self.root / "server.log"
        self.server: subprocess.Popen[bytes] | None = None
        # not the caller's PGDATA, PGPORT, ...; builds against musl carry ICU's data beside the binaries
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        self.env |= {"LC_ALL": "C", "ICU_DATA": str(self.bindir.parent / "share" / "icu")}

    def prepare(self) -> None:
        """Make the directory, or refuse it; the mode of one that was there before is its owner's."""
        if self.fresh or not self.root.exists():
            self.root.mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o711 if self.who else 0o700)
        if not reachable(self.root, self.who):
            raise Unavailable(
                f"{self.root}: out of reach of the account that Postgres runs as when you are root; "
                "choose another directory or set DATABASE_URL",
            )

    def pidfile(self) -> list[str]:
        """Read postmaster.pid: pid, data, start, port, socket directory, address, shared memory, state."""
        try:
            return [line.strip() for line in (self.data / "postmaster.pid").read_text().splitlines()]
        except FileNotFoundError:
            return []

    def ready(self) -> bool:
        """Ask the socket: the pid alone may be a zombie's, or by now another process's."""
        lines = self.pidfile()
        if lines[7:] != ["ready"]:
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(f"{lines[4]}/.s.PGSQL.{lines[3]}")
            except OSError:
                return False
            return True

    def settled(self) -> bool:
        """Wait while a server is starting or stopping there, and say whether one is ready then."""
        _wait(lambda: not self._changing(), 60)
        return self.ready()

    def _changing(self) -> bool:
        lines = self.pidfile()
        return bool(lines) and lines[-1] in ("starting", "stopping") and _alive(lines[0])

    def start(self) -> None:
        """Run the server, on a new cluster where there is none."""
        if not (self.data / "PG_VERSION").exists():
            self._initdb()
        sockets = self.data
        if len(str(sockets)) > LONGEST_SOCKET_DIRECTORY:
            sockets = Path(tempfile.mkdtemp(prefix=SOCKET_PREFIX))
            self._give(sockets)
        output = ""
        for _ in range(5):  # a free port may be taken before the server has it
            output = self._launch(sockets)
            if not output:
                return
            if "could not bind" not in output:
                break
        raise Unavailable(f"postgres did not start:\n{output[-3000:]}")

    def _initdb(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)  # left by an initdb that was cut off
        self.data.mkdir(mode=0o700)
        with os.fdopen(os.open(self.password, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(18))
        self._give(self.data)
        self._give(self.password)
        command = [
            str(self.bindir / "initdb"),
            "-D",
            str(self.data),
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C",
        ]
        command += ["--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={self.password}"]
        if not self.keep:
            command.append("--no-sync")
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            cwd="/",
            env=self.env,
            **self.who,
        )
        if done.returncode:
            shutil.rmtree(self.data, ignore_errors=True)
            raise Unavailable(f"initdb failed:\n{done.stdout.decode(errors='replace')}")

    def _launch(self, sockets: Path) -> str:
        """Start once; return what the server said if it ended again.

        It is our own child, not ``pg_ctl``'s: we see its end and reap it. A zombie blocks the next start.
        """
        options = {"listen_addresses": "127.0.0.1", "port": _free_port(), "unix_socket_directories": sockets}
        command = [str(self.bindir / "postgres"), "-D", str(self.data)]
        command += [f"-c{name}={value}" for name, value in (options | self.settings).items()]
        with self.log.open("ab") as out:
            begin = out.tell()
            self.server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", env=self.env, **self.who
            )
        while self.server.poll() is None:
            if self.pidfile()[:1] == [str(self.server.pid)] and self.ready():
                return ""
            time.sleep(0.02)
        return self.log.read_bytes()[begin:].decode(errors="replace") or "it said nothing"

    def stop(self) -> None:
        """Stop the server that runs there: a fast shutdown, then an immediate one."""
        ours = self.server is not None and self.server.poll() is None
        lines = self.pidfile()
        if lines and (ours or self.settled()):
            for number, patience in ((signal.SIGINT, 15), (signal.SIGQUIT, 5)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(lines[0]), number)
                if _wait(lambda: not self.pidfile() or self._ended(lines[0]), patience):
                    break
            for sockets in lines[4:5]:
                if Path(sockets).name.startswith(SOCKET_PREFIX):
                    shutil.rmtree(sockets, ignore_errors=True)
        if self.server is not None:
            if not lines:  # it had not come so far as to write its pid
                self.server.kill()
            self.server.wait()

    def _ended(self, pid: str) -> bool:
        """Notice a server that died and left its pid file; ours must be reaped to be seen as dead."""
        if self.server is not None:
            self.server.poll()
        return not _alive(pid)

    def _give(self, path: Path) -> None:
        if self.who:
            os.chown(path, self.who["user"], self.who["group"])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        return True
    except (ProcessLookupError, ValueError):
        return False
    return True


def _wait(true: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _answer(**fields: object) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent is gone: the closed pipe says so in a moment
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()


def supervise() -> int:
    """Serve one parent: start or attach, tell it where, wait until it is gone, and leave."""
    cluster = lock = users = None
    alone = False
    signal.signal(signal.SIGTERM, _leave)
    try:
        cluster = Cluster(json.loads(sys.stdin.readline()))
        alone = cluster.fresh
        while lock is None:
            cluster.prepare()
            lock = (cluster.root / "lock").open("w")
            fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time starts, attaches or stops
            if not os.fstat(lock.fileno()).st_nlink:  # the last user deleted all of it while we waited
                lock.close()
                lock = None
        users = (cluster.root / "users").open("w")
        attached = cluster.settled()
        if not attached:
            cluster.start()
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(lock, fcntl.LOCK_UN)
        port, sockets = cluster.pidfile()[3:5]
        _answer(
            attached=attached,
            directory=str(cluster.root),
            url=f"postgresql://postgres:{cluster.password.read_text()}@127.0.0.1:{port}/postgres",
            socket_url=f"postgresql://postgres@/postgres?host={sockets}&port={port}",
        )
        while not select.select([sys.stdin], [], [], 0.5)[0]:  # readable: the parent closed its end, or died
            if cluster.server is not None:
                cluster.server.poll()  # reaps it, should it have crashed
    except Exception as error:  # noqa: BLE001 # whatever it is, the parent must hear of it
        _answer(error=str(error) or repr(error))
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if cluster is not None:
            if lock is not None and users is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    cluster.stop()
                    alone = True
            if alone and not cluster.keep:
                shutil.rmtree(cluster.root, ignore_errors=True)
    return 0


def _leave(*_: object) -> NoReturn:
    raise SystemExit


if __name__ == "__main__":
    sys.exit(supervise())
