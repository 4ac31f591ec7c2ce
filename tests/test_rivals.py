"""Two at the same keys and rows: neither is ended by the server for the other's sake, whatever its defaults are."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest
from psycopg.rows import tuple_row

from redrive import Queue
from redrive.connections import apersistent, persistent
from redrive.pool import Pool
from redrive.statements import Statement
from support import wait_for

TURN = Statement(b"update turns set n = n + 1 returning n", tuple_row)
WAITING = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


@pytest.fixture
def queue(db):
    queue = Queue(db)
    yield queue
    queue.close()


def both(*calls: Any) -> list[BaseException]:
    """Call them at once, each in a thread, and give what they raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(calls))

    def call(what: Any) -> None:
        try:
            start.wait()
            what()
        except BaseException as error:  # noqa: BLE001 - told by the test
            errors.append(error)

    threads = [threading.Thread(target=call, args=[each]) for each in calls]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    return errors


class TestKeysCrosswise:
    """CL-11: a transaction holds every key that it has written until its end, and the other waits for each."""

    def test_jobs_are_written_in_the_order_of_their_keys(self, conn, queue):
        queue.enqueue_many("k", ["c", "a", "é", "b", "Z"], key=lambda payload: payload)
        written = conn.execute("select key from redrive.jobs order by id").fetchall()
        assert [key for (key,) in written] == ["Z", "a", "b", "c", "é"]

    def test_without_keys_they_stay_in_their_own(self, conn, queue):
        queue.enqueue_many("k", ["c", "a", "b"], delay=60)
        written = conn.execute("select payload from redrive.jobs order by id").fetchall()
        assert [payload for (payload,) in written] == ["c", "a", "b"]

    def test_of_the_same_key_the_first_is_written(self, conn, queue):
        assert queue.enqueue_many("k", [2, 1, 3, 11], key=lambda payload: str(payload)[:1]) == 3
        written = conn.execute("select payload from redrive.jobs order by id").fetchall()
        assert [payload for (payload,) in written] == [1, 2, 3]

    @pytest.mark.parametrize("topic", [False, True])
    def test_two_transactions_and_several_statements_each(self, db, conn, queue, topic):
        """More than one chunk: the order goes through all of them."""
        queue.topics.add("t", "k")
        keys = [str(number) for number in range(6_000)]
        many = queue.publish_many if topic else queue.enqueue_many

        def write(order: list[str]) -> None:
            with psycopg.connect(db) as own:
                many("t" if topic else "k", order, key=str, connection=own)

        assert both(lambda: write(keys), lambda: write(keys[::-1])) == []
        assert conn.execute("select count(*) from redrive.jobs").fetchone() == (6_000,)

    def test_a_bad_payload_far_behind_is_named_by_its_own_place(self, conn, queue):
        with pytest.raises(ValueError, match=r"payloads\[5998\]"):
            queue.enqueue_many("k", [*range(5_998), float("nan"), 1], key=str)
        assert conn.execute("select count(*) from redrive.jobs").fetchone() == (0,)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
class TestDefaultsOfTheDatabase:
    """CL-05: what operators and producers say by themselves is not refused for a rival's sake."""

    def test_the_queues_own_sessions_are_read_committed(self, db, conn, level):
        conn.execute(f"alter database {conn.info.dbname} set default_transaction_isolation = '{level}'")
        pool, show = Pool(db), "show transaction_isolation"
        with pool.connection() as one, pool.connection() as other:
            assert [each.execute(show).fetchone() for each in (one, other)] == [("read committed",)] * 2

        async def look() -> list[Any]:
            async with pool.async_connection() as own:
                return await (await own.execute(show)).fetchall()

        assert asyncio.run(look()) == [("read committed",)]
        pool.close()

    def test_where_that_cannot_be_set_a_statement_is_said_again(self, db, conn, level):
        conn.execute("create table turns as select 0 as n")
        with psycopg.connect(db, autocommit=True) as own, psycopg.connect(db) as rival:
            own.execute(f"set default_transaction_isolation = '{level}'")
            rival.execute("update turns set n = 10")
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.extend(persistent(own, TURN)))
            thread.start()
            wait_for(lambda: conn.execute(WAITING).fetchall())
            rival.commit()
            thread.join(10)
            assert found == [(11,)]
            with own.transaction(), pytest.raises(psycopg.errors.SerializationFailure):
                self.twice(own, rival)

    def twice(self, own: psycopg.Connection, rival: psycopg.Connection) -> None:
        """In a transaction it is said once: what came before in it would be lost."""
        own.execute("select n from turns")
        rival.execute("update turns set n = 20")
        rival.commit()
        persistent(own, TURN)

    def test_and_so_from_async_code(self, db, conn, level):
        conn.execute("create table turns as select 0 as n")

        async def work() -> list[Any]:
            async with await psycopg.AsyncConnection.connect(db, autocommit=True) as own:
                await own.execute(f"set default_transaction_isolation = '{level}'")
                with psycopg.connect(db) as rival:
                    rival.execute("update turns set n = 10")
                    said = asyncio.ensure_future(apersistent(own, TURN))
                    await asyncio.to_thread(wait_for, lambda: conn.execute(WAITING).fetchall())
                    rival.commit()
                    return await said

        assert asyncio.run(work()) == [(11,)]


def test_a_deadlock_says_what_to_do(db, queue):
    start = threading.Barrier(2)
    notes: list[str] = []

    def write(first: str, second: str) -> None:
        with psycopg.connect(db) as own:
            queue.enqueue("k", key=first, connection=own)
            start.wait()
            try:
                queue.enqueue("k", key=second, connection=own)
            except psycopg.errors.DeadlockDetected as error:
                notes.extend(error.__notes__)
                own.rollback()

    assert both(lambda: write("a", "b"), lambda: write("b", "a")) == []
    assert len(notes) == 1
    assert "in the order of their keys" in notes[0]
