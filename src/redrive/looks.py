"""What a look for jobs takes on this server, at its quickest and as a rule: by that one is dear. No database here.

Dead entries make only those looks slow that walk over them, a busy server all of them. So what looks from the marks
take beyond the quickest one is taken off before a look from a head, or at the way behind, is judged.
"""

from __future__ import annotations

DEAR = 0.005
"""Seconds beyond a worker's quickest looks that make a look from the head a dear one; a job that it brings counts as
a fiftieth of that."""
A_JOB = DEAR / 50
DOUBLED_AFTER = 300.0
"""Seconds in which what is remembered as the quickest claim doubles: the server may be another by now."""
STEP, SMALLEST = 1 / 8, 1e-4
"""By how much of itself, and by how many seconds at the least, the usual look is corrected by each one."""


class Looks:
    """The durations of one worker's looks, in seconds."""

    def __init__(self) -> None:
        self._quickest, self._quickest_at = float("inf"), 0.0
        self._usual = 0.0

    @property
    def quickest(self) -> float:
        """The quickest claim of late, 0 where there was none."""
        return self._quickest if self._quickest < float("inf") else 0.0

    def learn(self, took: float, jobs: int, now: float, *, from_marks: bool) -> None:
        """Note a claim that took *took* seconds and brought *jobs*; the usual one is *from_marks*, over nothing dead.

        The quickest is forgotten by time and not by claims: what gets dearer from claim to claim must not be its own
        measure.
        """
        doublings = min(100.0, max(0.0, now - self._quickest_at) / DOUBLED_AFTER)
        self._quickest, self._quickest_at = min(took, self._quickest * 2**doublings), now
        if from_marks:
            step = max(SMALLEST, self._usual * STEP)  # towards the median: one that hung for long says nothing
            self._usual += min(step, max(-step, max(0.0, took - jobs * A_JOB) - self._usual))

    def fair(self, took: float) -> float:
        """Give what a look that took *took* seconds would have taken had the server had nothing else to do."""
        return max(min(took, self.quickest), took - self._busy)

    @property
    def a_piece(self) -> float:
        """What may be looked through at once, in seconds of :meth:`fair`: more where a look costs the server much."""
        return self.dear_from(0) + self._busy

    @property
    def _busy(self) -> float:
        return max(0.0, self._usual - self.quickest)

    def dear_from(self, jobs: int) -> float:
        """Give the seconds from which a look that brings *jobs* is a dear one."""
        return 2 * self.quickest + DEAR + jobs * A_JOB
