"""Many jobs of one kind as rows: encoded, and said as one INSERT or as the text of a COPY."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redrive.errors import InvalidOption, InvalidPayload
from redrive.statements import Statement, named
from redrive.store import Options, encoded_payload, name
from redrive.typed import dump

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Row = tuple[str, str | None] | tuple[str, str | None, str]
"""Of a batch: a payload as JSON, its key, and its lane where each has its own."""
COPIED = ("kind", "payload", "priority", "max_attempts", "lane")
"""The columns of ``copy_jobs``, as :func:`copy_text` writes them."""


def insert_many(schema: str, kind: str, chunk: Sequence[Row], how: Options) -> Statement[Any]:
    """Enqueue a batch of encoded payloads, each with its key or None; of those with the same key the first."""
    first = {row[1]: row for row in reversed(chunk)}
    rows = [row for row in chunk if row[1] is None or first[row[1]] is row]  # a conflict would burn an id
    params: dict[str, Any] = {"payloads": [row[0] for row in rows], "keys": [row[1] for row in rows]}
    params["lanes"] = [row[2] for row in rows if len(row) > 2] or None  # noqa: PLR2004 - all have one, or none
    return replace(named("insert_jobs", schema, kind=name(kind, "kind"), **params, **vars(how)), kept=False)


def copyable(chunk: Sequence[Row], how: Options) -> bool:
    """Tell whether a batch needs nothing that only a query gives: keys, lanes, a time by the database's clock."""
    plain = Options(priority=how.priority, max_attempts=how.max_attempts, lane=how.lane)
    return how == plain and all(row[1] is None and row[2:] == () for row in chunk)


def copy_text(kind: str, chunk: Sequence[Row], how: Options) -> str:
    """Write a batch as the text that ``copy_jobs`` takes."""
    before = _copied(name(kind, "kind")) + "\t"
    after = f"\t{how.priority}\t{how.max_attempts}\t{_copied(how.lane)}\n"
    return before + (after + before).join([row[0].replace("\\", "\\\\") for row in chunk]) + after


def _copied(text: str) -> str:
    escaped = text.replace("\\", "\\\\")
    return escaped.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def encoded(
    payloads: Iterable[Any],
    key: Callable[[Any], str] | None,
    start: int = 0,
    lane: Callable[[Any], str] | None = None,
) -> Iterable[Row]:
    """Check and encode each payload, with its key; the error of a bad one names its place, counted from *start*."""
    for number, payload in enumerate(payloads, start):
        try:
            row = encoded_payload(payload), None if key is None else name(key(payload), "key")
            yield row if lane is None else (*row, lane({} if payload is None else dump(payload)))
        except (InvalidOption, InvalidPayload) as error:
            error.args = (f"payloads[{number}]: {error}",)
            raise
