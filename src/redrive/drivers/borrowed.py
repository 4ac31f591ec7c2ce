"""The types of what goes in as ``connection=``, for type checkers: each kind known by a method that only it has.

So that nothing is imported for them, and that a sync one is no async one. At run time :func:`redrive.drivers.of` tells
them apart by their classes.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol, TypeAlias

from psycopg import AsyncConnection, Connection


class Psycopg2Connection(Protocol):
    """A connection of psycopg2."""

    def get_dsn_parameters(self) -> dict[str, str]:
        """Only psycopg2 has it."""


class AsyncpgConnection(Protocol):
    """A connection of asyncpg, or one of its pool."""

    def is_in_transaction(self) -> bool:
        """Only asyncpg has it."""


class AlchemyConnection(Protocol):
    """A connection of SQLAlchemy."""

    def detach(self) -> None:
        """The async one has it not."""

    def in_nested_transaction(self) -> bool:
        """Only SQLAlchemy has it."""


class AlchemySession(Protocol):
    """A Session of SQLAlchemy, scoped or not."""

    def flush(self, objects: Any = None) -> None:
        """That of the async one is awaited."""

    def expunge(self, instance: Any) -> None:
        """Only a Session has it."""


class AsyncAlchemyConnection(Protocol):
    """An AsyncConnection of SQLAlchemy."""

    def get_raw_connection(self) -> Awaitable[Any]:
        """Only this has it."""


class AsyncAlchemySession(Protocol):
    """An AsyncSession of SQLAlchemy, scoped or not."""

    def flush(self, objects: Any = None) -> Awaitable[None]:
        """That of the sync one is not awaited."""

    def expunge(self, instance: Any) -> None:
        """Only a Session has it."""


class DjangoConnection(Protocol):
    """One of ``django.db.connections``."""

    def ensure_connection(self) -> None:
        """Only Django has it."""


Borrowed: TypeAlias = Connection[Any] | Psycopg2Connection | AlchemyConnection | AlchemySession | DjangoConnection
"""A connection of the caller's, in whose transaction a statement is run."""

AsyncBorrowed: TypeAlias = AsyncConnection[Any] | AsyncpgConnection | AsyncAlchemyConnection | AsyncAlchemySession
"""The same, of an async driver."""
