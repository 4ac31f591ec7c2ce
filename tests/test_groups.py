"""Failure groups: what failed of the same fault is one line, its counts are honest, and the page is quick (OP-01)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL

from plans import explain, forget_statistics, nodes, touched
from redrive import Queue
from redrive.errors import InvalidOption, UnknownGroup
from redrive.groups import CAP, HISTORY, listed
from redrive.sql import query
from shell import insert
from support_engine import drain, history, row

WHY = "ValueError: no such user 7"


def fail(
    conn, kind, fingerprint, count=1, *, ago="0 s", version=None, error_type="ValueError", message="no such user 7"
):
    conn.execute(
        "insert into redrive.failures (job_id, kind, claim, attempt, outcome, failed_at, error_type, message,"
        " traceback, fingerprint, version) select 1, %s, 1, 1, 'retried', now() - %s::interval, %s, %s, 'Traceback',"
        " %s, %s from generate_series(1, %s)",
        [kind, ago, error_type, message, fingerprint, version, count],
    )


@pytest.fixture
def queue(db):
    made = Queue(db, app_version="1.4.2")
    yield made
    made.close()


class TestFingerprints:
    def test_of_a_job_it_is_the_last_failures_and_of_one_that_succeeds_at_once_there_is_none(self, queue, conn):
        @queue.handler("mail", max_attempts=2, backoff=lambda _attempt: 0)
        def mail(payload, job):
            if payload == {"fine": True}:
                return
            raise (ValueError if job.attempt == 1 else KeyError)(f"user {job.id}")

        bad, fine = mail.enqueue({}), mail.enqueue({"fine": True})
        drain(queue)
        conn.execute("update redrive.jobs set run_at = now() where status = 'pending'")
        drain(queue)
        first, last = history(conn, bad.id)
        assert (row(conn, bad.id).status, row(conn, fine.id).fingerprint) == ("dead", None)
        assert row(conn, bad.id).fingerprint == last.fingerprint != first.fingerprint
        assert (first.version, last.version) == ("1.4.2", "1.4.2")

    def test_what_dies_unrun_has_one_as_well(self, queue, conn):
        insert(conn, "mail", attempts=5, max_attempts=5)
        insert(conn, "mail", expires_at="2020-01-01")
        conn.execute(query("bury_hopeless", "redrive"), {"kinds": []})
        assert [row(conn, job).fingerprint for job in (1, 2)] == ["AttemptsExhausted", "DeadlinePassed"]
        assert [each.fingerprint for job in (1, 2) for each in history(conn, job)] == [
            "AttemptsExhausted",
            "DeadlinePassed",
        ]
        assert [group.id for group in queue.groups.list()] == ["mail:AttemptsExhausted", "mail:DeadlinePassed"]


class TestGroups:
    def test_they_hold_the_dead_and_those_that_will_be_tried_again(self, queue, conn):
        insert(conn, "mail", 3, status="dead", fingerprint="aaaa0000aaaa0000")
        insert(conn, "mail", 2, attempts=1, fingerprint="aaaa0000aaaa0000", run_at="2100-01-01")
        insert(conn, "mail", 4, attempts=1, fingerprint="bbbb0000bbbb0000")
        insert(conn, "export", 1, status="dead", fingerprint="aaaa0000aaaa0000")
        # neither: sent back by the tutorial's statement, cancelled, ended well, running
        insert(conn, "mail", attempts=0, fingerprint="cccc0000cccc0000")
        insert(conn, "mail", status="failed", fingerprint="cccc0000cccc0000", last_error="cancelled: spring")
        insert(conn, "mail", status="succeeded", attempts=2, fingerprint="cccc0000cccc0000")
        groups = [(group.id, group.dead, group.retrying) for group in queue.groups.list()]
        assert groups == [("mail:aaaa0000", 3, 2), ("export:aaaa0000", 1, 0), ("mail:bbbb0000", 0, 4)]
        assert [group.id for group in queue.groups.list(retrying=False)] == ["mail:aaaa0000", "export:aaaa0000"]
        assert [group.id for group in queue.groups.list(kind="mail", limit=1)] == ["mail:aaaa0000"]
        assert [group.id for group in queue.groups.list(kind="mai")] == []

    def test_what_history_knows_of_them(self, queue, conn):
        insert(conn, "mail", 5, status="dead", fingerprint="aaaa0000aaaa0000", last_error=WHY)
        for ago, count, version in (("3 days", 2, "1.3"), ("5 h", 10, "1.3"), ("1 min", 30, "1.4"), ("1 s", 1, None)):
            fail(conn, "mail", "aaaa0000aaaa0000", count, ago=ago, version=version)
        fail(conn, "mail", "bbbb0000bbbb0000", 100)
        [group] = queue.groups.list()
        assert (group.failures, group.last_hour, group.day_before, group.versions) == (43, 31, 10, ["1.3", "1.4"])
        assert group.trend == "rising"
        now = datetime.now(UTC)
        assert timedelta(days=2, hours=23) < now - group.first < timedelta(days=3, minutes=5)
        assert now - group.last < timedelta(minutes=1)
        assert (group.error, group.sample) == (WHY, [5, 4, 3])
        assert queue.groups.sample(group).traceback == "Traceback"
        assert [job.id for job in queue.groups.jobs(group, limit=2)] == [5, 4]
        assert [job.id for job in queue.groups.jobs(group, before=4)] == [3, 2, 1]

    def test_their_trend_is_a_word(self, queue, conn):
        trends = {
            "new": [("1 s", 3)],
            "rising": [("1 s", 3), ("2 days", 3)],
            "steady": [("1 s", 2), ("20 h", 50)],
            "falling": [("1 s", 1), ("20 h", 500)],
            "quiet": [("2 h", 500)],
        }
        for trend, ages in trends.items():
            insert(conn, trend, status="dead", fingerprint="aaaa0000aaaa0000")
            for ago, count in ages:
                fail(conn, trend, "aaaa0000aaaa0000", count, ago=ago)
        assert {group.kind: group.trend for group in queue.groups.list()} == {trend: trend for trend in trends}

    def test_strangers_deaths_are_grouped_by_the_last_line_without_its_particulars(self, queue, conn):
        said = [
            "Traceback\n  line 3\nTimeoutError: 'ada' at 10.0.0.7 took 30.5 s\n",
            "Traceback\n  line 9\nTimeoutError: 'bob' at 10.0.0.19 took 31 s",
            "no row 3f2b8c1e-1111-2222-3333-444455556666 of ada@example.com",
            "no row 9e0d7a55-aaaa-bbbb-cccc-444455556666 of bob@example.org",
        ]
        for error in said:
            insert(conn, "mail", status="dead", last_error=error)
        insert(conn, "mail", 2, status="failed")
        # a fingerprint that is of another failure: the lease says that a stranger wrote this one
        insert(conn, "mail", status="dead", last_error=said[0], fingerprint="aaaa0000aaaa0000", locked_by="node-1")
        groups = {group.error: group.sample for group in queue.groups.list()}
        assert sorted(groups.values()) == [[4, 3], [6, 5], [7, 2, 1]]
        assert groups["(no error text)"] == [6, 5]
        assert {len(group.key) for group in queue.groups.list()} == {16}

    def test_counts_end_at_a_cap_and_say_so(self, queue, conn):
        """OP-01: numbers that lie are worse than none."""
        insert(conn, "mail", CAP + 5, status="dead", fingerprint="aaaa0000aaaa0000")
        fail(conn, "mail", "aaaa0000aaaa0000", HISTORY + 5, ago="2 h")
        [group] = queue.groups.list()
        assert (group.counted("dead"), group.counted("failures"), group.counted("day_before")) == (
            "10,000+",
            "2,000+",
            "2,000+",
        )
        assert group.counted("last_hour") == "0"
        assert queue.groups.find("mail").counted("failures") == f"{HISTORY + 5:,}"

    def test_since_is_when_they_died(self, queue, conn):
        insert(conn, "mail", 2, status="dead", fingerprint="aaaa0000aaaa0000", updated_at="2020-01-01")
        insert(conn, "mail", 1, status="dead", fingerprint="aaaa0000aaaa0000")
        insert(conn, "mail", 1, status="dead", fingerprint="bbbb0000bbbb0000", updated_at="2020-01-01")
        assert [group.dead for group in queue.groups.list(since=datetime.now(UTC) - timedelta(hours=1))] == [1]
        with pytest.raises(InvalidOption, match="since is the naive datetime"):
            queue.groups.list(since=datetime(2020, 1, 1))  # noqa: DTZ001 - that is the point


class TestNames:
    @pytest.fixture(autouse=True)
    def groups(self, conn):
        for key in ("aaaa0000aaaa0000", "aaaa0000aaaa1111", "WorkerLost"):
            insert(conn, "mail", status="dead", fingerprint=key)
        insert(conn, "a:b", status="dead", fingerprint="cccc0000cccc0000")

    def test_as_much_of_it_as_is_unambiguous_will_do(self, queue):
        for name, kind, key in (
            ("mail:aaaa0000aaaa1", "mail", "aaaa0000aaaa1111"),
            ("aaaa0000aaaa0000", "mail", "aaaa0000aaaa0000"),
            ("mail:WorkerLost", "mail", "WorkerLost"),
            ("Work", "mail", "WorkerLost"),
            ("cc", "a:b", "cccc0000cccc0000"),
            ("a:b:cccc0000", "a:b", "cccc0000cccc0000"),
            ("a:b", "a:b", "cccc0000cccc0000"),
        ):
            group = queue.groups.find(name)
            assert (group.kind, group.key, group.dead) == (kind, key, 1)
        assert asyncio.run(queue.groups.find_async("cc")).id == "a:b:cccc0000"

    def test_what_is_none_or_several_is_said(self, queue):
        for name, said in (
            (
                "mail:aaaa",
                r"several groups: mail:aaaa0000aaaa0000, mail:aaaa0000aaaa1111; name one of them, or a whole kind",
            ),
            ("mail", r"several groups: .*mail:WorkerLost"),
            ("mail:77", r"there are: .*a:b:cccc0000"),
            ("%", r"there are"),
        ):
            with pytest.raises(UnknownGroup, match=said):
                queue.groups.find(name)


class TestPlan:
    """OP-01: the page of groups is an answer of the indexes, whatever the statistics say."""

    def faults(self, conn, params: dict[str, Any]) -> list[str]:
        said = SQL(psycopg.ClientCursor(conn).mogrify(query("failure_groups", "redrive"), params))
        plan = explain(conn, said, "force_custom_plan")
        parts = list(nodes(plan))
        indexes = {part["Index Name"] for part in parts if "Index Name" in part}
        found = [f"walks {part['Relation Name']}" for part in parts if part["Node Type"] == "Seq Scan"]
        found += [
            f"uses {name}"
            for name in indexes
            - {"jobs_dead_idx", "jobs_strange_idx", "jobs_retrying_idx", "failures_group_idx", "jobs_pkey"}
        ]
        return found + ([f"touches {touched(plan)} pages"] if touched(plan) > 12_000 else [])

    def test_three_hundred_groups_among_finished_jobs(self, db, conn):
        conn.execute("alter table redrive.jobs set (autovacuum_enabled = off)")
        conn.execute(
            "insert into redrive.jobs (kind, status, attempts, fingerprint, updated_at)"
            " select 'k' || i % 30, case i % 20 when 0 then 'dead' when 1 then 'pending' else 'succeeded' end,"
            " 1, case when i % 20 < 2 then lpad(to_hex(i % 300), 16, '0') end, now() from generate_series(1, 40000) i"
        )
        conn.execute(
            "insert into redrive.failures (job_id, kind, claim, attempt, outcome, failed_at, error_type, message,"
            " fingerprint) select i, 'k' || i % 30, 1, 1, 'dead', now(), 'E', 'm', lpad(to_hex(i % 300), 16, '0')"
            " from generate_series(1, 20000, 20) i"
        )
        with psycopg.connect(db, autocommit=True) as own:
            params = dict(listed("redrive", limit=50).params)
            assert self.faults(own, params) == []
            forget_statistics(own)
            assert self.faults(own, params) == []
            own.execute("vacuum analyze redrive.jobs, redrive.failures")
            assert self.faults(own, params) == []
