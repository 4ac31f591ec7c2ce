"""What a command says when it can't do what was asked: one line on stderr and an exit code that a script can rely on.

The table of exit codes is here and nowhere else. No traceback is shown for what the operator can mend; a fault of
redrive's own, or of the application that was imported, keeps its traceback.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

OK = 0
PROBLEM = 1
USAGE = 2
UNREACHABLE = 3
NOT_MIGRATED = 4

CODES = {
    OK: "done; for health and --check: all is well",
    PROBLEM: "something is wrong, or nothing was found; the reason is on stderr",
    USAGE: "the command was given wrong: a flag, a value, the application",
    UNREACHABLE: "the database can't be reached, or none was named",
    NOT_MIGRATED: "redrive's tables are missing or too old: run `redrive migrate`",
}

# Of the server: it knows the role or the database not; of the connection: see connections.is_outage.
_REFUSED = ("28", "3D")
_LEFTOVER = re.compile("""(["'])[^"'@]*@""")
_QUOTED = re.compile("""["'][^"']*["']""")
_OPTION = re.compile(
    r"""(?<!\w)(?:"[^"]*"|'[^']*')"""  # somebody's text
    r"""|(?P<name>^[a-z_]+(?=[ ](?:is|and)[ ])|(?<=[ ]without[ ]a[ ])[a-z]+"""
    r"""|\b[a-z]+(?:_[a-z]+)+\b|\b[a-z]+(?==(?:[ ,;:.]|$)))(?:=(?=[ ,;:.]|$))?"""
)
_NO_TABLES = ("42P01", "3F000", "42883", "42703")


class Trouble(click.ClickException):
    """Something is wrong: a line for stderr and an exit code."""

    exit_code = PROBLEM


class Misused(Trouble):
    """What was asked for makes no sense."""

    exit_code = USAGE


class Unreachable(Trouble):
    """There is no database to ask."""

    exit_code = UNREACHABLE


class NotInstalled(Trouble):
    """There is a database, without the tables."""

    exit_code = NOT_MIGRATED


@contextmanager
def told(schema: str = "") -> Iterator[None]:
    """Turn the errors that an operator can mend into one line and an exit code."""
    try:
        yield
    except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
        raise
    except Exception as error:
        if (trouble := _trouble(error, schema)) is None:
            raise
        raise trouble from error


def _trouble(error: Exception, schema: str) -> Trouble | None:
    from redrive import errors

    if isinstance(error, errors.NotMigrated):
        return NotInstalled(_line(error))
    if isinstance(error, errors.NoDatabase):
        return Unreachable(_line(error))
    if isinstance(error, errors.InvalidOption | errors.InvalidPayload | errors.InvalidMap | errors.UnknownKind):
        line = _line(error, ours=True)
        return Misused(_in_flags(line) if isinstance(error, errors.InvalidOption) else line)
    unknown = errors.UnknownSchedule | errors.UnknownGroup | errors.UnknownRequeue
    if isinstance(error, unknown | errors.UnknownSubscription | errors.UnknownAdoption | errors.AlreadyAdopted):
        return Trouble(_line(error, ours=True))
    if isinstance(error, errors.RedriveError):
        return Trouble(_line(error))
    return _of_database(error, schema) if "psycopg" in sys.modules else None


def _of_database(error: Exception, schema: str) -> Trouble | None:
    import psycopg

    from redrive.connections import is_outage

    if not isinstance(error, psycopg.Error):
        return Unreachable(f"no answer from the database: {_line(error)}") if is_outage(error) else None
    state = error.sqlstate or ""
    if state in _NO_TABLES:
        name = f'schema "{schema}"' if schema else "the schema"
        return NotInstalled(f"{name} is missing in this database, or too old: run `redrive migrate` ({_line(error)})")
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return Unreachable(f"the database takes no changes, as a standby does: give the primary's URL ({_line(error)})")
    if is_outage(error) or state.startswith(_REFUSED):
        return Unreachable(f"the database can't be reached: {_line(error)}")
    if isinstance(error, psycopg.ProgrammingError) and not state:
        return Misused(
            f"the database URL can't be read ({_QUOTED.sub('…', _line(error))}): write it as "
            "postgresql://user:password@host/name, with %40 for an @ in the password and the like"
        )
    rights = isinstance(error, psycopg.errors.InsufficientPrivilege)
    remedy = ": what each role needs stands in docs/migrations.md" if rights else ""
    return Trouble(f"the database refused: {_line(error)}{remedy}")


def _in_flags(text: str) -> str:
    """Name the flags of the command as they are typed: what a program is told of ``every`` is of ``--every`` here.

    A word is an option's name where the sentence begins with it, where it is missed, where = follows, and where English
    has none such.
    """
    here = click.get_current_context(silent=True)
    options = [each for each in here.command.params if isinstance(each, click.Option)] if here else []
    flags: dict[str | None, str] = {each.name: max(each.opts, key=len) for each in options}
    return _OPTION.sub(lambda found: flags.get(found["name"], found[0]), text)


def _line(error: Exception, *, ours: bool = False) -> str:
    """Give an error's text as one line without secrets; in *ours* an @ is no sign of a password."""
    from redrive.masking import mask_text

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = mask_text(" ".join(lines))
    # A password with an @ in it, not written as %40, is taken for a part of the host's name, and told in the error.
    return (text if ours else _LEFTOVER.sub(r"\1***@", text)) or type(error).__name__
