"""What an enqueue costs on each sort of connection, beside an INSERT that the application says there itself.

In turn, in transactions that are rolled back: what is measured is the way to the server and back, and not its commit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import psycopg2
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from redrive import Queue
from redrive.bench.figures import middle

if TYPE_CHECKING:
    from benchmarks.measurements import Figures, Sizes
    from benchmarks.stage import Stage
    from redrive.bench.scratch import Place

PAYLOAD = {"n": 1, "to": "user@example.com"}
TEXT = '{"n":1,"to":"user@example.com"}'
SHARE = 50
"""Of the jobs of the other enqueues, one in so many."""
Say = Callable[[], Awaitable[Any]]
Road = Callable[["Place", Queue], AbstractAsyncContextManager[tuple[Say, Say, Say]]]
"""Opens a connection, and gives what says a bare INSERT on it, what enqueues on it, and what rolls back."""


def roads(stage: Stage, sizes: Sizes) -> Figures:
    """Enqueue on the caller's connection, of each sort in turn; microseconds a job, beside a bare INSERT's."""
    place, jobs = stage.place("roads"), max(1, sizes.enqueue // SHARE)
    queue = Queue(place.url, schema=place.schema)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ROADS}
    for number in range(sizes.runs):
        for name in list(ROADS)[:: 1 if number % 2 else -1]:
            found[name].append(asyncio.run(_travel(ROADS[name], place, queue, jobs)))
    queue.close()
    return {
        f"road_{name}_{what}_us": middle(pair[which] for pair in pairs)
        for name, pairs in found.items()
        for which, what in enumerate(("insert", "enqueue"))
    }


async def _travel(road: Road, place: Place, queue: Queue, jobs: int) -> tuple[float, float]:
    async with road(place, queue) as (bare, ours, undo):
        found = []
        for say in (bare, ours):
            for _ in range(10):  # what is prepared or cached is so by then
                await say()
            began = time.perf_counter()
            for _ in range(jobs):
                await say()
            found.append(1e6 * (time.perf_counter() - began) / jobs)
            await undo()
        return found[0], found[1]


def _insert(place: Place, *marks: str) -> str:
    """Spell an INSERT as an application would."""
    return f'insert into "{place.schema}".jobs (kind, payload) values ({", ".join(marks)}) returning id'  # noqa: S608 - the schema of this run


def _later(call: Callable[[], Any]) -> Say:
    async def later() -> Any:
        return call()

    return later


def _ours(queue: Queue, connection: Any, *, is_async: bool = False) -> Say:
    if is_async:
        return lambda: queue.enqueue_async("mail", PAYLOAD, connection=connection)
    return _later(lambda: queue.enqueue("mail", PAYLOAD, connection=connection))


def _url(place: Place, driver: str) -> sa.URL:
    given = conninfo_to_dict(place.url)
    names = {"user": "username", "password": "password", "host": "host", "port": "port", "dbname": "database"}
    return sa.URL.create(f"postgresql+{driver}", **{names[name]: given[name] for name in names if name in given})


@asynccontextmanager
async def _psycopg(place: Place, queue: Queue) -> AsyncIterator[tuple[Say, Say, Say]]:
    sql = _insert(place, "%s", "%s").encode()
    with psycopg.connect(place.url) as conn:
        bare = _later(lambda: conn.execute(sql, ("mail", TEXT)).fetchone())
        yield bare, _ours(queue, conn), _later(conn.rollback)


@asynccontextmanager
async def _psycopg_async(place: Place, queue: Queue) -> AsyncIterator[tuple[Say, Say, Say]]:
    sql = _insert(place, "%s", "%s").encode()
    async with await psycopg.AsyncConnection.connect(place.url) as conn:

        async def bare() -> Any:
            return await (await conn.execute(sql, ("mail", TEXT))).fetchone()

        yield bare, _ours(queue, conn, is_async=True), conn.rollback


@asynccontextmanager
async def _psycopg2(place: Place, queue: Queue) -> AsyncIterator[tuple[Say, Say, Say]]:
    sql, conn = _insert(place, "%s", "%s"), psycopg2.connect(place.url)

    async def bare() -> Any:
        with conn.cursor() as cursor:
            cursor.execute(sql, ("mail", TEXT))
            return cursor.fetchone()

    yield bare, _ours(queue, conn), _later(conn.rollback)
    conn.close()


@asynccontextmanager
async def _asyncpg(place: Place, queue: Queue) -> AsyncIterator[tuple[Say, Say, Say]]:
    sql, given = _insert(place, "$1", "$2"), conninfo_to_dict(place.url)
    where = {name: given[name] for name in ("host", "port", "user", "password") if name in given}
    conn = await asyncpg.connect(database=given["dbname"], **where)

    async def undo() -> None:
        await conn.execute("rollback; begin")

    await conn.execute("begin")
    yield lambda: conn.fetchval(sql, "mail", TEXT), _ours(queue, conn, is_async=True), undo
    await conn.close()


def _session(driver: str) -> Road:
    @asynccontextmanager
    async def road(place: Place, queue: Queue) -> AsyncIterator[tuple[Say, Say, Say]]:
        sql = sa.text(_insert(place, ":kind", "cast(:payload as jsonb)"))
        with Session(sa.create_engine(_url(place, driver), poolclass=NullPool)) as session:
            bare = _later(lambda: session.execute(sql, {"kind": "mail", "payload": TEXT}).scalar())
            yield bare, _ours(queue, session), _later(session.rollback)

    return road


def _async_session(driver: str) -> Road:
    @asynccontextmanager
    async def road(place: Place, queue: Queue) -> AsyncIterator[tuple[Say, Say, Say]]:
        sql = sa.text(_insert(place, ":kind", "cast(:payload as jsonb)"))
        async with AsyncSession(create_async_engine(_url(place, driver), poolclass=NullPool)) as session:

            async def bare() -> Any:
                return (await session.execute(sql, {"kind": "mail", "payload": TEXT})).scalar()

            yield bare, _ours(queue, session, is_async=True), session.rollback

    return road


ROADS: dict[str, Road] = {
    "psycopg": _psycopg,
    "psycopg_async": _psycopg_async,
    "psycopg2": _psycopg2,
    "asyncpg": _asyncpg,
    "session_psycopg": _session("psycopg"),
    "session_psycopg2": _session("psycopg2"),
    "async_session_psycopg": _async_session("psycopg"),
    "async_session_asyncpg": _async_session("asyncpg"),
}
