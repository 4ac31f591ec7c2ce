"""The command: ``python -m benchmarks.peers``, or ``make bench-peers``."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.peers import catalog, environments, machine, report, scenarios
from benchmarks.peers.bench import QUICK, Bench, Scale
from benchmarks.peers.catalog import CHECKOUT, Environment, System
from benchmarks.peers.child import Failed
from benchmarks.peers.environments import Unavailable
from benchmarks.peers.results import Results
from benchmarks.peers.rounds import Patience, Rounds
from benchmarks.peers.server import Server, binaries
from benchmarks.peers.stage import Ready, meet
from redrive.errors import NoDatabase

EXAMPLES = """
  python -m benchmarks.peers --quick --peers redrive,pgqueuer
  python -m benchmarks.peers --scenarios bulk,drain_async,latency
  python -m benchmarks.peers --scenarios horizon,churn --merge     later, into the same file
  python -m benchmarks.peers --report                              RESULTS.md again from what was measured
  BENCH_PG=15 python -m benchmarks.peers                           on another major: peers-15.json
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write peers.json and RESULTS.md."""
    given = _parser().parse_args(arguments)
    named = os.environ.get("BENCH_PG", "")
    folder: Path = given.folder
    out: Path = given.out or folder / (f"peers-{named}.json" if named else "peers.json")
    if not given.report:
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            systems, wanted = catalog.chosen(given.peers), scenarios.chosen(given.scenarios)
            _measure(given, int(named) if named else None, out, systems, wanted)
        except (ValueError, RuntimeError, NoDatabase) as error:
            sys.stderr.write(f"{error}\n")
            return 1
        except KeyboardInterrupt:
            sys.stderr.write(f"stopped; what was measured is in {out}, and --merge goes on from there\n")
            return 130
    written = report.write(folder)
    sys.stderr.write(f"{out} and {written}\n" if not given.report else f"{written}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        epilog="examples:" + EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peers", default="", help="systems or peers, with commas between; all unless given")
    parser.add_argument("--scenarios", default="", help="scenarios or groups of them; all unless given")
    parser.add_argument("--repeat", type=int, default=3, help="rounds of the short scenarios; the median counts (3)")
    parser.add_argument("--repeat-long", type=int, default=1, help="of idle, sustained, horizon, churn, crash (1)")
    parser.add_argument(
        "--quick", action="store_true", default=bool(os.environ.get("BENCH_QUICK")), help="a twentieth, one round"
    )
    parser.add_argument("--merge", action="store_true", help="keep what is in the file and measure what it lacks")
    parser.add_argument("--report", action="store_true", help="only write RESULTS.md from what was measured")
    parser.add_argument("--quiet-wait", type=float, default=20.0, help="seconds to wait for a quiet machine (20)")
    parser.add_argument("--retries", type=int, default=1, help="how often a noisy measurement is made again (1)")
    parser.add_argument("--folder", type=Path, default=CHECKOUT / "benchmarks", help="where results.json and all go")
    parser.add_argument("--out", type=Path, help="another file than FOLDER/peers.json")
    return parser


def _measure(
    given: argparse.Namespace,
    major: int | None,
    out: Path,
    systems: Sequence[System],
    wanted: Sequence[scenarios.Scenario],
) -> None:
    if not machine.PROC.exists():
        raise RuntimeError("this needs Linux: it reads /proc")
    scale = QUICK if given.quick else Scale()
    repeat = 1 if given.quick else given.repeat
    patience = Patience(wait=0.0 if given.quick else given.quiet_wait, retries=0 if given.quick else given.retries)
    with tempfile.TemporaryDirectory(prefix="redrive-peers-") as folder:
        scratch = Path(folder)
        ready, told = _introduced(systems, scratch)
        with Server(binaries(major)) as server:
            results = Results(out, _head(server, scale), told)
            for name in results.merge() if given.merge else []:
                sys.stderr.write(f"{name}: another version or other settings than in {out}: measured anew\n")
            results.save()

            def kept_rate(name: str) -> int | None:
                kept = [run["rate"] for run in results.runs("sustained", name) if run.get("kept")]
                return max(kept) if kept else scale.rates[-1] if results.runs("sustained", name) else None

            rounds = Rounds(Bench(server, scratch, scale, kept_rate), results, patience)
            rounds.run(rounds.plan(wanted, ready, repeat, given.repeat_long))


def _introduced(systems: Sequence[System], scratch: Path) -> tuple[list[Ready], dict[str, dict[str, Any]]]:
    """Make the environments, and hear from each system what it is; one that can't be had has a reason."""
    programs: dict[Environment, list[str]] = {}
    reasons: dict[Environment, str] = {}
    ready, told = [], {}
    for system in systems:
        environment = system.environment
        try:
            if environment not in programs and environment not in reasons:
                sys.stderr.write(f"{environment.name}: its environment\n")
                programs[environment] = environments.program(environment)
            if environment in programs:
                met = meet(system, programs[environment], environments.cache() / environment.name, scratch)
                ready.append(met)
                told[system.name] = _told(met)
        except (Unavailable, Failed) as error:
            reasons[environment] = str(error)
        if environment in reasons:
            told[system.name] = {"not_run": reasons[environment]}
            sys.stderr.write(f"{system.name}: not run: {reasons[environment]}\n")
    return ready, told


def _told(ready: Ready) -> dict[str, Any]:
    versions = dict(ready.info["versions"])
    if ready.system.environment is catalog.REDRIVE:
        versions["redrive"] += f" ({_commit()})"
    kept = ("settings", "keeps", "sync_note", "no_sync", "no_async", "crash_tuned", "no_crash_tuned")
    return {"versions": versions} | {name: ready.info[name] for name in kept if name in ready.info}


def _commit() -> str:
    """Say which commit the checkout is, and whether src/ differs from it."""
    git = ["git", "-C", str(CHECKOUT)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "no commit"
    return commit.stdout.strip() + (", changed" if changed.stdout.strip() else "")


def _head(server: Server, scale: Scale) -> dict[str, Any]:
    return {
        "server_version": server.version,
        "server_settings": server.settings,
        "cores": os.cpu_count(),
        "processor": _processor(),
        "kernel": platform.release(),
        "sync_ms": round(server.sync_milliseconds(), 3),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "foreign_cpu_cores": None,
        "scale": scale.told(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
