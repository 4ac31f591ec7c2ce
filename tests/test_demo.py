"""`redrive demo`, played whole: it is what a visitor sees first, and the one test of everything at once."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import http.client
import io
import os
import pty
import re
import shutil
import signal
import smtplib
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from rich.console import Console

from redrive.demo import demo, screen, story
from redrive.demo.account import Account, settle
from redrive.demo.board import Board, Card
from redrive.demo.crew import Crew, WorkerFailed
from redrive.demo.film import Film
from redrive.demo.journal import Journal
from redrive.demo.outside import Endpoint, MailServer
from redrive.demo.stage import Stage
from redrive.job import Job
from support import wait_for

PROC = Path("/proc")


class Room:
    """A temporary directory of a demo's own; its name, in the environment of all that the demo starts, finds them."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="redrive-room-"))
        self.path.chmod(0o711)  # as root, the server's own account must pass

    def play(self, *flags: str, **more: Any) -> subprocess.Popen[str]:
        env = {**os.environ, "TMPDIR": str(self.path), "PYTHONUNBUFFERED": "1"}
        env.pop("COLUMNS", None)  # set, it would go before the terminal's own size
        command = [sys.executable, "-m", "redrive", "demo", *flags]
        return subprocess.Popen(command, env=env, text=True, start_new_session=True, **more)

    def processes(self) -> list[str]:
        """The command lines of everything that runs with this room in its environment."""
        found = []
        for environ in PROC.glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"TMPDIR={self.path}\0".encode() in environ.read_bytes():
                    found.append((environ.parent / "cmdline").read_text().replace("\0", " "))
        return found

    def workers(self) -> int:
        return sum("redrive.demo.tether" in command for command in self.processes())

    def left(self) -> list[str]:
        """What of a demo is still here: processes and files."""
        return [*self.processes(), *map(str, self.path.iterdir())]


@pytest.fixture
def room() -> Iterator[Room]:
    if not (PROC / "self" / "environ").exists():
        pytest.skip("finds processes by /proc")
    made = Room()
    yield made
    shutil.rmtree(made.path, ignore_errors=True)


def read_until(stream: IO[str], text: str) -> str:
    said = ""
    for line in stream:
        said += line
        if text in line:
            return said
    raise AssertionError(f"it ended without {text!r}:\n{said}")


def number(name: str, said: str) -> int:
    """A number of the reckoning."""
    found = re.search(rf"^ *{name}  +(\d+)", said, re.MULTILINE)
    assert found, said
    return int(found[1])


@pytest.mark.slow
def test_it_plays_to_its_end_in_time_and_loses_nothing(room: Room, tmp_path: Path) -> None:
    """The main job: retries, deaths, a killed worker, requeues; what was enqueued is what arrived."""
    drawn = tmp_path / "demo.svg"
    began = time.monotonic()
    done = room.play("--once", "--svg", str(drawn), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said, complained = done.communicate(timeout=110)
    took = time.monotonic() - began
    assert done.returncode == 0, said + complained
    assert complained == ""
    assert {name: number(name, said) for name in ("jobs in", "succeeded", "died", "requeued", "lost")} == {
        "jobs in": 14,
        "succeeded": 14,
        "died": 3,
        "requeued": 3,
        "lost": 0,
    }
    assert number("retried", said) >= 1
    assert number("worker deaths", said) >= 2
    assert re.search(r"6 mails, 4 calls, 4 PDFs", said)
    assert took < 60
    assert ET.parse(drawn).getroot().tag.endswith("svg")  # noqa: S314 - our own
    assert "url(" not in re.sub(r"url\(#", "", drawn.read_text()), "it needs nothing from elsewhere"
    assert room.left() == []


def test_nothing_survives_its_kill(room: Room) -> None:
    """kill -9 in the middle: workers, server, files are gone in a few seconds, without anybody to clean up."""
    process = room.play("--once", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout
    read_until(process.stdout, "killed by signal 9")
    assert room.workers() >= 2
    process.kill()
    process.wait()
    process.stdout.close()
    wait_for(lambda: not room.left(), 15)


def test_told_to_stop_it_takes_everything_along(room: Room) -> None:
    process = room.play("--once", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout
    before = read_until(process.stdout, "order 1004")
    [address] = re.findall(r"In your browser: (http://127\.0\.0\.1:\d+)/", before)
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=20)
    connection.request("GET", "/jobs")
    desk = connection.getresponse()
    assert (desk.status, b"send_email" in desk.read()) == (200, True)
    connection.close()
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "Traceback" not in said
    assert room.left() == []


def test_in_a_terminal_it_draws_and_ends_at_a_q(room: Room) -> None:
    """The terminal is given back as it was, with the last picture in it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 110, 0, 0))
    before = termios.tcgetattr(theirs)
    process = room.play(stdin=theirs, stdout=theirs, stderr=theirs)
    os.set_blocking(ours, False)
    shown = b""

    def seen(text: bytes) -> bool:
        nonlocal shown
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(ours, 65536):
                shown += chunk
        return text in shown

    wait_for(lambda: seen(b"order 1003"), 60)
    os.write(ours, b"q")
    wait_for(lambda: seen(b"") and process.poll() is not None, 30)
    assert process.returncode == 130
    assert termios.tcgetattr(theirs) == before
    _, left_the_alternate_screen, after = shown.partition(b"\x1b[?1049l")
    assert left_the_alternate_screen
    assert b"export_invoice" in after
    os.close(ours)
    os.close(theirs)
    assert room.left() == []


def test_without_its_extra_it_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiosmtpd", None)
    done = CliRunner().invoke(demo, ["--once"])
    assert done.exit_code == 1
    assert 'aiosmtpd: pip install "redrive[demo]"' in done.output


# -- the world outside


def ask(endpoint: Endpoint, path: str) -> int:
    connection = http.client.HTTPConnection(endpoint.url.removeprefix("http://"), timeout=5)
    with contextlib.closing(connection):
        connection.request("POST", path, body="{}", headers={"Idempotency-Key": "redrive-7-5f"})
        return connection.getresponse().status


def test_the_endpoint_is_down_then_up_and_writes_down_what_it_took() -> None:
    journal = Journal()
    with Endpoint(journal, closed="/gone", outage=0.3) as endpoint:
        assert ask(endpoint, "/there") == 502
        wait_for(lambda: ask(endpoint, "/there") == 204)
        assert ask(endpoint, "/gone") == 410
        endpoint.reopen("/gone")
        assert ask(endpoint, "/gone") == 204
        assert endpoint.received == {7: 2}
    assert [line.source for line in journal.lines] == ["http", "http"]


def test_the_mail_server_is_busy_then_free_and_writes_down_what_it_took() -> None:
    def send(server: MailServer, to: str) -> int:
        host, _, port = server.address.partition(":")
        with smtplib.SMTP(host, int(port), timeout=5) as client:
            try:
                client.sendmail("a@x.example", to, "Message-ID: <redrive-9-5f@x.example>\r\n\r\nhello")
            except smtplib.SMTPRecipientsRefused as error:
                [(code, _)] = error.recipients.values()
                return code
            except smtplib.SMTPResponseException as error:
                return error.smtp_code
        return 250

    with MailServer(Journal(), unknown="b@y.example", outage=0.3) as server:
        assert send(server, "a@y.example") == 421
        wait_for(lambda: send(server, "a@y.example") == 250)
        assert send(server, "b@y.example") == 550
        server.open_mailbox("b@y.example")
        assert send(server, "b@y.example") == 250
        assert server.received == {9: 2}


# -- the crew


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Callable[..., Crew]]:
    crews: list[Crew] = []

    def hire(*command: str) -> Crew:
        made = Crew(1, list(command), directory=tmp_path, env=os.environ, logs=tmp_path, journal=Journal())
        crews.append(made)
        return made

    yield hire
    for each in crews:
        each.stop()


def test_a_worker_that_ends_on_its_own_ends_the_demo_with_its_log(crew: Callable[..., Crew]) -> None:
    failing = crew("worker", "no_such_module:queue")
    with pytest.raises(WorkerFailed, match="no_such_module"):
        wait_for(lambda: failing.watch(()), 20)


def test_a_killed_worker_is_counted_and_restarted(crew: Callable[..., Crew], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import time; time.sleep(60)")
    hired = crew("worker", "app:queue")
    [member] = hired.members
    first = member.pid
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: (hired.watch(()), member.condition == "killed")[1])
    wait_for(lambda: (hired.watch(()), member.condition == "starting")[1])
    assert member.pid != first
    assert hired.deaths == 1


# -- the reckoning


def job(number: int = 1, status: str = "succeeded", **values: Any) -> Job:
    now = datetime.now(UTC)
    given = {
        **{field.name: None for field in dataclasses.fields(Job)},
        "id": number,
        "kind": "send_email",
        "payload": {"to": "a@b.example"},
        "status": status,
        "attempts": 1,
        "max_attempts": 5,
        "run_at": now,
        "created_at": now,
        "updated_at": now,
        "crashes": 0,
        "alone": False,
    }
    return Job(**{**given, **values})


def board(*jobs: Job) -> Board:
    made = Board(queue=SimpleNamespace(), journal=Journal())  # type: ignore[arg-type] # never asked
    made.cards = {each.id: Card(each) for each in jobs}
    return made


def lost(tmp_path: Path, *jobs: Job, enqueued: set[int], mails: dict[int, int] | None = None) -> dict[int, str]:
    account = settle(enqueued, board(*jobs), mails=mails or {}, calls={}, exports=tmp_path, worker_deaths=0)
    return dict(account.lost)


def test_a_job_that_arrived_is_not_lost(tmp_path: Path) -> None:
    assert lost(tmp_path, job(), enqueued={1}, mails={1: 1}) == {}


def test_a_job_that_is_not_in_the_table_is_lost(tmp_path: Path) -> None:
    assert lost(tmp_path, enqueued={1}, mails={1: 1}) == {1: "it is not in the table"}


@pytest.mark.parametrize("status", ["pending", "running", "dead", "failed"])
def test_a_job_that_has_not_succeeded_is_unfinished_and_not_lost(tmp_path: Path, status: str) -> None:
    account = settle({1}, board(job(status=status)), mails={1: 1}, calls={}, exports=tmp_path, worker_deaths=0)
    assert (list(account.unfinished), account.lost) == ([1], {})
    assert ("unfinished", "1") in [row[:2] for row in account.rows()]


class Calm:
    """A stage on which nothing happens by itself; it writes down what the story does with it."""

    calm_lease = Stage.calm_lease

    def __init__(self, *jobs: Job) -> None:
        self.board = board(*jobs)
        self.journal = self.board._journal
        self.enqueued = {each.id for each in jobs}
        self.flags: tuple[str, ...] = ()
        self.errors: list[str | None] = []
        self.account = settle(self.enqueued, self.board, mails={}, calls={}, exports=Path(), worker_deaths=0)
        self.title = ""
        self.crew = SimpleNamespace(deploy=lambda _env, *flags: setattr(self, "flags", flags), all_working=True)
        self.smtp = SimpleNamespace(open_mailbox=lambda _address: None)
        self.endpoint = SimpleNamespace(reopen=lambda _path: None)
        self.queue = SimpleNamespace(requeue=lambda which: (self.errors.append(which.error), [])[1])

    def scene(self, title: str, _text: str) -> None:
        self.title = title

    def until(self, condition: Callable[[], bool], _seconds: float = 0.0) -> bool:
        return condition()

    def pause(self, _seconds: float) -> None: ...

    def show(self) -> None: ...

    def settle(self) -> Account:
        return self.account


def test_after_the_fix_a_silent_worker_is_given_long_since_nothing_is_killed_any_more() -> None:
    stage: Any = Calm(job(1))
    story.the_fix(stage)
    assert stage.flags[0] == "--lease"
    assert float(stage.flags[1]) >= 15
    assert len(stage.errors) == len(story.FIXES)


def test_a_job_that_a_busy_machine_made_look_like_poison_is_sent_back_with_the_others() -> None:
    stage: Any = Calm(job(1), job(2, "dead", last_error="poison: its worker died 2 times while it ran alone"))
    story.the_fix(stage)
    assert stage.errors[len(story.FIXES) :] == ["poison"]


def test_what_is_dead_at_the_end_is_told_as_not_done_and_never_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    for scene in ("orders_come_in", "everything_fails", "the_dead_are_seen", "the_fix"):
        monkeypatch.setattr(story, scene, lambda _stage: None)
    stage: Any = Calm(job(1, "dead"))
    assert not story.play(stage).lost
    assert stage.title == "Nothing was lost; 1 job is not done."


def test_a_job_of_which_nothing_arrived_is_lost_whatever_its_row_says(tmp_path: Path) -> None:
    assert lost(tmp_path, job(), enqueued={1}, mails={2: 1}) == {1: "it says succeeded, and nothing arrived"}


@pytest.mark.parametrize(("content", "arrived"), [(b"%PDF-1.3 ... %%EOF\n", True), (b"%PDF-1.3 ...", False)])
def test_half_a_pdf_has_not_arrived(tmp_path: Path, content: bytes, arrived: bool) -> None:
    (tmp_path / "invoice-1001.pdf").write_bytes(content)
    export = job(kind="export_invoice", payload={"number": 1001})
    assert (lost(tmp_path, export, enqueued={1}) == {}) is arrived


# -- the picture


def drawn(view: screen.View, width: int, height: int | None) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(screen.picture(view, width, height))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.fixture
def view() -> screen.View:
    later = datetime.now(UTC) + timedelta(seconds=9)
    made = board(
        *(job(number) for number in range(1, 20)),
        job(20, "dead"),
        job(21, "pending", run_at=later, attempts=2),
        job(22, "pending", alone=True),
        job(23, "running", progress={"page": 3, "pages": 9}),
        job(24, "pending", run_at=later, attempts=0),
    )
    made.cards[20].failure = "550 no such mailbox " * 20
    journal = Journal()
    for _ in range(30):
        journal.tell("job 1", "something happened " * 10)
    return screen.View(journal, made, title="A scene.", text="It goes on " * 20)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (140, 50), (60, 20), (200, 60)])
def test_the_picture_fits_its_terminal(view: screen.View, width: int, height: int) -> None:
    lines = drawn(view, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 45)])
def test_so_does_its_end_with_what_to_try(view: screen.View, tmp_path: Path, width: int, height: int) -> None:
    view.account = settle({1}, view.board, mails={1: 1}, calls={}, exports=tmp_path, worker_deaths=3)
    view.hints = ["Try it:", "  redrive jobs", "  redrive dead", "q ends it."]
    lines = drawn(view, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "  redrive dead" in text
    assert re.search(r"0 lost|lost +0", text)


def test_the_film_has_its_frames_in_turn_and_stays_with_the_last(view: screen.View) -> None:
    film = Film()
    for scene in ("One <scene> & a half.", "Two.", "Three."):
        view.title = scene
        film.take(view, last=True)
    root = ET.fromstring(film.svg())  # noqa: S314 - our own
    frames = [each for each in root if each.get("class") == "frame"]
    assert ["".join(frame.itertext()).count("scene") for frame in frames] == [1, 0, 0]
    style = root.findtext("{http://www.w3.org/2000/svg}style") or ""
    assert re.findall(r"@keyframes k(\d) \{ (.*?) \}\n", style) == [
        ("0", "0.00% { visibility: visible } 14.29% { visibility: hidden }"),
        ("1", "0% { visibility: hidden } 14.29% { visibility: visible } 28.57% { visibility: hidden }"),
        ("2", "0% { visibility: hidden } 28.57% { visibility: visible }"),
    ]


def test_a_small_terminal_shows_what_needs_eyes_and_counts_the_rest(view: screen.View) -> None:
    text = "\n".join(drawn(view, 80, 24))
    for shown in ("dead", "retrying", "taken back", "page 3 of 9", "delayed"):
        assert shown in text
    assert re.search(r"and \d+ more", text)


def test_a_large_one_shows_everything(view: screen.View) -> None:
    text = "\n".join(drawn(view, 120, None))
    assert all(re.search(rf"^ *{number} ", text, re.MULTILINE) for number in range(1, 25))
    assert "more that" not in text
