"""What things at the broker are called: a queue for each kind and band, that of strays, the exchange of topics.

Names alone, so that who only looks, or counts, needs no extra. Two kinds never share a queue.
"""

from __future__ import annotations

import hashlib
import re

LONGEST_NAME = 200
"""Bytes; AMQP takes 255."""
BANDS = (".high", "", ".low")
"""A queue each: priorities before the usual one, the usual, and those after it."""
USUAL_PRIORITY = 5
_HASH = 32
_ODD = re.compile(r"[^a-zA-Z0-9_.:@#,/+ -]")
"""What AMQP's specification, or a library that keeps to it, lets no queue and no exchange be called."""
_STRAYS = "strays"


def queue_name(schema: str, kind: str, priority: int = USUAL_PRIORITY) -> str:
    """Name the queue of a kind's jobs of a priority."""
    return base_name(schema, kind) + BANDS[band(priority)]


def band(priority: int) -> int:
    """Give the place in :data:`BANDS` of a priority."""
    return (priority > USUAL_PRIORITY) - (priority < USUAL_PRIORITY) + 1


def queue_names(schema: str, kind: str) -> list[str]:
    """Name all queues of a kind, those of the smaller priorities first."""
    return [base_name(schema, kind) + band for band in BANDS]


def base_name(schema: str, kind: str) -> str:
    """Name the queue of a kind's jobs of the usual priority; those of the bands begin with it."""
    name = f"{prefix(schema)}{kind}"
    # as it stands it could be the queue of another kind: of a band of `mail`, or of `a.b` in a schema with a dot
    doubtful = kind == _STRAYS or kind.endswith((".high", ".low")) or "." in schema or _ODD.search(kind)
    if not doubtful and len(name.encode()) <= LONGEST_NAME:
        return name
    return _marked(name, schema, kind)


def strays_name(schema: str) -> str:
    """Name the queue of messages that are no jobs."""
    name = f"{prefix(schema)}{_STRAYS}"
    return name if "." not in schema else _marked(name, schema, "")  # no kind has an empty name


def _marked(name: str, schema: str, kind: str) -> str:
    mark = hashlib.sha256(f"{schema}\0{kind}".encode()).hexdigest()[:_HASH]
    return f"{_ODD.sub('_', name)[: LONGEST_NAME - _HASH - 1]}.{mark}"


def exchange_name(schema: str) -> str:
    """Name the exchange to which what is published on topics goes for other services."""
    return f"{prefix(schema)}topics"


def prefix(schema: str) -> str:
    """Give what all names of an installation begin with."""
    if _ODD.search(schema):
        schema = f"{_ODD.sub('_', schema)}-{hashlib.sha256(schema.encode()).hexdigest()[:_HASH]}"
    return f"redrive.{schema}."
