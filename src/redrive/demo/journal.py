"""What has happened so far, line by line, told by all parts of the demo and shown by its end of the terminal."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

Tone = Literal["plain", "good", "bad", "wait", "work", "back"]


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened."""

    at: float
    """Seconds since the demo began."""
    source: str
    text: str
    tone: Tone


class Journal:
    """Lines in the order in which they were told, from whatever thread."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.lines: list[Line] = []

    @property
    def elapsed(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began

    def tell(self, source: str, text: str, tone: Tone = "plain") -> None:
        """Add a line; append is atomic, so threads need no lock."""
        self.lines.append(Line(self.elapsed, source, text, tone))
