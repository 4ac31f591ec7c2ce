"""What the project's settings say of redrive: ``REDRIVE = {...}``, and where in DATABASES the jobs are.

    REDRIVE = {
        "DATABASE": "default",       # the alias in DATABASES
        "AUTODISCOVER": ["jobs"],    # modules of each app that register handlers; False for none
        "SCHEMA": "redrive",         # this and the rest: any setting of redrive, in capitals
    }

Nothing here opens a connection.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from django.conf import settings as project
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.connection import ConnectionDoesNotExist
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from redrive.errors import InvalidOption
from redrive.settings import Settings, load, unknown

USING = "REDRIVE_DJANGO_USING"
"""How ``manage.py redrive --using`` tells the worker processes that it starts; goes over the settings."""
NAME = "REDRIVE"
_OURS = ("DATABASE", "AUTODISCOVER")
_NOT_HERE = ("database_url",)


@dataclass(frozen=True)
class Options:
    """What the project's settings say, checked."""

    database: str = DEFAULT_DB_ALIAS
    """The alias of the database that has redrive's tables."""
    autodiscover: tuple[str, ...] = ("jobs",)
    """Names of modules that are imported from each app when the project starts."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Those of redrive."""

    @property
    def schema(self) -> str:
        """The schema of the tables."""
        return load(self.settings).schema


def options() -> Options:
    """Read the project's settings.

    Raises:
        ImproperlyConfigured: naming what is wrong, and the remedy.
    """
    given = getattr(project, NAME, None) or {}
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"{NAME} is {given!r:.80}: give a dict, such as {{'DATABASE': 'default'}}")
    known = {each.name.upper() for each in fields(Settings)} - {name.upper() for name in _NOT_HERE} | {*_OURS}
    for name in given:
        if name.lower() in _NOT_HERE:
            raise ImproperlyConfigured(f"{NAME}[{name!r}]: the database is one of DATABASES; name it with 'DATABASE'")
        if name not in known:
            raise ImproperlyConfigured(f"{NAME}: {unknown(name, known)}")
    redrives = {name.lower(): value for name, value in given.items() if name not in _OURS}
    try:
        load(redrives)
    except InvalidOption as error:
        raise ImproperlyConfigured(f"{NAME}: {error}") from error
    alias = os.environ.get(USING) or given.get("DATABASE", DEFAULT_DB_ALIAS)
    return Options(_alias(alias), _modules(given.get("AUTODISCOVER", True)), redrives)


def url(alias: str) -> str:
    """Write the connection string of a database of the project's, as psycopg takes it.

    It is read anew each time: in tests the database is another than the settings say.

    Raises:
        ImproperlyConfigured: for an alias that there isn't, or a database that isn't Postgres.
    """
    wrapper = demand_postgres(alias)
    known = {each.keyword.decode() for each in Conninfo.get_defaults()}
    given = {name: value for name, value in wrapper.get_connection_params().items() if name in known}
    return make_conninfo(**{name: value for name, value in given.items() if value not in (None, "")})


def demand_postgres(alias: str) -> Any:
    """Give the ORM's connection of that alias.

    Raises:
        ImproperlyConfigured: for an alias that there isn't, or a database that isn't Postgres.
    """
    try:
        wrapper = connections[alias]
    except ConnectionDoesNotExist:
        there = ", ".join(sorted(connections.settings))
        raise ImproperlyConfigured(f"DATABASES has no {alias!r}, only {there}: name one of them") from None
    if wrapper.vendor != "postgresql":
        postgres = [each for each in sorted(connections.settings) if connections[each].vendor == "postgresql"]
        others = f"; {', '.join(map(repr, postgres))} would do" if postgres else ""
        raise ImproperlyConfigured(
            f"DATABASES[{alias!r}] is {wrapper.display_name}, and redrive's tables are in PostgreSQL: "
            f"name a PostgreSQL database with REDRIVE = {{'DATABASE': ...}} or using={others}"
        )
    return wrapper


def _alias(given: Any) -> str:
    if not isinstance(given, str) or not given:
        raise ImproperlyConfigured(f"{NAME}['DATABASE'] is {given!r:.80}: give an alias of DATABASES")
    return given


def _modules(given: Any) -> tuple[str, ...]:
    if given is True:
        return ("jobs",)
    if not given:
        return ()
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else None
    if names is None or not all(isinstance(name, str) and name for name in names):
        raise ImproperlyConfigured(f"{NAME}['AUTODISCOVER'] is {given!r:.80}: give names of modules, or False")
    return names
