"""Migrations of redrive's as migrations of Django's: one for one, on Django's connection, in its transaction.

What ``redrive migrate`` has applied is not applied again, nor the other way round: both look at redrive's own record.
They only go forward. Taking one back forgets it in Django's record and leaves the tables, which the release before can
work on; the first one can't be taken back, since with it would go every job that there is.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from django.db import OperationalError, transaction
from django.db.migrations.exceptions import IrreversibleError
from django.db.migrations.operations.base import Operation

from redrive.django.options import options
from redrive.migrate import LOCK_TIMEOUT, LOCK_TRIES, applied, migrate_within, script
from redrive.sql import Migration, migrations

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOCK_NOT_AVAILABLE = "55P03"


class Install(Operation):
    """Apply one of redrive's own migrations."""

    reversible = True
    reduces_to_sql = True
    elidable = False

    def __init__(self, version: int) -> None:
        self.version = version

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        """Give how to make it."""
        return type(self).__name__, [self.version], {}

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Change no model."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Apply it, where redrive's own record doesn't have it."""
        connection = schema_editor.connection
        if connection.vendor != "postgresql":
            return  # of a project with several databases: this one has no jobs
        schema = options().schema
        if schema_editor.collect_sql:
            whole = script(schema, [self.version]).strip().removesuffix(";\nCOMMIT;").replace("BEGIN;\n", "", 1)
            schema_editor.execute(whole, params=None)  # Django puts its own BEGIN and COMMIT around it
            return
        if self.version not in applied(connection, schema):
            _patiently(connection, schema, self.version)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Leave the tables as they are.

        Raises:
            IrreversibleError: for the first, which is all of it.
        """
        if self.version == 1 and schema_editor.connection.vendor == "postgresql":
            schema = options().schema
            raise IrreversibleError(
                f"redrive's tables are not dropped by a migration: every job and its history would be gone. To be rid "
                f'of them drop the schema "{schema}" by hand, then run `manage.py migrate redrive zero --fake`'
            )

    def describe(self) -> str:
        """Say what it is."""
        return f"redrive's own migration {self._step.version:04d}_{self._step.name}"

    @property
    def _step(self) -> Migration:
        [found] = [step for step in migrations() if step.version == self.version]
        return found


def _patiently(connection: Any, schema: str, version: int) -> None:
    """Apply a step; a lock that is not to be had at once is tried for again, and nobody queues behind it meanwhile."""
    for attempt in range(1, LOCK_TRIES + 1):
        try:
            with transaction.atomic(using=connection.alias):
                migrate_within(connection, schema, only=version, lock_timeout=LOCK_TIMEOUT)
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", getattr(error.__cause__, "pgcode", "")) != _LOCK_NOT_AVAILABLE:
                raise
            if attempt == LOCK_TRIES:
                error.add_note(
                    "a long transaction holds a lock on redrive's tables (see pg_stat_activity): end it, migrate again"
                )
                raise
            time.sleep(min(0.1 * 2**attempt, 2.0))
        else:
            return
