"""The bridge: a row that waits is a job, what becomes of the job is written to the row, and nobody pays for either."""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

import psycopg
import pytest

from adopted import EARLY, LATER, MAPS, adopt, insert, jobs, make, map_of, remembered, round_, rows
from redrive import Queue
from redrive.backoff import fixed
from redrive.errors import Dead
from redrive.migrate import migrate
from shapes_of_tables import SHAPES
from support_engine import drain

# What each kind of end looks like in the words of the table: after success, after the last failure, and while it waits.
WORDS: dict[str, tuple[Any, Any, Any]] = {
    "mail_jobs": (("status", "sent"), ("status", "failed"), ("status", "deferred")),
    "mail_flag": (("sent", True), ("sent", False), ("sent", False)),
    "mail_null": (("sent_at", ...), ("sent_at", None), ("sent_at", None)),
    "mail_simple": (("status", "sent"), ("status", "failed"), ("status", "queued")),
    "hook_delivery": (("status", "delivered"), ("status", "abandoned"), ("status", "pending")),
    "bg_jobs": (("status", "completed"), ("status", "failed"), ("status", "retrying")),
    "outbox": (("status", "PUBLISHED"), ("status", "FAILED"), ("status", "PENDING")),
    "mail_delete": (None, ("subject", "2"), ("subject", ...)),
}


@pytest.fixture
def queue(db):
    made = Queue(db, listen=False)
    yield made
    made.close()


def test_rows_of_every_shape_fail_succeed_and_die_each_in_its_own_words_ad_03(conn, queue):
    """AD-03. Two rows of each: the second dies of its third failure, the first has better luck."""
    tries: dict[tuple[str, str], list[int]] = {}

    @queue.handler("work", backoff=fixed(60))
    def work(payload, job):
        its = job.metadata["adopted"]
        tries.setdefault((its["table"].removeprefix("public."), its["row"]), []).append(job.attempt)
        if job.attempt <= 2 or its["row"] in doomed:
            raise RuntimeError("mail server says no\nin two lines")

    make(conn, *MAPS)
    conn.execute("SET TimeZone = 'Asia/Tokyo'")
    doomed = set()
    for table in MAPS:
        adopt(conn, table)
        insert(conn, table, 2)
        doomed.add(str(max((row["id"] for row in rows(conn, table)), key=str)))
    for number in range(3):
        drain(queue)
        for table, (_, _, waiting) in WORDS.items():
            if number < 2:
                expected = ANY if waiting[1] is ... else waiting[1]
                assert [row[waiting[0]] for row in rows(conn, table)] == [expected] * 2
        conn.execute("update redrive.jobs set run_at = now() where status = 'pending'")
    assert list(tries.values()) == [[1, 2, 3]] * 16
    for table, (word, last_word, _) in WORDS.items():
        there = {str(row["id"]): row for row in rows(conn, table)}
        [lucky] = {key for its_table, key in tries if its_table == table} - doomed
        [unlucky] = {key for its_table, key in tries if its_table == table} & doomed
        assert there[unlucky][last_word[0]] == last_word[1]
        if word is None:
            assert lucky not in there
        else:
            assert there[lucky][word[0]] == (ANY if word[1] is ... else word[1])
            assert there[lucky][word[0]] is not None
    ends = "select status, count(*) from redrive.jobs group by 1 order by 1"
    assert conn.execute(ends).fetchall() == [("dead", 8), ("succeeded", 8)]
    assert remembered(conn) == [("ended", None, None)], (
        "of mail_null, which has no word for a death and counts no tries"
    )


# -- in: a row that waits becomes a job


def reasons(conn: psycopg.Connection) -> list[str]:
    found = conn.execute("select last_error from redrive.jobs where status in ('failed', 'dead') order by id")
    return [row[0] for row in found]


class TestIn:
    def test_a_job_comes_to_be_with_its_row_and_with_it_alone(self, db, conn):
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        with psycopg.connect(db) as application:
            application.execute("INSERT INTO mail_simple (rcpt) VALUES ('a')")
            assert jobs(conn) == []
            application.rollback()
            application.execute("INSERT INTO mail_simple (rcpt) VALUES ('b')")
            with application.transaction(force_rollback=True):
                application.execute("INSERT INTO mail_simple (rcpt) VALUES ('c')")
        assert len(jobs(conn)) == 1

    def test_ten_thousand_rows_of_one_statement_and_what_waits_not_are_told_apart(self, conn):
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        conn.execute(
            "INSERT INTO mail_simple (rcpt, status)"
            " SELECT i::text, CASE WHEN i % 2 = 0 THEN 'queued' ELSE 'sent' END FROM generate_series(1, 10000) i"
        )
        assert conn.execute("select count(*), count(distinct metadata) from redrive.jobs").fetchone() == (5000, 5000)

    def test_a_row_that_comes_to_wait_is_a_job_and_one_that_goes_on_waiting_is_no_second(self, conn):
        make(conn, "mail_simple")
        conn.execute("INSERT INTO mail_simple (status) VALUES ('failed'), ('queued')")
        adopt(conn, "mail_simple", document=map_of("mail_simple", cutover=LATER))
        assert jobs(conn) == []
        conn.execute("UPDATE mail_simple SET subject = 'touched'")
        assert jobs(conn) == [], "older than the cut-over, and nobody has asked for it"
        conn.execute("UPDATE mail_simple SET status = 'queued' WHERE status = 'failed'")
        assert len(jobs(conn)) == 1
        conn.execute("UPDATE mail_simple SET subject = 'touched again'")
        assert len(jobs(conn)) == 1

    def test_a_statement_for_very_many_rows_is_one_for_us_after_one_of_a_single_row(self, conn):
        """What is planned for one row is what goes on for ten thousand; and the rows are spilt to disk."""
        make(conn, "mail_simple")
        conn.execute("INSERT INTO mail_simple (status) SELECT 'sent' FROM generate_series(1, 10000)")
        adopt(conn, "mail_simple")
        for _ in range(7):
            conn.execute("UPDATE mail_simple SET status = 'queued' WHERE id = 1")
            conn.execute("UPDATE mail_simple SET status = 'sent' WHERE id = 1")
        conn.execute("SET work_mem = '64kB'")
        conn.execute("SET statement_timeout = '20s'")
        conn.execute("UPDATE mail_simple SET status = 'queued' WHERE id % 2 = 0")
        found = conn.execute(
            "select count(*), count(distinct metadata), bool_and((metadata #>> '{adopted,row}')::int % 2 = 0)"
            " from redrive.jobs where metadata #>> '{adopted,row}' <> '1'"
        )
        assert found.fetchone() == (5000, 5000, True)

    def test_keys_that_go_from_row_to_row_take_their_jobs_with_them(self, conn):
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        insert(conn, "mail_simple", 3)
        conn.execute("ALTER TABLE mail_simple DROP CONSTRAINT mail_simple_pkey, ADD PRIMARY KEY (id) DEFERRABLE")
        conn.execute("UPDATE mail_simple SET status = 'sent' WHERE id = 2")
        conn.execute("UPDATE mail_simple SET id = 4 - id, subject = 'was ' || id")
        found = conn.execute(
            "select m.id, m.subject, j.id from mail_simple m"
            " join redrive.jobs j on j.metadata #>> '{adopted,row}' = m.id::text"
            " join redrive.adopted_rows r on r.job = j.id and r.row_key = m.id::text order by j.id"
        ).fetchall()
        assert found == [(3, "was 1", 1), (2, "was 2", 2), (1, "was 3", 3)]

    def test_a_row_that_goes_to_another_partition_takes_its_job_with_it(self, conn):
        make(conn, "mail_simple")
        conn.execute("ALTER TABLE mail_simple RENAME TO plain")
        conn.execute(
            "CREATE TABLE mail_simple (LIKE plain INCLUDING DEFAULTS, PRIMARY KEY (id)) PARTITION BY RANGE (id)"
        )
        conn.execute("CREATE TABLE low PARTITION OF mail_simple FOR VALUES FROM (0) TO (100)")
        conn.execute("CREATE TABLE high PARTITION OF mail_simple DEFAULT")
        adopt(conn, "mail_simple")
        conn.execute("INSERT INTO mail_simple (id, status) VALUES (1, 'queued'), (2, 'sent')")
        conn.execute("UPDATE mail_simple SET id = id + 100, status = 'queued'")
        found = "select id, metadata #>> '{adopted,row}' from redrive.jobs order by id"
        assert conn.execute(found).fetchall() == [(1, "101"), (2, "102")]

    def test_what_a_trigger_of_the_table_does_to_other_rows_while_ours_is_written_is_seen(self, conn, queue):
        ran = []
        queue.handler("work")(lambda payload: ran.append(payload["id"]))
        make(conn, "mail_simple")
        adopt(conn, "mail_simple", document=map_of("mail_simple", payload={"form": "row"}))
        conn.execute(
            "CREATE FUNCTION next_one() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " UPDATE public.mail_simple SET status = 'queued' WHERE id = NEW.id + 1; RETURN NULL; END $$;"
            "CREATE TRIGGER chain AFTER UPDATE ON mail_simple FOR EACH ROW"
            " WHEN (NEW.status = 'sent' AND OLD.status <> 'sent') EXECUTE FUNCTION next_one()"
        )
        conn.execute("INSERT INTO mail_simple (status) VALUES ('queued'), ('after 1'), ('after 2')")
        drain(queue)
        assert ran == [1, 2, 3]

    def test_where_a_term_of_the_map_fails_for_one_row_those_beside_it_are_made_jobs_later(self, conn):
        make(conn, "mail_simple")
        rule = {"column": "status", "values": ["queued"], "where": "1 / length(subject) >= 0"}
        adopt(conn, "mail_simple", document=map_of("mail_simple", runnable=rule))
        conn.execute("INSERT INTO mail_simple (subject, status) VALUES ('a', 'new'), ('', 'new'), ('c', 'new')")
        conn.execute("UPDATE mail_simple SET status = 'queued'")
        assert jobs(conn) == []
        round_(conn)
        assert conn.execute("select metadata #>> '{adopted,row}' from redrive.jobs order by id").fetchall() == [
            ("1",),
            ("3",),
        ]
        assert [(state, "22012" in str(note)) for state, _, note in remembered(conn)] == [
            ("waiting", False),
            ("new", True),
            ("waiting", False),
        ]

    def test_an_upsert_is_an_insert_for_some_rows_and_an_update_for_others(self, conn):
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        conn.execute("INSERT INTO mail_simple (id, status) VALUES (1, 'sent'), (2, 'sending')")
        conn.execute(
            "INSERT INTO mail_simple (id, status) VALUES (1, 'queued'), (2, 'sent'), (3, 'queued')"
            " ON CONFLICT (id) DO UPDATE SET status = EXCLUDED.status"
        )
        assert conn.execute("select metadata #>> '{adopted,row}' from redrive.jobs order by 1").fetchall() == [
            ("1",),
            ("3",),
        ]

    def test_the_time_and_the_key_of_a_row_that_waits_can_be_changed(self, conn):
        make(conn, "mail_jobs")
        adopt(conn, "mail_jobs")
        insert(conn, "mail_jobs")
        conn.execute("SET TimeZone = 'America/New_York'")
        conn.execute(
            "UPDATE mail_jobs SET next_retry_at = '2040-01-01 12:00', id = '00000000-0000-0000-0000-000000000007'"
        )
        found = conn.execute(
            "select metadata #>> '{adopted,row}', run_at = '2040-01-01 12:00Z' from redrive.jobs"
        ).fetchone()
        assert found == ("00000000-0000-0000-0000-000000000007", False)
        conn.execute("UPDATE mail_jobs SET next_retry_at = '2040-01-01 12:01'")
        assert conn.execute("select run_at = '2040-01-01 12:01Z' from redrive.jobs").fetchone() == (True,)
        assert remembered(conn) == [("waiting", None, None)]

    def test_an_application_in_repeatable_read_and_one_without_rights_here(self, db, conn):
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        role = f"web_{conn.info.dbname}"
        conn.execute(
            f"CREATE ROLE {role}; GRANT INSERT, SELECT, UPDATE ON mail_simple TO {role};"
            f"GRANT USAGE ON SEQUENCE mail_simple_id_seq TO {role}"
        )
        try:
            with psycopg.connect(db) as application:
                application.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                application.execute(f"SET ROLE {role}")
                with pytest.raises(psycopg.errors.InsufficientPrivilege), application.transaction():
                    application.execute("SELECT FROM redrive.jobs")
                application.execute("INSERT INTO mail_simple (rcpt) VALUES ('a')")
                application.execute("UPDATE mail_simple SET status = 'failed'")
                application.execute("UPDATE mail_simple SET status = 'queued'")
            assert len(jobs(conn)) == 1
        finally:
            conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")

    def test_what_goes_wrong_is_noted_and_never_the_applications_trouble(self, conn):
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        conn.execute("ALTER TABLE redrive.jobs ADD CONSTRAINT none CHECK (kind <> 'work') NOT VALID")
        insert(conn, "mail_simple", 2)
        assert [state for state, _, note in remembered(conn) if "none" in note] == ["new", "new"]
        conn.execute("ALTER TABLE redrive.jobs DROP CONSTRAINT none")
        round_(conn)
        assert len(jobs(conn)) == 2
        assert remembered(conn) == [("waiting", None, None)] * 2

    def test_odd_names_and_another_schema(self, db, conn):
        """MG-05: names that must be quoted, and an installation of its own name."""
        migrate(db, 'My "jobs"')
        conn.execute(
            'CREATE SCHEMA "Odd.Schema"; CREATE TABLE "Odd.Schema"."Mail ""Jobs""" ("Id" text PRIMARY KEY,'
            ' "state of it" text DEFAULT \'new\', "job" int, "row_key" int)'
        )
        document = {
            "table": '"Odd.Schema"."Mail ""Jobs"""',
            "key": "Id",
            "kind": "work",
            "cutover": EARLY,
            "runnable": {"column": "state of it", "values": ["new"]},
            "attempts": {"max": 3},
            "claimed": {"set": {"state of it": "busy %s {}"}},
            "succeeded": {"set": {"state of it": "it's done"}},
        }
        adopt(conn, "", schema='My "jobs"', document=document, beside=True)
        conn.execute('INSERT INTO "Odd.Schema"."Mail ""Jobs""" ("Id") VALUES (\'a\'), (\'b "c"\')')
        ran = []
        queue = Queue(db, schema='My "jobs"', listen=False)
        queue.handler("work")(ran.append)
        drain(queue)
        queue.close()
        assert {each["Id"] for each in ran} == {"a", 'b "c"'}
        assert conn.execute('SELECT DISTINCT "state of it" FROM "Odd.Schema"."Mail ""Jobs"""').fetchall() == [
            ("it's done",)
        ]


# -- begin: a claim takes the row as well


class TestBegin:
    def test_the_handler_gets_the_row_as_it_is_now(self, conn, queue):
        ran = []
        queue.handler("work")(ran.append)
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        insert(conn, "mail_simple")
        conn.execute("UPDATE mail_simple SET subject = 'changed since'")
        drain(queue)
        [payload] = ran
        assert (payload["subject"], payload["status"]) == ("changed since", "sending")

    @pytest.mark.parametrize(
        ("deed", "said"),
        [
            ("DELETE FROM mail_simple", "was deleted before it ran"),
            ("TRUNCATE mail_simple", "was deleted before it ran"),
            ("UPDATE mail_simple SET status = 'sending'", "was changed before it ran"),
            ("UPDATE mail_simple SET status = 'sent'", "was changed before it ran"),
        ],
    )
    def test_a_row_that_was_deleted_or_taken_by_another_ends_its_job_as_cancelled(self, conn, queue, deed, said):
        ran = []
        queue.handler("work")(ran.append)
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        insert(conn, "mail_simple")
        conn.execute(deed)
        before = rows(conn, "mail_simple")
        drain(queue)
        [[status, attempts, error]] = jobs(conn)
        assert (status, attempts, ran) == ("failed", 0, [])
        assert error.startswith("cancelled: its row of public.mail_simple ")
        assert said in error
        assert rows(conn, "mail_simple") == before
        assert remembered(conn) == []

    def test_a_row_that_the_application_has_locked_is_waited_for_by_nobody(self, db, conn, queue):
        ran = []
        queue.handler("work")(ran.append)
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        insert(conn, "mail_simple", 2)
        with psycopg.connect(db) as application:
            application.execute("SELECT FROM mail_simple WHERE subject = '1' FOR UPDATE")
            drain(queue)
            assert [payload["subject"] for payload in ran] == ["2"]
            assert [(status, attempts) for status, attempts, _ in jobs(conn)] == [("pending", 0), ("succeeded", 1)]
            assert remembered(conn) == [("waiting", None, "somebody has locked the row")]
        conn.execute("update redrive.jobs set run_at = now() where status = 'pending'")
        drain(queue)
        assert [payload["subject"] for payload in ran] == ["2", "1"]

    def test_a_table_that_is_locked_holds_up_no_other_kind(self, db, conn, queue):
        ran = []
        queue.handler("work")(ran.append)
        queue.handler("other")(ran.append)
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        insert(conn, "mail_simple", 5)
        queue.enqueue("other", {"n": 1})
        with psycopg.connect(db) as application:
            application.execute("LOCK TABLE mail_simple IN ACCESS EXCLUSIVE MODE")
            drain(queue)
        assert ran == [{"n": 1}]
        assert {status for status, _, error in jobs(conn)} == {"pending", "succeeded"}

    def test_what_the_table_refuses_is_dead_and_told_and_a_column_that_is_gone_is_waited_for(self, conn, queue):
        ran = []
        queue.handler("work")(ran.append)
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        conn.execute("ALTER TABLE mail_simple ADD CONSTRAINT picky CHECK (subject <> '1' OR status <> 'sending')")
        insert(conn, "mail_simple", 2)
        drain(queue)
        assert [payload["subject"] for payload in ran] == ["2"]
        [reason] = reasons(conn)
        assert "picky" in reason
        assert [row["status"] for row in rows(conn, "mail_simple")] == ["failed", "sent"]
        assert conn.execute("select error_type, outcome from redrive.failures").fetchall() == [("RowRefused", "dead")]
        conn.execute("ALTER TABLE mail_simple DROP COLUMN last_attempt_at")
        insert(conn, "mail_simple")
        drain(queue)
        assert [note for _, _, note in remembered(conn)] == [ANY]
        assert "last_attempt_at" in remembered(conn)[0][2]
        assert jobs(conn)[-1] == ("pending", 0, None)
        conn.execute("DROP TABLE mail_simple")
        conn.execute("update redrive.jobs set run_at = now() where status = 'pending'")
        drain(queue)
        assert jobs(conn)[-1] == ("pending", 0, None)
        assert "mail_simple" in remembered(conn)[0][2]

    def test_a_payload_that_is_no_json_is_the_rows_own_trouble(self, conn, queue):
        ran = []
        queue.handler("work")(ran.append)
        make(conn, "outbox")
        adopt(conn, "outbox")
        conn.execute(
            "INSERT INTO outbox (payload, status, created_at)"
            " SELECT payload, 'PENDING', now() FROM unnest(ARRAY['{nope', NULL, '[1]']) AS payload"
        )
        drain(queue)
        assert ran == [[1]]
        assert ["json" in reason or "payload is NULL" in reason for reason in reasons(conn)] == [True, True]
        assert [row["status"] for row in rows(conn, "outbox")] == ["FAILED", "FAILED", "PUBLISHED"]

    def test_a_row_that_was_put_off_behind_the_triggers_back_is_put_off(self, conn, queue):
        ran = []
        queue.handler("work")(ran.append)
        make(conn, "mail_jobs")
        adopt(conn, "mail_jobs")
        insert(conn, "mail_jobs")
        with conn.transaction():
            conn.execute("SET LOCAL session_replication_role = replica")
            conn.execute("UPDATE mail_jobs SET next_retry_at = '2040-01-01'")
        drain(queue)
        assert ran == []
        assert conn.execute("select run_at = '2040-01-01Z', status from redrive.jobs").fetchone() == (True, "pending")


# -- out: what becomes of the job is written to the row


class TestOut:
    def one(self, conn, queue, table="mail_simple", deed=lambda: None, **changes):
        """Run one row's job, whose handler does *deed*; gives the row."""
        queue.handler("work", backoff=fixed(3600))(lambda _payload: deed())
        make(conn, table)
        adopt(conn, table, document=map_of(table, **changes))
        insert(conn, table)
        drain(queue)
        found = rows(conn, table)
        return found[0] if found else None

    @pytest.mark.parametrize("kept", [True, False])
    def test_the_outcome_and_the_row_are_one_commit(self, db, conn, kept):
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        insert(conn, "mail_simple")
        conn.execute("update redrive.jobs set status = 'running', locked_by = 'me', claims = 1, attempts = 1")
        seen = "SELECT (SELECT status FROM mail_simple), (SELECT status FROM redrive.jobs)"
        with psycopg.connect(db) as worker:
            worker.execute("update redrive.jobs set status = 'succeeded'")
            assert worker.execute(seen).fetchone() == ("sent", "succeeded")
            assert conn.execute(seen).fetchone() == ("sending", "running")
            (worker.commit if kept else worker.rollback)()
        assert conn.execute(seen).fetchone() == (("sent", "succeeded") if kept else ("sending", "running"))

    def test_a_failed_try_shows_in_the_row(self, conn, queue):
        def fail():
            raise RuntimeError("no\x00t now")

        row = self.one(conn, queue, "mail_jobs", fail)
        assert (row["status"], row["retry_count"]) == ("deferred", 1)
        assert row["last_error"].startswith("RuntimeError: no")
        assert conn.execute(
            "SELECT abs(extract(epoch FROM next_retry_at AT TIME ZONE 'UTC' - j.run_at)) < 0.001"
            " FROM mail_jobs, redrive.jobs j"
        ).fetchone() == (True,)

    def test_an_error_is_cut_to_the_columns_width_pe_05(self, conn, queue):
        def fail():
            raise Dead("x" * 1000)

        conn.execute(SHAPES["mail_simple"])
        conn.execute("ALTER TABLE mail_simple ALTER last_error TYPE varchar(20)")
        queue.handler("work")(lambda _payload: fail())
        adopt(conn, "mail_simple")
        insert(conn, "mail_simple")
        drain(queue)
        [row] = rows(conn, "mail_simple")
        assert (row["status"], len(row["last_error"])) == ("failed", 20)

    def test_a_row_that_is_locked_is_owed_and_paid_later(self, db, conn, queue):
        with psycopg.connect(db) as application:
            row = self.one(conn, queue, deed=lambda: application.execute("SELECT FROM mail_simple FOR SHARE"))
            assert row["status"] == "sending"
            assert jobs(conn) == [("succeeded", 1, None)]
            assert remembered(conn) == [("claimed", "succeeded", "somebody has locked the row")]
            round_(conn)
            assert remembered(conn) == [("claimed", "succeeded", "somebody has locked the row")]
        assert round_(conn)[1] == 1
        assert [row["status"] for row in rows(conn, "mail_simple")] == ["sent"]
        assert remembered(conn) == []

    def test_a_value_that_is_refused_is_owed_and_told(self, conn, queue):
        def forbid():
            conn.execute("ALTER TABLE mail_simple ADD CONSTRAINT picky CHECK (status <> 'sent')")

        row = self.one(conn, queue, deed=forbid)
        assert (row["status"], jobs(conn)[0][0]) == ("sending", "succeeded")
        [[state, owed, note]] = remembered(conn)
        assert (state, owed, "picky" in note) == ("claimed", "succeeded", True)

    @pytest.mark.parametrize(
        ("deed", "left", "said"),
        [
            ("DELETE FROM mail_simple", [], "deleted"),
            ("UPDATE mail_simple SET status = 'stopped by ada'", ["stopped by ada"], "changed"),
        ],
    )
    def test_a_row_that_went_its_own_way_meanwhile_is_left_alone_and_the_job_says_so(
        self, conn, queue, deed, left, said
    ):
        self.one(conn, queue, deed=lambda: conn.execute(deed))
        assert [row["status"] for row in rows(conn, "mail_simple")] == left
        [[status, note]] = conn.execute("select status, metadata #>> '{adopted,note}' from redrive.jobs").fetchall()
        assert (status, note) == ("succeeded", f"its row was {said} meanwhile: nothing was written to it")
        assert remembered(conn) == []

    def test_whoever_writes_the_outcome(self, conn, queue):
        """An operator's cancel and requeue, hand-made SQL of the tutorial, a reaper: all are followed."""
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        insert(conn, "mail_simple", 3)
        first, second, third = (row[0] for row in conn.execute("select id from redrive.jobs order by id"))
        queue.cancel(first, reason="not wanted")
        conn.execute(
            "update redrive.jobs set status = 'running', locked_by = 'me', locked_at = now() where id = %s", [second]
        )
        conn.execute("update redrive.jobs set status = 'dead', last_error = 'by hand' where id = %s", [second])
        conn.execute(
            "update redrive.jobs set status = 'running', locked_by = 'me', locked_at = now() where id = %s", [third]
        )
        assert [row["status"] for row in rows(conn, "mail_simple")] == ["failed", "failed", "sending"]
        conn.execute("update redrive.jobs set status = 'pending', locked_by = null where id = %s", [third])
        queue.requeue(second)
        assert [row["status"] for row in rows(conn, "mail_simple")] == ["failed", "queued", "queued"]
        ran = []
        queue.handler("work")(ran.append)
        drain(queue)
        assert [row["status"] for row in rows(conn, "mail_simple")] == ["failed", "sent", "sent"]
        assert len(ran) == 2

    def test_a_dead_job_is_not_sent_back_to_a_row_that_is_done_or_has_another_job(self, conn, queue):
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        insert(conn, "mail_simple", 2)
        conn.execute("update redrive.jobs set status = 'dead', last_error = 'x'")
        conn.execute("UPDATE mail_simple SET status = 'sent' WHERE subject = '1'")
        conn.execute("UPDATE mail_simple SET status = 'queued', attempts = 0 WHERE subject = '2'")  # by the application
        conn.execute("update redrive.jobs set status = 'pending' where status = 'dead'")
        assert [status for status, _, _ in jobs(conn)] == ["failed", "failed", "pending"]
        assert [("changed since" in said, "of the same row" in said) for said in reasons(conn)] == [
            (True, False),
            (False, True),
        ]

    def test_a_copy_of_a_job_runs_as_a_job_and_leaves_the_row_alone(self, conn, queue):
        self.one(conn, queue)
        conn.execute(
            "insert into redrive.jobs (kind, payload, metadata) select kind, payload, metadata from redrive.jobs"
        )
        drain(queue)
        assert [status for status, _, _ in jobs(conn)] == ["succeeded", "succeeded"]
        assert [row["status"] for row in rows(conn, "mail_simple")] == ["sent"]
