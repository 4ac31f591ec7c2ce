"""The walls: what ends first as jobs become more, each with the rate that it holds up to and what that rests on.

Plain arithmetic on known figures, so that whoever doubts it can do it by hand. A wall that rests on something unknown
holds up to an unknown rate: it is said, and never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from redrive.capacity import costs
from redrive.capacity.costs import ASSUMED, BENCH, BENCH_BROKER, GIVEN, HERE, UNMEASURED, Known
from redrive.words import counted, number, span

if TYPE_CHECKING:
    from redrive.capacity.facts import Facts

YEAR = 365 * 86_400.0
LITTLE = 40.0
"""Bytes of a payload where there is none to measure."""
LEAST_MEAN = 0.1
"""Of the peak: of a busy minute within an idle day nobody should conclude that no disk is needed."""
ORDER = (HERE, GIVEN, BENCH, BENCH_BROKER, ASSUMED, UNMEASURED)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """An installation, as it is or as a step would make it."""

    run: Known
    """Seconds of a handler."""
    slots: int
    processes: int
    each: int
    """Slots of a process that is added."""
    connections: int
    """That are taken by others than workers."""
    connections_most: int
    connections_each: float
    cores: Known
    server_us: Known
    wal: Known
    row: Known
    disk: Known
    keep: float
    """Seconds for which rows stay, the archive's too."""
    payload: Known
    """Bytes."""
    mean: float = 1.0
    """Of the rate, over days: by it rows gather."""
    databases: int = 1
    at_broker: bool = False
    elastic: bool = False
    """Workers are added as they are needed: no connection of the database's keeps them few."""


@dataclass(frozen=True, kw_only=True)
class Wall:
    """What ends, and when."""

    name: str
    holds: float | None
    """Jobs a second; None is not known."""
    why: str
    source: str
    needs: str
    """What the wished rate takes of it."""


def setup(
    facts: Facts,
    *,
    cores: float | None = None,
    disk: float | None = None,
    run: float | None = None,
    payload: float | None = None,
    all_day: bool = False,
) -> Setup:
    """Describe the installation as it is; what was given goes before what was measured here."""
    size = Known(payload, GIVEN) if payload else Known(facts.payload, HERE) if facts.payload else Known(LITTLE, ASSUMED)
    bytes_, here = size.value or LITTLE, payload is None
    # Without pg_stat_statements: of a small payload, and what a larger one adds; commits are the application's.
    whole = (costs.ENQUEUE_WITHIN.value or 0.0) + (costs.RUN.value or 0.0) + (costs.PRUNE.value or 0.0)
    whole += costs.at(costs.SERVER, bytes_) - costs.at(costs.SERVER, costs.SIZES[0])
    keep = facts.keep or YEAR
    usual = 1.0 if all_day or not facts.peak_rate else max(LEAST_MEAN, facts.mean_rate / facts.peak_rate)
    return Setup(
        payload=size,
        mean=min(1.0, usual),
        run=Known(run, GIVEN) if run else Known(facts.run_mean, HERE) if facts.run_mean else costs.RUN_TIME.known,
        slots=facts.slots,
        processes=facts.processes,
        each=round(facts.slots / facts.processes) if facts.processes and facts.slots else 10,
        connections=max(0, facts.connections - facts.connections_of_workers),
        connections_most=facts.connections_most,
        connections_each=costs.CONNECTIONS.value or 0.0,
        cores=Known(cores, GIVEN) if cores else Known(costs.MACHINE_CORES, ASSUMED),
        server_us=Known(facts.server_us, HERE) if here and facts.server_us else Known(whole, BENCH),
        wal=Known(facts.wal, HERE) if here and facts.wal else Known(costs.at(costs.WAL, bytes_), BENCH),
        row=Known(facts.row_bytes, HERE) if here and facts.row_bytes else Known(costs.at(costs.ROW, bytes_), BENCH),
        disk=Known(1e9 * disk, GIVEN) if disk else Known(1e9 * (costs.DISK.value or 0.0), ASSUMED),
        keep=keep + YEAR if facts.archive and facts.keep else keep,
    )


def walls(now: Setup, rate: float) -> list[Wall]:
    """List the walls of a setup, with what *rate* needs of each; the nearest first, those that are not known last."""
    found = [_database(now, rate), _wal(now, rate)]
    if not now.elastic:
        found += [_slots(now, rate), _engine(now, rate), _connections(now, rate)]
    if not now.at_broker:
        found += [_disk(now, rate), _pruning(now, rate)]
    return sorted(found, key=lambda wall: (wall.holds is None, wall.holds or 0.0))


def holds(now: Setup, rate: float) -> Wall:
    """Give the wall that is nearest; one that is not known goes before them all, for it may be."""
    found = walls(now, rate)
    return found[-1] if found[-1].holds is None else found[0]


def grown(now: Setup) -> Setup:
    """Give it as many workers as the connections allow."""
    free = now.connections_most - now.connections
    processes = max(now.processes, int(free // now.connections_each))
    return replace(now, processes=processes, slots=now.slots + (processes - now.processes) * now.each)


def wanted(now: Setup, rate: float) -> int:
    """Say how many processes have slots enough for a rate."""
    slots = _up(rate * (now.run.value or 0.0) / (costs.BUSY.value or 1.0))
    return max(1, _up(slots / now.each))


def _slots(now: Setup, rate: float) -> Wall:
    run, busy = now.run.value or 0.0, costs.BUSY.value or 1.0
    if not now.slots:
        why = "no worker is alive"
    else:
        why = f"{busy:.0%} of {counted(now.slots, 'slot')} in {_processes(now.processes)}, a job takes {short(run)}"
    return Wall(
        name="slots",
        holds=now.slots * busy / run,
        why=why,
        source=_weakest(Known(now.slots, HERE), now.run),
        needs=counted(_up(rate * run / busy), "slot"),
    )


def _engine(now: Setup, rate: float) -> Wall:
    each = costs.ENGINE.value or 0.0
    return Wall(
        name="workers' own speed",
        holds=now.processes * each,
        why=f"{_processes(now.processes)}, each {each:,.0f} jobs/s with handlers that do nothing",
        source=costs.ENGINE.source,
        needs=f"{_processes(_up(rate / each))}, {_cores(rate * (costs.ENGINE_CPU.value or 0.0))}",
    )


def _connections(now: Setup, rate: float) -> Wall:
    most = grown(now)
    run, busy = now.run.value or 0.0, costs.BUSY.value or 1.0
    free = max(0, now.connections_most - now.connections)
    return Wall(
        name="connections",
        holds=most.slots * busy / run,
        why=f"{number(free)} of {number(now.connections_most)} are free or workers': "
        f"{_processes(most.processes)} of {counted(now.each, 'slot')}",
        source=_weakest(Known(free, HERE), now.run),
        needs=counted(_up(wanted(now, rate) * now.connections_each), "connection"),
    )


def _database(now: Setup, rate: float) -> Wall:
    us, cores, share = now.server_us.value, now.cores.value or 1.0, costs.SHARE.value or 1.0
    several = f" in each of {now.databases} databases" if now.databases > 1 else ""
    way = ", enqueued one by one" if now.server_us.source == BENCH and not now.at_broker else ""
    return Wall(
        name="database's time",
        holds=None if us is None else now.databases * cores * share * 1e6 / us,
        why=UNMEASURED if us is None else f"{us:,.0f} µs a job{way}, {share:.0%} of {cores:g} cores for jobs{several}",
        source=_weakest(now.server_us, now.cores),
        needs="" if us is None else _cores(rate * us / now.databases),
    )


def _wal(now: Setup, rate: float) -> Wall:
    wal, most = now.wal.value, costs.WAL_SPEED.value or 1.0
    return Wall(
        name="WAL",
        holds=None if wal is None else now.databases * most * 1e6 / wal,
        why=UNMEASURED
        if wal is None
        else f"{wal:,.0f} bytes a job, {most:g} MB/s that replicas and archiver keep up with",
        source=_weakest(now.wal, costs.WAL_SPEED.known),
        needs="" if wal is None else f"{storage(rate * wal)}/s, {storage(rate * now.mean * wal * 86_400)} a day",
    )


def _disk(now: Setup, rate: float) -> Wall:
    row, disk = now.row.value or 1.0, (now.disk.value or 0.0) * now.databases
    kept = "for ever (here: a year)" if now.keep == YEAR else f"for {span(now.keep)}"
    gather = rate * now.mean * now.keep
    mean = f", the mean being {now.mean:.0%} of the peak" if now.mean < 1 else ""
    return Wall(
        name="disk",
        holds=disk / (now.mean * now.keep * row),
        why=f"rows of {row:,.0f} bytes are kept {kept}, {storage(disk)} of disk{mean}",
        source=_weakest(now.row, now.disk),
        needs=f"{_count(gather)} rows, {storage(gather * row)}",
    )


def _pruning(now: Setup, rate: float) -> Wall:
    each = costs.PRUNED.value or 0.0
    # Beyond four it was not measured, and is not counted on.
    more = {0: 0.0, 1: 1.0}.get(now.processes, (costs.FOUR_PRUNERS.value or 1.0) * min(1.0, now.processes / 4))
    return Wall(
        name="pruning",
        holds=now.databases * max(min(1, now.processes), more) * each / now.mean,
        why=f"a process removes {each:,.0f} rows/s, and no more than four are counted on"
        if now.processes
        else "no worker is alive",
        source=costs.PRUNED.source,
        needs=f"{counted(_up(rate * now.mean), 'row')}/s",
    )


def _weakest(*known: Known) -> str:
    """Say where figures come from; where one is not known the others don't matter."""
    if any(each.value is None for each in known):
        return UNMEASURED
    return ", ".join(sorted({each.source for each in known}, key=ORDER.index))


def _up(value: float) -> int:
    return -int(-value // 1)


def short(seconds: float) -> str:
    """Write a duration that may be far less than a second."""
    return span(seconds) if seconds >= 0.01 else f"{1000 * seconds:.2g} ms"  # noqa: PLR2004 - two digits


def _processes(count: int) -> str:
    return f"{number(count)} process{'es' * (count != 1)}"


def _cores(microseconds: float) -> str:
    return f"{microseconds / 1e6:,.2g} cores" if microseconds < 1e7 else f"{microseconds / 1e6:,.0f} cores"  # noqa: PLR2004


def _count(value: float) -> str:
    for unit, size in (("bn", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:,.3g} {unit}"
    return number(_up(value))


def storage(count: float) -> str:
    """Write a number of bytes."""
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.3g} {unit}"
    return f"{count:,.0f} bytes"
