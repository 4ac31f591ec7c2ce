"""``redrive demo``: a small service's jobs fail in every way there is, on a throw-away Postgres, and none is lost.

Everything in it is real: the server, the worker processes, the mail server, the HTTP endpoint, the PDFs, the signals.
It touches no database of yours and leaves nothing behind, however it ends. Here is only the command; the parts are
imported when it runs, since they need packages that the library does not.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import click

NEEDED = {"aiosmtpd": "aiosmtpd", "fpdf": "fpdf2"}

__all__ = ["demo", "main"]


@click.command(short_help="Watch jobs fail, die and come back.")
@click.option("--once", is_flag=True, help="Play to the end unattended; exit 0 if no job was lost, else 1.")
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Also write it there, as a picture that moves.",
)
@click.pass_context
def demo(ctx: click.Context, *, once: bool, svg: Path | None) -> None:
    """Watch jobs fail, die and be sent back, on a Postgres of the demo's own.

    An application's mails, webhooks and exports meet a busy mail server, a broken endpoint and a bug that kills the
    worker. Without --once it stays open at the end, for you to try the other commands on it. Takes half a minute.
    """
    if missing := [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]:
        raise click.ClickException(f'the demo needs {" and ".join(missing)}: pip install "redrive[demo]"')
    from redrive.demo.stage import perform

    attended = sys.stdin.isatty() and sys.stdout.isatty()  # who redirects one of them presses no q
    ctx.exit(perform(stay=attended and not once, svg=svg))


main = demo
