"""How it stands at the broker: as it is there, or in words why that is not known; and never for long."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from redrive.amqp.management import UNSET, seen
from redrive.amqp.names import BANDS, LONGEST_NAME, base_name, queue_name, queue_names
from redrive.errors import InvalidOption
from redrive.masking import mask_text
from redrive.settings import Settings

aio_pika = pytest.importorskip("aio_pika", reason="the extra amqp is not installed")

PLAIN = re.compile(r"[a-zA-Z0-9-_.:@#,/+ ]*")
"""What AMQP's specification, and the driver, let a queue be called."""


def test_no_two_kinds_share_a_queue_whatever_they_are_called():
    kinds = [
        "mail",
        "mail.high",
        "mail.low",
        "mail.high.low",
        ".high",
        "a" * 300,
        "a" * 301,
        "ä" * 150,
        "b.c",
        "c",
        "ä",
        "ö",
        "a&b",
    ]
    names = [
        name
        for schema in ("redrive", "redrive.b", "a", "ä", "ö")
        for kind in kinds
        for name in queue_names(schema, kind)
    ]
    assert len(set(names)) == len(names)
    assert all(len(name.encode()) <= LONGEST_NAME + max(map(len, BANDS)) for name in names)
    assert all(PLAIN.fullmatch(name) for name in names)
    assert queue_name("redrive", "mail") == "redrive.redrive.mail"
    assert queue_name("redrive", "mail", 0) == "redrive.redrive.mail.high"
    assert queue_name("redrive", "mail", 9) == "redrive.redrive.mail.low"


def test_without_an_address_it_says_so():
    assert seen(Settings(), ["mail"]).why == UNSET


@pytest.fixture
def settings(rabbit, vhost) -> Settings:
    return replace(Settings(), broker_management_url=rabbit.management_url, broker_url=vhost)


async def fill(url: str, **messages: int) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        for name, count in messages.items():
            queue = await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
            for _ in range(count):
                await channel.default_exchange.publish(aio_pika.Message(b"{}", delivery_mode=2), queue.name)


def test_what_is_at_a_broker_is_told_by_kind_its_bands_together(settings, vhost, wait_for):
    counts = {queue_name("redrive", "mail"): 3, queue_name("redrive", "mail", 0): 2, queue_name("redrive", "left"): 1}
    counts |= {queue_name("other", "mail"): 5, queue_name("redrive", "gone"): 0, base_name("redrive", "odd"): 1}

    async def hold(_message):
        """Acknowledge nothing."""

    async def look():
        await fill(vhost, **counts)
        async with await aio_pika.connect(vhost) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=1)
            await (await channel.get_queue(queue_name("redrive", "mail"))).consume(hold)
            return await asyncio.to_thread(wait_for, told, 30)

    def told():
        """What is there, once the broker has counted all of it: each queue for itself, and not at one instant."""
        now = seen(settings, ["mail", "empty"], ["left", "gone"], timeout=10)
        counted = {each.kind: (each.ready, each.unacknowledged, each.consumers) for each in now.kinds}
        return now if counted == {"mail": (4, 1, 1), "empty": (0, 0, 0), "left": (1, 0, 0), "odd": (1, 0, 0)} else None

    now = asyncio.run(look())
    mail, empty, left, odd = (now.of(kind) for kind in ("mail", "empty", "left", "odd"))
    assert (mail.ready, mail.unacknowledged, mail.consumers, mail.queues, mail.routed) == (4, 1, 1, 2, True)
    assert (empty.messages, empty.queues, empty.routed) == (0, 0, True)
    assert (left.messages, left.routed) == (1, False)
    assert odd.messages == 1, "nobody knows the kind: by the name of its queue"
    assert now.of("gone") is None
    assert (now.up, now.why, now.troubles) == (True, "", [])
    assert mail.trouble == ""


def test_a_password_that_is_wrong_is_said_and_never_shown(settings):
    url = settings.broker_management_url.replace("redrive:", "redrive:x")
    now = seen(replace(settings, broker_management_url=url), ["mail"], timeout=10)
    assert "refuses this user" in now.why
    assert "@" not in now.why
    assert now.kinds == []


@pytest.mark.parametrize("url", ["127.0.0.1:15672", "amqp://a:hunter2@h", "http://", "http://u:hunter2@127.0.0.1:1/"])
def test_an_address_at_which_nobody_can_be_asked_is_said_without_its_password(url):
    now = seen(replace(Settings(), broker_management_url=url), ["mail"])
    assert "can't be asked" in now.why
    assert "hunter2" not in repr(now)


@contextmanager
def answering(status: int, body: bytes, kind: str = "application/json"):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"items": [{}], "page_count": 1}'),
        (500, b""),
        (404, b"no"),
    ],
)
def test_an_answer_of_somebody_else_is_no_error(status, body):
    with answering(status, body) as url:
        now = seen(replace(Settings(), broker_management_url=url), ["mail"])
    assert "can't be asked" in now.why


def test_who_takes_the_connection_and_says_nothing_holds_nobody_up():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        began = time.monotonic()
        now = seen(replace(Settings(), broker_management_url=url), ["mail"], timeout=0.2)
        assert "does not answer" in now.why
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_names_the_virtual_host_and_what_names_another(status):
    """User and tag were right; it was asked after / for want of broker_url."""
    with answering(status, b"no") as url:
        there = replace(Settings(), broker_management_url=url)
        unset = seen(there, ["mail"]).why
        named = seen(replace(there, broker_url="amqp://jobs:hunter2@mq/orders"), ["mail"]).why
    assert "virtual host /, as broker_url (REDRIVE_BROKER_URL) is not set" in unset
    assert "virtual host orders" in named
    assert "REDRIVE_BROKER_URL" not in named


def test_the_example_of_a_broker_s_address_is_shown_as_it_is_written():
    """It had a password, which was masked wherever it was told."""
    from redrive.amqp.link import checked  # noqa: PLC0415 - its library is an extra

    with pytest.raises(InvalidOption) as none:
        checked("")
    assert mask_text(str(none.value)) == str(none.value)
