"""redrive's figures as ratios: to the fastest of its peers, and, from `make bench`, to the bare SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benchmarks.bars import page
from benchmarks.peers.tables import number, table

OURS = "redrive"
NO_PEERS = ("redrive", "redrive-uvloop", "tutorial")
"""Another form of ours, and a loop of thirty lines that is no library: they have their lines in the tables."""
NODE = "graphile"

_LINES: tuple[tuple[str, str, str, Callable[[str], bool]], ...] = (
    ("drain, async: to Graphile Worker's best", "drain_async", "per_s", lambda name: name.startswith(NODE)),
    ("drain, async: to the fastest Python peer", "drain_async", "per_s", lambda name: not name.startswith(NODE)),
    ("drain, never analyzed: to the fastest peer", "drain_async_never_analyzed", "per_s", lambda _: True),
    ("drain, sync: to the fastest peer", "drain_sync", "per_s", lambda _: True),
    ("enqueue, bulk: to the fastest peer", "enqueue_bulk", "per_s", lambda _: True),
    ("enqueue, single: to the fastest peer", "enqueue_single", "per_s", lambda _: True),
    ("pick-up p50: to the quickest peer", "latency", "p50_ms", lambda _: True),
    ("pick-up p99: to the quickest peer", "latency", "p99_ms", lambda _: True),
    ("WAL of a drained job: to the smallest", "drain_async", "wal_bytes_per_job", lambda _: True),
    ("worker CPU of a drained job: to the smallest", "drain_async", "worker_us_per_job", lambda _: True),
    ("idle transactions: to the fewest", "idle", "transactions_per_s", lambda _: True),
)
_HIGHER = "per_s"


def ratio(document: Mapping[str, Any], scenario: str, name: str, among: Callable[[str], bool]) -> dict[str, Any] | None:
    """Compare our median with the best of the peers *among* which to look; None where either is missing.

    Where a run of ours and one of theirs were made in the same round, `rounds` has the ratio of each such pair.
    """
    systems = document["scenarios"].get(scenario, {}).get("systems", {})
    medians = {system: entry["median"].get(name) for system, entry in systems.items() if "median" in entry}
    ours = medians.get(OURS)
    peers = {system: value for system, value in medians.items() if value is not None and system not in NO_PEERS}
    peers = {system: value for system, value in peers.items() if among(system)}
    if ours is None or not peers:
        return None
    best = (max if name == _HIGHER else min)(peers, key=lambda system: peers[system])
    pairs = zip(systems[OURS]["runs"], systems[best]["runs"], strict=False)
    rounds = [own[name] / theirs[name] for own, theirs in pairs if own.get(name) and theirs.get(name)]
    value = ours / peers[best] if peers[best] else None
    return {"ours": ours, "best": best, "theirs": peers[best], "ratio": value, "rounds": rounds}


def glance(document: Mapping[str, Any]) -> Iterable[str]:
    """Show the ratios of all that was measured on both sides."""
    rows = []
    for title, scenario, name, among in _LINES:
        found = ratio(document, scenario, name, among)
        if found is None:
            continue
        places = 0 if name == _HIGHER else 1
        shown = "-" if found["ratio"] is None else f"{found['ratio']:.2f}"
        rounds = found["rounds"]
        between = f"{min(rounds):.2f} to {max(rounds):.2f}" if len(rounds) > 1 else "one round"
        better = "more" if name == _HIGHER else "less"
        theirs = f"{number(found['theirs'], places)} ({found['best']})"
        rows.append([title, number(found["ours"], places), theirs, f"**{shown}**", between, better])
    if rows:
        yield "### At a glance"
        yield (
            "redrive's median over that of the best peer in that line, on the same server and in the same rounds. "
            "Where less is better, a ratio below 1 is in redrive's favour."
        )
        yield table(["", "redrive", "best peer", "ratio", "round by round", "better"], rows)


def own(results: dict[str, Any]) -> Iterable[str]:
    """Show what `make bench` wrote: redrive alone, against the bare SQL and the bars it is held to."""
    yield "## redrive alone"
    yield "As `make bench` measured it; a ratio is one of runs in turn."
    yield page(results)
