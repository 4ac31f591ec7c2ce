"""What the table says of each job, read again and again, and what has changed since.

It asks what anybody can ask (the statements behind ``redrive jobs`` and ``redrive show``) and takes part in nothing:
what it shows is the table, not the demo's idea of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from redrive import store

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from redrive.demo.journal import Journal, Tone
    from redrive.job import Job
    from redrive.queue import Queue

MOST = 200

State = Literal["waiting", "delayed", "running", "retrying", "taken back", "requeued", "succeeded", "dead", "failed"]
Step = Literal["retried", "held", "reclaimed", "dead", "failed", "requeued", "succeeded"]


@dataclass
class Card:
    """One job: its row, and the way it has come."""

    job: Job
    way: list[Step] = field(default_factory=list)
    failure: str = ""
    """What the newest failed try said."""
    failures: int = 0
    requeued: bool = False

    @property
    def about(self) -> str:
        """Say in a word whom or what the job is for."""
        payload = self.job.payload
        if not isinstance(payload, dict):
            return ""
        if "url" in payload:
            return urlsplit(str(payload["url"])).path
        return str(payload.get("to") or payload.get("number") or "")

    @property
    def state(self) -> State:
        """Name the state as a reader would: what is pending waits for something."""
        job = self.job
        match job.status:
            case "pending" if job.alone:
                return "taken back"
            case "pending" if job.attempts:
                return "retrying"
            case "pending" if self.way[-1:] == ["requeued"]:
                return "requeued"
            case "pending":
                return "delayed" if self.due_in > 0 else "waiting"
            case "running" | "succeeded" | "dead":
                return job.status
            case _:
                return "failed"

    @property
    def due_in(self) -> float:
        """Seconds until the job may run."""
        return (self.job.run_at - datetime.now(UTC)).total_seconds()

    @property
    def said(self) -> str:
        """Say what there is to know now."""
        job = self.job
        if self.state == "succeeded":
            return str(job.result or "")
        if self.state == "running":
            worker = f"in worker {_pid(job)}"
            return f"alone {worker}" if job.alone else worker
        if self.state in ("waiting", "delayed", "requeued"):
            return "its time has not come" if self.state == "delayed" else ""
        return self.failure

    @property
    def progress(self) -> tuple[int, int] | None:
        """Give the page it is at, and of how many, while it runs."""
        shown = self.job.progress
        if self.job.status != "running" or not isinstance(shown, dict):
            return None
        return int(shown.get("page", 0)), int(shown.get("pages", 0)) or 1


class Board:
    """All jobs, as the last look found them."""

    def __init__(self, queue: Queue, journal: Journal) -> None:
        self.cards: dict[int, Card] = {}
        self.alive: Collection[int] = ()
        """Pids of the workers whose heart beats."""
        self._queue = queue
        self._journal = journal

    def look(self) -> None:
        """Read the table and tell what has changed."""
        for job in reversed(self._queue.ask(store.list_jobs(self._queue.schema, limit=MOST))):
            card = self.cards.setdefault(job.id, Card(job))
            before, card.job = card.job, job
            if job.updated_at != before.updated_at or job.status in ("dead", "failed"):
                self._hear_failures(card)
            if job.status == "succeeded" and (not card.way or card.way[-1] != "succeeded"):
                card.way.append("succeeded")
                self._tell(card, f"succeeded{_at_try(job)}: {job.result or 'done'}", "good")
        self.alive = {row.pid for row in self._queue.ask(store.workers(self._queue.schema)) if row.alive}

    def requeued(self, ids: Collection[int]) -> None:
        """Note that these were sent back."""
        for each in ids:
            self.cards[each].requeued = True
            self.cards[each].way.append("requeued")

    def count(self, *states: State) -> int:
        """Count the jobs in these states."""
        return sum(card.state in states for card in self.cards.values())

    def of(self, *states: State) -> Iterator[Card]:
        """Give the jobs in these states."""
        return (card for card in self.cards.values() if card.state in states)

    def _hear_failures(self, card: Card) -> None:
        rows = self._queue.ask(store.failures(self._queue.schema, card.job.id))
        for row in rows[card.failures :]:
            card.way += (
                ["reclaimed", "dead"] if (row.error_type, row.outcome) == ("WorkerLost", "dead") else [row.outcome]
            )
            card.failure = _in_short(row)
            self._tell_failure(card, row)
        card.failures = len(rows)

    def _tell_failure(self, card: Card, row: Any) -> None:
        if row.outcome == "reclaimed":
            self._tell(card, "taken back from a worker that fell silent; it runs alone next", "back")
        elif row.outcome == "held":
            self._tell(card, f"is held, its try is given back: {card.failure}", "wait")
        elif row.outcome == "retried":
            wait = f", next in {card.due_in:.1f} s" if card.job.status == "pending" and card.due_in > 0 else ""
            self._tell(card, f"try {row.attempt} failed: {card.failure}{wait}", "wait")
        else:
            self._tell(card, f"is {row.outcome}: {card.failure}", "bad")

    def _tell(self, card: Card, text: str, tone: Tone) -> None:
        self._journal.tell(f"job {card.job.id}", f"{card.job.kind} {card.about} {text}", tone)


def _pid(job: Job) -> str:
    """Read the process in a worker's name: host, process, boot."""
    return (job.locked_by or "?").split(":")[-2:][0]


def _at_try(job: Job) -> str:
    return f" at try {job.attempts}" if job.attempts > 1 else ""


def _in_short(row: Any) -> str:
    """Give a failure's message in a line."""
    if row.error_type == "WorkerLost":
        return row.message.split(", the last was ")[0] if row.outcome == "dead" else "its worker was killed"
    return str(row.message).strip().splitlines()[-1] if row.message else str(row.error_type)
