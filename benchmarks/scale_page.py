"""What `make bench` found of a job's costs, brought to where it is used: the table in the code, and docs/scale.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from benchmarks.bars import beside_others
from redrive.capacity import costs

PAGE = Path(__file__).parent.parent / "docs" / "scale.md"
RATES = (100.0, 1_000.0, 10_000.0, 100_000.0, 1_000_000.0)


def settled(text: str, results: dict[str, Any]) -> str:
    """Give the text of costs.py with the figures of *results*, to three digits."""

    def figure(match: re.Match[str]) -> str:
        value = results.get(match["key"])
        shown = match["figure"] if value is None else _plain(float(f"{value:.3g}"))
        return f"{match['before']}{shown}{match['after']}"

    cost = r'(?P<before>",\s+)(?P<figure>[\d_.]+)(?P<after>,\s+"[^"\n]*",\s+"(?P<key>\w+)",?\s*\))'
    return re.sub(cost, figure, text)


def written(text: str, results: dict[str, Any]) -> str:
    """Give the text of the page with the figures of the code."""
    apart = results.get("apart", {}).get("scale", results)
    beside = beside_others(apart.get("other_cores_busy"))
    frames = {
        "paper": costs.paper(RATES),
        "where": f"{apart['server']}, {results['machine']}, {apart['date']}{beside}.",
        "measured": costs.table(costs.MEASURED),
        "assumed": costs.table(costs.TAKEN),
        "broker": costs.table(costs.BROKERS),
    }
    for name, table in frames.items():
        first, last = f"<!-- {name}, by make bench-page -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(first)
        text = f"{before}{first}\n\n{table}\n\n{last}{rest.partition(last)[2]}"
    return text


def _plain(value: float) -> str:
    return f"{value:_.1f}" if value >= 100 else f"{value:g}" if value % 1 else f"{value:.1f}"  # noqa: PLR2004 - three digits
