"""The jobs table as it should be, in plain Python: what each statement of redrive and of the tutorial does to its rows.

Times are whole microseconds since the model began. Every statement happens a microsecond after the one before it, so
that earlier and later are decided here as they are in the database, where more time than that passes between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields

from redrive.reaper import OWN_NAME

SECOND = 1_000_000
MAX_CRASHES = 3
OURS = re.compile(OWN_NAME)
SUPERSEDED = "cancelled: superseded by a job with the same key, enqueued while it ran"
WANTED = re.compile("^(cancelled|discarded)")
LIVE = ("pending", "running")
EDGES = {
    ("pending", "running"),  # claim
    ("pending", "failed"),  # cancel
    ("pending", "dead"),  # no attempt left, deadline passed
    ("running", "pending"),  # retry, snooze, hand-back, reclaim
    ("running", "succeeded"),
    ("running", "failed"),
    ("running", "dead"),
    ("failed", "pending"),  # requeue
    ("dead", "pending"),
}


@dataclass
class Row:
    """One job, by the columns of the table."""

    id: int
    kind: str
    run_at: int
    created_at: int
    updated_at: int
    status: str = "pending"
    attempts: int = 0
    max_attempts: int = 5
    locked_at: int | None = None
    locked_by: str | None = None
    last_error: str | None = None
    priority: int = 5
    lane: str = ""
    key: str | None = None
    claims: int = 0
    crashes: int = 0
    alone: bool = False
    expires_at: int | None = None
    cancel_requested_at: int | None = None
    progress: object = None
    result: object = None
    superseded: bool = False

    @property
    def live(self) -> bool:
        return self.status in LIVE

    @property
    def unlocked(self) -> bool:
        return self.locked_at is None and self.locked_by is None

    @property
    def ready_for_requeue(self) -> bool:
        """Nothing of its death is in the way of any requeue, the tutorial's included."""
        plain = self.key is None and self.expires_at is None and self.cancel_requested_at is None and not self.alone
        return plain and self.unlocked and self.crashes == 0 and not self.superseded

    @property
    def hopeless(self) -> bool:
        """It counts as dead: also what a stranger called failed without one of our reasons."""
        return self.status == "dead" or (self.status == "failed" and not WANTED.match(self.last_error or ""))


COLUMNS = tuple(each.name for each in fields(Row))


@dataclass(frozen=True)
class Failure:
    """One row of the history."""

    job_id: int
    kind: str
    claim: int
    attempt: int
    outcome: str
    failed_at: int
    worker: str | None
    error_type: str
    key: str | None
    expires_at: int | None


@dataclass(frozen=True)
class Lease:
    """What a claim gave: whether it still holds is for the table to say."""

    job: int
    claim: int
    worker: str


@dataclass(frozen=True)
class Said:
    """An outcome as finish_jobs is given it."""

    lease: Lease
    name: str
    delay: int = 0
    error_type: str | None = None
    last_error: str | None = None
    result: object = None


@dataclass
class Beat:
    """A row of workers."""

    at: int
    lease: int


@dataclass
class Model:
    """The tables."""

    rows: dict[int, Row] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    workers: dict[str, Beat] = field(default_factory=dict)
    archived: set[int] = field(default_factory=set)

    # -- producers

    def live_key(self, key: str | None) -> Row | None:
        return next((row for row in self.rows.values() if key is not None and row.key == key and row.live), None)

    def supersede(self, now: int, row: Row) -> None:
        row.key, row.superseded, row.updated_at = None, True, now

    def replace(self, now: int, row: Row, **columns: object) -> None:
        for name, value in columns.items():
            setattr(row, name, value)
        row.priority, row.lane, row.attempts, row.expires_at, row.updated_at = 5, "", 0, None, now

    # -- workers

    def due(self, now: int, where: Callable[[Row], bool]) -> list[Row]:
        found = (row for row in self.rows.values() if row.status == "pending" and row.run_at <= now and where(row))
        return sorted(found, key=lambda row: (row.run_at, row.id))

    def claimable(self, now: int, lanes: Iterable[tuple[str, int, str]], quota: int, limit: int) -> list[Row]:
        taken: list[Row] = []
        for kind, priority, lane in lanes:

            def here(row: Row, at: tuple[str, int, str] = (kind, priority, lane)) -> bool:
                return (row.kind, row.priority, row.lane) == at and not row.alone

            taken += self.due(now, here)[:quota]
        return taken[:limit]

    def claim(self, now: int, row: Row, worker: str) -> None:
        row.status, row.locked_at, row.locked_by, row.updated_at = "running", now, worker, now
        row.attempts += 1
        row.claims += 1

    def holds(self, lease: Lease) -> Row | None:
        row = self.rows.get(lease.job)
        if row and (row.claims, row.locked_by, row.status) == (lease.claim, lease.worker, "running"):
            return row
        return None

    def succeed(self, now: int, lease: Lease, result: object = None) -> bool:
        row = self.holds(lease)
        if row is None:
            return False
        row.status, row.updated_at, row.alone = "succeeded", now, False
        row.result = row.result if result is None else result
        return True

    def finish(self, now: int, said: Said) -> str | None:
        row = self.holds(said.lease)
        if row is None:
            return None
        verdict, reason = self._verdict(now, row, said)
        if said.error_type is not None or verdict == "dead":
            default = "Cancelled" if verdict == "failed" else "DeadlinePassed"
            outcome = verdict if verdict != "pending" else "held" if said.name == "held" else "retried"
            self._record(now, row, outcome, said.lease.worker, said.error_type or default)
        if said.name in ("snoozed", "held", "handed_back", "crashed"):
            row.attempts -= 1
        if verdict == "pending":
            row.run_at = now + said.delay
        if verdict in ("pending", "dead"):
            row.locked_at = row.locked_by = None
        if verdict in ("dead", "failed"):
            row.key = row.expires_at = None
        if reason is not None:
            row.last_error = reason + (f"\n{said.last_error}" if said.last_error is not None else "")
        elif said.last_error is not None:
            row.last_error = said.last_error
        row.result = row.result if said.result is None else said.result
        row.crashes += said.name == "crashed"
        row.alone = row.alone and said.name == "handed_back" and verdict == "pending"
        if verdict == "dead":
            row.cancel_requested_at, row.crashes, row.superseded = None, 0, False
        row.status, row.updated_at = verdict, now
        return verdict

    def _verdict(self, now: int, row: Row, said: Said) -> tuple[str, str | None]:  # noqa: PLR0911 - a table
        fixed = {"succeeded": "succeeded", "failed": "failed", "died": "dead"}
        if said.name in fixed:
            return fixed[said.name], None
        if row.cancel_requested_at is not None:
            return "failed", "cancelled while it ran"
        if row.superseded and (said.name != "retried" or row.attempts < row.max_attempts):
            return "failed", SUPERSEDED
        if said.name == "retried" and row.attempts >= row.max_attempts:
            return "dead", None
        if said.name == "crashed" and row.crashes >= MAX_CRASHES - 1:
            return "dead", f"poison: it ended or tried to end its worker {row.crashes + 1} times"
        if row.expires_at is not None and row.expires_at <= now + said.delay:
            return "dead", "deadline: expires_at T comes before the next try"
        return "pending", None

    def hand_back_mislaid(self, now: int, worker: str, known: set[int]) -> list[int]:
        mislaid = [
            row
            for row in self.rows.values()
            if row.status == "running" and row.locked_by == worker and row.id not in known
        ]
        for row in mislaid:
            cancelled = row.cancel_requested_at is not None
            row.status, row.run_at, row.updated_at = "failed" if row.superseded or cancelled else "pending", now, now
            if cancelled:
                row.key, row.last_error = None, "cancelled while a worker held it"
            elif row.superseded:
                row.last_error = SUPERSEDED
            row.attempts = max(row.attempts, 1) - 1
            row.locked_at = row.locked_by = None
        return [row.id for row in mislaid]

    def renew(self, now: int, worker: str, ids: list[int]) -> None:
        for row in map(self.rows.get, ids):
            if row and row.locked_by == worker and row.status == "running" and row.locked_at < now - 120 * SECOND:
                row.locked_at = now

    # -- upkeep

    def ownerless(self) -> set[str]:
        return {row.locked_by for row in self._running() if row.locked_by and OURS.search(row.locked_by)} - set(
            self.workers
        )

    def reap(self, now: int, judge: str, orphaned: set[str], lease: int, foreign_age: int) -> dict[int, str]:
        me = self.workers.get(judge)
        fresh = me is not None and me.at > now - me.lease * 2 // 3
        silent = {name for name, beat in self.workers.items() if fresh and beat.at < now - beat.lease}

        def gone(row: Row) -> bool:
            since = row.updated_at if row.locked_at is None else row.locked_at
            if row.locked_by is None:
                return since < now - foreign_age
            if row.locked_by in self.workers:
                return row.locked_by in silent
            if OURS.search(row.locked_by):
                return row.locked_by in orphaned and since < now - lease
            return since < now - foreign_age

        orphans = [row for row in self._running() if gone(row)]
        holders = [row.locked_by for row in orphans]
        judged = [
            (row, row.alone or holders.count(row.locked_by) == 1, self._others_die(now, row.kind)) for row in orphans
        ]
        return {row.id: self._reclaim(now, row, beside_nothing=beside, twice=twice) for row, beside, twice in judged}

    def _others_die(self, now: int, kind: str) -> bool:
        """Whether workers have died of late that hold nothing now, and held none of the kind when they died."""
        holding = {row.locked_by for row in self._running()}
        dead = {
            name: beat.at
            for name, beat in self.workers.items()
            if now - beat.lease - 600 * SECOND < beat.at < now - beat.lease and name not in holding
        }
        guilty = {
            each.worker
            for each in self.failures
            if each.kind == kind
            and each.error_type == "WorkerLost"
            and each.failed_at > min(dead.values(), default=now) - 600 * SECOND
        }
        return bool(dead.keys() - guilty)

    def _reclaim(self, now: int, row: Row, *, beside_nothing: bool, twice: bool) -> str:
        ours = bool(row.locked_by and OURS.search(row.locked_by))
        crashed = ours and beside_nothing
        most = MAX_CRASHES * 2 if twice else MAX_CRASHES
        name = row.locked_by or "(unnamed)"
        verdict, reason = "pending", f"worker lost: {name} fell silent; reclaimed"
        if row.cancel_requested_at is not None:
            verdict, reason = "failed", f"cancelled; its worker {name} was lost"
        elif row.superseded:
            verdict, reason = "failed", SUPERSEDED
        elif crashed and row.crashes >= most - 1:
            times = row.crashes + 1
            verdict, reason = "dead", f"poison: its worker died {times} times while it ran alone, the last was {name}"
        elif row.expires_at is not None and row.expires_at <= now:
            verdict, reason = "dead", f"deadline: expires_at T has passed; its worker {name} was lost"
        self._record(now, row, "reclaimed" if verdict == "pending" else verdict, row.locked_by, "WorkerLost")
        row.attempts = max(row.attempts, 1) - 1
        row.crashes = 0 if verdict == "dead" else row.crashes + crashed
        row.alone = verdict == "pending" and ours
        row.locked_at = row.locked_by = None
        if verdict == "pending":
            row.run_at = now
        else:
            row.key = row.expires_at = None
        if verdict == "dead":
            row.cancel_requested_at = None
        row.status, row.last_error, row.updated_at = verdict, reason, now
        return verdict

    def bury(self, now: int) -> list[int]:
        buried = []
        for row in self.rows.values():
            late = row.expires_at is not None and row.expires_at <= now
            spent = row.attempts >= row.max_attempts
            if row.status != "pending" or not (late or spent):
                continue
            reason = "deadline: expires_at T passed before the job could run"
            if spent:
                reason = f"no attempt left: {row.attempts} of {row.max_attempts} were used"
            self._record(now, row, "dead", None, "AttemptsExhausted" if spent else "DeadlinePassed")
            row.last_error = reason + (f"\n{row.last_error}" if row.last_error is not None else "")
            row.key = row.expires_at = row.cancel_requested_at = row.locked_at = row.locked_by = None
            row.crashes, row.alone, row.superseded, row.status, row.updated_at = 0, False, False, "dead", now
            buried.append(row.id)
        return buried

    def expired(self, now: int, keep: dict[str, int]) -> list[int]:
        return sorted(
            row.id for row in self.rows.values() if row.status in keep and row.updated_at < now - keep[row.status]
        )

    def prune_failures(self, now: int, keep: int) -> None:
        self.failures = [each for each in self.failures if each.failed_at >= now - keep]

    def prune_workers(self, now: int) -> None:
        holding = {row.locked_by for row in self._running()}
        for name, beat in list(self.workers.items()):
            if beat.at < now - 86_400 * SECOND and name not in holding:
                del self.workers[name]

    # -- operators

    def cancel(self, now: int, where: Callable[[Row], bool], reason: str) -> dict[int, str]:
        found = {row.id: row.status for row in self.rows.values() if row.live and where(row)}
        for row in map(self.rows.__getitem__, found):
            if row.status == "pending":
                row.status, row.last_error, row.key, row.alone = "failed", reason, None, False
            row.cancel_requested_at = row.updated_at = now
        return found

    def requeue(self, now: int, where: Callable[[Row], bool]) -> list[int]:
        sent = [row for row in self.rows.values() if row.status in ("dead", "failed") and where(row)]
        for row in sent:
            row.status, row.attempts, row.crashes, row.alone = "pending", 0, 0, False
            row.run_at = row.updated_at = now
            row.last_error = row.progress = row.key = row.expires_at = row.cancel_requested_at = None
            row.locked_at = row.locked_by = None
            row.superseded = False
        return sorted(row.id for row in sent)

    def edit(self, now: int, row: Row, *, send: bool) -> None:
        if send:
            row.status, row.attempts, row.run_at = "pending", 0, now
            row.last_error = row.progress = row.cancel_requested_at = row.locked_at = row.locked_by = None
        row.crashes, row.alone, row.superseded, row.updated_at = 0, False, False, now
        row.key = row.expires_at = None

    # -- strangers, by the tutorial's statements

    def would_double_a_key(self, to_pending: list[Row]) -> bool:
        others = [row.key for row in self.rows.values() if row.live and row not in to_pending and row.key is not None]
        moved = [row.key for row in to_pending if row.key is not None]
        return len(set(moved)) < len(moved) or bool(set(moved) & set(others))

    def _running(self) -> list[Row]:
        return [row for row in self.rows.values() if row.status == "running"]

    def _record(self, now: int, row: Row, outcome: str, worker: str | None, error_type: str) -> None:
        self.failures.append(
            Failure(
                row.id, row.kind, row.claims, row.attempts, outcome, now, worker, error_type, row.key, row.expires_at
            )
        )
