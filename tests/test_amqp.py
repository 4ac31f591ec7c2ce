"""Jobs over a real RabbitMQ: what the relay sends, what workers run from there, and what comes home."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import aio_pika
import psycopg
import pytest

from engine import Inside
from redrive import Breaker, Dead, InvalidOption, NoBroker, Queue, Retry, Snooze
from redrive.amqp.intake import Intake
from redrive.amqp.link import Link
from redrive.amqp.parcel import opened
from redrive.job import Holder
from support import wait_for
from support_engine import add, states


@pytest.fixture
def queue(db, vhost):
    made = Queue(db, broker_url=vhost, poll=0.5)
    made.kinds.route("mail", "amqp", by="ada")
    yield made
    made.close()


def jobs_of(conn: psycopg.Connection) -> int:
    return conn.execute("select count(*) from redrive.jobs").fetchone()[0]


def messages(vhost: str, name: str, *, delete: bool = False) -> int | None:
    """Count what is ready in a queue, None where there is no such queue; or delete it."""

    async def look() -> int | None:
        async with await aio_pika.connect(vhost) as connection:
            channel = await connection.channel()
            if delete:
                await channel.queue_delete(name, if_unused=False, if_empty=False)
                return None
            try:
                return (await channel.declare_queue(name, passive=True)).declaration_result.message_count
            except aio_pika.exceptions.ChannelNotFoundEntity:
                return None

    return asyncio.run(look())


class TestTheWay:
    def test_a_job_goes_over_the_broker_and_leaves_no_row(self, conn, queue, vhost):
        ran: list[Any] = []

        @queue.handler("mail")
        async def mail(payload: Any, job: Any) -> None:
            ran.append((payload, job.id, job.attempt, job.priority, job.lane, job.metadata))

        made = queue.enqueue("mail", {"to": "ada"}, priority=2, lane="acme", metadata={"trace": "x"})
        with Inside(queue.relay(), queue.worker(broker=vhost)):
            wait_for(lambda: ran, 30)
            wait_for(lambda: jobs_of(conn) == 0)
        assert ran == [({"to": "ada"}, made.id, 1, 2, "acme", {"trace": "x"})]

    def test_many_jobs_each_run_once(self, conn, queue, vhost):
        ran: list[int] = []

        @queue.handler("mail")
        async def mail(payload: Any) -> None:
            ran.append(payload["n"])

        queue.enqueue_many("mail", ({"n": n} for n in range(3000)))
        with Inside(queue.relay(), queue.worker(broker=vhost), queue.worker(broker=vhost)):
            wait_for(lambda: len(ran) >= 3000, 60)
        assert sorted(ran) == list(range(3000))
        assert jobs_of(conn) == 0

    def test_what_is_routed_is_not_claimed_from_the_table_and_the_other_way_round(self, conn, queue, vhost):
        ran: list[str] = []

        @queue.handler("mail")
        async def mail(_payload: Any) -> None:
            ran.append("mail")

        @queue.handler("export")
        async def export(_payload: Any) -> None:
            ran.append("export")

        queue.enqueue("mail")
        queue.enqueue("export")
        with Inside(queue):
            wait_for(lambda: states(conn, "export") == {"succeeded": 1})
        assert states(conn, "mail") == {"pending": 1}
        queue.kinds.route("mail", "postgres")
        with Inside(queue):
            wait_for(lambda: states(conn, "mail") == {"succeeded": 1})
        assert ran == ["export", "mail"]

    def test_a_route_that_changes_under_load_loses_and_doubles_nothing(self, conn, queue, vhost):
        ran: list[int] = []

        @queue.handler("mail")
        async def mail(payload: Any) -> None:
            await asyncio.sleep(0.001)
            ran.append(payload["n"])

        with Inside(queue.relay(), queue.worker(broker=vhost), queue.worker()):
            for start in range(0, 1200, 100):
                queue.kinds.route("mail", "amqp" if start % 200 else "postgres")
                queue.enqueue_many("mail", ({"n": n} for n in range(start, start + 100)))
            wait_for(lambda: len(ran) >= 1200, 60)
            wait_for(lambda: not {"pending", "running"} & states(conn).keys())
        assert sorted(ran) == list(range(1200))

    def test_of_what_waits_at_the_broker_the_important_runs_first_and_the_last_is_not_forgotten(self, queue, vhost):
        ran: list[str] = []

        @queue.handler("mail")
        def mail(payload: Any) -> None:
            time.sleep(0.002)
            ran.append(payload)

        for priority, name in ((9, "low"), (5, "usual"), (1, "high")):
            queue.enqueue_many("mail", [name] * 60, priority=priority)
        asyncio.run(queue.relay().run(once=True))
        with Inside(queue.worker(broker=vhost, concurrency=1)):
            wait_for(lambda: len(ran) == 180, 60)
        place = {name: sum(n for n, each in enumerate(ran) if each == name) / 60 for name in ("high", "usual", "low")}
        assert place["high"] < place["usual"] < place["low"]
        assert "low" in ran[:150]

    def test_a_paused_kind_stays_in_the_table(self, conn, queue, vhost):
        queue.kinds.pause("mail")
        queue.enqueue("mail")
        asyncio.run(queue.relay().run(once=True))
        assert states(conn) == {"pending": 1}
        queue.kinds.resume("mail")
        asyncio.run(queue.relay().run(once=True))
        assert states(conn) == {}

    def test_a_job_past_its_deadline_dies_in_plain_sight(self, conn, queue, vhost):
        @queue.handler("mail")
        async def mail(_payload: Any) -> None:
            raise AssertionError

        queue.enqueue("mail", expires_in=1)
        over = time.monotonic() + 1
        asyncio.run(queue.relay().run(once=True))
        assert states(conn) == {}
        wait_for(lambda: time.monotonic() > over)
        with Inside(queue.worker(broker=vhost)):
            wait_for(lambda: states(conn) == {"dead": 1})
        assert "expires_at passed" in conn.execute("select last_error from redrive.jobs").fetchone()[0]

    @pytest.mark.parametrize("hours", [-1, 1])
    def test_deadlines_are_by_the_databases_clock_not_the_machines_ct_11(self, conn, queue, vhost, monkeypatch, hours):
        ran: list[int] = []

        @queue.handler("mail")
        async def mail(_payload: Any, job: Any) -> None:
            ran.append(job.id)

        made = queue.enqueue("mail", expires_in=1800)
        over, soon = queue.enqueue("mail", expires_in=0.3), time.monotonic() + 0.3
        asyncio.run(queue.relay().run(once=True))
        wait_for(lambda: time.monotonic() > soon)
        for module in ("amqp.parcel", "tally"):
            away = SimpleNamespace(monotonic=time.monotonic, time=lambda: time.time() + hours * 3600)
            monkeypatch.setattr(f"redrive.{module}.time", away)
        with Inside(queue.worker(broker=vhost)):
            wait_for(lambda: ran == [made.id] and states(conn) == {"dead": 1}, 30)
        assert queue.get(over.id).status == "dead"


class TestComingHome:
    def test_a_failure_is_written_before_the_message_goes_and_the_relay_sends_it_again(self, conn, queue, vhost):
        tries: list[tuple[int, int]] = []

        @queue.handler("mail", backoff=lambda _attempt: 0.1)
        async def mail(_payload: Any, job: Any) -> None:
            tries.append((job.id, job.attempt))
            if job.attempt < 3:
                raise ConnectionResetError("no route")

        made = queue.enqueue("mail", {"to": "ada"})
        with Inside(queue.relay(), queue.worker(broker=vhost, breaker=False)):
            wait_for(lambda: len(tries) == 3, 30)
            wait_for(lambda: jobs_of(conn) == 0)
        assert tries == [(made.id, 1), (made.id, 2), (made.id, 3)]
        rows = conn.execute("select attempt, outcome, error_type from redrive.failures order by id").fetchall()
        assert rows == [(1, "retried", "ConnectionResetError"), (2, "retried", "ConnectionResetError")]

    def test_the_dead_are_seen_and_sent_back_as_ever(self, conn, queue, vhost):
        healed, told = threading.Event(), []

        @queue.handler("mail", max_attempts=1, on_dead=told.append)
        async def mail(_payload: Any) -> None:
            if not healed.is_set():
                raise ValueError("no such customer")

        made = queue.enqueue("mail", {"to": "ada"})
        with Inside(queue.relay(), queue.worker(broker=vhost)):
            wait_for(lambda: states(conn) == {"dead": 1}, 30)
            wait_for(lambda: told)
            job = queue.get(made.id)
            assert (job.payload, job.attempts, job.locked_by) == ({"to": "ada"}, 1, None)
            assert "no such customer" in job.last_error
            assert told[0].id == made.id
            healed.set()
            assert queue.requeue(made.id) == [made.id]
            wait_for(lambda: jobs_of(conn) == 0, 30)

    @pytest.mark.parametrize(
        ("verdict", "state"), [(Snooze(60), "pending"), (Dead("no"), "dead"), (Retry(after=60), "pending")]
    )
    def test_verdicts_hold(self, conn, queue, vhost, verdict, state):
        ran = threading.Event()

        @queue.handler("mail")
        async def mail(_payload: Any) -> None:
            ran.set()
            raise verdict

        queue.enqueue("mail")
        with Inside(queue.relay(), queue.worker(broker=vhost)):
            wait_for(lambda: ran.is_set() and states(conn) == {state: 1}, 30)
        due = conn.execute("select run_at - now() from redrive.jobs").fetchone()[0].total_seconds()
        assert state == "dead" or 40 < due < 61

    def test_a_result_and_what_is_to_follow_are_one_commit_with_the_success(self, conn, queue, vhost):
        @queue.handler("mail")
        async def mail(_payload: Any, job: Any) -> dict[str, int]:
            job.then("receipt", {"of": job.id})
            return {"sent": 3}

        made = queue.enqueue("mail")
        with Inside(queue.relay(), queue.worker(broker=vhost)):
            wait_for(lambda: states(conn) == {"succeeded": 1, "pending": 1}, 30)
        assert queue.get(made.id).result == {"sent": 3}
        assert conn.execute("select payload from redrive.jobs where kind = 'receipt'").fetchone()[0] == {"of": made.id}

    def test_a_job_completes_in_the_handlers_own_transaction(self, conn, queue, db, vhost):
        conn.execute("create table sent (id bigint)")
        tries: list[int] = []

        @queue.handler("mail", backoff=lambda _attempt: 0.1)
        def mail(_payload: Any, job: Any) -> None:
            tries.append(job.attempt)
            with psycopg.connect(db) as own:
                own.execute("insert into sent values (%s)", [job.id])
                job.complete(own, {"sent": True})
                if job.attempt == 1:
                    raise RuntimeError("rolled back")

        made = queue.enqueue("mail")
        with Inside(queue.relay(), queue.worker(broker=vhost)):
            wait_for(lambda: states(conn) == {"succeeded": 1}, 30)
        assert queue.get(made.id).result == {"sent": True}
        assert conn.execute("select id from sent").fetchall() == [(made.id,)]
        assert tries == [1, 2]

    def test_a_key_and_a_batch_keep_their_row_until_the_job_has_ended(self, conn, queue, vhost):
        go = threading.Event()

        @queue.handler("mail")
        def mail(_payload: Any) -> None:
            go.wait(20)

        with queue.batches.open("report", name="letters") as batch:
            batch.enqueue("mail")
        first = queue.enqueue("mail", key="ada")
        with Inside(queue.relay(), queue.worker(broker=vhost)):
            wait_for(lambda: states(conn, "mail") == {"running": 2}, 30)
            assert conn.execute("select distinct locked_by from redrive.jobs").fetchall() == [("amqp broker",)]
            assert queue.enqueue("mail", key="ada") == type(first)(first.id, False, "mail")
            go.set()
            wait_for(lambda: states(conn, "mail") == {"succeeded": 2}, 30)
            wait_for(lambda: states(conn, "report") == {"pending": 1}, 30)

    def test_a_limit_of_jobs_at_once_holds(self, conn, queue, vhost):
        at_once: list[int] = [0, 0]

        @queue.handler("mail")
        async def mail(_payload: Any) -> None:
            at_once[0] += 1
            at_once[1] = max(at_once)
            await asyncio.sleep(0.01)
            at_once[0] -= 1

        queue.kinds.limit("mail", running=2)
        add(conn, "mail", 20)
        with Inside(queue.relay(), queue.worker(broker=vhost), queue.worker(broker=vhost)):
            wait_for(lambda: states(conn, "mail") == {"succeeded": 20}, 60)
        assert at_once[1] <= 2

    def test_what_a_worker_holds_when_it_stops_comes_home_without_a_mark(self, conn, queue, vhost):
        began = threading.Event()

        @queue.handler("mail")
        async def mail(_payload: Any) -> None:
            began.set()
            await asyncio.sleep(60)

        add(conn, "mail", 30)
        asyncio.run(queue.relay().run(once=True))
        with Inside(queue.worker(broker=vhost, concurrency=2, grace=0)):
            wait_for(began.is_set, 30)
        rows = conn.execute("select attempts, alone, crashes, locked_by from redrive.jobs").fetchall()
        assert set(rows) == {(0, False, 0, None)}
        assert len(rows) >= 2


class TestAway:
    def test_what_was_refused_goes_out_when_the_limit_of_the_queue_is_gone(
        self, conn, queue, rabbit, vhost, monkeypatch
    ):
        monkeypatch.setattr("redrive.amqp.relay.REFUSED_PAUSE", 0.2)
        name = vhost.rpartition("/")[2]
        full = {"pattern": "^redrive", "definition": {"max-length": 1, "overflow": "reject-publish"}}
        rabbit.api("PUT", f"policies/{name}/full", full)
        for _ in range(4):
            for _ in range(10):
                queue.enqueue("mail")
            asyncio.run(queue.relay().run(once=True))
        with Inside(queue.relay()):
            assert jobs_of(conn) > 0
            rabbit.api("DELETE", f"policies/{name}/full")
            wait_for(lambda: jobs_of(conn) == 0, 30)

    def test_no_broker_is_said_and_the_jobs_wait_in_the_table(self, conn, db, caplog):
        queue = Queue(db, broker_url="amqp://guest:hidden@127.0.0.1:1/", poll=0.5)
        queue.kinds.route("mail", "amqp")
        queue.enqueue("mail")
        with Inside(queue.relay()) as inside:
            wait_for(lambda: "no broker at" in inside.worker.complaints())
        queue.close()
        assert states(conn) == {"pending": 1}
        assert "hidden" not in caplog.text


class TestDirect:
    def test_a_job_goes_straight_to_the_broker_and_no_statement_is_said(self, conn, db, vhost):
        ran: list[Any] = []
        queue = Queue("postgresql://nobody@127.0.0.1:1/none", broker_url=vhost)
        made = queue.enqueue("mail", {"to": "ada"}, direct=True, priority=2, lane="acme")
        assert asyncio.run(queue.enqueue_async("mail", {"to": "bo"}, direct=True)).created
        ids: list[int] = []
        assert queue.enqueue_many("mail", ({"n": n} for n in range(1200)), direct=True, ids=ids) == 1200
        queue.close()
        assert len(set(ids) | {made.id}) == 1201

        worker = Queue(db)

        @worker.handler("mail")
        async def mail(payload: Any, job: Any) -> None:
            ran.append((job.id, payload, job.priority, job.lane))

        with Inside(worker.worker(broker=vhost)):
            wait_for(lambda: len(ran) == 1202, 60)
        assert (made.id, {"to": "ada"}, 2, "acme") in ran
        assert jobs_of(conn) == 0

    def test_what_fails_comes_home_and_can_be_sent_back(self, conn, db, vhost):
        queue = Queue(db, broker_url=vhost)

        @queue.handler("mail", max_attempts=1)
        async def mail(_payload: Any) -> None:
            raise ValueError("no")

        made = queue.enqueue("mail", {"to": "ada"}, direct=True, expires_in=60)
        with Inside(queue.worker(broker=vhost)):
            wait_for(lambda: states(conn) == {"dead": 1}, 30)
        assert queue.get(made.id).payload == {"to": "ada"}
        queue.close()

    @pytest.mark.parametrize("how", [{"key": "k"}, {"delay": 5}, {"batch": 3}, {"connection": object()}])
    def test_what_only_the_table_can_do_is_refused(self, db, how):
        queue = Queue(db, broker_url="amqp://guest@127.0.0.1:1/")
        with pytest.raises(InvalidOption, match="goes past the table"):
            queue.enqueue("mail", direct=True, **how)
        queue.close()

    def test_a_broker_that_is_away_is_an_error_and_none_is_one_before_anything_else(self, db):
        queue = Queue(db, broker_url="amqp://guest@127.0.0.1:1/")
        with pytest.raises(NoBroker, match="no broker at"):
            queue.enqueue("mail", direct=True)
        queue.close()
        with pytest.raises(InvalidOption, match="REDRIVE_BROKER_URL"):
            Queue(db).enqueue("mail", direct=True)


class TestTopics:
    def test_what_is_published_can_be_heard_by_other_services(self, conn, queue, vhost):
        queue.topics.add("invoice.#", "redrive.topics")
        queue.kinds.route("redrive.topics", "amqp")

        async def hear() -> list[tuple[str, bytes]]:
            connection = await aio_pika.connect(vhost)
            channel = await connection.channel()
            exchange = await channel.declare_exchange("redrive.redrive.topics", "topic", durable=True)
            theirs = await channel.declare_queue("theirs")
            await theirs.bind(exchange, "invoice.*")
            queue.publish("invoice.paid", {"id": 7}, key="7")
            queue.publish("order.made", {"id": 8})
            await queue.relay().run(once=True)
            message = await theirs.get(timeout=10)
            await connection.close()
            return [(message.routing_key or "", message.body)]

        assert asyncio.run(hear()) == [("invoice.paid", b'{"id": 7}')]
        assert jobs_of(conn) == 0


class TestTakingTurns:
    def test_a_long_job_comes_home_while_it_runs_and_its_message_goes(self, conn, queue, vhost, monkeypatch):
        """RabbitMQ ends the channel of who keeps a message for half an hour."""
        monkeypatch.setattr("redrive.amqp.consumer.HOME_AFTER", 0.2)
        go = threading.Event()

        @queue.handler("mail")
        def mail(_payload: Any) -> None:
            go.wait(30)

        queue.enqueue("mail")
        with Inside(queue.relay(), queue.worker(broker=vhost)) as inside:
            wait_for(lambda: states(conn) == {"running": 1}, 30)
            wait_for(lambda: not inside.workers[1].consumer.receipts._open)
            assert conn.execute("select locked_by from redrive.jobs").fetchone()[0] == inside.workers[1].name
            go.set()
            wait_for(lambda: states(conn) == {"succeeded": 1}, 30)

    def test_what_waits_at_a_full_worker_is_run_by_another(self, conn, queue, vhost, monkeypatch):
        monkeypatch.setattr("redrive.amqp.intake.FULL_FOR", 0.2)
        go, ran = threading.Event(), []

        @queue.handler("mail")
        def mail(payload: Any, job: Any) -> None:
            ran.append((payload, job.worker))
            if payload == "slow":
                go.wait(30)

        queue.enqueue_many("mail", ["slow", "slow"])
        asyncio.run(queue.relay().run(once=True))
        with Inside(queue.worker(broker=vhost, concurrency=2), queue.relay()) as inside:
            wait_for(lambda: len(ran) == 2, 30)
            queue.enqueue_many("mail", ["quick"] * 4)
            wait_for(lambda: inside.workers[0].consumer._intake.full, 30)
            with Inside(queue.worker(broker=vhost)) as other:
                wait_for(lambda: len(ran) == 6, 30)
                assert {worker for payload, worker in ran if payload == "quick"} == {other.worker.name}
            go.set()

    def test_a_breaker_that_one_worker_opened_is_closed_by_the_probe_of_another(self, conn, queue, vhost):
        up = threading.Event()
        one, two = Queue(queue.settings.database_url), Queue(queue.settings.database_url)
        seen: dict[str, list[int]] = {"one": [], "two": []}

        def handle(where: str) -> Any:
            def mail(_payload: Any, job: Any) -> None:
                seen[where].append(job.id)
                if not up.is_set():
                    raise ConnectionRefusedError("down")

            return mail

        breaker = Breaker(failures=3, probe_every=0.5, probe_longest=2.0)
        one.handler("mail", breaker=breaker)(handle("one"))
        two.handler("mail", breaker=breaker)(handle("two"))
        queue.enqueue_many("mail", [{}] * 20)
        with Inside(queue.relay(), one.worker(broker=vhost)):
            wait_for(lambda: [each.state for each in queue.breakers.list()] == ["open"], 30)
        up.set()
        with Inside(queue.relay(), two.worker(broker=vhost)):
            wait_for(lambda: "open" not in {each.state for each in queue.breakers.list()}, 60)
        assert seen["two"]
        one.close()
        two.close()

    def test_a_delivery_that_reaches_nobody_is_given_back_and_not_acknowledged_with_later_ones(self, queue, vhost):
        """A quorum queue's may come after the end of the consumer that they were for."""
        ran: list[Any] = []

        @queue.handler("mail")
        async def mail(payload: Any) -> None:
            ran.append(payload)

        with Inside(queue.worker(broker=vhost)) as inside:
            queue.enqueue("mail", "first", direct=True)
            wait_for(lambda: ran == ["first"], 30)
            consumers = inside.worker.link._channel.consumers
            heard = dict(consumers)
            consumers.clear()
            queue.enqueue("mail", "unheard", direct=True)
            wait_for(lambda: messages(vhost, "redrive.redrive.mail") == 0)
            consumers.update(heard)
            queue.enqueue_many("mail", ["later"] * 3, direct=True)
            wait_for(lambda: len(ran) == 5, 30)
        assert sorted(ran) == ["first", "later", "later", "later", "unheard"]

    def test_a_queue_that_somebody_deletes_is_made_anew_and_read(self, queue, vhost):
        ran: list[Any] = []

        @queue.handler("mail")
        async def mail(payload: Any) -> None:
            ran.append(payload)

        with Inside(queue.worker(broker=vhost)):
            queue.enqueue("mail", "first", direct=True)
            wait_for(lambda: ran == ["first"], 30)
            messages(vhost, "redrive.redrive.mail", delete=True)
            wait_for(lambda: messages(vhost, "redrive.redrive.mail") == 0)
            queue.enqueue("mail", "second", direct=True)
            wait_for(lambda: ran == ["first", "second"], 30)

    def test_an_old_message_of_a_job_that_comes_again_does_not_take_the_new_one_with_it(self, conn, queue, vhost):
        """Both delivered before, and asked about together: the old is settled by its failure, the new one is not."""
        ran: list[int] = []

        @queue.handler("mail")
        def mail(_payload: Any, job: Any) -> None:
            ran.append(job.attempt)

        made = queue.enqueue("mail")
        conn.execute("delete from redrive.jobs")
        conn.execute(
            "insert into redrive.failures"
            " (job_id, kind, claim, attempt, outcome, error_type, message, fingerprint, failed_at)"
            " values (%s, 'mail', 1, 1, 'retried', 'E', 'e', 'f', now())",
            [made.id],
        )

        async def send() -> None:
            link = Link(vhost, "redrive", "test")
            await link.open()
            for claim in (1, 2):
                headers = {"due": 0, "created": 0, "claim": claim, "attempt": claim, "suspect": True}
                parcel = opened(Holder("w", "redrive", *[lambda *_: None] * 3), made.id, "mail", b"null", headers)
                assert not await link.publish([parcel])
            await link.close()

        asyncio.run(send())
        with Inside(queue.worker(broker=vhost)):
            wait_for(lambda: states(conn) == {"succeeded": 1}, 30)
        assert ran == [2]

    def test_what_waits_is_not_acknowledged_with_later_jobs_where_something_else_of_the_broker_failed(
        self, queue, vhost, monkeypatch
    ):
        """As when a queue can't be declared while a node is lost, and the channel of the deliveries lives on."""
        ran: list[int] = []
        real = Intake.adjust

        async def adjust(intake: Intake, took: Any) -> None:
            if -1 not in ran and len(ran) >= 200 and any(inside.worker.consumer._bands):
                ran.append(-1)
                raise NoBroker("a queue can't be declared just now")
            await real(intake, took)

        monkeypatch.setattr(Intake, "adjust", adjust)

        @queue.handler("mail")
        def mail(payload: Any) -> None:
            time.sleep(0.005)
            ran.append(payload)

        queue.enqueue_many("mail", range(800), direct=True)
        with Inside(queue.worker(broker=vhost, concurrency=2)) as inside:
            wait_for(lambda: set(range(800)) <= set(ran), 40)
        assert -1 in ran
