"""A mapping as SQL: asked of Postgres, which rows wait and what time it is in them, in every session's TimeZone."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg
import pytest
from psycopg.sql import SQL, Literal

from redrive.adopt import terms
from redrive.adopt.mapping import Clock, parse
from test_adopt_mapping import changed

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
WAYS = [
    (Clock(form="timestamptz"), "timestamptz", "2026-06-01 12:00:00+00"),
    (Clock(form="timestamp", zone="UTC"), "timestamp", "2026-06-01 12:00:00"),
    (Clock(form="timestamp", zone="America/New_York"), "timestamp", "2026-06-01 08:00:00"),
    (Clock(form="epoch s"), "bigint", str(int(NOON.timestamp()))),
    (Clock(form="epoch ms"), "bigint", str(int(NOON.timestamp() * 1000))),
    (Clock(form="iso"), "text", "2026-06-01T12:00:00.000Z"),
    (Clock(form="iso", zone="Asia/Tokyo"), "text", "2026-06-01T21:00:00.000"),
]


@pytest.fixture(scope="module")
def plain(server_url):
    with psycopg.connect(server_url, autocommit=True) as conn:
        yield conn


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
@pytest.mark.parametrize(("clock", "type_", "text"), WAYS)
def test_a_time_is_the_same_in_every_session_read_and_written_ad_01(plain, zone, clock, type_, text):
    """AD-01."""
    plain.execute(SQL("SET TimeZone = {}").format(Literal(zone)))
    stored = SQL("{}::" + type_).format(Literal(text))
    [[read]] = plain.execute(SQL("SELECT {}").format(terms.read(clock, stored)))
    assert read == NOON
    spelt = terms.spell(clock, Literal(NOON))
    [[written]] = plain.execute(SQL("SELECT {} = {}").format(spelt, stored))
    assert written


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2026-06-01T12:00:00+00:00", "Asia/Tokyo", NOON),
        ("2026-06-01 14:00:00+0200", "Asia/Tokyo", NOON),
        ("2026-06-01 21:00:00", "Asia/Tokyo", NOON),
        ("2026-06-01", "UTC", datetime(2026, 6, 1, tzinfo=UTC)),
        ("soon", "UTC", None),
    ],
)
def test_an_offset_in_a_text_goes_over_the_zone(plain, text, zone, expected):
    what = terms.read(Clock(form="iso", zone=zone), SQL("{}::text").format(Literal(text)))
    assert plain.execute(SQL("SELECT {}").format(what)).fetchone() == (expected,)


ROWS = "(VALUES (1, 'a', 0, 9), (2, 'b', 5, NULL), (3, NULL, NULL, 9), (4, 'A', 0, 1)) t (id, status, tries, most)"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"runnable": {"column": "status", "values": ["a", "b"]}, "attempts": {"max": 9}}, [1, 2]),
        ({"runnable": {"column": "status", "values": ["a"], "null": True}, "attempts": {"max": 9}}, [1, 3]),
        ({"runnable": {"column": "status", "null": True}, "attempts": {"max": 9}}, [3]),
        ({"runnable": {"every_row": True}, "attempts": {"max": 9}}, [1, 2, 3, 4]),
        ({"runnable": {"every_row": True}, "attempts": {"column": "tries", "max": 5}}, [1, 3, 4]),
        ({"runnable": {"every_row": True}, "attempts": {"column": "tries", "max_column": "most"}}, [1, 3, 4]),
        ({"runnable": {"every_row": True, "where": "id > 2 OR '{}' = ''"}, "attempts": {"max": 5}}, [3, 4]),
    ],
)
@pytest.mark.parametrize("row", [None, "t"])
def test_the_rows_that_wait_are_those_of_the_map(plain, changes, found, row):
    mapping = parse(changed(**changes))
    rows = plain.execute(SQL("SELECT id FROM " + ROWS + " WHERE {} ORDER BY id").format(terms.runnable(mapping, row)))
    assert [row[0] for row in rows] == found
