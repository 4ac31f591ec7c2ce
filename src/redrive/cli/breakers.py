"""``redrive breakers``: which services are taken to be down, what waits for them, and to hold or let go by hand."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.exits import PROBLEM
from redrive.cli.options import as_json, database, examples, operator
from redrive.cli.screen import Cell
from redrive.cli.session import Session, session
from redrive.words import counted, several

if TYPE_CHECKING:
    from datetime import datetime

    from redrive.breakers import State

MOST_NAMED = 10
"""Open breakers that are named where another was meant to be closed."""
COLOURS = {"open": "bold red", "closing": "yellow", "closed": ""}


@click.group(
    short_help="See and set which services are taken to be down.",
    epilog=examples(
        "redrive breakers list",
        "redrive breakers open send_email --reason 'the provider told us' --hold 2h",
        "redrive breakers close webhook api.example.com",
    ),
)
def breakers() -> None:
    """See and set which services are taken to be down.

    Workers open a breaker when what a kind of jobs calls fails by what looks like an outage. Its jobs wait without
    spending attempts, one at a time is sent as a probe, and once that is answered the backlog is let out at a rising
    rate.
    """


@breakers.command(
    "list",
    epilog=examples(
        "redrive breakers list",
        "redrive breakers list --closed          # those of the last days as well",
        "redrive breakers list --json | jq '.[] | select(.state == \"open\")'",
    ),
)
@click.option("--closed", is_flag=True, help="Those that are closed as well, as long as they are kept.")
@as_json
@database
def list_(*, closed: bool, database_url: str | None, schema: str | None, as_json: bool) -> None:
    """List the breakers that hold jobs or let them out: since when, why, the next probe, and how many jobs wait.

    WAITING are all that wait; DUE are those of them that would run now. A try that met the outage has put its job off.
    """
    with session(database_url, schema) as now:
        rows = now.queue.breakers.list(closed=closed, connection=now.conn)
    if as_json:
        screen.document([record(row) for row in rows])
        return
    if not rows:
        screen.note("no breaker is open" if not closed else "no breaker was open of late")
        return
    lines: list[list[str | Cell]] = [
        [
            row.kind,
            row.target or "(all)",
            Cell(row.state, COLOURS[row.state]),
            screen.ago(row.opened_at, now.now),
            _count(row, row.waiting),
            _count(row, row.due),
            str(row.probes),
            _next(row, now.now),
            screen.one_line(_reason(row), 0 if screen.on_terminal() else 300),
        ]
        for row in rows
    ]
    headers = ("KIND", "TARGET", "STATE", "OPENED", "WAITING", "DUE", "PROBES", "NEXT", "REASON")
    screen.table(headers, lines, right=("WAITING", "DUE", "PROBES"))


@breakers.command(
    "open",
    epilog=examples(
        "redrive breakers open send_email --reason 'the provider told us'",
        "redrive breakers open webhook api.example.com --hold 2h",
    ),
)
@click.argument("kind")
@click.argument("target", default="")
@click.option("--hold", metavar="TIME", help="A probe after that: 90, 5m, 2h (default: none, until you close it).")
@click.option("--by", metavar="TEXT", help="Who (default: the user of the shell).")
@click.option("--reason", default="", metavar="TEXT", help="Why; shown wherever the breaker is.")
@as_json
@database
def open_(
    *,
    kind: str,
    target: str,
    hold: str | None,
    by: str | None,
    reason: str,
    database_url: str | None,
    schema: str | None,
    as_json: bool,
) -> None:
    """Hold the jobs of KIND, or of one TARGET (a lane) within it. What runs goes on, and attempts are not spent."""
    from redrive.settings import seconds

    wait = None if hold is None else seconds(hold, "--hold")
    with session(database_url, schema) as now, now.doubting(kind):
        row = now.queue.breakers.open(kind, target, by=by or operator(), reason=reason, hold=wait, connection=now.conn)
    if as_json:
        screen.document(record(row))
    else:
        click.echo(screen.one_line(f"{row.name}: open, {_next(row, now.now)}"))


@breakers.command(
    "close",
    epilog=examples(
        "redrive breakers close send_email",
        "redrive breakers close webhook api.example.com --at-once",
    ),
)
@click.argument("kind")
@click.argument("target", default="")
@click.option("--at-once", is_flag=True, help="Let all that it holds go now, whatever that does to the service.")
@click.option("--by", metavar="TEXT", help="Who (default: the user of the shell).")
@click.option("--reason", default="", metavar="TEXT", help="Why; kept in the audit.")
@as_json
@database
def close(
    *,
    kind: str,
    target: str,
    at_once: bool,
    by: str | None,
    reason: str,
    database_url: str | None,
    schema: str | None,
    as_json: bool,
) -> None:
    """Let the jobs go that a breaker holds, at a rising rate. Exit code 1 where it was not open.

    A job that its own try has put off, as the service asked for or by its back-off, waits for its time all the same.
    """
    from redrive.breakers import MOST_COUNTED
    from redrive.statements import named

    with session(database_url, schema) as now:
        row = now.queue.breakers.close(
            kind, target, by=by or operator(), reason=reason, at_once=at_once, connection=now.conn
        )
        [late] = now.ask(named("put_off", now.schema, kind=kind, target=target, most=MOST_COUNTED))
        hint = _instead(now, kind, target) if row is None else _put_off(late, now.now) if late.jobs else ""
    if as_json:
        screen.document(None if row is None else record(row) | {"put_off": late.jobs, "put_off_until": late.until})
    elif row is not None:
        rate = "" if row.rate is None else f", {row.rate:.3g}/s to begin with"
        click.echo(screen.one_line(f"{row.name}: {row.state}{rate if row.state == 'closing' else ''}"))
    else:
        click.echo(screen.one_line(f"{f'{kind} {target}'.strip()}: not open"))
    if hint:
        screen.note(screen.one_line(f"note: {hint}"))
    if row is None:
        raise click.exceptions.Exit(PROBLEM)


def _put_off(late: Any, now: datetime) -> str:
    """Say which jobs don't go yet, though nothing holds them any more."""
    from redrive.breakers import MOST_COUNTED

    one = "job waits for the time to which its own try has put it off"
    many = "jobs wait for the time to which their own tries have put them off"
    said = counted(late.jobs, one, many, more=late.jobs >= MOST_COUNTED)
    return f"{said}, the last until {screen.moment(late.until, now)}; the desk's `Run now` hurries them"


def _instead(now: Session, kind: str, target: str) -> str:
    """Say what is open where nothing of that name is: of the same kind, of one that is spelt alike, or else."""
    rows = now.queue.breakers.list(connection=now.conn)
    mine = next((row for row in rows if (row.kind, row.target) == (kind, target)), None)
    if mine is not None:
        return f"its jobs are let out already, {mine.rate or 0:.3g}/s now; --at-once lets all of them go"
    rows = [row for row in rows if row.state == "open"]
    same = [row.name for row in rows if row.kind == kind]
    near = get_close_matches(kind, {row.kind for row in rows}, 3)
    names = same or [row.name for row in rows if row.kind in near] or [row.name for row in rows]
    if not names:
        return "no breaker is open"
    said = several(names, MOST_NAMED) + ", see `redrive breakers list`" * bool(names[MOST_NAMED:])
    return f"open of kind {kind}: {said}" if same else f"did you mean {said}?" if near else f"open: {said}"


def in_words(row: State, now: datetime) -> str:
    """Say of a breaker that is not closed what it does to the jobs."""
    if row.state == "closing":
        return screen.one_line(f"{row.name} was down; {row.waiting_in_words}, let out at {row.rate or 0:.3g}/s now")
    held = f"has been held for {screen.span((now - row.opened_at).total_seconds())}"
    probe = "no probe is sent" if row.probe_at is None else _next(row, now)
    return screen.one_line(f"{row.name} {held}, {row.waiting_in_words}, {probe}: {_reason(row)}")


def record(row: State) -> dict[str, Any]:
    """Give a breaker for a script, its reason masked."""
    from redrive.curtain import text

    return {**vars(row), "reason": text(row.reason)}


def _count(row: State, jobs: int) -> str:
    from redrive.breakers import MOST_COUNTED

    return f"{screen.number(jobs)}{'+' if row.waiting >= MOST_COUNTED else ''}"


def _next(row: State, now: datetime) -> str:
    if row.state == "closing":
        return f"{row.rate or 0:.3g}/s go"
    if row.state == "closed" or row.probe_at is None:
        return "" if row.state == "closed" else "no probe: close it by hand"
    wait = (row.probe_at - now).total_seconds()
    return f"a probe in {screen.span(wait)}" if wait > 0 else "a probe is due"


def _reason(row: State) -> str:
    from redrive.curtain import text

    by = f" ({row.opened_by})" if row.by_hand and row.opened_by else ""
    return (text(row.reason) or "no reason given") + by
