"""``redrive migrate``: installs and updates the tables, or says what it would do."""

from __future__ import annotations

import click

from redrive.cli.exits import PROBLEM
from redrive.cli.options import connected, database, examples


@click.command(
    epilog=examples(
        "redrive migrate",
        'redrive migrate --check || echo "migrate before you deploy"',
        "redrive migrate --sql > redrive.sql      # without a database: the whole script",
    )
)
@click.option("--check", is_flag=True, help="Change nothing; exit 1 when the schema is behind.")
@click.option("--sql", is_flag=True, help="Change nothing; print what would be run, for a DBA's hands.")
@database
@click.pass_context
def migrate(ctx: click.Context, database_url: str | None, schema: str | None, *, check: bool, sql: bool) -> None:
    """Install or update redrive's tables.

    Safe to run at any time, and by ten deploys at once. Nothing is done where nothing is missing.
    """
    if check and sql:
        raise click.UsageError("--check and --sql were both given: give one of them")
    if sql:
        _print_script(database_url, schema)
        return
    from redrive.connections import conninfo
    from redrive.migrate import migrate as apply
    from redrive.migrate import pending
    from redrive.sql import migrations

    queue = connected(database_url, schema)
    url, name = conninfo(queue.settings.database_url, application="redrive migrate"), queue.schema
    if check:
        if behind := pending(url, name):
            click.echo(
                f"schema {name} lacks {len(behind)} of {len(migrations())} migrations: run `redrive migrate`", err=True
            )
            ctx.exit(PROBLEM)
    else:
        names = {step.version: step.name for step in migrations()}
        for version in apply(url, name, on_wait=lambda line: click.echo(line, err=True)):
            click.echo(f"applied {version:04d} {names[version]}")
    click.echo(f"schema {name} is at version {_version(url, name)}, up to date")


def _print_script(database_url: str | None, schema: str | None) -> None:
    """Print the missing steps; for a role without rights too, who needs the script most."""
    from redrive.connections import conninfo
    from redrive.migrate import script
    from redrive.queue import Queue
    from redrive.sql import migrations

    queue = Queue(database_url, schema=schema)
    there = 0
    if queue.settings.database_url:
        url = conninfo(queue.settings.database_url, application="redrive migrate")
        there = _version(url, queue.schema)
    text = script(queue.schema, [step.version for step in migrations() if step.version > there])
    click.echo(text or f"-- schema {queue.schema} is at version {there}, up to date", nl=not text)


def _version(url: str, schema: str) -> int:
    """Give the schema's version, which may be newer than this code."""
    import psycopg

    from redrive.migrate import installed

    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as conn:
        return installed(conn, schema)
