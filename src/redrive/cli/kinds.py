"""``redrive pause``, ``resume``, ``limit`` and ``kinds``: what may start, and how much of it, in all workers."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.breakers import COLOURS, in_words, record
from redrive.cli.exits import PROBLEM
from redrive.cli.options import as_json, because, database, examples, operator, signed
from redrive.cli.screen import Cell
from redrive.cli.session import Session, session
from redrive.cli.times import When, after

if TYPE_CHECKING:
    from datetime import datetime

    from redrive.breakers import State
    from redrive.kinds import Kind

MOST_TOLD = 3
"""Breakers of a kind that are told of in its line."""
_LIMITS = ("running_most", "rate", "burst", "lane_running_most", "lane_rate", "lane_burst")
_DONE = {"limit": "limited", "route": "routed"}
"""Acts on a kind that the audit alone tells of."""
_PER = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_ALSO = {"": "s", "min": "m"}  # as the desk writes it


class Rate(click.ParamType[float]):
    """Starts in a span of time, as in ``10/s``, ``300/m``, ``1/h``."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the text as starts a second."""
        number, _, span = str(value).partition("/")
        try:
            unit = span.strip()
            return float(number) / _PER[_ALSO.get(unit, unit)]
        except (ValueError, KeyError):
            self.fail(f"{value!r}: give a rate like 10/s, 300/m or 1/h", param, ctx)


@click.command(
    short_help="Start no more jobs of a kind.",
    epilog=examples(
        "redrive pause send_email --reason 'the provider is down'",
        "redrive pause export --until 2h",
        "redrive pause --all --reason 'the database moves'",
    ),
)
@click.argument("kind", required=False)
@click.option("--all", "everything", is_flag=True, help="All kinds, those that come yet as well.")
@click.option("--until", type=When(), metavar="TIME", help="It ends by itself then: 2h, 2030-01-31T09:00Z.")
@click.option("--by", metavar="TEXT", help="Who (default: the user of the shell).")
@click.option("--reason", default="", metavar="TEXT", help="Why; shown wherever the kind is.")
@as_json
@database
def pause(
    *,
    kind: str | None,
    everything: bool,
    until: Any,
    by: str | None,
    reason: str,
    database_url: str | None,
    schema: str | None,
    as_json: bool,
) -> None:
    """Start no job of KIND from now on, in any worker. What runs goes on, and what is enqueued waits."""
    name = _one(kind, everything=everything)
    with session(database_url, schema) as now, now.doubting(name):
        row = now.queue.kinds.pause(
            name,
            by=by or operator(),
            reason=reason,
            until=after(until, now.now),
            connection=now.conn,
        )
    _tell(row, now.now, as_json=as_json)


@click.command(
    short_help="Let jobs of a paused kind start again.",
    epilog=examples(
        "redrive resume send_email", "redrive resume --all      # ends the pause of all kinds, not of single ones"
    ),
)
@click.argument("kind", required=False)
@click.option("--all", "everything", is_flag=True, help="End the pause of all kinds.")
@signed
@database
def resume(
    *, kind: str | None, everything: bool, by: str, reason: str, database_url: str | None, schema: str | None
) -> None:
    """Let jobs of KIND start again. Exit code 1 where it was not paused."""
    name = _one(kind, everything=everything)
    with session(database_url, schema) as now:
        was = now.queue.kinds.resume(name, by=by, reason=reason, connection=now.conn)
    called = "all kinds together" if everything else screen.clean(name)
    click.echo(screen.one_line(f"{called} resumed{because(by, reason)}" if was else f"{called}: not paused"))
    if not was:
        raise click.exceptions.Exit(PROBLEM)


@click.command(
    short_help="Set how much of a kind may run.",
    epilog=examples(
        "redrive limit export --running 2                  # two at once, in all workers together",
        "redrive limit send_email --rate 10/s --burst 50",
        "redrive limit webhook --lane-running 1 --lane-rate 60/m    # for each lane by itself",
        "redrive limit export --none",
    ),
)
@click.argument("kind")
@click.option("--running", type=click.IntRange(1), metavar="N", help="Jobs at once.")
@click.option("--rate", type=Rate(), metavar="N/SPAN", help="Starts: 10/s, 300/m, 1/h.")
@click.option(
    "--burst",
    type=click.IntRange(1),
    metavar="N",
    help="Starts at once after a pause (default: a tenth of a second's).",
)
@click.option("--lane-running", type=click.IntRange(1), metavar="N", help="As --running, for each lane by itself.")
@click.option("--lane-rate", type=Rate(), metavar="N/SPAN", help="As --rate, for each lane by itself.")
@click.option("--lane-burst", type=click.IntRange(1), metavar="N", help="As --burst, for each lane by itself.")
@click.option("--none", "unlimited", is_flag=True, help="Take all limits away.")
@signed
@as_json
@database
def limit(
    *,
    kind: str,
    unlimited: bool,
    by: str,
    reason: str,
    database_url: str | None,
    schema: str | None,
    as_json: bool,
    **limits: Any,
) -> None:
    """Set how much of KIND may run, in all workers together; these limits replace those that it has.

    They hold from the next claim on. What is over a limit stays pending, and no other kind waits for it.
    """
    given = {name: value for name, value in limits.items() if value is not None}
    if bool(given) == unlimited:
        raise click.UsageError("which limits? Give --running, --rate or their --lane- forms; or --none for no limit")
    with session(database_url, schema) as now, now.doubting(kind):
        row = now.queue.kinds.limit(kind, by=by, reason=reason, connection=now.conn, **given)
    _tell(row, now.now, because(by, reason), as_json=as_json)


@click.command(
    short_help="List what is paused, limited or held.",
    epilog=examples("redrive kinds", "redrive kinds --json | jq '.[] | select(.paused)'"),
)
@as_json
@database
def kinds(*, database_url: str | None, schema: str | None, as_json: bool) -> None:
    """List the kinds that are paused, limited, held by a breaker or over a broker, since when, by whom and why."""
    with session(database_url, schema) as now:
        rows = now.queue.kinds.list(broken=True, connection=now.conn)
        breakers = now.queue.breakers.list(connection=now.conn)
        acts = _acts(now, rows)
    held = {row.kind: [each for each in breakers if each.kind == row.kind] for row in rows}
    if as_json:
        screen.document(
            [
                {**vars(row), **_signed(acts, row.kind), "breakers": [record(each) for each in held[row.kind]]}
                for row in rows
            ]
        )
        return
    if not rows:
        screen.note("no kind is paused, limited, held or routed")
        return
    lines: list[list[str | Cell]] = [
        [
            "(all)" if row.kind == "*" else row.kind,
            _state(row, held[row.kind]),
            str(row.running),
            _limits(row),
            _remark(row, held[row.kind], acts, now.now),
        ]
        for row in rows
    ]
    screen.table(("KIND", "STATE", "RUNNING", "LIMITS", "REMARK"), lines, right=("RUNNING",))


def _state(row: Kind, breakers: list[State]) -> Cell:
    from redrive.sql import AMQP

    states = {each.state for each in breakers}
    broken = [f"breaker {state}" for state in ("open", "closing") if state in states][:1]
    said = ["paused"] * row.paused + broken + ["broker"] * (row.route == AMQP)
    return Cell(", ".join(said), "yellow" if row.paused else COLOURS["open"] if "open" in states else "")


def _acts(now: Session, rows: list[Kind]) -> dict[tuple[str, str], Any]:
    """Find who has limited and routed these kinds, as the audit tells; what was written by hand since is nobody's."""
    from psycopg.rows import namedtuple_row

    from redrive.cli.curtain import text
    from redrive.sql import POSTGRES
    from redrive.statements import lenient

    stands: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        limits = {name: getattr(row, name) for name in _LIMITS if getattr(row, name) is not None}
        stands |= {(row.kind, "limit"): limits} if row.limited else {}
        stands |= {(row.kind, "route"): {"route": row.route}} if row.route != POSTGRES else {}
    if not stands:
        return {}
    found: list[Any] = now.ask(lenient("acts_on_kinds", now.schema, namedtuple_row, kinds=[kind for kind, _ in stands]))
    told = {(act.kind, act.action): act._replace(reason=text(act.reason)) for act in found}
    return {key: act for key, act in told.items() if act.after == stands.get(key)}


def _signed(acts: dict[tuple[str, str], Any], kind: str) -> dict[str, Any]:
    """Give who has limited and who has routed a kind, when and why, in the way of its pause."""
    return {
        f"{done}_{name}": getattr(acts.get((kind, action)), name, None)
        for action, done in _DONE.items()
        for name in ("at", "by", "reason")
    }


def _remark(row: Kind, breakers: list[State], acts: dict[tuple[str, str], Any], now: datetime) -> str:
    said = [_why(row, now)] * row.paused
    for action, done in _DONE.items():
        if (act := acts.get((row.kind, action))) is not None:
            by, why = f" by {act.by}" if act.by else "", f": {act.reason}" if act.reason else ""
            said.append(f"{done} {screen.ago(act.at, now)}{by}{why}")
    said += [in_words(each, now) for each in breakers[:MOST_TOLD]]
    if breakers[MOST_TOLD:]:
        said.append(f"{len(breakers) - MOST_TOLD} more, see `redrive breakers list`")
    return "; ".join(said)


def _one(kind: str | None, *, everything: bool) -> str:
    from redrive.kinds import ALL

    if (kind is None) != everything:
        raise click.UsageError(
            "which kind? Name one; or --all for all of them" if kind is None else "give a KIND or --all, not both"
        )
    return kind or ALL


def _tell(row: Kind, now: datetime, why: str = "", *, as_json: bool) -> None:
    if as_json:
        screen.document(vars(row))
        return
    said = [_limits(row) or "no limits"] + ([_why(row, now)] if row.paused else [])
    click.echo(screen.one_line(f"{'all kinds' if row.kind == '*' else row.kind}: {'; '.join(said)}{why}"))


def _limits(row: Kind) -> str:
    said = []
    for lane, most, rate, burst in (
        ("", row.running_most, row.rate, row.burst),
        (" a lane", row.lane_running_most, row.lane_rate, row.lane_burst),
    ):
        said += [f"{most} at once{lane}"] if most else []
        said += [f"{_rate(rate)}{lane}" + (f", {burst} at once after a pause" if burst else "")] if rate else []
    return "; ".join(said)


def _rate(rate: float) -> str:
    for span, seconds in _PER.items():
        if rate * seconds >= 1 or span == "d":
            return f"{rate * seconds:.6g}/{span}"
    raise AssertionError


def _why(row: Kind, now: datetime) -> str:
    if row.paused_at is None:
        return ""
    return row.pause_in_words(screen.ago(row.paused_at, now) if now - row.paused_at > timedelta(seconds=1) else "now")
