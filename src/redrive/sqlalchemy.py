"""For projects on SQLAlchemy and Alembic: what autogenerate is to leave alone.

Sessions and connections need nothing of this: they go in as ``connection=`` as they are. What installs redrive's tables
from a revision is :func:`redrive.migrate.migrate_within`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from redrive.migrate import DEFAULT_SCHEMA, is_ours

Name = Callable[[str | None, str, Mapping[str, Any]], bool]
"""What Alembic calls ``include_name``: told a name, its sort, and the names of what it is in."""


def leave_alone(schema: str = DEFAULT_SCHEMA, *, default: str = "public", then: Name | None = None) -> Name:
    """Make the ``include_name`` with which ``alembic revision --autogenerate`` proposes nothing for redrive's tables.

    Give it to ``context.configure(include_name=leave_alone())`` in Alembic's ``env.py``. A schema of redrive's own is
    left out whole; of one that it shares with the application, only its tables.

    Args:
        schema: where redrive is installed.
        default: the schema that the database looks in first, whose tables SQLAlchemy names without one.
        then: the project's own ``include_name``, asked about all the rest.
    """
    shared = schema == default

    def include_name(name: str | None, sort: str, parents: Mapping[str, Any]) -> bool:
        if sort == "schema":
            mine = name == schema and not shared
        else:
            table = name if sort == "table" else parents.get("table_name")
            within = parents.get("schema_name")
            mine = (within or default) == schema and table is not None and is_ours(table)
        return not mine and (then is None or then(name, sort, parents))

    return include_name
