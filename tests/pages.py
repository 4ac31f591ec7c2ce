"""The documentation's pages as programs: every fenced block of a page is run, in order, in one place made for the page.

A block's first word says what runs it:

* ``python``: one namespace for the page; but where its first line is a comment that names a file, it is written there.
* ``sql``: one connection for the page.
* ``console``: each ``$ `` line by bash, in the page's directory. A worker without ``--once`` runs until the page ends.

What follows a command, or stands in a ``text`` block right after one of the others, is its output: ``...`` stands for
anything, and the amount of space doesn't matter. A mere look (SELECT, redrive jobs) is taken again until it fits. Any
other sort of block is not run, nor is one after ``<!-- not run: the reason -->``.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

import forks
from support import wait_for

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

RUN = ("python", "sql", "console")
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"<!-- not run: (.+?) -->\s*\Z")
FILE = re.compile(r"\A# (?P<path>(?:[\w-]+/)*[\w-]+\.py)(?P<more>, continued)?\n")
LOOK = re.compile(r"(?:--.*\n)*\s*(?:select\b|redrive (?:jobs|show|dead|workers|health)\b)", re.IGNORECASE)
FRAME = re.compile(r"^[-+ ]+\n|^\(\d+ rows?\)\n?", re.MULTILINE)  # of a table as psql draws it
PATIENCE = 30

# Runs the page's Python: a JSON text a line comes in, a JSON object a line goes out.
SHELL = """
import contextlib, io, json, sys, traceback
names, say = {"__name__": "page"}, sys.stdout
for line in sys.stdin:
    code, output, error = json.loads(line), io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(output):
            exec(compile(code, "the block", "exec"), names)
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps([output.getvalue(), error]), file=say, flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    follows_on: bool
    """No prose stands between it and the block before."""
    not_run: str
    """The reason why it isn't, where the page gives one."""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> Iterator[tuple[str, str]]:
        """Give each command of a console block, with the output that is shown for it."""
        first, *parts = re.split(r"^\$ ", self.text, flags=re.MULTILINE)
        assert not first.strip(), f"{self.place}: a console block begins with a $"
        for part in parts:
            command, output = re.match(r"((?:[^\n]*\\\n)*[^\n]*)\n?(.*)", part, re.DOTALL).groups()
            yield command.strip(), output


def blocks(page: Path) -> list[Block]:
    """Read a page's blocks, in order."""
    text, found, end = page.read_text(), [], 0
    for match in FENCE.finditer(text):
        before = text[end : match.start()]
        marker = MARKER.search(before)
        found.append(
            Block(
                page=page,
                line=text.count("\n", 0, match.start()) + 1,
                language=match["language"],
                text=textwrap.dedent(match["text"]),
                follows_on=bool(end) and not before.strip(),
                not_run=marker[1] if marker else "",
            )
        )
        end = match.end()
    return found


def same(wanted: str, got: str) -> bool:
    """Compare output with what a page shows of it."""
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(wanted.strip() + "\n", got.strip() + "\n", options)


def demand(place: str, answer: Callable[[], str], wanted: str | None, *, again: bool) -> None:
    """Get an answer and compare it with what is *wanted*, again and again where it may take its time."""
    got = [answer()]
    if wanted is None or same(wanted, got[0]):
        return

    def fits() -> bool:
        got.append(answer())
        return same(wanted, got[-1])

    try:
        assert again
        wait_for(fits, PATIENCE, every=0.2)
    except AssertionError:
        raise AssertionError(f"{place}: the page shows\n{wanted}\nbut this came\n{got[-1]}") from None


def as_url(dsn: str) -> str:
    """Spell a connection string as pages do, and as SQLAlchemy needs it."""
    given = {name: quote(str(value), safe="") for name, value in conninfo_to_dict(dsn).items()}
    who = f"{given['user']}:{given['password']}" if "password" in given else given["user"]
    return f"postgresql://{who}@{given['host']}:{given['port']}/{given['dbname']}"


class Session:
    """The place where a page runs: a directory, a database, a Python, workers."""

    def __init__(self, dsn: str, directory: Path) -> None:
        self._directory = directory
        here = str(Path(sys.executable).parent)
        path = f"{here}{os.pathsep}{os.environ['PATH']}"
        self._env = {**os.environ, "DATABASE_URL": as_url(dsn), "PATH": path, "PYTHONUNBUFFERED": "1"}
        self._quick = {**self._env, "PATH": f"{forks.directory()}{os.pathsep}{path}"}
        self._workers: list[subprocess.Popen[bytes]] = []
        self.roles: dict[str, str] = {}
        """What each role of the page is called in truth: roles are the server's, which other pages use, too."""
        self._conn = psycopg.connect(dsn, autocommit=True)
        self._python = subprocess.Popen(
            [sys.executable, "-c", SHELL],
            cwd=directory,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._runs = {"python": self._run_python, "sql": self._run_sql, "console": self._run_console}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self._workers:
            try:
                worker.wait(20)
            finally:
                worker.kill()
                worker.wait()
        self._python.communicate(timeout=20)
        if self.roles:
            roles = ", ".join(self.roles.values())
            self._conn.execute(f"DROP OWNED BY {roles}; DROP ROLE {roles}")
        self._conn.close()

    def run(self, page: list[Block]) -> None:
        """Run a page's blocks in order."""
        for number, block in enumerate(page):
            if block.language not in self._runs or block.not_run:
                continue
            after = page[number + 1] if number + 1 < len(page) else None
            shown = after is not None and after.language == "text" and after.follows_on
            self._runs[block.language](block, after.text if after is not None and shown else None)

    def _run_python(self, block: Block, shown: str | None) -> None:
        if match := FILE.match(block.text):
            path = self._directory / match["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a" if match["more"] else "w") as file:
                file.write(block.text[match.end() :] + "\n\n")
            return
        print(json.dumps(block.text), file=self._python.stdin, flush=True)
        output, error = json.loads(self._python.stdout.readline())
        assert not error, f"{block.place}:\n{output}{error}"
        demand(block.place, lambda: output, shown, again=False)

    def _run_sql(self, block: Block, shown: str | None) -> None:
        self.roles |= {name: f"{name}_{os.urandom(4).hex()}" for name in re.findall(r"CREATE ROLE (\w+)", block.text)}
        wanted = None if shown is None else FRAME.sub("", shown)
        refused = shown is not None and shown.startswith("ERROR:")
        answer = partial(self._answer, block, refused=refused)
        demand(block.place, answer, wanted, again=bool(LOOK.match(block.text)))

    def _answer(self, block: Block, *, refused: bool) -> str:
        """Run the SQL and give its answer as psql would show it, without the frame."""
        sql = re.sub(r"\w+", lambda word: self.roles.get(word[0], word[0]), block.text)
        try:
            cursor = self._conn.execute(sql.encode())
        except psycopg.Error as error:
            if not refused:
                raise AssertionError(f"{block.place}: {error}") from error
            return f"ERROR:  {error.diag.message_primary}"
        said = []
        while True:
            said.append(table(cursor) if cursor.description else str(cursor.statusmessage))
            if not cursor.nextset():
                return "\n".join(said)

    def _run_console(self, block: Block, shown: str | None) -> None:
        assert shown is None, f"{block.place}: the output of a console block stands within it"
        for command, output in block.commands():
            place = f"{block.place}: {command}"
            if re.match(r"(\w+=\S+ )*redrive worker", command) and "--once" not in command:
                log = self._start(command)
                said = output.strip(" .\n") or "started with"
                demand(place, log.read_text, f"...{said}...", again=True)
            else:
                demand(place, partial(self._bash, place, command), output or None, again=bool(LOOK.match(command)))

    def _bash(self, place: str, command: str) -> str:
        bash = ["bash", "-euo", "pipefail", "-c", command]
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(bash, cwd=self._directory, env=self._quick, timeout=60, check=False, **both)
        assert done.returncode == 0, f"{place}: exit code {done.returncode}\n{done.stdout}"
        return done.stdout

    def _start(self, command: str) -> Path:
        log = self._directory / f"worker-{len(self._workers)}.log"
        with log.open("w") as file:
            bash = ["bash", "-c", f"exec env {command}"]  # in the shell's own place, so that a signal reaches it
            both = {"stdout": file, "stderr": subprocess.STDOUT}
            self._workers.append(subprocess.Popen(bash, cwd=self._directory, env=self._env, **both))
        return log


def table(cursor: psycopg.Cursor) -> str:
    """Give a result as psql shows it, without the frame."""
    result = cursor.pgresult
    columns = range(result.nfields)
    rows = [[result.get_value(row, column) or b"" for column in columns] for row in range(result.ntuples)]
    names = [result.fname(column) or b"" for column in columns]
    return "\n".join(" | ".join(cell.decode() for cell in row) for row in [names, *rows])
