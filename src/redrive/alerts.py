"""What is worth telling somebody who isn't looking: rules, what they find, and what of that is news.

Nothing is sent here and nothing written. A finding is told when it is new, when it has become twice as bad or goes on
getting worse for an hour, and when it is over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from redrive.errors import InvalidOption
from redrive.kinds import NO_RELAY, NO_TAKER, relayed, untaken
from redrive.masking import mask_text
from redrive.settings import seconds
from redrive.sql import AMQP
from redrive.text import clip
from redrive.words import jobs, number, one_line, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from redrive.figures import Figures
    from redrive.kinds import Kind
    from redrive.settings import Settings
    from redrive.stats import Sum

AGAIN_AFTER = timedelta(hours=1)
OVER_AFTER = 2
"""Looks in which it is not found, after which something is over."""
DIGEST_WITHIN = timedelta(hours=2)
"""After its time for so long a digest is still sent, by a worker that begins later."""
FEWEST = 5
"""Deaths from which on a share of deaths says something."""
RATE_SPAN = 900.0
"""Seconds over which the rate of deaths is taken."""
GONE_FOR = 3600.0
"""Seconds for which a worker that fell silent is told of."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What is looked for."""

    name: str
    about: str
    limit: float | None
    """From which on it is found; None where it is there or not."""
    unit: str = ""
    """s or %."""
    silent_end: bool = False
    """It is an event, and that it is over is no news."""

    @property
    def shown(self) -> str:
        """The limit in words."""
        if self.limit is None:
            return ""
        return span(self.limit) if self.unit == "s" else f"{self.limit:.0%}"


RULES = {
    rule.name: rule
    for rule in (
        Rule(name="died", about="jobs died; at which a human must look", limit=None),
        Rule(name="dead_rate", about="share of the jobs of a kind that died within 15 minutes", limit=0.1, unit="%"),
        Rule(name="oldest_due", about="how long the oldest due job of a kind waits", limit=300.0, unit="s"),
        Rule(name="unknown", about="a kind is due and no living worker knows it, for", limit=60.0, unit="s"),
        Rule(name="relay", about="a routed kind is due and no relay is alive, for", limit=60.0, unit="s"),
        Rule(name="taker", about="no living worker takes a routed kind from the broker, for", limit=60.0, unit="s"),
        Rule(name="schedule", about="a schedule is late by, or can't be planned", limit=90.0, unit="s"),
        Rule(name="breaker", about="a service is taken to be down, and its jobs wait, for", limit=60.0, unit="s"),
        Rule(name="worker", about="a worker fell silent without a goodbye", limit=None, silent_end=True),
        Rule(name="horizon", about="something keeps Postgres from removing dead rows, for", limit=600.0, unit="s"),
    )
}
"""Each rule with the limit that it has unless told otherwise."""


def rules(said: Iterable[str]) -> dict[str, Rule]:
    """Read which rules hold: all, with *said* such as ``oldest_due=10m``, ``dead_rate=5%`` or ``-worker``.

    Raises:
        InvalidOption: naming the value and the remedy.
    """
    found = dict(RULES)
    for each in said:
        name, _, limit = each.removeprefix("-").partition("=")
        rule = RULES.get(name.strip())
        if rule is None:
            raise InvalidOption(f"alert_rules has {each!r}: there are {', '.join(RULES)}")
        if each.startswith("-"):
            found.pop(rule.name, None)
        elif limit:
            found[rule.name] = _limited(rule, limit.strip(), each)
    return found


def _limited(rule: Rule, limit: str, said: str) -> Rule:
    if rule.limit is None:
        raise InvalidOption(f"alert_rules has {said!r}: {rule.name} has no limit; -{rule.name} turns it off")
    if rule.unit == "s":
        value = seconds(limit, f"alert_rules, {rule.name}")
    else:
        try:
            value = float(limit.removesuffix("%")) / (100 if limit.endswith("%") else 1)
        except ValueError:
            value = -1.0
    if not value > 0 or (rule.unit == "%" and value > 1):
        raise InvalidOption(
            f"alert_rules has {said!r}: give a {'time like 5m' if rule.unit == 's' else 'share like 5%'}"
        )
    return Rule(name=rule.name, about=rule.about, limit=value, unit=rule.unit, silent_end=rule.silent_end)


@dataclass(frozen=True, kw_only=True)
class Found:
    """Something that a rule found."""

    rule: str
    subject: str
    """What it is about: a kind, a schedule, a worker."""
    text: str
    value: float
    """How bad it is; 0 while it is only remembered since when, and not told yet."""
    link: str = ""
    """Where at the desk, below its address."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a look saw, for the rules to judge."""

    figures: Figures
    now: datetime
    deaths: dict[str, int] = field(default_factory=dict)
    """Deaths by kind since the look before."""
    rates: Sequence[Sum] = ()
    late: Sequence[Any] = ()
    workers: Sequence[Any] = ()
    holders: Sequence[Any] = ()
    breakers: Sequence[Any] = ()
    kinds: Sequence[Kind] = ()
    """Those for which something is set."""
    paused: frozenset[str] = frozenset()


def judge(seen: Seen, holding: dict[str, Rule], before: dict[tuple[str, str], Any]) -> list[Found]:
    """Say what the rules find; *before* is what is known by rule and subject."""
    found = [*_deaths(seen, before), *_rates(seen, holding), *_waits(seen, holding)]
    found += [*_untaken(seen, holding, before), *_others(seen, holding)]
    return [each for each in found if each.rule in holding]


def _deaths(seen: Seen, before: dict[tuple[str, str], Any]) -> Iterable[Found]:
    for depth in seen.figures.depths:
        if not depth.dead:
            continue
        known = before.get(("died", depth.kind))
        new = seen.deaths.get(depth.kind, 0)
        # Counts deaths and not the dead: of those somebody may have sent some back meanwhile.
        value = max(float(depth.dead), (known.value if known is not None else 0.0) + new)
        more = " or more" if depth.capped(depth.dead) else ""
        text = f"{jobs(depth.dead, 'dead')}{more} of kind {depth.kind}" + (
            f", {number(new)} of them new" if new else ""
        )
        yield Found(rule="died", subject=depth.kind, text=text, value=value, link=_dead(depth.kind))


def _rates(seen: Seen, holding: dict[str, Rule]) -> Iterable[Found]:
    rule = holding.get("dead_rate")
    for row in seen.rates if rule is not None else ():
        share = row.died / row.ended if row.ended else 0.0
        if row.died >= FEWEST and rule is not None and share >= (rule.limit or 0.0):
            counts = f"{number(row.died)} of {number(row.ended)}"
            text = f"{share:.0%} of the jobs of kind {row.kind} died within 15 minutes, {counts}"
            yield Found(rule="dead_rate", subject=row.kind, text=text, value=share, link=_dead(row.kind))


def _waits(seen: Seen, holding: dict[str, Rule]) -> Iterable[Found]:
    unknown = set(seen.figures.unknown) if seen.figures.alive else set()
    # A breaker is what there is to know of its kind, also while the backlog goes out; a rule that is off hides nothing.
    whole = (row for row in seen.breakers if row.state != "closed" and not row.target)
    held = {row.kind for row in whole} if "breaker" in holding else set()
    # Where nothing is alive they come from cron, the relay as well, and may be between two runs.
    missed = any(row.alive for row in seen.workers) and not relayed(seen.workers) and "relay" in holding
    unsent = {row.kind for row in seen.kinds if row.route == AMQP} if missed else set()
    for depth in seen.figures.depths:
        age, kind = depth.oldest_due or 0.0, depth.kind
        if not age or seen.paused & {kind, "*"} or kind in held:
            continue
        if kind in unsent:
            name, text = "relay", f"kind {kind} is due for {span(age)}; it {NO_RELAY}"
        elif kind in unknown:
            name, text = "unknown", f"kind {kind} is due for {span(age)} and no living worker knows it"
        else:
            name, text = "oldest_due", f"the oldest job of kind {kind} is due for {span(age)}"
        rule = holding.get(name)
        if rule is not None and age > (rule.limit or 0.0):
            yield Found(rule=name, subject=kind, text=text, value=age, link=_search("status:due", kind))


def _untaken(seen: Seen, holding: dict[str, Rule], before: dict[tuple[str, str], Any]) -> Iterable[Found]:
    """Find what nobody takes from the broker; no row says since when, so that is since a look first found it."""
    rule = holding.get("taker")
    for kind in untaken(seen.kinds, seen.workers) if rule is not None else ():
        known = before.get(("taker", kind))
        age = (seen.now - known.began_at).total_seconds() if known is not None else 0.0
        value = 1.0 if rule is not None and age > (rule.limit or 0.0) else 0.0
        yield Found(rule="taker", subject=kind, text=f"kind {kind} {NO_TAKER}", value=value, link="/workers")


def _others(seen: Seen, holding: dict[str, Rule]) -> Iterable[Found]:
    for row in seen.late:
        why = f"can't be planned: {mask_text(row.problem)}" if row.problem else f"is late by {span(row.late)}"
        yield Found(rule="schedule", subject=row.name, text=f"schedule {row.name} {why}", value=1.0, link="/schedules")
    for row in seen.breakers:
        age, rule = (seen.now - row.opened_at).total_seconds(), holding.get("breaker")
        if row.state == "open" and rule is not None and age > (rule.limit or 0.0):
            what = f"{row.kind}, {row.target}" if row.target else row.kind
            why = f": {mask_text(row.reason)}" if row.reason else ""
            since = ", since what they call is down"
            if row.by_hand:
                since = f"{f' by {row.opened_by}' if row.opened_by else ''}, until somebody closes the breaker"
            text = f"jobs of {what} are held for {span(age)}{since}{why}"
            yield Found(
                rule="breaker", subject=row.name, text=text, value=1.0, link=_search("status:pending", row.kind)
            )
    for row in seen.workers:
        if not row.alive and row.silent_for < GONE_FOR:
            text = f"worker {row.name} fell silent {span(row.silent_for)} ago, without a goodbye"
            yield Found(rule="worker", subject=row.name, text=text, value=1.0, link="/workers")
    for row in seen.holders:
        age, rule = row.seconds or 0.0, holding.get("horizon")
        if rule is not None and age > (rule.limit or 0.0):
            who = f"{row.what} {row.name}" + (f" ({row.application})" if row.application else "")
            text = f"{who} keeps Postgres from removing dead rows for {span(age)}"
            yield Found(rule="horizon", subject=f"{row.what} {row.name}", text=text, value=age)


def _search(what: str, kind: str) -> str:
    from urllib.parse import quote  # noqa: PLC0415 - of the standard library, for links alone

    text = kind.replace("\\", "\\\\").replace('"', '\\"')
    return "/jobs?q=" + quote(f'{what} kind:"{text}"')


def _dead(kind: str) -> str:
    from urllib.parse import quote  # noqa: PLC0415 - of the standard library, for links alone

    return "/dead?kind=" + quote(kind, safe="")


@dataclass(frozen=True, kw_only=True)
class Change:
    """A piece of news."""

    what: str
    """new, worse or over."""
    rule: str
    subject: str
    text: str
    value: float
    began_at: datetime
    link: str = ""


@dataclass(frozen=True, kw_only=True)
class News:
    """What came of a look: what to tell, and what to remember."""

    changes: list[Change]
    keep: list[dict[str, Any]]
    """Rows of ``alerts`` to be written."""
    over: list[tuple[str, str]]
    """Those to be removed, by rule and subject."""


def compare(found: Iterable[Found], before: dict[tuple[str, str], Any], now: datetime) -> News:
    """Find what of it is news."""
    news = News(changes=[], keep=[], over=[])
    there = {(each.rule, each.subject): each for each in found}
    for key, each in there.items():
        known = before.get(key)
        worse = known is not None and each.value > known.told_value * (1 + 1e-9)
        untold = known is None or not known.told_value
        tell = "" if not each.value else "new" if untold else "worse" if worse and _much(each, known, now) else ""
        began = now if known is None else known.began_at
        if tell:
            said = vars(each)
            news.changes.append(Change(what=tell, began_at=began, **said))
        news.keep.append(
            {
                "rule": each.rule,
                "subject": each.subject,
                "text": each.text,
                "value": each.value,
                "told_value": each.value if tell or known is None else known.told_value,
                "began_at": began,
                "told_at": now if tell or known is None else known.told_at,
                "missed": 0,
            }
        )
    for key, known in before.items():
        if key in there:
            continue
        if known.missed + 1 < OVER_AFTER:
            news.keep.append({**known._asdict(), "missed": known.missed + 1})
            continue
        news.over.append(key)
        rule = RULES.get(known.rule)
        if rule is not None and not rule.silent_end and known.told_value:
            text = f"recovered after {span((now - known.began_at).total_seconds())}: {known.text}"
            over = {"rule": known.rule, "subject": known.subject, "value": 0.0, "began_at": known.began_at}
            news.changes.append(Change(what="over", text=text, **over))
    return news


def _much(each: Found, known: Any, now: datetime) -> bool:
    return bool(each.value >= 2 * known.told_value) or now - known.told_at >= AGAIN_AFTER


def digest_due(said: str, last: datetime | None, now: datetime) -> bool:
    """Tell whether the digest of the day is to be sent; *said* is ``08:00``, ``08:00 Europe/Berlin`` or ``off``.

    Raises:
        InvalidOption: for anything else.
    """
    if said == "off":
        return False
    clock, _, zone = said.partition(" ")
    try:
        hours, minutes = (int(part) for part in clock.split(":"))
        local = now.astimezone(ZoneInfo(zone.strip() or "UTC"))
        slot = local.replace(hour=hours, minute=minutes, second=0, microsecond=0)
    except (ValueError, KeyError, OSError):
        raise InvalidOption(
            f"alert_digest is {said!r}: give a time like 08:00 or 08:00 Europe/Berlin, or off"
        ) from None
    if slot > local:
        slot -= timedelta(days=1)
    return last is not None and last < slot and local - slot < DIGEST_WITHIN


def demand_sense(settings: Settings) -> None:
    """Refuse what can't be read.

    Raises:
        InvalidOption: naming the value and the remedy.
    """
    rules(settings.alert_rules)
    digest_due(settings.alert_digest, None, datetime.now(ZoneInfo("UTC")))


def title(changes: Sequence[Change]) -> str:
    """Sum changes up in a line."""
    counts = {what: sum(change.what == what for change in changes) for what in ("new", "worse", "over")}
    words = {"new": "new", "worse": "worse", "over": "recovered"}
    said = ", ".join(f"{count} {words[what]}" for what, count in counts.items() if count)
    first = next(iter(changes)).text if len(changes) == 1 else said
    return clip(one_line(f"redrive: {first}"), 150)
