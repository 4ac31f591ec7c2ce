"""Which lanes a worker looks in, in which order, and from where: its memory between two claims. No database here.

A lane is a kind, a priority and a lane name. The order is priority, then turn and turn about, so that a flood of one
kind does not starve another. A *rich* lane filled its last quota: there is more where it stopped, so the next claim
starts there, at its mark, over the dead entries that a long transaction elsewhere may keep. Any other lane is looked
at from its head, as long as that is not measured to be slow; all are now and then, for jobs that were committed late.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from redrive.job import moment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from redrive.job import ClaimedJob

HEAD = (-(2**63), -(2**63))
LOOK_BACK = 2_000_000
PATIENCE = 20
"""A look from the head is followed by a pause of this many times its own duration."""
SLOW = 0.005
"""Seconds under which a look from the head is too cheap to be counted."""
DEFAULT_PRIORITY = 5
PAGE = 500
FORGET_AFTER = 600.0


@dataclass(slots=True)
class Lane:
    """What is remembered of one lane."""

    kind: str
    priority: int
    name: str
    rich: bool = True
    mark: tuple[int, int] = HEAD
    """How far it was claimed: run_at in microseconds since 2000, and id."""
    seen: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One claim: lanes in order, each with its quota and where to start."""

    lanes: Sequence[Lane]
    quotas: Sequence[int]
    marks: Sequence[tuple[int, int]]
    limit: int
    head: bool
    """Lanes that are known to be poor are looked at from their heads. A lane never claimed from always is."""
    whole: bool
    """Every lane is looked at from its head."""

    def params(self) -> dict[str, Any]:
        """Give the claim's parameters."""
        return {
            "kinds": [lane.kind for lane in self.lanes],
            "priorities": [lane.priority for lane in self.lanes],
            "lanes": [lane.name for lane in self.lanes],
            "quotas": list(self.quotas),
            "marks": [_time(mark[0]) for mark in self.marks],
            "mark_ids": [mark[1] for mark in self.marks],
            "limit": self.limit,
        }


class Survey:
    """The pages of a survey of all lanes: as long as there are more, say ``survey_lanes`` and add its answer."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self.rows: list[Any] = []
        self.more = True
        self._after = dict.fromkeys(kinds, (-1, ""))

    def params(self) -> dict[str, Any]:
        """Give the parameters of the next page."""
        after = self._after.values()
        return {
            "kinds": list(self._after),
            "priorities": [priority for priority, _ in after],
            "lanes": [lane for _, lane in after],
            "page": PAGE,
        }

    def add(self, rows: Sequence[Any]) -> None:
        """Take a page."""
        self.rows += rows
        self.more = len(rows) >= PAGE
        for row in rows:
            # Kinds that a full page had no room for come first on the next.
            last = self._after.pop(row.kind, (-1, ""))
            self._after[row.kind] = max(last, (row.priority, row.lane))


class Lanes:
    """The lanes of one worker's kinds."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._lanes: dict[tuple[str, int, str], Lane] = {}
        self._turn: deque[tuple[str, int, str]] = deque()
        self._head_at = 0.0
        self._sweep_at = 0.0
        for kind in kinds:
            self._add((kind, DEFAULT_PRIORITY, ""), now=float("inf"), rich=False)

    def surveyed(self, rows: Iterable[Any], now: float) -> tuple[bool, float]:
        """Learn what a survey found; gives whether a lane has due jobs, and the seconds until the next is due."""
        due, soonest = False, float("inf")
        for row in rows:
            key = (row.kind, row.priority, row.lane)
            lane = self._lanes.get(key) or self._add(key, now=now, rich=True)
            lane.seen = max(lane.seen, now)
            if row.due_in <= 0:
                due = True
            else:
                soonest = min(soonest, row.due_in)
        for key in [key for key, lane in self._lanes.items() if lane.seen < now - FORGET_AFTER]:
            del self._lanes[key]
            self._turn.remove(key)
        return due, soonest

    def plan(self, limit: int, share: Callable[[str], int], now: float) -> Plan:
        """Plan a claim of up to *limit* jobs, of each lane at most what *share* says of its kind."""
        self._turn.rotate(-1)
        ordered = sorted((self._lanes[key] for key in self._turn), key=lambda lane: (lane.priority, lane.rich))
        head = now >= self._head_at
        sweep = head and now >= self._sweep_at
        quotas, marks = [], []
        for _, group in groupby(ordered, key=lambda lane: lane.priority):
            peers = list(group)
            fair = -(-limit // max(1, sum(lane.rich for lane in peers)))
            for lane in peers:
                quotas.append(max(1, min(fair, share(lane.kind))))
                marks.append(self._start(lane, head=head, sweep=sweep))
        return Plan(ordered, quotas, marks, limit, head=head, whole=all(mark is HEAD for mark in marks))

    def claimed(self, plan: Plan, jobs: Sequence[ClaimedJob], took: float, now: float) -> list[ClaimedJob]:
        """Learn from a claim's answer, which took *took* seconds; gives the jobs in the order in which to run them."""
        # Only then: drawn out by every claim that has some lane's head in it, the pause would never end for the others.
        if plan.head:
            pause = took * PATIENCE if took > SLOW * (1 + len(jobs) / 50) else 0.0
            self._head_at = now + pause
            if plan.whole:
                self._sweep_at = now + max(1.0, pause)
        found: dict[tuple[str, int, str], list[ClaimedJob]] = {}
        for job in jobs:
            found.setdefault(_by_lane(job), []).append(job)
        ordered: list[ClaimedJob] = []
        full = len(jobs) >= plan.limit
        for lane, quota in zip(plan.lanes, plan.quotas, strict=True):
            reached = not full or len(ordered) < plan.limit
            taken = sorted(found.get((lane.kind, lane.priority, lane.name), ()), key=_by_time)
            if taken:
                lane.mark = max(lane.mark, _by_time(taken[-1]))
                lane.seen = max(lane.seen, now)
                ordered += taken
            if reached:  # where the claim's own limit cut a lane short there is more, as where its quota did
                cut = full and len(ordered) >= plan.limit
                lane.rich = bool(taken) and (cut or len(taken) >= quota)
        return ordered

    @property
    def head_held_until(self) -> float:
        """Until when looks from the head are held back because the last was slow, monotonic seconds."""
        return self._head_at

    @property
    def any_rich(self) -> bool:
        """Whether a lane is known to hold more than was taken."""
        return any(lane.rich for lane in self._lanes.values())

    def _start(self, lane: Lane, *, head: bool, sweep: bool) -> tuple[int, int]:
        if sweep or (head and not lane.rich) or lane.mark is HEAD:
            return HEAD
        if lane.rich:
            return lane.mark
        return lane.mark[0] - LOOK_BACK, 0

    def _add(self, key: tuple[str, int, str], *, now: float, rich: bool) -> Lane:
        lane = self._lanes[key] = Lane(*key, rich=rich, seen=now)
        self._turn.append(key)
        return lane


def _time(microseconds: int) -> str:
    """Spell a mark; before the first year that Python knows, it is the head."""
    there = moment(microseconds)
    return there.isoformat() if there > moment(HEAD[0]) else "-infinity"


_by_lane = attrgetter("kind", "priority", "lane")
_by_time = attrgetter("due", "id")
