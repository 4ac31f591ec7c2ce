"""The command line as tests use it: within the process for speed, as a process of its own where that is the point."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
from click.testing import CliRunner, Result

from redrive.cli import cli

NOBODY = "postgresql://app:hunter2@127.0.0.1:1/app"
"""A database that isn't there, with a password that must not be told."""


def redrive(
    dsn: str | None, *words: object, code: int = 0, stdin: str = "", env: Mapping[str, str] | None = None
) -> Result:
    """Run a command on *dsn* and demand its exit code."""
    given = {"DATABASE_URL": dsn or "", **(env or {})}
    result = CliRunner().invoke(cli, [str(word) for word in words], prog_name="redrive", input=stdin, env=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, f"exit code {result.exit_code}\n{result.output}"
    return result


def answer(dsn: str | None, *words: object, code: int = 0, env: Mapping[str, str] | None = None) -> Any:
    """Run a command with --json and read its one document."""
    return json.loads(redrive(dsn, *words, "--json", code=code, env=env).stdout)


def complaint(result: Result) -> str:
    """The one line that a failed command said, without click's hint on usage."""
    lines = [line for line in result.stderr.splitlines() if line and not line.startswith(("Usage: ", "Try '"))]
    assert len(lines) == 1, result.stderr
    return lines[0].removeprefix("Error: ")


def process(
    dsn: str | None, *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None, **how: Any
) -> subprocess.Popen[str]:
    """Start ``python -m redrive``."""
    return subprocess.Popen(
        [sys.executable, "-m", "redrive", *map(str, words)],
        env={**os.environ, "DATABASE_URL": dsn or "", **(env or {})},
        cwd=cwd,
        text=True,
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how},
    )


def on_terminal(dsn: str, *words: object, typed: str = "") -> tuple[str, int]:
    """Run a command on a terminal of 120 columns; give what the terminal shows, and the exit code."""
    ours, theirs = pty.openpty()
    env = {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    child = process(dsn, *words, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, typed.encode())
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # Linux says so when the other side is closed
        pass
    os.close(ours)
    return shown.decode(), child.wait(30)


def insert(conn: psycopg.Connection[Any], kind: str, count: int = 1, **columns: Any) -> list[int]:
    """Insert jobs by hand, as anybody may."""
    names = ["kind", *columns]
    row = ", ".join(f"%({name})s" for name in names)
    rows = conn.execute(
        f"insert into redrive.jobs ({', '.join(names)}) select {row} from generate_series(1, {count}) returning id",
        {"kind": kind, **columns},
    )
    return sorted(row[0] for row in rows)


def beat(conn: psycopg.Connection[Any], name: str = "box:1:abcdef", *, silent: str = "0 s", **columns: Any) -> None:
    """Write the row of a worker that beat so long ago."""
    row = {
        "name": name,
        "host": "box",
        "pid": 1,
        "version": "0.1.0",
        "kinds": ["mail"],
        "concurrency": 10,
        "lease": "30 s",
        **columns,
    }
    marks = ", ".join(f"%({column})s" for column in row)
    conn.execute(
        f"insert into redrive.workers ({', '.join(row)}, heartbeat_at) values ({marks}, now() - %(silent)s::interval)",
        {**row, "silent": silent},
    )
