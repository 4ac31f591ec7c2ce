"""The pages that look: what each reads, and under which name its template finds it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from redrive import schedules as plans
from redrive import search, situation, store
from redrive.audit import Act, Audit, Which
from redrive.batches import MOST_COUNTED
from redrive.batches import listed as batches_of
from redrive.curtain import gist
from redrive.errors import InvalidOption
from redrive.stats import Stats
from redrive.timetable import timetable, zone
from redrive.topics import subscriptions, unheard
from redrive.web.page import Page
from redrive.web.readings import Row, at_broker, drawn, known_kinds, part, pressure
from redrive.words import clean, one_line

if TYPE_CHECKING:
    from starlette.requests import Request

    from redrive.web.app import Desk

ROWS = 50
KINDS = 300
"""Kinds on a page."""
SPANS = {"1h": "hour", "24h": "24 hours", "7d": "7 days"}
QUESTIONS = {
    "late": ("Is work late?", "No: nothing waits too long."),
    "failing": ("Is it failing?", "No: nothing is dead."),
    "working": ("Who is working?", "Workers are alive and well."),
    "stuck": ("What is stuck?", "Nothing."),
    "planned": ("Are schedules late?", "No."),
    "postgres": ("Is Postgres the cause?", "No: nothing of note."),
}

BROKER_QUESTION = ("Is the broker well?", "It answers, and what is there is taken.")


def now(desk: Desk, request: Request) -> Page:
    """Everything that somebody on call asks first."""
    parts = {name: part(desk, name) for name in QUESTIONS}
    questions = dict(QUESTIONS)
    if broker := at_broker(desk):
        parts["broker"], questions["broker"] = situation.at_broker(broker), BROKER_QUESTION
    findings = sorted(
        (finding for each in parts.values() for finding in each.findings), key=lambda finding: finding.level != "bad"
    )
    chosen = request.query_params.get("span", "1h")
    chosen = chosen if chosen in SPANS else "1h"
    context = {
        "nav": "now",
        "parts": parts,
        "questions": questions,
        "broker": broker,
        "bad": [finding for finding in findings if finding.level == "bad"],
        "notes": [finding for finding in findings if finding.level != "bad"],
        "unknown": [text for each in parts.values() for text in each.unknown],
        "kinds": pressure(desk),
        "dead": parts["late"].rows["jobs by kind"],
        "most": situation.MOST,
        "timeouts": bool(desk.timeouts),
        "spans": SPANS,
        "span": chosen,
        "drawn": drawn(desk, chosen),
        "now": desk.now(),
    }
    return Page("now.html", context)


def jobs(desk: Desk, request: Request) -> Page:
    """Find jobs."""
    text = request.query_params.get("q", "")
    context: dict[str, Any] = {
        "nav": "jobs",
        "q": text,
        "qualifiers": search.QUALIFIERS,
        "statuses": search.STATUSES,
        "wrong": "",
        "found": None,
        "rows": [],
        "searched_to": None,
        "first": "from" not in request.query_params,
        "kinds": [kind for kind in known_kinds(desk) if clean(kind) == kind][:200],
    }
    try:
        wanted = search.read(text, sensitive=desk.curtain.sensitive)
        after = request.query_params.get("from")
        found = desk.shared.get(("jobs", text, after), 2.0, lambda: find(desk, wanted, after))
    except InvalidOption as error:
        return Page("jobs.html", context | {"wrong": one_line(str(error))}, 400)
    searched_to = None
    if found.upto is not None:
        when = desk.reader.ask(desk.reader.statement("desk_at", id=found.upto))
        searched_to = when[0].created_at if when else None
    rows = [shown_job(desk, row) for row in found.rows]
    return Page("jobs.html", context | {"found": found, "rows": rows, "searched_to": searched_to, "search": wanted})


def find(desk: Desk, wanted: search.Search, after: str | None, limit: int = ROWS) -> search.Found:
    """Answer a search, a page of it."""
    finder = search.Finder(desk.queue.schema, desk.reader.ask)
    return finder.page(wanted, desk.now(), after=after, limit=limit)


def shown_job(desk: Desk, row: Any) -> dict[str, Any]:
    """Give a job of a list, its secrets out of sight."""
    fields: dict[str, Any] = row._asdict()
    large = fields["payload"] is None
    payload = desk.curtain.data(row.kind, row.payload)
    return fields | {"payload": payload, "large": large, "error": one_line(gist(row.last_error), 200)}


def kinds(desk: Desk, request: Request) -> Page:
    """What is paused and limited, and what each kind does."""
    late = part(desk, "late")
    rows = pressure(desk)
    everything = next((row for row in late.rows["kinds"] if row.kind == "*"), None)
    known: dict[str, list[str]] = {}
    for worker in part(desk, "working").rows["workers"]:
        for kind in worker.kinds if worker.alive else ():
            known.setdefault(kind, []).append(worker.name)
    name = request.query_params.get("kind", "")
    # One that there is nothing of yet can be paused, limited or held as well.
    chosen = next((row for row in rows if row.kind == name), None) or (
        Row(store.name(name, "kind")) if name.strip("*") else None
    )
    span_chosen = request.query_params.get("span", "24h")
    span_chosen = span_chosen if span_chosen in SPANS else "24h"
    return Page(
        "kinds.html",
        {
            "nav": "kinds",
            "rows": sorted(rows, key=lambda row: row.kind)[:KINDS],
            "more": len(rows) - KINDS,
            "names": [row.kind for row in rows if clean(row.kind) == row.kind][:KINDS],
            "all": everything,
            "breakers": late.rows["breakers"],
            "broker": at_broker(desk),
            "hour": desk.shared.get("hour", 60.0, lambda: {row.kind: row for row in Stats(desk.reader).kinds("1h")}),
            "known": known,
            "chosen": chosen,
            "spans": SPANS,
            "span": span_chosen,
            "drawn": drawn(desk, span_chosen, chosen.kind) if chosen else None,
        },
    )


def batches(desk: Desk, request: Request) -> Page:  # noqa: ARG001 - as every view
    """What was enqueued together and how far it is, and who gets what is published."""
    together = desk.shared.get("batches", 10.0, lambda: _together(desk))
    return Page("batches.html", {"nav": "batches", "part": together, "shown": ROWS, "most": MOST_COUNTED})


def _together(desk: Desk) -> situation.Part:
    schema, part = desk.queue.schema, situation.Part("together")
    part.read(desk.reader.ask, "batches", batches_of(schema, limit=ROWS))
    part.read(desk.reader.ask, "subscriptions", subscriptions(schema))
    part.read(desk.reader.ask, "unheard", unheard(schema))
    return part


def workers(desk: Desk, request: Request) -> Page:  # noqa: ARG001 - as every view
    """The worker processes."""
    working = part(desk, "working")
    running = desk.shared.get("holders", 8.0, lambda: desk.reader.ask(desk.reader.statement("desk_holders")))
    return Page(
        "workers.html",
        {
            "nav": "workers",
            "rows": working.rows["workers"],
            "part": working,
            "held": {row.worker: row for row in running},
            "worker_command": desk.queue.worker_command,
        },
    )


def schedules(desk: Desk, request: Request) -> Page:  # noqa: ARG001 - as every view
    """The schedules, and which are late."""
    rows = desk.shared.get("schedules", 5.0, lambda: desk.reader.ask(plans.get(desk.queue.schema)))
    return Page("schedules.html", {"nav": "schedules", "rows": rows, "part": part(desk, "planned")})


def schedule(desk: Desk, request: Request) -> Page:
    """One schedule, its last slots and the next ones, in its own zone and in UTC."""
    name = request.query_params.get("name", "")
    found = desk.reader.ask(plans.get(desk.queue.schema, store.name(name, "name")))
    if not found:
        raise HTTPException(404, "There is no such schedule any more.")
    [row] = found
    slots = desk.reader.ask(plans.slots(desk.queue.schema, name, 30))
    following: list[tuple[datetime, datetime]] = []
    if row.state == "active":
        try:
            table, place = timetable(row.cron, row.every, row.at, row.timezone, row.anchor), zone(row.timezone)
            moment: datetime | None = desk.now()
            while moment and len(following) < 10 and (moment := table.next(moment)):  # noqa: PLR2004 - a screenful
                following.append((moment.astimezone(place), moment.astimezone(UTC)))
        except InvalidOption:
            following = []
    context = {"nav": "schedules", "row": row, "slots": slots, "following": following}
    return Page("schedule.html", context | {"payload": desk.curtain.data(row.kind, row.payload)})


def audit(desk: Desk, request: Request) -> Page:
    """Who did what."""
    asked = request.query_params
    before = asked.get("from", "")
    which: Which = {
        "by": asked.get("by") or None,
        "action": asked.get("action") or None,
        "before": int(before) if before.isdecimal() and len(before) < 19 else None,  # noqa: PLR2004 - digits of a bigint
        "limit": ROWS + 1,
    }
    rows = desk.shared.get(("audit", *which.values()), 5.0, lambda: Audit(desk.reader).list(**which))
    after = rows[ROWS - 1].id if len(rows) > ROWS else None
    context = {"rows": [audited(desk, row) for row in rows[:ROWS]], "after": after, "which": which}
    return Page("audit.html", {"nav": "audit", **context})


def audited(desk: Desk, row: Act) -> dict[str, Any]:
    """Give what somebody did, its secrets out of sight; of a payload nothing, where its kind is sensitive."""
    fields = vars(row).copy()
    kind = row.filter.get("kind") if isinstance(row.filter, dict) else None
    for name in ("filter", "before", "after"):
        fields[name] = desk.curtain.data(kind if isinstance(kind, str) else "", fields[name])
    return fields
