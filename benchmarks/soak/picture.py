"""The picture of a soak: small panels over one axis of time, an SVG that reads on white paper and on a dark screen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH, LEFT, RIGHT = 920, 64, 132
TOP, PANEL, GAP = 74, 96, 40
LINE = 15
"""The height of a label."""
POINTS = 400
"""The most points of a line: of more, each point is the worst of several."""
STYLE = """
  .paper { fill: #ffffff } .grid { stroke: #e4e6ea } .axis { fill: #5b6470 } .title { fill: #1c2128 }
  .a { stroke: #0b62c4 } .b { stroke: #b3591b } .fa { fill: #0b62c4 } .fb { fill: #b3591b }
  .area { fill: #0b62c4; opacity: .1 } .bar { stroke: #b42318 } .fbar { fill: #b42318 }
  text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif }
  .big { font-size: 17px; font-weight: 600 } .name { font-weight: 600 } .line { fill: none; stroke-width: 1.6 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } .grid { stroke: #2b323b } .axis { fill: #9aa4b1 } .title { fill: #e6edf3 }
    .a { stroke: #5aa7f5 } .b { stroke: #e29a5c } .fa { fill: #5aa7f5 } .fb { fill: #e29a5c }
    .area { fill: #5aa7f5; opacity: .14 } .bar { stroke: #ff7b72 } .fbar { fill: #ff7b72 }
  }
"""


@dataclass(frozen=True)
class Panel:
    """One figure over time, or two of the same unit."""

    name: str
    unit: str
    lines: Sequence[tuple[str, Sequence[float]]]
    bar: float | None = None
    """What must not be passed."""


def panels(document: Mapping[str, Any]) -> list[Panel]:
    """Choose what is shown."""
    samples, settings = document["samples"], document["settings"]
    work = [jobs / settings["rate"] for jobs in samples["backlog"]]
    claims = [("p99", samples["claim_ms_p99"]), ("p50", samples["claim_ms_p50"])]
    return [
        Panel("Claim, as its worker waits for it", "ms", claims, settings["claim_p99_ms"]),
        Panel("Backlog: due jobs that wait", "s of work", [("", work)], settings["most_backlog_s"]),
        Panel("Dead rows that are still there", "thousand", [("", [n / 1000 for n in samples["dead_tuples"]])]),
        Panel("Size on disk", "MB", [("table", samples["table_mb"]), ("indexes", samples["index_mb"])]),
        Panel("Worker: memory", "MB", [("", samples["rss_mb"])]),
        Panel("Worker: CPU", "of a core", [("", samples["cpu"])]),
    ]


def draw(document: Mapping[str, Any]) -> str:
    """Draw a soak's JSON."""
    verdict, at = document["verdict"], document["samples"]["at"]
    title = f"{verdict['rate']:g} jobs a second for {_span(at[-1] if at else 0)}, with the horizon held"
    said = (
        f"{verdict['jobs']:,} jobs, {verdict['lost']} lost · claim p50 {verdict['claim_ms_p50']} ms,"
        f" p99 {verdict['claim_ms_p99']} ms · most that waited {verdict['backlog_s_max']} s of work ·"
        f" PostgreSQL {verdict['postgres']}, workers: {verdict['workers']}"
    )
    return sheet(title, said, panels(document), at, made_by="make soak")


def sheet(title: str, said: str, shown: Sequence[Panel], at: Sequence[float], *, made_by: str) -> str:
    """Draw panels one below the other, all over the same seconds."""
    height = TOP + len(shown) * (PANEL + GAP) + 22
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" xmlns="http://www.w3.org/2000/svg" role="img">',
        f"<title>{escape(title)}</title><desc>made by: {made_by}</desc><style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        f'<text class="title big" x="{LEFT}" y="30">{escape(title)}</text>',
        f'<text class="axis" x="{LEFT}" y="52">{escape(said)}</text>',
    ]
    end = max(at[-1] if at else 0.0, 1.0)
    for number, panel in enumerate(shown):
        parts += _panel(panel, at, end, TOP + number * (PANEL + GAP) + 20)
    bottom = TOP + len(shown) * (PANEL + GAP) - GAP + 20
    for second in _steps(end, 8):
        x = LEFT + (WIDTH - LEFT - RIGHT) * second / end
        parts.append(f'<text class="axis" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{_clock(second)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, at: Sequence[float], end: float, top: float) -> list[str]:
    highest = max([*(max(values, default=0.0) for _, values in panel.lines), panel.bar or 0.0, 1e-9])
    steps = _steps(highest * 1.02, 3)
    highest = max(highest * 1.08, steps[-1])
    right, bottom = WIDTH - RIGHT, top + PANEL

    def x(second: float) -> float:
        return LEFT + (right - LEFT) * second / end

    def y(value: float) -> float:
        return bottom - PANEL * value / highest

    unit = f'<tspan class="axis" font-weight="400">  {escape(panel.unit)}</tspan>'
    parts = [f'<text class="title name" x="{LEFT}" y="{top - 9}">{escape(panel.name)}{unit}</text>']
    for step in steps:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y(step):.1f}" y2="{y(step):.1f}"/>')
        label = f"{step:g}" if step < 1000 else f"{step:,.0f}"  # noqa: PLR2004 # where digits want grouping
        parts.append(f'<text class="axis" x="{LEFT - 8}" y="{y(step) + 4:.1f}" text-anchor="end">{label}</text>')
    labels: list[tuple[float, str, str]] = []
    if panel.bar is not None:
        level = y(panel.bar)
        parts.append(
            f'<line class="bar" x1="{LEFT}" x2="{right}" y1="{level:.1f}" y2="{level:.1f}" stroke-dasharray="5 4"/>'
        )
        labels.append((level, "fbar", f"bar: {panel.bar:g}"))
    for letter, (name, values) in zip("ab", panel.lines, strict=False):
        points = thinned(list(zip(at, values, strict=True)))
        path = " ".join(f"{x(second):.1f},{y(value):.1f}" for second, value in points)
        if len(panel.lines) == 1 and points:
            first, last = x(points[0][0]), x(points[-1][0])
            parts.append(f'<polygon class="area" points="{first:.1f},{bottom} {path} {last:.1f},{bottom}"/>')
        parts.append(f'<polyline class="line {letter}" points="{path}"/>')
        if values:
            labels.append((y(values[-1]), f"f{letter}", f"{name} {_rounded(values[-1])}".strip()))
    for place, style, words in spread(labels, bottom):
        parts.append(f'<text class="{style}" x="{right + 8}" y="{place + 4:.1f}">{escape(words)}</text>')
    return parts


def thinned(
    points: Sequence[tuple[float, float]], most: int = POINTS, worst: Callable[..., tuple[float, float]] = max
) -> list[tuple[float, float]]:
    """Leave at most *most* points, each the highest of its stretch: a spike is never smoothed away."""
    stretch = math.ceil(len(points) / most) if points else 1
    parts = [points[begin : begin + stretch] for begin in range(0, len(points), stretch)]
    return [worst(part, key=lambda point: point[1]) for part in parts]


def spread(labels: Sequence[tuple[float, str, str]], bottom: float) -> list[tuple[float, str, str]]:
    """Move labels up, from the lowest on, until each has a line of its own, in the order of what they stand at."""
    free, placed = bottom + LINE / 2, []
    for place, style, words in sorted(labels, reverse=True):
        free = min(place, free)
        placed.append((free, style, words))
        free -= LINE
    return placed


def _steps(highest: float, count: int) -> list[float]:
    """Round numbers from 0 up to *highest*."""
    raw = highest / count
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    return [step * number for number in range(int(highest / step + 1e-9) + 1)]


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"  # noqa: PLR2004 # three digits


def _clock(second: float) -> str:
    return f"{int(second) // 60}:{int(second) % 60:02}"


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"  # noqa: PLR2004 # two minutes
