"""What a try costs, and why there was another: counts and deaths held against the handlers' own words.

redrive's history of failures is believed only where the handler says the same. Else a job that was run again by
mistake would be explained by the entry that the mistake had written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from chaos.evidence import FOR_EVER, Change, Evidence, Failure, Try

AGAIN = ("Snooze", "SystemExit", "ConnectionError")
"""What a handler raises that makes its job run again though no try failed; the last where a breaker holds it back."""
SPARED = ("Snooze", "SystemExit")
"""Of these, what is no failure: a snooze gives the try back, the end of a process is counted apart."""
OVERRULED = {"late", "isolated"}
"""Kinds whose try may fail though their handler returned, or without its word: it was late, or its child died."""
POISON = "poison"
"""How the reason of a death for crashes begins."""


# -- attempts, crashes and failures


def arithmetic(evidence: Evidence) -> Iterator[str]:
    """Attempts, claims, crashes and failures that do not add up, change by change."""
    recorded = {(failure.job, failure.claim): failure for failure in evidence.failures}
    for change in evidence.changes:
        if change.now is None or change.was == change.now:
            continue
        if wrong := _does_not_add_up(change, recorded):
            yield f"{wrong}: {change}"


def _does_not_add_up(change: Change, recorded: Mapping[tuple[int, int], Failure]) -> str:  # noqa: PLR0911 - a table
    claims = (change.claims or 0) - (change.claims_was or 0)
    attempts = (change.attempts or 0) - (change.attempts_was or 0)
    crashes = (change.crashes or 0) - (change.crashes_was or 0)
    failure = (change.job, change.claims or 0) in recorded
    match change.was, change.now:
        case None, "pending":
            return "" if not (claims or attempts or crashes or change.holder) else "a new job that was used"
        case "pending", "running":
            return "" if (claims, attempts, crashes) == (1, 1, 0) and change.holder else "a claim that did not count"
        case "running", "pending":
            if claims or attempts not in (0, -1) or crashes not in (0, 1):
                return "a try that was counted wrongly"
            if crashes and not failure:
                return "a crash without a word in the history"
            return "" if failure or attempts == -1 else "a try was used up without a word in the history"
        case _, "dead":
            return "" if not claims and change.crashes == 0 and failure else "a death that was not recorded"
        case "running", "succeeded":
            return "" if not (claims or attempts) else "a success that changed the counts"
        case "running", "failed":
            return "" if not (claims or attempts) and failure else "an end on purpose that was not recorded"
    return ""


def too_many_tries(evidence: Evidence) -> Iterator[str]:
    """Jobs that used more attempts than they had."""
    for row in evidence.rows.values():
        if row.attempts > row.max_attempts:
            yield f"job {row.id} ({row.kind}) used {row.attempts} attempts of {row.max_attempts}"


def tried_for_nothing(evidence: Evidence) -> Iterator[str]:
    """Attempts that were used up, and of which no handler knows."""
    began = {(each.job, each.claim) for each in evidence.tries}
    for change in evidence.changes:
        used = change.was == "running" and change.now != "running" and change.attempts == change.attempts_was
        if used and change.kind != "isolated" and (change.job, change.claims) not in began:
            yield f"no handler began: {change}"


# -- deaths


def innocent_death(evidence: Evidence) -> Iterator[str]:
    """Jobs that ended dead for crashes, and never ended a process."""
    guilty = evidence.suicides | {
        each.job
        for each in evidence.tries
        if each.how == "SystemExit" or (each.kind == "isolated" and not each.how)  # its child ended without a word
    }
    for row in evidence.rows.values():
        if row.status == "dead" and row.id not in guilty and (row.last_error or "").startswith(POISON):
            yield f"job {row.id} ({row.kind}) is dead for crashes that were not its own"


def undeserved_death(evidence: Evidence) -> Iterator[str]:
    """Dead jobs whose handlers neither asked for it nor failed as often as they may, by their own word."""
    failed = Counter(each.job for each in evidence.tries if _failed(each))
    asked = {each.job for each in evidence.tries if each.how == "Dead"}
    for row in evidence.rows.values():
        condemned = (row.last_error or "").startswith(POISON)  # innocent_death asks whether rightly
        if row.status == "dead" and not condemned and row.id not in asked and failed[row.id] < row.max_attempts:
            yield (
                f"job {row.id} ({row.kind}) is dead after {failed[row.id]} failures of {row.max_attempts} that it has:"
                f" {row.last_error}"
            )


def outage_death(evidence: Evidence) -> Iterator[str]:
    """Jobs that ended dead because what they call was down for a while."""
    for row in evidence.rows.values():
        if row.kind == "calls" and row.status == "dead":
            yield f"job {row.id} is dead after {row.attempts} attempts: {row.last_error}"


def _failed(each: Try) -> bool:
    return each.kind in OVERRULED or each.how not in ("returned", "", *SPARED)


# -- repeats


@dataclass(frozen=True)
class Repeat:
    """A try that was not the last of its job, though nothing that its handler did asked for another."""

    first: Try
    why: str
    """What happened to its worker; empty where nothing did."""


def asked_for_another(each: Try, failure: Failure | None) -> bool:
    """Whether the handler's own deed made its job run again: it says so itself, or said nothing against it."""
    if each.how in AGAIN:
        return True
    return failure is not None and failure.error_type != "WorkerLost" and _failed(each)


def repeats(evidence: Evidence) -> Iterator[Repeat]:
    """Find the jobs that ran again although their handler neither failed nor asked for it."""
    ended = {(change.job, change.claims): change for change in evidence.changes if change.was == "running"}
    failed = {(failure.job, failure.claim): failure for failure in evidence.failures}
    newest: dict[int, int] = {}
    for each in evidence.tries:
        newest[each.job] = max(newest.get(each.job, 0), each.claim)
    for each in evidence.tries:
        failure = failed.get((each.job, each.claim))
        if each.claim == newest[each.job] or asked_for_another(each, failure):
            continue
        change = ended.get((each.job, each.claim))
        until = change.at if change is not None else FOR_EVER
        life = evidence.life(each.worker, each.began)
        why = evidence.excuse(each.worker, each.began - evidence.lease, until)
        if failure is None and life is not None and life.stopping <= until:
            why = "stopped"
        yield Repeat(each, why)
