"""``redrive requeue --at-broker``: jobs that keep their row while they are at the broker, and whose message is gone.

Where the broker can be asked and has messages of that kind, it is for ids or --yes to say that they are others.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from redrive.cli import screen
from redrive.cli.exits import Trouble
from redrive.cli.mend import ask, preview, unfit
from redrive.cli.times import before
from redrive.words import counted

if TYPE_CHECKING:
    from redrive.cli.session import Session
    from redrive.job import Job

TWICE = "note: a job whose message is at the broker after all, or that has run from there, is run twice"


def again(
    now: Session,
    ids: tuple[int, ...],
    *,
    kind: str | None,
    until: Any,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    by: str,
    reason: str,
) -> dict[str, Any]:
    """Send them again, and give the answer."""
    from redrive import resend
    from redrive.rabbitmq import SETTLED
    from redrive.statements import follow

    went = before(until or timedelta(seconds=0 if ids else SETTLED), now.now)
    which = resend.AtBroker(ids=ids or None, kind=kind, until=min(went or now.now, now.now))
    [found] = now.ask(resend.preview(now.schema, which))
    missing = unfit(now, ids, _at_broker)
    if not as_json:
        preview(f"{screen.jobs(found.jobs)} at the broker found", found.sample, missing)
    moved: list[int] = []
    if found.jobs:
        screen.note(TWICE)
        there = _there(now, found.kinds)
        if there and (dry_run or ids or yes):
            screen.note(screen.one_line(f"note: {there}"))
        elif there:
            raise Trouble(f"{there}: name those that are lost by their ids, or say --yes")
        if not dry_run:
            ask(f"Send {screen.jobs(found.jobs)} again?", yes=yes or bool(ids))
            moved = follow(now.queue.ask, resend.resend(now.schema, which, by=by, reason=reason), now.conn)
    answer = {"matched": found.jobs, "requeued": len(moved), "skipped": 0, "dry_run": dry_run}
    return {**answer, "ids": moved, "sample": found.sample or [], "not_requeued": missing}


def _at_broker(job: Job) -> bool:
    from redrive.sql import BROKER

    return job.status == "running" and job.locked_by == BROKER


def _there(now: Session, kinds: list[str]) -> str:
    """Say what the broker has of these kinds, where it can be asked; empty where it has nothing."""
    from redrive.amqp import management

    settings = now.queue.settings
    if not settings.broker_management_url:
        return ""
    seen = management.seen(settings, (), kinds)
    has = [(each.messages, each.kind) for each in seen.kinds if each.messages and each.kind in kinds]
    return seen.why or ", ".join(
        counted(count, f"message of kind {kind} is", f"messages of kind {kind} are") + " at the broker"
        for count, kind in has
    )
