"""What a job costs, as it was measured: the one place of these figures, each with the command that measured it.

``make bench`` writes them to benchmarks/results.json under the keys that stand here, ``make bench-page`` brings them
from there to here, and a test compares the two. The machine is the one that docs/scale.md names; on another they are a
beginning and no promise. What nobody has measured is None, and is said to be; what is taken for granted is marked as
assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

HERE, BENCH, ASSUMED, GIVEN, UNMEASURED = "measured here", "make bench", "assumed", "given", "not measured yet"
BENCH_BROKER = "make bench-broker"
"""Where a figure comes from, as it is shown. By make bench it is the project's, on the machine of docs/scale.md."""
MACHINE_CORES = 2
"""Of the machine on which make bench measured."""


@dataclass(frozen=True)
class Known:
    """A figure and where it comes from; None is not known."""

    value: float | None
    source: str


@dataclass(frozen=True)
class Cost:
    """A figure of this table."""

    what: str
    value: float | None
    unit: str
    key: str = ""
    """In benchmarks/results.json; empty where it is assumed, or waits for a measurement."""

    @property
    def source(self) -> str:
        """Say where it comes from."""
        if self.key.startswith("broker_"):
            return BENCH_BROKER
        return BENCH if self.key else ASSUMED if self.value is not None else UNMEASURED

    @property
    def known(self) -> Known:
        """Give it as a figure among others."""
        return Known(self.value, self.source)


ENQUEUE = Cost("enqueue, in a commit of its own", 258.0, "µs of the server", "scale_enqueue_us")
ENQUEUE_WITHIN = Cost(
    "enqueue, within the application's transaction", 157.0, "µs of the server", "scale_enqueue_within_us"
)
ENQUEUE_MANY = Cost("enqueue_many (COPY)", 5.67, "µs of the server", "scale_enqueue_many_us")
RUN = Cost("claim and outcome", 23.0, "µs of the server", "scale_run_us")
PRUNE = Cost("removal at the end of retention", 5.58, "µs of the server", "scale_prune_us")
PRUNED = Cost("rows removed by one worker", 36_200.0, "rows/s", "scale_pruned_per_s")
ENGINE = Cost("one worker process, handlers that do nothing", 44_300.0, "jobs/s", "drain_async_per_s")
ENGINE_CPU = Cost("a worker's own work", 10.6, "µs of the worker", "cpu_us_per_job")
TUNED_SERVER = Cost(
    "enqueue_many, claim and outcome by the settings above, to the defaults'", 1.12, "", "scale_tuned_server"
)
TUNED_WAL = Cost("WAL by the settings above, to the defaults'", 0.997, "", "scale_tuned_wal")
FOUR_PRUNERS = Cost("the same by four, to one", 1.68, "", "scale_four_pruners")
FOUR_WORKERS = Cost("claim and outcome with four workers at once, to one", 1.08, "", "scale_four_workers")

# By the bytes of a payload that does not compress: measured at these sizes, in between it is a straight line.
SIZES = (40, 1_000, 8_000)
WAL = (
    Cost("WAL, payload of 40 bytes", 1_050.0, "bytes/job", "scale_wal_40"),
    Cost("WAL, payload of 1,000 bytes", 2_050.0, "bytes/job", "scale_wal_1000"),
    Cost("WAL, payload of 8,000 bytes", 10_200.0, "bytes/job", "scale_wal_8000"),
)
ROW = (
    Cost("a kept row with its index entries, payload of 40 bytes", 544.0, "bytes", "scale_row_40"),
    Cost("a kept row with its index entries, payload of 1,000 bytes", 2_880.0, "bytes", "scale_row_1000"),
    Cost("a kept row with its index entries, payload of 8,000 bytes", 8_880.0, "bytes", "scale_row_8000"),
)
SERVER = (
    Cost("enqueue_many, claim and outcome, payload of 40 bytes", 28.7, "µs of the server", "scale_us_40"),
    Cost("enqueue_many, claim and outcome, payload of 1,000 bytes", 43.3, "µs of the server", "scale_us_1000"),
    Cost("enqueue_many, claim and outcome, payload of 8,000 bytes", 340.0, "µs of the server", "scale_us_8000"),
)

# What a broker leaves to the database, as a share of what the job costs it otherwise. To fill one in: the value, and
# the key under which its measurement writes it.
BROKER = Cost(
    "server's time of a job by way of a broker, enqueued by itself, to one without",
    0.839,
    "",
    "broker_amqp_vs_postgres",
)
BROKER_MANY = Cost("the same, many enqueued at once", 0.46, "", "broker_many_amqp_vs_postgres")
BROKER_WAL = Cost("WAL of a job by way of a broker, to one without", 0.488, "", "broker_wal_vs_postgres")
BROKER_DIRECT = Cost(
    "server's time of a job by enqueue(direct=True), to one without a broker", 0.000507, "", "broker_direct_vs_postgres"
)
RELAY = Cost("one relay process", 10_200.0, "jobs/s", "broker_relay_per_s")
CONSUMER = Cost("one worker process at the broker, handlers that do nothing", 5_300.0, "jobs/s", "broker_worker_per_s")

SHARE = Cost("share of the server's cores that jobs may take", 0.5, "")
"""The rest is the application's, and what keeps a peak from being felt."""
BUSY = Cost("share of the slots that may be busy on average", 0.8, "")
RUN_TIME = Cost("a handler, where none has run yet", 0.1, "s")
DISK = Cost("disk that jobs may take", 100.0, "GB")
WAL_SPEED = Cost("WAL that disk, replicas and archiver keep up with", 50.0, "MB/s")
ASYNC_SLOTS = Cost("slots of a process for handlers that wait (async)", 100.0, "")
KEPT = Cost("a short retention, with the pruner's rest of 5 min", 360.0, "s")
CONNECTIONS = Cost("connections of a worker process", 4.0, "")

BROKERS = (BROKER, BROKER_MANY, BROKER_WAL, BROKER_DIRECT, RELAY, CONSUMER)
MEASURED = (
    ENQUEUE,
    ENQUEUE_WITHIN,
    ENQUEUE_MANY,
    RUN,
    FOUR_WORKERS,
    PRUNE,
    PRUNED,
    FOUR_PRUNERS,
    ENGINE,
    ENGINE_CPU,
    TUNED_SERVER,
    TUNED_WAL,
    *SERVER,
    *WAL,
    *ROW,
)  # fmt: skip - a list to be read through
TAKEN = (SHARE, BUSY, RUN_TIME, DISK, WAL_SPEED, ASYNC_SLOTS, KEPT, CONNECTIONS)


def at(costs: tuple[Cost, ...], size: float) -> float:
    """Give the cost at a payload of so many bytes; beyond what was measured the last line goes on.

    Raises:
        ValueError: where one was not measured.
    """
    points = [(of, cost.value) for of, cost in zip(SIZES, costs, strict=True) if cost.value is not None]
    if len(points) != len(SIZES):
        raise ValueError("a cost by payload was not measured")
    (x, y), (x1, y1) = next((pair for pair in pairwise(points) if size <= pair[1][0]), (points[-2], points[-1]))
    return y + (y1 - y) * (max(size, SIZES[0]) - x) / (x1 - x)


def table(costs: tuple[Cost, ...]) -> str:
    """Write costs as the table that stands in docs/scale.md."""
    rows = [
        f"| {cost.what} | {_said(cost)} | " + (f"`{cost.source}`: `{cost.key}`" if cost.key else cost.source) + " |"
        for cost in costs
    ]
    return "\n".join(["| what | figure | from |", "|---|---|---|", *rows])


def _said(cost: Cost) -> str:
    if cost.value is None:
        return "?"
    figure = f"{cost.value:,.0f}" if cost.value >= 100 else f"{cost.value:.3g}"  # noqa: PLR2004 - three digits
    return f"{figure} {cost.unit}".strip()


def paper(rates: tuple[float, ...], *, cores: int = 16, run: float = 0.1) -> str:
    """Write what rates take, as the table of docs/scale.md: by multiplication, beyond what anybody measured."""
    rest = (RUN.value or 0.0) + (PRUNE.value or 0.0)
    held = cores * (SHARE.value or 0.0) * 1e6
    # Each of these walls is one server's.
    pruned = (PRUNED.value or 1.0) * (FOUR_PRUNERS.value or 1.0)
    logged = (WAL_SPEED.value or 1.0) * 1e6 / (WAL[0].value or 1.0)
    rows = ["| jobs/s | a day | servers, one by one / many | workers' own cores | slots at 100 ms | WAL a day, TB |"]
    rows += ["|---|---|---|---|---|---|"]
    for rate in rates:
        servers = [
            _up(max(rate * (rest + (enqueue.value or 0.0)) / held, rate / pruned, rate / logged))
            for enqueue in (ENQUEUE_WITHIN, ENQUEUE_MANY)
        ]
        rows.append(
            f"| {rate:,.0f} | {_count(rate * 86_400)} | {servers[0]:,} / {servers[1]:,} "
            f"| {rate * (ENGINE_CPU.value or 0.0) / 1e6:,.2g} | {_count(rate * run / (BUSY.value or 1.0))} "
            f"| {rate * (WAL[0].value or 0.0) * 86_400 / 1e12:,.2g} |"
        )
    return "\n".join(rows)


def _up(value: float) -> int:
    return -int(-value // 1)


def _count(value: float) -> str:
    for word, size in (("billion", 1e9), ("million", 1e6)):
        if value >= size:
            return f"{value / size:,.3g} {word}"
    return f"{value:,.0f}"
