"""psycopg2: a connection of the caller's begins its transaction by itself, at the first statement."""

from __future__ import annotations

from datetime import UTC, datetime
from io import StringIO
from typing import TYPE_CHECKING, Any

from psycopg2 import DataError
from psycopg2 import extensions as own
from psycopg2._psycopg import List  # what it registers for lists itself; under no public name
from psycopg2.extensions import PYDATETIMETZ, cursor, new_type, register_type

from redrive.drivers import Answer, Copy
from redrive.drivers.strangers import FIRST, JSON, LAST, any_json

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMESTAMPTZ = 1184


class Psycopg2:
    """How statements are said on a connection of psycopg2."""

    awaited = False

    def say(self, connection: Any, sql: str, params: Mapping[str, Any] | None, *, typed: bool) -> Answer:
        """Run *sql* with a plain cursor, whatever the connection's cursor class is."""
        with connection.cursor(cursor_factory=cursor) as plain:
            for each in _PLAIN:
                register_type(each, plain)
            if typed:
                register_type(_ANY_TIME, plain)
                register_type(_ANY_JSON, plain)
            plain.execute(sql, arrays(params))
            if plain.description is None:
                return Answer((), ())
            return Answer([column.name for column in plain.description], plain.fetchall())

    def script(self, connection: Any, sql: str) -> None:
        """Run one or several statements."""
        with connection.cursor(cursor_factory=cursor) as plain:
            plain.execute(sql)

    def copy(self, connection: Any, copy: Copy) -> bool:
        """Copy text in."""
        with connection.cursor(cursor_factory=cursor) as plain:
            plain.copy_expert(copy.sql, StringIO(copy.text))
        return True

    def closed(self, connection: Any) -> bool:
        """Whether the connection is closed."""
        return bool(connection.closed)

    def database(self, connection: Any) -> str:
        """Name the database."""
        return str(connection.info.dbname)


def arrays(params: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Give *params* with each list in it as an array."""
    if params is None:
        return None
    return {name: _Array(value) if isinstance(value, list) else value for name, value in params.items()}


class _Array(List):
    """A list as an array, also where the program has told psycopg2 to make JSON of lists."""

    def __repr__(self) -> str:
        return repr(self.adapted)


def _any_time(text: Any, plain: Any) -> datetime | None:
    try:
        found: datetime | None = PYDATETIMETZ(text, plain)
    except (DataError, ValueError, OverflowError):
        return FIRST if text is not None and text.endswith("BC") else LAST
    return found if found is None or found.tzinfo is not None else found.replace(tzinfo=UTC)


def _any_json(text: Any, _plain: Any) -> Any:
    return None if text is None else any_json(text)


_PLAIN = (
    own.LONGINTEGER,
    own.INTEGER,
    own.FLOAT,
    own.DECIMAL,
    own.BOOLEAN,
    own.UNICODE,
    own.PYDATETIMETZ,
    own.PYINTERVAL,
    own.LONGINTEGERARRAY,
    own.UNICODEARRAY,
)
"""How answers are read, whatever the connection has been told to make of them."""
_ANY_TIME = new_type((TIMESTAMPTZ,), "REDRIVE_TIME", _any_time)
_ANY_JSON = new_type(JSON, "REDRIVE_JSON", _any_json)
