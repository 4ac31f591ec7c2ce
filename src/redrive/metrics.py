"""What Prometheus scrapes: of one worker what it counted, of all together how it stands now.

It needs ``redrive[prometheus]`` and imports it when it is used. What the database is asked for a scrape is kept for a
while: ten scrapers cost what one does. A figure that can't be had is left out; an old one would pass for news.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from redrive.errors import InvalidOption
from redrive.figures import Figures, look, look_async
from redrive.histogram import BOUNDS
from redrive.tally import OUTCOMES, Count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from redrive.schedules import Desk

Gauge: TypeAlias = "tuple[str, Callable[[], float]]"
"""What a figure says, and the function that knows it."""
KEPT_FOR = 15.0
"""Seconds for which the answer of the database is used again."""
RESTS = 50
"""How many times as long as it took it is used, at the least."""
_EVERY = 8
"""Of the places of a histogram each eighth bound is told: a factor of 4."""


def demand() -> Any:
    """Import prometheus_client.

    Raises:
        InvalidOption: where it is not installed.
    """
    try:
        import prometheus_client.core  # noqa: PLC0415 - of an extra
    except ModuleNotFoundError:
        raise InvalidOption("metrics need prometheus_client: pip install 'redrive[prometheus]'") from None
    return prometheus_client


class Page:
    """The text of a scrape, of one or more collectors."""

    def __init__(self, *collectors: Any, process: bool = False) -> None:
        self._client = demand()
        self.registry = self._client.CollectorRegistry()
        for collector in collectors:
            self.registry.register(collector)
        if process:
            self._client.ProcessCollector(registry=self.registry)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Give the text and its content type, in the format that the scraper asks for."""
        encoder, content_type = self._client.exposition.choose_encoder(accept)
        return encoder(self.registry), content_type


class OfWorker:
    """A collector of what one worker counted since it began, and of how it is."""

    def __init__(self, totals: Callable[[], dict[str, Count]], about: dict[str, str]) -> None:
        self.gauges: dict[str, Gauge] = {}
        """By the end of the name."""
        self._totals = totals
        self._about = about

    def describe(self) -> Iterable[Any]:
        """Say nothing: what there is depends on what happens."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the families."""
        core = demand().core
        info = core.InfoMetricFamily("redrive_worker", "The worker process that answers.")
        info.add_metric([], self._about)
        yield info
        for name, (text, value) in self.gauges.items():
            yield core.GaugeMetricFamily(f"redrive_worker_{name}", text, value=float(value()))
        ended = core.CounterMetricFamily(
            "redrive_jobs", "What became of jobs that this worker ran or looked after.", labels=["kind", "outcome"]
        )
        runs = core.HistogramMetricFamily("redrive_job_run_seconds", "How long handlers ran.", labels=["kind"])
        waits = core.HistogramMetricFamily(
            "redrive_job_wait_seconds", "How long jobs waited from when they were due to their start.", labels=["kind"]
        )
        for kind, count in sorted(self._totals().items()):
            for outcome in OUTCOMES:
                ended.add_metric([kind, outcome], getattr(count, outcome))
            runs.add_metric([kind], _buckets(count.runs), count.run_seconds)
            waits.add_metric([kind], _buckets(count.waits), count.wait_seconds)
        yield from (ended, runs, waits)


class OfFleet:
    """A collector of how it stands with all kinds and workers, as far as *ask* knows."""

    def __init__(self, ask: Callable[[], Figures | None]) -> None:
        self._ask = ask

    def describe(self) -> Iterable[Any]:
        """Say nothing: what there is depends on what happens."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the families; without an answer of the database only that there is none."""
        core, now = demand().core, self._ask()
        yield core.GaugeMetricFamily("redrive_database_up", "Whether the database answered.", value=now is not None)
        if now is None:
            return
        jobs = core.GaugeMetricFamily(
            "redrive_queue_jobs",
            "Jobs of each kind now; at redrive_queue_jobs_most counting stops, and there may be more.",
            labels=["kind", "status"],
        )
        oldest = core.GaugeMetricFamily(
            "redrive_oldest_due_seconds",
            "How long the oldest due job has waited, 0 where none is due.",
            labels=["kind"],
        )
        for depth in now.depths:
            for status in ("pending", "due", "retrying", "running", "dead"):
                jobs.add_metric([depth.kind, status], getattr(depth, status))
            oldest.add_metric([depth.kind], depth.oldest_due or 0.0)
        most = max((depth.most for depth in now.depths), default=0)
        workers = core.GaugeMetricFamily("redrive_workers", "Worker processes of the last day.", labels=["state"])
        workers.add_metric(["alive"], now.alive)
        workers.add_metric(["silent"], now.silent)
        yield from (jobs, oldest, workers)
        for name, text, value in (
            ("redrive_queue_jobs_most", "As far as jobs of a kind and status are counted.", most),
            ("redrive_slots", "Handlers that all living workers can run at once.", now.slots),
            ("redrive_jobs_in_flight", "Jobs that living workers hold.", now.in_flight),
            ("redrive_workers_complaining", "Living workers that complain.", now.complaining),
            ("redrive_kinds_unknown", "Kinds that are due and that no living worker knows.", len(now.unknown)),
            ("redrive_schedules_late", "Schedules that are due for long, or can't be planned.", now.late),
        ):
            yield core.GaugeMetricFamily(name, text, value=value)


class OfBroker:
    """A collector of how it stands at the broker; *ask* gives what ``redrive.amqp`` has, None for none."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask

    def describe(self) -> Iterable[Any]:
        """Say nothing: what there is depends on what happens."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the families; without an answer of the broker only that there is none."""
        core, now = demand().core, self._ask()
        if now is None:
            return
        yield core.GaugeMetricFamily("redrive_broker_up", "Whether the broker's API answered.", value=now.up)
        if not now.up:
            return
        messages = core.GaugeMetricFamily(
            "redrive_broker_jobs", "Jobs of each kind at the broker.", labels=["kind", "state"]
        )
        consumers = core.GaugeMetricFamily("redrive_broker_consumers", "Who takes them.", labels=["kind"])
        for each in now.kinds:
            messages.add_metric([each.kind, "ready"], each.ready)
            messages.add_metric([each.kind, "unacknowledged"], each.unacknowledged)
            consumers.add_metric([each.kind], each.consumers)
        yield from (messages, consumers)
        yield core.GaugeMetricFamily(
            "redrive_broker_strays", "Messages there that were no jobs, and wait for people.", value=now.strays
        )
        troubles = len(now.troubles) + sum(bool(each.trouble) for each in now.kinds)
        yield core.GaugeMetricFamily("redrive_broker_troubles", "Alarms, and nodes that are away.", value=troubles)


class Kept:
    """An answer that is used again for a while, and asked for by one at a time."""

    def __init__(self, kept_for: float = KEPT_FOR) -> None:
        self._kept_for = kept_for
        self._lock = threading.Lock()
        self._until = float("-inf")
        self._value: Figures | None = None

    @property
    def fresh(self) -> bool:
        """Whether the answer can be used again."""
        return time.monotonic() < self._until

    def get(self, ask: Callable[[], Figures]) -> Figures | None:
        """Give the answer; None where *ask* failed, which is kept as well: a database in trouble is not pestered."""
        with self._lock:
            if not self.fresh:
                began = time.monotonic()
                try:
                    value = ask()
                except Exception:  # noqa: BLE001 - whatever it was, the scrape says that there was no answer
                    value = None
                self.put(value, time.monotonic() - began)
            return self._value

    def put(self, value: Figures | None, took: float) -> None:
        """Take an answer that took so many seconds: the dearer it was the longer it is kept."""
        self._value, self._until = value, time.monotonic() + max(self._kept_for, RESTS * took)


class Fleet:
    """The page of metrics for a process that is no worker, such as the desk: how it stands with all of them."""

    def __init__(self, queue: Desk, *, kept_for: float = KEPT_FOR, broker: Callable[[], Any] = lambda: None) -> None:
        self._queue = queue
        self._kept = Kept(kept_for)
        self._page = Page(OfFleet(lambda: self._kept.get(lambda: look(queue))), OfBroker(broker))

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """Give the text and its content type."""
        return self._page.render(accept)

    async def page_async(self, accept: str = "") -> tuple[bytes, str]:
        """Give the text and its content type, from async code."""
        if not self._kept.fresh:
            began, value = time.monotonic(), None
            with contextlib.suppress(Exception):  # as in Kept.get
                value = await look_async(self._queue)
            self._kept.put(value, time.monotonic() - began)
        return self._page.render(accept)


def _buckets(histogram: list[int]) -> list[tuple[str, float]]:
    """Give what was counted up to each bound that is told, summed up as Prometheus wants it."""
    upto, found = 0, []
    for place, count in enumerate(histogram):
        upto += count
        if place < len(BOUNDS) and place % _EVERY == 0:
            found.append((f"{BOUNDS[place]:.10g}", float(upto)))
    return [*found, ("+Inf", float(upto))]
