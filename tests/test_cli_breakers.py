"""Breakers in the shell."""

from __future__ import annotations

import pytest

from shell import answer, complaint, redrive


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


def test_a_target_and_a_hold(db):
    row = answer(db, "breakers", "open", "hook", "api.example.com", "--hold", "2h")
    assert (row["kind"], row["target"], row["by_hand"]) == ("hook", "api.example.com", False)
    assert "a probe in" in redrive(db, "breakers", "list").stdout


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
