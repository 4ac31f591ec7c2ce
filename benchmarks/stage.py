"""The server that is measured on, with a schema for each thing that is measured.

Ours is throw-away, as durable as Postgres ships and with its other defaults too, and logs how long each statement took
where that is asked for. A server that DATABASE_URL names is used as it is: its log is out of reach, so claims are then
timed by the worker.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks.peers import machine
from benchmarks.peers.server import DURABLE, binaries
from redrive.bench.scratch import Place
from redrive.dev_server import DevServer
from redrive.migrate import migrate

# what a throw-away server has otherwise, back to what Postgres ships
SHIPPED = DURABLE | {"max_wal_size": "1GB"}
LOGGED = "-c log_min_duration_statement=0 -c log_parameter_max_length=0"
# the time in seconds since 1970, the process, the application's name
LOG = {"log_line_prefix": "%n [%p] %a: "}
LEAVE = 10.0
_HEAD = re.compile(rb"\d+\.\d+ \[\d+\] (?P<name>.*?): (?P<level>[A-Z]+\d?):  (?P<said>.*)")
_DURATION = re.compile(rb"duration: (?P<ms>[\d.]+) ms  (?P<step>parse|bind|execute|statement)\b")


class Stage:
    """A Postgres for one run, and what it and the machine were up to meanwhile."""

    def __init__(self, server: DevServer | None = None, url: str = "") -> None:
        """Measure on a server that is started here, or on the one of that *url*."""
        self._server, self._given = server, url
        self.databases: list[str] = []
        """Made for this run, and dropped at its end."""
        self._places: list[Place] = []

    def __enter__(self) -> Self:
        self.url = self._server.start().url if self._server else self._given
        self._admin = psycopg.connect(self.url, autocommit=True)
        self.version = str(self.ask("show server_version")).split()[0]
        self._began = time.monotonic(), machine.machine_seconds()[0], machine.cpu_seconds(os.getpid())
        return self

    def __exit__(self, *_: object) -> None:
        if self._server:
            self._admin.close()
            self._server.stop()
            return
        for place in self._places:
            place.close()
        for name in self.databases:
            self._drop(name)
        self._admin.close()

    @property
    def log(self) -> Path | None:
        """The server's log, where it is ours."""
        return self._server.log if self._server else None

    def ask(self, query: str, *parameters: object) -> Any:
        """Ask for one value, in the database that the run began in."""
        row = self._admin.execute(query.encode(), parameters or None).fetchone()
        return row[0] if row else None

    def place(self, name: str, *, apart: bool = False, logged: bool = False) -> Place:
        """Make a schema with redrive's tables in it, *apart* from the others in a database of its own.

        With *logged*, the log tells how long each statement of its workers took.
        """
        url = make_conninfo(self.url, dbname=self._database() if apart or not self.databases else self.databases[0])
        migrate(url, name)
        self._places.append(Place(make_conninfo(url, options=LOGGED) if logged and self.log else url, name))
        return self._places[-1]

    def _database(self) -> str:
        name = f"redrive_bench_{secrets.token_hex(4)}"
        self._admin.execute(f'create database "{name}"')
        self.databases.append(name)
        return name

    def _drop(self, name: str) -> None:
        for _ in machine.moments(time.time() + LEAVE, 0.1):  # the sessions of workers may be about to leave
            with contextlib.suppress(psycopg.errors.ObjectInUse):
                self._admin.execute(f'drop database "{name}"')
                return
        raise SystemExit(f'somebody is connected to database "{name}": drop it when they have left')

    @property
    def pid(self) -> int | None:
        """The server's first process; None where it is not ours."""
        if not self._server:
            return None
        return int((self._server.directory / "data" / "postmaster.pid").read_text().split()[0])

    def checkpoint(self) -> None:
        """Write everything out, so that no measurement pays for the one before; where that is allowed."""
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            self._admin.execute("checkpoint")

    def other_cores(self) -> float | None:
        """Say how many cores other processes kept busy since the run began; None where the server is not ours."""
        if not self._server:
            return None
        began, busy, own = self._began
        others = machine.machine_seconds()[0] - busy - (machine.cpu_seconds(os.getpid()) - own)
        return round(max(0.0, others) / (time.monotonic() - began), 2)


def staged() -> Stage:
    """Make the stage that the environment asks for.

    Raises:
        SystemExit: when it asks for two, or for one that is not here.
    """
    given, major = os.environ.get("DATABASE_URL", ""), os.environ.get("BENCH_PG")
    if given and major:
        raise SystemExit("DATABASE_URL and BENCH_PG were both given: give one of them")
    if given:
        return Stage(url=given)
    return Stage(DevServer(bindir=chosen(), settings=SHIPPED | LOG))


def chosen() -> Path | None:
    """Find the Postgres that BENCH_PG names; None for the newest.

    Raises:
        SystemExit: when there is no such Postgres here.
    """
    major = os.environ.get("BENCH_PG", "")
    if major and not major.isdecimal():
        raise SystemExit(f"BENCH_PG is {major!r}: give a major, as in BENCH_PG=15")
    try:
        return binaries(int(major)) if major else None
    except RuntimeError as error:
        raise SystemExit(str(error)) from None


def claims_of(log: Path, pid: int, offset: int) -> list[float]:
    """List the seconds that the server needed for each claim of the worker with that process id, in order.

    Parsing and planning are in it; the way to the worker, and what else its loop was busy with, is not.
    """
    found: list[float] = []
    spent = 0.0
    for step, milliseconds, text in _statements(log, offset, re.compile(rb"redrive claim [^:]*:%d:" % pid)):
        if (
            b"SKIP LOCKED" not in text or b"unnest" not in text or b"full_burst" in text
        ):  # of kinds with limits: another
            continue
        spent += milliseconds / 1000
        if step in (b"execute", b"statement"):
            found.append(spent)
            spent = 0.0
    return found


def _statements(log: Path, offset: int, name: re.Pattern[bytes]) -> Iterator[tuple[bytes, float, bytes]]:
    """Read what sessions of that name did, entry by entry: the step, its milliseconds, the text it stood with."""
    entry: re.Match[bytes] | None = None
    text: list[bytes] = []
    with log.open("rb") as file:
        file.seek(offset)
        for line in file:
            head = _HEAD.match(line)
            if head is None:
                text.append(line)
                continue
            if entry is not None:
                yield entry["step"], float(entry["ms"]), b"".join(text)
            entry = _DURATION.match(head["said"]) if name.match(head["name"]) else None
            text = [head["said"]]
    if entry is not None:
        yield entry["step"], float(entry["ms"]), b"".join(text)
