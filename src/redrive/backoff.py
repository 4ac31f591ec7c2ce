"""How long a failed job waits before its next attempt.

A back-off is any callable from the attempt that just failed (1, 2, 3...) to seconds. The four here are
values: they print as they are written and know their `bounds`, so ``redrive explain`` can show a schedule.
A back-off of the user's own may be wrong; it is never allowed to lose a job, see `seconds_until_retry`.
Nothing here sleeps or knows the time.
"""

from __future__ import annotations

import inspect
import logging
import math
import numbers
import random
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from datetime import timedelta
from decimal import Decimal
from typing import Any, TypeAlias

from redrive.errors import InvalidOption

Backoff: TypeAlias = Callable[[int], "float | timedelta"]

MIN_DELAY = 1.0
"""A delay of nothing becomes this, so that a job that fails at once cannot fill a worker's time."""

SHORTEST_DELAY = 0.1
"""Who asks for less than `MIN_DELAY` gets it, down to this."""

MAX_DELAY = 10 * 365 * 86400.0
"""Ten years, in seconds. A longer delay is a mistake, and would overflow a timestamp some day."""

_MAX_ATTEMPT = 10**6  # beyond it every curve here is flat, and no arithmetic below can overflow

_log = logging.getLogger("redrive")


@dataclass(frozen=True, repr=False)
class Curve:
    """What the four share: a delay as `raw` says, at most ``cap``, plus up to ``jitter`` s by chance."""

    _: KW_ONLY
    jitter: float = 0
    cap: float | None = None

    def __post_init__(self) -> None:
        """Refuse nonsense where it is written, not at the first failure at night."""
        for name, value in vars(self).items():
            for number in value if isinstance(value, tuple) else (value,):
                if number is not None and not _sane(number):
                    raise InvalidOption(f"{name}={_shown(number)}: pass seconds, 0 to {MAX_DELAY:.0f}")

    def __call__(self, attempt: int) -> float:
        """Draw the delay after *attempt*, in seconds."""
        return self._low(attempt) + random.uniform(0, self.jitter)

    def __repr__(self) -> str:
        given = [f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if not field.kw_only]
        given += [f"{name}={value!r}" for name in ("jitter", "cap") if (value := getattr(self, name))]
        return f"{type(self).__name__}({', '.join(given)})"

    def raw(self, attempt: int) -> float:
        """Say the delay before cap and jitter."""
        raise NotImplementedError

    def bounds(self, attempt: int) -> tuple[float, float]:
        """Say the shortest and the longest delay that may be drawn after *attempt*."""
        low = self._low(attempt)
        if self.jitter and not low:
            return SHORTEST_DELAY, _floor(self.jitter)
        return _floor(low), _floor(low + self.jitter)

    def _low(self, attempt: int) -> float:
        ceiling = MAX_DELAY - self.jitter
        raw = self.raw(min(max(attempt, 1), _MAX_ATTEMPT))
        return float(min(raw, ceiling if self.cap is None else min(self.cap, ceiling)))


# Lower-case classes, as functools.partial is one: what is written, printed and typed is the same name.


@dataclass(frozen=True, repr=False)
class quadratic(Curve):  # noqa: N801
    """Wait ``base * attempt ** 2`` seconds: 10, 40, 90, 160, 250, each plus up to 5. The default."""

    base: float = 10
    _: KW_ONLY
    jitter: float = 5

    def raw(self, attempt: int) -> float:
        """Say the delay before cap and jitter."""
        return self.base * attempt**2


@dataclass(frozen=True, repr=False)
class exponential(Curve):  # noqa: N801
    """Wait ``base * factor ** (attempt - 1)`` seconds, at most ``cap``: 10, 20, 40, 80... up to an hour."""

    base: float = 10
    factor: float = 2
    _: KW_ONLY
    jitter: float = 5
    cap: float | None = 3600

    def raw(self, attempt: int) -> float:
        """Say the delay before cap and jitter; the exponent is judged first, a power of it might overflow."""
        if self.base and self.factor > 1:
            growth = (attempt - 1) * math.log2(self.factor)
            if growth > min(math.log2(MAX_DELAY) - math.log2(self.base), 1000):
                return MAX_DELAY
        return self.base * self.factor ** (attempt - 1)


@dataclass(frozen=True, repr=False)
class fixed(Curve):  # noqa: N801
    """Wait the same number of seconds after every attempt."""

    seconds: float

    def raw(self, attempt: int) -> float:  # noqa: ARG002
        """Say the delay before jitter."""
        return self.seconds


@dataclass(frozen=True, init=False, repr=False)
class steps(Curve):  # noqa: N801
    """Wait the seconds of a list, one after the other; the last repeats."""

    seconds: tuple[float, ...]

    def __init__(self, *seconds: float, jitter: float = 0) -> None:
        """Take the delays in order: ``steps(1, 10, 60, 600)``."""
        if not seconds:
            raise InvalidOption("steps() of a back-off needs at least one delay, as in steps(1, 10, 60)")
        for name, value in (("seconds", seconds), ("jitter", jitter), ("cap", None)):
            object.__setattr__(self, name, value)
        self.__post_init__()

    def __repr__(self) -> str:
        given = [repr(seconds) for seconds in self.seconds] + [f"jitter={self.jitter!r}"] * bool(self.jitter)
        return f"steps({', '.join(given)})"

    def raw(self, attempt: int) -> float:
        """Say the delay before jitter."""
        return self.seconds[min(attempt, len(self.seconds)) - 1]


def seconds_until_retry(backoff: Backoff, attempt: int) -> float:
    """Ask *backoff* for the delay after *attempt*, and never come back without a usable one.

    A back-off that raises, or answers None, NaN, a negative or infinite number, no number at all or more than
    `MAX_DELAY`, is logged once per call and replaced by the default: a bug in it must not lose the job.
    A timedelta is taken as its seconds. Nothing becomes `MIN_DELAY`, a little becomes `SHORTEST_DELAY`.
    """
    answer: Any = None
    try:
        answer = backoff(attempt)
        if _sane(answer):
            return _floor(_number(answer))
        problem = f"it returned {_shown(answer)}"
        if inspect.iscoroutine(answer):
            answer.close()
            problem = "it is an async function"
    except BaseException as error:  # noqa: BLE001 - whatever the user's code does, the job is rescheduled
        problem = f"it raised {type(error).__name__}: {_shown(error, str)}"
    _log.warning(
        "back-off is unusable, falling back to the default: %s",
        problem,
        extra={"backoff": _shown(backoff), "attempt": attempt, "problem": problem},
    )
    return _floor(DEFAULT(attempt))


def clamp_delay(seconds: float | timedelta) -> float:
    """Bring a delay that a handler asked for into range; never less than asked, but for the ten years' limit.

    For ``Retry(after=...)`` and ``Snooze(...)``: below zero counts as nothing, and what is no finite number
    (those two refuse it already) becomes the shortest delay of the default back-off.
    """
    try:
        number = _number(seconds)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    return _floor(min(max(number, 0.0), MAX_DELAY)) if math.isfinite(number) else DEFAULT.bounds(1)[0]


def bounds(backoff: Backoff, attempt: int) -> tuple[float, float]:
    """Say the shortest and the longest delay after *attempt*; of a plain callable, the one it answers now."""
    if isinstance(backoff, Curve):
        return backoff.bounds(attempt)
    seconds = seconds_until_retry(backoff, attempt)
    return seconds, seconds


def _floor(seconds: float) -> float:
    return max(seconds, SHORTEST_DELAY) if seconds > 0 else MIN_DELAY


def _number(value: Any) -> float:
    """Read seconds from a timedelta or any real number; a text of digits or a bool is a mistake."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (numbers.Real, Decimal)):
        raise TypeError(value)
    return float(value)


def _sane(value: Any) -> bool:
    try:
        return 0 <= _number(value) <= MAX_DELAY
    except (TypeError, ValueError, OverflowError):
        return False


def _shown(value: Any, show: Callable[[Any], str] = repr) -> str:
    try:
        return show(value)[:200]
    except Exception:  # noqa: BLE001 - a repr that raises must not hide the fault it belongs to
        return f"<unprintable {type(value).__name__}>"


DEFAULT = quadratic()
"""The tutorial's: 10, 40, 90, 160, 250 seconds, each plus up to 5 by chance."""
