"""``redrive top``: the same figures for eyes, for paper and for scripts."""

from __future__ import annotations

import psycopg
import pytest

from shell import NOBODY, answer, beat, complaint, insert, on_terminal, process, redrive
from support import wait_for

WORKER = (
    "insert into redrive.workers (name, host, pid, version, kinds, concurrency, in_flight, lease, heartbeat_at, "
    "problem) values (%s, 'h', 1, '1', '{mail}', 10, 4, '30 s', now() - %s::interval, %s)"
)


@pytest.fixture
def busy(conn: psycopg.Connection) -> psycopg.Connection:
    """Some of everything."""
    insert(conn, "mail", 3)
    insert(conn, "mail", 2, status="dead")
    insert(conn, "export")
    conn.execute(WORKER, ("a", "0 s", None))
    conn.execute(WORKER, ("b", "1 minute", None))
    conn.execute(WORKER, ("c", "0 s", "pruner loop: \x1b[2Jit hangs; password=hunter2"))
    conn.execute(
        "insert into redrive.stats (minute, kind, worker, succeeded, retried, ran, run_seconds, waits, runs) "
        "values (date_trunc('minute', now()), 'mail', 'a', 3000, 1000, 4000, 40, '[54:54]={4000}', '[28:28]={4000}')"
    )
    conn.execute("insert into redrive.kinds (kind, paused_at) values ('export', now())")
    return conn


def test_once_shows_what_there_is_and_leaves_out_what_is_not(db, busy):
    shown = redrive(db, "top", "--once").stdout
    head, silent, complains, headers, *lines = shown.splitlines()
    assert head.startswith("workers: 2 alive, 1 silent   jobs in them: 8 of 20 slots   oldest due: ")
    assert silent == "worker b is silent"
    assert "\x1b" not in complains
    assert "hunter2" not in complains
    assert headers.split()[:3] == ["KIND", "DUE", "OLDEST"]
    assert len(lines) == 2
    mail = next(line for line in lines if line.startswith("mail")).split()
    assert mail[1] == "3"
    assert "25.0%" in mail
    assert any(line.startswith("export (paused)") for line in lines)


def test_a_script_gets_numbers(db, busy):
    found = answer(db, "top")
    assert found["workers"] == {"alive": 2, "silent": 1, "complaining": 1, "slots": 20, "in_flight": 8}
    assert found["kinds_unknown"] == ["export"]
    mail = next(line for line in found["kinds"] if line["kind"] == "mail")
    assert (mail["due"], mail["dead"], mail["held"], mail["known"]) == (3, 2, "", True)
    assert mail["error_rate"] == 0.25
    assert mail["out_rate"] == pytest.approx(3000 / 330, rel=0.2)
    assert mail["in_rate"] == pytest.approx(5 / 60)
    assert mail["drains_in"] == pytest.approx(3 / (mail["out_rate"] - mail["in_rate"]), rel=1e-6)
    assert mail["wait_p95"] == pytest.approx(0.0001 * 2 ** (52.5 / 4))
    assert mail["run_p95"] == pytest.approx(0.0001 * 2 ** (26.5 / 4))


def test_what_grows_never_drains_and_a_count_at_its_bound_is_marked(db, conn, monkeypatch):
    monkeypatch.setattr("redrive.stats.MOST", 2)
    monkeypatch.setattr("redrive.stats.depths.__defaults__", (2,))
    insert(conn, "mail", 3)
    shown = redrive(db, "top", "--once").stdout
    assert "mail (no worker knows it)   2+" in shown
    assert "never" in shown


def test_of_a_kind_over_the_broker_it_is_not_told_when_the_table_drains(db, conn):
    insert(conn, "mail", 3)
    redrive(db, "route", "mail", "amqp")
    redrive(db, "pause", "mail")
    shown = redrive(db, "top", "--once").stdout
    assert "mail (paused, over the broker)" in shown
    assert "never" not in shown
    [mail] = answer(db, "top")["kinds"]
    assert (mail["routed"], mail["drains_in"], mail["there"]) == (True, None, None)


def test_that_no_relay_is_alive_is_told_where_one_is_wanted(db, conn):
    redrive(db, "route", "mail", "amqp")
    assert "no relay is alive" not in redrive(db, "top", "--once").stdout, "nothing waits for one"
    insert(conn, "mail", 3)
    assert "kind mail goes over the broker, and no relay is alive" in redrive(db, "top", "--once").stdout
    beat(conn, "relay:1:abcdef", kinds=[])
    assert "no relay is alive" not in redrive(db, "top", "--once").stdout


def test_that_nobody_takes_a_kind_from_the_broker_is_told_and_a_relay_has_no_slots(db, conn):
    redrive(db, "route", "mail", "amqp")
    beat(conn, "relay:1:abcdef", kinds=[])
    shown = redrive(db, "top", "--once").stdout
    assert shown.startswith("workers: 0 alive   jobs in them: 0 of 0 slots")
    assert "kind mail goes over the broker, and no live worker takes it from there: start redrive worker" in shown
    beat(conn, "box:1:abcdef", listener_pid=0)
    shown = redrive(db, "top", "--once").stdout
    assert shown.startswith("workers: 1 alive   jobs in them: 0 of 10 slots")
    assert "no live worker takes it" not in shown


def test_an_empty_installation_is_no_error(db):
    done = redrive(db, "top", "--once")
    assert done.stdout.startswith("workers: 0 alive")
    assert "no jobs" in done.stderr


def test_on_a_terminal_it_draws_until_q_and_leaves_the_terminal_as_it_was(db, busy):
    shown, code = on_terminal(db, "top", "--interval", "100ms", typed="ppq")
    assert code == 0
    assert "mail" in shown
    assert "q quits, p holds" in shown
    assert shown.rstrip().endswith(("\x1b[?1049l", "\x1b[?25h"))  # the screen as it was, the cursor back


def test_a_database_that_is_away_is_waited_for_on_a_terminal_and_an_error_else(db):
    assert "can't be reached" in complaint(redrive(NOBODY, "top", "--once", code=3))
    shown, code = on_terminal(NOBODY, "top", "--interval", "100ms", typed="q")
    assert (code, "hunter2" in shown) == (0, False)
    assert "can't be reached" in shown


def test_on_a_dumb_terminal_it_prints_one_picture_after_the_other(db, busy):
    import os  # noqa: PLC0415 - for a terminal of its own
    import pty  # noqa: PLC0415 - as above
    import signal  # noqa: PLC0415 - as above

    ours, theirs = pty.openpty()
    child = process(db, "top", "--interval", "100ms", env={"TERM": "dumb"}, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown: list[bytes] = []

    def twice() -> bool:
        shown.append(os.read(ours, 65536))
        return b"".join(shown).count(b"workers: 2 alive") >= 2

    wait_for(twice, 20)
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 0
    os.close(ours)
    assert b"\x1b[" not in b"".join(shown).replace(b"\x1b[31m", b"").replace(b"\x1b[0m", b"")


@pytest.mark.parametrize("interval", ["0", "2h", "soon"])
def test_an_interval_that_makes_no_sense_is_refused(db, interval):
    assert "--interval" in complaint(redrive(db, "top", "--interval", interval, code=2))
