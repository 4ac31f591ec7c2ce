"""Looks whether there is news, and sends it: one look by one worker of all, and each message until it is sent.

Whoever moves the row of ``alert_state`` on looks; news and what is remembered of them are written in one statement, so
a worker that dies in between tells nothing twice and forgets nothing. A look that takes long keeps that row, and one
that has lost it all the same writes nothing. Without a channel set up it asks nothing at all.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psycopg

from redrive import alerts, figures, store
from redrive.breakers import Breakers
from redrive.kinds import Kinds
from redrive.messengers import NotSent, messengers
from redrive.service import FOR_EVER, Database, Service
from redrive.statements import Statement, named
from redrive.stats import Stats
from redrive.text import ascii_only, clip
from redrive.words import counted, jobs, number, one_line, span

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redrive.alerts import Change, News, Rule, Seen
    from redrive.connections import Control
    from redrive.messengers import Send
    from redrive.settings import Settings

    Ask = Callable[[Statement[Any]], Awaitable[list[Any]]]

EVERY = 30.0
DAY = 86_400.0
MOST_AT_ONCE = 20
"""Messages that one turn sends."""

_log = logging.getLogger("redrive")


class Alerter(Service):
    """One worker's part in telling people."""

    name = "alerter"

    def __init__(self, database: Database, control: Control, settings: Settings) -> None:
        super().__init__(database)
        self._control = control
        self._settings = settings
        self._channels = messengers(settings)
        alerts.demand_sense(settings)

    async def tick(self) -> float:
        """Look if it is time, and send what waits."""
        if not self._channels:
            return FOR_EVER
        await look(self._control.run, self._settings, self._channels, every=EVERY * 0.9)
        failed = await deliver(self._control.run, self._settings.schema, self._channels)
        self.remark = "; ".join(failed)
        return EVERY


class _Asker:
    """What stats, kinds and figures need of a queue, over whatever connection there is."""

    def __init__(self, schema: str, ask: Ask) -> None:
        self.schema = schema
        self._ask = ask

    async def ask_async(self, statement: Statement[Any], _connection: Any = None) -> list[Any]:
        """Run a statement."""
        return await self._ask(statement)


class _Look:
    """A look that is under way: keeps others from beginning one, however long it takes."""

    def __init__(self, ask: Ask, schema: str, began: datetime, every: float) -> None:
        self.held_at = began
        self._say, self._schema, self._keep_after = ask, schema, every / 3
        self._kept = time.monotonic()

    async def ask(self, statement: Statement[Any]) -> list[Any]:
        """Run a statement of the look.

        Raises:
            _Overtaken: when somebody else has begun a look.
        """
        if time.monotonic() - self._kept > self._keep_after:
            kept = await self._say(named("keep_alert_look", self._schema, looked_at=self.held_at))
            if not kept:
                raise _Overtaken
            self.held_at, self._kept = kept[0].looked_at, time.monotonic()
        return await self._say(statement)

    async def write(self, **params: Any) -> bool:
        """Write down what came of it, unless somebody else has begun a look; tells whether it did."""
        return bool(await self._say(named("write_alerts", self._schema, looked_at=self.held_at, **params)))


class _Overtaken(Exception):
    """Somebody else looks by now."""


async def look(ask: Ask, settings: Settings, channels: dict[str, Send], *, every: float) -> News | None:
    """Look once, unless somebody has within *every* seconds; writes down what is to be sent.

    Gives None where somebody else looked, or began to before this look was written down.

    Raises:
        psycopg.Error: what the server said.
    """
    begun = await ask(named("begin_alert_look", settings.schema, every=every))
    if not begun:
        return None
    try:
        return await _look(_Look(ask, settings.schema, begun[0].now, every), begun[0], settings, channels)
    except _Overtaken:
        return None


async def _look(turn: _Look, state: Any, settings: Settings, channels: dict[str, Send]) -> News | None:
    ask = turn.ask
    seen, last, before = await read(ask, settings, state.last_failure)
    news = alerts.compare(alerts.judge(seen, alerts.rules(settings.alert_rules), before), before, state.now)
    messages = [("alert", alert(news.changes, settings, state.now))] if news.changes else []
    digest = alerts.digest_due(settings.alert_digest, state.digest_at, state.now)
    if digest:
        told = sum(1 for row in news.keep if row["told_value"])
        messages.append(("digest", await summary(ask, seen, settings, state.now, told)))
    texts = [(sort, json.dumps(message, ensure_ascii=False)) for sort, message in messages]
    rows = [(channel, *text) for text in texts for channel in channels]
    written = await turn.write(
        **{name: [row[name] for row in news.keep] for name in _COLUMNS},
        over_rules=[rule for rule, _ in news.over],
        over_subjects=[subject for _, subject in news.over],
        channels=[channel for channel, _, _ in rows],
        sorts=[sort for _, sort, _ in rows],
        messages=[message for _, _, message in rows],
        last=last,
        digest_at=state.now if digest else None,
    )
    return news if written else None


_COLUMNS = ("rule", "subject", "text", "value", "told_value", "began_at", "told_at", "missed")


async def read(ask: Ask, settings: Settings, after: int | None) -> tuple[Seen, int | None, dict[tuple[str, str], Any]]:
    """Read what the rules judge, the last failure that was counted, and what is known from before."""
    schema, asker = settings.schema, _Asker(settings.schema, ask)
    desk: Any = asker
    deaths = await ask(named("alert_deaths", schema, after=after))
    held = await Kinds(desk).list_async()
    seen = alerts.Seen(
        figures=await figures.look_async(desk),
        deaths={row.kind: row.deaths for row in deaths if row.deaths},
        rates=await Stats(desk).kinds_async(alerts.RATE_SPAN),
        late=await ask(named("late_schedules", schema, patience=_patience(alerts.rules(settings.alert_rules)))),
        workers=await ask(store.workers(schema)),
        holders=await ask(named("desk_horizon", schema)),
        breakers=await Breakers(desk).list_async(),
        now=(await ask(named("alert_state", schema)))[0].now,
        kinds=held,
        paused=frozenset(row.kind for row in held if row.paused),
    )
    last = max((row.last for row in deaths), default=after)
    before = {(row.rule, row.subject): row for row in await ask(named("read_alerts", schema))}
    return seen, last, before


def _patience(holding: dict[str, Rule]) -> float:
    rule = holding.get("schedule", alerts.RULES["schedule"])
    return rule.limit or figures.LATE


async def deliver(ask: Ask, schema: str, channels: dict[str, Send]) -> list[str]:
    """Send what waits, as far as it can be; lists what could not be, a line each."""
    failed: dict[str, str] = {}
    for _ in range(MOST_AT_ONCE):
        open_channels = [name for name in channels if name not in failed]
        rows = await ask(named("claim_alert_message", schema, channels=open_channels))
        if not rows:
            break
        [row] = rows
        error = await send(channels[row.channel], row.message)
        try:
            await ask(named("settle_alert_message", schema, id=row.id, error=error))
        except psycopg.errors.UntranslatableCharacter:  # who refused it has words that this database can't spell
            await ask(named("settle_alert_message", schema, id=row.id, error=ascii_only(error or "")))
        if error:
            failed[row.channel] = f"alerts by {row.channel} are not sent: {error}"
            _log.warning("alerts by %s are not sent, try %s: %s", row.channel, row.tries, error)
    return list(failed.values())


async def send(messenger: Send, message: dict[str, Any]) -> str | None:
    """Send one message, in a thread; gives why it was not."""
    try:
        await asyncio.to_thread(messenger, message)
    except NotSent as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever a server answers, the next message is tried
        return clip(one_line(f"{type(error).__name__}: {error}"), 200)
    return None


def alert(changes: list[Change], settings: Settings, now: datetime) -> dict[str, Any]:
    """Make one message of all that is news."""
    order = {"new": 0, "worse": 1, "over": 2}
    lines = [
        {
            "what": change.what,
            "rule": change.rule,
            "subject": change.subject,
            "text": clip(one_line(change.text), 500),
            "value": change.value,
            "since": change.began_at.isoformat(),
            "link": _link(settings, change.link),
        }
        for change in sorted(changes, key=lambda change: order[change.what])
    ]
    return _message("alert", alerts.title(changes), lines, settings, now)


def trial(settings: Settings, now: datetime) -> dict[str, Any]:
    """Make the message by which a channel is tried."""
    text = "this is a test: what is the matter with your jobs will come this way"
    lines = [{"what": "info", "rule": "test", "subject": "", "text": text, "link": _link(settings, "")}]
    return _message("test", "redrive: a test", lines, settings, now)


async def summary(ask: Ask, seen: Seen, settings: Settings, now: datetime, open_alerts: int) -> dict[str, Any]:
    """Make the day's digest."""
    desk: Any = _Asker(settings.schema, ask)
    rows = await Stats(desk).kinds_async(DAY)
    dead = {depth.kind: depth for depth in seen.figures.depths if depth.dead}
    matter = f"{counted(open_alerts, 'thing is', 'things are')} the matter now"
    lines = [f"{counted(seen.figures.alive, 'worker')} alive; {matter}"]
    if seen.figures.oldest_due:
        lines.append(f"the oldest due job waits {span(seen.figures.oldest_due)}")
    for row in sorted(rows, key=lambda row: (-row.died, -row.ended)):
        p95 = f", run time p95 {span(row.run_p95)}" if row.run_p95 is not None else ""
        failed = f", {counted(row.errors, 'failed try', 'failed tries')}, {number(row.died)} died" if row.errors else ""
        lines.append(f"{row.kind}: {number(row.succeeded)} succeeded{failed}{p95}")
    lines += [
        counted(depth.dead, f"dead job of kind {kind} waits", f"dead jobs of kind {kind} wait") + " for somebody"
        for kind, depth in sorted(dead.items())
    ]
    made = [
        {"what": "info", "rule": "digest", "subject": "", "text": clip(one_line(line), 300), "link": ""}
        for line in lines
    ]
    ended, died = sum(row.ended for row in rows), sum(row.died for row in rows)
    title = f"redrive: the last day: {jobs(ended)} ended, {number(died)} of them died"
    return _message("digest", title, made, settings, now)


def _message(sort: str, title: str, lines: list[Any], settings: Settings, now: datetime) -> dict[str, Any]:
    return {
        "version": 1,
        "sort": sort,
        "title": title,
        "at": now.isoformat(),
        "schema": settings.schema,
        "desk": _link(settings, "") and settings.alert_desk.rstrip("/") + "/",
        "lines": lines,
    }


def _link(settings: Settings, path: str) -> str:
    return settings.alert_desk.rstrip("/") + path if settings.alert_desk else ""
