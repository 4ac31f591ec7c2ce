"""The demo as a picture that moves, for a README: an SVG with its frames in turn, which needs nothing from elsewhere.

Where pictures don't move, or the reader would rather not have them move, it is the last frame.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from rich.console import Console

from redrive.demo.screen import picture

if TYPE_CHECKING:
    from redrive.demo.screen import View

WIDTH, HEIGHT = 108, 40
EVERY, SHOWN = 2.0, 1.6
"""Seconds between two frames in the demo, and in the film."""
LAST = 8.0
"""Seconds that the last frame stays."""
FRAME = "{styles}\0{matrix}"
FILM = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<title>redrive demo: jobs fail, die, are sent back, and none is lost</title>
<desc>made by: redrive demo --once --svg docs/demo.svg</desc>
<style>
text {{ font: 20px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }}
.frame {{ visibility: hidden; animation: {seconds}s step-end infinite }}
.frame:last-of-type {{ visibility: visible }}
@media (prefers-reduced-motion: reduce) {{ .frame {{ animation: none }} }}
{styles}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#292929"/>
{frames}
</svg>
"""


class Film:
    """Takes a frame now and then."""

    def __init__(self) -> None:
        self._frames: list[str] = []
        self._taken_at = 0.0

    def take(self, view: View, *, last: bool = False) -> None:
        """Take a frame if it is time for one, or the *last* one."""
        if not last and view.journal.elapsed - self._taken_at < EVERY:
            return
        self._taken_at = view.journal.elapsed
        console = Console(width=WIDTH, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor")
        console.print(picture(view, WIDTH, HEIGHT))
        name = f"f{len(self._frames)}"
        self._frames.append(console.export_svg(title="", code_format=FRAME, unique_id=name))

    def svg(self) -> str:
        """Cut the film."""
        seconds = SHOWN * (len(self._frames) - 1) + LAST
        styles, frames = [], []
        for number, frame in enumerate(self._frames):
            style, _, matrix = frame.partition("\0")
            begin, end = (100 * each * SHOWN / seconds for each in (number, number + 1))
            shown = f"{begin:.2f}% {{ visibility: visible }}"
            if number + 1 < len(self._frames):
                shown += f" {end:.2f}% {{ visibility: hidden }}"
            hidden = "0% { visibility: hidden } " if number else ""
            styles.append(
                f"{style}\n@keyframes k{number} {{ {hidden}{shown} }}\n#f{number} {{ animation-name: k{number} }}"
            )
            matrix = re.sub(r' clip-path="[^"]*"', "", matrix).replace("&#160;", " ")
            frames.append(f'<g class="frame" id="f{number}" transform="translate(12,14)">{matrix}</g>')
        return FILM.format(
            width=round(WIDTH * 12.2) + 24,
            height=round(HEIGHT * 24.4) + 28,
            seconds=seconds,
            styles="\n".join(styles),
            frames="\n".join(frames),
        )
