"""asyncpg: a connection of the caller's is in a transaction where they opened one, and else commits each statement."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

from asyncpg import InterfaceError  # type: ignore[import-untyped] # it has no types

from redrive.drivers import Answer, Copy
from redrive.drivers.placeholders import numbered
from redrive.drivers.strangers import JSON, with_json
from redrive.sql import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Asyncpg:
    """How statements are said on a connection of asyncpg."""

    awaited = True

    async def say(self, connection: Any, sql: str, params: Mapping[str, Any] | None, *, typed: bool) -> Answer:
        """Run *sql*; it is kept prepared as asyncpg keeps any."""
        text, values = numbered(sql, params)
        if typed:
            return await self._say_typed(connection, text, values)
        rows = await connection.fetch(text, *values)
        return Answer(list(rows[0].keys()) if rows else (), [tuple(row) for row in rows])

    async def copy(self, connection: Any, copy: Copy) -> bool:
        """Copy text in."""
        where: dict[str, Any] = {"schema_name": copy.schema, "columns": copy.columns}
        await connection.copy_to_table(copy.table, source=BytesIO(copy.text.encode()), **where)
        return True

    def closed(self, connection: Any) -> bool:
        """Whether the connection is closed, or is its pool's again."""
        try:
            return bool(connection.is_closed())
        except InterfaceError:
            return True

    def database(self, _connection: Any) -> str:
        """Name none: asyncpg doesn't tell."""
        return ""

    async def _say_typed(self, connection: Any, text: str, values: Any) -> Answer:
        prepared = await connection.prepare(text)
        columns = prepared.get_attributes()
        rows: Sequence[Sequence[Any]] = [tuple(row) for row in await prepared.fetch(*values)]
        places = [place for place, column in enumerate(columns) if column.type.oid in JSON]
        if any(isinstance(row[place], str) for row in rows for place in places) and not await _as_text(connection):
            places = []
        rows = with_json(rows, places)
        return Answer([column.name for column in columns], rows)


async def _as_text(connection: Any) -> bool:
    """Whether JSON comes as text, as it does where the caller has set no codec."""
    return bool(await connection.fetchval(text_of("probe_json")) == '""')
