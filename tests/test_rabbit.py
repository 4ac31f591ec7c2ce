"""The broker that other tests stand on: private, quick to be had, and gone when nobody uses it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError

import aio_pika
import pytest

import support

ROOT = Path(__file__).parent.parent
USER = """
import sys, time
from pathlib import Path
from chaos.keeper import shared
with shared(Path(sys.argv[1]), Path(sys.argv[2])) as broker:
    print(broker.told(), flush=True)
    time.sleep(600)
"""


def gone(pid: int) -> bool:
    """A zombie is gone, too: in a container without an init nobody reaps an orphan."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def processes(directory: Path) -> list[int]:
    """Everything that was started for a broker below *directory*: its environment says so."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if int(each.name) != os.getpid() and f"HOME={directory}".encode() in (each / "environ").read_bytes():
                found.append(int(each.name))
        except OSError:
            continue
    return found


async def send(url: str, body: bytes, seconds: float = 30) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.declare_queue("lasting", durable=True, arguments={"x-queue-type": "quorum"})
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await asyncio.wait_for(channel.default_exchange.publish(message, "lasting"), seconds)


async def take(url: str) -> bytes:
    async with await aio_pika.connect(url) as connection:
        queue = await (await connection.channel()).get_queue("lasting")
        message = await queue.get(timeout=60)
        await message.ack()
        return message.body


def test_a_virtual_host_is_of_the_tests_own_and_its_depth_is_told(rabbit, vhost, wait_for):
    name = vhost.rpartition("/")[2]
    asyncio.run(send(vhost, b"one"))
    queue = f"queues/{name}/lasting"
    wait_for(lambda: rabbit.api("GET", queue).get("messages") == 1)
    rabbit.purge(name)
    wait_for(lambda: rabbit.api("GET", queue).get("messages") == 0)
    with rabbit.vhost() as other:
        assert other != vhost
        assert rabbit.api("GET", f"queues/{other.rpartition('/')[2]}") == []


@pytest.mark.slow
def test_two_processes_share_one_broker_and_it_ends_with_the_last_however_that_ends(rabbitmq_scripts, wait_for):
    directory = support.clusters() / f"redrive-shared-{os.urandom(6).hex()}"
    command = [sys.executable, "-c", USER, str(rabbitmq_scripts), str(directory)]
    began = time.monotonic()
    users = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [user.stdout.readline() for user in users]
    print(f"a start took {time.monotonic() - began:.1f} s")  # noqa: T201 # shown by -rP
    assert told[0] == told[1] != ""
    [base] = directory.glob("redrive-rabbit-*")
    running = processes(base)
    assert running
    users[0].send_signal(signal.SIGINT)
    users[0].wait()
    assert not any(map(gone, running))
    users[1].kill()
    users[1].wait()
    wait_for(lambda: not directory.exists())
    assert all(map(gone, running))
    for user in users:
        user.stdout.close()


@pytest.mark.proof  # by make chaos-broker: a start takes 8 s of one core, and rabbitmqctl 2 s
def test_an_own_broker_is_killed_stopped_alarmed_and_brought_back_with_what_it_had(own_rabbit):
    url = own_rabbit.amqp_url
    asyncio.run(send(url, b"kept"))
    mapper = own_rabbit._mapper.pid
    own_rabbit.settle()
    own_rabbit.kill()
    with pytest.raises(URLError, match="refused"):
        own_rabbit.api("GET", "overview")
    own_rabbit.start()
    assert asyncio.run(take(url)) == b"kept"
    with own_rabbit.memory_alarm(), pytest.raises(TimeoutError):
        asyncio.run(send(url, b"refused", 2))
    asyncio.run(send(url, b"after"))
    pids = [mapper, *processes(own_rabbit.base)]
    own_rabbit.close()
    assert all(map(gone, pids))
    assert not own_rabbit.base.exists()
