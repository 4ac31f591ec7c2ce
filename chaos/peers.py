"""The same faults for others, cut down to what all of them can be given: ``python -m chaos.peers --seed 7``.

Each system runs the same jobs on a server of its own, with its documented recovery set up (`crash_tuned` in
benchmarks/peers/adapters), under the same plan: workers killed, frozen, stopped; sessions ended; connections cut and
swallowed; Postgres restarted. A worker that ends is started again, as systemd would. What became of the jobs is told by
the handlers' own records. It judges nobody: it counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks.peers.catalog import chosen
from benchmarks.peers.child import Child
from benchmarks.peers.environments import cache, program
from benchmarks.peers.stage import Ready, Stage, meet
from chaos import beside
from chaos.plan import GRAND, SMALL, Planned, plan
from chaos.proxy import Proxy
from chaos.server import OwnServer
from redrive.dev_server import DevServer

SYSTEMS = ("redrive", "procrastinate", "pgqueuer")
FAULTS = ("kill", "freeze", "stop", "end a session", "cut", "black hole", "restart, fast", "restart, immediate")
BETWEEN = 5
"""Small faults between two restarts."""
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "max_connections": "200"}
WORKERS = 4
JOBS, LASTS = 6000, 0.2
SECONDS = 90.0
SESSIONS = (
    "SELECT pid FROM pg_stat_activity WHERE datname LIKE 'bench%' AND application_name <> 'bench monitor' ORDER BY pid"
)
FROZEN = 25.0
"""Seconds of a freeze: longer than every system's idea of a dead worker."""
DRAIN = 240.0
"""Seconds in which all is well, for the recovery that each of them documents."""


class Host:
    """A server of one system's own, behind a network that can fail."""

    def __init__(self, server: DevServer) -> None:
        self.server = OwnServer(server)
        self.proxy: Proxy

    @contextlib.contextmanager
    def database(self, name: str) -> Iterator[str]:
        """Make a database, and give the way to it through the network."""
        with psycopg.connect(self.server.url, autocommit=True) as conn:
            conn.execute(f'CREATE DATABASE "{name}"'.encode())
        with Proxy(make_conninfo(self.server.url, dbname=name)) as self.proxy:
            port = make_conninfo(self.proxy.dsn).split("port=")[1].split()[0]
            yield self.server.url.rpartition("@")[0] + f"@127.0.0.1:{port}/{name}"

    def checkpoint(self) -> None:
        """Nothing is timed here."""

    def settle(self, name: str, keep: int = 0) -> None:
        """Nothing is counted here."""


class Crew:
    """Workers of one system, each started again when it ends."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.by_themselves = 0
        self.workers = [stage.worker("sleep") for _ in range(WORKERS)]
        self.frozen: dict[int, float] = {}
        self._expected: set[int] = set()

    def strike(self, fault: Planned) -> None:
        """Do to one of them what the fault says."""
        worker = self.workers[int(fault.pick * WORKERS)]
        if not worker.alive or worker.pid in self.frozen:
            return
        self._expected.add(worker.pid)
        if fault.name == "freeze":
            os.killpg(worker.pid, signal.SIGSTOP)
            self.frozen[worker.pid] = time.monotonic() + FROZEN
        else:
            os.killpg(worker.pid, signal.SIGKILL if fault.name == "kill" else signal.SIGTERM)

    def keep(self) -> None:
        """Thaw who has been frozen long enough, and start again who has ended."""
        for pid, until in list(self.frozen.items()):
            if time.monotonic() > until:
                os.killpg(pid, signal.SIGCONT)
                del self.frozen[pid]
        for place, worker in enumerate(self.workers):
            if not worker.alive:
                self.by_themselves += worker.pid not in self._expected
                self.workers[place] = self._stage.worker("sleep", wait=False)


def main() -> int:
    """Run each of the systems through the plan, and write down what came of it."""
    parser = argparse.ArgumentParser(prog="python -m chaos.peers", description=__doc__)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument(
        "--out", type=Path, help="where the results go, as JSON: chaos/peers.json, which the report shows"
    )
    parser.add_argument("--report", type=Path, help="whose table of these is to be renewed: docs/chaos.md")
    given = parser.parse_args()
    faults = drawn(given.seed, given.seconds)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for system in chosen(given.systems):
            if system.variant:
                continue
            ready = meet(system, program(system.environment), cache() / system.environment.name, Path(scratch))
            with DevServer(settings=DURABLE) as server:
                host = Host(server)
                try:
                    found[system.name] = run(host, ready, Path(scratch), faults)
                finally:
                    host.server.close()
            sys.stderr.write(f"{system.name}: {json.dumps(found[system.name])}\n")
    told = {"seed": given.seed, "seconds": given.seconds, "faults": Counter(fault.name for fault in faults)}
    told |= {"jobs": JOBS, "workers": WORKERS, "systems": found}
    if given.out:
        given.out.write_text(json.dumps(told, indent=2) + "\n")
    if given.report:
        beside.renew(given.report)
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


def drawn(seed: int, seconds: float) -> list[Planned]:
    """Draw the faults, half as many as for redrive alone: who is frozen is away for long."""
    small = {name: SMALL[name] for name in FAULTS if name in SMALL}
    grand = {name: GRAND[name] for name in FAULTS if name in GRAND}
    return [replace(fault, at=2 * fault.at) for fault in plan(seed, seconds / 2, small, grand, between=BETWEEN)]


def run(host: Host, ready: Ready, scratch: Path, faults: list[Planned]) -> dict[str, Any]:
    """Let one system work through the faults, and then in peace."""
    stage = Stage(host, ready, scratch, cache() / ready.system.environment.name, profile="crash_tuned")  # type: ignore[arg-type] # what of Server a stage needs
    with stage:
        with stage.producer() as producer:
            producer.ask(60, op="sleepers", n=JOBS, sleep=LASTS)
        crew = Crew(stage)
        began = time.monotonic()
        for fault in faults:
            while time.monotonic() < began + fault.at:
                crew.keep()
                time.sleep(0.05)
            strike(host, crew, fault)
        peace = time.monotonic()
        recovered = None
        while time.monotonic() < peace + DRAIN:
            crew.keep()
            if len(ends(stage.children)) >= JOBS and not crew.frozen:
                recovered = time.monotonic() - peace
                break
            time.sleep(0.2)
        for worker in crew.workers:
            worker.stop()
        stage.look()
        return {
            "versions": ready.info["versions"],
            "settings": ready.info["crash_tuned"],
            "never_finished": JOBS - len(ends(stage.children)),
            "begun_twice": sum(times > 1 for times in begins(stage.children).values()),
            "finished_twice": sum(times > 1 for times in ends(stage.children).values()),
            "workers_ended_by_themselves": crew.by_themselves,
            "all_done_s": None if recovered is None else round(recovered, 1),
            "states": stage.states(),
        }


def strike(host: Host, crew: Crew, fault: Planned) -> None:
    """Make one of the faults that all can be given."""
    match fault.name:
        case "kill" | "freeze" | "stop":
            crew.strike(fault)
        case "end a session":
            with psycopg.connect(host.server.url, autocommit=True) as conn:
                if pids := conn.execute(SESSIONS).fetchall():
                    conn.execute("SELECT pg_terminate_backend(%s)", pids[int(fault.pick * len(pids))])
        case "cut":
            host.proxy.cut()
        case "black hole":
            with host.proxy.black_hole():
                time.sleep(fault.lasts)
        case "restart, fast" | "restart, immediate":
            host.server.stop(fault.name.removeprefix("restart, "))
            time.sleep(fault.lasts)
            host.server.start()


def begins(children: list[Child]) -> Counter[str]:
    """Count the beginnings of each job."""
    return Counter(words[1] for child in children for words in child.records() if words[0] == "S")


def ends(children: list[Child]) -> Counter[str]:
    """Count the ends of each job."""
    return Counter(words[1] for child in children for words in child.records() if words[0] == "E")


if __name__ == "__main__":
    sys.exit(main())
