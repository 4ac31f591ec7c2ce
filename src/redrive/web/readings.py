"""What the pages read, at most so often: the questions of the first page, the charts, and a row a kind."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from redrive import situation
from redrive.amqp.management import Broker, Queued, routed, seen
from redrive.kinds import ALL
from redrive.stats import Stats
from redrive.web.chart import Chart, charts
from redrive.words import span

if TYPE_CHECKING:
    from collections.abc import Callable

    from redrive.kinds import Kind
    from redrive.situation import Part
    from redrive.stats import Deploy, Depth, Sum
    from redrive.web.app import Desk

AGES = {"late": 10.0, "flow": 30.0, "working": 15.0, "failing": 30.0, "stuck": 30.0, "planned": 30.0, "postgres": 30.0}
"""Seconds for which what was read is good enough for everybody who looks."""
CHARTS_AGE = 60.0
BROKER_AGE, BROKER_TIMEOUT = 10.0, 1.0


def part(desk: Desk, name: str) -> Part:
    """Read one of the questions, or take what was read a moment ago."""
    reading = situation.Reading(desk.reader.ask, desk.queue.settings, desk.timeouts, desk.queue.worker_command)
    reads: dict[str, Callable[[], Part]] = {
        "late": lambda: situation.late(reading, part(desk, "working").rows["workers"]),
        "flow": lambda: situation.flow(Stats(desk.reader)),
        "failing": lambda: situation.failing(reading, part(desk, "late").rows["jobs by kind"]),
        "working": lambda: situation.working(reading),
        "stuck": lambda: situation.stuck(reading),
        "planned": lambda: situation.planned(reading),
        "postgres": lambda: situation.postgres(reading, lambda: datetime.now(UTC)),
    }
    return desk.shared.get(name, AGES[name], reads[name])


def at_broker(desk: Desk) -> Broker | None:
    """Ask the broker how it stands, for a second at most; None where no kind goes there and none is named."""
    kinds = routed(part(desk, "late").rows["kinds"])
    settings = desk.queue.settings
    if not kinds and not settings.broker_management_url:
        return None
    return desk.shared.get(
        ("broker", frozenset(kinds)),
        BROKER_AGE,
        lambda: seen(settings, kinds, known_kinds(desk), timeout=BROKER_TIMEOUT),
    )


def drawn(desk: Desk, chosen: str, kind: str | None = None) -> Drawn:
    """Draw what happened within a span, of all kinds or of one."""

    def draw() -> Drawn:
        counted = Stats(desk.reader)
        steps = counted.series(chosen, kind=kind)
        deploys = counted.deploys(chosen)
        return Drawn(charts(steps, deploys), deploys, steps)

    return desk.shared.get(("charts", chosen, kind), CHARTS_AGE, draw)


@dataclass(frozen=True)
class Drawn:
    """Charts, and the numbers behind them."""

    charts: list[Chart]
    deploys: list[Deploy]
    steps: list[Sum]


@dataclass
class Row:
    """What there is to say of a kind."""

    kind: str
    depth: Depth | None = None
    running: int = 0
    longest: float | None = None
    hour: int = 0
    day: int = 0
    mostly: str = ""
    set: Kind | None = None
    there: Queued | None = None
    """What there is of it at the broker."""
    comes: float = 0.0
    """Jobs a second; as *goes*."""
    goes: float = 0.0

    @property
    def age(self) -> float:
        """Seconds for which its oldest due job waits."""
        return (self.depth.oldest_due or 0.0) if self.depth else 0.0

    @property
    def drains(self) -> str:
        """Say in how long what is due will be done, at the rates of the last minutes."""
        if self.depth is None or not self.depth.due:
            return ""
        if self.goes <= self.comes:
            return "grows" if self.comes > self.goes else "not at this rate"
        least = "over " if self.depth.capped(self.depth.pending) else ""
        return least + span(self.depth.due / (self.goes - self.comes))


def pressure(desk: Desk) -> list[Row]:
    """Put together a row a kind, the one whose oldest job waits longest first."""
    late, flow, failing, stuck = (part(desk, name) for name in ("late", "flow", "failing", "stuck"))
    rows: dict[str, Row] = {}

    def row(kind: str) -> Row:
        return rows.setdefault(kind, Row(kind))

    for depth in late.rows["jobs by kind"]:
        row(depth.kind).depth = depth
        row(depth.kind).running = depth.running
    for each in stuck.rows["running jobs"]:
        row(each.kind).longest = each.longest
    for each in failing.rows["failures"]:
        found = row(each.kind)
        found.hour, found.day, found.mostly = each.hour, each.day, each.mostly
    for each in filter(lambda kind: kind.kind != ALL, late.rows["kinds"]):
        row(each.kind).set = each
    for each in flow.rows["in"]:
        row(each.kind).comes = each.rate
    for each in flow.rows["out"]:
        row(each.kind).goes = each.rate
    for kind in {kind for worker in part(desk, "working").rows["workers"] if worker.alive for kind in worker.kinds}:
        row(kind)
    now = at_broker(desk)
    for there in now.kinds if now is not None else ():
        row(there.kind).there = there
    return sorted(rows.values(), key=lambda found: (-found.age, -found.hour, found.kind))


def known_kinds(desk: Desk) -> list[str]:
    """List the kinds that have jobs, limits or a live worker."""
    late = part(desk, "late")
    live = {kind for worker in part(desk, "working").rows["workers"] if worker.alive for kind in worker.kinds}
    return sorted(
        {*(row.kind for row in late.rows["jobs by kind"]), *(row.kind for row in late.rows["kinds"]), *live} - {ALL}
    )
