"""A worker inside a web server's process, and the examples for FastAPI and Flask, over real HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from redrive import Queue
from redrive.errors import NotMigrated, RedriveError
from redrive.inside import WorkerThread, working
from support import TETHER, wait_for
from ways import url

EXAMPLES = Path(__file__).parent.parent / "examples"


class Server:
    """A web server of an example, and its log."""

    def __init__(self, name: str, log: Path, env: dict[str, str], *command: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*TETHER, sys.executable, "-m", *(part.replace("PORT", str(self.port)) for part in command)],
                cwd=EXAMPLES / name,
                env=os.environ | env,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        wait_for(self._answers, 30)

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request, and give the status and what came."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        try:
            with urllib.request.urlopen(asked, timeout=20) as answer:  # noqa: S310 - as above
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def sign_up(self, email: str) -> dict[str, Any]:
        status, body = self.ask("/users", {"email": email})
        assert status == 201, body
        return json.loads(body)

    def welcomed(self, number: int) -> bool:
        return json.loads(self.ask(f"/users/{number}")[1])["welcomed"]

    def log(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log()
        try:
            return self.ask("/users/0")[0] == 404
        except OSError:
            return False


@pytest.fixture
def serve(db: str, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start the server of an example on `db`."""
    servers: list[Server] = []

    def start(name: str, *command: str, **env: str) -> Server:
        where = url(db, "psycopg").set(drivername="postgresql").render_as_string(hide_password=False)
        given = {"DATABASE_URL": where, "REDRIVE_UI_PASSWORD": "at-least-eight", **env}
        servers.append(Server(name, tmp_path / "server.log", given, *command))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()
        print(server.log())  # noqa: T201 # pytest shows it when the test failed


UVICORN = ("uvicorn", "--port", "PORT", "app:app")
GUNICORN = ("gunicorn", "--bind", "127.0.0.1:PORT", "--workers", "2", "--no-control-socket", "--preload", "app:app")


def jobs(conn: psycopg.Connection[Any], kind: str = "welcome") -> list[tuple[str, int]]:
    return conn.execute("SELECT status, count(*) FROM redrive.jobs WHERE kind = %s GROUP BY 1", [kind]).fetchall()


def test_fastapi_welcomes_who_has_signed_up_and_nobody_else(serve, conn):
    server = serve("fastapi", *UVICORN)
    made = server.sign_up("ada@example.com")
    wait_for(lambda: server.welcomed(made["id"]))
    assert server.ask("/users", {"email": "ada@example.com"})[0] == 409
    assert server.ask("/users", {"email": "bob@example.invalid"})[0] == 422
    assert jobs(conn) == [("succeeded", 1)]
    assert "password" in server.ask("/jobs/")[1].lower(), "the desk asks who looks"
    server.process.terminate()
    server.process.wait(20)
    assert "Finished server process" in server.log()
    assert conn.execute("SELECT count(*) FROM redrive.workers").fetchone() == (0,), "it has said goodbye"


def test_flask_behind_a_preloading_gunicorn_shares_no_connection_and_each_process_works(serve, conn, server_log):
    """The application enqueues before the fork; its children have connections of their own, and a worker each."""
    server = serve("flask", *GUNICORN, WORKER="yes")
    made: list[dict[str, Any]] = []
    told: list[dict[str, Any]] = []

    def visit(name: str) -> None:
        for n in range(10):
            made.append(server.sign_up(f"{name}{n}@example.com"))
            status, body = server.ask("/feedback", {"text": name})
            assert status == 202
            told.append(json.loads(body))

    visitors = [threading.Thread(target=visit, args=[name]) for name in "abcd"]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()
    for answers in (made, told):
        assert len({one["pid"] for one in answers}) == 2, "both processes have enqueued"
    assert len({one["id"] for one in made}) == len({one["job"] for one in told}) == 40
    own = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"
    assert conn.execute(own, ["redrive queue"]).fetchone() == (3,), "one of the parent's, and one of each process"
    assert server.ask("/users", {"email": "bob@example.invalid"})[0] == 422
    assert "password" in server.ask("/jobs/")[1].lower(), "the desk asks who looks"
    for kind, count in {"welcome": 40, "read_feedback": 40, "started": 1}.items():
        wait_for(lambda kind=kind, count=count: jobs(conn, kind) == [("succeeded", count)])
    assert server.welcomed(made[0]["id"])
    workers = "SELECT count(*) FROM redrive.workers"
    assert conn.execute(workers).fetchone() == (2,)
    server.process.terminate()
    assert server.process.wait(20) == 0
    assert conn.execute(workers).fetchone() == (0,), "they have said goodbye"
    assert server_log.errors() == []


@pytest.fixture
def queue(db: str) -> Iterator[Queue]:
    queue = Queue(db, poll=1)
    yield queue
    queue.close()


def test_it_works_beside_other_code_and_leaves_the_signals_alone(queue, conn):
    done = []

    @queue.handler("mail")
    async def mail(payload: Any) -> None:
        done.append(payload)

    def handlers() -> list[Any]:
        return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]

    async def scene() -> None:
        before = handlers()
        async with working(queue, concurrency=1):
            assert handlers() == before
            await mail.enqueue_async({"n": 1})
            while not done:  # noqa: ASYNC110 - set from elsewhere
                await asyncio.sleep(0.01)

    asyncio.run(scene())
    assert queue.get(1).status == "succeeded"
    assert conn.execute("SELECT count(*) FROM redrive.workers").fetchone() == (0,)


def test_a_thread_works_until_it_is_stopped_and_can_begin_again(queue):
    done = threading.Event()

    @queue.handler("mail")
    def mail(payload: Any) -> None:
        done.set()

    thread = WorkerThread(queue, concurrency=1)
    for _ in range(2):
        with thread:
            assert thread.running
            with pytest.raises(RedriveError, match="runs already in this process"):
                thread.start()
            mail.enqueue({})
            assert done.wait(10)
        assert not thread.running
        done.clear()
    thread.stop()


def test_what_keeps_it_from_working_is_told_where_it_is_started(empty_db):
    queue = Queue(empty_db)
    queue.handler("mail")(print)

    async def scene() -> None:
        async with working(queue):
            pytest.fail("it has begun")

    with pytest.raises(NotMigrated):
        asyncio.run(scene())
    with pytest.raises(NotMigrated):
        WorkerThread(queue).start()
