"""All that the witnesses say, side by side: the producers' and handlers' ledger, the audit, and the tables at the end.

Times are monotonic seconds; those of the database are brought to the same clock, since both are of one machine, whose
other clock may be set in the middle of a run.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import psycopg
from psycopg.rows import class_row, dict_row

FOR_EVER = float("inf")
EVERYBODY = "*"
NOTED = 0.2
"""Seconds within which it is noted that the wall's clock was set."""
WORKER = re.compile(r"\S+:\d+:[0-9a-z]{6}$")
"""How a worker's session calls itself in the end: host, process and boot."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a job's row, as the audit trigger saw it."""

    id: int
    at: float
    job: int
    n: int | None
    kind: str
    was: str | None
    """The state before; None where the row is new."""
    now: str | None
    """The state after; None where the row was deleted."""
    claims_was: int | None = None
    claims: int | None = None
    attempts_was: int | None = None
    attempts: int | None = None
    crashes_was: int | None = None
    crashes: int | None = None
    holder_was: str | None = None
    holder: str | None = None
    key_was: str | None = None
    key: str | None = None
    reason: str | None = None
    by: str = ""
    """The session that made it, as it calls itself."""

    @property
    def before(self) -> tuple[object, ...]:
        """All that is noted of the row before."""
        return self.was, self.claims_was, self.attempts_was, self.crashes_was, self.holder_was, self.key_was

    @property
    def after(self) -> tuple[object, ...]:
        """All that is noted of the row after."""
        return self.now, self.claims, self.attempts, self.crashes, self.holder, self.key

    @property
    def taken(self) -> bool:
        """Whether a worker ended the lease of another."""
        worker = WORKER.search(self.by)
        return bool(worker and self.was == "running" and self.now != "running" and worker[0] != self.holder_was)

    def __str__(self) -> str:
        """Tell it in a line."""
        return (
            f"job {self.job} ({self.kind}) {self.was or 'new'} to {self.now or 'deleted'} at {self.at:.3f}, claims"
            f" {self.claims_was} to {self.claims}, attempts {self.attempts_was} to {self.attempts}, held by"
            f" {self.holder_was or 'nobody'} and then {self.holder or 'nobody'}"
        )


@dataclass(frozen=True, slots=True)
class Row:
    """A job as it was found at the end."""

    id: int
    n: int | None
    kind: str
    status: str
    attempts: int
    max_attempts: int
    claims: int
    crashes: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Failure:
    """A row of redrive's own history of failures."""

    job: int
    claim: int
    attempt: int
    outcome: str
    error_type: str
    worker: str | None


@dataclass(frozen=True, slots=True)
class Try:
    """A handler's run of a job, as it wrote it down itself."""

    job: int
    n: int
    claim: int
    worker: str
    began: float
    ended: float = FOR_EVER
    how: str = ""
    """returned, or the name of what it raised; empty where its process did not live to say so."""
    kind: str = ""


@dataclass(slots=True)
class Life:
    """A worker process, and what was done to it."""

    pid: int
    slot: str
    began: float
    ended: float = FOR_EVER
    code: int = 0
    """How it ended, as subprocess gives it."""
    killed: float = FOR_EVER
    """When it was killed, by us or by a handler."""
    stopping: float = FOR_EVER
    """When it was told to stop."""
    frozen: list[tuple[float, float]] = field(default_factory=list)
    starved: list[tuple[float, float]] = field(default_factory=list)
    """When the machine did not let it run."""

    @property
    def by_itself(self) -> bool:
        """Whether it ended and nobody had asked for it."""
        return self.ended < min(self.killed, self.stopping)

    @property
    def gone(self) -> float:
        """When it was no more."""
        return min(self.ended, self.killed)


@dataclass
class Evidence:
    """Everything, for the invariants to be held against."""

    lease: float
    sweep: float
    acknowledged: set[int] = field(default_factory=set)
    """Numbers of jobs whose commit was confirmed."""
    acknowledged_at: dict[int, float] = field(default_factory=dict)
    rolled_back: set[int] = field(default_factory=set)
    unknown: int = 0
    """Enqueues that failed, or whose answer never came."""
    ordered: dict[int, bool] = field(default_factory=dict)
    """By number: whether the application's own row of the same transaction is there."""
    in_one_commit: set[int] = field(default_factory=set)
    """Numbers of jobs that were enqueued, or were to be, in one transaction with such a row."""
    changes: list[Change] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    effects: list[int] = field(default_factory=list)
    """The job of each effect that was committed together with its success."""
    tries: list[Try] = field(default_factory=list)
    suicides: set[int] = field(default_factory=set)
    """Jobs whose handler said that it was about to kill its process."""
    lives: list[Life] = field(default_factory=list)
    cut_off: list[tuple[str, float, float]] = field(default_factory=list)
    """The way, since when, and until when."""
    outages: list[tuple[float, float]] = field(default_factory=list)
    clocks: list[tuple[float, float]] = field(default_factory=list)
    """Since when by the wall's clock, and how far that was ahead of the monotonic one then."""
    ways: dict[str, str] = field(default_factory=dict)
    """By slot: the way by which its worker reaches the database."""

    def monotonic(self, wall: float) -> float:
        """Bring a time of the wall's clock to the other one, by how far it was ahead then."""
        until = time.monotonic()
        for since, ahead in reversed(self.clocks):  # set back, it shows a time twice: the later counts, if it has been
            if since - NOTED <= wall <= until + ahead:
                return wall - ahead
            until = since - ahead
        return wall - self.clocks[0][1]

    def life(self, worker: str | None, at: float) -> Life | None:
        """Find the process behind a worker's name, host:pid:boot, which it had at that time."""
        pid = int(worker.split(":")[1]) if worker and worker.count(":") > 1 else 0
        return next((life for life in self._lives_of.get(pid, ()) if life.began <= at), None)

    @cached_property
    def _lives_of(self) -> dict[int, list[Life]]:
        found: dict[int, list[Life]] = defaultdict(list)
        for life in sorted(self.lives, key=lambda life: -life.began):  # the newest first: process ids come round again
            found[life.pid].append(life)
        return found

    def by_job(self) -> dict[int, list[Change]]:
        """Give each job's changes in their order."""
        found: dict[int, list[Change]] = defaultdict(list)
        for change in sorted(self.changes, key=lambda change: change.id):
            found[change.job].append(change)
        return found

    def excuse(self, worker: str | None, since: float, until: float) -> str:
        """Say why a worker may have been taken for dead between *since* and *until*; empty if nothing."""
        life = self.life(worker, until)  # since when it matters may be before its start
        if life is None:
            return ""
        if life.gone <= until and not life.by_itself:  # who ended and nobody had asked for it has no excuse
            return "killed" if life.killed <= until else "ended"
        if _overlaps(life.frozen, since, until):
            return "frozen"
        way = self.ways.get(life.slot, "")
        if _overlaps([(a, b) for where, a, b in self.cut_off if where in (way, EVERYBODY)], since, until):
            return "cut off"
        # a moment is no excuse: the lease is there for that
        if sum(min(b, until) - max(a, since) for a, b in life.starved if a <= until and b >= since) > self.lease / 2:
            return "starved by the machine"
        return ""


def _overlaps(spans: Iterable[tuple[float, float]], since: float, until: float) -> bool:
    return any(a <= until and b >= since for a, b in spans)


def heard(evidence: Evidence, facts: Iterable[dict[str, Any]]) -> None:
    """Take in what the ledger says."""
    starts: dict[tuple[int, int, str], dict[str, Any]] = {}
    lives: dict[int, Life] = {}
    frozen: dict[int, float] = {}
    for fact in sorted(facts, key=lambda fact: fact["at"]):
        match fact["what"]:
            case "start" | "end":
                _ran(evidence, fact, starts)
            case "started":
                lives[fact["pid"]] = Life(fact["pid"], fact["slot"], fact["at"])
                evidence.lives.append(lives[fact["pid"]])
            case what if "pid" in fact and fact["pid"] in lives:
                if what == "suicide":
                    evidence.suicides.add(fact["job"])
                _happened(lives[fact["pid"]], what, fact, frozen)
            case what:
                _was_done(evidence, what, fact)
    evidence.tries += [_try(start, None) for start in starts.values()]


def _ran(evidence: Evidence, fact: dict[str, Any], starts: dict[tuple[int, int, str], dict[str, Any]]) -> None:
    key = fact["job"], fact["claim"], fact["worker"]
    if fact["what"] == "end":
        evidence.tries.append(_try(starts.pop(key), fact))
        return
    if key in starts:  # twice under one claim: two tries
        evidence.tries.append(_try(starts.pop(key), None))
    starts[key] = fact


def _was_done(evidence: Evidence, what: str, fact: dict[str, Any]) -> None:
    match what:
        case "meant" if fact["road"] == "order" and fact["key"] is None:  # a key that is taken makes no job
            evidence.in_one_commit.update(fact["n"])
        case "acknowledged":
            evidence.acknowledged.update(fact["n"])
            evidence.acknowledged_at.update(dict.fromkeys(fact["n"], fact["at"]))
            if fact["road"] == "order":
                evidence.ordered.update(dict.fromkeys(fact["n"], True))
        case "rolled back":
            evidence.rolled_back.update(fact["n"])
        case "unknown":
            evidence.unknown += 1
        case "cut off":
            evidence.cut_off.append((fact["way"], fact["since"], fact["at"]))
        case "lost a session":
            evidence.cut_off.append((f"slot {fact['slot']}", fact["since"], fact["at"]))
        case "outage":
            evidence.outages.append((fact["since"], fact["at"]))
        case "wall clock":
            evidence.clocks.append((fact["at"] + fact["ahead"], fact["ahead"]))


def _happened(life: Life, what: str, fact: dict[str, Any], frozen: dict[int, float]) -> None:
    at: float = fact["at"]
    match what:
        case "killed" | "suicide":
            life.killed = min(life.killed, at)
        case "told to stop":
            life.stopping = min(life.stopping, at)
        case "frozen":
            frozen[life.pid] = at
        case "thawed" if life.pid in frozen:
            life.frozen.append((frozen.pop(life.pid), at))
        case "ended":
            life.ended, life.code = at, fact["code"]
        case "starved":
            life.starved.append((fact["since"], at))


def _try(start: dict[str, Any], end: dict[str, Any] | None) -> Try:
    about = {name: start[name] for name in ("job", "n", "claim", "worker", "kind")}
    if end is None:
        return Try(**about, began=start["at"])
    return Try(**about, began=start["at"], ended=end["at"], how=end["how"])


CHANGES = """
    SELECT id, extract(epoch FROM at)::float8 AS at, job, n, kind, was, now, claims_was, claims, attempts_was,
           attempts, crashes_was, crashes, holder_was, holder, key_was, key, reason, coalesce(by, '') AS by
    FROM chaos.changes ORDER BY id
"""
ROWS = """
    SELECT id, (payload->>'n')::bigint AS n, kind, status::text, attempts, max_attempts, claims, crashes, last_error
    FROM redrive.jobs
"""
FAILURES = "SELECT job_id AS job, claim, attempt, outcome, error_type, worker FROM redrive.failures ORDER BY id"


def looked_up(evidence: Evidence, conn: psycopg.Connection) -> None:
    """Take in what stands in the database, whose clock may have been set meanwhile."""
    with conn.cursor(row_factory=dict_row) as cursor:
        for facts in cursor.execute(CHANGES):
            evidence.changes.append(Change(**facts | {"at": evidence.monotonic(facts["at"])}))
    evidence.rows = {row.id: row for row in _all(conn, Row, ROWS)}
    evidence.failures = list(_all(conn, Failure, FAILURES))
    evidence.effects = [row[0] for row in conn.execute("SELECT job FROM chaos.effects")]
    there = {row[0] for row in conn.execute("SELECT n FROM chaos.orders")}
    evidence.ordered = {n: n in there for n in evidence.ordered.keys() | there}


def _all(conn: psycopg.Connection, kind: type[Any], query: str) -> Iterator[Any]:
    with conn.cursor(row_factory=class_row(kind)) as cursor:
        yield from cursor.execute(query)
