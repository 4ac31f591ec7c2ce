"""What is said when somebody gets the way to the broker wrong: each with its remedy, and none holds anybody up."""

from __future__ import annotations

import asyncio
import sys

import pytest

from engine import Inside
from redrive import InvalidOption, NoBroker, Queue
from redrive.cli.worker import worker as command


@pytest.mark.parametrize(
    "way",
    [
        lambda queue: queue.relay(),
        lambda queue: queue.worker(broker="amqp://mq/"),
        lambda queue: queue.enqueue("mail", {}, direct=True),
    ],
    ids=["relay", "worker", "direct"],
)
def test_without_the_extra_each_way_to_the_broker_says_what_to_install(way, monkeypatch):
    for name in [each for each in sys.modules if each.startswith("redrive.amqp.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aio_pika", None)
    with pytest.raises(InvalidOption, match=r"pip install 'redrive\[amqp\]'"):
        way(Queue("postgresql://nobody@127.0.0.1:1/none", broker_url="amqp://mq/"))


def test_a_worker_takes_the_brokers_address_from_the_setting_where_the_flag_has_none():
    with command.make_context("worker", ["app:queue", "--broker"], resilient_parsing=True) as context:
        told = context.params["broker"]
    assert told == ""
    queue = Queue("postgresql://nobody@127.0.0.1:1/none", broker_url="amqp://mq.internal/")
    queue.handler("mail")(print)
    assert queue.worker(broker=told).settings.broker_url == "amqp://mq.internal/"


def test_a_relay_that_runs_once_does_not_wait_for_a_broker_that_knows_no_such_virtual_host(db, rabbit):
    queue = Queue(db, broker_url=rabbit.url("nowhere"))
    queue.kinds.route("mail", "amqp", by="ada")
    queue.enqueue("mail", {})
    with pytest.raises(NoBroker, match=r"jobs wait in the table: .*is there a virtual host") as caught:
        asyncio.run(queue.relay().run(once=True))
    assert rabbit.password not in str(caught.value)
    assert "0x" not in str(caught.value)
    queue.close()


def test_a_queue_that_was_made_by_hand_holds_up_its_own_kind_and_no_other(conn, db, rabbit, vhost, wait_for):
    host = vhost.rpartition("/")[2]
    rabbit.api("PUT", f"queues/{host}/redrive.redrive.a", {"durable": True, "arguments": {"x-queue-type": "classic"}})
    queue, ran = Queue(db, broker_url=vhost, poll=0.5), []

    @queue.handler("a")
    async def first(payload):
        """Never comes that far."""

    @queue.handler("b")
    async def second(payload):
        ran.append(payload)

    for kind in ("a", "b"):
        queue.kinds.route(kind, "amqp", by="ada")
        queue.enqueue(kind, kind)
    with Inside(queue.relay(), queue.worker(broker=vhost)):
        wait_for(lambda: ran == ["b"], 20)
    assert conn.execute("select kind, status from redrive.jobs").fetchall() == [("a", "pending")]
    queue.close()


def test_a_relay_that_runs_once_ends_where_no_kind_is_routed(db, vhost):
    queue = Queue(db, broker_url=vhost)
    asyncio.run(asyncio.wait_for(queue.relay().run(once=True), 30))
    queue.close()
