"""Where a run takes place: a server and its standby, a network and a pooler in front, and the ways that lead there.

The server is set as Postgres comes, so that what it confirms is durable. Only the one who is acknowledged by both is
promised to survive a failover, so while a standby is there commits wait for it. Nothing here knows of workers.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from chaos import audit, disk
from chaos.patience import wait_for
from chaos.pooler import pooler
from chaos.programs import find_pgbouncer
from chaos.proxy import Proxy
from chaos.server import OwnServer
from redrive.dev_server import DevServer, binaries
from redrive.dev_server.supervisor import account
from redrive.migrate import migrate

ROLE = "application"
DATABASE = "chaos"
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_wal_size": "1GB",
    "max_connections": "80",
    "superuser_reserved_connections": "6",
    "max_wal_senders": "4",
    "wal_keep_size": "256MB",
    "log_line_prefix": "%m [%p] %a ",
}
OURS = "-c default_transaction_read_only=off -c statement_timeout=0 -c lock_timeout=0 -c synchronous_commit=local"
"""The one who makes the faults is not to be hit by them."""


class Stage:
    """Servers, network and pooler: ``with Stage(megabytes) as stage``."""

    def __init__(self, disk_megabytes: int, *, no_disk: str) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="redrive-chaos-"))
        self.base.chmod(0o711)
        self.ledger = self.base / "ledger"
        self.ledger.mkdir()
        self.no_disk = no_disk
        """Why there is no disk that can be filled; empty where there is one."""
        self.no_standby = ""
        self.missing: dict[str, str] = {"a disk that can be filled": no_disk} if no_disk else {}
        """What could not be had here, and why."""
        self.version = ""
        self.disk = Path()
        self._megabytes = disk_megabytes
        self._password = secrets.token_urlsafe(12)
        self._ports = (_free_port(), _free_port())
        self._server: DevServer
        self.server: OwnServer
        self._generation = 0
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._set_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        with contextlib.suppress(AttributeError):  # it did not come so far
            self.server.close()
            self._server.stop()
        for each in self.base.glob("disk*"):
            with contextlib.suppress(OSError):
                disk.unmount(each)
        shutil.rmtree(self.base, ignore_errors=True)

    # -- ways

    @property
    def admin(self) -> str:
        """The superuser's way to the server that is primary now."""
        return make_conninfo(self._server.url, dbname=DATABASE, options=OURS, application_name="chaos")

    @property
    def direct(self) -> str:
        """The application's way without a network in between: to whichever of both servers takes writes."""
        return make_conninfo(
            "",
            host="127.0.0.1,127.0.0.1",
            port=",".join(map(str, self._ports)),
            target_session_attrs="read-write",
            **self._who,
        )

    @property
    def plain(self) -> str:
        """The application's way to the server that is primary now, and to no other."""
        return make_conninfo("", host="127.0.0.1", port=self._ports[self._generation % 2], **self._who)

    @property
    def _who(self) -> dict[str, str]:
        return {"user": ROLE, "password": self._password, "dbname": DATABASE}

    def connect(self) -> psycopg.Connection:
        """Connect as superuser, not to be hit by what is done to others."""
        return psycopg.connect(self.admin, autocommit=True)

    # -- servers

    def accepts_writes(self) -> bool:
        """Say whether the primary takes writes now."""
        with contextlib.suppress(psycopg.Error), psycopg.connect(self.plain, connect_timeout=2) as conn:
            conn.execute("CREATE TEMP TABLE probe (at int)")
            return True
        return False

    def add_standby(self) -> DevServer:
        """Copy the primary, start the copy, and let commits wait for it."""
        root = self.base / f"server{self._generation + 1}"
        root.mkdir(mode=0o711)
        who = account()
        for path in (root, password := root / "password"):
            if path is password:
                shutil.copy(self._server.directory / "password", path)
            if who:
                os.chown(path, who["user"], who["group"])
        command = [str(binaries.find(None) / "pg_basebackup"), "--no-sync", "-R", "-X", "stream", "-c", "fast"]
        command += ["-D", str(root / "data"), "-d", self._server.url]
        if not self.no_disk:
            command += ["-T", f"{self.disk / 'space'}={self._new_disk(self._generation + 1) / 'space'}"]
        subprocess.run(command, check=True, capture_output=True, cwd="/", timeout=120, **who)
        port = str(self._ports[(self._generation + 1) % 2])
        standby = DevServer(root, keep=False, settings=SETTINGS | {"port": port}).start()
        with self.connect() as conn:
            conn.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            conn.execute("SELECT pg_reload_conf()")
            synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"
            wait_for(lambda: conn.execute(synchronous).fetchone() == (1,), 60)
            # a commit that waits for the standby from now on brings along all that was committed before
            conn.execute("SET synchronous_commit = on; INSERT INTO chaos.probes DEFAULT VALUES")
        return standby

    def promote(self, standby: DevServer) -> float:
        """Kill the primary, promote the standby; gives the instant from which it takes writes."""
        for pid in (self.server.pid, *self.server.backends()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.server.reap()
        old, old_disk = self._server, self.disk
        self._server, self.server = standby, OwnServer(standby)
        self._generation += 1
        with self.connect() as conn:
            conn.execute("SELECT pg_promote(true, 30)")
        wait_for(self.accepts_writes, 60)
        since = time.monotonic()
        for way in (self.network, self.floor):
            way.lead_to(self.plain)
        old.stop()
        if not self.no_disk:
            self.disk = self.base / f"disk{self._generation}"
            disk.unmount(old_disk)
        return since

    # -- setting up

    def _set_up(self) -> None:
        port = {"port": str(self._ports[0])}
        self._server = DevServer(self.base / "server0", keep=False, settings=SETTINGS | port).start()
        self.server = OwnServer(self._server)
        name = {"role": sql.Identifier(ROLE), "database": sql.Identifier(DATABASE)}
        with psycopg.connect(self._server.url, autocommit=True) as conn:
            [(self.version,)] = conn.execute("SHOW server_version").fetchall()
            conn.execute(sql.SQL("CREATE ROLE {role} LOGIN PASSWORD {word}").format(word=self._password, **name))
            conn.execute(sql.SQL("CREATE DATABASE {database} OWNER {role}").format(**name))
        migrate(self.plain)
        audit.install(self.admin, ROLE)
        self._put_jobs_on_a_small_disk()
        if not (binaries.find(None) / "pg_basebackup").exists():
            self.no_standby = self.missing["a standby"] = "no pg_basebackup beside this postgres"
        self.network = self._open.enter_context(Proxy(self.plain))
        self.floor = self._open.enter_context(Proxy(self.plain))
        self.pooled = ""
        if program := find_pgbouncer():
            self.pooled = self._open.enter_context(pooler(program, self.floor.dsn, size=12, retry=1))
        else:
            self.missing["pgbouncer"] = "not here, and no root with apt-get to install it"

    def _put_jobs_on_a_small_disk(self) -> None:
        if self.no_disk:
            return
        try:
            self.disk = self._new_disk(0)
        except OSError as error:
            self.no_disk = self.missing["a disk that can be filled"] = f"it could not be mounted ({error})"
            return
        with self.connect() as conn:
            space = sql.Literal(str(self.disk / "space"))
            conn.execute(sql.SQL("CREATE TABLESPACE small LOCATION {}").format(space))
            conn.execute("ALTER TABLE redrive.jobs SET TABLESPACE small")

    def _new_disk(self, number: int) -> Path:
        path = self.base / f"disk{number}"
        disk.mount(path, self._megabytes)
        space = path / "space"
        space.mkdir()
        if who := account():
            os.chown(space, who["user"], who["group"])
        return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
