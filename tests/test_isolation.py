"""Handlers in child processes: what they say is heard, and neither their death nor their worker's leaves anything."""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

import isolated_app
from engine import Inside, failures, insert, measured, row, states, status
from redrive import Queue, children
from redrive.errors import InvalidOption
from redrive.isolation import isolation
from redrive.testing import run_pending
from support import wait_for
from support_engine import drain


@pytest.fixture
def queue(db, monkeypatch):
    monkeypatch.setattr(isolated_app.queue, "settings", replace(isolated_app.queue.settings, database_url=db))
    yield isolated_app.queue
    isolated_app.queue.close()
    isolated_app.queue._pool = None


def alive(pid):
    """Whether a process runs; a zombie doesn't, nobody may be there to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pids(conn, job):
    """The processes that a handler has told of."""
    return wait_for(lambda: row(conn, job).progress, 20)["pids"]


# -- options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"isolation": "thread"}, "isolation is 'thread'"),
        ({"memory_limit": "1GB"}, "are for handlers with isolation"),
        ({"jobs_per_child": 5}, "are for handlers with isolation"),
        ({"isolation": "process", "memory_limit": "much"}, "memory_limit is 'much'"),
        ({"isolation": "process", "memory_limit": 0}, "memory_limit is 0"),
        ({"isolation": "process", "memory_limit": True}, "memory_limit is True"),
        ({"isolation": "process", "jobs_per_child": 0}, "jobs_per_child is 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, said):
    with pytest.raises(InvalidOption, match=said):
        Queue().handler("k", **options)


@pytest.mark.parametrize(
    ("value", "size"),
    [(1000, 1000), ("4096", 4096), ("512MB", 512 << 20), ("512 MiB", 512 << 20), ("1.5g", 3 << 29), ("64k", 1 << 16)],
)
def test_a_memory_limit_has_a_unit_or_is_in_bytes(value, size):
    assert isolation("process", value, None).memory_limit == size


async def asynchronous(payload): ...


def local():
    def nested(payload): ...

    return nested


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (asynchronous, "is async"),
        (local(), "nested', which a child process can't find again"),
        (lambda payload: None, "<lambda>', which a child process can't find again"),
        (functools.partial(print, 1), "which a child process can't find again"),
    ],
)
def test_what_a_child_could_not_find_or_run_is_refused_at_once(function, said):
    with pytest.raises(InvalidOption, match=said):
        Queue().handler("k", isolation="process")(function)


def test_a_handler_of_a_program_without_a_file_is_refused_when_a_worker_is_made(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    queue = Queue("postgresql://nobody@127.0.0.1:1/nothing")
    function = types.FunctionType(asynchronous.__code__.replace(co_flags=3), {"__name__": "__main__"}, "typed_in")
    queue.handler("k", isolation="process")(function)
    with pytest.raises(InvalidOption, match="a program without a file"):
        queue.worker()


def test_run_is_one_process():
    with pytest.raises(InvalidOption, match="this process alone"):
        Queue("postgresql://nobody@127.0.0.1:1/nothing").run(processes=2)


# -- what a child says


def test_what_a_handler_says_is_heard_and_a_crash_is_a_failed_attempt_of_its_job_alone(queue, conn):
    """The worker lives on, nothing counts as its death, and the jobs beside it succeed."""
    expected = {
        "retry": ("pending", 1, "redrive.errors.Retry", "later"),
        "snooze": ("pending", 0, None, None),
        "discard": ("failed", 1, "Discard", "discarded: not wanted"),
        "dead": ("dead", 1, "redrive.errors.Dead", "a human must look"),
        "dead_on": ("dead", 1, "PermissionError", "for good"),
        "raise": ("pending", 1, "isolated_app.Unsendable", "it failed"),
        "exit": ("pending", 1, "redrive.errors.HandlerCrashed", "the handler raised sys.exit(4)"),
        "_exit": ("pending", 1, "redrive.errors.HandlerCrashed", "ended with exit code 3 while it ran the job"),
        "segfault": ("pending", 1, "redrive.errors.HandlerCrashed", "was killed by SIGSEGV (signal 11) while it ran"),
        "segfault beside a fork": ("pending", 1, "redrive.errors.HandlerCrashed", "was killed by SIGSEGV (signal 11)"),
        "kill": ("pending", 1, "redrive.errors.HandlerCrashed", "SIGKILL (signal 9), by hand or because the machine"),
    }
    said = {what: insert(conn, "says", f'{{"what": "{what}"}}', max_attempts=3) for what in expected}
    picky = insert(conn, "picky", max_attempts=3)
    fine = [insert(conn, "fine", f'{{"number": {number}}}') for number in range(6)]
    drain(queue, concurrency=2)
    for what, (state, attempts, kind, message) in expected.items():
        found = row(conn, said[what])
        assert (found.status, found.attempts, found.crashes) == (state, attempts, 0), what
        assert [each.error_type for each in failures(conn, said[what])] == [kind] * (kind is not None), what
        assert message is None or message in found.last_error, what
    assert failures(conn, said["raise"])[0].traceback.startswith(
        f'Traceback (most recent call last):\n  File "{isolated_app.__file__}", line '
    )
    after = row(conn, said["retry"])
    assert 85 < (after.run_at - after.updated_at).total_seconds() < 91
    assert status(conn, picky) == "dead"
    assert [row(conn, job).result["page"] for job in fine] == list(range(1, 7))
    used = {row(conn, job).result["pid"] for job in fine}
    assert os.getpid() not in used
    assert len(used) < len(fine)  # of six jobs some had a child that was there already
    assert not any(map(alive, used))


def test_a_job_is_the_same_in_the_child_as_it_is_outside(queue, conn):
    """Also what is enqueued there goes where the job came from, whatever the application's own settings say."""
    insert(conn, "chain")
    job = insert(conn, "told", '{"a": 1}', max_attempts=7, lane="left", metadata='{"trace": "x"}')
    drain(queue)
    drain(queue)
    assert states(conn) == {"succeeded": 3}
    found = row(conn, job)
    key = f"redrive-{job}-{int(found.created_at.timestamp() * 1_000_000):x}"
    assert found.result == {
        "id": str(job),
        "kind": "told",
        "payload": "{'a': 1}",
        "attempt": "1",
        "max_attempts": "7",
        "idempotency_key": key,
        "metadata": "{'trace': 'x'}",
        "lane": "left",
        "worker": found.result["worker"],
    }
    assert found.result["worker"].split(":")[1] == str(os.getpid())


def test_progress_and_log_records_come_to_the_worker(queue, conn, caplog):
    job = insert(conn, "fine", '{"number": 3}')
    with caplog.at_level(logging.INFO):
        drain(queue)
    found = row(conn, job)
    assert found.progress == {"pid": found.result["pid"]}
    [record] = [each for each in caplog.records if each.name == "isolated_app"]
    assert (record.getMessage(), record.levelno, record.page) == ("page 3", logging.WARNING, 3)
    assert record.process == found.result["pid"]


def test_complete_is_one_commit_with_what_the_handler_writes_and_counts_though_the_child_dies(queue, conn):
    conn.execute("create table public.done (job bigint)")
    jobs = {
        when: insert(conn, "complete", f'{{"die": "{when}"}}', max_attempts=3) for when in ("never", "after", "before")
    }
    drain(queue)
    assert {when: status(conn, job) for when, job in jobs.items()} == {
        "never": "succeeded",
        "after": "succeeded",
        "before": "pending",
    }
    assert {job for (job,) in conn.execute("select job from public.done")} == {jobs["never"], jobs["after"]}
    assert row(conn, jobs["after"]).result == {"by": "complete"}


def test_a_typed_payload_that_does_not_fit_fails_as_elsewhere(queue, conn):
    job = insert(conn, "fine", '{"nummer": 3}')
    drain(queue)
    assert "payload.number is missing" in row(conn, job).last_error


def test_a_handler_that_is_not_there_when_the_module_is_imported_fails_with_the_reason(queue, conn):
    job = insert(conn, "hidden")
    drain(queue)
    found = row(conn, job)
    assert (found.status, found.attempts) == ("pending", 1)
    assert "hidden of isolated_app is not registered as the isolated handler of 'hidden'" in found.last_error
    [failure] = failures(conn, job)
    assert failure.error_type == "redrive.errors.HandlerCrashed"
    assert "LookupError" in failure.traceback


# -- the end of a child


def test_past_its_timeout_the_child_is_gone_within_a_second_cr_14(queue, conn):
    """Also one that swallows every exception, and what it has started; only then has the attempt failed."""
    job = insert(conn, "stubborn", max_attempts=3)
    with Inside(queue):
        found = pids(conn, job)
        assert all(map(alive, found))
        wait_for(lambda: failures(conn, job))
        assert not any(map(alive, found))
    [failure] = failures(conn, job)
    measured(f"timeout 1 s, the attempt over after {failure.duration:.2f} s")
    assert 1 <= failure.duration < 2
    assert (failure.error_type, failure.message) == ("TimeoutError", "passed its timeout of 1 s")
    assert status(conn, job) == "pending"


def test_a_cancel_kills_the_child_and_what_it_has_started(queue, conn):
    job = insert(conn, "endless")
    with Inside(queue):
        found = pids(conn, job)
        assert queue.cancel(job) == {job: "running"}
        wait_for(lambda: status(conn, job) == "failed")
        assert not any(map(alive, found))
    assert "cancelled" in row(conn, job).last_error


def test_a_stop_is_seen_in_the_child_and_its_signals_are_for_the_worker_alone(queue, conn):
    job = insert(conn, "attentive")
    with Inside(queue, grace=20) as inside:
        found = pids(conn, job)
        inside.worker.stop()
        assert inside.ended(15)
    assert not any(map(alive, found))
    after = row(conn, job)
    assert (after.status, after.attempts, failures(conn, job)) == ("pending", 0, [])


def test_a_killed_worker_leaves_no_child_even_one_that_runs_no_python(start_worker, db, conn, tmp_path):
    noted = tmp_path / "pid"
    search = filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
    env = {"PID_FILE": str(noted), "PYTHONPATH": os.pathsep.join(search)}
    worker = start_worker("isolated_app", "--database-url", db, env=env)
    insert(conn, "deaf")
    insert(conn, "fine", '{"number": 1}')
    child = int(wait_for(lambda: noted.exists() and noted.read_text(), 20))
    idle = wait_for(
        lambda: conn.execute("select result->>'pid' from redrive.jobs where status = 'succeeded'").fetchone()
    )
    assert alive(child)
    assert alive(int(idle[0]))
    worker.process.kill()
    wait_for(lambda: not alive(child) and not alive(int(idle[0])), 5)


# -- how long a child is kept


def test_over_its_memory_limit_a_job_fails_and_what_it_has_kept_is_no_fault_of_the_next(queue, conn):
    over = insert(conn, "greedy", '{"megabytes": 500}', max_attempts=3)
    within = [insert(conn, "greedy", '{"megabytes": 250}') for _ in range(2)]  # together they are over it
    drain(queue, concurrency=1)
    [failure] = failures(conn, over)
    assert failure.error_type == "redrive.errors.MemoryLimitExceeded"
    assert failure.message.startswith(
        "the handler went over its memory_limit of 400 MB; before it began, its process had"
    )
    assert "kept.append(bytearray(" in failure.traceback
    assert [status(conn, job) for job in within] == ["succeeded", "succeeded"]


def test_a_child_is_replaced_after_its_jobs_and_given_up_when_idle(queue, conn, monkeypatch):
    monkeypatch.setattr(children, "IDLE", 0.3)
    with Inside(queue, concurrency=1):
        for _ in range(2):
            insert(conn, "once")
        fine = [insert(conn, "fine", '{"number": 1}') for _ in range(2)]
        wait_for(lambda: states(conn) == {"succeeded": 4}, 20)
        used = {pid for (pid,) in conn.execute("select result from redrive.jobs where kind = 'once'")}
        assert len(used) == 2
        wait_for(lambda: not any(alive(row(conn, job).result["pid"]) for job in fine))
    assert not any(map(alive, used))


# -- programs


PROGRAM = """
import sys
from redrive import Queue

queue = Queue()

@queue.handler("k", isolation="process", max_attempts=3)
def handle(payload):
    return __name__
"""


def run_program(path, db):
    done = subprocess.run(
        [sys.executable, path],
        env={**os.environ, "DATABASE_URL": db},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_program_that_is_its_own_application_runs_its_isolated_handlers(db, conn, tmp_path):
    job = insert(conn, "k")
    (tmp_path / "program.py").write_text(PROGRAM + "\nif __name__ == '__main__':\n    queue.run(once=True)\n")
    run_program(tmp_path / "program.py", db)
    assert row(conn, job).result == "__redrive_main__"


def test_a_program_that_would_start_a_worker_in_each_child_is_told_so(db, conn, tmp_path):
    job = insert(conn, "k", max_attempts=3)
    (tmp_path / "program.py").write_text(PROGRAM + "\nqueue.run(once=True)\n")
    run_program(tmp_path / "program.py", db)
    found = row(conn, job)
    assert (found.status, found.claims) == ("pending", 1)
    assert "write `if __name__ == '__main__':` before queue.run()" in found.last_error


def test_the_test_kit_calls_an_isolated_handler_in_the_tests_own_process(db):
    queue, called = Queue(db), []
    monitor = types.FunctionType(_note.__code__, {"__name__": __name__, "called": called, "os": os}, "_note")
    queue.handler("note", isolation="process")(monitor)
    queue.enqueue("note")
    [result] = run_pending(queue)
    assert (result.outcome, called) == ("succeeded", [os.getpid()])
    queue.close()


def _note(payload):
    called.append(os.getpid())  # noqa: F821 - see above
