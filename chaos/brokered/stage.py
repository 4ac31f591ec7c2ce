"""Where a run over a broker takes place: a Postgres, a cluster of RabbitMQ, and a network in front of each.

As in production the cluster is reached through a balancer, which takes a node that answers. What is lost here is never
a majority for longer than a fault lasts.
"""

from __future__ import annotations

import itertools
import socket
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from chaos.proxy import Proxy
from chaos.rabbit import USER, Rabbit
from chaos.stage import Stage


class Balancer(Proxy):
    """Stands in front of several servers, and leads each connection to the next that takes it."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._turn = itertools.count()
        super().__init__(f"host=127.0.0.1 port={ports[0]}")

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(str(conninfo_to_dict(self.dsn)["port"]))

    def _reach(self) -> socket.socket:
        first = next(self._turn)
        for n in range(len(self._ports)):
            try:
                return socket.create_connection(("127.0.0.1", self._ports[(first + n) % len(self._ports)]))
            except OSError:
                continue
        raise ConnectionRefusedError("no node takes connections")


class BrokeredStage(Stage):
    """Postgres, RabbitMQ and the ways there."""

    def __init__(self, scripts: Path, nodes: int) -> None:
        super().__init__(0, no_disk="not of this run")
        self.missing.clear()
        self._scripts, self._nodes = scripts, nodes
        self.rabbit: Rabbit
        self.wire: Balancer
        """The way of most workers to the broker; it is cut, frozen and delayed."""
        self.outgoing: Balancer
        """The way of a relay to the broker."""
        self.aside: Balancer
        """A way that no fault of the network strikes."""

    def _set_up(self) -> None:
        self.rabbit = self._open.enter_context(Rabbit(self._scripts, nodes=self._nodes, within=self.base))
        ports = [node.amqp for node in self.rabbit.nodes]
        self.wire = self._open.enter_context(Balancer(ports))
        self.outgoing = self._open.enter_context(Balancer(ports))
        self.aside = self._open.enter_context(Balancer(ports))
        super()._set_up()

    def amqp(self, way: Balancer) -> str:
        """Give the broker's address by a way."""
        return f"amqp://{USER}:{self.rabbit.password}@127.0.0.1:{way.port}/"

    def queues(self) -> dict[str, int]:
        """Count the messages in each queue that has some, by a node that answers; something where none does."""
        for n, node in enumerate(self.rabbit.nodes):
            if node.running:
                try:
                    queues = self.rabbit.api("GET", "queues?columns=name,messages", node=n)
                except OSError:
                    continue
                return {each["name"]: each.get("messages", 1) for each in queues if each.get("messages", 1)}
        return {"no node answers": 1}
