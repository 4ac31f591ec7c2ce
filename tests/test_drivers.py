"""The caller's own connection, whatever its driver: what rides on it, what is never said on it, what is refused."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import psycopg2.extras
import pytest
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import NullPool

import support
from redrive import ClaimedJob, Enqueued, InvalidOption, InvalidPayload, LeaseLost, Queue, statements, store
from redrive.bulk import CHUNK
from redrive.drivers.placeholders import numbered
from redrive.drivers.strangers import JSON
from redrive.ended import Ended
from redrive.sql import _queries, query
from redrive.testing import run_pending_async
from ways import WAYS, Way, asyncpg_of, url

NOON = datetime(2030, 6, 1, 12, 0, tzinfo=UTC)
Scenario = Callable[[Way], Any]
Play = Callable[[Scenario], Any]


@pytest.fixture(scope="module")
def shared(server_url: str, template: str) -> Iterator[str]:
    """One database for the whole file: seventy of their own would cost more than all that is tested in them."""
    with support.database(server_url, template) as dsn:
        yield dsn


@pytest.fixture
def db(shared: str) -> str:
    """The same, as if it were new."""
    with psycopg.connect(shared, autocommit=True) as conn:
        [tables] = conn.execute(
            "SELECT string_agg(format('redrive.%I', tablename), ', ') FROM pg_tables"
            " WHERE schemaname = 'redrive' AND tablename <> 'migrations'"
        ).fetchone()
        conn.execute(f"TRUNCATE {tables} RESTART IDENTITY")
        conn.execute("DROP TABLE IF EXISTS public.users, public.sent")
        conn.execute(f"ALTER DATABASE {conn.info.dbname} RESET log_statement")
    return shared


@pytest.fixture
def queue(db: str) -> Iterator[Queue]:
    queue = Queue(db)
    yield queue
    queue.close()


@pytest.fixture(params=WAYS)
def play(request: pytest.FixtureRequest, db: str) -> Play:
    """Play a scenario on one way."""
    return _player(request.param, db)


@pytest.fixture(params=["psycopg2", "asyncpg", "Session over psycopg2", "AsyncSession over asyncpg"])
def some(request: pytest.FixtureRequest, db: str) -> Play:
    """Play a scenario on one way of each sort."""
    return _player(request.param, db)


def _player(name: str, db: str) -> Play:
    def played(scenario: Scenario) -> Any:
        async def scene() -> Any:
            async with WAYS[name](db) as way:
                return await scenario(way)

        return asyncio.run(scene())

    return played


def names(conn: psycopg.Connection) -> list[str]:
    return [row[0] for row in conn.execute("SELECT payload->>'n' FROM redrive.jobs ORDER BY id")]


def verbs(log: support.ServerLog) -> list[str]:
    """The first word of each statement that was logged, in order."""
    said = re.compile(r"LOG:  (?:statement|execute [^:]*): (\w+)")
    return [match[1].upper() for line in log.lines() if (match := said.search(line))]


def test_a_job_rides_the_callers_transaction_or_01_or_02(play, queue, db, conn):
    """OR-01, OR-02: commit, rollback, and a savepoint that is rolled back; seen by nobody before the commit."""
    conn.execute("CREATE TABLE public.users (name text)")

    async def scenario(way: Way) -> None:
        await way.say("INSERT INTO users VALUES ('ann')")
        await way.ask(queue.enqueue, "mail", {"n": "ann"})
        async with way.undone():
            await way.say("INSERT INTO users VALUES ('bob')")
            await way.ask(queue.enqueue, "mail", {"n": "bob"})
        assert names(conn) == []
        await way.end(commit=True)
        assert names(conn) == ["ann"]
        await way.again()
        await way.say("INSERT INTO users VALUES ('cyd')")
        await way.ask(queue.enqueue, "mail", {"n": "cyd"})
        await way.ask(queue.cancel, 1)
        await way.end(commit=False)

    play(scenario)
    assert names(conn) == ["ann"]
    assert conn.execute("SELECT name FROM users").fetchall() == [("ann",)]
    assert queue.get(1).status == "pending"


def test_nothing_is_begun_or_ended_on_the_callers_connection_or_02(play, queue, conn, server_log):
    """OR-02: what the server heard between two marks of the application's."""
    conn.execute(f"ALTER DATABASE {conn.info.dbname} SET log_statement = 'all'")

    async def scenario(way: Way) -> None:
        await way.say("TABLE redrive.migrations")
        await way.ask(queue.enqueue, "mail", {"n": 1})
        await way.ask(queue.enqueue, "mail", {"n": 2}, key="k", delay=5, metadata={"a": 1})
        await way.ask(queue.enqueue, "mail", {"n": 3}, key="k", on_conflict="replace", unique="while pending")
        await way.ask(queue.enqueue_many, "mail", [{"n": 4}, {"n": 5}])
        await way.ask(queue.enqueue_many, "mail", [{"n": 6}], key=lambda _payload: "k")
        await way.ask(queue.cancel, 1)
        await way.ask(queue.requeue, Ended(ids=[1], statuses=("failed",)))
        await way.ask(queue.kinds.pause, "mail", reason="try")
        await way.say("TABLE redrive.migrations")
        await way.end(commit=True)

    play(scenario)
    said = verbs(server_log)
    begin = said.index("TABLE")
    end = said.index("TABLE", begin + 1)
    assert {"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE"}.isdisjoint(said[begin:end]), said
    assert server_log.errors() == []
    assert names(conn) == ["1", "3", "4", "5"]


def test_the_answers_are_the_same_on_every_connection(some, queue, conn):
    async def scenario(way: Way) -> None:
        ask = way.ask
        one = await ask(queue.enqueue, "mail", {"n": "ä\\ %s %(x)s $1"}, run_at=NOON, expires_at=NOON, lane="eu")
        assert one == Enqueued(id=1, created=True, kind="mail")
        two = await ask(queue.enqueue, "mail", {"n": 2}, key="k", expires_in=60)
        assert await ask(queue.enqueue, "mail", {}, key="k") == Enqueued(two.id, created=False, kind="mail")
        more = {"unique": "while pending", "on_conflict": "debounce", "delay": 60, "unique_for": timedelta(minutes=5)}
        assert (await ask(queue.enqueue, "mail", {"n": 3}, key="k", **more)).replaced
        ids: list[int] = []
        told: list[int] = []
        many = partial(ask, queue.enqueue_many, "mail")
        assert await many(({"n": n} for n in range(7)), ids=ids, key=lambda payload: str(payload["n"] % 5)) == 5
        assert await many([{"n": "a\tb\\n\u2028"}, {"n": None}], on_chunk=told.append, priority=1) == 2
        assert await many([]) == 0
        assert (len(ids), told) == (5, [2])
        assert await ask(queue.cancel, 1, two.id, reason="no", by="ann") == {1: "pending", two.id: "pending"}
        assert await ask(queue.requeue, Ended(ids=[1], statuses=("failed",)), by="ann") == [1]
        kind = await ask(queue.kinds.limit, "mail", running=3, rate=0.5)
        assert (kind.running_most, [each.kind for each in await ask(queue.kinds.list)]) == (3, ["mail"])
        made = await ask(
            queue.schedules.add, "nightly", "mail", "0 3 * * *", timezone="Europe/Berlin", payload={"a": 1}
        )
        assert (made.payload, made.timezone, made.next_run_at.tzinfo is not None) == ({"a": 1}, "Europe/Berlin", True)
        assert (await ask(queue.schedules.pause, "nightly", by="ann")).paused_by == "ann"
        assert {each.kind for each in await ask(queue.stats.depths)} == {"mail"}
        assert (await ask(queue.stats.total, "1h")).ended == 0
        assert await ask(queue.stats.series, "1h")
        assert await ask(queue.groups.list) == []
        assert await ask(queue.breakers.list) == []
        assert await ask(queue.batches.list) == []
        failed = Ended(kind="mail", statuses=("failed",))
        preview = await ask(queue.requeues.preview, failed)
        assert preview.jobs == 1
        sent = await ask(queue.requeues.start, failed, by="ann", rate=5)
        assert (await ask(queue.requeues.get, sent.id)).by == "ann"
        assert (await ask(queue.requeues.stop, sent.id, by="ann")).status == "stopped"
        await way.end(commit=True)

    some(scenario)
    first = queue.get(1)
    assert (first.payload, first.lane, first.status) == ({"n": "ä\\ %s %(x)s $1"}, "eu", "pending")
    assert names(conn)[-2:] == ["a\tb\\n\u2028", None]


@pytest.mark.parametrize("way", ["psycopg2", "asyncpg", "Session over psycopg2", "AsyncSession over asyncpg"])
def test_many_jobs_are_copied_where_the_driver_has_it(way, queue, db, conn, server_log):
    conn.execute(f"ALTER DATABASE {conn.info.dbname} SET log_statement = 'all'")

    async def scene() -> None:
        async with WAYS[way](db) as held:
            assert await held.ask(queue.enqueue_many, "mail", ({"n": n} for n in range(CHUNK + 1))) == CHUNK + 1
            await held.end(commit=True)

    asyncio.run(scene())
    assert [verb for verb in verbs(server_log) if verb in {"COPY", "WITH"}] == ["WITH" if "Session" in way else "COPY"]
    assert conn.execute("SELECT count(DISTINCT payload->>'n') FROM redrive.jobs").fetchone() == (CHUNK + 1,)


def test_a_bad_payload_among_many_is_found_before_anything_is_written(some, queue, conn):
    async def scenario(way: Way) -> None:
        await way.say("TABLE redrive.migrations")
        bad = ({"n": n} if n < CHUNK * 2 + 7 else {"n": NOON} for n in range(CHUNK * 3))
        with pytest.raises(InvalidPayload, match=rf"payloads\[{CHUNK * 2 + 7}\]"):
            await way.ask(queue.enqueue_many, "mail", bad)
        await way.ask(queue.enqueue, "mail", {"n": "good"})
        await way.end(commit=True)

    some(scenario)
    assert names(conn) == ["good"]


def test_a_batch_is_one_with_the_callers_transaction(some, queue, conn):
    async def scenario(way: Way) -> None:
        for commit in (False, True):
            await way.say("TABLE redrive.migrations")
            if way.is_async:
                async with queue.batches.open_async("report", connection=way.connection) as batch:
                    await batch.enqueue("mail", {"n": 1})
                    await batch.enqueue_many("mail", [{"n": 2}])
            else:
                with queue.batches.open("report", connection=way.connection) as batch:
                    batch.enqueue("mail", {"n": 1})
                    batch.enqueue_many("mail", [{"n": 2}])
            await way.end(commit=commit)
            await way.again()

    some(scenario)
    assert names(conn) == ["1", "2"]
    assert [state.jobs for state in queue.batches.list()] == [2]


class TestCompletion:
    """UN-07: what the handler writes and that its job is done are one commit."""

    def test_it_is_in_the_callers_transaction(self, some, queue, conn):
        conn.execute("CREATE TABLE public.sent (n int)")
        queue.enqueue("mail", {})

        async def scenario(way: Way) -> None:
            async def completed(job: ClaimedJob) -> None:
                done = job.complete(way.connection, {"sent": job.attempt})
                assert hasattr(done, "__await__") == way.is_async
                await done if way.is_async else None

            @queue.handler("mail")
            async def mail(payload: Any, job: ClaimedJob) -> None:
                await way.say(f"INSERT INTO sent VALUES ({job.attempt})")
                await completed(job)
                await way.end(commit=job.attempt == 2)
                await way.again()
                if job.attempt == 1:
                    raise Uncommitted

            for _ in range(2):
                await run_pending_async(queue)
                conn.execute("UPDATE redrive.jobs SET run_at = now() - interval '1 hour' WHERE status = 'pending'")

        some(scenario)
        assert conn.execute("SELECT n FROM sent").fetchall() == [(2,)]
        job = queue.get(1)
        assert (job.status, job.result, job.attempts) == ("succeeded", {"sent": 2}, 2)

    def test_a_lost_lease_is_told_before_the_commit(self, some, queue, conn):
        queue.enqueue("mail", {})
        told: list[str] = []

        async def scenario(way: Way) -> None:
            @queue.handler("mail")
            async def mail(payload: Any, job: ClaimedJob) -> None:
                conn.execute("UPDATE redrive.jobs SET claims = claims + 1")
                try:
                    done = job.complete(way.connection)
                    await done if way.is_async else None
                except LeaseLost as error:
                    told.append(str(error))

            await run_pending_async(queue)

        some(scenario)
        assert "roll back" in told[0]


class Uncommitted(Exception):
    """The handler fails after a completion that it rolled back."""


class TestRefused:
    """OR-02, OR-09: what can't be, told with the value and the remedy, before anything is written."""

    def test_sync_for_async_and_the_reverse_or_09(self, some, queue):
        async def scenario(way: Way) -> None:
            if way.is_async:
                with pytest.raises(TypeError, match=r"enqueue: connection is a \S+, which is async: use enqueue_a"):
                    queue.enqueue("mail", {}, connection=way.connection)
                with pytest.raises(TypeError, match=r"which is async: use the method .* that ends in _async"):
                    queue.cancel(1, connection=way.connection)
            else:
                with pytest.raises(TypeError, match=r"connection is a \S+, which is sync: use enqueue_many$"):
                    await queue.enqueue_many_async("mail", [{}], connection=way.connection)
                with pytest.raises(TypeError, match="which is sync: use the method of the same name without _async"):
                    await queue.cancel_async(1, connection=way.connection)

        some(scenario)

    def test_a_database_without_redrive(self, queue, empty_db):
        async def scene(name: str) -> None:
            async with WAYS[name](empty_db) as way:
                with pytest.raises(Exception, match=r'"redrive.* does not exist') as caught:
                    await way.ask(queue.enqueue, "mail", {})
                [note] = caught.value.__notes__
                assert "run `redrive migrate`" in note
                assert (conninfo_to_dict(empty_db)["dbname"] in note) == (not name.startswith("asyncpg"))

        for name in WAYS:
            asyncio.run(scene(name))

    @pytest.mark.parametrize("name", ["psycopg2", "asyncpg", "SQLAlchemy's Connection", "SQLAlchemy's AsyncConnection"])
    def test_a_closed_connection(self, name, queue, db):
        async def scene() -> None:
            async with WAYS[name](db) as way:
                closing = way.connection.close()
                await closing if way.is_async else None
                with pytest.raises(Exception, match="closed") as caught:
                    await way.ask(queue.enqueue, "mail", {})
                assert "give an open one" in caught.value.__notes__[0]

        asyncio.run(scene())

    def test_what_is_nearly_a_connection_is_told_how_to_get_one(self, queue, db):
        engine = sa.create_engine(url(db, "psycopg"))
        pool = asyncpg.Pool.__new__(asyncpg.Pool)  # it would want an event loop
        plain = psycopg2.connect(db)
        for odd, remedy in (
            (engine, r"with engine\.begin\(\) as connection"),
            (create_async_engine(url(db, "asyncpg")), r"async with engine\.begin\(\) as connection"),
            (sessionmaker(engine), r"with Session\.begin\(\) as session"),
            (async_sessionmaker(), r"async with Session\.begin\(\) as session"),
            (pool, r"async with pool\.acquire\(\) as connection"),
            (plain.cursor(), r"pass its \.connection"),
            (db, r"is for Queue\(\.\.\.\)"),
            (object(), "pass one of psycopg, psycopg2, asyncpg, SQLAlchemy or Django"),
        ):
            with pytest.raises(TypeError, match=rf"enqueue: connection is a \S+, which is no connection: .*{remedy}"):
                queue.enqueue("mail", {}, connection=odd)
        plain.close()

    def test_a_session_of_another_database_server(self, queue):
        with (
            Session(sa.create_engine("sqlite://")) as session,
            pytest.raises(TypeError, match=r"sqlite\+pysqlite: .*asyncpg"),
        ):
            queue.enqueue("mail", {}, connection=session)

    def test_a_session_that_does_not_say_which_database(self, queue, db):
        with Session() as session, pytest.raises(TypeError, match=r"session\.connection\(bind_arguments="):
            queue.enqueue("mail", {}, connection=session)
        engine = sa.create_engine(url(db, "psycopg"), poolclass=NullPool)
        with Session(binds={Base: engine}) as session:
            queue.enqueue("mail", {}, connection=session.connection(bind_arguments={"bind": engine}))
            session.commit()
        assert queue.get(1).status == "pending"

    @pytest.mark.parametrize("name", ["asyncpg", "psycopg2", "SQLAlchemy's Connection"])
    def test_a_batch_on_a_connection_that_commits_each_statement(self, name, queue, db, conn):
        async def opened(way: Way) -> None:
            if way.is_async:
                await queue.batches.open_async("report", connection=way.connection).__aenter__()
            else:
                queue.batches.open("report", connection=way.connection).__enter__()

        async def scene() -> None:
            async with WAYS[name](db) as way:
                await way.end(commit=True)
                if name == "psycopg2":
                    way.connection.autocommit = True
                elif name != "asyncpg":
                    way.connection.execution_options(isolation_level="AUTOCOMMIT")
                with pytest.raises(InvalidOption, match="begin one first"):
                    await opened(way)
                await way.ask(queue.enqueue, "mail", {"n": "at once"})
                assert names(conn) == ["at once"]
                await way.again()

        asyncio.run(scene())
        assert queue.batches.list() == []


class Base(DeclarativeBase):
    """The tables of an application."""


class User(Base):
    """One of them."""

    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)


def test_a_session_is_not_flushed_and_its_rows_are_there_when_the_job_is(queue, db, conn):
    """OR-01: what waits in the Session and the job are one commit; who needs an id for the payload flushes."""
    engine = sa.create_engine(url(db, "psycopg"), poolclass=NullPool)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(ann := User())
        queue.enqueue("mail", {}, connection=session)
        assert sa.inspect(ann).pending, "as it is with session.execute(text(...))"
        session.flush()
        queue.enqueue("mail", {"n": ann.id}, connection=session)
        assert conn.execute("SELECT count(*) FROM users").fetchone() == (0,)
        session.commit()
    assert (names(conn), conn.execute("SELECT id FROM users").fetchall()) == ([None, "1"], [(1,)])


def test_what_the_caller_has_set_is_neither_in_the_way_nor_changed(queue, db):
    async def native() -> None:
        conn = await asyncpg.connect(**asyncpg_of(db))
        for codec in (None, json.loads):
            if codec:
                await conn.set_type_codec("jsonb", encoder=json.dumps, decoder=codec, schema="pg_catalog")
            for n, payload in enumerate(["text", '"quoted"', {"a": [1]}, 7, None]):
                await queue.enqueue_async("mail", payload, connection=conn, key=f"k{n}")
                [found] = await queue.ask_async(store.list_jobs("redrive", key=f"k{n}"), conn)
                assert found.payload == ({} if payload is None else payload)
            assert await conn.fetchval("SELECT '7'::jsonb") == (7 if codec else "7")
        await conn.close()

    plain = psycopg2.connect(db, cursor_factory=psycopg2.extras.RealDictCursor)
    assert queue.enqueue("mail", {}, connection=plain, key="k").created
    with plain.cursor() as cursor:
        cursor.execute("SELECT '7'::jsonb AS n, now() AS t")
        assert cursor.fetchone()["n"] == 7
    plain.close()
    asyncio.run(native())


def test_an_id_that_none_can_be_is_refused_before_the_transaction_hears_of_it(some, queue, conn):
    async def scenario(way: Way) -> None:
        for wrong in ("5", 1.5, True, 2**70):
            with pytest.raises(InvalidOption, match="id is"):
                await way.ask(queue.cancel, wrong)
            with pytest.raises(InvalidOption, match="batch is"):
                await way.ask(queue.enqueue, "mail", {}, batch=wrong)
        with pytest.raises(InvalidOption, match="id is"):
            await way.ask(queue.requeue, 2**70)
        await way.ask(queue.enqueue, "mail", {"n": "after"})
        await way.end(commit=True)

    some(scenario)
    assert names(conn) == ["after"]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "asyncpg"])
def test_a_connection_that_is_set_to_stream_its_answers_takes_a_job(queue, db, driver):
    options = {"yield_per": 10, "max_row_buffer": 5, "stream_results": True}

    def asked(conn: Any) -> dict[int, str]:
        return queue.cancel(queue.enqueue("mail", {}, connection=conn, key="k").id, connection=conn)

    async def asked_async() -> dict[int, str]:
        engine = create_async_engine(url(db, driver), execution_options=options)
        async with engine.connect() as conn:
            job = await queue.enqueue_async("mail", {}, connection=conn, key="k")
            found = await queue.cancel_async(job.id, connection=conn)
        await engine.dispose()
        return found

    if driver == "asyncpg":
        assert list(asyncio.run(asked_async()).values()) == ["pending"]
        return
    engine = sa.create_engine(url(db, driver), poolclass=NullPool, execution_options=options)
    with engine.connect() as conn:
        assert list(asked(conn).values()) == ["pending"]
        assert conn.get_execution_options().items() >= options.items()


def test_what_the_caller_makes_of_lists_and_numbers_is_not_made_of_ours(queue, db, monkeypatch):
    def asked(conn: Any) -> None:
        job = queue.enqueue("mail", {}, connection=conn)
        assert queue.cancel(job.id, connection=conn) == {job.id: "pending"}
        assert queue.enqueue_many("mail", [{"n": "it's %s"}, {}], connection=conn, ids=(made := [])) == len(made) == 2
        conn.rollback()

    with psycopg.connect(db) as conn:
        conn.adapters.register_dumper(list, psycopg.types.json.JsonbDumper)
        asked(conn)
    listed = (list, psycopg2.extensions.ISQLQuote)
    monkeypatch.setitem(psycopg2.extensions.adapters, listed, psycopg2.extras.Json)
    plain = psycopg2.connect(db)
    for oid in (16, 20, 23, 25):  # bool, int8, int4, text
        psycopg2.extensions.register_type(psycopg2.extensions.new_type((oid,), "ODD", lambda text, _: [text]), plain)
    asked(plain)
    with plain.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (["1"],)
    plain.close()
    engine = sa.create_engine(url(db, "psycopg2"), poolclass=NullPool)
    with engine.connect() as conn:
        asked(conn)


class _Odd(psycopg.adapt.Loader):
    def load(self, data: Any) -> str:
        return "odd"


class _OddBinary(_Odd):
    format = psycopg.pq.Format.BINARY


class _OddText(psycopg.adapt.Dumper):
    oid = 25

    def dump(self, obj: str) -> bytes:
        return b"odd" + obj.encode()


def test_what_psycopg_was_told_to_make_of_the_callers_values_is_not_made_of_ours(queue, db, conn):
    """By the connection, and for the whole program."""
    types = ("int8", "int4", "text", "bool", "timestamptz", "jsonb", "numeric", "float8", "int8[]")

    async def asked(way: Way) -> None:
        job = await way.ask(queue.enqueue, "mail", {"n": 1}, run_at=NOON)
        assert await way.ask(queue.cancel, job.id) == {job.id: "pending"}
        made: list[int] = []
        assert (
            await way.ask(queue.enqueue_many, "mail", [{"n": 2}, {"n": 3}], key=lambda one: str(one["n"]), ids=made)
            == 2
        )
        assert made == [job.id + 1, job.id + 2]
        assert (await way.ask(queue.kinds.limit, "mail", rate=0.5)).rate == 0.5
        assert [each.kind for each in await way.ask(queue.stats.depths)] == ["mail"]

    async def scene(name: str) -> None:
        async with WAYS[name](db) as way:
            for each in types:
                way.connection.adapters.register_loader(each, _Odd)
                way.connection.adapters.register_loader(each, _OddBinary)
            way.connection.adapters.register_dumper(str, _OddText)
            await asked(way)
            found = way.connection.execute("SELECT 1::int8")
            assert await (await found).fetchone() if way.is_async else found.fetchone() == ("odd",)

    for name in ("psycopg", "psycopg async"):
        asyncio.run(scene(name))


def test_a_column_more_than_redrive_knows_is_no_trouble(queue, db, conn):
    """Of a newer schema, on which old workers go on working, or the user's own."""
    job = queue.enqueue("mail", {}, key="k").id
    with psycopg.connect(db) as other:
        other.execute("ALTER TABLE redrive.jobs ADD COLUMN extra int DEFAULT 1")
        [found] = queue.ask(store.list_jobs("redrive", key="k"), other)
        other.rollback()
    assert found.id == job


def test_a_connection_that_is_its_pools_again_is_said_to_be_closed(queue, db):
    async def scene() -> None:
        async with asyncpg.create_pool(**asyncpg_of(db), min_size=1, max_size=1) as pool:
            async with pool.acquire() as conn:
                pass
            with pytest.raises(asyncpg.InterfaceError, match="fetch") as caught:
                await queue.enqueue_async("mail", {}, connection=conn)
            assert "is closed: give an open one" in caught.value.__notes__[0]

    asyncio.run(scene())


def test_what_strangers_wrote_is_read_as_near_as_python_comes(queue, db, conn):
    for n, run_at in enumerate(("infinity", "-infinity", "294000-01-01", "4000-01-01 BC", "2030-06-01 12:00Z")):
        conn.execute(
            "INSERT INTO redrive.jobs (kind, payload, run_at, key) VALUES ('mail', %s, %s, %s)",
            (json.dumps("x") if n else "9" * 5000, run_at, str(n)),
        )
    plain = psycopg2.connect(db)
    found = {job.key: job for job in queue.ask(store.list_jobs("redrive"), plain)}
    assert found["0"].payload == "9" * 5000
    assert [found[str(n)].run_at.year for n in range(5)] == [9999, 1, 9999, 1, 2030]
    assert {job.run_at.tzinfo is not None for job in found.values()} == {True}
    plain.close()

    async def native() -> None:
        conn = await asyncpg.connect(**asyncpg_of(db))
        for n in (0, 1, 4):
            [job] = await queue.ask_async(store.list_jobs("redrive", key=str(n)), conn)
            assert (job.run_at.year, job.run_at.tzinfo) == ({0: 9999, 1: 1, 4: 2030}[n], UTC)
        await conn.close()

    asyncio.run(native())


def test_no_driver_is_imported_before_a_connection_of_it_is_seen(db):
    code = """
        import sys, psycopg, redrive
        with psycopg.connect(sys.argv[1]) as conn:
            redrive.Queue(sys.argv[1]).enqueue("mail", {}, connection=conn)
        print({"psycopg2", "asyncpg", "sqlalchemy", "django"} & set(sys.modules))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), db], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


NOT_READ = {"claim_alert_message", "list_adoptions", "probe_json"}
"""Give JSON, and are said on psycopg's connections only, or to see what comes."""


def test_every_statement_that_gives_json_is_said_as_one_that_may(db):
    """A driver that gives JSON as text reads it where the statement says so, and in no other place."""
    source = "".join(path.read_text() for path in Path(statements.__file__).parent.rglob("*.py"))

    async def giving() -> list[str]:
        conn = await asyncpg.connect(**asyncpg_of(db))
        found = []
        for name in _queries():
            try:
                asked = await conn.prepare(numbered(query(name, "redrive").as_string(None), _Anything())[0])
            except (KeyError, asyncpg.PostgresSyntaxError):  # a part of others, or for names that only they know
                continue
            found += [name for column in asked.get_attributes() if column.type.oid in JSON]
        await conn.close()
        return found

    names = set(asyncio.run(giving())) - NOT_READ
    assert {name for name in names if f'lenient("{name}"' not in source and not _binary(name, source)} == set()
    assert "list_jobs" in names


def _binary(name: str, source: str) -> bool:
    return re.search(rf'Statement\(spoken\("{name}", [^)]*\), .*binary=True\)', source) is not None


class _Anything(dict[str, Any]):
    def __missing__(self, name: str) -> None:
        return None
