"""A job on its way over a broker: as a row that the relay takes off the table, and as the message that carries it.

Body is the payload's JSON text. What the job's row would need to come home stands in headers, and what is as usual is
left out. All headers of a message have to fit in one frame, of 128 kB unless somebody says less: a broker that gets a
larger one ends the connection, with all that is on its way. So what may be long is not among them. No broker here.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.job import EPOCH, ClaimedJob, Holder, moment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_NEVER, _EVER = 2**63 - 1, -(2**63)
"""The times infinity and -infinity, as Postgres sends them."""
_EPOCH = EPOCH.timestamp()
USUAL: dict[str, Any] = {
    "attempt": 1,
    "max_attempts": 5,
    "claim": 1,
    "crashes": 0,
    "priority": 5,
    "lane": "",
    "metadata": None,
    "expires": None,
    "suspect": False,
    "kept": False,
}
"""Headers that a message has only where they say something else."""
LONGEST_TYPE = 255
"""Bytes that AMQP takes as the type of a message: a longer kind is a header."""
LONGEST_METADATA = 30_000
"""Bytes of metadata that are a header; longer, it follows the payload in the body."""
LONGEST_BREAKERS = 15_000
"""Bytes of what is said of breakers; where there is more of it, workers hear it from the table."""
PORTION = 1_000_000
"""Bytes of payloads that are sent, and confirmed, together."""
_quick_read = msgspec.json.Decoder().decode
_INTEGER = (-(2**31), 2**31 - 1)
_NUMBERS = {
    "attempt": _INTEGER,
    "max_attempts": _INTEGER,
    "claim": _INTEGER,
    "crashes": _INTEGER,
    "priority": (0, 9),
}
"""For what the table has room."""


class Parcel(ClaimedJob):
    """A job that is, or was, at a broker."""

    expires: int | None
    """expires_at, in microseconds since 2000."""
    suspect = False
    """It may have killed its worker: to be run with nothing beside it."""
    kept = False
    """Its row stands in the table, and waits for its end."""
    home = False
    """It has come home: this worker holds it by its row, and its message is acknowledged."""
    homing = False
    """It may have come home, while it runs."""
    breakers = ""
    """Which breakers are not closed, as JSON, where its kind has one of them: a worker at the broker hears it so."""
    tag: tuple[int, int] | None = None
    """By which its message is acknowledged: which channel of this process, and the delivery on that."""
    message: Any = None
    """The message itself, where it may have to be moved to the strays."""

    def __init__(self, holder: Holder, row: Sequence[Any]) -> None:
        """Take a row of a claim that sends, or what :func:`opened` makes of a message."""
        *job, self.expires, suspect, kept = row
        super().__init__(holder, job)
        if suspect:
            self.suspect = True
        if kept:
            self.kept = True

    @property
    def body(self) -> bytes:
        """The payload, as it is sent, and the metadata where that is long."""
        return self.payload_sent + (str(self._metadata).encode() if self._long else b"")

    @property
    def payload_sent(self) -> bytes:
        """The payload alone."""
        return str(self._payload).encode()

    @property
    def message_type(self) -> str | None:
        """The kind, where AMQP has room for it."""
        return self.kind if len(self.kind.encode()) <= LONGEST_TYPE else None

    @property
    def _long(self) -> bool:
        return self._metadata is not None and len(self._metadata.encode()) > LONGEST_METADATA

    @property
    def headers(self) -> dict[str, Any]:
        """What is to be known beside the payload."""
        said = {
            "attempt": self.attempt,
            "max_attempts": self.max_attempts,
            "claim": self.claim,
            "crashes": self.crashes,
            "priority": self.priority,
            "lane": self.lane,
            "metadata": None if self._long else self._metadata,
            "expires": self.expires,
            "suspect": self.suspect,
            "kept": self.kept,
        }
        unusual = {name: value for name, value in said.items() if value != USUAL[name]}
        if self.breakers and len(self.breakers.encode()) <= LONGEST_BREAKERS:
            unusual["breakers"] = self.breakers
        if self.message_type is None:
            unusual["kind"] = self.kind
        if self._long:
            unusual["payload_size"] = len(self.payload_sent)
        return unusual | {"due": self.due, "created": self._created}


def opened(
    holder: Holder,
    job_id: int,
    kind: str | None,
    body: bytes,
    headers: Mapping[str, Any],
    *,
    ahead: float | None = None,
) -> Parcel:
    """Read a message; *kind* is its type, and stands in its headers where it is long.

    Deadlines are by the database's clock, in seconds since 1970, which is *ahead* of this process' monotonic one by so
    much; where that is not known, this machine's own is taken.

    Raises:
        KeyError, TypeError, ValueError: for one that no redrive has sent.
    """
    said = USUAL | dict(headers)
    if "payload_size" in said:
        size = int(said["payload_size"])
        body, said["metadata"] = body[:size], body[size:].decode()
    if kind is None:
        kind = str(said["kind"])
    _check(job_id, said)
    payload = body.decode()
    _check_json(payload)
    expires = said["expires"]
    row = (
        job_id,
        kind,
        payload,
        int(said["attempt"]),
        int(said["max_attempts"]),
        int(said["claim"]),
        int(said["crashes"]),
        int(said["priority"]),
        str(said["lane"]),
        int(said["due"]),
        int(said["created"]),
        None if said["metadata"] is None else str(said["metadata"]),
        _seconds_until(expires, time.time() if ahead is None else ahead + time.monotonic()),
    )
    return Parcel(holder, (*row, expires, bool(said["suspect"]), bool(said["kept"])))


def portions(parcels: Sequence[Parcel]) -> Iterator[list[Parcel]]:
    """Divide what is to be sent into what may go at once: of any size each, it may be more than a way takes in time."""
    some: list[Parcel] = []
    size = 0
    for each in parcels:
        size += len(each.body)
        if some and size > PORTION:
            yield some
            some, size = [], len(each.body)
        some.append(each)
    if some:
        yield some


def _check(job_id: int, said: Mapping[str, Any]) -> None:
    """Refuse what the table has no room for: such a job could not come home."""
    for name, (least, most) in _NUMBERS.items():
        if said[name] != USUAL[name] and not least <= int(said[name]) <= most:
            raise ValueError(f"its header {name} is not from {least} to {most}")
    times = (said["due"], said["created"], said["expires"] or 0)
    if not all(_EVER <= int(each) <= _NEVER for each in (job_id, *times)):
        raise ValueError("a number in it has more than 64 bits")
    if "\0" in str(said["lane"]):
        raise ValueError("its header lane has a NUL")
    if said["metadata"] is not None:
        _check_json(str(said["metadata"]))


def _check_json(text: str) -> None:
    """Refuse what is none; what Postgres takes and Python can't hold is for the handler to fail over."""
    try:
        _quick_read(text)
    except (msgspec.MsgspecError, RecursionError):
        with contextlib.suppress(RecursionError):
            json.loads(text, parse_int=str)


def of_home(parcels: Sequence[Parcel]) -> dict[str, Any]:
    """Give parcels as the arrays of ``come_home``."""
    return {
        "ids": [each.id for each in parcels],
        "kinds": [each.kind for each in parcels],
        "payloads": [each._payload for each in parcels],  # noqa: SLF001 - its text, of our own class
        "attempts": [each.attempt for each in parcels],
        "max_attempts": [each.max_attempts for each in parcels],
        "claims": [each.claim for each in parcels],
        "crashes": [each.crashes for each in parcels],
        "priorities": [each.priority for each in parcels],
        "lanes": [each.lane for each in parcels],
        "due": [_spelt(each.due) for each in parcels],
        "created": [_spelt(each._created) for each in parcels],  # noqa: SLF001 - as above
        "metadata": [each._metadata for each in parcels],  # noqa: SLF001 - as above
        "expires": [None if each.expires is None else _spelt(each.expires) for each in parcels],
        "kept": [each.kept for each in parcels],
        "alone": [each.suspect for each in parcels],
    }


def now() -> int:
    """Give the time by this machine's clock, in microseconds since 2000."""
    return int((time.time() - _EPOCH) * 1e6)


def _seconds_until(microseconds: int | None, clock: float) -> float | None:
    if microseconds is None or microseconds == _NEVER:
        return None
    return -1.0 if microseconds == _EVER else microseconds / 1e6 + _EPOCH - clock


def _spelt(microseconds: int) -> str:
    if microseconds in (_NEVER, _EVER):
        return "infinity" if microseconds == _NEVER else "-infinity"
    return moment(microseconds).isoformat()
