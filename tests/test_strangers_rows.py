"""Rows that strangers wrote, in a database that spells dates its own way: what operators ask is answered."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import NoneType

import pytest
from click.testing import CliRunner

from redrive import Queue
from redrive.cli import cli

COMMANDS = (
    "jobs",
    "jobs --counts",
    "show 1",
    "kinds",
    "schedules list",
    "schedules list --json",
    "schedules slots s",
    "batches",
    "dead",
    "audit",
    "workers",
    "health",
    "breakers list",
    "topics list",
    "requeues list",
    "doctor",
)


class TestWhateverStrangersWrote:
    """Rows by hand, and a database whose dates are spelt otherwise: what operators ask is answered."""

    @pytest.fixture
    def odd(self, db, conn):
        name = conn.info.dbname
        conn.execute(f"alter database {name} set datestyle = 'SQL, DMY'")
        conn.execute(f"alter database {name} set intervalstyle = 'sql_standard'")
        conn.execute(
            "insert into redrive.jobs (kind, payload, run_at, expires_at) values ('a', '{}', '-infinity', 'infinity')"
        )
        conn.execute("insert into redrive.kinds (kind, paused_at, paused_until) values ('a', now(), '8999-01-01')")
        conn.execute("insert into redrive.schedules (name, kind, every, anchor) values ('s', 'a', '1 day', now())")
        conn.execute("update redrive.schedules set next_run_at = '8999-01-01', missed_age = '1 day 02:00'")
        conn.execute(
            "insert into redrive.batches (name, follower, created_at, ended_at)"
            " values ('b', jsonb_build_object('kind', 'a'), '-infinity', 'infinity')"
        )
        queue = Queue(db)
        yield queue
        queue.close()

    def test_they_are_read(self, odd):
        [job] = [odd.get(1)]
        assert job is not None
        assert (job.run_at.year, job.expires_at.year) == (1, 9999)
        assert [(kind.paused, kind.paused_until.year) for kind in odd.kinds.list()] == [(True, 8999)]
        [schedule] = odd.schedules.list()
        assert (schedule.every, schedule.age) == (timedelta(days=1), timedelta(days=1, hours=2))
        assert schedule.next_run_at.year == 8999
        assert [batch.ended_at.year for batch in odd.batches.list()] == [9999]
        assert odd.breakers.open("a", reason="by hand").state == "open"
        assert [breaker.state for breaker in odd.breakers.list()] == ["open"]
        assert odd.kinds.limit("a", running=1).running_most == 1
        assert odd.kinds.pause("a").paused
        assert odd.kinds.resume("a")
        assert odd.schedules.pause("s").state == "paused"
        assert odd.cancel(1) == {1: "pending"}
        assert len(odd.audit.list()) > 3

    def test_from_async_code_too(self, odd):
        async def look() -> None:
            assert len(await odd.kinds.list_async()) == 1
            assert len(await odd.schedules.list_async()) == 1
            assert len(await odd.batches.list_async()) == 1

        asyncio.run(look())

    def test_every_command_reads_them(self, db, odd):
        for words in COMMANDS:
            shown = CliRunner().invoke(cli, words.split(), prog_name="redrive", env={"DATABASE_URL": db})
            assert isinstance(shown.exception, SystemExit | NoneType), (words, shown.exception)
            assert shown.exit_code in (0, 1), (words, shown.output)
