"""Many jobs in one call: what is asked for on the way, and what a bad payload far behind the first leaves behind."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from redrive import Queue, bulk
from redrive.errors import InvalidPayload

CHUNK = 7


@pytest.fixture
def queue(db, monkeypatch):
    monkeypatch.setattr(bulk, "CHUNK", CHUNK)
    queue = Queue(db)
    yield queue
    queue.close()


def stored(conn: psycopg.Connection) -> list[Any]:
    return [row[0] for row in conn.execute("SELECT payload FROM redrive.jobs ORDER BY id")]


@pytest.mark.parametrize("count", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK])
def test_ids_come_in_the_order_of_the_payloads_and_with_them_the_same_jobs(queue, conn, count):
    ids: list[int] = []
    assert queue.enqueue_many("k", ({"n": n} for n in range(count)), ids=ids) == count
    found = conn.execute("SELECT id, (payload->>'n')::int FROM redrive.jobs ORDER BY 2").fetchall()
    assert found == [(job_id, n) for n, job_id in enumerate(ids)]


def test_of_payloads_whose_key_lives_no_id_is_given(queue):
    first, second = [], []
    queue.enqueue_many("k", range(3), key=str, ids=first)
    assert queue.enqueue_many("k", range(5), key=str, ids=second) == 2
    assert len(set(first + second)) == 5


@pytest.mark.parametrize("wanted", [None, []])
def test_progress_is_told_chunk_by_chunk_with_the_number_so_far(queue, wanted):
    told: list[int] = []
    queue.enqueue_many("k", range(2 * CHUNK + 3), on_chunk=told.append, ids=wanted)
    assert told == [CHUNK, 2 * CHUNK, 2 * CHUNK + 3]


def test_progress_and_ids_come_from_async_code_and_from_a_handler_too(queue, conn):
    handler = queue.handler("k")(lambda payload: payload)
    ids, told = [], []

    async def scenario():
        assert await handler.enqueue_many_async(range(CHUNK + 1), ids=ids, on_chunk=told.append) == CHUNK + 1

    asyncio.run(scenario())
    assert handler.enqueue_many([1], ids=ids, on_chunk=told.append) == 1
    assert (len(set(ids)), told) == (CHUNK + 2, [CHUNK, CHUNK + 1, 1])


@pytest.mark.parametrize("place", [0, CHUNK, 2 * CHUNK, 3 * CHUNK + 2])
def test_a_bad_payload_anywhere_leaves_nothing_and_the_callers_transaction_whole(queue, conn, db, place):
    """It is met while an earlier chunk is on its way into the table."""
    payloads: list[Any] = list(range(4 * CHUNK))
    payloads[place] = {"to": {1, 2}}
    with psycopg.connect(db) as caller:
        queue.enqueue("before", connection=caller)
        with pytest.raises(InvalidPayload, match=rf"^payloads\[{place}\]: payload.to is of type set"):
            queue.enqueue_many("k", iter(payloads), connection=caller)
        queue.enqueue("after", connection=caller)
    assert [row[0] for row in conn.execute("SELECT kind FROM redrive.jobs ORDER BY id")] == ["before", "after"]


def test_payloads_may_be_read_from_the_very_connection_that_writes_them(queue, conn, db):
    """Nothing of the caller's is asked for while a COPY is on."""
    with psycopg.connect(db) as caller:

        def source():
            for n in range(4 * CHUNK):
                yield caller.execute("SELECT %s::int", [n]).fetchone()[0]

        assert queue.enqueue_many("k", source(), connection=caller) == 4 * CHUNK
    assert stored(conn) == list(range(4 * CHUNK))
