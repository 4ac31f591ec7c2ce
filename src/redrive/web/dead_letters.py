"""Dead letters: what died, put together by what killed it, and what is being sent back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from redrive.errors import UnknownGroup
from redrive.groups import Group, Groups
from redrive.masking import mask_text
from redrive.requeues import Requeue, Requeues
from redrive.web.page import Page
from redrive.web.readings import part
from redrive.words import one_line

if TYPE_CHECKING:
    from starlette.requests import Request

    from redrive.web.app import Desk

SHOWN = 50
"""Groups on a page."""
ROWS = 30
AGE = 10.0
TRENDS = {"new": "bad", "rising": "bad", "steady": "note", "falling": "good", "quiet": "off"}


def dead(desk: Desk, request: Request) -> Page:
    """List the groups, those with the most dead jobs first."""
    kind = request.query_params.get("kind") or None
    retrying = request.query_params.get("retrying") == "1"
    groups = desk.shared.get(
        ("groups", kind, retrying),
        AGE,
        lambda: Groups(desk.reader).list(kind=kind, retrying=retrying, limit=SHOWN),
    )
    sent = desk.shared.get("requeues", 3.0, lambda: Requeues(desk.reader).list(limit=12))
    late = part(desk, "late")
    context = {
        "nav": "dead",
        "groups": groups,
        "trends": TRENDS,
        "kind": kind,
        "retrying": retrying,
        "shown": SHOWN,
        "error": error,
        "active": [row for row in sent if row.active],
        "ended": [row for row in sent if not row.active],
        "meant": meant,
        "kinds": [depth for depth in late.rows["jobs by kind"] if depth.dead],
    }
    return Page("dead.html", context)


def group(desk: Desk, request: Request) -> Page:
    """Show one group: its last failure with the traceback, and its jobs."""
    groups = Groups(desk.reader)
    try:
        found = groups.find(request.query_params.get("name", ""))
    except UnknownGroup:
        gone = "Nothing is known of this group any more: its jobs were sent back, or have outlived their retention."
        raise HTTPException(404, gone) from None
    before = request.query_params.get("from", "")
    rows = groups.jobs(found, before=int(before) if before.isdecimal() else None, limit=ROWS + 1)
    sample = groups.sample(found)
    context = {
        "nav": "dead",
        "group": found,
        "trends": TRENDS,
        "error": error,
        "sample": desk.curtain.failure(sample) if sample is not None else None,
        "rows": [desk.curtain.job(replace(row, last_error=None)) for row in rows[:ROWS]],
        "after": rows[ROWS - 1].id if len(rows) > ROWS else None,
    }
    return Page("group.html", context)


def error(found: Group) -> str:
    """Say what killed a group's jobs, in a line."""
    return one_line(mask_text(found.error), 300)


def meant(row: Requeue) -> dict[str, Any]:
    """Give the filter by which jobs are sent back, without what only a machine reads."""
    given: dict[str, Any] = dict(row.filter) if isinstance(row.filter, dict) else {}
    if isinstance(given.get("ids"), list) and len(given["ids"]) > 5:  # noqa: PLR2004 - a line's worth
        given["ids"] = f"{len(given['ids'])} of them"
    return given
