"""Pausing and limiting from the shell."""

from __future__ import annotations

import pytest

from shell import answer, beat, complaint, insert, redrive


def test_pause_list_and_resume(db):
    done = redrive(db, "pause", "mail", "--reason", "the provider is down", "--by", "ada")
    assert "mail: no limits; paused now by ada: the provider is down" in done.stdout
    assert "the provider is down" in redrive(db, "kinds").stdout
    redrive(db, "resume", "mail")
    assert redrive(db, "resume", "mail", code=1).stdout.strip() == "mail: not paused"
    assert "no kind is paused, limited or routed" in redrive(db, "kinds").stderr


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


def way(said):
    return ["amqp"] if said == ["route"] else []


def test_a_kind_that_is_paused_and_goes_over_the_broker_shows_both(db):
    redrive(db, "route", "mail", "amqp")
    assert redrive(db, "kinds").stdout.splitlines()[1].split()[:2] == ["mail", "broker"]
    redrive(db, "pause", "mail")
    assert redrive(db, "kinds").stdout.splitlines()[1].split()[:3] == ["mail", "paused,", "broker"]


def test_a_kind_that_nobody_knows_is_told_since_its_pause_would_hold_nothing(db, conn):
    insert(conn, "send_email")
    assert redrive(db, "pause", "export").stderr == "", "without a worker nobody can tell"
    assert "did you mean 'send_email'?" in redrive(db, "route", "send_emial", "amqp").stderr
    beat(conn)
    for said in (["pause"], ["limit", "--running", "1"], ["breakers", "open"], ["route"]):
        told = redrive(db, *said, "send_emial", *way(said)).stderr
        assert "no live worker knows 'send_emial', and no such job waits (did you mean 'send_email'?)" in told
        assert told.rstrip().endswith("known are: mail, send_email")
        assert redrive(db, *said, "send_email", *way(said)).stderr == ""
    assert redrive(db, "pause", "--all").stderr == ""


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
        (["limit", "mail", "--rate", "0/s"], "must be a number of starts a second over 0"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_remedy(db, said, why):
    assert why in complaint(redrive(db, *said, code=2))
