"""The events as log records of the logger "redrive", for whoever is on call.

ERROR is for what needs a human (a job died), WARNING for what may soon (a retry, a lost connection), INFO for
what explains the rest, DEBUG for each job. Messages are constant, the data stands in ``extra``, and all text
goes through `mask_text`. No handler, level or format is set here: these are the application's.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable

from redrive import events
from redrive.masking import mask_text
from redrive.text import clip
from redrive.words import counted

_log = logging.getLogger("redrive")

_TEXT_LIMIT = 500  # of a text within a record; the whole stands in the database

_RECORDS: dict[type[events.Event], tuple[int, str, tuple[str, ...]]] = {
    events.JobStarted: (logging.DEBUG, "job %s (%s) starts, attempt %s", ()),
    events.JobSucceeded: (logging.DEBUG, "job %s (%s) succeeded at attempt %s in %.3f s", ("duration",)),
    events.JobRetried: (
        logging.WARNING,
        "job %s (%s) failed at attempt %s, next in %.1f s: %s%s",
        ("delay", "reason", "error"),
    ),
    events.JobHeld: (
        logging.INFO,
        "job %s (%s) is held at attempt %s, for at least %.1f s: what it calls is down: %s",
        ("delay", "error"),
    ),
    events.JobSnoozed: (logging.DEBUG, "job %s (%s) snoozed at attempt %s for %.1f s", ("delay",)),
    events.JobFailed: (logging.INFO, "job %s (%s) ended as failed at attempt %s: %s", ("reason",)),
    events.JobDied: (logging.ERROR, "job %s (%s) is dead after attempt %s: %s%s", ("reason", "error")),
    events.JobHandedBack: (logging.INFO, "job %s (%s) handed back at attempt %s: %s", ("reason",)),
    events.JobReclaimed: (
        logging.WARNING,
        "job %s (%s) taken back at attempt %s from worker %s, which is gone; it is now %s",
        ("lost_worker", "outcome"),
    ),
    events.JobOverdue: (
        logging.WARNING,
        "job %s (%s) is told to stop: attempt %s is past its timeout of %.1f s",
        ("timeout",),
    ),
    events.LeaseLost: (logging.WARNING, "job %s (%s) was taken from this worker during attempt %s", ()),
    events.WorkerStarted: (
        logging.INFO,
        "worker %s started with %s for %s",
        ("worker", "concurrency", "kinds"),
    ),
    events.WorkerStopping: (
        logging.INFO,
        "worker %s stops and waits for %s jobs",
        ("worker", "in_flight"),
    ),
    events.WorkerStopped: (logging.INFO, "worker %s stopped, %s jobs handed back", ("worker", "handed_back")),
    events.ConnectionLost: (logging.WARNING, "the database does not answer (%s): %s", ("what", "error")),
    events.ConnectionRestored: (
        logging.INFO,
        "the database answers again (%s) after %.1f s",
        ("what", "away"),
    ),
    events.ListenerDeaf: (
        logging.WARNING,
        (
            "LISTEN does not work on this connection (a pooler in between?): nothing was heard for %.1f s. Jobs are "
            "found by polling; set listen_dsn (REDRIVE_LISTEN_DSN, --listen-dsn) to a direct connection to be woken "
            "at once"
        ),
        ("duration",),
    ),
    events.BreakerOpened: (
        logging.WARNING,
        "breaker opened: jobs of %s%s are held, since what they call is down; a probe in %.1f s. The last error: %s",
        ("kind", "target", "hold", "error"),
    ),
    events.BreakerClosing: (
        logging.INFO,
        "breaker closing: a probe of %s%s was answered after %.1f s, held jobs are let out at a rising rate",
        ("kind", "target", "outage"),
    ),
    events.BreakerClosed: (
        logging.INFO,
        "breaker closed: the jobs of %s%s that were held are through, %.1f s after it opened",
        ("kind", "target", "outage"),
    ),
    events.ScheduleRan: (logging.DEBUG, "schedule %s: job %s enqueued for %s", ("schedule", "job", "slot")),
    events.ScheduleSkipped: (logging.INFO, "schedule %s: skipped %s, %s", ("schedule", "slot", "reason")),
    events.ScheduleBroken: (logging.WARNING, "schedule %s can't be planned: %s", ("schedule", "problem")),
    events.TickFailed: (logging.WARNING, "%s failed and goes on: %s", ("service", "error")),
    events.LoopBlocked: (
        logging.WARNING,
        "the event loop stood still for %.1f s, blocked at %s",
        ("duration", "stack"),
    ),
}
"""Level, message and the fields that fill it; a job's id, kind and attempt come before these."""

_lock = threading.Lock()
_detach: Callable[[], None] | None = None
_lost: set[str] = set()  # names of workers


def attach() -> Callable[[], None]:
    """Begin to log events, once however often it is called; returns the function that ends it.

    Those of level DEBUG only where that is on by now: two of them for every job are dear.
    """
    global _detach  # noqa: PLW0603 - subscriptions are per process, and so is this one
    with _lock:
        if _detach is None:
            quiet = not _log.isEnabledFor(logging.DEBUG)
            logged = [kind for kind, (level, *_) in _RECORDS.items() if not (quiet and level <= logging.DEBUG)]
            _detach = events.subscribe(write, *logged)
    return detach


def detach() -> None:
    """Stop to log events."""
    global _detach  # noqa: PLW0603 - as above
    with _lock:
        if _detach is not None:
            _detach()
        _detach = None
        _lost.clear()


def write(event: events.Event) -> None:
    """Write one event as a log record."""
    level, message, names = _RECORDS[type(event)]
    if isinstance(event, events.WorkerStarted) and not event.kinds:
        message, names = "relay %s started", ("worker",)  # it runs no handler
    if isinstance(event, events.ConnectionLost):
        # once per change: while it stays lost, every further try is the same news
        level = logging.DEBUG if event.worker in _lost else level
        _lost.add(event.worker)
    elif isinstance(event, events.ConnectionRestored):
        _lost.discard(event.worker)
    if not _log.isEnabledFor(level):
        return
    data = {field.name: _shown(getattr(event, field.name)) for field in dataclasses.fields(event)}
    if isinstance(event, events.JobEvent):
        names = ("id", "kind", "attempt", *names)
    arguments = [data[name] for name in names]
    if "reason" in names and "error" in names and data["reason"] and data["error"]:
        told = str(data["error"]).endswith(str(data["reason"]))  # it is the error's own message
        arguments[names.index("reason")] = "" if told else f"{data['reason']}: "
    if isinstance(event, events.BreakerEvent) and event.target:
        arguments[names.index("target")] = f" {data['target']}"
    if isinstance(event, events.WorkerStarted) and event.kinds:
        arguments[names.index("concurrency")] = counted(event.concurrency, "slot")
    extra = {"event": type(event).__name__, **{_EXTRA.get(name, name): value for name, value in data.items()}}
    _log.log(level, message, *arguments, extra=extra)


_EXTRA = {"id": "job_id", "kind": "job_kind"}


def _shown(value: object) -> object:
    if isinstance(value, str):
        return clip(mask_text(clip(value, 20 * _TEXT_LIMIT)), _TEXT_LIMIT)  # half a secret would not be known as one
    return (", ".join(value) or "none") if isinstance(value, tuple) else value
