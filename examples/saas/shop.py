"""The web side: an order is written, and what must follow from it is enqueued, in one transaction."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from saas.invoices import Invoice
from saas.jobs import call_webhook, export_invoice, send_email
from saas.mail import Message
from saas.webhooks import Call

if TYPE_CHECKING:
    import psycopg

    from redrive import Enqueued

TABLES = """
CREATE TABLE IF NOT EXISTS orders (
    number   int PRIMARY KEY,
    customer text NOT NULL,
    email    text NOT NULL,
    lines    int NOT NULL CHECK (lines > 0)
)
"""


@dataclass
class Order:
    """What a customer has ordered."""

    number: int
    customer: str
    email: str
    webhook: str
    lines: int = 600
    logo_pixels: int = 250_000


def install(connection: psycopg.Connection[Any]) -> None:
    """Make the shop's own table, in the database that also holds its jobs."""
    connection.execute(TABLES)


def place(connection: psycopg.Connection[Any], order: Order) -> list[Enqueued]:
    """Take an order: its row, its mail, its webhook and its PDF are one commit, or none of them ever was."""
    with connection.transaction():
        connection.execute(
            "INSERT INTO orders (number, customer, email, lines) VALUES (%s, %s, %s, %s)",
            (order.number, order.customer, order.email, order.lines),
        )
        receipt = Message(order.email, f"Your order {order.number}", f"Thank you, {order.customer}.")
        call = Call(order.webhook, "order.placed", {"order": order.number, "lines": order.lines})
        invoice = Invoice(order.number, order.customer, order.lines, order.logo_pixels)
        return [
            send_email.enqueue(receipt, connection=connection),
            call_webhook.enqueue(call, connection=connection),
            export_invoice.enqueue(invoice, connection=connection),
        ]


def remind(connection: psycopg.Connection[Any], email: str, *, after: timedelta) -> Enqueued:
    """Send a reminder later: a job whose time has not come, no scheduler."""
    reminder = Message(email, "Your trial ends tomorrow")
    return send_email.enqueue(reminder, delay=after, connection=connection)


def report(connection: psycopg.Connection[Any], email: str) -> Enqueued:
    """Send today's report: as often as it is asked for, one job waits or runs, which is what its key says."""
    today = datetime.now(UTC).date()
    return send_email.enqueue(Message(email, f"Orders of {today}"), key=f"report:{today}", connection=connection)
