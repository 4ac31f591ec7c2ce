"""A job as it may be shown: the row with every secret out of sight.

Every command and page that shows a row takes it from here; none reads ``payload`` or ``last_error`` itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redrive.masking import mask, mask_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redrive.handlers import Handler
    from redrive.job import Job


ENDS = 10_000
"""Characters of an error from which on its middle is left out where its gist is told."""


@dataclass(frozen=True)
class Curtain:
    """What hides secrets; it knows the kinds whose handlers are ``sensitive`` where the application is known."""

    sensitive: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, handlers: Iterable[Handler[Any, Any]]) -> Curtain:
        """Know the sensitive kinds of an application."""
        return cls(frozenset(name for each in handlers if each.sensitive for name in (each.kind, *each.aliases)))

    def data(self, kind: str, value: Any) -> Any:
        """Mask JSON data of a job: payload, progress, result, metadata."""
        return None if value is None else mask(value, sensitive=kind in self.sensitive)

    def job(self, job: Job) -> dict[str, Any]:
        """Give a job's row, masked."""
        row = {name: getattr(job, name) for name in job.__dataclass_fields__}
        for name in ("payload", "progress", "result", "metadata"):
            row[name] = self.data(job.kind, row[name])
        row["last_error"] = text(job.last_error)
        return row

    def failure(self, row: Any) -> dict[str, Any]:
        """Give a row of the history, masked."""
        fields: dict[str, Any] = row._asdict()
        return fields | {"message": text(row.message), "traceback": text(row.traceback)}


def text(value: str | None) -> str | None:
    """Mask an error's text."""
    return None if value is None else mask_text(value)


def ends(error: str | None) -> str | None:
    """Leave out the middle of a huge error, by whole lines: to mask megabytes takes seconds, and nobody reads them.

    Of one huge line only the beginning is left: what comes after a cut has lost the name that tells a secret.
    """
    if error is None or len(error) <= ENDS:
        return error
    head = error[: ENDS // 4]
    return f"{head.rpartition(chr(10))[0] or head}\n{error[-ENDS:].partition(chr(10))[2]}"


def gist(error: str | None) -> str:
    """Give what an error says in a line: the end of a traceback, and the reason before it where redrive gave one."""
    lines = [line.strip() for line in (text(ends(error)) or "").splitlines() if line.strip()]
    if len(lines) > 1 and not lines[0].startswith("Traceback"):
        return f"{lines[0]}: {lines[-1]}"
    return lines[-1] if lines else ""
