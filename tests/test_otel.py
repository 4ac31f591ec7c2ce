"""One trace from the enqueue to each attempt: made with the SDK, read from its exporter in memory."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from engine import insert, states
from redrive import Discard, Queue, Retry, Snooze, otel


class Traces:
    """A tracer, and what it recorded."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def traces() -> Iterator[Traces]:
    traces = Traces()
    end = otel.instrument(tracer_provider=traces.provider)
    yield traces
    end()


@pytest.fixture
def queue(db) -> Iterator[Queue]:
    queue = Queue(db)
    yield queue
    queue.close()


def test_each_attempt_is_below_the_enqueue_and_that_below_what_the_application_was_at(queue, traces, conn):
    seen: list[int] = []

    @queue.handler("mail")
    def mail(_payload, job):
        seen.append(trace.get_current_span().get_span_context().span_id)
        if job.attempt == 1:
            raise ValueError("the server is busy")

    with traces.tracer.start_as_current_span("request") as request:
        job = queue.enqueue("mail", {}, metadata={"tenant": "a"})
    queue.run(once=True)
    conn.execute("update redrive.jobs set run_at = now()")
    queue.run(once=True)
    assert states(conn) == {"succeeded": 1}
    [enqueued] = traces.named("create mail")
    first, second = traces.named("run mail")
    assert enqueued.parent.span_id == request.get_span_context().span_id
    assert {span.context.trace_id for span in (enqueued, first, second)} == {request.get_span_context().trace_id}
    assert first.parent.span_id == second.parent.span_id == enqueued.context.span_id
    assert seen == [first.context.span_id, second.context.span_id]
    assert first.kind is trace.SpanKind.CONSUMER
    assert dict(first.attributes)["redrive.attempt"] == 1
    assert dict(first.attributes)["messaging.message.id"] == str(job.id)
    assert (first.status.status_code, first.status.description) == (
        trace.StatusCode.ERROR,
        "ValueError: the server is busy",
    )
    assert first.events[0].attributes["exception.type"] == "ValueError"
    assert second.status.status_code is trace.StatusCode.UNSET
    metadata = queue.get(job.id).metadata
    assert metadata["tenant"] == "a"
    assert metadata["traceparent"].split("-")[1] == f"{enqueued.context.trace_id:032x}"


def test_async_handlers_have_their_span_through_all_their_pauses_and_apart_from_each_other(queue, traces):
    seen: list[tuple[int, int]] = []

    @queue.handler("slow")
    async def slow(_payload):
        before = trace.get_current_span().get_span_context().span_id
        await asyncio.sleep(0.01)
        with traces.tracer.start_as_current_span("inside"):
            await asyncio.sleep(0.01)
        seen.append((before, trace.get_current_span().get_span_context().span_id))

    queue.enqueue_many("slow", [{}] * 5)
    queue.run(once=True)
    runs = {span.context.span_id for span in traces.named("run slow")}
    assert {before for before, _ in seen} == {after for _, after in seen} == runs
    assert len(runs) == 5
    assert {span.parent.span_id for span in traces.named("inside")} == runs
    assert len(traces.named("create slow")) == 1


@pytest.mark.parametrize(("verdict", "outcome"), [(Snooze(3600), "snoozed"), (Discard("old"), "discarded")])
def test_what_a_handler_says_on_purpose_is_no_error(queue, traces, verdict, outcome):
    @queue.handler("mail")
    def mail(_payload):
        raise verdict

    queue.enqueue("mail")
    queue.run(once=True)
    [span] = traces.named("run mail")
    assert span.status.status_code is trace.StatusCode.UNSET
    assert dict(span.attributes)["redrive.outcome"] == outcome


def test_a_retry_that_a_handler_asks_for_is_one(queue, traces):
    @queue.handler("mail")
    async def mail(_payload):
        raise Retry(after=3600)

    queue.enqueue("mail")
    queue.run(once=True)
    assert traces.named("run mail")[0].status.status_code is trace.StatusCode.ERROR


def test_metadata_that_a_stranger_wrote_fails_no_job(queue, traces, conn):
    queue.handler("mail")(lambda _payload: None)
    for metadata in (
        "[1]",
        '"text"',
        '{"traceparent": "nonsense"}',
        '{"traceparent": 5}',
        '{"n": 1' + "0" * 5000 + "}",
        None,
    ):
        insert(conn, "mail", metadata=metadata)
    queue.run(once=True)
    assert states(conn) == {"succeeded": 6}
    assert {span.parent for span in traces.named("run mail")} == {None}


def test_with_links_each_attempt_is_a_trace_of_its_own(queue):
    traces = Traces()
    end = otel.instrument(tracer_provider=traces.provider, link=True)
    queue.handler("mail")(lambda _payload: None)
    queue.enqueue("mail")
    queue.run(once=True)
    end()
    [enqueued], [run] = traces.named("create mail"), traces.named("run mail")
    assert run.parent is None
    assert run.context.trace_id != enqueued.context.trace_id
    assert run.links[0].context.span_id == enqueued.context.span_id
    assert "traceparent" not in (queue.get(queue.enqueue("mail").id).metadata or {})  # it has ended
    queue.run(once=True)
    assert len(traces.named("run mail")) == 1


def test_nothing_is_traced_and_nothing_imported_unless_asked():
    code = "import sys, redrive, redrive.cli; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_the_extra_it_is_said_what_to_install():
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "try:\n    import redrive.otel\nexcept Exception as error:\n    print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "redrive[otel]" in said
