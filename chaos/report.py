"""The report of a run, in Markdown: what struck, how long recovery took, what ran twice and why, on what it rests."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from chaos import beside, crew, producers
from chaos.brokered.section import section as brokered
from chaos.invariants import INVARIANTS
from chaos.plan import GRAND, SMALL
from chaos.tables import Rows, table
from chaos.verdict import BARS, Verdict

TOLD = {
    "kill": "SIGKILL to a worker",
    "freeze": "SIGSTOP to a worker, past its lease, then SIGCONT",
    "stop": "SIGTERM to a worker, with less grace than some jobs need",
    "end a session": "`pg_terminate_backend` of one of redrive's sessions",
    "cut": "all connections of a network path cut at once",
    "delay": "every packet late by 20 to 220 ms",
    "half-close": "the server's half of a session's connection closed",
    "black hole": "nothing passes, and nobody is told",
    "refuse": "connections cut, and none taken",
    "swallow an answer": "the line cut in place of the answer to a claim or an outcome",
    "row locks": "rows of running and waiting jobs locked",
    "snapshot": "a snapshot held",
    "clock": "a worker's clock moved by an hour (libfaketime)",
    "restart, fast": "Postgres stopped for longer than a lease, and started",
    "restart, immediate": "Postgres crashed and started",
    "failover": "the primary killed, its standby promoted",
    "read-only": "`default_transaction_read_only` on",
    "table lock": "`LOCK TABLE` on the jobs",
    "disk full": "the disk of the jobs filled to the last byte",
    "connection limit": "every connection taken, ours ended",
    "timeouts": "short lock and statement timeouts, and locks",
}
INTRODUCTION = """\
# The proof

`make chaos` lets workers run jobs while faults strike them, their network and their database, and then asks witnesses
outside of redrive what became of every job: what producers and handlers wrote down themselves, and a trigger's record
of every change of state. `make chaos-long` does so for an hour. It runs from a checkout and brings its own Postgres;
for the faults and ways of their names libfaketime, pgbouncer and the right to mount are used where they are there, and
what could not be had is named at the end. The faults are drawn from a seed, and the same seed plans the same faults at
the same times. This page was written by `make chaos {how}`.
"""
RECOVERY = """
All is well again when every worker that was left alone meanwhile has run a job of a kind that only it knows, enqueued
after the fault was lifted (after a failover: after the new primary took writes). So the slowest worker counts; one
whose event loop its own handler blocks at that time is not waited for. After a SIGKILL it is the moment at which the
last of the worker's jobs was taken back, which waits for the lease on purpose, and where the database is away meanwhile
for a lease after it has come back; after a SIGTERM it is the worker's end.
Small faults overlap, so another one may be in the way of a recovery. A grand one is alone.
"""
MISDEEDS = """
Beside these faults handlers raise (also what can't be stored, and what can't be put into words), hang, pass their
timeout, exit, kill their process, take memory and block the event loop. Tries that did not end by a return:
"""
REPEATS = """
A worker that is killed, frozen or cut off while it holds a job is taken for dead, and the job runs elsewhere: at least
once is what is promised. A worker that is told to stop hands back what it does not finish.
"""


@dataclass(frozen=True)
class Circumstances:
    """What the run was made of."""

    seconds: float
    postgres: str
    redrive: str
    missing: Mapping[str, str]
    """What could not be had here, and why."""
    slots: list[str]
    rate: float
    pooled: bool = False
    """Whether everybody came through the pooler."""
    rabbitmq: str = ""
    """The broker's version, of a run that has one."""


def report(verdict: Verdict, how: Circumstances) -> str:
    """Write it."""
    line = verdict.line
    came_of_it = [
        ("jobs whose enqueue was confirmed", f"{line['jobs']:,}"),
        ("enqueues that failed, or whose answer never came", f"{verdict.unknown:,}"),
        ("faults", f"{line['faults']:,}"),
        ("worker processes", len(verdict.lives)),
        ("of these ended by themselves", sum(life.by_itself for life in verdict.lives)),
        ("jobs lost", line["lost"]),
        ("double outcomes", line["double_outcomes"]),
        ("illegal transitions", line["illegal_transitions"]),
        ("unexplained duplicates", line["unexplained_duplicates"]),
        ("slowest recovery", f"{line['recovery_s_max']} s"),
    ]
    held = [(invariant.says, len(verdict.violations[invariant.name])) for invariant in INVARIANTS]
    parts = [
        INTRODUCTION.format(
            how=f"CHAOS_SECONDS={how.seconds:g} SEED={verdict.seed}{' ARGS=--pooled' if how.pooled else ''}"
        ),
        "## What came of it\n",
        table(("", "count"), came_of_it),
        "\n## Faults, and how long recovery took",
        RECOVERY,
        table(("fault", "what is done", "times", "p50, s", "max, s", "must be under, s"), faults(verdict)),
        "\n## Handlers that misbehave",
        MISDEEDS,
        table(("how", "tries"), verdict.misdeeds.items()),
        "\n## What ran more than once, and why",
        REPEATS,
        table(("what had happened to the worker", "tries that were run again"), verdict.reasons.items()),
        "\n## What was held against the evidence\n",
        table(("statement", "counterexamples"), held),
        "\n## Settings\n",
        table(("", ""), settings(how)),
    ]
    if how.missing:
        parts += ["\n## What could not be had or struck nobody, and does not count\n"]
        parts += [table(("what", "why"), how.missing.items())]
    if over_broker := brokered():
        parts += ["", *over_broker]
    if others := beside.section():
        parts += ["", *others]
    return "\n".join(parts) + "\n"


def faults(verdict: Verdict) -> Rows:
    """Give a row a fault."""
    times = Counter(struck.fault.name for struck in verdict.struck if not struck.skipped)
    for name in [*SMALL, *GRAND]:
        took = verdict.recovery.get(name, [])
        p50, most = (f"{median(took):.1f}", f"{max(took):.1f}") if took else ("", "")
        yield name, TOLD[name], times[name], p50, most, f"{BARS[name]:g}" if name in BARS else ""


def settings(how: Circumstances) -> Rows:
    """Give a row a setting."""
    yield "length", f"{how.seconds:g} s, faults in the first five sixths"
    yield "load", f"{how.rate:g} jobs a second by {producers.THREADS} producers"
    yield "workers", f"{len(how.slots)} processes, by name and way to Postgres: {', '.join(how.slots)}"
    yield "each", f"lease {crew.LEASE:g} s, grace {crew.GRACE:g} s, poll {crew.POLL:g} s, {crew.CONCURRENCY} at a time"
    yield "redrive", how.redrive
    yield (
        "PostgreSQL",
        f"{how.postgres}; `fsync` and `synchronous_commit` on, commits wait for a standby if there is one",
    )
    yield "Python", platform.python_version()
    yield "machine", f"{platform.machine()}, {os.cpu_count()} cores"
