"""How much workers say to the server and make others say, counted by the server itself: by the job, and when idle."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import Counter
from collections.abc import Callable

import psycopg
import pytest

from engine import Inside, insert, measured, sentries, states
from redrive import Queue
from redrive.sql import _queries, channel, query
from support import wait_for

CLAIMS = {"claim_jobs", "claim_alone"}
LOOKS = {"survey_lanes"}
WRITES = re.compile(r"\b(UPDATE|INSERT|DELETE)\b")
RARELY = 60
PRODUCERS = 16


def first_lines(names: set[str]) -> set[str]:
    """The server's log has a line of its own prefix for the first of a statement only."""
    found = set()
    for name in names:
        with contextlib.suppress(KeyError):  # a migration's, with names of its own
            found.add(query(name, "redrive").as_string(None).splitlines()[0])
    return found


@pytest.fixture
def said(conn, server_log) -> Callable[[], Counter[str]]:
    """What workers that begin after this have said since it was last asked: claims, looks, other writes, the beats."""
    conn.execute(f"alter database {conn.info.dbname} set log_statement = 'all'")
    writes = {name for name, text in _queries().items() if WRITES.search(text)} - CLAIMS - {"beat"}
    sorts = {"claim": CLAIMS, "look": LOOKS, "beat": {"beat"}, "write": writes}
    known = {line: sort for sort, names in reversed(sorts.items()) for line in first_lines(names)}
    seen = 0

    def count() -> Counter[str]:
        nonlocal seen
        lines = [line for line in server_log.lines() if " redrive " in line and "LOG:  " in line]
        new, seen = lines[seen:], len(lines)
        statements = [re.split(r"LOG:  (?:execute [^:]*|statement): ", line)[-1] for line in new]
        return Counter(known.get(statement, "other") for statement in statements)

    return count


@pytest.fixture
def nap():
    """A sync handler that runs until it is told to end."""
    ended = threading.Event()

    def nap(payload):
        ended.wait(20)

    nap.end = ended.set
    yield nap
    ended.set()


def queues(db, count, *, handler=lambda payload: None, **settings):
    found = []
    for _ in range(count):
        queue = Queue(db, **{"poll": RARELY, "lease": 30, **settings})
        queue.handler("job")(handler)
        found.append(queue)
    return found


def test_claims_are_fewer_than_three_a_job_however_many_workers_sleep_ln_08(db, conn, said):
    """100 inserts a second, each in a commit of its own, and six workers that could all run it."""
    with Inside(*queues(db, 6)) as inside:
        wait_for(lambda: sentries(conn) and sum(worker.listener.hears for worker in inside.workers) == 6)
        said()
        for _ in range(120):
            insert(conn, "job")
            time.sleep(0.01)
        wait_for(lambda: states(conn) == {"succeeded": 120})
        spoken = said()
    measured(f"of 120 jobs and six workers: {dict(spoken)}")
    assert 0 < spoken["claim"] <= 3 * 120
    assert spoken["look"] <= 3 * 120


def test_busy_workers_do_not_query_ln_08(db, conn, nap, said):
    """While no slot is free, a hundred inserts make nobody look."""
    with Inside(*queues(db, 3, handler=nap, concurrency=2)):
        conn.execute("insert into redrive.jobs (kind) select 'job' from generate_series(1, 6)")
        wait_for(lambda: states(conn) == {"running": 6})
        wait_for(lambda: not sentries(conn))
        time.sleep(0.3)
        said()
        for _ in range(100):
            insert(conn, "job")
        time.sleep(0.3)
        spoken = said()
        nap.end()
        wait_for(lambda: states(conn) == {"succeeded": 106})
    assert spoken["claim"] == spoken["look"] == spoken["write"] == 0, spoken


def test_an_idle_worker_looks_once_a_poll_and_writes_nothing_but_its_beat_ln_09(db, conn, said, monkeypatch):
    """However many slots it has, and while its looks are cheap: on a busy machine they may be dear, and then differ."""
    monkeypatch.setattr("redrive.looks.DEAR", 1.0)
    seconds, poll, workers = 3, 1, 3
    with Inside(*queues(db, workers, concurrency=20, poll=poll)):
        wait_for(lambda: sentries(conn))
        time.sleep(1)  # the looks after falling asleep
        said()
        time.sleep(seconds)
        spoken = said()
    measured(f"{workers} idle workers in {seconds} s, poll {poll} s: {dict(spoken)}")
    assert 0 < spoken["look"] + spoken["claim"] <= workers * (seconds / (0.9 * poll) + 1)
    assert spoken["claim"] == spoken["write"] == 0, spoken
    assert spoken["beat"] <= workers


def produce(db, commits):
    """Insert jobs from many sessions at once, each in a commit of its own."""
    together = threading.Barrier(PRODUCERS)

    def work():
        with psycopg.connect(db, autocommit=True) as own:
            together.wait(10)
            for _ in range(commits):
                insert(own, "job")

    threads = [threading.Thread(target=work) for _ in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def notifying(conn):
    """How often an INSERT has called what notifies, by the server's count."""
    calls = (
        "select coalesce(sum(calls), 0)::int from pg_stat_user_functions where funcname in ('wake', 'wake_on_insert')"
    )
    return conn.execute(calls).fetchone()[0]


@pytest.fixture
def counted(conn):
    """Sessions that begin after this count their calls of functions, and tell it when they end."""
    conn.execute(f"alter database {conn.info.dbname} set track_functions = 'all'")


def test_while_all_workers_are_busy_no_commit_takes_the_road_of_notify_ln_05(db, conn, nap, counted):
    """A NOTIFY makes all commits of a database queue for one lock; here not one of 640 came near it."""
    with Inside(*queues(db, 1, handler=nap, concurrency=1)), psycopg.connect(db, autocommit=True) as ears:
        ears.execute(f"listen {channel('redrive')}")
        insert(conn, "job")
        wait_for(lambda: states(conn) == {"running": 1} and not sentries(conn))
        list(ears.notifies(timeout=0.2))
        before = notifying(conn)
        produce(db, 40)
        assert list(ears.notifies(timeout=0.2)) == []
        assert notifying(conn) == before
        nap.end()
        wait_for(lambda: states(conn) == {"succeeded": 40 * PRODUCERS + 1}, 20)


def test_many_producers_notify_a_worker_that_keeps_up_less_than_once_in_five_commits_ln_05(db, conn, counted):
    """In one of four rounds: on a machine that is slow just now the worker falls asleep between two commits."""
    with Inside(*queues(db, 1)), psycopg.connect(db, autocommit=True) as ears:
        ears.execute(f"listen {channel('redrive')}")
        for turn in range(1, 5):
            wait_for(lambda: sentries(conn))
            produce(db, 40)
            wait_for(lambda turn=turn: states(conn) == {"succeeded": turn * 40 * PRODUCERS}, 20)
            heard = len(list(ears.notifies(timeout=0.2)))
            measured(f"{heard} notifications of {40 * PRODUCERS} commits, {notifying(conn)} calls so far")
            if 0 < heard < 40 * PRODUCERS / 5:
                return
    raise AssertionError(f"{heard} notifications of {40 * PRODUCERS} commits")
