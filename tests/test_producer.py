"""Due jobs are claimed once, no more than there is room for, and no odd row hides the others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, ClassVar

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from redrive import Queue, claims
from redrive.connections import Control
from redrive.job import Holder
from redrive.lanes import NEVER, PAGE, STRIKES, Lanes
from redrive.listener import NoListener
from redrive.migrate import migrate
from redrive.mislaid import AGAIN_AFTER, Mislaid
from redrive.producer import BACKLOG_MOST, Producer
from redrive.service import Database
from redrive.slots import Slots
from redrive.statements import named, run
from support_engine import due_now, plain_insert, row, rows

WORKER = "here:1:abcdef"


class Rig:
    """A producer without its worker: nothing runs, what was claimed waits in the slots."""

    def __init__(self, db: str, kinds: list[str], concurrency: int) -> None:
        queue = Queue(db)
        for kind in kinds:
            queue.handler(kind)(lambda: None)
        self.claim, self.ears = Control(db, "redrive", "test"), Control(db, "redrive", "ears")
        database = Database(WORKER)
        self.slots = Slots(queue.handlers, concurrency, lambda _finished: None)
        self.alive = True
        self.backlog = 0
        self.producer = Producer(
            database,
            self.claim,
            self.slots,
            NoListener(database, self.ears, self.claim, WORKER),
            holder=Holder(WORKER, "redrive"),
            kinds=kinds,
            poll=5.0,
            mislaid=Mislaid(self.claim, Holder(WORKER, "redrive"), self.slots.held),
            alive=lambda: self.alive,
            backlog=lambda: self.backlog,
        )

    async def take(self, rounds: int = 1) -> list[Any]:
        """Let it turn and take what it has claimed."""
        for _ in range(rounds):
            await self.producer.tick()
        return self.slots.take_unstarted()

    async def wait(self, seconds: float) -> list[Any]:
        """Let it turn, with its own pauses, until it has claimed something."""
        async with asyncio.timeout(seconds):
            while not (jobs := self.slots.take_unstarted()):  # noqa: ASYNC110 - its pauses are what is looked at
                await asyncio.sleep(await self.producer.tick())
        return jobs


@contextlib.asynccontextmanager
async def rig(db: str, *kinds: str, concurrency: int = 100) -> AsyncIterator[Rig]:
    held = Rig(db, list(kinds) or ["k"], concurrency)
    try:
        yield held
    finally:
        held.claim.drop()
        held.ears.drop()
        await held.slots.close()


def taken(db: str, *kinds: str, concurrency: int = 100, rounds: int = 1) -> list[Any]:
    async def scenario() -> list[Any]:
        async with rig(db, *kinds, concurrency=concurrency) as held:
            return await held.take(rounds)

    return asyncio.run(scenario())


class TestClaim:
    def test_a_claim_is_a_lease_and_an_attempt(self, db, conn):
        job_id = plain_insert(conn, "k", '{"a": 1}', attempts=2, claims=7)
        [job] = taken(db)
        found = row(conn, job_id)
        assert (found.status, found.attempts, found.claims, found.locked_by) == ("running", 3, 8, WORKER)
        assert found.locked_at == found.updated_at
        assert (job.id, job.kind, job.payload, job.attempt, job.claim) == (job_id, "k", {"a": 1}, 3, 8)
        assert (job.max_attempts, job.priority, job.lane, job.expired, job.alone) == (5, 5, "", False, False)

    def test_no_more_is_claimed_than_there_is_room_for(self, db, conn):
        """CL-01, CL-09."""
        for _ in range(20):
            plain_insert(conn, "k")
        assert len(taken(db, concurrency=3)) == 3
        assert rows(conn, "select count(*) as n from redrive.jobs where status = 'running'") == [{"n": 3}]

    def test_what_is_not_due_not_pending_or_not_known_is_left_alone(self, db, conn):
        """SD-04."""
        plain_insert(conn, "k", run_at="2999-01-01")
        plain_insert(conn, "unknown")
        for status in ("running", "succeeded", "failed", "dead"):
            plain_insert(conn, "k", status=status)
        before = rows(conn, "select xmin::text, * from redrive.jobs order by id")
        assert taken(db, rounds=5) == []
        assert rows(conn, "select xmin::text, * from redrive.jobs order by id") == before

    def test_jobs_are_handed_to_the_slots_by_priority_then_age_then_id(self, db, conn):
        for priority, age in itertools.product((9, 0, 5), (1, 3, 2)):
            plain_insert(conn, "k", priority=priority, run_at=datetime.now(UTC) - timedelta(seconds=10 * age))
        jobs = taken(db, rounds=2)
        order = [(job.priority, job.run_at, job.id) for job in jobs]
        assert order == sorted(order)
        assert len(order) == 9

    def test_a_job_that_may_have_killed_its_worker_is_claimed_alone(self, db, conn):
        suspects = [plain_insert(conn, "k", alone=True) for _ in range(2)]
        plain = plain_insert(conn, "k")

        async def scenario() -> None:
            async with rig(db, "k") as held:
                first = await held.take()
                assert [(job.id, job.alone) for job in first] == [(suspects[0], True)]
                others = await held.take(rounds=4)
                assert plain in [job.id for job in others]

        asyncio.run(scenario())

    def test_nothing_is_taken_while_too_many_outcomes_wait_to_be_written(self, db, conn):
        """All of them would run again after a crash."""
        plain_insert(conn, "k")

        async def scenario() -> None:
            async with rig(db) as held:
                held.backlog = BACKLOG_MOST
                assert await held.take(3) == []
                held.backlog -= 1
                assert len(await held.take()) == 1

        asyncio.run(scenario())

    def test_suspects_follow_each_other_without_a_look_in_between(self, db, conn):
        suspects = [plain_insert(conn, "k", alone=True) for _ in range(5)]

        async def scenario() -> None:
            async with rig(db, "k") as held:
                found = [[job.id for job in await held.take(rounds=3)] for _ in suspects]
                assert found == [[job_id] for job_id in suspects]

        asyncio.run(scenario())

    def test_a_worker_whose_heartbeat_gets_no_answer_takes_nothing(self, db, conn):
        plain_insert(conn, "k")

        async def scenario() -> None:
            async with rig(db) as held:
                held.alive = False
                assert await held.take(3) == []
                held.alive = True
                assert len(await held.take()) == 1

        asyncio.run(scenario())

    def test_without_room_it_asks_nothing_and_a_freed_slot_wakes_it(self, db, conn):
        for _ in range(3):
            plain_insert(conn, "k")

        async def scenario() -> None:
            async with rig(db, concurrency=1) as held:
                await held.producer.tick()
                assert held.slots.room() == 0
                assert await held.producer.tick() > 1
                held.producer._wake.clear()
                assert len(held.slots.take_unstarted()) == 1
                held.slots.on_free()
                async with asyncio.timeout(10):
                    await held.producer._wake.wait()

        asyncio.run(scenario())

    def test_what_was_claimed_before_a_silence_and_is_known_only_after_it_is_not_begun(self, db, conn):
        """Others may have taken it: found by chaos. What is still ours is given back, and its try with it."""
        job_id = plain_insert(conn, "k", attempts=2)

        async def scenario() -> None:
            async with rig(db) as held:
                ask = held.claim.run

                async def late(statement: Any, **more: Any) -> Any:
                    found = await ask(statement, **more)
                    if b"UPDATE" in statement.sql:
                        held.producer.breaks += 1
                    return found

                held.claim.run = late
                await held.producer.tick()
                assert row(conn, job_id).status == "running"
                assert not held.slots.in_flight
                held.claim.run = ask
                [job] = await held.take(2)
                assert (job.id, job.attempt) == (job_id, 3)

        asyncio.run(scenario())

    def test_a_claim_whose_answer_was_lost_is_given_back_at_the_next_turn(self, db, conn):
        """CN-04: the row says running and nobody has it in hand."""
        job_id = plain_insert(conn, "k", attempts=2)

        async def scenario() -> None:
            async with rig(db) as held:
                ask = held.claim.run

                async def deaf(statement: Any, **more: Any) -> Any:
                    found = await ask(statement, **more)
                    if b"UPDATE" in statement.sql:
                        raise TimeoutError
                    return found

                held.claim.run = deaf
                with pytest.raises(TimeoutError):
                    await held.producer.tick()
                assert row(conn, job_id).status == "running"
                held.claim.run = ask
                [job] = await held.take(2)
                assert (job.id, job.attempt) == (job_id, 3)
                # It may yet be committed by a server that was slow: looked at again, and then no more.
                looks = 0
                while held.producer.mislaid._looks:
                    held.producer.mislaid._looks[-1], looks = 0.0, looks + 1
                    await held.producer.mislaid.hand_back()
                assert looks == len(AGAIN_AFTER)

        asyncio.run(scenario())

    def test_the_claim_takes_no_more_than_its_limit_under_any_plan(self, db, conn):
        """CL-01: on a small table, analysed before it grew, with every kind of join and scan forbidden in turn."""
        plain_insert(conn, "k")
        conn.execute("vacuum analyze redrive.jobs")
        knobs = (
            "hashjoin",
            "mergejoin",
            "nestloop",
            "material",
            "hashagg",
            "sort",
            "indexscan",
            "bitmapscan",
            "seqscan",
        )
        for count, off in enumerate([(), *((knob,) for knob in knobs), *itertools.combinations(knobs, 2)]):
            conn.execute("update redrive.jobs set status = 'pending', locked_by = null")
            for _ in range(10 if count == 0 else 0):
                plain_insert(conn, "k")
            with psycopg.connect(db, autocommit=True) as other:
                for knob in off:
                    other.execute(f"set enable_{knob} = off")
                params = Lanes(["k"]).plan(1, lambda _kind: 1, 0.0).params()
                claim = named("claim_jobs", "redrive", worker=WORKER, **params | {"quotas": [5], "limit": 2})
                assert len(run(other, claim)) == 2, off
            assert rows(conn, "select count(*) as n from redrive.jobs where status = 'running'") == [{"n": 2}], off

    def test_many_claimers_at_once_take_each_job_once(self, db, conn):
        """CL-02: the lock and the change of state are one statement."""
        conn.execute("insert into redrive.jobs (kind) select 'k' from generate_series(1, 2000)")
        got: list[int] = []
        lock = threading.Lock()

        def claimer() -> None:
            async def scenario() -> None:
                async with rig(db, concurrency=50) as held:
                    vain = 0
                    while vain < 3:
                        jobs = await held.take()
                        vain = 0 if jobs else vain + 1
                        with lock:
                            got.extend(job.id for job in jobs)

            asyncio.run(scenario())

        threads = [threading.Thread(target=claimer) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) == len(set(got)) == 2000

    @pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
    def test_the_databases_default_isolation_makes_no_difference(self, db, conn, server_log, level):
        """CL-05."""
        conn.execute(f"alter database {conn.info.dbname} set default_transaction_isolation = '{level}'")
        conn.execute("insert into redrive.jobs (kind) select 'k' from generate_series(1, 500)")

        async def scenario() -> Counter[int]:
            async def one() -> list[Any]:
                async with rig(db, concurrency=7) as held:
                    return [job.id for _ in range(40) for job in await held.take()]

            return Counter(itertools.chain(*await asyncio.gather(*(one() for _ in range(4)))))

        assert set(asyncio.run(scenario()).values()) == {1}
        assert server_log.errors() == []


class TestOddRows:
    """What a stranger may write into the table hides no other job (CN-07)."""

    ODD: ClassVar[dict[str, dict[str, Any]]] = {
        "before all time": {"run_at": "-infinity"},
        "before Python's time": {"run_at": "4000-01-01 BC"},
        "before all time, with an id by hand": {"run_at": "-infinity", "id": -7},
        "made before all time": {"created_at": "-infinity"},
        "made after all time": {"created_at": "infinity"},
        "attempts below nothing": {"attempts": -(2**31)},
        "attempts at the limit": {"attempts": 2**31 - 1, "max_attempts": 2**31 - 1},
        "claims at the limit": {"claims": 2**31 - 1},
        "no attempts allowed": {"max_attempts": 0},
        "fewer than no attempts allowed": {"max_attempts": -1},
        "a kind of nothing but blanks in its lane": {"lane": "  \t\n "},
        "a lane with quotes and braces": {"lane": "{\"a\",'b',\\}NULL"},
        "a deadline before all time": {"expires_at": "-infinity"},
        "a deadline after all time": {"expires_at": "infinity"},
        "locked though pending": {"locked_by": "somebody", "locked_at": "infinity"},
        "metadata that is a scalar": {"metadata": "7"},
    }

    @pytest.mark.parametrize("odd", ODD)
    def test_a_row_with(self, db, conn, odd):
        """CN-07: it is claimed, to end in plain sight, and so are the other twenty."""
        odd_id = plain_insert(conn, "k", **self.ODD[odd])
        others = [plain_insert(conn, "k") for _ in range(20)]
        jobs = taken(db, rounds=4)
        assert sorted(job.id for job in jobs) == sorted([odd_id, *others])

    @pytest.mark.parametrize("run_at", ["infinity", "294000-01-01"])
    def test_a_row_parked_for_ever_stays_and_hides_nothing(self, db, conn, run_at):
        """CN-07: people park a job by run_at = 'infinity'."""
        parked = plain_insert(conn, "k", run_at=run_at)
        others = [plain_insert(conn, "k") for _ in range(20)]
        assert sorted(job.id for job in taken(db, rounds=4)) == others
        assert row_status(conn, parked) == "pending"

    @pytest.mark.parametrize(
        "payload",
        ["1", "null", '"text"', "9" * 5000, "1e400", "[" * 600 + "]" * 600, '{"\\ud83d\\ude00": "\\u0001"}'],
        ids=["number", "null", "text", "5000 digits", "beyond floats", "600 deep", "control characters"],
    )
    def test_a_row_whose_payload_is(self, db, conn, payload):
        """CN-07: the claim does not read it, so it can't fail for it."""
        odd_id = plain_insert(conn, "k", payload)
        others = [plain_insert(conn, "k") for _ in range(20)]
        assert sorted(job.id for job in taken(db, rounds=4)) == sorted([odd_id, *others])


def row_status(conn: psycopg.Connection, job_id: int) -> str:
    return conn.execute("select status::text from redrive.jobs where id = %s", [job_id]).fetchone()[0]


class TestSurvey:
    """Which lanes hold what, by one probe a lane."""

    def survey(self, db: str, *kinds: str) -> dict[tuple[str, int, str], float]:
        lanes, more = Lanes(kinds), True
        with psycopg.connect(db) as conn:
            while more:
                *found, last = run(conn, claims.survey("redrive", **lanes.look()))
                assert len({(one.kind, one.priority, one.lane) for one in found}) == len(found), "each lane once"
                more = lanes.surveyed([*found, last], 0.0, 0.0).more
        return {
            (one.kind, one.priority, one.lane): (one.run_at - last.run_at) / 1e6 if one.run_at < NEVER else float("inf")
            for one in found
        }

    def test_a_job_behind_the_mark_of_its_lane_and_lanes_between_known_ones_are_told_apart(self, db, conn):
        """While looks from the heads are dear: a known lane from its mark on, an unknown one wherever it lies."""
        lanes = Lanes(["k"])
        for _ in range(STRIKES):
            lanes.surveyed(
                [
                    SimpleNamespace(
                        run_at=0, suspects=False, limited=[], pauses=[], by_running=[], breakers=None, batches=False
                    )
                ],
                10.0,
                0.0,
            )
        assert not lanes.heads_are_cheap
        look = lanes.look() | {"starts": ["2020-01-01"], "start_ids": [0]}
        plain_insert(conn, "k", run_at="2019-12-31")
        for priority, lane in ((4, "x"), (5, "a"), (5, "b"), (6, "")):
            plain_insert(conn, "k", lane=lane, priority=priority, run_at="2019-12-31")
        found = {(one.priority, one.lane) for one in run(conn, claims.survey("redrive", **look))}
        assert found == {(4, "x"), (5, "a"), (5, "b"), (6, ""), (None, None)}
        plain_insert(conn, "k", run_at="2020-01-01")
        assert (5, "") in {(one.priority, one.lane) for one in run(conn, claims.survey("redrive", **look))}

    def test_each_lane_is_listed_once_with_the_time_until_its_first_job(self, db, conn):
        for lane, seconds in (("", 50), ("", 5), ("x", -5), ("x", 500)):
            conn.execute(
                "insert into redrive.jobs (kind, lane, run_at) values ('k', %s, now() + make_interval(secs => %s))",
                [lane, seconds],
            )
        plain_insert(conn, "k", priority=0, run_at="infinity")
        plain_insert(conn, "other")
        plain_insert(conn, "k", lane="done", status="succeeded")
        found = self.survey(db, "k", "none")
        assert set(found) == {("k", 5, ""), ("k", 5, "x"), ("k", 0, "")}
        assert 0 < found["k", 5, ""] <= 5
        assert found["k", 5, "x"] < 0
        assert found["k", 0, ""] == float("inf")

    @pytest.mark.parametrize("lanes", [PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 7])
    def test_however_many_lanes_there_are_each_is_found(self, db, conn, lanes, monkeypatch):
        """A tenant a lane: all of the first pages may hold nothing but delayed jobs."""
        monkeypatch.setattr("redrive.producer.SURVEY_MOST", 60.0)  # all in the first look, on a slow machine too
        conn.execute(
            "insert into redrive.jobs (kind, lane, run_at) "
            "select k, 'tenant ' || n, now() + interval '1 d' from generate_series(1, %s) n, unnest('{a,b}'::text[]) k",
            [lanes],
        )
        plain_insert(conn, "b", lane="zzz")
        plain_insert(conn, "c", priority=9)
        assert len(self.survey(db, "a", "b", "c")) == 2 * lanes + 2
        assert {job.kind for job in taken(db, "a", "b", "c")} == {"b", "c"}

    def test_more_kinds_than_a_page_has_rows(self, db, conn):
        kinds = [f"k{n}" for n in range(PAGE + 50)]
        conn.execute("insert into redrive.jobs (kind) select unnest(%s::text[])", [kinds])
        assert len(self.survey(db, *kinds)) == len(kinds)

    def test_a_job_delayed_for_a_moment_is_claimed_when_it_is_due(self, db, conn):
        """The pause ends with the delay and not with the poll."""
        conn.execute("insert into redrive.jobs (kind, run_at) values ('k', now() + interval '0.8 s')")

        async def scenario() -> None:
            async with rig(db) as held:
                assert len(await held.wait(4)) == 1

        asyncio.run(scenario())

    def test_a_retry_brought_forward_by_hand_is_found_by_the_poll(self, db, conn):
        job_id = plain_insert(conn, "k", run_at="2999-01-01")

        async def scenario() -> None:
            async with rig(db) as held:
                assert await held.take(3) == []
                due_now(conn, job_id)
                assert len(await held.wait(8)) == 1

        asyncio.run(scenario())


def test_two_installations_in_one_database_have_each_its_own_jobs(db, conn):
    migrate(db, schema="second one")
    plain_insert(conn, "k")
    conn.execute("insert into \"second one\".jobs (kind) values ('k'), ('k')")

    async def scenario() -> int:
        control = Control(make_conninfo(db), "second one", "test")
        try:
            params = Lanes(["k"]).plan(9, lambda _kind: 9, 0.0).params()
            return len(await control.run(named("claim_jobs", "second one", worker=WORKER, **params)))
        finally:
            control.drop()

    assert asyncio.run(scenario()) == 2
    assert rows(conn, "select status from redrive.jobs") == [{"status": "pending"}]


def test_of_very_many_lanes_the_first_are_served_before_the_last_are_known(db, conn, monkeypatch):
    """Each page of a survey looks at all that those before have found: of 20,000 lanes nothing ran for a minute."""
    pages = []
    real = claims.survey
    monkeypatch.setattr("redrive.producer.SURVEY_MOST", 0.0)
    monkeypatch.setattr(claims, "survey", lambda *a, **k: (pages.append(k), real(*a, **k))[1])
    conn.execute(
        "insert into redrive.jobs (kind, lane) select 'many', 'lane ' || n from generate_series(1, %s::int) n",
        [3 * PAGE],
    )
    plain_insert(conn, "other")

    async def work() -> Counter[str]:
        async with rig(db, "many", "other", concurrency=10) as held:
            return Counter(job.kind for job in await held.take())

    taken = asyncio.run(work())
    assert len(pages) == 1
    assert taken["other"] == 1
    assert taken["many"] == 9
