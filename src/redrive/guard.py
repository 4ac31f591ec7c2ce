"""A worker's part in the breakers: it tells an outage from a failing job, and says so to the database for all workers.

Every outcome passes through here on its way to the writer. While a target is known to be down, what failed by that is
held: it waits, its try is given back. Which jobs may be claimed meanwhile is for the claim to say and not for this.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from redrive.breaker import Breaker, Gauge, Suspicion
from redrive.connections import is_outage, is_transient
from redrive.errors import InvalidOption
from redrive.events import BreakerClosed, BreakerClosing, BreakerOpened, TickFailed, emit
from redrive.outcome import DONE, Died, Failed, Finished, HandedBack, Held, Retried, Snoozed, Succeeded
from redrive.service import FOR_EVER, Database, Service
from redrive.statements import named
from redrive.text import ascii_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from redrive.connections import Control
    from redrive.failure import FailureText
    from redrive.handlers import Handler, Handlers
    from redrive.job import ClaimedJob

MOST_TARGETS = 10_000
"""Of so many targets the latest calls are remembered."""
RATE_OVER = 60.0
"""Seconds over which the usual rate of a target is taken, at least and twice that at most."""
END_EVERY = 5.0
REFUSED_FOR = 60.0
"""Seconds after which the database is asked again for what it has refused."""
ERROR_MOST = 500
"""Characters of the error that are kept with a breaker."""

Target = tuple[str, str]
"""A kind, and the lane that is meant, or '' for all of it."""


@dataclass(slots=True)
class Known:
    """What this worker knows of a breaker that is not closed."""

    state: str
    since: float
    """Since when it knows, monotonic seconds: what began before says nothing of how things stand."""
    probe_at: float
    """When the next probe is due, monotonic seconds; infinity for when somebody says so."""
    opened: float
    """When it opened, in monotonic seconds of this process."""
    mark: int = 0
    """When it opened, in microseconds of the database; 0 while that does not know of it."""
    said: float = 0.0
    """When the database was last told of it, monotonic seconds: what it was asked before may not show that."""


class Guard(Service):
    """Judges what failed, opens breakers and closes them."""

    name = "breakers"

    def __init__(
        self,
        database: Database,
        control: Control,
        handlers: Handlers,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(database)
        self._now = now
        self.put: Callable[[Finished], None] = lambda _finished: None
        """Where outcomes go from here."""
        self.withdraw: Callable[[Callable[[ClaimedJob], bool]], list[ClaimedJob]] = lambda _unwanted: []
        """Asked for jobs that wait here to begin, and are not to."""
        self._control = control
        self._handlers = handlers
        self._targeted = frozenset(
            kind for kind in handlers.kinds() if (handler := handlers.demand(kind)).target and handler.breaker
        )
        self._gauges: OrderedDict[Target, Gauge] = OrderedDict()
        self._known: dict[Target, Known] = {}
        self._asks: dict[Target, tuple[str, dict[str, Any]]] = {}
        self._suspicions: dict[Target, Suspicion] = {}
        self._refused: dict[Target, float] = {}
        """Of what the database has refused, until when it is not asked for that again."""
        self._counts: Counter[Target] = Counter()
        self._before: Counter[Target] = Counter()
        self._counted_since = self._before_since = self._now()
        self._judging: dict[int, int] = {}
        """Jobs whose outcome is being judged: that may call the user's own code, which takes its time."""
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()

    # -- what passes through

    def take(self, finished: Finished) -> None:
        """Take an outcome, from the loop or from a handler's thread, and pass on what becomes of the job."""
        if finished.outcome is DONE and not (self._gauges or self._known):
            self.put(finished)
            return
        self._judging[id(finished.job)] = finished.job.id
        try:
            with self._lock:
                finished = self._judged(finished)
            self.put(finished)
        finally:
            del self._judging[id(finished.job)]

    def held(self) -> list[int]:
        """List the ids of jobs that are neither in a slot any more nor with the writer as yet."""
        return list(self._judging.values())

    def count(self, batch: Sequence[Finished]) -> None:
        """Count what was done, for the usual rate of each target."""
        now = self._now()
        if now - self._counted_since > RATE_OVER:
            self._before, self._before_since = self._counts, self._counted_since
            self._counts, self._counted_since = Counter(), now
        kinds = Counter(map(_kind, batch))
        for kind, jobs in kinds.items():
            self._counts[kind, ""] += jobs
        if not self._targeted.isdisjoint(kinds):
            self._counts.update((one.job.kind, one.job.lane) for one in batch if one.job.lane)

    def admit(self, jobs: list[ClaimedJob]) -> list[ClaimedJob]:
        """Give back, into the lane of its target, a job that was enqueued without one and whose target is down."""
        with self._lock:  # what is known changes in handlers' threads
            down = {key for key, known in self._known.items() if key[1] and known.state == "open"}
        kinds = {kind for kind, _ in down} & self._targeted
        if not kinds:
            return jobs
        admitted = []
        for job in jobs:
            if job.kind in kinds and not job.lane:
                target = self._target(self._handlers.demand(job.kind), job)
                if (job.kind, target) in down:
                    self.put(Finished(job, HandedBack(target), None))
                    continue
            admitted.append(job)
        return admitted

    def _judged(self, finished: Finished) -> Finished:
        job, outcome = finished.job, finished.outcome
        handler = self._handlers.get(job.kind)
        if handler is None or (limits := handler.breaker) is None:
            return finished
        now = self._now()
        if isinstance(outcome, Succeeded):
            if self._gauges or self._known:
                self._answered((job.kind, self._target(handler, job)), job, now)
            return finished
        if not isinstance(outcome, Retried | Died) or outcome.failure.outage is None:
            if isinstance(outcome, Retried | Died | Failed | Snoozed) and not (job.stop_reason or job.lost):
                self._answered((job.kind, self._target(handler, job)), job, now, well=False)
            return finished
        failure, outage, target = outcome.failure, outcome.failure.outage, self._target(handler, job)
        if target and not job.lane and isinstance(outcome, Retried):
            finished = replace(finished, outcome=replace(outcome, lane=target))
        known = self._met((job.kind, target), limits, job, failure, now)
        if known is None or (limits.give_up is not None and now - known.opened > limits.give_up):
            return finished
        delay = max(outage, limits.probe_every)
        return replace(finished, outcome=Held(failure, delay, None if job.lane else target or None))

    def _target(self, handler: Handler[Any, Any], job: ClaimedJob) -> str:
        """Name the target that a job calls; '' where none is known, also because the user's function fails."""
        if handler.target is None or job.lane:
            return job.lane if handler.target else ""
        try:
            return handler.target_of(job.payload)
        except (InvalidOption, ValueError):
            return ""

    def _answered(self, key: Target, job: ClaimedJob, now: float, *, well: bool = True) -> None:
        """Count a job that met no outage.

        One that failed by itself, or was put off (not *well*), may not have called anybody. But as a probe it has
        found nothing wrong; and where all do so, nothing else would ever end the outage.
        """
        if well and (gauge := self._gauges.get(key)) is not None:
            gauge.count(None, now)
        for place in {key, (job.kind, "")}:
            known = self._known.get(place)
            if known is None or known.probe_at == float("inf"):  # what somebody opened, somebody closes
                continue
            if known.state == "open" and job.started > known.since and self._may_ask(place, now):
                known.state = "closing"
                self._ask(place, "close_breaker", self._closing(place))

    def _met(self, key: Target, limits: Breaker, job: ClaimedJob, failure: FailureText, now: float) -> Known | None:
        """Count a job that met an outage; gives the breaker that holds it, if one does."""
        gauge = self._gauges.get(key)
        if gauge is None:
            gauge = self._gauges[key] = Gauge()
            if len(self._gauges) > MOST_TARGETS:
                self._gauges.popitem(last=False)
        gauge.count(job.id, now)
        known = self._known.get(key) or self._known.get((job.kind, ""))
        # What a service asks for holds for a target that was named; where none is, the job may call one of many.
        asked = (failure.outage or 0.0) if key[1] else 0.0
        failed = gauge.failed(limits, now)
        trips = asked > 0 or limits.enough(failed, each_job_once=not key[1])
        longer = asked > 0 and known is not None and now + asked > known.probe_at
        if not self._may_ask(key, now):
            return known
        error = f"{failure.error_type}: {failure.message}"
        if trips and (known is None or known.state == "closing" or longer):
            return self._trip(key, limits, asked, now, error)
        if failed and known is None:
            self._suspicions[key] = Suspicion(failed, failure.fingerprint, error)
            self._call()
        return known

    async def _compare(self) -> None:
        """Add what others met: a job that fails at one worker after the other would die before any has seen enough."""
        while self._suspicions:
            with self._lock:
                key, mine = self._suspicions.popitem()
            if (handler := self._handlers.get(key[0])) is None or (limits := handler.breaker) is None:
                continue
            about = {"kind": key[0], "target": key[1], "fingerprint": mine.fingerprint, "window": limits.window}
            about |= {"worker": self.database.worker}
            rows = await self._control.run(named("outages_elsewhere", self._control.schema, **about))
            failed = mine.failed + [row.job_id for row in rows]
            with self._lock:
                if key not in self._known and limits.enough(failed, each_job_once=not key[1]):
                    self._trip(key, limits, 0.0, self._now(), mine.error)

    def _trip(self, key: Target, limits: Breaker, asked: float, now: float, error: str) -> Known:
        hold = asked or limits.probe_every
        before = self._known.get(key)
        rate = self._usual_rate(key, now) if before is None else 0.0
        known = self._known[key] = Known("open", now, now + hold, before.opened if before else now)
        self._gauges.pop(key, None)
        params = {
            "kind": key[0],
            "target": key[1],
            "by": self.database.worker,
            "reason": error[:ERROR_MOST],
            "hold": hold,
            "asked": asked,
            "pause": limits.probe_every,
            "longest": limits.probe_longest,
            "peak": limits.peak,
            "usual_rate": rate,
            "by_hand": False,
            "who": None,
            "why": None,
        }
        self._ask(key, "open_breaker", params)
        with contextlib.suppress(RuntimeError):  # as in _call
            self._loop.call_soon_threadsafe(self._withdraw, key)
        return known

    def _withdraw(self, key: Target) -> None:
        """Give back what was claimed before, and would only meet the same."""

        def unwanted(job: ClaimedJob) -> bool:
            return job.kind == key[0] and (not key[1] or self._target(self._handlers.demand(job.kind), job) == key[1])

        for job in self.withdraw(unwanted):
            self.put(Finished(job, HandedBack(None if job.lane else key[1] or None), None))

    def _closing(self, key: Target) -> dict[str, Any]:
        params = {"kind": key[0], "target": key[1], "by": self.database.worker, "by_hand": False, "at_once": False}
        return params | {"who": None, "why": None}

    def _usual_rate(self, key: Target, now: float) -> float:
        over = now - (self._before_since if self._before else self._counted_since)
        return (self._before[key] + self._counts[key]) / max(1.0, over)

    def _may_ask(self, key: Target, now: float) -> bool:
        return not self._refused or self._refused.get(key, 0.0) <= now

    def _ask(self, key: Target, statement: str, params: dict[str, Any]) -> None:
        self._asks[key] = statement, params
        self._call()

    def _call(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: a thread outlived its worker
            self._loop.call_soon_threadsafe(self.wake)

    # -- what the database knows

    def learn(self, breakers: str, began: float) -> frozenset[str]:
        """Take from a survey that *began* then which breakers are not closed, as JSON; gives their kinds."""
        with self._lock:
            if breakers or self._known:
                self._learn(json.loads(breakers) if breakers else [], began, self._now())
            return frozenset(kind for kind, _ in self._known)

    def _learn(self, rows: Iterable[Any], began: float, now: float) -> None:
        there: set[Target] = set()
        for kind, target, state, mark, probe_in, age in rows:
            key = (kind, target)
            there.add(key)
            known, probe_at = self._known.get(key), float("inf") if probe_in is None else now + probe_in
            if key in self._asks and known is not None:
                known.mark = mark
                continue  # it has more to say than it has heard
            if known is not None and known.said >= began:
                continue  # it had
            if known is None:
                known = self._known[key] = Known(state, now, probe_at, now - age, mark)
                self._contribute(key, known, now)
            elif known.state != state:
                known.since = now
            known.state, known.probe_at, known.mark = state, probe_at, mark
        for key in [key for key, known in self._known.items() if key not in there and known.said < began]:
            if key not in self._asks:
                del self._known[key]
        if any(known.state == "closing" for known in self._known.values()):
            self._loop.call_soon_threadsafe(self.wake)

    def _contribute(self, key: Target, known: Known, now: float) -> None:
        """Add what this worker did a second before another opened the breaker."""
        handler = self._handlers.get(key[0])
        rate = self._usual_rate(key, now)
        if known.state == "open" and rate > 0 and handler is not None:
            params = {"kind": key[0], "target": key[1], "opened": known.mark, "usual_rate": rate}
            self._ask(key, "add_usual_rate", params)

    async def tick(self) -> float:
        """Say what there is to be said, and end what is over."""
        await self._compare()
        while self._asks:
            with self._lock:
                key, ask = next(iter(self._asks.items()))
            rows = await self._say(key, *ask)
            with self._lock:
                if (known := self._known.get(key)) is not None:
                    known.said = self._now()
                if self._asks.get(key) is ask:
                    del self._asks[key]
            self._tell(rows)
        with self._lock:
            self._forget(self._now())
            some, closing = bool(self._known), any(known.state == "closing" for known in self._known.values())
        if not some:
            return FOR_EVER
        if closing:
            await self._control.run(named("raise_usual_rates", self._control.schema))
        for row in await self._control.run(named("end_breakers", self._control.schema)):
            emit(BreakerClosed(worker=self.database.worker, kind=row.kind, target=row.target, outage=row.lasted))
        return END_EVERY if closing else FOR_EVER

    async def _say(self, key: Target, statement: str, params: dict[str, Any]) -> list[Any]:
        """Say it to the database. What that refuses is told once, and until later it is as if there were no breaker."""
        try:
            try:
                rows = await self._control.run(named(statement, self._control.schema, **params))
            except Exception as error:
                if not params.get("reason") or is_outage(error) or is_transient(error):
                    raise
                spelt = params | {"reason": ascii_only(params["reason"])}  # there may be no room for the text
                rows = await self._control.run(named(statement, self._control.schema, **spelt))
        except Exception as error:
            if is_outage(error) or is_transient(error):
                raise
            said = f"{type(error).__name__}: {str(error).strip()}"
            if said != self.remark:
                emit(TickFailed(worker=self.database.worker, service=self.name, error=said))
            self.remark = said
            with self._lock:
                self._refused = {each: until for each, until in self._refused.items() if until > self._now()}
                self._refused[key] = self._now() + REFUSED_FOR
                self._known.pop(key, None)
            return []
        self.remark = ""
        return rows

    def _tell(self, rows: Sequence[Any]) -> None:
        for row in rows:
            about = {"worker": self.database.worker, "kind": getattr(row, "kind", ""), "target": row.target}
            if getattr(row, "opened", False):
                hold = (row.probe_at - row.opened_at).total_seconds() if row.probe_at else FOR_EVER
                emit(BreakerOpened(**about, error=row.reason or "", hold=hold))
            elif getattr(row, "state", "") == "closing":
                emit(BreakerClosing(**about, outage=(row.closed_at - row.opened_at).total_seconds()))

    def _forget(self, now: float) -> None:
        for key, gauge in list(self._gauges.items()):
            handler = self._handlers.get(key[0])
            if handler is None or handler.breaker is None or gauge.stale(handler.breaker, now):
                del self._gauges[key]


_kind = attrgetter("job.kind")
