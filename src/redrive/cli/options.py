"""The flags that several commands share, and how a flag, its REDRIVE_* variable and a setting are one thing.

The variables of settings are read by :mod:`redrive.settings`, not by click: what an application passes to its Queue
goes over the environment, what is typed goes over both, in every command alike.
"""

from __future__ import annotations

import getpass
import os
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from redrive.queue import Queue

F = TypeVar("F", bound="Callable[..., Any]")


def examples(*lines: str) -> str:
    """Write the examples that stand at the end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def setting(flag: str, text: str, *, metavar: str | None = None, variable: str = "", **more: Any) -> Callable[[F], F]:
    """Make the flag of a setting; it is None where it was not typed."""
    variable = variable or "REDRIVE_" + flag.split("/", maxsplit=1)[0].removeprefix("--").replace("-", "_").upper()
    if "/" not in flag:
        more = {"metavar": metavar or "SECONDS", **more}
    # The variable is the setting's own, and settings.load reads it: none of click's making beside it.
    more["allow_from_autoenv"] = False
    return click.option(flag, default=None, help=f"{text}  [env: {variable}]", **more)


def database(command: F) -> F:
    """Add the flags that say where the jobs are."""
    schema = setting("--schema", "The schema that holds this installation (default: redrive).", metavar="NAME")
    return server(schema(command))


def server(command: F) -> F:
    """Add the flag that names the database, for a command that looks into no installation."""
    flag = setting(
        "--database-url",
        "Where the jobs are, as postgresql://user@host/name.",
        metavar="URL",
        variable="REDRIVE_DATABASE_URL or DATABASE_URL",
    )
    return flag(command)


def as_json(command: F) -> F:
    """Add the flag for scripts."""
    return click.option("--json", "as_json", is_flag=True, help="Answer with one JSON document.")(command)


def application(command: F) -> F:
    """Add the flag that names the application."""
    flag = click.option(
        "--app",
        envvar="REDRIVE_APP",
        metavar="MODULE:QUEUE",
        help="The application's queue, for what only its handlers know.  [env: REDRIVE_APP]",
    )
    return flag(command)


def connected(database_url: str | None, schema: str | None) -> Queue:
    """Make the queue that a command without an application works on.

    Raises:
        NoDatabase: when no database is named anywhere.
    """
    from redrive.errors import NoDatabase
    from redrive.queue import Queue

    queue = Queue(database_url, schema=schema)
    if not queue.settings.database_url:
        raise NoDatabase("no database is named: give --database-url, or set REDRIVE_DATABASE_URL or DATABASE_URL")
    return queue


def signed(command: F) -> F:
    """Add the flags that say who does it, and why; both stand in the audit."""
    by = click.option("--by", metavar="TEXT", default=operator, show_default="the user of the shell", help="Who.")
    return by(click.option("--reason", default="", metavar="TEXT", help="Why; kept in the audit.")(command))


def because(by: str, reason: str) -> str:
    """Repeat who did it and why, behind what was done; nothing where no reason was given."""
    return f"{f', by {by}' if by else ''}: {reason}" if reason else ""


def operator() -> str:
    """Name the user of the shell, for who did what; empty where the account has no name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def worker_command() -> str:
    """Say how a worker is started from here: manage.py knows the application, and REDRIVE_APP names it."""
    here = click.get_current_context().find_root().info_name or ""
    if here.startswith("manage.py"):
        return f"python {here} worker"
    return "redrive worker" if os.environ.get("REDRIVE_APP") else "redrive worker app.jobs:queue"
