"""When a schedule runs: cron in every zone and through changes of clocks, intervals, one time; and what is owed."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.errors import InvalidOption
from redrive.timetable import RECORDED, Cron, Every, Once, Policy, owed, preview, timetable

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
NAIVE = NOON.replace(tzinfo=None)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
ZONES = sorted(available_timezones())
CHANGING = ("America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/Santiago", "Africa/Cairo")
DAILY = ("0 0 * * *", "30 1 * * *", "0 2 * * *", "30 2 * * *", "0 3 * * *", "0 30 1 * * *")
FIXED = (*DAILY, "*/15 2 * * *", "0 2,3 * * 1-5", "59 23 L * *")
MOST_SECONDS = 0.05


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def between(cron: Cron | Every, start: datetime, end: datetime) -> list[datetime]:
    """The slots from *start*, which may be one, to before *end*."""
    found, slot = [], start - timedelta(seconds=1)
    while (slot := cron.next(slot)) < end:
        found.append(slot)
    return found


def changes(zone: str, year: int = 2026) -> Iterator[datetime]:
    """The first hour after each change of clocks in a year."""
    first = datetime(year, 1, 1, tzinfo=UTC)
    hours = [first + n * HOUR for n in range(366 * 24)]
    offsets = [hour.astimezone(ZoneInfo(zone)).utcoffset() for hour in hours]
    for before, since, hour in zip(offsets, offsets[1:], hours[1:], strict=False):
        if before != since:
            yield hour


CHANGES = [(zone, hour) for zone in CHANGING for hour in changes(zone)]


def test_the_example_of_the_preview():
    after = datetime.fromisoformat("2026-10-31T12:00:00-04:00")
    assert preview(Cron("30 1 * * *", "America/New_York"), after, 3) == [
        at("2026-11-01T05:30Z"),
        at("2026-11-02T06:30Z"),
        at("2026-11-03T06:30Z"),
    ]


@pytest.mark.parametrize(
    ("text", "zone", "after", "slots"),
    [
        ("0 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", ["2026-10-25T00:00Z", "2026-10-26T01:00Z"]),
        ("30 2 * * *", "America/New_York", "2026-03-07T12:00Z", ["2026-03-08T07:00Z", "2026-03-09T06:30Z"]),
        ("0 30 2 * * *", "America/New_York", "2026-03-07T12:00Z", ["2026-03-08T07:00Z", "2026-03-09T06:30Z"]),
        ("*/15 2 * * *", "America/New_York", "2026-03-07T12:00Z", ["2026-03-08T07:00Z", "2026-03-09T06:00Z"]),
        ("0 0 * * *", "America/Santiago", "2026-09-05T12:00Z", ["2026-09-06T04:00Z", "2026-09-07T03:00Z"]),
        ("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00Z", ["2026-04-23T22:00Z", "2026-04-24T21:00Z"]),
        ("0 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00Z", ["2026-10-03T15:30Z", "2026-10-04T15:00Z"]),
        # asked in the hour that comes the second time
        ("30 1 * * *", "America/New_York", "2026-11-01T06:10Z", ["2026-11-02T06:30Z"]),
        ("0 2 * * *", "America/New_York", "2026-11-01T06:10Z", ["2026-11-01T07:00Z"]),
        ("* * 1 * * *", "America/New_York", "2026-11-01T06:00Z", ["2026-11-02T06:00:00Z"]),
        ("0 9 * * 1", "UTC", "2026-06-01T12:00Z", ["2026-06-08T09:00Z"]),
        ("0 9 * * MON", "UTC", "2026-06-01T12:00Z", ["2026-06-08T09:00Z"]),
        ("0 9 L * *", "UTC", "2026-06-01T12:00Z", ["2026-06-30T09:00Z"]),
        ("0 0 29 2 *", "UTC", "2026-06-01T12:00Z", ["2028-02-29T00:00Z", "2032-02-29T00:00Z"]),
        ("@daily", "Asia/Tokyo", "2026-06-01T12:00Z", ["2026-06-01T15:00Z"]),
        (" @HOURLY ", "UTC", "2026-06-01T12:00Z", ["2026-06-01T13:00Z"]),
        ("30 * * * * *", "UTC", "2026-06-01T12:00Z", ["2026-06-01T12:00:30Z", "2026-06-01T12:01:30Z"]),
        # half an hour comes twice, where cronsim's own steps lose the next slot; and half an hour is skipped
        ("17 */6 * * *", "Australia/Lord_Howe", "2026-04-04T13:17Z", ["2026-04-04T19:47Z", "2026-04-05T01:47Z"]),
        ("20,35 * * * *", "Australia/Lord_Howe", "2026-10-03T15:06Z", ["2026-10-03T15:35Z", "2026-10-03T15:50Z"]),
        ("30 0-23 * * *", "America/New_York", "2026-11-01T04:40Z", ["2026-11-01T05:30Z", "2026-11-01T06:30Z"]),
    ],
)
def test_a_text_a_zone_and_its_slots_ct_01_ct_02(text, zone, after, slots):
    assert preview(Cron(text, zone), at(after), len(slots)) == [at(slot) for slot in slots]


@pytest.mark.parametrize(("zone", "change"), CHANGES, ids=lambda value: str(value).partition(" ")[0])
def test_around_a_change_of_clocks_fixed_hours_run_once_a_day_and_wildcards_every_real_hour_ct_01_ct_02(zone, change):
    start = change - DAY
    for text, times in (("0 * * * *", 1), ("30 * * * *", 1), ("17 * * * *", 1), ("*/30 * * * *", 2)):
        if (text, zone) == ("30 * * * *", "Australia/Lord_Howe"):
            continue  # local half hours are 1.5 h apart by the rules of that zone itself
        hours = Counter(slot.replace(minute=0) for slot in between(Cron(text, zone), start, start + 2 * DAY))
        assert hours == {start + n * HOUR: times for n in range(48)}, text
    for text in DAILY:
        found = between(Cron(text, zone), start - 2 * DAY, start + 4 * DAY)
        days = [slot.astimezone(ZoneInfo(zone)).date() for slot in found]
        assert days == [days[0] + n * DAY for n in range(len(days))], text
        assert len(days) >= 5


def hold(zone: str, text: str, days: int, sample: random.Random) -> None:
    """`next` strictly increases, is quick, and comes to the same slot from wherever one asks."""
    cron = Cron(text, zone)
    slot = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=sample.randrange(86_400))
    end = slot + days * DAY
    while slot < end:
        begin = time.thread_time()  # what it takes itself; a loop without an end would take for ever
        following = cron.next(slot)
        took = time.thread_time() - begin
        assert following is not None
        assert following > slot, (zone, text, slot)
        assert took < MOST_SECONDS, (zone, text, slot)
        amid = slot + (following - slot) * sample.random()
        assert amid >= following or cron.next(amid) == following, (zone, text, amid)
        slot = following


SAMPLE = random.Random(6).sample(ZONES, 6)


@pytest.mark.parametrize("zone", sorted({*SAMPLE, *CHANGING, "America/Havana", "Asia/Beirut"}))
def test_over_400_days_next_increases_and_is_quick_ct_02(zone):
    """In a sample of zones; in all of them by make schedules-proof."""
    sample = random.Random(zone)
    hold(zone, sample.choice(FIXED), 400, sample)
    for change in changes(zone):
        cron = Cron("*/30 * * * *", zone)
        assert len(between(cron, change - DAY, change + DAY)) == 96


@pytest.mark.proof
@pytest.mark.parametrize("zone", ZONES)
def test_over_400_days_next_increases_and_is_quick_in_every_zone_ct_02(zone):
    sample = random.Random(zone)
    for text in ("0 2 * * *", *sample.sample((*FIXED, "17 */6 * * *"), 2)):
        hold(zone, text, 400, sample)
    for change in changes(zone):
        for text in ("*/30 * * * *", "* * * * *", "0 */10 * * * *", "30 */2 * * *", "* * 1 * * *"):
            slots = preview(Cron(text, zone), change - 3 * HOUR, 400)
            assert slots[0] > change - 3 * HOUR
            assert slots == sorted(set(slots))


fields = st.tuples(
    st.sampled_from(["*", "0", "*/7", "5,35", "10-20"]),
    st.sampled_from(["*", "*/5", "0", "2", "1-3", "0,23"]),
    st.sampled_from(["*", "*/2", "1", "31", "L", "LW", "29-31"]),
    st.sampled_from(["*", "2", "JAN,JUN", "*/3"]),
    st.sampled_from(["*", "MON", "MON-FRI", "5L", "MON#5", "0,7"]),
).map(" ".join)


@settings(max_examples=60, deadline=None)
@given(
    fields, st.sampled_from(ZONES), st.integers(946_684_800, 4_102_444_800).map(partial(datetime.fromtimestamp, tz=UTC))
)
def test_any_text_in_any_zone_goes_forward_or_is_refused(text, zone, when):
    try:
        cron = Cron(text, zone)
    except InvalidOption:
        return
    slots = preview(cron, when, 10)
    assert slots == sorted(set(slots))
    assert all(slot > when for slot in slots)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0 0 30 2 *", "no such day in these months"),
        ("0 0 31 2 *", "no such day in these months"),
        ("0 0 31 4,6 *", "no such day in these months"),
        ("61 * * * *", "the minute makes no sense"),
        ("* 24 * * *", "the hour makes no sense"),
        ("* * * *", "of 4 fields"),
        ("* * * * * * *", "of 7 fields"),
        ("@reboot", "there are @yearly"),
        ("@every 5m", "use every="),
        ("", "write five fields"),
        (5, "write five fields"),
        ("9" * 450 + " * * * *", "makes no sense"),
        ("*/0 * * * *", "the minute makes no sense"),
        ("* * * * * " + "1," * 5000, "write five fields"),
    ],
)
def test_a_text_that_makes_no_sense_or_never_comes_is_refused_ct_02(text, complaint):
    with pytest.raises(InvalidOption, match=r"^cron is ") as refused:
        Cron(text)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("zone", "hint"),
    [("Europe/Berln", "did you mean 'Europe/Berlin'?"), ("europe/berlin", "did you mean"), ("Mars", "give a name")]
    + [(name, "which nobody knows") for name in ("Europe", "../etc/passwd", "/etc/localtime", "", "a\0b", "CEST+2")],
)
def test_a_zone_that_nobody_knows_is_refused_with_the_nearest_ct_09(zone, hint):
    with pytest.raises(InvalidOption, match="timezone is ") as refused:
        Cron("@daily", zone)
    assert hint in str(refused.value)


def test_an_interval_counts_from_its_anchor_whenever_one_asks():
    every = Every(timedelta(minutes=7), NOON)
    assert every.next(NOON - DAY) == NOON
    assert every.next(NOON) == NOON + timedelta(minutes=7)
    assert every.next(NOON + timedelta(minutes=13, seconds=59)) == NOON + timedelta(minutes=14)
    assert every.next(NOON.astimezone(timezone(5 * HOUR)) + 365 * DAY) == NOON + 365 * DAY + timedelta(minutes=2)


def test_what_comes_once_comes_once():
    assert preview(Once(NOON), NOON - DAY, 3) == [NOON]
    assert Once(NOON).next(NOON) is None


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "exactly one"),
        ({"cron": "@daily", "every": HOUR}, "exactly one"),
        ({"every": timedelta(milliseconds=5)}, "every is 0.005 s: must be from 1 s"),
        ({"every": timedelta(days=40_000)}, "must be from 1 s to a hundred years"),
        ({"at": NAIVE}, "at is datetime.datetime(2026, 6, 1, 12, 0): give a datetime with its zone"),
        ({"at": datetime(1960, 1, 1, tzinfo=UTC)}, "must be from 1970 to 9000"),
        ({"every": HOUR, "anchor": NAIVE}, "anchor is"),
        ({"every": HOUR, "timezone": "Nowhere"}, "timezone is 'Nowhere'"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_ct_10(given, complaint):
    columns = {"cron": None, "every": None, "at": None, "timezone": "UTC", "anchor": NOON, **given}
    with pytest.raises(InvalidOption) as refused:
        timetable(**columns)
    assert complaint in str(refused.value)


def judged(policy: Policy, late: timedelta, *, every: timedelta = timedelta(minutes=1)) -> list[str]:
    """What becomes of an hour's slots of which the last is so late."""
    found = owed(Every(every, NOON - HOUR), NOON - HOUR + every, NOON + late, policy)
    assert [one.slot for one in found] == [NOON - HOUR + n * every for n in range(1, HOUR // every + 1)]
    return ["run" if one.reason is None else one.reason.partition(": ")[2] for one in found]


def test_policies_judge_what_was_missed_ct_06():
    late = timedelta(seconds=30)
    assert judged(Policy("skip"), late) == ["what was missed is skipped"] * 60
    assert judged(Policy("latest"), late) == ["only the latest is made up for"] * 59 + ["run"]
    assert judged(Policy("all", 10), late) == ["no more than 10 are made up for"] * 50 + ["run"] * 10
    old = "nothing older than 0:02:00 is made up for"
    assert judged(Policy("all", 10, timedelta(minutes=2)), late) == [old] * 58 + ["run"] * 2
    assert judged(Policy("latest", 1, timedelta(seconds=10)), late)[-1].startswith("nothing older than 0:00:10")


def test_a_slot_that_a_worker_comes_to_within_seconds_was_not_missed():
    late = timedelta(seconds=9)
    assert judged(Policy("skip"), late) == ["what was missed is skipped"] * 59 + ["run"]
    assert judged(Policy("latest"), late) == ["only the latest is made up for"] * 59 + ["run"]
    assert judged(Policy("all", 10), late).count("run") == 10


def test_where_too_many_were_missed_the_oldest_share_a_row():
    first = NOON - timedelta(days=30)
    found = owed(Every(timedelta(seconds=1), first), first, NOON + timedelta(seconds=30), Policy())
    assert RECORDED / 4 < len(found) <= RECORDED + 1
    assert found[0].slot == first
    assert "have no rows of their own" in found[0].reason
    slots = [one.slot for one in found[1:]]
    assert slots == [slots[0] + timedelta(seconds=n) for n in range(len(slots))]
    assert (slots[-1], found[-1].reason) == (NOON + timedelta(seconds=30), None)
