"""``redrive explain``."""

from __future__ import annotations

import pytest

from shell import answer, complaint, redrive

APP = """
from redrive import Queue
from redrive.backoff import exponential, steps

queue = Queue()

@queue.handler("mail", max_attempts=4, timeout=30, backoff=steps(1, 10, 3600), aliases=["letter"])
def mail(payload): ...

@queue.handler("own", backoff=lambda attempt: 7 * attempt, timeout=None)
def own(payload): ...

@queue.handler("endless", max_attempts=100_000, backoff=exponential())
def endless(payload): ...
"""


@pytest.fixture(autouse=True)
def app(tmp_path, monkeypatch):
    (tmp_path / "explain_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("REDRIVE_APP", "explain_app:queue")


def test_the_schedule_is_the_handlers():
    lines = redrive(None, "explain", "mail").stdout.splitlines()
    assert lines[0] == "mail: handler explain_app.mail"
    assert lines[1] == "backoff steps(1, 10, 3600), 4 attempts, timeout 30 s"
    assert [line.split(maxsplit=1) for line in lines[4:8]] == [
        ["1", "at once"],
        ["2", "1 s              1 s"],
        ["3", "10 s             11 s"],
        ["4", "1 h              1 h"],
    ]
    assert lines[-1].startswith("dead after try 4 fails")


def test_a_function_is_called_by_its_name_and_not_by_where_it_lies_in_memory():
    assert " at 0x" not in redrive(None, "explain", "own").stdout
    assert "backoff by the function <lambda>, " in redrive(None, "explain", "own").stdout


def test_an_alias_is_explained_too():
    assert answer(None, "explain", "letter")["max_attempts"] == 4


def test_in_json_it_is_seconds():
    document = answer(None, "explain", "mail")
    assert document["tries"][-1] == {
        "attempt": 4,
        "wait_min": 3600,
        "wait_max": 3600,
        "after_min": 3611,
        "after_max": 3611,
    }
    assert (document["timeout"], document["backoff"]) == (30, "steps(1, 10, 3600)")


def test_a_callable_of_the_users_own_is_asked():
    assert [row["wait_min"] for row in answer(None, "explain", "own")["tries"]] == [0, 7, 14, 21, 28]
    assert "no timeout" in redrive(None, "explain", "own").stdout


def test_a_kind_with_very_many_attempts_is_cut_short():
    shown = redrive(None, "explain", "endless").stdout
    assert len(shown.splitlines()) < 40
    assert "and so on, up to try 100,000" in shown


def test_without_an_application_the_default_is_shown_and_said_to_be_that():
    shown = redrive(None, "explain", "mail", env={"REDRIVE_APP": ""}).stdout
    assert "the default schedule; name the application with --app or REDRIVE_APP" in shown
    assert "10 s to 15 s" in shown


def test_an_unknown_kind_lists_those_that_there_are():
    assert "there are handlers for: endless, letter, mail, own" in complaint(redrive(None, "explain", "fax", code=2))
