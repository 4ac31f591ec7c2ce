"""Where tracing and the like get in: what is noted with each job at its enqueue, and what is put around each run.

There is nothing here until somebody adds an instrument, and then it costs what that one costs. It is per process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Call = Callable[[Any], Any]
"""A handler as the executor calls it: with the claimed job."""


@dataclass(frozen=True, eq=False)
class Instrument:
    """What is done at an enqueue and around a run."""

    note: Callable[[str], Mapping[str, Any]]
    """Given a kind: what is to stand in the metadata of the job, or of the jobs, about to be enqueued."""
    wrap: Callable[[str, bool, Call], Call]
    """Given a kind, whether its handler is async, and the handler: what a worker calls in its place."""


_instruments: tuple[Instrument, ...] = ()


def add(instrument: Instrument) -> Callable[[], None]:
    """Use *instrument* from now on, in workers that start from now on; returns the function that ends it."""
    global _instruments  # noqa: PLW0603 - per process, as the subscriptions to events are
    _instruments = (*_instruments, instrument)

    def remove() -> None:
        global _instruments  # noqa: PLW0603 - as above
        _instruments = tuple(each for each in _instruments if each is not instrument)

    return remove


def noted(kind: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the options of an enqueue with what the instruments note; what the caller says himself goes over it."""
    if not _instruments:
        return options
    found: dict[str, Any] = {}
    for each in _instruments:
        found |= each.note(kind)
    given = options.get("metadata")
    if not found or not (given is None or isinstance(given, dict)):
        return options
    return {**options, "metadata": {**found, **(given or {})}}


def wrapped(kind: str, call: Call, *, is_async: bool) -> Call:
    """Put the instruments around a handler."""
    for each in _instruments:
        call = each.wrap(kind, is_async, call)
    return call
