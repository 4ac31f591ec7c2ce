"""The suite's promises on every server, Python and database setting that we say we run on: `make matrix`.

A cell differs from the ordinary run (newest Postgres, this Python, a plain database) in one thing. What this machine
can't have is shown as such, and fails only where it was asked for by name.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.server import binaries
from chaos.programs import find_pgbouncer

ROOT = Path(__file__).parents[1]
CONTRACT = ROOT.parent / "shared" / "contract" / "tutorial.py"
ENVIRONMENTS = ROOT / ".venv-matrix"
TOOLS = ("pytest>=9", "pytest-xdist>=3.6", "hypothesis>=6.100", "pydantic>=2.9")

SHORT = ("guarantees", "sql")
SUITE = (
    *SHORT,
    "interleavings",
    "run",
    "crash",
    "migrate",
    "store",
    "queue",
    "writer",
    "reaper",
    "pruner",
    "model",
    "fuzz",
    "cli_mend",
    "adopt_bridge",
)
POOLED = ("pooler", "guarantees")

POSTGRES = ("12", "13", "14", "15", "16", "17", "18")
PYTHON = ("3.11", "3.12", "3.13")
NEWER = ("3.14", "3.15")
"""Run on where the machine has them."""
DJANGO = ("4.2", "6.0")
DJANGO_PYTHON = "3.12"
"""One that both know."""
DATABASE = {
    "repeatable read": {"MATRIX_SETTINGS": "default_transaction_isolation=repeatable read"},
    "serializable": {"MATRIX_SETTINGS": "default_transaction_isolation=serializable"},
    "Asia/Tokyo": {"MATRIX_SETTINGS": "timezone=Asia/Tokyo"},
    "serializable in Asia/Tokyo": {"MATRIX_SETTINGS": "default_transaction_isolation=serializable;timezone=Asia/Tokyo"},
    "UTF8": {"MATRIX_ENCODING": "UTF8"},
    "LATIN1": {"MATRIX_ENCODING": "LATIN1"},
    "SQL_ASCII": {"MATRIX_ENCODING": "SQL_ASCII"},
    "pgbouncer": {"MATRIX_POOLER": "1"},
}
FEW = {"postgres": "12", "django": "", "database": "serializable in Asia/Tokyo,LATIN1,pgbouncer"}
"""The other end of each dimension: the ordinary run is on the newest Postgres, and on this Python."""


class NotHere(Exception):
    """This machine has no such thing."""


@dataclass
class Cell:
    """One run of the suite."""

    name: str
    env: dict[str, str] = field(default_factory=dict)
    python: str = sys.executable
    outcome: str = "not run"
    seconds: float = 0.0
    said: str = ""

    @property
    def ok(self) -> bool:
        return self.outcome in ("passed", "not here")


def cells(postgres: str, python: str, django: str, database: str) -> Iterator[tuple[str, str]]:
    """List what was chosen, each as its dimension and its value."""
    for dimension, given, known in (
        ("postgres", postgres, POSTGRES),
        ("python", python, (*PYTHON, *NEWER)),
        ("django", django, DJANGO),
        ("database", database, DATABASE),
    ):
        for value in filter(None, map(str.strip, given.split(","))):
            if value not in known:
                raise SystemExit(f"{dimension} {value!r}: choose from {', '.join(known)}")
            yield dimension, value


def prepared(dimension: str, value: str) -> Cell:
    """Get what the cell needs.

    Raises:
        NotHere: naming what is missing.
    """
    cell = Cell(f"{dimension} {value}")
    if dimension == "postgres":
        try:
            cell.env |= {"REDRIVE_PG_BIN": str(binaries(int(value))), "MATRIX_POSTGRES": value}
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            raise NotHere(str(error)) from error
    elif dimension == "python":
        cell.python = str(environment(value))
        cell.env["MATRIX_PYTHON"] = value
    elif dimension == "django":
        more = (f"django~={value}.0", "django-tasks", "psycopg-pool", "aiosmtpd", "pytest-django")
        cell.python = str(environment(DJANGO_PYTHON, f"django-{value}", "[dev-server,web]", more))
    else:
        cell.env |= DATABASE[value]
        if value == "pgbouncer" and find_pgbouncer() is None:
            raise NotHere("no pgbouncer, and no root with apt-get to install it")
    return cell


def environment(version: str, name: str = "", extras: str = "[dev-server]", more: tuple[str, ...] = ()) -> Path:
    """Make an environment of that Python with the package and its tools, unless there is one that is new enough."""
    if not name and sys.version_info[:2] == tuple(map(int, version.split("."))):
        return Path(sys.executable)
    place = ENVIRONMENTS / (name or version)
    python, stamp, wanted = place / "bin" / "python", place / ".dev", ROOT / "pyproject.toml"
    if stamp.exists() and stamp.stat().st_mtime >= wanted.stat().st_mtime:
        return python
    found = next(filter(_works, _pythons(version)), None)
    if found is None:
        raise NotHere(f"no Python {version}")
    subprocess.run([found, "-m", "venv", "--clear", place], check=True)
    print("installing ...", end=" ", flush=True)
    install = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--editable",
        f"{ROOT}{extras}",
        *TOOLS,
        *more,
    ]
    subprocess.run(install, check=True, stderr=subprocess.PIPE)
    stamp.touch()
    return python


def here() -> tuple[str, ...]:
    """List the Pythons that we say we run on, and of the newer ones those that this machine has."""
    return (*PYTHON, *(version for version in NEWER if any(map(_works, _pythons(version)))))


def ends() -> str:
    """Name the oldest Python and the newest, but for the one of the ordinary run."""
    this = ".".join(map(str, sys.version_info[:2]))
    return ",".join(version for version in (PYTHON[0], here()[-1]) if version != this)


def _pythons(version: str) -> Iterator[str]:
    if found := shutil.which(f"python{version}"):
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")))


def _works(python: str) -> bool:
    return subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True, check=False).returncode == 0


def run(cell: Cell, files: tuple[str, ...], more: list[str]) -> None:
    """Run the tests of *files*, those that there are, and on another server the tutorial's own SQL."""
    began = time.monotonic()
    paths = [str(path) for path in (ROOT / "tests" / f"test_{name}.py" for name in files) if path.exists()]
    pytest = [cell.python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *more, *paths]
    commands = [pytest]
    if "REDRIVE_PG_BIN" in cell.env and CONTRACT.exists():
        commands.append([cell.python, "-m", "redrive.dev_server", "--", cell.python, str(CONTRACT)])
    cell.outcome = "passed"
    for command in commands:
        done = subprocess.run(command, cwd=ROOT, env=os.environ | cell.env, capture_output=True, text=True, check=False)
        cell.said += done.stdout + done.stderr
        if done.returncode:
            cell.outcome = "FAILED"
    cell.seconds = time.monotonic() - began


def summary(said: str) -> str:
    """Give pytest's own last words."""
    return next(iter(re.findall(r"\d+ (?:passed|failed)[^\n]*?(?= in \d)", said)[::-1]), "")


def main() -> int:
    """Run what was chosen; 1 where a cell failed."""
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__.partition("\n")[0])
    parser.add_argument("--postgres", help=f"majors, with commas between them; all are {','.join(POSTGRES)}")
    parser.add_argument("--python", help=f"versions; all are {','.join(PYTHON)}, and what is newer here")
    parser.add_argument("--django", help=f"versions, with its own tests alone; all are {','.join(DJANGO)}")
    parser.add_argument("--database", help=f"settings of the database; all are {','.join(DATABASE)}")
    parser.add_argument("--quick", action="store_true", help="the shortest suite; alone, in a few cells only")
    parser.add_argument("more", nargs="*", help="more arguments for pytest, after --")
    given = parser.parse_args()
    named = {name: getattr(given, name) for name in ("postgres", "python", "django", "database")}
    asked = any(value is not None for value in named.values())
    default = (
        FEW | {"python": ends()}
        if given.quick
        else {
            "postgres": ",".join(POSTGRES),
            "python": ",".join(here()),
            "django": ",".join(DJANGO),
            "database": ",".join(DATABASE),
        }
    )
    chosen = {name: value or "" if asked else default[name] for name, value in named.items()}
    done: list[Cell] = []
    for dimension, value in cells(**chosen):
        print(f"{dimension} {value} ...", end=" ", flush=True)
        try:
            cell = prepared(dimension, value)
        except NotHere as error:
            cell = Cell(f"{dimension} {value}", outcome="NOT HERE" if asked else "not here", said=str(error))
            print(f"{cell.outcome}: {error}", flush=True)
        else:
            files = POOLED if value == "pgbouncer" else SHORT if given.quick else SUITE
            files = ("django",) if dimension == "django" else files
            run(cell, files, given.more)
            print(f"{cell.outcome} in {cell.seconds:.0f} s: {summary(cell.said)}", flush=True)
            if not cell.ok:
                print(cell.said, flush=True)
        done.append(cell)
    print(f"\n{'cell':<28}{'outcome':<10}{'seconds':>8}  tests")
    for cell in done:
        print(f"{cell.name:<28}{cell.outcome:<10}{cell.seconds:>8.0f}  {summary(cell.said)}")
    return 0 if all(cell.ok for cell in done) else 1


if __name__ == "__main__":
    sys.exit(main())
