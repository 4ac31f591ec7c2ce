"""Times as operators type them: ``2h``, ``7d``, or a date with its zone. A date without a zone is refused."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import click

_SPAN = re.compile(r"[\d.]+\s*(ms|s|m|h|d|w)", re.ASCII)


class When(click.ParamType[Any]):
    """A datetime with a zone, or a span of time that is counted from the database's clock later."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime | timedelta:
        """Read the text; a date without a zone is refused with the same date and the local zone as the hint."""
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        text = value.strip()
        if _SPAN.fullmatch(text):
            from redrive.settings import seconds

            return timedelta(seconds=seconds(text.replace(" ", ""), "time"))
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{value!r}: give a span like 90s, 2h, 7d, or a date with its zone like 2030-01-31T09:00+01:00")
        if when.tzinfo is None:
            self.fail(f"{value!r} has no zone: write {when.astimezone().isoformat()}, or ...Z for UTC", param, ctx)
        return when


def before(when: datetime | timedelta | None, now: datetime) -> datetime | None:
    """Give the time that *when* means in a filter: a span ago, or the date."""
    return now - when if isinstance(when, timedelta) else when


def after(when: datetime | timedelta | None, now: datetime) -> datetime | None:
    """Give the time that *when* means in a plan: in a span from now, or the date."""
    return now + when if isinstance(when, timedelta) else when
