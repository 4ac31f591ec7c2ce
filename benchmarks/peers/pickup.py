"""Jobs that come while a worker waits for them: pick-up when idle, a steady load, one under a held snapshot, none."""

from __future__ import annotations

import time

from benchmarks.peers import machine
from benchmarks.peers.bench import Bench, Run
from benchmarks.peers.child import Child
from benchmarks.peers.machine import percentile
from benchmarks.peers.stage import Ready, Stage

TICK = 0.025
GROUPS_A_SECOND = 20
KEPT_WITHIN, KEPT_P99 = 2.5, 2000.0
"""A rate was kept when all was done that many seconds after the last job, and p99 stayed below so many ms."""
EDGE = 10.0


def latency(bench: Bench, ready: Ready) -> Run:
    """Measure from just before the enqueue to the handler's start, of a worker that has nothing else to do."""
    with bench.stage(ready) as stage:
        return latency_of(stage, bench.scale.ticks)


def latency_of(stage: Stage, ticks: int) -> Run:
    """Measure pick-up on a stage as it is."""
    with stage.producer() as producer:
        worker = stage.worker("record")
        time.sleep(2.5)
        sent = producer.ask(90, op="pace", groups=ticks, group=1, interval=TICK, cap=60)
        _heard(worker, sent["n"])
        took = [each for _, each in _latencies(worker)]
        worker.stop()
    return _spread(took) | {"jobs": sent["n"], "seen": len(took), "producer_late_ms": sent["late"] * 1000}


def sustained(bench: Bench, ready: Ready) -> Run:
    """Keep up a steady rate; a lower one is tried where the higher one was not kept."""
    run: Run = {}
    for rate in bench.scale.rates:
        with bench.stage(ready) as stage:
            run, _ = _paced(stage, rate, bench.scale.sustained_seconds)
        if run["kept"]:
            break
    return run


def horizon(bench: Bench, ready: Ready) -> Run:
    """Hold a snapshot from before the start, and see whether pick-up grows."""
    return _steady(bench, ready, held=True)


def horizon_control(bench: Bench, ready: Ready) -> Run:
    """Do the same with no snapshot held."""
    return _steady(bench, ready, held=False)


def idle(bench: Bench, ready: Ready) -> Run:
    """Count what a worker does that has nothing to do.

    Statistics of a session are whole only once it has ended: so two runs, and what the longer one did more.
    """
    scale, totals = bench.scale, []
    run: Run = {"seconds": scale.idle_seconds}
    for length in (0.0, scale.idle_seconds):
        with bench.stage(ready) as stage:
            server = stage.server
            stage.look_away()
            before = server.transactions(stage.name)
            worker = stage.worker()
            time.sleep(scale.idle_warm)
            cpu, server_cpu = machine.cpu_seconds(worker.pid), server.cpu()
            time.sleep(length)
            run |= {
                "worker_cpu_s": machine.cpu_seconds(worker.pid) - cpu,
                "server_cpu_s": server.cpu() - server_cpu,
                "memory_mb": machine.peak_memory(worker.pid),
                "connections": server.connections(stage.name),
            }
            worker.kill()
            server.settle(stage.name)
            totals.append(server.transactions(stage.name) - before)
    return run | {"transactions_per_s": max(0.0, (totals[1] - totals[0]) / scale.idle_seconds)}


def _steady(bench: Bench, ready: Ready, *, held: bool) -> Run:
    rate = bench.kept_rate(ready.system.name) or bench.scale.rates[0]
    with bench.stage(ready) as stage, stage.snapshot(held=held):
        run, took = _paced(stage, rate, bench.scale.horizon_seconds)
        edge = min(EDGE, bench.scale.horizon_seconds / 3)
        first = [each for sent, each in took if sent < run["begin"] + edge]
        last = [each for sent, each in took if sent >= run["end"] - edge]
        for name, values in (("first", first), ("last", last)):
            run |= {f"{name}_{what}": value for what, value in _spread(values).items()}
        for what in ("p50_ms", "p99_ms"):
            begin, end = run[f"first_{what}"], run[f"last_{what}"]
            run[f"growth_{what.removesuffix('_ms')}"] = end / begin if begin and end else None
        return run | stage.facts()


def _paced(stage: Stage, rate: int, seconds: float) -> tuple[Run, list[tuple[float, float]]]:
    group = max(1, round(rate / GROUPS_A_SECOND))
    base = stage.done()
    with stage.producer() as producer:
        worker = stage.worker("record")
        time.sleep(2.0)
        groups = round(seconds * rate / group)
        pace = {"groups": groups, "group": group, "interval": group / rate, "cap": seconds * 2.5}
        sent = producer.ask(seconds * 3 + 30, op="pace", **pace)
        at_end, ended = stage.done() - base, time.time()
        done = at_end
        for _ in machine.moments(ended + 30, 0.2):
            done = stage.done() - base
            if done >= sent["n"] or not worker.alive:
                break
        caught_up = time.time() - ended
        took = _latencies(worker)
        worker.stop()
    run = _spread([each for _, each in took]) | {
        "rate": rate,
        "jobs": sent["n"],
        "done": done,
        "done_at_end_share": at_end / sent["n"],
        "caught_up_s": caught_up,
        "producer_late_ms": sent["late"] * 1000,
        "begin": sent["begin"],
        "end": sent["end"],
    }
    kept = done >= sent["n"] and caught_up < KEPT_WITHIN and (run["p99_ms"] or KEPT_P99) < KEPT_P99
    return run | {"kept": kept}, took


def _heard(worker: Child, jobs: int) -> None:
    for _ in machine.moments(time.time() + 10, 0.1):
        if len(worker.records()) >= jobs or not worker.alive:
            return


def _latencies(worker: Child) -> list[tuple[float, float]]:
    """List when each job was sent, and after how many ms its handler started."""
    return [(float(sent), (float(started) - float(sent)) * 1000) for sent, started, *_ in worker.records()]


def _spread(took: list[float]) -> Run:
    return {
        "p50_ms": percentile(took, 50),
        "p95_ms": percentile(took, 95),
        "p99_ms": percentile(took, 99),
        "max_ms": max(took, default=None),
    }
