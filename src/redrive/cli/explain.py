"""``redrive explain``: when a failing job is tried again, and when it is given up, before it happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.options import application, as_json, examples
from redrive.cli.target import load_queue
from redrive.words import counted

if TYPE_CHECKING:
    from redrive.backoff import Backoff

SHOWN = 30
"""Tries that are listed; a kind with ten thousand has a last line that says so."""


@dataclass(frozen=True)
class Plan:
    """What decides how often and when a kind is tried."""

    kind: str
    max_attempts: int
    timeout: float | None
    backoff: Backoff
    source: str
    topics: tuple[str, ...] = ()


@click.command(
    short_help="Show the schedule of tries of a kind.",
    epilog=examples(
        "redrive explain send_email --app app.jobs:queue",
        "redrive explain send_email --json              # with REDRIVE_APP set",
    ),
)
@click.argument("kind")
@application
@as_json
def explain(kind: str, app: str | None, *, as_json: bool) -> None:
    """Show when a failing job of KIND is tried again, and when it is dead.

    The schedule is the handler's, which --app or REDRIVE_APP leads to; without either the default's is shown.
    """
    plan = _plan(kind, app)
    tries = _tries(plan)
    if as_json:
        screen.document(
            {
                "kind": plan.kind,
                "source": plan.source,
                "max_attempts": plan.max_attempts,
                "timeout": plan.timeout,
                "backoff": repr(plan.backoff),
                "topics": list(plan.topics),
                "tries": tries,
            }
        )
        return
    click.echo(f"{screen.clean(kind)}: {plan.source}")
    limit = "no timeout" if plan.timeout is None else f"timeout {screen.span(plan.timeout)}"
    click.echo(f"backoff {screen.clean(_backoff(plan.backoff))}, {counted(plan.max_attempts, 'attempt')}, {limit}")
    if plan.topics:
        click.echo(screen.one_line(f"subscribes to {', '.join(plan.topics)}"))
    click.echo()
    rows = [
        [
            str(each["attempt"]),
            _range(each["wait_min"], each["wait_max"]) if each["attempt"] > 1 else "at once",
            _range(each["after_min"], each["after_max"]) if each["attempt"] > 1 else "",
        ]
        for each in tries
    ]
    screen.table(("TRY", "AFTER A WAIT OF", "SINCE THE FIRST FAILED"), rows, right=("TRY",))
    if plan.max_attempts > SHOWN:
        click.echo(f"and so on, up to try {screen.number(plan.max_attempts)}")
    click.echo(f"dead after try {screen.number(plan.max_attempts)} fails, unless it is sent back: redrive requeue")


def _backoff(backoff: Backoff) -> str:
    from redrive.backoff import Curve

    if isinstance(backoff, Curve):
        return repr(backoff)
    return f"by the function {getattr(backoff, '__qualname__', type(backoff).__name__)}"


def _plan(kind: str, app: str | None) -> Plan:
    from redrive.backoff import DEFAULT
    from redrive.handlers import HOUR

    if app is None:
        source = "the default schedule; name the application with --app or REDRIVE_APP for the handler's own"
        return Plan(kind, 5, HOUR, DEFAULT, source)
    handler = load_queue(app).handlers.demand(kind)
    where = f"{handler.function.__module__}.{getattr(handler.function, '__qualname__', repr(handler.function))}"
    return Plan(kind, handler.max_attempts, handler.timeout, handler.backoff, f"handler {where}", handler.topics)


def _tries(plan: Plan) -> list[dict[str, Any]]:
    """List the tries; the time that each takes, up to the timeout, comes on top of the waits."""
    from redrive.backoff import bounds

    tries: list[dict[str, Any]] = [{"attempt": 1, "wait_min": 0, "wait_max": 0, "after_min": 0, "after_max": 0}]
    for attempt in range(1, min(plan.max_attempts, SHOWN)):
        shortest, longest = bounds(plan.backoff, attempt)
        before = tries[-1]
        tries.append(
            {
                "attempt": attempt + 1,
                "wait_min": shortest,
                "wait_max": longest,
                "after_min": before["after_min"] + shortest,
                "after_max": before["after_max"] + longest,
            }
        )
    return tries


def _range(low: float, high: float) -> str:
    shortest, longest = screen.exact(low), screen.exact(high)
    if shortest == longest:
        return shortest
    return f"{shortest} to {longest}"
