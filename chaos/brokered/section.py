"""The section of the report on runs over a broker: written from the results that are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import TYPE_CHECKING, Any

from chaos.beside import TITLE as NEXT
from chaos.tables import table

if TYPE_CHECKING:
    from chaos.report import Circumstances
    from chaos.verdict import Verdict

RESULTS = Path(__file__).parent.with_name("brokered.json")
TITLE = "## Over a broker"
WORDS = """
The same handlers and witnesses where every kind is routed to RabbitMQ {rabbitmq} ({nodes} nodes): two relays, three
workers of the broker, and one of the table for what is routed back. `make chaos-broker CHAOS_SECONDS={seconds:g}
SEED={seed}` does it again. {jobs:,} jobs were confirmed to their producers, some of them past the table
(`direct=True`); {faults} faults struck. Lost is what no handler ended well and no table has with the reason. A job may
run twice where its worker, its relay, its connection or the broker was hit, close in time: {twice} jobs ended well more
than once.
"""


def results(verdict: Verdict, how: Circumstances, nodes: int, twice: int) -> dict[str, Any]:
    """Give what is kept of a run."""
    times: dict[str, int] = {}
    for struck in verdict.struck:
        times[struck.fault.name] = times.get(struck.fault.name, 0) + (not struck.skipped)
    return {
        **verdict.line,
        "seconds": how.seconds,
        "nodes": nodes,
        "rabbitmq": how.rabbitmq,
        "postgres": how.postgres,
        "twice": twice,
        "unknown": verdict.unknown,
        "times": times,
        "recovery": {name: [round(each, 2) for each in found] for name, found in verdict.recovery.items()},
        "reasons": verdict.reasons,
        "misdeeds": verdict.misdeeds,
    }


def section() -> list[str]:
    """Write it; nothing where there are no results."""
    if not RESULTS.exists():
        return []
    kept: dict[str, Any] = json.loads(RESULTS.read_text())
    counts = [
        ("jobs lost", kept["lost"]),
        ("double outcomes", kept["double_outcomes"]),
        ("illegal transitions", kept["illegal_transitions"]),
        ("unexplained duplicates", kept["unexplained_duplicates"]),
        ("slowest recovery", f"{kept['recovery_s_max']} s"),
    ]
    return [
        TITLE,
        f"\n{fill(WORDS.format(**kept).strip(), 120)}\n",
        table(("", "count"), counts),
        "",
        table(("fault", "what is done", "times", "p50, s", "max, s"), faults(kept)),
        "",
        table(("what had been hit", "tries that were run again"), kept["reasons"].items()),
    ]


def faults(kept: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    """Give a row a fault."""
    from chaos.brokered.plan import TOLD  # noqa: PLC0415 - the report, which shows this, knows no broker

    for name, says in TOLD.items():
        took = kept["recovery"].get(name, [])
        p50, most = (f"{median(took):.1f}", f"{max(took):.1f}") if took else ("", "")
        yield name, says, kept["times"].get(name, 0), p50, most


def renew(page: Path) -> None:
    """Put the section into a report, in place of the one that is there."""
    text = page.read_text()
    before, _, rest = text.partition(f"\n{TITLE}")
    after = (rest or text).partition(f"\n{NEXT}")[2]
    before = before.partition(f"\n{NEXT}")[0].rstrip()
    parts = [before, "", *section()]
    page.write_text("\n".join(parts) + (f"\n\n{NEXT}{after}" if after else "\n"))
