"""What can become of a try, as values; how each is said in SQL's parameters, and to listeners once it is written.

They are decided without a database. Nothing here runs a statement: that is for the writer, and for the test kit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from redrive.errors import Retry
from redrive.events import JobDied, JobEvent, JobFailed, JobHandedBack, JobHeld, JobRetried, JobSnoozed, JobSucceeded
from redrive.failure import FailureText, describe
from redrive.text import ascii_only

if TYPE_CHECKING:
    from collections.abc import Sequence

UNCOMMITTED_DELAY = 10.0


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned; *result* is JSON text or None."""

    result: str | None = None
    then: tuple[str, ...] = ()
    """The jobs that are to follow, each as JSON text."""
    name: ClassVar[str] = "succeeded"


@dataclass(frozen=True, slots=True)
class Retried:
    """The try failed and there will be another in *delay* seconds."""

    failure: FailureText
    delay: float
    lane: str | None = None
    """The lane in which to wait; None for where it was."""
    name: ClassVar[str] = "retried"


@dataclass(frozen=True, slots=True)
class Held:
    """The service that it calls is down: it waits for that, and gets its try back."""

    failure: FailureText
    delay: float
    lane: str | None = None
    """As of :class:`Retried`."""
    name: ClassVar[str] = "held"


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asked for another time, in *delay* seconds, without a failure."""

    delay: float
    name: ClassVar[str] = "snoozed"


@dataclass(frozen=True, slots=True)
class Failed:
    """Ended on purpose without success: discarded or cancelled, as *failure* says in its first word."""

    failure: FailureText
    name: ClassVar[str] = "failed"


@dataclass(frozen=True, slots=True)
class Died:
    """A human must look."""

    failure: FailureText
    name: ClassVar[str] = "died"


@dataclass(frozen=True, slots=True)
class Crashed:
    """The handler tried to end its process: counted with the deaths of workers, not with the failures."""

    failure: FailureText
    delay: float
    name: ClassVar[str] = "crashed"


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The worker gives the job back as if it had not been claimed."""

    lane: str | None = None
    """As of :class:`Retried`."""
    name: ClassVar[str] = "handed_back"


DONE = Succeeded()
"""The outcome of nearly every job, and one value for all of them."""

_RETRY = f"{Retry.__module__}.{Retry.__qualname__}"

Outcome = Succeeded | Retried | Held | Snoozed | Failed | Died | Crashed | HandedBack


class Judged(Exception):
    """Raised in place of an answer by a handler whose outcome was decided already: in the child that it ran in."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.name)
        self.outcome = outcome


@dataclass(slots=True)
class Finished:
    """One job's outcome on its way to the database."""

    job: Any
    outcome: Outcome
    duration: float | None

    @property
    def plain(self) -> bool:
        """Whether it succeeded and there is nothing more to be said: what ``succeed_jobs`` writes."""
        return self.outcome is DONE or self.outcome == DONE

    @property
    def error(self) -> str:
        """Type and message of what was raised, if anything was."""
        failure = getattr(self.outcome, "failure", None)
        return "" if failure is None else f"{failure.error_type}: {failure.message}"


def parameters(batch: Sequence[Finished]) -> dict[str, Any]:
    """Give a batch as the arrays of ``finish_jobs``."""
    rows = [(one, one.outcome, getattr(one.outcome, "failure", None)) for one in batch]
    return {
        "ids": [one.job.id for one in batch],
        "claims": [one.job.claim for one in batch],
        "outcomes": [one.outcome.name for one in batch],
        "delays": [getattr(outcome, "delay", 0.0) for _, outcome, _ in rows],
        "results": [getattr(outcome, "result", None) for _, outcome, _ in rows],
        "durations": [one.duration for one in batch],
        "errors": [failure and failure.last_error for _, _, failure in rows],
        "error_types": [failure and failure.error_type for _, _, failure in rows],
        "messages": [failure and failure.message for _, _, failure in rows],
        "tracebacks": [failure and failure.traceback for _, _, failure in rows],
        "fingerprints": [failure and failure.fingerprint for _, _, failure in rows],
        "lanes": [getattr(outcome, "lane", None) for _, outcome, _ in rows],
        "followers": [listed(then) if (then := getattr(outcome, "then", ())) else None for _, outcome, _ in rows],
    }


def listed(then: Sequence[str]) -> str:
    """Give jobs that are to follow as one JSON array."""
    return f"[{','.join(then)}]"


def uncommitted(one: Finished) -> Finished:
    """Judge a job that said complete() and whose transaction never came to be: its success was a failure."""
    if not isinstance(one.outcome, Succeeded):
        return one
    failure = describe(RuntimeError("job.complete() was called, but its transaction was not committed"))
    return replace(one, outcome=Died(failure) if one.job.last_attempt else Retried(failure, UNCOMMITTED_DELAY))


def in_ascii(one: Finished) -> Finished:
    """Spell an outcome in ASCII, for a database whose encoding has no room for its text."""
    outcome = one.outcome
    match outcome:
        case Succeeded(result=str(result)):  # JSON: what stands for a character is text within text
            spelt = "".join(each if each.isascii() else ascii_only(each).replace("\\", "\\\\") for each in result)
            return replace(one, outcome=replace(outcome, result=spelt))
        case HandedBack():
            return replace(one, outcome=HandedBack())
        case Retried() | Held() | Failed() | Died() | Crashed():
            failure = outcome.failure
            plain = replace(
                failure,
                message=ascii_only(failure.message),
                traceback=ascii_only(failure.traceback),
                last_error=ascii_only(failure.last_error),
            )
            said = replace(outcome, failure=plain)
            return replace(one, outcome=replace(said, lane=None) if isinstance(said, Retried | Held) else said)
        case _:
            return one


def event(one: Finished, status: str, reason: str = "") -> JobEvent:  # noqa: PLR0911 - one a sort of outcome
    """Say what was written, which may differ from what was asked: the database has the last word."""
    match one.outcome, status:
        case _, "succeeded":
            return _event(JobSucceeded, one)
        case _, "dead":
            return _event(JobDied, one, reason=reason, error=one.error)
        case _, "failed":
            return _event(JobFailed, one, reason=reason)
        case Snoozed(delay=delay), _:
            return _event(JobSnoozed, one, delay=delay)
        case Held(delay=delay), _:
            return _event(JobHeld, one, delay=delay, error=one.error)
        case ((Retried(failure, delay) | Crashed(failure, delay)), _):
            asked = failure.error_type == _RETRY
            said = {"reason": failure.message} if asked else {"error": one.error}
            return _event(JobRetried, one, delay=delay, **said)
        case _:
            return _event(JobHandedBack, one, reason=one.job.stop_reason or "it had not begun")


def _event(kind: type[JobEvent], one: Finished, **more: Any) -> JobEvent:
    job = one.job
    known = {
        "id": job.id,
        "kind": job.kind,
        "attempt": job.attempt,
        "worker": job.worker,
        "duration": one.duration or 0.0,
    }
    return kind(**known, **more)
