"""Topics: who subscribes gets a job of each publish, in the publisher's transaction, whoever publishes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from psycopg.rows import namedtuple_row

import support
from engine import Inside, states
from redrive import InvalidOption, InvalidPayload, Queue
from redrive.bulk import CHUNK
from redrive.connections import Control
from redrive.errors import UnknownSubscription
from redrive.job import Enqueued, Published
from redrive.service import Database
from redrive.settings import load
from redrive.subscriber import Subscriber
from redrive.testing import run_pending
from redrive.topic import matches
from shell import answer, complaint, redrive
from support import wait_for
from ways import WAYS, Way


@pytest.fixture(scope="module")
def shared(server_url: str, template: str) -> Iterator[str]:
    """One database for the whole file."""
    with support.database(server_url, template) as dsn:
        yield dsn


@pytest.fixture
def db(shared: str) -> str:
    """The same, as if it were new."""
    with psycopg.connect(shared, autocommit=True) as conn:
        conn.execute(
            "truncate redrive.jobs, redrive.subscriptions, redrive.unheard_topics, redrive.workers, redrive.audit "
            "restart identity"
        )
        conn.execute("drop table if exists public.invoices")
    return shared


@pytest.fixture
def conn(db: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(db, autocommit=True) as conn:
        yield conn


@pytest.fixture
def queue(db):
    queue = Queue(db)
    yield queue
    queue.close()


def other(db: str, *subscriptions: tuple[str, ...], **settings: Any) -> Queue:
    """Another version of the application: the kinds that it has, each with its topics."""
    queue = Queue(db, **settings)
    for kind, *topics in subscriptions:
        handler = queue.handler(kind)(lambda payload: None)
        if topics:
            queue.subscribe(*topics)(handler)
    return queue


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


def test_stacked_and_above_a_handler_its_topics_add_up_and_what_makes_no_sense_is_refused(queue):
    @queue.subscribe("a")
    @queue.subscribe("b.*", "a")
    @queue.handler("k", priority=1)
    def handler(payload):
        return payload

    assert (handler.kind, handler.topics, handler.priority) == ("k", ("a", "b.*"), 1)
    assert handler(5) == 5
    assert handler.registered_in == __name__
    for wrong, said in [
        ((), "say to what"),
        (("",), "write words with one dot between them"),
        (("a..b",), "write words with one dot between them"),
        (("a.b*",), "each stand for whole words"),
        ((5,), "topic is 5: give text"),
        (("x" * 256,), "of 256 bytes: at most 255"),
        (("a\0",), "can't be stored"),
    ]:
        with pytest.raises(InvalidOption, match=r"topic is|subscribe: ") as refused:
            queue.subscribe(*wrong)
        assert said in str(refused.value)
    with pytest.raises(InvalidOption, match="kind, priority: 'k' has a handler, where that belongs"):
        queue.subscribe("c", kind="other", priority=3)(handler)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda queue: queue.publish("a.*"), InvalidOption, "publish one topic by its name"),
        (lambda queue: queue.publish("a", {"x": object()}), InvalidPayload, "x"),
        (lambda queue: queue.publish("a", priority=11), InvalidOption, "priority is 11"),
        (lambda queue: queue.publish("a", dealy=1), InvalidOption, "did you mean 'delay'"),
        (lambda queue: queue.publish("a", key="k", unique_for=5), InvalidOption, "unique_for is for queue.enqueue"),
        (lambda queue: queue.publish("a", direct=True), InvalidOption, "direct is for queue.enqueue: .* the table"),
        (lambda queue: queue.publish_many("a", {"x": 1}), InvalidOption, "payloads is a dict"),
        (lambda queue: queue.publish_many("a", [{}, {1}]), InvalidPayload, r"payloads\[1\]"),
        (lambda queue: queue.publish("a", connection=5), TypeError, "int"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_sql(call, error, said):
    with pytest.raises(error, match=said):
        call(Queue("postgresql://nobody@127.0.0.1:1/nowhere"))


# -- patterns

WORDS = st.sampled_from(["a", "b", "ab", "A", "a+", "[x", "\\", "$", "(", "{2}", "^|", "?", "a b", "\n", "\u00e9"])


def fits(pattern: list[str], topic: list[str]) -> bool:
    """As AMQP has it, word for word."""
    if not pattern:
        return not topic
    if pattern[0] == "#":
        return fits(pattern[1:], topic) or bool(topic and fits(pattern, topic[1:]))
    return bool(topic) and pattern[0] in ("*", topic[0]) and fits(pattern[1:], topic[1:])


@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(WORDS | st.sampled_from(["*", "#"]), min_size=1, max_size=5), min_size=1, max_size=12),
    st.lists(st.lists(WORDS, min_size=1, max_size=5), min_size=1, max_size=6),
)
def test_postgres_python_and_amqp_agree_on_what_a_pattern_fits(conn, patterns, topics):
    spelt = sorted({".".join(each) for each in patterns})
    with conn.transaction(force_rollback=True):
        conn.execute("insert into redrive.subscriptions (topic, kind) select p, p from unnest(%s::text[]) p", [spelt])
        for words in topics:
            topic = ".".join(words)
            wanted = {each for each in spelt if fits(each.split("."), words)}
            found = conn.execute("select kind from redrive.subscribers(%s)", [topic]).fetchall()
            assert {kind for (kind,) in found} == wanted
            assert {each for each in spelt if matches(each, topic)} == wanted


def test_a_pattern_of_nothing_but_wildcards_is_no_trouble(queue, conn):
    for pattern in ("#." * 60 + "x", "#.*." * 40 + "#", ".".join(["*"] * 128), "#"):
        subscribe(conn, pattern, pattern[:9])
    topic = ".".join(["a"] * 128)
    assert [job.kind for job in queue.publish(topic).jobs] == ["#", "#.*.#.*.#", "*.*.*.*.*"]
    assert matches("#." * 60 + "a", topic)
    assert not matches("#." * 60 + "x", topic)


def test_a_publish_looks_up_the_few_stems_of_its_topic(conn):
    """However many subscribe to other things."""
    conn.execute(
        "insert into redrive.subscriptions (topic, kind)"
        " select 'x' || n || case when n % 2 = 0 then '.*' else '' end, 'k' || n from generate_series(1, 20000) n"
    )
    conn.execute("analyze redrive.subscriptions")
    conn.execute("set enable_seqscan = on")
    text = conn.execute("select prosrc from pg_proc where proname = 'subscribers'").fetchone()[0]
    plan = conn.execute("explain " + text.replace("subscribers.topic", "'x4.y'")).fetchall()
    assert any("subscriptions_stem_idx" in line for (line,) in plan)
    assert [kind for (kind,) in conn.execute("select kind from redrive.subscribers('x4.y')")] == ["k4"]


@pytest.mark.parametrize(
    ("row", "constraint"),
    [
        ({"topic": "a..b"}, "topic_is_words_between_dots"),
        ({"topic": "a*"}, "topic_is_words_between_dots"),
        ({"topic": ""}, "topic_is_words_between_dots"),
        ({"topic": "x" * 256}, "topic_is_at_most_255_bytes"),
        ({"topic": "a", "kind": ""}, "kind_is_1_to_1000_bytes"),
        ({"topic": "a", "owner": "me"}, "owner_is_code_or_operator"),
        ({"topic": "a", "priority": 10}, "priority_is_0_to_9"),
    ],
)
def test_rows_that_make_no_sense_are_refused_by_the_table(conn, row, constraint):
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        subscribe(conn, **row)
    assert refused.value.diag.constraint_name == f"subscriptions_{constraint}"


# -- in the caller's transaction


@pytest.mark.parametrize("way", WAYS)
def test_a_publish_is_in_the_callers_transaction_whatever_the_driver(db, conn, way):
    queue = other(db, ("one", "a.*"), ("two", "a.b"))

    async def go(connection: Way) -> None:
        async with WAYS[way](db) as mine:
            made = await mine.ask(queue.publish, "a.b", {"n": 1}, key="x")
            assert [(job.kind, job.created) for job in made.jobs] == [("one", True), ("two", True)]
            again = await mine.ask(queue.publish, "a.b", {"n": 2}, key="x")
            assert again == replace(made, jobs=tuple(replace(job, created=False) for job in made.jobs))
            assert await mine.ask(queue.publish_many, "a.c", [{"n": 3}, {"n": 4}]) == 2
            assert jobs(conn) == []
            await mine.end(commit=False)
            await mine.again()
            assert jobs(conn) == []
            assert len(rows(conn)) == 2, "the subscriptions are written, whatever became of that transaction"
            await mine.ask(queue.publish, "a.b", {"n": 5}, delay=60)
            await mine.end(commit=True)

    asyncio.run(go(way))
    assert [(job.kind, job.payload) for job in jobs(conn)] == [("one", {"n": 5}), ("two", {"n": 5})]
    queue.close()


def test_the_caller_sees_one_statement_a_publish_and_no_end_of_the_transaction(db, conn, server_log):
    queue = other(db, ("one", "a"), ("two", "#"))
    conn.execute(f"alter database {conn.info.dbname} set log_statement = 'all'")
    try:
        with psycopg.connect(db, application_name="theirs") as theirs:
            theirs.execute("select 1")
            queue.publish("a", connection=theirs)
            queue.publish("a", key="k", connection=theirs)
            queue.publish_many("a", [{}] * 5, connection=theirs)
            theirs.commit()
    finally:
        conn.execute(f"alter database {conn.info.dbname} reset log_statement")
    said = [line.split("theirs ", 1)[1] for line in server_log.lines() if " theirs LOG:  " in line]
    assert [line.split(":  ", 1)[1].split(": ", 1)[1].split()[0] for line in said] == [
        "BEGIN",
        "select",
        "SELECT",
        "SELECT",
        "WITH",
        "COMMIT",
    ]
    queue.close()


def test_a_trigger_and_any_other_language_publish_by_the_function_with_the_same_meaning(queue, conn):
    subscribe(conn, "invoice.*", "book", priority=1)
    subscribe(conn, "invoice.paid", "send_receipt", max_attempts=2)
    conn.execute("create table public.invoices (id int, paid boolean)")
    conn.execute(
        """
        create or replace function public.paid() returns trigger language plpgsql as $$
        begin
            perform redrive.publish('invoice.paid', to_jsonb(new), key => 'invoice:' || new.id);
            return null;
        end $$"""
    )
    conn.execute("create trigger paid after insert on public.invoices for each row execute function public.paid()")
    with conn.transaction(force_rollback=True):
        conn.execute("insert into public.invoices values (1, true)")
    assert jobs(conn) == []
    conn.execute("insert into public.invoices values (2, true), (2, true)")
    assert [(job.kind, job.payload, job.key, job.priority, job.max_attempts, job.metadata) for job in jobs(conn)] == [
        ("book", {"id": 2, "paid": True}, "invoice:2@book", 1, 5, {"topic": "invoice.paid"}),
        ("send_receipt", {"id": 2, "paid": True}, "invoice:2@send_receipt", 5, 2, {"topic": "invoice.paid"}),
    ]
    for wrong in ("'a.*'", "''", "null", "'a', run_at => now(), delay => '1 s'", "repeat('x', 256)"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="publish: "):
            conn.execute(f"select redrive.publish({wrong})")


# -- keys, lanes, many


def test_a_key_is_each_subscribers_own(queue, conn):
    subscribe(conn, "a", "one")
    subscribe(conn, "a", "two")
    first = queue.publish("a", {"n": 1}, key="x")
    conn.execute("update redrive.jobs set status = 'succeeded' where kind = 'two'")
    second = queue.publish("a", {"n": 2}, key="x")
    assert [(job.kind, job.created) for job in second.jobs] == [("one", False), ("two", True)]
    assert second.count == 1
    assert second.jobs[0].id == first.jobs[0].id
    assert queue.publish_many("a", [{"n": 3}, {"n": 3}, {"n": 4}], key=lambda payload: f"n{payload['n']}") == 4
    assert queue.publish_many("a", [{"n": 3}], key=lambda payload: f"n{payload['n']}") == 0
    assert queue.cancel(key="x@one") == {first.jobs[0].id: "pending"}


def test_two_at_once_with_the_same_key_make_one_job_a_subscriber(queue, conn, db):
    subscribe(conn, "a", "one")
    subscribe(conn, "a", "two")
    with psycopg.connect(db) as mine, psycopg.connect(db) as theirs:
        made = queue.publish("a", key="x", connection=mine)

        async def second() -> Published:
            late = asyncio.to_thread(queue.publish, "a", key="x", connection=theirs)
            task = asyncio.ensure_future(late)
            await asyncio.to_thread(wait_for, lambda: waiting(conn))
            mine.commit()
            return await task

        assert asyncio.run(second()).jobs == tuple(Enqueued(job.id, False, job.kind) for job in made.jobs)
        theirs.commit()
    assert len(jobs(conn)) == 2


def waiting(conn: psycopg.Connection) -> bool:
    return bool(conn.execute("select 1 from pg_stat_activity where wait_event_type = 'Lock'").fetchall())


def test_the_lane_is_that_of_the_target_of_each_handler_that_names_one(db, conn):
    queue = other(db, ("plain", "hook.#"))
    queue.subscribe("hook.*", kind="call", target=lambda payload: payload["host"])(lambda payload: None)
    queue.subscribe("else", kind="never", target=lambda payload: 1 / 0)(lambda payload: None)
    queue.publish("hook.sent", {"host": "h1"})
    queue.publish("hook.sent", {"host": "h2"}, lane="mine")
    queue.publish_many("hook.sent", [{"host": "h3"}])
    assert [(job.kind, job.lane) for job in jobs(conn)] == [
        ("call", "h1"),
        ("plain", ""),
        ("call", "mine"),
        ("plain", "mine"),
        ("call", "h3"),
        ("plain", ""),
    ]
    queue.close()


def test_a_thousand_at_once_are_one_statement_and_more_are_all_or_nothing(queue, conn):
    for kind in ("one", "two", "three"):
        subscribe(conn, "a.*", kind)
    ids: list[int] = []
    assert queue.publish_many("a.b", ({"n": n} for n in range(1000)), ids=ids, priority=3, metadata={"m": 1}) == 3000
    made = jobs(conn)
    assert [job.id for job in made] == ids
    assert [(job.kind, job.payload["n"]) for job in made[:4]] == [("one", 0), ("three", 0), ("two", 0), ("one", 1)]
    assert {job.priority for job in made} == {3}
    assert made[0].metadata == {"m": 1, "topic": "a.b"}
    with pytest.raises(InvalidPayload):
        queue.publish_many("a.b", (float("nan") if n == 2 * CHUNK else n for n in range(2 * CHUNK + 1)))
    assert len(jobs(conn)) == 3000
    assert asyncio.run(queue.publish_many_async("a.b", [1, 2])) == 6


# -- nobody subscribes


def test_where_nobody_subscribes_the_answer_the_log_the_doctor_and_the_list_say_so(queue, conn, db, caplog):
    with caplog.at_level(logging.WARNING, "redrive"):
        assert queue.publish("nobody.home", {"n": 1}) == Published("nobody.home", ())
        assert queue.publish("nobody.home", key="x").count == 0
        assert queue.publish_many("nobody.home", [{}, {}]) == 0
        assert queue.publish_many("else.where", [{}]) == 0
        assert queue.publish_many("no.thing", []) == 0
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "nobody subscribes to nobody.home",
        "nobody subscribes to else.where",
    ]
    assert [row.topic for row in ask(conn, "select topic from redrive.unheard_topics order by 1")] == [
        "else.where",
        "nobody.home",
    ]
    found = answer(db, "doctor")
    [note] = [each for each in found["findings"] if each["evidence"].get("topic") == "nobody.home"]
    assert "nobody subscribes to it" in note["text"]
    assert [each["topic"] for each in answer(db, "topics", "list")["unheard"]] == ["else.where", "nobody.home"]
    subscribe(conn, "nobody.#")
    assert [each["topic"] for each in answer(db, "topics", "list")["unheard"]] == ["else.where"]


def test_to_note_it_a_publisher_waits_for_nobody(db, queue):
    with psycopg.connect(db) as one, psycopg.connect(db, options="-c lock_timeout=2s") as two:
        queue.publish("a", connection=one)
        queue.publish("b", connection=two)
        queue.publish("a", connection=two)
        queue.publish("b", connection=one)
        two.commit()
        one.commit()
        one.execute("set transaction isolation level repeatable read")
        queue.publish("a", connection=one)
        noted = one.execute("select topic from redrive.unheard_topics order by 1").fetchall()
        assert noted == [("a",), ("b",)], "once, though neither saw the other's"


# -- who writes subscriptions down, and when they end


class Ticks:
    """A worker's subscriber without the worker, each tick of which is the test's to make."""

    def __init__(self, db: str, queue: Queue, *, up: float = 0, **settings: Any) -> None:
        self._db, self._queue, self._up, self._settings = db, queue, up, load(settings)

    def __call__(self, times: int = 2) -> list[float]:
        """Write down what is in the code, then look; gives the pauses."""
        return asyncio.run(self._turn(times))

    async def _turn(self, times: int) -> list[float]:
        control = Control(self._db, "redrive", "outcome test")
        subscriber = Subscriber(Database("here:1:abcdef"), control, self._settings, self._queue.handlers)
        subscriber._up_since -= self._up
        try:
            return [await subscriber.tick() for _ in range(times)]
        finally:
            control.drop()


def alive(conn: psycopg.Connection, *kinds: str) -> None:
    """A live worker that has these kinds."""
    conn.execute(
        "insert into redrive.workers (name, host, pid, version, kinds, concurrency, lease, heartbeat_at)"
        " values ('w', 'h', 1, '1', %s, 1, '30 s', now())",
        [list(kinds)],
    )


def age(conn: psycopg.Connection, seconds: float) -> None:
    """As if nobody had had them in the code for so long."""
    conn.execute("update redrive.subscriptions set seen_at = now() - make_interval(secs => %s)", [seconds])


def test_old_and_new_side_by_side_nothing_is_lost_and_what_is_gone_ends_after_the_grace(db, conn):
    """A rolling deploy: the new version gives up one topic and takes up another."""
    old, new = other(db, ("mail", "a", "gone")), other(db, ("mail", "a", "new"))
    Ticks(db, old)()
    Ticks(db, new)()
    assert {topic for topic, _ in rows(conn)} == {"a", "gone", "new"}
    for topic in ("a", "gone", "new"):  # whichever publishes
        assert old.publish(topic).count == new.publish(topic).count == 1
    alive(conn, "mail")
    Ticks(db, new, up=10_000)()
    assert not any(row.disabled_at for row in rows(conn).values()), "the old one was seen a moment ago"
    age(conn, 2000)
    Ticks(db, old, up=10_000)()  # the last of the old ones says that it lives, and brings no word of the other's
    assert rows(conn)["gone", "mail"].disabled_at is None
    assert rows(conn)["new", "mail"].disabled_at is not None
    Ticks(db, new)()
    assert rows(conn)["new", "mail"].disabled_at is None, "written again by the next that has it"
    age(conn, 2000)
    Ticks(db, new)()
    assert rows(conn)["gone", "mail"].disabled_at is None, "who is up for less than the grace is no judge"
    Ticks(db, new, up=10_000)()
    assert rows(conn)["gone", "mail"].disabled_at is not None
    assert new.publish("gone").count == 0
    assert old.publish("a").count == 1, "it has said its own once"
    back = other(db, ("mail", "a", "gone"))  # the release is taken back
    assert back.publish("gone").count == 1
    for queue in (old, new, back):
        queue.close()


def test_an_outage_of_all_that_run_a_kind_ends_no_subscription_for_a_week(db, conn):
    subscribe(conn, "a", "mail", owner="code")
    subscribe(conn, "b", "by hand")
    others = other(db, ("else",))
    alive(conn, "else")
    age(conn, 6 * 86_400)
    Ticks(db, others, up=10_000)()
    assert others.publish("a").count == 1
    age(conn, 8 * 86_400)
    Ticks(db, others, up=10_000)()
    assert rows(conn)["a", "mail"].disabled_at is not None
    assert rows(conn)["b", "by hand"].disabled_at is None, "an operator's"
    others.close()


def test_a_renamed_kind_gets_one_job_while_its_old_name_still_subscribes(db, conn):
    old, new = other(db, ("mail", "a")), Queue(db)
    new.subscribe("a", kind="email", aliases=["mail"])(lambda payload: None)
    Ticks(db, old)()
    Ticks(db, new)()
    assert [job.kind for job in old.publish("a").jobs] == ["email"]
    old.close()
    new.close()


def test_a_row_that_somebody_has_locked_holds_up_no_worker_and_is_waited_for_by_a_publisher(db, conn):
    queue = other(db, ("mail", "a"))
    subscribe(conn, "a", "mail", owner="code", disabled_at="2020-01-01")
    with psycopg.connect(db) as locker:
        locker.execute("select * from redrive.subscriptions for update")
        assert Ticks(db, queue)(1) == [1.0]

        async def publish() -> Published:
            task = asyncio.ensure_future(asyncio.to_thread(queue.publish, "a"))
            await asyncio.to_thread(wait_for, lambda: waiting(conn))
            locker.rollback()
            return await task

        assert asyncio.run(publish()).count == 1
    queue.close()


def test_workers_of_two_versions_get_what_they_subscribe_to(db, conn):
    """Real workers, and a publisher that has no code of theirs."""
    got: list[tuple[str, Any]] = []
    one, two, plain = Queue(db, poll=0.2), Queue(db, poll=0.2), Queue(db)
    one.subscribe("a", kind="old")(lambda payload: got.append(("old", payload)))
    two.subscribe("a", "b.#", kind="new")(lambda payload: got.append(("new", payload)))
    with Inside(one, two):
        wait_for(lambda: len(rows(conn)) == 3)
        plain.publish("a", 1)
        plain.publish("b.c", 2)
        wait_for(lambda: states(conn) == {"succeeded": 3}, 20)
    assert sorted(got, key=str) == [("new", 1), ("new", 2), ("old", 1)]
    for queue in (one, two, plain):
        queue.close()


def test_a_producer_writes_its_own_down_once_and_again_after_a_fork_or_a_late_import(db, conn):
    queue = other(db, ("mail", "a"))
    assert rows(conn) == {}
    queue.enqueue("mail")
    assert rows(conn) == {}
    queue.publish("a")
    conn.execute("delete from redrive.subscriptions")
    assert queue.publish("a").count == 0
    queue.subscribe("b", kind="late")(lambda payload: None)
    assert queue.publish("b").count == 1
    conn.execute("delete from redrive.subscriptions")
    queue._announced = (queue._announced[0] - 1, *queue._announced[1:])
    assert asyncio.run(queue.publish_async("a")).count == 1
    queue.close()


def test_a_role_that_may_not_write_them_publishes_all_the_same(db, conn, caplog):
    role = f"pub_{conn.info.dbname}"
    conn.execute(f"create role {role} login password 'x'")
    try:
        conn.execute(f"grant usage on schema redrive to {role}")
        conn.execute(f"grant insert, select (id, key, status, kind) on redrive.jobs to {role}")
        conn.execute(f"grant select on redrive.subscriptions to {role}")
        subscribe(conn, "a", "mail")
        queue = other(psycopg.conninfo.make_conninfo(db, user=role, password="x"), ("mail", "a", "b"))
        with caplog.at_level(logging.WARNING, "redrive"):
            assert queue.publish("a").count == 1
            assert queue.publish("a", key="x").count == 1
            assert queue.publish_many("a", [1, 2]) == 2
            assert Ticks(psycopg.conninfo.make_conninfo(db, user=role, password="x"), queue)()
        said = [record.getMessage() for record in caplog.records]
        assert "left to the workers" in said[0]
        assert "this worker minds no subscriptions" in said[1]
        assert len(said) == 2
        queue.close()
    finally:
        conn.execute(f"drop owned by {role}")
        conn.execute(f"drop role {role}")


def test_in_a_test_of_an_application_all_of_it_is_in_the_tests_transaction(db, conn):
    queue, got = Queue(db), []
    queue.subscribe("a.*", kind="mail")(lambda payload, job: got.append(job.topic))
    for _ in range(2):
        with psycopg.connect(db) as mine:
            queue.handler(f"start{_}")(lambda payload: queue.publish("a.b"))
            queue.enqueue(f"start{_}", connection=mine)
            assert [result.kind for result in run_pending(queue, mine, until_empty=True)] == [f"start{_}", "mail"]
            mine.rollback()
        assert rows(conn) == {}
    assert got == ["a.b", "a.b"]
    queue.close()


# -- what operators do


def test_an_operators_are_added_listed_and_removed_and_audited(queue, conn):
    queue.handler("mail", priority=1, max_attempts=7)(lambda payload: None)
    made = queue.topics.add("audit.#", "mail", by="ann", reason="wanted")
    assert (made.topic, made.kind, made.owner, made.priority, made.max_attempts) == (
        "audit.#",
        "mail",
        "operator",
        1,
        7,
    )
    assert made.created_by == "ann"
    assert queue.topics.add("audit.#", "mail", by="ann") == made
    assert queue.topics.list("audit.x.y") == queue.topics.list(kind="mail") == [made]
    assert queue.topics.list("other") == []
    subscribe(conn, "audit.#", "mail", owner="code", priority=3)
    assert queue.publish("audit").count == 1
    assert jobs(conn)[0].priority == 3, "the code's word counts"
    queue.topics.remove("audit.#", "mail", by="bob")
    with pytest.raises(InvalidOption, match=r"subscribes to .* in the code"):
        queue.topics.remove("audit.#", "mail")
    conn.execute("update redrive.subscriptions set disabled_at = now()")
    queue.topics.remove("audit.#", "mail")
    with pytest.raises(UnknownSubscription, match="'mail' has no subscription to"):
        asyncio.run(queue.topics.remove_async("audit.#", "mail"))
    acts = ask(conn, "select action, by, reason from redrive.audit order by id")
    assert [(act.action, act.by) for act in acts[:2]] == [("topic add", "ann"), ("topic remove", "bob")]
    assert len(acts) == 3


def test_topics_from_the_shell(db, conn):
    assert "no subscriptions: write @queue.subscribe" in redrive(db, "topics", "list").stderr
    assert redrive(db, "topics", "add", "audit.#", "audit", "--priority", 9).stdout == "audit subscribes to audit.#\n"
    [row] = answer(db, "topics", "list")["subscriptions"]
    assert (row["topic"], row["kind"], row["priority"], row["state"]) == ("audit.#", "audit", 9, "active")
    assert "audit.#" in redrive(db, "topics", "list", "audit.login").stdout
    done = answer(db, "topics", "publish", "audit.login", '{"user": 7}', "--key", "7")
    assert (done["count"], done["jobs"][0]["kind"]) == (1, "audit")
    again = redrive(db, "topics", "publish", "audit.login", "-", "--key", "7", stdin="[1]").stdout
    assert again == f"job {done['jobs'][0]['id']} of audit has the key 7 already\n"
    assert redrive(db, "topics", "publish", "nobody").stdout == "no job made\n"
    assert "last about" in redrive(db, "topics", "list").stderr
    assert "publish one topic by its name" in complaint(redrive(db, "topics", "publish", "a.*", code=2))
    assert redrive(db, "topics", "remove", "audit.#", "audit").stdout == "audit subscribes to audit.# no more\n"
    assert "has no subscription" in complaint(redrive(db, "topics", "remove", "audit.#", "audit", code=1))
