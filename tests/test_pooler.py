"""Behind pgbouncer in transaction mode all works, nothing of a session is used, and a line says what is missed."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest

from chaos.pooler import pooler
from engine import insert, measured, row, sentries, states, status
from redrive import Queue
from support import wait_for

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
    for word in ("LISTEN ", "pg_try_advisory_lock(", "pg_advisory_lock", "PREPARE ", "CREATE TEMP", "SET SESSION"):
        assert [line for line in said if word in line and "pg_try_advisory_lock_shared" not in line] == [], word


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
