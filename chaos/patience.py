"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(predicate: Callable[[], T | None], seconds: float = 10, every: float = 0.02) -> T:
    """Poll until *predicate* is true and return its value; fail with the last one after *seconds*.

    Raises:
        AssertionError: when the condition did not come about.
    """
    end = time.monotonic() + seconds
    while not (value := predicate()):
        if time.monotonic() > end:
            raise AssertionError(f"after {seconds} s still {value!r}")
        time.sleep(every)
    return value
