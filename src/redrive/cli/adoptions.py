"""``redrive adopt``: the steps from looking at a table to working it, and back; each can be the last.

``redrive adopt TABLE`` alone is the look. What connects, takes in and undoes is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.adopt import adopt as look_at
from redrive.cli.adopted import status
from redrive.cli.exits import PROBLEM
from redrive.cli.kinds import Rate
from redrive.cli.mend import ask, bar
from redrive.cli.options import as_json, database, examples, signed
from redrive.cli.screen import Cell
from redrive.cli.session import session
from redrive.words import counted

if TYPE_CHECKING:
    from redrive.adopt.undo import Undone

DRY = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
YES = click.option("--yes", "-y", is_flag=True, help="Do it without asking.")


class Steps(click.Group):
    """The steps; what is none of them is a table to look at."""

    otherwise = "look"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the look in front of what is no step."""
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [self.otherwise, *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=Steps,
    short_help="Look at a table that you already have, and have redrive work it.",
    epilog=examples(
        "redrive adopt mail_jobs                                   # look, change nothing",
        "redrive adopt connect mail_jobs --map mail_jobs.toml --dry-run",
        "redrive adopt connect mail_jobs --map mail_jobs.toml",
        "redrive adopt status",
        "redrive adopt backfill mail_jobs retry_never_came --rate 10/s",
        "redrive adopt undo mail_jobs",
    ),
)
def adopt() -> None:
    """Look at a table that your application made, and have redrive work its rows.

    `redrive adopt TABLE` looks and changes nothing. Connected, each row that waits is a job, and what becomes of it is
    written to the row in the same commit, in the table's own words; the rows stay the application's. Every step can be
    undone.
    """


adopt.add_command(look_at, "look")
adopt.add_command(status)


@adopt.command(
    "connect",
    short_help="Make jobs of a table's rows from now on.",
    epilog=examples(
        "redrive adopt connect mail_jobs --map mail_jobs.toml --dry-run",
        "redrive adopt connect mail_jobs --map mail_jobs.toml                     # the old worker goes on",
        "redrive adopt connect mail_flag --map mail_flag.toml --legacy-stopped    # it could not go on",
        "redrive adopt connect outbox --map outbox.toml --legacy-stopped --sweep --create-index",
    ),
)
@click.argument("table")
@click.option(
    "--map", "map_file", required=True, type=click.Path(dir_okay=False), metavar="FILE", help="How the table is worked."
)
@click.option("--sweep", is_flag=True, help="No triggers on the table: workers look for rows, about once a second.")
@click.option("--with-sweep", is_flag=True, help="Triggers, and a sweep for what is written past them.")
@click.option("--legacy-stopped", is_flag=True, help="Nothing else works the table any more.")
@click.option("--create-index", is_flag=True, help="Make the index that the sweep needs, CONCURRENTLY.")
@DRY
@signed
@as_json
@database
def connect(
    *,
    table: str,
    map_file: str,
    sweep: bool,
    with_sweep: bool,
    legacy_stopped: bool,
    create_index: bool,
    dry_run: bool,
    by: str,
    reason: str,
    database_url: str | None,
    schema: str | None,
    as_json: bool,
) -> None:
    """Make a job of each row of TABLE that waits, from now on, as the map in FILE says.

    Rows from before the map's cut-over are left alone. Where the old worker goes on beside redrive, rows are written as
    claimed as soon as there is a job of them, which it must not see as waiting; where no value says so, connecting is
    refused until --legacy-stopped says that it has been stopped.
    """
    from redrive.adopt import bridge, mapfile
    from redrive.adopt.look import look
    from redrive.errors import InvalidOption

    mapping = mapfile.load(map_file)
    wanted = bridge.Wanted(
        by_trigger=not sweep, by_sweep=sweep or with_sweep, legacy_stopped=legacy_stopped, index=create_index
    )
    with session(database_url, schema) as now:
        plan = bridge.Plan(now.conn, now.schema, mapping, wanted)
        if look(now.conn, table).oid != plan.table.oid:
            raise InvalidOption(f"{map_file} is the map of {mapping.table}, not of {table}")
        if dry_run:
            _show_script(plan.script(), as_json=as_json)
            return
        with now.doubting(mapping.kind or ""):
            done = bridge.connect(now.conn, plan, by=by, reason=reason)
    if as_json:
        screen.document({"table": plan.mapping.table, **done})
        return
    click.echo(
        f"{plan.mapping.table} is connected: rows that come to wait are jobs of {mapping.kind or 'their own kind'}"
    )
    if done["taken"]:
        taken = counted(done["taken"], "row from since the cut-over was", "rows from since the cut-over were")
        click.echo(f"{taken} taken in")
    if done["held"]:
        click.echo(
            counted(done["held"], "row from before it is", "rows from before it are")
            + " left alone: see `redrive adopt backfill`"
        )


@adopt.command(
    "pause",
    short_help="Make no jobs of a table's rows for now.",
    epilog=examples("redrive adopt pause mail_jobs --reason 'the mail server moves'"),
)
@click.argument("table")
@signed
@database
def pause(*, table: str, by: str, reason: str, database_url: str | None, schema: str | None) -> None:
    """Make no jobs of the rows of TABLE until it is resumed. Those that come are noted, and what has a job goes on."""
    _pause(table, paused=True, by=by, reason=reason, database_url=database_url, schema=schema)


@adopt.command(
    "resume", short_help="Make jobs of a table's rows again.", epilog=examples("redrive adopt resume mail_jobs")
)
@click.argument("table")
@signed
@database
def resume(*, table: str, by: str, reason: str, database_url: str | None, schema: str | None) -> None:
    """Make jobs of the rows of TABLE again, those that came in the pause as well. Exit code 1: it was not paused."""
    _pause(table, paused=False, by=by, reason=reason, database_url=database_url, schema=schema)


@adopt.command(
    "backfill",
    short_help="Take rows in that are older than the cut-over.",
    epilog=examples(
        "redrive adopt backfill mail_jobs                                  # which buckets there are",
        "redrive adopt backfill mail_jobs stuck failed --dry-run",
        "redrive adopt backfill mail_jobs retry_never_came --rate 10/s",
        "redrive adopt backfill mail_jobs failed --rate 1/s --limit 20     # try some first",
    ),
)
@click.argument("table")
@click.argument("buckets", nargs=-1)
@click.option("--rate", type=Rate(), metavar="N/SPAN", help="How quickly: 10/s, 300/m.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many rows.")
@DRY
@YES
@signed
@as_json
@database
def backfill(
    *,
    table: str,
    buckets: tuple[str, ...],
    rate: float | None,
    limit: int | None,
    dry_run: bool,
    yes: bool,
    by: str,
    reason: str,
    database_url: str | None,
    schema: str | None,
    as_json: bool,
) -> None:
    """Make jobs of the rows of TABLE that are in BUCKETS, which `redrive adopt TABLE` reports and explains.

    Rows that don't wait by their own words are put back to waiting, with all their tries. Those that are done or have a
    job are left alone, so it may be broken off with Ctrl-C and said again.
    """
    from redrive.adopt import bridge
    from redrive.adopt.backfill import Lost, backfill

    if buckets and rate is None and not dry_run:
        raise click.UsageError("how quickly? Give --rate, such as 10/s; or --dry-run to count them only")
    with session(database_url, schema) as now:
        adoption = bridge.demand(now.conn, now.schema, table)
        made = bridge.reconnected(now.conn, now.schema, adoption)
        lost = Lost(now.conn, made)
        which = lost.which(buckets)
        found = lost.count(buckets)
        if not as_json:
            _show_buckets(found)
        total = sum(each["rows"] for each in found)
        taken = 0
        if buckets and total and not dry_run and rate is not None:
            total = min(total, limit or total)
            ask(f"Make {screen.jobs(total)} of them, {rate:g} a second?", yes=yes)
            what = {"table": adoption.name, "buckets": list(buckets)}
            how: dict[str, Any] = {"rate": rate, "most": limit, "what": what, "by": by, "reason": reason}
            with bar("taking in", total) as shown:
                taken = backfill(now.conn, made, which, **how, on_taken=shown)
    if as_json:
        screen.document({"table": adoption.name, "buckets": found, "taken": taken, "dry_run": dry_run})
    elif taken:
        click.echo(f"{screen.jobs(taken)} made")


@adopt.command(
    "undo",
    short_help="Disconnect a table and take away what was made for it.",
    epilog=examples(
        "redrive adopt undo mail_jobs --dry-run",
        "redrive adopt undo mail_jobs --reason 'back to cron'",
        "redrive adopt undo mail_jobs --wait 5 --abandon     # what still runs then is handed back all the same",
    ),
)
@click.argument("table")
@click.option(
    "--wait", type=click.FloatRange(0), default=60.0, show_default=True, metavar="SECONDS", help="For what runs."
)
@click.option("--abandon", is_flag=True, help="Hand back what runs longer as well: it may be done twice.")
@DRY
@YES
@signed
@as_json
@database
def undo(
    *,
    table: str,
    wait: float,
    abandon: bool,
    dry_run: bool,
    yes: bool,
    by: str,
    reason: str,
    database_url: str | None,
    schema: str | None,
    as_json: bool,
) -> None:
    """Make no more jobs of the rows of TABLE, hand back those that wait, and take away all that was made for it.

    Rows keep what was written to them: what has been done stays done. Jobs that run are waited for. Exit code 1 where
    some still do: it is half undone then, makes no new jobs, and is to be said again.
    """
    from redrive.adopt import undo as ending

    with session(database_url, schema) as now:
        adoption, script = ending.preview(now.conn, now.schema, table)
        if not as_json:
            click.echo(
                counted(
                    adoption.waiting,
                    f"job of {adoption.name} waits and is cancelled",
                    f"jobs of {adoption.name} wait and are cancelled",
                )
                + f", {counted(adoption.claimed, 'runs', 'run')}"
            )
            if adoption.ended:
                click.echo(
                    counted(adoption.ended, "row has", "rows have")
                    + " ended and the table has no word for it: for the old worker it is as if they waited"
                )
        if dry_run:
            _show_script(script, as_json=as_json)
            return
        ask(f"Disconnect {adoption.name}?", yes=yes or as_json)
        done = ending.undo(
            now.conn, now.schema, table, by=by, reason=reason, patience=wait, abandon=abandon, on_wait=_Waiting(as_json)
        )
    _tell_undone(done, as_json=as_json)


class _Waiting:
    """Says once in a while what is waited for."""

    def __init__(self, silent: bool) -> None:
        self._silent, self._said = silent, ""

    def __call__(self, left: Any) -> None:
        said = (
            f"waiting for {counted(left.running, 'job that runs', 'jobs that run')} and "
            f"{counted(left.owed, 'row')} that can't be written yet"
        )
        if not self._silent and said != self._said:
            screen.note(said)
        self._said = said


def _tell_undone(done: Undone, *, as_json: bool) -> None:
    if as_json:
        screen.document({**vars(done), "done": done.done})
    else:
        click.echo(f"{screen.jobs(done.returned)} cancelled, their rows handed back")
        if done.done:
            click.echo(
                f"{done.table} is no longer connected: nothing of redrive's is left on it, and its rows keep what was "
                "written to them"
            )
        else:
            click.echo(
                f"not done yet: {counted(done.running, 'job still runs', 'jobs still run')} and "
                f"{counted(done.owed, 'row')} can't be written; no new "
                "jobs are made, so say it again, with --wait for more patience or --abandon for none",
                err=True,
            )
    if not done.done:
        raise click.exceptions.Exit(PROBLEM)


def _pause(table: str, *, paused: bool, by: str, reason: str, database_url: str | None, schema: str | None) -> None:
    from redrive.adopt import bridge

    with session(database_url, schema) as now:
        changed = bridge.pause(now.conn, now.schema, table, paused=paused, by=by, reason=reason)
    word = "paused" if paused else "resumed"
    click.echo(f"{screen.clean(table)} {word}" if changed else f"{screen.clean(table)}: nothing to do")
    if not changed:
        raise click.exceptions.Exit(PROBLEM)


def _show_script(script: list[str], *, as_json: bool) -> None:
    if as_json:
        screen.document({"dry_run": True, "statements": script})
    else:
        click.echo("\n\n".join(script))
        screen.note(f"nothing was done; {counted(len(script), 'statement')} would be run, as above")


def _show_buckets(found: list[dict[str, Any]]) -> None:
    if not found:
        screen.note("no row is in any of these buckets")
        return
    lines: list[list[str | Cell]] = [
        [each["bucket"], screen.number(each["rows"]), each["title"], ", ".join(each["examples"])] for each in found
    ]
    screen.table(("BUCKET", "ROWS", "WHICH", "E.G."), lines, right=("ROWS",))
