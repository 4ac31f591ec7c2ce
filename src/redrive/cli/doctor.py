"""``redrive doctor``: what ails the installation, with what each finding rests on and what would mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.exits import OK, PROBLEM
from redrive.cli.options import as_json, database, examples
from redrive.cli.session import session

if TYPE_CHECKING:
    from redrive.diagnosis import Diagnosis

COLOURS = {"bad": "red", "note": "yellow", "unknown": "magenta"}


@click.command(
    short_help="Say what ails the installation, and what mends it.",
    epilog=examples(
        "redrive doctor",
        "redrive doctor --json | jq '.findings[] | select(.level == \"bad\")'",
        "redrive doctor --strict || echo 'look before the release'",
    ),
)
@click.option("--strict", is_flag=True, help="Exit 1 for notes, and for what could not be looked at, too.")
@as_json
@database
@click.pass_context
def doctor(ctx: click.Context, database_url: str | None, schema: str | None, *, strict: bool, as_json: bool) -> None:
    """Look at the database, the tables and the workers, and say what is wrong and how to mend it. It changes nothing.

    Exit 0 when nothing is bad, 1 when something is. Looked at are who holds the horizon, vacuum, indexes, triggers, the
    workers' rights and what they complain of, LISTEN and poolers, clocks, kinds that no worker knows, sequences,
    settings, retention; the broker, where kinds are routed to one; and whether it is time for a real broker, by
    measured numbers. A remedy is shown, never carried out.
    """
    from redrive.doctor import CHECKS, examine

    with session(database_url, schema) as now:
        found = examine(now.queue, now.conn)
    bad = [each for each in found if each.level == "bad"]
    if as_json:
        screen.document({"healthy": not bad, "checks": list(CHECKS), "findings": [_plain(each) for each in found]})
    else:
        for each in found:
            _tell(each)
        quiet = len(CHECKS) - len({each.check for each in found})
        counts = [f"{sum(each.level == level for each in found)} {level}" for level in COLOURS]
        click.secho(f"{', '.join(counts)}; {quiet} of {len(CHECKS)} checks found nothing", dim=True)
    wrong = bad or (strict and [each for each in found if each.check != "broker"])
    ctx.exit(PROBLEM if wrong else OK)


def _plain(found: Diagnosis) -> dict[str, Any]:
    return {
        "check": found.check,
        "level": found.level,
        "text": found.text,
        "evidence": found.evidence,
        "remedy": found.remedy,
    }


def _tell(found: Diagnosis) -> None:
    click.secho(f"{found.level:<8}{found.check}: {found.text}", fg=COLOURS[found.level])
    shown = ", ".join(
        f"{name} {_value(value)}" for name, value in found.evidence.items() if value not in (None, "", [])
    )
    if shown:
        click.echo(f"        by: {screen.one_line(shown, 300)}")
    if found.remedy:
        click.echo(f"        do: {screen.one_line(found.remedy)}")


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
