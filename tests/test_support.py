"""What the other tests stand on holds."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import support


def backend(conn: psycopg.Connection) -> int:
    return conn.execute("select pg_backend_pid()").fetchone()[0]


def test_wait_for_returns_what_came_and_fails_with_what_stayed(wait_for):
    answers = iter([0, [], "here"])
    assert wait_for(lambda: next(answers)) == "here"
    with pytest.raises(AssertionError, match="still 0"):
        wait_for(lambda: 0, seconds=0.05)


def test_a_database_is_dropped_although_somebody_is_connected(server_url):
    with support.database(server_url) as dsn:
        left = psycopg.connect(dsn)
    with pytest.raises(psycopg.OperationalError):
        left.execute("select 1")
    left.close()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(dsn)


def test_databases_of_two_tests_are_two(db, empty_db, conn):
    with psycopg.connect(empty_db) as other:
        assert conn.info.dbname == conninfo_to_dict(db)["dbname"] != other.info.dbname
        assert other.execute("select to_regclass('redrive.jobs')").fetchone() == (None,)
    assert conn.execute("select count(*) from redrive.jobs").fetchone() == (0,)


def test_the_server_log_is_that_of_the_tests_own_database(conn, empty_db, server_log):
    with psycopg.connect(empty_db) as other, pytest.raises(psycopg.errors.DivisionByZero):
        other.execute("select 1/0")
    assert server_log.errors() == []
    with pytest.raises(psycopg.errors.DivisionByZero):
        conn.execute("select 1/0")
    [line] = server_log.errors()
    assert line.endswith("ERROR:  division by zero")


@pytest.mark.parametrize("mode", ["fast", "immediate", "crash"])
def test_an_own_server_ends_and_comes_back_under_the_same_url(own_server, mode):
    with psycopg.connect(own_server.url, autocommit=True) as conn:
        conn.execute("create table kept ()")
        own_server.stop(mode)
        with pytest.raises(psycopg.OperationalError):
            conn.execute("select 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(own_server.url)
    own_server.start()
    with psycopg.connect(own_server.url) as conn:
        assert conn.execute("select count(*) from kept").fetchone() == (0,)
    own_server.restart(mode)


def test_an_own_server_can_be_frozen_and_thawed(own_server):
    url = psycopg.conninfo.make_conninfo(own_server.url, connect_timeout=2)
    with psycopg.connect(url) as conn:
        own_server.pause()
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            psycopg.connect(url)
        own_server.resume()
        assert conn.execute("select 1").fetchone() == (1,)
    own_server.pause()  # and its end thaws it


def test_the_pooler_gives_two_connections_for_the_time_of_a_transaction(pgbouncer, conn, wait_for):
    clients = [psycopg.connect(pgbouncer) for _ in range(3)]
    held = {backend(client) for client in clients[:2]}
    assert len(held) == 2
    clients[0].commit()
    assert backend(clients[2]) in held
    for client in clients:
        client.close()
    with psycopg.connect(pgbouncer) as client:
        assert client.execute("select current_database()").fetchone() == (conn.info.dbname,)


def test_the_pooler_refuses_startup_options_as_in_production(pgbouncer):
    with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter: options"):
        psycopg.connect(pgbouncer, options="-c jit=off")


APP = """
import os
import psycopg
from redrive import Queue

queue = Queue()

@queue.handler("note")
def note(payload):
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        conn.execute("insert into notes values (%s, %s)", (payload["n"], os.environ.get("TAG")))
"""


def test_a_worker_of_a_tests_own_works_on_its_database_and_stops(start_worker, conn, server_log, wait_for):
    conn.execute("create table notes (n int, tag text)")
    conn.execute("""insert into redrive.jobs (kind, payload) values ('note', '{"n": 7}')""")
    worker = start_worker(APP, "--concurrency", "2", env={"TAG": "mine"})
    wait_for(lambda: conn.execute("select status from redrive.jobs").fetchone() == ("succeeded",))
    assert conn.execute("select * from notes").fetchall() == [(7, "mine")]
    assert worker.stop() == 0, worker.log()
    assert server_log.errors() == []


def test_workers_are_killed_with_all_that_they_started(start_worker, wait_for):
    workers = [start_worker(APP), start_worker(APP)]
    assert [worker.running for worker in workers] == [True, True]
    workers[0].kill()
    assert (workers[0].running, workers[0].process.returncode, workers[1].running) == (False, -9, True)
    assert workers[0].path != workers[1].path
