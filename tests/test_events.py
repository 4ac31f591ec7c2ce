"""Events reach those who asked for them, and nobody who listens can stop the work."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import threading

import pytest

from redrive import events
from redrive.errors import InvalidOption
from redrive.events import EVENT_TYPES, JobDied, JobEvent, JobSucceeded, WorkerStopped, emit, heard, subscribe

SUCCEEDED = JobSucceeded(id=1, kind="send_email", attempt=1, worker="w", duration=0.5)
DIED = JobDied(id=2, kind="send_email", attempt=5, worker="w", duration=0.5, error="ValueError: x", reason="attempts")
STOPPED = WorkerStopped(worker="w")


@pytest.fixture(autouse=True)
def nobody_listens(monkeypatch):
    monkeypatch.setattr(events, "_subscribers", {})


def test_a_subscriber_gets_the_types_it_asked_for():
    seen = []
    subscribe(seen.append, JobSucceeded, WorkerStopped)
    for event in (SUCCEEDED, DIED, STOPPED):
        emit(event)
    assert seen == [SUCCEEDED, STOPPED]


def test_without_a_type_it_gets_all_and_job_event_stands_for_every_job_event():
    everything, of_jobs = [], []
    subscribe(everything.append)
    subscribe(of_jobs.append, JobEvent)
    for event in (SUCCEEDED, DIED, STOPPED):
        emit(event)
    assert everything == [SUCCEEDED, DIED, STOPPED]
    assert of_jobs == [SUCCEEDED, DIED]


def test_a_subscription_ends_by_itself_and_may_be_ended_twice():
    seen = []
    first, second = subscribe(seen.append, JobDied), subscribe(seen.append, JobDied)
    emit(DIED)
    assert seen == [DIED, DIED]
    first()
    first()
    emit(DIED)
    assert len(seen) == 3
    second()
    emit(DIED)
    assert len(seen) == 3
    assert events._subscribers == {}


def test_heard_tells_whether_anybody_listens():
    assert not heard(JobDied)
    end = subscribe(print, JobDied)
    assert heard(JobDied)
    assert not heard(JobSucceeded)
    end()
    assert not heard(JobDied)


def test_a_subscriber_that_raises_is_logged_and_the_others_hear_the_event_all_the_same(caplog):
    seen = []

    def broken(event):
        raise RuntimeError("no")

    subscribe(broken)
    subscribe(seen.append)
    emit(DIED)
    assert seen == [DIED]
    [record] = caplog.records
    assert (record.name, record.levelno, record.event) == ("redrive", logging.ERROR, "JobDied")
    assert record.exc_info[0] is RuntimeError


def test_a_subscriber_may_subscribe_and_unsubscribe_while_it_is_called():
    seen = []
    end = subscribe(lambda event: (end(), subscribe(seen.append)), JobDied)
    emit(DIED)
    emit(DIED)
    assert seen == [DIED]


def test_what_cannot_be_subscribed_is_refused():
    async def asynchronous(event):
        pass

    with pytest.raises(InvalidOption, match="async"):
        subscribe(asynchronous)
    for nonsense in ("JobDied", int, DIED):
        with pytest.raises(InvalidOption, match="takes classes"):
            subscribe(print, nonsense)


def test_subscribing_is_safe_while_other_threads_emit():
    seen, stop = [], threading.Event()

    def emitting():
        while not stop.is_set():
            emit(DIED)

    threads = [threading.Thread(target=emitting) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        subscribe(seen.append)()
    stop.set()
    for thread in threads:
        thread.join()
    assert events._subscribers == {}


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_every_event_is_frozen_and_every_attribute_is_described(kind):
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    assert "__dict__" not in dir(kind)
    assert kind.__doc__
    assert kind.__doc__ != f"{kind.__name__}()"
    source = inspect.getsource(events)
    for each in kind.__mro__[:-1]:
        for name in each.__annotations__:
            body = source.partition(f"class {each.__name__}(")[2] or source.partition(f"class {each.__name__}:")[2]
            assert f"    {name}: {each.__annotations__[name]}" in body.partition("\n@dataclass")[0], name
            described = body.partition(f"    {name}: ")[2].split("\n")[1]
            assert described.strip().startswith('"""'), name
