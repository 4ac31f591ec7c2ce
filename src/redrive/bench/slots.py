"""What the slots of workers did, from the times at which handlers began and ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redrive.bench.tally import Report


def idle_while_due(begun: Sequence[float], ended: Sequence[float], *, slots: int, due_from: float) -> float:
    """Give the slot-seconds in which a slot was free though a job was due that ran later; all were due at one time."""
    steps = sorted([(at, 1, -1) for at in begun] + [(at, -1, 0) for at in ended])
    running, waiting, lost, since = 0, len(begun), 0.0, due_from
    for at, change, taken in steps:
        if at > since:
            lost += min(max(0, slots - running), waiting) * (at - since)
            since = at
        running, waiting = running + change, waiting + taken
    return lost


def held_beyond(report: Report, slots: int) -> int:
    """Give the most jobs that a worker held at one time beyond its slots: claimed, and not ended nor given back."""
    came = [
        (at + took, int(rows))
        for at, took, rows in zip(report.claim_at, report.claim_took, report.claim_rows, strict=True)
    ]
    held = most = 0
    for _, change in sorted(came + [(at, -1) for at in (*report.ended, *report.given_back)]):
        held += change
        most = max(most, held)
    return max(0, most - slots)
