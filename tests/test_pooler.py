"""Behind pgbouncer in transaction mode all works, nothing of a session is used, and a line says what is missed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import time

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from chaos.pooler import pooler
from engine import Inside, insert, measured, row, sentries, states, status
from redrive import Queue, events
from redrive.connections import Control
from support import wait_for
from ways import asyncpg_of, url

SOURCE = """
import time
from redrive import Queue

queue = Queue()


@queue.handler("job")
async def job(payload):
    return time.time()


@queue.handler("sync")
def sync(payload):
    raise RuntimeError("as asked")
"""


POOLERS_OWN = "application_name|client_encoding|datestyle|intervalstyle|standard_conforming_strings|timezone"
"""Which it sets itself, as the client had them when it connected."""
OF_THE_SESSION = re.compile(
    rf"LOG:  (?:statement|execute [^:]*): (?:RE)?SET (?!LOCAL |(?:{POOLERS_OWN})=)|set_config\([^)]*, false\)",
    re.IGNORECASE,
)


def assert_clean(dsn, conn, server_log):
    """The server's sessions that the pooler shares hold nothing of anybody's, and never were asked to."""
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as pooled:
        for query in (
            "select count(*) from pg_prepared_statements",
            "select count(*) from pg_listening_channels()",
            "select count(*) from pg_cursors where is_holdable",
        ):
            assert pooled.execute(query).fetchone() == (0,), query
    held = "select count(*) from pg_locks join pg_database d on d.oid = database and datname = current_database()"
    assert conn.execute(f"{held} where locktype = 'advisory'").fetchone() == (0,)
    said = [line for line in server_log.lines() if "pgbouncer" not in line]
    for word in ("LISTEN ", "pg_try_advisory_lock(", "pg_advisory_lock", "PREPARE ", "CREATE TEMP", "WITH HOLD"):
        assert [line for line in said if word in line and "pg_try_advisory_lock_shared" not in line] == [], word
    assert [line for line in said if OF_THE_SESSION.search(line)] == []


@pytest.fixture
def logged(conn):
    """Every statement in this database stands in the server's log."""
    conn.execute(f"alter database {conn.info.dbname} set log_statement = 'all'")


def test_a_worker_behind_a_pooler_polls_and_says_once_what_would_wake_it_ln_01_ln_02_ln_03(
    logged, pgbouncer, conn, start_worker, server_log
):
    worker = start_worker(SOURCE, "--lease", "2", dsn=pgbouncer)
    conn.execute("insert into redrive.jobs (kind) select 'job' from generate_series(1, 200)")
    failing = insert(conn, "sync", max_attempts=1)
    wait_for(lambda: states(conn) == {"succeeded": 200, "dead": 1}, 15)
    wait_for(lambda: "listen_dsn" in worker.log(), 3)
    began = time.monotonic()
    late = insert(conn, "job")
    wait_for(lambda: status(conn, late) == "succeeded", 2.5)
    measured(f"found by polling {time.monotonic() - began:.2f} s after its insert")
    assert "as asked" in row(conn, failing).last_error
    assert sentries(conn) == []
    assert worker.stop() == 0
    assert worker.log().count("listen_dsn") == 1
    assert worker.log().count("WARNING") == 1
    assert conn.execute("select count(*) from redrive.workers").fetchone() == (0,)
    assert_clean(pgbouncer, conn, server_log)
    assert server_log.errors() == []


@pytest.mark.parametrize("found_out", ["by what its session shows", "by a word that is not heard"])
def test_within_two_seconds_a_worker_knows_that_a_pooler_carries_no_wake_up_ln_01(
    pgbouncer, db, conn, monkeypatch, found_out
):
    """There are poolers that look like a session of one's own: then a word that does not come tells of them."""
    if found_out == "by what its session shows":
        queue = Queue(pgbouncer, poll=60)
    else:
        look = Control._look

        async def deceived(control, opened, nonce):
            return dataclasses.replace(await look(control, opened, nonce), shared=False)

        monkeypatch.setattr(Control, "_look", deceived)
        queue = Queue(db, listen_dsn=pgbouncer, poll=60)
    queue.handler("job")(lambda payload: None)
    told = {}
    end = events.subscribe(
        lambda event: told.setdefault(type(event), time.monotonic()), events.WorkerStarted, events.ListenerDeaf
    )
    with Inside(queue) as inside:
        wait_for(lambda: events.ListenerDeaf in told)
        took = told[events.ListenerDeaf] - told[events.WorkerStarted]
        measured(f"known {found_out} after {took:.2f} s")
        assert took < 2 + 1  # to connect, on a busy machine
        assert not inside.worker.listener.hears
        job = insert(conn, "job")
        wait_for(lambda: status(conn, job) == "succeeded", 2.5)
    end()
    queue.close()


def test_with_a_direct_connection_for_listening_jobs_are_taken_up_at_once_ln_01(
    pgbouncer, db, conn, start_worker, server_log
):
    worker = start_worker(SOURCE, "--listen-dsn", db, "--poll", "60", dsn=pgbouncer)
    wait_for(lambda: sentries(conn))
    for _ in range(20):
        job = insert(conn, "job")
        wait_for(lambda job=job: status(conn, job) == "succeeded", 2, every=0.005)
    query = "select result::float8 - extract(epoch from created_at)::float8 from redrive.jobs"
    late = sorted(value for (value,) in conn.execute(query))
    measured(f"through the pooler with a direct ear: p50 {late[10] * 1000:.1f} ms, worst {late[-1] * 1000:.1f} ms")
    assert late[10] < 0.2
    assert "WARNING" not in worker.log()
    assert worker.stop() == 0
    assert server_log.errors() == []


def test_the_queues_own_connections_go_through_a_pooler_ln_03(logged, pgbouncer, conn, server_log):
    """Enqueue in every way there is, more often than a driver needs to prepare its statements."""
    queue = Queue(pgbouncer)
    for number in range(12):
        queue.enqueue("job", {"n": number})
        queue.enqueue("job", {"n": number}, key="once")
    queue.enqueue_many("job", [{"n": number} for number in range(50)])
    queue.enqueue_many("job", [{"n": number} for number in range(20)], key=lambda payload: f"k{payload['n'] % 10}")

    async def enqueue():
        for number in range(12):
            await queue.enqueue_async("job", {"n": number})
        await queue.enqueue_many_async("job", [{"n": number} for number in range(50)])

    asyncio.run(enqueue())
    assert states(conn) == {"pending": 12 + 1 + 50 + 10 + 12 + 50}
    assert queue.get(1).payload == {"n": 0}
    assert set(queue.cancel(1, 2).values()) == {"pending"}
    queue.close()
    assert_clean(pgbouncer, conn, server_log)
    assert server_log.errors() == []


@contextlib.asynccontextmanager
async def over_psycopg(dsn, how):
    with psycopg.connect(dsn, **how) as own:

        async def enqueue(queue, number):
            queue.enqueue("job", {"n": number}, connection=own)
            own.commit()

        yield enqueue


@contextlib.asynccontextmanager
async def over_async_psycopg(dsn, how):
    async with await psycopg.AsyncConnection.connect(dsn, **how) as own:

        async def enqueue(queue, number):
            await queue.enqueue_async("job", {"n": number}, connection=own)
            await own.commit()

        yield enqueue


@contextlib.asynccontextmanager
async def over_asyncpg(dsn, how):
    own = await asyncpg.connect(**asyncpg_of(dsn), **how)

    async def enqueue(queue, number):
        await queue.enqueue_async("job", {"n": number}, connection=own)

    try:
        yield enqueue
    finally:
        await own.close()


@contextlib.asynccontextmanager
async def over_alchemy(dsn, how):
    engine = sa.create_engine(url(dsn, "psycopg"), connect_args=how, poolclass=NullPool)
    with engine.connect() as own:

        async def enqueue(queue, number):
            queue.enqueue("job", {"n": number}, connection=own)
            own.commit()

        yield enqueue


@contextlib.asynccontextmanager
async def over_async_alchemy(dsn, how):
    engine = create_async_engine(url(dsn, "asyncpg"), connect_args=how, poolclass=NullPool)
    async with engine.connect() as own:

        async def enqueue(queue, number):
            await queue.enqueue_async("job", {"n": number}, connection=own)
            await own.commit()

        yield enqueue


async def twelve_rounds(way, dsn, how):
    """Enqueue on the caller's connection, to which the pooler gives one of the server's two sessions and the other."""
    queue = Queue(dsn)
    with psycopg.connect(dsn, prepare_threshold=None) as stranger:
        async with way(dsn, how) as enqueue:
            for number in range(12):
                if number % 2:
                    stranger.execute("select 1")  # takes the session that was used last
                await enqueue(queue, number)
                stranger.rollback()
    queue.close()


PSYCOPG, ASYNCPG = {"prepare_threshold": None}, {"statement_cache_size": 0}
CALLERS = [
    (over_psycopg, PSYCOPG),
    (over_async_psycopg, PSYCOPG),
    (over_asyncpg, ASYNCPG),
    (over_alchemy, PSYCOPG),
    (over_async_alchemy, ASYNCPG | {"prepared_statement_cache_size": 0}),
]


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize(("way", "how"), CALLERS)
def test_a_callers_connection_goes_through_a_pooler_where_its_driver_prepares_nothing_ln_03(
    pgbouncer, conn, server_log, way, how
):
    asyncio.run(twelve_rounds(way, pgbouncer, how))
    assert states(conn) == {"pending": 12}
    said = [line for line in server_log.lines() if "LOG:  execute " in line]
    assert [line for line in said if "execute <unnamed>" not in line] == []
    assert_clean(pgbouncer, conn, server_log)
    assert server_log.errors() == []


@pytest.mark.parametrize(("way", "how"), CALLERS)
def test_where_a_callers_driver_prepares_statements_the_error_names_the_setting_ln_03(pgbouncer, conn, way, how):
    """Nothing is enqueued by a statement that went wrong, and nothing twice."""
    with pytest.raises(Exception, match="prepared statement") as refused:
        asyncio.run(twelve_rounds(way, pgbouncer, {}))
    [note] = refused.value.__notes__
    for setting, value in how.items():
        assert f"{setting}={value}" in note
    numbers = [number for (number,) in conn.execute("select (payload ->> 'n')::int from redrive.jobs order by id")]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) < 12


def test_a_statement_that_another_caller_has_prepared_by_the_same_name_is_refused_and_told_ln_03(pgbouncer, conn):
    """Names are counted from 0 on each connection: what is one caller's enqueue is another's cancel on this session."""
    queue = Queue(pgbouncer)
    with (
        psycopg.connect(pgbouncer) as first,
        psycopg.connect(pgbouncer) as second,
        psycopg.connect(pgbouncer, prepare_threshold=None) as stranger,
    ):
        for _ in range(6):  # the sixth is prepared
            queue.enqueue("job", connection=first)
            first.commit()
        stranger.execute("select 1")  # takes the session where it is
        for _ in range(6):
            queue.cancel(1, connection=second)
            second.commit()
        with pytest.raises(psycopg.Error, match="prepared statement") as refused:
            queue.enqueue("job", connection=first)
    queue.close()
    assert any("prepare_threshold=None" in note for note in refused.value.__notes__)
    assert states(conn) == {"pending": 5, "failed": 1}


def test_a_heartbeat_behind_a_pooler_does_not_wait_for_jobs_that_somebody_has_locked(
    pgbouncer_program, conn, db, start_worker
):
    """Reaper and cancel requests share its connection, and a pooler takes no lock_timeout from us."""
    lease = 3.0
    source = SOURCE.replace("return time.time()", "await __import__('asyncio').sleep(60)")
    age = "select extract(epoch from clock_timestamp() - heartbeat_at)::float8 from redrive.workers"
    ages = []
    with pooler(pgbouncer_program, db, size=10) as through:
        start_worker(source, "--lease", str(lease), dsn=through)
        insert(conn, "job")
        wait_for(lambda: states(conn) == {"running": 1})
        with psycopg.connect(db) as other:
            other.execute("lock table redrive.jobs in access exclusive mode")
            end = time.monotonic() + 2 * lease + 1

            def looked_long_enough() -> bool:
                ages.append(conn.execute(age).fetchone()[0])
                return time.monotonic() > end

            wait_for(looked_long_enough, 3 * lease + 10)
    assert max(ages) < lease
