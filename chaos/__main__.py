"""Put the promise to the proof: ``python -m chaos --seconds 300 --seed 7``, or ``make chaos``.

The last line on standard output is the verdict, as JSON; the exit code is 1 unless its four counts are 0: jobs lost,
double outcomes, illegal transitions, unexplained duplicates. Ctrl-C ends the faults and judges what there is; a second
one ends everything at once.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import FrameType

from chaos import disk
from chaos.conductor import Conductor
from chaos.crew import LEASE, Crew
from chaos.evidence import Evidence, heard, looked_up
from chaos.ledger import Ledger, keep_time, read
from chaos.orders import LIMIT, orders
from chaos.plan import plan
from chaos.producers import Producers, Ways
from chaos.report import Circumstances, report
from chaos.scene import Scene
from chaos.slots import fill
from chaos.stage import Stage
from chaos.verdict import Verdict, judge
from redrive import Queue

SECONDS = 300.0
JOBS_PER_SECOND = 90.0
AT_WORK = 0.84
"""The part of the time in which faults strike; the rest is for what they left behind."""
DRAIN = 90.0
"""Seconds after which what has not ended is lost."""
SHOWN = 5
"""Counterexamples of each invariant that are shown."""


def main() -> int:
    """Set up, let the faults strike, drain, judge, tear down."""
    given = arguments()
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # a rollback over a broken line is no news here
    stopping = told_to_stop()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1_000_000)
    say(f"seed {seed}, {given.seconds:g} s")
    verdict, how = run(seed, given.seconds, stopping, given.keep, pooled=given.pooled)
    explain(verdict, how)
    failed = any(verdict.counts.values())
    if given.report and failed:
        say(f"{given.report} is left as it was: only a good run is written down")
    elif given.report:
        given.report.write_text(report(verdict, how))
    sys.stdout.write(json.dumps(verdict.line) + "\n")
    return 1 if failed else 0


def told_to_stop() -> threading.Event:
    """Give what Ctrl-C and SIGTERM set from now on; a second one ends everything at once."""
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        say("stopping: what there is will be judged; once more to end at once")
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return stopping


def explain(verdict: Verdict, how: Circumstances) -> None:
    """Say what is not as it should be."""
    for name, found in verdict.violations.items():
        for each in found[:SHOWN]:
            say(f"BROKEN {name}: {each}")
        if len(found) > SHOWN:
            say(f"BROKEN {name}: and {len(found) - SHOWN} more")
    for life in verdict.lives:
        if life.by_itself:
            say(f"WORKER {life.slot}, process {life.pid}, ended by itself with code {life.code}")
    for each in verdict.broken_bars:
        say(f"BAR {each}")
    for what, why in how.missing.items():
        say(f"MISSING {what}: {why}")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"how long it takes, about ({SECONDS:g})")
    parser.add_argument(
        "--seed", type=int, help="what faults and jobs are drawn from; another one each time unless given"
    )
    parser.add_argument(
        "--report", type=Path, help="where the report of a good run goes, such as docs/chaos.md; nowhere unless given"
    )
    parser.add_argument("--pooled", action="store_true", help="pgbouncer between everybody and the database")
    parser.add_argument("--keep", type=Path, help="where to keep the ledger and the workers' logs")
    return parser.parse_args()


def run(
    seed: int, seconds: float, stopping: threading.Event, keep: Path | None, *, pooled: bool
) -> tuple[Verdict, Circumstances]:
    """Do one run and judge it.

    Raises:
        RuntimeError: when all is to go through a pooler, and there is none.
    """
    no_disk = disk.own_mounts()
    jobs = int(JOBS_PER_SECOND * seconds * AT_WORK)
    with Stage(32 + jobs // 250, no_disk=no_disk) as stage:
        if pooled and not stage.pooled:
            raise RuntimeError(f"pgbouncer: {stage.missing['pgbouncer']}")
        ledger = Ledger(stage.ledger, "conductor")
        crew = Crew(fill(stage, pooled=pooled), ledger, stage.ledger, stage.direct)
        scene = Scene(stage, crew, ledger)
        ways = Ways(stage.network.dsn, stage.direct, stage.pooled)
        ways = replace(ways, network=ways.pooled, direct=ways.pooled) if pooled else ways
        producers = Producers(orders(seed, jobs), JOBS_PER_SECOND, ways, ledger)
        conductor = Conductor(scene, plan(seed, seconds * AT_WORK), seconds * AT_WORK, say)
        over = threading.Event()
        watch = threading.Thread(target=show, args=(producers, conductor, over), daemon=True)
        threading.Thread(target=keep_time, args=(ledger, over), daemon=True).start()
        try:
            crew.start()
            with stage.connect() as conn:
                heard_of = "SELECT count(*) FROM redrive.workers"
                limit(stage.direct)
                crew.muster(lambda: int((conn.execute(heard_of).fetchone() or [0])[0]))
            producers.start()
            watch.start()
            conductor.run(stopping)
            drain(stage, producers, stopping)
            codes = crew.stop()
            if any(codes):
                say(f"workers ended with {codes}")
        finally:
            over.set()
            crew.close()
            if keep:
                shutil.copytree(stage.ledger, keep, dirs_exist_ok=True)
        if error := conductor.error or producers.error:
            raise error
        evidence = Evidence(LEASE, 2 * LEASE, ways={slot.name: slot.way for slot in crew.slots})
        heard(evidence, read(stage.ledger))
        with stage.connect() as conn:
            looked_up(evidence, conn)
        how = Circumstances(
            seconds=seconds,
            postgres=stage.version,
            redrive=version("redrive"),
            missing=stage.missing
            | {f"the fault: {each.fault.name}": each.skipped for each in conductor.struck if each.skipped}
            | {f"work for the worker {name}": "it ran no job" for name in idle(evidence)},
            slots=[f"{slot.name} ({slot.way})" for slot in crew.slots],
            rate=JOBS_PER_SECOND,
            pooled=pooled,
        )
        return judge(seed, evidence, conductor.struck), how


def idle(evidence: Evidence) -> list[str]:
    """Name the workers that no handler's word tells of: what was to be proven of them is not."""
    busy = {life.slot for each in evidence.tries if (life := evidence.life(each.worker, each.began))}
    return sorted(evidence.ways.keys() - busy)


def limit(dsn: str) -> None:
    """Set the limit that is to hold, as an operator would."""
    queue = Queue(dsn)
    queue.kinds.limit("limited", running=LIMIT)
    queue.close()


def drain(stage: Stage, producers: Producers, stopping: threading.Event) -> None:
    """Wait until all is enqueued and ended, for as long as that may take."""
    end = time.monotonic() + DRAIN
    while not (producers.done or producers.error or stopping.is_set() or time.monotonic() > end):
        time.sleep(0.1)
    producers.stop()
    with stage.connect() as conn:
        left = "SELECT count(*) FROM redrive.jobs WHERE status IN ('pending', 'running')"
        while conn.execute(left).fetchone() != (0,) and time.monotonic() < end:
            time.sleep(0.2)


def show(producers: Producers, conductor: Conductor, over: threading.Event) -> None:
    """Tell now and then how far it is."""
    began = time.monotonic()
    while not over.wait(5):
        at_work = ", ".join(conductor.at_work) or "none"
        say(f"{time.monotonic() - began:6.1f} s  {producers.acknowledged:6d} jobs  faults at work: {at_work}")


def say(text: str) -> None:
    """Tell whoever watches."""
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
