"""How soon one tenant's job runs behind a flood of another's: ``make bench ONLY=fairness``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from redrive.bench.application import PAUSE
from redrive.bench.figures import middle
from redrive.bench.loads import payloads
from redrive.bench.subject import SubjectFailed, subject

if TYPE_CHECKING:
    from benchmarks.measurements import Sizes
    from benchmarks.stage import Stage

TAKES = 0.05
"""Seconds that each job takes, of both."""
SLOTS = 10
TRIES = 20
"""Tenants of one job each, one after the other."""
AT_MOST = 30.0
"""Seconds after which it is given up."""
LOOK = 0.002


def fairness(stage: Stage, sizes: Sizes) -> dict[str, Any]:
    """Put a tenant's import before a worker, and then, one after the other, single jobs of other tenants.

    A job's own time is in the figures: from before its INSERT until its success was seen.

    Raises:
        SubjectFailed: when such a job has not run within AT_MOST seconds.
    """
    place = stage.place("fairness")
    with subject(place, SLOTS) as worker:
        place.queue.enqueue_many(PAUSE, payloads(sizes.flood, seconds=TAKES), lane="flood")
        while worker.claims < SLOTS:
            worker.demand_alive()
            time.sleep(LOOK)
        took = []
        for number in range(TRIES):
            began = time.monotonic()
            job = place.queue.enqueue(PAUSE, {"seconds": TAKES}, lane=f"tenant {number}")
            while (seen := place.queue.get(job.id)) is None or seen.status != "succeeded":
                if time.monotonic() - began > AT_MOST:
                    raise SubjectFailed(f"behind {sizes.flood} jobs of another a tenant's job waited {AT_MOST:g} s")
                time.sleep(LOOK)
            took.append(time.monotonic() - began)
    return {
        "fair_flood": sizes.flood,
        "fair_start_ms_p50": 1000 * middle(took),
        "fair_start_ms_most": 1000 * max(took),
        "fair_same_lane_s": sizes.flood * TAKES / SLOTS,
    }
