"""Run one job and decide what becomes of it.

Nothing here touches the database. :func:`execute` turns a claimed job into an
:data:`~redrive.outcome.Outcome`; the writer knows how to write each one down.
That keeps every rule about retries in this one module, and testable without Postgres.
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context, copy_context
from dataclasses import replace
from time import monotonic as _now
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Protocol

from redrive.backoff import Backoff, clamp_delay, seconds_until_retry
from redrive.breaker import Breaker
from redrive.classify import Finding, Rules
from redrive.errors import Dead, Discard, Retry, Snooze, Verdict
from redrive.failure import LAST_ERROR_LIMIT, FailureText, describe, storable
from redrive.outcome import (
    DONE,
    Crashed,
    Died,
    Failed,
    Finished,
    HandedBack,
    Judged,
    Outcome,
    Retried,
    Snoozed,
    Succeeded,
)
from redrive.payload import encode_result
from redrive.text import clip

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from redrive.job import ClaimedJob

SHUTDOWN = "shutdown"
CANCELLED = "cancelled"
TIMED_OUT = "timed out"
LOST = "lease lost"

_log = logging.getLogger("redrive")


class Executable(Protocol):
    """What the executor needs to know of a handler."""

    @property
    def call(self) -> Callable[[ClaimedJob], Any]:
        """Decode the payload and call the function."""

    @property
    def backoff(self) -> Backoff:
        """Seconds to wait after a failed attempt."""

    @property
    def retry_on(self) -> tuple[type[BaseException], ...]:
        """The only exceptions worth another try; empty means all."""

    @property
    def dead_on(self) -> tuple[type[BaseException], ...]:
        """Exceptions that no other try will mend."""

    @property
    def breaker(self) -> Breaker | None:
        """What it takes for an outage of the service that it calls; None for nothing."""

    @property
    def rules(self) -> Rules:
        """What its errors tell."""


async def execute(job: ClaimedJob, handler: Executable) -> Finished:
    """Run an async handler on the loop, in a context of its own, and judge the result."""
    begun = begin(job, handler)
    return begun if isinstance(begun, Finished) else await begun


def begin(job: ClaimedJob, handler: Executable) -> Finished | Coroutine[Any, Any, Finished]:
    """Run an async handler as far as its first pause; gives what it came to, or the rest of it, to be awaited.

    Many end before they pause, and those need neither a task nor a coroutine around them.
    """
    job.started = now = _now()
    if now >= job.deadline or job.attempt > job.max_attempts:
        return Finished(job, _not_to_be_run(job), None)
    context = copy_context()
    try:
        coroutine = context.run(handler.call, job)
        if coroutine.__class__ is not CoroutineType and not hasattr(coroutine, "send"):
            # A wrapper around an async function gave a future, or what came of it.
            if not hasattr(coroutine, "__await__"):
                return Finished(job, _returned(job, handler, coroutine), _now() - now)
            coroutine = coroutine.__await__()
    except BaseException as error:  # noqa: BLE001 - every way out of a handler has an outcome
        return Finished(job, _judge(job, handler, error), _now() - now)
    try:
        waits_for = context.run(coroutine.send, None)
    except StopIteration as end:
        return Finished(job, _returned(job, handler, end.value), _now() - now)
    except BaseException as error:  # noqa: BLE001 - as above
        return Finished(job, _judge(job, handler, error), _now() - now)
    return _rest(job, handler, _InOwnContext(context, coroutine, waits_for))


async def _rest(job: ClaimedJob, handler: Executable, running: _InOwnContext) -> Finished:
    try:
        result = await running
    except BaseException as error:  # noqa: BLE001 - every way out of a handler has an outcome
        outcome = _judge(job, handler, error)
    else:
        outcome = _returned(job, handler, result)
    return Finished(job, outcome, _now() - job.started)


def execute_here(job: ClaimedJob, handler: Executable) -> Finished:
    """Run a sync handler in the calling thread, in a context of its own, and judge the result."""
    job.started = now = _now()
    if now >= job.deadline or job.attempt > job.max_attempts:
        return Finished(job, _not_to_be_run(job), None)
    try:
        result = copy_context().run(handler.call, job)
        if result is not None and asyncio.iscoroutine(result):
            result.close()
            raise TypeError(f"the handler of {job.kind!r} returned a coroutine: write it as `async def`")  # noqa: TRY301
    except BaseException as error:  # noqa: BLE001 - every way out of a handler has an outcome
        outcome = _judge(job, handler, error)
    else:
        outcome = _returned(job, handler, result)
    return Finished(job, outcome, _now() - now)


class _InOwnContext:
    """Await the rest of a coroutine, each step of it inside one copied context, without the price of a task.

    A context variable that a handler sets is gone with its job, as it would be in a task of its own.
    """

    __slots__ = ("_context", "_coroutine", "_waits_for")

    def __init__(self, context: Context, coroutine: Any, waits_for: Any) -> None:
        self._context = context
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, Any]:
        context, coroutine, waits_for = self._context, self._coroutine, self._waits_for
        step: Callable[..., Any]
        while True:
            try:
                value, step = (yield waits_for), coroutine.send
            except BaseException as error:  # noqa: BLE001 - thrown on into the handler, as `yield from` does
                value, step = error, coroutine.throw
            try:
                waits_for = context.run(step, value)
            except StopIteration as end:
                return end.value


def _not_to_be_run(job: ClaimedJob) -> Outcome:
    if job.expired:
        return Died(_said("DeadlinePassed", "deadline: expires_at passed before the job could run"))
    spent = f"{job.attempt - 1} of {job.max_attempts} were used"
    return Died(_said("AttemptsExhausted", f"no attempt left: {spent}"))


def _returned(job: ClaimedJob, handler: Executable, result: Any) -> Outcome:
    if job.stopped or job.stop_reason == TIMED_OUT:  # late is failed, for sync handlers as for async ones
        return _stopped(job, handler)
    if result is None and not job.followers:
        return DONE
    return Succeeded(encode_result(result), job.followers)


def _stopped(job: ClaimedJob, handler: Executable) -> Outcome:
    """Judge a handler that ended because it was told to."""
    if job.stop_reason == CANCELLED:
        return Failed(_said("Cancelled", "cancelled while it ran"))
    if job.stop_reason == TIMED_OUT:
        return _after_failure(job, handler, TimeoutError(f"passed its timeout of {_timeout(handler)}"))
    return HandedBack()


def _judge(job: ClaimedJob, handler: Executable, error: BaseException) -> Outcome:
    if isinstance(error, Verdict):
        return _obey(job, handler, error)
    if job.stopped:
        return _stopped(job, handler)
    if isinstance(error, Judged):
        return error.outcome
    if not isinstance(error, Exception):
        # sys.exit(), KeyboardInterrupt, a CancelledError nobody asked for: no failure of the work, and yet no
        # reason to go on for ever. It counts as what it is, an attempt to take the worker down.
        _log.error(
            "handler of job %s raised %s",
            job.id,
            type(error).__name__,
            extra={"job_id": job.id, "job_kind": job.kind},
        )
        return Crashed(describe(error), seconds_until_retry(handler.backoff, job.crashes + 1))
    return _after_failure(job, handler, error)


def _obey(job: ClaimedJob, handler: Executable, verdict: Verdict) -> Outcome:
    match verdict:
        case Snooze(seconds=seconds):
            return Snoozed(clamp_delay(seconds))
        case Discard():
            return Failed(_said("Discard", f"discarded: {verdict.reason}" if verdict.reason else "discarded"))
        case Dead():
            return Died(describe(verdict))
        case Retry(after=after) if after is not None and not job.last_attempt:
            return Retried(_blamed(handler, verdict, handler.rules.find(verdict)), clamp_delay(after))
        case _:
            return _after_failure(job, handler, verdict)


def _after_failure(job: ClaimedJob, handler: Executable, error: BaseException) -> Outcome:
    permanent = isinstance(error, handler.dead_on)
    foreign = bool(handler.retry_on) and not isinstance(error, (*handler.retry_on, Retry, TimeoutError))
    if permanent or foreign:
        return Died(describe(error))
    found = handler.rules.find(error)
    if handler.rules.hopeless(found) and not isinstance(error, Retry):  # who says Retry has looked already
        return Died(describe(error))
    failure = _blamed(handler, error, found)
    if job.last_attempt:
        return Died(failure)
    least = max(found.after, failure.outage or 0.0)
    return Retried(failure, max(least, seconds_until_retry(handler.backoff, job.attempt)))


def _blamed(handler: Executable, error: BaseException, found: Finding) -> FailureText:
    """Put *error* into words, and say whether it is the job's or that of the service which the job calls."""
    failure = describe(error)
    if handler.breaker is None:
        return failure
    if isinstance(error, Retry) and error.whole_target and error.after is not None:
        return replace(failure, outage=clamp_delay(error.after))
    return replace(failure, outage=found.after) if found.word == "outage" else failure


def _timeout(handler: Executable) -> str:
    return f"{getattr(handler, 'timeout', None) or 0:g} s"


def _said(error_type: str, text: str) -> FailureText:
    """Word a failure that no exception stands behind."""
    text = clip(storable(text), LAST_ERROR_LIMIT)
    return FailureText(error_type=error_type, message=text, traceback="", last_error=text, fingerprint=error_type)
