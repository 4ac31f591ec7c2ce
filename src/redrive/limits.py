"""What a worker knows of the kinds that the database lets through by count: limits, and breakers that are not closed.

The database counts and enforces; this only remembers when it is worth while to ask it again. No database here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet


class Limit(NamedTuple):
    """What is known of one such kind."""

    pause: float
    """Seconds after which to ask again, where it has left nothing open."""
    by_running: bool
    """It may have room once a job has ended."""
    until: float = 0.0
    """Before that, monotonic seconds, it need not be asked."""


class Limits:
    """By kind, those that have limits or a breaker that is not closed."""

    def __init__(self) -> None:
        self.breakers = ""
        """Of the breakers that are not closed what the last survey said, as JSON; empty where there are none."""
        self.broken: frozenset[str] = frozenset()
        """Their kinds, as whoever reads that has it."""
        self._by_kind: dict[str, Limit] = {}

    def __bool__(self) -> bool:
        return bool(self._by_kind)

    def __contains__(self, kind: str) -> bool:
        return kind in self._by_kind

    def __iter__(self) -> Any:
        return iter(self._by_kind)

    def learn(self, last: Any) -> None:
        """Take the last row of a survey."""
        self.breakers = last.breakers or ""
        self._by_kind = {
            kind: Limit(pause, by_running, self.until(kind))
            for kind, pause, by_running in zip(last.limited, last.pauses, last.by_running, strict=True)
        }

    def until(self, kind: str) -> float:
        """When to ask for jobs of *kind* again, monotonic seconds; 0 for now."""
        limit = self._by_kind.get(kind)
        return 0.0 if limit is None else limit.until

    def exhausted(self, kinds: Iterable[str], now: float) -> None:
        """Learn that a claim of these *kinds* has left nothing open, or has found no more."""
        for kind in kinds:
            if (limit := self._by_kind.get(kind)) is not None:
                self._by_kind[kind] = limit._replace(until=now + limit.pause)

    def freed(self, kinds: Iterable[str]) -> bool:
        """Learn that jobs of *kinds* have ended; gives whether a limit may now have room that had none."""
        some = False
        for kind in set(kinds):
            limit = self._by_kind.get(kind)
            if limit is not None and limit.by_running:
                some = some or limit.until > 0
                self._by_kind[kind] = limit._replace(until=0.0)
        return some

    def arrived(self) -> None:
        """Learn that there may be new jobs: some of a broken kind may be for a target that is well."""
        for kind in self.broken & self._by_kind.keys():
            self._by_kind[kind] = self._by_kind[kind]._replace(until=0.0)

    def may_open(self, due: AbstractSet[str], now: float) -> bool:
        """Whether to ask for one of the *due* kinds now."""
        return any(limit.until <= now for kind, limit in self._by_kind.items() if kind in due)

    def next_at(self, due: AbstractSet[str], *, broken: bool = True) -> float:
        """When to ask again for one of the *due* kinds, those with breakers left out at wish; infinity for never."""
        kinds = self._by_kind.keys() & due - (frozenset() if broken else self.broken)
        return min((self._by_kind[kind].until for kind in kinds), default=float("inf"))
