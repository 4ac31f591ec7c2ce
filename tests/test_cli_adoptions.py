"""``redrive adopt connect``, ``status``, ``backfill`` and ``undo`` at their front door."""

from __future__ import annotations

import psycopg
import pytest

from adopted import insert, jobs, make, map_of
from redrive.adopt import mapfile
from redrive.adopt.mapping import parse
from shell import answer, complaint, redrive
from test_cli_adopt import SEED


@pytest.fixture
def map_file(tmp_path):
    """Write the map of a table, and give its path."""

    def write(table: str, **changes):
        path = tmp_path / f"{table}.toml"
        path.write_text(mapfile.text(parse(map_of(table, **changes))))
        return path

    return write


def test_a_table_is_connected_shown_filled_and_disconnected(db, conn, map_file):
    make(conn, "mail_jobs")
    conn.execute(SEED)
    before = conn.execute("SELECT to_jsonb(m)::text FROM mail_jobs m ORDER BY 1").fetchall()
    path = map_file("mail_jobs", cutover="2999-01-01T00:00:00+00:00", attempts={"column": "retry_count", "max": 5})
    script = redrive(db, "adopt", "connect", "mail_jobs", "--map", path, "--dry-run").stdout
    assert "CREATE TRIGGER" in script
    assert redrive(db, "adopt", "status").stderr == "no table is connected\n"
    assert "is connected: rows that come to wait" in redrive(db, "adopt", "connect", "mail_jobs", "--map", path).stdout
    said = complaint(redrive(db, "adopt", "connect", "mail_jobs", "--map", path, code=1))
    assert "is connected already" in said
    assert "there is nothing to do" in said
    said = complaint(redrive(db, "adopt", "connect", "mail_jobs", "--map", path, "--legacy-stopped", code=1))
    assert "in another way" in said
    found = answer(db, "adopt", "backfill", "mail_jobs")
    rows = {each["bucket"]: each["rows"] for each in found["buckets"]}
    assert rows["stuck"] > 0
    assert complaint(redrive(db, "adopt", "backfill", "mail_jobs", "stuck", code=2))
    said = complaint(redrive(db, "adopt", "backfill", "mail_jobs", "done_but_open", "--rate", "9/s", code=2))
    assert "worked already" in said
    marking = said.partition("marked as done: ")[2]
    assert marking.startswith('UPDATE "public"."mail_jobs" SET "status" = \'sent\'')
    with psycopg.connect(db) as undone:
        assert undone.execute(marking).rowcount == rows["done_but_open"] > 0
        undone.rollback()
    assert "out_of_attempts" in complaint(redrive(db, "adopt", "backfill", "mail_jobs", "stick", "--dry-run", code=2))
    assert answer(db, "adopt", "backfill", "mail_jobs", "stuck", "--dry-run")["taken"] == 0
    assert answer(db, "adopt", "backfill", "mail_jobs", "stuck", "--rate", "1000/s", "--limit", 1)["taken"] == 1
    said = redrive(db, "adopt", "backfill", "mail_jobs", "stuck", "--rate", "1000/s").stdout
    assert f"{rows['stuck'] - 1} job" in said
    status = answer(db, "adopt", "status", "mail_jobs")
    assert (status["waiting"], status["name"], status["notes"]) == (rows["stuck"], "public.mail_jobs", [])
    assert "connected" in redrive(db, "adopt", "status").stdout
    undone = redrive(db, "adopt", "undo", "mail_jobs", "--reason", "enough").stdout
    assert "is no longer connected: nothing of redrive's is left on it, and its rows keep what was written" in undone
    assert {status for status, _, _ in jobs(conn)} == {"failed"}
    after = conn.execute("SELECT to_jsonb(m)::text FROM mail_jobs m ORDER BY 1").fetchall()
    assert len([row for row in after if row not in before]) == rows["stuck"]
    acts = conn.execute("select action, moved, reason from redrive.audit order by id").fetchall()
    assert [act[:2] for act in acts] == [
        ("adopt", 0),
        ("adopt backfill", 1),
        ("adopt backfill", rows["stuck"] - 1),
        ("adopt undo", rows["stuck"]),
    ]
    assert acts[-1][2] == "enough"


def test_redrives_own_table_is_not_adopted(db, conn, map_file, tmp_path):
    """A trigger of an adoption on it would make jobs of jobs, each of which makes another."""
    assert "redrive's own table, and nothing to adopt" in redrive(db, "adopt", "redrive.jobs").stderr
    said = complaint(redrive(db, "adopt", "redrive.jobs", "--map", str(tmp_path / "new.toml"), code=2))
    assert "there is nothing to map" in said
    own = tmp_path / "own.toml"
    text = map_file("mail_jobs").read_text()
    assert 'table = "public.mail_jobs"' in text
    own.write_text(text.replace("public.mail_jobs", "redrive.jobs"))
    said = complaint(redrive(db, "adopt", "connect", "redrive.jobs", "--map", str(own), code=2))
    assert "redrive.jobs is redrive's own table" in said
    assert redrive(db, "adopt", "status").stderr == "no table is connected\n"


def test_several_buckets_are_taken_in_at_once_and_it_ends(db, conn, map_file):
    make(conn, "mail_jobs")
    conn.execute(SEED)
    path = map_file("mail_jobs", cutover="2999-01-01T00:00:00+00:00", attempts={"column": "retry_count", "max": 5})
    redrive(db, "adopt", "connect", "mail_jobs", "--map", path)
    rows = {each["bucket"]: each["rows"] for each in answer(db, "adopt", "backfill", "mail_jobs")["buckets"]}
    wanted = rows["stuck"] + rows["out_of_attempts"]
    taken = answer(db, "adopt", "backfill", "mail_jobs", "stuck", "out_of_attempts", "--rate", "1000/s")
    assert taken["taken"] == wanted == len(jobs(conn))


def test_a_table_that_is_not_connected_is_told_with_those_that_are(db, conn, map_file):
    make(conn, "mail_simple")
    assert complaint(redrive(db, "adopt", "undo", "nosuch", code=1)) == "nosuch is not connected; no table is"
    redrive(db, "adopt", "connect", "mail_simple", "--map", map_file("mail_simple"))
    for words in (("undo", "nosuch"), ("pause", "nosuch"), ("backfill", "nosuch")):
        said = complaint(redrive(db, "adopt", *words, code=1))
        assert said.endswith("nosuch is not connected; connected are: public.mail_simple")


def test_a_pause_and_what_is_in_the_way_are_shown(db, conn, map_file):
    make(conn, "mail_simple")
    redrive(db, "adopt", "connect", "mail_simple", "--map", map_file("mail_simple"))
    assert redrive(db, "adopt", "pause", "mail_simple", "--reason", "mail moves").stdout == "mail_simple paused\n"
    insert(conn, "mail_simple", 2)
    shown = redrive(db, "adopt", "status", code=1).stdout
    assert "paused" in shown
    assert "2 rows, such as 1: paused" in shown
    conn.execute("delete from mail_simple where id = 2")
    conn.execute("delete from redrive.adopted_rows where row_key = '2'")
    assert "1 row, such as 1: paused" in redrive(db, "adopt", "status", code=1).stdout
    assert redrive(db, "adopt", "resume", "mail_simple").stdout == "mail_simple resumed\n"
    conn.execute("ALTER TABLE mail_simple DISABLE TRIGGER ALL")
    assert "a trigger is gone or disabled" in redrive(db, "adopt", "status", code=1).stdout


def test_what_would_be_done_twice_is_refused_before_anything_is_done_ad_04(db, conn, map_file):
    """AD-04."""
    make(conn, "mail_flag", "mail_simple")
    said = complaint(redrive(db, "adopt", "connect", "mail_flag", "--map", map_file("mail_flag"), code=2))
    assert 'SELECT "id" FROM public.mail_flag WHERE ("sent" IN (false) OR "sent" IS NULL)' in said
    said = complaint(
        redrive(db, "adopt", "connect", "mail_simple", "--map", map_file("mail_flag"), "--legacy-stopped", code=2)
    )
    assert "is the map of public.mail_flag" in said
    redrive(db, "adopt", "connect", "mail_flag", "--map", map_file("mail_flag"), "--legacy-stopped", "--sweep")
    assert answer(db, "adopt", "status", "mail_flag")["by_sweep"]


def test_what_runs_is_told_when_there_is_no_patience_for_it(db, conn, map_file):
    make(conn, "mail_simple")
    redrive(db, "adopt", "connect", "mail_simple", "--map", map_file("mail_simple"))
    insert(conn, "mail_simple")
    conn.execute("update redrive.jobs set status = 'running', locked_by = 'me', claims = 1, attempts = 1")
    done = redrive(db, "adopt", "undo", "mail_simple", "--wait", "0", code=1)
    assert "1 job still run" in done.stderr
    with psycopg.connect(db, autocommit=True) as worker:
        worker.execute("update redrive.jobs set status = 'succeeded'")
    assert answer(db, "adopt", "undo", "mail_simple")["done"]
