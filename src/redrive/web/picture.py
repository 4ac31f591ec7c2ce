"""Pictures made here, as SVG: a job's life, and what happened over time. No script draws them, no style is inlined.

Colours come from the one CSS file by class. A picture says in words what it shows, and the page says it again in a
table or a list for those who can't see it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from redrive.words import one_line, span

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from redrive.web.story import Stretch

WIDTH, HEIGHT = 1000.0, 64.0
LEAST = 8.0
"""Width of the shortest stretch: what ran for a millisecond between hours of waiting is still to be seen."""

_TIMELINE = Markup(
    '<svg class="timeline" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" aria-label="{told}">'
    "{parts}</svg>"
)
_STRETCH = Markup(
    '<rect class="{css}" x="{x}" y="{y}" width="{width}" height="{height}" rx="2"><title>{said}</title></rect>'
)
_LABEL = Markup('<text x="{x}" y="58" text-anchor="middle">{text}</text>')


def timeline(stretches: Sequence[Stretch], now: datetime) -> Markup:  # noqa: ARG001 - the last one ends now
    """Draw a job's life as one line of stretches, each at least so wide as to be seen."""
    total = sum(stretch.seconds for stretch in stretches) or 1.0
    room = max(WIDTH - LEAST * len(stretches), 0.0)
    widths = [LEAST + room * stretch.seconds / total for stretch in stretches]
    scale = WIDTH / sum(widths)
    parts, x = [], 0.0
    for stretch, wide in zip(stretches, widths, strict=True):
        width = wide * scale
        said = one_line(f"{stretch.what} {span(stretch.seconds)}" + (f", {stretch.text}" if stretch.text else ""))
        css = f"{stretch.what} {stretch.tone}"
        tall = stretch.what not in ("waited", "waits", "there")
        y, height = (8, 30) if tall else (20, 6)
        parts.append(
            _STRETCH.format(css=css, x=f"{x:.1f}", y=y, width=f"{max(width - 1, 1):.1f}", height=height, said=said)
        )
        if width > 70:  # noqa: PLR2004 - room for "2.5 min"
            parts.append(_LABEL.format(x=f"{x + width / 2:.1f}", text=span(stretch.seconds)))
        x += width
    told = "; ".join(f"{stretch.what} {span(stretch.seconds)}" for stretch in stretches[:20])
    return _TIMELINE.format(
        width=f"{WIDTH:.0f}", height=f"{HEIGHT:.0f}", told=f"The life of the job: {told}", parts=Markup("").join(parts)
    )
