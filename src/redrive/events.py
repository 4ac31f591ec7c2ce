"""What a worker says happened, as typed values; logging, metrics, tracing and tests listen.

The worker emits and knows no listener. A listener is a plain function of one event. It runs where that
happens, on the worker's loop or in a thread, so it has to be quick; what it raises is logged and goes no
further. Nothing is emitted for enqueueing: that is part of the caller's transaction and may be rolled back.
Subscriptions are per process.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redrive.errors import InvalidOption

_log = logging.getLogger("redrive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something happened in a worker."""

    worker: str
    """Name of the worker that says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent(Event):
    """Something happened to a job."""

    id: int
    """The job's id."""

    kind: str
    """What sort of job it is."""

    attempt: int
    """Which attempt this is or was, counted from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(JobEvent):
    """A handler is about to be called."""

    waited: float | None = None
    """Seconds between the time the job was due and its start; None where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSucceeded(JobEvent):
    """A handler returned."""

    duration: float
    """Seconds it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRetried(JobEvent):
    """A job failed or asked to be tried again, and will be."""

    duration: float
    """Seconds it ran."""

    delay: float
    """Seconds until the next attempt."""

    error: str = ""
    """Type and message of what was raised; empty where the handler asked for it by `Retry`."""

    reason: str = ""
    """Why, in a word or in the handler's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnoozed(JobEvent):
    """A handler asked to be called again later; the attempt does not count."""

    duration: float
    """Seconds it ran."""

    delay: float
    """Seconds until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed(JobEvent):
    """A job ended as `failed`: discarded by its handler, or cancelled."""

    duration: float
    """Seconds it ran."""

    reason: str = ""
    """Why, as it is stored with the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHeld(JobEvent):
    """A job met an outage of the service that it calls; it waits until that is over, and the attempt does not count."""

    duration: float
    """Seconds it ran."""

    delay: float
    """Seconds after which it may be tried again, if it is let through."""

    error: str = ""
    """Type and message of what was raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDied(JobEvent):
    """A job ended as `dead`: only a human can help it now."""

    duration: float
    """Seconds it ran."""

    error: str = ""
    """Type and message of what was raised, if anything was."""

    reason: str = ""
    """Why it is not tried again: no attempts left, a deadline, `Dead`, crashes, an error no retry helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHandedBack(JobEvent):
    """A job was given back unfinished, as the worker stops; the attempt does not count."""

    duration: float
    """Seconds it ran."""

    reason: str = ""
    """Why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReclaimed(JobEvent):
    """A job was taken from a worker that gives no sign of life any more."""

    lost_worker: str
    """Name of the worker that had it."""

    outcome: str = "pending"
    """What became of the job: `pending` to be tried again, or `dead`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOverdue(JobEvent):
    """A handler is past its timeout and does not stop; its slot stays taken."""

    timeout: float
    """Seconds it was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(JobEvent):
    """A job was taken from this worker while it ran; its outcome here is not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(Event):
    """A worker is ready to claim."""

    kinds: tuple[str, ...]
    """The kinds it has handlers for."""

    concurrency: int
    """How many jobs it runs at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopping(Event):
    """A worker claims no more and waits for the jobs that run."""

    in_flight: int
    """How many these are."""

    reason: str = ""
    """Why: a signal's name, or what went wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped(Event):
    """A worker is gone."""

    handed_back: int = 0
    """How many jobs it gave back unfinished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLost(Event):
    """The database does not answer; it is asked again and again."""

    what: str
    """Which part of the worker noticed first: `producer`, `listener`, `heartbeat`..."""

    error: str
    """Type and message of what the driver said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRestored(Event):
    """The database answers again."""

    what: str
    """Which part of the worker was the last to be answered again."""

    away: float
    """Seconds that it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerDeaf(Event):
    """The LISTEN connection looks well and hears nothing; it is replaced, meanwhile polling finds jobs."""

    duration: float
    """Seconds since it last heard what it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickFailed(Event):
    """One turn of a service failed; the service goes on."""

    service: str
    """Which one: `producer`, `reaper`, `pruner`..."""

    error: str
    """Type and message of what was raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopBlocked(Event):
    """The event loop stood still: something blocks it, most often an async handler."""

    duration: float
    """Seconds it stood still."""

    stack: str = ""
    """Where, if that could be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerEvent(Event):
    """What all events about a breaker have."""

    kind: str
    """The kind of jobs."""

    target: str
    """The lane that is meant; empty for all jobs of the kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerOpened(BreakerEvent):
    """A service is down: jobs for it are held back without spending attempts."""

    error: str
    """Type and message of the last failure."""

    hold: float
    """Seconds until one job is let through as a probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerClosing(BreakerEvent):
    """A probe was answered: the jobs that were held back are let out at a rising rate."""

    outage: float
    """Seconds that it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerClosed(BreakerEvent):
    """The jobs that were held back are through."""

    outage: float
    """Seconds since the breaker opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleEvent(Event):
    """What all events about a schedule have."""

    schedule: str
    """Its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRan(ScheduleEvent):
    """A slot of a schedule was enqueued."""

    slot: str
    """The instant for which, in ISO format."""

    kind: str
    """The job's kind."""

    job: int
    """The job's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSkipped(ScheduleEvent):
    """A slot of a schedule was not enqueued, as its policy has it."""

    slot: str
    """The instant for which it would have been, in ISO format."""

    reason: str
    """That it was missed, or that the run before it had not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleBroken(ScheduleEvent):
    """A schedule can't be planned; it waits for somebody to mend it."""

    problem: str
    """Why, and what would mend it."""


EVENT_TYPES: tuple[type[Event], ...] = tuple(
    each
    for each in list(vars().values())
    if isinstance(each, type) and issubclass(each, Event) and each not in (Event, JobEvent, BreakerEvent, ScheduleEvent)
)
"""Every event there is."""

Callback = Callable[[Any], object]

_lock = threading.Lock()
_subscribers: dict[type[Event], tuple[Callback, ...]] = {}  # tuples are replaced, never changed: emit takes no lock


def subscribe(callback: Callback, *types: type[Event]) -> Callable[[], None]:
    """Call *callback* with every event of these *types*, or with every event where none are named.

    `JobEvent` stands for all that happens to jobs. Returns the function that ends the subscription and may be
    called twice.
    """
    given: tuple[Any, ...] = types or (Event,)
    for each in given:
        if not (isinstance(each, type) and issubclass(each, Event)):
            raise InvalidOption(f"subscribe() takes classes of redrive.events, not {each!r:.80}")
    if inspect.iscoroutinefunction(callback):
        raise InvalidOption(f"subscribe() takes a plain function, and {callback!r:.80} is async")
    kinds = [kind for kind in EVENT_TYPES if issubclass(kind, given)]

    def entry(event: Event) -> None:  # its own for each subscription, so that each can end
        callback(event)

    with _lock:
        for kind in kinds:
            _subscribers[kind] = (*_subscribers.get(kind, ()), entry)

    def unsubscribe() -> None:
        with _lock:
            for kind in kinds:
                left = tuple(each for each in _subscribers.get(kind, ()) if each is not entry)
                if left:
                    _subscribers[kind] = left
                else:
                    _subscribers.pop(kind, None)

    return unsubscribe


def heard(kind: type[Event]) -> bool:
    """Say whether anybody wants to know; for an event that costs something to put together."""
    return kind in _subscribers


def emit(event: Event) -> None:
    """Tell everybody who wants to know; costs one dict look-up where nobody does, and never raises."""
    for callback in _subscribers.get(type(event), ()):
        try:
            callback(event)
        except Exception:  # noqa: BLE001 - logged, and a listener must not stop the work
            _log.exception(
                "a subscriber to %s raised; the worker goes on",
                type(event).__name__,
                extra={"event": type(event).__name__},
            )
