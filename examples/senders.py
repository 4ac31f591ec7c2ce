"""A mail and a webhook for each order, by the ready senders: `DATABASE_URL=... python senders.py ada@example.com`.

SMTP_URL is the mail server, WEBHOOK_URL the customer's system and WEBHOOK_SECRET what it knows us by.
"""

from __future__ import annotations

import os
import sys

import psycopg

from redrive import Queue
from redrive.senders.email import Attachment, Email, Mail, files
from redrive.senders.smtp import Smtp
from redrive.senders.webhook import Delivery, Gone, Webhook

queue = Queue()


def switch_off(gone: Gone) -> None:
    """Note that a customer's system wants no more, as an application would in its own table."""
    print(f"{gone.delivery.endpoint} is switched off")


email = Email(
    "Paperplane <billing@paperplane.example>",
    Smtp.of_url(os.environ["SMTP_URL"]),
    attach=files(os.environ.get("INVOICES", ".")),
).register(queue, "email")

webhook = Webhook(
    os.environ["WEBHOOK_SECRET"],
    allow=os.environ.get("WEBHOOK_ALLOW", "").split(),  # such as 127.0.0.0/8, to try it on this machine
    on_gone=switch_off,
).register(queue, "webhook")


def place_order(number: int, address: str, url: str) -> None:
    """Take an order: what follows from it is enqueued in its own transaction."""
    receipt = Mail(address, f"Your order {number}", "Thank you.", attachments=[Attachment(f"invoice-{number}.txt")])
    event = Delivery(url, {"order": number}, type="order.placed", endpoint=f"customer of {address}")
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        email.enqueue(receipt, connection=connection)
        webhook.enqueue(event, connection=connection)


if __name__ == "__main__":
    place_order(7, sys.argv[1], os.environ["WEBHOOK_URL"])
    queue.run(once=True)
