"""Parameters by number instead of by name, for drivers that have no names for them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")


def numbered(sql: str, params: Mapping[str, Any] | None) -> tuple[str, Sequence[Any]]:
    """Give *sql* with ``$1`` in the place of ``%(name)s``, and the parameters in that order."""
    if params is None:
        return sql, ()
    text, names = _spelt(sql)
    return text, tuple(params[name] for name in names)


@lru_cache(512)
def _spelt(sql: str) -> tuple[str, Sequence[str]]:
    numbers: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        name = found[1]
        return "%" if name is None else f"${numbers.setdefault(name, len(numbers) + 1)}"

    text = _PLACEHOLDER.sub(number, sql)
    return text, tuple(numbers)
