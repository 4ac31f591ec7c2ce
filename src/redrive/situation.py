"""How things stand: what somebody on call asks first, read in a few quick statements and judged.

Is work late, is it failing, who works, what is stuck, are schedules late, is Postgres the cause. Each part is read by
itself, so that one that is slow, or that this role may not see, hides no other. It only looks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import psycopg
from psycopg.rows import class_row, namedtuple_row

from redrive import stats, store
from redrive.amqp.management import Broker, ails
from redrive.breakers import State
from redrive.kinds import NO_RELAY, NO_TAKER, RELAY, Kind, relayed, untaken
from redrive.masking import mask_text
from redrive.reaper import OWN_NAME
from redrive.sql import AMQP
from redrive.statements import Statement, lenient
from redrive.words import clean, counted, jobs, number, one_line, span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from redrive.settings import Settings

    Ask = Callable[[Statement[Any]], list[Any]]

Level = Literal["good", "note", "bad"]

LATE = 300.0
"""Seconds that a due job may wait."""
PATIENCE = 30.0
"""Seconds for which a kind may be due with no worker that knows it, as during a deploy."""
SLACK = 2.0
"""Leases of silence after which a worker's jobs should long have been taken back."""
SCHEDULE_LATE = 90.0
DAY = 86_400.0
MOST = 10_000
"""Jobs of a kind and state up to which is counted."""
FAILURES = 5_000
"""Failed attempts up to which is counted."""
RECENT = 300.0
"""Seconds over which it is judged how many jobs go out."""
HELD_LONG, HELD_TOO_LONG = 60.0, 600.0
"""Seconds for which a transaction may be open."""
DEAD_ROWS = 20_000
SKEW = 2.0
OVERDUE_SLACK = 10.0


@dataclass(frozen=True)
class Finding:
    """Something that was found, and where to look."""

    level: Level
    text: str
    part: str
    query: str = ""
    """A search that shows the jobs meant."""
    subject: str = ""
    """The kind that is held or paused, or the schedule: where it can be put right."""


@dataclass
class Part:
    """One question, what was read for it, and the verdict."""

    name: str
    rows: dict[str, list[Any]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """What could not be read, and why."""

    @property
    def level(self) -> Level | Literal["unknown"]:
        """The worst that was found; unknown where nothing bad was found and something could not be read."""
        levels = {finding.level for finding in self.findings}
        if "bad" in levels:
            return "bad"
        return "unknown" if self.unknown else "note" if levels else "good"

    def read(self, ask: Ask, what: str, statement: Statement[Any]) -> list[Any]:
        """Run a statement and keep its rows; what is refused or takes too long is noted, and has none."""
        try:
            self.rows[what] = ask(statement)
        except psycopg.errors.QueryCanceled:
            self.unknown.append(f"{what}: not read, it took too long")
        except psycopg.errors.InsufficientPrivilege:
            self.unknown.append(f"{what}: this role may not read it")
        return self.rows.setdefault(what, [])

    def found(self, level: Level, text: str, query: str = "", subject: str = "") -> None:
        """Note what was found."""
        self.findings.append(Finding(level, one_line(text), self.name, query, subject))


@dataclass(frozen=True)
class Reading:
    """Who reads, and for which installation."""

    ask: Ask
    settings: Settings
    timeouts: Mapping[str, float] = field(default_factory=dict)
    """The timeout of each kind whose handler is known, in seconds."""
    worker_command: str = "redrive worker"

    def statement(self, name: str, **params: Any) -> Statement[Any]:
        """Make a statement of this installation."""
        return lenient(name, self.settings.schema, namedtuple_row, **params)

    def leases(self) -> dict[str, Any]:
        """Give the parameters by which a holder's silence is judged."""
        return {"own_name": OWN_NAME, "lease": self.settings.lease, "foreign_age": self.settings.foreign_lease}


def late(reading: Reading, workers: Sequence[Any]) -> Part:
    """Is work late? What waits, by kind, and for how long; *workers* as :func:`working` has read them."""
    part = Part("late")
    depths = part.read(reading.ask, "jobs by kind", stats.depths(reading.settings.schema, MOST))
    which = {"kind": None, "broken": False}
    kinds = part.read(reading.ask, "kinds", lenient("list_kinds", reading.settings.schema, class_row(Kind), **which))
    known = {kind for worker in workers if worker.alive for kind in worker.kinds}
    how = {"kind": None, "closed": False, "most": MOST}
    breakers: Statement[State] = lenient("list_breakers", reading.settings.schema, class_row(State), **how)
    states = part.read(reading.ask, "breakers", breakers)
    held = {row.kind: said for row in kinds if (said := _held(row, no_relay=not relayed(workers)))}
    # What holds a kind is what there is to say of it; that its jobs are late follows.
    whole = {row.kind for row in states if not row.target}
    paused: dict[str, float] = {}
    for row in sorted(depths, key=lambda depth: -(depth.oldest_due or 0.0)):
        age = row.oldest_due or 0.0
        why = held.get("*") or held.get(row.kind)
        if known and row.kind not in known and age > PATIENCE:
            part.found("bad", f"kind {row.kind} is due for {span(age)} and no live worker knows it", _kind(row.kind))
        elif why == "is paused":
            paused[row.kind] = age
        elif age > LATE and row.kind not in whole:
            said = f"; the kind {why}" if why else ""
            part.found("bad", f"the oldest job of kind {row.kind} is due for {span(age)}{said}", _kind(row.kind))
    for kind in untaken(kinds, workers):
        part.found("bad", f"kind {kind} {NO_TAKER}", subject=kind)
    for row in states:
        part.found(*_breaker(row), subject=row.kind)
    for row in kinds:
        if row.paused:
            by = f" by {row.paused_by}" if row.paused_by else ""
            what = "all kinds are" if row.kind == "*" else f"kind {row.kind} is"
            why = f": {row.paused_reason}" if row.paused_reason else ""
            age = max(paused.values(), default=0.0) if row.kind == "*" else paused.get(row.kind, 0.0)
            late_by = f"; the oldest job is due for {span(age)}" if age > LATE else ""
            part.found("note", f"{what} paused{by}{why}{late_by}", subject=row.kind)
    return part


def _held(row: Kind, *, no_relay: bool) -> str:
    if row.paused:
        return "is paused"
    if row.route == AMQP and no_relay:
        return NO_RELAY
    return "has limits" if row.limited else ""


def _breaker(row: State) -> tuple[Level, str, str]:
    why = f": {mask_text(row.reason)}" if row.reason else ""
    if row.state == "closing":
        return (
            "note",
            f"what {row.name} calls answers again; {row.waiting_in_words}, let out at a rising rate",
            _kind(row.kind),
        )
    held = "is held by hand" if row.by_hand else "waits for a service that is down"
    return "note" if row.by_hand else "bad", f"{row.name} {held}, {row.waiting_in_words}{why}", _kind(row.kind)


def flow(sums: stats.Stats) -> Part:
    """How much comes in and goes out, by kind: no question by itself, but what says how long it takes to be done."""
    part = Part("flow")
    part.rows["in"] = sums.inflow()
    part.rows["out"] = sums.kinds(RECENT)
    return part


def failing(reading: Reading, depths: Sequence[stats.Depth]) -> Part:
    """Is it failing? The failed attempts of the last day, and what is dead, as :func:`late` has counted it."""
    part = Part("failing")
    rows = part.read(reading.ask, "failures", reading.statement("desk_failures", most=FAILURES))
    died = sum(row.dead for row in rows)
    dead = sum(depth.dead for depth in depths)
    more = " or more" if any(depth.capped(depth.dead) for depth in depths) else ""
    if dead and died:
        deaths = f"{number(died)} deaths" if died != 1 else "one death"
        more_deaths = " or more" if rows[0].capped else ""
        part.found("bad", f"{jobs(dead, 'dead')}{more}; {deaths}{more_deaths} within a day")
    elif dead:
        part.found("note", f"{jobs(dead, 'dead')}{more}, none of them new")
    for row in part.read(reading.ask, "unexplained", reading.statement("unexplained_failures", within=DAY)):
        text = f"{jobs(row.jobs)} of kind {row.kind} failed within a day and gave no reason: another worker wrote so"
        part.found("bad", text, f"status:failed {_kind(row.kind)}")
    return part


def working(reading: Reading) -> Part:
    """Who is working? The workers, their versions and signs of life."""
    part = Part("working")
    workers = part.read(reading.ask, "workers", store.workers(reading.settings.schema))
    alive = [worker for worker in workers if worker.alive]
    if all(worker.works_as == RELAY for worker in alive) and not part.unknown:
        part.found("bad", f"no worker is alive: start one with {reading.worker_command}")
    for worker in workers:
        if worker.alive and worker.problem:
            part.found("bad", f"worker {worker.name}: {mask_text(worker.problem)}")
        elif not worker.alive and worker.silent_for < DAY / 24:
            part.found("note", f"worker {worker.name} is silent for {span(worker.silent_for)}, without a goodbye")
    if len({worker.version for worker in alive}) > 1:
        versions = ", ".join(sorted({worker.version for worker in alive}))
        part.found("note", f"the workers run different versions of redrive: {versions}")
    return part


def stuck(reading: Reading) -> Part:
    """What is stuck? Jobs whose holder fell silent, that killed their worker, or that run past their timeout."""
    part = Part("stuck")
    part.read(reading.ask, "running jobs", reading.statement("desk_running"))
    holders = part.read(
        reading.ask, "silent holders", reading.statement("silent_holders", slack=SLACK, **reading.leases())
    )
    for row in holders:
        text = (
            f"{jobs(row.jobs, 'running')} held by {row.worker or 'nobody'}, which is silent for {span(row.silent_for)}"
        )
        part.found("bad", text, f'status:running worker:"{_quoted(row.worker)}"' if row.worker else "status:running")
    suspects = part.read(reading.ask, "suspects", reading.statement("desk_suspects"))
    for row in suspects:
        many = f"{row.crashes} worker deaths" if row.crashes != 1 else "a worker's death"
        level: Level = "bad" if row.crashes else "note"
        said = f"has {many} against it" if row.crashes else "may have killed its worker, and is tried alone next"
        part.found(level, f"job {row.id} of kind {row.kind} {said}", f"id:{row.id}")
    if reading.timeouts:
        kinds, timeouts = list(reading.timeouts), list(reading.timeouts.values())
        statement = reading.statement("desk_overdue", kinds=kinds, timeouts=timeouts, slack=OVERDUE_SLACK)
        for row in part.read(reading.ask, "overdue", statement):
            text = (
                f"job {row.id} of kind {row.kind} runs for {span(row.seconds)}, past its timeout of {span(row.timeout)}"
            )
            part.found("bad", text, f"id:{row.id}")
    return part


def planned(reading: Reading) -> Part:
    """Are schedules late?"""
    part = Part("planned")
    for row in part.read(reading.ask, "late schedules", reading.statement("late_schedules", patience=SCHEDULE_LATE)):
        if row.problem:
            part.found("bad", f"schedule {row.name} can't be planned: {mask_text(row.problem)}", subject=row.name)
        else:
            late_by = f"is due for {span(row.late)} and no worker has enqueued it"
            part.found("bad", f"schedule {row.name} {late_by}", subject=row.name)
    return part


def postgres(reading: Reading, here: Callable[[], datetime]) -> Part:
    """Is Postgres the cause? Who holds the horizon, dead rows, notifications, replicas, the clock."""
    part = Part("postgres")
    began = here()
    place = part.read(reading.ask, "place", reading.statement("desk_place"))
    middle = began + (here() - began) / 2
    horizon = part.read(reading.ask, "horizon", reading.statement("desk_horizon"))
    tables = part.read(reading.ask, "tables", reading.statement("desk_tables"))
    server = part.read(reading.ask, "server", reading.statement("desk_server"))
    for row in horizon:
        if row.seconds is None or row.seconds > HELD_LONG:
            who = f"{row.what} {row.name}" + (f" ({row.application})" if row.application else "")
            since = "" if row.seconds is None else f", open for {span(row.seconds)}"
            level: Level = "bad" if (row.seconds or 0.0) > HELD_TOO_LONG else "note"
            part.found(level, f"{who} keeps dead rows from being removed{since}: end it if it was forgotten")
    for row in tables:
        if row.dead >= DEAD_ROWS and row.dead > row.live / 2:
            when = "never vacuumed" if row.vacuumed is None else "autovacuum does not keep up"
            part.found(
                "note", f"table {row.name} has {number(row.dead)} dead rows to {number(row.live)} live ones: {when}"
            )
    for row in server:
        _judge_server(part, row)
    for row in place:
        skew = (row.time - middle).total_seconds()
        part.rows["skew"] = [skew]
        if abs(skew) > SKEW:
            part.found(
                "note",
                f"the database's clock is {span(abs(skew))} {'ahead of' if skew > 0 else 'behind'} this machine's",
            )
    return part


def _judge_server(part: Part, row: Any) -> None:
    if row.notifications > 0.01:  # noqa: PLR2004 - of the queue, which is empty as a rule
        level: Level = "bad" if row.notifications > 0.5 else "note"  # noqa: PLR2004 - a full one fails commits
        part.found(
            level, f"the notification queue is {row.notifications:.0%} full: some session LISTENs and does not read"
        )
    if row.connections > 0.9 * row.connections_most:
        part.found("bad", f"{row.connections} of {row.connections_most} connections are taken")
    if (row.replica_lag or 0.0) > HELD_LONG:
        part.found("note", f"a replica is {span(row.replica_lag)} behind")
    if (row.behind or 0.0) > HELD_LONG:
        part.found("note", f"this replica has replayed nothing for {span(row.behind)}")
    if row.idle_slots:
        part.found("note", unused_slots(row.idle_slots))


def unused_slots(count: int) -> str:
    """Say what so many idle replication slots do."""
    slots = counted(count, "replication slot is not in use, and keeps", "replication slots are not in use, and keep")
    return f"{slots} what nobody reads"


def at_broker(now: Broker) -> Part:
    """Is the broker well? What waits there, by kind, as :func:`redrive.amqp.management.seen` has found it."""
    part = Part("broker")
    part.rows["kinds"] = list(now.kinds)
    if now.why:
        part.unknown.append(now.why)
    for each in ails(now):
        part.found(each.level, each.text, subject=each.kind)
    return part


def _kind(kind: str) -> str:
    return f'kind:"{_quoted(kind)}"'


def _quoted(text: str) -> str:
    return clean(text).replace("\\", "\\\\").replace('"', '\\"')


def timeouts(handlers: Iterable[Any]) -> dict[str, float]:
    """Give the timeout of each kind, its aliases too, where its handler has one."""
    return {
        kind: handler.timeout
        for handler in handlers
        if handler.timeout is not None
        for kind in (handler.kind, *handler.aliases)
    }
