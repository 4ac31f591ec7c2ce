"""What a type checker makes of the public names; run by mypy --strict in test_api, never by Python.

A line that is to be refused says so by the error that is ignored there: an ignore that nothing needs is an error, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import psycopg
import psycopg2.extensions
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from redrive import ClaimedJob, Dead, Discard, Enqueued, Job, Published, Queue, Retry, Snooze
from redrive.backoff import exponential
from redrive.classify import Finding, Word
from redrive.ended import Ended
from redrive.handlers import Handler
from redrive.requeues import Requeue
from redrive.senders.email import Email, Mail
from redrive.senders.smtp import Smtp
from redrive.senders.webhook import Delivery, Webhook

queue = Queue("postgresql://localhost/app", schema="redrive", concurrency=4)


@dataclass
class Welcome:
    """A typed payload."""

    to: str


@queue.subscribe("invoice.*", kind="send_receipt", priority=2)
def receipt(name: str) -> str:
    """A subscriber stays what it was, too."""
    return name


@queue.handler("send_email", max_attempts=5, timeout=30, backoff=exponential(), retry_on=OSError, dead_on=(KeyError,))
def send_email(payload: dict[str, Any]) -> None:
    """The tutorial's shape."""
    if not payload:
        raise Retry("later", after=timedelta(minutes=1))
    raise Snooze(60)


@queue.handler()
async def welcome(payload: Welcome, job: ClaimedJob) -> str:
    """Typed, async, with the job."""
    assert_type(job.id, int)
    assert_type(job.attempt, int)
    assert_type(job.idempotency_key, str)
    assert_type(job.should_stop, bool)
    job.progress({"done": 1})
    if job.last_attempt:
        raise Dead("no")
    raise Discard("reason")


class Unknown(Exception):
    """An error of the application's."""


def by_text(error: BaseException) -> Word | None:
    """Say what an error tells."""
    return "outage" if "maintenance" in str(error) else None


of_queue = Queue(classify=by_text)


@of_queue.handler(
    "order", classify={Unknown: "permanent", OSError: Finding("outage", 60)}, dead_on=(KeyError, "permanent")
)
def order(payload: str) -> None:
    """Errors told by the application's own words."""


@of_queue.handler("other", dead_on="permanent", classify={Unknown: "dead"})  # type: ignore[dict-item]
def other(payload: str) -> None:
    """No such word."""


webhook = Webhook("whsec_" + "A" * 44, on_gone=lambda gone: gone.delivery.endpoint).register(of_queue, max_attempts=3)
assert_type(webhook.enqueue(Delivery("https://x.example", {"a": 1}), key="k"), Enqueued)
mails = Email("a@x.example", Smtp("mail.example")).register(of_queue)
assert_type(mails.enqueue(Mail("b@x.example", "Hello")), Enqueued)

handler: Handler[[dict[str, Any]], None] = send_email
assert_type(send_email({"to": "ann"}), None)
send_email("ann")  # type: ignore[arg-type]


def by_address(payload: dict[str, str]) -> str:
    """Give the key of a payload."""
    return payload["to"]


def whatever_driver(session: Session, core: sqlalchemy.Connection, plain: psycopg2.extensions.connection) -> None:
    """The caller's connection, of whatever driver, is known to be sync."""
    assert_type(queue.enqueue("send_email", {}, connection=session), Enqueued)
    queue.enqueue("send_email", {}, connection=core)
    queue.cancel(7, connection=plain)
    queue.enqueue("send_email", {}, connection="postgresql://")  # type: ignore[arg-type]


async def whatever_async_driver(session: AsyncSession, core: AsyncConnection, sync: Session) -> None:
    """Or async."""
    queue.enqueue("send_email", {}, connection=session)  # type: ignore[arg-type]
    queue.enqueue("send_email", {}, connection=core)  # type: ignore[arg-type]
    assert_type(await queue.enqueue_async("send_email", {}, connection=core), Enqueued)
    await queue.enqueue_many_async("send_email", [{}], connection=session)
    await queue.cancel_async(7, connection=core)
    await queue.requeue_async(7, connection=sync)  # type: ignore[arg-type]
    await queue.kinds.pause_async("send_email", connection=sync)  # type: ignore[arg-type]


connection = psycopg.connect("")
with connection:
    assert_type(queue.enqueue("send_email", {"to": "ann"}), Enqueued)
    assert_type(queue.enqueue("send_email", {}, connection=connection, key="k", delay=5).created, bool)
    send_email.enqueue({}, connection=connection, run_at=datetime.now(UTC), lane="eu", priority=1, max_attempts=2)
    send_email.enqueue({}, expires_in=timedelta(hours=1), metadata={"trace": "x"})
    queue.enqueue("send_email", {}, dealy=5)  # type: ignore[call-arg]
    queue.enqueue("send_email", {}, priority="high")  # type: ignore[arg-type]
    queue.enqueue("send_email", {}, run_at="2030-01-01")  # type: ignore[arg-type]
    send_email.enqueue({}, dealy=5)  # type: ignore[call-arg]
    queue.enqueue(connection=connection)  # type: ignore[call-arg]

    assert_type(queue.enqueue_many("send_email", [{}, {}], key=by_address, connection=connection), int)
    queue.enqueue_many("send_email", [{}], key="k")  # type: ignore[arg-type]

    assert_type(queue.publish("invoice.paid", {}, connection=connection, key="7"), Published)
    assert_type(queue.publish_many("invoice.paid", [{}]), int)
    queue.publish("invoice.paid", {}, priority="high")  # type: ignore[arg-type]
    assert_type(receipt("ann"), str)

    assert_type(queue.get(7), Job | None)
    assert_type(queue.cancel(7, 8, connection=connection), dict[int, str])
    which = Ended(kind="send_email", error="refused", payload={"to": "ann"})
    assert_type(queue.requeue(which, by="ann", reason="mended", connection=connection), list[int])
    assert_type(queue.requeues.preview(which).jobs, int)
    assert_type(queue.requeues.start(which, canary=True, rate=50), Requeue)
    assert_type(queue.requeues.edit(7, {"to": "bob"}), bool)
    assert_type([group.which for group in queue.groups.list()], list[Ended])
    assert_type([act.by for act in queue.audit.list(action="pause")], list[str | None])
    queue.audit.list(actor="ann")  # type: ignore[call-arg]
    Ended(kinds="mail")  # type: ignore[call-arg]


async def main() -> None:
    """The async twins."""
    async with await psycopg.AsyncConnection.connect("") as own:
        assert_type(await queue.enqueue_async("send_email", {}, connection=own), Enqueued)
        assert_type(await welcome.enqueue_async(Welcome("ann"), connection=own, delay=timedelta(seconds=5)), Enqueued)
        assert_type(await queue.enqueue_many_async("send_email", [{}], connection=own), int)
        await queue.enqueue_async("send_email", {}, connection=connection)  # type: ignore[arg-type]
    queue.enqueue("send_email", {}, connection=own)  # type: ignore[arg-type]
    await queue.run_async(once=True)
