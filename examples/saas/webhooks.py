"""Webhooks, by the standard library's http.client."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit


class NotDelivered(Exception):
    """The receiver did not take it, this time."""


@dataclass
class Call:
    """An event for a customer's system."""

    url: str
    event: str
    data: dict[str, Any]


@dataclass
class Answer:
    """What the receiver said."""

    status: int
    reason: str
    retry_after: float | None = None

    def __str__(self) -> str:
        return f"{self.status} {self.reason}"

    @property
    def ok(self) -> bool:
        """Whether it was taken."""
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES


def post(call: Call, *, idempotency_key: str) -> Answer:
    """Post *call* as JSON; the receiver tells a repeat by its Idempotency-Key."""
    target = urlsplit(call.url)
    kind = http.client.HTTPSConnection if target.scheme == "https" else http.client.HTTPConnection
    connection = kind(target.netloc, timeout=10)
    try:
        connection.request(
            "POST",
            target.path or "/",
            body=json.dumps({"event": call.event, **call.data}),
            headers={"Content-Type": "application/json", "Idempotency-Key": idempotency_key},
        )
        answer = connection.getresponse()
        answer.read()
        after = answer.headers.get("Retry-After", "")
        return Answer(answer.status, answer.reason, float(after) if after.isdecimal() else None)
    finally:
        connection.close()
