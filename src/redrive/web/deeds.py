"""What an operator does: each a form that was seen before it was sent, and each with a name to it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from redrive import search
from redrive.ended import Ended
from redrive.errors import InvalidOption
from redrive.job import LIVE
from redrive.settings import seconds
from redrive.web.page import Done, Form, Page, Refused
from redrive.words import jobs as in_words
from redrive.words import number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

    from redrive.web.app import Desk

MOST = 10_000
"""Jobs that one form of the desk moves; there is `redrive requeue` for more at once."""
PATIENCE = 10.0
"""Seconds for which "all that match" are gathered."""
DEEDS = {
    "requeue": ("Send back", "sent back", ("dead", "failed")),
    "cancel": ("Cancel", "cancelled", LIVE),
}


def confirm(desk: Desk, request: Request) -> Page:
    """Show what a deed would be done to, before it is."""
    deed = request.query_params.get("do", "")
    if deed not in DEEDS:
        raise InvalidOption(f"do is {deed!r:.40}: one of {', '.join(DEEDS)}")
    text = request.query_params.get("q", "")
    every = request.query_params.get("all") == "1"
    ids = [] if every else _ids(request.query_params.getlist("id"))
    if not ids and not every:
        raise Refused("No job was selected: tick some, or choose all that match.")
    rows = list(_meant(desk, deed, text, ids))
    fitting = [row for row in rows if row.status in DEEDS[deed][2]]
    by_kind: dict[tuple[str, str], int] = {}
    for row in fitting:
        by_kind[row.kind, row.status] = by_kind.get((row.kind, row.status), 0) + 1
    return Page(
        "confirm.html",
        {
            "nav": "jobs",
            "deed": deed,
            "verb": DEEDS[deed][0],
            "q": text,
            "every": every,
            "ids": [row.id for row in fitting] if not every else [],
            "count": len(fitting),
            "strays": len(rows) - len(fitting),
            "by_kind": sorted(by_kind.items(), key=lambda item: -item[1]),
            "sample": [row.id for row in fitting[:10]],
            "at_most": len(rows) >= MOST,
            "most": MOST,
        },
    )


def act(desk: Desk, request: Request, form: Form) -> Done:
    """Send jobs back, or cancel them."""
    desk.demand_writable()
    deed, text = form.text("do"), form.text("q")
    if deed not in DEEDS:
        raise InvalidOption(f"do is {deed!r:.40}: one of {', '.join(DEEDS)}")
    every = form.text("all") == "1"
    ids = [row.id for row in _meant(desk, deed, text, [])] if every else _ids(form.all("id"))
    if not ids:
        raise Refused("No job was selected.")
    verb = DEEDS[deed][1]
    moved, asked = 0, 0
    if deed == "requeue":
        moved = len(desk.queue.requeue(Ended(ids=ids, statuses=("dead", "failed")), by=desk.by(request)))
    else:
        states = list(desk.queue.cancel(*ids, by=desk.by(request), reason=_reason(desk, request, form)).values())
        moved, asked = states.count("pending"), states.count("running")
    said = f"{in_words(moved)} {verb}" + (f", {number(asked)} running asked to stop" if asked else "")
    if skipped := len(ids) - moved - asked:
        said += f"; {number(skipped)} left alone, their state had changed"
    alone = form.text("back") == "job" and len(ids) == 1
    if alone:
        return Done("job", said + ".", params={"id": str(ids[0])}, bad=not moved + asked)
    return Done("jobs", said + ".", {"q": text or None}, bad=not moved + asked)


def pause_kind(desk: Desk, request: Request, form: Form) -> Done:
    """Start no more jobs of a kind."""
    desk.demand_writable()
    until = _until(desk, form.text("until"))
    kind = form.text("kind")
    desk.queue.kinds.pause(kind, by=desk.by(request), reason=form.text("reason"), until=until)
    what = "all kinds are" if kind == "*" else f"{kind} is"
    return Done("kinds", f"{what} paused. What runs goes on, and what is enqueued waits.")


def resume_kind(desk: Desk, request: Request, form: Form) -> Done:
    """Let jobs of a kind start again."""
    desk.demand_writable()
    kind = form.text("kind")
    was = desk.queue.kinds.resume(kind, by=desk.by(request))
    what = "The pause of all kinds" if kind == "*" else f"The pause of {kind}"
    return Done("kinds", f"{what} is over." if was else f"{kind} was not paused.", bad=not was)


def limit_kind(desk: Desk, request: Request, form: Form) -> Done:  # noqa: ARG001 - as every action
    """Set how much of a kind may run."""
    desk.demand_writable()
    kind = form.text("kind")
    limits: dict[str, Any] = {
        "running": _count(form, "running"),
        "rate": _rate(form, "rate"),
        "burst": _count(form, "burst"),
        "lane_running": _count(form, "lane_running"),
        "lane_rate": _rate(form, "lane_rate"),
        "lane_burst": _count(form, "lane_burst"),
    }
    desk.queue.kinds.limit(kind, **{name: value for name, value in limits.items() if value is not None})
    has = any(value is not None for value in limits.values())
    return Done("kinds", f"The limits of {kind} are set." if has else f"{kind} has no limits.", {"kind": kind})


def pause_schedule(desk: Desk, request: Request, form: Form) -> Done:
    """Enqueue nothing for a schedule until it is resumed."""
    desk.demand_writable()
    name = form.text("name")
    desk.queue.schedules.pause(name, by=desk.by(request), reason=form.text("reason"))
    return Done("schedule", f"{name} is paused.", {"name": name})


def resume_schedule(desk: Desk, request: Request, form: Form) -> Done:  # noqa: ARG001 - as every action
    """Let a schedule go on."""
    desk.demand_writable()
    name = form.text("name")
    desk.queue.schedules.resume(name)
    return Done("schedule", f"{name} goes on from its next slot.", {"name": name})


def run_schedule(desk: Desk, request: Request, form: Form) -> Done:  # noqa: ARG001 - as every action
    """Enqueue a schedule's job now."""
    desk.demand_writable()
    name = form.text("name")
    made = desk.queue.schedules.run(name)
    return Done("schedule", f"Job {made.id} of {name} is enqueued.", {"name": name})


def _meant(desk: Desk, deed: str, text: str, ids: list[int]) -> Iterator[Any]:
    """Go through the jobs that are meant: those with these ids, or all that match and are in a state for it."""
    if ids:
        wanted = search.Search(ids=tuple(ids))
    else:
        wanted = search.read(text, sensitive=desk.curtain.sensitive)
        wanted = wanted if wanted.statuses else replace(wanted, statuses=DEEDS[deed][2])
    finder = search.Finder(desk.queue.schema, desk.reader.ask, budget=PATIENCE)
    found = finder.page(wanted, desk.now(), limit=MOST)
    if not found.searched:
        raise Refused("To find all that match takes too long here: narrow it down, such as by status: or id:.")
    yield from found.rows


def _ids(texts: list[str]) -> list[int]:
    try:
        return [int(text) for text in dict.fromkeys(texts)]
    except ValueError:
        raise InvalidOption("an id is a whole number") from None


def _reason(desk: Desk, request: Request, form: Form) -> str:
    said, by = form.text("reason"), desk.by(request)
    return f"{said} ({by})" if said else f"by {by}"


def _until(desk: Desk, text: str) -> datetime | None:
    if not text:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return desk.now() + timedelta(seconds=seconds(text, "until"))
    if when.tzinfo is None:
        raise InvalidOption(f"until is {text}: say in which zone, as in {when.isoformat()}Z; or give a span like 2h")
    return when


def _count(form: Form, name: str) -> int | None:
    text = form.text(name)
    if not text:
        return None
    if not text.isdecimal():
        raise InvalidOption(f"{name.replace('_', ' ')} is {text!r:.40}: give a whole number")
    return int(text)


def _rate(form: Form, name: str) -> float | None:
    text = form.text(name)
    if not text:
        return None
    amount, _, unit = text.partition("/")
    spans = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
    try:
        return float(amount) / spans[unit.strip() or "s"]
    except (ValueError, KeyError):
        raise InvalidOption(
            f"{name.replace('_', ' ')} is {text!r:.40}: give a rate like 10/s, 300/min or 1/h"
        ) from None
