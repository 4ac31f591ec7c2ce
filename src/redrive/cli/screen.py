"""What people and scripts read: tables, times with their age, one JSON document. It masks nothing and asks nothing.

On a terminal tables have colour and fit its width; elsewhere they are plain columns that nothing was cut from to fit.
Text from the database is data: control characters in it are shown, never obeyed, and it is no markup.
"""

from __future__ import annotations

import json
import os
import re
import sys
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NEVER = datetime.max.replace(tzinfo=UTC)
"""A time that Python can't hold, such as Postgres' infinity."""
ALWAYS = datetime.min.replace(tzinfo=UTC)

STYLES = {
    "pending": "cyan",
    "running": "blue",
    "succeeded": "green",
    "failed": "yellow",
    "dead": "bold red",
    "retried": "yellow",
    "reclaimed": "magenta",
    "alive": "green",
    "silent": "red",
}
GAP = 2
NARROW = 20
"""Columns of a terminal that the last of a table gets in any case."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_UNITS = (("y", 365 * 86_400.0), ("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


class Cell(NamedTuple):
    """A text of a table, and its colour on a terminal."""

    text: str
    style: str = ""


def state(name: str) -> Cell:
    """Colour a state."""
    return Cell(name, STYLES.get(name, ""))


def table(headers: Sequence[str], rows: Iterable[Sequence[str | Cell]], *, right: Iterable[str] = ()) -> None:
    """Print a table; the columns named in *right* are numbers."""
    if not (rows := list(rows)):
        return
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    cells = [[Cell(one_line(cell.text), cell.style) for cell in row] for row in cells]
    if on_terminal():
        _rich_table(headers, cells, set(right))
        return
    widths = [max(len(text) for text in column) for column in zip(headers, *_texts(cells), strict=True)]
    for line in (headers, *_texts(cells)):
        padded = (
            text.rjust(width) if header in right else text.ljust(width)
            for text, width, header in zip(line, widths, headers, strict=True)
        )
        click.echo("  ".join(padded).rstrip())


def document(value: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=_plain))


def heading(text: str) -> None:
    """Begin a part of a longer answer."""
    click.echo()
    click.secho(text, bold=True)


def note(text: str) -> None:
    """Say something to the human that is not the answer itself."""
    click.secho(text, err=True, dim=True)


def on_terminal() -> bool:
    """Tell whether a human is likely to see stdout as it is."""
    return sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))


def clean(text: str) -> str:
    """Show control characters instead of obeying them: what a stranger wrote must not move the operator's cursor."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str, limit: int = 0) -> str:
    """Bring a text to one line, cut at *limit* where one is given."""
    line = clean(" ".join(text.split()))
    return line if not limit or len(line) <= limit else line[: limit - 1] + "…"


def compact(value: Any, limit: int = 0) -> str:
    """Write JSON data as one line, cut at *limit* where one is given."""
    return one_line(json.dumps(value, ensure_ascii=False, default=_plain), limit)


def span(seconds: float) -> str:
    """Write a duration as people say it: 40 s, 5 min, 2.5 h, 3 d."""
    if seconds != seconds or abs(seconds) > 1e11:  # noqa: PLR0124, PLR2004 - NaN; over 3000 years
        return "for ever"
    for unit, size in _UNITS:
        if abs(seconds) >= size:
            number = seconds / size
            return f"{number:.1f}".removesuffix(".0") + f" {unit}" if abs(number) < 10 else f"{number:.0f} {unit}"  # noqa: PLR2004 - two digits
    return f"{seconds * 1000:.0f} ms" if seconds else "0 s"


def exact(seconds: float) -> str:
    """Write a duration in its two largest units: 1 min 35 s, 2 h 40 min."""
    for (unit, size), (small, part) in pairwise(_UNITS):
        if seconds >= size:
            rest = round(seconds % size / part)
            return f"{seconds // size:.0f} {unit}" + (f" {rest} {small}" if rest else "")
    return span(seconds)


def ago(when: datetime | None, now: datetime) -> str:
    """Say how long before or after *now* something is."""
    if when is None:
        return ""
    if when in (NEVER, ALWAYS):
        return "never" if when == NEVER else "always"
    seconds = (now - when).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"


def moment(when: datetime | None, now: datetime) -> str:
    """Write a time in the local zone, with its age."""
    if when is None or when in (NEVER, ALWAYS):
        return ago(when, now)
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S %z} ({ago(when, now)})"


def instant(when: datetime | None) -> str | None:
    """Write a time for a script."""
    if when is None:
        return None
    if when in (NEVER, ALWAYS):
        return "infinity" if when == NEVER else "-infinity"
    return when.astimezone(UTC).isoformat()


def jobs(count: int, which: str = "") -> str:
    """Write a number of jobs."""
    return f"{number(count)} {which}{' ' * bool(which)}job{'s' * (count != 1)}"


def number(count: int) -> str:
    """Write a count with its thousands apart."""
    return f"{count:,}"


def _rich_table(headers: Sequence[str], rows: list[list[Cell]], right: set[str]) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    # The last column gives way, the others do not: rich itself would squeeze all of them alike, down to nothing.
    taken = sum(max(map(cell_len, column)) + GAP for column in list(zip(headers, *_texts(rows), strict=True))[:-1])
    room = max(console.width - taken, NARROW)
    shown = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for header in headers:
        shown.add_column(header, justify="right" if header in right else "left", no_wrap=True)
    for row in rows:
        texts = [Text(cell.text, style=cell.style) for cell in row]
        texts[-1].truncate(room, overflow="ellipsis")
        shown.add_row(*texts)
    console.width = max(console.width, taken + room)
    console.print(shown)


def _texts(rows: list[list[Cell]]) -> list[list[str]]:
    return [[cell.text for cell in row] for row in rows]


def _plain(value: Any) -> Any:
    return instant(value) if isinstance(value, datetime) else str(value)
