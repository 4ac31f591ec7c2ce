"""redrive: background jobs on the Postgres you have. No job is lost, no job fails silently."""

TYPE_CHECKING = False  # typing itself takes as long to import as the rest of this file a hundred times over
if TYPE_CHECKING:
    from typing import Any

    from redrive.breaker import Breaker
    from redrive.errors import (
        Dead,
        Discard,
        InvalidOption,
        InvalidPayload,
        LeaseLost,
        NoBroker,
        RedriveError,
        Retry,
        Snooze,
    )
    from redrive.job import ClaimedJob, Enqueued, Job, Published
    from redrive.queue import Queue
else:
    # Imported when first asked for: `redrive --help` is this package's, too, and need not wait for the driver.
    def __getattr__(name: str) -> "Any":
        """Import a public name from the module that has it."""
        from importlib import import_module  # noqa: PLC0415 - as above

        for module in ("redrive.errors", "redrive.job", "redrive.queue", "redrive.breaker") if name in __all__ else ():
            if (found := vars(import_module(module)).get(name)) is not None:
                globals()[name] = found
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Breaker",
    "ClaimedJob",
    "Dead",
    "Discard",
    "Enqueued",
    "InvalidOption",
    "InvalidPayload",
    "Job",
    "LeaseLost",
    "NoBroker",
    "Published",
    "Queue",
    "RedriveError",
    "Retry",
    "Snooze",
]
