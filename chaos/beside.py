"""The table of `python -m chaos.peers` for the report: the same faults for others, with their settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

from chaos.tables import table

RESULTS = Path(__file__).with_name("peers.json")
WORDS = """
Faults that every system can be given, with the recovery set up that its documentation describes: {faults}. They
strike {workers} workers of five jobs at a time in {seconds:g} s (seed {seed}), with {jobs:,} jobs of 0.2 s enqueued
before; a worker that ends is started again. Then all is left in peace for up to four minutes. Told by the handlers'
own records; `make chaos-peers` does it again. A job that was begun twice is no fault: all of these promise at least
once, and who notices a dead worker sooner gives more of its jobs to others while it is only frozen or cut off.
"""
SETTINGS = ("", "recovery", "states of the jobs at the end")
HEAD = ("", "never finished", "begun twice", "finished twice", "workers that ended by themselves")
TITLE = "## Beside its peers"


def section() -> list[str]:
    """Write the section from the results that are kept; nothing where there are none."""
    if not RESULTS.exists():
        return []
    results: dict[str, Any] = json.loads(RESULTS.read_text())
    struck = sorted(results["faults"].items())
    faults = "; ".join(f"{'once' if times == 1 else f'{times} times'} {name}" for name, times in struck)
    words = f"\n{fill(WORDS.format(**results | {'faults': faults}).strip(), 120)}\n"
    return [TITLE, words, table(HEAD, rows(results)), "", table(SETTINGS, settings(results))]


def renew(page: Path) -> None:
    """Put the section at the end of a report, in place of the one that is there."""
    rest = page.read_text().partition(f"\n{TITLE}")[0].rstrip()
    page.write_text("\n".join([rest, "", *section()]) + "\n")


def rows(results: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    """Give a row a system."""
    for name, found in results["systems"].items():
        version = found["versions"].get(name, "")
        counts = (found["never_finished"], found["begun_twice"], found["finished_twice"])
        yield f"{name} {version}", *counts, found["workers_ended_by_themselves"]


def settings(results: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    """Give a row what a system's recovery was set to, and in what states it left its jobs."""
    for name, found in results["systems"].items():
        states = ", ".join(f"{count} {state}" for state, count in sorted(found["states"].items()))
        yield name, found["settings"], states
