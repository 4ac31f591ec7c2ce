"""``redrive jobs``, ``show``, ``dead`` and ``workers``: what is seen, and what is not (OP-04)."""

from __future__ import annotations

import json
import shlex

import pytest
from psycopg.types.json import Jsonb

from shell import answer, beat, complaint, insert, on_terminal, process, redrive

SECRET = {
    "to": "user@example.com",
    "password": "hunter2",
    "api_key": "k-123456",
    "headers": {"Authorization": "Bearer abc"},
}
ERROR = """Traceback (most recent call last):
  File "app/jobs.py", line 7, in mail
    connect("postgresql://app:hunter2@db/app")
ConnectionError: postgresql://app:hunter2@db/app refused, token=k-123456"""
SENSITIVE = """
from redrive import Queue
queue = Queue()

@queue.handler("mail", sensitive=True, aliases=["letter"])
def mail(payload): ...
"""


def fail(conn, job, **columns):
    """Write a row of the history as a worker would."""
    row = {
        "job_id": job,
        "kind": "mail",
        "claim": 1,
        "attempt": 1,
        "outcome": "retried",
        "duration": 1.5,
        "worker": "box:1:abcdef",
        "error_type": "ConnectionError",
        "message": "refused, token=k-123456",
        "traceback": ERROR,
        **columns,
    }
    marks = ", ".join(f"%({name})s" for name in row)
    conn.execute(f"insert into redrive.failures ({', '.join(row)}, failed_at) values ({marks}, now())", row)


def leaks(text):
    return [secret for secret in ("hunter2", "k-123456", "Bearer abc") if secret in text]


# -- jobs


def test_jobs_are_listed_newest_first_with_what_matters_of_each(db, conn):
    insert(conn, "mail", payload=Jsonb({"to": "a"}))
    insert(conn, "later", run_at="2999-01-01")
    insert(conn, "mail", status="dead", attempts=5, last_error=ERROR)
    insert(conn, "busy", status="running", attempts=1, locked_by="box:1:abcdef", locked_at="2020-01-01")
    insert(conn, "done", status="succeeded", attempts=2, last_error=ERROR)
    lines = redrive(db, "jobs").stdout.splitlines()
    assert lines[0].split() == ["ID", "KIND", "STATUS", "TRIES", "WHEN", "ERROR", "OR", "PAYLOAD"]
    assert [line.split()[:4] for line in lines[1:]] == [
        ["5", "done", "succeeded", "2/5"],
        ["4", "busy", "running", "1/5"],
        ["3", "mail", "dead", "5/5"],
        ["2", "later", "pending", "0/5"],
        ["1", "mail", "pending", "0/5"],
    ]
    assert "  for " in lines[2]
    assert lines[3].endswith("ConnectionError: postgresql://app:***@db/app refused, token=***")
    assert " in " in lines[4]
    assert lines[5].endswith('{"to": "a"}')


def test_json_is_one_document_with_the_whole_rows(db, conn):
    insert(conn, "mail", payload=Jsonb({"to": "a", "n": 1.5}), key="k", lane="eu", metadata=Jsonb({"trace": "t"}))
    document = answer(db, "jobs")
    [job] = document["jobs"]
    assert document["next_before"] is None
    assert job["payload"] == {"to": "a", "n": 1.5}
    assert (job["key"], job["lane"], job["metadata"], job["locked_at"]) == ("k", "eu", {"trace": "t"}, None)
    assert job["created_at"].endswith("+00:00")
    columns = conn.execute("select column_name from information_schema.columns where table_name = 'jobs'")
    assert set(job) == {name for (name,) in columns}


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["--status", "dead"], [3]),
        (["--kind", "mail"], [3, 1]),
        (["--key", "welcome:42"], [2]),
        (["--error", "TIMED out"], [3]),
        (["--error", "100%"], []),
        (["--before", "3"], [2, 1]),
        (["--limit", "1", "--kind", "mail"], [3]),
    ],
)
def test_jobs_are_found_by(db, conn, flags, found):
    insert(conn, "mail")
    insert(conn, "welcome", key="welcome:42")
    insert(conn, "mail", status="dead", last_error="it timed out after 100 s")
    assert [job["id"] for job in answer(db, "jobs", *flags)["jobs"]] == found


def test_a_full_page_says_how_to_see_the_next(db, conn):
    insert(conn, "mail", 3)
    result = redrive(db, "jobs", "--limit", "2")
    assert "add --before 2" in result.stderr
    assert "add" not in result.stdout
    assert answer(db, "jobs", "--limit", "2")["next_before"] == 2


def test_no_jobs_are_told_apart_from_no_match(db, conn):
    assert redrive(db, "jobs").stderr == "no jobs\n"
    assert redrive(db, "jobs", "--kind", "mail").stderr == "no job matches\n"
    assert answer(db, "jobs") == {"jobs": [], "next_before": None}


def test_a_state_that_does_not_exist_is_a_wrong_value(db):
    assert "'waiting' is not one of 'pending'" in complaint(redrive(db, "jobs", "--status", "waiting", code=2))


def test_counts_are_by_kind_and_state(db, conn):
    insert(conn, "mail", 2)
    insert(conn, "mail", 1, attempts=2, run_at="2999-01-01")
    insert(conn, "mail", 4, status="dead")
    rows = answer(db, "jobs", "--counts")["counts"]
    assert [(row["kind"], row["status"], row["jobs"], row["due"], row["retrying"]) for row in rows] == [
        ("mail", "dead", 4, 0, 0),
        ("mail", "pending", 3, 2, 1),
    ]
    assert redrive(db, "jobs", "--counts").stdout.splitlines()[1].split() == ["mail", "dead", "4"]
    assert "leave --kind out" in complaint(redrive(db, "jobs", "--counts", "--kind", "mail", code=2))


# -- OP-04: secrets


@pytest.mark.parametrize("words", [["jobs"], ["show", "1"], ["show", "1", "--tracebacks"], ["dead"]], ids=" ".join)
@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["table", "json"])
def test_secrets_in_payloads_results_and_errors_are_masked(db, conn, words, flags):
    """OP-04."""
    [job] = insert(
        conn,
        "mail",
        status="dead",
        payload=Jsonb(SECRET),
        result=Jsonb(SECRET),
        progress=Jsonb(SECRET),
        metadata=Jsonb(SECRET),
        last_error=ERROR,
    )
    insert(conn, "mail", payload=Jsonb(SECRET))
    fail(conn, job)
    shown = redrive(db, *words, *flags).output
    assert leaks(shown) == []
    assert "***" in shown


@pytest.mark.parametrize("words", [["jobs"], ["show", "1"]], ids=" ".join)
def test_a_sensitive_kind_shows_nothing_of_its_payload_where_the_application_is_known(
    db, conn, words, tmp_path, monkeypatch
):
    """OP-04: per-handler `sensitive=True` hides all."""
    (tmp_path / "sensitive_app.py").write_text(SENSITIVE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    insert(conn, "letter", payload=Jsonb({"diagnosis": "flu"}), result=Jsonb({"diagnosis": "flu"}))
    for flags in ([], ["--json"]):
        shown = redrive(db, *words, *flags, env={"REDRIVE_APP": "sensitive_app:queue"}).stdout
        assert "flu" not in shown
        assert "diagnosis" not in shown


# -- text from strangers


def test_control_characters_in_rows_are_shown_and_not_obeyed(db, conn):
    insert(
        conn, "ev\x1b[2Jil", status="dead", last_error="[red]x[/red] \x1b]0;title\x07", payload=Jsonb({"a": "\x1b[31m"})
    )
    for words in (["jobs"], ["show", "1"], ["dead"]):
        shown, code = on_terminal(db, *words)
        assert code == 0
        assert "\x1b[2J" not in shown
        assert "\x1b]0" not in shown
        assert "ev\\x1b[2Jil" in shown
    assert "[red]x[/red]" in shown


def test_a_row_that_python_cannot_read_is_still_shown(db, conn):
    insert(conn, "odd", run_at="infinity", status="dead")
    insert(conn, "odd", run_at="-infinity")
    insert(conn, "odd", run_at="20000-01-01", payload="1" + "0" * 6000)
    first, second, third = reversed(answer(db, "jobs")["jobs"])
    assert (first["run_at"], second["run_at"], third["run_at"]) == ("infinity", "-infinity", "infinity")
    assert str(third["payload"]) == "1" + "0" * 6000
    for job in (1, 2, 3):
        redrive(db, "show", job)
    redrive(db, "jobs")
    redrive(db, "dead")


# -- the terminal


def test_a_terminal_gets_colours_and_lines_of_its_width(db, conn):
    insert(conn, "mail", status="dead", last_error="x" * 500)
    shown, code = on_terminal(db, "jobs")
    assert code == 0
    assert "\x1b[1;31mdead" in shown
    assert "…" in shown
    plain = redrive(db, "jobs").stdout
    assert "\x1b" not in plain


def test_json_on_a_terminal_is_json(db, conn):
    insert(conn, "mail")
    shown, _ = on_terminal(db, "jobs", "--json")
    assert len(json.loads(shown)["jobs"]) == 1


# -- show


def test_show_has_the_row_the_history_and_the_last_traceback(db, conn):
    [job] = insert(
        conn,
        "mail",
        status="dead",
        attempts=2,
        claims=3,
        last_error=ERROR,
        payload=Jsonb({"to": "a"}),
        progress="[7, 9]",
    )
    fail(conn, job, attempt=1, traceback=ERROR.replace("line 7", "line 6"))
    fail(conn, job, attempt=2, outcome="dead")
    shown = redrive(db, "show", job).stdout
    assert shown.startswith("job 1  mail  dead\n")
    assert "tries       2 of 5, claimed 3 times" in shown
    assert '{\n  "to": "a"\n}' in shown
    assert "failures (2)" in shown
    timeline = [line for line in shown.splitlines() if "ConnectionError: refused, token=***" in line]
    assert ["retried" in timeline[0], "dead" in timeline[1]] == [True, True]
    assert "line 7, in mail" in shown
    assert "line 6, in mail" not in shown
    assert "line 6, in mail" in redrive(db, "show", job, "--tracebacks").stdout


def test_times_are_in_the_local_zone_with_their_age(db, conn):
    insert(conn, "mail", created_at="2020-01-31 12:00+00")
    out, _ = process(db, "show", "1", env={"TZ": "Asia/Tokyo"}).communicate(timeout=30)
    [created] = [line for line in out.splitlines() if line.startswith("created")]
    assert created.split()[1:4] == ["2020-01-31", "21:00:00", "+0900"]
    assert created.endswith(" y ago)")


def test_show_in_json_has_the_job_and_all_its_failures(db, conn):
    [job] = insert(conn, "mail", status="dead")
    fail(conn, job)
    fail(conn, job, attempt=2, outcome="dead")
    document = answer(db, "show", job)
    assert document["job"]["id"] == job
    assert [row["outcome"] for row in document["failures"]] == ["retried", "dead"]


def test_a_job_that_is_gone_still_has_its_failures(db, conn):
    fail(conn, 77)
    assert "job 77 (mail) is gone from the table; its failures are kept" in redrive(db, "show", 77).stdout
    assert answer(db, "show", 77)["job"] is None


def test_a_job_that_never_was_is_exit_code_1(db):
    assert "there is no job 77 in schema redrive" in complaint(redrive(db, "show", 77, code=1))
    redrive(db, "show", 10**30, code=1)
    redrive(db, "show", "x", code=2)


# -- dead


def test_dead_jobs_are_grouped_by_kind_and_error(db, conn):
    slow = insert(conn, "mail", 3, status="dead", last_error="Traceback…\nTimeoutError: slow", updated_at="2020-01-01")
    insert(conn, "mail", 1, status="dead", last_error="410 gone for good")
    insert(conn, "mail", 1, status="failed", last_error="cancelled: spring")
    foreign = insert(conn, "export", 1, status="failed")
    groups = answer(db, "dead")["groups"]
    assert [(group["dead"], group["kind"], group["error"]) for group in groups] == [
        (3, "mail", "TimeoutError: slow"),
        (1, "export", "(no error text)"),
        (1, "mail", "410 gone for good"),
    ]
    assert groups[0]["sample"] == slow[::-1]
    assert groups[0]["first"] == groups[0]["last"]
    assert groups[1]["sample"] == foreign
    shown = redrive(db, "dead").stdout
    assert shown.splitlines()[1].split()[:2] == ["3", groups[0]["id"]]
    assert [group["kind"] for group in answer(db, "dead", "--since", "1h")["groups"]] == ["export", "mail"]
    assert [group["dead"] for group in answer(db, "dead", "--kind", "export")["groups"]] == [1]
    assert len(answer(db, "dead", "--limit", "1")["groups"]) == 1


def test_the_command_that_dead_prints_sends_exactly_its_group_back(db, conn):
    insert(conn, "mail", 3, status="dead", last_error=ERROR)
    insert(conn, "mail", 2, status="dead", last_error="another")
    insert(conn, "it's", 2, status="dead", last_error="a 100% 'quoted' \\ error_text")
    insert(conn, "none", 5, status="dead")
    insert(conn, "few", 2, status="failed", last_error="short")
    for group in answer(db, "dead")["groups"]:
        assert leaks(group["requeue"]) == []
        words = shlex.split(group["requeue"], comments=True)
        assert words[:2] == ["redrive", "requeue"]
        assert answer(db, *words[1:])["requeued"] == group["dead"]
    assert answer(db, "dead")["groups"] == []
    assert redrive(db, "dead").stdout == "no dead jobs\n"


# -- workers


def test_workers_are_listed_with_what_ails_them(db, conn):
    beat(conn, "box:1:aaaaaa", in_flight=3, app_version="shop-7")
    beat(conn, "box:2:bbbbbb", silent="5 min", problem="claim loop: token=k-123456 refused")
    lines = redrive(db, "workers").stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["box:1:aaaaaa", "alive", "3/10"],
        ["box:2:bbbbbb", "silent", "0/10"],
    ]
    assert "claim loop" in lines[2]
    assert lines[1][lines[0].index(" APP ") :].split()[0] == "shop-7"  # whose deploy is running, before ours
    assert leaks("".join(lines)) == []
    document = answer(db, "workers")["workers"]
    assert [(row["name"], row["alive"], row["kinds"]) for row in document] == [
        ("box:1:aaaaaa", True, ["mail"]),
        ("box:2:bbbbbb", False, ["mail"]),
    ]
    assert leaks(json.dumps(document)) == []


def test_a_relay_and_a_worker_at_the_broker_are_marked_and_no_count_is_shown_that_may_be_old(db, conn):
    beat(conn, "box:1:aaaaaa", in_flight=3)
    assert redrive(db, "workers").stderr == ""
    beat(conn, "box:2:bbbbbb", in_flight=0, listener_pid=0)
    beat(conn, "box:3:cccccc", kinds=[])
    shown = redrive(db, "workers")
    worker, broker, relay = shown.stdout.splitlines()[1:]
    assert worker.split()[2] == "3/10"
    assert worker.split()[-2:] == ["worker", "mail"]
    assert broker.split()[2] == "?/10"
    assert "worker --broker  mail" in broker
    assert "/10" not in relay
    assert relay.split()[-1] == "relay"
    assert "once a minute" in shown.stderr
    assert [row["works_as"] for row in answer(db, "workers")["workers"]] == ["worker", "worker --broker", "relay"]


def test_no_worker_is_told_how_to_start_one(db):
    assert "redrive worker" in redrive(db, "workers").stderr


def test_where_kinds_go_over_the_broker_a_job_without_a_row_may_be_there(db):
    redrive(db, "route", "mail", "amqp")
    sought = "jobs of mail go over the broker: it may be there, or have succeeded from there without a row"
    assert complaint(redrive(db, "show", 77, code=1)) == f"there is no job 77 in schema redrive; {sought}"
    cancelled = redrive(db, "cancel", 77, code=1).stderr
    assert cancelled == f"job 77 is not there\nnote: {sought}; what is at the broker can't be cancelled any more\n"
    redrive(db, "route", "mail", "postgres")
    assert redrive(db, "cancel", 77, code=1).stderr == "job 77 is not there\n"


def test_a_job_that_went_straight_to_the_broker_may_be_there_though_no_kind_is_routed(db, conn):
    nowhere = "there is no job 77 in schema redrive; `redrive jobs` lists those that there are"
    assert complaint(redrive(db, "show", 77, code=1)) == nowhere
    env = {"REDRIVE_BROKER_URL": "amqp://127.0.0.1:1/"}
    said = complaint(redrive(db, "show", 77, code=1, env=env))
    assert "; jobs may go straight to the broker: it may be there, or have succeeded from there without a row" in said
    beat(conn, "box:1:abcdef", kinds=["resize"])
    assert complaint(redrive(db, "show", 77, code=1)) == nowhere
    beat(conn, "box:2:abcdef", kinds=["resize"], listener_pid=0)
    assert "; jobs of resize go over the broker: it may be there" in complaint(redrive(db, "show", 77, code=1))
