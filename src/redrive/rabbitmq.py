"""What ails the RabbitMQ that carries the kinds which are routed to it, for the doctor. Not looked at where none is."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

from redrive.amqp import management
from redrive.kinds import NO_TAKER, relayed, untaken
from redrive.words import counted, span

if TYPE_CHECKING:
    from redrive.amqp.management import Broker
    from redrive.diagnosis import Patient

TIMEOUT = 5.0
SETTLED = 600.0
"""Seconds after which what a job's row says and what is in its queues must agree."""


def check(patient: Patient) -> None:
    """Ask the management API, and put down what it tells."""
    queue = patient.queue
    with patient.reading() as conn:
        kinds = queue.kinds.list(connection=conn)
    routed, named = management.routed(kinds), bool(queue.settings.broker_management_url)
    if not routed and not named:
        return
    workers = patient.ask("list_workers")
    _relays(patient, routed, workers)
    now = management.seen(queue.settings, routed, {row.kind for row in kinds}, timeout=TIMEOUT)
    if now.why:
        remedy = "REDRIVE_BROKER_MANAGEMENT_URL=http://user:password@host:15672, of a user with the tag `monitoring`"
        (patient.bad if routed and named else patient.note)(now.why, remedy)
    elif all(not each.trouble for each in now.kinds):
        _vanished(patient, now)
    told = {each.kind for each in now.kinds if each.deserted}
    for kind in untaken(kinds, workers):
        if kind not in told:
            patient.bad(f"kind {kind} {NO_TAKER}", f"{queue.worker_command} --broker URL", kind=kind)
    for each in management.ails(now):
        seen = now.of(each.kind) if each.kind else None
        evidence = {} if seen is None else {"ready": seen.ready, "consumers": seen.consumers, "kind": seen.kind}
        (patient.bad if each.level == "bad" else patient.note)(each.text, each.remedy, **evidence)


def routed(patient: Patient) -> set[str]:
    """Find the kinds whose jobs go over a broker: no worker takes them from the table."""
    with patient.reading() as conn:
        return management.routed(patient.queue.kinds.list(connection=conn))


def _vanished(patient: Patient, now: Broker) -> None:
    """Find jobs whose rows say that they are at the broker, where nothing of their kind is."""
    for row in patient.ask("long_at_broker", age=SETTLED):
        there = now.of(row.kind)
        if there is None or not there.messages:
            what = f"{counted(row.jobs, 'job')} of kind {row.kind} went to the broker, the first {span(row.age)} ago"
            why = "was a queue purged, or does a policy throw messages away?"
            remedy = f"redrive requeue --at-broker --kind {quote(row.kind)}"
            patient.bad(f"{what}, and nothing of it is there: {why}", remedy, kind=row.kind, jobs=row.jobs)


def _relays(patient: Patient, routed: set[str], workers: list[Any]) -> None:
    due = [row for row in patient.ask("oldest_due") if row.kind in routed]
    if due and not relayed(workers):
        kinds = ", ".join(row.kind for row in due)
        patient.bad(
            f"no relay is alive, and jobs that go over the broker are due: of kind {kinds}",
            "redrive relay --broker-url URL",
            oldest=due[0].age,
        )
