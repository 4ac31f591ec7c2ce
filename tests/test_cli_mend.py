"""``redrive requeue`` and ``redrive cancel``."""

from __future__ import annotations

import json
import signal

import psycopg
import pytest

from shell import answer, complaint, insert, on_terminal, process, redrive


def states(conn, *ids):
    rows = conn.execute(
        "select id, status from redrive.jobs where id = any(%s) or %s order by id", [list(ids), not ids]
    )
    return [status for _, status in rows]


# -- requeue


def test_requeued_jobs_have_a_fresh_budget_and_keep_their_history(db, conn):
    dead = {"status": "dead", "attempts": 5, "last_error": "x", "run_at": "2020-01-01", "progress": "1"}
    [job] = insert(conn, "mail", **dead)
    conn.execute(
        "insert into redrive.failures (job_id, kind, claim, attempt, outcome, failed_at, error_type, message)"
        " values (%s, 'mail', 1, 5, 'dead', now(), 'X', 'x')",
        [job],
    )
    result = redrive(db, "requeue", job)
    assert result.stdout == f"1 dead job found: {job}\n1 sent back, 0 skipped because their state changed\n"
    row = conn.execute(
        "select status, attempts, last_error, progress, run_at > now() - interval '1 min' from redrive.jobs"
    )
    assert row.fetchone() == ("pending", 0, None, None, True)
    assert len(answer(db, "show", job)["failures"]) == 1


def test_in_json_it_gives_the_counts_and_the_ids(db, conn):
    ids = insert(conn, "mail", 3, status="dead")
    assert answer(db, "requeue", "--kind", "mail") == {
        "matched": 3,
        "requeued": 3,
        "skipped": 0,
        "dry_run": False,
        "ids": ids,
        "sample": ids,
        "not_requeued": {},
    }


@pytest.mark.parametrize(
    ("flags", "moved"),
    [
        (["--kind", "mail"], [1, 2]),
        (["--error", "REFUSED"], [2, 3]),
        (["--kind", "mail", "--error", "refused"], [2]),
        (["--since", "1h"], [2, 3]),
        (["--until", "1h"], [1]),
        (["--since", "2020-01-01T00:00Z", "--until", "2020-01-03T00:00+00:00"], [1]),
        (["--status", "failed", "--kind", "mail"], [4]),
        (["--status", "failed", "--status", "dead", "--kind", "mail"], [1, 2, 4]),
        (["2", "3", "--kind", "mail"], [2]),
        (["--all"], [1, 2, 3]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value[0], str) else "",
)
def test_jobs_to_send_back_are_found_by(db, conn, flags, moved):
    insert(conn, "mail", status="dead", last_error="timeout", updated_at="2020-01-02 00:00+00")
    insert(conn, "mail", status="dead", last_error="connection refused")
    insert(conn, "export", status="dead", last_error="it was Refused")
    insert(conn, "mail", status="failed", last_error="cancelled")
    insert(conn, "mail", status="succeeded", last_error="connection refused")
    rehearsed = answer(db, "requeue", *flags, "--dry-run")
    assert (rehearsed["sample"], rehearsed["requeued"], rehearsed["dry_run"]) == (moved, 0, True)
    assert "pending" not in states(conn)
    assert answer(db, "requeue", *flags)["ids"] == moved
    assert states(conn, *moved) == ["pending"] * len(moved)
    assert states(conn).count("pending") == len(moved)


def test_a_failed_job_without_a_reason_of_ours_is_sent_back_like_a_dead_one(db, conn):
    """A worker that isn't redrive's wrote it, and `redrive dead` lists it."""
    insert(conn, "mail", status="failed", last_error="smtp down")
    insert(conn, "mail", status="failed")
    insert(conn, "mail", status="failed", last_error="discarded: spam")
    assert redrive(db, "requeue", "1").exit_code == 0
    assert answer(db, "requeue", "--kind", "mail")["ids"] == [2]


def test_nothing_said_is_not_all(db, conn):
    insert(conn, "mail", status="dead")
    for flags in ([], ["--status", "dead"], ["--yes"], ["--dry-run"]):
        assert "--all for all of them" in complaint(redrive(db, "requeue", *flags, code=2))
    assert states(conn) == ["dead"]


def test_ids_that_cannot_be_sent_back_are_named_and_the_others_go(db, conn):
    insert(conn, "mail", status="dead")
    insert(conn, "mail", status="running")
    result = redrive(db, "requeue", 1, 2, 99, code=1)
    assert result.stderr == "job 2 is running\njob 99 is not there\n"
    assert "1 sent back" in result.stdout
    assert answer(db, "requeue", 1, 99, code=1)["not_requeued"] == {"1": "pending", "99": "not there"}


def test_a_filter_that_finds_nothing_is_no_error(db):
    assert redrive(db, "requeue", "--kind", "mail").stdout.startswith("0 dead jobs found\n0 sent back")


def test_a_dry_run_says_what_it_would_do_op_03(db, conn):
    insert(conn, "mail", 12, status="dead")
    shown = redrive(db, "requeue", "--all", "--dry-run").stdout
    assert shown == "12 dead jobs found: 1 2 3 4 5 6 7 8 9 10\n"
    assert set(states(conn)) == {"dead"}


@pytest.mark.parametrize(("typed", "code", "after"), [("n\n", 1, "dead"), ("y\n", 0, "pending")])
def test_a_human_is_asked_first(db, conn, typed, code, after):
    insert(conn, "mail", 2, status="dead")
    shown, exit_code = on_terminal(db, "requeue", "--kind", "mail", typed=typed)
    assert "Send back 2 jobs? [y/N]" in shown
    assert exit_code == code
    assert set(states(conn)) == {after}


@pytest.mark.parametrize("words", [["--kind", "mail", "--yes"], ["1", "2"]], ids=" ".join)
def test_a_human_who_said_yes_or_named_the_jobs_is_not_asked(db, conn, words):
    insert(conn, "mail", 2, status="dead")
    shown, code = on_terminal(db, "requeue", *words)
    assert "[y/N]" not in shown
    assert (code, set(states(conn))) == (0, {"pending"})


def test_long_work_shows_how_far_it_is_on_a_terminal(db, conn):
    insert(conn, "mail", 5000, status="dead")
    shown, code = on_terminal(db, "requeue", "--all", "--yes")
    assert code == 0
    assert "sending back" in shown
    assert "5,000 sent back, 0 skipped" in shown


def test_two_operators_at_once_move_each_job_once(db, conn):
    insert(conn, "mail", 20_000, status="dead", last_error="x")
    conn.execute("create table moves (id bigint)")
    conn.execute(
        "create function note() returns trigger language plpgsql as $$ begin insert into public.moves values (new.id);"
        " return null; end $$"
    )
    trigger = "create trigger note after update on redrive.jobs for each row"
    conn.execute(f"{trigger} when (new.status = 'pending') execute function note()")
    both = [process(db, "requeue", "--error", "x", "--json") for _ in range(2)]
    moved = [json.loads(child.communicate(timeout=120)[0]) for child in both]
    assert sum(each["requeued"] for each in moved) == 20_000
    assert not set(moved[0]["ids"]) & set(moved[1]["ids"])
    assert all(each["requeued"] + each["skipped"] == each["matched"] for each in moved)
    assert conn.execute("select count(*), count(distinct id) from moves").fetchone() == (20_000, 20_000)
    assert set(states(conn)) == {"pending"}


def test_jobs_whose_state_changes_meanwhile_are_counted_and_left_alone(db, conn, wait_for):
    insert(conn, "mail", 3, status="dead")
    with psycopg.connect(db) as other:
        other.execute("update redrive.jobs set status = 'succeeded' where id = 2")
        child = process(db, "requeue", "--all")
        out, err = child.communicate(timeout=30)
        other.commit()
    assert "3 dead jobs found" in out, err
    assert "2 sent back, 1 skipped because their state changed" in out
    assert states(conn) == ["pending", "succeeded", "pending"]


def test_interrupted_it_says_how_far_it_came(db, conn, wait_for):
    insert(conn, "mail", 3000, status="dead")
    conn.execute(
        "create function slow() returns trigger language plpgsql as $$ begin"
        " if new.id > 1000 then perform pg_sleep(0.01); end if; return new; end $$"
    )
    conn.execute("create trigger slow before update on redrive.jobs for each row execute function slow()")
    child = process(db, "requeue", "--all")
    wait_for(lambda: "pending" in states(conn, 1))
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 1, err
    assert "stopped: 2,000 jobs left as they were, the others were sent back" in err
    assert states(conn).count("pending") == 1000


def test_a_sleeping_worker_is_woken(db, conn, start_worker, wait_for):
    worker = start_worker("from redrive import Queue\nqueue = Queue(poll=600)\nqueue.handler('mail')(print)\n")
    [job] = insert(conn, "mail", status="dead")
    asleep = "select from pg_locks where locktype = 'advisory' and granted"
    wait_for(lambda: conn.execute(asleep).fetchall() or not worker.running)
    redrive(db, "requeue", job)
    wait_for(lambda: states(conn) == ["succeeded"] or not worker.running)
    assert states(conn) == ["succeeded"]


# -- cancel


def test_pending_jobs_end_and_running_ones_are_asked_to(db, conn):
    insert(conn, "mail", key="k")
    insert(conn, "mail", status="running", locked_by="box:1:abcdef")
    assert redrive(db, "cancel", "--kind", "mail", "--reason", "spring").stdout == (
        "1 pending and 1 running job found: 1 2\n1 cancelled, 1 running asked to stop\n"
    )
    rows = conn.execute("select status, last_error, cancel_requested_at is not null from redrive.jobs order by id")
    assert rows.fetchall() == [("failed", "cancelled: spring", True), ("running", None, True)]


def test_cancel_in_json(db, conn):
    insert(conn, "mail", 2)
    assert answer(db, "cancel", "1") == {
        "cancelled": 1,
        "asked_to_stop": 0,
        "dry_run": False,
        "sample": [1],
        "not_cancelled": {},
    }


def test_a_job_is_cancelled_by_its_key(db, conn):
    insert(conn, "mail", key="welcome:42")
    insert(conn, "mail", key="welcome:43")
    redrive(db, "cancel", "--key", "welcome:42")
    assert states(conn) == ["failed", "pending"]


def test_a_rehearsed_cancel_changes_nothing(db, conn):
    insert(conn, "mail", 2)
    assert redrive(db, "cancel", "--kind", "mail", "--dry-run").stdout == "2 pending and 0 running jobs found: 1 2\n"
    assert states(conn) == ["pending", "pending"]


def test_ended_and_unknown_jobs_cannot_be_cancelled(db, conn):
    insert(conn, "mail", status="succeeded")
    result = redrive(db, "cancel", 1, 7, code=1)
    assert result.stderr == "job 1 is succeeded\njob 7 is not there\n"
    assert states(conn) == ["succeeded"]


def test_cancel_wants_to_know_which(db):
    assert "which jobs? Give ids, --kind or --key" in complaint(redrive(db, "cancel", "--reason", "x", code=2))


@pytest.mark.parametrize(("typed", "code", "after"), [("n\n", 1, "pending"), ("y\n", 0, "failed")])
def test_a_human_is_asked_before_a_kind_is_cancelled(db, conn, typed, code, after):
    insert(conn, "mail", 2)
    shown, exit_code = on_terminal(db, "cancel", "--kind", "mail", typed=typed)
    assert "Cancel 2 jobs? [y/N]" in shown
    assert (exit_code, set(states(conn))) == (code, {after})


def test_a_running_handler_learns_of_its_cancel(db, conn, start_worker, wait_for):
    insert(conn, "nap")
    worker = start_worker(
        """
        import asyncio
        from redrive import Queue
        queue = Queue(lease=3)

        @queue.handler("nap")
        async def nap(payload):
            await asyncio.sleep(60)
        """
    )
    wait_for(lambda: states(conn) == ["running"] or not worker.running)
    redrive(db, "cancel", "--kind", "nap")
    wait_for(lambda: states(conn) == ["failed"])


# -- prune


def test_prune_removes_what_is_old_and_finished(db, conn):
    old = {"created_at": "2020-01-01", "updated_at": "2020-01-01"}
    for status in ("succeeded", "failed", "dead", "pending", "running"):
        insert(conn, "mail", status=status, **old)
    insert(conn, "mail", status="succeeded")
    assert redrive(db, "prune", "--dry-run").stdout == (
        "3 jobs would be deleted (kept: succeeded 7 d, failed 30 d, dead 1 y, failures 90 d)\n"
    )
    assert len(states(conn)) == 6
    assert redrive(db, "prune").stdout.startswith("3 jobs deleted")
    assert states(conn) == ["pending", "running", "succeeded"]


def test_a_retention_is_a_flag_or_a_variable_and_0_is_for_ever(db, conn):
    insert(conn, "mail", status="dead", created_at="2020-01-01", updated_at="2020-01-01")
    insert(conn, "mail", status="succeeded", created_at="2020-01-01", updated_at="2020-01-01")
    env = {"REDRIVE_RETAIN_SUCCEEDED": "0"}
    shown = redrive(db, "prune", "--dead", "0", env=env).stdout
    assert shown.startswith("0 jobs deleted (kept: succeeded for ever, failed 30 d, dead for ever")
    assert answer(db, "prune", "--dead", "0", "--dry-run") == {"jobs": 1, "archived": False, "dry_run": True}
    assert answer(db, "prune", "--dead", "0") == {"jobs": 1, "archived": False, "dry_run": False}


def test_prune_walks_the_whole_table_and_the_history(db, conn):
    insert(conn, "mail", 5000, status="succeeded", created_at="2020-01-01", updated_at="2020-01-01")
    conn.execute(
        "insert into redrive.failures (job_id, kind, claim, attempt, outcome, failed_at, error_type, message)"
        " select id, 'mail', 1, 1, 'retried', '2020-01-01', 'X', '' from redrive.jobs"
    )
    assert answer(db, "prune", "--dry-run")["jobs"] == 5000
    assert answer(db, "prune")["jobs"] == 5000
    assert conn.execute("select count(*) from redrive.failures").fetchone() == (0,)


def test_prune_can_archive(db, conn):
    insert(conn, "mail", 2, status="succeeded", created_at="2020-01-01", updated_at="2020-01-01")
    assert answer(db, "prune", "--archive") == {"jobs": 2, "archived": True, "dry_run": False}
    assert conn.execute("select count(*) from redrive.jobs_archive").fetchone() == (2,)


def test_a_retention_that_is_no_time_is_a_wrong_value(db):
    assert "retain_dead is 'long': give seconds" in complaint(redrive(db, "prune", "--dead", "long", code=2))


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["requeue", "send_email"], "--kind send_email"),
        (["requeue", "send_email:3fa9"], "--group send_email:3fa9"),
        (["cancel", "send_email"], "--kind send_email"),
    ],
)
def test_a_kind_or_a_group_in_the_place_of_an_id_is_told_its_flag(words, flag):
    assert f"{words[1]!r} is no id of a job: perhaps {flag}?" in complaint(redrive(None, *words, code=2))
