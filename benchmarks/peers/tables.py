"""Tables in Markdown, and how a number is shown in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Cell = Callable[[Mapping[str, Any]], str]
ENOUGH = 1000


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Make a table; its first column is text, the others are numbers."""
    width = len(head)
    lines = [head, ["---", *["---:"] * (width - 1)], *([*row, *[""] * (width - len(row))] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float | None, places: int = 0) -> str:
    """Show a number; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= ENOUGH else f"{value:.{places}f}"


def figure(names: str | tuple[str, ...], places: int = 0) -> Cell:
    """Show one number of the medians, or several with a slash between."""
    wanted = (names,) if isinstance(names, str) else names
    return lambda middle: " / ".join(number(middle.get(name), places) for name in wanted)


def spread(name: str, places: int = 0) -> Cell:
    """Show a median, and from where to where its runs went."""

    def cell(middle: Mapping[str, Any]) -> str:
        values = [run[name] for run in middle["_runs"] if run.get(name) is not None]
        shown = number(middle.get(name), places)
        if len(values) > 1:
            shown += f" ({number(min(values), places)} to {number(max(values), places)})"
        return shown

    return cell
