"""``redrive worker --processes N``: N whole workers, stopped together, replaced when they die, never left behind."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from engine import APP, failures, insert, row, states, status
from redrive import Queue
from redrive.cli import processes
from redrive.cli.processes import Member, Processes, Tether
from shell import redrive
from support import wait_for


@pytest.fixture
def start(start_worker, effects):
    """A parent of two; its worker processes are in groups of their own, so they are ended by what is tested here."""
    return lambda *flags: start_worker(APP, "--processes", "2", *flags, env=effects.env)


def told(parent):
    """The pids that the parent has told of, in order."""
    return [int(pid) for pid in re.findall(r"worker process \d of \d: pid (\d+)", parent.log())]


def working(conn, parent, count=2):
    """Wait until so many workers work, and give their pids."""

    def rows():
        found = {pid for (pid,) in conn.execute("select pid from redrive.workers")}
        return found if len(found & set(told(parent))) >= count else None

    return sorted(wait_for(rows, 20) & set(told(parent)))


def gone(pids):
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_each_is_a_whole_worker_one_that_dies_is_replaced_and_a_stop_lets_all_end_their_jobs(start, conn, db, effects):
    """Though every process of them is signalled, as a service manager may do: that is one stop."""
    parent = start("--concurrency", "1", "--grace", "20")
    victim, other = working(conn, parent)
    assert [victim, other] == sorted(told(parent))
    redrive(db, "health", "--workers", "2")
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: len(told(parent)) == 3)
    assert f"worker process {victim} ended unasked, by signal 9: another starts in 1 s" in parent.log()
    third = told(parent)[2]
    wait_for(lambda: third in working(conn, parent))
    jobs = [insert(conn, "nap", '{"seconds": 1.5}') for _ in range(2)]
    wait_for(lambda: len(effects.starts()) == 2)
    assert {effect.pid for effect in effects.starts()} == {other, third}
    for pid in (other, third, parent.pid):
        os.kill(pid, signal.SIGTERM)
    assert parent.process.wait(15) == 0
    assert {status(conn, job) for job in jobs} == {"succeeded"}
    assert gone([victim, other, third])


def test_a_second_stop_is_passed_on_too_and_the_worst_end_makes_the_exit_code(start, conn, effects):
    parent = start("--grace", "60", "--no-listen")
    members = working(conn, parent)
    job = insert(conn, "nap", '{"seconds": 60}')
    [effect] = wait_for(effects.starts)
    [idle] = set(members) - {effect.pid}
    os.kill(idle, signal.SIGSTOP)  # so that it can't end well
    parent.send(signal.SIGINT)
    wait_for(lambda: "stops and waits for 1 jobs" in parent.log())
    os.kill(idle, signal.SIGKILL)
    parent.send(signal.SIGINT)
    assert parent.process.wait(10) == 128 + 9
    found = row(conn, job)
    assert (found.status, found.attempts, failures(conn, job)) == ("pending", 0, [])
    assert gone(members)


def test_a_killed_parent_leaves_nobody_behind_and_nothing_running(start, conn, effects):
    parent = start("--grace", "60")
    members = working(conn, parent)
    jobs = [insert(conn, kind, '{"seconds": 60}') for kind in ("nap", "apart")]
    wait_for(lambda: len(effects.starts()) == 2, 20)
    everybody = {*members, *(effect.pid for effect in effects.starts())}
    parent.process.kill()
    wait_for(lambda: gone(everybody), 10)
    assert {status(conn, job) for job in jobs} == {"pending"}
    assert [row(conn, job).attempts for job in jobs] == [0, 0]


def test_once_runs_what_is_due_and_all_exit(start, conn, effects):
    for _ in range(4):
        insert(conn, "nap")
    parent = start("--once")
    assert parent.process.wait(20) == 0
    assert states(conn) == {"succeeded": 4}
    assert gone(told(parent))


def test_where_no_process_can_work_the_parent_exits_as_they_did(start_worker, empty_db):
    """The number may come from the application, too."""
    app = "from redrive import Queue\nqueue = Queue(processes=2)\nqueue.handler('k')(print)\n"
    parent = start_worker(app, dsn=empty_db)
    assert parent.process.wait(20) == 4
    assert len(told(parent)) == 2
    assert "redrive migrate" in parent.log()


def test_the_number_is_a_setting_like_others(monkeypatch):
    monkeypatch.setenv("REDRIVE_PROCESSES", "3")
    assert Queue().settings.processes == 3
    with pytest.raises(ValueError, match="processes is 0: must be at least 1"):
        Queue(processes=0)


def test_the_pause_before_a_replacement_doubles_unless_the_dead_one_had_lived_for_a_while(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(processes.time, "monotonic", lambda: now[0])
    member, parent, pauses = Member(1, started=1000.0), Processes(1, 25.0, once=False), []
    for _ in range(7):
        parent._replace(member, "it died")
        pauses.append(member.due - now[0])
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    now[0] += 61
    parent._replace(member, "it died")
    assert member.due - now[0] == 1


def test_a_process_stops_as_often_as_its_parent_or_its_signals_ask_not_both(monkeypatch):
    """What came before there was a worker to stop counts; with the end of the parent it stops at once, or is killed."""
    killed = []
    monkeypatch.setattr(processes.os, "kill", lambda pid, number: killed.append((pid, number)))
    monkeypatch.setattr(processes, "PATIENCE", 0)
    theirs, ours = os.pipe()
    tether, stops = Tether(theirs), []
    os.write(ours, b"!")
    wait_for(lambda: tether._by_parent == 1)
    tether.attach(lambda: stops.append("stop"))
    tether.signalled()
    assert stops == ["stop"]
    os.close(ours)
    wait_for(lambda: killed)
    assert stops == ["stop"] * 3
    assert killed == [(os.getpid(), signal.SIGKILL)]
    os.close(theirs)
