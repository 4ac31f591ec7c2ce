"""Which lanes a worker looks in, in which order, and from where: its memory between two claims. No database here.

A lane is a kind, a priority and a lane name. The order is priority, then turn and turn about, so that a flood of one
kind does not starve another. A *rich* lane filled its last quota: there is more where it stopped, so the next claim
starts there, over the dead entries that a long transaction elsewhere may keep. Any other lane is looked
at from its head, as long as that is not measured to be dear. While it is, lanes are looked at from shortly before
their marks, and for jobs that were committed late the way behind is looked through piece by piece.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from redrive.job import moment
from redrive.limits import Limits
from redrive.looks import Looks
from redrive.trail import HEAD, Point, Trail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from redrive.job import ClaimedJob

PATIENCE = 40
"""A look at the way behind is followed by a pause of this many times what it took, see :meth:`Looks.fair`."""
BREATH = 3
"""And of this many times its duration at the least, however busy the server is."""
LONGEST = 5.0
"""The longest such pause: what took longer than a piece does was held up by something else, or is split now."""
MOST_PIECES = 500
STRIKES = 3
SWEEP_EVERY = 1.0
"""Seconds after which rich lanes too are looked at from their heads, where that is cheap."""
STARVING = 60.0
"""Seconds of waiting behind more important lanes after which a lane gets its share all the same."""
EVERY = 10
"""That share: of this many jobs one, so that the last priority still runs."""
DEFAULT_PRIORITY = 5
PAGE = 500
"""Lanes that a survey finds at once."""
MOST_LANES = 1000
"""Lanes that one claim looks in: it takes no more jobs than that, so of more lanes it would not come to all."""
FORGET_AFTER = 600.0
NEVER = 2**63 - 1
"""The time infinity, as Postgres sends it."""
_BEFORE_ALL, _AFTER_ALL = (-1, ""), (2**15 - 1, "")

Key = tuple[str, int, str]
Piece = tuple[Point, Point]


@dataclass(slots=True)
class Lane:
    """What is remembered of one lane."""

    kind: str
    priority: int
    name: str
    rich: bool = True
    seen: float = 0.0
    due_since: float = float("inf")
    """Since when, at least, its first job is due, monotonic seconds; infinity where none is known to be."""
    trail: Trail = field(default_factory=Trail)
    at: Point = HEAD
    """Where the last claim that found something stopped; behind the mark, if what it found was committed late."""


class Survey(NamedTuple):
    """What a look at all lanes has found."""

    due: bool
    """Some lane has due jobs that may be had."""
    due_in: float
    """Seconds until the first job of all others is due."""
    suspects: bool
    """A job waits for its trial, see ``claim_alone``."""
    more: bool
    """There may be lanes that it had no room for: look again."""
    batches: bool
    """A batch has not ended, as far as somebody has looked."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One claim: lanes in order, each with its quota and where to start."""

    lanes: Sequence[Lane]
    quotas: Sequence[int]
    starts: Sequence[Point]
    limit: int
    ends: Sequence[Point] = ()
    """Where to stop, when pieces of the way behind are looked through."""
    whole: bool = False
    """Every lane is looked at from its head."""
    limited: bool = False
    """Its kinds have limits."""

    def params(self) -> dict[str, Any]:
        """Give the claim's parameters."""
        return {
            "kinds": [lane.kind for lane in self.lanes],
            "priorities": [lane.priority for lane in self.lanes],
            "lanes": [lane.name for lane in self.lanes],
            "quotas": list(self.quotas),
            "limit": self.limit,
            "starts": [_time(start[0]) for start in self.starts],
            "start_ids": [start[1] for start in self.starts],
            "ends": [_time(end[0]) for end in self.ends],
            "end_ids": [end[1] for end in self.ends],
        }


class Lanes:
    """The lanes of one worker's kinds."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self.swept_until = 0.0
        """When the next look at the way behind is due, monotonic seconds."""
        self.heads_are_cheap = True
        self.limits = Limits()
        self._kinds = list(kinds)
        self._lanes: dict[Key, Lane] = {}
        self._turn: deque[Key] = deque()
        self._looks = Looks()
        self._behind: deque[tuple[Lane, Piece]] = deque()
        self._reach = MOST_PIECES
        self._clock = float("inf")
        """Monotonic seconds less those of the database's clock."""
        self._owed = 0  # jobs since a starving lane had its share
        self._served = 0  # lanes whose turn the last claim has used up
        self._spent = 0.0
        self._strikes = 0
        for kind in self._kinds:
            self._add((kind, DEFAULT_PRIORITY, ""), now=float("inf"), rich=False)

    def look(self) -> dict[str, Any]:
        """Give the parameters of a survey: where each known lane goes on, and the gaps in which unknown ones may be."""
        known = sorted(self._lanes.values(), key=_by_lane)
        starts = [self._start(lane) for lane in known]
        gaps = []
        for kind, group in groupby(known, key=lambda lane: lane.kind):
            places = [(lane.priority, lane.name) for lane in group]
            gaps += [(kind, *gap) for gap in zip([_BEFORE_ALL, *places], [*places, _AFTER_ALL], strict=True)]
        return {
            "kinds": [lane.kind for lane in known],
            "priorities": [lane.priority for lane in known],
            "lanes": [lane.name for lane in known],
            "starts": [_time(start[0]) for start in starts],
            "start_ids": [start[1] for start in starts],
            "gap_kinds": [kind for kind, _, _ in gaps],
            "after_priorities": [after[0] for _, after, _ in gaps],
            "after_lanes": [after[1] for _, after, _ in gaps],
            "before_priorities": [before[0] for _, _, before in gaps],
            "before_lanes": [before[1] for _, _, before in gaps],
            "page": PAGE,
        }

    def surveyed(self, rows: Sequence[Any], took: float, now: float) -> Survey:
        """Learn what a survey found in *took* seconds; its last row is about no lane but says what holds for all."""
        *found, last = rows
        new, due, due_in = 0, False, float("inf")
        self._clock = now - last.run_at / 1e6
        firsts: dict[Key, Any] = {}
        self.limits.learn(last)
        for row in found:
            key = (row.kind, row.priority, row.lane)
            new += key not in self._lanes
            lane = self._lanes.get(key) or self._add(key, now=now, rich=True)
            lane.seen = max(lane.seen, now)
            firsts[key] = row
            wait = (row.run_at - last.run_at) / 1e6 if row.run_at < NEVER else float("inf")
            if wait <= 0:
                lane.due_since = now + wait
                wait = max(0.0, self.limits.until(row.kind) - now)
            if wait > 0:
                due_in = min(due_in, wait)
            else:
                due = True
        for key, lane in self._lanes.items():
            if key not in firsts or firsts[key].run_at > last.run_at:
                lane.due_since = float("inf")
        if self.heads_are_cheap:
            self._judge(took, 0, now)
        else:  # nothing that is visible comes before what was found, so there is nothing to walk over once more
            for key, lane in self._lanes.items():
                first = firsts.get(key)
                before = (last.run_at, 0)  # never past now: what is put back, or enqueued, is due from now on
                if first is not None:
                    before = min(before, (first.run_at, first.id - 1))
                lane.trail.advance(before, 0)
                lane.at, lane.rich = max(lane.at, before), lane.rich and first is not None
        for key in [key for key, lane in self._lanes.items() if lane.seen < now - FORGET_AFTER]:
            del self._lanes[key]
            self._turn.remove(key)
        return Survey(due, due_in, last.suspects, more=new >= PAGE, batches=last.batches)

    def plan(self, limit: int, share: Callable[[str], int], now: float, *, limited: bool = False) -> Plan:
        """Plan a claim of up to *limit* jobs, of each lane at most what *share* says of its kind.

        Kinds with limits are claimed apart from the others, by another statement: *limited* says which of the two.
        """
        self._turn.rotate(-max(1, self._served))
        asked = (self._lanes[key] for key in self._turn)
        ordered = sorted((lane for lane in asked if self._may_be_asked(lane, now, limited=limited)), key=_by_urgency)
        starving = self._starving(ordered, now)
        if len(ordered) > MOST_LANES:
            ordered = _most_promising(ordered)
        whole = self.heads_are_cheap and now >= self.swept_until
        quotas = []
        for _, group in groupby(ordered, key=lambda lane: lane.priority):
            peers = list(group)
            fair = -(-limit // max(1, sum(lane.rich for lane in peers)))
            quotas += [max(1, min(fair, share(lane.kind))) for lane in peers]
        if starving is not None and (owed := self._owe(limit)):
            quota = max(1, share(starving.kind))
            if (place := next((n for n, lane in enumerate(ordered) if lane is starving), None)) is not None:
                del ordered[place]
                quota = quotas.pop(place)
            ordered.insert(0, starving)
            quotas.insert(0, min(owed, quota))
        starts = [HEAD if whole else self._start(lane) for lane in ordered]
        return Plan(ordered, quotas, starts, limit, whole=whole, limited=limited)

    def _starving(self, ordered: Sequence[Lane], now: float) -> Lane | None:
        """Find the lane that has waited longest behind more important ones, and too long; None where none has."""
        late = [lane for lane in ordered if now - lane.due_since > STARVING and lane.priority > ordered[0].priority]
        return min(late, key=attrgetter("due_since"), default=None)

    def _owe(self, limit: int) -> int:
        owed, self._owed = divmod(self._owed + limit, EVERY)
        return owed

    def claimed(self, plan: Plan, jobs: Sequence[ClaimedJob], took: float, now: float) -> list[ClaimedJob]:
        """Learn from a claim's answer, which took *took* seconds; gives the jobs in the order in which to run them."""
        if self.heads_are_cheap and any(start is HEAD for start in plan.starts):
            self._judge(took, len(jobs), now)
        if plan.whole and self.heads_are_cheap:
            self.swept_until = now + SWEEP_EVERY
        self._looks.learn(took, len(jobs), now, from_marks=not any(start is HEAD for start in plan.starts))
        found = _by_lanes(jobs)
        ordered: list[ClaimedJob] = []
        full = len(jobs) >= plan.limit
        self._served = sum(
            len(found.get((lane.kind, lane.priority, lane.name), ())) >= quota
            for lane, quota in zip(plan.lanes, plan.quotas, strict=True)
        )
        for lane, quota in zip(plan.lanes, plan.quotas, strict=True):
            reached = not full or len(ordered) < plan.limit
            taken = found.get((lane.kind, lane.priority, lane.name), [])
            if taken:
                lane.at = _by_time(taken[-1])
                lane.trail.advance(lane.at, len(taken))
                lane.seen = max(lane.seen, now)
                lane.due_since = min(now, taken[-1].due / 1e6 + self._clock)
                ordered += taken
            elif reached and not plan.limited:
                lane.due_since = float("inf")
            if reached:  # where the claim's own limit cut a lane short there is more, as where its quota did
                cut = full and len(ordered) >= plan.limit
                lane.rich = bool(taken) and (cut or len(taken) >= quota)
        if plan.limited and not full:
            self.limits.exhausted({lane.kind for lane in plan.lanes}, now)
        return ordered

    def sweep(self, limit: int, share: Callable[[str], int], now: float) -> Plan | None:
        """Plan a claim of what became visible behind the marks, a few pieces of the way; None where none is due."""
        if self.heads_are_cheap or now < self.swept_until:
            return None
        if not self._behind:
            by_priority = sorted(self._lanes.values(), key=lambda lane: (lane.kind in self.limits, lane.priority))
            self._behind.extend((lane, piece) for lane in by_priority for piece in lane.trail.pieces())
        if not self._behind:
            return None  # nothing was claimed as yet, and no survey has said how far there is nothing
        few = [self._behind.popleft()]
        reach = 1 if _is_long_from(*few[0]) else self._reach  # the others say nothing of its head, where most is dead
        limited = few[0][0].kind in self.limits
        while len(few) < reach and self._behind and (self._behind[0][0].kind in self.limits) == limited:
            if _is_long_from(*self._behind[0]):
                break
            few.append(self._behind.popleft())
        quotas = [max(1, min(limit, share(lane.kind))) for lane, _ in few]
        starts, ends = [piece[0] for _, piece in few], [piece[1] for _, piece in few]
        return Plan([lane for lane, _ in few], quotas, starts, limit, ends, limited=limited)

    def swept(self, plan: Plan, jobs: Sequence[ClaimedJob], took: float, now: float) -> list[ClaimedJob]:
        """Learn from the answer to a claim behind the marks; gives the jobs in the order in which to run them."""
        few = list(zip(plan.lanes, zip(plan.starts, plan.ends, strict=True), strict=True))
        found = _by_lanes(jobs)
        if len(jobs) >= min(plan.limit, *plan.quotas):
            self._behind.extendleft(reversed(few))
        else:
            fair = self._looks.fair(took)
            self._learn_reach(few, fair)
            self._spent += max(0.0, fair - self._looks.quickest)
            if not self._behind:  # once through: while that costs so little, it may as well be done each time
                self.heads_are_cheap, self._spent = self._spent <= self._looks.a_piece, 0.0
            self.swept_until = now + min(max(fair * PATIENCE, took * BREATH), LONGEST)
        return sorted((job for of_lane in found.values() for job in of_lane), key=attrgetter("priority"))

    @property
    def any_rich(self) -> bool:
        """Whether a lane is known to hold more than was taken."""
        return any(lane.rich and lane.kind not in self.limits for lane in self._lanes.values())

    def due_kinds(self, now: float = float("inf")) -> set[str]:
        """Name the kinds with due jobs, as far as is known; without *now*, as of the last look."""
        return {lane.kind for lane in self._lanes.values() if lane.due_since <= now and lane.due_since < float("inf")}

    def asks_limits(self, now: float) -> bool:
        """Whether a kind with limits has due jobs, as far as is known, and may have room for them."""
        return bool(self.limits) and self.limits.may_open(self.due_kinds(now), now)

    def _may_be_asked(self, lane: Lane, now: float, *, limited: bool) -> bool:
        return limited and self.limits.until(lane.kind) <= now if lane.kind in self.limits else not limited

    def _learn_reach(self, few: Sequence[tuple[Lane, Piece]], took: float) -> None:
        """Look at more pieces at once, or at half as many, down to the one that is dear, which is split."""
        dear = self._looks.a_piece
        if took > 4 * dear and len(few) > 1:
            self._behind.extendleft(reversed(few))
            self._reach = len(few) // 2
            return
        if took > dear and len(few) == 1:
            lane, piece = few[0]
            lane.trail.split(piece)
        if _is_long_from(*few[0]):
            return
        if took > dear:
            self._reach = max(1, self._reach // 2)
        elif took < dear / 2:
            self._reach = min(MOST_PIECES, self._reach + max(3, self._reach // 4))

    def _judge(self, took: float, jobs: int, now: float) -> None:
        """Stop looking from the heads once that was dear three times running: once, it may have been a busy machine."""
        dear = self._looks.dear_from(jobs)
        took = self._looks.fair(took)
        self._strikes = self._strikes + 1 if took > dear else 0
        if self._strikes == STRIKES or took > 10 * dear:
            self.heads_are_cheap, self._strikes, self._spent, self.swept_until = False, 0, 0.0, now
            self._behind.clear()

    def _start(self, lane: Lane) -> Point:
        if lane.rich:
            return lane.at
        return HEAD if self.heads_are_cheap else lane.trail.shortly_before()

    def _add(self, key: Key, *, now: float, rich: bool) -> Lane:
        lane = self._lanes[key] = Lane(*key, rich=rich, seen=now)
        self._turn.append(key)
        return lane


def _is_long_from(lane: Lane, piece: Piece) -> bool:
    return piece[0] is HEAD and lane.trail.is_long


def _most_promising(ordered: Sequence[Lane]) -> list[Lane]:
    """Choose those that are known to have something due, and then of the others, of which the next survey will tell."""
    due = [lane for lane in ordered if lane.due_since < float("inf")][:MOST_LANES]
    others = (lane for lane in ordered if lane.due_since == float("inf"))
    return sorted([*due, *islice(others, MOST_LANES - len(due))], key=_by_urgency)


def _by_lanes(jobs: Iterable[ClaimedJob]) -> dict[Key, list[ClaimedJob]]:
    found: dict[Key, list[ClaimedJob]] = {}
    for job in jobs:
        found.setdefault((job.kind, job.priority, job.lane), []).append(job)
    for taken in found.values():
        taken.sort(key=_by_time)
    return found


def _time(microseconds: int) -> str:
    """Spell a time; before the first year that Python knows it is before all, after the last after all."""
    there = moment(microseconds)
    if there == moment(HEAD[0]):
        return "-infinity"
    return "infinity" if there == moment(NEVER) else there.isoformat()


_by_lane = attrgetter("kind", "priority", "name")
_by_urgency = attrgetter("priority", "rich")
_by_time = attrgetter("due", "id")
