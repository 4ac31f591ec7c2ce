"""``redrive requeue`` over time and with another payload, ``requeues``, ``audit`` and one group of ``dead``."""

from __future__ import annotations

import json
import signal
import subprocess
import threading

import pytest

from engine import Inside
from redrive import Queue
from redrive.sql import BROKER
from shell import answer, complaint, insert, process, redrive
from support import wait_for

GROUP = "aaaa0000aaaa0000"
SECRETS = ("hunter2", "k-123456")


@pytest.fixture
def working(db):
    """A worker in this process, of a kind that succeeds and one that does not."""
    queue = Queue(db)
    queue.handler("mail")(lambda _payload: None)

    @queue.handler("bad")
    def bad(payload):
        raise ConnectionError("postgresql://app:hunter2@db/x refused")

    with Inside(queue) as inside:
        wait_for(lambda: inside.workers[0].listener.hears)
        yield queue
    queue.close()


def columns(conn, names, job=1):
    return conn.execute(f"select {names} from redrive.jobs where id = %s", [job]).fetchone()


class TestAtBroker:
    """Jobs that keep their row while they are at a broker, where somebody has purged a queue."""

    @pytest.fixture
    def sent(self, conn):
        """One of an hour ago, one of just now, one of another kind, one that a worker has, and a dead one."""
        for kind, age, holder in (("mail", 1, BROKER), ("mail", 0, BROKER), ("fax", 1, BROKER), ("mail", 1, "w")):
            row = {"status": "running", "attempts": 5, "claims": 6, "locked_by": holder, "key": f"{kind}{age}{holder}"}
            [job] = insert(conn, kind, **row)
            conn.execute("update redrive.jobs set locked_at = now() - %s * interval '1 hour' where id = %s", [age, job])
        insert(conn, "mail", status="dead")

    def test_those_that_went_there_a_while_ago_go_back_as_if_they_had_not(self, db, conn, sent):
        words = ["requeue", "--at-broker", "--kind", "mail", "--by", "ada", "--reason", "purged"]
        rehearsed = redrive(db, *words, "--dry-run")
        assert rehearsed.stdout == "1 job at the broker found: 1\n"
        assert rehearsed.stderr.startswith("note: a job whose message is at the broker after all")
        assert redrive(db, *words).stdout.endswith("found: 1\n1 sent back, 0 skipped because their state changed\n")
        kept = columns(conn, "status, attempts, claims, key, locked_by, locked_at, run_at > now() - interval '1 min'")
        assert kept == ("pending", 4, 6, f"mail1{BROKER}", None, None, True)
        states = [status for (status,) in conn.execute("select status from redrive.jobs order by id")]
        assert states == ["pending", "running", "running", "running", "dead"]
        [act] = answer(db, "audit")["acts"]
        assert (act["action"], act["by"], act["reason"], act["moved"]) == ("requeue", "ada", "purged", 1)
        assert (act["filter"]["at"], act["filter"]["kind"]) == ("broker", "mail")
        assert answer(db, *words)["ids"] == [], "it moves once"
        assert redrive(db, *words).stderr == ""

    def test_ids_are_taken_whenever_they_went_and_those_that_are_not_there_are_named(self, db, conn, sent):
        result = redrive(db, "requeue", "--at-broker", 2, 4, 5, 9, code=1)
        assert result.stderr.startswith("job 4 is running\njob 5 is dead\njob 9 is not there\nnote: ")
        assert "found: 2\n1 sent back" in result.stdout
        assert answer(db, "requeue", "--at-broker", "--all", "--until", "30m")["ids"] == [1, 3]

    def test_what_was_to_be_cancelled_ends_instead(self, db, conn, sent):
        redrive(db, "cancel", 1)
        redrive(db, "requeue", "--at-broker", 1)
        [ended] = conn.execute("select status, key, last_error from redrive.jobs where id = 1").fetchall()
        assert ended == ("failed", None, "cancelled; its message was gone from the broker")

    def test_many_are_one_act(self, db, conn):
        insert(conn, "mail", 2500, status="running", locked_by=BROKER, locked_at="2020-01-01")
        assert answer(db, "requeue", "--at-broker", "--kind", "mail")["requeued"] == 2500
        assert [act["moved"] for act in answer(db, "audit")["acts"]] == [2500]

    @pytest.mark.parametrize(
        "more",
        [
            ["--group", "mail:a"],
            ["--since", "1h"],
            ["--status", "dead"],
            ["--canary"],
            ["--rate", "1/s"],
            ["--set", "a=1"],
            ["--error", "x"],
            ["--payload", "a=1"],
        ],
        ids=" ".join,
    )
    def test_it_goes_with_no_other_filter_or_way(self, more):
        assert "--at-broker goes with ids" in complaint(redrive(None, "requeue", "--at-broker", 1, *more, code=2))

    def test_nothing_said_is_not_all(self):
        assert "--all for all of them" in complaint(redrive(None, "requeue", "--at-broker", code=2))


class TestOverTime:
    def test_it_is_followed_to_its_end(self, db, conn, working):
        insert(conn, "mail", 5, status="dead", fingerprint=GROUP)
        words = ["requeue", "--group", "mail:aaaa", "--canary", "--rate", "1000/s", "--by", "ada", "--reason", "mended"]
        shown = redrive(db, *words).stdout
        assert shown.startswith("5 dead jobs found: 1 2 3 4 5\nrequeue 1: ")
        assert shown.endswith("requeue 1: done, 5 of 5 sent back, 0 skipped because their state changed\n")
        [done, started] = answer(db, "audit")["acts"]
        assert (started["action"], started["by"], started["reason"], started["after"]["rate"]) == (
            "requeue started",
            "ada",
            "mended",
            1000,
        )
        assert (done["action"], done["moved"], done["filter"]) == ("requeue done", 5, {"kind": "mail", "group": GROUP})

    def test_a_canary_that_fails_is_told_without_its_secrets(self, db, conn, working):
        """OP-04."""
        insert(conn, "bad", 3, status="dead")
        said = complaint(redrive(db, "requeue", "--kind", "bad", "--canary", code=1))
        assert said == (
            "requeue 1 failed, 1 of 3 sent back: the canary, job 1, failed again: "
            "ConnectionError: postgresql://app:***@db/x refused"
        )
        for words in (
            ["requeues", "list"],
            ["requeues", "list", "--json"],
            ["audit"],
            ["audit", "--json"],
            ["dead"],
        ):
            shown = redrive(db, *words).output
            assert not [secret for secret in SECRETS if secret in shown]
        assert answer(db, "requeues", "list")[0]["status"] == "failed"

    def test_who_leaves_is_told_that_it_goes_on_and_how_to_stop_it(self, db, conn):
        insert(conn, "mail", 5, status="dead")
        child = process(db, "requeue", "--all", "--canary", stderr=subprocess.STDOUT)
        wait_for(lambda: conn.execute("select count(*) from redrive.requeues").fetchone() == (1,), 20)
        assert child.stdout.readline() == "5 dead jobs found: 1 2 3 4 5\n"
        assert child.stdout.readline() == "requeue 1: waits for a worker\n"
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=20)
        assert "it goes on without you" in out
        assert "`redrive requeues stop 1` ends it" in out
        assert child.returncode == 0
        assert answer(db, "requeues", "stop", 1, "--reason", "no")["status"] == "stopped"
        assert redrive(db, "requeues", "stop", 1, code=1).stdout.startswith(
            "requeue 1 stopped, 0 of 5 sent back: stopped by"
        )
        assert "99" in complaint(redrive(db, "requeues", "stop", 99, code=1))

    def test_one_who_does_not_want_to_watch_is_given_its_number(self, db, conn):
        insert(conn, "mail", 5, status="dead")
        assert "requeue 1 begun" in redrive(db, "requeue", "--all", "--rate", "60/m", "--detach").stdout
        begun = answer(db, "requeue", "--all", "--rate", "60/m", "--detach")
        assert (begun["id"], begun["rate"], begun["matched"], begun["canary"]) == (2, 1, 5, False)
        assert [row["id"] for row in answer(db, "requeues", "list", "--active")] == [2, 1]

    def test_flags_that_go_together_with_nothing_are_refused(self, db, conn):
        insert(conn, "mail", status="dead", fingerprint=GROUP)
        for words, said in (
            (["--all", "--detach"], "--detach goes with --canary or --rate"),
            (["--all", "--rate", "fast"], "give a rate like"),
            (["--all", "--rate", "0/s"], "rate is 0.0"),
            (["--kind", "mail", "--set", "a=1"], "for one job alone"),
            (["1", "--edit", "--canary"], "for one job alone"),
            (["--group", "mail:aaaa", "--kind", "export"], "is of kind mail"),
            (["--payload", "nothing"], "write path=value"),
            (["1", "--set", "a.b=1"], "leads nowhere"),
            (["1", "--payload-file", "/nowhere"], "/nowhere"),
        ):
            assert said in complaint(redrive(db, "requeue", *words, "--yes", code=2)), words
        assert "is called 'nothing'" in complaint(redrive(db, "requeue", "--group", "nothing", code=1))
        assert columns(conn, "status::text") == ("dead",)

    def test_jobs_are_found_by_what_stands_in_their_payload(self, db, conn):
        for to in ("ada@x", "bob@x"):
            insert(conn, "mail", status="dead", payload=json.dumps({"to": to, "n": 7}))
        assert answer(db, "requeue", "--payload", "payload.to=ada@x", "--dry-run")["sample"] == [1]
        assert answer(db, "requeue", "--payload", "n=7", "--payload", "to=bob@x")["ids"] == [2]


class TestAnotherPayload:
    @pytest.fixture(autouse=True)
    def dead(self, conn):
        insert(conn, "mail", status="dead", payload='{"to": "bob", "token": "k-123456"}', last_error="x")

    def test_a_value_is_set_and_what_it_was_is_shown(self, db, conn):
        said = redrive(db, "requeue", 1, "--set", "to=ada", "--set", "n=3", "--by", "eve", "--reason", "typo").stdout
        assert said == "job 1 sent back with another payload; what it was stands in `redrive show 1`\n"
        assert columns(conn, "status::text, payload") == ("pending", {"to": "ada", "n": 3, "token": "k-123456"})
        shown = redrive(db, "show", 1).stdout
        assert 'payload changed now by eve: typo; before that\n{\n  "to": "bob",\n  "token": "***"\n}\n' in shown
        [edit] = answer(db, "show", 1)["edits"]
        assert (edit["before"], edit["after"]["n"]) == ({"to": "bob", "token": "***"}, 3)
        assert answer(db, "audit", "--job", 1)["acts"][0]["action"] == "edit and requeue"

    def test_it_is_taken_from_a_file_or_an_editor(self, db, conn, tmp_path):
        file, editor = tmp_path / "f.json", tmp_path / "editor"
        file.write_text('{"to": "ada"}')
        assert answer(db, "requeue", 1, "--payload-file", file) == {"id": 1, "requeued": True}
        assert columns(conn, "payload") == ({"to": "ada"},)
        conn.execute("update redrive.jobs set status = 'dead'")
        editor.write_text("#!/bin/sh\nsed -i s/ada/eve/ $1\n")
        editor.chmod(0o755)
        redrive(db, "requeue", 1, "--edit", env={"EDITOR": str(editor), "VISUAL": ""})
        assert columns(conn, "status::text, payload") == ("pending", {"to": "eve"})
        conn.execute("update redrive.jobs set status = 'dead'")
        said = complaint(redrive(db, "requeue", 1, "--edit", code=1, env={"EDITOR": "true", "VISUAL": ""}))
        assert said.startswith("the payload was not changed")
        assert redrive(db, "requeue", 1, "--payload-file", "-", stdin="[1]").exit_code == 0

    def test_what_is_no_json_or_not_what_the_handler_takes_changes_nothing(self, db, conn, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "typed_app.py").write_text(
            "from typing import TypedDict\nfrom redrive import Queue\nqueue = Queue()\n"
            "class Mail(TypedDict):\n    to: str\n\n@queue.handler('mail')\ndef mail(payload: Mail): ...\n"
        )
        assert "no JSON" in complaint(redrive(db, "requeue", 1, "--payload-file", "-", stdin="{", code=2))
        words = ["requeue", 1, "--set", "to=7", "--app", "typed_app:queue"]
        assert "payload.to" in complaint(redrive(db, *words, code=2))
        assert "is not there" in complaint(redrive(db, "requeue", 9, "--set", "to=7", code=1))
        assert columns(conn, "status::text") == ("dead",)
        assert answer(db, "audit")["acts"] == []


class TestGroup:
    def test_one_is_shown_with_its_last_failure_and_what_to_do(self, db, conn):
        insert(conn, "mail", 4, status="dead", fingerprint=GROUP)
        conn.execute(
            "insert into redrive.failures (job_id, kind, claim, attempt, outcome, failed_at, error_type, message,"
            " traceback, fingerprint, version) values (4, 'mail', 1, 5, 'dead', now(), 'ValueError', 'token=k-123456',"
            " E'Traceback\\nKeyError: 1\\n\\nThe above exception was the direct cause\\n\\nValueError: token=k-123456',"
            " %s, '1.4.2')",
            [GROUP],
        )
        shown = redrive(db, "dead", "mail").stdout
        assert shown.startswith("mail:aaaa0000  ValueError: token=***\n")
        for part in (
            "dead         4: 4 3 2 …",
            "versions     1.4.2",
            "the last failure, of job 4, try 5",
            "KeyError: 1",
        ):
            assert part in shown
        assert "k-123456" not in shown
        assert "  redrive requeue --group mail:aaaa0000 --canary\n" in shown
        found = answer(db, "dead", "mail:aaaa0000")
        assert (found["dead"], found["capped"], found["sample_failure"]["attempt"]) == (4, [], 5)
        assert "k-123456" not in json.dumps(found)
        assert "is called 'export'" in complaint(redrive(db, "dead", "export", code=1))


class TestAudit:
    def test_every_act_leaves_a_row_with_who_and_why(self, db, conn):
        """What an operator did is in the transaction of the deed: a row for each, none for what came to nothing."""
        insert(conn, "mail", 3)
        insert(conn, "mail", 2, status="dead")
        for words in (
            ["cancel", 1, 2],
            ["requeue", "--kind", "mail", "--yes"],
            ["pause", "mail"],
            ["resume", "mail"],
            ["limit", "mail", "--running", "3"],
            ["limit", "mail", "--none"],
            ["schedules", "add", "nightly", "mail", "0 3 * * *"],
            ["schedules", "pause", "nightly"],
            ["schedules", "resume", "nightly"],
            ["schedules", "run", "nightly"],
            ["schedules", "remove", "nightly"],
            ["prune", "--succeeded", "1d"],
        ):
            redrive(db, *words, "--by", "ada", "--reason", f"for {words[0]}")
        rows = answer(db, "audit")["acts"][::-1]
        assert [(row["action"], row["moved"]) for row in rows] == [
            ("cancel", 2),
            ("requeue", 2),
            ("pause", 1),
            ("resume", 1),
            ("limit", 1),
            ("limit", 1),
            ("schedule add", 1),
            ("schedule pause", 1),
            ("schedule resume", 1),
            ("schedule run", 1),
            ("schedule remove", 1),
            ("prune", 0),
        ]
        assert {row["by"] for row in rows} == {"ada"}
        assert {row["reason"] for row in rows} == {
            f"for {word}" for word in ("cancel", "requeue", "pause", "resume", "limit", "schedules", "prune")
        }
        assert (rows[0]["filter"], rows[2]["filter"], rows[5]["before"]) == (
            {"ids": [1, 2]},
            {"kind": "mail"},
            {"running_most": 3},
        )
        assert (rows[6]["before"], rows[6]["after"]["cron"], rows[10]["before"]["cron"]) == (
            None,
            "0 3 * * *",
            "0 3 * * *",
        )
        assert redrive(db, "resume", "mail", code=1).exit_code == 1
        assert len(answer(db, "audit")["acts"]) == len(rows)
        assert [row["action"] for row in answer(db, "audit", "--action", "limit", "--limit", 1)["acts"]] == ["limit"]
        assert answer(db, "audit", "--by", "eve")["acts"] == []

    def test_a_schedule_that_is_said_again_unchanged_is_no_act(self, db, conn):
        for _ in range(2):
            redrive(db, "schedules", "add", "nightly", "mail", "0 3 * * *")
        redrive(db, "schedules", "add", "nightly", "mail", "0 4 * * *")
        newest, oldest = answer(db, "audit")["acts"]
        assert (newest["before"]["cron"], newest["after"]["cron"], oldest["before"]) == ("0 3 * * *", "0 4 * * *", None)

    def test_an_act_in_a_transaction_that_is_rolled_back_was_none(self, db, conn):
        insert(conn, "mail", 3, status="dead")
        with Queue(db).pool.connection() as own, own.transaction(force_rollback=True):
            Queue(db).kinds.pause("mail", connection=own)
            assert own.execute("select count(*) from redrive.audit").fetchone() == (1,)
        assert answer(db, "audit")["acts"] == []

    def test_two_who_cancel_at_once_count_what_each_did(self, db, conn):
        insert(conn, "mail", 2500)
        runs = [
            threading.Thread(target=Queue(db).cancel, kwargs={"kind": "mail", "by": str(name)}) for name in range(2)
        ]
        for each in runs:
            each.start()
        for each in runs:
            each.join()
        acts = answer(db, "audit")["acts"]
        assert sum(act["moved"] for act in acts) == 2500
        assert {act["by"] for act in acts} <= {"0", "1"}
