"""How far a lane was claimed, and the way there in pieces, each of which is looked through again in a moment.

A worker that starts where it stopped sees nothing of a job that becomes visible behind it. To look again from the head
costs as much as is dead there, in one go; in pieces it costs the same, and holds nobody up. No database here.
"""

from __future__ import annotations

from bisect import bisect_right

Point = tuple[int, int]
"""A place in a lane: run_at in microseconds since 2000, and id."""

HEAD: Point = (-(2**63), -(2**63))
LOOK_BACK = 2_000_000
"""Microseconds behind the mark from which a claim starts where the lane isn't known to hold more."""
LONG = 8
"""Points from which a way is a long one, of which the head has more dead than the end."""
STRIDE = 2000
"""Jobs claimed from one point to the next."""
STRIDES_BACK = 5
"""The same in strides, which is less where jobs go through quickly: some milliseconds over dead entries."""
MOST = 512
"""Points that are kept; then every other is forgotten, and the pieces are twice as long."""
_HOUR = 3_600_000_000


class Trail:
    """The points that a worker has passed in one lane, in order."""

    __slots__ = ("_points", "_since")

    def __init__(self) -> None:
        self._points = [HEAD]
        self._since = 0

    @property
    def mark(self) -> Point:
        """The last: everything that was visible up to there is claimed."""
        return self._points[-1]

    @property
    def is_long(self) -> bool:
        """Whether it has many pieces."""
        return len(self._points) > LONG

    def advance(self, to: Point, jobs: int) -> None:
        """Move the mark to *to*, *jobs* further; it never goes back."""
        if to <= self.mark:
            return
        self._since += jobs
        if self._since >= STRIDE or self.mark is HEAD:
            self._since = 0
            self._points.append(to)
        else:
            self._points[-1] = to
        if len(self._points) > MOST:
            del self._points[-3:0:-2]

    def shortly_before(self) -> Point:
        """Give where to start for jobs that were committed a little late, at most a few thousand jobs back."""
        if self.mark is HEAD:
            return HEAD
        return max((self.mark[0] - LOOK_BACK, 0), self._points[max(0, len(self._points) - 2 - STRIDES_BACK)])

    def pieces(self) -> list[tuple[Point, Point]]:
        """List the way from the head to the mark in pieces: each begins after its first point and includes its last."""
        return list(zip(self._points, self._points[1:], strict=False))

    def split(self, piece: tuple[Point, Point]) -> None:
        """Make two of a piece that took long to look through."""
        first, last = piece  # the last may be a mark that has moved on since
        between = _between(first, last)
        place = bisect_right(self._points, first)
        if first < between < last and first in self._points and between < self._points[place]:
            self._points.insert(place, between)


def _between(first: Point, last: Point) -> Point:
    """Give a point inside: where all is of one instant the middle id, otherwise before the last instant, half-way."""
    if first[0] == last[0]:
        return first[0], (first[1] + last[1]) // 2
    if last[1] >= 0:
        return last[0], -1
    return last[0] - _HOUR if first is HEAD else (first[0] + last[0] + 1) // 2, -1
