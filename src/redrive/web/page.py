"""What views and actions take and answer; they know no HTML and no cookie."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Page:
    """What a view answers: a template and what goes into it."""

    template: str
    context: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True)
class Done:
    """What an action answers: where to go on, and what to say there."""

    page: str
    said: str
    query: Mapping[str, Any] | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    bad: bool = False


@dataclass(frozen=True)
class Form:
    """What was sent."""

    values: Mapping[str, list[str]]

    def text(self, name: str) -> str:
        """Give a field's text, stripped; empty where it is missing."""
        return self.values.get(name, [""])[-1].strip()

    def all(self, name: str) -> list[str]:
        """Give every value of a field."""
        return list(self.values.get(name, []))


class Refused(Exception):
    """It can't be done, for the reason given."""
