"""What is checked before any SQL, and what the statements for jobs do to the tables."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, tzinfo

import psycopg
import pytest
from psycopg.rows import dict_row

from redrive import InvalidOption, InvalidPayload, store
from redrive import rows as rows_module
from redrive.ended import Ended, requeue, requeue_preview
from redrive.sql import query
from redrive.statements import named, run

NOON = datetime(2030, 6, 1, 12, 0, tzinfo=UTC)
NAIVE = NOON.replace(tzinfo=None)


class Nowhere(tzinfo):
    """A zone that does not know its offset: what looks aware is naive all the same."""

    def utcoffset(self, at: datetime | None) -> None:
        return None


def dead(conn: psycopg.Connection, rows: int, error: str = "boom", kind: str = "mail", status: str = "dead") -> None:
    conn.execute(
        "INSERT INTO redrive.jobs (kind, status, attempts, last_error)"
        " SELECT %s, %s, 5, %s FROM generate_series(1, %s)",
        (kind, status, error, rows),
    )


# -- options


def test_defaults_are_those_of_the_table(conn):
    run(conn, store.insert("redrive", "mail", None, None, store.options()))
    conn.execute("INSERT INTO redrive.jobs (kind) VALUES ('mail')")
    with conn.cursor(row_factory=dict_row) as cursor:
        ours, plain = cursor.execute("SELECT * FROM redrive.jobs ORDER BY id").fetchall()
    for row in (ours, plain):
        assert row["run_at"] <= datetime.now(UTC)
        for name in ("id", "run_at", "created_at", "updated_at"):
            del row[name]
    assert ours == plain


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"delay": 5, "run_at": NOON}, "delay and run_at were both given"),
        ({"expires_in": 5, "expires_at": NOON}, "expires_at and expires_in were both given"),
        ({"priority": 10}, "priority is 10: must be a whole number from 0"),
        ({"priority": -1}, "priority is -1: must"),
        ({"priority": True}, "priority is True: must"),
        ({"priority": "5"}, "priority is '5': must"),
        ({"max_attempts": 0}, "max_attempts is 0: must be a whole number from 1"),
        ({"max_attempts": 2**31}, "max_attempts is 2147483648: must"),
        ({"max_attempts": 1.5}, "max_attempts is 1.5: must"),
        ({"run_at": NAIVE}, "run_at is the naive datetime 2030-06-01T12:00:00: say in which zone"),
        ({"run_at": datetime(2030, 6, 1, tzinfo=Nowhere())}, "run_at is the naive datetime"),
        ({"expires_at": NAIVE}, "expires_at is the naive datetime"),
        ({"run_at": date(2030, 6, 1)}, "run_at is datetime.date"),
        ({"run_at": "2030-06-01"}, "run_at is '2030-06-01': give an aware datetime"),
        ({"delay": -1}, "delay is -1 s: must be from 0"),
        ({"delay": timedelta(days=-1)}, "delay is -86400 s: must be from 0"),
        ({"delay": "soon"}, "delay is 'soon': give seconds"),
        ({"delay": float("nan")}, "delay is nan: give seconds"),
        ({"delay": 1e12}, r"delay is 1e\+12 s: must be"),
        ({"expires_in": -1}, "expires_in is -1 s: must"),
        ({"lane": 5}, "lane is 5: give text"),
        ({"lane": "a\0"}, r"lane is 'a\\x00': NUL"),
        ({"metadata": [1]}, r"metadata is \[1\]: give a dict"),
        ({"metadata": {"at": NOON}}, "metadata.at is of type datetime"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name_and_value(given, complaint):
    """CT-10: naive datetimes among them."""
    with pytest.raises(InvalidOption, match=f"^{complaint}"):
        store.options(**given)


def test_a_wait_is_seconds_a_timedelta_or_text():
    assert store.options(delay=timedelta(minutes=1)) == store.options(delay=60) == store.options(delay="1m")


@pytest.mark.parametrize("what", ["kind", "lane", "key"])
@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (None, "is None: give text"),
        (b"mail", "is b'mail': give text"),
        ("a\0b", r"is 'a\\x00b': NUL and lone surrogates can't be stored"),
        ("\ud800", r"is '\\ud800': NUL and lone surrogates can't be stored"),
        ("x" * 1001, "is 'x{40}'… of 1001 bytes: at most 1000; a hash of it would do"),
        ("ü" * 1000, "is 'ü{40}'… of 2000 bytes: at most 1000"),
        ("\U0001f600" * 1000, "of 4000 bytes: at most 1000"),
    ],
)
def test_a_name_that_cannot_be_stored_is_refused_before_any_sql_ln_04(what, value, complaint):
    """LN-04: also one that is short in characters and long in bytes."""
    with pytest.raises(InvalidOption, match=f"^{what} .*{complaint}|^{what} {complaint}"):
        store.name(value, what)


def test_an_empty_name_is_one_for_lanes_only():
    assert store.name("", "lane", empty=True) == ""
    with pytest.raises(InvalidOption, match=r"^kind is empty$"):
        store.name("", "kind")


def test_the_longest_names_fit_the_indexes_even_where_they_cannot_be_compressed(conn):
    """LN-04: an index row holds 2,700 bytes, and random text stays as long as it is."""
    dice = random.Random(7)
    kind, lane, key = ("".join(chr(dice.randrange(0x1F300, 0x1F5FF)) for _ in range(250)) for _ in range(3))
    how = store.options(lane=lane, expires_in=60)
    [row] = run(conn, store.insert("redrive", kind, {}, key, how))
    assert run(conn, store.get("redrive", row.id))[0].lane == lane
    assert conn.execute("SELECT kind, key FROM redrive.jobs").fetchone() == (kind, key)


# -- many at once


def test_the_two_roads_of_a_batch_make_identical_rows(conn):
    """COPY and INSERT, whatever the names and payloads hold."""
    payloads = [
        None,
        {"path": "C:\\temp\\new", "text": "tab\there\nnewline\r\nand \\. and \\N", "quote": '"'},
        "\u2028 \u00e9\u00df \U0001f4e8",
        ["\\", "\\\\", "\t", "\n", "\b\f\v", "\x7f"],
        {"ключ\t\n": {"\\": 1.5}},
        10**30,
    ]
    names = [
        "plain",
        "tab\tnewline\n\r back\\slash",
        "\\.",
        "\\N",
        "ünï\u2028\U0001f4e8",
        " spaces ",
        "{brace} %s 'q' \"d\"",
    ]
    how = store.options(priority=2, max_attempts=7)
    for kind in names:
        for lane in ("", *names):
            chunk = list(rows_module.encoded(payloads, None))
            how = store.options(priority=2, max_attempts=7, lane=lane)
            assert rows_module.copyable(chunk, how)
            run(conn, rows_module.insert_many("redrive", kind, chunk, how))
            with conn.cursor().copy(query("copy_jobs", "redrive")) as copy:
                copy.write(rows_module.copy_text(kind, chunk, how))
    [[rows, distinct, kinds]] = conn.execute(
        "SELECT count(*), count(DISTINCT same), count(DISTINCT kind) FROM (SELECT kind,"
        " to_jsonb(j) - '{id,run_at,created_at,updated_at}'::text[] AS same FROM redrive.jobs j) compared"
    )
    assert (rows, distinct, kinds) == (2 * len(names) * (len(names) + 1) * len(payloads), rows / 2, len(names))
    assert {row[0] for row in conn.execute("SELECT kind FROM redrive.jobs")} == set(names)


@pytest.mark.parametrize(
    ("more", "keys"),
    [({"delay": 1}, None), ({"run_at": NOON}, None), ({"expires_in": 1}, None), ({"metadata": {}}, None), ({}, "k")],
)
def test_what_needs_the_databases_clock_or_a_key_is_not_copied(more, keys):
    chunk = list(rows_module.encoded([{}], keys and (lambda payload: keys)))
    assert not rows_module.copyable(chunk, store.options(**more))


def test_the_error_of_a_batch_names_the_place():
    with pytest.raises(InvalidPayload, match=r"^payloads\[2\]: payload.at is of type datetime") as caught:
        list(rows_module.encoded([{}, {}, {"at": NOON}], None))
    assert caught.value.path == "payload.at"
    with pytest.raises(InvalidOption, match=r"^payloads\[1\]: key is None: give text"):
        list(rows_module.encoded([{"k": "a"}, {}], lambda payload: payload.get("k")))


def test_an_error_of_the_callers_own_key_function_is_left_as_it_is():
    with pytest.raises(KeyError, match=r"^'k'$"):
        list(rows_module.encoded([{}], lambda payload: payload["k"]))


# -- what operators ask


def test_jobs_are_listed_newest_first_by_page(conn):
    dead(conn, 5)
    first = run(conn, store.list_jobs("redrive", limit=2))
    assert [job.id for job in first] == [5, 4]
    assert [job.id for job in run(conn, store.list_jobs("redrive", limit=9, before=4))] == [3, 2, 1]


def test_jobs_are_found_by_state_kind_key_and_words_of_the_error(conn):
    dead(conn, 1, error="100% of_disk used\\")
    dead(conn, 1, error="1000 of disk used", kind="export", status="failed")
    conn.execute("INSERT INTO redrive.jobs (kind, key) VALUES ('mail', 'k')")

    def ids(**which: str) -> list[int]:
        return [job.id for job in run(conn, store.list_jobs("redrive", **which))]

    assert ids(status="dead") == [1]
    assert ids(kind="export") == [2]
    assert ids(key="k") == [3]
    assert ids(error="OF") == [2, 1]
    assert ids(error="100%") == [1]
    assert ids(error="of_d") == [1]
    assert ids(error="used\\") == [1]
    with pytest.raises(InvalidOption, match="status is 'lost': must be one of pending, running"):
        store.list_jobs("redrive", status="lost")


def test_a_row_comes_back_whole(conn):
    how = store.options(run_at=NOON, lane="eu", metadata={"trace": "x"}, priority=0, expires_at=NOON)
    [row] = run(conn, store.insert("redrive", "mail", {"a": [1]}, "k", how))
    [job] = run(conn, store.get("redrive", row.id))
    assert (job.kind, job.payload, job.key, job.lane, job.run_at) == ("mail", {"a": [1]}, "k", "eu", NOON)
    assert (job.status, job.priority, job.metadata, job.expires_at) == ("pending", 0, {"trace": "x"}, NOON)
    assert run(conn, store.get("redrive", 999)) == []


def test_requeue_gives_a_fresh_budget_and_runs_at_once(conn):
    conn.execute(
        "INSERT INTO redrive.jobs (kind, status, attempts, claims, crashes, last_error, run_at, expires_at, key,"
        " locked_by) VALUES ('mail', 'dead', 5, 7, 2, 'boom', now() + interval '1 day', now(), 'k', 'w')"
    )
    [batch] = run(conn, requeue("redrive", Ended(), after=0, last=10))
    [job] = run(conn, store.get("redrive", *batch.ids))
    assert (job.status, job.attempts, job.crashes, job.last_error, job.locked_by) == ("pending", 0, 0, None, None)
    assert (job.claims, job.key, job.expires_at) == (7, None, None)
    assert datetime.now(UTC) - job.run_at < timedelta(minutes=1)


def test_requeue_moves_what_is_meant_and_nothing_else(conn):
    dead(conn, 2)
    dead(conn, 2, kind="export")
    dead(conn, 2, error="other")
    dead(conn, 2, error="cancelled: by hand", status="failed")
    conn.execute("INSERT INTO redrive.jobs (kind, status) VALUES ('mail', 'pending'), ('mail', 'running')")

    def ids(which: Ended) -> list[int]:
        with conn.transaction(force_rollback=True):
            [preview] = run(conn, requeue_preview("redrive", which))
            [batch] = run(conn, requeue("redrive", which, after=0, last=preview.last_id))
            assert preview.jobs == len(batch.ids)
            return batch.ids

    assert ids(Ended()) == [1, 2, 3, 4, 5, 6]
    assert ids(Ended(ids=[2, 7, 9, 10])) == [2]
    assert ids(Ended(kind="export")) == [3, 4]
    assert ids(Ended(error="OTHER")) == [5, 6]
    assert ids(Ended(statuses=("failed",))) == [7, 8]
    assert ids(Ended(since=datetime.now(UTC) + timedelta(hours=1))) == []
    assert ids(Ended(until=datetime.now(UTC) + timedelta(hours=1), kind="export")) == [3, 4]
    assert ids(Ended(ids=[])) == []
    with pytest.raises(InvalidOption, match="status is 'running': only dead and failed jobs are sent back"):
        requeue_preview("redrive", Ended(statuses=("running",)))
    with pytest.raises(InvalidOption, match="since is the naive datetime"):
        requeue_preview("redrive", Ended(since=NAIVE))


def test_two_operators_at_once_move_each_job_once(db, conn):
    dead(conn, 2000)

    def operate(_: int) -> list[int]:
        with psycopg.connect(db, autocommit=True) as own:
            return run(own, requeue("redrive", Ended(), after=0, last=10_000, limit=2000))[0].ids

    with ThreadPoolExecutor(4) as pool:
        moved = [number for each in pool.map(operate, range(4)) for number in each]
    assert len(moved) == len(set(moved))
    assert conn.execute("SELECT count(*) FROM redrive.jobs WHERE status = 'pending'").fetchone() == (len(moved),)


def test_cancel_ends_what_waits_and_asks_what_runs(conn):
    conn.execute(
        "INSERT INTO redrive.jobs (kind, status, key, locked_by) VALUES ('mail', 'pending', 'a', NULL),"
        " ('mail', 'running', 'b', 'w'), ('mail', 'dead', NULL, NULL), ('export', 'pending', NULL, NULL)"
    )
    rows = run(conn, store.cancel("redrive", kind="mail", reason="no longer wanted"))
    assert {row.id: row.was for row in rows} == {1: "pending", 2: "running"}
    jobs = {job.id: job for job in run(conn, store.list_jobs("redrive"))}
    assert (jobs[1].status, jobs[1].last_error, jobs[1].key) == ("failed", "cancelled: no longer wanted", None)
    assert (jobs[2].status, jobs[2].key, jobs[2].locked_by) == ("running", "b", "w")
    assert jobs[2].cancel_requested_at is not None
    assert (jobs[3].status, jobs[4].status) == ("dead", "pending")
    with pytest.raises(InvalidOption, match="cancel: say which jobs, by ids, kind or key"):
        store.cancel("redrive")


def test_the_oldest_due_job_of_each_kind(conn):
    conn.execute(
        "INSERT INTO redrive.jobs (kind, priority, lane, run_at) VALUES ('a', 5, '', now() - interval '1 min'),"
        " ('a', 1, 'x', now() - interval '1 h'), ('b', 5, '', now() + interval '1 h'), ('c', 5, '', now())"
    )
    ages = {row.kind: row.age for row in run(conn, store.oldest_due("redrive"))}
    assert set(ages) == {"a", "c"}
    assert 3600 <= ages["a"] < 3660


# -- keys, as far as the table goes


def test_the_table_itself_refuses_a_second_live_job_of_a_key(conn):
    """UN-01: a plain INSERT by hand is 23505, as SQL users expect."""
    insert = "INSERT INTO redrive.jobs (kind, key, status) VALUES ('mail', 'k', %s)"
    conn.execute(insert, ("running",))
    with pytest.raises(psycopg.errors.UniqueViolation):
        conn.execute(insert, ("pending",))
    for ended in ("succeeded", "failed", "dead"):
        conn.execute(insert, (ended,))


def test_a_job_that_goes_back_to_pending_never_meets_a_successor(conn):
    """UN-03: the key is its own while it is pending or running, so retry, hand-back and rescue cannot collide."""
    conn.execute("INSERT INTO redrive.jobs (kind, key, status, locked_by) VALUES ('mail', 'k', 'running', 'w')")
    [row] = run(conn, store.insert("redrive", "mail", {}, "k", store.options()))
    assert (row.id, row.created) == (1, False)
    conn.execute("UPDATE redrive.jobs SET status = 'pending', locked_by = NULL")
    assert run(conn, store.insert("redrive", "mail", {}, "k", store.options()))[0].created is False


@pytest.mark.parametrize(
    ("state", "created"),
    [("pending", False), ("running", False), ("succeeded", True), ("failed", True), ("dead", True)],
)
def test_a_key_holds_until_its_job_has_ended(conn, state, created):
    """UN-06: also while it runs."""
    conn.execute("INSERT INTO redrive.jobs (kind, key, status) VALUES ('mail', 'k', %s)", (state,))
    [row] = run(conn, store.insert("redrive", "mail", {}, "k", store.options()))
    assert row.created is created
    chunk = list(rows_module.encoded([{}], lambda _: "k2" if created else "k"))
    assert len(run(conn, rows_module.insert_many("redrive", "mail", chunk, store.options()))) == created


def test_the_tutorials_requeue_of_a_dead_job_never_trips_over_a_key(conn):
    """UN-03: the row gave its key up when it died."""
    run(conn, store.insert("redrive", "mail", {}, "k", store.options(max_attempts=1)))
    conn.execute("UPDATE redrive.jobs SET attempts = 1")
    assert [row.id for row in run(conn, named("bury_hopeless", "redrive", kinds=[]))] == [1]
    assert run(conn, store.insert("redrive", "mail", {}, "k", store.options()))[0].created is True
    conn.execute("UPDATE redrive.jobs SET status = 'pending', attempts = 0, run_at = now() WHERE status = 'dead'")
    assert conn.execute("SELECT count(*) FROM redrive.jobs WHERE status = 'pending'").fetchone() == (2,)


def test_duplicates_burn_no_ids_mg_02(conn):
    """MG-02: neither one by one nor in bulk, against the table and within the batch."""
    how = store.options()
    run(conn, store.insert("redrive", "mail", {}, "a", how))
    for _ in range(5):
        run(conn, store.insert("redrive", "mail", {}, "a", how))
    chunk = list(rows_module.encoded(["a", "b", "b", "a", "c", "b"], lambda payload: payload))
    made = run(conn, rows_module.insert_many("redrive", "mail", chunk, how))
    assert [(row.id, row.key) for row in made] == [(2, "b"), (3, "c")]
    assert run(conn, store.insert("redrive", "mail", {}, None, how))[0].id == 4
