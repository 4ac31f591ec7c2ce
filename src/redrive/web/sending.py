"""Sending back and cancelling: what is meant is shown before it is done, and done through the engine that all share.

A form says which jobs by their ids, by a search or by a failure group; what it said is read anew when it is sent, so
what changed meanwhile is left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from redrive import search
from redrive.audit import signed
from redrive.ended import Ended
from redrive.errors import InvalidOption
from redrive.groups import Groups
from redrive.job import LIVE
from redrive.requeues import Requeues, changed, loaded
from redrive.statements import named
from redrive.web.deeds import read_rate
from redrive.web.page import Done, Form, Page, Refused
from redrive.words import jobs as in_words
from redrive.words import number

if TYPE_CHECKING:
    from starlette.requests import Request

    from redrive.web.app import Desk

MOST = 10_000
"""Jobs that are counted, or named one by one."""
AT_ONCE = 1_000
"""Jobs that a form sends back while one waits for the answer; more are left to the workers."""
PATIENCE = 10.0
"""Seconds for which all that match are looked for."""
VERBS = {"requeue": "Send back", "cancel": "Cancel", "hurry": "Run now"}
STATES = {"requeue": ("dead", "failed"), "cancel": LIVE, "hurry": ("pending",)}
"""In which states a job can be for each."""


@dataclass(frozen=True)
class Meant:
    """Which jobs a form means."""

    which: Ended
    count: int
    counted: str
    """The count in words: with a + where there are more than were counted."""
    sample: Sequence[int]
    by_kind: Sequence[tuple[tuple[str, str], int]] = ()
    unfit: int = 0
    """Selected ones that are in no state for it."""


def confirm(desk: Desk, request: Request) -> Page:
    """Show what a deed would be done to, before it is."""
    deed = request.query_params.get("do", "")
    given = _given(request.query_params.get, request.query_params.getlist)
    meant = find(desk, deed, given)
    return Page(
        "confirm.html",
        {"nav": "dead" if given.group else "jobs", "deed": deed, "verb": VERBS[deed], "meant": meant, "given": given},
    )


def act(desk: Desk, request: Request, form: Form) -> Done:
    """Send jobs back, or cancel them."""
    deed = form.text("do")
    given = _given(lambda name, default="": form.text(name) or default, form.all)
    by, reason = desk.by(request), form.text("reason")
    if deed == "requeue":
        return _send_back(desk, given, form, by, reason)
    meant = find(desk, deed, given)
    ids = meant.which.ids or []
    if deed == "hurry":
        moved = _run_now(desk, ids, by, reason) if ids else 0
        return _done(given, form, f"{in_words(moved)} due now", moved, meant.count - moved + meant.unfit)
    states = list(desk.queue.cancel(*ids, by=by, reason=reason).values()) if ids else []
    cancelled, asked = states.count("pending"), states.count("running")
    said = f"{in_words(cancelled)} cancelled" + (f", {number(asked)} running asked to stop" if asked else "")
    return _done(given, form, said, cancelled + asked, meant.count - cancelled - asked + meant.unfit)


def _run_now(desk: Desk, ids: Sequence[int], by: str, reason: str) -> int:
    """Let jobs run now that wait for a later time, and wake who runs them."""
    schema = desk.queue.schema
    moved = desk.queue.ask(named("desk_run_now", schema, ids=list(ids), **signed(by, reason)))
    if moved:
        desk.queue.ask(named("wake", schema))
    return len(moved)


def stop(desk: Desk, request: Request, form: Form) -> Done:
    """Send no more back of what is being sent back over time."""
    number_given = _number(form.text("id"))
    if not (found := desk.queue.requeues.get(number_given)).active:
        return Done("dead", f"It had ended before: {found.status}.", bad=True)
    row = desk.queue.requeues.stop(number_given, by=desk.by(request), reason=form.text("reason"))
    return Done("dead", f"Stopped after {in_words(row.moved)}; the others stay dead.")


def edit(desk: Desk, request: Request, form: Form) -> Done:
    """Give a dead job another payload, whole or at one path, and send it back."""
    job_id = _number(form.text("id"))
    if (path := form.text("path")) or not form.text("payload"):
        if (job := desk.queue.get(job_id)) is None:
            raise Refused(f"Job {job_id} is gone.")
        payload = changed(job.payload, path, _value(form.text("value")))
    else:
        payload = loaded(form.text("payload"))
    send = form.text("send") == "1"
    by, reason = desk.by(request), form.text("reason")
    if not desk.queue.requeues.edit(job_id, payload, send=send, by=by, reason=reason):
        return Done("job", "Its state had changed: it is left as it was.", params={"id": str(job_id)}, bad=True)
    said = "Its payload is changed, and it is sent back." if send else "Its payload is changed."
    return Done("job", f"{said} What it was is kept in the audit.", params={"id": str(job_id)})


@dataclass(frozen=True)
class Given:
    """What a form says of which jobs it means."""

    text: str
    every: bool
    ids: Sequence[int]
    group: str


def find(desk: Desk, deed: str, given: Given) -> Meant:
    """Find the jobs that are meant, and are in a state for it.

    Raises:
        InvalidOption: for a deed that there is not.
        Refused: when nothing was selected, or it takes too long to find.
    """
    if deed not in VERBS:
        raise InvalidOption(f"do is {deed!r:.40}: one of {', '.join(VERBS)}")
    if deed == "requeue" and given.group:
        return _counted(desk, Groups(desk.reader).find(given.group).which)
    if given.ids:
        return _named(desk, deed, search.Search(ids=tuple(given.ids)))
    if not given.every:
        raise Refused("No job was selected: tick some, or choose all that match.")
    wanted = search.read(given.text, sensitive=desk.curtain.sensitive)
    if deed == "requeue" and (which := wanted.ended(desk.now())) is not None:
        return _counted(desk, which)
    states = {"requeue": ("dead",), "cancel": LIVE, "hurry": ("scheduled",)}[deed]
    return _named(desk, deed, wanted if wanted.statuses else replace(wanted, statuses=states))


def _counted(desk: Desk, which: Ended) -> Meant:
    seen = Requeues(desk.reader).preview(which, most=MOST)
    return Meant(which, seen.jobs, seen.counted, seen.sample)


def _named(desk: Desk, deed: str, wanted: search.Search) -> Meant:
    """Find jobs that no filter of the engine describes, and name them one by one."""
    finder = search.Finder(desk.queue.schema, desk.reader.ask, budget=PATIENCE)
    found = finder.page(wanted, desk.now(), limit=MOST)
    if not found.searched:
        raise Refused("To find all that match takes too long here: narrow it down, such as by status: or id:.")
    now = desk.now()
    fit = [row for row in found.rows if row.status in STATES[deed] and (deed != "hurry" or row.run_at > now)]
    ids = [row.id for row in fit]
    by_kind = Counter((row.kind, row.status) for row in fit).most_common()
    counted = number(len(ids)) + ("+" if found.after is not None else "")
    which = Ended(ids=ids, statuses=("dead", "failed"))
    return Meant(which, len(ids), counted, ids[:10], by_kind, len(found.rows) - len(fit))


def _send_back(desk: Desk, given: Given, form: Form, by: str, reason: str) -> Done:
    meant = find(desk, "requeue", given)
    rate, canary = read_rate(form, "rate"), form.text("canary") == "1"
    if not meant.count:
        return _done(given, form, f"{in_words(0)} sent back", 0, meant.unfit)
    if canary or rate or meant.count > AT_ONCE:
        made = desk.queue.requeues.start(meant.which, by=by, reason=reason, canary=canary, rate=rate)
        how = "one first, and the others if it succeeds" if canary else "by the workers"
        return Done("dead", f"{in_words(made.matched or 0)} are being sent back: {how}.")
    moved = len(desk.queue.requeue(meant.which, by=by, reason=reason))
    return _done(given, form, f"{in_words(moved)} sent back", moved, meant.count - moved + meant.unfit)


def _done(given: Given, form: Form, said: str, done: int, skipped: int) -> Done:
    if skipped > 0:
        said += f"; {number(skipped)} left alone, their state had changed"
    if form.text("back") == "job" and len(given.ids) == 1:
        return Done("job", f"{said}.", params={"id": str(given.ids[0])}, bad=not done)
    if given.group:
        return Done("dead", f"{said}.", bad=not done)
    return Done("jobs", f"{said}.", {"q": given.text or None}, bad=not done)


def _given(text: Callable[..., Any], texts: Callable[[str], list[str]]) -> Given:
    every = text("all", "") == "1"
    ids = [] if every else [_number(each) for each in dict.fromkeys(texts("id"))]
    return Given(text("q", "") or "", every, ids, text("group", "") or "")


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidOption(f"id is {text!r:.40}: it is a whole number") from None


def _value(text: str) -> Any:
    """Read a value as JSON, or as the text that it is."""
    try:
        return loaded(text)
    except InvalidOption:
        return text
