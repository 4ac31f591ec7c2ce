"""``redrive enqueue``."""

from __future__ import annotations

import pytest

from shell import answer, complaint, redrive

APP = """
from redrive import Queue
queue = Queue()

@queue.handler("charge", max_attempts=1, priority=2)
def charge(payload): ...
"""


def row(conn, job_id):
    columns = "kind, payload, priority, max_attempts, key, lane, extract(epoch from run_at - created_at)::int as delay"
    return conn.execute(f"select {columns} from redrive.jobs where id = %s", [job_id]).fetchone()


def test_it_prints_the_id(db, conn):
    assert redrive(db, "enqueue", "mail", '{"to": "a"}').stdout == "job 1 enqueued\n"
    assert row(conn, 1) == ("mail", {"to": "a"}, 5, 5, None, "", 0)


def test_in_json_it_says_whether_the_job_is_new(db):
    assert answer(db, "enqueue", "mail", "--key", "k") == {"id": 1, "kind": "mail", "created": True, "replaced": False}
    assert answer(db, "enqueue", "mail", "--key", "k") == {"id": 1, "kind": "mail", "created": False, "replaced": False}
    assert redrive(db, "enqueue", "mail", "--key", "k").stdout == "job 1 has the key k already: nothing enqueued\n"


def test_every_option_arrives(db, conn):
    flags = [
        "--delay",
        "2h",
        "--priority",
        "1",
        "--max-attempts",
        "9",
        "--key",
        "k",
        "--lane",
        "eu",
        "--expires-in",
        "1d",
    ]
    redrive(db, "enqueue", "mail", "[1, null]", *flags)
    assert row(conn, 1) == ("mail", [1, None], 1, 9, "k", "eu", 7200)
    assert conn.execute("select expires_at - created_at > '23 h' from redrive.jobs").fetchone() == (True,)


def test_times_are_dates_with_a_zone_or_spans_from_now(db, conn):
    redrive(db, "enqueue", "mail", "--run-at", "2999-01-31T09:00+01:00", "--expires-at", "2999-02-01T00:00Z")
    redrive(db, "enqueue", "mail", "--run-at", "90m")
    found = conn.execute("select run_at = '2999-01-31 08:00+00', expires_at = '2999-02-01+00' from redrive.jobs")
    assert found.fetchone() == (True, True)
    assert row(conn, 2)[-1] == 5400


def test_the_payload_can_come_from_stdin(db, conn):
    redrive(db, "enqueue", "mail", "-", stdin='{"to": "ä\\n"}\n')
    assert row(conn, 1)[1] == {"to": "ä\n"}


def test_with_the_application_the_handlers_attempts_and_priority_hold(db, conn, tmp_path, monkeypatch):
    (tmp_path / "enqueue_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    redrive(db, "enqueue", "charge", "--app", "enqueue_app:queue")
    assert row(conn, 1)[2:4] == (2, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mail", "{"], "it is no JSON"),
        (["mail", "{'to': 1}"], "quote it for the shell"),
        (["mail", '{"n": NaN}'], "payload.n"),
        (["mail", '{"n": "\\u0000"}'], "payload.n holds a NUL"),
        (["mail", "--delay", "soon"], "delay is 'soon': give seconds, or a number with a unit"),
        (["mail", "--delay", "-5"], "delay is -5 s: must be from 0"),
        (["mail", "--priority", "10"], "10 is not in the range 0<=x<=9"),
        (["mail", "--max-attempts", "0"], "--max-attempts is 0: must be a whole number from 1"),
        (["mail", "--delay", "5", "--run-at", "2999-01-01T00:00Z"], "--delay and --run-at were both given"),
        (["mail", "--run-at", "2030-01-31T09:00"], "has no zone: write 2030-01-31T09:00:00"),
        (["mail", "--run-at", "tomorrow"], "give a span like 90s, 2h, 7d, or a date with its zone"),
        (["mail", "--key", ""], "key is empty"),
        ([""], "kind is empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_enqueued_is_a_wrong_value_with_the_remedy(db, conn, words, said):
    assert said in complaint(redrive(db, "enqueue", *words, code=2))
    assert conn.execute("select count(*) from redrive.jobs").fetchone() == (0,)
