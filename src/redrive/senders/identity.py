"""By what name a receiver tells a repeat: the same at every attempt of a job."""

from __future__ import annotations

import hashlib
import re

from redrive.job import ClaimedJob

_SAFE = re.compile(r"[A-Za-z0-9_-]{1,120}")


def identity(job: ClaimedJob) -> str:
    """Give the job's idempotency key, or a hash of it where it would not do in a header."""
    key = job.idempotency_key
    return key if _SAFE.fullmatch(key) else f"msg_{hashlib.sha256(key.encode()).hexdigest()[:40]}"
