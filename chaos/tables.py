"""A table in Markdown."""

from __future__ import annotations

from collections.abc import Iterable

Rows = Iterable[tuple[object, ...]]


def table(head: tuple[str, ...], rows: Rows) -> str:
    """Lay out a table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
