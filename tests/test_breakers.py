"""A breaker holds jobs, lets single ones through as probes, and lets the backlog out at a rising rate."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from redrive import InvalidOption, Queue, claims
from redrive.lanes import Lanes
from redrive.statements import named, run
from redrive.testing import clock
from support_engine import WORKER, add, claim


def trip(conn: psycopg.Connection, kind: str = "mail", target: str = "", **how: Any) -> Any:
    """Open a breaker as a worker does that saw an outage."""
    given = {"by": "here:1:abcdef", "reason": "ConnectionError: no", "hold": 5.0, "asked": 0.0, "pause": 5.0}
    given |= {"longest": 60.0, "peak": 2.0, "usual_rate": 10.0, "by_hand": False, "who": None, "why": None}
    [row] = run(conn, named("open_breaker", "redrive", kind=kind, target=target, **given | how))
    return row


def answered(conn: psycopg.Connection, kind: str = "mail", target: str = "") -> list[Any]:
    """Close it as a worker does whose probe was answered."""
    given = {"by": "w", "by_hand": False, "at_once": False, "who": None, "why": None}
    return run(conn, named("close_breaker", "redrive", kind=kind, target=target, **given))


def ended(conn: psycopg.Connection) -> list[str]:
    return [row.target for row in run(conn, named("end_breakers", "redrive"))]


def broken(conn: psycopg.Connection) -> dict[str, bool]:
    return dict(conn.execute("select kind, broken from redrive.kinds order by kind").fetchall())


def suspects(conn: psycopg.Connection, *kinds: str) -> bool:
    return run(conn, claims.survey("redrive", **Lanes(kinds).look()))[-1].suspects


@pytest.fixture
def queue(db):
    made = Queue(db)
    yield made
    made.close()


class TestOpen:
    def test_the_jobs_of_a_broken_kind_are_held_and_the_others_are_not(self, conn):
        trip(conn)
        add(conn, "mail", 3)
        add(conn, "export", 2)
        assert [job.kind for job in claim(conn, "mail", "export")] == ["export", "export"]

    def test_only_the_target_is_held_that_is_down(self, conn):
        trip(conn, target="b.example")
        add(conn, "mail", 2, lane="a.example")
        add(conn, "mail", 2, lane="b.example")
        add(conn, "mail", 1)
        assert sorted(job.lane for job in claim(conn, "mail")) == ["", "a.example", "a.example"]

    def test_when_a_probe_is_due_one_job_is_let_through_whatever_its_priority_and_whoever_asks(self, conn):
        trip(conn)
        for priority in (3, 5, 7):
            add(conn, "mail", 5, priority=priority)
        assert claim(conn, "mail") == []
        with clock(conn) as now:
            now.move(seconds=5.1)
            assert [job.priority for job in claim(conn, "mail")] == [3]
            assert claim(conn, "mail") == []

    def test_each_probe_waits_twice_as_long_up_to_the_longest_pause(self, conn):
        trip(conn, longest=20.0)
        add(conn, "mail", 9)
        with clock(conn) as now:
            now.move(seconds=5.1)
            for pause in (5, 10, 20, 20):
                assert len(claim(conn, "mail")) == 1
                now.move(seconds=0.85 * pause)
                assert claim(conn, "mail") == []
                now.move(seconds=0.3 * pause)
        [row] = conn.execute("select probes, probe_pause from redrive.breakers").fetchall()
        assert row == (4, 20.0)

    def test_a_target_that_asks_for_a_longer_pause_gets_it_and_a_shorter_one_changes_nothing(self, conn):
        first = trip(conn, hold=60.0, asked=60.0)
        assert (trip(conn, hold=5.0, asked=5.0).probe_at - first.probe_at).total_seconds() == 0
        assert (trip(conn, hold=90.0, asked=90.0).probe_at - first.probe_at).total_seconds() == pytest.approx(30, abs=3)

    def test_workers_that_see_the_same_outage_add_up_what_each_of_them_did(self, conn):
        assert trip(conn, usual_rate=4.0).opened
        again = trip(conn, usual_rate=2.5)
        assert (again.opened, again.usual_rate) == (False, 6.5)

    def test_a_job_that_is_on_trial_is_held_as_well(self, conn):
        trip(conn)
        add(conn, "mail", alone=True)
        assert claim(conn, "mail", alone=True) == []
        answered(conn)
        assert len(claim(conn, "mail", alone=True)) == 1

    def test_a_row_made_by_plain_sql_holds_and_its_removal_lets_go(self, conn):
        add(conn, "mail", 2)
        conn.execute("insert into redrive.breakers (kind, target, probe_at) values ('mail', '', 'infinity')")
        assert broken(conn) == {"mail": True}
        assert claim(conn, "mail") == []
        conn.execute("delete from redrive.breakers")
        assert broken(conn) == {"mail": False}
        assert len(claim(conn, "mail")) == 2

    def test_the_limits_of_a_broken_kind_go_on_to_hold(self, conn, queue):
        queue.kinds.limit("mail", running=2)
        add(conn, "mail", 5)
        trip(conn)
        assert claim(conn, "mail") == []
        queue.breakers.close("mail", at_once=True)
        assert len(claim(conn, "mail")) == 2
        assert queue.kinds.list()[0].running_most == 2

    def test_a_kind_without_limits_is_not_listed_with_those_that_have_some(self, conn, queue):
        trip(conn)
        assert queue.kinds.list() == []


class TestClosing:
    def test_the_backlog_goes_out_at_a_quarter_of_the_usual_rate_then_faster_and_never_over_the_peak(self, conn):
        trip(conn, usual_rate=10.0)
        add(conn, "mail", 3000, created_at="2020-01-01")
        answered(conn)
        went: list[float] = []  # when, in seconds of the moved clock, which real time moves as well
        with clock(conn) as now:
            began = now.now()
            while not went or went[-1] < 60:
                now.move(seconds=0.1)
                jobs = claim(conn, "mail")
                went += [(now.now() - began).total_seconds()] * len(jobs)

        def rate(since: float, until: float) -> float:
            return sum(since <= when < until for when in went) / (until - since)

        assert 2 <= rate(0, 5) <= 3.7
        assert 7 <= rate(27, 33) <= 13
        assert 14 <= rate(50, 60) <= 18
        assert max(rate(second / 4, second / 4 + 1) for second in range(236)) <= 20

    def test_what_came_in_during_the_outage_is_a_usual_rate_too(self, conn):
        trip(conn, usual_rate=0.0)
        with clock(conn) as now:
            now.move(seconds=100)
            add(conn, "mail", 500)
            add(conn, "export", 500)
            [row] = answered(conn)
        assert row.usual_rate == pytest.approx(5, abs=0.1)

    def test_without_a_known_rate_it_begins_with_one_a_second_and_doubles_without_a_bound(self, conn):
        trip(conn, usual_rate=0.0)
        [row] = answered(conn)
        assert row.rate == 1
        with clock(conn) as now:
            now.move(seconds=150)
            [row] = run(conn, named("list_breakers", "redrive", kind=None, closed=False, most=10))
        assert row.rate == pytest.approx(1024, rel=0.1)

    def test_it_is_closed_once_less_goes_through_than_might(self, conn):
        trip(conn, usual_rate=10.0)
        add(conn, "mail", 40, created_at="2020-01-01")
        answered(conn)
        with clock(conn) as now:
            while claim(conn, "mail") or conn.execute(
                "select count(*) from redrive.jobs where status = 'pending'"
            ).fetchone() != (0,):
                assert ended(conn) == []
                now.move(seconds=0.5)
            now.move(seconds=11)
            assert ended(conn) == [""]
        assert broken(conn) == {"mail": False}

    def test_an_outage_that_flares_up_goes_on_with_the_pauses_that_it_had(self, conn):
        first = trip(conn)
        with clock(conn) as now:
            now.move(seconds=5.1)
            add(conn, "mail", 2)
            claim(conn, "mail")
            answered(conn)
            again = trip(conn)
        assert (again.opened, again.opened_at, again.state) == (False, first.opened_at, "open")
        assert conn.execute("select probe_pause from redrive.breakers").fetchone() == (10.0,)

    def test_an_answer_that_comes_after_it_was_closed_changes_nothing(self, conn):
        trip(conn)
        answered(conn)
        assert answered(conn) == []


class TestByHand:
    def test_what_an_operator_opens_waits_for_an_operator(self, conn, queue):
        row = queue.breakers.open("mail", by="ada", reason="they told us", connection=conn)
        assert (row.state, row.by_hand, row.probe_at, row.opened_by) == ("open", True, None, "ada")
        add(conn, "mail", 30)
        assert answered(conn) == []
        with clock(conn) as now:
            now.move(days=300)
            assert claim(conn, "mail") == []
        [row] = queue.breakers.list()
        assert (row.name, row.reason, row.waiting) == ("mail", "they told us", 30)
        assert queue.breakers.close("mail", by="bob", at_once=True).closed_by == "bob"
        assert len(claim(conn, "mail")) == 30
        assert queue.breakers.list() == []
        assert [row.state for row in queue.breakers.list(closed=True)] == ["closed"]
        assert [(act.by, act.action, act.reason) for act in queue.audit.list()] == [
            ("bob", "breaker close", None),
            ("ada", "breaker open", "they told us"),
        ]

    def test_with_a_hold_it_is_probed_after_that(self, conn, queue):
        row = queue.breakers.open("mail", "a.example", hold=timedelta(hours=2))
        assert not row.by_hand
        assert (row.probe_at - row.opened_at).total_seconds() == pytest.approx(7200)

    def test_closed_without_haste_it_lets_the_backlog_out_at_a_rising_rate(self, conn, queue):
        queue.breakers.open("mail")
        add(conn, "mail", 30)
        row = queue.breakers.close("mail")
        assert (row.state, row.rate) == ("closing", 1)
        assert len(claim(conn, "mail")) <= 1
        assert queue.breakers.close("mail") is None
        assert queue.breakers.close("mail", at_once=True).state == "closed"
        assert len(claim(conn, "mail")) >= 29

    def test_to_close_what_is_not_open_is_said(self, queue):
        assert queue.breakers.close("mail") is None

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"kind": ""}, "kind is empty"),
            ({"kind": "mail", "target": "a\0"}, "target is 'a"),
            ({"kind": "mail", "hold": 0}, "hold is 0 s"),
            ({"kind": "mail", "hold": -1.0}, "hold is -1 s"),
            ({"kind": "mail", "reason": "\ud800"}, "reason is"),
            ({"kind": "mail", "by": 3}, "by is 3"),
        ],
    )
    def test_bad_input_is_refused_before_anything_is_written(self, conn, queue, given, said):
        with pytest.raises(InvalidOption, match=said.replace("(", r"\(")):
            queue.breakers.open(**given)
        assert conn.execute("select count(*) from redrive.breakers").fetchone() == (0,)

    def test_async_code_has_the_same(self, queue):
        async def scenario() -> None:
            assert (await queue.breakers.open_async("mail")).state == "open"
            assert [row.kind for row in await queue.breakers.list_async("mail")] == ["mail"]
            assert (await queue.breakers.close_async("mail", at_once=True)).state == "closed"

        asyncio.run(scenario())


class TestUnderAttack:
    """Bad moments and odd rows."""

    def test_a_job_on_trial_may_be_the_probe_since_no_other_may_be_left(self, conn):
        trip(conn)
        add(conn, "mail", alone=True)
        assert claim(conn, "mail", alone=True) == []
        assert not suspects(conn, "mail"), "workers make no room for what they can't have"
        with clock(conn) as now:
            now.move(seconds=5.1)
            assert suspects(conn, "mail")
            assert len(claim(conn, "mail", alone=True)) == 1
            add(conn, "mail")
            assert claim(conn, "mail") == [], "one probe a pause"
        assert conn.execute("select probes, probe_pause from redrive.breakers").fetchone() == (1, 10.0)

    def test_to_delete_a_breaker_while_a_probe_is_claimed_is_no_deadlock(self, db, conn):
        trip(conn)
        add(conn, "mail", 3)
        conn.execute("update redrive.breakers set probe_at = now() - interval '1 s'")
        lanes = Lanes(["mail"])
        lanes.surveyed(run(conn, claims.survey("redrive", **lanes.look())), 0.0, 1.0)
        plan = lanes.plan(10, lambda _kind: 10, 1.0, limited=True)
        with psycopg.connect(db) as by_hand:
            with conn.transaction():
                locked = run(conn, claims.lock_limits("redrive", list(lanes.limits)))
                by_hand.execute("delete from redrive.breakers")  # its transaction stays open
                assert len(run(conn, claims.claim_limited(WORKER, locked=locked, **plan.params()))) == 1
            by_hand.commit()
        assert len(claim(conn, "mail")) == 2
        assert broken(conn) == {"mail": False}

    def test_the_mark_of_a_kind_goes_with_its_breakers_however_they_went(self, conn):
        trip(conn)
        add(conn, "mail", 2)
        conn.execute("truncate redrive.breakers")
        assert len(claim(conn, "mail")) == 2
        assert broken(conn) == {"mail": False}

    def test_who_removes_the_row_of_a_kind_lets_nothing_out(self, conn):
        trip(conn)
        add(conn, "mail", 2)
        conn.execute("delete from redrive.kinds")
        assert claim(conn, "mail") == []
        assert len(answered(conn)) == 1

    def test_a_clock_that_went_back_holds_nothing_for_longer_than_a_minute(self, conn):
        add(conn, "mail", 9, created_at="2020-01-01", run_at="2020-01-01")
        with clock(conn) as now:
            now.move(days=3)
            trip(conn)
            trip(conn, target="b")
            now.move(days=-3, seconds=1)
            assert len(claim(conn, "mail")) == 1
            assert claim(conn, "mail") == []
            now.move(days=3)
            answered(conn)
            now.move(days=-3, seconds=1)
            assert len(claim(conn, "mail")) == 1
            assert claim(conn, "mail") == []
            now.move(seconds=3)
            assert len(claim(conn, "mail")) == 2

    def test_a_quiet_hour_before_the_outage_does_not_hold_back_a_busy_one_for_ever(self, conn):
        trip(conn, usual_rate=0.5)
        answered(conn)
        went = 0
        with clock(conn) as now:
            for _ in range(30):
                now.move(seconds=20)
                add(conn, "mail", 400, created_at=now.now(), run_at=now.now())
                went += len(claim(conn, "mail", limit=1000))
                run(conn, named("raise_usual_rates", "redrive"))
            assert conn.execute("select usual_rate from redrive.breakers").fetchone()[0] == pytest.approx(20, rel=0.1)
        assert went < 100 + 2 * 20 * 300, "twice what is usual at the most"

    def test_what_is_open_for_nobody_ends_and_what_somebody_waits_for_does_not(self, conn, queue):
        for target in ("gone", "waited for"):
            trip(conn, target=target)
        queue.breakers.open("mail", "by hand")
        with clock(conn) as now:
            add(conn, "mail", lane="waited for", run_at=now.now() + timedelta(days=9))
            now.move(hours=1)
            assert ended(conn) == []
            now.move(seconds=10)
            assert ended(conn) == ["gone"]

    def test_nobody_stumbles_over_the_name_of_a_kind_that_is_not_its_own(self, conn):
        trip(conn, kind="odd")
        *_, last = run(conn, claims.survey("redrive", **Lanes(["mail"]).look()))
        assert (last.limited, last.breakers) == ([], None)


def test_what_is_closed_is_kept_for_a_while_and_what_is_open_for_ever(conn, queue):
    for kind in ("closed", "open"):
        queue.breakers.open(kind)
    queue.breakers.close("closed", at_once=True)
    run(conn, named("prune_breakers", "redrive", keep=7 * 86_400.0))
    assert len(queue.breakers.list(closed=True)) == 2
    conn.execute("update redrive.breakers set updated_at = now() - interval '8 days'")
    run(conn, named("prune_breakers", "redrive", keep=7 * 86_400.0))
    assert [row.kind for row in queue.breakers.list(closed=True)] == ["open"]


@pytest.mark.parametrize("said", ["list_breakers", "close_breaker", "end_breakers"])
def test_the_jobs_of_one_target_are_found_without_a_walk_through_those_of_all_others(conn, said):
    """Two thousand targets that are down, and a backlog of 200,000: to list them took minutes."""
    conn.execute(
        """insert into redrive.jobs (kind, lane) select 'mail', 'host' || i % 50 from generate_series(1, 2000) i;
        insert into redrive.breakers (kind, target, probe_at)
        select 'mail', 'host' || i, now() - interval '2 h' from generate_series(0, 60) i;
        set enable_seqscan = off; set enable_bitmapscan = off; set plan_cache_mode = force_generic_plan"""
    )
    how = {"list_breakers": {"kind": None, "closed": False, "most": 10_000}, "end_breakers": {}}
    closing = {"kind": "mail", "target": "host7", "by": "w", "by_hand": False, "at_once": False}
    statement = named(said, "redrive", **how.get(said, closing | {"who": None, "why": None}))
    text = statement.sql if isinstance(statement.sql, bytes) else statement.sql.as_bytes(conn)
    plan = "\n".join(line for (line,) in conn.execute(b"explain (analyze) " + text, statement.params))
    removed = [int(rows) for rows in re.findall(r"Rows Removed by Filter: (\d+)", plan)]
    assert "jobs_claim_idx" in plan
    assert max(removed, default=0) < 100


@pytest.mark.parametrize("target", ["", "host7"])
def test_those_that_were_put_off_are_found_without_a_walk_through_the_table(conn, target):
    """The shell allows walks, and whoever closes a breaker waits for the answer."""
    conn.execute(
        """insert into redrive.jobs (kind, status) select 'mail', 'succeeded' from generate_series(1, 2000);
        insert into redrive.jobs (kind, lane, claims, run_at)
        select 'mail', 'host' || i % 50, 1, now() + interval '1 h' from generate_series(1, 2000) i;
        analyze redrive.jobs; update redrive.jobs set run_at = now() where status = 'pending'"""
    )
    statement = named("put_off", "redrive", kind="mail", target=target, most=100)
    text = statement.sql if isinstance(statement.sql, bytes) else statement.sql.as_bytes(conn)
    plan = "\n".join(line for (line,) in conn.execute(b"explain " + text, statement.params))
    assert "jobs_claim_idx" in plan
    assert "Seq Scan" not in plan
