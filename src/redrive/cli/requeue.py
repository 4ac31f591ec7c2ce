"""``redrive requeue``: sends dead jobs back, at once or over time, as they are or with another payload.

It never takes "nothing said" for "all", and says which jobs were not as expected when their turn came.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.exits import PROBLEM, Misused, Trouble
from redrive.cli.kinds import Rate
from redrive.cli.mend import JobId, ask, bar, certain, ended, preview, rehearsal, unfit
from redrive.cli.options import application, as_json, database, examples, signed
from redrive.cli.resend import again
from redrive.cli.session import Session, session
from redrive.cli.times import When, before

if TYPE_CHECKING:
    from redrive.ended import Ended
    from redrive.requeues import Requeue

LOOK_EVERY = 0.3
NOBODY_AFTER = 5.0
"""Seconds after which it is said that no worker has begun."""


class Pair(click.ParamType[tuple[str, Any]]):
    """A path and a value, as in ``user.name=Ada`` or ``retries=3``; a value that isn't JSON is text."""

    name = "path=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Read the text."""
        path, equals, text = str(value).partition("=")
        if not equals or not path:
            self.fail(f"{value!r}: write path=value, as in to=ada@example.com or items.0.count=3", param, ctx)
        try:
            return path.removeprefix("payload."), json.loads(text)
        except ValueError:
            return path.removeprefix("payload."), text


@click.command(
    short_help="Send dead jobs back.",
    epilog=examples(
        "redrive requeue 42 43",
        "redrive requeue --group send_email:3fa9c1d2 --canary --rate 50/s",
        "redrive requeue --kind send_email --error 'connection refused' --dry-run",
        "redrive requeue --kind send_email --payload to=ada@example.com --since 2h --yes",
        "redrive requeue 42 --set to=ada@example.com        # with another payload",
        "redrive requeue --status failed --kind export      # cancelled and discarded ones",
        "redrive requeue --at-broker --kind send_email      # whose messages were purged at the broker",
    ),
)
@click.argument("ids", nargs=-1, type=JobId())
@click.option("--group", metavar="GROUP", help="Jobs of this failure group, as `redrive dead` names it.")
@click.option("--kind", metavar="KIND", help="Jobs of this kind.")
@click.option("--error", metavar="TEXT", help="Jobs whose last error contains this text, in any case.")
@click.option("--payload", type=Pair(), multiple=True, metavar="PATH=VALUE", help="Jobs whose payload has this there.")
@click.option("--since", type=When(), metavar="TIME", help="Jobs that ended since: 2h, 7d, 2030-01-31T09:00Z.")
@click.option("--until", type=When(), metavar="TIME", help="Jobs that ended before.")
@click.option("--status", type=click.Choice(["dead", "failed"]), multiple=True, help="In which state (default: dead).")
@click.option(
    "--at-broker",
    is_flag=True,
    help="Jobs whose rows say that they are at a broker: their messages are gone, so send them again. With ids, --kind "
    "and --until: those that went there before (default: 10m, without ids).",
)
@click.option("--all", "everything", is_flag=True, help="All of them, without any filter.")
@click.option("--canary", is_flag=True, help="Send one, and the others only if it succeeds at its first try.")
@click.option(
    "--rate", type=Rate(), metavar="N/SPAN", help="Over time: 50/s, 300/m. Workers go on with it by themselves."
)
@click.option("--detach", is_flag=True, help="With --canary or --rate: don't stay to watch.")
@click.option(
    "--set", "sets", type=Pair(), multiple=True, metavar="PATH=VALUE", help="One job, with this in its payload."
)
@click.option("--payload-file", metavar="FILE", help="One job, with the JSON of a file as its payload; - for stdin.")
@click.option("--edit", is_flag=True, help="One job, with the payload that you make of it in $EDITOR.")
@signed
@rehearsal
@certain
@application
@as_json
@database
def requeue(
    *,
    ids: tuple[int, ...],
    database_url: str | None,
    schema: str | None,
    app: str | None,
    group: str | None,
    payload: tuple[tuple[str, Any], ...],
    since: Any,
    until: Any,
    status: tuple[str, ...],
    at_broker: bool,
    everything: bool,
    canary: bool,
    rate: float | None,
    detach: bool,
    sets: tuple[tuple[str, Any], ...],
    payload_file: str | None,
    edit: bool,
    by: str,
    reason: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """Send dead jobs back, each with all its attempts before it again; their history is kept.

    Say which: by IDS, or by filters, which must all match. Safe while workers run, and while somebody else does the
    same: each job moves once. With --canary or --rate it is the workers who send them, and what you see is how far they
    are: it goes on when you leave. Who did it, and why, stands in `redrive audit`.

    With --at-broker it is jobs that keep their row while they are at a broker, where somebody has purged their queue:
    `redrive doctor` finds them. Their tries stay as they are. One whose message is there after all is run twice.
    """
    filters |= {"ids": ids or None, "payload": dict(payload) or None, "group": group, "since": since, "until": until}
    if not (everything or any(filters.values())):
        raise click.UsageError(
            "which jobs? Give ids, --group, --kind, --error, --payload, --since or --until; or --all for all of them"
        )
    over_time = canary or rate is not None
    if detach and not over_time:
        raise click.UsageError("--detach goes with --canary or --rate: without these it is done at once")
    signature = {"by": by, "reason": reason}
    if at_broker:
        _demand_alone(filters | {"status": status, "way": over_time or sets or edit or payload_file is not None})
        how: dict[str, Any] = {"kind": filters["kind"], "until": until, "dry_run": dry_run, "yes": yes}
        with session(database_url, schema) as now:
            answer = again(now, ids, as_json=as_json, **how, by=by, reason=reason)
        _tell(answer, as_json=as_json)
        return
    if sets or payload_file is not None or edit:
        if len(ids) != 1 or over_time or dry_run or sum(map(bool, filters.values())) > 1:
            raise click.UsageError(
                "another payload is for one job alone: redrive requeue ID with --set, --payload-file or --edit"
            )
        with session(database_url, schema) as now:
            changed = _changed(now, ids[0], app, sets, payload_file, edit=edit)
            _send_changed(now, ids[0], changed, as_json=as_json, **signature)
        return
    with session(database_url, schema) as now:
        which = _which(now, filters, status or ("dead",))
        found = now.queue.requeues.preview(which, connection=now.conn)
        missing = unfit(now, ids, lambda job: ended(job) in which.statuses)
        if not as_json:
            preview(f"{screen.jobs(found.jobs, ' or '.join(which.statuses))} found", found.sample, missing)
        moved: list[int] = []
        if found.jobs and not dry_run:
            ask(f"Send back {screen.jobs(found.jobs)}?", yes=yes or bool(ids))
            if over_time:
                started = now.queue.requeues.start(which, canary=canary, rate=rate, connection=now.conn, **signature)
                _over_time(now, started, detach=detach, as_json=as_json)
                return
            moved = _at_once(now, which, found.jobs, **signature)
    answer = {"matched": found.jobs, "requeued": len(moved), "skipped": 0, "dry_run": dry_run}
    _tell({**answer, "ids": moved, "sample": found.sample, "not_requeued": missing}, as_json=as_json)


def _demand_alone(given: dict[str, Any]) -> None:
    if any(value for name, value in given.items() if name not in ("ids", "kind", "until")):
        raise click.UsageError("--at-broker goes with ids, --kind, --until or --all, and with no other filter or way")


def _tell(answer: dict[str, Any], *, as_json: bool) -> None:
    if not answer["dry_run"]:
        answer["skipped"] = max(0, answer["matched"] - answer["requeued"])
    if as_json:
        screen.document(answer)
    elif not answer["dry_run"]:
        moved = screen.number(answer["requeued"])
        click.echo(f"{moved} sent back, {answer['skipped']} skipped because their state changed")
    if answer["not_requeued"]:
        raise click.exceptions.Exit(PROBLEM)


def _which(now: Session, given: dict[str, Any], statuses: tuple[str, ...]) -> Ended:
    from redrive.ended import Ended

    times = {name: before(given[name], now.now) for name in ("since", "until")}
    if given["group"] is not None:
        group = now.queue.groups.find(given["group"], connection=now.conn)
        if given["kind"] not in (None, group.kind):
            raise click.UsageError(f"group {group.id} is of kind {group.kind}, not {given['kind']}")
        given |= {"kind": group.kind, "group": group.key}
    return Ended(**given | times, statuses=statuses)


def _at_once(now: Session, which: Ended, total: int, **signature: str) -> list[int]:
    with bar("sending back", total) as advance:
        try:
            return now.queue.requeue(which, connection=now.conn, on_batch=advance, **signature)
        except KeyboardInterrupt:
            # Counted anew: the signal may have come between a batch's commit and our hearing of it.
            left = now.queue.requeues.preview(which, connection=now.conn)
            raise Trouble(f"stopped: {screen.jobs(left.jobs)} left as they were, the others were sent back") from None


def _over_time(now: Session, row: Requeue, *, detach: bool, as_json: bool) -> None:
    """Follow what the workers do, until it ends or the human leaves."""
    if detach:
        if as_json:
            screen.document(document(row))
        else:
            click.echo(
                f"requeue {row.id} begun; see `redrive requeues list`, end it with `redrive requeues stop {row.id}`"
            )
        return
    try:
        row = _follow(now, row, quiet=as_json)
    except KeyboardInterrupt:
        screen.note(
            f"\nit goes on without you: `redrive requeues list` shows it, `redrive requeues stop {row.id}` ends it"
        )
        return
    if as_json:
        screen.document(document(row))
    if row.status != "done":
        raise Trouble(f"requeue {row.id} {told(row)}") if not as_json else click.exceptions.Exit(PROBLEM)


def _follow(now: Session, row: Requeue, *, quiet: bool) -> Requeue:
    live = sys.stdout.isatty()
    said, began, lonely = "", time.monotonic(), False
    while True:
        row = now.queue.requeues.get(row.id, connection=now.conn)
        line = f"requeue {row.id}: {told(row)}"
        if line != said and not quiet and (row.active or row.status == "done"):
            if live:
                click.echo("\r\x1b[K" + screen.clean(line), nl=not row.active)
            else:
                click.echo(screen.clean(line))
            said = line
        if not row.active:
            return row
        if row.status == "waiting" and not lonely and time.monotonic() - began > NOBODY_AFTER:
            lonely = True
            screen.note(f"{chr(10) * live}no worker has begun with it yet: is one running? See `redrive workers`")
        time.sleep(LOOK_EVERY)


def told(row: Requeue) -> str:
    """Say in a line how far it is, errors masked."""
    from redrive.cli.curtain import text

    moved = f"{screen.number(row.moved)} of {screen.number(row.matched or row.moved)} sent back"
    match row.status:
        case "waiting":
            return "waits for a worker"
        case "canary":
            return f"the canary is job {row.canary_id}; waits for its outcome"
        case "running":
            return moved + (f", {row.rate:g} a second" if row.rate else "")
        case "done":
            return f"done, {moved}, {screen.number(row.skipped)} skipped because their state changed"
    return screen.one_line(f"{row.status}, {moved}: {text(row.why) or 'no reason given'}")


def document(row: Requeue) -> dict[str, Any]:
    """Give the row for a script, errors masked."""
    from redrive.cli.curtain import Curtain, text

    filter_ = Curtain().data("", row.filter)
    return {**vars(row), "filter": filter_, "why": text(row.why), "left": row.left, "active": row.active}


def _changed(
    now: Session,
    job_id: int,
    app: str | None,
    sets: tuple[tuple[str, Any], ...],
    payload_file: str | None,
    *,
    edit: bool,
) -> Any:
    """Make the new payload of a job."""
    from redrive import store
    from redrive.cli.target import load_queue
    from redrive.requeues import changed, loaded

    if app:
        now.queue.handlers = load_queue(app).handlers
    rows = now.ask(store.get(now.schema, job_id))
    if not rows or ended(rows[0]) not in ("dead", "failed"):
        state = rows[0].status if rows else "not there"
        raise Trouble(f"job {job_id} is {state}: only dead and failed jobs are sent back")
    payload = rows[0].payload if payload_file is None else loaded(_read(payload_file))
    for path, value in sets:
        payload = changed(payload, path, value)
    if edit:
        text = click.edit(json.dumps(payload, indent=2, ensure_ascii=False) + "\n", extension=".json")
        if text is None and payload == rows[0].payload:
            raise Trouble(
                "the payload was not changed, and the job not sent back; leave --edit out to send it as it is"
            )
        payload = payload if text is None else loaded(text)
    return payload


def _send_changed(now: Session, job_id: int, payload: Any, *, as_json: bool, **signature: Any) -> None:
    if not now.queue.requeues.edit(job_id, payload, connection=now.conn, **signature):
        raise Trouble(f"job {job_id} came into another state meanwhile; nothing was changed")
    if as_json:
        screen.document({"id": job_id, "requeued": True})
    else:
        click.echo(f"job {job_id} sent back with another payload; what it was stands in `redrive show {job_id}`")


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Misused(f"--payload-file {name}: {error}") from error
