"""Breakers in the shell."""

from __future__ import annotations

import re

import pytest

from shell import answer, complaint, insert, redrive


def test_open_list_and_close(db):
    opened = redrive(db, "breakers", "open", "mail", "--reason", "the provider told us", "--by", "ada")
    assert opened.stdout.strip() == "mail: open, no probe: close it by hand"
    listed = redrive(db, "breakers", "list").stdout
    assert all(word in listed for word in ("mail", "(all)", "open", "the provider told us (ada)"))
    note = [note for note in answer(db, "health", "--workers", "0")["notes"] if "breaker" in note]
    assert len(note) == 1
    assert "the provider told us (ada); see `redrive breakers list`" in note[0]
    assert redrive(db, "breakers", "close", "mail").stdout.strip() == "mail: closing, 1/s to begin with"
    assert redrive(db, "breakers", "close", "mail", "--at-once").stdout.strip() == "mail: closed"
    assert redrive(db, "breakers", "close", "mail", code=1).stdout.strip() == "mail: not open"
    assert "no breaker is open" in redrive(db, "breakers", "list").stderr
    assert [row["state"] for row in answer(db, "breakers", "list", "--closed")] == ["closed"]


def test_jobs_that_their_own_try_has_put_off_are_counted_with_those_that_wait(db, conn):
    """All that met an outage are put off, and a person on call read: WAITING 0."""
    conn.execute(
        """insert into redrive.jobs (kind, lane, priority, run_at)
        select 'mail', lane, 5, now() + interval '1 hour' from unnest(array['acme', 'acme', 'other']) lane"""
    )
    insert(conn, "export", 2)
    for name in (["mail"], ["mail", "acme"], ["export"], ["nothing"]):
        redrive(db, "breakers", "open", *name)
    rows = {(row["kind"], row["target"]): (row["waiting"], row["due"]) for row in answer(db, "breakers", "list")}
    assert rows == {("mail", ""): (3, 0), ("mail", "acme"): (2, 0), ("export", ""): (2, 2), ("nothing", ""): (0, 0)}
    insert(conn, "mail")
    notes = answer(db, "health", "--workers", "0")["notes"]
    told = "4 jobs wait, 1 of them due", "2 jobs wait, none of them due", "2 jobs wait, no probe", "no job waits"
    for said in told:
        assert any(said in note for note in notes), notes
    [header, *_] = redrive(db, "breakers", "list").stdout.splitlines()
    assert header.split()[4:6] == ["WAITING", "DUE"]


def test_what_its_own_try_has_put_off_is_told_where_a_breaker_is_closed(db, conn):
    """`--at-once` lets all go, and somebody looked for the rest."""
    for lane, hours, claims in (("acme", 1, 1), ("other", 2, 3), ("acme", -1, 1), ("acme", 9, 0)):
        [job] = insert(conn, "mail", lane=lane, claims=claims)
        conn.execute("update redrive.jobs set run_at = now() + %s * interval '1 hour' where id = %s", [hours, job])
    for name in (["mail"], ["mail", "acme"], ["fax"]):
        redrive(db, "breakers", "open", *name)
    done = redrive(db, "breakers", "close", "mail", "--at-once")
    assert done.stdout == "mail: closed\n"
    assert "2 jobs wait for the time to which their own tries have put them off, the last until" in done.stderr
    assert "(in 2 h)" in done.stderr
    target = answer(db, "breakers", "close", "mail", "acme")
    assert (target["put_off"], target["put_off_until"] is not None) == (1, True)
    assert redrive(db, "breakers", "close", "fax", "--at-once").stderr == ""


def test_how_long_a_kind_has_been_held_is_told_in_plain_words(db, conn):
    redrive(db, "breakers", "open", "mail", "--reason", "maintenance", "--by", "ada")
    conn.execute("update redrive.breakers set opened_at = now() - interval '10 min'")
    [note] = answer(db, "health", "--workers", "0")["notes"]
    assert note.startswith("breaker: mail has been held for 10 min, no job waits, no probe is sent: maintenance (ada)")


def test_a_target_and_a_hold(db):
    row = answer(db, "breakers", "open", "hook", "api.example.com", "--hold", "2h")
    assert (row["kind"], row["target"], row["by_hand"]) == ("hook", "api.example.com", False)
    assert "a probe in" in redrive(db, "breakers", "list").stdout


def test_where_a_breaker_is_not_open_it_is_said_what_is(db):
    def hint(*name):
        done = redrive(db, "breakers", "close", *name, code=1)
        assert done.stdout.strip() == f"{' '.join(name)}: not open"
        return done.stderr.strip().removeprefix("note: ")

    assert hint("webhook") == "no breaker is open"
    for target in ("api.example.com", "b.example.com"):
        redrive(db, "breakers", "open", "webhook", target)
    redrive(db, "breakers", "open", "mail")
    assert hint("webhook") == "open of kind webhook: webhook api.example.com, webhook b.example.com"
    assert hint("webhook", "c.example.com") == hint("webhook")
    assert hint("mail", "acme") == "open of kind mail: mail"
    assert hint("mials") == "did you mean mail?"
    assert hint("fax") == "open: mail, webhook api.example.com, webhook b.example.com"
    redrive(db, "breakers", "close", "mail")
    said = r"its jobs are let out already, [\d.]+/s now; --at-once lets all of them go"  # the rate rises with time
    assert re.fullmatch(said, hint("mail"))
    assert answer(db, "breakers", "close", "fax", code=1) is None


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (["open"], "Missing argument 'KIND'"),
        (["open", "mail", "--hold", "soon"], "--hold"),
        (["open", "mail", "--hold", "0"], "hold is 0 s: must be more than 0"),
        (["close", ""], "kind is empty"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_remedy(db, said, why):
    assert why in complaint(redrive(db, "breakers", *said, code=2))
