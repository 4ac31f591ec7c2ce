"""Control connections: what they are opened with, when they are in doubt, and that no silence lasts."""

from __future__ import annotations

import asyncio
import socket
import time

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from chaos.proxy import Proxy
from redrive import claims, connections
from redrive.connections import Control, conninfo, is_outage, is_refusal, is_transient
from redrive.errors import NoDatabase
from redrive.statements import Statement, named, run
from support import wait_for


def control(dsn, **options):
    return Control(dsn, "redrive", "test", **options)


def say(text):
    return Statement(text, psycopg.rows.tuple_row)


def using(dsn, work, **options):
    """Run *work* on a control connection and close it."""

    async def session():
        held = control(dsn, **options)
        try:
            return await work(held)
        finally:
            held.drop()

    return asyncio.run(session())


@pytest.mark.parametrize(
    ("error", "outage", "transient"),
    [
        (NoDatabase("away"), True, False),
        (TimeoutError(), True, False),
        (ConnectionResetError(), True, False),
        (psycopg.OperationalError("the connection is closed"), True, False),
        (psycopg.InterfaceError("the connection is lost"), True, False),
        (errors.AdminShutdown(), True, False),
        (errors.CrashShutdown(), True, False),
        (errors.CannotConnectNow(), True, False),
        (errors.TooManyConnections(), True, False),
        (errors.DiskFull(), True, False),
        (errors.ReadOnlySqlTransaction(), True, False),  # psycopg calls it an InternalError
        (errors.SerializationFailure(), False, True),
        (errors.DeadlockDetected(), False, True),
        (errors.LockNotAvailable(), False, True),
        (errors.QueryCanceled(), False, True),
        (errors.IdleInTransactionSessionTimeout(), False, True),
        (errors.UndefinedTable(), False, False),
        (errors.UniqueViolation(), False, False),
        (errors.InvalidTextRepresentation(), False, False),
        (psycopg.ProgrammingError("no state"), False, False),
        (psycopg.InternalError("received 2 results from command 'COMMIT'"), True, False),
        (ValueError(), False, False),
    ],
)
def test_what_is_an_outage_is_told_by_the_sqlstate_cn_05(error, outage, transient):
    assert (is_outage(error), is_transient(error)) == (outage, transient)


def test_what_one_row_is_refused_for_is_told_from_what_no_row_would_be_spared_cn_07():
    rows_own = (errors.UniqueViolation, errors.CheckViolation, errors.InvalidTextRepresentation, errors.RaiseException)
    assert all(is_refusal(each()) for each in rows_own)
    alls = (errors.UndefinedTable, errors.InsufficientPrivilege, errors.AdminShutdown, errors.DeadlockDetected)
    assert not any(is_refusal(each()) for each in (*alls, errors.QueryCanceled, ValueError))


def test_keepalives_and_timeouts_are_on_and_the_users_own_values_win_cn_02():
    plain = conninfo_to_dict(conninfo("host=h dbname=d", application="redrive test", nonce="n"))
    assert plain["keepalives"] == "1"
    assert plain["tcp_user_timeout"] == "15000"
    assert plain["connect_timeout"] == "5"
    assert plain["application_name"] == "redrive test"
    assert "jit=off" in plain["options"]
    given = "postgresql://u@h/d?connect_timeout=1&keepalives_idle=3&application_name=mine&options=-c%20work_mem%3D1MB"
    own = conninfo_to_dict(conninfo(given, application="redrive test", nonce="n"))
    assert (own["connect_timeout"], own["keepalives_idle"], own["application_name"]) == ("1", "3", "mine")
    assert own["options"].startswith("-c work_mem=1MB ")
    assert own["options"].endswith("tcp_keepalives_count=3")
    assert "target_session_attrs" not in own


def test_of_several_hosts_the_one_that_can_be_written_to_is_chosen_cn_05():
    info = conninfo_to_dict(conninfo("host=a,b port=1,2", application="x"))
    assert info["target_session_attrs"] == "read-write"
    info = conninfo_to_dict(conninfo("host=a,b target_session_attrs=primary", application="x"))
    assert info["target_session_attrs"] == "primary"


def test_a_session_is_set_up_whatever_the_defaults_of_the_database_are(db, conn):
    """READ COMMITTED, no JIT, no plan that reads a table whole, a limit for locks, keepalives at both ends."""
    name = conn.info.dbname
    conn.execute(f"alter database {name} set default_transaction_isolation = 'serializable'")
    conn.execute(f"alter database {name} set jit = on")

    async def look(held):
        names = ("transaction_isolation", "jit", "lock_timeout", "application_name", "tcp_keepalives_idle")
        names += ("enable_seqscan",)
        found = [(await held.run(say(f"show {name}")))[0][0] for name in names]
        with socket.socket(fileno=socket.dup(held.connection.pgconn.socket)) as end:
            alive = end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        return found, (alive, idle), held.facts

    found, ends, facts = using(db, look)
    assert found == ["read committed", "off", "2s", "redrive test", "10", "off"]
    assert ends == (1, 10)
    assert not facts.shared


def test_a_unix_socket_will_do(server, db):
    if server is None:
        pytest.skip("the socket of the server that DATABASE_URL names is not known")
    dsn = make_conninfo(server.socket_url, dbname=conninfo_to_dict(db)["dbname"])
    assert using(dsn, lambda held: held.run(say("select 1"))) == [(1,)]


def test_behind_a_pooler_nothing_of_the_session_is_relied_on_ln_03(pgbouncer, conn):
    """No settings, no prepared statements, and the isolation level goes with each transaction."""
    conn.execute(f"alter database {conn.info.dbname} set default_transaction_isolation = 'repeatable read'")

    async def work(held):
        for _ in range(8):
            [(level,)] = await held.run(say("show transaction_isolation"))
        return level, held.facts.shared, await held.run(say("select count(*) from pg_prepared_statements"))

    assert using(pgbouncer, work) == ("read committed", True, [(0,)])


def test_a_read_only_server_is_refused_cn_05(db, conn):
    conn.execute(f"alter database {conn.info.dbname} set default_transaction_read_only = on")
    with pytest.raises(NoDatabase, match="read-only"):
        using(db, lambda held: held.run(say("select 1")))


def test_an_error_of_the_statement_keeps_the_connection_and_one_of_the_server_does_not(db, conn):
    async def work(held):
        [before] = await held.run(named("backend_pid", "redrive"))
        with pytest.raises(errors.DivisionByZero):
            await held.run(say("select 1/0"))
        assert await held.run(named("backend_pid", "redrive")) == [before]
        with pytest.raises(errors.AdminShutdown):
            await held.run(say("select pg_terminate_backend(pg_backend_pid())"))
        assert held.connection is None
        [after] = await held.run(named("backend_pid", "redrive"))
        assert after != before

    using(db, work)


def test_a_connection_that_died_while_it_was_idle_is_replaced_without_an_error(db, conn):
    async def work(held):
        [(pid,)] = await held.run(say("select pg_backend_pid()"))
        await asyncio.to_thread(conn.execute, "select pg_terminate_backend(%s, 5000)", (pid,))
        [(again,)] = await held.run(say("select pg_backend_pid()"))
        assert again != pid

    using(db, work)


def test_a_connection_from_before_an_outage_that_others_met_is_not_trusted_cn_05(db):
    """It may lead to a server that was demoted, where every look finds nothing, and no error."""

    async def work(held):
        outages = 0
        held.outages = lambda: outages
        [(before,)] = await held.run(say("select pg_backend_pid()"))
        assert await held.run(say("select pg_backend_pid()")) == [(before,)]
        outages = 1
        [(after,)] = await held.run(say("select pg_backend_pid()"))
        assert after != before
        assert await held.run(say("select pg_backend_pid()")) == [(after,)]

    using(db, work)


def test_what_is_no_longer_meant_when_the_connection_is_there_is_not_said(db):
    async def work(held):
        return await held.run(say("select 1/0"), given=lambda: False)

    assert using(db, work) == []


def test_a_silent_server_is_given_up_after_the_timeout_cn_02(db, monkeypatch):
    """While the loop turns; what comes next has a connection of its own. A silent connect ends too."""
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT", -4.5)  # and five more
    with Proxy(db) as proxy:

        async def work(held):
            [(before,)] = await held.run(say("select pg_backend_pid()"))
            with proxy.black_hole():
                began = time.monotonic()
                with pytest.raises(TimeoutError, match="did not answer within"):
                    await held.run(say("select 1"))
                with pytest.raises(NoDatabase, match="no answer from the database"):
                    await held.run(say("select 1"))
                assert time.monotonic() - began < 2
            [(after,)] = await held.run(say("select pg_backend_pid()"), timeout=5)
            assert before != after

        using(proxy.dsn, work, timeout=0.3)


def test_a_statement_may_be_cancelled_without_asking_a_silent_server(db):
    with Proxy(db) as proxy:

        async def work(held):
            await held.run(say("select 1"))
            with proxy.black_hole():
                task = asyncio.create_task(held.run(say("select 1")))
                await asyncio.sleep(0.1)
                began = time.monotonic()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert time.monotonic() - began < 0.5
            assert held.connection is None
            assert await held.run(say("select 2")) == [(2,)]

        using(proxy.dsn, work)


def test_who_is_cancelled_at_the_instant_at_which_the_connection_is_there_leaves_none_behind(db, conn):
    """It is known and can be closed; a session that nobody knows would stay until the garbage is collected."""
    made = []

    async def work(held):
        connect = held._connect

        async def and_then_cancel():
            made.append(await connect())
            asking.cancel()
            return made[0]

        held._connect = and_then_cancel
        asking = asyncio.create_task(held.open())
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert held.connection is made[0]

    using(db, work)
    assert made[0].closed
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    wait_for(lambda: conn.execute(others).fetchone() == (0,))


def test_two_statements_at_once_are_said_one_after_the_other(db):
    async def work(held):
        return await asyncio.gather(*(held.run(say(f"select {n}, pg_sleep(0.02)")) for n in range(5)))

    assert [rows[0][0] for rows in using(db, work)] == [0, 1, 2, 3, 4]


def test_a_worker_that_freezes_between_two_statements_keeps_its_lock_for_a_while_only(db, conn, monkeypatch):
    """Else a kind with limits or a breaker would be kept from all others, for as long as one of them is stopped."""
    monkeypatch.setattr(connections, "_FROZEN_THERE", connections._FROZEN_THERE.replace("10s", "200ms"))
    conn.execute("insert into redrive.kinds (kind, rate) values ('mail', 1)")

    async def freezes(held):
        def frozen(locked):
            assert locked == ["mail"]
            assert free() == []
            wait_for(lambda: free() == ["mail"], 5)
            return say("select 1")

        await held.run_both(claims.lock_limits("redrive", ["mail"]), frozen)

    def free():
        return run(conn, claims.lock_limits("redrive", ["mail"]))

    with pytest.raises(errors.IdleInTransactionSessionTimeout):
        using(db, freezes)
