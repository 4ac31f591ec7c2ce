"""The words of RESULTS.md: what was measured how, and what its figures can't bear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OPENING = """
# Results

Written by `make bench-peers` from peers.json and results.json beside this file; no figure in it is typed in, and the
next run writes all of it anew. [How it is measured](peers/README.md).
"""


def _flowing(text: str) -> str:
    return " ".join(text.split())


_SECTIONS = (
    (
        "speed",
        "Speed",
        """One worker process. A drain counts from the first handler's call until the database has the last job as
        finished. "Never analyzed" is the same drain without the ANALYZE after the preload: for some systems the faster
        one, for some the slower. Neither is the truth: autovacuum analyzes a table about a minute after a burst. In
        brackets the least and the most of the rounds.""",
    ),
    (
        "costs",
        "What a drained job costs",
        """Of the async drain (sync where there is none), medians. Worker CPU is that of its process after the first
        job, server CPU that of all of Postgres' processes; WAL begins at a checkpoint before the preload; memory adds
        child processes, pages that they share included.""",
    ),
    (
        "idle",
        "Pick-up, and an idle worker",
        """From just before the enqueue call to the handler's start, the producer's commit included, a job each 25 ms.
        The worker's settings are those of the drain, so a poll made short for speed is seen in the idle
    transactions.""",
    ),
    (
        "steady",
        "A steady load",
        """The highest of the rates that the system kept; the lowest where it kept none. From before the enqueue call of
        its group to the handler's start.""",
    ),
    (
        "horizon",
        "While a long transaction pins the xmin horizon",
        """The same steady load for longer, while another session holds a REPEATABLE READ snapshot from before the
        start. Growth is last over first ten seconds. It means something only beside the control, the same without the
        snapshot: near a system's capacity pick-up grows without any.""",
    ),
    (
        "churn",
        "After churn under a pinned horizon",
        """Jobs fed and run as fast as the system goes, up to a number or a time, with the snapshot held and, as
        control, without; then pick-up, ANALYZE and a drain on what is left in the tables. The last ratio is to the
        analyzed drain of a fresh table above; the two drains differ in their number of jobs.""",
    ),
    (
        "crash",
        "A worker that is killed",
        """20 jobs of a second, five at a time, SIGKILL after 1.5 s, then a new worker; once with defaults, once with
        the documented knobs turned to quick. A time over the limit is a limit of this test, not of the system. These
        are measured all at once, each on its own database: they mostly sleep.""",
    ),
)
SECTIONS = tuple((name, title, _flowing(text)) for name, title, text in _SECTIONS)

_ALWAYS = (
    """Each system has the settings below: its documentation's, tried with few alternatives. Somebody who knows a system
    better may make it faster.""",
    """They promise different things: what each keeps of a finished job, and which hold outcomes back in memory, is said
    below. Those that delete, or write later, do less.""",
    "The number of jobs in a drain fits each system's speed, so a fast one drains a longer table.",
    """Where a figure has no brackets it was measured once; between two such figures a factor below 1.5 is within
    noise.""",
)


def conditions(document: Mapping[str, Any]) -> str:
    """Say on what it was measured, and when."""
    settings = ", ".join(f"{name}={value}" for name, value in document["server_settings"].items())
    runs = {
        len(entry["runs"])
        for shelf in document["scenarios"].values()
        for entry in shelf["systems"].values()
        if "runs" in entry
    }
    rounds = f"{min(runs)} to {max(runs)} rounds" if len(runs) > 1 else f"rounds: {max(runs, default=0)}"
    return _flowing(
        f"""{document["date"]}; {document["cores"]} cores ({document["processor"]}) shared by server, worker, producer
        and driver; Linux {document["kernel"]}; an 8 kB write with fdatasync takes {document["sync_ms"]:.2f} ms there.
        PostgreSQL {document["server_version"]} with {settings}, all else as it comes. All systems in turn on this one
        server, a fresh database for each measurement; {rounds}, medians."""
    )


def caveats(document: Mapping[str, Any]) -> str:
    """Say what to keep in mind, with how noisy it was."""
    lines = []
    if load := document.get("foreign_cpu_cores"):
        lines.append(
            f"""The machine is shared. Others used {load["mean"]:.2f} cores on average and {load["max"]:.2f} at most
            during a measurement; {load["noisy_runs"]} of {load["runs"]} runs are marked noisy in peers.json."""
        )
    if widest := _widest(document):
        lines.append(f"The rounds differ: most in {widest}. A difference smaller than that is none.")
    if document["scale"]["factor"] != 1:
        lines.append(
            f"""**A quick run, at {document["scale"]["factor"]:g} of the jobs: it shows that everything runs. Its
            figures are not to be quoted.**"""
        )
    return "\n".join(["Before quoting a number:", "", *(f"- {_flowing(line)}" for line in [*lines, *_ALWAYS])])


def _widest(document: Mapping[str, Any]) -> str:
    """Find the figure whose rounds lie furthest apart."""
    found = (0.0, "")
    for scenario, shelf in document["scenarios"].items():
        for system, entry in shelf["systems"].items():
            values = [run[shelf["figure"]] for run in entry.get("runs", []) if run.get(shelf["figure"])]
            if len(values) > 1:
                found = max(found, (max(values) / min(values), f"{scenario} of {system}"))
    return f"{found[1]}, {found[0]:.2f} times from least to most" if found[1] else ""
