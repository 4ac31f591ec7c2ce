"""What `make bench` measures: ours and the bare-SQL floor in turn, so that a noisy moment hits both.

The scenarios and the workers are those of ``redrive bench``; here are only the sizes, the turns and the comparisons.
Every figure is a median of the runs unless its name says otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks import floor
from benchmarks.fairness import fairness
from benchmarks.roads import roads
from benchmarks.scale import scale
from benchmarks.stage import Stage, claims_of
from redrive.bench import scenarios
from redrive.bench.application import ASYNC, PAUSE, THREAD
from redrive.bench.figures import middle, percentile, plain
from redrive.bench.loads import Drained, Load, go_through
from redrive.bench.scratch import Place, pinned
from redrive.bench.subject import Subject, subject

if TYPE_CHECKING:
    from collections.abc import Iterator

Figures = dict[str, Any]
WARM_UP = 500
"""Jobs that each worker runs before it is measured."""
IDLE_SETTLE = 2.0
"""Seconds in which an idle worker has started and fallen asleep."""
LEAST_RATE = 0.01
"""Starts a second of the kind that is held back: as good as none while the others are measured."""
FUTURE = """
    insert into jobs (kind, payload, run_at)
    select %s, '{"n": 1, "to": "user@example.com"}', now() + interval '1 day' + n * interval '1 ms'
    from generate_series(1, %s) n
"""
FINISHED = """
    insert into jobs (kind, payload, status, attempts, claims, locked_at, locked_by)
    select %s, '{"n": 1, "to": "user@example.com"}', 'succeeded', 1, 1, now(), 'box:1:aaaaaa'
    from generate_series(1, %s) n
"""
WAITING = """
    insert into jobs (kind, payload) select %s, '{"seconds": 0.001}' from generate_series(1, %s)
"""


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    runs: int = 5
    drain: int = 100_000
    enqueue: int = 50_000
    pickups: int = 300
    sustained: float = 30.0
    rounds: int = 20
    round: int = 50_000
    ends: int = 5
    """Rounds that are the start of the horizon run, and the end of it, where claims are compared."""
    beside_fresh: int = 11
    """Rounds at its end that are run in turn with a fresh table's: single ones last a second, and differ by a fifth."""
    control: bool = True
    """Whether as many jobs go through a table without a snapshot, in turn with them."""
    future: int = 1_000_000
    finished: int = 5_000_000
    limited: int = 1_000_000
    """Jobs that wait because of their kind's limit."""
    beside: int = 10_000
    """Jobs of one round beside those."""
    slow: float = 10.0
    flood: int = 100_000
    """Jobs of one tenant before those of another."""
    idle: float = 60.0
    scale: int = 60_000
    """Jobs of each life; fewer of large payloads."""
    scale_runs: int = 3


QUICK = Sizes(
    runs=3,
    drain=5_000,
    enqueue=2_500,
    pickups=40,
    sustained=1.5,
    rounds=10,
    round=5_000,
    ends=3,
    beside_fresh=5,
    control=False,
    future=50_000,
    finished=250_000,
    limited=50_000,
    beside=2_000,
    slow=2.0,
    flood=5_000,
    idle=10.0,
    scale=10_000,
    scale_runs=1,
)


@contextmanager
def idling(stage: Stage) -> Iterator[Callable[[Sizes], Figures]]:
    """Let a worker idle in a schema of its own while all the rest is measured; gives what asks how it was."""
    place = stage.place("idle")
    with subject(place) as worker:
        time.sleep(IDLE_SETTLE)
        began, statements, cpu = time.monotonic(), worker.statements, worker.cpu

        def so_far(sizes: Sizes) -> Figures:
            time.sleep(max(0.0, began + sizes.idle - time.monotonic()))
            seconds = time.monotonic() - began
            return {
                "idle_transactions_per_s": (worker.statements - statements) / seconds,
                "idle_cpu_ms_per_s": 1000 * (worker.cpu - cpu) / seconds,
                "idle_seconds": seconds,
            }

        yield so_far
        worker.stop()


def enqueue(stage: Stage, sizes: Sizes) -> Figures:
    """Enqueue one by one, by COPY, with keys."""
    place, found = stage.place("enqueue"), []
    for _ in range(sizes.runs):
        place.clear()
        found.append(plain(scenarios.enqueue(place, Load(jobs=sizes.enqueue), _silent)))
    names = ("single_per_s", "copy_per_s", "keyed_per_s")
    return {f"enqueue_{name}": middle(each[name] for each in found) for name in names}


def drain(stage: Stage, sizes: Sizes) -> Figures:
    """Drain a full table: async, threads, bare SQL, in turn and in changing order."""
    place, load = stage.place("drain"), Load(jobs=sizes.drain)
    runs: dict[str, list[Any]] = {"async": [], "threads": [], "floor": []}
    turns: dict[str, Callable[[], Any]] = {
        "async": lambda: scenarios.drain_once(place, ASYNC, load),
        "threads": lambda: scenarios.drain_once(place, THREAD, load),
        "floor": lambda: floor.drain(place, sizes.drain),
    }
    for number in range(sizes.runs):
        for name in list(turns)[:: 1 if number % 2 else -1]:
            place.clear()
            stage.checkpoint()
            runs[name].append(turns[name]())
    ours, threads, bare = runs["async"], runs["threads"], runs["floor"]
    rates = {
        "async": [each.drained.rate for each in ours],
        "threads": [each.drained.rate for each in threads],
        "floor": [each.rate for each in bare],
    }
    return {
        **{f"drain_{name}_per_s": middle(found) for name, found in rates.items()},
        "drain_async_vs_floor": _ratio(rates["async"], rates["floor"]),
        "drain_threads_vs_async": _ratio(rates["threads"], rates["async"]),
        "drain_runs": rates,
        "transactions_per_1000_jobs": middle(1000 * each.statements / sizes.drain for each in ours),
        "transactions_per_1000_jobs_by_server": middle(1000 * each.transactions / sizes.drain for each in ours),
        "wal_bytes_per_job": middle(each.wal / sizes.drain for each in ours),
        "cpu_us_per_job": middle(1e6 * each.report.cpu / sizes.drain for each in ours),
        "floor_cpu_us_per_job": middle(1e6 * each.cpu / sizes.drain for each in bare),
        "threads_cpu_us_per_job": middle(1e6 * each.report.cpu / sizes.drain for each in threads),
        "jobs_per_claim": middle(middle(each.report.claim_rows) for each in ours),
    }


def latency(stage: Stage, sizes: Sizes) -> Figures:
    """See how soon an idle worker begins a job, and in turn how soon bare SQL has claimed one."""
    place, found, bare = stage.place("latency"), [], []
    for _ in range(sizes.runs):
        place.clear()
        jobs = int(sizes.pickups / scenarios.PICKUPS)
        found.append(plain(scenarios.latency(place, Load(jobs=jobs), _silent))["pickup_ms"])
        place.clear()
        bare.append(sorted(1000 * each for each in floor.pickups(place, sizes.pickups)))
    ours = {f"pickup_ms_{name}": middle(each[name] for each in found) for name in ("p50", "p95", "p99", "max")}
    floors = {f"pickup_floor_ms_p{part}": middle(percentile(each, part / 100) for each in bare) for part in (50, 99)}
    by_floor = _ratio([each["p50"] for each in found], [middle(each) for each in bare])
    return {**ours, **floors, "pickup_vs_floor": by_floor}


def sustained(stage: Stage, sizes: Sizes) -> Figures:
    """Keep up with a steady rate; one run."""
    found = plain(scenarios.sustained(stage.place("sustained"), Load(seconds=sizes.sustained), _silent))
    waits = found["end_to_end_ms"]
    return {
        "sustained_rate_per_s": Load().rate,
        "sustained_rate_kept": found["rate_kept"],
        "sustained_ms_p50": waits["p50"],
        "sustained_ms_p99": waits["p99"],
        "sustained_backlog_most": found["backlog_most"],
    }


def horizon(stage: Stage, sizes: Sizes) -> Figures:
    """Send jobs through in rounds under a pinned snapshot, in turn with an unpinned table, at the end with fresh ones.

    The snapshot keeps dead rows from being removed in its own database only, so the others are in another.
    """
    held, fresh = Lane(stage, "pinned", apart=True), Lane(stage, "fresh")
    control = Lane(stage, "control") if sizes.control else None
    with ExitStack() as stack:
        for lane in filter(None, (held, control, fresh)):
            stack.enter_context(lane.working())
        stack.enter_context(pinned(held.place))
        first_mb = None
        for number in range(sizes.rounds):
            held.round(sizes.round)
            if control:
                control.round(sizes.round)
            if number >= sizes.rounds - sizes.beside_fresh:
                fresh.empty()
                fresh.round(sizes.round)
            if number == 0:
                first_mb = held.worker.resident_mb
        last_mb = held.worker.resident_mb
    start, end, compared = slice(0, sizes.ends), slice(-sizes.ends, None), slice(-sizes.beside_fresh, None)
    return {
        "horizon_jobs": sizes.rounds * sizes.round,
        "horizon_claim_growth": held.claim(end) / held.claim(start),
        "horizon_control_claim_growth": control.claim(end) / control.claim(start) if control else None,
        "horizon_claim_vs_fresh": held.claim(end) / fresh.claim(end),
        "horizon_claim_ms": {"start": 1000 * held.claim(start), "end": 1000 * held.claim(end)},
        "horizon_jobs_per_claim": {"start": held.jobs_per_claim(start), "end": held.jobs_per_claim(end)},
        "horizon_drain_ratio": _ratio(held.rates(compared), fresh.rates(compared)),
        "horizon_control_drain_ratio": _ratio(control.rates(compared), fresh.rates(compared)) if control else None,
        "horizon_rates": {lane.name: lane.rates(slice(None)) for lane in filter(None, (held, control, fresh))},
        "worker_growth_mb": None if first_mb is None or last_mb is None else last_mb - first_mb,
        "worker_peak_mb": held.peak_mb,
    }


def crowded(stage: Stage, sizes: Sizes) -> Figures:
    """Claim beside future rows, finished rows and what a kind's limit holds back, in turn with an empty table."""
    lanes = empty, future, finished, limited = [
        Lane(stage, name) for name in ("empty", "future", "finished", "limited")
    ]
    future.fill(FUTURE, sizes.future)
    finished.fill(FINISHED, sizes.finished)
    limited.place.queue.kinds.limit(PAUSE, rate=LEAST_RATE)
    limited.fill(WAITING, sizes.limited, kind=PAUSE)
    with ExitStack() as stack:
        for lane in lanes:
            stack.enter_context(lane.working())
        for _ in range(sizes.runs):
            empty.empty()
            for lane in lanes:
                lane.round(sizes.beside)
    every = slice(None)
    return {
        "future_rows": sizes.future,
        "finished_rows": sizes.finished,
        "limited_rows": sizes.limited,
        "claim_ms_p50": 1000 * empty.claim(every),
        "crowded_jobs_per_claim": {lane.name: lane.jobs_per_claim(every) for lane in lanes},
        "future_rows_claim_growth": _ratio(future.claims_by_round(), empty.claims_by_round()),
        "finished_rows_claim_growth": _ratio(finished.claims_by_round(), empty.claims_by_round()),
        "limited_rows_claim_growth": _ratio(limited.claims_by_round(), empty.claims_by_round()),
        "future_rows_drain_ratio": _ratio(future.rates(every), empty.rates(every)),
        "finished_rows_drain_ratio": _ratio(finished.rates(every), empty.rates(every)),
        "limited_rows_drain_ratio": _ratio(limited.rates(every), empty.rates(every)),
    }


def slow(stage: Stage, sizes: Sizes) -> Figures:
    """Give jobs of a second to two workers of 20 slots; one run."""
    found = plain(scenarios.slow(stage.place("slow"), Load(seconds=sizes.slow), _silent))
    names = ("jobs", "seconds", "idle_slot_seconds", "idle_slot_share", "held_beyond_slots")
    return {f"slow_{name}": found[name] for name in names}


MEASUREMENTS: tuple[Callable[[Stage, Sizes], Figures], ...] = (
    enqueue,
    roads,
    drain,
    latency,
    sustained,
    horizon,
    crowded,
    slow,
    fairness,
    scale,
)


@dataclass
class Lane:
    """A schema with one worker that jobs go through in rounds."""

    stage: Stage
    name: str
    apart: bool = False
    done: list[Drained] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.place: Place = self.stage.place(self.name, apart=self.apart, logged=True)
        self.peak_mb: float | None = None
        self._claims: list[tuple[float, float, float]] = []
        """When the worker asked, the seconds that it took, the jobs that it gave; of those that gave any."""

    @contextmanager
    def working(self) -> Iterator[None]:
        """Start the worker, warm it up, and read at the end how its claims were."""
        log = self.stage.log
        offset = log.stat().st_size if log else 0
        with subject(self.place) as worker:
            self.worker: Subject = worker
            go_through(self.place, worker, ASYNC, WARM_UP)
            yield
            report = worker.stop()
        self.peak_mb = report.peak_mb
        took = list(report.claim_took)
        if log:
            told = claims_of(log, worker.pid, offset)
            if len(told) != len(took):
                raise SystemExit(f"the log tells of {len(told)} claims of {self.name}, its worker of {len(took)}")
            took = told
        claims = zip(report.claim_at, took, report.claim_rows, strict=True)
        self._claims = [claim for claim in claims if claim[2]]

    def fill(self, insert: str, count: int, kind: str = ASYNC) -> None:
        """Put *count* rows of one sort there, and let vacuum see to them, so that it doesn't while it is measured."""
        with self._connected() as conn:
            conn.execute(insert.encode(), [kind, count])
            conn.execute("vacuum (analyze) jobs")

    def empty(self) -> None:
        """Make the table a new one, under the worker's feet."""
        with self._connected() as conn:
            conn.execute("truncate jobs")

    def _connected(self) -> psycopg.Connection[Any]:
        path = make_conninfo(self.place.url, options=f"-c search_path={self.place.schema}")
        return psycopg.connect(path, autocommit=True)

    def round(self, jobs: int) -> None:
        """Let jobs go through."""
        self.done.append(go_through(self.place, self.worker, ASYNC, jobs))

    def rates(self, which: slice) -> list[float]:
        """List the rounds' jobs a second."""
        return [each.rate for each in self.done[which]]

    def claims_by_round(self) -> list[float]:
        """List each round's median of the seconds of a claim that found something."""
        return [middle(took for _, took, _ in self._within([each])) for each in self.done]

    def claim(self, which: slice) -> float:
        """Give the median of the seconds of a claim that found something."""
        return middle(took for _, took, _ in self._within(self.done[which]))

    def jobs_per_claim(self, which: slice) -> float:
        """Give the median of the jobs in such a claim: claims are compared that are of one size."""
        return middle(jobs for _, _, jobs in self._within(self.done[which]))

    def _within(self, rounds: list[Drained]) -> list[tuple[float, float, float]]:
        return [claim for claim in self._claims if any(each.began <= claim[0] <= each.ended for each in rounds)]


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """Compare runs that were made in turn: the median of the ratios of each pair."""
    return middle(one / other for one, other in zip(ours, theirs, strict=True))


def _silent(_: float) -> None:
    """Nobody watches a progress bar here."""
