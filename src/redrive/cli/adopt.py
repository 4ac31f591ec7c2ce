"""``redrive adopt``: look at a table that an application already has, and say which of its rows are silently lost."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.exits import Misused, Trouble, told
from redrive.cli.options import as_json, connected, examples, operator, server
from redrive.errors import InvalidMap

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from redrive.adopt.mapping import Mapping
    from redrive.adopt.report import Report
    from redrive.adopt.survey import Survey


@click.command(
    short_help="Look at a table that you already have: what is silently lost in it.",
    epilog=examples(
        "redrive adopt mail_jobs                                   # look, change nothing",
        "redrive adopt app.mail_jobs --zone Europe/Paris --html lost.html",
        "redrive adopt mail_jobs --map mail_jobs.toml              # propose a map; then check it",
        "redrive adopt jobs --in-place --dry-run                   # a table made from the tutorial: what would change",
        "redrive adopt mail_jobs --json | jq '.lost[] | {bucket, rows, oldest}'",
    ),
)
@click.argument("table")
@click.option(
    "--map",
    "map_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Propose a map in FILE; where there is one, check it and report by what it says.",
)
@click.option("--zone", metavar="ZONE", help="Whose wall clock timestamps without a zone show, such as UTC.")
@click.option("--max-attempts", type=click.IntRange(1), metavar="N", help="Tries a row has, where no column says so.")
@click.option(
    "--html", "html_file", type=click.Path(dir_okay=False), metavar="FILE", help="Write the report as a page."
)
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    default=45.0,
    show_default=True,
    metavar="SECONDS",
    help="How long rows are counted; of a larger table a part, and the counts are estimates.",
)
@click.option("--in-place", is_flag=True, help="A table made from the tutorial becomes redrive's own where it stands.")
@click.option("--dry-run", is_flag=True, help="With --in-place: print the SQL, and change nothing.")
@click.option("--yes", "-y", is_flag=True, help="With --in-place: don't ask.")
@click.option(
    "--by", metavar="TEXT", default=operator, help="With --in-place: who does it (default: the user of the shell)."
)
@click.option("--reason", default="", metavar="TEXT", help="With --in-place: why; kept in the audit.")
@as_json
@server
def adopt(
    database_url: str | None,
    table: str,
    *,
    map_file: str | None,
    zone: str | None,
    max_attempts: int | None,
    html_file: str | None,
    timeout: float,
    in_place: bool,
    dry_run: bool,
    yes: bool,
    by: str,
    reason: str,
    as_json: bool,
) -> None:
    """Look at TABLE, which your application made, and report which of its rows are silently lost.

    It reads, and changes nothing: no lock above ACCESS SHARE is taken, and redrive need not be installed. A role that
    may only read is enough, and a standby will do. Rows are counted by what their states, times and tries say: in
    progress for days, out of attempts, failed and never retried, due long ago, done but never marked as done.

    --in-place is for a table jobs made from the well-known tutorial: columns, indexes and the rest of redrive are added
    where it stands, online, and the hand-written worker goes on with it.
    """
    from redrive.adopt.survey import survey

    _check(zone)
    if in_place and (as_json or map_file is not None):
        raise Misused("--in-place goes with neither --json nor --map: it changes the table itself")
    if (dry_run or yes or reason) and not in_place:
        raise Misused("--dry-run, --yes and --reason are of --in-place: a look changes nothing")
    with _connection(database_url) as conn, _patient(table):
        found = survey(conn, table)
        if map_file is not None and found.table.is_redrives:
            raise Misused(
                f"{found.table.qualified} is redrive's own table: there is nothing to map, its workers work it as it is"
            )
        mapping = _mapping(conn, found, map_file, zone or max_attempts)
        made = _report(conn, found, mapping, zone=zone, most=max_attempts, seconds=timeout)
        if in_place:
            _upgrade(conn, made, dry_run=dry_run, yes=yes, by=by, reason=reason)
            return
    if html_file is not None:
        from redrive.adopt.page import page

        _write(html_file, page(made))
    if as_json:
        from redrive.adopt.page import document

        screen.document(document(made))
    else:
        from redrive.cli.findings import tell

        tell(made)
    if html_file is not None:
        screen.note(f"the report is written to {html_file}")
    if map_file is not None and mapping is None:
        _propose(made, map_file)
    elif not as_json:
        _next(table, map_file, found)


def _next(table: str, map_file: str | None, found: Survey) -> None:
    """Say how it goes on."""
    from redrive.adopt.inplace import suits

    if found.table.is_redrives:
        screen.note("it is redrive's own table, and nothing to adopt: see `redrive jobs`, `redrive doctor`")
        return
    if map_file is None and suits(found):
        screen.note(
            "to have it worked there are two ways. It is made as in the well-known tutorial, so it can become "
            "redrive's own where it stands, with columns and indexes added and the old worker going on: "
            f"`redrive adopt {table} --in-place --dry-run` shows the SQL"
        )
        screen.note(
            "or it stays as it is, and a map says how its rows are worked, as of any other table: "
            f"`redrive adopt {table} --map FILE` proposes one"
        )
    elif map_file is None:
        screen.note(f"to have it worked: redrive adopt {table} --map FILE proposes how")
    else:
        screen.note(f"to have it worked: redrive adopt connect {table} --map {map_file} --dry-run")


def _upgrade(conn: psycopg.Connection[Any], made: Report, *, dry_run: bool, **how: Any) -> None:
    from redrive.cli.findings import tell
    from redrive.cli.inplace import upgrade

    if not dry_run:
        tell(made)
        click.echo()
    upgrade(conn, made, dry_run=dry_run, **how)


def _mapping(
    conn: psycopg.Connection[Any], found: Survey, map_file: str | None, answers: str | int | None
) -> Mapping | None:
    """Read the map where there is one, and hold it against the table."""
    if map_file is None or not Path(map_file).exists():
        return None
    from redrive.adopt.fit import fitted
    from redrive.adopt.mapfile import load
    from redrive.adopt.proof import prove

    if answers is not None:
        raise Misused(
            f"{map_file} is there and says it all: write the answer into it instead of --zone, --max-attempts"
        )
    try:
        mapping = fitted(load(map_file), found.table, map_file)
        prove(conn, mapping, found.table, map_file)
    except InvalidMap as error:
        for problem in error.problems:
            click.secho(f"{map_file}: {problem}", fg="red", err=True)
        count = len(error.problems)
        raise Misused(f"{map_file} can't be used yet: {count} thing{'s' * (count != 1)} to mend, see above") from error
    screen.note(f"{map_file} suits {found.table.qualified}")
    return mapping


def _propose(made: Report, map_file: str) -> None:
    """Write the proposal of a map."""
    from redrive.adopt.proposal import propose

    draft = propose(made)
    _write(map_file, draft.text())
    asked = len(draft.questions)
    screen.note(f"{made.survey.table.qualified} looks like {draft.title}: a map is proposed in {map_file}")
    if asked:
        screen.note(
            f"{asked} question{'s' * (asked != 1)} in it only you can answer: put the answer in the place of each ?"
        )


def _report(conn: psycopg.Connection[Any], found: Survey, mapping: Mapping | None, **how: Any) -> Report:
    from redrive.adopt.report import report

    with _progress(found) as told_share:
        return report(conn, found, mapping=mapping, on_progress=told_share, **how)


@contextmanager
def _patient(table: str) -> Iterator[None]:
    """Say what it was that took too long."""
    import psycopg

    try:
        yield
    except psycopg.errors.QueryCanceled as error:
        raise Trouble(
            f"not even a part of {table} could be read in the time: give more with --timeout, or look for what keeps "
            "the server busy"
        ) from error
    except psycopg.errors.LockNotAvailable as error:
        raise Trouble(
            f"{table} is locked by another session, such as an ALTER TABLE: try again when it is done"
        ) from error


@contextmanager
def _progress(found: Survey) -> Iterator[Any]:
    """Show on a terminal how far the counting is."""
    import sys

    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task(f"counting {found.table.qualified}", total=1.0)
        yield lambda share: bar.update(line, completed=share)


@contextmanager
def _connection(database_url: str | None) -> Iterator[psycopg.Connection[Any]]:
    """Open a connection for which redrive need not be installed."""
    import psycopg

    from redrive.connections import conninfo

    queue = connected(database_url, None)
    with told():
        dsn = conninfo(queue.settings.database_url, application="redrive adopt")
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as conn:
            yield conn


def _check(zone: str | None) -> None:
    from difflib import get_close_matches
    from zoneinfo import available_timezones

    if zone is not None and zone not in available_timezones():
        near = get_close_matches(zone, available_timezones(), 1)
        raise Misused(f"--zone {zone!r} is no zone" + (f", did you mean {near[0]}?" if near else ": write it as UTC"))


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Trouble(f"{path} can't be written: {error.strerror}") from error
