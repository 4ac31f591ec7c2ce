"""What has outlived its retention goes, whatever state it is in, and nothing else does (BL-04)."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from redrive.connections import Control
from redrive.pruner import EVERY, REST, WINDOW, Pruner, pause
from redrive.service import Database
from redrive.settings import Settings
from support_engine import rows

DAY = 86_400.0
KEEP = {"retain_succeeded": 7 * DAY, "retain_failed": 30 * DAY, "retain_dead": 365 * DAY, "retain_failures": 90 * DAY}
STATES = ("pending", "running", "succeeded", "failed", "dead")


def prune(db: str, *, rounds: int = 400, walks: int = 1, **settings: Any) -> Pruner:
    """Let a pruner of its own walk to the end, as the loop would but without its rests."""

    async def scenario() -> Pruner:
        control = Control(db, "redrive", "test")
        pruner = Pruner(Database("here:1:abcdef"), control, Settings(**(KEEP | settings)))
        try:
            for _ in range(walks):
                for _ in range(rounds):
                    if await pruner.tick() == EVERY:
                        break
                else:
                    raise AssertionError("it did not come to an end")
        finally:
            control.drop()
        return pruner

    return asyncio.run(scenario())


def seed(conn: psycopg.Connection, status: str, days: float, count: int = 1, kind: str = "k") -> None:
    """Insert jobs that were made, and reached their state, so many days ago."""
    conn.execute(
        "insert into redrive.jobs (kind, status, created_at, updated_at, run_at) "
        "select %s, %s, ago, ago, ago from generate_series(1, %s), (select now() - make_interval(secs => %s) ago) t",
        [kind, status, count, days * DAY],
    )


def left(conn: psycopg.Connection) -> set[tuple[str, int]]:
    return {
        (one["status"], one["days"])
        for one in rows(conn, "select status, extract(day from now() - updated_at)::int as days from redrive.jobs")
    }


class TestRetention:
    def test_exactly_the_expired_finished_rows_of_each_state_go_bl_04(self, db, conn):
        """BL-04: and a job that is waiting or running stays, however old it is."""
        ages = (0, 6, 8, 29, 31, 364, 366, 3000)
        for status, days in itertools.product(STATES, ages):
            seed(conn, status, days)
        pruned = prune(db).pruned
        limits = {"succeeded": 7, "failed": 30, "dead": 365, "pending": 10_000, "running": 10_000}
        assert left(conn) == {
            (status, days) for status, days in itertools.product(STATES, ages) if days < limits[status]
        }
        assert pruned == 6 + 4 + 2

    def test_a_thirty_day_old_running_row_stays_with_every_retention_at_a_second_bl_04(self, db, conn):
        """BL-04."""
        for status in STATES:
            seed(conn, status, 30)
        prune(db, retain_succeeded=1, retain_failed=1, retain_dead=1, retain_failures=1)
        assert left(conn) == {("pending", 30), ("running", 30)}

    @pytest.mark.parametrize("kept", ["succeeded", "failed", "dead"])
    def test_a_retention_of_nothing_is_for_ever(self, db, conn, kept):
        for status in ("succeeded", "failed", "dead"):
            seed(conn, status, 5000)
        prune(db, **{f"retain_{kept}": 0})
        assert left(conn) == {(kept, 5000)}

    def test_age_is_that_of_the_end_and_not_of_the_enqueue(self, db, conn):
        seed(conn, "succeeded", 100)
        conn.execute("update redrive.jobs set updated_at = now() - interval '1 day'")
        prune(db)
        assert left(conn) == {("succeeded", 1)}

    def test_a_job_sent_back_and_ended_anew_between_the_look_and_the_deletion_stays(self, db, conn, monkeypatch):
        seed(conn, "dead", 400)
        ask = Control.run

        async def run(self: Control, statement: Any, **more: Any) -> Any:
            found = await ask(self, statement, **more)
            if found and hasattr(found[0], "expired"):
                conn.execute("update redrive.jobs set status = 'succeeded', updated_at = now()")
            return found

        monkeypatch.setattr(Control, "run", run)
        prune(db)
        assert left(conn) == {("succeeded", 0)}

    def test_history_has_a_retention_of_its_own(self, db, conn):
        conn.execute(
            "insert into redrive.failures (job_id, kind, claim, attempt, outcome, failed_at, error_type, message) "
            "select n, 'k', 1, 1, 'retried', now() - make_interval(days => 2500 - n), 'E', '' "
            "from generate_series(1, 2500) n"
        )
        prune(db)
        assert conn.execute("select count(*), min(job_id) from redrive.failures").fetchone() == (90, 2411)
        prune(db, retain_failures=0)
        assert conn.execute("select count(*) from redrive.failures").fetchone() == (90,)

    def test_rows_of_workers_long_gone_go_unless_they_hold_a_job(self, db, conn):
        for name, ago in (("here:1:aaaaaa", "2 days"), ("here:2:bbbbbb", "2 days"), ("here:3:cccccc", "2 hours")):
            conn.execute(
                "insert into redrive.workers (name, host, pid, version, kinds, concurrency, lease, heartbeat_at) "
                "values (%s, 'h', 1, '0', '{}', 1, '30 s', now() - %s::interval)",
                [name, ago],
            )
        seed(conn, "running", 2)
        conn.execute("update redrive.jobs set locked_by = 'here:2:bbbbbb'")
        prune(db)
        found = {one["name"] for one in rows(conn, "select name from redrive.workers")}
        assert found == {"here:2:bbbbbb", "here:3:cccccc"}


class TestWalk:
    def test_everything_is_reached_in_windows(self, db, conn):
        seed(conn, "succeeded", 10, WINDOW + 1)
        seed(conn, "pending", 10, WINDOW)
        seed(conn, "dead", 10, 10)
        seed(conn, "succeeded", 9, WINDOW + 1)
        seed(conn, "succeeded", 1, 10)
        assert prune(db).pruned == 2 * WINDOW + 2
        assert left(conn) == {("pending", 10), ("dead", 10), ("succeeded", 1)}

    def test_it_ends_where_all_rows_are_too_young(self, db, conn):
        seed(conn, "succeeded", 1, 3 * WINDOW)
        seen = conn.execute("select count(*) from redrive.jobs").fetchone()
        assert prune(db, rounds=2).pruned == 0
        assert conn.execute("select count(*) from redrive.jobs").fetchone() == seen

    def test_a_row_dated_ahead_of_its_time_does_not_end_it(self, db, conn):
        seed(conn, "pending", -1000)
        conn.execute("insert into redrive.jobs (kind, created_at) values ('k', 'infinity')")
        seed(conn, "succeeded", 10, WINDOW + 1)
        assert prune(db).pruned == WINDOW + 1

    def test_ids_that_were_given_by_hand_are_reached_too(self, db, conn):
        for given in (-5, 0, 2**62):
            conn.execute(
                "insert into redrive.jobs (id, kind, status, updated_at, created_at) "
                "values (%s, 'k', 'succeeded', now() - interval '9 d', now() - interval '9 d')",
                [given],
            )
        assert prune(db).pruned == 3

    def test_two_at_once_remove_each_row_once_and_wait_for_nobody(self, db, conn):
        seed(conn, "succeeded", 10, 3 * WINDOW)

        async def scenario() -> list[int]:
            async def one() -> int:
                control = Control(db, "redrive", "test")
                pruner = Pruner(Database("here:1:abcdef"), control, Settings(**KEEP))
                while await pruner.tick() != EVERY:
                    pass
                control.drop()
                return pruner.pruned

            return await asyncio.gather(*(one() for _ in range(3)))

        assert sum(asyncio.run(scenario())) == 3 * WINDOW

    def test_a_row_that_somebody_has_locked_is_left_for_the_next_walk(self, db, conn):
        seed(conn, "succeeded", 10, 10)
        with psycopg.connect(db) as other:
            [(locked,)] = other.execute("select id from redrive.jobs order by id limit 1 for update").fetchall()
            assert prune(db).pruned == 9
        assert rows(conn, "select id from redrive.jobs") == [{"id": locked}]
        assert prune(db).pruned == 1

    def test_a_job_that_a_table_of_the_users_refers_to_stays_and_holds_up_nothing_else_cn_07(self, db, conn, caplog):
        """Neither other jobs nor the history; and it is complained of, and not tried at every walk."""
        seed(conn, "succeeded", 10, 50)
        conn.execute("create table public.mail (job_id bigint references redrive.jobs (id))")
        kept = "insert into public.mail select id from redrive.jobs where mod(id, 20) = 0 returning job_id as id"
        referred_to = rows(conn, kept)
        conn.execute(
            "insert into redrive.failures (job_id, kind, claim, attempt, outcome, failed_at, error_type, message) "
            "values (1, 'k', 1, 1, 'retried', now() - interval '100 d', 'E', '')"
        )
        pruner = prune(db, walks=2)
        assert pruner.pruned == 50 - len(referred_to)
        assert rows(conn, "select id from redrive.jobs order by id") == referred_to
        assert rows(conn, "select id from redrive.failures") == []
        assert f"{len(referred_to)} jobs are not pruned: ForeignKeyViolation" in pruner.remark
        assert [record.msg for record in caplog.records] == ["job %s is not pruned: %s"]
        conn.execute("drop table public.mail")
        assert prune(db).pruned == len(referred_to)


SLOW = """
    create function public.slow() returns trigger language plpgsql as $$
    begin perform pg_sleep(0.005); return old; end $$;
    create trigger slow before delete on redrive.{} for each row execute function public.slow()
"""


class TestShortStatementTimeout:
    """Under statement_timeout = 500 ms small batches make progress."""

    def test_jobs_go_in_batches_as_small_as_need_be(self, db, conn, server_log):
        """BL-04."""
        conn.execute(SLOW.format("jobs"))
        seed(conn, "succeeded", 10, 300)
        pruned = prune(make_conninfo(db, options="-c statement_timeout=500ms")).pruned
        assert pruned == 300
        assert 1 <= len(server_log.errors()) < 10, "and the size that was too large is not tried each time"

    def test_history_goes_although_the_jobs_are_many_and_quickly_looked_at(self, db, conn):
        conn.execute(SLOW.format("failures"))
        seed(conn, "pending", 100, 4 * WINDOW)
        conn.execute(
            "insert into redrive.failures (job_id, kind, claim, attempt, outcome, failed_at, error_type, message) "
            "select n, 'k', 1, 1, 'retried', now() - interval '100 d', 'E', '' from generate_series(1, 300) n"
        )
        prune(make_conninfo(db, options="-c statement_timeout=500ms"))
        assert conn.execute("select count(*) from redrive.failures").fetchone() == (0,)


class TestArchive:
    def archived(self, conn: psycopg.Connection) -> dict[str, int]:
        return {
            one["part"]: one["jobs"]
            for one in rows(
                conn, "select tableoid::regclass::text as part, count(*) as jobs from redrive.jobs_archive group by 1"
            )
        }

    def months(self, conn: psycopg.Connection) -> list[str]:
        query = (
            "select to_char(date_trunc('month', now() at time zone 'UTC') + make_interval(months => n), 'YYYYMM') m "
        )
        return [one["m"] for one in rows(conn, query + "from generate_series(-1, 1) n order by 1")]

    def test_rows_move_as_they_are_into_the_partition_of_their_month(self, db, conn):
        seed(conn, "succeeded", 10, 3)
        conn.execute("update redrive.jobs set payload = '{\"a\": 1}', result = '[2]', lane = 'x', attempts = 2")
        before = rows(conn, "select * from redrive.jobs order by id")
        assert prune(db, archive=True).pruned == 3
        assert left(conn) == set()
        assert rows(conn, "select * from redrive.jobs_archive order by id") == before
        [part] = self.archived(conn)
        assert part.removeprefix("redrive.jobs_archive_") in self.months(conn)

    def test_there_is_a_partition_for_each_month_that_rows_may_fall_into(self, db, conn):
        prune(db, archive=True, walks=3)
        parts = rows(conn, "select relname as part from pg_class where relname ~ '^jobs_archive_[0-9]+$' order by 1")
        assert [one["part"] for one in parts] == [f"jobs_archive_{month}" for month in self.months(conn)]

    def test_workers_in_any_time_zone_agree_on_the_months(self, db, conn):
        """The first of a month in one zone is the last of another's."""
        prune(make_conninfo(db, options="-c timezone=Pacific/Kiritimati"), archive=True)
        conn.execute(f"drop table redrive.jobs_archive_{self.months(conn)[1]}")
        prune(make_conninfo(db, options="-c timezone=Pacific/Pago_Pago"), archive=True)
        parts = rows(conn, "select relname as part from pg_class where relname ~ '^jobs_archive_[0-9]+$' order by 1")
        assert [one["part"] for one in parts] == [f"jobs_archive_{month}" for month in self.months(conn)]

    def test_a_role_that_may_not_make_tables_fills_the_default_partition(self, db, conn):
        [(name,)] = conn.execute("select current_database()").fetchall()
        role = f"plain_{name}"
        conn.execute(f"create role {role} login password 'plain'")
        try:
            conn.execute(f"grant usage on schema redrive to {role}")
            conn.execute(f"grant select, insert, update, delete on all tables in schema redrive to {role}")
            seed(conn, "succeeded", 10, 3)
            plain = make_conninfo(db, user=role, password="plain")
            assert prune(plain, archive=True, walks=2).pruned == 3
            assert self.archived(conn) == {"redrive.jobs_archive_default": 3}
            seed(conn, "succeeded", 10, 2)
            assert prune(db, archive=True).pruned == 2, "once the default has rows of a month, it keeps the month"
            assert self.archived(conn) == {"redrive.jobs_archive_default": 5}
        finally:
            conn.execute(f"drop owned by {role}; drop role {role}")

    def test_of_workers_that_start_at_once_each_finds_the_partitions_made(self, db, conn, server_log):
        async def scenario() -> None:
            async def one() -> None:
                control = Control(db, "redrive", "test")
                await Pruner(Database("here:1:abcdef"), control, Settings(archive=True)).tick()
                control.drop()

            await asyncio.gather(*(one() for _ in range(5)))

        asyncio.run(scenario())
        parts = rows(conn, "select relname from pg_class where relname ~ '^jobs_archive_[0-9]+$'")
        assert len(parts) == 3
        assert server_log.errors() == []


def test_breakers_that_closed_long_ago_go_and_no_others(db, conn):
    conn.execute(
        "insert into redrive.breakers (kind, target, state, updated_at) "
        "select kind, '', state, now() - days * interval '1 day' "
        "from (values ('old', 'closed', 100), ('young', 'closed', 80), ('open', 'open', 100)) v(kind, state, days)"
    )
    prune(db)
    assert conn.execute("select kind from redrive.breakers order by 1").fetchall() == [("open",), ("young",)]


def test_what_workers_counted_goes_and_the_last_deploy_stays(db, conn):
    conn.execute(
        "insert into redrive.stats (minute, kind, worker) select now() - days * interval '1 day', 'k', 'w' "
        "from unnest(array[1, 29, 31, 400]) days"
    )
    conn.execute("insert into redrive.deploys (version, at) values ('a', '2020-01-01'), ('b', '2021-01-01')")
    prune(db, retain_stats=30 * DAY)
    assert conn.execute("select count(*), min(minute) > now() - interval '30 days' from redrive.stats").fetchone() == (
        2,
        True,
    )
    assert conn.execute("select version from redrive.deploys").fetchall() == [("b",)]
    prune(db, retain_stats=0.0)
    assert conn.execute("select count(*) from redrive.stats").fetchone() == (2,)


class TestPace:
    def test_it_rests_by_what_a_window_took_and_never_long(self):
        assert pause(0.004) == 0.008
        assert pause(30.0) == REST

    def test_a_quick_server_is_pruned_faster_than_jobs_can_pile_up(self, db, conn, monkeypatch):
        """With a rest of 0.1 s after each window no more than 9,000 rows a second went, whatever the server."""
        seed(conn, "succeeded", days=8, count=2 * WINDOW + 1)
        monkeypatch.setattr("redrive.pruner.monotonic", itertools.count(0, 0.01).__next__)

        async def scenario() -> list[float]:
            control = Control(db, "redrive", "test")
            pruner = Pruner(Database("here:1:abcdef"), control, Settings(**KEEP))
            try:
                return [await pruner.tick() for _ in range(2)]
            finally:
                control.drop()

        assert asyncio.run(scenario()) == pytest.approx([0.02, 0.02])
        assert conn.execute("select count(*) from redrive.jobs").fetchone() == (1,)
