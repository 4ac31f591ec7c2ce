"""``redrive top``: kinds, rates and workers, live in a terminal; once and plain for scripts.

It only looks, by the same few statements each time, and lets the database rest for ten times as long as they took.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.exits import Trouble, Unreachable
from redrive.cli.options import as_json, database, examples
from redrive.cli.screen import Cell
from redrive.cli.session import Session, session
from redrive.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redrive.amqp.management import Broker
    from redrive.figures import Figures

SPAN = 300.0
"""Seconds over which rates and times are taken."""
RESTS = 10
"""How many times as long as it asks it rests, at the least."""
HEADERS = (
    "KIND",
    "DUE",
    "OLDEST",
    "RUNNING",
    "RETRY",
    "DEAD",
    "IN/S",
    "OUT/S",
    "DRAINS IN",
    "ERRORS",
    "WAIT P95",
    "RUN P95",
)
NUMBERS = HEADERS[1:]


@dataclass(frozen=True, kw_only=True)
class Line:
    """What is shown of a kind."""

    kind: str
    due: int
    pending: int
    running: int
    retrying: int
    dead: int
    most: int
    """A count of so many means: or more."""
    oldest_due: float | None
    in_rate: float
    """Jobs enqueued a second, by the newest rows."""
    out_rate: float
    """Jobs that ended a second, by what workers counted within the last five minutes."""
    drains_in: float | None
    """Seconds until nothing is due, if all goes on as it does; of a kind over the broker until nothing waits there.
    None where it doesn't get less, or is not known."""
    error_rate: float | None
    wait_p95: float | None
    run_p95: float | None
    held: str
    """That it is paused, limited, held by a breaker, or goes over the broker, several with commas; empty else."""
    routed: bool
    """Whether its jobs go over the broker."""
    there: int | None
    """Jobs that wait at the broker for a worker; None where it is not known."""
    known: bool
    """Whether a living worker has a handler for it."""


@dataclass(frozen=True, kw_only=True)
class View:
    """What is shown."""

    figures: Figures
    lines: list[Line]
    complaints: list[str]
    broker: Broker | None
    """How it stands at the broker; None where no kind goes there and none is named."""


@click.command(
    short_help="Watch kinds, rates and workers, live.",
    epilog=examples(
        "redrive top", "redrive top --interval 10s", "redrive top --once", "redrive top --json | jq .kinds"
    ),
)
@click.option("--interval", default="2s", show_default=True, metavar="SECONDS", help="How often to look again.")
@click.option("--once", is_flag=True, help="Look once, print it, and exit; so it is where stdout is no terminal.")
@as_json
@database
def top(database_url: str | None, schema: str | None, *, interval: str, once: bool, as_json: bool) -> None:
    """Watch kinds, rates and workers until q is pressed; p holds the picture, and lets go of it.

    DUE, RUNNING, RETRY and DEAD are counted up to 10,000, and marked with a + there. IN/S is how many jobs came in of
    late, by the newest rows; OUT/S, ERRORS and the times are of the last five minutes, by what workers counted, which
    is ten seconds old at the most. Of a kind over the broker DRAINS IN is of what waits there. A job that is dead is in
    DEAD until somebody acts.
    """
    from redrive.settings import seconds

    pause = seconds(interval, "--interval")
    if not 0.1 <= pause <= 3600:  # noqa: PLR2004 - an hour
        raise click.UsageError(f"--interval is {interval!r}: give 100ms to 1h")
    if as_json or once or not sys.stdout.isatty():
        with session(database_url, schema) as now:
            view = look(now)
        if as_json:
            screen.document(_document(view))
        else:
            _print(view)
        return
    if os.environ.get("TERM", "dumb") in ("dumb", ""):
        _on_paper(database_url, schema, pause)
    else:
        _on_screen(database_url, schema, pause)


def look(now: Session) -> View:
    """Ask for all that is shown."""
    from redrive import figures, store
    from redrive.amqp import management
    from redrive.cli.breakers import in_words
    from redrive.cli.curtain import text
    from redrive.kinds import NO_RELAY, NO_TAKER, relayed, untaken

    found = figures.look(now.queue, now.conn)
    depths = {depth.kind: depth for depth in found.depths}
    counted = {row.kind: row for row in now.queue.stats.kinds(SPAN, connection=now.conn)}
    inflow = {row.kind: row.rate for row in now.queue.stats.inflow(connection=now.conn)}
    held = {row.kind: row for row in now.queue.kinds.list(connection=now.conn)}
    settings, routed = now.queue.settings, management.routed(held.values())
    named = bool(routed or settings.broker_management_url)
    broker = management.seen(settings, routed, {*depths, *held}) if named else None
    workers = now.ask(store.workers(now.schema))
    complaints = [
        f"worker {row.name}: {text(row.problem)}" if row.alive else f"worker {row.name} is silent"
        for row in workers
        if row.problem or not row.alive
    ]
    if broker is not None:
        complaints += [each.text for each in management.ails(broker)] + [broker.why] * bool(broker.why)
    if not relayed(workers):
        waits = [kind for kind in sorted(routed) if kind in depths and depths[kind].due and not held[kind].paused]
        complaints += [f"kind {kind} {NO_RELAY}" for kind in waits]
    told = {each.kind for each in (broker.kinds if broker is not None else ()) if each.deserted}
    complaints += [f"kind {kind} {NO_TAKER}" for kind in untaken(held.values(), workers) if kind not in told]
    breakers = now.queue.breakers.list(connection=now.conn)
    complaints += [f"breaker: {in_words(row, now.now)}" for row in breakers]
    lines = []
    for kind in sorted({*depths, *counted, *inflow}):
        depth, sums, into = depths.get(kind), counted.get(kind), inflow.get(kind, 0.0)
        out, due = (sums.rate if sums else 0.0), (depth.due if depth else 0)
        row, over = held.get(kind), kind in routed
        there = broker.of(kind) if broker is not None and broker.up else None
        drains = 0.0 if not due else due / (out - into) if out > into else None
        if over:  # a relay empties the table: the rates of the jobs that end say nothing of that
            drains = there.drains if there is not None else None
        lines.append(
            Line(
                kind=kind,
                due=due,
                pending=depth.pending if depth else 0,
                running=depth.running if depth else 0,
                retrying=depth.retrying if depth else 0,
                dead=depth.dead if depth else 0,
                most=depth.most if depth else 0,
                oldest_due=depth.oldest_due if depth else None,
                in_rate=into,
                out_rate=out,
                drains_in=drains,
                error_rate=sums.error_rate if sums else None,
                wait_p95=sums.wait_p95 if sums else None,
                run_p95=sums.run_p95 if sums else None,
                held=_held(row, held.get("*"), breakers, kind),
                routed=over,
                there=there.ready if there is not None else None,
                known=kind in found.known,
            )
        )
    lines.sort(key=lambda line: (-(line.oldest_due or 0.0), -line.dead, -line.out_rate, line.kind))
    return View(figures=found, lines=lines, complaints=complaints, broker=broker)


def _held(row: Any, every: Any, breakers: list[Any], kind: str) -> str:
    from redrive.sql import AMQP

    said = []
    if any(each is not None and each.paused for each in (row, every)):
        said.append("paused")
    elif any(each.kind == kind and each.state == "open" for each in breakers):
        said.append("breaker open")
    elif row is not None and row.limited:
        said.append("limited")
    if row is not None and row.route == AMQP:
        said.append("over the broker")
    return ", ".join(said)


def _document(view: View) -> dict[str, Any]:
    now = view.figures
    return {
        "workers": {
            "alive": now.alive,
            "silent": now.silent,
            "complaining": now.complaining,
            "slots": now.slots,
            "in_flight": now.in_flight,
        },
        "schedules_late": now.late,
        "kinds_unknown": now.unknown,
        "complaints": view.complaints,
        "kinds": [asdict(line) for line in view.lines],
        "broker": None if view.broker is None else asdict(view.broker),
    }


def _head(view: View) -> str:
    now = view.figures
    parts = [
        f"workers: {now.alive} alive" + (f", {now.silent} silent" if now.silent else ""),
        f"jobs in them: {screen.number(now.in_flight)} of {screen.number(now.slots)} slots",
        f"oldest due: {screen.span(now.oldest_due)}" if now.oldest_due else "nothing is due",
    ]
    if now.late:
        parts.append(f"schedules late: {now.late}")
    return "   ".join(parts)


def _cells(line: Line) -> list[str | Cell]:
    def count(value: int, style: str = "") -> Cell:
        more = "+" if line.most and value >= line.most else ""
        return Cell(f"{screen.number(value)}{more}" if value else "", style)

    late = "bold red" if (line.oldest_due or 0.0) > 60 else ""  # noqa: PLR2004 - a minute
    drains = "" if line.drains_in is None else screen.span(line.drains_in)
    if not line.routed:
        bound = drains and line.most and line.due >= line.most
        drains = "" if not line.due else f"{drains}{'+' if bound else ''}" or "never"
    else:
        drains = "" if not line.there else drains or "never"
    said = line.held or ("" if line.known or not line.due else "no worker knows it")
    return [
        Cell(line.kind + (f" ({said})" if said else ""), "yellow" if said else ""),
        count(line.due),
        Cell("" if line.oldest_due is None else screen.span(line.oldest_due), late),
        count(line.running, "blue"),
        count(line.retrying, "yellow"),
        count(line.dead, "bold red"),
        _rate(line.in_rate),
        _rate(line.out_rate),
        drains
        + ("+" if drains and line.most and line.due >= line.most and drains != "never" and not line.routed else ""),
        "" if not line.error_rate else Cell(f"{line.error_rate:.1%}", "yellow"),
        "" if line.wait_p95 is None else screen.span(line.wait_p95),
        "" if line.run_p95 is None else screen.span(line.run_p95),
    ]


def _at_broker(view: View) -> list[str]:
    strays = [view.broker.strays_in_words] if view.broker and view.broker.strays else []
    return strays + [
        f"at the broker: {each.kind}: {screen.number(each.ready)} ready, {screen.number(each.unacknowledged)} "
        f"unacknowledged, {counted(each.consumers, 'consumer')}, "
        f"in/s {_rate(each.comes) or 0}, out/s {_rate(each.goes) or 0}"
        for each in (view.broker.kinds if view.broker else ())
    ]


def _rate(value: float) -> str:
    return "" if not value else f"{value:,.0f}" if value >= 100 else f"{value:.2g}"  # noqa: PLR2004 - three digits


def _print(view: View) -> None:
    click.echo(_head(view))
    for complaint in view.complaints:
        click.secho(screen.one_line(complaint), fg="red")
    screen.table(HEADERS, [_cells(line) for line in view.lines], right=NUMBERS)
    if not view.lines:
        screen.note("no jobs")
    for line in _at_broker(view):
        click.echo(screen.one_line(line))


def _on_paper(database_url: str | None, schema: str | None, pause: float) -> None:
    """Print again and again, for a terminal that can't be drawn on, until Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt), session(database_url, schema) as now:
        while True:
            began = time.monotonic()
            _print(look(now))
            click.echo()
            time.sleep(max(pause, RESTS * (time.monotonic() - began)))


def _on_screen(database_url: str | None, schema: str | None, pause: float) -> None:
    from rich.live import Live
    from rich.text import Text

    held = False
    with _keys() as key, Live(Text("asking ..."), screen=True, auto_refresh=False) as live:
        while True:
            try:
                with session(database_url, schema) as now:
                    while True:
                        began = time.monotonic()
                        if not held:
                            live.update(_drawn(look(now), live.console.height), refresh=True)
                        until = began + max(pause, RESTS * (time.monotonic() - began))
                        pressed = key(until)
                        if pressed == "q":
                            return
                        held ^= pressed == "p"
            except Unreachable as trouble:  # it may be back soon
                live.update(Text(str(trouble.message), style="red"), refresh=True)
                if key(time.monotonic() + pause) == "q":
                    return
            except Trouble:
                live.stop()
                raise


def _drawn(view: View, height: int) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold", expand=False)
    for header in HEADERS:
        shown.add_column(header, justify="right" if header in NUMBERS else "left", no_wrap=True, overflow="ellipsis")
    complaints = view.complaints[: max(1, height // 4)]
    there = _at_broker(view)[: max(1, height // 4)]
    room = max(1, height - 5 - len(complaints) - len(there))
    for line in view.lines[:room]:
        cells = [cell if isinstance(cell, Cell) else Cell(cell) for cell in _cells(line)]
        shown.add_row(*(Text(screen.one_line(cell.text), style=cell.style) for cell in cells))
    left = len(view.lines) - room
    foot = "q quits, p holds" + (f"   {left} more kinds" if left > 0 else "")
    return Group(
        Text(_head(view), style="bold"),
        *(Text(screen.one_line(each), style="red", no_wrap=True, overflow="ellipsis") for each in complaints),
        Text(""),
        shown,
        *(Text(screen.one_line(each), no_wrap=True, overflow="ellipsis") for each in there),
        Text(foot, style="dim"),
    )


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """Give a function that waits for a key until a time, of the monotonic clock; Ctrl-C counts as q."""
    try:
        import termios
        import tty
    except ImportError:  # not on Windows
        termios = None  # type: ignore[assignment] # looked at below
    reads = termios is not None and sys.stdin.isatty()
    if reads:
        kept = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin, termios.TCSADRAIN)  # what was typed before is not thrown away

    def key(until: float) -> str:
        try:
            rest = max(0.0, until - time.monotonic())
            if not reads:
                time.sleep(rest)
                return ""
            found, _, _ = select.select([sys.stdin], [], [], rest)
            return os.read(sys.stdin.fileno(), 1).decode(errors="replace").lower() or "q" if found else ""
        except KeyboardInterrupt:
            return "q"

    try:
        yield key
    finally:
        if reads:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, kept)
