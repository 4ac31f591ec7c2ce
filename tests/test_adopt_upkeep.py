"""What goes on beside the bridge: sweeps, pauses, the old worker, the way back, and what is remembered for long."""

from __future__ import annotations

import threading
from contextlib import suppress

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL

import support
from adopted import BLIND, LATER, MAPS, adopt, insert, jobs, make, map_of, remembered, round_, rows
from redrive import InvalidOption, Queue
from redrive.adopt import backfill, bridge, terms, undo
from redrive.adopt.bridge import Plan, Wanted
from redrive.adopt.look import look
from redrive.adopt.mapping import parse
from redrive.backoff import fixed
from redrive.doctor import WORKER_RIGHTS, examine
from redrive.errors import AlreadyAdopted, Dead
from support_engine import drain


@pytest.fixture
def queue(db):
    made = Queue(db, listen=False)
    yield made
    made.close()


def made(conn: psycopg.Connection, table: str = "mail_simple") -> bridge.Pieces:
    return bridge.reconnected(conn, "redrive", bridge.demand(conn, "redrive", table))


def described(conn: psycopg.Connection, table: str) -> list[str]:
    """All that could have been changed at a table."""
    found = conn.execute(
        "SELECT to_jsonb(c)::text FROM (SELECT relname, reltriggers, relhasindex, relacl::text FROM"
        " (SELECT c.*, (SELECT count(*) FROM pg_trigger t WHERE t.tgrelid = c.oid) AS reltriggers FROM pg_class c) c"
        " WHERE relname LIKE %s) c UNION ALL SELECT indexdef FROM pg_indexes WHERE tablename = %s ORDER BY 1",
        [f"{table}%", table],
    )
    return [row[0] for row in found]


# -- the sweep


class TestBrokenOff:
    """``redrive adopt connect`` killed half way: said again it goes on."""

    @pytest.mark.parametrize("sweep", [False, True])
    def test_rows_from_since_the_cut_over_are_taken_in_by_the_second_try(self, conn, monkeypatch, sweep):
        make(conn, "mail_simple")
        insert(conn, "mail_simple", 2)
        [now] = conn.execute("SELECT clock_timestamp()::text").fetchone()
        insert(conn, "mail_simple", 3)
        document = map_of("mail_simple", cutover=now)
        with monkeypatch.context() as patched, suppress(ZeroDivisionError):
            patched.setattr(bridge, "_catch_up", lambda *_: 1 / 0)
            adopt(conn, "mail_simple", sweep=sweep, trigger=True, document=document)
        found = bridge.demand(conn, "redrive", "mail_simple")
        assert any("broken off" in said for said in bridge.troubles(conn, "redrive", found)) is not sweep
        if not sweep:
            with pytest.raises(AlreadyAdopted, match=r"was broken off.*in another way"):
                adopt(conn, "mail_simple", document=map_of("mail_simple", cutover=LATER))
            assert adopt(conn, "mail_simple", document=document)["taken"] == 3
        round_(conn)
        assert len(jobs(conn)) == 3
        with pytest.raises(AlreadyAdopted, match=r"connected already, since .* nothing to do"):
            adopt(conn, "mail_simple", sweep=sweep, trigger=True, document=document)

    def test_an_index_that_was_left_half_made_is_made_anew_and_goes_with_the_adoption(self, conn, monkeypatch):
        make(conn, "mail_simple")
        monkeypatch.setattr(bridge, "LARGE", -2)
        conn.execute("CREATE INDEX mail_simple_redrive_idx ON mail_simple (id) WHERE status = 'queued'")
        conn.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'mail_simple_redrive_idx'::regclass")
        wanted = Wanted(by_trigger=False, by_sweep=True, legacy_stopped=True, index=True)
        plan = Plan(conn, "redrive", parse(map_of("mail_simple")), wanted)
        bridge.connect(conn, plan)
        valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('mail_simple_redrive_idx')"
        assert conn.execute(valid).fetchall() == [(True,)]
        assert undo.undo(conn, "redrive", "mail_simple", patience=1).done
        assert conn.execute(valid).fetchall() == []


class TestAltered:
    """The application's next release changes the table under the map."""

    def test_rows_that_come_while_a_column_is_gone_are_made_jobs_when_it_is_back(self, conn):
        make(conn, "mail_simple")
        conn.execute("INSERT INTO mail_simple (status) VALUES ('failed')")
        adopt(conn, "mail_simple")
        conn.execute("ALTER TABLE mail_simple RENAME status TO state")
        conn.execute("INSERT INTO mail_simple (state) VALUES ('queued'), ('sent')")
        conn.execute("UPDATE mail_simple SET state = 'queued' WHERE id = 1")
        assert [(state, "42703" in note) for state, _, note in remembered(conn)] == [("new", True)] * 3
        assert any("there is no column status" in trouble for trouble in said(conn))
        conn.execute("ALTER TABLE mail_simple RENAME state TO status")
        round_(conn)
        found = conn.execute("select metadata #>> '{adopted,row}' from redrive.jobs order by 1").fetchall()
        assert found == [("1",), ("2",)]
        assert said(conn) == []

    def test_a_key_that_is_renamed_stops_no_insert_and_is_told(self, conn):
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        conn.execute("ALTER TABLE mail_simple RENAME id TO nr")
        conn.execute("INSERT INTO mail_simple (status) VALUES ('queued')")
        conn.execute("UPDATE mail_simple SET status = 'queued'")
        assert any("key: " in trouble for trouble in said(conn))
        for _ in range(2):  # the second has nothing to look at but the table
            round_(conn)
            assert "42703" in bridge.demand(conn, "redrive", "mail_simple").trouble

    def test_a_word_that_the_table_no_longer_knows_is_told(self, conn):
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        conn.execute("ALTER TABLE mail_simple ADD CHECK (status IN ('queued', 'sent', 'failed'))")
        assert any("can't hold 'sending'" in trouble for trouble in said(conn))

    def test_a_table_that_was_renamed_is_told_and_can_be_disconnected(self, conn):
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        insert(conn, "mail_simple")
        before = described(conn, "mail_simple")
        conn.execute("ALTER TABLE mail_simple RENAME TO letters")
        conn.execute("INSERT INTO letters (status) VALUES ('queued')")
        round_(conn)
        assert said(conn)
        assert undo.undo(conn, "redrive", "letters", patience=0.5, abandon=True).done
        conn.execute("ALTER TABLE letters RENAME TO mail_simple")
        triggers = "select count(*) from pg_trigger where tgrelid = 'mail_simple'::regclass"
        assert conn.execute(triggers).fetchone() == (0,)
        assert len(described(conn, "mail_simple")) == len(before)


def said(conn: psycopg.Connection) -> list[str]:
    [adoption] = bridge.adoptions(conn, "redrive")
    return bridge.troubles(conn, "redrive", adoption)


class TestSweep:
    def test_rows_are_found_without_a_trigger_and_old_ones_are_left_alone(self, conn, queue):
        ran = []
        queue.handler("work")(ran.append)
        make(conn, "mail_simple")
        insert(conn, "mail_simple", 2)
        before = described(conn, "mail_simple")
        found = adopt(conn, "mail_simple", sweep=True, document=map_of("mail_simple", created=None, cutover=LATER_PAST))
        assert (found["held"], found["taken"]) == (2, 0)
        assert described(conn, "mail_simple") == before
        insert(conn, "mail_simple", 2)
        assert round_(conn) == (2, 0, 4)
        assert round_(conn) == (0, 0, 4)
        drain(queue)
        assert len(ran) == 2
        assert [row["status"] for row in rows(conn, "mail_simple")] == ["queued", "queued", "sent", "sent"]
        assert remembered(conn) == [("held", None, None)] * 2

    def test_a_sweep_goes_page_by_page_and_trigger_and_sweep_never_double(self, conn):
        make(conn, "mail_simple")
        adopt(conn, "mail_simple", sweep=True, trigger=True)
        insert(conn, "mail_simple", 600)
        with conn.transaction():
            conn.execute("SET LOCAL session_replication_role = replica")
            insert(conn, "mail_simple", 600)
        assert len(jobs(conn)) == 600
        assert [round_(conn) for _ in range(4)] == [(0, 0, 500), (400, 0, 500), (200, 0, 200), (0, 0, 500)]
        assert conn.execute("select count(*), count(distinct metadata) from redrive.jobs").fetchone() == (1200, 1200)

    def test_two_rounds_at_once_are_one(self, db, conn):
        make(conn, "mail_simple")
        adopt(conn, "mail_simple", sweep=True)
        insert(conn, "mail_simple", 3)
        with psycopg.connect(db) as other:
            assert round_(other) == (3, 0, 3)
            said = "select _took, _wrote, _seen from redrive.adoption_1_round(500)"
            assert conn.execute(said).fetchone() == (0, 0, 0)
        assert len(jobs(conn)) == 3

    def test_workers_sweep_by_themselves_and_are_told_of_a_new_adoption(self, db, conn, start_worker):
        """The one test with a worker's own sweeper: it slept when the table was connected."""
        make(conn, "mail_simple")
        worker = start_worker(APP)
        support.wait_for(lambda: "started" in worker.log())
        adopt(conn, "mail_simple", sweep=True)
        insert(conn, "mail_simple", 3)
        support.wait_for(lambda: {row["status"] for row in rows(conn, "mail_simple")} == {"sent"})

    def test_a_table_that_is_locked_or_gone_is_a_trouble_that_is_shown_and_passes(self, db, conn):
        make(conn, "mail_simple")
        adopt(conn, "mail_simple", sweep=True)
        insert(conn, "mail_simple")
        with psycopg.connect(db) as application:
            application.execute("LOCK TABLE mail_simple IN ACCESS EXCLUSIVE MODE")
            assert round_(conn) == (0, 0, 0)
            assert "55P03" in bridge.demand(conn, "redrive", "mail_simple").trouble
        assert round_(conn)[0] == 1
        assert bridge.demand(conn, "redrive", "mail_simple").trouble is None
        conn.execute("DROP TABLE mail_simple")
        round_(conn)
        [found] = bridge.adoptions(conn, "redrive")
        assert (found.gone, "42P01" in found.trouble) == (True, True)
        assert undo.undo(conn, "redrive", "public.mail_simple", patience=0.5, abandon=True).done
        assert bridge.adoptions(conn, "redrive") == []

    def test_a_large_table_without_an_index_is_refused_until_it_is_made(self, conn):
        make(conn, "mail_simple")
        insert(conn, "mail_simple", 10)
        conn.execute("ALTER TABLE mail_simple SET (autovacuum_enabled = off)")
        conn.execute("UPDATE pg_class SET reltuples = 5000000 WHERE relname = 'mail_simple'")
        with pytest.raises(InvalidOption, match="CREATE INDEX CONCURRENTLY"):
            adopt(conn, "mail_simple", sweep=True)
        before = described(conn, "mail_simple")
        wanted = Wanted(by_trigger=False, by_sweep=True, legacy_stopped=True, index=True)
        bridge.connect(conn, Plan(conn, "redrive", parse(map_of("mail_simple")), wanted))
        assert "mail_simple_redrive_idx" in str(described(conn, "mail_simple"))
        undo.undo(conn, "redrive", "mail_simple")
        assert described(conn, "mail_simple") == before


# -- the old worker


class TestOldWorker:
    def test_where_it_could_not_see_that_a_row_is_taken_connecting_is_refused_with_the_risk(self, conn):
        """AD-04: with the exact SQL that would still find the row."""
        for table in sorted(MAPS.keys() - BLIND):
            make(conn, table)
            with pytest.raises(InvalidOption) as caught:
                adopt(conn, table, beside=True)
            assert f'SELECT "id" FROM public.{table} WHERE' in str(caught.value)
            assert "--legacy-stopped" in str(caught.value)
        assert bridge.adoptions(conn, "redrive") == []

    @pytest.mark.parametrize("table", ["mail_jobs", "mail_simple", "bg_jobs"])
    def test_where_it_could_it_sees_no_row_from_the_moment_that_there_is_one(self, db, conn, queue, table):
        """AD-04: not before its job, not while it waits for its retry, and never a moment in between."""
        fails = [True]

        @queue.handler("work", backoff=fixed(3600))
        def work(_payload):
            assert seen() == 0
            if fails:
                raise RuntimeError(fails.pop())

        def seen() -> int:
            rule = terms.runnable(parse(map_of(table)))
            return conn.execute(SQL("SELECT count(*) FROM " + table + " WHERE {}").format(rule)).fetchone()[0]

        make(conn, table)
        adopt(conn, table, beside=True)
        insert(conn, table)
        assert seen() == 0
        drain(queue)
        assert (seen(), jobs(conn)[0][:2]) == (0, ("pending", 1))
        conn.execute("update redrive.jobs set run_at = now()")
        drain(queue)
        assert (seen(), jobs(conn)[0][0]) == (0, "succeeded")
        assert rows(conn, table)[0]["status"] in ("sent", "completed")

    def test_a_row_that_it_took_all_the_same_is_not_done_twice(self, conn, queue):
        ran = []
        queue.handler("work")(ran.append)
        make(conn, "mail_simple")
        adopt(conn, "mail_simple", beside=True)
        insert(conn, "mail_simple", 2)
        conn.execute("UPDATE mail_simple SET status = 'sent' WHERE subject = '1'")  # it had read the row before
        drain(queue)
        assert [payload["subject"] for payload in ran] == ["2"]


# -- pause, status, and the way back


class TestPause:
    def test_rows_that_come_in_a_pause_are_jobs_after_it(self, conn):
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        assert bridge.pause(conn, "redrive", "mail_simple", paused=True, by="ada", reason="mail moves")
        assert not bridge.pause(conn, "redrive", "mail_simple", paused=True)
        insert(conn, "mail_simple", 2)
        round_(conn)
        assert (jobs(conn), bridge.demand(conn, "redrive", "mail_simple").fresh) == ([], 2)
        assert bridge.pause(conn, "redrive", "mail_simple", paused=False)
        assert round_(conn)[0] == 2
        assert len(jobs(conn)) == 2
        acts = conn.execute("select action, by, reason from redrive.audit order by id").fetchall()
        assert [act[0] for act in acts] == ["adopt", "adopt pause", "adopt resume"]
        assert acts[1][1:] == ("ada", "mail moves")


class TestConnect:
    def test_two_at_once_are_one_and_the_others_are_told_or_help(self, db, conn):
        make(conn, "mail_simple")
        said: list[str | dict] = []

        def connect() -> None:
            with psycopg.connect(db, autocommit=True) as own:
                try:
                    said.append(adopt(own, "mail_simple"))
                except AlreadyAdopted as error:
                    said.append(str(error))

        threads = [threading.Thread(target=connect) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for found in said:
            assert found == {"id": 1, "held": 0, "taken": 0} or "is connected already" in found
        assert len(said) == 3
        insert(conn, "mail_simple")
        assert len(jobs(conn)) == 1

    def test_rows_since_the_cut_over_are_taken_in_and_those_before_it_not_ad_08(self, conn):
        """AD-08."""
        make(conn, "mail_simple")
        conn.execute(
            "INSERT INTO mail_simple (rcpt, created_at)"
            " VALUES ('old', '2026-01-01'), ('new', '2026-03-01'), ('none', NULL)"
        )
        found = adopt(conn, "mail_simple", document=map_of("mail_simple", cutover="2026-02-01T00:00:00+00:00"))
        assert found["taken"] == 1
        conn.execute("INSERT INTO mail_simple (rcpt, created_at) VALUES ('imported', '2026-01-15')")
        keys = conn.execute("select metadata #>> '{adopted,row}' from redrive.jobs").fetchall()
        assert keys == [("2",)]

    def test_rows_that_are_hidden_from_the_role_are_no_reason_to_idle(self, db, conn):
        """AD-05."""
        make(conn, "mail_null")
        role = f"dba_{conn.info.dbname}"
        conn.execute(f"CREATE ROLE {role}; GRANT ALL ON mail_null TO {role}; GRANT USAGE ON SCHEMA redrive TO {role}")
        conn.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA redrive TO {role}")
        try:
            conn.execute(f"SET ROLE {role}")
            with pytest.raises(InvalidOption, match="row-level security hides rows"):
                adopt(conn, "mail_null")
        finally:
            conn.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")

    def test_what_is_checked_at_the_commit_is_refused_since_it_would_be_the_trouble_of_others(self, conn):
        make(conn, "mail_delete")
        conn.execute("CREATE TABLE opened (mail int REFERENCES mail_delete DEFERRABLE INITIALLY DEFERRED)")
        with pytest.raises(InvalidOption, match="opened_mail_fkey of opened is checked at the commit"):
            adopt(conn, "mail_delete")

    def test_the_tables_own_triggers_find_their_tables_and_what_they_change_is_kept(self, conn, queue):
        """They run below ours, whose search_path is fixed."""
        queue.handler("work")(lambda _payload: None)
        make(conn, "mail_simple")
        conn.execute(
            "CREATE TABLE log (said text);"
            "CREATE FUNCTION log() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN INSERT INTO log VALUES (NEW.status); NEW.subject := NEW.status; RETURN NEW; END $$;"
            "CREATE TRIGGER log BEFORE UPDATE ON mail_simple FOR EACH ROW EXECUTE FUNCTION log()"
        )
        adopt(conn, "mail_simple")
        insert(conn, "mail_simple")
        drain(queue)
        assert conn.execute("SELECT array_agg(said) FROM log").fetchone() == (["sending", "sent"],)
        assert [row["subject"] for row in rows(conn, "mail_simple")] == ["sent"]

    def test_the_doctor_tells_what_is_in_the_way(self, conn, queue):
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        found = [each.text for each in examine(queue, conn) if each.check == "adoptions"]
        assert found == []
        conn.read_only = None
        conn.execute("DROP TABLE mail_simple")
        found = [each.text for each in examine(queue, conn) if each.check == "adoptions"]
        assert found == [
            (
                "adopted table public.mail_simple: public.mail_simple is gone: "
                "`redrive adopt undo public.mail_simple` takes the rest away"
            )
        ]


class TestUndo:
    @pytest.mark.parametrize("beside", [False, True])
    def test_what_waits_is_handed_back_and_the_table_is_as_it_was_found(self, conn, queue, beside):
        @queue.handler("work", backoff=fixed(3600))
        def work(payload):
            if payload["subject"] == "2":
                raise Dead("no such address")
            if payload["subject"] == "3":
                raise RuntimeError("not now")

        make(conn, "mail_simple")
        before = described(conn, "mail_simple")
        functions = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'redrive'::regnamespace"
        there = conn.execute(functions).fetchone()
        adopt(conn, "mail_simple", beside=beside)
        insert(conn, "mail_simple", 3)
        drain(queue)
        insert(conn, "mail_simple", 1)
        adoption, script = undo.preview(conn, "redrive", "mail_simple")
        assert (adoption.waiting, len(script)) == (2, 4)
        done = undo.undo(conn, "redrive", "mail_simple", by="ada", reason="back to cron")
        assert (done.done, done.returned) == (True, 2)
        assert [row["status"] for row in rows(conn, "mail_simple")] == ["sent", "failed", "queued", "queued"]
        assert [row["attempts"] for row in rows(conn, "mail_simple")] == [0, 1, 1, 0]
        assert described(conn, "mail_simple") == before
        assert conn.execute(functions).fetchone() == there
        assert conn.execute("SELECT count(*) FROM redrive.adopted_rows").fetchone() == (0,)
        assert [status for status, _, _ in jobs(conn)] == ["succeeded", "dead", "failed", "failed"]
        insert(conn, "mail_simple", 1)
        assert len(jobs(conn)) == 4

    def test_what_runs_is_waited_for_and_what_it_leaves_is_in_the_tables_words(self, db, conn):
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        insert(conn, "mail_simple", 3)
        conn.execute("update redrive.jobs set status = 'running', locked_by = 'me', claims = 1, attempts = 1")
        done = undo.undo(conn, "redrive", "mail_simple", patience=0)
        assert (done.done, done.running) == (False, 3)
        assert [row["status"] for row in rows(conn, "mail_simple")] == ["sending"] * 3

        def end(left) -> None:
            with psycopg.connect(db, autocommit=True) as worker:
                worker.execute("update redrive.jobs set status = 'succeeded' where status = 'running' and id % 3 = 0")
                worker.execute("update redrive.jobs set status = 'dead' where status = 'running' and id % 3 = 1")
                worker.execute("update redrive.jobs set status = 'pending', attempts = 1 where status = 'running'")

        done = undo.undo(conn, "redrive", "mail_simple", on_wait=end)
        assert done.done
        assert sorted(row["status"] for row in rows(conn, "mail_simple")) == ["failed", "queued", "sent"]
        assert sorted(status for status, _, _ in jobs(conn)) == ["dead", "failed", "succeeded"]

    def test_what_runs_can_be_given_up_and_its_worker_writes_nothing_any_more(self, conn):
        make(conn, "mail_simple")
        adopt(conn, "mail_simple")
        insert(conn, "mail_simple")
        conn.execute("update redrive.jobs set status = 'running', locked_by = 'me', claims = 1, attempts = 1")
        assert undo.undo(conn, "redrive", "mail_simple", patience=0, abandon=True).done
        assert [row["status"] for row in rows(conn, "mail_simple")] == ["queued"]
        assert jobs(conn)[0][0] == "failed"


# -- backfill


class TestBackfill:
    def test_only_what_is_named_is_taken_in_with_all_its_tries_and_at_the_rate(self, conn, queue):
        """AD-08: a bucket that doesn't wait by its own words as well."""
        ran = []
        queue.handler("work")(ran.append)
        make(conn, "mail_simple")
        conn.execute(
            "INSERT INTO mail_simple (subject, status, attempts, created_at) VALUES ('a', 'failed', 3, '2020-01-01'),"
            " ('b', 'sending', 1, '2020-01-01'), ('c', 'queued', 0, '2020-01-01'), ('d', 'sent', 1, '2020-01-01')"
        )
        adopt(conn, "mail_simple", document=map_of("mail_simple", cutover="2026-01-01T00:00:00+00:00"))
        which = SQL("status = 'failed' OR status = 'sending'")
        pieces = made(conn)
        assert backfill.count(conn, pieces, which).rows == 2
        assert jobs(conn) == []
        assert backfill.backfill(conn, pieces, which, rate=5, what={"buckets": ["failed"]}) == 2
        spread = conn.execute(
            "select extract(epoch from max(run_at) - min(run_at))::float8 from redrive.jobs"
        ).fetchone()
        assert spread[0] >= 0.15
        conn.execute("update redrive.jobs set run_at = now()")
        drain(queue)
        assert sorted(payload["subject"] for payload in ran) == ["a", "b"]
        assert [row["status"] for row in rows(conn, "mail_simple")] == ["sent", "sent", "queued", "sent"]
        assert backfill.count(conn, pieces, SQL("status = 'sent' AND subject < 'd'")).rows == 2
        acts = conn.execute("select filter, moved from redrive.audit where action = 'adopt backfill'").fetchall()
        assert acts == [({"buckets": ["failed"]}, 2)]

    @pytest.mark.parametrize("table", sorted(MAPS))
    def test_an_ended_row_of_every_shape_can_be_made_to_wait_again(self, conn, table):
        make(conn, table)
        insert(conn, table, 2)
        mapping = parse(map_of(table))
        write = mapping.dead or mapping.succeeded
        if not write.delete:
            sets = bridge.Pieces("redrive", 1, mapping, look(conn, table), beside=False)._sets(write)
            conn.execute(SQL("UPDATE " + table + " SET {}").format(SQL(", ").join(sets)))
        adopt(conn, table, document=map_of(table, cutover=LATER))
        pieces = made(conn, table)
        assert backfill.backfill(conn, pieces, SQL("true"), rate=1000, what={}) == 2
        assert backfill.backfill(conn, pieces, SQL("true"), rate=1000, what={}) == 0


# -- in the long run


def test_nothing_grows_and_nothing_is_done_twice_when_jobs_are_pruned(conn, queue):
    """What is remembered is what is unfinished: a row without a word for its end is not worked again."""
    ran = []

    @queue.handler("work")
    def work(payload):
        ran.append(payload["body"])
        if payload["body"] in ("1", "2"):
            raise Dead("no such address")

    make(conn, "mail_flag")
    adopt(conn, "mail_flag", sweep=True, trigger=True)
    insert(conn, "mail_flag", 20)
    drain(queue)
    assert len(ran) == 20
    assert remembered(conn) == [("ended", None, None)] * 2
    conn.execute("delete from redrive.jobs")
    for _ in range(3):
        round_(conn)
    assert jobs(conn) == []
    conn.execute("UPDATE mail_flag SET sent = true WHERE body = '1'")
    conn.execute("DELETE FROM mail_flag WHERE body = '2'")
    round_(conn)
    assert remembered(conn) == []


def test_a_job_that_somebody_deletes_is_not_made_again_and_what_was_missed_is_made_good(conn):
    make(conn, "mail_simple")
    adopt(conn, "mail_simple", sweep=True, trigger=True)
    insert(conn, "mail_simple", 3)
    first, second, third = (row[0] for row in conn.execute("select id from redrive.jobs order by id"))
    conn.execute("delete from redrive.jobs where id = %s", [first])
    with conn.transaction():
        conn.execute("SET LOCAL session_replication_role = replica")
        conn.execute("update redrive.jobs set status = 'succeeded' where id = %s", [second])
    round_(conn)
    round_(conn)
    assert [row["status"] for row in rows(conn, "mail_simple")] == ["queued", "sent", "queued"]
    assert remembered(conn) == [("held", None, "its job was deleted"), ("waiting", None, None)]
    assert conn.execute("select id from redrive.jobs where status = 'pending'").fetchall() == [(third,)]


def test_nobody_but_a_worker_can_call_what_has_the_rights_of_another(conn):
    make(conn, "mail_simple")
    adopt(conn, "mail_simple")
    role = f"web_{conn.info.dbname}"
    conn.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA redrive TO {role}; SET ROLE {role}")
    try:
        allowed = conn.execute(
            "SELECT proname FROM pg_proc WHERE proname LIKE 'adoption%' AND has_function_privilege(oid, 'EXECUTE')"
        )
        assert [row[0] for row in allowed] == ["adoption_1_round"]
    finally:
        conn.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_workers_role_needs_no_rights_on_the_application_s_table(db, conn):
    make(conn, "mail_simple")
    adopt(conn, "mail_simple", sweep=True)
    insert(conn, "mail_simple", 2)
    role = f"worker_{conn.info.dbname}"
    conn.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA redrive TO {role}")
    for table, rights in WORKER_RIGHTS.items():
        conn.execute(f"GRANT {', '.join(rights)} ON redrive.{table} TO {role}")
    ran = []
    queue = Queue(make_conninfo(db, user=role, password="x"), listen=False)
    queue.handler("work")(ran.append)
    try:
        round_as(conn, role)
        drain(queue)
        assert len(ran) == 2
        assert {row["status"] for row in rows(conn, "mail_simple")} == {"sent"}
    finally:
        queue.close()
        conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def round_as(conn: psycopg.Connection, role: str) -> None:
    with conn.transaction():
        conn.execute(f"SET LOCAL ROLE {role}")
        assert conn.execute("select _took from redrive.adoption_1_round(100)").fetchone() == (2,)


APP = """
from redrive import Queue
queue = Queue()

@queue.handler("work")
def work(payload):
    pass
"""
LATER_PAST = "2026-01-01T00:00:00+00:00"
