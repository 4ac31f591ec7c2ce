"""Schedules as users hold them: what is given is checked before it is written, and who owns what is respected."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from redrive import InvalidOption, InvalidPayload, Queue
from redrive.errors import UnknownSchedule

SOON = datetime(2100, 1, 1, 9, tzinfo=UTC)


@pytest.fixture
def queue(db):
    queue = Queue(db)
    queue.handler("report", priority=2, max_attempts=3)(lambda payload: None)
    yield queue
    queue.close()


def test_a_schedule_is_added_listed_and_removed(queue):
    made = queue.schedules.add("nightly", "report", "0 3 * * *", timezone="Europe/Berlin", payload={"a": [1]})
    assert (made.name, made.kind, made.cron, made.timezone) == ("nightly", "report", "0 3 * * *", "Europe/Berlin")
    assert (made.payload, made.owner, made.state) == ({"a": [1]}, "operator", "active")
    assert (made.priority, made.max_attempts) == (2, 3), "its handler's"
    assert (made.missed, made.most, made.age, made.overlap) == ("latest", 100, None, "skip")
    assert made.next_run_at.astimezone(UTC).hour in (1, 2)
    assert queue.schedules.list() == [made]
    queue.schedules.remove("nightly")
    assert queue.schedules.list() == []


def test_said_again_it_changes_nothing_and_changed_it_is_planned_anew(queue, conn):
    made = queue.schedules.add("s", "report", every="5m")
    assert made.next_run_at - made.anchor == timedelta(minutes=5)
    assert queue.schedules.add("s", "report", every=300) == made
    other = queue.schedules.add("s", "report", every=timedelta(minutes=5), payload={"x": 1}, overlap="queue-one")
    assert (other.next_run_at, other.overlap) == (made.next_run_at, "queue one")
    assert other.updated_at > made.updated_at
    changed = queue.schedules.add("s", "report", "@daily")
    assert (changed.every, changed.next_run_at) == (None, None), "the next worker plans it"
    once = queue.schedules.add("once", "report", at=SOON, missed="all", most=5, age="6h")
    assert (once.next_run_at, once.missed, once.most, once.age) == (SOON, "all", 5, timedelta(hours=6))
    begun = queue.schedules.add("later", "report", every="1h", anchor=SOON)
    assert begun.next_run_at == SOON


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"cron": "61 * * * *"}, "cron is '61 * * * *': the minute makes no sense"),
        ({"cron": "0 0 30 2 *"}, "no such day"),
        ({"cron": "@daily", "timezone": "Europe/Berln"}, "did you mean 'Europe/Berlin'"),
        ({}, "give exactly one of these"),
        ({"cron": "@daily", "every": 60}, "give exactly one of these"),
        ({"every": 0.5}, "every is 0.5 s: must be from 1 s"),
        ({"every": "soon"}, "every is 'soon': give seconds"),
        ({"every": True}, "every is True"),
        ({"at": SOON.replace(tzinfo=None)}, "at is datetime.datetime(2100, 1, 1, 9, 0): give a datetime with its zone"),
        ({"cron": "@daily", "missed": "none"}, "missed is 'none': must be skip, latest or all"),
        ({"cron": "@daily", "overlap": "wait"}, "overlap is 'wait': must be skip, queue one or allow"),
        ({"cron": "@daily", "most": 0}, "most is 0: must be a whole number from 1 to 1000"),
        ({"cron": "@daily", "age": -1}, "age is -1 s"),
        ({"cron": "@daily", "priority": 11}, "priority is 11"),
        ({"cron": "@daily", "overlop": "skip"}, "unknown option 'overlop': did you mean 'overlap'?"),
        ({"cron": "@daily", "name": ""}, "name is empty"),
        ({"cron": "@daily", "name": "x" * 1001}, "at most 1000"),
        ({"cron": "@daily", "kind": 5}, "kind is 5: give text"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_sql_with_value_and_remedy(given, complaint):
    queue = Queue("postgresql://nobody@127.0.0.1:1/nowhere")
    with pytest.raises(InvalidOption) as refused:
        queue.schedules.add(**{"name": "s", "kind": "report", **given})
    assert complaint in str(refused.value)


def test_a_payload_that_cannot_be_stored_is_refused_and_one_of_a_class_is_written(queue):
    with pytest.raises(InvalidPayload):
        queue.schedules.add("s", "report", "@daily", payload={"a": {1, 2}})

    @dataclass
    class Shop:
        number: int

    assert queue.schedules.add("s", "report", "@daily", payload=Shop(4)).payload == {"number": 4}


def test_a_schedule_is_part_of_the_callers_transaction(queue, conn):
    with conn.transaction(force_rollback=True):
        queue.schedules.add("s", "report", "@daily", connection=conn)
        queue.schedules.pause("s", connection=conn)
        assert queue.schedules.run("s", connection=conn).created
    assert queue.schedules.list() == []
    assert conn.execute("select count(*) from redrive.jobs").fetchone() == (0,)


@pytest.mark.parametrize("said", [{"by": "a\0b"}, {"reason": "\udcff"}])
def test_a_pause_with_a_text_that_can_not_be_stored_is_refused(queue, said):
    queue.schedules.add("nightly", "k", "@daily")
    with pytest.raises(InvalidOption, match="NUL and lone surrogates can't be stored"):
        queue.schedules.pause("nightly", **said)
    assert [row.state for row in queue.schedules.list()] == ["active"]


def test_pause_says_by_whom_and_why_and_resume_plans_anew(queue):
    queue.schedules.add("s", "report", "@hourly")
    paused = queue.schedules.pause("s", by="ann", reason="audit")
    assert (paused.state, paused.paused_by, paused.paused_reason) == ("paused", "ann", "audit")
    again = queue.schedules.pause("s", by="bob")
    assert (again.paused_at, again.paused_by) == (paused.paused_at, "bob")
    assert queue.schedules.add("s", "report", "@hourly", payload={"n": 1}).state == "paused"
    resumed = queue.schedules.resume("s")
    assert (resumed.state, resumed.paused_by, resumed.paused_reason) == ("active", None, None)


def test_run_enqueues_at_once_and_counts_as_the_last_run(queue, conn):
    queue.schedules.add("s", "report", "@yearly", payload={"n": 1}, lane="x")
    queue.schedules.pause("s")
    made = queue.schedules.run("s")
    job = queue.get(made.id)
    assert (job.kind, job.payload, job.priority, job.lane) == ("report", {"n": 1}, 2, "x")
    assert job.metadata == {"schedule": "s"}
    [row] = queue.schedules.list()
    assert (row.last_job_id, row.last_outcome, row.last_reason) == (made.id, "enqueued", "run by hand")


@pytest.mark.parametrize("method", ["remove", "pause", "resume", "run"])
def test_a_name_that_nobody_has_is_told_with_the_nearest(queue, method):
    with pytest.raises(UnknownSchedule, match=r"no schedule 's'; there are none"):
        getattr(queue.schedules, method)("s")
    queue.schedules.add("nightly", "report", "@daily")
    with pytest.raises(UnknownSchedule, match=r"no schedule 'nigtly'; did you mean 'nightly'\?"):
        getattr(queue.schedules, method)("nigtly")


def test_the_async_twins_do_the_same(queue, db):
    async def turn():
        conn = await psycopg.AsyncConnection.connect(db, autocommit=True)
        async with conn:
            report = queue.handlers.get("report")
            made = await queue.schedules.add_async("s", report, "@daily", connection=conn)
            assert made.kind == "report"
            assert (await queue.schedules.pause_async("s", by="ann")).paused_by == "ann"
            assert (await queue.schedules.resume_async("s")).state == "active"
            assert (await queue.schedules.run_async("s", connection=conn)).created
            assert [row.name for row in await queue.schedules.list_async()] == ["s"]
            await queue.schedules.remove_async("s")
            with pytest.raises(UnknownSchedule):
                await queue.schedules.remove_async("s", connection=conn)

    asyncio.run(turn())


def test_what_is_the_codes_is_not_an_operators_to_change_or_remove(queue, conn):
    conn.execute("insert into redrive.schedules (name, kind, cron, owner) values ('s', 'report', '@daily', 'code')")
    with pytest.raises(InvalidOption, match="'s' is one of the code's: change it there"):
        queue.schedules.add("s", "report", "@hourly")
    with pytest.raises(InvalidOption, match="'s' is one of the code's: remove it there, or pause it"):
        queue.schedules.remove("s")
    assert queue.schedules.pause("s").state == "paused"
    conn.execute("update redrive.schedules set disabled_at = now()")
    queue.schedules.remove("s")
    assert queue.schedules.list() == []


def test_the_decorator_stands_above_the_handlers_and_leaves_it_a_function():
    queue = Queue()

    @queue.schedule(every="5m", name="often", payload={"n": 1}, overlap="allow")
    @queue.schedule("0 3 * * *", timezone="Europe/Berlin", missed="all", most=3)
    @queue.handler("report", priority=1)
    def report(payload):
        return payload["n"]

    assert report({"n": 3}) == 3
    nightly, often = queue.schedules.of_code()
    assert (nightly.name, nightly.kind, nightly.cron, nightly.timezone) == (
        "report",
        "report",
        "0 3 * * *",
        "Europe/Berlin",
    )
    assert (nightly.missed, nightly.most, nightly.priority) == ("all", 3, 1)
    assert (often.name, often.every, often.payload, often.overlap) == (
        "often",
        timedelta(minutes=5),
        '{"n":1}',
        "allow",
    )


def test_a_decorator_that_makes_no_sense_is_refused_when_it_is_read():
    queue = Queue()
    handler = queue.handler("report")(lambda payload: None)
    queue.schedule("@daily")(handler)
    with pytest.raises(InvalidOption, match=r"there is a schedule 'report' already: .* name=\.\.\."):
        queue.schedule("@hourly")(handler)
    with pytest.raises(InvalidOption, match=r"put @queue.schedule above @queue.handler"):
        queue.schedule("@hourly")(lambda payload: None)
    with pytest.raises(InvalidOption, match="cron is 'daily'"):
        queue.schedule("daily")(handler)
    with pytest.raises(InvalidOption, match="unknown option 'at'"):
        queue.schedule("@daily", name="x", at=SOON)(handler)
