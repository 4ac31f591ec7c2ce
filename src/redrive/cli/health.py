"""``redrive health``: is work being done? Judged by the loops that do it and by the age of what is due.

Not by jobs per minute, which says nothing at night, nor by a process that is there. It reads what every worker writes
with its heartbeat, and looks only: one connection, a handful of statements that stay quick on a large table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from redrive.cli import screen
from redrive.cli.breakers import in_words
from redrive.cli.exits import OK, PROBLEM, Trouble
from redrive.cli.options import as_json, database, examples, worker_command
from redrive.cli.session import Session, session

if TYPE_CHECKING:
    from datetime import datetime

    from redrive.breakers import State
    from redrive.kinds import Kind

PATIENCE = 30.0
"""Seconds for which a kind may be due with no worker that knows it, as during a deploy."""
SLACK = 2.0
"""Leases of silence after which a worker's jobs should long have been taken back by others."""
LATE = 90.0
"""Seconds after which a schedule is late: workers enqueue within the first, and find a new one within a minute."""
DAY = 86_400.0
DEAD_MANY = 20_000
"""Dead rows from which on it matters that somebody keeps them: a look from the head of a lane reads them all."""
HELD_LONG = 60.0
"""Seconds for which a transaction may be open without being named."""


@dataclass
class Findings:
    """What was looked at, and what is wrong with it."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is worth knowing, and no reason to restart a worker or to wake anybody."""
    workers: int = 0
    oldest_due: float = 0.0
    exit_code: int = OK

    def found(self, problem: str, exit_code: int = PROBLEM) -> None:
        """Note a problem."""
        self.problems.append(screen.one_line(problem))
        self.exit_code = max(self.exit_code, exit_code)


@click.command(
    short_help="Say whether work is being done.",
    epilog=examples(
        "redrive health || systemctl restart app-worker",
        "redrive health --max-age 1h --json",
        "redrive health --workers 0      # workers come from cron, with --once",
    ),
)
@click.option(
    "--max-age",
    default="300",
    metavar="SECONDS",
    help="How long a due job may wait: 90, 5m, 2h.  [default: 300]",
)
@click.option("--workers", "expected", type=click.IntRange(0), default=1, show_default=True, help="Live ones wanted.")
@as_json
@database
@click.pass_context
def health(
    ctx: click.Context,
    database_url: str | None,
    schema: str | None,
    max_age: str,
    *,
    expected: int,
    as_json: bool,
) -> None:
    """Say whether work is being done; exit 0 when it is, else say why not, a line a reason.

    Looked at are the database and its schema, the loops of every worker as its heartbeat tells, the age of the oldest
    due job, due kinds that no live worker knows or that go over the broker while no relay is alive, kinds that no live
    worker takes from the broker, jobs whose holder fell silent, schedules that are late or can't be planned, and jobs
    of the last day that some other worker ended as failed without a reason. A long job, or an idle night, is no
    problem. Kinds that are paused, breakers that are open, and who keeps Postgres from cleaning up, a transaction open
    for long, are named in notes, which change neither verdict nor exit code.
    """
    from redrive.settings import seconds

    limit = seconds(max_age, "--max-age")
    findings = Findings()
    try:
        with session(database_url, schema) as now:
            _look(now, findings, limit, expected)
    except Trouble as trouble:
        findings.found(trouble.message, trouble.exit_code)
    _tell(findings, as_json=as_json)
    ctx.exit(findings.exit_code)


def _tell(findings: Findings, *, as_json: bool) -> None:
    if as_json:
        healthy = not findings.problems
        seen = {"workers": findings.workers, "oldest_due": findings.oldest_due}
        screen.document({"healthy": healthy, "problems": findings.problems, "notes": findings.notes, **seen})
        return
    if findings.problems:
        for problem in findings.problems:
            click.secho(problem, fg="red")
    else:
        oldest = findings.oldest_due
        due = f"the oldest due job waits {screen.span(oldest)}" if oldest else "nothing is due"
        click.secho(f"healthy: workers alive: {findings.workers}, {due}", fg="green")
    for note in findings.notes:
        click.secho(f"note: {note}", fg="yellow")


def _look(now: Session, findings: Findings, max_age: float, expected: int) -> None:
    from redrive import store
    from redrive.kinds import BROKER_WORKER, NO_TAKER, RELAY, untaken
    from redrive.statements import named

    alive = [worker for worker in now.ask(store.workers(now.schema)) if worker.alive]
    findings.workers = sum(worker.works_as != RELAY for worker in alive)
    if findings.workers < expected:
        findings.found(f"{findings.workers} of {expected} workers alive: start some with `{worker_command()}`")
    for worker in alive:
        if worker.problem:
            findings.found(f"worker {worker.name}: {_masked(worker.problem)}")
    kinds, breakers = now.queue.kinds.list(connection=now.conn), now.queue.breakers.list(connection=now.conn)
    findings.notes += [_pause(row, now.now) for row in kinds if row.paused]
    findings.notes += [f"breaker: {in_words(row, now.now)}; see `redrive breakers list`" for row in breakers]
    for kind in untaken(kinds, alive):
        findings.found(f"kind {kind} {NO_TAKER}")
    due = now.ask(store.oldest_due(now.schema))
    # With none expected they come from cron, with --once, and may be between two runs; but none with --broker does.
    lasting = any(worker.works_as != BROKER_WORKER for worker in alive)
    nobody = _without_hands(due, alive, kinds, relay=bool(lasting or expected))
    _look_at_due(due, findings, max_age, nobody, _reasons(alive, kinds, breakers))
    for holder in now.ask(named("silent_holders", now.schema, slack=SLACK, **_leases(now))):
        findings.found(
            f"{screen.jobs(holder.jobs, 'running')} held by {holder.worker or 'nobody'}, which is silent for "
            f"{screen.span(holder.silent_for)}: a live redrive worker would have taken them back"
        )
    _look_at_schedules(now, findings)
    for row in now.ask(named("unexplained_failures", now.schema, within=DAY)):
        findings.found(
            f"{screen.jobs(row.jobs)} of kind {row.kind} failed within a day and without a reason of redrive's, job "
            f"{row.last_id} the last: another worker wrote so; see `redrive dead --kind {row.kind}`"
        )
    for holder in now.ask(named("horizon_holder", now.schema, many=DEAD_MANY, age=HELD_LONG)):
        findings.notes.append(_holder(holder))


def _look_at_schedules(now: Session, findings: Findings) -> None:
    from redrive.statements import named

    if not now.ask(named("scheduler_state", now.schema))[0].installed:
        return
    for row in now.ask(named("late_schedules", now.schema, patience=LATE)):
        if row.problem:
            findings.found(f"schedule {row.name} can't be planned: {_masked(row.problem)}")
        else:
            findings.found(f"schedule {row.name} is due for {screen.span(row.late)} and no worker has enqueued it")


def _holder(found: Any) -> str:
    """Name who makes claims dear, in the words in which pg_stat_activity and its like know them."""
    who = f"{found.what} {found.name}" + (f" ({found.application})" if found.application else "")
    since = "" if found.seconds is None else f", open for {screen.span(found.seconds)}"
    state = f", {found.state}" if found.state else ""
    return screen.one_line(
        f"{found.dead:,} dead rows in jobs can't be removed while {who} holds them{since}{state}: "
        "end it if it was forgotten"
    )


def _pause(row: Kind, now: datetime) -> str:
    what, resume = ("all kinds are", "--all") if row.kind == "*" else (f"kind {row.kind} is", row.kind)
    return screen.one_line(f"{what} {row.pause_in_words(screen.ago(row.paused_at, now))}: `redrive resume {resume}`")


def _reasons(alive: list[Any], kinds: list[Kind], breakers: list[State]) -> dict[str, str]:
    """Say of each kind whose jobs may be late on purpose, or for something that is missing, what that is."""
    from redrive.kinds import NO_RELAY, relayed
    from redrive.sql import AMQP

    why = {row.kind: "has limits, see `redrive kinds`" for row in kinds if row.limited}
    why |= {row.kind: "waits for a service that is down, see `redrive breakers list`" for row in breakers}
    if not relayed(alive):
        why |= {row.kind: NO_RELAY for row in kinds if row.route == AMQP}
    return why | {row.kind: "is paused, see `redrive kinds`" for row in kinds if row.paused}


def _without_hands(due: list[Any], alive: list[Any], kinds: list[Kind], *, relay: bool) -> dict[str, str]:
    """Say of due kinds that nobody takes them, and why: no worker knows them, or with *relay* no relay is there."""
    from redrive.kinds import NO_RELAY, relayed
    from redrive.sql import AMQP

    known = {kind for worker in alive for kind in worker.kinds}
    found = {row.kind: " and no live worker knows it" for row in due if row.kind not in known} if known else {}
    paused = {row.kind for row in kinds if row.paused}
    if relay and not relayed(alive) and "*" not in paused:
        found |= {row.kind: f"; it {NO_RELAY}" for row in kinds if row.route == AMQP and not row.paused}
    return found


def _look_at_due(
    due: list[Any], findings: Findings, max_age: float, nobody: dict[str, str], why: dict[str, str]
) -> None:
    findings.oldest_due = max((row.age for row in due), default=0.0)
    for row in due:
        if row.kind in nobody and row.age > min(PATIENCE, max_age):
            findings.found(f"kind {row.kind} is due for {screen.span(row.age)}{nobody[row.kind]}")
        elif row.age > max_age:
            reason = why.get("*") or why.get(row.kind)
            said = f"; the kind {reason}" if reason else ""
            findings.found(f"the oldest job of kind {row.kind} is due for {screen.span(row.age)}{said}")


def _leases(now: Session) -> dict[str, Any]:
    from redrive.reaper import OWN_NAME

    settings = now.queue.settings
    return {"own_name": OWN_NAME, "lease": settings.lease, "foreign_age": settings.foreign_lease}


def _masked(text: str) -> str:
    from redrive.masking import mask_text

    return mask_text(text)
