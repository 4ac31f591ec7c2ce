"""The pages that look: what each reads, and under which name its template finds it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from redrive import schedules as plans
from redrive import search, situation, store
from redrive.curtain import gist
from redrive.errors import InvalidOption
from redrive.groups import listed
from redrive.timetable import timetable
from redrive.web.page import Page
from redrive.words import clean, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from redrive.situation import Part
    from redrive.web.app import Desk

ROWS = 50
AGES = {"late": 8.0, "working": 12.0, "failing": 20.0, "stuck": 20.0, "planned": 30.0, "postgres": 30.0}
"""Seconds for which what was read is good enough for everybody who looks."""
QUESTIONS = {
    "late": ("Is work late?", "No: nothing waits too long."),
    "failing": ("Is it failing?", "No: nothing died within a day."),
    "working": ("Who is working?", "Workers are alive and well."),
    "stuck": ("What is stuck?", "Nothing."),
    "planned": ("Are schedules late?", "No."),
    "postgres": ("Is Postgres the cause?", "No: nothing of note."),
}


def now(desk: Desk, request: Request) -> Page:  # noqa: ARG001 - as every view
    """Everything that somebody on call asks first."""
    parts = {name: part(desk, name) for name in AGES}
    findings = sorted(
        (finding for each in parts.values() for finding in each.findings), key=lambda finding: finding.level != "bad"
    )
    context = {
        "nav": "now",
        "parts": parts,
        "questions": QUESTIONS,
        "bad": [finding for finding in findings if finding.level == "bad"],
        "notes": [finding for finding in findings if finding.level != "bad"],
        "unknown": [text for each in parts.values() for text in each.unknown],
        "kinds": pressure(parts["late"], parts["failing"]),
        "most": situation.MOST,
        "timeouts": bool(desk.timeouts),
        "now": desk.now(),
    }
    return Page("now.html", context)


def part(desk: Desk, name: str) -> Part:
    """Read one of the questions, or take what was read a moment ago."""
    reading = situation.Reading(desk.reader.ask, desk.queue.settings, desk.timeouts)
    reads: dict[str, Callable[[], Part]] = {
        "late": lambda: situation.late(reading),
        "failing": lambda: situation.failing(reading),
        "working": lambda: situation.working(reading),
        "stuck": lambda: situation.stuck(reading),
        "planned": lambda: situation.planned(reading),
        "postgres": lambda: situation.postgres(reading, lambda: datetime.now(UTC)),
    }
    return desk.shared.get(name, AGES[name], reads[name])


def pressure(late: Part, failing: Part) -> list[dict[str, Any]]:
    """Put together a row a kind, the one whose oldest job waits longest first."""
    rows: dict[str, dict[str, Any]] = {}

    def row(kind: str) -> dict[str, Any]:
        blank = {"kind": kind, "pending": 0, "due": 0, "capped": False, "age": None, "running": 0, "longest": None}
        return rows.setdefault(kind, blank | {"hour": 0, "day": 0, "mostly": "", "set": None})

    for each in late.rows["waiting jobs"]:
        row(each.kind).update(pending=each.pending, due=each.due, capped=each.capped)
    for each in late.rows["oldest due"]:
        row(each.kind)["age"] = each.age
    for each in late.rows["running jobs"]:
        row(each.kind).update(running=each.jobs, longest=each.longest)
    for each in failing.rows["failures"]:
        row(each.kind).update(hour=each.hour, day=each.day, mostly=each.mostly)
    for each in late.rows["kinds"]:
        if each.kind != "*":
            row(each.kind)["set"] = each
    for worker in late.rows["workers"]:
        for kind in worker.kinds if worker.alive else ():
            row(kind)
    return sorted(rows.values(), key=lambda found: (-(found["age"] or 0.0), -found["hour"], found["kind"]))


def dead(desk: Desk, request: Request) -> Page:
    """Dead jobs by kind and error."""
    kind = request.query_params.get("kind") or None
    groups = desk.shared.get(
        ("dead", kind), 10.0, lambda: desk.reader.ask(listed(desk.queue.schema, kind=kind, retrying=False, limit=100))
    )
    return Page("dead.html", {"nav": "dead", "groups": groups, "kind": kind, "failing": part(desk, "failing")})


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
        before = _id(request.query_params.get("from"))
    except InvalidOption as error:
        return Page("jobs.html", context | {"wrong": one_line(str(error))}, 400)
    found = desk.shared.get(("jobs", text, before), 2.0, lambda: find(desk, wanted, before))
    searched_to = None
    if found.searched_to is not None:
        when = desk.reader.ask(desk.reader.statement("desk_at", id=found.searched_to))
        searched_to = when[0].created_at if when else None
    rows = [shown_job(desk, row) for row in found.rows]
    return Page("jobs.html", context | {"found": found, "rows": rows, "searched_to": searched_to, "search": wanted})


def known_kinds(desk: Desk) -> list[str]:
    """List the kinds that have jobs, failures, limits or a live worker."""
    return sorted(row["kind"] for row in pressure(part(desk, "late"), part(desk, "failing")))


def find(desk: Desk, wanted: search.Search, before: int | None, limit: int = ROWS) -> search.Found:
    """Answer a search, a page of it."""
    finder = search.Finder(desk.queue.schema, desk.reader.ask)
    return finder.page(wanted, desk.now(), before=before, limit=limit)


def shown_job(desk: Desk, row: Any) -> dict[str, Any]:
    """Give a job of a list, its secrets out of sight."""
    fields: dict[str, Any] = row._asdict()
    large = fields["payload"] is None
    payload = desk.curtain.data(row.kind, row.payload)
    return fields | {"payload": payload, "large": large, "error": one_line(gist(row.last_error), 200)}


def kinds(desk: Desk, request: Request) -> Page:
    """What is paused and limited, and what each kind does."""
    late = part(desk, "late")
    rows = pressure(late, part(desk, "failing"))
    everything = next((row for row in late.rows["kinds"] if row.kind == "*"), None)
    known: dict[str, list[str]] = {kind: [] for kind in (row["kind"] for row in rows)}
    for worker in late.rows["workers"]:
        for kind in worker.kinds if worker.alive else ():
            known.setdefault(kind, []).append(worker.name)
    chosen = request.query_params.get("kind")
    return Page(
        "kinds.html",
        {
            "nav": "kinds",
            "rows": sorted(rows, key=lambda row: row["kind"]),
            "all": everything,
            "known": known,
            "chosen": next((row for row in rows if row["kind"] == chosen), None),
            "most": situation.MOST,
        },
    )


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
        },
    )


def schedules(desk: Desk, request: Request) -> Page:  # noqa: ARG001 - as every view
    """The schedules, and which are late."""
    rows = desk.shared.get("schedules", 5.0, lambda: desk.reader.ask(plans.get(desk.queue.schema)))
    return Page("schedules.html", {"nav": "schedules", "rows": rows, "part": part(desk, "planned")})


def schedule(desk: Desk, request: Request) -> Page:
    """One schedule, its last slots and the next ones."""
    name = request.query_params.get("name", "")
    found = desk.reader.ask(plans.get(desk.queue.schema, store.name(name, "name")))
    if not found:
        raise HTTPException(404)
    [row] = found
    slots = desk.reader.ask(plans.slots(desk.queue.schema, name, 30))
    following: list[datetime] = []
    if row.state == "active":
        try:
            table = timetable(row.cron, row.every, row.at, row.timezone, row.anchor)
            moment: datetime | None = desk.now()
            while moment and len(following) < 10 and (moment := table.next(moment)):  # noqa: PLR2004 - a screenful
                following.append(moment)
        except InvalidOption:
            following = []
    context = {"nav": "schedules", "row": row, "slots": slots, "following": following}
    return Page("schedule.html", context | {"payload": desk.curtain.data(row.kind, row.payload)})


def audit(desk: Desk, request: Request) -> Page:
    """Who did what."""
    before = _id(request.query_params.get("from"))
    rows = desk.shared.get(
        ("audit", before),
        5.0,
        lambda: desk.reader.ask(desk.reader.statement("desk_audit", before=before, limit=ROWS + 1)),
    )
    after = rows[ROWS - 1].id if len(rows) > ROWS else None
    return Page("audit.html", {"nav": "audit", "rows": [_audited(desk, row) for row in rows[:ROWS]], "after": after})


def _audited(desk: Desk, row: Any) -> dict[str, Any]:
    fields: dict[str, Any] = row._asdict()
    return fields | {"filter": desk.curtain.data("", row.filter)}


def _id(text: str | None) -> int | None:
    try:
        return None if not text else int(text)
    except ValueError:
        raise InvalidOption(f"from is {text!r:.40}: it is the id of a job") from None
