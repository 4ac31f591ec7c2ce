"""A worker that is killed in the midst of its jobs, and what becomes of them."""

from __future__ import annotations

import json
import time

from benchmarks.peers import machine
from benchmarks.peers.bench import Bench, NotApplicable, Run
from benchmarks.peers.child import Child
from benchmarks.peers.stage import Ready

JOBS, LASTS, KILLED_AFTER = 20, 1.0, 1.5


def crash(bench: Bench, ready: Ready) -> Run:
    """Kill a worker with the system's own defaults, and start another."""
    return _crashed(bench, ready, "crash")


def crash_tuned(bench: Bench, ready: Ready) -> Run:
    """Do the same with its documented knobs of recovery turned to quick."""
    if reason := ready.info.get("no_crash_tuned"):
        raise NotApplicable(reason)
    return _crashed(bench, ready, "crash_tuned")


def _crashed(bench: Bench, ready: Ready, profile: str) -> Run:
    with bench.stage(ready, profile=profile) as stage, stage.producer() as producer:
        killed = stage.worker("sleep")
        time.sleep(2.0)
        producer.ask(60, op="sleepers", n=JOBS, sleep=LASTS)
        begun = json.loads(killed.demand("first", 45))["time"]
        time.sleep(max(0.0, begun + KILLED_AFTER - time.time()))
        killed.kill()
        before, begin = _told(killed), time.time()
        successor = stage.worker("sleep")
        recovered = None
        for now in machine.moments(begin + bench.scale.crash_cap, 0.25):
            if len(before["E"] | _told(successor)["E"]) >= JOBS and stage.done() >= JOBS:
                recovered = now - begin
                break
            if not successor.alive:
                break
        after = _told(successor)
        twice = before["S"] & after["S"]
        return {
            "started_before": len(before["S"]),
            "finished_before": len(before["E"]),
            "handlers_finished": len(before["E"] | after["E"]),
            "done": stage.done(),
            "recovered_s": recovered,
            "cap_s": bench.scale.crash_cap,
            "ran_twice": len(twice),
            "finished_then_ran_again": len(before["E"] & after["S"]),
            "states": stage.states(),
            "successor_alive": successor.alive,
        }


def _told(worker: Child) -> dict[str, set[str]]:
    records = worker.records()
    return {what: {words[1] for words in records if words[0] == what} for what in "SE"}
