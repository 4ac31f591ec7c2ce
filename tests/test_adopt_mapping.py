"""The map of a stranger's table: read, refused with every fault at once, written as a file that reads back the same."""

from __future__ import annotations

import copy
import json
import tomllib
from datetime import UTC, datetime

import pytest

from redrive.adopt import mapfile
from redrive.adopt.mapping import Attempts, Clock, Mapping, Priority, Runnable, Write, parse
from redrive.errors import InvalidMap
from shapes_of_tables import MAIL_JOBS_MAP


def changed(**changes: object) -> dict:
    """The map of mail_jobs with changes: ``attempts__max=3``; None takes a line out."""
    document = copy.deepcopy(MAIL_JOBS_MAP)
    for place, value in changes.items():
        *path, name = place.split("__")
        part = document
        for step in path:
            part = part.setdefault(step, {})
        if value is None:
            part.pop(name, None)
        else:
            part[name] = value
    return document


def refusal(**changes: object) -> list[str]:
    with pytest.raises(InvalidMap) as caught:
        parse(changed(**changes))
    return list(caught.value.problems)


def test_a_map_is_what_its_document_says():
    found = parse(MAIL_JOBS_MAP)
    assert found.runnable == Runnable(column="status", values=("pending", "deferred"), null=True)
    assert found.clock("next_retry_at") == Clock(form="timestamp", zone="UTC")
    assert found.attempts == Attempts(column="retry_count", most=5)
    assert found.waiting == Write(values={"status": "deferred"}, run_at=("next_retry_at",))
    assert found.cutover == datetime(2026, 1, 1, tzinfo=UTC)
    assert (found.kind, found.error, found.error_width, found.priority) == ("mail_jobs", "last_error", None, None)


OTHERS = {
    "a flag with NULL beside it": {"runnable": {"column": "sent", "values": [False], "null": True}},
    "NULL alone": {"runnable": {"column": "sent_at", "null": True, "where": "deleted_at IS NULL"}},
    "the row itself": {"runnable": {"every_row": True}, "succeeded": {"delete": True}},
    "kinds of a column": {"kind": None, "kind_column": "job_type"},
    "a column with the tries": {"attempts": {"column": "tries", "max_column": "max_attempts"}},
    "no tries in the table": {"attempts": {"max": 3}},
    "numbers that go first": {"priority": {"column": "priority", "first": "high", "normal": 10}},
    "words that go first": {"priority": {"column": "urgency", "words": {"urgent": 0, "low": 9}}},
    "a lease by the clock": {"claimed": {"later": {"next_retry_at": 600}}},
    "emptied columns": {"dead": {"set": {"done": True, "code": 5}, "null": ["locked_by"]}},
    "an error that is cut": {"error": {"column": "last_error", "width": 255}},
    "JSON in a text": {"payload": {"form": "json text", "columns": ["args"]}},
    "times of other sorts": {
        "times": {"a": {"form": "epoch ms"}, "b": {"form": "iso"}, "c": {"form": "iso", "zone": "Asia/Tokyo"}}
    },
    "odd names": {"key": 'a"b.c', "kind": "ü \\ \x7f\x01\n", "times": {"x.y z": {"form": "epoch s"}}},
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_map_survives_its_document_and_its_file(name, tmp_path):
    """The JSON that is stored with an adoption, and the TOML that a human edits."""
    found = parse(changed(**OTHERS[name]))
    assert parse(json.loads(json.dumps(found.document()))) == found
    path = tmp_path / "map.toml"
    path.write_text(mapfile.text(found), encoding="utf-8")
    assert mapfile.load(path) == found


def test_every_line_of_the_file_is_explained():
    lines = mapfile.text(parse(MAIL_JOBS_MAP)).splitlines()
    silent = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if line and not line.startswith(("#", "[")) and "#" not in line and not before.startswith("#")
    ]
    assert [line for line in silent if not line.startswith(("next_retry_at =", "created_at =", "processed_at ="))] == [
        'columns = ["rcpt", "subject", "body_html"]'
    ]


def test_a_table_without_a_word_for_a_moment_says_that_nothing_is_written():
    text = mapfile.text(parse(changed(claimed=None)))
    assert "[claimed]\n# nothing is written" in text
    assert tomllib.loads(text)["claimed"] == {}


def test_a_question_stands_in_the_file_and_is_refused_with_its_remedy(tmp_path):
    questions = {
        "times.next_retry_at.zone": "next_retry_at has no zone. Whose wall clock is it?",
        "attempts.max": "How many tries? The number lives in the application's code.",
        "claimed.set.status": "Which word hides a row from the cron script?",
    }
    draft = parse(MAIL_JOBS_MAP)
    path = tmp_path / "map.toml"
    path.write_text(mapfile.text(draft, {"due": "the column next_retry_at"}, questions))
    text = path.read_text()
    assert text.count("# QUESTION: ") == 3
    assert "How many tries?" in text
    assert "# the column next_retry_at" in text
    with pytest.raises(InvalidMap) as caught:
        mapfile.load(path)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "times.next_retry_at.zone",
        "attempts.max",
        "claimed.set.status",
    ]
    assert all("is not answered" in problem for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("changes", "place", "remedy"),
    [
        ({"table": None}, "table", "public.mail_jobs"),
        ({"key": 7}, "key", "the column that names a row"),
        ({"kind": None}, "kind", "give one of kind"),
        ({"kind_column": "x"}, "kind", "give one of kind"),
        ({"cutover": "yesterday"}, "cutover", "with its offset"),
        ({"cutover": datetime(2026, 1, 1)}, "cutover", "with its offset"),  # noqa: DTZ001 - the fault
        ({"cutover": None}, "cutover", "with its offset"),
        ({"runnable": {}}, "runnable", "every_row = true"),
        ({"runnable": {"column": "status"}}, "runnable", "say which rows wait"),
        ({"runnable__every_row": True}, "runnable", "give column, or every_row"),
        ({"runnable__values": [["a"]]}, "runnable.values", "must be a text, a number"),
        ({"runnable": "status = 'x'"}, "runnable", "[runnable]"),
        ({"times__created_at__zone": None}, "times.created_at.zone", "whose wall clock"),
        ({"times__created_at__zone": "Europe/Pariss"}, "times.created_at.zone", "did you mean 'Europe/Paris'"),
        ({"times__created_at__form": "unix"}, "times.created_at.form", "epoch s"),
        ({"times__created_at": {"form": "epoch s", "zone": "UTC"}}, "times.created_at.zone", "leave the zone out"),
        ({"payload__columns": []}, "payload.columns", "name the columns"),
        ({"payload": {"form": "json", "columns": ["a", "b"]}}, "payload.columns", "the one column"),
        ({"payload": {"form": "row", "columns": ["a"]}}, "payload.columns", 'form = "columns"'),
        ({"attempts__max": None}, "attempts.max", "how many tries"),
        ({"attempts__max": 0}, "attempts.max", "from 1"),
        ({"attempts__max": True}, "attempts.max", "a whole number"),
        ({"attempts__max_column": "m"}, "attempts.max", "give one of max"),
        ({"error__width": 0}, "error.width", "from 1"),
        ({"priority": {"column": "p"}}, "priority.first", "low or high"),
        ({"priority": {"column": "p", "words": {"a": 10}}}, "priority.words", "from 0 (first) to 9"),
        ({"dead__delete": True}, "dead.delete", "leave the others out"),
        ({"dead__now": ["status"]}, "dead", "written to twice"),
        ({"dead__set": {"x": None}}, "dead.set.x", "NULL is a list of its own"),
        ({"dead__values": {}}, "dead.values", "is unknown"),
        ({"runable": {}}, "runable", "did you mean runnable?"),
        ({"waiting__later": {"x": "soon"}}, "waiting.later.x", "must be a number"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place_and_the_remedy(changes, place, remedy):
    [problem] = refusal(**changes)
    assert problem.startswith(f"{place}: ")
    assert remedy in problem


def test_all_faults_are_told_at_once():
    assert len(refusal(key=None, cutover="x", attempts__max=-1, dead__foo=1)) == 4


@pytest.mark.parametrize(
    ("content", "said"), [(b"table = ", "is no TOML"), (b"\xff", "not UTF-8"), (None, "No such file")]
)
def test_a_file_that_cannot_be_read_is_told_with_its_name(tmp_path, content, said):
    path = tmp_path / "map.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidMap, match=r"map\.toml.*" + said):
        mapfile.load(path)


def test_a_priority_is_by_numbers_or_by_words():
    found = parse(changed(priority={"column": "p", "words": {"urgent": 0}}))
    assert isinstance(found, Mapping)
    assert found.priority == Priority(column="p", words={"urgent": 0})
