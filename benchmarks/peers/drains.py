"""Jobs that wait already, or come faster than they can be run: enqueues, drains, churn under a held snapshot."""

from __future__ import annotations

import json
import time

from benchmarks.peers import machine
from benchmarks.peers.bench import Bench, Run
from benchmarks.peers.child import Child, Failed
from benchmarks.peers.pickup import latency_of
from benchmarks.peers.stage import Ready, Stage

BULK_SECONDS = 2.5
BULK_MOST = 300_000
WARM = 2_000
FEED, AHEAD = 2_000, 4_000


def enqueue_single(bench: Bench, ready: Ready) -> Run:
    """Enqueue one after the other, each its own commit."""
    with bench.stage(ready) as stage, stage.producer() as producer:
        producer.ask(60, op="one", n=max(1, bench.scale.singles // 10))
        sent = producer.ask(180, op="one", n=bench.scale.singles)
    return {"jobs": sent["n"], "per_s": sent["n"] / sent["seconds"]}


def enqueue_bulk(bench: Bench, ready: Ready) -> Run:
    """Enqueue by the fastest documented call, some seconds' worth of jobs."""
    with bench.stage(ready) as stage, stage.producer() as producer:
        warm = producer.ask(120, op="bulk", n=WARM)
        most = min(BULK_MOST, WARM / warm["seconds"] * BULK_SECONDS) * bench.scale.factor
        bench.server.checkpoint()
        before = bench.server.wal()
        sent = producer.ask(180, op="bulk", n=max(1_000, round(most)))
        written = bench.server.wal() - before
    return {"jobs": sent["n"], "per_s": sent["n"] / sent["seconds"], "wal_bytes_per_job": written / sent["n"]}


def drain_async(bench: Bench, ready: Ready) -> Run:
    """Drain an analyzed table with async handlers."""
    return _fresh(bench, ready, "async", analyzed=True)


def drain_async_never_analyzed(bench: Bench, ready: Ready) -> Run:
    """Drain a table that was never analyzed, with the handlers that the system has."""
    return _fresh(bench, ready, ready.kind, analyzed=False)


def drain_sync(bench: Bench, ready: Ready) -> Run:
    """Drain an analyzed table with sync handlers."""
    return _fresh(bench, ready, "sync", analyzed=True)


def churn(bench: Bench, ready: Ready) -> Run:
    """Send many jobs through while a snapshot is held."""
    return _churned(bench, ready, held=True)


def churn_control(bench: Bench, ready: Ready) -> Run:
    """Send as many jobs through with no snapshot held."""
    return _churned(bench, ready, held=False)


def _fresh(bench: Bench, ready: Ready, kind: str, *, analyzed: bool) -> Run:
    with bench.stage(ready, kind=kind) as stage:
        run = drained(stage, bench.jobs(ready), bench.scale.drain_cap, analyzed=analyzed)
        return run | {"autoanalyzes": stage.facts()["autoanalyzes"]}


def drained(stage: Stage, jobs: int, cap: float, *, analyzed: bool) -> Run:
    """Preload *jobs* and run them: from the first handler's call until the database has the last as finished.

    While they run nothing is asked of the database: the handlers themselves say when all have been called.
    """
    server, base = stage.server, stage.done()
    with stage.producer() as producer:
        producer.ask(180, op="bulk", n=jobs)
    if analyzed:
        stage.analyze()
    stage.look_away()
    transactions, written, server_cpu = server.transactions(stage.name), server.wal(), server.cpu()
    stage.look()
    worker = stage.worker(jobs=jobs, wait=False)
    first = json.loads(worker.demand("first", 45))
    end = first["time"] + cap
    worker.marker("all", end - time.time())
    done, now = 0, time.time()
    for now in machine.moments(max(end, time.time() + 10), 0.005):
        done = stage.done() - base
        if done >= jobs or not worker.alive or now > end:
            break
    seconds = now - first["time"]
    written = server.wal() - written
    cpu, memory, server_cpu = _used(worker, first["cpu"], server.cpu() - server_cpu)
    how = worker.stop()
    stage.look_away()
    transactions = server.transactions(stage.name) - transactions - stage.asked
    stage.look()
    if done <= 0:
        raise Failed(f"no job was finished within {cap:g} s: {worker.last_words}")
    return {
        "jobs": jobs,
        "done": done,
        "complete": done >= jobs,
        "seconds": seconds,
        "per_s": done / seconds,
        "worker_us_per_job": cpu * 1e6 / done,
        "server_us_per_job": server_cpu * 1e6 / done,
        "memory_mb": memory,
        "wal_bytes_per_job": written / done,
        "transactions_per_1000_jobs": transactions * 1000 / done,
        "start_s": first["time"] - worker.started,
        "stopped": how,
    }


def _used(worker: Child, cpu_before: float, server_cpu: float) -> tuple[float, float, float]:
    if not worker.alive:
        raise Failed(f"its worker ended: {worker.last_words}")
    return machine.cpu_seconds(worker.pid) - cpu_before, machine.peak_memory(worker.pid), server_cpu


def _churned(bench: Bench, ready: Ready, *, held: bool) -> Run:
    """Feed and run jobs up to a number or a time; then measure pick-up and a drain on what that left behind."""
    scale = bench.scale
    with bench.stage(ready) as stage, stage.snapshot(held=held):
        base, sent, done = stage.done(), 0, 0
        series = [(0.0, 0)]
        with stage.producer() as producer:
            worker, begin = stage.worker(), time.time()
            for now in machine.moments(begin + scale.churn_seconds, 0.0):
                if sent < scale.churn_jobs and sent - done < AHEAD:
                    sent += producer.ask(60, op="bulk", n=min(FEED, scale.churn_jobs - sent))["n"]
                else:
                    time.sleep(0.2)
                done = stage.done() - base
                series.append((now - begin, done))
                if done >= scale.churn_jobs or not worker.alive:
                    break
            for now in machine.moments(time.time() + 30, 0.2):
                done = stage.done() - base
                series.append((now - begin, done))
                if done >= sent or not worker.alive:
                    break
        took = series[-1][0]
        how = worker.stop()
        run: Run = {"jobs": sent, "done": done, "seconds": took, "per_s": done / took, "stopped": how}
        part = max(FEED, done // 10)
        run |= {"first_tenth_per_s": _rate(series, 0, part), "last_tenth_per_s": _rate(series, done - part, done)}
        if done < sent:
            return run | {"note": f"{sent - done} jobs were left: no pick-up and no drain after it"} | stage.facts()
        run |= {f"after_{name}": value for name, value in latency_of(stage, scale.ticks).items()}
        jobs = min(bench.jobs(ready), scale.churn_drain)
        after = drained(stage, jobs, 40, analyzed=True)
        return run | {"drain_after_per_s": after["per_s"], "drain_after_jobs": after["done"]} | stage.facts()


def _rate(series: list[tuple[float, int]], low: int, high: int) -> float | None:
    reached = [next((when for when, done in series if done >= mark), None) for mark in (low, high)]
    begin, end = reached
    return (high - low) / (end - begin) if begin is not None and end is not None and end > begin else None
