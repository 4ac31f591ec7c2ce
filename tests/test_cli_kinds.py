"""Pausing and limiting from the shell."""

from __future__ import annotations

import os

import pytest
from psycopg.conninfo import make_conninfo

from shell import answer, beat, complaint, insert, redrive


def test_pause_list_and_resume(db):
    done = redrive(db, "pause", "mail", "--reason", "the provider is down", "--by", "ada")
    assert "mail: no limits; paused now by ada: the provider is down" in done.stdout
    assert "the provider is down" in redrive(db, "kinds").stdout
    redrive(db, "resume", "mail")
    assert redrive(db, "resume", "mail", code=1).stdout.strip() == "mail: not paused"
    assert "no kind is paused, limited, held or routed" in redrive(db, "kinds").stderr


def test_all_kinds_at_once_and_until(db):
    assert "all kinds: no limits; paused now" in redrive(db, "pause", "--all", "--until", "2h").stdout
    [row] = answer(db, "kinds")
    assert (row["kind"], row["paused"]) == ("*", True)
    assert redrive(db, "resume", "--all").stdout.strip() == "all kinds together resumed"


def test_limits_are_said_in_units_that_people_use(db):
    done = redrive(db, "limit", "mail", "--running", 5, "--rate", "300/m", "--burst", 20, "--lane-rate", "1/h")
    assert done.stdout.strip() == "mail: 5 at once; 5/s, 20 at once after a pause; 1/h a lane"
    for span in ("m", "min"):  # the desk writes min
        assert answer(db, "limit", "mail", "--rate", f"1/{span}")["rate"] == pytest.approx(1 / 60)
    assert redrive(db, "limit", "mail", "--none").stdout.strip() == "mail: no limits"


def test_a_kind_that_is_paused_and_goes_over_the_broker_shows_both(db):
    redrive(db, "route", "mail", "amqp")
    assert redrive(db, "kinds").stdout.splitlines()[1].split()[:2] == ["mail", "broker"]
    redrive(db, "pause", "mail")
    assert redrive(db, "kinds").stdout.splitlines()[1].split()[:3] == ["mail", "paused,", "broker"]


def test_a_route_is_told_with_its_reason_and_with_the_relay_that_it_lacks(db, conn):
    done = redrive(db, "route", "mail", "amqp", "--reason", "the newsletter", "--by", "ada")
    assert done.stdout.strip() == "mail: amqp, by ada: the newsletter"
    lacks = "note: no relay is alive: jobs of kind mail wait in the table until one is started"
    assert done.stderr.startswith(lacks)
    assert redrive(db, "route").stderr.startswith(lacks)
    assert answer(db, "route", "mail", "amqp") == {"kind": "mail", "route": "amqp"}
    beat(conn, "box:1:abcdef", listener_pid=0)
    done = redrive(db, "route", "mail", "postgres")
    keep = "note: keep workers with --broker until its queues are empty"
    assert (done.stdout.strip(), done.stderr.strip()) == ("mail: postgres", keep)
    assert redrive(db, "route", "mail", "postgres").stderr == "", "it was run from the table"
    beat(conn, "relay:1:abcdef", kinds=[])
    assert redrive(db, "route", "mail", "amqp").stderr == ""


def test_what_is_set_is_told_with_its_reason(db):
    limited = redrive(db, "limit", "mail", "--running", 2, "--reason", "they asked", "--by", "ada")
    assert limited.stdout.strip() == "mail: 2 at once, by ada: they asked"
    redrive(db, "pause", "mail")
    resumed = redrive(db, "resume", "mail", "--reason", "it is up", "--by", "ada")
    assert resumed.stdout.strip() == "mail resumed, by ada: it is up"


def test_who_limited_and_routed_a_kind_is_listed_with_since_when_and_why(db, conn):
    redrive(db, "limit", "mail", "--rate", "1/m", "--by", "eve")
    redrive(db, "limit", "mail", "--rate", "7/m", "--reason", "they asked", "--by", "ada")
    redrive(db, "route", "mail", "amqp", "--reason", "outgrown", "--by", "bob")
    redrive(db, "limit", "fax", "--running", 2)
    conn.execute("update redrive.audit set at = now() - interval '3 days' where action = 'limit'")
    [mail] = [line for line in redrive(db, "kinds").stdout.splitlines() if line.startswith("mail")]
    assert mail.endswith("limited 3 d ago by ada: they asked; routed now by bob: outgrown")
    told = {row["kind"]: row for row in answer(db, "kinds")}
    assert [told["mail"][f"limited_{what}"] for what in ("by", "reason")] == ["ada", "they asked"]
    assert [told["mail"][f"routed_{what}"] for what in ("by", "reason")] == ["bob", "outgrown"]
    assert (told["fax"]["limited_at"] is not None, told["fax"]["routed_at"]) == (True, None)
    conn.execute("update redrive.kinds set running_most = 3 where kind = 'fax'")
    redrive(db, "limit", "mail", "--none")
    told = {row["kind"]: row for row in answer(db, "kinds")}
    assert (told["fax"]["limited_by"], told["mail"]["limited_by"]) == (None, None), "that stands no more"


def test_that_a_breaker_holds_a_kind_is_told(db):
    """A person on call looks here first, and found nothing."""
    redrive(db, "breakers", "open", "mail", "--reason", "they are down", "--by", "ada")
    redrive(db, "limit", "mail", "--running", 2)
    for target in "abcd":
        redrive(db, "breakers", "open", "hook", target)
    redrive(db, "breakers", "open", "fax")
    redrive(db, "breakers", "close", "fax")
    fax, hook, mail = redrive(db, "kinds").stdout.splitlines()[1:]
    assert fax.split()[:4] == ["fax", "breaker", "closing", "0"]
    assert hook.split()[:4] == ["hook", "breaker", "open", "0"]
    assert hook.count("has been held") == 3
    assert hook.endswith("; 1 more, see `redrive breakers list`")
    assert mail.split()[:7] == ["mail", "breaker", "open", "0", "2", "at", "once"]
    assert mail.endswith("no job waits, no probe is sent: they are down (ada)")
    told = {row["kind"]: [each["state"] for each in row["breakers"]] for row in answer(db, "kinds")}
    assert told == {"fax": ["closing"], "hook": ["open"] * 4, "mail": ["open"]}
    for name in (["mail"], ["fax"], *(["hook", target] for target in "abcd")):
        redrive(db, "breakers", "close", *name, "--at-once")
    assert [row["kind"] for row in answer(db, "kinds")] == ["mail"], "of the others nothing is set"


@pytest.mark.parametrize(
    "said",
    [
        "pause {}",
        "limit {} --running 1",
        "route {} postgres",
        "breakers open {}",
        "enqueue {}",
        "schedules add nightly {} @daily",
        "topics add invoice.paid {}",
    ],
)
def test_a_kind_that_nobody_knows_is_told_whatever_is_done_with_it(db, conn, said):
    def told(kind):
        return redrive(db, *said.format(kind).split()).stderr.strip()

    assert told("export") == "", "nothing was ever here"
    insert(conn, "send_email")
    insert(conn, "report", status="succeeded")
    assert {told(kind) for kind in ("receipt", "send_email")} == {""}, (
        "before the first worker has come nobody can tell"
    )
    assert "nothing is known of kind 'send_emial' (did you mean 'send_email'?); known are: " in told("send_emial")
    beat(conn)
    assert told("invoice").startswith("note: no live worker knows kind 'invoice'; known are: ")
    assert {told(kind) for kind in ("mail", "report")} == {""}
    beat(conn, silent="5 min", name="box:2:abcdef", kinds=["fax"])
    conn.execute("update redrive.workers set heartbeat_at = now() - interval '1 hour'")
    assert told("webhook").startswith("note: no worker is alive, and nothing is known of kind 'webhook'; known are: ")
    assert told("fax") == "", "a worker that was here knew it"


def test_what_is_set_for_a_kind_makes_it_known(db, conn):
    beat(conn)
    assert "no live worker knows kind 'export'" in redrive(db, "pause", "export").stderr
    assert redrive(db, "enqueue", "export").stderr == ""
    assert redrive(db, "pause", "--all").stderr == ""


def test_a_job_that_only_waits_makes_no_kind_known(db, conn):
    """It may be the slip of the pen itself: said once, it was taken for a kind ever after."""
    beat(conn, kinds=["send_email"])
    notes = [redrive(db, "enqueue", "send_mail").stderr for _ in range(2)]
    doubt = "note: no live worker knows kind 'send_mail' (did you mean 'send_email'?); known are: send_email\n"
    assert notes == [doubt, doubt]
    conn.execute("update redrive.jobs set claims = 1, attempts = 1 where id = 1")
    assert redrive(db, "enqueue", "send_mail").stderr == "", "a worker has had one"


def test_a_relay_is_no_worker_that_could_know_a_kind(db, conn):
    beat(conn, kinds=[])
    insert(conn, "report", status="succeeded")
    assert redrive(db, "enqueue", "reprot").stderr.startswith("note: no worker is alive, and nothing is known of")


def test_a_doubt_stops_nothing(db, conn):
    """A role that may enqueue need not be allowed to read what workers and operators wrote."""
    beat(conn)
    role = f"clerk_{os.getpid()}"
    conn.execute(
        f"create role {role}; grant usage on schema redrive to {role};"
        f"grant select, insert, update on redrive.jobs to {role}; grant select on redrive.migrations to {role}"
    )
    try:
        done = redrive(make_conninfo(db, options=f"-c role={role}"), "enqueue", "export")
        assert (done.stdout, done.stderr) == ("job 1 enqueued\n", "")
    finally:
        conn.execute(f"drop owned by {role}; drop role {role}")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (["pause"], "which kind? Name one; or --all"),
        (["pause", "mail", "--all"], "give a KIND or --all, not both"),
        (["limit", "mail"], "which limits?"),
        (["limit", "mail", "--none", "--running", "2"], "which limits?"),
        (["pause", "mail", "--reason", "\udcff"], "reason is '\\udcff': NUL and lone surrogates can't be stored"),
        (["pause", "mail", "--by", "a\0b"], "by is 'a\\x00b': NUL and lone surrogates can't be stored"),
        (["limit", "mail", "--rate", "fast"], "give a rate like 10/s, 300/m or 1/h"),
        (["limit", "mail", "--running", "1", "--burst", "2"], "--burst is 2 without a --rate: give both"),
        (["limit", "mail", "--rate", "0/s"], "must be a number of starts a second over 0"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_remedy(db, said, why):
    assert why in complaint(redrive(db, *said, code=2))
