"""Durations by fixed places, each 2^(1/4) times as long as the one before: added up over any span, read as quantiles.

A quantile is the middle of its place, so it is off by a factor of 2^(1/8), 9 %, at the most; below the first bound and
above the last, 34 days, only that is known. The migration of ``stats`` has the same places in SQL.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FIRST = 0.0001
"""Upper bound of the first place, in seconds."""
STEPS = 4
"""Places to a doubling."""
BOUNDS = tuple(FIRST * 2 ** (number / STEPS) for number in range(140))
"""Upper bounds of the places, in seconds; the last place has none."""
PLACES = len(BOUNDS) + 1


def spread(values: list[float], histogram: list[int]) -> None:
    """Count *values*, which are sorted, in *histogram*, a list of :data:`PLACES` numbers.

    They are looked up run by run, not one by one: most of what a worker counts falls into a few places.
    """
    low, end = 0, len(values)
    while low < end:
        place = bisect_left(BOUNDS, values[low])
        high = end if place == len(BOUNDS) else _after(values, BOUNDS[place], low, end)
        histogram[place] += high - low
        low = high


def _after(values: list[float], bound: float, low: int, end: int) -> int:
    if values[end - 1] <= bound:
        return end
    high = bisect_left(values, bound, low)
    while values[high] == bound:  # what is exactly the bound belongs to the place that ends there
        high += 1
    return high


def quantile(histogram: Sequence[int], share: float) -> float | None:
    """Give the duration, in seconds, within which *share* (0 to 1) of what was counted ended; None of nothing."""
    total = sum(histogram)
    if not total:
        return None
    upto, wanted = 0, max(share, 0.0) * total
    for place, count in enumerate(histogram):  # noqa: B007 - looked at after the loop
        upto += count
        if upto and upto >= wanted:
            break
    return FIRST if place == 0 else FIRST * 2 ** ((place - 0.5) / STEPS)


def merged(histograms: Iterable[Sequence[int]]) -> list[int]:
    """Add histograms up; the zeros at the end of each may be missing."""
    whole = [0] * PLACES
    for histogram in histograms:
        for place, count in enumerate(histogram):
            whole[place] += count
    return whole


def trimmed(histogram: Sequence[int]) -> str:
    """Spell it as an array of Postgres, counted from 1, without the zeros at both ends: ``[30:32]={5,0,1}``."""
    filled = [place for place, count in enumerate(histogram) if count]
    if not filled:
        return "{}"
    first, last = filled[0], filled[-1]
    return f"[{first + 1}:{last + 1}]={{{','.join(map(str, histogram[first : last + 1]))}}}"


def add(histogram: list[int], first: int, counts: Iterable[int]) -> None:
    """Add an array of Postgres, which begins at *first*, counted from 1."""
    for place, count in enumerate(counts, first - 1):
        histogram[place] += count
