"""The way behind a mark: in order, without a gap, in pieces of bounded number that halve where they are dear."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from redrive.trail import HEAD, LOOK_BACK, MOST, STRIDE, STRIDES_BACK, Point, Trail

SECOND = 1_000_000
POINTS = st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63 - 1))


def walked(*points: Point, jobs: int = STRIDE) -> Trail:
    trail = Trail()
    for point in points:
        trail.advance(point, jobs)
    return trail


def test_a_new_trail_is_at_the_head_and_has_no_way_behind_it():
    assert (Trail().mark, Trail().shortly_before(), Trail().pieces()) == (HEAD, HEAD, [])


def test_the_mark_never_goes_back():
    assert walked((5, 1), (3, 9), (5, 0)).mark == (5, 1)


def test_a_piece_holds_a_stride_of_jobs_however_few_a_claim_takes():
    trail = walked(*((n, n) for n in range(1, 3 * STRIDE + 2)), jobs=1)
    assert [last for _, last in trail.pieces()] == [(n * STRIDE, n * STRIDE) for n in (1, 2, 3)] + [
        (3 * STRIDE + 1,) * 2
    ]


def test_shortly_before_is_two_seconds_but_never_more_than_a_few_strides():
    lone = walked((10 * SECOND, 1))
    assert lone.shortly_before() == (10 * SECOND - LOOK_BACK, 0)
    quick = walked(*((10 * SECOND + n, n) for n in range(1, 20)))
    assert quick.shortly_before() == (10 * SECOND + 19 - 1 - STRIDES_BACK, 18 - STRIDES_BACK)


@given(points=st.lists(POINTS, max_size=30), splits=st.lists(st.integers(0, 60), max_size=30))
def test_the_pieces_leave_no_gap_however_they_are_split(points, splits):
    trail = walked(*points)
    for number in splits:
        if pieces := trail.pieces():
            trail.split(pieces[number % len(pieces)])
    pieces = trail.pieces()
    assert all(first < last for first, last in pieces)
    assert all(before[1] == after[0] for before, after in pairwise(pieces))
    if pieces:
        assert (pieces[0][0], pieces[-1][1]) == (HEAD, trail.mark)


def test_jobs_of_one_instant_are_split_by_their_ids():
    trail = walked((SECOND, 1000))
    trail.split((HEAD, (SECOND, 1000)))
    trail.split(((SECOND, -1), (SECOND, 1000)))
    assert [last for _, last in trail.pieces()] == [(SECOND, -1), (SECOND, 499), (SECOND, 1000)]


def test_what_can_not_be_split_stays_and_a_piece_of_long_ago_is_none():
    trail = walked((SECOND, 1), (SECOND, 2))
    trail.split(((SECOND, 1), (SECOND, 2)))
    trail.split(((7, 7), (SECOND, 2)))
    assert [last for _, last in trail.pieces()] == [(SECOND, 1), (SECOND, 2)]


def test_a_long_way_has_longer_pieces_and_not_more():
    trail = walked(*((n, n) for n in range(10 * MOST)))
    assert MOST / 3 < len(trail.pieces()) <= MOST
    assert trail.mark == (10 * MOST - 1, 10 * MOST - 1)
