"""What is measured, scenario by scenario: each takes a place, starts the workers that it needs, and gives figures.

A scenario leaves its rows behind; whoever calls it clears the place before the next.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from redrive.bench.application import ASYNC, PAUSE, STAMP, THREAD
from redrive.bench.figures import Figure, middle, spread
from redrive.bench.loads import (
    Drained,
    Load,
    Tell,
    drained,
    go_through,
    payloads,
    steadily,
    wait_until_done,
)
from redrive.bench.scratch import pinned
from redrive.bench.slots import held_beyond, idle_while_due
from redrive.bench.subject import SubjectFailed, subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from redrive.bench.scratch import Place
    from redrive.bench.tally import Report

SINGLES = 0.1
"""Of the jobs, how many are enqueued one by one."""
BETWEEN = (0.01, 0.04)
"""Seconds between two jobs for an idle worker."""
PICKUPS = 0.01
FEWEST_PICKUPS = 20
WARM_UP = 5
SETTLE = 5.0
"""Seconds after which a worker without work has fallen asleep for good."""
ROUNDS = 10
LEAST_ROUND = 50
EDGE = 3
"""Rounds that are the beginning of a run, and the end of it."""
NAP = 1.0
SLOW_SLOTS = 20
TAIL = 0.3
"""Seconds for the last outcomes of a slow run to be written, beyond the handlers' own."""


def enqueue(place: Place, load: Load, tell: Tell) -> list[Figure]:
    """Enqueue jobs: one a commit, many by COPY, many with keys."""
    queue, singles, keyed = place.queue, max(1, int(load.jobs * SINGLES)), max(1, load.jobs // 2)
    took = []
    for payload in payloads(singles):
        began = time.perf_counter()
        queue.enqueue(ASYNC, payload)
        took.append(time.perf_counter() - began)
    tell(0.4)
    by_copy = _timed(lambda: queue.enqueue_many(ASYNC, payloads(load.jobs)))
    tell(0.7)
    by_key = _timed(lambda: queue.enqueue_many(ASYNC, payloads(keyed), key=lambda payload: f"bench:{payload['n']}"))
    tell(1)
    [row] = place.ask("bench_drained", after=0)
    if row.rows != singles + load.jobs + keyed:
        raise SubjectFailed(f"{singles + load.jobs + keyed} jobs were enqueued and {row.rows} are in the table")
    return [
        Figure("single_per_s", "one a call, each in its own commit", singles / sum(took), "jobs/s"),
        Figure("single_ms", "one such call", spread(took), "ms"),
        Figure("copy_per_s", "enqueue_many (COPY)", load.jobs / by_copy, "jobs/s"),
        Figure("keyed_per_s", "enqueue_many with keys", keyed / by_key, "jobs/s"),
    ]


def publish(place: Place, load: Load, tell: Tell) -> list[Figure]:
    """Publish to one subscriber and to three, beside an enqueue: in turn, in transactions that are rolled back."""
    queue, count = place.queue, max(10, int(load.jobs * SINGLES))
    for number in range(3):
        queue.topics.add("bench.three", f"{ASYNC}_{number}", by="bench")
    queue.topics.add("bench.one", ASYNC, by="bench")
    took: dict[str, list[float]] = {"enqueue": [], "one": [], "three": []}
    with queue.pool.connection() as conn:
        says: dict[str, Callable[[dict[str, int]], object]] = {
            "enqueue": lambda payload: queue.enqueue(ASYNC, payload, connection=conn),
            "one": lambda payload: queue.publish("bench.one", payload, connection=conn),
            "three": lambda payload: queue.publish("bench.three", payload, connection=conn),
        }
        with conn.transaction(force_rollback=True):
            for number, payload in enumerate(payloads(count + WARM_UP)):
                for name, say in says.items():
                    began = time.perf_counter()
                    say(payload)
                    if number >= WARM_UP:  # what is prepared is so by then
                        took[name].append(time.perf_counter() - began)
            tell(0.6)
        with conn.transaction(force_rollback=True):
            many = _timed(lambda: queue.publish_many("bench.three", payloads(load.jobs), connection=conn))
    tell(1)
    return [
        Figure("enqueue_ms", "an enqueue within a transaction", spread(took["enqueue"]), "ms"),
        Figure("one_ms", "a publish to one subscriber", spread(took["one"]), "ms"),
        Figure("three_ms", "a publish to three", spread(took["three"]), "ms"),
        Figure("many_per_s", "publish_many to three", 3 * load.jobs / many, "jobs/s"),
    ]


def drain(place: Place, load: Load, tell: Tell) -> list[Figure]:
    """Drain a table of jobs whose handlers do nothing: async ones, then ones that run in threads."""
    coroutine = drain_once(place, ASYNC, load)
    tell(0.5)
    place.clear()
    thread = drain_once(place, THREAD, load)
    done, report = coroutine.drained, coroutine.report
    return [
        Figure("async_per_s", "async handlers", done.rate, "jobs/s"),
        Figure("threads_per_s", "handlers in threads", thread.drained.rate, "jobs/s"),
        Figure("jobs", "jobs in each of the two", done.jobs, "jobs"),
        Figure("cpu_us_per_job", "worker's CPU, async", 1e6 * report.cpu / done.jobs, "µs/job"),
        Figure("threads_cpu_us_per_job", "worker's CPU, threads", 1e6 * thread.report.cpu / done.jobs, "µs/job"),
        Figure(
            "transactions_per_1000_jobs", "worker's transactions", 1000 * coroutine.statements / done.jobs, "/1000 jobs"
        ),
        Figure("wal_bytes_per_job", "WAL (of the whole server)", coroutine.wal / done.jobs, "bytes/job"),
        Figure("claim_ms", "a claim, as the worker sees it", spread(report.claim_took), "ms"),
        Figure("jobs_per_claim", "jobs in a claim", middle(report.claim_rows), "jobs"),
        Figure("peak_mb", "worker's memory at its peak", report.peak_mb, "MB"),
    ]


class DrainRun:
    """One worker's way through a full table."""

    def __init__(self, drained: Drained, report: Report, statements: int, wal: float, transactions: float) -> None:
        self.drained = drained
        self.report = report
        self.statements = statements
        """Transactions, by the worker's own count."""
        self.wal = wal
        self.transactions = transactions
        """Transactions of the database meanwhile, by its own count."""


def drain_once(place: Place, kind: str, load: Load) -> DrainRun:
    """Fill the table, start a worker, wait until it is empty, stop the worker."""
    place.queue.enqueue_many(kind, payloads(load.jobs))
    [before] = place.ask("bench_counters")
    began = time.monotonic()
    with subject(place, load.concurrency) as worker:
        wait_until_done(place, [worker], after=0)
        done = drained(place, after=0, began=began)
        statements = worker.statements
        [after] = place.ask("bench_counters")
        report = worker.stop()
    [ended] = place.ask("bench_counters")  # a session's transactions are counted, at the latest, at its end
    return DrainRun(done, report, statements, after.wal - before.wal, ended.transactions - before.transactions)


def latency(place: Place, load: Load, tell: Tell) -> list[Figure]:
    """Give single jobs to a worker that sleeps, and see how soon it begins them."""
    count = max(FEWEST_PICKUPS, int(load.jobs * PICKUPS))
    with subject(place, load.concurrency) as worker:
        for number in range(WARM_UP + count):
            place.queue.enqueue(STAMP, {"at": time.monotonic_ns()})
            tell(number / count)
            time.sleep(random.uniform(*BETWEEN))
        wait_until_done(place, [worker], after=0)
        report = worker.stop()
    waited = report.waited[WARM_UP:]
    return [Figure("pickup_ms", "from INSERT to the handler, commit included", spread(waited), "ms")]


def sustained(place: Place, load: Load, tell: Tell) -> list[Figure]:
    """Enqueue at a steady rate for a while."""
    with subject(place, load.concurrency) as worker:
        kept = steadily(place, STAMP, rate=load.rate, seconds=load.seconds, tell=tell)
        wait_until_done(place, [worker], after=0)
        report = worker.stop()
    [backlog] = place.ask("bench_backlog")
    return [
        Figure("rate_kept", f"of {load.rate:g} jobs/s, enqueued", 100 * kept, "%"),
        Figure("end_to_end_ms", "from INSERT to the handler's end", spread(report.waited), "ms"),
        Figure("backlog_most", "backlog, the most", backlog.most, "jobs"),
        Figure("backlog_last", "backlog at the last INSERT", backlog.last, "jobs"),
        Figure("cpu_us_per_job", "worker's CPU", 1e6 * report.cpu / max(1, len(report.waited)), "µs/job"),
    ]


def horizon(place: Place, load: Load, tell: Tell) -> list[Figure]:
    """Send jobs through in rounds, without and with a snapshot that keeps what is dead from being vacuumed."""
    free = rounds(place, load, lambda done: tell(done / 2))
    place.clear()
    with pinned(place):
        held_back = rounds(place, load, lambda done: tell(0.5 + done / 2))
    return [
        Figure("control_per_s", "without a snapshot, last rounds", free.last_rate, "jobs/s"),
        Figure("pinned_per_s", "with a snapshot held, last rounds", held_back.last_rate, "jobs/s"),
        Figure("drain_ratio", "the second by the first", held_back.last_rate / free.last_rate),
        Figure("control_claim_ms", "a claim without, last rounds", spread(free.claims(last=True)), "ms"),
        Figure("claim_ms", "a claim with, last rounds", spread(held_back.claims(last=True)), "ms"),
        Figure("control_claim_growth", "claim p50, last by first, without", free.claim_growth),
        Figure("claim_growth", "claim p50, last by first, with", held_back.claim_growth),
        Figure("jobs", "jobs in each of the two", sum(each.jobs for each in held_back.done), "jobs"),
    ]


class Rounds:
    """Jobs that went through one worker in rounds of the same size."""

    def __init__(self, done: list[Drained], report: Report) -> None:
        self.done = done
        self.report = report
        self.edge = min(EDGE, max(1, len(done) // 2))

    @property
    def last_rate(self) -> float:
        """Jobs a second in the last rounds, the median."""
        return middle(each.rate for each in self.done[-self.edge :])

    def claims(self, *, last: bool) -> list[float]:
        """List the seconds that each claim of the first or of the last rounds took, of those that found something."""
        found = self.done[-self.edge :] if last else self.done[: self.edge]
        report = self.report
        return [
            took
            for at, took, rows in zip(report.claim_at, report.claim_took, report.claim_rows, strict=True)
            if rows and any(each.began <= at <= each.ended for each in found)
        ]

    @property
    def claim_growth(self) -> float:
        """How many times as long a claim takes at the end, by the medians."""
        return middle(self.claims(last=True)) / middle(self.claims(last=False))


def rounds(place: Place, load: Load, tell: Tell) -> Rounds:
    """Put the jobs before one worker in rounds, each when the one before is done."""
    done, count = [], min(ROUNDS, max(2, load.jobs // LEAST_ROUND))
    with subject(place, load.concurrency) as worker:
        for number in range(count):
            done.append(go_through(place, worker, ASYNC, load.jobs // count))
            tell((number + 1) / count)
        return Rounds(done, worker.stop())


def idle(place: Place, load: Load, tell: Tell) -> list[Figure]:
    """Leave a worker without work, and see what it asks of the database and of the processor."""
    settle = min(SETTLE, load.seconds)
    with subject(place, load.concurrency) as worker:
        _pass(settle, lambda done: tell(done * settle / (settle + load.seconds)))
        statements, cpu = worker.statements, worker.cpu
        _pass(load.seconds, lambda done: tell((settle + done * load.seconds) / (settle + load.seconds)))
        statements, cpu = worker.statements - statements, worker.cpu - cpu
        resident = worker.resident_mb
        worker.stop()
    return [
        Figure("transactions_per_s", "transactions: looks, beats, sweeps", statements / load.seconds, "/s"),
        Figure("cpu_ms_per_s", "worker's CPU", 1000 * cpu / load.seconds, "ms/s"),
        Figure("resident_mb", "worker's memory", resident, "MB"),
    ]


def slow(place: Place, load: Load, tell: Tell) -> list[Figure]:
    """Give jobs of a second each to two workers, and see whether a slot stands idle while a job waits."""
    slots = load.concurrency or SLOW_SLOTS
    count = 2 * slots * max(1, int(load.seconds / NAP))
    with ExitStack() as stack:
        workers = [stack.enter_context(subject(place, slots)) for _ in range(2)]
        place.queue.enqueue_many(PAUSE, payloads(count, seconds=NAP))
        committed = time.monotonic()
        _pass(count / (2 * slots) * NAP, tell)
        wait_until_done(place, workers, after=0)
        time.sleep(TAIL)
        reports = [worker.stop() for worker in workers]
    begun, ended = [sorted(at for each in reports for at in getattr(each, name)) for name in ("begun", "ended")]
    lost = idle_while_due(begun, ended, slots=2 * slots, due_from=committed)
    return [
        Figure("jobs", f"jobs of {NAP:g} s", count, "jobs"),
        Figure("seconds", f"until done, by {2 * slots} slots of two workers", ended[-1] - committed, "s"),
        Figure("idle_slot_seconds", "slots idle while a job was due", lost, "slot·s"),
        Figure(
            "idle_slot_share",
            "of the slots' time until the last began",
            100 * lost / (2 * slots * (begun[-1] - committed)),
            "%",
        ),
        Figure(
            "held_beyond_slots",
            "held by one worker beyond its slots, the most",
            max(held_beyond(each, slots) for each in reports),
            "jobs",
        ),
    ]


SCENARIOS: dict[str, Callable[[Place, Load, Tell], list[Figure]]] = {
    "enqueue": enqueue,
    "publish": publish,
    "drain": drain,
    "latency": latency,
    "sustained": sustained,
    "horizon": horizon,
    "idle": idle,
    "slow": slow,
}
"""Every scenario by its name, in the order in which they are run."""


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _pass(seconds: float, tell: Tell) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        tell(1 - left / seconds if seconds else 1)
        time.sleep(min(0.2, left))
