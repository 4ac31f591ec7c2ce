"""``redrive worker``: from finding the application to the exit code."""

from __future__ import annotations

import select
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import psycopg
import pytest

import support
from shell import NOBODY, complaint, insert, process, redrive

APP = """
import asyncio, time
from redrive import Queue

queue = Queue(poll=4)

@queue.handler("mail")
def mail(payload):
    print("mail to", payload.get("to"), flush=True)

@queue.handler("again")
def again(payload):
    queue.enqueue("mail", {"to": "the next"})

@queue.handler("stuck", timeout=None)
def stuck(payload):
    print("stuck", flush=True)
    time.sleep(600)

@queue.handler("buried", timeout=None)
async def buried(payload):
    print("buried", flush=True)
    await asyncio.to_thread(time.sleep, 600)

@queue.handler("patient", timeout=None)
async def patient(payload):
    print("patient", flush=True)
    await asyncio.sleep(600)
"""


@pytest.fixture
def app(tmp_path, monkeypatch):
    """An application in the current directory: app/jobs.py."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "jobs.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(app, name, source):
    (app / "app" / f"{name}.py").write_text(textwrap.dedent(source))


def fails(dsn, *words, code):
    """Run a worker that won't start; give its stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "redrive", "worker", *words],
        env={"DATABASE_URL": dsn or ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == code, done.stderr
    return done.stderr


def until(worker, text):
    """Wait until the worker's log has a text."""
    support.wait_for(lambda: text in worker.log() or not worker.running)
    assert text in worker.log()


def finish(child, seconds=20):
    out, err = child.communicate(timeout=seconds)
    return child.returncode, out, err


def test_once_runs_what_is_due_and_exits_0(db, conn, app):
    insert(conn, "mail", payload='{"to": "a"}')
    insert(conn, "mail", run_at="infinity")
    code, out, err = finish(process(db, "worker", "app.jobs:queue", "--once"))
    assert (code, out) == (0, "mail to a\n"), err
    assert conn.execute("select status, count(*) from redrive.jobs group by 1 order by 1").fetchall() == [
        ("pending", 1),
        ("succeeded", 1),
    ]


def test_the_first_line_says_kinds_concurrency_and_schema(db, app):
    words = ("worker", "app.jobs:queue", "--once", "--kinds", "mail,again", "--concurrency", "3")
    _, _, err = finish(process(db, *words))
    assert err.splitlines()[0].endswith("works on schema redrive, 3 jobs at a time, of kinds mail, again")


def test_the_script_finds_the_application_in_the_current_directory(db, conn, app):
    insert(conn, "mail")
    script = shutil.which("redrive", path=str(sys.executable).rsplit("/", 1)[0])
    done = subprocess.run(
        [script, "worker", "app.jobs:queue", "--once"],
        env={"DATABASE_URL": db},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.stdout == "mail to None\n", done.stderr


def test_the_application_can_be_named_by_a_variable(db, conn, app):
    insert(conn, "mail")
    assert finish(process(db, "worker", "--once", env={"REDRIVE_APP": "app.jobs:queue"}))[:2] == (0, "mail to None\n")


def test_a_flag_goes_over_the_application_which_goes_over_the_environment(db, app):
    write(app, "five", "from redrive import Queue\nqueue = Queue(concurrency=5)\nqueue.handler('mail')(print)\n")
    env = {"REDRIVE_CONCURRENCY": "7", "REDRIVE_ONCE": "yes"}
    for target, flags, expected in (
        ("app.jobs:queue", [], "7 jobs at a time"),
        ("app.five:queue", [], "5 jobs at a time"),
        ("app.five:queue", ["--concurrency", "2"], "2 jobs at a time"),
    ):
        assert expected in finish(process(db, "worker", target, *flags, env=env))[2]


def test_what_handlers_enqueue_goes_where_their_jobs_came_from(db, conn, app):
    redrive(db, "migrate", "--schema", "other")
    redrive(db, "enqueue", "again", "--schema", "other")
    words = ("worker", "app.jobs:queue", "--once", "--schema", "other", "--database-url", db)
    code, out, err = finish(process(NOBODY, *words))
    assert (code, out) == (0, "mail to the next\n"), err
    assert conn.execute("select count(*) from redrive.jobs").fetchone() == (0,)


def test_sigterm_ends_an_idle_worker_with_exit_code_0(start_worker):
    worker = start_worker(APP)
    until(worker, "started")
    began = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_hands_back_at_once(start_worker, conn, wait_for, number):
    insert(conn, "patient")
    worker = start_worker(APP, "--grace", "60")
    until(worker, "\npatient\n")
    worker.send(number)
    until(worker, "stops and waits for 1 job")
    worker.send(number)
    assert worker.process.wait(5) == 0
    assert conn.execute("select status, attempts from redrive.jobs").fetchall() == [("pending", 0)]


@pytest.mark.parametrize("kind", ["stuck", "buried"])
def test_a_handler_that_never_returns_does_not_keep_the_process(start_worker, conn, kind):
    """A thread can't be stopped, be it ours or the application's: its job is handed back and the process goes."""
    insert(conn, kind)
    worker = start_worker(APP, "--grace", "0.2")
    until(worker, f"\n{kind}\n")
    assert worker.stop(10) == 0
    assert conn.execute("select status, attempts from redrive.jobs").fetchall() == [("pending", 0)]
    assert f"({kind}) handed back at attempt 1" in worker.log()


def test_what_a_handler_prints_is_seen_at_once_through_a_pipe_too(db, conn, app):
    write(
        app,
        "talk",
        """
        from redrive import Queue
        queue = Queue()

        @queue.handler("mail")
        def mail(payload):
            print("a mail, not flushed")
    """,
    )
    insert(conn, "mail")
    worker = process(db, "worker", "app.talk:queue", stderr=subprocess.DEVNULL, env={"PYTHONUNBUFFERED": ""})
    try:
        assert select.select([worker.stdout], [], [], 20)[0], "nothing was printed while the worker ran"
        assert worker.stdout.readline() == "a mail, not flushed\n"
    finally:
        worker.terminate()
        worker.communicate(timeout=20)


def test_a_module_that_is_not_there_is_one_line(db, app):
    assert "no module 'app.jbos' (No module named 'app.jbos'), looked for from " in complaint(
        redrive(db, "worker", "app.jbos:queue", code=2)
    )
    assert "no module 'ap.jobs' (No module named 'ap')" in complaint(redrive(db, "worker", "ap.jobs:queue", code=2))


def test_an_attribute_that_is_not_there_names_the_queues_that_are(db, app):
    err = fails(db, "app.jobs:que", code=2)
    assert "module 'app.jobs' has no 'que'; its queues: queue" in err


def test_something_else_than_a_queue_is_told_what_it_is(db, app):
    assert "app.jobs:mail is a Handler, not a redrive.Queue; its queues: queue" in fails(db, "app.jobs:mail", code=2)
    assert "app.jobs:time is a module, not a redrive.Queue" in fails(db, "app.jobs:time", code=2)


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("app.jobs", "e.g. app.jobs:queue"),
        ("app/jobs.py", "e.g. app.jobs:queue"),
        ("app/jobs.py:q", "e.g. app.jobs:q"),
        (":queue", "e.g. app.jobs:queue"),
        ("app.jobs:", "e.g. app.jobs:queue"),
    ],
)
def test_a_target_that_is_no_module_and_attribute_is_told_how_to_write_it(db, app, target, hint):
    assert hint in complaint(redrive(db, "worker", target, code=2))


def test_an_error_inside_the_application_is_shown_as_it_is(db, app):
    write(app, "broken", "def connect():\n    1 / 0\n\nconnect()\n")
    err = fails(db, "app.broken:queue", code=1)
    assert 'app/broken.py", line 4' in err
    assert "ZeroDivisionError: division by zero" in err
    assert "redrive/cli" not in err
    assert "Error: importing 'app.broken' failed: see above" in err


def test_a_missing_import_inside_the_application_is_not_taken_for_a_missing_application(db, app):
    write(app, "needy", "import pandoras_box\n")
    err = fails(db, "app.needy:queue", code=1)
    assert 'app/needy.py", line 1' in err
    assert "No module named 'pandoras_box'" in err


def test_secrets_in_an_error_of_the_application_are_masked(db, app):
    write(app, "leaky", 'raise RuntimeError("postgresql://app:hunter2@db/app does not answer")\n')
    err = fails(db, "app.leaky:queue", code=1)
    assert "postgresql://app:***@db/app does not answer" in err
    assert "hunter2" not in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--concurrency", "many"], "concurrency is 'many': give a whole number"),
        (["--concurrency", "0"], "concurrency is 0: must be at least 1"),
        (["--heartbeat", "20"], "set heartbeat to 10 s or less"),
        (["--lease", "soon"], "lease is 'soon': give seconds, or a number with a unit"),
        (["--kinds", "mail,fax"], "no handler for kind 'fax'; there are handlers for: again, buried, mail"),
    ],
)
def test_a_value_that_makes_no_sense_names_the_remedy(db, app, flags, said):
    assert said in fails(db, "app.jobs:queue", *flags, code=2)


def test_a_queue_without_handlers_is_told_how_to_get_one(db, app):
    write(app, "idle", "from redrive import Queue\nqueue = Queue()\n")
    assert '@queue.handler("kind")' in fails(db, "app.idle:queue", code=2)


def test_a_database_without_the_tables_ends_the_worker_with_exit_code_4(empty_db, app):
    assert 'schema "redrive" is not installed in this database' in fails(empty_db, "app.jobs:queue", code=4)


def test_no_database_at_all_ends_the_worker_with_exit_code_3(app):
    assert "DATABASE_URL" in fails(None, "app.jobs:queue", code=3)


def test_a_database_that_stays_away_ends_the_worker_with_exit_code_3_where_that_is_wanted(app):
    err = fails(NOBODY, "app.jobs:queue", "--exit-on-db-loss", "0.5", code=3)
    assert "the database was away for more than 0.5 s" in err
    assert "hunter2" not in err
    assert "Traceback" not in err


def test_a_worker_without_a_database_can_be_stopped(app, wait_for):
    child = process(NOBODY, "worker", "app.jobs:queue")
    assert "works on" in child.stderr.readline()
    assert "does not answer" in child.stderr.readline()
    child.terminate()
    assert finish(child, 10)[0] == 0


def test_the_log_level_is_the_operators(db, conn, app):
    insert(conn, "mail")
    _, _, quiet = finish(process(db, "worker", "app.jobs:queue", "--once", "--log-level", "error"))
    assert quiet == ""
    insert(conn, "mail")
    env = {"REDRIVE_LOG_LEVEL": "DEBUG"}
    _, _, loud = finish(process(db, "worker", "app.jobs:queue", "--once", env=env))
    assert "succeeded at attempt 1" in loud


def test_a_worker_behind_no_listen_polls(db, conn, app, wait_for):
    child = process(db, "worker", "app.jobs:queue", "--no-listen", "--poll", "0.2")
    try:
        assert "works on" in child.stderr.readline()
        insert(conn, "mail")
        wait_for(lambda: conn.execute("select status from redrive.jobs").fetchone() == ("succeeded",))
        with psycopg.connect(db) as look:
            names = look.execute(
                "select application_name from pg_stat_activity "
                "where application_name ~ 'redrive' and datname = current_database()"
            )
            assert not [name for (name,) in names if "listen" in name]
    finally:
        child.terminate()
        assert finish(child)[0] == 0


@pytest.mark.parametrize("app", [None, "app.jobs:queue"])
def test_a_target_that_the_option_of_the_broker_took_is_told(app):
    said = complaint(redrive(NOBODY, "worker", "--broker", "app.jobs:queue", code=2, env={"REDRIVE_APP": app or ""}))
    assert "'app.jobs:queue' is no amqp:// URL: put the target before --broker" in said
