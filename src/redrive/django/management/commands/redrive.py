"""``manage.py redrive …``: the whole command line of redrive, on the project's database and with its queue."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from redrive.cli import cli
from redrive.django.options import USING, options, url
from redrive.django.ormqueue import project_queue

if TYPE_CHECKING:
    from argparse import ArgumentParser

WORKERS, TARGET = "redrive.django.project:queue", "redrive.django.project:plain"
"""The project's queue, whose handlers enqueue on the ORM's connection; and one with connections of its own."""
_DJANGO = ("--settings", "--pythonpath")
"""Flags that Django has read already, wherever they stand."""


class Command(BaseCommand):
    """The command."""

    help = (
        "Runs redrive's command line on this project: manage.py redrive worker, manage.py redrive dead, … "
        "`manage.py redrive --help` lists the commands. --using ALIAS, before the command, names another database."
    )
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass everything after ``manage.py redrive`` on as it is: --help and --version are redrive's."""
        words = argv[2:]
        try:
            self.run(words)
        except CommandError as error:
            self.stderr.write(f"{type(error).__name__}: {error}")
            sys.exit(error.returncode)
        finally:
            connections.close_all()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take words, for call_command."""
        parser.add_argument("--using", default="")
        parser.add_argument("words", nargs=REMAINDER)

    def handle(self, *words: str, **how: Any) -> None:
        """Run a command: ``call_command("redrive", "requeue", "--kind", "mail", "--yes")``."""
        try:
            before = [f"--using={how['using']}"] if how.get("using") else []
            self.run([*before, *(how.get("words") or ()), *words])
        except SystemExit as end:
            if end.code:
                raise CommandError(f"redrive ended with exit code {end.code}", returncode=int(end.code)) from end

    def run(self, words: list[str]) -> None:
        """Run the command line.

        Raises:
            CommandError: where the project's settings don't do.
            SystemExit: with redrive's exit code.
        """
        words, alias = _without_using(words)
        before = dict(os.environ)
        argv, sys.argv = sys.argv, ["redrive", *words]  # what worker processes are started with
        queue = project_queue()  # made when the apps' jobs were imported, before anybody had read --using
        usual = queue.alias
        try:
            if alias:
                os.environ[USING] = queue.alias = alias
            os.environ |= _place() | {"REDRIVE_APP": WORKERS if words[:1] == ["worker"] else TARGET}
            cli(args=words, prog_name="manage.py redrive")
        finally:
            sys.argv, queue.alias = argv, usual
            for name in os.environ.keys() - before.keys():
                del os.environ[name]
            os.environ.update(before)


def _place() -> dict[str, str]:
    """Give what redrive's commands read of the project: where the jobs are. A worker asks the project itself."""
    try:
        found = options()
        return {"REDRIVE_SCHEMA": found.schema, "REDRIVE_DATABASE_URL": url(found.database)}
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error


def _without_using(words: list[str]) -> tuple[list[str], str]:
    """Take out --using, where it stands before the command, and what is Django's."""
    left: list[str] = []
    alias, rest = "", list(words)
    while rest:
        flag, is_whole, value = rest[0].partition("=")
        if flag not in _DJANGO and not (flag == "--using" and all(word.startswith("-") for word in left)):
            left.append(rest.pop(0))
            continue
        rest.pop(0)
        if not is_whole:
            value = rest.pop(0) if rest else ""
        if flag == "--using":
            alias = value
            if not alias:
                raise CommandError("--using needs an alias of DATABASES")
    return left, alias
