"""Reads a document part by part, and notes all that is wrong in it instead of stopping at the first.

It knows texts, numbers and lists, and the mark of a question that nobody has answered; it knows nothing of tables.
"""

from __future__ import annotations

from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

Value = str | int | float | bool
UNANSWERED = "?"
"""Stands in a document where only a human knows."""


class Reader:
    """Reads one part of a document and notes what is wrong in it."""

    def __init__(self, document: Any, path: str, problems: list[str]) -> None:
        self.document: Mapping[str, Any] = document if isinstance(document, dict) else {}
        self.path = path
        self.problems = problems
        self.given = bool(self.document)
        self.sound = document is None or isinstance(document, dict)
        self._seen: list[str] = []
        if not self.sound:
            self.wrong("", f"is {document!r:.80}: must be a table of its own, [{path}]")

    def wrong(self, name: str, what: str) -> None:
        """Note what is wrong at *name* of this part."""
        place = ".".join(part for part in (self.path, name) if part)
        self.problems.append(f"{place}: {what}" if place else what)

    def lacks(self, name: str) -> bool:
        """Tell whether nothing at all stands under *name*."""
        return name not in self.document

    def get(self, name: str, *kinds: type, what: str) -> Any:
        """Give what stands under *name* if it is of one of *kinds*."""
        self._seen.append(name)
        value = self.document.get(name)
        if value == UNANSWERED:
            self.wrong(name, f"is not answered: put {what} in the place of the question mark")
            return None
        if value is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
            self.wrong(name, f"is {value!r:.80}: must be {what}")
            return None
        return value

    def text(self, name: str, needed: str = "") -> str | None:
        """Read a text; *needed* says what it is where there must be one."""
        value: str | None = self.get(name, str, what=needed or "a text")
        if value == "" or (value is None and needed and name not in self.document):
            self.wrong(name, f"is missing: {needed}" if needed else "is empty: leave it out")
            return None
        return value

    def choice(self, name: str, words: tuple[str, ...]) -> str | None:
        """Read one of some words."""
        value = self.text(name, " or ".join(words))
        if value is not None and value not in words:
            self.wrong(name, f"is {value!r:.80}: must be {', '.join(words[:-1])} or {words[-1]}")
            return None
        return value

    def whole(self, name: str, *, least: int) -> int | None:
        """Read a whole number."""
        value: int | None = self.get(name, int, what="a whole number")
        if value is not None and not least <= value < 2**31:
            self.wrong(name, f"is {value}: must be a whole number from {least}")
        return value

    def flag(self, name: str) -> bool:
        """Read true or false; false where it is left out."""
        return bool(self.get(name, bool, what="true or false"))

    def names(self, name: str) -> tuple[str, ...]:
        """Read a list of names."""
        found = self.get(name, list, tuple, what='a list of columns, such as ["sent_at"]') or ()
        if not all(isinstance(each, str) and each for each in found):
            self.wrong(name, f"is {found!r:.80}: must be a list of columns")
            return ()
        return tuple(found)

    def values(self, name: str) -> tuple[Value, ...]:
        """Read a list of plain values."""
        found = self.get(name, list, tuple, what='a list of values, such as ["pending"]') or ()
        return tuple(each for each in found if self.plain(name, each))

    def plain(self, name: str, value: Any) -> bool:
        """Tell whether a value is one that a column can hold, NULL apart."""
        if value == UNANSWERED:
            self.wrong(name, "is not answered: put the value that the application knows in its place")
            return False
        if not isinstance(value, str | int | float):
            self.wrong(name, f"is {value!r:.80}: must be a text, a number, true or false; NULL is a list of its own")
            return False
        return True

    def table(self, name: str) -> dict[str, Any]:
        """Read names and what stands under them."""
        return dict(self.get(name, dict, what="a table of columns and values") or {})

    def numbers(self, name: str) -> dict[str, float]:
        """Read names with a number each."""
        found = self.table(name)
        for each, value in found.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                self.wrong(f"{name}.{each}", f"is {value!r:.80}: must be a number")
        return {each: value for each, value in found.items() if isinstance(value, int | float)}

    def moment(self, name: str) -> datetime | None:
        """Read a time with its offset."""
        value = self.get(name, datetime, str, what="a time with its offset, such as 2026-11-30T09:00:00Z")
        try:
            found = datetime.fromisoformat(value) if isinstance(value, str) else value
        except ValueError:
            found = None
        if found is None or found.tzinfo is None:
            if value is not None or self.lacks(name):
                self.wrong(name, f"is {value}: must be a time with its offset, such as 2026-11-30T09:00:00Z")
            return None
        return found

    def part(self, name: str) -> Reader:
        """Go into a part of this part."""
        self._seen.append(name)
        return Reader(self.document.get(name), f"{self.path}.{name}".strip("."), self.problems)

    def parts(self, name: str) -> list[tuple[str, Reader]]:
        """Go into each part of a part whose names are free."""
        outer = self.part(name)
        return [(each, outer.part(each)) for each in outer.document]

    def done(self) -> None:
        """Note the names that nobody has asked for."""
        for name in sorted(self.document.keys() - set(self._seen)):
            near = get_close_matches(name, self._seen, 1)
            self.wrong(name, "is unknown" + (f", did you mean {near[0]}?" if near else f"; known are {self._known()}"))

    def _known(self) -> str:
        return ", ".join(dict.fromkeys(self._seen))
