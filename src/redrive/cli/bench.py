"""``redrive bench``: what redrive does in a second on this database and machine, in a schema that is gone again."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.exits import Trouble, told
from redrive.cli.options import as_json, connected, examples, server

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from redrive.bench.figures import Figure
    from redrive.bench.loads import Load, Tell

NAMES = ("enqueue", "publish", "drain", "latency", "sustained", "horizon", "idle", "slow")
KB_A_JOB = 2.0
"""Of disk: the row with its versions and index entries, and the WAL."""


@click.command(
    short_help="Measure it on your own database.",
    epilog=examples(
        "redrive bench                              # asks first; about a minute",
        "redrive bench drain --jobs 200000 --concurrency 50 --yes",
        "redrive bench sustained --rate 2000 --seconds 60 --yes",
        "redrive bench --yes --json > bench.json",
    ),
)
@click.argument("scenarios", nargs=-1, type=click.Choice(NAMES), metavar="[SCENARIO]…")
@click.option(
    "--jobs",
    type=click.IntRange(10),
    default=20_000,
    show_default=True,
    help="Jobs of enqueue, publish, drain, horizon.",
)
@click.option(
    "--seconds", default="10", metavar="SECONDS", help="How long sustained, idle and slow go on.  [default: 10]"
)
@click.option("--rate", type=click.FloatRange(1), default=500, show_default=True, help="Jobs a second of sustained.")
@click.option(
    "--concurrency", type=click.IntRange(1), metavar="N", help="Slots of a worker (default: the worker's own)."
)
@click.option("--yes", is_flag=True, help="Don't ask.")
@as_json
@server
def bench(
    *,
    scenarios: tuple[str, ...],
    database_url: str | None,
    jobs: int,
    seconds: str,
    rate: float,
    concurrency: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Measure redrive on your own database, in a scratch schema that is dropped at the end.

    \b
    The scenarios, all of them unless some are named:
      enqueue    one a call, many by COPY, many with keys
      publish    to one subscriber, to three, many at once
      drain      a full table, by async handlers and by threads
      latency    from INSERT to the handler of an idle worker
      sustained  a steady rate for a while
      horizon    with and without a long transaction beside it
      idle       what a worker without work costs
      slow       jobs of a second, two workers: no idle slot

    Workers are real processes on this machine. The server is kept busy meanwhile: think before you aim it at one that
    others need. No schema but the scratch one is touched, an installation of yours included. What the figures mean:
    docs/performance.md.
    """  # noqa: D301 - click's mark for lines that stay as they are
    from redrive.bench.loads import Load
    from redrive.bench.scratch import demand_rights, leftovers, scratch_name
    from redrive.settings import seconds as duration

    load = Load(jobs=jobs, seconds=duration(seconds, "--seconds"), rate=rate, concurrency=concurrency)
    if not load.seconds > 0:
        raise click.UsageError(f"--seconds is {seconds}: must be more than 0")
    chosen = [name for name in NAMES if name in scenarios or not scenarios]
    url, name = connected(database_url, None).settings.database_url, scratch_name()
    with told():
        place = demand_rights(url, name)
        for left in leftovers(url):
            screen.note(f'schema {left} is of another run; if none is under way: DROP SCHEMA "{left}" CASCADE')
        _ask(chosen, load, place, name, yes=yes)
        with _ended_by_signals():
            found = _measure(url, name, chosen, load)
    if as_json:
        from redrive.bench.figures import plain

        about = {"server": place.server_version, "python": sys.version.split()[0], **vars(load)}
        screen.document(about | {"scenarios": {name: plain(figures) for name, figures in found.items()}})
        return
    _show(found)


def _measure(url: str, name: str, chosen: list[str], load: Load) -> dict[str, list[Figure]]:
    from redrive.bench.scenarios import SCENARIOS
    from redrive.bench.scratch import scratch

    found = {}
    try:
        with scratch(url, name) as there:
            for scenario in chosen:
                there.clear()
                with _progress(scenario) as tell:
                    found[scenario] = SCENARIOS[scenario](there, load, tell)
    except KeyboardInterrupt:
        raise Trouble(f"stopped; schema {name} is dropped") from None
    return found


def _ask(chosen: list[str], load: Load, place: Any, name: str, *, yes: bool) -> None:
    rows = _rows(chosen, load)
    what = (
        f"bench will create schema {name} in database {place.database} as {place.role}, run {', '.join(chosen)} there "
        f"with workers on this machine ({screen.jobs(rows)}, up to {rows * KB_A_JOB / 1024:,.0f} MB of disk and WAL), "
        "and drop the schema"
    )
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{what}: nobody is here to be asked, so give --yes")
    click.echo(f"{what}.", err=True)
    click.confirm("Go on?", abort=True, err=True)


def _rows(chosen: Iterable[str], load: Load) -> int:
    """Give the jobs that will be in the table at most."""
    of = {
        "sustained": load.rate * load.seconds,
        "enqueue": 1.6 * load.jobs,
        "publish": 3 * load.jobs,
        "idle": 0,
        "slow": 40 * load.seconds,
    }
    return int(max(of.get(name, load.jobs) for name in chosen))


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end it as Ctrl-C does: the schema is dropped."""
    from redrive.worker import stop_signals

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress(scenario: str) -> Iterator[Tell]:
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    shown = (SpinnerColumn(), TextColumn("{task.description:9}"), BarColumn(), TimeElapsedColumn())
    # Drawn seldom: what draws it is the process that enqueues, and shares the machine with the worker.
    with Progress(*shown, console=Console(stderr=True), transient=True, refresh_per_second=2) as progress:
        task = progress.add_task(scenario, total=1.0)
        yield lambda done: progress.update(task, completed=min(1.0, done))


def _show(found: dict[str, list[Figure]]) -> None:
    from redrive.bench.figures import Spread

    rows: list[list[str | screen.Cell]] = []
    for scenario, figures in found.items():
        for number, figure in enumerate(figures):
            name = screen.Cell(scenario if number == 0 else "", "bold")
            if isinstance(figure.value, Spread):
                cells = ["", *(_number(getattr(figure.value, which)) for which in ("p50", "p95", "p99", "max"))]
            else:
                cells = ["not known here" if figure.value is None else _number(figure.value), "", "", "", ""]
            rows.append([name, *cells, figure.unit, figure.label])
    headers = ["SCENARIO", "FIGURE", "P50", "P95", "P99", "MAX", "UNIT", "WHAT"]
    screen.table(headers, rows, right=headers[1:6])


def _number(value: float) -> str:
    """Write a figure with three digits that mean something."""
    if isinstance(value, int) or abs(value) >= 100:  # noqa: PLR2004 - three digits
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"  # noqa: PLR2004 - as above
