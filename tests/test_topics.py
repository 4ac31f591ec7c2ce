"""Topics: who subscribes gets a job of each publish, in the publisher's transaction, whoever publishes and by what means."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from redrive import Queue
from redrive.job import Published


@pytest.fixture
def queue(db):
    queue = Queue(db)
    yield queue
    queue.close()


def ask(conn: psycopg.Connection, query: str, *params: Any) -> list[Any]:
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(query, params).fetchall()


def jobs(conn: psycopg.Connection) -> list[Any]:
    return ask(conn, "select * from redrive.jobs order by id")


def rows(conn: psycopg.Connection) -> dict[tuple[str, str], Any]:
    return {(row.topic, row.kind): row for row in ask(conn, "select * from redrive.subscriptions")}


def subscribe(conn: psycopg.Connection, topic: str, kind: str = "k", **columns: Any) -> None:
    columns = {"topic": topic, "kind": kind, **columns}
    conn.execute(
        f"insert into redrive.subscriptions ({', '.join(columns)}) values (%s{', %s' * (len(columns) - 1)})",
        [*columns.values()],
    )


# -- who gets what


def test_each_subscriber_gets_a_job_with_its_handlers_defaults_and_knows_the_topic(queue, conn):
    @queue.subscribe("invoice.paid", kind="send_receipt", priority=2, max_attempts=9)
    def send_receipt(payload, job):
        seen.append((job.kind, payload, job.topic))

    @queue.subscribe("invoice.*", "refund.#")
    def book(payload, job):
        seen.append((job.kind, payload, job.topic))

    @queue.handler("other")
    def other(payload, job):
        seen.append((job.kind, payload, job.topic))

    seen: list[Any] = []
    answer = queue.publish("invoice.paid", {"id": 7})
    assert isinstance(answer, Published)
    assert [job.kind for job in answer.jobs] == ["book", "send_receipt"]
    assert (answer.topic, answer.count) == ("invoice.paid", 2)
    queue.publish("refund.part.late", {"id": 8}, priority=0, lane="x", metadata={"a": 1})
    queue.enqueue("other")
    made = jobs(conn)
    assert [(job.kind, job.priority, job.max_attempts, job.lane) for job in made] == [
        ("book", 5, 5, ""),
        ("send_receipt", 2, 9, ""),
        ("book", 0, 5, "x"),
        ("other", 5, 5, ""),
    ]
    assert [job.id for job in made[:2]] == [job.id for job in answer.jobs]
    assert made[2].metadata == {"a": 1, "topic": "refund.part.late"}
    queue.run(once=True)
    assert sorted(seen, key=str) == [
        ("book", {"id": 7}, "invoice.paid"),
        ("book", {"id": 8}, "refund.part.late"),
        ("other", {}, None),
        ("send_receipt", {"id": 7}, "invoice.paid"),
    ]
