"""RESULTS.md, made from peers.json of each server, and from results.json where `make bench` has left one.

Every number comes from these files. What can't be told from them is not said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import prose, ratios
from benchmarks.peers.tables import Cell, figure, number, spread, table

Document = Mapping[str, Any]

_COLUMNS: dict[str, list[tuple[str, str, Callable[[Mapping[str, Any]], str]]]] = {
    "speed": [
        ("enqueue, single/s", "enqueue_single", spread("per_s")),
        ("enqueue, bulk/s", "enqueue_bulk", spread("per_s")),
        ("drain, async/s", "drain_async", spread("per_s")),
        ("drain, never analyzed/s", "drain_async_never_analyzed", spread("per_s")),
        ("drain, sync/s", "drain_sync", spread("per_s")),
    ],
    "idle": [
        ("pick-up p50, ms", "latency", spread("p50_ms", 1)),
        ("p95", "latency", figure("p95_ms", 1)),
        ("p99", "latency", spread("p99_ms", 1)),
        ("idle transactions/s", "idle", figure("transactions_per_s", 2)),
        ("idle worker CPU, ms/s", "idle", lambda m: number(1000 * m["worker_cpu_s"] / m["seconds"], 1)),
        ("connections", "idle", figure("connections")),
    ],
    "steady": [
        ("rate/s", "sustained", figure("rate")),
        ("kept", "sustained", lambda m: "yes" if m.get("kept") else "no"),
        ("done when the last was sent", "sustained", lambda m: f"{100 * m['done_at_end_share']:.1f} %"),
        ("p50, ms", "sustained", figure("p50_ms", 1)),
        ("p99, ms", "sustained", figure("p99_ms", 1)),
    ],
    "horizon": [
        ("rate/s", "horizon", figure("rate")),
        ("held: first 10 s p50 / p99, ms", "horizon", figure(("first_p50_ms", "first_p99_ms"), 1)),
        ("last 10 s", "horizon", figure(("last_p50_ms", "last_p99_ms"), 1)),
        ("growth p50 / p99", "horizon", figure(("growth_p50", "growth_p99"), 2)),
        ("control: growth p50 / p99", "horizon_control", figure(("growth_p50", "growth_p99"), 2)),
        ("dead rows, held", "horizon", figure("dead_rows")),
        ("control", "horizon_control", figure("dead_rows")),
    ],
    "crash": [
        (f"{title}: {name}", scenario, cell)
        for title, scenario in (("defaults", "crash"), ("tuned", "crash_tuned"))
        for name, cell in (
            ("handlers ended / recorded, of 20", figure(("handlers_finished", "done"))),
            ("after, s", lambda m: number(m.get("recovered_s"), 1) if m.get("recovered_s") else f"> {m['cap_s']:g}"),
            ("ran twice", figure("ran_twice")),
            ("finished, then ran again", figure("finished_then_ran_again")),
        )
    ],
}


def write(folder: Path) -> Path:
    """Make RESULTS.md of what lies in *folder*, and say where it is."""
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("peers*.json"))]
    documents.sort(key=lambda each: int(str(each["server_version"]).split(".")[0]), reverse=True)
    own = [json.loads(path.read_text()) for path in sorted(folder.glob("results*.json"))]
    path = folder / "RESULTS.md"
    path.write_text(render(documents, own))
    return path


def render(documents: Sequence[Document], own: Sequence[dict[str, Any]] = ()) -> str:
    """Make the text."""
    parts = [prose.OPENING]
    for document in documents:
        parts += _server(document)
    for results in own:
        parts += ratios.own(results)
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _server(document: Document) -> Iterable[str]:
    yield f"## PostgreSQL {document['server_version']}: redrive and its peers"
    yield prose.conditions(document)
    yield prose.caveats(document)
    yield from ratios.glance(document)
    for name, title, text in prose.SECTIONS:
        made = _costs(document) if name == "costs" else _churn(document) if name == "churn" else _plain(document, name)
        if made:
            yield f"### {title}"
            yield text
            yield made
    yield from _missing(document)
    yield "### What was compared"
    yield _systems(document)


def _plain(document: Document, name: str) -> str:
    columns = _COLUMNS[name]
    scenarios = list(dict.fromkeys(scenario for _, scenario, _ in columns))
    rows = []
    for system in _order(document, scenarios):
        entries = {scenario: _entry(document, scenario, system) for scenario in scenarios}
        rows.append([system, *(_cell(entries[scenario], cell) for _, scenario, cell in columns)])
    return table(["", *(title for title, _, _ in columns)], rows) if rows else ""


def _costs(document: Document) -> str:
    """Show what a drained job costs: the async drain's, and the sync one's where there is no other."""
    names = {
        "jobs": 0,
        "worker_us_per_job": 1,
        "server_us_per_job": 1,
        "wal_bytes_per_job": 0,
        "transactions_per_1000_jobs": 1,
        "memory_mb": 0,
        "start_s": 1,
    }
    rows = []
    for system in _order(document, ("drain_async", "drain_sync")):
        entry = _entry(document, "drain_async", system)
        kind = "async"
        if "median" not in entry:
            entry, kind = _entry(document, "drain_sync", system), "sync"
        if "median" in entry:
            rows.append([system, kind, *(number(entry["median"].get(name), places) for name, places in names.items())])
    titles = ["worker µs/job", "server µs/job", "WAL B/job", "transactions/1,000 jobs", "peak memory, MB", "start, s"]
    return table(["", "handlers", "jobs", *titles], rows) if rows else ""


def _churn(document: Document) -> str:
    """Show churn with and without the snapshot, a line each."""
    rows = []
    for system in _order(document, ("churn", "churn_control")):
        drains = [_entry(document, name, system).get("median", {}) for name in ("drain_async", "drain_sync")]
        fresh = next((drain["per_s"] for drain in drains if drain.get("per_s")), None)
        for scenario, held in (("churn", "held"), ("churn_control", "control")):
            entry = _entry(document, scenario, system)
            middle = entry.get("median")
            if middle is None:
                rows.append([system, held, _cell(entry, figure("done"))])
                continue
            after = middle.get("drain_after_per_s")
            rows.append(
                [
                    system,
                    held,
                    number(middle["done"]),
                    f"{number(middle.get('first_tenth_per_s'))} → {number(middle.get('last_tenth_per_s'))}",
                    figure(("after_p50_ms", "after_p99_ms"), 1)(middle),
                    number(after),
                    f"{after / fresh:.2f}" if after and fresh else "-",
                    number(middle.get("dead_rows")),
                ]
            )
    titles = ["snapshot", "jobs through", "rate, first → last tenth/s", "pick-up after p50 / p99, ms"]
    return table(["", *titles, "drain after/s", "of a fresh one", "dead rows"], rows) if rows else ""


def _cell(entry: Mapping[str, Any], cell: Cell) -> str:
    if "not_run" in entry:
        return "not run"
    if "median" not in entry:
        return "-"
    try:
        return cell({**entry["median"], "_runs": entry["runs"]})
    except (KeyError, TypeError, ZeroDivisionError):  # this run had no such number
        return "-"


def _entry(document: Document, scenario: str, system: str) -> Mapping[str, Any]:
    shelf: Mapping[str, Any] = document["scenarios"].get(scenario, {}).get("systems", {})
    found: Mapping[str, Any] = shelf.get(system, {})
    return found


def _order(document: Document, scenarios: Sequence[str]) -> list[str]:
    """List the systems that were measured or tried in one of *scenarios*, as they stand in the file."""
    return [name for name in document["systems"] if any(_entry(document, each, name) for each in scenarios)]


def _missing(document: Document) -> Iterable[str]:
    """Say what was not run, and why: of a system as a whole, or of a scenario."""
    lines = [
        f"- {name}: not run: {system['not_run']}" for name, system in document["systems"].items() if "not_run" in system
    ]
    for scenario, shelf in document["scenarios"].items():
        for name, entry in shelf["systems"].items():
            if "not_run" in entry:
                lines.append(f"- {name}, {scenario}: not run: {entry['not_run']}")
            elif "failed_once" in entry:
                lines.append(
                    f"- {name}, {scenario}: {len(entry['runs'])} runs, and one that failed: {entry['failed_once']}"
                )
    if lines:
        yield "### Not run"
        yield "\n".join(lines)


def _systems(document: Document) -> str:
    lines = []
    for name, system in document["systems"].items():
        if "not_run" in system:
            continue
        versions = ", ".join(f"{what} {version}" for what, version in system["versions"].items())
        lines.append(f"- **{name}** ({versions}). {system['settings']}. Of a finished job it keeps {system['keeps']}.")
        for note in ("sync_note", "crash_tuned"):
            if note in system:
                lines[-1] += f" {'Sync' if note == 'sync_note' else 'Tuned for the crash'}: {system[note]}."
    return "\n".join(lines)
