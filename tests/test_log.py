"""What happens is logged once, at a level for whoever is on call, without secrets and without touching handlers."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from redrive import events, log
from redrive.events import (
    EVENT_TYPES,
    BreakerClosed,
    ConnectionLost,
    ConnectionRestored,
    JobDied,
    JobFailed,
    JobRetried,
    JobSucceeded,
    LoopBlocked,
    WorkerStarted,
    emit,
)

JOB = {"id": 7, "kind": "send_email", "attempt": 2, "worker": "w"}
SAMPLES = {"int": 3, "float": 1.5, "float | None": 1.5, "str": "text", "tuple[str, ...]": ("a", "b")}


@pytest.fixture(autouse=True)
def attached(monkeypatch):
    monkeypatch.setattr(events, "_subscribers", {})
    log.detach()
    end = log.attach()
    yield
    end()


@pytest.fixture
def records(caplog):
    """What the logger "redrive" writes during the test."""
    caplog.set_level(logging.DEBUG, "redrive")
    log.detach()
    log.attach()
    seen: list[logging.LogRecord] = []
    listener = logging.Handler()
    listener.emit = seen.append
    logging.getLogger().addHandler(listener)
    yield seen
    logging.getLogger().removeHandler(listener)


def sample(kind):
    return kind(**{field.name: SAMPLES[field.type] for field in dataclasses.fields(kind)})


def test_a_relay_is_told_of_as_one(records):
    emit(WorkerStarted(worker="w", kinds=(), concurrency=10))
    assert [each.getMessage() for each in records] == ["relay w started"]


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_every_event_has_a_record_with_a_constant_message_and_its_data_in_extra(kind, records):
    event = sample(kind)
    emit(event)
    [record] = records
    assert record.name == "redrive"
    assert record.event == kind.__name__
    assert "text" not in record.msg
    assert record.getMessage()
    for field in dataclasses.fields(kind):
        name = {"id": "job_id", "kind": "job_kind"}.get(field.name, field.name)
        expected = getattr(event, field.name)
        assert getattr(record, name) == (", ".join(expected) if isinstance(expected, tuple) else expected)


@pytest.mark.parametrize(
    ("event", "level", "text"),
    [
        (
            JobDied(**JOB, duration=1, error="ValueError: x", reason="attempts"),
            logging.ERROR,
            "job 7 (send_email) is dead after attempt 2: attempts: ValueError: x",
        ),
        (JobDied(**JOB, duration=1, reason="410"), logging.ERROR, "job 7 (send_email) is dead after attempt 2: 410"),
        (
            JobRetried(**JOB, duration=1, delay=40.25, error="ValueError: x"),
            logging.WARNING,
            "job 7 (send_email) failed at attempt 2, next in 40.2 s: ValueError: x",
        ),
        (
            JobSucceeded(**JOB, duration=0.25),
            logging.DEBUG,
            "job 7 (send_email) succeeded at attempt 2 in 0.250 s",
        ),
        (
            JobFailed(**JOB, duration=1, reason="cancelled"),
            logging.INFO,
            "job 7 (send_email) ended as failed at attempt 2: cancelled",
        ),
        (
            WorkerStarted(worker="w", kinds=("a", "b"), concurrency=4),
            logging.INFO,
            "worker w started with 4 slots for a, b",
        ),
        (WorkerStarted(worker="w", kinds=("a",), concurrency=1), logging.INFO, "worker w started with 1 slot for a"),
        (
            JobDied(**JOB, duration=1, error="ValueError: no address: nobody", reason="no address: nobody"),
            logging.ERROR,
            "job 7 (send_email) is dead after attempt 2: ValueError: no address: nobody",
        ),
        (
            BreakerClosed(worker="w", kind="webhook", target="", outage=5),
            logging.INFO,
            "breaker closed: the jobs of webhook that were held are through, 5.0 s after it opened",
        ),
        (
            BreakerClosed(worker="w", kind="webhook", target="example.com", outage=5),
            logging.INFO,
            "breaker closed: the jobs of webhook example.com that were held are through, 5.0 s after it opened",
        ),
        (
            LoopBlocked(worker="w", duration=2.1, stack="app.py:3 in load"),
            logging.WARNING,
            "the event loop stood still for 2.1 s, blocked at app.py:3 in load",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_levels_are_for_whoever_is_on_call(event, level, text, records):
    emit(event)
    assert [(record.levelno, record.getMessage()) for record in records] == [(level, text)]


def test_a_lost_connection_warns_once_per_change(records):
    lost, restored = (
        ConnectionLost(worker="w", what="producer", error="x"),
        ConnectionRestored(worker="w", what="producer", away=3),
    )
    for event in (lost, lost, lost, restored, restored, lost):
        emit(event)
    warnings = [record.event for record in records if record.levelno >= logging.WARNING]
    assert warnings == ["ConnectionLost", "ConnectionLost"]


def test_secrets_in_errors_are_hidden_op_04(records):
    emit(JobDied(**JOB, duration=1, error="no: postgresql://u:hunter2@h/db password=hunter2", reason="token: hunter2"))
    [record] = records
    assert "hunter2" not in record.getMessage() + repr(vars(record))
    assert record.error == "no: postgresql://u:***@h/db password=***"


def test_a_long_error_is_cut_pe_05(records):
    emit(JobDied(**JOB, duration=1, error="x" * 1_000_000))
    assert len(records[0].getMessage()) < 700


def test_where_debug_is_off_what_happens_to_every_job_is_not_even_put_together(caplog, records):
    log.detach()
    caplog.set_level(logging.INFO, "redrive")
    log.attach()
    assert not events.heard(JobSucceeded)
    assert events.heard(JobFailed)


def test_attaching_twice_logs_once_and_detaching_ends_it(records):
    log.attach()
    end = log.attach()
    emit(JobSucceeded(**JOB, duration=1))
    assert len(records) == 1
    end()
    end()
    emit(JobSucceeded(**JOB, duration=1))
    assert len(records) == 1
    assert not events.heard(JobSucceeded)


def test_no_handler_and_no_level_is_ever_set():
    logger = logging.getLogger("redrive")
    assert (logger.handlers, logger.level, logger.propagate, logger.disabled) == ([], logging.NOTSET, True, False)
