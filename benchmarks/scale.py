"""What a job costs the server over its whole life: the figures behind ``redrive capacity`` and docs/scale.md.

The server's CPU is that of all its processes, so it is known of our own server only; with DATABASE_URL nothing of this
is measured. ``make bench ONLY=scale`` measures it alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from benchmarks.peers import machine
from benchmarks.stage import SHIPPED, Stage, chosen
from redrive import Queue
from redrive.bench.application import ASYNC
from redrive.bench.figures import middle
from redrive.bench.loads import drained, payloads, wait_until_done
from redrive.bench.subject import subject
from redrive.capacity.costs import SIZES
from redrive.dev_server import DevServer
from redrive.pruner import FIRST, NEVER, WINDOW, pause

if TYPE_CHECKING:
    from benchmarks.measurements import Sizes
    from redrive.bench.scratch import Place

CLIENTS = 8
TUNED = {
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "wal_compression": "on",
    "wal_buffers": "64MB",
}
"""As docs/scale.md says."""


@dataclass(frozen=True)
class Spent:
    """What the server spent on something, a job."""

    us: float
    """Microseconds of CPU of all its processes."""
    wal: float
    """Bytes."""
    seconds: float
    """Of all jobs together."""


@dataclass(frozen=True)
class Life:
    """The parts of a job's life."""

    enqueue: Spent
    run: Spent
    prune: Spent
    row: float
    """Bytes that a finished row adds, with its index entries."""
    rate: float
    """Jobs a second of the drain."""

    @property
    def us(self) -> float:
        """What it costs until it has succeeded."""
        return self.enqueue.us + self.run.us

    @property
    def wal(self) -> float:
        """The WAL of all of it."""
        return self.enqueue.wal + self.run.wal + self.prune.wal


def scale(stage: Stage, sizes: Sizes) -> dict[str, Any]:
    """Follow jobs through their life: by payload, by the number of workers, on a tuned server."""
    if stage.pid is None:
        return {}
    count = sizes.scale
    found: dict[str, Any] = {}
    plain, tuned, four = [], [], []
    with Stage(DevServer(bindir=chosen(), settings=SHIPPED | TUNED)) as other:
        for _ in range(sizes.scale_runs):
            plain.append(life(stage, SIZES[0], count))
            tuned.append(life(other, SIZES[0], count))
            four.append(life(stage, SIZES[0], count, workers=4))
    found |= {
        "scale_enqueue_many_us": middle(each.enqueue.us for each in plain),
        "scale_run_us": middle(each.run.us for each in plain),
        "scale_prune_us": middle(each.prune.us for each in plain),
        "scale_tuned_server": _ratio(tuned, plain, lambda each: each.us),
        "scale_tuned_wal": _ratio(tuned, plain, lambda each: each.wal),
        "scale_four_workers": _ratio(four, plain, lambda each: each.run.us),
        "scale_rates": {
            "one worker": middle(each.rate for each in plain),
            "four workers": middle(each.rate for each in four),
            "one worker, tuned": middle(each.rate for each in tuned),
        },
    }
    by_size = {SIZES[0]: plain}
    for size in SIZES[1:]:
        by_size[size] = [life(stage, size, count * SIZES[0] * 5 // size) for _ in range(sizes.scale_runs)]
    for size, lives in by_size.items():
        found[f"scale_us_{size}"] = middle(each.us for each in lives)
        found[f"scale_wal_{size}"] = middle(each.wal for each in lives)
        found[f"scale_row_{size}"] = middle(each.row for each in lives)
    return found | pruning(stage, count) | singles(stage, count // 4)


def life(stage: Stage, size: int, count: int, workers: int = 1) -> Life:
    """Enqueue jobs of so many bytes by COPY, drain them, remove them."""
    place = stage.place(f"life_{time.monotonic_ns()}")
    stage.checkpoint()
    place.queue.kinds.pause(ASYNC)
    enqueued = _spent(stage, count, lambda: place.queue.enqueue_many(ASYNC, _payloads(count, size)))
    with ExitStack() as stack:
        several = [stack.enter_context(subject(place)) for _ in range(workers)]
        began = time.monotonic()

        def drain() -> None:
            place.queue.kinds.resume(ASYNC)  # all at once, when the last of them is there
            wait_until_done(place, several, after=0)

        run = _spent(stage, count, drain)
        done = drained(place, after=0, began=began)
        first = _size(place)
        # What the first jobs' versions took is free by now, so that these add what is kept and no more.
        place.queue.enqueue_many(ASYNC, _payloads(count, size))
        wait_until_done(place, several, after=0)
        grown = _size(place) - first
        for worker in several:
            worker.stop()
    pruned = _spent(stage, 2 * count, lambda: _prune(place))
    place.ask("bench_drop")
    place.close()
    return Life(enqueued, run, pruned, grown / count, done.rate)


def _size(place: Place) -> int:
    """Vacuum the jobs, and give the bytes that they and their index entries take."""
    with psycopg.connect(place.url, autocommit=True) as conn:
        conn.execute(f'vacuum "{place.schema}".jobs'.encode())
        [(size,)] = conn.execute("select pg_total_relation_size(%s::regclass)", [f"{place.schema}.jobs"])
    return int(size)


def singles(stage: Stage, count: int) -> dict[str, float]:
    """Enqueue one a call: each in its own commit, by several clients at once; and all in one transaction."""
    place = stage.place("singles")
    each = count // CLIENTS
    with ProcessPoolExecutor(CLIENTS, get_context("spawn")) as pool:
        list(pool.map(_enqueue, *zip(*[(place.url, place.schema, 20)] * CLIENTS, strict=True)))
        work = [(place.url, place.schema, each)] * CLIENTS
        spent = _spent(stage, each * CLIENTS, lambda: list(pool.map(_enqueue, *zip(*work, strict=True))))
    with psycopg.connect(place.url) as conn:
        within = _spent(stage, count, lambda: _enqueue_within(place, conn, count))
    return {
        "scale_enqueue_us": spent.us,
        "scale_enqueue_per_s": each * CLIENTS / spent.seconds,
        "scale_enqueue_within_us": within.us,
    }


def _enqueue(url: str, schema: str, count: int) -> int:
    queue = Queue(url, schema=schema)
    for payload in payloads(count):
        queue.enqueue(ASYNC, payload)
    queue.close()
    return os.getpid()


def _enqueue_within(place: Place, conn: psycopg.Connection[Any], count: int) -> None:
    with conn.transaction():
        for payload in payloads(count):
            place.queue.enqueue(ASYNC, payload, connection=conn)


def _payloads(count: int, size: int) -> Any:
    if size <= SIZES[0]:
        yield from payloads(count)
        return
    for number in range(count):
        yield {"n": number, "data": os.urandom((size - 30) // 2).hex()}


def pruning(stage: Stage, count: int) -> dict[str, float]:
    """Let one worker's pruner, then four at once, remove rows at their own pace."""
    place, found = stage.place("pruning"), []
    for several in (1, 4):
        place.queue.enqueue_many(ASYNC, payloads(count))
        with psycopg.connect(place.url, autocommit=True) as conn:
            jobs = sql.Identifier(place.schema, "jobs")
            conn.execute(sql.SQL("update {} set status = 'succeeded'").format(jobs))
            conn.execute(sql.SQL("vacuum analyze {}").format(jobs))
        began = time.monotonic()
        with ThreadPoolExecutor(several) as pool:
            list(pool.map(lambda _: _prune(place, pause), range(several)))
        found.append(count / (time.monotonic() - began))
    return {"scale_pruned_per_s": found[0], "scale_four_pruners": found[1] / found[0]}


def _prune(place: Place, rest: Callable[[float], float] = lambda _: 0.0) -> None:
    """Say what the pruner says, with its rests or without."""
    after, keep = FIRST, {"succeeded": -60.0, "failed": NEVER, "dead": NEVER}
    while True:
        began = time.monotonic()
        [seen] = place.ask("scan_finished", after=after, window=WINDOW, shortest=-60.0, **keep)
        if not seen.expired:
            return
        place.ask("delete_finished", ids=seen.expired, shortest=-60.0)
        after = seen.last_id
        time.sleep(rest(time.monotonic() - began))


def _spent(stage: Stage, count: int, work: Callable[[], object]) -> Spent:
    cpu, wal, began = machine.cpu_seconds(stage.pid or 0), _wal(stage), time.monotonic()
    work()
    seconds = time.monotonic() - began
    return Spent(1e6 * (machine.cpu_seconds(stage.pid or 0) - cpu) / count, (_wal(stage) - wal) / count, seconds)


def _wal(stage: Stage) -> float:
    return float(stage.ask("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))


def _ratio(ours: list[Life], theirs: list[Life], of: Callable[[Life], float]) -> float:
    return middle(of(one) / of(other) for one, other in zip(ours, theirs, strict=True))
