"""What a service manager hears of a worker, at a real datagram socket that stands in for systemd's."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.errors import NoDatabase
from redrive.events import WorkerStarted, emit
from redrive.notify import Manager, attended
from redrive.service import Database, Service
from support import wait_for

APP = """
    import asyncio, pathlib, time
    from redrive import Queue

    queue = Queue()

    @queue.handler("block")
    async def block(payload):
        pathlib.Path(payload["begun"]).touch()
        while not pathlib.Path(payload["go"]).exists():
            time.sleep(0.01)  # as one may not

    @queue.handler("quick")
    def quick(payload): ...
"""


class Systemd:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(20)

    def hear(self) -> list[str]:
        """Wait for one message and give its lines."""
        return self._socket.recv(4096).decode().splitlines()

    def hear_until(self, line: str) -> list[str]:
        """Wait for a message that begins so; gives all lines until then."""
        heard: list[str] = []
        while not heard or not heard[-1].startswith(line):
            heard += self.hear()[:1]
        return heard

    def drain(self) -> list[str]:
        """Give what has been said so far."""
        heard = []
        self._socket.settimeout(0)
        try:
            while True:
                heard += self._socket.recv(4096).decode().splitlines()
        except BlockingIOError:
            return heard
        finally:
            self._socket.settimeout(20)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    manager = Systemd(tmp_path / "notify")
    yield manager
    manager.close()


def test_a_worker_says_that_it_is_ready_that_it_lives_and_that_it_stops(start_worker, systemd, conn, tmp_path):
    """And while its event loop is blocked it says nothing, so that the watchdog may bite."""
    env = {"NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "400000"}
    worker = start_worker(APP, "--concurrency", "2", env=env)
    assert systemd.hear_until("READY=1")[-1] == "READY=1"
    assert systemd.hear() == ["WATCHDOG=1", "STATUS=0 of 2 slots taken"]
    begun, go = tmp_path / "begun", tmp_path / "go"
    conn.execute(
        "INSERT INTO redrive.jobs (kind, payload) VALUES ('block', %s)",
        (json.dumps({"begun": str(begun), "go": str(go)}),),
    )
    wait_for(begun.exists)
    systemd.drain()
    wait_for(lambda: "stood still" in worker.log())
    assert systemd.drain() == []
    go.touch()
    assert systemd.hear()[0] == "WATCHDOG=1"
    assert worker.stop() == 0
    assert "STOPPING=1" in systemd.drain()


def test_one_that_waits_for_its_database_asks_for_time(start_worker, systemd, unused_port):
    start_worker(APP, env={"NOTIFY_SOCKET": str(systemd.path)}, dsn=f"postgresql://u@127.0.0.1:{unused_port}/x")
    heard = systemd.hear()
    assert heard[0] == "EXTEND_TIMEOUT_USEC=30000000"
    assert "READY=1" not in systemd.drain()


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port that is taken and answers nobody."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_of_several_processes_the_parent_speaks_and_no_other(start_worker, systemd):
    env = {"NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "1000000"}
    worker = start_worker(APP, "--processes", "2", env=env)
    assert systemd.hear() == ["READY=1"]
    assert systemd.hear() == ["WATCHDOG=1", "STATUS=2 worker processes"]
    wait_for(lambda: worker.log().count(" started with ") == 2)
    assert worker.stop() == 0
    heard = systemd.drain()
    assert "STOPPING=1" in heard
    assert "READY=1" not in heard


class _Seen:
    name = "w"

    def __init__(self) -> None:
        self.lives = True

    def state(self) -> str:
        return "works"

    def turns(self) -> bool:
        return self.lives


def test_without_a_sign_of_life_the_watchdog_hears_nothing(systemd):
    async def scene() -> None:
        seen = _Seen()
        manager = Manager({"NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "20000"})
        async with attended(seen, manager):
            emit(WorkerStarted(worker="another", kinds=(), concurrency=1))
            emit(WorkerStarted(worker="w", kinds=(), concurrency=1))
            while "WATCHDOG=1" not in systemd.drain():  # noqa: ASYNC110 - a socket that is not awaited
                await asyncio.sleep(0.005)
            seen.lives = False
            await asyncio.sleep(0)
            systemd.drain()
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert systemd.drain() == []

    asyncio.run(scene())


def test_a_sign_of_life_without_an_answer_is_one():
    """A database that is away is no reason to start a worker anew."""

    class Beat(Service):
        async def tick(self) -> float:
            raise NoDatabase

    async def scene() -> None:
        beat, stopping = Beat(Database("w")), asyncio.Event()
        before = beat.rounded
        task = asyncio.create_task(beat.run(stopping))
        while beat.rounded == before:  # noqa: ASYNC110 - a clock
            await asyncio.sleep(0.001)
        stopping.set()
        beat.wake()
        await task
        assert beat.trouble.startswith("NoDatabase")

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("environment", "there", "watchdog", "every"),
    [
        ({}, False, None, 10.0),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "6000000"}, True, 6.0, 3.0),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "60000000"}, True, 60.0, 10.0),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "6000000", "WATCHDOG_PID": "1"}, True, None, 10.0),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "6000000", "WATCHDOG_PID": str(os.getpid())}, True, 6.0, 3.0),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "soon"}, True, None, 10.0),
    ],
)
def test_what_the_environment_says_is_heeded(environment, there, watchdog, every):
    manager = Manager(environment)
    assert (manager.there, manager.watchdog, manager.every) == (there, watchdog, every)


def test_an_abstract_socket_is_spoken_to_and_one_that_is_gone_is_no_trouble(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        name = f"redrive-{os.urandom(6).hex()}"
        heard.bind("\0" + name)
        manager = Manager({"NOTIFY_SOCKET": "@" + name})
        manager.alive("works")
        assert heard.recv(99) == b"STATUS=works"
        manager.close()
    gone = Manager({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    gone.say("READY=1")
    gone.close()
