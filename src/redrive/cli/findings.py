"""A report on a stranger's table, as a terminal shows it: what is lost comes last, where the eye is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.adopt.signs import ODD, UNKNOWN
from redrive.cli import screen
from redrive.words import counted, number, one_line, span

if TYPE_CHECKING:
    from datetime import datetime

    from redrive.adopt.report import Bucket, Report

COLOURS = {"waiting": "cyan", "working": "blue", "done": "green", "failed": "red", "ended": "", ODD: "yellow"}
COLOURS |= {UNKNOWN: "magenta", "nothing": "yellow"}
VALUES = 12
"""Values of a column that are shown."""
WIDTH = 160
"""Characters of a sample."""
LEVELS = {"bad": "red", "note": "yellow"}
ROLES = {
    "state": "state",
    "flag": "done or not",
    "stamp": "set when done",
    "died": "set when it failed for good",
    "taken": "set while under way",
    "kind": "kind",
    "due": "due",
    "since": "taken at",
    "attempts": "attempts",
    "most_column": "max attempts",
    "error": "error",
    "payload": "payload",
    "priority": "priority",
    "owner": "worker",
    "created": "created",
    "deleted": "deleted",
}


def tell(made: Report) -> None:
    """Print the report."""
    _table(made)
    _columns(made)
    _states(made)
    for remark in made.remarks:
        click.secho(f"{remark.level:<6}{one_line(remark.text)}", fg=LEVELS[remark.level])
        if remark.remedy:
            click.echo(f"      do: {one_line(remark.remedy)}")
    _lost(made)


def count(made: Report, rows: float) -> str:
    """Write a count; an estimate is shown as one."""
    return ("~" if made.census.share < 1 else "") + number(round(rows))


def when(made: Report, name: str | None, at: datetime | None) -> str:
    """Write a time of a column; where its zone is not known, as it stands there."""
    if at is None:
        return ""
    if made.reading.certain(name):
        return screen.moment(at, made.survey.place.now)
    days = (made.survey.place.now - at).total_seconds()
    return f"{at:%Y-%m-%d %H:%M:%S}, zone not said (about {span(days)} ago)"


def _table(made: Report) -> None:
    table, place = made.survey.table, made.survey.place
    kind = ", partitioned" if table.partitioned else ""
    share = "" if made.census.share == 1 else f", of which {made.census.share:.1%} were read: counts are estimates (~)"
    click.secho(f"{table.qualified}", bold=True, nl=False)
    click.echo(
        f"  {count(made, made.census.rows)} row{'s' * (made.census.rows != 1)}{share}, "
        f"{table.bytes / 1e6:,.1f} MB{kind}, key {', '.join(table.key) or 'none'}, owner {table.owner}"
    )
    where = "a standby" if place.standby else "the primary"
    click.secho(
        f"PostgreSQL {place.told}, {where}, database {place.database}, role {place.role}; "
        f"counted in {made.census.seconds:.1f} s",
        dim=True,
    )


def _columns(made: Report) -> None:
    taken: dict[str, list[str]] = {}
    for role, told in ROLES.items():
        name = getattr(made.reading, role)
        if name and not (role == "since" and name == made.reading.created):
            taken.setdefault(name, []).append(told)
    indexed = {column for index in made.survey.table.indexes for column in index.columns if column}
    rows = []
    for column in made.survey.table.columns:
        marks = [*(["key"] if column.name in made.survey.table.key else []), *taken.get(column.name, [])]
        if marks or column.vocabulary or column.name in indexed:
            words = f"one of {', '.join(column.vocabulary)}" if column.vocabulary else ""
            rows.append((column.name, column.type, "yes" if column.nullable else "no", ", ".join(marks), words))
    screen.heading("Columns that matter")
    screen.table(("column", "type", "null", "taken for", "allowed"), rows)
    facts = [f"index {index.definition.partition(' USING ')[2]}" for index in made.survey.table.indexes]
    facts += [f"trigger {trigger.name}" for trigger in made.survey.triggers]
    facts += [f"{each.referrer} refers to it" for each in made.survey.constraints if each.referrer]
    facts += [f"policy {policy.name} for {', '.join(policy.roles)}" for policy in made.survey.policies]
    click.secho("; ".join(one_line(fact) for fact in facts), dim=True)


def _states(made: Report) -> None:
    for name in made.census.counted:
        if not (rows := made.census.values(name).most_common()):
            continue
        screen.heading(f"{name}: {len(rows)} value{'s' * (len(rows) != 1)}")
        meanings = made.census.terms.meanings if name in (made.reading.state, made.reading.flag) else {}
        screen.table(
            ("value", "rows", "means"),
            [
                (
                    "NULL" if value is None else value or "'' (empty)",
                    count(made, found),
                    screen.Cell(meanings.get(value, ""), COLOURS.get(meanings.get(value, ""), "")),
                )
                for value, found in rows[:VALUES]
            ],
            right=("rows",),
        )
        if rows[VALUES:]:
            click.secho(f"and {len(rows) - VALUES} more", dim=True)


def _lost(made: Report) -> None:
    click.echo()
    if made.copies:
        click.secho(
            counted(made.copies, "row is an exact copy of another", "rows are exact copies of another")
            + ": without a key nobody can tell them apart",
            fg="red",
        )
    if not made.buckets:
        click.secho("Nothing is silently lost here, as far as the columns tell.", fg="green", bold=True)
        return
    click.secho(f"SILENTLY LOST: {count(made, made.lost)} row{'s' * (made.lost != 1)}", fg="red", bold=True)
    for bucket in made.buckets:
        _bucket(made, bucket)


def _bucket(made: Report, bucket: Bucket) -> None:
    click.echo()
    click.secho(f"{count(made, bucket.rows)} ", bold=True, nl=False)
    click.secho(f"{bucket.rule.title}", fg="yellow", nl=False)
    click.secho(f"  [{bucket.rule.name}]", dim=True)
    if bucket.oldest is not None:
        click.echo(f"  oldest: {when(made, bucket.since, bucket.oldest)}, by {bucket.since}")
    if made.reading.state and len(bucket.states) > 1:
        states = ", ".join(
            f"{'NULL' if state is None else state} {count(made, rows)}" for state, rows in bucket.states.most_common(6)
        )
        click.echo(f"  of these: {one_line(states)}")
    for sample in bucket.samples:
        click.secho(f"  e.g. {sample_line(made, sample)}", dim=True)
    click.echo(f"  do: {bucket.rule.action}")


def sample_line(made: Report, sample: dict[str, Any], width: int = WIDTH) -> str:
    """Write a row in one line: its key and what tells of its fate first."""
    roles = ("state", "flag", "attempts", "due", "since", "created", "error", "kind")
    first = [*made.survey.table.key, *filter(None, (getattr(made.reading, role) for role in roles))]
    names = [name for name in dict.fromkeys([*first, *sample]) if sample.get(name) is not None]
    return one_line(", ".join(f"{name}={_short(sample[name])}" for name in names), width)


def _short(value: Any) -> str:
    return one_line(value, 60) if isinstance(value, str) else screen.compact(value, 60)
