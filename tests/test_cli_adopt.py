"""``redrive adopt`` at its front door: in colour and plain, as a page and as a document, clear when it can't."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import support
from redrive.dev_server import DevServer, binaries
from redrive.dev_server.supervisor import account
from shapes_of_tables import SHAPES, UUIDS
from shell import NOBODY, answer, complaint, on_terminal, redrive
from test_adopt_report import LOST, SEED


@pytest.fixture(scope="module")
def dsn(server_url: str) -> Iterator[str]:
    with support.database(server_url) as url:
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(UUIDS + SHAPES["mail_jobs"])
            conn.execute(SEED)
        yield url


def test_the_lost_are_told_with_their_counts_their_age_and_what_to_do(dsn):
    """AD-08. redrive is not installed in this database."""
    text = redrive(dsn, "adopt", "mail_jobs", "--zone", "UTC", "--max-attempts", "5").stdout
    assert f"SILENTLY LOST: {sum(LOST.values())} rows" in text
    for name, rows in LOST.items():
        [line] = [line for line in text.splitlines() if line.endswith(f"[{name}]")]
        assert line.startswith(f"{rows} ")
    assert "(5 d ago), by next_retry_at" in text
    assert "hunter2" not in text
    assert "sent        2,000  done" in text


def test_a_script_gets_one_document_and_an_answered_question_is_no_remark(dsn):
    found = answer(dsn, "adopt", "public.mail_jobs", "--zone", "UTC", "--max-attempts", 5)
    assert {bucket["bucket"]: bucket["rows"] for bucket in found["lost"]} == LOST
    assert (found["rows"], found["estimated"], found["key"], found["remarks"]) == (2056, False, ["id"], [])
    assert {"value": None, "rows": 2, "means": "nothing"} in found["values"]["status"]
    open_ = answer(dsn, "adopt", "mail_jobs")
    assert len(open_["remarks"]) == 2
    assert [column["zone_known"] for column in open_["columns"] if column["name"] == "created_at"] == [False]


def test_the_page_is_written_to_the_file(dsn, tmp_path):
    path = tmp_path / "lost.html"
    redrive(dsn, "adopt", "mail_jobs", "--html", path)
    assert path.read_text().startswith("<!doctype html>")
    refused = redrive(dsn, "adopt", "mail_jobs", "--html", tmp_path / "no" / "lost.html", code=1)
    assert "can't be written: No such file" in complaint(refused)


def test_a_terminal_shows_it_in_colour(dsn):
    shown, code = on_terminal(dsn, "adopt", "mail_jobs", "--zone", "UTC")
    assert code == 0
    assert "\x1b[31m\x1b[1mSILENTLY LOST" in shown


def test_nothing_lost_is_said_as_well(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(SHAPES["bg_jobs"])
    assert "Nothing is silently lost here" in redrive(dsn, "adopt", "bg_jobs").stdout


def test_a_map_is_proposed_then_refused_until_answered_then_checked_and_reported_by(dsn, tmp_path):
    path = tmp_path / "mail_jobs.toml"
    proposed = redrive(dsn, "adopt", "mail_jobs", "--map", path)
    assert f"a map is proposed in {path}" in proposed.stderr
    assert "4 questions in it only you can answer" in proposed.stderr
    text = path.read_text()
    refused = redrive(dsn, "adopt", "mail_jobs", "--map", path, code=2)
    assert "attempts.max: is not answered: put a whole number" in refused.stderr
    assert "4 things to mend" in refused.stderr
    path.write_text(text.replace('zone = "?"', 'zone = "UTC"').replace('max = "?"', "max = 5"))
    made = redrive(dsn, "adopt", "mail_jobs", "--map", path)
    assert f"{path} suits public.mail_jobs" in made.stderr
    assert f"SILENTLY LOST: {sum(LOST.values())} rows" in made.stdout
    assert path.read_text().count("?") == text.count("?") - 4, "a file that is there is never written over"
    asked = complaint(redrive(dsn, "adopt", "mail_jobs", "--map", path, "--zone", "UTC", code=2))
    assert "write the answer into it" in asked
    path.write_text(path.read_text().replace('set = { status = "failed" }', 'set = { status = "dead" }'))
    wrong = redrive(dsn, "adopt", "mail_jobs", "--map", path, code=2)
    assert "dead.set: status (character varying(20)) can't hold 'dead'" in wrong.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nothing"], 2, "there is no table nothing"),
        (["mail_job"], 2, "there are mail_jobs"),
        (["mail_jobs", "--zone", "Europe/Pari"], 2, "did you mean Europe/Paris?"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(dsn, words, code, said):
    assert said in complaint(redrive(dsn, "adopt", *words, code=code))


def test_a_table_that_somebody_alters_is_told_and_not_waited_for(dsn):
    with psycopg.connect(dsn) as other:
        other.execute("LOCK TABLE mail_jobs IN ACCESS EXCLUSIVE MODE")
        assert "locked by another session" in complaint(redrive(dsn, "adopt", "mail_jobs", code=1))


def test_without_a_database_it_says_so():
    assert "can't be reached" in complaint(redrive(NOBODY, "adopt", "mail_jobs", code=3))
    assert "no database is named" in complaint(redrive(None, "adopt", "mail_jobs", code=3))


@pytest.mark.proof
def test_a_standby_can_be_looked_at_as_well(tmp_path):
    """A real one, streaming; it is said that the table can't be connected there."""
    base = Path(tempfile.mkdtemp(dir=support.clusters()))
    base.chmod(0o711)
    how, who = {"wal_level": "replica", "max_wal_senders": "5"}, account() or {}
    try:
        with DevServer(base / "primary", keep=False, settings=how) as primary:
            with psycopg.connect(primary.url, autocommit=True) as conn:
                conn.execute(UUIDS + SHAPES["mail_jobs"])
                conn.execute(SEED)
            copy = base / "standby"
            copy.mkdir(mode=0o711)
            shutil.copy(primary.directory / "password", copy / "password")
            if who:
                for path in (copy, copy / "password"):
                    os.chown(path, who["user"], who["group"])
            command = [binaries.find(None) / "pg_basebackup", "--no-sync", "-R", "-X", "stream", "-c", "fast"]
            subprocess.run([*command, "-D", copy / "data", "-d", primary.url], check=True, cwd="/", **who)
            with DevServer(copy, keep=False, settings=how) as standby:
                found = answer(standby.url, "adopt", "mail_jobs", "--zone", "UTC", "--max-attempts", 5)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    assert found["server"]["standby"]
    assert {bucket["bucket"]: bucket["rows"] for bucket in found["lost"]} == LOST
    assert [remark["text"] for remark in found["remarks"]] == [
        "this is a standby: to connect the table, name the primary"
    ]
