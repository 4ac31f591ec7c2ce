"""A job on its way over a broker: as a row that the relay takes off the table, and as the message that carries it.

Body is the payload's JSON text. What the job's row would need to come home stands in headers, and what is as usual is
left out. No broker here.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from redrive.job import EPOCH, ClaimedJob, Holder, moment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
        """The payload, as it is sent."""
        return str(self._payload).encode()

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
            "metadata": self._metadata,
            "expires": self.expires,
            "suspect": self.suspect,
            "kept": self.kept,
        }
        unusual = {name: value for name, value in said.items() if value != USUAL[name]}
        if self.breakers:
            unusual["breakers"] = self.breakers
        return unusual | {"due": self.due, "created": self._created}


def opened(holder: Holder, job_id: int, kind: str, body: bytes, headers: Mapping[str, Any]) -> Parcel:
    """Read a message.

    Raises:
        KeyError, TypeError, ValueError: for one that no redrive has sent.
    """
    said = USUAL | dict(headers)
    expires = said["expires"]
    row = (
        job_id,
        kind,
        body.decode(),
        int(said["attempt"]),
        int(said["max_attempts"]),
        int(said["claim"]),
        int(said["crashes"]),
        int(said["priority"]),
        str(said["lane"]),
        int(said["due"]),
        int(said["created"]),
        None if said["metadata"] is None else str(said["metadata"]),
        _seconds_until(expires),
    )
    return Parcel(holder, (*row, expires, bool(said["suspect"]), bool(said["kept"])))


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


def _seconds_until(microseconds: int | None) -> float | None:
    if microseconds is None or microseconds == _NEVER:
        return None
    return -1.0 if microseconds == _EVER else microseconds / 1e6 + _EPOCH - time.time()


def _spelt(microseconds: int) -> str:
    if microseconds in (_NEVER, _EVER):
        return "infinity" if microseconds == _NEVER else "-infinity"
    return moment(microseconds).isoformat()
