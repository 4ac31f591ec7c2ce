"""``redrive schedules``: what is enqueued when, seen, changed, paused and run by hand; and any cron text looked ahead.

No time is shown without its zone. ``next`` needs no database: it asks the same timetable that the workers do.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.enqueue import read_payload
from redrive.cli.exits import Trouble, told
from redrive.cli.options import application, as_json, database, examples, operator, signed
from redrive.cli.screen import Cell
from redrive.cli.session import Session, session
from redrive.cli.target import load_queue
from redrive.cli.times import When, after

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from redrive.schedules import Schedule

    F = TypeVar("F", bound=Callable[..., Any])

_NAME = re.compile(r"\s*[^\W\d]\S*\s*")
"""A single word, as the name of a schedule is mostly and no cron text."""
STATES = {"active": "green", "paused": "yellow", "disabled": "yellow", "ended": "", "broken": "bold red"}


@click.group(
    short_help="See and change what is enqueued when.",
    epilog=examples(
        "redrive schedules list",
        "redrive schedules add nightly report '0 3 * * *' --timezone Europe/Berlin",
        "redrive schedules next '30 1 * * *' --timezone America/New_York",
        "redrive schedules pause nightly --reason 'the report is being mended'",
    ),
)
def schedules() -> None:
    """See and change what is enqueued when.

    Schedules are rows in the database. Workers enqueue what is due, each slot once, however many there are. Those that
    stand in the code of an application are the code's to change and yours to pause.
    """


def plan(command: F) -> F:
    """Add the flags that say when."""
    every = click.option("--every", metavar="SECONDS", help="Instead of CRON: so often, as in 90, 5m, 2h, 1d.")
    zone = click.option("--timezone", default="UTC", show_default=True, metavar="ZONE", help="In which CRON is read.")
    return every(zone(command))


@schedules.command("list", epilog=examples("redrive schedules list", "redrive schedules list --json | jq '.[].name'"))
@as_json
@database
def list_(database_url: str | None, schema: str | None, *, as_json: bool) -> None:
    """List the schedules: when they run, in which zone, what comes next, and what became of the last slot."""
    with session(database_url, schema) as now:
        _demand_tables(now)
        rows = now.queue.schedules.list(connection=now.conn)
    if as_json:
        screen.document([_record(row) for row in rows])
        return
    if not rows:
        screen.note("no schedules: add one with `redrive schedules add`, or @queue.schedule in the code")
        return
    headers = ("NAME", "KIND", "WHEN", "ZONE", "STATE", "NEXT", "LAST", "OWNER", "REMARK")
    lines: list[list[str | Cell]] = [
        [
            row.name,
            row.kind,
            _when(row),
            row.timezone,
            Cell(row.state, STATES[row.state]),
            _local(row.next_run_at, row.timezone),
            f"{_local(row.last_slot, row.timezone)} {row.last_outcome or ''}".strip(),
            row.owner,
            _remark(row, now.now),
        ]
        for row in rows
    ]
    screen.table(headers, lines)


@schedules.command(
    epilog=examples(
        "redrive schedules add nightly report '0 3 * * *' --timezone Europe/Berlin",
        """redrive schedules add sync sync_stock --every 5m --payload '{"shop": 1}' --overlap allow""",
        "redrive schedules add launch announce --at 2030-01-31T09:00+01:00",
    )
)
@click.argument("name")
@click.argument("kind")
@click.argument("cron", required=False)
@plan
@click.option("--at", type=When(), metavar="TIME", help="Instead of CRON: once, then.")
@click.option("--payload", default="{}", metavar="JSON", help="Of each job; - reads it from stdin.")
@click.option(
    "--missed", type=click.Choice(["skip", "latest", "all"]), help="Slots without a worker (default: latest)."
)
@click.option("--most", type=click.IntRange(1, 1000), metavar="N", help="With all: how many, at most (default: 100).")
@click.option("--age", metavar="SECONDS", help="How old a missed slot may be and still be made up for.")
@click.option("--overlap", type=click.Choice(["skip", "queue-one", "allow"]), help="While one runs (default: skip).")
@click.option("--priority", type=click.IntRange(0, 9), help="0 runs first, 9 last (default: 5).")
@click.option("--max-attempts", type=int, metavar="N", help="Tries before a job is dead (default: 5).")
@click.option("--lane", metavar="TEXT", help="A lane within the kind, such as a tenant.")
@signed
@application
@as_json
@database
def add(
    *,
    name: str,
    kind: str,
    cron: str | None,
    at: Any,
    payload: str,
    database_url: str | None,
    schema: str | None,
    app: str | None,
    every: str | None,
    timezone: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Add the schedule NAME, which enqueues jobs of KIND at the times of CRON; or change the one of that name.

    CRON has five fields, or six with the seconds first, or is a name like @daily. Priority and attempts are those of
    the kind's handler where --app or REDRIVE_APP names the application.
    """
    if sum(each is not None for each in (cron, every, at)) != 1:
        raise click.UsageError("when? Give CRON, --every or --at, and only one of them")
    data = read_payload(payload)
    handlers = load_queue(app).handlers if app else None
    options: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    with session(database_url, schema) as now:
        _demand_tables(now)
        now.queue.handlers = handlers or now.queue.handlers
        with now.doubting(kind):
            row = now.queue.schedules.add(
                name,
                kind,
                cron,
                every=every,
                at=after(at, now.now),
                timezone=timezone,
                payload=data,
                connection=now.conn,
                **options,
            )
    _tell(row, as_json=as_json)


@schedules.command(epilog=examples("redrive schedules remove nightly"))
@click.argument("name")
@signed
@database
def remove(*, name: str, by: str, reason: str, database_url: str | None, schema: str | None) -> None:
    """Remove a schedule. Jobs that it has enqueued stay; what became of its slots is kept for a while."""
    with session(database_url, schema) as now:
        _demand_tables(now)
        now.queue.schedules.remove(name, by=by, reason=reason, connection=now.conn)
    click.echo(f"schedule {screen.clean(name)} removed")


@schedules.command(epilog=examples("redrive schedules pause nightly --reason 'the report is being mended'"))
@click.argument("name")
@click.option("--by", metavar="TEXT", help="Who (default: the user of the shell).")
@click.option("--reason", default="", metavar="TEXT", help="Why; shown wherever the schedule is.")
@as_json
@database
def pause(
    *, name: str, by: str | None, reason: str, database_url: str | None, schema: str | None, as_json: bool
) -> None:
    """Enqueue nothing for a schedule until it is resumed. What comes due meanwhile is not made up for."""
    with session(database_url, schema) as now:
        _demand_tables(now)
        row = now.queue.schedules.pause(name, by=by or operator(), reason=reason, connection=now.conn)
    _tell(row, as_json=as_json)


@schedules.command(epilog=examples("redrive schedules resume nightly"))
@click.argument("name")
@signed
@as_json
@database
def resume(*, name: str, by: str, reason: str, database_url: str | None, schema: str | None, as_json: bool) -> None:
    """Let a paused schedule go on from its next slot."""
    with session(database_url, schema) as now:
        _demand_tables(now)
        row = now.queue.schedules.resume(name, by=by, reason=reason, connection=now.conn)
    _tell(row, as_json=as_json)


@schedules.command(epilog=examples("redrive schedules run nightly"))
@click.argument("name")
@signed
@as_json
@database
def run(*, name: str, by: str, reason: str, database_url: str | None, schema: str | None, as_json: bool) -> None:
    """Enqueue a schedule's job now, whatever its plan, overlap or pause say."""
    with session(database_url, schema) as now:
        _demand_tables(now)
        made = now.queue.schedules.run(name, by=by, reason=reason, connection=now.conn)
    if as_json:
        screen.document({"id": made.id, "kind": made.kind, "created": made.created})
    else:
        click.echo(f"job {made.id} enqueued")


@schedules.command(epilog=examples("redrive schedules slots nightly --limit 20"))
@click.argument("name")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many, at most.")
@as_json
@database
def slots(*, name: str, limit: int, database_url: str | None, schema: str | None, as_json: bool) -> None:
    """Show what became of a schedule's slots, newest first: the job, or why there is none."""
    from redrive.schedules import slots as fetch

    with session(database_url, schema) as now:
        _demand_tables(now)
        rows = now.ask(fetch(now.schema, name, limit))
        if not rows:  # those of a schedule that was removed are still shown
            now.queue.schedules.get(name, connection=now.conn)
    if as_json:
        screen.document([row._asdict() for row in rows])
        return
    if not rows:
        raise Trouble(f"no slots of schedule {screen.clean(name)!r} have come yet")
    lines = [[_utc(row.slot), row.outcome, str(row.job_id or ""), row.reason or ""] for row in rows]
    screen.table(("SLOT (UTC)", "OUTCOME", "JOB", "REASON"), lines, right=("JOB",))


@schedules.command(
    "next",
    epilog=examples(
        "redrive schedules next '0 3 * * *' --timezone Europe/Berlin",
        "redrive schedules next '30 1 * * *' --timezone America/New_York --after 2026-10-31T12:00:00-04:00 --count 3",
        "redrive schedules next --every 90m --after 2030-01-31T09:00Z --json",
    ),
)
@click.argument("cron", required=False)
@plan
@click.option("--after", "start", type=When(), metavar="TIME", help="From then on (default: now).")
@click.option("--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many.")
@as_json
def next_(*, cron: str | None, every: str | None, timezone: str, start: Any, count: int, as_json: bool) -> None:
    """Show when a CRON text or an interval comes next, in local time and in UTC. Needs no database.

    With --json a list of instants in UTC. An interval is counted from --after. `redrive schedules list` shows when
    each schedule runs next.
    """
    from redrive.settings import seconds
    from redrive.timetable import preview, timetable, zone

    if (cron is None) == (every is None):
        raise click.UsageError("of what? Give CRON or --every, and only one of them")
    if cron is not None and _NAME.fullmatch(cron):
        raise click.UsageError(
            f"{screen.one_line(cron, 60)!r} is no cron text: give one such as '0 3 * * *' or @daily, or --every 90m. "
            "`redrive schedules list` shows when each schedule runs next"
        )
    with told():
        begin = after(start, datetime.now(UTC)) or datetime.now(UTC)
        length = None if every is None else timedelta(seconds=seconds(every, "--every"))
        slots = preview(timetable(cron, length, None, timezone, begin), begin, count)
    if as_json:
        screen.document([_utc(slot) for slot in slots])
        return
    where = zone(timezone)
    lines, before = [], begin.astimezone(where).utcoffset()
    for slot in slots:
        local = slot.astimezone(where)
        offset = local.utcoffset()
        lines.append([f"{local:%a %Y-%m-%d %H:%M:%S %z}", _utc(slot), _change(before, offset)])
        before = offset
    screen.table((f"LOCAL ({timezone})", "UTC", ""), lines)


def _demand_tables(now: Session) -> None:
    """Refuse on the schema of the release before, which has jobs and no schedules.

    Raises:
        Trouble: saying what mends it.
    """
    from redrive.cli.exits import NotInstalled
    from redrive.statements import named

    [state] = now.ask(named("scheduler_state", now.schema))
    if not state.installed:
        raise NotInstalled(f'schema "{now.schema}" has no schedules yet: run `redrive migrate`')


def _change(before: timedelta | None, since: timedelta | None) -> str:
    if before is None or since is None or before == since:
        return ""
    ahead = since > before
    return f"clocks went {'forward' if ahead else 'back'} by {screen.span(abs((since - before).total_seconds()))}"


def _tell(row: Schedule, *, as_json: bool) -> None:
    if as_json:
        screen.document(_record(row))
        return
    coming = f"next {_local(row.next_run_at, row.timezone)}" if row.next_run_at else "the next worker plans it"
    if row.state != "active":
        coming = row.state
    click.echo(screen.one_line(f"schedule {row.name}: {row.kind}, {_when(row)}, zone {row.timezone}; {coming}"))


def _record(row: Schedule) -> dict[str, Any]:
    from redrive.cli.curtain import Curtain

    seconds = {
        key: None if getattr(row, key) is None else getattr(row, key).total_seconds() for key in ("every", "age")
    }
    payload = Curtain().data(row.kind, row.payload)
    return {**vars(row), **seconds, "payload": payload, "state": row.state}


def _when(row: Schedule) -> str:
    if row.cron is not None:
        return row.cron
    return f"every {screen.exact(row.every.total_seconds())}" if row.every else f"once, {_local(row.at, row.timezone)}"


def _remark(row: Schedule, now: datetime) -> str:
    if row.problem:
        return row.problem
    if row.paused_at:
        by = f" by {row.paused_by}" if row.paused_by else ""
        return f"paused {screen.ago(row.paused_at, now)}{by}" + (f": {row.paused_reason}" if row.paused_reason else "")
    if row.disabled_at:
        return f"no live worker has had it in its code, {screen.ago(row.disabled_at, now)}"
    waiting = f"{_utc(row.waiting_slot)} waits; " if row.waiting_slot else ""
    return waiting + (row.last_reason or "")


def _local(when: datetime | None, timezone: str) -> str:
    from redrive.errors import InvalidOption
    from redrive.timetable import zone

    if when is None:
        return ""
    try:
        return f"{when.astimezone(zone(timezone)):%Y-%m-%d %H:%M:%S %z}"
    except InvalidOption:
        return _utc(when)


def _utc(when: datetime) -> str:
    return when.astimezone(UTC).isoformat().replace("+00:00", "Z")
