"""What a user of the broker may, and what becomes of the other kinds where some right is missing."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from engine import Inside
from redrive import NoBroker, Queue
from redrive.amqp import rights
from support import wait_for
from support_engine import states

NAMES, WRITES = r"^redrive\.", r"^(redrive\.|amq\.default$)"


@pytest.fixture
def user(rabbit, vhost):
    """Make users with rights of their own in the virtual host: gives the address."""
    host, made = vhost.rpartition("/")[2], []

    def make(configure: str = NAMES, write: str = WRITES, read: str = NAMES) -> str:
        if not made:
            made.append(f"u{secrets.token_hex(4)}")
            rabbit.api("PUT", f"users/{made[0]}", {"password": "word", "tags": ""})
        permissions = {"configure": configure, "write": write, "read": read}
        rabbit.api("PUT", f"permissions/{host}/{made[0]}", permissions)
        return f"amqp://{made[0]}:word@{vhost.rpartition('@')[2]}"

    yield make
    for name in made:
        rabbit.api("DELETE", f"users/{name}")


@contextmanager
def queue_of(db: str, url: str, ran: list[Any], *kinds: str) -> Iterator[Queue]:
    queue = Queue(db, broker_url=url, poll=0.5)
    for kind in kinds:

        def handler(payload: Any, kind: str = kind) -> None:
            ran.append((kind, payload))

        queue.handler(kind)(handler)
        queue.kinds.route(kind, "amqp", by="ada")
    try:
        yield queue
    finally:
        queue.close()


def warnings(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if word in each.getMessage()]


def test_a_user_with_rights_on_redrives_names_alone_can_do_all_but_look(conn, db, user):
    ran: list[Any] = []
    with queue_of(db, user(), ran, "mail", "redrive.topics") as queue:
        queue.enqueue("mail", 1)
        queue.enqueue_many("mail", [2, 3], direct=True)
        queue.enqueue("redrive.topics", {})
        with Inside(queue.relay(), queue.worker(broker=queue.settings.broker_url)):
            wait_for(lambda: sorted(ran) == [("mail", 1), ("mail", 2), ("mail", 3)], 30)
            wait_for(lambda: states(conn) == {})


def test_a_queue_that_may_not_be_read_costs_the_other_kinds_nothing_and_is_asked_for_again(
    db, user, monkeypatch, caplog
):
    monkeypatch.setattr(rights, "ASK_AGAIN", 1.0)
    monkeypatch.setattr(rights, "ASK_AGAIN_MOST", 1.0)
    ran: list[Any] = []
    allowed = user()
    user(read=r"^redrive\.redrive\.(b|c)")
    with queue_of(db, allowed, ran, "a", "b", "c") as queue:
        worker = queue.worker(broker=allowed)
        for kind in "abc":
            queue.enqueue(kind, 1)
        with Inside(queue.relay(), worker), caplog.at_level(logging.INFO, "redrive"):
            wait_for(lambda: sorted(ran) == [("b", 1), ("c", 1)], 30)
            wait_for(lambda: "jobs of a wait" in worker.complaints())
            channel = worker.link.number
            again = worker.link.denied
            asked = [again._denials["a"].again]
            wait_for(lambda: again._denials["a"].again > asked[0], 30)  # asked again, and nobody lost the channel
            queue.enqueue("b", 2)
            wait_for(lambda: ("b", 2) in ran, 30)
            assert worker.link.number == channel
            [told] = warnings(caplog, "jobs of a wait")
            assert "can't be read" in told
            assert "set_permissions" in told
            user()
            wait_for(lambda: ("a", 1) in ran, 30)
            wait_for(lambda: not worker.complaints())
        assert len(ran) == 4


def test_who_may_make_no_queues_uses_those_that_are_there_and_is_told_once_of_each_that_is_not(
    conn, db, vhost, user, caplog
):
    ran: list[Any] = []
    mighty = Queue(db, broker_url=vhost)
    mighty.enqueue("mail", 0, direct=True)
    mighty.close()
    url = user(configure="^$")
    with queue_of(db, url, ran, "mail", "export") as queue:
        queue.enqueue("mail", 1)
        queue.enqueue("export", 1)
        with caplog.at_level(logging.INFO, "redrive"), Inside(queue.relay(), queue.worker(broker=url)):
            wait_for(lambda: sorted(ran) == [("mail", 0), ("mail", 1)], 30)
            told = wait_for(lambda: len(found := warnings(caplog, "jobs of export wait")) == 2 and found)
        assert all("is not there, and this user may not make it" in each and "set_permissions" in each for each in told)
        assert not warnings(caplog, "jobs of mail wait")
        assert states(conn) == {"pending": 1}


def test_who_may_send_nothing_is_told_which_right_is_missing(conn, db, vhost, user):
    url = user(write=NAMES)
    with queue_of(db, url, [], "mail") as queue:
        queue.enqueue("mail", 1)
        with pytest.raises(NoBroker, match=r"amq\\.default"):
            asyncio.run(queue.relay().run(once=True))
        with pytest.raises(NoBroker, match=r"amq\\.default"):
            queue.enqueue("mail", 2, direct=True)
        assert states(conn) == {"pending": 1}


def test_an_exchange_that_may_not_be_written_to_holds_up_what_is_public_and_nothing_else(conn, db, vhost, user, caplog):
    ran: list[Any] = []
    url = user(write=r"^(redrive\.redrive\.mail|amq\.default$)")
    with queue_of(db, url, ran, "mail") as queue:
        queue.kinds.route("redrive.topics", "amqp", by="ada")
        queue.topics.add("invoice.#", "redrive.topics")
        with caplog.at_level(logging.INFO, "redrive"), Inside(queue.relay(), queue.worker(broker=url)):
            queue.publish("invoice.paid", {})
            queue.enqueue("mail", 1)
            wait_for(lambda: ran == [("mail", 1)], 30)
            [told] = wait_for(lambda: warnings(caplog, "jobs of redrive.topics wait"))
            queue.enqueue("mail", 2)
            wait_for(lambda: ("mail", 2) in ran, 30)
        assert ran == [("mail", 1), ("mail", 2)]
        assert "redrive.redrive.topics" in told
        assert states(conn) == {"pending": 1}
