"""Put the promise over a broker to the proof: ``python -m chaos.brokered --seconds 300 --seed 7``, `make chaos-broker`.

The last line on standard output is the verdict, as JSON; the exit code is 1 unless its four counts are 0. Ctrl-C ends
the faults and judges what there is; a second one ends everything at once.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path

from chaos.__main__ import AT_WORK, explain, limit, say, show, told_to_stop
from chaos.brokered.faults import STRIKE, BrokeredScene, route_all
from chaos.brokered.invariants import finished_twice, judge
from chaos.brokered.plan import fill, plan
from chaos.brokered.section import RESULTS, renew, results
from chaos.brokered.stage import BrokeredStage
from chaos.conductor import Conductor
from chaos.crew import LEASE, Crew
from chaos.evidence import Evidence, heard, looked_up
from chaos.ledger import Ledger, keep_time, read
from chaos.orders import ROADS, orders
from chaos.producers import Producers, Ways
from chaos.programs import find_rabbitmq
from chaos.report import Circumstances
from chaos.verdict import Verdict

SECONDS = 300.0
JOBS_PER_SECOND = 40.0
DRAIN = 120.0
"""Seconds after which what has not ended is lost."""
NODES = 3
STRAIGHT = {"straight": 15}
"""Of the roads: queue.enqueue(direct=True), past the table."""
LEFT = "SELECT count(*) FROM redrive.jobs WHERE status IN ('pending', 'running')"
WHAT_IS_LEFT = """
    SELECT kind, status, locked_by, alone, crashes, attempts, count(*), min(id), min(run_at)::text FROM redrive.jobs
    WHERE status IN ('pending', 'running') GROUP BY 1, 2, 3, 4, 5, 6 LIMIT 20
"""


def main() -> int:
    """Set up, let the faults strike, drain, judge, tear down."""
    given = arguments()
    scripts = find_rabbitmq()
    if scripts is None:
        say("skipped: no RabbitMQ here, and no root with apt-get to install it")
        return 0
    for name in ("psycopg", "aiormq", "aio_pika"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what is cut is no news here
    stopping = told_to_stop()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1_000_000)
    say(f"seed {seed}, {given.seconds:g} s")
    verdict, how, twice = run(scripts, seed, given, stopping)
    explain(verdict, how)
    say(f"finished more than once: {twice} jobs; tries that were run again: {verdict.reasons}")
    failed = any(verdict.counts.values())
    if given.report and failed:
        say(f"{given.report} is left as it was: only a good run is written down")
    elif given.report:
        RESULTS.write_text(json.dumps(results(verdict, how, given.nodes, twice), indent=1) + "\n")
        renew(given.report)
    sys.stdout.write(json.dumps(verdict.line) + "\n")
    return 1 if failed else 0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m chaos.brokered", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long it takes, about")
    parser.add_argument("--seed", type=int, help="what faults and jobs are drawn from; another one each time")
    parser.add_argument("--nodes", type=int, default=NODES, help="nodes of the cluster")
    parser.add_argument("--report", type=Path, help="whose section on this is to be renewed: docs/chaos.md")
    parser.add_argument("--keep", type=Path, help="where to keep the ledger and the workers' logs")
    return parser.parse_args()


def run(
    scripts: Path, seed: int, given: argparse.Namespace, stopping: threading.Event
) -> tuple[Verdict, Circumstances, int]:
    """Do one run and judge it."""
    seconds = given.seconds
    jobs = int(JOBS_PER_SECOND * seconds * AT_WORK)
    say(f"starting {given.nodes} nodes of RabbitMQ: half a minute or so")
    with BrokeredStage(scripts, given.nodes) as stage:
        ledger = Ledger(stage.ledger, "conductor")
        crew = Crew(fill(stage), ledger, stage.ledger, stage.direct)
        scene = BrokeredScene(stage, crew, ledger)
        ways = Ways(stage.network.dsn, stage.direct, stage.pooled, stage.amqp(stage.wire))
        producers = Producers(orders(seed, jobs, ROADS | STRAIGHT), JOBS_PER_SECOND, ways, ledger)
        conductor = Conductor(scene, plan(seed, seconds * AT_WORK), seconds * AT_WORK, say, strike=STRIKE)
        over = threading.Event()
        watch = threading.Thread(target=show, args=(producers, conductor, over), daemon=True)
        threading.Thread(target=keep_time, args=(ledger, over), daemon=True).start()
        left = 1
        try:
            limit(stage.direct)
            route_all(scene)
            crew.start()
            with stage.connect() as conn:
                heard_of = "SELECT count(*) FROM redrive.workers"
                crew.muster(lambda: int((conn.execute(heard_of).fetchone() or [0])[0]))
            scene.recovered(crew.up(), time.monotonic())
            stage.rabbit.settle()  # 3.10 forgets what is in a queue that is some seconds old, if it is killed
            producers.start()
            watch.start()
            conductor.run(stopping)
            left = drain(stage, producers, stopping)
            codes = crew.stop()
            if any(codes):
                say(f"workers ended with {codes}")
        finally:
            over.set()
            crew.close()
            scene.queue.close()
            if given.keep:
                shutil.copytree(stage.ledger, given.keep, dirs_exist_ok=True)
                for node in stage.rabbit.nodes:
                    (given.keep / f"{node.directory.name}.log").write_text(node.log())
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
            missing=stage.missing,
            slots=[slot.name for slot in crew.slots],
            rate=JOBS_PER_SECOND,
            rabbitmq=stage.rabbit.version(),
        )
        return judge(seed, evidence, conductor.struck, left), how, finished_twice(evidence)


def drain(stage: BrokeredStage, producers: Producers, stopping: threading.Event) -> int:
    """Wait until all is enqueued and ended, for as long as that may take; gives the messages that are left."""
    end = time.monotonic() + DRAIN
    while not (producers.done or producers.error or stopping.is_set() or time.monotonic() > end):
        time.sleep(0.1)
    producers.stop()
    with stage.connect() as conn:
        quiet = 0
        while quiet < 3 and time.monotonic() < end:  # noqa: PLR2004 - what is on its way between the two is in neither
            empty = conn.execute(LEFT).fetchone() == (0,) and not stage.queues()
            quiet = quiet + 1 if empty else 0
            time.sleep(1.0)
        if quiet < 3:  # noqa: PLR2004 - as above
            for row in conn.execute(WHAT_IS_LEFT):
                say(f"LEFT in the table: {row}")
            for name, count in stage.queues().items():
                say(f"LEFT at the broker: {count} in {name}")
    return sum(stage.queues().values())


if __name__ == "__main__":
    sys.exit(main())
