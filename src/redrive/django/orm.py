"""The ORM's connection, lent to redrive for a statement: that of the calling thread, in the transaction that it is in.

Nothing here begins or ends a transaction. What the driver raises comes as Django's own errors, as from any query.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django.db.utils
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionProxy

from redrive.django.options import demand_postgres

_ASYNC = (
    "the ORM can't be used within a running event loop, and redrive uses its connection: await the method whose name "
    "ends in _async, such as queue.enqueue_async(...), or call this through asgiref's sync_to_async"
)


def is_wrapper(connection: Any) -> bool:
    """Tell whether it is one of django.db.connections."""
    return isinstance(connection, BaseDatabaseWrapper | ConnectionProxy)


@contextmanager
def lent(using: Any) -> Iterator[Any]:
    """Lend the driver's connection of an alias, or of one of django.db.connections.

    Raises:
        ImproperlyConfigured: where it isn't Postgres, or isn't there.
        SynchronousOnlyOperation: within a running event loop, with what to do instead.
    """
    wrapper = demand_postgres(using if isinstance(using, str) else using.alias)
    if not isinstance(using, str) and not isinstance(using, ConnectionProxy):
        wrapper = using
    try:
        # As any query would: checks the thread, the health and the transaction, and connects where need be.
        wrapper.validate_no_broken_transaction()
        wrapper.cursor().close()
    except SynchronousOnlyOperation:
        raise SynchronousOnlyOperation(_ASYNC) from None
    try:
        with wrapper.wrap_database_errors:
            yield wrapper.connection
    except django.db.utils.ProgrammingError as error:
        if any("redrive migrate" in note for note in getattr(error.__cause__, "__notes__", ())):
            error.add_note(
                f"redrive is not installed in the database {wrapper.alias!r}, or is too old there: "
                f"run `manage.py migrate redrive --database {wrapper.alias}`"
            )
        raise


class Lender:
    """In the place of a queue's own connections: the ORM's of the thread, never closed here."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """Lend the ORM's connection."""
        with lent(self._queue.alias) as connection:
            yield connection

    def async_connection(self) -> Any:
        """Refuse: the ORM has no connection that can be awaited."""
        raise TypeError("Django's ORM has no async connection: pass connection= with one of psycopg's, or be sync")

    def close(self) -> None:
        """Leave the connections open: they are Django's."""


in_orm_thread = sync_to_async
"""Run a function in the thread whose connection async code's queries use."""
