"""How a job looks in the admin: its row as text, every secret out of sight."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.utils import timezone
from django.utils.html import format_html, format_html_join

from redrive.curtain import Curtain, gist
from redrive.django.ormqueue import project_queue
from redrive.job import moment
from redrive.store import failures

if TYPE_CHECKING:
    from datetime import datetime

    from redrive.job import Job

LONGEST = 20_000
FIRST, LAST = moment(-(2**63)), moment(2**63)
"""The nearest to what Python has no room for: what Postgres calls infinity, above all."""


class Shown:
    """A job's row and history, masked; read leniently, whatever a stranger wrote into it."""

    def __init__(self, job_id: int) -> None:
        queue = project_queue()
        self.curtain = Curtain.of(queue.handlers)
        self.job: Job | None = queue.get(job_id)
        self._row = {} if self.job is None else self.curtain.job(self.job)
        self._failures = queue.ask(failures(queue.schema, job_id))

    def text(self, name: str) -> Any:
        """Give a column as text."""
        value = self._row.get(name)
        return when(value) if name.endswith("_at") else "-" if value in (None, "") else str(value)

    def data(self, name: str) -> Any:
        """Give a column of JSON, indented."""
        value = self._row.get(name)
        if value is None:
            return "-"
        text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
        return _block(text)

    def error(self) -> Any:
        """Give the last error."""
        return _block(self._row["last_error"]) if self._row.get("last_error") else "-"

    def history(self) -> Any:
        """Give the failed attempts, the newest first, each with its traceback to be opened."""
        rows = [self.curtain.failure(row) for row in reversed(self._failures)]
        line = "<details><summary>{}: attempt {}, {}, {}: {}</summary>{}</details>"
        return (
            format_html_join(
                "",
                line,
                (
                    (
                        when(row["failed_at"]),
                        row["attempt"],
                        row["outcome"],
                        row["error_type"],
                        (row["message"] or "")[:200],
                        _block(row["traceback"] or row["message"] or ""),
                    )
                    for row in rows
                ),
            )
            or "none"
        )


def state(status: str, attempts: int, due: datetime | None) -> str:
    """Name the state as people do: what waits for its next try, or for its time, is called so."""
    if status != "pending":
        return status
    if attempts:
        return "retrying"
    return "scheduled" if due is not None and due > timezone.now() else "pending"


def when(value: datetime | None) -> str:
    """Write a time in the project's zone."""
    if value is None:
        return "-"
    if value in (FIRST, LAST):
        return "never" if value == LAST else "always"
    written: str = timezone.localtime(value).strftime("%Y-%m-%d %H:%M:%S %Z")
    return written


def when_briefly(value: datetime | None) -> str:
    """Write a time for a narrow column: one line, without the year where it is this one."""
    if value is None or value in (FIRST, LAST):
        return when(value)
    local = timezone.localtime(value)
    year = "" if local.year == timezone.localtime().year else "\u00a0%Y"
    written: str = local.strftime(f"%d\u00a0%b{year}\u00a0%H:%M:%S")
    return written


def brief(error: str | None) -> str:
    """Give what an error says in a line."""
    return gist(error)[:120]


def _block(text: str) -> Any:
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}\n… {len(text) - LONGEST:,} more characters"
    return format_html('<pre style="white-space: pre-wrap; overflow-wrap: anywhere; margin: 0">{}</pre>', cut)
