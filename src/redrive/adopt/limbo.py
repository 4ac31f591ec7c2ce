"""The silently lost: which rows of a stranger's table wait for somebody who will never come, bucket by bucket.

A rule looks at what a row's word means and at what its times and tries say. The same rules judge a group of counted
rows and, as a condition of SQL, a row in the table, so that what is counted is what is later asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.sql import SQL, Composable, Literal

from redrive.adopt.reading import FAILED, WAITING, WORKING
from redrive.adopt.signs import LATE, NEVER_DUE, NOTHING, ODD, Signs, Terms
from redrive.adopt.terms import AND, COMMA, OR, joined, say

OPEN = (WAITING, WORKING)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A bucket, and which rows are in it."""

    name: str
    title: str
    action: str
    meanings: tuple[str, ...]
    finished: bool | None = None
    spent: bool | None = None
    due: tuple[str, ...] = ()
    retry: tuple[str, ...] = ()
    stale: bool | None = None
    old: bool | None = None
    time: str = "created"
    """Which of the times says how long it has been lost."""

    def holds(self, meaning: str, signs: Signs) -> bool:
        """Tell whether rows of that meaning and those signs are in the bucket."""
        flags = (
            (self.finished, signs.finished),
            (self.spent, signs.spent),
            (self.stale, signs.stale),
            (self.old, signs.old),
        )
        return (
            meaning in self.meanings
            and (not self.due or signs.due in self.due)
            and (not self.retry or signs.retry in self.retry)
            and all(wanted is None or wanted is there for wanted, there in flags)
        )


RULES = (
    Rule(
        name="done_but_open",
        title="done, but never marked as done",
        action="mark them as done; to run them again would do the work twice",
        meanings=OPEN,
        finished=True,
        time="created",
    ),
    Rule(
        name="no_state",
        title="in no state at all (NULL): no WHERE finds them",
        action="look at them, and give them a state or take them in",
        meanings=(NOTHING,),
    ),
    Rule(
        name="misspelt",
        title="in a state that is spelt otherwise than the rest",
        action="put the spelling right, or add it to the values that wait",
        meanings=(ODD,),
    ),
    Rule(
        name="out_of_attempts",
        title="out of attempts, and nobody was told",
        action="find out why they failed; then take them in with new attempts, or leave them be",
        meanings=(*OPEN, FAILED),
        spent=True,
        time="failed_at",
    ),
    Rule(
        name="stuck",
        title="in progress for days: their worker is gone",
        action="it may have done the work before it died: look at the newest, then take them in",
        meanings=(WORKING,),
        stale=True,
        time="since",
    ),
    Rule(
        name="retry_never_came",
        title="failed, and the retry that was due never came",
        action="take them in: a retry was meant, and nothing has done it",
        meanings=(FAILED,),
        retry=(LATE,),
        time="due",
    ),
    Rule(
        name="failed",
        title="failed and never retried",
        action="look at their errors; take in what is worth another try",
        meanings=(FAILED,),
        retry=(NEVER_DUE,),
        time="failed_at",
    ),
    Rule(
        name="overdue",
        title="due long ago, and still waiting",
        action="does the old worker run at all? Too old to be wanted: leave them; else take them in",
        meanings=(WAITING,),
        due=(LATE,),
        time="due",
    ),
    Rule(
        name="forgotten",
        title="waiting for days without a time to run at",
        action="does the old worker see them (NULL is not <= now())? Take in what is still wanted",
        meanings=(WAITING,),
        due=(NEVER_DUE,),
        old=True,
    ),
)
BUCKETS = {rule.name: rule for rule in RULES}


def bucket(meaning: str, signs: Signs) -> Rule | None:
    """Find the bucket of a group: the first that holds; None where it is not lost."""
    return next((rule for rule in RULES if rule.holds(meaning, signs)), None)


def condition(name: str, terms: Terms) -> Composable:
    """Say as a condition of SQL that a row is in the bucket called *name*, and in none before it."""
    found: list[Composable] = []
    for rule in RULES:
        this = _of_rule(rule, terms)
        if rule.name == name:
            return joined(AND, [this, *found])
        found.append(say("adopt_not", what=this))
    raise KeyError(name)


def _of_rule(rule: Rule, terms: Terms) -> Composable:
    parts = [_of_meaning(rule.meanings, terms)]
    for wanted, there in (
        (rule.finished, terms.finished),
        (rule.spent, terms.spent),
        (rule.stale, terms.stale),
        (rule.old, terms.old),
    ):
        if wanted is not None:
            parts.append(_flag(there, wanted=wanted))
    for signs, term in ((rule.due, terms.due), (rule.retry, terms.retry)):
        if signs and term is None:
            parts.append(_truth(value=NEVER_DUE in signs))
        elif signs and term is not None:
            parts.append(say("adopt_term_in", column=term, values=joined(COMMA, map(Literal, signs))))
    return SQL("({})").format(joined(AND, parts))


def _of_meaning(meanings: tuple[str, ...], terms: Terms) -> Composable:
    if terms.state is None:
        return _truth(value=terms.meanings.get(None) in meanings)
    words = [word for word, meaning in terms.meanings.items() if meaning in meanings]
    ways: list[Composable] = []
    if texts := [Literal(word) for word in words if word is not None]:
        ways.append(say("adopt_known_in", column=terms.state, values=joined(COMMA, texts)))
    if None in words:
        ways.append(say("adopt_term_null", column=terms.state))
    return SQL("({})").format(joined(OR, ways)) if ways else _truth(value=False)


def _flag(there: Composable | None, *, wanted: bool) -> Composable:
    if there is None:
        return _truth(value=not wanted)
    return there if wanted else say("adopt_not", what=there)


def _truth(*, value: bool) -> Composable:
    return Literal(value)
