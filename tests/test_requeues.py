"""Sending back over time: a canary first, by a rate, whoever dies meanwhile, and each job once (OP-03)."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import support
from engine import Inside
from plans import call, explain, forget_statistics, most_rows, nodes, prepare, touched
from redrive import InvalidOption, InvalidPayload, Queue, ended
from redrive.connections import Control
from redrive.ended import BURST, WINDOW, Ended
from redrive.errors import UnknownRequeue
from redrive.migrate import migrate
from redrive.requeuer import LOOK_EVERY, Requeuer
from redrive.requeues import changed
from redrive.service import Database
from shell import insert
from support import wait_for
from support_engine import rows

GROUP = "aaaa0000aaaa0000"


def tick(db: str, times: int = 1) -> float:
    """Let a worker's part advance what there is, so many times; gives the pause that it asks for then."""

    async def turn() -> float:
        control = Control(db, "redrive", "test")
        try:
            part = Requeuer(Database("here:1:abcdef"), control)
            for _ in range(times):
                pause = await part.tick()
            return pause
        finally:
            control.drop()

    return asyncio.run(turn())


def states(conn: psycopg.Connection) -> dict[str, int]:
    return dict(conn.execute("select status::text, count(*) from redrive.jobs group by 1").fetchall())


def acts(conn: psycopg.Connection) -> list[tuple[str, int, int]]:
    return conn.execute("select action, moved, skipped from redrive.audit order by id").fetchall()


@pytest.fixture
def queue(db):
    made = Queue(db)
    yield made
    made.close()


@dataclass
class Dead:
    ids: list[int]
    which: Ended


@pytest.fixture
def dead(conn) -> Dead:
    ids = insert(conn, "mail", 10, status="dead", attempts=5, last_error="boom", fingerprint=GROUP)
    insert(conn, "mail", 2, status="dead", fingerprint="bbbb0000bbbb0000")
    return Dead(ids, Ended(kind="mail", group=GROUP))


class TestCanary:
    def test_one_goes_before_and_the_others_when_it_has_succeeded(self, db, conn, queue, dead):
        started = queue.requeues.start(dead.which, by="ada", reason="mended", canary=True)
        assert (started.status, started.matched, started.left) == ("waiting", 10, 10)
        tick(db)
        now = queue.requeues.get(started.id)
        assert (now.status, now.canary_id, now.moved, states(conn)) == ("canary", 1, 1, {"pending": 1, "dead": 11})
        tick(db, 3)
        assert states(conn) == {"pending": 1, "dead": 11}
        conn.execute("update redrive.jobs set status = 'succeeded' where id = 1")
        tick(db, 4)
        now = queue.requeues.get(started.id)
        assert (now.status, now.moved, now.skipped, now.left) == ("done", 10, 0, 0)
        assert states(conn) == {"succeeded": 1, "pending": 9, "dead": 2}
        assert acts(conn) == [("requeue started", 0, 0), ("requeue done", 10, 0)]
        assert {(act.by, act.reason) for act in queue.audit.list(requeue=started.id)} == {("ada", "mended")}
        assert tick(db) == LOOK_EVERY

    def test_where_it_does_not_succeed_no_other_goes_and_it_is_said_why(self, db, conn, queue):
        for became, why in (
            ("status = 'dead', last_error = E'Traceback\nKeyError: still'", "is dead: KeyError: still"),
            ("status = 'failed', last_error = 'discarded: gone'", "is failed: discarded: gone"),
            ("attempts = 1, last_error = 'KeyError: still'", "failed again: KeyError: still"),
            ("status = 'running', attempts = 2, last_error = 'KeyError: still'", "failed again: KeyError: still"),
        ):
            first, *others = insert(conn, "mail", 3, status="dead")
            started = queue.requeues.start(Ended(ids=[first, *others]))
            tick(db)
            conn.execute(f"update redrive.jobs set {became} where id = %s", [first])
            tick(db, 3)
            now = queue.requeues.get(started.id)
            assert (now.status, now.why) == ("failed", f"the canary, job {first}, {why}")
            assert queue.requeues.preview(Ended(ids=others)).jobs == 2
            assert acts(conn)[-1] == ("requeue failed", 1, 0)

    def test_one_that_is_gone_is_no_success(self, db, conn, queue, dead):
        started = queue.requeues.start(dead.which)
        tick(db)
        conn.execute("delete from redrive.jobs where id = 1")
        tick(db)
        assert "is gone" in (queue.requeues.get(started.id).why or "")

    def test_one_that_has_no_outcome_yet_is_waited_for(self, db, conn, queue, dead):
        started = queue.requeues.start(dead.which)
        tick(db)
        for waits in (
            "status = 'running', attempts = 1",
            "status = 'pending', attempts = 0, run_at = now() + interval '1 h'",  # snoozed
            "attempts = 0, last_error = 'worker lost: w fell silent; reclaimed'",
            "status = 'running', attempts = 1, last_error = 'worker lost: w fell silent; reclaimed'",
        ):
            conn.execute(f"update redrive.jobs set {waits} where id = 1")
            tick(db, 2)
            assert queue.requeues.get(started.id).status == "canary"


class TestRate:
    def test_as_many_go_as_the_time_allows_and_they_are_due_one_after_another(self, db, conn, queue):
        insert(conn, "mail", 100, status="dead")
        started = queue.requeues.start(Ended(kind="mail"), canary=False, rate=10)
        tick(db)
        assert queue.requeues.get(started.id).moved == 1
        conn.execute("update redrive.requeues set advanced_at = now() - interval '3 s'")
        tick(db)
        assert 31 <= queue.requeues.get(started.id).moved <= 36  # a slow machine takes a moment between the two
        span = (
            "select extract(epoch from max(run_at) - min(run_at)) from redrive.jobs where status = 'pending' and id > 1"
        )
        assert 2.85 < conn.execute(span).fetchone()[0] < 3.55

    def test_a_time_in_which_no_worker_lived_is_not_made_up_for_at_once(self, db, conn, queue):
        insert(conn, "mail", 200, status="dead")
        started = queue.requeues.start(Ended(kind="mail"), canary=False, rate=10)
        tick(db)
        conn.execute("update redrive.requeues set advanced_at = now() - interval '1 h'")
        tick(db)
        assert queue.requeues.get(started.id).moved == 1 + 10 * BURST

    def test_a_rate_that_makes_no_sense_is_refused(self, queue, dead):
        for rate in (0, -1, float("nan"), float("inf"), "50", True, 1e9):
            with pytest.raises(InvalidOption, match=r"rate is .*jobs a second over 0"):
                queue.requeues.start(dead.which, rate=rate)
        assert queue.requeues.list() == []


class TestWorkers:
    def test_they_run_what_is_sent_back_to_its_end_and_are_told_of_it(self, db, conn, queue, dead):
        """No look is waited for: the poll is a minute, and the look for something to send back far."""
        worker = Queue(db, poll=60)
        worker.handler("mail")(lambda _payload: None)
        with Inside(worker) as inside:
            wait_for(lambda: inside.workers[0].listener.hears)
            began = datetime.now(UTC)
            started = queue.requeues.start(dead.which, canary=True, rate=1000)
            wait_for(lambda: queue.requeues.get(started.id).status == "done", 10)
            wait_for(lambda: states(conn) == {"succeeded": 10, "dead": 2}, 10)
            assert datetime.now(UTC) - began < timedelta(seconds=LOOK_EVERY)
        worker.close()

    def test_it_survives_the_death_of_the_worker_and_needs_nobody_who_knows_the_kind(self, conn, queue, start_worker):
        app = 'from redrive import Queue\nqueue = Queue(lease=1)\nqueue.handler("other")(lambda _payload: None)\n'
        first = start_worker(app)
        insert(conn, "mail", 60, status="dead")
        started = queue.requeues.start(Ended(kind="mail"), canary=False, rate=30)
        wait_for(lambda: queue.requeues.get(started.id).moved > 3, 20)
        first.kill()
        moved = queue.requeues.get(started.id).moved
        assert moved < 60
        start_worker(app)
        wait_for(lambda: queue.requeues.get(started.id).status == "done", 20)
        assert (queue.requeues.get(started.id).moved, states(conn)) == (60, {"pending": 60})

    def test_two_at_once_advance_it_by_what_one_would(self, db, conn, queue):
        insert(conn, "mail", 2000, status="dead")
        conn.execute("create table moves (id bigint)")
        conn.execute(
            "create function note() returns trigger language plpgsql as"
            " $$ begin insert into public.moves values (new.id); return null; end $$"
        )
        conn.execute("create trigger note after update of status on redrive.jobs for each row execute function note()")
        started = queue.requeues.start(Ended(kind="mail"), canary=False)
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda _: tick(db, 18), range(3)))
        tick(db, 30)  # who came second to a step has done nothing in that tick
        assert queue.requeues.get(started.id).status == "done"
        assert conn.execute("select count(*), count(distinct id) from moves").fetchone() == (2000, 2000)
        assert queue.requeues.get(started.id).moved == 2000


class TestWhatChangesMeanwhile:
    def test_two_operators_who_mean_the_same_move_each_job_once_op_03(self, db, conn, queue):
        """OP-03: n retried, m skipped."""
        insert(conn, "mail", 50, status="dead")
        which = Ended(kind="mail")
        one, two = (queue.requeues.start(which, canary=False, by=name) for name in ("ada", "bob"))
        tick(db, 5)
        both = [queue.requeues.get(each.id) for each in (one, two)]
        assert [each.status for each in both] == ["done", "done"]
        assert sum(each.moved for each in both) == 50
        assert sum(each.skipped for each in both) == 50

    def test_what_was_sent_back_by_the_tutorials_statement_or_died_since_is_skipped(self, db, conn, queue, dead):
        started = queue.requeues.start(dead.which, canary=False)
        conn.execute(
            "update redrive.jobs set status = 'pending', attempts = 0, run_at = now(), last_error = null,"
            " updated_at = now() where status = 'dead' and id <= 3"
        )
        insert(conn, "mail", status="dead", fingerprint=GROUP)
        tick(db, 4)
        now = queue.requeues.get(started.id)
        assert (now.status, now.moved, now.skipped) == ("done", 7, 3)
        assert acts(conn)[-1] == ("requeue done", 7, 3)
        assert states(conn) == {"pending": 10, "dead": 3}

    def test_what_somebody_had_locked_has_its_turn_at_the_end(self, db, conn, queue, dead):
        started = queue.requeues.start(dead.which, canary=False)
        with psycopg.connect(db) as holder:
            holder.execute("select from redrive.jobs where id = 4 for update")
            tick(db)
            assert queue.requeues.get(started.id).moved == 9
        tick(db, 3)
        assert (queue.requeues.get(started.id).status, queue.requeues.get(started.id).moved) == ("done", 10)

    def test_it_can_be_stopped(self, db, conn, queue):
        insert(conn, "mail", 30, status="dead")
        started = queue.requeues.start(Ended(kind="mail"), canary=False, rate=1)
        tick(db)
        stopped = queue.requeues.stop(started.id, by="bob", reason="down again")
        assert (stopped.status, stopped.moved, stopped.why) == ("stopped", 1, "stopped by bob: down again")
        tick(db, 2)
        assert states(conn) == {"pending": 1, "dead": 29}
        assert [(act.action, act.by) for act in queue.audit.list(limit=1)] == [("requeue stopped", "bob")]
        assert queue.requeues.stop(started.id, by="eve").why == "stopped by bob: down again"
        assert queue.requeues.list(active=True) == []
        with pytest.raises(UnknownRequeue, match="99"):
            queue.requeues.stop(99)


class TestWhich:
    def test_it_can_be_an_id_or_ids(self, conn, queue, dead):
        first, *others = dead.ids
        assert queue.requeue(first) == [first]
        assert queue.requeue(others) == others
        assert queue.requeue([]) == []
        for wrong in ("7", {"kind": "mail"}, True, [True], ["7"], None, 7.0):
            with pytest.raises(InvalidOption, match="give an id, ids, or a filter"):
                queue.requeue(wrong)
        assert states(conn) == {"dead": 2, "pending": 10}

    def test_it_can_be_said_by_what_stands_in_the_payload(self, conn, queue):
        for each in ({"to": "ada@x", "user": {"name": "Ada"}}, {"items": [1, {"sku": 7}], "paid": True}, [1]):
            insert(conn, "mail", status="dead", payload=json.dumps(each))
        for payload, found in (
            ({"to": "ada@x"}, [1]),
            ({"user.name": "Ada", "to": "ada@x"}, [1]),
            ({"items.1.sku": 7}, [2]),
            ({"items.1.sku": "7"}, [2]),
            ({"paid": True}, [2]),
            ({"to": None}, [2, 3]),
            ({"paid": True, "to": "ada@x"}, []),
            ({"to": "a'; drop table jobs; --"}, []),
            ({"nowhere.at.all": 1}, []),
        ):
            which = Ended(payload=payload)
            assert queue.requeues.preview(which).sample == found
            assert Ended.read(json.loads(which.written())) == which
            with conn.transaction(force_rollback=True):
                assert queue.requeue(which, connection=conn) == found

    @pytest.mark.parametrize(
        ("payload", "said"),
        [({"": 1}, "payload path"), ({"a..b": 1}, "payload path"), ({"a": [1]}, "payload value"), ([], "payload is")],
    )
    def test_a_path_that_makes_no_sense_is_refused(self, payload, said):
        with pytest.raises(InvalidOption, match=said):
            Ended(payload=payload).params()

    def test_a_row_by_plain_sql_is_as_good_as_ours(self, db, conn, queue, dead):
        conn.execute(
            "insert into redrive.requeues (filter, canary) values (%s, false)",
            [json.dumps({"ids": dead.ids[:3], "error": "BOOM", "since": "2020-01-01T00:00:00+00:00"})],
        )
        tick(db, 3)
        [row] = queue.requeues.list()
        assert (row.status, row.matched, row.moved, row.skipped) == ("done", 3, 3, 0)

    def test_a_filter_that_nobody_can_read_fails_and_says_why_and_the_others_go_on(self, db, conn, queue, dead):
        bad = ({"kin": "mail"}, {"since": "yesterday"}, {"group": "x"}, {"ids": "all"})
        for given in bad:
            conn.execute("insert into redrive.requeues (filter) values (%s)", [json.dumps(given)])
        started = queue.requeues.start(dead.which, canary=False)
        tick(db, 3)
        for given, row in zip(bad, queue.requeues.list()[:0:-1], strict=True):
            assert row.status == "failed"
            assert next(iter(given)) in (row.why or "")
        assert queue.requeues.get(started.id).status == "done"

    def test_one_whose_jobs_the_database_refuses_fails_and_says_why_and_the_others_go_on_cn_07(
        self, db, conn, queue, dead
    ):
        insert(conn, "odd", 1, status="dead")
        conn.execute("alter table redrive.jobs add constraint no_more check (kind <> 'odd' or status <> 'pending')")
        refused = queue.requeues.start(Ended(kind="odd"), canary=False)
        started = queue.requeues.start(dead.which, canary=False)
        tick(db, 3)
        now = queue.requeues.get(refused.id)
        assert (now.status, "no_more" in (now.why or "")) == ("failed", True)
        assert queue.requeues.get(started.id).status == "done"

    def test_a_preview_may_end_at_a_bound_and_says_so(self, conn, queue):
        insert(conn, "mail", 30, status="dead")
        assert queue.requeues.preview(Ended(kind="mail"), most=10).counted == "10+"
        assert queue.requeues.preview(Ended(kind="mail"), most=30).counted == "30"
        with pytest.raises(InvalidOption, match="no job is meant"):
            queue.requeues.start(Ended(kind="nothing"))

    def test_from_async_code_it_is_the_same(self, db, conn, queue, dead):
        async def scenario() -> Any:
            started = await queue.requeues.start_async(dead.which, canary=False, rate=5)
            listed = await queue.requeues.list_async(active=True)
            assert [each.id for each in listed] == [started.id]
            assert (await queue.requeues.preview_async(dead.which)).jobs == 10
            assert await queue.requeues.now_async(Ended(ids=dead.ids[:2])) == dead.ids[:2]
            stopped = await queue.requeues.stop_async(started.id)
            return (await queue.requeues.get_async(stopped.id)).status

        assert asyncio.run(scenario()) == "stopped"
        assert [act.action for act in queue.audit.list()] == ["requeue stopped", "requeue", "requeue started"]


class TestAtOnce:
    def test_one_row_of_the_audit_counts_all_batches(self, conn, queue):
        insert(conn, "mail", 2500, status="dead")
        batches: list[int] = []
        assert len(queue.requeue(Ended(kind="mail"), by="ada", reason="mended", on_batch=batches.append)) == 2500
        assert batches == [1000, 1000, 500]
        [act] = queue.audit.list()
        assert (act.action, act.by, act.reason, act.moved, act.filter) == (
            "requeue",
            "ada",
            "mended",
            2500,
            {"kind": "mail"},
        )

    def test_what_is_locked_is_counted_as_skipped_and_what_came_to_nothing_was_no_act(self, db, conn, queue):
        insert(conn, "mail", 3, status="dead")
        with psycopg.connect(db) as holder:
            holder.execute("select from redrive.jobs where id = 2 for update")
            assert queue.requeue(Ended(kind="mail")) == [1, 3]
        assert queue.requeue(Ended(kind="export")) == []
        assert queue.cancel(2) == {}
        assert acts(conn) == [("requeue", 2, 1)]

    def test_a_filter_that_few_match_is_looked_for_in_small_steps(self, conn, queue):
        insert(conn, "mail", 5000, status="dead", last_error="common")
        [rare] = insert(conn, "mail", status="dead", last_error="rare")
        assert queue.requeue(Ended(error="rare")) == [rare]


class TestPlan:
    def test_a_step_reads_little_whatever_is_asked_for_and_whatever_the_statistics_say(self, conn):
        """By a plan for any values, as workers keep it, and by one for these."""
        conn.prepare_threshold = None
        conn.execute("alter table redrive.jobs set (autovacuum_enabled = off)")
        conn.execute(
            "insert into redrive.jobs (kind, status, attempts, last_error, fingerprint)"
            " select 'k', (array['dead', 'failed', 'failed', 'succeeded'])[1 + i % 4], 1,"
            " case when i % 40 = 2 then 'odd' when i % 4 in (1, 2) then 'cancelled: x' end,"
            " case when i % 8 = 0 then lpad(to_hex(i % 160), 16, '0') end from generate_series(1, 30000) i"
        )
        key = conn.execute("select max(fingerprint) from redrive.jobs").fetchone()[0]
        filters = {
            "all": Ended(),
            "group": Ended(kind="k", group=key),
            "ids": Ended(ids=[8, 16, 24]),
            "rare error": Ended(error="odd"),
            "failed": Ended(statuses=("failed",), payload={"a.b": 1}),
        }
        prepare(conn, "requeue_jobs")
        for statistics in ("never", "analyzed"):
            if statistics == "never":
                forget_statistics(conn)
            else:
                conn.execute("analyze redrive.jobs")
            for name, which in filters.items():
                params = {**dict(ended.requeue("redrive", which).params or {}), "limit": 100}
                for mode in ("force_generic_plan", "force_custom_plan"):
                    plan = explain(conn, call("requeue_jobs", params), mode, free=mode == "force_custom_plan")
                    where = (statistics, name, mode)
                    assert not [part for part in nodes(plan) if part["Node Type"] == "Seq Scan" and is_jobs(part)], (
                        where
                    )
                    assert along_the_key(plan) <= 2 * WINDOW, where
                    # Of a free planner that knows nothing no more is asked than to keep to what has ended.
                    assert most_rows(plan) <= (2 * WINDOW if mode == "force_generic_plan" else 15_000), where
                    assert touched(plan) < 15_000, where


def is_jobs(part: dict[str, Any]) -> bool:
    return part.get("Relation Name") == "jobs"


def along_the_key(plan: dict[str, Any]) -> float:
    """The most rows that were read along the primary key."""
    by_key = [part for part in nodes(plan) if part.get("Index Name") == "jobs_pkey"]
    return max(part["Actual Loops"] * (part["Actual Rows"] + part.get("Rows Removed by Filter", 0)) for part in by_key)


class TestEdit:
    def test_a_job_is_sent_back_with_another_payload_and_what_it_was_is_kept(self, conn, queue):
        [job] = insert(
            conn, "mail", status="dead", attempts=5, last_error="x", payload='{"to": "a"}', fingerprint=GROUP
        )
        assert queue.requeues.edit(job, {"to": "b"}, by="ada", reason="typo")
        [now] = rows(conn, "select status::text, attempts, payload, last_error, fingerprint from redrive.jobs")
        assert now == {
            "status": "pending",
            "attempts": 0,
            "payload": {"to": "b"},
            "last_error": None,
            "fingerprint": None,
        }
        [act] = queue.audit.list(job=job)
        assert (act.action, act.by, act.before, act.after) == ("edit and requeue", "ada", {"to": "a"}, {"to": "b"})
        assert not queue.requeues.edit(job, {"to": "c"})
        assert len(queue.audit.list()) == 1

    def test_it_can_be_edited_and_left_dead(self, conn, queue):
        [job] = insert(conn, "mail", status="dead", last_error="x", fingerprint=GROUP)
        assert queue.requeues.edit(job, [1], send=False)
        assert rows(conn, "select status::text, payload, last_error from redrive.jobs") == [
            {"status": "dead", "payload": [1], "last_error": "x"}
        ]
        assert [group.key for group in queue.groups.list()] == [GROUP]

    def test_what_its_handler_does_not_take_is_refused(self, conn, queue):
        def mail(payload: dict[str, int]) -> None: ...

        queue.handler("mail")(mail)
        [job] = insert(conn, "mail", status="dead", payload='{"n": 1}')
        with pytest.raises(InvalidPayload, match=r"payload\.n"):
            queue.requeues.edit(job, {"n": "one"})
        with pytest.raises(InvalidPayload):
            queue.requeues.edit(job, {"n": object()})
        assert states(conn) == {"dead": 1}

    @pytest.mark.parametrize(
        ("path", "after"),
        [
            ("to", {"to": 9, "items": [{"n": 1}, 2]}),
            ("new", {"to": "a", "items": [{"n": 1}, 2], "new": 9}),
            ("items.1", {"to": "a", "items": [{"n": 1}, 9]}),
            ("items.0.n", {"to": "a", "items": [{"n": 9}, 2]}),
        ],
    )
    def test_a_value_is_changed_at_its_path(self, path, after):
        before = {"to": "a", "items": [{"n": 1}, 2]}
        assert changed(before, path, 9) == after
        assert before == {"to": "a", "items": [{"n": 1}, 2]}

    @pytest.mark.parametrize("path", ["", "a.b", "to.x", "items.7", "items.x", "items.-1"])
    def test_a_path_that_leads_nowhere_is_refused(self, path):
        with pytest.raises(InvalidOption, match="leads nowhere"):
            changed({"to": "a", "items": [1]}, path, 9)


def test_a_filter_in_letters_that_are_no_ascii_is_kept_in_a_database_that_takes_no_escapes(server_url):
    """Of an encoding other than UTF8 not every server can tell what an escape within JSON means."""
    with support.database(server_url, "template0 encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C'") as dsn:
        migrate(dsn)
        queue = Queue(dsn)
        made = queue.enqueue("café", key="déjà").id
        assert queue.cancel(kind="café", key="déjà", reason="fermé") == {made: "pending"}
        assert queue.requeue(Ended(kind="café", error="fermé", statuses=("failed",))) == [made]
        queue.kinds.pause("café", reason="fermé")
        queue.close()
