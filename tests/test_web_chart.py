"""Charts: what they draw, and what they say to those who can't see them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

import pytest

from redrive.stats import Deploy, Sum
from redrive.web.chart import _ticks, charts

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


def steps(*given, seconds=60.0):
    return [
        Sum(kind="", at=NOON + timedelta(seconds=seconds) * place, seconds=seconds, **each)
        for place, each in enumerate(given)
    ]


def drawing(chart):
    return ET.fromstring(str(chart.drawing))  # noqa: S314 - our own


def test_what_is_drawn_is_also_said():
    done, failed, wait, run = charts(
        steps({"succeeded": 30, "retried": 2}, {"succeeded": 90, "died": 1, "wait_p50": 0.5, "wait_p95": 2.0}, {}), []
    )
    assert drawing(done).get("aria-label") == (
        "Succeeded, jobs a minute: the most was 90, at 2030-01-31 12:01 UTC; the last is nothing"
    )
    assert "the most was 2 s" in drawing(wait).get("aria-label")
    assert [rect.get("class") for rect in drawing(failed).iter("rect") if rect.get("class") != "hover"] == ["c3", "c2"]
    assert "nothing in this time" in "".join(drawing(run).itertext())
    hovers = [rect.find("title").text for rect in drawing(wait).iter("rect")]
    assert hovers == [
        "Thu 12:00 UTC: nothing",
        "Thu 12:01 UTC: half within 500 ms, 95 % within 2 s",
        "Thu 12:02 UTC: nothing",
    ]


def test_steps_of_any_length_are_rates_a_minute():
    """Also the last one, of which only a part is over."""
    series = steps({"succeeded": 600}, seconds=600.0)
    series.append(Sum(kind="", at=NOON + timedelta(minutes=10), seconds=60.0, succeeded=60))
    done = charts(series, [])[0]
    heights = {rect.get("height") for rect in drawing(done).iter("rect") if rect.get("class") == "c1"}
    assert len(heights) == 1
    assert "the most was 60" in drawing(done).get("aria-label")


def test_deploys_within_the_span_are_marked_and_harmless():
    deploys = [Deploy(version="<b>2.0", at=NOON + timedelta(seconds=90)), Deploy(version="1.9", at=NOON - timedelta(1))]
    marks = [group.find("title").text for group in drawing(charts(steps({}, {}, {}), deploys)[0]).iter("g")]
    assert marks == ["version <b>2.0 came Thu 12:01 UTC"]


@pytest.mark.parametrize("most", [0.001, 0.3, 1, 7, 10, 99, 12_345, 3e6])
@pytest.mark.parametrize("columns", [True, False])
def test_lines_across_are_few_round_and_reach_the_top(most, columns):
    ticks = _ticks(most, columns=columns)
    assert ticks[0] == 0
    assert ticks[-1] >= most * 0.999
    assert 2 <= len(ticks) <= 7


def test_no_steps_at_all_make_an_empty_chart():
    assert all(chart.empty for chart in charts([], []))
