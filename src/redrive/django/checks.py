"""System checks: what is wrong in the project's settings, said by ``manage.py check`` before anything runs.

They look at settings alone. Whether the tables are there is said by whatever needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.checks import Error, Warning, register  # noqa: A004 - Django's own names
from django.core.exceptions import ImproperlyConfigured
from django.db import router

from redrive.django.options import demand_postgres, options

if TYPE_CHECKING:
    from django.core.checks import CheckMessage


def install() -> None:
    """Register the checks."""
    register(check_settings, "redrive")


def check_settings(**_: Any) -> list[CheckMessage]:
    """Check REDRIVE and the database that it names."""
    try:
        found = options()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="redrive.E001", hint="See docs/django.md for what REDRIVE may hold.")]
    try:
        wrapper = demand_postgres(found.database)
    except ImproperlyConfigured as error:
        return [Error(str(error), id="redrive.E002")]
    said: list[CheckMessage] = []
    if not router.allow_migrate(found.database, "redrive"):
        said.append(
            Warning(
                f"a database router keeps redrive's tables out of {found.database!r}, where REDRIVE says they are",
                hint="Let its allow_migrate() answer None or True for the app label 'redrive' there.",
                id="redrive.W003",
            )
        )
    if wrapper.settings_dict.get("TEST", {}).get("MIGRATE") is False:
        said.append(
            Warning(
                f"tests make {found.database!r} without migrations, and so without redrive's tables",
                hint="Leave DATABASES['…']['TEST']['MIGRATE'] at True.",
                id="redrive.W004",
            )
        )
    return said
