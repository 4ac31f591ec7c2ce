"""What comes of measuring: figures with a unit, spreads with their percentiles. Nothing here measures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True)
class Spread:
    """How a quantity was spread over the times that it was measured, in milliseconds."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True)
class Figure:
    """One thing that was measured."""

    key: str
    """Its name for scripts."""
    label: str
    """What it is, for humans."""
    value: float | Spread | None
    """None where this system does not say."""
    unit: str = ""


def percentile(ordered: Sequence[float], share: float) -> float:
    """Give the smallest of the *ordered* values that *share* of them do not exceed; NaN of nothing."""
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(seconds: Iterable[float]) -> Spread | None:
    """Sum up durations; None of nothing."""
    ordered = sorted(1000 * each for each in seconds)
    if not ordered:
        return None
    return Spread(len(ordered), *(percentile(ordered, share) for share in (0.5, 0.95, 0.99, 1.0)))


def middle(values: Iterable[float]) -> float:
    """Give the median, NaN of nothing."""
    return median(found) if (found := list(values)) else math.nan


def plain(figures: Iterable[Figure]) -> dict[str, Any]:
    """Give figures as JSON data by their keys; JSON knows no NaN."""
    return {figure.key: _plain(figure.value) for figure in figures}


def _plain(value: float | Spread | None) -> Any:
    if isinstance(value, Spread):
        return vars(value)
    return None if value is None or not math.isfinite(value) else value
