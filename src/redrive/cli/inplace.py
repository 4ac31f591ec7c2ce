"""The last step of ``redrive adopt jobs --in-place``: what would be done is shown, then it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.words import counted

if TYPE_CHECKING:
    import psycopg

    from redrive.adopt.inplace import Step
    from redrive.adopt.report import Report


def upgrade(conn: psycopg.Connection[Any], made: Report, *, dry_run: bool, yes: bool, by: str, reason: str) -> None:
    """Make the table redrive's own where it stands; *made* is the report on it, which was told before.

    Raises:
        InvalidOption: with every reason why it can't.
        click.Abort: when the operator says no.
    """
    from redrive.adopt.inplace import plan, script
    from redrive.adopt.upgrade import carry_out

    planned = plan(conn, made.survey)
    name, schema = made.survey.table.qualified, planned.schema
    if dry_run:
        click.echo(script(planned), nl=False)
        return
    if not planned.steps:
        click.echo(f"{name} is redrive's own already: nothing to do")
        return
    if planned.rows:
        rows = counted(round(planned.rows), "row is", "rows are")
        screen.note(f"about {rows} written anew, a slice at a time: delete first what nobody needs")
    if made.lost:
        screen.note(
            f"{counted(round(made.lost), 'row is', 'rows are')} lost in silence, see above: redrive's workers take "
            "back what is in progress for long, and run what is due. Put right first what must not be run"
        )
    if not yes:
        click.confirm(f"Change {name} in {counted(len(planned.steps), 'step')}?", abort=True, err=True)
    count = len(planned.steps)

    def told(place: int, step: Step) -> None:
        click.echo(f"{place:>3} of {count}: {step.title}", err=True)

    carry_out(
        conn,
        planned,
        by=by,
        reason=reason,
        on_step=told,
        on_wait=lambda line: click.echo(f"      {line}", err=True),
        on_rows=lambda rows: click.echo(f"      {counted(rows, 'row')}", err=True),
    )
    click.echo(f"{name} is redrive's own now. Its schema is {schema}: start workers with REDRIVE_SCHEMA={schema}")
