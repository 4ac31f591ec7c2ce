"""``redrive dead``: what needs a human, grouped so that ten thousand deaths of one cause are one line."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.options import as_json, database, examples
from redrive.cli.screen import Cell
from redrive.cli.session import session
from redrive.cli.times import When, before

if TYPE_CHECKING:
    from datetime import datetime

    from redrive.groups import Group

TRENDS = {"new": "bold red", "rising": "red", "steady": "yellow", "falling": "green", "quiet": "dim"}


@click.command(
    short_help="Group dead jobs by what they died of.",
    epilog=examples(
        "redrive dead",
        "redrive dead send_email:3fa9c1d2                # one group, with a traceback",
        "redrive dead --kind send_email --since 2h",
        "redrive dead --retrying                         # also what fails and will be tried again",
        "redrive dead --json",
    ),
)
@click.argument("group", required=False)
@click.option("--kind", metavar="KIND", help="Only jobs of this kind.")
@click.option("--since", type=When(), metavar="TIME", help="Only what died since: 2h, 7d, 2030-01-31T09:00Z.")
@click.option("--retrying", is_flag=True, help="Also groups of which no job is dead, and some will be tried again.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many groups at most.")
@as_json
@database
def dead(
    group: str | None,
    database_url: str | None,
    schema: str | None,
    kind: str | None,
    since: Any,
    *,
    retrying: bool,
    limit: int,
    as_json: bool,
) -> None:
    """Group dead jobs by what they died of, and say how to send each group back; or show one GROUP, with a traceback.

    A group is a kind and a fault: the exception's type, its message without numbers, ids and values, and the place in
    your code. It is named by the kind and the first digits of its fingerprint. A job that a worker other than redrive's
    ended as failed, without a reason, counts as dead.
    """
    where = ["--schema", schema] if schema else []
    with session(database_url, schema) as now:
        if group is not None:
            if kind or since or retrying:
                raise click.UsageError("give a GROUP or filters, not both")
            found = now.queue.groups.find(group, connection=now.conn)
            _show(found, now.queue.groups.sample(found, connection=now.conn), now.now, where, as_json=as_json)
            return
        start = before(since, now.now)
        rows = now.queue.groups.list(kind=kind, since=start, retrying=retrying, limit=limit, connection=now.conn)
    where += ["--since", start.isoformat()] if start else []
    groups = [_group(row, where) for row in rows]
    if as_json:
        screen.document({"groups": groups})
        return
    if not rows:
        click.echo("no dead jobs")
        return
    headers = ("DEAD", "RETRYING", "GROUP", "FIRST", "LAST", "HOUR", "TREND", "ERROR")
    lines: list[list[str | Cell]] = [
        [
            row.counted("dead"),
            row.counted("retrying") if row.retrying else "",
            row.id,
            screen.ago(row.first, now.now),
            screen.ago(row.last, now.now),
            row.counted("last_hour") if row.last_hour else "",
            Cell(row.trend, TRENDS[row.trend]),
            screen.one_line(_error(row), 0 if screen.on_terminal() else 300),
        ]
        for row in rows
    ]
    screen.table(headers, lines, right=("DEAD", "RETRYING", "HOUR"))
    if len(rows) == limit:
        screen.note(f"{limit} groups shown, there may be more: --limit, or --kind")
    screen.heading("look at one with `redrive dead GROUP`; once its cause is mended, send it back:")
    for each in groups:
        if each["requeue"]:
            click.echo(f"  {each['requeue']}")


def _show(group: Group, sample: Any, now: datetime, where: list[str], *, as_json: bool) -> None:
    """Show all that is known of one group."""
    from redrive.cli.curtain import Curtain, text

    failure = Curtain().failure(sample) if sample is not None else None
    if as_json:
        screen.document({**_group(group, where), "sample_failure": failure, "last_error": text(group.last_error)})
        return
    click.echo(click.style(screen.clean(group.id), bold=True) + "  " + screen.one_line(_error(group)))
    click.echo()
    more = " …" if group.dead > len(group.sample) else ""
    sample = f": {' '.join(map(str, group.sample))}{more}" if group.sample else ""
    hour, day = group.counted("last_hour"), group.counted("day_before")
    seen = [
        ("dead", group.counted("dead") + sample),
        ("retrying", group.counted("retrying")),
        ("failures", f"{group.counted('failures')} kept"),
        ("first seen", screen.moment(group.first, now)),
        ("last seen", screen.moment(group.last, now)),
        ("trend", f"{group.trend}: {hour} within the last hour, {day} in the 24 h before"),
        ("versions", screen.clean(", ".join(group.versions))),
        ("fingerprint", group.key),
    ]
    for name, value in seen:
        if value:
            click.echo(click.style(f"{name:<13}", dim=True) + value)
    if failure is not None:
        screen.heading(f"the last failure, of job {failure['job_id']}, try {failure['attempt']}")
        click.echo(screen.clean((failure["traceback"] or failure["message"]).rstrip()))
    elif group.last_error:
        screen.heading(f"the last error of job {group.newest_id}")
        click.echo(screen.clean((text(group.last_error) or "").rstrip()))
    screen.heading("what next")
    commands = [
        ["redrive", "show", str(group.newest_id)],
        ["redrive", "replay", str(group.newest_id), "--pdb", "--app", "MODULE:QUEUE"],
    ]
    if group.error_type == "WorkerLost":  # it would kill the debugger as well
        del commands[1]
    for words in commands if group.newest_id else ():
        click.echo(f"  {screen.clean(shlex.join([*words, *where]))}")
    if group.dead:
        click.echo(f"  {_requeue(group, [*where, '--canary'])}")


def _group(row: Group, where: list[str]) -> dict[str, Any]:
    names = ("id", "kind", "key", "dead", "retrying", "failures", "first", "last", "last_hour", "day_before", "trend")
    known = {name: getattr(row, name) for name in (*names, "versions", "sample")}
    more = {name: "+" in row.counted(name) for name in ("dead", "retrying", "failures", "last_hour", "day_before")}
    known |= {name: min(known[name], row.cap if name in ("dead", "retrying") else row.history) for name in more}
    capped = [name for name, is_more in more.items() if is_more]
    return {**known, "capped": capped, "error": _error(row), "requeue": _requeue(row, where) if row.dead else None}


def _requeue(row: Group, where: list[str]) -> str:
    return screen.clean(shlex.join(["redrive", "requeue", "--group", row.id, *where]))


def _error(row: Group) -> str:
    from redrive.cli.curtain import text

    return text(row.error) or ""
