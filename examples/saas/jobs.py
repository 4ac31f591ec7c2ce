"""The background jobs: a queue and three handlers. ``redrive worker saas.jobs:queue`` runs them."""

from __future__ import annotations

import os
from http import HTTPStatus

from redrive import Breaker, ClaimedJob, Dead, Queue, Retry
from redrive.backoff import exponential
from saas import invoices, mail, webhooks

queue = Queue()  # DATABASE_URL says where

FIRST_RETRY = float(os.environ.get("SAAS_FIRST_RETRY", "10"))
patiently = exponential(FIRST_RETRY, 1.5, jitter=FIRST_RETRY / 4)
breaker = Breaker(probe_every=FIRST_RETRY / 2)  # while the mail server is down


@queue.handler(
    "send_email", max_attempts=8, timeout=60, priority=3, backoff=patiently, breaker=breaker, dead_on=mail.Refused
)
def send_email(message: mail.Message, job: ClaimedJob) -> str:
    """Send a mail. A busy server is asked again later; an address that it refuses is for a human to put right."""
    return mail.send(message, message_id=job.idempotency_key)


@queue.handler("call_webhook", max_attempts=8, timeout=30, backoff=patiently)
def call_webhook(call: webhooks.Call, job: ClaimedJob) -> str:
    """Tell a customer's system what happened, in the words of HTTP: each answer says whether to come again."""
    answer = webhooks.post(call, idempotency_key=job.idempotency_key)
    if answer.status == HTTPStatus.GONE:
        raise Dead(f"{answer}: the customer has closed this address")
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS and answer.retry_after:
        raise Retry(str(answer), after=answer.retry_after)
    if not answer.ok:
        raise webhooks.NotDelivered(str(answer))
    return str(answer)


@queue.handler("export_invoice", max_attempts=3, timeout=300, backoff=patiently)
def export_invoice(invoice: invoices.Invoice, job: ClaimedJob) -> str:
    """Write an invoice's PDF. Written anew by every try and moved into place at the end: twice is as good as once."""
    for page, pages in invoices.write(invoice):
        job.progress({"page": page, "pages": pages})
        if job.should_stop:  # the worker is going: another one starts over
            return ""
    path = invoices.path(invoice)
    return f"{path.name}, {path.stat().st_size / 1024:.0f} kB"
