"""What the kernel says about processes and the machine: CPU seconds, peak memory, load that isn't ours.

Linux only: it reads /proc. It never signals anybody.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
KIB = 1024


def tree(pid: int) -> list[int]:
    """List *pid* and its living descendants, parents first."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            children.setdefault(int(stat[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        each = todo.pop()
        found.append(each)
        todo += children.get(each, [])
    return found


def cpu_seconds(pid: int) -> float:
    """Sum the CPU time of a process and its descendants, those that ended and were waited for included."""
    stats = [_stat(each) for each in tree(pid)]
    return sum(sum(map(int, stat[11:15])) for stat in stats if stat) / TICKS


def peak_memory(pid: int) -> float:
    """Sum the peak resident memory of a process and its descendants, in MB; pages they share count for each."""
    total = 0
    for each in tree(pid):
        with contextlib.suppress(OSError):
            for line in (PROC / str(each) / "status").read_text().splitlines():
                if line.startswith("VmHWM"):
                    total += int(line.split()[1]) * KIB
    return total / 1e6


def machine_seconds() -> tuple[float, float]:
    """Give the CPU seconds that the machine was busy since it started, and those stolen from it by its host."""
    user, nice, system, _, _, irq, softirq, stolen = map(int, (PROC / "stat").read_text().splitlines()[0].split()[1:9])
    return (user + nice + system + irq + softirq) / TICKS, stolen / TICKS


def own_seconds(living: Sequence[int]) -> float:
    """Sum our own CPU time: this process, the children it has waited for, and the *living* ones with their trees."""
    return sum(os.times()[:4]) + sum(cpu_seconds(pid) for pid in living)


def sync_milliseconds(directory: Path, tries: int = 60) -> float:
    """Time an 8 kB write with fdatasync in *directory*: what a commit costs there, the median in ms."""
    path, took = directory / "sync-probe", []
    with path.open("wb", buffering=0) as file:
        for _ in range(tries):
            begin = time.perf_counter()
            file.seek(0)
            file.write(bytes(8 * KIB))
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - begin)
    path.unlink()
    return statistics.median(took) * 1000


def percentile(values: Sequence[float], share: float) -> float | None:
    """Interpolate the value below which *share* percent of *values* lie; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def moments(until: float, pause: float) -> Iterator[float]:
    """Yield the time, again after each *pause*, and stop when *until* is over: a wait that can't be for ever."""
    while (now := time.time()) < until:
        yield now
        time.sleep(pause)


def _stat(pid: int) -> list[str]:
    """Read the fields of /proc/PID/stat after the name, which may hold anything; empty for one that is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
