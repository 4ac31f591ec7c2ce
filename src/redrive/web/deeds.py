"""What an operator does to kinds and schedules: each a form, with a name and a reason to it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from redrive.errors import InvalidOption
from redrive.settings import seconds
from redrive.sql import AMQP
from redrive.web.page import Done, Form
from redrive.words import span

if TYPE_CHECKING:
    from starlette.requests import Request

    from redrive.web.app import Desk


def pause_kind(desk: Desk, request: Request, form: Form) -> Done:
    """Start no more jobs of a kind."""
    until = _until(desk, form.text("until"))
    kind = form.text("kind")
    desk.queue.kinds.pause(kind, by=desk.by(request), reason=form.text("reason"), until=until)
    what = "all kinds are" if kind == "*" else f"{kind} is"
    return Done("kinds", f"{what} paused. What runs goes on, and what is enqueued waits.")


def resume_kind(desk: Desk, request: Request, form: Form) -> Done:
    """Let jobs of a kind start again."""
    kind = form.text("kind")
    was = desk.queue.kinds.resume(kind, by=desk.by(request))
    what = "The pause of all kinds" if kind == "*" else f"The pause of {kind}"
    return Done("kinds", f"{what} is over." if was else f"{kind} was not paused.", bad=not was)


def limit_kind(desk: Desk, request: Request, form: Form) -> Done:
    """Set how much of a kind may run."""
    kind = form.text("kind")
    limits: dict[str, Any] = {
        "running": _count(form, "running"),
        "rate": read_rate(form, "rate"),
        "burst": _count(form, "burst"),
        "lane_running": _count(form, "lane_running"),
        "lane_rate": read_rate(form, "lane_rate"),
        "lane_burst": _count(form, "lane_burst"),
    }
    given = {name: value for name, value in limits.items() if value is not None}
    desk.queue.kinds.limit(kind, by=desk.by(request), **given)
    return Done("kinds", f"The limits of {kind} are set." if given else f"{kind} has no limits.", {"kind": kind})


def route_kind(desk: Desk, request: Request, form: Form) -> Done:
    """Let the jobs of a kind go over the broker, or from the table again."""
    kind, route = form.text("kind"), form.text("route")
    desk.queue.kinds.route(kind, route, by=desk.by(request), reason=form.text("reason"))
    if route == AMQP:
        said = "are handed to the broker by redrive relay, and run by redrive worker --broker"
    else:
        said = "are run from the table again; what is at the broker is run from there"
    return Done("kinds", f"The jobs of {kind} {said}.", {"kind": kind})


def open_breaker(desk: Desk, request: Request, form: Form) -> Done:
    """Hold the jobs of a kind, or of one target within it, because what they call is down or will be."""
    kind, hold = form.text("kind"), form.text("hold")
    wait = seconds(hold, "probe after") if hold else None
    row = desk.queue.breakers.open(
        kind, form.text("target"), by=desk.by(request), reason=form.text("reason"), hold=wait
    )
    until = "until somebody lets them go" if row.by_hand else f"and one is sent as a probe in {span(wait or 0.0)}"
    return Done("kinds", f"The jobs of {row.name} are held, {until}. What runs goes on.", {"kind": kind})


def close_breaker(desk: Desk, request: Request, form: Form) -> Done:
    """Let go what waits for a service that was down."""
    kind, target = form.text("kind"), form.text("target")
    at_once = form.text("at_once") == "1"
    row = desk.queue.breakers.close(kind, target, by=desk.by(request), reason=form.text("reason"), at_once=at_once)
    if row is None:
        return Done("kinds", f"Nothing of {kind} was held.", bad=True)
    how = "all at once" if row.state == "closed" else "at a rising rate"
    return Done("kinds", f"What waits of {row.name} is let out, {how}.")


def pause_schedule(desk: Desk, request: Request, form: Form) -> Done:
    """Enqueue nothing for a schedule until it is resumed."""
    name = form.text("name")
    desk.queue.schedules.pause(name, by=desk.by(request), reason=form.text("reason"))
    return Done("schedule", f"{name} is paused.", {"name": name})


def resume_schedule(desk: Desk, request: Request, form: Form) -> Done:
    """Let a schedule go on."""
    name = form.text("name")
    desk.queue.schedules.resume(name, by=desk.by(request))
    return Done("schedule", f"{name} goes on from its next slot.", {"name": name})


def run_schedule(desk: Desk, request: Request, form: Form) -> Done:
    """Enqueue a schedule's job now."""
    name = form.text("name")
    made = desk.queue.schedules.run(name, by=desk.by(request))
    return Done("schedule", f"Job {made.id} of {name} is enqueued.", {"name": name})


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


def read_rate(form: Form, name: str) -> float | None:
    """Read a rate like 10/s, 300/min or 1/h, in starts a second; None where there is none.

    Raises:
        InvalidOption: when it can't be read.
    """
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
