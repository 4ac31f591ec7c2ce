"""Enqueue: in the caller's transaction or at once, never in half, never with a surprise for their connection."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

import support
from redrive import Enqueued, InvalidOption, InvalidPayload, Queue
from redrive.bulk import CHUNK
from redrive.ended import Ended
from redrive.errors import NoDatabase
from redrive.sql import channel, lock_key

NOON = datetime(2030, 6, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def queue(db: str) -> Iterator[Queue]:
    queue = Queue(db)
    yield queue
    queue.close()


@pytest.fixture
def business(conn: psycopg.Connection) -> None:
    """A table of the application's own."""
    conn.execute("CREATE TABLE public.users (name text)")


def count(conn: psycopg.Connection, table: str = "redrive.jobs") -> int:
    return conn.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def rows(conn: psycopg.Connection) -> list[dict[str, Any]]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute("SELECT * FROM redrive.jobs ORDER BY id").fetchall()


@contextmanager
def logged(db: str) -> Iterator[psycopg.Connection]:
    """An autocommit connection of a caller whose every statement the server logs."""
    with psycopg.connect(db, autocommit=True, options="-c log_statement=all") as conn:
        yield conn


def verbs(log: support.ServerLog) -> list[str]:
    """The first word of each statement that was logged, in order."""
    said = re.compile(r"LOG:  (?:statement|execute [^:]*): (\w+)")
    return [match[1].upper() for line in log.lines() if (match := said.search(line))]


# -- on the queue's own connection


def test_enqueue_answers_with_the_job_it_made(queue, conn):
    answer = queue.enqueue("mail", {"to": "ann"})
    assert answer == Enqueued(id=1, created=True, kind="mail")
    job = queue.get(answer.id)
    assert (job.kind, job.payload, job.status, job.attempts) == ("mail", {"to": "ann"}, "pending", 0)
    assert queue.get(99) is None


def test_a_payload_of_nothing_is_an_empty_one(queue, conn):
    queue.enqueue("mail")
    queue.enqueue_many("mail", [None])
    assert [row["payload"] for row in rows(conn)] == [{}, {}]


def test_a_queue_without_a_database_says_so_when_it_needs_one():
    queue = Queue()
    queue.handler("mail")(lambda payload: None)
    with pytest.raises(NoDatabase, match="REDRIVE_DATABASE_URL"):
        queue.enqueue("mail")


def test_identical_jobs_without_a_key_are_different_jobs_un_08(queue):
    """UN-08: no identity by name and arguments."""
    assert queue.enqueue("mail", {"a": 1}).id != queue.enqueue("mail", {"a": 1}).id


def test_the_handlers_priority_and_budget_apply_and_the_callers_go_over_them(queue, conn):
    @queue.handler("mail", priority=2, max_attempts=9, aliases=["old-mail"])
    def mail(payload):
        pass

    mail.enqueue({})
    queue.enqueue("old-mail", {})
    mail.enqueue_many([{}])
    mail.enqueue({}, priority=7, max_attempts=1)
    mail.enqueue_many([{}], priority=7, max_attempts=1)
    queue.enqueue("unknown", {})
    found = [(row["kind"], row["priority"], row["max_attempts"]) for row in rows(conn)]
    assert found == [
        ("mail", 2, 9),
        ("old-mail", 2, 9),
        ("mail", 2, 9),
        ("mail", 7, 1),
        ("mail", 7, 1),
        ("unknown", 5, 5),
    ]


def test_the_handlers_own_doors_take_what_the_queues_take(queue, conn, db):
    @queue.handler("mail")
    def mail(payload):
        pass

    async def play() -> None:
        async with await psycopg.AsyncConnection.connect(db) as own:
            assert (await mail.enqueue_async({}, connection=own, key="c")).created
            assert await mail.enqueue_many_async(["d", "d"], connection=own, key=lambda payload: payload) == 1

    with psycopg.connect(db) as own:
        assert mail.enqueue({}, connection=own, key="a", delay=5).created
        assert mail.enqueue_many(["b", "b"], connection=own, key=lambda payload: payload, lane="x") == 1
        assert count(conn) == 0
    asyncio.run(play())
    assert [row["key"] for row in rows(conn)] == ["a", "b", "c", "d"]


def test_an_unknown_option_names_the_nearest_before_any_sql(queue):
    with pytest.raises(InvalidOption, match=r"^unknown option 'dealy': did you mean 'delay'\?$"):
        queue.enqueue("mail", {}, dealy=5)
    with pytest.raises(InvalidOption, match=r"^unknown option 'conection': did you mean 'connection'\?$"):
        queue.enqueue_many("mail", [], conection=None)


@pytest.mark.parametrize("kind", ["", "a\0b", "x" * 1001, None, 5])
def test_a_kind_that_cannot_be_claimed_gets_no_handler_and_no_job(queue, conn, kind):
    """One such name in a claim would stop the claims of all kinds."""
    if kind is not None:
        with pytest.raises(InvalidOption, match=r"^kind "):
            queue.handler(kind)(print)
    with pytest.raises(InvalidOption, match=r"^kind "):
        queue.enqueue(kind, {})
    with pytest.raises(InvalidOption, match=r"^kind "):
        queue.enqueue_many(kind, [{}])
    with pytest.raises(InvalidOption, match=r"^alias "):
        queue.handler("mail", aliases=["\0"])(print)
    assert count(conn) == 0


# -- on the caller's connection

MODES = ["autocommit", "block in autocommit", "implicit", "block", "savepoint", "pipeline"]


class Undone(Exception):
    """The caller's reason to roll back."""


@contextmanager
def caller(db: str, mode: str, *, commit: bool) -> Iterator[psycopg.Connection]:
    """A caller's connection in the middle of their transaction, which then ends in one way or the other."""
    with (
        nullcontext() if commit else pytest.raises(Undone),
        psycopg.connect(db, autocommit="autocommit" in mode) as conn,
        conn.transaction() if mode in {"block in autocommit", "block", "savepoint"} else nullcontext(),
        conn.transaction() if mode == "savepoint" else nullcontext(),
    ):
        with conn.pipeline() if mode == "pipeline" else nullcontext():
            conn.execute("INSERT INTO public.users VALUES ('ann')")
            yield conn
        if not commit:
            raise Undone


@pytest.mark.usefixtures("business")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
def test_the_job_shares_the_fate_of_the_callers_rows(queue, db, conn, mode, commit):
    """OR-01, OR-02: psycopg, sync."""
    with caller(db, mode, commit=commit) as own:
        assert queue.enqueue("mail", {"n": 1}, connection=own, key="a").created
        assert not queue.enqueue("mail", {"n": 1}, connection=own, key="a").created
        assert queue.enqueue_many("mail", [{"n": 2}, {"n": 3}], connection=own) == 2
        assert queue.enqueue_many("mail", [{"n": 4}, {"n": 4}], connection=own, key=lambda payload: "b") == 1
        status = own.info.transaction_status
        own.execute("INSERT INTO public.users VALUES ('bob')")
        if mode == "autocommit":
            assert status == TransactionStatus.IDLE
            assert count(conn) == 4
        else:
            assert status in {TransactionStatus.INTRANS, TransactionStatus.ACTIVE}
            assert count(conn) == 0
    kept = commit or mode == "autocommit"
    assert count(conn) == (4 if kept else 0)
    assert count(conn, "public.users") == (2 if kept else 0)


@pytest.mark.usefixtures("business")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
def test_the_job_shares_the_fate_of_the_callers_rows_in_async_code(queue, db, conn, mode, commit):
    """OR-02: psycopg, async."""

    async def work(own: psycopg.AsyncConnection) -> None:
        await own.execute("INSERT INTO public.users VALUES ('ann')")
        assert (await queue.enqueue_async("mail", {}, connection=own, key="a")).created
        assert not (await queue.enqueue_async("mail", {}, connection=own, key="a")).created
        assert await queue.enqueue_many_async("mail", [{}, {}], connection=own) == 2
        assert await queue.enqueue_many_async("mail", [{}, {}], connection=own, key=lambda payload: "b") == 1
        assert count(conn) == (4 if mode == "autocommit" else 0)

    async def play() -> None:
        async with await psycopg.AsyncConnection.connect(db, autocommit="autocommit" in mode) as own:
            if mode in {"block in autocommit", "block"}:
                async with own.transaction(force_rollback=not commit):
                    await work(own)
            elif mode == "savepoint":
                async with own.transaction(force_rollback=not commit), own.transaction():
                    await work(own)
            elif mode == "pipeline":
                async with own.pipeline():
                    await work(own)
            else:
                await work(own)
            if not commit:
                raise Undone

    with pytest.raises(Undone) if not commit else nullcontext():
        asyncio.run(play())
    kept = commit or mode == "autocommit"
    assert count(conn) == (4 if kept else 0)
    assert count(conn, "public.users") == (1 if kept else 0)


def test_a_savepoint_that_is_rolled_back_takes_its_job_along_and_no_other(queue, db, conn):
    """OR-01."""
    with psycopg.connect(db) as own:
        queue.enqueue("mail", {"n": 1}, connection=own)
        with own.transaction(force_rollback=True):
            queue.enqueue("mail", {"n": 2}, connection=own)
            queue.enqueue_many("mail", [{"n": 3}] * (CHUNK + 1), connection=own)
        with own.transaction():
            queue.enqueue("mail", {"n": 4}, connection=own)
    assert [row["payload"]["n"] for row in rows(conn)] == [1, 4]


def test_nothing_is_begun_or_ended_on_the_callers_connection(queue, db, server_log):
    """OR-02: what the server heard from that session, statement by statement."""
    with logged(db) as own:
        queue.enqueue("mail", {}, connection=own)
        queue.enqueue_many("mail", [{}, {}], connection=own)
        queue.enqueue_many("mail", [{}, {}], connection=own, key=lambda payload: "k")
        queue.cancel(1, connection=own)
        queue.requeue(Ended(ids=[1], statuses=("failed",)), connection=own)
        own.execute("BEGIN")
        queue.enqueue("mail", {}, connection=own)
        queue.enqueue_many("mail", [{}, {}], connection=own)
        queue.cancel(1, connection=own)
        queue.requeue(Ended(ids=[1], statuses=("failed",)), connection=own)
        assert own.info.transaction_status == TransactionStatus.INTRANS
        own.execute("COMMIT")
    said = verbs(server_log)
    begin, end = said.index("BEGIN"), said.index("COMMIT")
    assert {"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE"}.isdisjoint(said[:begin] + said[begin + 1 : end])
    assert end == len(said) - 1
    assert said.count("COPY") == 2


def test_a_batch_of_several_chunks_is_a_savepoint_of_the_callers_transaction(queue, db, server_log):
    """OR-02: all of it or none, and the transaction stays the caller's."""
    with logged(db) as own:
        own.execute("BEGIN")
        assert queue.enqueue_many("mail", ({"n": n} for n in range(CHUNK + 1)), connection=own) == CHUNK + 1
        own.execute("COMMIT")
    assert verbs(server_log) == ["BEGIN", "SAVEPOINT", "COPY", "COPY", "RELEASE", "COMMIT"]


def test_on_a_caller_that_commits_nothing_by_itself_a_batch_begins_as_any_statement_does(queue, db, conn):
    with psycopg.connect(db) as own:
        queue.enqueue_many("mail", ({"n": n} for n in range(CHUNK + 1)), connection=own)
        assert own.info.transaction_status == TransactionStatus.INTRANS
        assert count(conn) == 0
        own.rollback()
    assert count(conn) == 0


NAIVE = NOON.replace(tzinfo=None)
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("mail", {"payload": {"a": "x\0"}}, "payload.a holds a NUL"),
    ("mail", {"payload": {"a": float("nan")}}, "payload.a is nan"),
    ("mail", {"payload": {}, "run_at": NAIVE}, "run_at is the naive datetime"),
    ("mail", {"payload": {}, "expires_at": NAIVE}, "expires_at is the naive"),
    ("mail", {"payload": {}, "key": "\ud800"}, "key is "),
    ("mail", {"payload": {}, "dealy": 5}, "unknown option"),
    ("x" * 2000, {"payload": {}}, "kind is "),
    ("mail", {"payload": "x" * 5_000_000}, "payload is 5,000,002 bytes of JSON and the limit is 1,000,000"),
]


@pytest.mark.parametrize("bad", BAD, ids=[each[2] for each in BAD])
def test_what_is_refused_is_refused_before_any_sql_and_the_transaction_goes_on_pe_01(queue, db, conn, server_log, bad):
    """PE-01, PE-04, LN-04, CT-10: on the caller's connection."""
    kind, given, complaint = bad
    many = {name: value for name, value in given.items() if name not in {"payload", "key"}}
    if "key" in given:
        many["key"] = lambda payload: given["key"]
    with logged(db) as own:
        own.execute("BEGIN")
        with pytest.raises((InvalidPayload, InvalidOption), match=f"^{complaint}"):
            queue.enqueue(kind, **given, connection=own)
        with pytest.raises((InvalidPayload, InvalidOption), match=rf"^(payloads\[\d\]: )?{complaint}"):
            queue.enqueue_many(kind, [{}, given["payload"]], **many, connection=own)
        assert queue.enqueue("mail", {}, connection=own).created
        own.execute("COMMIT")
    assert verbs(server_log) == ["BEGIN", "INSERT", "COMMIT"]
    assert count(conn) == 1


def test_what_is_refused_begins_no_transaction(queue, db):
    with psycopg.connect(db) as own:
        with pytest.raises(InvalidPayload):
            queue.enqueue("mail", {"at": NOON}, connection=own)
        with pytest.raises(InvalidPayload):
            queue.enqueue_many("mail", [{}, {"at": NOON}], connection=own)
        assert own.info.transaction_status == TransactionStatus.IDLE


def test_a_connection_of_another_sort_is_refused_with_the_remedy(queue, db, conn):
    class FromElsewhere:
        """As asyncpg's: awaits everything, and has an execute."""

        async def execute(self, query: str, *args: Any) -> str:
            return "INSERT 0 1"

    async def play() -> None:
        async with await psycopg.AsyncConnection.connect(db) as other:
            for call in (
                lambda: queue.enqueue("mail", {}, connection=other),
                lambda: queue.enqueue_many("mail", [{}], connection=other),
            ):
                with pytest.raises(TypeError, match=r"psycopg\.AsyncConnection, which is async: use enqueue\w*_async$"):
                    call()
        for call in (
            queue.enqueue_async("mail", {}, connection=conn),
            queue.enqueue_many_async("mail", [{}], connection=conn),
        ):
            with pytest.raises(TypeError, match=r"psycopg\.Connection, which is sync: use enqueue(_many)?$"):
                await call

    asyncio.run(play())
    for odd in (conn.cursor(), FromElsewhere(), db, object()):
        name = type(odd).__qualname__
        with pytest.raises(TypeError, match=rf"{re.escape(name)}, which is no connection: (pass|a connection string)"):
            queue.enqueue("mail", {}, connection=odd)
    assert count(conn) == 0


def test_a_wrong_connection_is_told_before_a_wrong_payload(queue, conn):
    with pytest.raises(TypeError):
        queue.enqueue("mail", {"at": NOON}, connection=conn.cursor())


def test_a_database_without_redrive_is_the_drivers_error_with_a_note(empty_db):
    queue = Queue(empty_db)
    with psycopg.connect(empty_db, autocommit=True) as own:
        for call in (
            lambda: queue.enqueue("mail", {}),
            lambda: queue.enqueue("mail", {}, connection=own),
            lambda: queue.enqueue_many("mail", [{}]),
            lambda: queue.enqueue_many("mail", [{}], connection=own, key=lambda payload: "k"),
            lambda: asyncio.run(queue.enqueue_async("mail", {})),
            lambda: asyncio.run(queue.enqueue_many_async("mail", [{}])),
            lambda: queue.get(1),
        ):
            with pytest.raises(
                (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName), match=r'"redrive.* does not exist'
            ) as caught:
                call()
            assert "run `redrive migrate`" in caught.value.__notes__[0]
    queue.close()


def test_a_job_is_seen_by_a_hungry_worker_only_with_the_rows_it_needs_or_01(queue, db, conn, business, start_worker):
    """OR-01: never before the commit, and never at all without one."""
    conn.execute("CREATE TABLE public.seen (name text, found boolean)")
    worker = start_worker(
        """
        import os, psycopg
        from redrive import Queue
        queue = Queue()

        @queue.handler("welcome")
        def welcome(payload):
            with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
                conn.execute("INSERT INTO public.seen SELECT %(name)s, EXISTS (SELECT FROM public.users"
                             " WHERE name = %(name)s)", payload)
        """,
        "--poll",
        "0.1",
    )
    support.wait_for(lambda: "started" in worker.log())
    for name, commit in (("ann", True), ("bob", False), ("carl", True)):
        with psycopg.connect(db) as own:
            own.execute("INSERT INTO public.users VALUES (%s)", (name,))
            queue.enqueue("welcome", {"name": name}, connection=own)
            own.execute("SELECT pg_sleep(0.7)")
            if not commit:
                own.rollback()
    support.wait_for(lambda: count(conn, "public.seen") == 2)
    assert worker.stop() == 0
    seen = conn.execute("SELECT name, found FROM public.seen ORDER BY name").fetchall()
    assert seen == [("ann", True), ("carl", True)]


# -- keys


def test_a_second_enqueue_of_a_key_answers_with_the_first_job_un_01(queue, db, conn, business, server_log):
    """UN-01: in one business transaction, which commits; no error anywhere."""
    with psycopg.connect(db) as own:
        own.execute("INSERT INTO public.users VALUES ('ann')")
        first = queue.enqueue("welcome", {"n": 1}, connection=own, key="welcome:ann")
        again = queue.enqueue("welcome", {"n": 2}, connection=own, key="welcome:ann")
        own.execute("INSERT INTO public.users VALUES ('bob')")
    assert (first.created, again.created, again.id) == (True, False, first.id)
    assert count(conn, "public.users") == 2
    assert [row["payload"] for row in rows(conn)] == [{"n": 1}]
    assert server_log.errors() == []


def test_callers_that_race_for_a_key_all_get_the_one_job(queue, conn, server_log):
    """UN-01: 8 threads, 50 rounds."""
    start = threading.Barrier(8)

    def race(_: int) -> list[Enqueued]:
        answers = []
        for turn in range(50):
            start.wait(20)
            answers.append(queue.enqueue("mail", {}, key=f"k{turn}"))
        return answers

    with ThreadPoolExecutor(8) as threads:
        rounds = list(zip(*threads.map(race, range(8)), strict=True))
    assert [sum(each.created for each in answers) for answers in rounds] == [1] * 50
    assert [len({each.id for each in answers}) for answers in rounds] == [1] * 50
    assert count(conn) == 50
    assert server_log.errors() == []


def test_callers_that_wait_for_anothers_commit_get_its_job_or_make_their_own(queue, db, conn):
    """A rival's row that is not yet committed is waited for; the answer is right whichever way it ends."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    for commit in (True, False):
        with psycopg.connect(db) as rival, ThreadPoolExecutor(1) as thread:
            theirs = queue.enqueue("mail", {}, connection=rival, key=f"k{commit}")
            ours = thread.submit(queue.enqueue, "mail", {}, key=f"k{commit}")
            support.wait_for(lambda: conn.execute(waiting).fetchone()[0])
            if commit:
                rival.commit()
            else:
                rival.rollback()
            answer = ours.result(10)
        assert answer.created is not commit
        assert (answer.id == theirs.id) is commit


def test_races_in_bulk_make_one_job_a_key(queue, conn, server_log):
    def race(_: int) -> int:
        start.wait(20)
        return sum(queue.enqueue_many("mail", range(40), key=lambda n, t=turn: f"{t}:{n % 20}") for turn in range(10))

    start = threading.Barrier(4)
    with ThreadPoolExecutor(4) as threads:
        made = sum(threads.map(race, range(4)))
    assert made == count(conn) == 200
    assert server_log.errors() == []


def test_a_key_is_free_again_after_success_death_and_cancel_un_04(queue, conn):
    """UN-04: with real outcomes; nothing else remembers a key."""

    @queue.handler("mail", max_attempts=1)
    def mail(payload):
        if payload == "dies":
            raise ValueError(payload)

    for fate in ("succeeds", "dies", "is cancelled"):
        first = queue.enqueue("mail", fate, key="k")
        assert first.created
        assert not queue.enqueue("mail", fate, key="k").created
        if fate == "is cancelled":
            queue.cancel(key="k")
        else:
            queue.run(once=True, poll=0.1)
        assert queue.get(first.id).status == {"succeeds": "succeeded", "dies": "dead"}.get(fate, "failed")
    assert queue.enqueue("mail", "next", key="k").created


def test_in_repeatable_read_a_key_taken_since_the_snapshot_is_a_serialization_failure(queue, db):
    """As Postgres has it, and documented: try the whole transaction again."""
    with psycopg.connect(db) as own:
        own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        own.execute("SELECT 1 FROM redrive.jobs")
        first = queue.enqueue("mail", {}, key="k")
        with pytest.raises(psycopg.errors.SerializationFailure):
            queue.enqueue("mail", {}, connection=own, key="k")
        own.rollback()
        again = queue.enqueue("mail", {}, connection=own, key="k")
        assert (again.id, again.created) == (first.id, False)


# -- many


def test_lists_generators_and_nothing(queue, conn):
    assert queue.enqueue_many("mail", [{"n": 0}]) == 1
    assert queue.enqueue_many("mail", ({"n": n} for n in range(1, 4))) == 3
    assert queue.enqueue_many("mail", iter([])) == 0
    assert [row["payload"]["n"] for row in rows(conn)] == [0, 1, 2, 3]


def test_twelve_thousand_payloads_in_their_order(queue, conn):
    assert queue.enqueue_many("mail", ({"n": n} for n in range(12_000)), lane="bulk", priority=9) == 12_000
    [[jobs, ordered, same]] = conn.execute(
        "SELECT count(*), bool_and((payload->>'n')::int = id - 1), bool_and(lane = 'bulk' AND priority = 9)"
        " FROM redrive.jobs"
    )
    assert (jobs, ordered, same) == (12_000, True, True)


def test_twelve_thousand_with_keys_of_which_some_live(queue, conn):
    """MG-02: duplicates in the batch, across chunks and against the table make no job and burn no id."""
    queue.enqueue("mail", "k0", key="k0")
    made = queue.enqueue_many("mail", (f"k{n % 7000}" for n in range(12_000)), key=lambda payload: payload)
    assert made == 6999
    assert queue.enqueue_many("mail", ["k1", "k2", "new"], key=lambda payload: payload) == 1
    assert queue.enqueue("mail", "last").id == count(conn) == 7002


@pytest.mark.parametrize("place", [0, 7, CHUNK + 7, 2 * CHUNK + 7])
@pytest.mark.parametrize("keyed", [False, True])
def test_a_bad_payload_is_named_by_its_place_and_nothing_is_written(queue, db, conn, place, keyed):
    def payloads() -> Iterator[Any]:
        for n in range(2 * CHUNK + 10):
            yield {"n": n} if n != place else {"user": {"name": ["a", "b\0"]}}

    def key(payload: Any) -> str:
        return str(payload.get("n"))

    complaint = rf"^payloads\[{place}\]: payload\.user\.name\[1\] holds a NUL"
    more = {"key": key} if keyed else {}
    with pytest.raises(InvalidPayload, match=complaint):
        queue.enqueue_many("mail", payloads(), **more)
    with pytest.raises(InvalidPayload, match=complaint):
        asyncio.run(queue.enqueue_many_async("mail", payloads(), **more))
    assert count(conn) == 0
    with psycopg.connect(db) as own:
        own.execute("CREATE TABLE public.kept (n int)")
        with pytest.raises(InvalidPayload, match=complaint):
            queue.enqueue_many("mail", payloads(), connection=own, **more)
        queue.enqueue("mail", {"n": "after"}, connection=own)
    assert [row["payload"] for row in rows(conn)] == [{"n": "after"}]
    assert count(conn, "public.kept") == 0


def test_what_is_not_many_is_refused(queue):
    for odd, name in (({"to": "ann"}, "dict"), ("text", "str"), (b"bytes", "bytes")):
        with pytest.raises(InvalidOption, match=f"^payloads is a {name}: give a list or an iterator of payloads$"):
            queue.enqueue_many("mail", odd)
    with pytest.raises(InvalidOption, match=r"^key is 'k': for many jobs give a function"):
        queue.enqueue_many("mail", [{}], key="k")


def test_the_options_of_a_batch_apply_to_each_of_its_jobs(queue, conn):
    queue.enqueue_many("mail", [1, 2], delay=60, expires_in=3600, metadata={"trace": "x"}, lane="eu", max_attempts=2)
    for row in rows(conn):
        assert timedelta(seconds=58) < row["run_at"] - datetime.now(UTC) <= timedelta(seconds=60)
        assert timedelta(seconds=3540) <= row["expires_at"] - row["run_at"] <= timedelta(seconds=3540.1)
        assert (row["metadata"], row["lane"], row["max_attempts"]) == ({"trace": "x"}, "eu", 2)


# -- time


def test_a_delay_counts_from_the_statement_by_the_databases_clock_ct_11(queue, db, conn):
    """CT-11: not from the begin of a long transaction."""
    with psycopg.connect(db) as own:
        own.execute("SELECT 1")
        begin = own.execute("SELECT now()").fetchone()[0]
        own.execute("SELECT pg_sleep(0.3)")
        queue.enqueue("mail", {}, connection=own, delay=5)
        queue.enqueue("mail", {}, connection=own, delay=timedelta(seconds=5), expires_in=9)
        queue.enqueue_many("mail", [{}], connection=own, delay=5)
        after = own.execute("SELECT statement_timestamp()").fetchone()[0]
    for row in rows(conn):
        assert begin + timedelta(seconds=5.3) <= row["run_at"] <= after + timedelta(seconds=5)


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5, minutes=45)), timezone(-timedelta(hours=11))])
def test_an_aware_time_is_stored_to_the_microsecond_whatever_its_zone_ct_10(queue, conn, zone):
    """CT-10."""
    at = datetime(2031, 3, 4, 5, 6, 7, 123456, tzinfo=zone)
    queue.enqueue("mail", {}, run_at=at, expires_at=at + timedelta(microseconds=1))
    queue.enqueue_many("mail", [{}], run_at=at, expires_at=at + timedelta(microseconds=1))
    conn.execute("SET timezone = 'Pacific/Auckland'")
    for row in rows(conn):
        assert (row["run_at"], row["expires_at"]) == (at, at + timedelta(microseconds=1))


# -- payloads


@dataclass
class Welcome:
    to: str
    at: datetime


PAYLOADS: list[Any] = [
    {},
    [],
    "",
    "text",
    0,
    -1,
    2**63,
    -(2**70),
    0.1,
    1e15,
    -0.0,
    1.0,
    True,
    False,
    [None, [[]], {"a": None}],
    {"": "empty key", "ключ": "é\u2028\U0001f4e8", "\\": "\\u0000 in text", "tab\t": "\n\r\b\f"},
    {"1": "a", "01": "b"},
    {"nested": [{"deep": [1, 2.5, "x"]}]},
    "\x7f\x01\x1f",
    "x" * 900_000,
    float("nan"),
    float("inf"),
    {"a": ["\0"]},
    {1: "int key"},
    (1, 2),
    [(1, 2)],
    {1, 2},
    b"bytes",
    datetime(2030, 1, 1, tzinfo=UTC),
    Decimal("1.10"),
    UUID(int=7),
    "\ud800",
    1e23,
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: repr(payload)[:30])
def test_a_payload_comes_back_equal_or_is_refused(queue, conn, payload):
    """PE-07: by every road, never silently another."""
    roads: list[Callable[[], Any]] = [
        lambda: queue.enqueue("mail", payload),
        lambda: queue.enqueue_many("mail", [payload]),
        lambda: queue.enqueue_many("mail", [payload], key=lambda _: "k"),
        lambda: asyncio.run(queue.enqueue_async("mail", payload)),
    ]
    refused = 0
    for road in roads:
        try:
            road()
        except InvalidPayload as error:
            refused += 1
            assert "payload" in str(error)  # noqa: PT017 - either will do, silence won't
    assert refused in {0, len(roads)}
    found = [row["payload"] for row in rows(conn)]
    assert found == [payload] * (len(roads) - refused)
    assert all(type(each) is type(payload) for each in found)


def test_a_typed_payload_is_written_as_its_handler_reads_it(queue, conn):
    got = []

    @queue.handler("welcome")
    def welcome(payload: Welcome) -> None:
        got.append(payload)

    sent = Welcome("ann", NOON)
    welcome.enqueue(sent)
    queue.enqueue_many("welcome", [sent])
    queue.run(once=True, poll=0.1)
    assert got == [sent, sent]


def test_a_wide_payload_wakes_a_sleeper_like_any_other_ln_04(queue, db, conn):
    """LN-04: the notification is empty whatever the job holds."""
    with psycopg.connect(db, autocommit=True) as sentry:
        sentry.execute("SELECT pg_advisory_lock(%s)", (lock_key("redrive"),))
        sentry.execute(f"LISTEN {channel('redrive')}")
        queue.enqueue("\U0001f600" * 200, {"text": "é" * 400_000})
        [heard] = sentry.notifies(timeout=5, stop_after=1)
        assert heard.payload == ""


# -- operators and workers


def test_cancel_and_requeue_go_through_batches_of_any_size(queue, conn):
    queue.enqueue_many("mail", range(2500))
    found = queue.cancel(kind="mail", reason="no longer wanted")
    assert set(found.values()) == {"pending"}
    assert len(found) == 2500
    told: list[int] = []
    moved = queue.requeue(Ended(statuses=("failed",)), on_batch=told.append)
    assert len(moved) == len(set(moved)) == sum(told) == 2500
    assert len(told) == 3
    assert queue.requeue(Ended(statuses=("failed",))) == []


def test_cancel_and_requeue_ride_the_callers_transaction_or_02(queue, db):
    """OR-02."""
    first = queue.enqueue("mail").id
    with psycopg.connect(db) as own:
        assert queue.cancel(first, connection=own) == {first: "pending"}
        assert queue.get(first).status == "pending"
        own.rollback()
    assert queue.get(first).status == "pending"
    queue.cancel(first)
    with psycopg.connect(db) as own:
        assert queue.requeue(Ended(ids=[first], statuses=("failed",)), connection=own) == [first]
        own.rollback()
    assert queue.get(first).status == "failed"


def test_cancel_without_saying_what_is_refused(queue):
    with pytest.raises(InvalidOption, match="say which jobs"):
        queue.cancel()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"priority": 10}, "priority is 10"),
        ({"max_attempts": 0}, "max_attempts is 0"),
        ({"backoff": 5}, "backoff is 5: give a callable"),
        ({"timeout": 0}, "timeout is 0 s"),
        ({"retry_on": ["x"]}, "retry_on is "),
        ({"dead_on": int}, "dead_on is <class 'int'>"),
    ],
)
def test_a_handlers_option_that_makes_no_sense_is_refused_where_it_is_written(options, complaint):
    with pytest.raises(InvalidOption, match=f"^{complaint}"):
        Queue().handler("mail", **options)(print)


def test_a_kind_has_one_handler():
    queue = Queue()

    @queue.handler()
    def mail(payload):
        return payload

    assert mail("x") == "x"
    assert mail.kind == "mail"
    with pytest.raises(InvalidOption, match=r"kind 'mail' already has a handler, .*mail: give each function a kind"):
        queue.handler("mail")(print)
    with pytest.raises(InvalidOption, match=r"kind 'mail' already has a handler"):
        queue.handler("other", aliases=["mail"])(print)


def test_a_worker_takes_the_queues_settings_and_its_own_over_them(db):
    queue = Queue(db, concurrency=3, lease=9)
    with pytest.raises(InvalidOption, match=r"no handlers: decorate a function"):
        queue.worker()
    queue.handler("mail")(lambda payload: None)
    worker = queue.worker(concurrency=4)
    assert (worker.settings.concurrency, worker.settings.lease) == (4, 9.0)
    with pytest.raises(InvalidOption, match="did you mean 'concurrency'"):
        queue.worker(concurency=4)
