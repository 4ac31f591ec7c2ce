"""The REDRIVE_* variables that nothing reads: a slip of the pen there would be obeyed by nobody, and told to nobody.

They are named once, when a command starts, and never an error: a variable of that name may be somebody else's.
"""

from __future__ import annotations

import re
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from redrive.settings import PREFIX, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OTHERS = (
    "APP",
    "BENCH_DIR",
    "DJANGO_USING",
    "LOG_LEVEL",
    "ONCE",
    "PG_BIN",
    "UI_LOOK_PASSWORD",
    "UI_PASSWORD",
)
"""What is read beside the settings and the flags of commands."""
_OF_KUBERNETES = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_\w+)?)?)$")
"""A service that is called redrive puts these into the environment of every pod."""


def strangers(environment: Mapping[str, str], commands: click.Group) -> Iterator[tuple[str, str | None]]:
    """Give each REDRIVE_* variable that is set and that nothing here reads, with the name that was probably meant."""
    known = {PREFIX + name for name in (*(each.name.upper() for each in fields(Settings)), *OTHERS)}
    odd = [name for name in sorted(environment) if name.startswith(PREFIX) and name not in known]
    if not odd:  # nearly always: then no command need be imported
        return
    for command in commands.list_commands(click.Context(commands)):
        prefix = _spelt(command)
        if any(name.startswith(PREFIX + prefix) for name in odd):
            known |= set(_flags(commands, command, PREFIX + prefix))
    for name in odd:
        if name not in known and not _OF_KUBERNETES.search(name):
            yield name, next(iter(get_close_matches(name, known, n=1, cutoff=0.75)), None)


def _flags(group: click.Group, name: str, prefix: str) -> Iterator[str]:
    context = click.Context(group)
    if (command := group.get_command(context, name)) is None:
        return
    yield from (f"{prefix}_{param.name.upper()}" for param in command.params if param.name)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            yield from _flags(command, each, f"{prefix}_{_spelt(each)}")


def _spelt(command: str) -> str:
    return command.upper().replace("-", "_")
