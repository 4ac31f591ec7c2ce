"""Charts of what happened over time, as SVG: columns for counts, lines for times, marks where a version came.

A count is a rate, jobs a minute, so that steps of any length and the one that is not over yet can be compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from redrive.words import one_line, span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from redrive.stats import Deploy, Sum

WIDTH, HEIGHT = 640.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 8.0, 10.0, 22.0
LINES = 4
"""Lines across, about."""
_TIMES = (1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)


@dataclass(frozen=True)
class Row:
    """What is drawn of each step: its name, its class, and its value, None where there is none."""

    name: str
    css: str
    value: Callable[[Sum], float | None]


@dataclass(frozen=True)
class Chart:
    """A chart: what it shows, in words, and its drawing."""

    title: str
    unit: str
    rows: tuple[Row, ...]
    drawing: Markup
    empty: bool


def _a_minute(name: str) -> Callable[[Sum], float | None]:
    def value(step: Sum) -> float | None:
        count: float = getattr(step, name)
        return count * 60 / step.seconds if step.seconds else 0.0

    return value


def _seconds(name: str) -> Callable[[Sum], float | None]:
    def value(step: Sum) -> float | None:
        found: float | None = getattr(step, name)
        return found

    return value


ROWS: dict[str, tuple[str, str, tuple[Row, ...]]] = {
    "done": ("Succeeded", "jobs a minute", (Row("succeeded", "c1", _a_minute("succeeded")),)),
    "failed": (
        "Failed attempts",
        "a minute",
        (Row("tried again", "c3", _a_minute("retried")), Row("died", "c2", _a_minute("died"))),
    ),
    "wait": (
        "Wait, from due to started",
        "",
        (Row("half within", "l1", _seconds("wait_p50")), Row("95 % within", "l2", _seconds("wait_p95"))),
    ),
    "run": (
        "Run time",
        "",
        (Row("half within", "l1", _seconds("run_p50")), Row("95 % within", "l2", _seconds("run_p95"))),
    ),
}
"""What is drawn: title, unit and rows of each chart; columns are put upon each other."""


def charts(steps: Sequence[Sum], deploys: Sequence[Deploy]) -> list[Chart]:
    """Draw all charts of a series."""
    return [_chart(name, steps, deploys) for name in ROWS]


def _chart(name: str, steps: Sequence[Sum], deploys: Sequence[Deploy]) -> Chart:
    title, unit, rows = ROWS[name]
    columns = rows[0].css.startswith("c")
    say = _amount if columns else span
    values = [[row.value(step) for row in rows] for step in steps]
    heights = [
        sum(value or 0.0 for value in each) if columns else max((v or 0.0 for v in each), default=0.0)
        for each in values
    ]
    most = max(heights, default=0.0)
    ticks = _ticks(most, columns=columns)
    scale = _Scale(steps, ticks[-1])
    drawn = _columns(rows, values, scale) if columns else _lines(rows, values, scale)
    told = f"{title}{', ' + unit if unit else ''}: "
    if most:
        at = steps[heights.index(most)].at
        last = say(heights[-1]) if heights[-1] else "nothing"
        told += f"the most was {say(most)}, at {at:%Y-%m-%d %H:%M} UTC; the last is {last}"
    else:
        told += "nothing in this time"
    if not most:
        middle = (LEFT + WIDTH - RIGHT) / 2
        drawn = [f'<text x="{middle:.0f}" y="{HEIGHT / 2:.0f}" text-anchor="middle">nothing in this time</text>']
    inside = _grid(ticks, scale, say, steps) + _marks(deploys, scale) + drawn + _hovers(rows, steps, values, scale, say)
    told = escape(told)
    svg = (
        f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="{told}"><title>{told}</title>'
        f"{''.join(inside)}</svg>"
    )
    return Chart(title, unit, rows, Markup(svg), not most)  # noqa: S704 - numbers of ours, and texts that were escaped


class _Scale:
    """Where a step and a value are in the picture."""

    def __init__(self, steps: Sequence[Sum], most: float) -> None:
        self.count = max(len(steps), 1)
        self.most = most or 1.0
        self.first = steps[0].at if steps else None
        self.step = (steps[1].at - steps[0].at).total_seconds() if len(steps) > 1 else 60.0
        self.wide = (WIDTH - LEFT - RIGHT) / self.count

    def x(self, place: float) -> float:
        return LEFT + place * self.wide

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(value / self.most, 1.0)

    def at(self, when: datetime) -> float | None:
        if self.first is None:
            return None
        place = (when - self.first).total_seconds() / self.step
        return self.x(place) if 0 <= place <= self.count else None


# The parts are put together by hand: Markup.format() would cost ten times as much, and there are a thousand of them.


def _columns(rows: Sequence[Row], values: list[list[float | None]], scale: _Scale) -> list[str]:
    parts = []
    for place, each in enumerate(values):
        below = 0.0
        for row, value in zip(rows, each, strict=True):
            if not value:
                continue
            top, foot = scale.y(below + value), scale.y(below)
            wide, high = max(scale.wide * 0.84, 0.8), max(foot - top, 0.8)
            box = f'x="{scale.x(place):.1f}" y="{top:.1f}" width="{wide:.1f}" height="{high:.1f}"'
            parts.append(f'<rect class="{row.css}" {box}/>')
            below += value
    return parts


def _lines(rows: Sequence[Row], values: list[list[float | None]], scale: _Scale) -> list[str]:
    parts = []
    for number, row in enumerate(rows):
        d, pen = "", False
        for place, each in enumerate(values):
            if (value := each[number]) is None:
                pen = False
                continue
            x, y = scale.x(place + 0.5), scale.y(value)
            alone = (place == 0 or values[place - 1][number] is None) and (
                place + 1 == len(values) or values[place + 1][number] is None
            )
            if alone:
                parts.append(f'<circle class="dot {row.css}" cx="{x:.1f}" cy="{y:.1f}" r="2"/>')
            d += f"{'L' if pen else 'M'}{x:.1f} {y:.1f}"
            pen = True
        if d:
            parts.append(f'<path class="{row.css}" d="{d}"/>')
    return parts


def _grid(ticks: Sequence[float], scale: _Scale, say: Callable[[float], str], steps: Sequence[Sum]) -> list[str]:
    parts = []
    for tick in ticks:
        y = scale.y(tick)
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        text = escape(say(tick)) if tick else "0"
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    every, form = _hours(scale.step * scale.count)
    for place, step in enumerate(steps):
        if step.at.timestamp() % every == 0 and scale.x(place) < WIDTH - 20:
            text = escape(step.at.strftime(form))
            parts.append(f'<text x="{scale.x(place):.1f}" y="{HEIGHT - 6}" text-anchor="middle">{text}</text>')
    return parts


def _hovers(
    rows: Sequence[Row],
    steps: Sequence[Sum],
    values: list[list[float | None]],
    scale: _Scale,
    say: Callable[[float], str],
) -> list[str]:
    parts = []
    for place, (step, each) in enumerate(zip(steps, values, strict=True)):
        said = [f"{row.name} {say(value)}" for row, value in zip(rows, each, strict=True) if value is not None]
        told = escape(f"{step.at:%a %H:%M} UTC: {', '.join(said) or 'nothing'}")
        parts.append(
            f'<rect class="hover" x="{scale.x(place):.1f}" y="{TOP}" width="{scale.wide:.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"><title>{told}</title></rect>'
        )
    return parts


def _marks(deploys: Sequence[Deploy], scale: _Scale) -> list[str]:
    parts = []
    for each in deploys:
        if (x := scale.at(each.at)) is not None:
            told = escape(f"version {one_line(each.version, 60)} came {each.at:%a %H:%M} UTC")
            parts.append(
                f'<g class="deploy"><line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"/>'
                f"<title>{told}</title></g>"
            )
    return parts


def _hours(length: float) -> tuple[float, str]:
    """Say at which times of the clock there is a label, and how it is written."""
    if length <= 2 * 3600:
        return 600.0, "%H:%M"
    if length <= 26 * 3600:
        return 4 * 3600.0, "%H:%M"
    return 86_400.0, "%a %d"


def _ticks(most: float, *, columns: bool) -> list[float]:
    """Give round numbers from 0 to over the largest."""
    if not most:
        return [0.0, 1.0]
    rough = most / LINES
    if columns:
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.999)
    else:
        step = next((each for each in _TIMES if each >= rough * 0.999), math.ceil(rough / 3600) * 3600.0)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.2g}"  # noqa: PLR2004 - two digits
