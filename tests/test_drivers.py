"""The caller's own connection, whatever its driver: what rides on it, what is never said on it, what is refused."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

import support
from redrive import Enqueued, Queue
from redrive.ended import Ended
from ways import WAYS, Way

NOON = datetime(2030, 6, 1, 12, 0, tzinfo=UTC)
Scenario = Callable[[Way], Any]


@pytest.fixture
def queue(db: str) -> Iterator[Queue]:
    queue = Queue(db)
    yield queue
    queue.close()


@pytest.fixture(params=WAYS)
def play(request: pytest.FixtureRequest, db: str) -> Callable[[Scenario], Any]:
    """Play a scenario on one way."""

    def played(scenario: Scenario) -> Any:
        async def scene() -> Any:
            async with WAYS[request.param](db) as way:
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


def test_the_answers_are_the_same_on_every_connection(play, queue, conn):
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

    play(scenario)
    first = queue.get(1)
    assert (first.payload, first.lane, first.status) == ({"n": "ä\\ %s %(x)s $1"}, "eu", "pending")
    assert names(conn)[-2:] == ["a\tb\\n\u2028", None]
