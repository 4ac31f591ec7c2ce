"""Where a worker looks next: priority first, then fair, then oldest first; and nothing is overlooked for good."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redrive import lanes as lanes_module
from redrive.job import EPOCH
from redrive.lanes import BREATH, FORGET_AFTER, LONGEST, PATIENCE, STARVING, STRIKES, Lanes, Survey
from redrive.looks import DEAR
from redrive.trail import HEAD, LOOK_BACK
from support_engine import NOW, claimed

QUICK = DEAR / 4
SLOW = 0.1


def many(_kind: str) -> int:
    return 1000


def job(kind: str, number: int, *, priority: int = 5, lane: str = "", at: float = 0.0) -> Any:
    return claimed(kind, id=number, priority=priority, lane=lane, run_at=NOW + timedelta(seconds=at))


def micros(at: float) -> int:
    return (NOW + timedelta(seconds=at) - EPOCH) // timedelta(microseconds=1)


def instant(text: str) -> int:
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)


def found(kind: str, *, priority: int = 5, lane: str = "", due_in: float = -1.0, number: int = 1) -> Any:
    return SimpleNamespace(kind=kind, priority=priority, lane=lane, run_at=micros(due_in), id=number)


def about(now: int, **limits: float) -> Any:
    """Give the last row of a survey: the time, and the kinds with limits, each with its pause."""
    return SimpleNamespace(
        run_at=now,
        suspects=False,
        limited=list(limits),
        pauses=list(limits.values()),
        by_running=[True] * len(limits),
        breakers=None,
        batches=False,
    )


def surveyed(lanes: Lanes, *rows: Any, now: float = 1.0, took: float = QUICK) -> Survey:
    return lanes.surveyed([*rows, about(micros(0))], took, now)


def keys(plan: Any) -> list[tuple[str, int, str]]:
    return [(lane.kind, lane.priority, lane.name) for lane in plan.lanes]


@dataclass
class Table:
    """Pending rows by lane, and the claim as queries.sql says it."""

    rows: dict[tuple[str, int, str], list[Any]] = field(default_factory=dict)
    dead: dict[tuple[str, int, str], list[tuple[int, int]]] = field(default_factory=dict)
    """What was taken is still walked over."""
    walked: int = 0

    def add(self, *jobs: Any) -> None:
        for each in jobs:
            self.rows.setdefault((each.kind, each.priority, each.lane), []).append(each)
        for lane in self.rows.values():
            lane.sort(key=lambda one: (one.due, one.id))

    def survey(self, lanes: Lanes) -> list[Any]:
        look = lanes.look()
        known = zip(look["kinds"], look["priorities"], look["lanes"], strict=True)
        starts = dict(zip(known, zip(look["starts"], look["start_ids"], strict=True), strict=True))
        firsts = []
        for key, rows in self.rows.items():
            time, number = starts.get(key, ("-infinity", 0))
            start = HEAD if time == "-infinity" else (instant(time), number)
            ahead = [row for row in rows if (row.due, row.id) > start]
            first = (ahead[0].due, ahead[0].id) if ahead else (2**63, 0)
            self.walked += sum(start < each < first for each in self.dead.get(key, ()))
            firsts += ahead[:1]
        return [
            SimpleNamespace(**vars(found(r.kind, priority=r.priority, lane=r.lane)) | {"run_at": r.due, "id": r.id})
            for r in firsts
        ]

    def claim(self, plan: Any) -> list[Any]:
        taken: list[Any] = []
        ends = plan.ends or [(2**63, 0)] * len(plan.lanes)
        for lane, quota, start, end in zip(plan.lanes, plan.quotas, plan.starts, ends, strict=True):
            rows = self.rows.get((lane.kind, lane.priority, lane.name), [])
            ahead = [row for row in rows if start < (row.due, row.id) <= end]
            dead = self.dead.setdefault((lane.kind, lane.priority, lane.name), [])
            ahead = ahead[: min(quota, plan.limit - len(taken))]
            reached = (ahead[-1].due, ahead[-1].id) if len(ahead) == quota else end
            self.walked += sum(start < each <= reached for each in dead)
            for row in ahead:
                taken.append(row)
                rows.remove(row)
                dead.append((row.due, row.id))
        return taken[::-1]  # UPDATE … RETURNING promises no order

    @property
    def left(self) -> int:
        return sum(map(len, self.rows.values()))


@dataclass
class Claimer:
    """A worker's loop around its lanes: survey where nothing is known to be there, then claim."""

    table: Table
    lanes: Lanes
    now: float = 100.0
    step: float = 0.0
    """Seconds that it takes to walk over a dead entry."""
    clock: float = 10_000

    def took(self, walked: int) -> float:
        took = QUICK + (self.table.walked - walked) * self.step
        self.now += took
        return took

    def turn(self, limit: int, share: Any = many) -> list[Any]:
        self.now += 0.01
        jobs: list[Any] = []
        walked = self.table.walked
        if behind := self.lanes.sweep(limit, share, self.now):
            taken = self.table.claim(behind)
            jobs = self.lanes.swept(behind, taken, self.took(walked), self.now)
            assert len(jobs) <= limit
        if len(jobs) == limit:
            return jobs
        if not self.lanes.any_rich:
            walked = self.table.walked
            found = [*self.table.survey(self.lanes), about(micros(self.clock))]
            if not self.lanes.surveyed(found, self.took(walked), self.now).due:
                return jobs
        plan, walked = self.lanes.plan(limit - len(jobs), share, self.now), self.table.walked
        taken = self.table.claim(plan)
        jobs += self.lanes.claimed(plan, taken, self.took(walked), self.now)
        assert len(jobs) <= limit
        return jobs


class TestOrder:
    def test_a_lower_priority_number_runs_first_whatever_was_enqueued_first(self):
        table = Table()
        table.add(*(job("a", n, priority=9 - n, at=n) for n in range(10)))
        claimer = Claimer(table, Lanes(["a"]), clock=20)
        assert [one.priority for one in claimer.turn(100)] == list(range(10))

    def test_within_a_lane_the_oldest_run_at_comes_first_and_then_the_lowest_id(self):
        table = Table()
        table.add(job("a", 1, at=5), job("a", 4, at=-5), job("a", 3, at=5), job("a", 2, at=-5))
        assert [one.id for one in Claimer(table, Lanes(["a"])).turn(100)] == [2, 4, 1, 3]

    def test_priority_comes_before_run_at(self):
        """CL-07: documented order; an old unimportant job does not beat a new important one."""
        table = Table()
        table.add(job("a", 1, priority=6, at=-3600), job("b", 2, priority=5, at=0))
        assert [one.id for one in Claimer(table, Lanes(["a", "b"])).turn(1)] == [2]

    def test_a_delayed_job_holds_up_nothing_else_of_its_lane(self):
        """CL-08: the survey of a lane whose first job is not due says when it will be."""
        lanes = Lanes(["a"])
        seen = surveyed(lanes, found("a", due_in=3600), found("a", lane="x", due_in=7))
        assert (seen.due, seen.due_in) == (False, 7)
        seen = surveyed(lanes, found("a", due_in=3600), found("a", lane="x", due_in=0))
        assert (seen.due, seen.due_in) == (True, 3600)


class TestFairness:
    def test_a_flood_of_one_kind_leaves_the_other_kinds_their_turn(self):
        table = Table()
        table.add(*(job("export", n) for n in range(1000)))
        table.add(*(job("mail", n) for n in range(2000, 2003)))
        claimer = Claimer(table, Lanes(["export", "mail"]))
        kinds = Counter(one.kind for one in claimer.turn(10))
        assert kinds["mail"] == 3

    def test_two_floods_share_evenly_even_one_slot_at_a_time(self):
        for limit in (1, 2, 3, 10):
            table = Table()
            table.add(*(job("a", n) for n in range(1000)), *(job("b", n) for n in range(1000, 2000)))
            claimer = Claimer(table, Lanes(["a", "b"]))
            kinds = Counter(one.kind for _ in range(100) for one in claimer.turn(limit))
            assert abs(kinds["a"] - kinds["b"]) <= limit, (limit, kinds)

    def test_a_flood_in_one_tenants_lane_leaves_the_other_tenants_theirs(self):
        table = Table()
        table.add(*(job("a", n, lane="big") for n in range(1000)))
        table.add(*(job("a", n, lane=f"small{n}") for n in range(6000, 6020)))
        claimer = Claimer(table, Lanes(["a"]))
        first = [one for _ in range(6) for one in claimer.turn(10)]
        assert sum(one.lane != "big" for one in first) == 20

    def test_no_lane_is_asked_for_more_than_the_share_of_its_kind(self):
        table = Table()
        table.add(*(job("slow", n) for n in range(100)), *(job("quick", n) for n in range(100, 200)))
        claimer = Claimer(table, Lanes(["slow", "quick"]))
        kinds = Counter(one.kind for one in claimer.turn(50, lambda kind: 4 if kind == "slow" else 1000))
        assert kinds["slow"] <= 4

    def test_a_share_of_nothing_still_looks_for_one(self):
        lanes = Lanes(["a"])
        assert list(lanes.plan(10, lambda _kind: 0, 100.0).quotas) == [1]


class TestMoreLanesThanAClaimLooksIn:
    @pytest.fixture(autouse=True)
    def _few(self, monkeypatch):
        monkeypatch.setattr(lanes_module, "MOST_LANES", 10)

    @pytest.mark.parametrize("limit", [1, 7, 10])
    def test_none_is_passed_over_and_all_have_their_turn(self, limit):
        table = Table()
        table.add(*(job("a", 100 * n + lane, lane=f"tenant{lane}") for lane in range(60) for n in range(5)))
        claimer, taken = Claimer(table, Lanes(["a"])), []
        looked_in = []
        table.claim = lambda plan: looked_in.append(len(plan.lanes)) or Table.claim(table, plan)
        while table.left and len(looked_in) < 1000:
            taken += claimer.turn(limit)
        assert sorted(one.id for one in taken) == sorted(100 * n + lane for lane in range(60) for n in range(5))
        assert len({one.lane for one in taken[:120]}) == 60
        assert max(looked_in) == 10

    def test_those_known_to_hold_something_come_before_empty_ones_of_a_higher_priority(self):
        lanes = Lanes(["a"])
        surveyed(lanes, *(found("a", priority=1, lane=f"idle{n}", due_in=3600) for n in range(30)), now=100.0)
        for lane in lanes.plan(10, many, 100.0).lanes:
            lane.rich = False
        for _ in range(4):
            lanes.claimed(lanes.plan(10, many, 100.0), [], QUICK, 100.0)
        surveyed(lanes, found("a", priority=9, lane="due"), now=101.0)
        assert ("a", 9, "due") in keys(lanes.plan(10, many, 101.0))

    def test_one_that_starves_comes_first_though_there_is_no_room_for_it(self):
        lanes = Lanes(["a"])
        rows = [found("a", priority=1, lane=f"busy{n}") for n in range(30)]
        surveyed(lanes, *rows, found("a", priority=9, lane="late", due_in=-2 * STARVING), now=1000.0)
        assert keys(lanes.plan(10, many, 1000.0))[0] == ("a", 9, "late")


class TestStarvation:
    def crowd(self) -> Claimer:
        table = Table()
        table.add(*(job("a", n, priority=0) for n in range(2000)))
        table.add(*(job("b", n, priority=9) for n in range(5000, 5040)))
        return Claimer(table, Lanes(["a", "b"]))

    @pytest.mark.parametrize("limit", [1, 3, 10, 40])
    def test_the_last_priority_still_runs_every_tenth_job_once_it_has_waited_a_minute(self, limit):
        """CL-07: and priority still counts for the other nine."""
        claimer, taken = self.crowd(), []
        while len(taken) < 400:
            taken += claimer.turn(limit)
        share = [one.kind for one in taken].count("b")
        assert 36 <= share <= 40
        assert {one.kind for one in taken[:10]} == {"a", "b"} if limit >= 10 else True

    def test_before_that_minute_priority_is_strict(self):
        claimer = self.crowd()
        plan = claimer.lanes.plan(10, many, claimer.now)
        lanes = Lanes(["a", "b"])
        surveyed(
            lanes, found("a", priority=0, due_in=-3600), found("b", priority=9, due_in=-(STARVING - 1)), now=1000.0
        )
        for _ in range(30):
            plan = lanes.plan(10, many, 1000.0)
            assert [lane.priority for lane in plan.lanes] == sorted(lane.priority for lane in plan.lanes)


class TestLimits:
    def lanes(self) -> Lanes:
        lanes = Lanes(["a", "b"])
        lanes.surveyed([found("a"), found("b"), about(micros(0), b=0.5)], QUICK, 100.0)
        return lanes

    def test_kinds_with_limits_are_claimed_apart_from_the_others(self):
        lanes = self.lanes()
        assert keys(lanes.plan(10, many, 100.0)) == [("a", 5, "")]
        assert keys(lanes.plan(10, many, 100.0, limited=True)) == [("b", 5, "")]

    def test_a_kind_that_left_nothing_open_is_asked_again_after_its_pause_or_when_a_job_of_it_has_ended(self):
        lanes = self.lanes()
        assert lanes.asks_limits(100.0)
        plan = lanes.plan(10, many, 100.0, limited=True)
        lanes.claimed(plan, [job("b", 1)], QUICK, 100.0)
        assert not lanes.asks_limits(100.4)
        seen = lanes.surveyed([found("b"), about(micros(0), b=0.5)], QUICK, 100.2)
        assert not seen.due
        assert seen.due_in == pytest.approx(0.3)
        assert lanes.asks_limits(100.6)
        assert lanes.limits.freed(["a", "b"])
        assert lanes.asks_limits(100.3)

    def test_as_long_as_claims_fill_what_was_asked_for_nothing_is_waited_for(self):
        lanes = self.lanes()
        plan = lanes.plan(2, many, 100.0, limited=True)
        lanes.claimed(plan, [job("b", 1, at=-1), job("b", 2, at=-1)], QUICK, 100.0)
        assert lanes.asks_limits(100.0)

    def test_a_limit_that_is_taken_away_is_forgotten_with_the_next_survey(self):
        lanes = self.lanes()
        surveyed(lanes, found("b"), now=101.0)
        assert set(keys(lanes.plan(10, many, 101.0))) == {("a", 5, ""), ("b", 5, "")}
        assert not lanes.limits

    def test_kinds_without_due_jobs_are_not_asked_about(self):
        lanes = Lanes(["a", "b"])
        lanes.surveyed([found("a"), about(micros(0), b=0.5)], QUICK, 100.0)
        assert not lanes.asks_limits(100.0)
        assert lanes.limits.next_at(lanes.due_kinds()) == float("inf")


class TestMarks:
    def claimer(self) -> Claimer:
        table = Table()
        table.add(*(job("a", n, at=n * 10) for n in range(100)))
        return Claimer(table, Lanes(["a"]))

    def dear(self) -> Claimer:
        """Give one that was quick at first, and has taken all."""
        claimer = self.claimer()
        claimer.turn(1)
        plan = claimer.lanes.plan(200, many, claimer.now + 3)
        taken = claimer.table.claim(plan)
        for _ in range(STRIKES):
            assert claimer.lanes.heads_are_cheap, "once is nothing"
            claimer.lanes.claimed(plan, taken, SLOW + 2 * DEAR, claimer.now)
        assert not claimer.lanes.heads_are_cheap
        return claimer

    def test_a_lane_that_filled_its_quota_is_looked_at_from_where_it_stopped(self):
        claimer = self.claimer()
        claimer.turn(10)
        plan = claimer.lanes.plan(10, many, claimer.now + 0.01)
        assert list(plan.starts) == [(micros(90), 9)]

    def test_a_lane_that_came_back_short_is_looked_at_from_its_head(self):
        claimer = self.claimer()
        claimer.turn(200)
        plan = claimer.lanes.plan(10, many, claimer.now + 0.01)
        assert plan.starts[0] is HEAD
        assert plan.params()["starts"] == ["-infinity"]

    def test_while_a_look_from_the_head_is_dear_a_lane_is_looked_at_from_shortly_before_its_mark(self):
        claimer = self.dear()
        mark = claimer.lanes.plan(10, many, claimer.now).lanes[0].trail.mark
        assert list(claimer.lanes.plan(10, many, claimer.now).starts) == [(mark[0] - LOOK_BACK, 0)]
        later = claimer.lanes.plan(10, many, claimer.now + 3600)
        assert later.starts[0] is not HEAD, "that is what the pieces are for"

    def test_the_way_behind_is_looked_through_in_pieces_with_a_pause_as_long_as_each_took(self):
        claimer = self.dear()
        behind = claimer.lanes.sweep(10, many, claimer.now)
        assert behind.starts[0] is HEAD
        assert behind.ends[0] == behind.lanes[0].trail.mark
        claimer.lanes.swept(behind, [], SLOW, claimer.now)
        assert claimer.lanes.sweep(10, many, claimer.now + SLOW * PATIENCE - 0.01) is None
        assert claimer.lanes.sweep(10, many, claimer.now + SLOW * PATIENCE + 0.01) is not None

    def test_a_piece_that_took_long_is_two_the_next_time(self):
        claimer = self.dear()
        [lane] = claimer.lanes.plan(1, many, claimer.now).lanes
        lengths = []
        for _ in range(4):
            lengths.append(len(lane.trail.pieces()))
            while len(lane.trail.pieces()) != 2 * lengths[-1]:
                behind = claimer.lanes.sweep(10, many, claimer.now)
                assert len(behind.lanes) <= lengths[-1], "what is dear together is looked at one by one"
                claimer.lanes.swept(behind, [], SLOW, claimer.now)
                claimer.now += LONGEST
        assert lengths == [1, 2, 4, 8]

    @pytest.mark.parametrize("adds", [0.0, 0.01, 0.03])
    def test_a_round_of_the_way_behind_takes_little_longer_on_a_busy_server(self, adds):
        """What the server adds to each look varies wildly, and there are eighty pieces of 1 ms each."""
        chance, lanes, now = random.Random(7), Lanes([f"k{n}" for n in range(40)]), 1000.0
        plan = lanes.plan(40, many, now)
        lanes.claimed(plan, [], 0.0, now)
        for lane in plan.lanes:
            for at in (1, 2):
                lane.trail.advance((micros(at), 1), 2000)

        def takes(dead: float) -> float:
            return QUICK + dead + (chance.expovariate(1 / adds) if adds else 0.0)

        while lanes.heads_are_cheap:
            lanes.claimed(lanes.plan(40, many, now), [], SLOW + 10 * DEAR, now)
            now += 2
        rounds: list[float] = []
        began, from_marks = now, lanes.plan(1, many, now)
        while now < 1200:
            lanes.claimed(from_marks, [], takes(0.0), now)
            now += 0.05
            if behind := lanes.sweep(1, many, now):
                took = takes(0.001 * len(behind.lanes))
                lanes.swept(behind, [], took, now + took)
                now += took
                if not lanes._behind:
                    rounds.append(now - began)
                    began = now
        ordered = sorted(rounds[len(rounds) // 4 :])
        assert ordered[len(ordered) // 2] < 4 * PATIENCE * 0.08, ordered

    def test_once_the_whole_way_is_cheap_again_it_is_looked_at_from_the_heads(self):
        claimer = self.dear()
        behind = claimer.lanes.sweep(10, many, claimer.now)
        claimer.lanes.swept(behind, [], QUICK, claimer.now)
        assert claimer.lanes.heads_are_cheap
        assert claimer.lanes.plan(10, many, claimer.now + 2).whole

    def busy(self) -> Claimer:
        """Give one to which heads were dear, on a server that has become slow at all it is asked since."""
        claimer = self.dear()
        for _ in range(100):
            plan = claimer.lanes.plan(1, many, claimer.now)
            assert plan.starts[0] is not HEAD
            claimer.lanes.claimed(plan, [], SLOW, claimer.now)
        return claimer

    def test_what_a_busy_server_adds_to_every_look_is_not_taken_for_dead_entries(self):
        """As an hour of chaos met it: a job that had been locked for a moment was looked for, in pieces, for 37 s."""
        claimer = self.busy()
        behind = claimer.lanes.sweep(10, many, claimer.now)
        claimer.lanes.swept(behind, [], SLOW, claimer.now)
        assert claimer.lanes.sweep(10, many, claimer.now + SLOW * BREATH - 0.01) is None, "it may breathe"
        assert claimer.lanes.heads_are_cheap
        assert claimer.lanes.plan(10, many, claimer.now + SLOW * BREATH).whole

    def test_what_a_look_takes_beyond_that_is_paused_for_as_ever(self):
        claimer, beyond = self.busy(), 2 * SLOW
        behind = claimer.lanes.sweep(10, many, claimer.now)
        claimer.lanes.swept(behind, [], SLOW + beyond, claimer.now)
        assert not claimer.lanes.heads_are_cheap
        assert claimer.lanes.sweep(10, many, claimer.now + min(LONGEST, beyond * PATIENCE) - 0.01) is None
        assert claimer.lanes.sweep(10, many, claimer.now + LONGEST) is not None

    def test_one_look_that_hung_for_long_does_not_make_all_others_seem_quick(self):
        claimer = self.dear()
        plan = claimer.lanes.plan(1, many, claimer.now)
        claimer.lanes.claimed(plan, [], 30.0, claimer.now)
        behind = claimer.lanes.sweep(10, many, claimer.now)
        claimer.lanes.swept(behind, [], SLOW, claimer.now)
        assert not claimer.lanes.heads_are_cheap

    def test_what_others_have_taken_is_not_walked_over_again(self):
        """The mark of a worker that finds nothing moves with the time, as far as its look has seen nothing."""
        lanes = Lanes(["a"])
        surveyed(lanes, took=20 * DEAR)
        surveyed(lanes)
        assert list(lanes.plan(1, many, 1.0).starts) == [(micros(0) - LOOK_BACK, 0)]
        lanes.surveyed([found("a", due_in=3, number=7), about(micros(4))], QUICK, 5.0)
        assert lanes.plan(1, many, 5.0).lanes[0].trail.mark == (micros(3), 6)

    def test_a_mark_never_passes_the_present_so_that_what_comes_now_is_found_before_what_is_delayed(self):
        """A job that was handed back, or just enqueued, is due now; the first that a look had seen was due later."""
        lanes = Lanes(["a"])
        surveyed(lanes, took=20 * DEAR)
        surveyed(lanes, found("a", due_in=3600, number=7))
        start = lanes.plan(1, many, 1.0).starts[0]
        assert start <= (micros(0), 0)
        assert instant(lanes.look()["starts"][0]) <= micros(0)

    def test_a_lane_that_fills_its_quota_with_late_jobs_goes_on_where_it_stopped_and_not_at_the_mark(self):
        """A long COPY: it is committed after a survey that had moved the mark past the start of its transaction."""
        lanes = Lanes(["a"])
        surveyed(lanes, took=20 * DEAR)
        surveyed(lanes)
        table = Table()
        table.add(*(job("a", n, at=-0.5) for n in range(1, 101)))
        taken = []
        for _ in range(10):
            plan = lanes.plan(10, many, 1.0)
            taken += lanes.claimed(plan, table.claim(plan), QUICK, 1.0)
        assert [one.id for one in taken] == list(range(1, 101))

    def test_a_lane_that_others_have_emptied_is_rich_no_more(self):
        """While looks from the heads are dear; and a survey moves a rich lane on, over what others have taken of it."""
        lanes = Lanes(["a"])
        surveyed(lanes, took=20 * DEAR)
        plan = lanes.plan(1, many, 1.0)
        lanes.claimed(plan, [job("a", 1, at=-9)], QUICK, 1.0)
        surveyed(lanes, found("a", due_in=-3, number=70))
        assert list(lanes.plan(1, many, 1.0).starts) == [(micros(-3), 69)]
        surveyed(lanes)
        assert not lanes.any_rich

    def test_a_claim_that_takes_its_time_because_it_brings_much_is_not_dear(self):
        table = Table()
        table.add(*(job("a", n) for n in range(1000)))
        lanes = Lanes(["a"])
        plan = lanes.plan(2000, many, 1.0)
        lanes.claimed(plan, table.claim(plan), DEAR * 5, 1.0)
        assert lanes.heads_are_cheap

    def test_a_row_committed_far_behind_the_mark_is_found_within_seconds_although_the_lane_stays_full(self):
        claimer = self.claimer()
        claimer.turn(10)
        late = job("a", 999, at=-3600)
        claimer.table.add(late)
        began = claimer.now
        while late not in claimer.turn(1):
            assert claimer.now - began < 3
        assert claimer.table.left, "the lane was never empty meanwhile"

    def test_a_row_with_a_run_at_before_all_time_and_any_id_is_found_from_the_head(self):
        mark = Lanes(["a"]).plan(1, many, 100.0).params()
        assert (mark["starts"], mark["start_ids"]) == (["-infinity"], [-(2**63)])

    def test_marks_never_go_back(self):
        claimer = self.claimer()
        claimer.turn(50)
        claimer.table.add(job("a", 500, at=-100))
        claimer.now += 5
        claimer.turn(1)
        plan = claimer.lanes.plan(10, many, claimer.now + 0.001)
        assert plan.lanes[0].trail.mark >= (micros(490), 49)


class TestMemory:
    def test_a_lane_that_nobody_has_seen_for_long_is_forgotten_but_never_a_kinds_own(self):
        lanes = Lanes(["a", "b"])
        surveyed(lanes, found("a", lane="tenant"), found("b", priority=1), now=1000.0)
        assert len(keys(lanes.plan(10, many, 1000.0))) == 4
        surveyed(lanes, found("b", priority=1), now=1000.0 + FORGET_AFTER + 1)
        assert sorted(keys(lanes.plan(10, many, 2000.0))) == [("a", 5, ""), ("b", 1, ""), ("b", 5, "")]

    def test_a_lane_that_was_claimed_from_is_not_forgotten(self):
        table = Table()
        table.add(*(job("a", n, lane="tenant") for n in range(3)))
        claimer = Claimer(table, Lanes(["a"]))
        claimer.turn(1)
        claimer.now += FORGET_AFTER
        claimer.turn(1)
        surveyed(claimer.lanes, now=claimer.now + 1)
        assert ("a", 5, "tenant") in keys(claimer.lanes.plan(1, many, claimer.now))


LANES = st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.sampled_from(["", "x", "y"]))
JOBS = st.lists(st.tuples(LANES, st.integers(-5000, 5000)), max_size=80)
STEP = st.sampled_from([0.0, 0.0001, 0.002, 0.02])
TURNS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20), JOBS), min_size=1, max_size=8)


class TestNothingIsOverlooked:
    @given(turns=TURNS, step=STEP)
    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def test_whatever_is_committed_when_and_however_dear_a_look_every_row_is_taken_once(self, turns, step):
        """Rows land anywhere, also behind every mark; what is dead costs nothing to walk over, or much."""
        table, number, taken = Table(), 0, []
        claimer = Claimer(table, Lanes("abc"), step=step)
        for limit, share, rows in turns:
            for (kind, priority, lane), at in rows:
                number += 1
                table.add(job(kind, number, priority=priority, lane=lane, at=at))
            for _ in range(3):
                taken += claimer.turn(limit, lambda _kind, share=share: share)
        whole = number * (step + QUICK) + 1
        end = claimer.now + 3 * PATIENCE * whole
        while table.left:
            taken += claimer.turn(7, lambda _kind: 3)
            assert claimer.now < end, f"{table.left} rows were never looked at"
        assert sorted(one.id for one in taken) == list(range(1, number + 1))

    @given(limit=st.integers(1, 12), backlogs=st.lists(st.integers(1, 60), min_size=2, max_size=12), step=STEP)
    @settings(max_examples=30, deadline=None)
    def test_of_lanes_of_one_priority_none_waits_longer_than_a_turn_of_each(self, limit, backlogs, step):
        table, number = Table(), 0
        for lane, backlog in enumerate(backlogs):
            for _ in range(backlog):
                number += 1
                table.add(job("a", number, lane=str(lane)))
        claimer = Claimer(table, Lanes(["a"]), step=step)
        waited: Counter[str] = Counter()
        while table.left:
            waiting = {lane for (_, _, lane), rows in table.rows.items() if rows}
            served = {one.lane for one in claimer.turn(limit)}
            for lane in waiting - served:
                waited[lane] += 1
                assert waited[lane] <= 2 * len(backlogs), (lane, waited)
            for lane in served:
                waited[lane] = 0


def test_heads_that_become_dearer_by_a_little_at_every_look_are_noticed_before_they_are_long():
    """BL-01: what is compared with the last look alone is never dear, and grows until a worker does nothing else."""
    lanes, now, took = Lanes(["k"]), 1000.0, 0.004
    while lanes.heads_are_cheap:
        plan = lanes.plan(10, lambda _kind: 10, now)
        assert lanes.claimed(plan, [], took, now) == []
        now, took = now + 0.015, took * 1.002
        assert took < 0.02
