"""The promise over a broker, as statements that can be false.

A success leaves no row, so what ended well is told by its handler alone. A message may come twice, under one claim:
that is excused where its worker, its relay, its connection or the broker was hit, close in time, and by nothing else.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from chaos import invariants as usual
from chaos.brokered.plan import RELAYS
from chaos.conductor import Struck
from chaos.evidence import EVERYBODY, Evidence, Try
from chaos.invariants import INVARIANTS
from chaos.tries import Repeat, asked_for_another
from chaos.verdict import SILENT, Verdict
from redrive.sql import BROKER

CONFIRMED = 12.0
"""Seconds within which a relay has what it sent confirmed, or gives up and sends it again."""
ACKNOWLEDGED = 5.0
"""Seconds within which what ended well has reached the broker."""
LEGAL = usual.LEGAL | {("pending", None), (None, "running"), ("running", None), ("pending", "dead")}
"""Beside the usual: a row goes to the broker, and a job comes home."""
KEPT = (
    "effect_without_success",
    "silent_end",
    "ended_twice",
    "effect_twice",
    "failed_twice",
    "too_many_tries",
    "rolled_back_ran",
    "key_twice",
    "innocent_death",
    "outage_death",
    "over_the_limit",
)
"""The usual statements that hold here word for word."""
Check = Callable[[Evidence], Iterator[str]]


def unfinished(evidence: Evidence) -> Iterator[str]:
    """Acknowledged jobs that no handler has ended well, and that are not in the table with what they ended of."""
    done = {each.n for each in evidence.tries if each.how == "returned"}
    effects = set(evidence.effects)
    rows = {row.n: row for row in evidence.rows.values()}
    if not evidence.acknowledged:
        yield "no enqueue was acknowledged: nothing is proven"
    for n in sorted(evidence.acknowledged - done):
        row = rows.get(n)
        if row is None:
            tries = sum(each.n == n for each in evidence.tries)
            story = "; ".join(str(each) for each in evidence.changes if each.n == n)
            yield f"number {n} is in no table, and no handler ended it well ({tries} tries): {story}"
        elif row.status == "succeeded" and row.id in effects:  # killed between its commit and its last line
            continue
        elif row.status not in usual.ENDS or (row.status == "failed" and row.kind not in usual.ON_PURPOSE):
            yield f"number {n}, job {row.id} ({row.kind}) is {row.status}"
        elif row.status == "succeeded":
            yield f"number {n}, job {row.id} ({row.kind}) succeeded, and no handler returned"


def left_running(evidence: Evidence) -> Iterator[str]:
    """Jobs left pending or running."""
    for row in evidence.rows.values():
        if row.status not in usual.ENDS:
            yield f"job {row.id} ({row.kind}) is left {row.status}"


def illegal_edge(evidence: Evidence) -> Iterator[str]:
    """Changes of state along no edge of the state machine."""
    for change in evidence.changes:
        if change.was == change.now == "running":
            home = change.holder_was == BROKER and change.claims_was == change.claims
            if not home and (change.claims_was, change.holder_was) != (change.claims, change.holder):
                yield f"the lease changed hands without a claim: {change}"
        elif change.was != change.now and (change.was, change.now) not in LEGAL:
            yield str(change)


def repeats(evidence: Evidence) -> Iterator[Repeat]:
    """Find the tries after which a job ran again although its handler neither failed nor asked for it."""
    failed = {(failure.job, failure.claim): failure for failure in evidence.failures}
    by_number: dict[int, list[Try]] = defaultdict(list)
    for each in evidence.tries:
        by_number[each.n].append(each)
    for tries in by_number.values():
        tries.sort(key=lambda each: each.began)
        for first, second in pairwise(tries):
            failure = failed.get((first.job, first.claim)) if second.claim > first.claim else None
            if not asked_for_another(first, failure):
                yield Repeat(first, why(evidence, first, second))


def why(evidence: Evidence, first: Try, second: Try) -> str:
    """Say what was hit, so that a job ran again after *first*; empty where nothing was."""
    until = min(second.began, first.ended + ACKNOWLEDGED) if first.how == "returned" else second.began
    since = first.began - evidence.lease
    life = evidence.life(first.worker, first.began)
    if reason := evidence.excuse(first.worker, since, until):
        return reason
    if life is not None and life.stopping <= until:
        return "stopped"
    if second.claim < first.claim:
        return _message_hit(evidence, first.n, second.began)
    if reason := _relay_hit(evidence, first.began - CONFIRMED, until):
        return reason
    # Two messages of one claim may wait long at the broker: what counts is when the one was sent whose sender lived.
    moments = (_relay_hit(evidence, sent - CONFIRMED, sent) for sent in _sent(evidence, first))
    return next(filter(None, moments), "")


def _sent(evidence: Evidence, run: Try) -> list[float]:
    """Say when the row of the claim that was *run* went to the broker."""
    rows = (change for change in evidence.changes if change.job == run.job and change.was == "pending")
    sent = (change for change in rows if change.now is None or change.holder == BROKER)
    return [change.at for change in sent if change.claims_was == run.claim - 1]


def _message_hit(evidence: Evidence, n: int, until: float) -> str:
    """Say what kept an older message of a job from being let go, while its row went on: whoever had it was hit."""
    since = evidence.acknowledged_at.get(n, 0.0)
    hit = any(a <= until and b >= since for _, a, b in evidence.cut_off) or any(
        since <= life.gone <= until for life in evidence.lives
    )
    return "an older message of it was still on its way" if hit else ""


def _relay_hit(evidence: Evidence, since: float, until: float) -> str:
    if any(a <= until and b >= since for a, b in evidence.outages):
        return "its relay was without Postgres"
    for life in evidence.lives:
        if life.slot in RELAYS:
            spans = [(life.killed, life.killed), (life.ended, life.ended), *life.frozen, *life.starved]
            if any(a <= until and b >= since for a, b in spans):
                return "its relay was killed, frozen or stopped"
    ways = {evidence.ways.get(name) for name in RELAYS} | {f"slot {name}" for name in RELAYS} | {EVERYBODY}
    if any(a <= until and b >= since for way, a, b in evidence.cut_off if way in ways):
        return "its relay was cut off"
    return ""


def unexplained(evidence: Evidence) -> Iterator[str]:
    """Jobs that ran again though nothing had been hit."""
    for repeat in repeats(evidence):
        if not repeat.why:
            each = repeat.first
            how = each.how or "had not ended"
            yield (
                f"number {each.n}, job {each.job} ran again after claim {each.claim} of {each.worker} at"
                f" {each.began:.3f}, whose handler {how}"
            )


def finished_twice(evidence: Evidence) -> int:
    """Count the jobs that were ended well more than once: what at-least-once costs."""
    return sum(times > 1 for times in Counter(each.n for each in evidence.tries if each.how == "returned").values())


OURS: dict[str, Check] = {
    "unfinished": unfinished,
    "left_running": left_running,
    "illegal_edge": illegal_edge,
    "unexplained": unexplained,
}


def judge(seed: int, evidence: Evidence, struck: list[Struck], left: int) -> Verdict:
    """Hold the evidence against every statement; *left* messages were at the broker in the end."""
    violations: dict[str, list[str]] = {each.name: [] for each in INVARIANTS}
    for each in INVARIANTS:
        if each.name in KEPT or each.name in OURS:
            violations[each.name] = list(OURS.get(each.name, each.broken)(evidence))
    if left:
        violations["left_running"].append(f"{left} messages are left at the broker")
    recovery: dict[str, list[float]] = defaultdict(list)
    for one in struck:
        if one.recovery is not None:
            recovery[one.fault.name].append(one.recovery)
    return Verdict(
        seed=seed,
        jobs=len(evidence.acknowledged),
        struck=struck,
        violations=violations,
        repeated=list(repeats(evidence)),
        misdeeds=dict(Counter(each.how or SILENT for each in evidence.tries if each.how != "returned").most_common()),
        unknown=evidence.unknown,
        lives=evidence.lives,
        recovery=recovery,
    )
