"""What happens in the demo, in order. The parts can do more; the story only pulls their strings."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from redrive.ended import Ended
from redrive.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from redrive.demo.account import Account
    from redrive.demo.stage import Stage

UNKNOWN = "dee@dronse.example"
CLOSED = "/cobalt"
DELAY = 6.0
PATIENCE = 90.0
"""Seconds that a scene may take on a machine with much else to do."""
READING = 3.0
"""Seconds that a caption stands at least."""
ORDERS: tuple[dict[str, Any], ...] = (
    {"number": 1001, "customer": "Ada's Antiques", "email": "ada@antiques.example", "webhook": "/antiques"},
    {
        "number": 1002,
        "customer": "Borealis",
        "email": "bo@borealis.example",
        "webhook": "/borealis",
        "logo_pixels": 900_000_000,
    },
    {"number": 1003, "customer": "Cobalt Coffee", "email": "cy@cobalt.example", "webhook": CLOSED, "lines": 800},
    {"number": 1004, "customer": "Delta Drones", "email": UNKNOWN, "webhook": "/drones"},
)
FIXES = (
    ("send_email", "550", f"the mailbox {UNKNOWN} is opened"),
    ("call_webhook", "410", f"the customer opens {CLOSED} again"),
    ("export_invoice", "poison", "the release that can draw large logos is deployed"),
)


class CalledOff(Exception):
    """The customer has changed their mind."""


def play(stage: Stage) -> Account:
    """Play it all, and reckon up."""
    orders_come_in(stage)
    everything_fails(stage)
    the_dead_are_seen(stage)
    the_fix(stage)
    account = stage.settle()
    if account.lost:
        lost = counted(len(account.lost), "job was", "jobs were")
        stage.scene(f"{lost} lost.", "This must not happen: please report it, with the lines above.")
    elif account.unfinished:
        left = counted(len(account.unfinished), "job is", "jobs are")
        stage.scene(
            f"Nothing was lost; {left} not done.",
            "The table has them, with their reasons. A machine with much else to do makes living workers look dead.",
        )
    else:
        stage.scene("Nothing was lost.", "What was enqueued, what the table says and what arrived agree.")
    stage.show()
    return account


def orders_come_in(stage: Stage) -> None:
    """Enqueue, each order in a transaction of its own; one is rolled back."""
    stage.scene(
        "Orders come in.", "Each is one transaction: its row, a mail, a webhook and a PDF, all of it or nothing."
    )
    stage.shop.install(stage.connection)
    for order in ORDERS:
        taken = _place(stage, order)
        stage.enqueued |= {job.id for job in taken}
        jobs = counted(len(taken), "job")
        stage.journal.tell("shop", f"order {order['number']} of {order['customer']}: {jobs}", "work")
        stage.pause(0.4)
    with suppress(CalledOff), stage.connection.transaction():
        _place(stage, {**ORDERS[0], "number": 1005})
        raise CalledOff
    stage.journal.tell("shop", "order 1005 is rolled back: its jobs never were", "work")
    reminder = stage.shop.remind(stage.connection, "eve@trial.example", after=timedelta(seconds=DELAY))
    stage.enqueued.add(reminder.id)
    stage.journal.tell("shop", f"a reminder, to be sent in {DELAY:.0f} s", "work")
    first, second = (stage.shop.report(stage.connection, "team@paperplane.example") for _ in range(2))
    stage.enqueued |= {first.id, second.id}
    stage.journal.tell("shop", f"today's report, asked for twice: one job, {second.id}, by its key", "work")


def everything_fails(stage: Stage) -> None:
    """Let it run until nothing moves any more."""
    stage.scene(
        "Everything fails.",
        "The mail server answers 421, the webhooks' receiver 502. The jobs come again, each time a little later.",
    )
    stage.pause(READING)
    if stage.until(lambda: stage.crew.deaths > 0, 15):
        stage.scene(
            "One job kills its worker.",
            f"Invoice 1002 does: no exception, no log line. After its lease, {stage.lease:g} s, the worker's jobs are "
            "taken back, the innocent ones too, and each runs alone: so it shows who is to blame.",
        )
        stage.pause(READING)
    stage.until(lambda: stage.board.count("succeeded", "dead", "failed") == len(stage.enqueued), PATIENCE)


def the_dead_are_seen(stage: Stage) -> None:
    """Leave a moment to read."""
    dead = stage.board.count("dead")
    stage.scene(
        f"All that could succeed has; {counted(dead, 'job is', 'jobs are')} dead.",
        "Not gone: each waits in plain sight, with its reason, for somebody to mend what no retry can.",
    )
    stage.pause(READING)


def the_fix(stage: Stage) -> None:
    """Mend the causes and send the dead back."""
    stage.scene("The fix, and back they go.", "Causes first, then `redrive requeue`: a fresh budget, the history kept.")
    # It takes effect when the new workers are there.
    stage.crew.deploy({"SAAS_SMALL_LOGOS": "1"}, "--lease", f"{stage.calm_lease:g}")
    mend: tuple[Callable[[], object], ...] = (
        lambda: stage.smtp.open_mailbox(UNKNOWN),
        lambda: stage.endpoint.reopen(CLOSED),
        lambda: stage.until(lambda: stage.crew.all_working, PATIENCE),
    )
    for (kind, error, said), mended in zip(FIXES, mend, strict=True):
        mended()
        stage.journal.tell("human", said, "work")
        stage.pause(0.6)
        _send_back(stage, f"--kind {kind} --error {error}", Ended(kind=kind, error=error))
        stage.pause(0.6)
    if any("poison" in (card.job.last_error or "") for card in stage.board.of("dead")):
        stage.journal.tell("human", "the others are innocent: this machine starved their workers", "work")
        _send_back(stage, "--error poison", Ended(error="poison"))
    stage.until(lambda: stage.board.count("succeeded") == len(stage.enqueued), PATIENCE)


def _send_back(stage: Stage, said: str, which: Ended) -> None:
    sent = stage.queue.requeue(which)
    stage.journal.tell("human", f"redrive requeue {said}: {len(sent)} sent back", "work")
    stage.board.requeued(sent)


def _place(stage: Stage, order: dict[str, Any]) -> list[Any]:
    whole = stage.shop.Order(**{**order, "webhook": stage.endpoint.url + order["webhook"]})
    placed: list[Any] = stage.shop.place(stage.connection, whole)
    return placed
