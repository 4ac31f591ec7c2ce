"""peers.json: what was measured, as it was, run by run, with the medians that the report is made from.

A run can be split: what is in the file is kept where it is of the same server, the same sizes and the same versions.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.catalog import SYSTEMS
from benchmarks.peers.scenarios import SCENARIOS

FORMAT = 1
SAME = ("server_version", "cores", "scale")
"""What must not differ between runs that are put together."""


class Results:
    """The content of peers.json, saved after each measurement."""

    def __init__(self, path: Path, head: Mapping[str, Any], systems: Mapping[str, Mapping[str, Any]]) -> None:
        self.path = path
        self.content: dict[str, Any] = {
            "format": FORMAT,
            **head,
            "systems": {name: dict(system) for name, system in systems.items()},
            "scenarios": {},
        }

    def merge(self) -> list[str]:
        """Take over what the file has, and list the systems for which it doesn't count: they are not what they were.

        Raises:
            ValueError: it was measured on another server or at other sizes.
        """
        if not self.path.exists():
            return []
        before = json.loads(self.path.read_text())
        for name in ("format", *SAME):
            if before.get(name) != self.content[name]:
                raise ValueError(
                    f"{self.path} can't be merged with this run: its {name} is {before.get(name)!r}, "
                    f"and this run's is {self.content[name]!r}; give another --out"
                )
        changed = {
            name
            for name, now in self.content["systems"].items()
            for was in [before["systems"].get(name, now)]
            if "not_run" not in now and any(was.get(part) != now.get(part) for part in ("versions", "settings"))
        }
        known = {name: system for name, system in self.content["systems"].items() if "not_run" not in system}
        systems = self.content["systems"] | before["systems"] | known  # what can't be had today was measured once
        order = [system.name for system in SYSTEMS]
        self.content["systems"] = {name: systems[name] for name in sorted(systems, key=order.index)}
        for name, scenario in before["scenarios"].items():
            kept = {system: entry for system, entry in scenario["systems"].items() if system not in changed}
            self.content["scenarios"][name] = scenario | {"systems": kept}
        return sorted(changed)

    def runs(self, scenario: str, system: str) -> list[dict[str, Any]]:
        """List the runs of a system in a scenario, so far."""
        entry = self.content["scenarios"].get(scenario, {}).get("systems", {}).get(system, {})
        return list(entry.get("runs", []))

    def add(self, scenario: str, system: str, run: Mapping[str, Any]) -> None:
        """Note a run, and save."""
        runs = [*self.runs(scenario, system), dict(run)]
        middle = medians(runs)
        self._put(scenario, system, {"figure": middle.get(SCENARIOS[scenario].figure), "median": middle, "runs": runs})

    def give_up(self, scenario: str, system: str, reason: str) -> None:
        """Note why there is no figure, or no further run, and save."""
        if runs := self.runs(scenario, system):
            entry = self.content["scenarios"][scenario]["systems"][system]
            self._put(scenario, system, entry | {"runs": runs, "failed_once": reason})
        else:
            self._put(scenario, system, {"not_run": reason})

    def _put(self, name: str, system: str, entry: Mapping[str, Any]) -> None:
        scenario = SCENARIOS[name]
        shelf = self.content["scenarios"].setdefault(name, {"systems": {}})
        shelf |= {
            "what": scenario.what,
            "figure": scenario.figure,
            "unit": scenario.unit,
            "better": "higher" if scenario.higher else "lower",
        }
        shelf["systems"][system] = dict(entry)
        self.save()

    def save(self) -> None:
        """Write the file, whole or not at all."""
        shelves = self.content["scenarios"]
        everything = [
            run for shelf in shelves.values() for entry in shelf["systems"].values() for run in entry.get("runs", [])
        ]
        loads = [run["foreign_cpu_cores"] for run in everything if "foreign_cpu_cores" in run]
        if loads:
            self.content["foreign_cpu_cores"] = {
                "mean": round(statistics.fmean(loads), 3),
                "max": max(loads),
                "noisy_runs": sum(bool(run.get("noisy")) for run in everything),
                "runs": len(everything),
            }
        self.content["scenarios"] = {name: shelves[name] for name in SCENARIOS if name in shelves}
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps(self.content, indent=1) + "\n")
        draft.replace(self.path)


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Give the median of each number that the runs have; of what isn't a number, the last."""
    middle: dict[str, Any] = {}
    for name in dict.fromkeys(name for run in runs for name in run):
        values = [run[name] for run in runs if run.get(name) is not None]
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if numbers and len(numbers) == len(values):
            middle[name] = statistics.median(numbers)
        elif values:
            middle[name] = values[-1]
    return middle
