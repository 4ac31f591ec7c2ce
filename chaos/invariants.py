"""The promise, taken apart into statements that can be false, each held against the evidence.

Each has a name, belongs to one of the four counts of the verdict, and shows the rows that break it. None of them asks
redrive: what it says of itself (its history of failures) is compared with what others saw. That the witnesses saw
anything, and that they agree, is stated too: else a trigger that noted nothing would find nothing wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from chaos import tries
from chaos.evidence import FOR_EVER, Evidence
from chaos.orders import LIMIT

LOST, DOUBLE, ILLEGAL, UNEXPLAINED = "lost", "double_outcomes", "illegal_transitions", "unexplained_duplicates"
COUNTS = (LOST, DOUBLE, ILLEGAL, UNEXPLAINED)
ENDS = ("succeeded", "failed", "dead")
LEGAL = {
    (None, "pending"),
    ("pending", "running"),
    ("running", "pending"),
    *(("running", end) for end in ENDS),
}
"""No job here is cancelled or sent back by hand, so nothing leaves an end."""
ON_PURPOSE = {"ends"}
"""Kinds of which some end `failed`, as they ask for."""
SLACK = 1.5
"""Seconds for a statement to be sent and the machine to have other things to do."""


@dataclass(frozen=True)
class Invariant:
    """A statement that holds, or of which there are counterexamples."""

    name: str
    count: str
    """Which of the verdict's counts it belongs to."""
    says: str
    broken: Callable[[Evidence], Iterator[str]]


# -- lost


def unfinished(evidence: Evidence) -> Iterator[str]:
    """Acknowledged jobs that are gone, or have not ended."""
    there = {row.n: row for row in evidence.rows.values()}
    last = {change.job: change for change in evidence.changes}
    if not evidence.acknowledged:
        yield "no enqueue was acknowledged: nothing is proven"
    for n in sorted(evidence.acknowledged):
        row = there.get(n)
        if row is None:
            yield f"number {n} was acknowledged and is not in the table"
        elif row.status not in ENDS or (row.status == "failed" and row.kind not in ON_PURPOSE):
            yield f"number {n}, job {row.id} ({row.kind}) is {row.status}; at last: {last.get(row.id, 'unknown')}"


def left_running(evidence: Evidence) -> Iterator[str]:
    """Jobs in a live state at the end, acknowledged or not."""
    for row in evidence.rows.values():
        if row.status not in ENDS and row.n not in evidence.acknowledged:
            yield f"job {row.id} ({row.kind}) is left {row.status}"


def success_without_a_run(evidence: Evidence) -> Iterator[str]:
    """Jobs that succeeded, and no handler came to its end under that claim."""
    returned = {(each.job, each.claim) for each in evidence.tries if each.how == "returned"}
    began = {(each.job, each.claim) for each in evidence.tries}
    effects = set(evidence.effects)
    for row in evidence.rows.values():
        if row.status != "succeeded" or (row.id, row.claims) in returned:
            continue
        if row.id in effects and (row.id, row.claims) in began:  # it was killed between its commit and its last line
            continue
        yield f"job {row.id} ({row.kind}) succeeded under claim {row.claims}, in which no handler returned"


def silent_end(evidence: Evidence) -> Iterator[str]:
    """Jobs that ended without success and without a word in the history."""
    told = {(failure.job, failure.outcome) for failure in evidence.failures}
    for row in evidence.rows.values():
        if row.status in ("failed", "dead") and ((row.id, row.status) not in told or not row.last_error):
            yield f"job {row.id} ({row.kind}) is {row.status}, and its history does not say why"


def effect_without_success(evidence: Evidence) -> Iterator[str]:
    """Effects whose job, completed in the same commit, did not succeed; and orders without their job."""
    for job in sorted(set(evidence.effects)):
        row = evidence.rows.get(job)
        if row is None or row.status != "succeeded":
            yield f"the effect of job {job} was committed, and the job is {row.status if row else 'gone'}"
    for n, there in evidence.ordered.items():
        if not there:
            yield f"order {n} was acknowledged with its job, and is not there"


def torn_order(evidence: Evidence) -> Iterator[str]:
    """Orders without the job of the same transaction, and the reverse: also where nobody knows if it was committed."""
    jobs = {row.n for row in evidence.rows.values()}
    for n in sorted(evidence.in_one_commit):
        if evidence.ordered.get(n, False) is not (n in jobs):
            yield f"of order {n} and its job only the {'job' if n in jobs else 'order'} is there"


# -- double outcomes


def ended_twice(evidence: Evidence) -> Iterator[str]:
    """Jobs with more than one recorded outcome."""
    for job, changes in evidence.by_job().items():
        ends = [change for change in changes if change.now in ENDS and change.was not in ENDS]
        if len(ends) > 1:
            yield f"job {job} ended {len(ends)} times: {'; '.join(map(str, ends))}"


def effect_twice(evidence: Evidence) -> Iterator[str]:
    """Effects that were to be exactly once, and are there more often."""
    for job, times in Counter(evidence.effects).items():
        if times > 1:
            yield f"the effect of job {job} is there {times} times"


def failed_twice(evidence: Evidence) -> Iterator[str]:
    """Claims with more than one failure in the history."""
    for (job, claim), times in Counter((failure.job, failure.claim) for failure in evidence.failures).items():
        if times > 1:
            yield f"claim {claim} of job {job} failed {times} times"


# -- illegal transitions


def illegal_edge(evidence: Evidence) -> Iterator[str]:
    """Changes of state along no edge of the state machine."""
    for change in evidence.changes:
        if change.was == change.now == "running":
            yield f"the lease or its counts changed without a claim: {change}"
        elif (change.was, change.now) not in LEGAL:
            yield str(change)


def torn_record(evidence: Evidence) -> Iterator[str]:
    """Jobs whose record does not lead, change by change, from their insert to the row that is there."""
    by_job = evidence.by_job()
    for job in sorted({*evidence.rows, *by_job}):
        changes, row = by_job.get(job, []), evidence.rows.get(job)
        if not changes or changes[0].was is not None:
            yield f"job {job} is not seen to be inserted"
            continue
        for one, other in pairwise(changes):
            if one.after != other.before:
                yield f"something between is not seen: {one}; {other}"
        last = changes[-1]
        found = (row.status, row.claims, row.attempts, row.crashes) if row else None
        if found != ((last.now, last.claims, last.attempts, last.crashes) if last.now else None):
            yield f"job {job} is {found}, and at last: {last}"


def ran_unclaimed(evidence: Evidence) -> Iterator[str]:
    """Handlers that were begun under no claim of their worker."""
    claimed = {(change.job, change.claims, change.holder) for change in evidence.changes if change.now == "running"}
    for each in evidence.tries:
        if (each.job, each.claim, each.worker) not in claimed:
            yield f"{each.worker} began job {each.job} under claim {each.claim}, which it never had"


def rolled_back_ran(evidence: Evidence) -> Iterator[str]:
    """Jobs whose transaction was rolled back, and which are there or ran all the same."""
    for row in evidence.rows.values():
        if row.n in evidence.rolled_back:
            yield f"number {row.n} was rolled back and is in the table, as job {row.id}"
    for each in evidence.tries:
        if each.n in evidence.rolled_back:
            yield f"number {each.n} was rolled back and ran, as job {each.job}"


def key_twice(evidence: Evidence) -> Iterator[str]:
    """Keys that two live jobs had at one instant."""
    held: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for job, changes in evidence.by_job().items():
        key, since = None, 0.0
        for change in changes:
            now = change.key if change.now in ("pending", "running") else None
            if key is not None and now != key:
                held[key].append((since, change.at, job))
            if now is not None and now != key:
                since = change.at
            key = now
        if key is not None:
            held[key].append((since, FOR_EVER, job))
    for key, spans in held.items():
        spans.sort()
        for (_, until, first), (since, _, second) in pairwise(spans):
            if since < until:
                yield f"key {key} was held by job {first} until {until:.3f} and by job {second} since {since:.3f}"


def lease_outlived(evidence: Evidence) -> Iterator[str]:
    """Jobs that were held for a worker long after its end, while there were workers to take them back."""
    for change in evidence.changes:
        if change.was != "running" or change.now == "running":
            continue
        life = evidence.life(change.holder_was, change.at)
        if life is None or life.gone >= change.at:
            continue
        late = calm(evidence, life.gone, change.at) - evidence.lease - evidence.sweep - SLACK
        if late > 0:
            yield f"{late:.1f} s too late after the end of its worker: {change}"


def over_the_limit(evidence: Evidence) -> Iterator[str]:
    """Instants at which more of the limited jobs ran than may; what nobody could stop, frozen or cut off, apart."""
    edges: list[tuple[float, int, int]] = []
    for each in evidence.tries:
        row = evidence.rows.get(each.job)
        if row is None or row.kind != "limited":
            continue
        life = evidence.life(each.worker, each.began)
        ended = min(each.ended, life.gone if life else FOR_EVER)
        if evidence.excuse(each.worker, each.began - evidence.lease, ended) in ("", "killed", "ended"):
            edges += [(each.began, 1, each.job), (ended, -1, each.job)]
    running: set[int] = set()
    for at, step, job in sorted(edges):  # at the same instant an end comes first
        if step < 0:
            running.discard(job)
            continue
        running.add(job)
        if len(running) > LIMIT:
            yield f"{len(running)} limited jobs ran at {at:.3f}: {sorted(running)}"


def calm(evidence: Evidence, since: float, until: float) -> float:
    """Give the seconds in which somebody could judge: not in an outage, nor for the lease of evidence after it."""
    total, at = until - since, since
    troubles = [*evidence.outages, *((a, b) for way, a, b in evidence.cut_off if way == "*")]
    for begin, end in sorted(troubles):
        begin, end = max(begin, at), min(end + evidence.lease, until)  # noqa: PLW2901 - clipped to what is left
        if end > begin:
            total -= end - begin
            at = end
    return total


# -- unexplained duplicates


def unexplained(evidence: Evidence) -> Iterator[str]:
    """Jobs that ran again though nothing had happened to their worker."""
    for repeat in tries.repeats(evidence):
        if not repeat.why:
            each = repeat.first
            how = each.how or "had not ended"
            yield f"job {each.job} ran again after claim {each.claim} of {each.worker}, whose handler {how}"


def same_claim_twice(evidence: Evidence) -> Iterator[str]:
    """Claims under which a handler was begun twice."""
    for (job, claim), times in Counter((each.job, each.claim) for each in evidence.tries).items():
        if times > 1:
            yield f"claim {claim} of job {job} was begun {times} times"


def living_reaped(evidence: Evidence) -> Iterator[str]:
    """Workers that lived and could be heard, and lost their jobs: an outage of the database reaps nobody."""
    began = {(change.job, change.claims): change.at for change in evidence.changes if change.now == "running"}
    reaped = {(failure.job, failure.claim) for failure in evidence.failures if failure.error_type == "WorkerLost"}
    for change in evidence.changes:
        told = (change.job, change.claims or 0) in reaped
        if change.was != "running" or change.now == "running" or not (told or change.taken):
            continue
        since = began.get((change.job, change.claims), change.at)
        if not evidence.excuse(change.holder_was, since - evidence.lease, change.at):
            yield f"its worker lived: {change}"


INVARIANTS = (
    Invariant(
        "unfinished",
        LOST,
        "Every acknowledged job ends succeeded or dead, or failed where it asked for it.",
        unfinished,
    ),
    Invariant("left_running", LOST, "Nothing is left pending or running at the end.", left_running),
    Invariant(
        "success_without_a_run",
        LOST,
        "What succeeded was run to its end, by its handler's own word.",
        success_without_a_run,
    ),
    Invariant("silent_end", LOST, "What ended without success says why.", silent_end),
    Invariant(
        "effect_without_success", LOST, "What was one commit is there whole or not at all.", effect_without_success
    ),
    Invariant(
        "torn_order",
        LOST,
        "A job and the application's row in its transaction are there both or neither.",
        torn_order,
    ),
    Invariant("ended_twice", DOUBLE, "Exactly one outcome is recorded for a job.", ended_twice),
    Invariant(
        "effect_twice", DOUBLE, "An effect that is one commit with its job's success is there once.", effect_twice
    ),
    Invariant("failed_twice", DOUBLE, "A claim fails once at most.", failed_twice),
    Invariant("illegal_edge", ILLEGAL, "States change along legal edges only.", illegal_edge),
    Invariant(
        "torn_record",
        ILLEGAL,
        "The record leads without a gap from each job's insert to the row that is there.",
        torn_record,
    ),
    Invariant("ran_unclaimed", ILLEGAL, "A handler begins only under a claim of its worker.", ran_unclaimed),
    Invariant(
        "arithmetic", ILLEGAL, "Claims, attempts, crashes and failures add up, change by change.", tries.arithmetic
    ),
    Invariant("too_many_tries", ILLEGAL, "No job uses more attempts than it has.", tries.too_many_tries),
    Invariant(
        "tried_for_nothing", ILLEGAL, "No attempt is used up in which no handler began.", tries.tried_for_nothing
    ),
    Invariant("rolled_back_ran", ILLEGAL, "What was rolled back never ran.", rolled_back_ran),
    Invariant("key_twice", ILLEGAL, "A key is held by one live job at every instant.", key_twice),
    Invariant(
        "innocent_death",
        ILLEGAL,
        "No job that did not itself end its worker is dead for crashes.",
        tries.innocent_death,
    ),
    Invariant(
        "undeserved_death",
        ILLEGAL,
        "What is dead failed as often as it may, or asked for it, by its handler's own word.",
        tries.undeserved_death,
    ),
    Invariant("over_the_limit", ILLEGAL, "No more run at any instant than their kind's limit allows.", over_the_limit),
    Invariant("outage_death", ILLEGAL, "No job dies of an outage of what it calls.", tries.outage_death),
    Invariant("lease_outlived", ILLEGAL, "No lease outlives its worker by more than lease and sweep.", lease_outlived),
    Invariant(
        "unexplained",
        UNEXPLAINED,
        "A job ran again only if its worker was killed, frozen, cut off or stopped.",
        unexplained,
    ),
    Invariant("same_claim_twice", UNEXPLAINED, "Under one claim a handler is begun once.", same_claim_twice),
    Invariant("living_reaped", UNEXPLAINED, "No worker that lived and could be heard loses its jobs.", living_reaped),
)


def check(evidence: Evidence) -> dict[str, list[str]]:
    """Give the counterexamples of every invariant, by its name."""
    return {invariant.name: list(invariant.broken(evidence)) for invariant in INVARIANTS}
