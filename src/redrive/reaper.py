"""Takes back the jobs of workers that are gone, and buries what can't run any more. On every worker, no leader.

No verdict without evidence: it judges only after this worker's own heartbeats have been answered for a whole lease. A
database that was away longer than the lease has then given every living worker the time to be heard.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from redrive.events import JobDied, JobFailed, JobReclaimed, emit
from redrive.service import Database, Service
from redrive.statements import named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redrive.connections import Control
    from redrive.heartbeat import Heartbeat
    from redrive.settings import Settings

OWN_NAME = ":[0-9]+:[0-9a-z]{6}$"
"""How the names end that redrive's workers give themselves; a locked_by of any other shape is a stranger's."""
SWEEP_EVERY = 60.0
BATCH = 1000


class Reaper(Service):
    """Reclaims orphans at the instant their lease runs out, and sweeps for the rest now and then."""

    name = "reaper"

    def __init__(
        self,
        database: Database,
        control: Control,
        heartbeat: Heartbeat,
        settings: Settings,
        on_dead: Callable[[JobDied], None],
    ) -> None:
        super().__init__(database)
        self.kinds: Sequence[str] = ()
        """Kinds whose handlers are known here: a death of another is first left to those who know its ``on_dead``."""
        self._control = control
        self._heartbeat = heartbeat
        self._settings = settings
        self.on_reaped: Callable[[], object] = lambda: None
        """Told when jobs are due again, or a frozen sentry was put out of the way: this worker need not be woken by
        a NOTIFY, which nobody sends while there is no sentry."""
        self.count: Callable[[str, str], None] = lambda _kind, _outcome: None
        """Told of each kind of which a job was taken back or buried, and as what that counts."""
        self._on_dead = on_dead
        self._sweep_at = 0.0
        self._silent = True
        """Whether a worker has fallen silent since the last look at the sentry; before the first look nobody knows."""
        self._ownerless: dict[str, float] = {}

    async def tick(self) -> float:
        """Reap when a lease has run out or a sweep is due."""
        now = time.monotonic()
        if not self._heartbeat.evidence_since:
            self._ownerless.clear()
            return min(1.0, self._settings.lease / 3)
        if not self._may_judge():
            return self._heartbeat.evidence_since + self._settings.lease - now
        if now < min(self._sweep_at, self._heartbeat.next_silent):
            return self._pause(now)
        self._silent = self._silent or now >= self._heartbeat.next_silent
        self._heartbeat.next_silent = float("inf")  # until the next beat knows better
        self._sweep_at = now + min(SWEEP_EVERY, 2 * self._settings.lease)
        [seen] = await self._ask("survey_held", own_name=OWN_NAME)
        if await self._reap(seen, self._orphaned(seen.ownerless, now)) >= BATCH:
            self._sweep_at = now
        elif self._ownerless:
            self._sweep_at = min(self._sweep_at, now + self._settings.lease)
        return self._pause(now)

    def _pause(self, now: float) -> float:
        due = min(self._sweep_at, self._heartbeat.next_silent + 0.05)
        # Looked at again within a beat, since only a beat learns who has fallen silent.
        return max(0.01, min(due - now, self._settings.beat_every / 2))

    def _may_judge(self) -> bool:
        """Whether this worker has a lease of evidence. Asked again when a verdict is about to be sent."""
        since = self._heartbeat.evidence_since
        return bool(since) and time.monotonic() - since >= self._settings.lease

    def _orphaned(self, ownerless: list[str], now: float) -> list[str]:
        """Holders of jobs that have had no row in workers for a lease: a living one would have brought its row back."""
        since = self._heartbeat.evidence_since
        self._ownerless = {name: max(since, self._ownerless.get(name, now)) for name in ownerless}
        return [name for name, seen in self._ownerless.items() if now - seen >= self._settings.lease]

    async def _reap(self, seen: Any, orphaned: list[str]) -> int:
        reaped = await self._take_back(orphaned) if seen.held else []
        for row in reaped:
            self._tell(row)
        buried = await self._ask("bury_hopeless", kinds=list(self.kinds)) if seen.hopeless else []
        for row in buried:
            self._tell(row)
        if reaped:
            await self._ask("wake")
        ended: list[Any] = []
        if self._silent or reaped:
            ended = await self._ask("end_silent_sentries", given=self._may_judge)
            self._silent = False
        if reaped or ended:
            self.on_reaped()
        return max(len(reaped), len(buried))

    async def _take_back(self, orphaned: list[str]) -> list[Any]:
        settings = self._settings
        return await self._ask(
            "reap_jobs",
            given=self._may_judge,
            own_name=OWN_NAME,
            judge=self.database.worker,
            orphaned=orphaned,
            lease=settings.lease,
            foreign_age=settings.foreign_lease,
            max_crashes=settings.max_crashes,
            kinds=list(self.kinds),
        )

    async def _ask(self, name: str, given: Callable[[], bool] | None = None, **params: Any) -> list[Any]:
        """Say a statement on the heartbeat's connection, for no longer than the next beat can wait.

        The jobs may be locked for as long as a migration takes, and behind a pooler there is no lock_timeout: this
        worker would be silent, and taken for dead by those that are not behind it.
        """
        statement = named(name, self._control.schema, **params)
        return await self._control.run(statement, timeout=max(1.0, self._settings.beat_every / 2), given=given)

    def _tell(self, row: Any) -> None:
        job: dict[str, Any] = {
            "id": row.id,
            "kind": row.kind,
            "attempt": row.attempts,
            "worker": self.database.worker,
        }
        said = {"dead": "died", "failed": "failed"}.get(row.status, "reclaimed")
        self.count(row.kind, said)
        if row.status == "dead":
            died = JobDied(**job, duration=0.0, error="WorkerLost" if row.worker else "", reason=row.reason)
            emit(died)
            self._on_dead(died)
        elif row.status == "failed":
            emit(JobFailed(**job, duration=0.0, reason=row.reason))
        else:
            emit(JobReclaimed(**job, lost_worker=row.worker or "", outcome=row.status))
