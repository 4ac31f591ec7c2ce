"""Which faults a run over a broker has, and who works in it."""

from __future__ import annotations

from dataclasses import dataclass

from chaos.brokered.stage import BrokeredStage
from chaos.crew import WORKER, Slot
from chaos.plan import Planned
from chaos.plan import plan as drawn

GRAND = {
    # name: how long it lasts, seconds, from and to
    "a node lost": (0.0, 4.0),
    "memory alarm": (1.0, 4.0),
    "broker killed": (0.0, 3.0),
    "restart, immediate": (0.0, 4.0),
    "postgres away": (6.0, 10.0),
    "read-only": (1.0, 4.0),
}
SMALL = {
    "kill": (0.0, 0.0),
    "freeze": (6.0, 8.0),
    "stop": (0.0, 0.0),
    "sent, and not told": (0.8, 1.6),
    "broker cut": (0.0, 0.0),
    "broker black hole": (1.0, 7.0),
    "broker refuses": (0.5, 2.0),
    "broker delay": (1.0, 3.0),
    "queue full": (1.0, 3.0),
    "routed back": (0.5, 2.0),
    "end a session": (0.0, 0.0),
    "cut": (0.0, 0.0),
    "black hole": (1.0, 7.0),
    "row locks": (1.0, 3.0),
}
OFTEN = {"kill": 3, "sent, and not told": 2, "broker cut": 2, "routed back": 3, "queue full": 2}
BETWEEN = 20
"""Small faults between two grand ones: a cluster takes half a minute to come back."""
TOLD = {
    "kill": "SIGKILL to a worker or a relay",
    "freeze": "SIGSTOP to one of them, past its lease, then SIGCONT",
    "stop": "SIGTERM to one of them",
    "sent, and not told": "a relay killed when the broker had its messages, and the table did not know",
    "broker cut": "all connections of a path to the broker cut at once",
    "broker black hole": "nothing passes on that path, and nobody is told",
    "broker refuses": "connections to the broker cut, and none taken",
    "broker delay": "every packet to or from the broker late by 20 to 220 ms",
    "queue full": "`max-length` 5 with `reject-publish` on every queue: the broker refuses what it is sent",
    "routed back": "a kind routed to Postgres and then to the broker again, under load",
    "end a session": "`pg_terminate_backend` of one of redrive's sessions",
    "cut": "all connections of a path to Postgres cut at once",
    "black hole": "nothing passes on that path, and nobody is told",
    "row locks": "rows of running and waiting jobs locked",
    "a node lost": "SIGKILL to a node of the cluster, brought back after a while",
    "memory alarm": "a node out of memory: the cluster takes no messages",
    "broker killed": "SIGKILL to all nodes at once, all brought back",
    "restart, immediate": "Postgres crashed and started",
    "postgres away": "Postgres stopped for longer than a lease, and started",
    "read-only": "`default_transaction_read_only` on",
}
RELAYS = ("relay-one", "relay-two")
TABLE = "table"
"""The worker that takes jobs from the table, while their kind is not routed."""


@dataclass(frozen=True)
class Fault(Planned):
    """A fault to come."""

    @property
    def grand(self) -> bool:
        """Whether it strikes everybody and is therefore alone."""
        return self.name in GRAND


def plan(seed: int, seconds: float) -> list[Fault]:
    """Draw the faults of a run of that many seconds."""
    return [Fault(**vars(each)) for each in drawn(seed, seconds, SMALL, GRAND, OFTEN, between=BETWEEN)]


def fill(stage: BrokeredStage) -> list[Slot]:
    """Give the slots: two relays, three workers of the broker, one of the table."""
    relay = ("relay", WORKER[1])
    network, direct = stage.network.dsn, stage.direct

    def at(way: str) -> dict[str, str]:
        return {"REDRIVE_BROKER_URL": way}

    wire, outgoing, aside = (stage.amqp(way) for way in (stage.wire, stage.outgoing, stage.aside))
    return [
        Slot(RELAYS[0], "network", network, listen_dsn=direct, command=relay, env=at(outgoing)),
        Slot(RELAYS[1], "direct", direct, command=relay, env=at(aside)),
        Slot("one", "network", network, command=(*WORKER, "--broker", wire), env=at(wire)),
        Slot("two", "network", network, command=(*WORKER, "--broker", wire), env=at(wire)),
        Slot("three", "direct", direct, command=(*WORKER, "--broker", aside), env=at(aside)),
        Slot(TABLE, "direct", direct, env=at(aside)),
    ]
