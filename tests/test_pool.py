"""The queue's own connections: safe between threads, loops and processes, and replaced when their server is gone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import support
from redrive import Queue
from redrive.pool import KEPT, PREPARE_AFTER, Pool

MINE = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'redrive queue' AND datname = current_database()"
END = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE application_name = 'redrive queue' AND datname = current_database()"
)


@pytest.fixture
def open_now(conn: psycopg.Connection) -> Callable[[], int]:
    """Count the pool's sessions that the server knows."""
    return lambda: conn.execute(MINE).fetchone()[0]


def pid(pool: Pool) -> int:
    with pool.connection() as conn:
        return conn.execute("SELECT pg_backend_pid()").fetchone()[0]


async def apid(pool: Pool) -> int:
    async with pool.async_connection() as conn:
        return (await (await conn.execute("SELECT pg_backend_pid()")).fetchone())[0]


def test_an_idle_connection_is_used_again(db):
    pool = Pool(db)
    assert pid(pool) == pid(pool)
    pool.close()


def test_it_is_autocommit_with_keepalives_and_a_name_to_be_seen_by(db):
    pool = Pool(db)
    with pool.connection() as conn:
        assert conn.autocommit
        given = conn.info.get_parameters()
    assert (given["application_name"], given["keepalives_idle"], given["connect_timeout"]) == (
        "redrive queue",
        "10",
        "5",
    )
    pool.close()


def test_where_no_pooler_shares_the_session_statements_are_prepared(db):
    pool = Pool(db)
    with pool.connection() as first, pool.connection() as second:
        assert (first.prepare_threshold, second.prepare_threshold) == (PREPARE_AFTER, PREPARE_AFTER)
        for _ in range(PREPARE_AFTER + 1):
            first.execute("SELECT %s::int", [1])
        assert first.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (1,)
    pool.close()

    async def scenario():
        async with Pool(db).async_connection() as conn:
            return conn.prepare_threshold

    assert asyncio.run(scenario()) == PREPARE_AFTER


def test_options_of_the_users_own_stay(db):
    pool = Pool(make_conninfo(db, options="-c work_mem=5MB"))
    with pool.connection() as conn, pool.connection() as another:
        assert [each.execute("SHOW work_mem").fetchone() for each in (conn, another)] == [("5MB",), ("5MB",)]
    pool.close()


def test_one_that_broke_in_use_is_not_kept(db):
    pool = Pool(db)
    first = pid(pool)
    with pytest.raises(psycopg.errors.DivisionByZero), pool.connection() as conn:
        conn.execute("SELECT 1 / 0")
    assert pid(pool) != first
    pool.close()


def test_after_a_failover_one_enqueue_hears_of_the_old_server_and_none_after_it_cn_05(db, open_now):
    """As if all sessions led to a primary that was demoted: it answers, and takes no job."""
    queue = Queue(db)
    with contextlib.ExitStack() as stack:
        for _ in range(KEPT + 1):
            lent = stack.enter_context(queue.pool.connection())
            lent.execute("SET default_transaction_read_only = on")
    with queue.pool.connection():  # in use just then, and not kept after it
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            queue.enqueue("mail")
        assert queue.enqueue("mail").created
    assert queue.enqueue("mail").created
    support.wait_for(lambda: open_now() == 1)

    async def scenario() -> None:
        async with queue.pool.async_connection() as one, queue._pool.async_connection() as other:
            for each in (one, other):
                await each.execute("SET default_transaction_read_only = on")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            await queue.enqueue_async("mail")
        assert (await queue.enqueue_async("mail")).created

    asyncio.run(scenario())
    queue.close()


def test_a_few_idle_ones_are_kept_and_the_rest_closed(db, open_now):
    pool = Pool(db)
    meet = threading.Barrier(KEPT + 3)

    def use(_: int) -> None:
        with pool.connection() as conn:
            conn.execute("SELECT 1")
            meet.wait(20)

    with ThreadPoolExecutor(KEPT + 3) as threads:
        list(threads.map(use, range(KEPT + 3)))
    support.wait_for(lambda: open_now() == KEPT)
    pool.close()
    support.wait_for(lambda: open_now() == 0)


def test_threads_enqueue_at_once(db, conn):
    queue = Queue(db)
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda i: queue.enqueue("mail", {"i": i}).id, range(200)))
    assert len(set(made)) == 200
    assert conn.execute("SELECT count(DISTINCT payload) FROM redrive.jobs").fetchone() == (200,)
    queue.close()


def test_an_idle_connection_whose_server_has_gone_is_replaced_before_use(db, conn, open_now):
    queue = Queue(db)
    for _ in range(20):  # the goodbye may come in one piece with the end of the stream, or in two
        queue.enqueue("mail")
        assert conn.execute(END).fetchone() == (1,)
        support.wait_for(lambda: open_now() == 0)
        assert queue.enqueue("mail").created
    queue.close()


def test_an_idle_async_connection_whose_server_has_gone_is_replaced_before_use(db, conn, open_now):
    queue = Queue(db)

    async def play() -> None:
        for _ in range(10):
            await queue.enqueue_async("mail")
            assert conn.execute(END).fetchone() == (1,)
            await asyncio.to_thread(support.wait_for, lambda: open_now() == 0)
            assert (await queue.enqueue_async("mail")).created

    asyncio.run(play())
    queue.close()


def test_each_event_loop_has_connections_of_its_own(db, open_now):
    queue = Queue(db)

    async def play() -> int:
        first = await apid(queue.pool)
        assert await apid(queue.pool) == first
        await queue.enqueue_async("mail")
        return first

    assert asyncio.run(play()) != asyncio.run(play())
    support.wait_for(lambda: open_now() == 1)  # what the first loop left idle was closed when the second came
    queue.close()
    support.wait_for(lambda: open_now() == 0)


def test_two_loops_at_the_same_time(db, conn):
    queue = Queue(db)

    async def play(number: int) -> None:
        for i in range(20):
            await queue.enqueue_async("mail", {"loop": number, "i": i})

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda number: asyncio.run(play(number)), range(3)))
    assert conn.execute("SELECT count(DISTINCT payload) FROM redrive.jobs").fetchone() == (60,)
    queue.close()


def test_many_tasks_of_a_loop_enqueue_at_once(db, conn):
    queue = Queue(db)

    async def play() -> None:
        await asyncio.gather(*(queue.enqueue_async("mail", {"i": i}) for i in range(40)))

    asyncio.run(play())
    assert conn.execute("SELECT count(DISTINCT payload) FROM redrive.jobs").fetchone() == (40,)
    queue.close()


def test_a_task_that_is_cancelled_in_the_middle_spoils_nothing(db, conn):
    queue = Queue(db)
    amid = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(10)' AND state = 'active'"

    async def play() -> None:
        async with queue.pool.async_connection():
            pass
        task = asyncio.create_task(apid_slowly(queue.pool))
        await asyncio.to_thread(support.wait_for, lambda: conn.execute(amid).fetchone()[0])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await queue.enqueue_async("mail")).created

    async def apid_slowly(pool: Pool) -> None:
        async with pool.async_connection() as own:
            await own.execute("SELECT pg_sleep(10)")

    asyncio.run(play())
    queue.close()


def test_a_queue_that_is_dropped_leaves_no_session_behind(db, open_now):
    queue = Queue(db)
    queue.enqueue("mail")
    asyncio.run(queue.enqueue_async("mail"))
    assert open_now() == 2
    del queue
    gc.collect()
    support.wait_for(lambda: open_now() == 0)


def test_a_closed_queue_opens_again_when_used(db):
    queue = Queue(db)
    queue.close()
    assert queue.enqueue("mail").created
    queue.close()
    queue.close()
    assert queue.enqueue("mail").created
    queue.close()


def test_a_forked_child_enqueues_and_the_parent_goes_on_with_its_own(db, conn):
    """Neither uses the other's socket, and the child's end says no goodbye on it."""
    queue = Queue(db)
    queue.enqueue("mail", {"from": "parent"})
    before = pid(queue.pool)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert pid(queue.pool) != before
            queue.enqueue("mail", {"from": "child"})
            queue.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pid(queue.pool) == before
    queue.enqueue("mail", {"from": "parent"})
    rows = conn.execute("SELECT payload->>'from' FROM redrive.jobs ORDER BY id").fetchall()
    assert rows == [("parent",), ("child",), ("parent",)]
    queue.close()


def test_a_child_that_was_forked_while_the_pool_was_busy_does_not_wait_for_the_parents_lock(db):
    queue = Queue(db)
    queue.enqueue("mail")
    with queue.pool._lock:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                queue.enqueue("mail")
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    queue.close()


@pytest.mark.parametrize("use", ["pass", 'queue.enqueue("mail")'])
@pytest.mark.parametrize("end", ["", "os._exit(0)", "queue.close()"])
def test_a_program_that_ends_leaves_warnings_to_nobody(db, use, end):
    """With -X dev, where a connection that is forgotten is told of; a child's end spares the parent's sessions."""
    source = f"""
import asyncio, os
from redrive import Queue
queue = Queue()
queue.enqueue("mail")
asyncio.run(queue.enqueue_async("mail"))
if not (child := os.fork()):
    {use}
    {end or "pass"}
else:
    os.waitpid(child, 0)
    print(queue.enqueue("mail").id, flush=True)
    {end or "pass"}
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", source],
        env=os.environ | {"DATABASE_URL": db},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("3\n" if use == "pass" else "4\n")
