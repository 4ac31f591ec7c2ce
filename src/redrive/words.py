"""Times, lengths and counts as people say them, and strangers' text as it can be shown.

For the terminal and the pages alike. Text from the database is data: control characters in it are shown, never obeyed.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NEVER = datetime.max.replace(tzinfo=UTC)
"""A time that Python can't hold, such as Postgres' infinity."""
ALWAYS = datetime.min.replace(tzinfo=UTC)

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_UNITS = (("y", 365 * 86_400.0), ("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


def clean(text: str) -> str:
    """Show control characters instead of obeying them: what a stranger wrote must not move the operator's cursor."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str, limit: int = 0) -> str:
    """Bring a text to one line, cut at *limit* where one is given."""
    line = clean(" ".join(text.split()))
    return line if not limit or len(line) <= limit else line[: limit - 1] + "…"


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


def counted(count: int, one: str, many: str = "", *, more: bool = False) -> str:
    """Write a count with what it counts, and where that is part of a sentence with its verb as well.

    ``counted(1, "row")`` is 1 row, ``counted(2, "row waits", "rows wait")`` is 2 rows wait. With *more* the count is as
    far as was counted, and gets a +.
    """
    single = count == 1 and not more
    return f"{number(count)}{'+' * more} {one if single else many or f'{one}s'}"


def there_are(names: Sequence[str], most: int = 20) -> str:
    """Name what there is of something, no more than *most*, or say that there is nothing."""
    return f"there are: {several(names, most)}" if names else "there are none"


def several(names: Sequence[str], most: int = 20) -> str:
    """Name no more than *most*, and say how many more there are."""
    more = f" and {number(len(names) - most)} more" if names[most:] else ""
    return f"{', '.join(names[:most])}{more}"


def number(count: int) -> str:
    """Write a count with its thousands apart."""
    return f"{count:,}"
