"""Quantiles of what was counted by places: right to 9 %, and the same in Python and in SQL."""

from __future__ import annotations

import random

import psycopg
import pytest

from redrive.histogram import BOUNDS, PLACES, add, merged, quantile, spread, trimmed

WORST = 2 ** (1 / 8)


def counted(values: list[float]) -> list[int]:
    histogram = [0] * PLACES
    spread(sorted(values), histogram)
    return histogram


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.0, 0.5, 0.95, 0.999, 1.0])
def test_a_quantile_is_off_by_nine_percent_at_the_most(seed, share):
    chance = random.Random(seed)
    values = sorted(chance.lognormvariate(-4, 2) for _ in range(1000))
    values = [value for value in values if value > BOUNDS[0]]
    right = values[max(0, -(-len(values) * int(share * 1000) // 1000) - 1)]
    found = quantile(counted(values), share)
    assert found is not None
    assert 1 / WORST - 1e-9 <= found / right <= WORST + 1e-9


def test_each_value_falls_into_the_one_place_that_holds_it():
    for place, bound in enumerate(BOUNDS):
        assert counted([bound])[place] == 1
        assert counted([bound * 1.0001])[place + 1] == 1
    assert counted([0.0, -1.0])[0] == 2
    assert counted([1e12])[-1] == 1
    mixed = [bound * factor for bound in BOUNDS for factor in (0.99, 1.0, 1.0, 1.01)]
    assert counted(mixed) == merged(counted([value]) for value in mixed)


def test_of_nothing_there_is_no_quantile():
    assert quantile([], 0.5) is None
    assert quantile([0] * PLACES, 0.5) is None
    assert trimmed([0, 0]) == "{}"
    assert trimmed([0, 1, 0, 2, 0]) == "[2:4]={1,0,2}"
    whole = [0] * PLACES
    add(whole, 2, [1, 0, 2])
    assert whole[:5] == [0, 1, 0, 2, 0]


def test_sql_reads_the_same_from_the_same_places(conn: psycopg.Connection):
    chance = random.Random(1)
    parts = [counted([chance.lognormvariate(-3, 2) for _ in range(50)]) for _ in range(4)]
    conn.execute("create temp table h (runs int[])")
    with conn.cursor() as cursor:
        cursor.executemany("insert into h values (%s::int[])", [(trimmed(part),) for part in [*parts, []]])
    for share in (0.0, 0.5, 0.95, 1.0):
        [row] = conn.execute("select redrive.quantile(redrive.merged(runs), %s) from h", (share,))
        assert row[0] == pytest.approx(quantile(merged(parts), share))
    assert conn.execute("select redrive.quantile(redrive.merged(runs), 0.5) from h where false").fetchone() == (None,)
