"""``redrive capacity``: how far this installation goes, which wall is nearest, and which step is next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.kinds import Rate
from redrive.cli.options import as_json, database, examples
from redrive.cli.session import session
from redrive.words import counted

if TYPE_CHECKING:
    from redrive.capacity.facts import Facts
    from redrive.capacity.steps import Reached
    from redrive.capacity.walls import Setup, Wall

PAGE = "docs/scale.md"
FEW = 100.0
"""Jobs a second that are taken as wished where none ran."""
ABOVE = 2.0
"""What is wished unless it is said: so many times the peak."""
MOST = 1e9


class Wished(Rate):
    """A rate, or a plain number of jobs a second."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the text as jobs a second."""
        try:
            return float(value)
        except ValueError:
            return super().convert(value, param, ctx)


def _positive(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Let through what can be reckoned with: no NaN, nothing without end."""
    if value is not None and not 0 < value <= MOST:
        raise click.BadParameter(f"{value:g} is not a number above 0, and up to {MOST:,.0f}", ctx, param)
    return value


@click.command(
    short_help="Say how far it goes, and which step is next.",
    epilog=examples(
        "redrive capacity                       # as it is, and twice the peak",
        "redrive capacity --rate 2000           # what it takes to run 2,000 jobs/s, all day",
        "redrive capacity --rate 2000 --payload 4000 --cores 8 --disk 500",
        "redrive capacity --run 0.25            # before anything ran: a handler takes 250 ms",
        "redrive capacity --json | jq .next",
    ),
)
@click.option(
    "--rate",
    type=Wished(),
    callback=_positive,
    metavar="N[/SPAN]",
    help="Jobs that are wished, all day: 200 (a second), 200/s, 10/m.",
)
@click.option(
    "--payload", type=float, callback=_positive, metavar="BYTES", help="Of a job, instead of what is measured here."
)
@click.option("--run", metavar="SECONDS", help="What a handler takes, instead of what is measured here: 0.25, 250ms.")
@click.option(
    "--cores", type=float, callback=_positive, metavar="N", help="Of the database's server; SQL does not tell."
)
@click.option("--disk", type=float, callback=_positive, metavar="GB", help="That jobs may take.")
@as_json
@database
def capacity(
    *,
    rate: float | None,
    payload: float | None,
    run: str | None,
    cores: float | None,
    disk: float | None,
    as_json: bool,
    database_url: str | None,
    schema: str | None,
) -> None:
    """Read what jobs take of this database, and say which wall is nearest, which step is next, and what it would buy.

    It only looks: rates and run times from what workers counted, connections, sizes, retention; and from
    pg_stat_statements, where it is installed, what a job costs the server. What is not measured here was measured by
    make bench, on a small machine, or is assumed, and each figure says which. The steps and their figures are explained
    in docs/scale.md.
    """
    from redrive.capacity import facts, steps, walls
    from redrive.diagnosis import Patient
    from redrive.settings import seconds

    took = seconds(run, "--run") if run is not None else None
    if took is not None and not took > 0:
        raise click.UsageError(f"--run is {run}: must be more than 0")
    with session(database_url, schema) as now:
        now.conn.read_only = True
        found = facts.read(Patient(now.queue, now.conn))
    setup = walls.setup(found, cores=cores, disk=disk, run=took, payload=payload, all_day=rate is not None)
    if rate is None:  # the mean is what fills disks, the peak what takes slots: the peak is the safe one of the two
        rate = ABOVE * found.peak_rate or FEW
        wished = "twice the peak" if found.peak_rate else "assumed"
    else:
        wished = "given"
    seen = walls.walls(setup, rate)
    if as_json:
        screen.document(_document(found, setup, seen, rate, wished))
        return
    _tell_facts(found, setup, rate, wished)
    _tell_walls(seen, rate)
    _tell_steps(steps.ladder(setup, rate))
    _tell_next(setup, found, rate)


def _tell_facts(found: Facts, setup: Setup, rate: float, wished: str) -> None:
    from redrive import broker
    from redrive.capacity import walls

    ran = (
        f"{screen.jobs(found.jobs_a_day)} within a day, {_rate(found.peak_rate)} at the peak"
        if found.jobs_a_day
        else "no job ran within a day"
    )
    click.echo(f"{ran}; wished: {_rate(rate)} ({wished})")
    if found.share is not None and (found.sessions or 0.0) >= broker.A_LITTLE:
        click.echo(
            f"jobs take {found.share:.0%} of the time of all statements here: {found.sessions:.2g} sessions on average"
        )
    taken = {
        "a payload of {}": (setup.payload, walls.storage),
        "a handler of {}": (setup.run, walls.short),
        "{} cores": (setup.cores, "{:g}".format),
        "{} of disk": (setup.disk, walls.storage),
    }
    said = (f"{text.format(write(known.value or 0.0))} ({known.source})" for text, (known, write) in taken.items())
    click.echo(f"taken: {', '.join(said)}")
    if found.server_us is None:
        screen.note(f"note: what a job costs the server is not measured here: {found.statements}")
    if found.held:
        screen.note("note: something holds the horizon, and what is measured here is that: see `redrive doctor`")


def _tell_walls(seen: list[Wall], rate: float) -> None:
    rows: list[list[str | screen.Cell]] = [
        [
            screen.Cell(wall.name, "" if wall.holds is None or wall.holds >= rate else "yellow"),
            _rate(wall.holds),
            wall.needs,
            wall.source,
            wall.why,
        ]
        for wall in seen
    ]
    click.echo()
    screen.table(["WALL", "HOLDS TO", f"{_rate(rate)} NEED", "FROM", "WHY"], rows, right=["HOLDS TO"])


def _tell_steps(ladder: list[Reached]) -> None:
    rows: list[list[str | screen.Cell]] = [
        [
            screen.Cell(each.step.name if each.step else "as it is", "bold"),
            _rate(each.holds),
            each.wall.name if each.holds is not None else "",
            each.step.does if each.step else "",
        ]
        for each in ladder
    ]
    click.echo()
    screen.table(["STEP, AFTER THOSE ABOVE", "HOLDS TO", "NEXT WALL", "WHAT IS DONE"], rows, right=["HOLDS TO"])


def _tell_next(setup: Setup, found: Facts, rate: float) -> None:
    from redrive.capacity import steps, walls

    wall = walls.holds(setup, rate)
    click.echo()
    path = steps.way(setup, rate)
    if wall.holds is not None and wall.holds >= rate:
        click.secho(f"no step is due: {_rate(rate)} are held, and {wall.name} is the nearest wall", fg="green")
        after = steps.next_step(setup, rate)
        if after and after.step:
            click.echo(f"then:   {after.step.name}: {after.step.does}")
        return
    if not path:
        click.secho(f"wall: {wall.name}, at {_rate(wall.holds)}, and no step moves it: see {PAGE}", fg="yellow")
        return
    first = path[0]
    assert first.step is not None  # noqa: S101 - only how it stands has none
    click.secho(f"next:   {first.step.name} (wall: {wall.name}, at {_rate(wall.holds)})", fg="yellow", bold=True)
    click.echo(f"do:     {first.step.does}{_which(first, setup, found, rate)}")
    bought = f"{_rate(first.holds)}; then {first.wall.name}" if first.holds is not None else _rate(None)
    click.echo(f"buys:   {bought}")
    click.echo(f"costs:  {first.step.costs}")
    if first.holds is None:
        for each in steps.choices(setup, rate):
            if each.step and each.holds is not None:
                click.echo(f"or:     {each.step.name}: {_rate(each.holds)}")
    if path[1:]:
        rest = ", then ".join(f"{each.step.name} ({_rate(each.holds)})" for each in path[1:] if each.step)
        click.echo(f"after:  {rest}")
    click.echo(f"see:    {PAGE}")


def _which(reached: Reached, setup: Setup, found: Facts, rate: float) -> str:
    """Say how many, or which kinds, of a step that is taken bit by bit."""
    from redrive.capacity import walls

    name = reached.step.name if reached.step else ""
    if name == "worker hosts":
        wanted = min(reached.setup.processes, walls.wanted(setup, rate))
        return f": {counted(wanted, 'process', 'processes')} of {counted(setup.each, 'slot')}"
    if name == "broker" and found.kinds:
        return ": " + ", ".join(f"{screen.one_line(kind, 40)} ({share:.0%})" for kind, share in found.kinds.items())
    return ""


def _document(found: Facts, setup: Setup, seen: list[Wall], rate: float, wished: str) -> dict[str, Any]:
    from redrive.capacity import steps

    path = [_plain(each) for each in steps.way(setup, rate)]
    figures = {name: vars(getattr(setup, name)) for name in ("run", "cores", "server_us", "wal", "row", "disk")}
    return {
        "wished": {"rate": rate, "source": wished},
        "measured": vars(found),
        "figures": figures,
        "walls": [vars(wall) for wall in seen],
        "steps": [_plain(each) for each in steps.ladder(setup, rate)],
        "next": path[0] if path else None,
        "way": path,
        "page": PAGE,
    }


def _plain(reached: Reached) -> dict[str, Any]:
    step = reached.step
    return {
        "step": step.name if step else None,
        "holds": reached.holds,
        "wall": reached.wall.name if reached.holds is not None else None,
        "does": step.does if step else "",
        "costs": step.costs if step else "",
    }


def _rate(value: float | None) -> str:
    if value is None:
        return "not measured yet"
    return f"{value:,.0f} jobs/s" if value >= 10 else f"{value:.2g} jobs/s"  # noqa: PLR2004 - two digits
