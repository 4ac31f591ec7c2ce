"""Counts and lists in words."""

from __future__ import annotations

import pytest

from redrive.words import counted, there_are


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 rows wait"), (1, "1 row waits"), (2, "2 rows wait"), (1_000_000, "1,000,000 rows wait")]
)
def test_a_count_agrees_with_its_noun_and_its_verb(count, said):
    assert counted(count, "row waits", "rows wait") == said
    assert counted(1, "worker") == "1 worker"
    assert counted(2, "worker") == "2 workers"


def test_a_count_that_is_only_a_bound_is_of_many():
    assert counted(1, "job waits", "jobs wait", more=True) == "1+ jobs wait"


def test_where_there_is_nothing_no_list_is_begun():
    assert there_are([]) == "there are none"
    assert there_are(["a", "b"]) == "there are: a, b"
    assert there_are(["a", "b", "c"], most=2) == "there are: a, b and 1 more"
