"""``redrive schedules``: no time without its zone, no database for a look ahead, an exit code for each mistake."""

from __future__ import annotations

import pytest

from redrive import Queue
from shell import answer, complaint, redrive

AFTER = "2026-10-31T12:00:00-04:00"
LOOK = ("schedules", "next", "30 1 * * *", "--timezone", "America/New_York", "--after", AFTER, "--count", "3")


def test_next_is_a_json_list_of_instants_in_utc_and_needs_no_database():
    assert answer(None, *LOOK) == ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z", "2026-11-03T06:30:00Z"]


def test_next_shows_local_time_and_utc_and_marks_a_change_of_clocks_ct_09():
    assert redrive(None, *LOOK).stdout == (
        "LOCAL (America/New_York)       UTC\n"
        "Sun 2026-11-01 01:30:00 -0400  2026-11-01T05:30:00Z\n"
        "Mon 2026-11-02 01:30:00 -0500  2026-11-02T06:30:00Z  clocks went back by 1 h\n"
        "Tue 2026-11-03 01:30:00 -0500  2026-11-03T06:30:00Z\n"
    )
    spring = ("schedules", "next", "30 2 * * *", "--timezone", "Europe/Berlin", "--after", "2026-03-28T12:00Z")
    first = redrive(None, *spring, "--count", "1").stdout.splitlines()[1]
    assert first == "Sun 2026-03-29 03:00:00 +0200  2026-03-29T01:00:00Z  clocks went forward by 1 h"


def test_next_of_an_interval_counts_from_after_and_the_default_zone_is_shown():
    words = ("schedules", "next", "--every", "90m", "--after", "2030-01-31T09:00Z", "--count", "2")
    assert answer(None, *words) == ["2030-01-31T10:30:00Z", "2030-01-31T12:00:00Z"]
    assert redrive(None, *words).stdout.startswith("LOCAL (UTC)")
    assert len(answer(None, "schedules", "next", "@daily")) == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("0 0 31 2 *",), "there is no such day in these months"),
        (("* * *",), "of 3 fields: write five fields"),
        (("@daily", "--timezone", "Mars"), "timezone is 'Mars', which nobody knows"),
        (("@daily", "--after", "2026-01-01T00:00"), "has no zone"),
        ((), "Give CRON or --every, and only one of them"),
        (("@daily", "--every", "5m"), "Give CRON or --every, and only one of them"),
        (("nightly",), "'nightly' is no cron text: give one such as '0 3 * * *' or @daily, or --every 90m. "),
        (("nightly",), "`redrive schedules list` shows when each schedule runs next"),
        (("5",), "of 1 field: write five fields"),
        (("@every",), "use --every"),
        (("--every", "0"), "--every is 0 s: must be from 1 s"),
        (("--every", "x"), "--every is 'x': give seconds"),
    ],
)
def test_what_makes_no_sense_is_a_wrong_use(words, said):
    assert said in complaint(redrive(None, "schedules", "next", *words, code=2))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "when? Give CRON, --every or --at, and only one of them"),
        (("@daily", "--at", "2h"), "when? Give CRON, --every or --at, and only one of them"),
        (("--every", "soon"), "--every is 'soon': give seconds, or a number with a unit"),
        (("--every", "0.1s"), "--every is 0.1 s: must be from 1 s to a hundred years"),
        (("@daily", "--age", "x"), "--age is 'x': give seconds"),
        (("@daily", "--max-attempts", "0"), "--max-attempts is 0: must be a whole number from 1"),
        (("@daily", "--timezone", "every"), "--timezone is 'every', which nobody knows"),
        (("@every",), "cron is '@every': use --every"),
        (("@daily", "--reason", "\udcff"), "--reason is '\\udcff': NUL"),
    ],
)
def test_what_makes_no_sense_names_the_flag_and_not_what_a_program_calls_it(db, words, said):
    assert complaint(redrive(db, "schedules", "add", "nightly", "report", *words, code=2)).startswith(said)


def test_a_schedule_from_the_shell_from_beginning_to_end(db, conn):
    assert "no schedules: add one" in redrive(db, "schedules", "list").stderr
    words = ("nightly", "report", "0 3 * * *", "--timezone", "Europe/Berlin", "--payload", '{"a": 1}')
    said = redrive(db, "schedules", "add", *words, "--overlap", "queue-one", "--missed", "all", "--most", 5).stdout
    assert said.startswith("schedule nightly: report, 0 3 * * *, zone Europe/Berlin; next ")
    assert " 03:00:00 +0" in said
    [row] = answer(db, "schedules", "list")
    assert (row["name"], row["payload"], row["overlap"], row["most"]) == ("nightly", {"a": 1}, "queue one", 5)
    assert (row["state"], row["timezone"]) == ("active", "Europe/Berlin")
    words = ("schedules", "pause", "nightly", "--by", "ann", "--reason", "audit")
    assert redrive(db, *words).stdout.endswith("zone Europe/Berlin; paused\n")
    listed = redrive(db, "schedules", "list").stdout
    assert "Europe/Berlin" in listed
    assert "paused now by ann: audit" in listed or "ago by ann: audit" in listed
    assert answer(db, "schedules", "run", "nightly")["created"]
    assert redrive(db, "schedules", "run", "nightly").stdout == "job 2 enqueued\n"
    assert answer(db, "schedules", "resume", "nightly")["state"] == "active"
    slots = answer(db, "schedules", "slots", "nightly")
    assert [slot["reason"] for slot in slots] == ["run by hand"] * 2
    assert "run by hand" in redrive(db, "schedules", "slots", "nightly").stdout
    redrive(db, "schedules", "add", "often", "report", "--every", "5m")
    redrive(db, "schedules", "add", "once", "report", "--at", "2100-01-31T09:00+01:00")
    table = redrive(db, "schedules", "list").stdout
    assert "every 5 min" in table
    assert "once, 2100-01-31 08:00:00 +0000" in table
    assert redrive(db, "schedules", "remove", "nightly").stdout == "schedule nightly removed\n"
    assert [row["name"] for row in answer(db, "schedules", "list")] == ["often", "once"]


def test_mistakes_have_their_exit_codes(db, conn):
    assert "no schedule 'x'; there are none" in complaint(redrive(db, "schedules", "pause", "x", code=1))
    assert "no schedule 'x'; there are none" in complaint(redrive(db, "schedules", "slots", "x", code=1))
    redrive(db, "schedules", "add", "new", "k", "@yearly")
    assert "no slots of schedule 'new'" in complaint(redrive(db, "schedules", "slots", "new", code=1))
    assert "cron is '61 * * * *'" in complaint(redrive(db, "schedules", "add", "x", "k", "61 * * * *", code=2))
    assert "it is no JSON" in redrive(db, "schedules", "add", "x", "k", "@daily", "--payload", "{", code=2).stderr
    redrive("postgresql://nobody@127.0.0.1:1/x", "schedules", "list", code=3)
    conn.execute("insert into redrive.schedules (name, kind, cron, owner) values ('s', 'k', '@daily', 'code')")
    assert "one of the code's" in complaint(redrive(db, "schedules", "remove", "s", code=2))
    conn.execute("drop table redrive.schedules")
    assert "run `redrive migrate`" in complaint(redrive(db, "schedules", "list", code=4))


def test_health_tells_of_a_late_schedule_and_of_one_that_makes_no_sense(db, conn):
    """OP-08."""
    queue = Queue(db)
    queue.schedules.add("good", "k", "@yearly")
    queue.schedules.add("paused", "k", "@yearly")
    queue.schedules.pause("paused")
    assert answer(db, "health", "--workers", 0)["healthy"]
    queue.schedules.add("late", "k", "@yearly")
    conn.execute("update redrive.schedules set next_run_at = now() - interval '5 min' where name = 'late'")
    conn.execute("update redrive.schedules set updated_at = now() - interval '1 year'")
    conn.execute(
        "insert into redrive.schedules (name, kind, cron, timezone, problem) values ('bad', 'k', '@daily', 'Mars',"
        " 'timezone is ''Mars'', which nobody knows')"
    )
    conn.execute("insert into redrive.schedules (name, kind, cron) values ('new', 'k', '@daily')")
    problems = answer(db, "health", "--workers", 0, code=1)["problems"]
    assert problems == [
        "schedule bad can't be planned: timezone is 'Mars', which nobody knows",
        "schedule late is due for 5 min and no worker has enqueued it",
    ]
    listed = redrive(db, "schedules", "list").stdout
    assert "broken" in listed
    conn.execute("drop table redrive.schedules")
    assert answer(db, "health", "--workers", 0)["healthy"], "the schema of the release before has none"
    queue.close()


def test_what_a_stranger_wrote_is_shown_and_not_obeyed(db, conn):
    conn.execute(
        "insert into redrive.schedules (name, kind, cron, timezone) values (E'a\\x1b[31m', 'k', '* * * *', 'No/Where')"
    )
    assert "\x1b" not in redrive(db, "schedules", "list").stdout
    assert answer(db, "schedules", "list")[0]["timezone"] == "No/Where"


def test_secrets_in_a_payload_are_not_shown_op_04(db):
    words = ("s", "k", "@daily", "--payload", '{"password": "hunter2", "to": "ann"}')
    assert "hunter2" not in redrive(db, "schedules", "add", *words, "--json").stdout
    [row] = answer(db, "schedules", "list")
    assert row["payload"]["to"] == "ann"
    assert "hunter2" not in str(row)
