"""What is news: once when it begins, again when it has become much worse, and once when it is over."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from redrive import InvalidOption
from redrive.alerts import RULES, Change, Found, Seen, compare, digest_due, judge, rules, title
from redrive.figures import Figures
from redrive.kinds import BROKER_WORKER, RELAY
from redrive.stats import Depth, Sum

NOW = datetime(2030, 1, 31, 12, 0, tzinfo=UTC)


class Known(NamedTuple):
    """A row of alerts."""

    rule: str
    subject: str
    text: str
    value: float
    told_value: float
    began_at: datetime
    told_at: datetime
    missed: int


def known(news: Any) -> dict[tuple[str, str], Known]:
    """What the next look finds of what this one kept."""
    return {(row["rule"], row["subject"]): Known(**row) for row in news.keep}


def depth(kind: str, **columns: Any) -> Depth:
    empty = {"pending": 0, "due": 0, "retrying": 0, "running": 0, "dead": 0, "oldest_due": None, "most": 10_000}
    return Depth(kind=kind, **{**empty, **columns})


def seen(*depths: Depth, known: tuple[str, ...] = (), alive: int = 1, **more: Any) -> Seen:
    figures = Figures(
        depths=list(depths), alive=alive, silent=0, slots=1, in_flight=0, complaining=0, late=0, known=frozenset(known)
    )
    return Seen(figures=figures, now=NOW, **more)


def found(what: Seen, before: Any = None, **holding: Any) -> list[tuple[str, str]]:
    return [(each.rule, each.subject) for each in judge(what, holding or dict(RULES), before or {})]


def test_deaths_are_found_and_go_on_counting_when_some_were_sent_back():
    [first] = judge(seen(depth("mail", dead=3), deaths={"mail": 3}), dict(RULES), {})
    assert (first.value, first.text) == (3.0, "3 dead jobs of kind mail, 3 of them new")
    assert first.link == "/dead?kind=mail"
    before = known(compare([first], {}, NOW))
    [later] = judge(seen(depth("mail", dead=1), deaths={"mail": 1}), dict(RULES), before)
    assert later.value == 4.0
    [capped] = judge(seen(depth("mail", dead=10_000)), dict(RULES), {})
    assert "10,000 dead jobs or more" in capped.text


def test_waits_are_found_but_not_of_what_is_paused_and_by_one_rule_each():
    waits = depth("mail", due=1, oldest_due=400.0)
    assert found(seen(waits, known=("mail",))) == [("oldest_due", "mail")]
    assert found(seen(waits)) == [("unknown", "mail")]
    assert found(seen(waits, alive=0)) == [("oldest_due", "mail")]  # with no worker at all that is the news
    assert found(seen(waits, known=("mail",), paused=frozenset({"mail"}))) == []
    assert found(seen(waits, paused=frozenset({"*"}))) == []
    assert found(seen(depth("mail", oldest_due=200.0), known=("mail",))) == []


def process(works_as: str, *kinds: str, alive: bool = True) -> SimpleNamespace:
    return SimpleNamespace(name=works_as, alive=alive, silent_for=4000.0, works_as=works_as, kinds=kinds)


ROUTED = [SimpleNamespace(kind="mail", route="amqp"), SimpleNamespace(kind="export", route="postgres")]
RELAYED = [process(RELAY), process("worker", "export")]


def test_what_is_routed_and_due_is_told_where_no_relay_is_alive_and_by_that_rule_alone():
    holding = rules(["-taker"])
    late = seen(depth("mail", oldest_due=420.0), depth("export", oldest_due=90.0), known=("export",), kinds=ROUTED)

    def told(*workers: Any, **more: Any) -> list[tuple[str, str]]:
        return found(replace(late, workers=workers, **more), **holding)

    alone = process("worker", "export")
    assert told(alone, process(RELAY, alive=False)) == [("relay", "mail")]
    assert told(process(BROKER_WORKER, "mail")) == [("relay", "mail")]
    assert told(*RELAYED) == [("unknown", "mail")]
    assert told() == [("unknown", "mail")], "nothing is alive: they come from cron"
    assert told(alone, paused=frozenset({"mail"})) == []
    assert told(alone, kinds=ROUTED[1:]) == [("unknown", "mail")]
    lonely = replace(late, workers=[alone])
    assert found(lonely, **rules(["-taker", "-relay"])) == [("unknown", "mail")], "a rule that is off hides nothing"
    [each] = judge(lonely, holding, {})
    assert each.text.startswith("kind mail is due for 7 min; it goes over the broker, and no relay is alive: start")


def test_a_routed_kind_that_nobody_takes_from_the_broker_is_told_once_that_has_lasted():
    """Nothing need be due for it, and between two workers of a deploy nobody takes it for a moment."""

    def look(seconds: float, before: Any, *more: Any) -> Any:
        now = NOW + timedelta(seconds=seconds)
        what = replace(seen(kinds=ROUTED, workers=[*RELAYED, *more]), now=now)
        return compare(judge(what, dict(RULES), before), before, now)

    first = look(0, {})
    assert (first.changes, [row["subject"] for row in first.keep]) == ([], ["mail"])
    second = look(30, known(first))
    assert second.changes == []
    third = look(61, known(second))
    [told] = third.changes
    assert (told.what, told.rule, told.began_at) == ("new", "taker", NOW)
    assert told.text.startswith("kind mail goes over the broker, and no live worker takes it from there: start")
    assert look(9000, known(third)).changes == []
    there = process(BROKER_WORKER, "mail")
    over = look(150, known(look(120, known(third), there)), there)
    assert [change.what for change in over.changes] == ["over"]
    gone = look(90, known(look(60, known(second), there)), there)
    assert (gone.changes, gone.over) == ([], [("taker", "mail")]), "what was never told is not told to be over"


def test_a_share_of_deaths_needs_some_deaths():
    def row(died: int, succeeded: int) -> Sum:
        return Sum(kind="mail", at=NOW, seconds=900, died=died, succeeded=succeeded)

    assert found(seen(rates=[row(5, 45)])) == [("dead_rate", "mail")]
    assert found(seen(rates=[row(5, 46)])) == []
    assert found(seen(rates=[row(4, 0)])) == []


def test_schedules_workers_and_the_horizon_are_found_and_secrets_are_not_told():
    late = SimpleNamespace(name="nightly", problem=None, late=100.0)
    broken = SimpleNamespace(name="hourly", problem="no zone; password=hunter2", late=1.0)
    gone = SimpleNamespace(name="w", alive=False, silent_for=60.0)
    old = SimpleNamespace(name="o", alive=False, silent_for=4000.0)
    holder = SimpleNamespace(what="session", name="7", application="psql", seconds=700.0)
    what = seen(late=[late, broken], workers=[gone, old], holders=[holder])
    assert found(what) == [
        ("schedule", "nightly"),
        ("schedule", "hourly"),
        ("worker", "w"),
        ("horizon", "session 7"),
    ]
    assert "hunter2" not in str(judge(what, dict(RULES), {}))
    assert found(what, horizon=rules(["horizon=20m"])["horizon"]) == []


def test_an_open_breaker_is_told_instead_of_the_wait_that_it_causes():
    def breaker(state: str, minutes: float, opened_by: str = "", *, by_hand: bool = False) -> SimpleNamespace:
        opened = NOW - timedelta(minutes=minutes)
        who = {"opened_by": opened_by, "by_hand": by_hand, "reason": "token=hunter2"}
        return SimpleNamespace(kind="mail", target="", name="mail", state=state, opened_at=opened, **who)

    late = depth("mail", due=1, oldest_due=900.0)
    assert found(seen(late, known=("mail",), breakers=[breaker("open", 2)])) == [("breaker", "mail")]
    assert found(seen(late, known=("mail",), breakers=[breaker("open", 0.5)])) == []
    assert found(seen(late, known=("mail",), breakers=[breaker("closing", 9)])) == []
    assert found(seen(late, known=("mail",), breakers=[breaker("closed", 9)])) == [("oldest_due", "mail")]
    alone = rules(["-breaker"])
    assert found(seen(late, known=("mail",), breakers=[breaker("open", 2)]), **alone) == [("oldest_due", "mail")]
    assert "hunter2" not in str(judge(seen(breakers=[breaker("open", 2)]), dict(RULES), {}))
    told = str(judge(seen(breakers=[breaker("open", 2, "a-worker")]), dict(RULES), {}))
    assert "held for 2 min, since what they call is down: " in told
    told = str(judge(seen(breakers=[breaker("open", 2, "ann", by_hand=True)]), dict(RULES), {}))
    assert "held for 2 min by ann, until somebody closes the breaker: " in told


def test_it_is_told_once_and_again_when_it_is_twice_as_bad_or_goes_on_for_an_hour():
    def look(value: float, before: Any, at: datetime) -> Any:
        return compare([Found(rule="oldest_due", subject="mail", text="late", value=value)], before, at)

    first = look(300, {}, NOW)
    assert [change.what for change in first.changes] == ["new"]
    second = look(500, known(first), NOW + timedelta(minutes=3))
    assert second.changes == []
    third = look(600, known(second), NOW + timedelta(minutes=5))
    assert [change.what for change in third.changes] == ["worse"]
    assert third.changes[0].began_at == NOW
    fourth = look(700, known(third), NOW + timedelta(minutes=64))
    assert fourth.changes == []
    assert [change.what for change in look(700, known(fourth), NOW + timedelta(minutes=65)).changes] == ["worse"]
    assert look(600, known(fourth), NOW + timedelta(hours=9)).changes == []  # it has not become worse


def test_it_is_over_after_two_looks_and_that_is_told_but_of_events():
    both = [Found(rule=rule, subject="x", text="it is so", value=1.0) for rule in ("schedule", "worker")]
    first = compare(both, {}, NOW)
    second = compare([], known(first), NOW + timedelta(minutes=1))
    assert (second.changes, second.over) == ([], [])
    assert compare(both, known(second), NOW).keep[0]["missed"] == 0  # it was there all the time
    third = compare([], known(second), NOW + timedelta(minutes=2))
    assert third.over == [("schedule", "x"), ("worker", "x")]
    assert [(change.what, change.text) for change in third.changes] == [("over", "recovered after 2 min: it is so")]
    assert third.keep == []


def test_rules_are_limited_and_left_out():
    holding = rules(["oldest_due=10m", "dead_rate=5%", "-worker", "died"])
    assert holding["oldest_due"].limit == 600
    assert holding["dead_rate"].limit == 0.05
    assert "worker" not in holding
    assert len(holding) == len(RULES) - 1
    assert holding["oldest_due"].shown == "10 min"
    assert found(seen(depth("mail", dead=1)), **rules(["-died"])) == []


@pytest.mark.parametrize("said", ["sometimes", "oldest_due=soon", "dead_rate=200%", "dead_rate=0", "died=5", "-none"])
def test_a_rule_that_makes_no_sense_is_refused(said):
    with pytest.raises(InvalidOption, match="alert_rules"):
        rules([said])


@pytest.mark.parametrize(
    ("said", "last", "due"),
    [
        ("11:30", NOW - timedelta(days=1), True),
        ("11:30", NOW - timedelta(minutes=10), False),
        ("11:30", None, False),
        ("12:30", NOW - timedelta(days=1), False),
        ("09:00", NOW - timedelta(days=1), False),
        ("13:00 Europe/Berlin", NOW - timedelta(days=1), True),
        ("13:01 Europe/Berlin", NOW - timedelta(days=1), False),
        ("off", NOW - timedelta(days=1), False),
    ],
)
def test_a_digest_is_sent_once_a_day_at_its_time_or_soon_after(said, last, due):
    assert digest_due(said, last, NOW) is due


@pytest.mark.parametrize("said", ["8", "25:00", "08:00 Nowhere", "soon"])
def test_a_time_that_makes_no_sense_is_refused(said):
    with pytest.raises(InvalidOption, match="alert_digest"):
        digest_due(said, None, NOW)


def test_a_title_says_how_many_or_what():
    def change(what: str) -> Change:
        return Change(what=what, rule="died", subject="x", text="3 dead jobs\nof kind x", value=1, began_at=NOW)

    assert title([change("new")]) == "redrive: 3 dead jobs of kind x"
    assert title([change("new"), change("new"), change("over")]) == "redrive: 2 new, 1 recovered"
