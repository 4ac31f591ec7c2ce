"""What people and scripts read: tables, times with their age, one JSON document. It masks nothing and asks nothing.

On a terminal tables have colour and fit its width; elsewhere they are plain columns that nothing was cut from to fit.
Text from the database is data: control characters in it are shown, never obeyed, and it is no markup.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from redrive.words import ALWAYS, NEVER, ago, clean, exact, instant, jobs, number, one_line, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "ALWAYS",
    "NEVER",
    "STYLES",
    "Cell",
    "ago",
    "clean",
    "compact",
    "document",
    "exact",
    "heading",
    "instant",
    "jobs",
    "moment",
    "note",
    "number",
    "on_terminal",
    "one_line",
    "span",
    "state",
    "table",
]

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


def compact(value: Any, limit: int = 0) -> str:
    """Write JSON data as one line, cut at *limit* where one is given."""
    return one_line(json.dumps(value, ensure_ascii=False, default=_plain), limit)


def moment(when: datetime | None, now: datetime) -> str:
    """Write a time in the local zone, with its age."""
    if when is None or when in (NEVER, ALWAYS):
        return ago(when, now)
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S %z} ({ago(when, now)})"


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
