"""Signatures of webhooks, as Standard Webhooks has them: HMAC-SHA256 over id, time and body. For senders and receivers.

A receiver calls :func:`verify` on the body as it came, before it is parsed. Nothing here remembers what was received:
telling a repeat by the id is for the receiver.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from redrive.errors import InvalidOption

PREFIX = "whsec_"
ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
TOLERANCE = 300.0
"""Seconds that a signature may be old, or ahead."""
SHORTEST, LONGEST = 24, 64
"""Bytes of a secret."""

Secret = str | bytes
"""Text as ``whsec_`` and base64, or the bytes themselves."""


class InvalidSignature(Exception):
    """This was not signed by who has the secret, or not lately: answer 400, and do nothing."""


@dataclass(frozen=True)
class Received:
    """A webhook whose signature is right."""

    id: str
    """The same at every attempt: what was done for it once need not be done again."""
    sent_at: datetime


def new_secret() -> str:
    """Make a secret, to be given to one receiver."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def keys(given: Secret | Iterable[Secret]) -> tuple[bytes, ...]:
    """Read one secret, or several where they are being changed.

    Raises:
        InvalidOption: when it can't be one; the secret itself is not in the message.
    """
    several = (given,) if isinstance(given, str | bytes) else tuple(given)
    if not several:
        raise InvalidOption("no secret is given; redrive.senders.signature.new_secret() makes one")
    return tuple(map(_key, several))


def sign(secret: Secret | Iterable[Secret], webhook_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Give the three headers; with several secrets there is a signature of each."""
    said = f"{webhook_id}.{timestamp}.".encode() + body
    signatures = " ".join("v1," + _signature(key, said) for key in keys(secret))
    return {ID: webhook_id, TIMESTAMP: str(timestamp), SIGNATURE: signatures}


def verify(
    body: bytes | str,
    headers: Mapping[str, str],
    secret: Secret | Iterable[Secret],
    *,
    tolerance: float = TOLERANCE,
    now: float | None = None,
) -> Received:
    """Check a webhook that came: *body* as it came, *headers* in any case; one of several secrets is enough.

    Raises:
        InvalidSignature: saying why.
    """
    low = {str(name).lower(): str(value) for name, value in headers.items()}
    webhook_id, said_at, signatures = (low.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE))
    try:
        content = body.encode() if isinstance(body, str) else body
        said = f"{webhook_id}.{said_at}.".encode() + content
    except UnicodeEncodeError:  # bytes of a stranger's, as some frameworks read them
        raise InvalidSignature("what came is no text") from None
    if not (webhook_id and said_at and signatures):
        raise InvalidSignature(f"there must be the headers {ID}, {TIMESTAMP} and {SIGNATURE}")
    if not (said_at.isascii() and said_at.isdecimal() and len(said_at) <= 12):  # noqa: PLR2004 - till the year 33658
        raise InvalidSignature(f"{TIMESTAMP} is {said_at!r:.40}: no time in seconds")
    sent_at, clock = int(said_at), time.time() if now is None else now
    if abs(clock - sent_at) > tolerance:
        late = "old" if sent_at < clock else "ahead: is this machine's clock right?"
        raise InvalidSignature(f"it was signed {abs(clock - sent_at):.0f} s {late}")
    right = [_signature(key, said).encode() for key in keys(secret)]
    given = [
        value.encode(errors="replace")
        for version, _, value in (each.partition(",") for each in signatures.split())
        if version == "v1"
    ]
    # every pair is compared, so that the time it takes tells nothing
    if not any([hmac.compare_digest(one, other) for one in given for other in right]):  # noqa: C419 - as said
        raise InvalidSignature("no signature is right")
    return Received(webhook_id, datetime.fromtimestamp(sent_at, UTC))


def _signature(key: bytes, said: bytes) -> str:
    return base64.b64encode(hmac.digest(key, said, hashlib.sha256)).decode()


def _key(secret: Secret) -> bytes:
    if isinstance(secret, bytes):
        key = secret
    else:
        try:
            key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
        except (binascii.Error, ValueError, AttributeError) as error:
            raise InvalidOption(f"a secret is text like {PREFIX}… in base64, or bytes") from error
    if not SHORTEST <= len(key) <= LONGEST:
        raise InvalidOption(f"a secret has {len(key)} bytes: must be {SHORTEST} to {LONGEST}; new_secret() makes one")
    return key
