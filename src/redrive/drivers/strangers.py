"""Values that strangers wrote, which Python may have no room for: read as near as it comes, and never refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

JSON = (114, 3802)
"""What the server calls json and jsonb."""
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def any_json(text: str) -> Any:
    """Read JSON; where Python has no room for it, such as a number of 5000 digits, its text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def with_json(rows: Sequence[Sequence[Any]], places: Collection[int]) -> list[Sequence[Any]]:
    """Read the JSON at *places* of each row, and give times a zone that came without: infinity, in some drivers."""
    return [tuple(_value(value, is_json=place in places) for place, value in enumerate(row)) for row in rows]


def _value(value: Any, *, is_json: bool) -> Any:
    if is_json and isinstance(value, str):
        return any_json(value)
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value
