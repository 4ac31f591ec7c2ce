"""What can become of a try, as values. They are decided without a database and written down by the writer alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from redrive.failure import FailureText


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned; *result* is JSON text or None."""

    result: str | None = None
    name: ClassVar[str] = "succeeded"


@dataclass(frozen=True, slots=True)
class Retried:
    """The try failed and there will be another in *delay* seconds."""

    failure: FailureText
    delay: float
    name: ClassVar[str] = "retried"


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

    name: ClassVar[str] = "handed_back"


Outcome = Succeeded | Retried | Snoozed | Failed | Died | Crashed | HandedBack


@dataclass(frozen=True, slots=True)
class Finished:
    """One job's outcome on its way to the database."""

    job: Any
    outcome: Outcome
    duration: float | None
