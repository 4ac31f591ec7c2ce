"""The command line: every command imports what it needs when it runs, so that ``redrive --help`` is quick.

Commands parse, ask and show. What is done to the tables is done by the modules below, the same for the CLI, the pages
and a program.
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import click

from redrive.cli.exits import CODES, Trouble, told

SAID = "_REDRIVE_SAID"
"""Set for the processes of one worker: their parent has said it."""
COMMANDS = {
    "migrate": "redrive.cli.migrate",
    "worker": "redrive.cli.worker",
    "enqueue": "redrive.cli.enqueue",
    "jobs": "redrive.cli.look",
    "show": "redrive.cli.show",
    "dead": "redrive.cli.dead",
    "requeue": "redrive.cli.requeue",
    "requeues": "redrive.cli.requeues",
    "replay": "redrive.cli.replay",
    "cancel": "redrive.cli.mend",
    "pause": "redrive.cli.kinds",
    "resume": "redrive.cli.kinds",
    "limit": "redrive.cli.kinds",
    "kinds": "redrive.cli.kinds",
    "breakers": "redrive.cli.breakers",
    "batches": "redrive.cli.batches",
    "schedules": "redrive.cli.schedules",
    "topics": "redrive.cli.topics",
    "route": "redrive.cli.relay",
    "relay": "redrive.cli.relay",
    "prune": "redrive.cli.prune",
    "audit": "redrive.cli.audit",
    "workers": "redrive.cli.look",
    "health": "redrive.cli.health",
    "top": "redrive.cli.top",
    "doctor": "redrive.cli.doctor",
    "alerts": "redrive.cli.alerts",
    "ui": "redrive.cli.ui",
    "adopt": "redrive.cli.adoptions",
    "explain": "redrive.cli.explain",
    "bench": "redrive.cli.bench",
    "capacity": "redrive.cli.capacity",
    "completion": "redrive.cli.completion",
    "demo": "redrive.demo",
}
"""Each command and its module, in the order in which a newcomer meets them."""


class Commands(click.Group):
    """The commands, imported one by one when they are asked for, and their errors told in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """List the names."""
        return [name for name, module in COMMANDS.items() if find_spec(module)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command and give the command."""
        if cmd_name not in self.list_commands(ctx):
            return None
        try:
            found: click.Command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        except ModuleNotFoundError as error:
            if cmd_name != "demo":
                raise
            return _without_extra(error.name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or name the one that was meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if near := get_close_matches(args[0], self.list_commands(ctx), n=1):
                raise click.UsageError(f"{error.message} Did you mean {near[0]}?", ctx) from None
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what an operator can mend becomes one line and an exit code."""
        with told():
            return super().invoke(ctx)


def _without_extra(module: str | None) -> click.Command:
    def say() -> None:
        raise Trouble(f"{module} is not installed: pip install 'redrive[demo]'")

    return click.Command("demo", callback=say, short_help="Watch it all work; needs the extra: redrive[demo].")


EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code}  {meaning}" for code, meaning in CODES.items())


@click.group(
    cls=Commands,
    epilog=EPILOG,
    context_settings={
        "auto_envvar_prefix": "REDRIVE",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
    },
)
@click.version_option(package_name="redrive", prog_name="redrive")
def cli() -> None:
    """Background jobs on the Postgres you have: no job is lost, no job fails silently.

    The database is the one of --database-url, REDRIVE_DATABASE_URL or DATABASE_URL. A flag that sets how redrive works
    names its variable in its help; any other is REDRIVE_, the command and the flag, as in REDRIVE_JOBS_LIMIT.
    """
    if any(name.startswith("REDRIVE_") for name in os.environ) and not os.environ.get(SAID):
        from redrive.cli.variables import strangers

        for name, meant in strangers(os.environ, cli):
            remedy = f"did you mean {meant}?" if meant else "`redrive worker --help` names those of the settings"
            click.echo(f"note: nothing reads the variable {name}: {remedy}", err=True)


def main() -> None:
    """Run the command line."""
    cli(prog_name="redrive")
