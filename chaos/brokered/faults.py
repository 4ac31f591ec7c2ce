"""What the faults of a broker do; those of processes and of Postgres are the same as in every run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from chaos import faults
from chaos.brokered.plan import RELAYS, TABLE, Fault
from chaos.brokered.stage import Balancer, BrokeredStage
from chaos.crew import Slot
from chaos.orders import KINDS
from chaos.patience import wait_for
from chaos.scene import Scene, Skipped
from redrive import Queue

FULL = {"pattern": r"^redrive\.", "definition": {"max-length": 5, "overflow": "reject-publish"}, "apply-to": "queues"}


class BrokeredScene(Scene):
    """The run, as faults see it."""

    def __init__(self, stage: BrokeredStage, *rest: object) -> None:
        super().__init__(stage, *rest)  # type: ignore[arg-type] # the crew and the ledger, as there
        self.set = stage
        self.queue = Queue(stage.direct)

    def recovered(self, slots: list[Slot], since: float) -> float | None:
        """Give the seconds until all of them work again that run handlers; a relay by what comes through."""
        return super().recovered([slot for slot in slots if slot.name not in RELAYS] or self._workers(), since)

    def _workers(self) -> list[Slot]:
        return [slot for slot in self.crew.up() if slot.name not in RELAYS]

    def node(self) -> int:
        """Find a node that answers.

        Raises:
            Skipped: where none does: it is a fault of its own that is at work still.
        """
        nodes = range(len(self.set.rabbit.nodes))
        try:
            return wait_for(lambda: [n for n in nodes if self.set.rabbit.answers(n)], 60)[0]
        except AssertionError:
            raise Skipped("no node of the broker answered within a minute") from None

    @contextlib.contextmanager
    def broker_hit(self) -> Iterator[None]:
        """Note that nobody could be sure of the broker meanwhile."""
        with self.cut_off("*"):
            yield


def sent_and_not_told(scene: BrokeredScene, fault: Fault) -> float | None:
    """Withhold what the broker says to a relay, let it send, and kill it: its rows are there, and go out again."""
    [slot] = [slot for slot in scene.crew.slots if slot.name == RELAYS[0]]
    with scene.set.outgoing.silence():
        time.sleep(fault.lasts)
        pid = slot.pid
        if pid and not slot.frozen:
            scene.crew.kill(slot)
            wait_for(lambda: slot.pid != pid)
    return scene.recovered(scene.crew.up(), time.monotonic())


def queue_full(scene: BrokeredScene, fault: Fault) -> float | None:
    """Let the broker refuse what it is sent: the relay keeps it in the table, and nothing runs twice for that."""
    rabbit = scene.set.rabbit
    rabbit.api("PUT", "policies/%2f/full", FULL, node=scene.node())
    time.sleep(fault.lasts)
    _without_policy(scene)
    return scene.recovered(scene.crew.up(), time.monotonic())


def _without_policy(scene: BrokeredScene) -> None:
    def gone() -> bool:
        with contextlib.suppress(OSError):
            if scene.set.rabbit.api("GET", "policies/%2f", node=scene.node()):
                scene.set.rabbit.api("DELETE", "policies/%2f/full", node=scene.node())
            return not scene.set.rabbit.api("GET", "policies/%2f", node=scene.node())
        return False

    wait_for(gone, 60, every=0.2)


def routed_back(scene: BrokeredScene, fault: Fault) -> float | None:
    """Route a kind to Postgres, and to the broker again after a while. Nothing runs twice for that."""
    kind = list(KINDS)[int(fault.pick * len(KINDS))] if fault.pick < 0.5 else "quick"  # noqa: PLR2004 - a coin
    for route in ("postgres", "amqp"):
        scene.queue.kinds.route(kind, route, by="chaos")
        time.sleep(fault.lasts)
    return None


def _on_the_wire(scene: BrokeredScene, fault: Fault, strike: Callable[[Balancer], object]) -> float | None:
    way = scene.set.outgoing if fault.pick < 0.3 else scene.set.wire  # noqa: PLR2004 - three of ten
    with scene.cut_off("network"):
        strike(way)
    return scene.recovered(scene.coming_by("network"), time.monotonic())


def broker_cut(scene: BrokeredScene, fault: Fault) -> float | None:
    """End every connection to the broker by a way, without a goodbye."""
    return _on_the_wire(scene, fault, lambda way: way.cut())


def broker_black_hole(scene: BrokeredScene, fault: Fault) -> float | None:
    """Let nothing through, and tell nobody."""

    def swallow(way: Balancer) -> None:
        with way.black_hole():
            time.sleep(fault.lasts)

    return _on_the_wire(scene, fault, swallow)


def broker_refuses(scene: BrokeredScene, fault: Fault) -> float | None:
    """Cut all connections, and take no new ones for a while."""

    def shut(way: Balancer) -> None:
        with way.down():
            time.sleep(fault.lasts)

    return _on_the_wire(scene, fault, shut)


def broker_delay(scene: BrokeredScene, fault: Fault) -> float | None:
    """Let every packet take its time: nothing is broken by it, so nothing runs twice for it."""
    way = scene.set.outgoing if fault.pick < 0.3 else scene.set.wire  # noqa: PLR2004 - three of ten
    way.delay = 0.02 + 0.2 * fault.pick
    time.sleep(fault.lasts)
    way.delay = 0.0
    return scene.recovered(scene.coming_by("network"), time.monotonic())


def a_node_lost(scene: BrokeredScene, fault: Fault) -> float | None:
    """Kill one node, and bring it back."""
    rabbit = scene.set.rabbit
    node = int(fault.pick * len(rabbit.nodes))
    with scene.broker_hit():
        rabbit.kill(node)
        time.sleep(fault.lasts)
        rabbit.start(node)
    return scene.recovered(scene.crew.up(), time.monotonic())


def broker_killed(scene: BrokeredScene, fault: Fault) -> float | None:
    """Kill every node at once, and bring all back."""
    rabbit = scene.set.rabbit
    everybody = range(len(rabbit.nodes))
    with scene.broker_hit():
        rabbit.kill(*everybody)
        time.sleep(fault.lasts)
        rabbit.start(*everybody)
    return scene.recovered(scene.crew.up(), time.monotonic())


def memory_alarm(scene: BrokeredScene, fault: Fault) -> float | None:
    """Let the broker take no messages. What it has is run, and who waits for a confirmation gives up and asks again."""
    with scene.broker_hit(), scene.set.rabbit.memory_alarm(int(fault.pick * len(scene.set.rabbit.nodes))):
        time.sleep(fault.lasts)
    return scene.recovered(scene.crew.up(), time.monotonic())


def postgres_away(scene: BrokeredScene, fault: Fault) -> float | None:
    """Stop Postgres for longer than a lease: what is at the broker is run all the same."""
    with scene.outage():
        scene.stage.server.stop("fast")
        time.sleep(fault.lasts)
        scene.stage.server.start()
    return scene.recovered(scene.crew.up(), time.monotonic())


def route_all(scene: BrokeredScene) -> None:
    """Route every kind to the broker, and the echoes of its workers."""
    for kind in KINDS:
        scene.queue.kinds.route(kind, "amqp", by="chaos")
    for slot in scene.crew.slots:
        if slot.name not in (*RELAYS, TABLE):
            scene.queue.kinds.route(f"echo.{slot.name}", "amqp", by="chaos")


OURS: dict[str, faults.Strike] = {
    "sent, and not told": sent_and_not_told,
    "broker cut": broker_cut,
    "broker black hole": broker_black_hole,
    "broker refuses": broker_refuses,
    "broker delay": broker_delay,
    "queue full": queue_full,
    "routed back": routed_back,
    "a node lost": a_node_lost,
    "broker killed": broker_killed,
    "memory alarm": memory_alarm,
    "postgres away": postgres_away,
}
STRIKE: dict[str, faults.Strike] = {**faults.STRIKE, **OURS}
