"""``redrive replay``: a dead job's handler here and now, with its payload, in a debugger where one is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.exits import PROBLEM
from redrive.cli.options import application, as_json, database, examples
from redrive.cli.session import session

if TYPE_CHECKING:
    from redrive.replay import Replay


@click.command(
    short_help="Run a dead job's handler here, and count nothing.",
    epilog=examples("redrive replay 42 --app app.jobs:queue", "redrive replay 42 --pdb --app app.jobs:queue"),
)
@click.argument("job_id", metavar="ID", type=int)
@click.option("--pdb", "debug", is_flag=True, help="Open the debugger where it raised.")
@application
@as_json
@database
def replay(
    *, job_id: int, debug: bool, app: str | None, database_url: str | None, schema: str | None, as_json: bool
) -> None:
    """Run the handler of the job ID here and now, with its payload, and show what it returns or raises.

    The job's row is not touched and no try is counted: job.progress() is shown, job.complete() does nothing. What the
    handler itself does is real: the mail it sends, the rows it writes. Exit code 1 where it raises.
    """
    from redrive import store
    from redrive.cli.curtain import Curtain
    from redrive.cli.target import load_queue
    from redrive.replay import demand_at_rest
    from redrive.replay import replay as run

    if app is None:
        raise click.UsageError("which application? Give --app MODULE:QUEUE, or set REDRIVE_APP")
    if debug and as_json:
        raise click.UsageError("--pdb is for a human and --json for a script: give one of them")
    queue = load_queue(app)
    url = database_url or queue.settings.database_url or None
    with session(url, schema or queue.settings.schema) as now:
        rows = now.ask(store.get(now.schema, job_id))
        where = now.schema
        if not rows:
            raise now.missing(job_id)
    [job] = rows
    handler = queue.handlers.demand(job.kind)
    demand_at_rest(job)
    screen.note(
        f"job {job.id} ({screen.clean(job.kind)}): what its handler does now is real, and the job's row stays as it is"
    )
    made = run(handler, job, where)
    hide = Curtain.of(queue.handlers)
    if as_json:
        screen.document(_document(made, job.kind, hide))
    else:
        _show(made, job.kind, hide)
    if made.error is not None:
        if debug:
            import pdb  # noqa: T100 - what was asked for

            pdb.post_mortem(made.error.__traceback__)
        raise click.exceptions.Exit(PROBLEM)


def _show(made: Replay, kind: str, hide: Any) -> None:
    from redrive.cli.curtain import text
    from redrive.failure import describe

    for value in made.progress:
        click.echo(f"progress: {screen.compact(hide.data(kind, value))}")
    if made.completed:
        click.echo("job.complete() was called; nothing was written of it")
    after = f"after {screen.span(made.seconds)}"
    if made.error is None:
        click.secho(f"succeeded {after}: {screen.compact(hide.data(kind, made.result))}", fg="green")
        return
    click.echo(screen.clean(text(describe(made.error).traceback) or ""))
    click.secho(f"{_verdict(made.error)} {after}", fg="red")


def _verdict(error: BaseException) -> str:
    from redrive.errors import Dead, Discard, Retry, Snooze

    match error:
        case Discard():
            return "a worker would discard it"
        case Dead():
            return "a worker would call it dead"
        case Retry():
            return "a worker would try it again"
        case Snooze():
            return "a worker would snooze it"
        case Exception():
            return "failed"
    return "a worker would take it for an attempt to end its process: failed"


def _document(made: Replay, kind: str, hide: Any) -> dict[str, Any]:
    from redrive.cli.curtain import text
    from redrive.failure import describe

    said = None if made.error is None else describe(made.error)
    return {
        "succeeded": said is None,
        "seconds": made.seconds,
        "result": hide.data(kind, made.result),
        "progress": [hide.data(kind, value) for value in made.progress],
        "completed": made.completed,
        "error": None if said is None else text(f"{said.error_type}: {said.message}"),
        "traceback": None if said is None else text(said.traceback),
    }
