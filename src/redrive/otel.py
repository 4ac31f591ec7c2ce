"""OpenTelemetry: one trace from the code that enqueues a job to every attempt at it, in whatever process that is.

Off until :func:`instrument` is called, in the application and in its workers. It needs ``redrive[otel]``, which is the
API alone: which SDK and which exporter is the application's choice, and without one nothing is recorded.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from redrive.errors import Discard, InvalidOption, Snooze
from redrive.instruments import Instrument, add

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError:
    raise InvalidOption("tracing needs the API of OpenTelemetry: pip install 'redrive[otel]'") from None

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from redrive.instruments import Call

_CONTEXT = TraceContextTextMapPropagator()


def instrument(*, tracer_provider: trace.TracerProvider | None = None, link: bool = False) -> Callable[[], None]:
    """Trace enqueues, and runs in workers that start from now on; returns the function that ends it.

    At an enqueue a span ``create KIND`` is made and noted in the job's metadata as W3C *traceparent*. Each attempt is a
    span ``run KIND`` below that one; with *link* it begins a trace of its own that links to it, which reads better
    where jobs run hours later.
    """
    tracer = trace.get_tracer("redrive", version("redrive"), tracer_provider)

    def note(kind: str) -> Mapping[str, Any]:
        carrier: dict[str, str] = {}
        attributes = {**_about(kind), "messaging.operation.type": "create", "messaging.operation.name": "enqueue"}
        span = tracer.start_span(f"create {kind}", kind=trace.SpanKind.PRODUCER, attributes=attributes)
        _CONTEXT.inject(carrier, trace.set_span_in_context(span))
        span.end()
        return carrier

    def wrap(kind: str, is_async: bool, call: Call) -> Call:  # noqa: FBT001 - the seam's signature
        if is_async:
            return lambda job: _run_async(_Attempt(tracer, kind, job, link=link), call, job)
        return lambda job: _run(_Attempt(tracer, kind, job, link=link), call, job)

    return add(Instrument(note, wrap))


class _Attempt:
    """The span of one attempt, current while its handler runs."""

    def __init__(self, tracer: trace.Tracer, kind: str, job: Any, *, link: bool) -> None:
        enqueued = _CONTEXT.extract(_carrier(job))
        cause = trace.get_current_span(enqueued).get_span_context()
        self._span = tracer.start_span(
            f"run {kind}",
            context=trace.set_span_in_context(trace.INVALID_SPAN) if link else enqueued,
            kind=trace.SpanKind.CONSUMER,
            links=[trace.Link(cause)] if link and cause.is_valid else [],
            attributes={
                **_about(job.kind),
                "messaging.operation.type": "process",
                "messaging.operation.name": "run",
                "messaging.message.id": str(job.id),
                "redrive.attempt": job.attempt,
                "redrive.max_attempts": job.max_attempts,
                "redrive.lane": job.lane,
                "redrive.worker": job.worker,
            },
        )
        self._current = trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def __enter__(self) -> None:
        self._current.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._current.__exit__(kind, error, where)
        span = self._span
        if isinstance(error, Snooze | Discard):  # said on purpose, and no failure
            span.set_attribute("redrive.outcome", "snoozed" if isinstance(error, Snooze) else "discarded")
        elif error is not None:
            span.set_attribute("redrive.outcome", "failed")
            span.record_exception(error)
            span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
        else:
            span.set_attribute("redrive.outcome", "returned")
        span.end()


def _run(attempt: _Attempt, call: Call, job: Any) -> Any:
    with attempt:
        return call(job)


async def _run_async(attempt: _Attempt, call: Call, job: Any) -> Any:
    with attempt:
        return await call(job)


def _carrier(job: Any) -> dict[str, str]:
    """Give the texts of a job's metadata, which a stranger may have written: no job fails for them."""
    try:
        metadata = job.metadata
    except ValueError:
        return {}
    items = metadata.items() if isinstance(metadata, dict) else ()
    return {name: value for name, value in items if isinstance(value, str)}


def _about(kind: str) -> dict[str, str]:
    return {"messaging.system": "redrive", "messaging.destination.name": kind}
