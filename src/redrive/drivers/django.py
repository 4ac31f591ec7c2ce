"""Django: one of ``django.db.connections``, whose statements go through Django as any query of the caller's would.

So they are in ``atomic`` where that is open, counted and logged by Django, and what fails comes as Django's own error.
:mod:`redrive.django` is the rest of being at home there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redrive.drivers import Answer, Copy
from redrive.drivers.strangers import JSON, with_json

if TYPE_CHECKING:
    from collections.abc import Mapping


class Django:
    """How statements are said on one of ``django.db.connections``."""

    awaited = False

    def say(self, connection: Any, sql: str, params: Mapping[str, Any] | None, *, typed: bool) -> Answer:
        """Run *sql*."""
        _demand_postgres(connection)
        with connection.cursor() as cursor:
            cursor.execute(sql, None if params is None else dict(params))
            if cursor.description is None:
                return Answer((), ())
            rows = cursor.fetchall()
            if typed:  # JSON comes as text: Django's own fields read it
                rows = with_json(rows, [place for place, each in enumerate(cursor.description) if each[1] in JSON])
            return Answer([column[0] for column in cursor.description], rows)

    def script(self, connection: Any, sql: str) -> None:
        """Run one or several statements."""
        _demand_postgres(connection)
        with connection.cursor() as cursor:
            cursor.execute(sql)

    def copy(self, _connection: Any, _copy: Copy) -> bool:
        """Decline: Django has no COPY."""
        return False

    def closed(self, connection: Any) -> bool:
        """Whether the connection was closed under a transaction; any other is opened when needed."""
        return bool(connection.closed_in_transaction)

    def database(self, connection: Any) -> str:
        """Name the database."""
        return str(connection.settings_dict["NAME"])


def _demand_postgres(connection: Any) -> None:
    if connection.vendor != "postgresql":
        raise TypeError(
            f"this connection of Django's, {connection.alias!r}, is {connection.display_name}: redrive's tables are in "
            "PostgreSQL"
        )
