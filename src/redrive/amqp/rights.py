"""What a user of the broker may not have: the kind concerned waits, is told of, and is asked for at growing intervals.

RabbitMQ ends the whole channel over one right that is missing. So it is remembered here who was denied what, and that
is not asked for where it would cost the other kinds anything.
"""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from aiormq.exceptions import ChannelAccessRefused, ChannelNotFoundEntity

from redrive.errors import NoBroker

ASK_AGAIN, ASK_AGAIN_MOST = 15.0, 300.0
"""Seconds until what was denied is asked for again: at first, and at most; each time twice as long."""
REMEDY = (
    ": the user wants the rights to configure and read ^redrive\\. and to write to ^(redrive\\.|amq\\.default$), "
    "see `rabbitmqctl set_permissions`"
)

_log = logging.getLogger("redrive")


class Withheld(NoBroker):
    """The broker is there, and the queues of one kind can't be had."""


class Forbidden(Withheld):
    """This user may not."""


class Missing(Withheld):
    """There is no such thing."""


def said(error: BaseException) -> str:
    """Give an error in one line."""
    text = " ".join(str(error).split())
    return type(error).__name__ + (f": {text}" if text else "")


def refusal(what: str, error: BaseException) -> Withheld:
    """Make of an *error* of a channel what is to be told."""
    if isinstance(error, ChannelAccessRefused):
        return Forbidden(f"{what}: {said(error)}{REMEDY}")
    return (Missing if isinstance(error, ChannelNotFoundEntity) else Withheld)(f"{what}: {said(error)}")


class _Denial(NamedTuple):
    why: str
    again: float
    """When to ask, by the monotonic clock."""
    pause: float
    over: bool
    """Whether it was given when it was asked for last, and has not been used yet."""


class Denied:
    """The kinds that one connection can't have."""

    def __init__(self) -> None:
        self._denials: dict[str, _Denial] = {}
        self._proven: set[str] = set()
        self._doubtful = False

    @property
    def kinds(self) -> set[str]:
        """Those that wait."""
        return {kind for kind, denial in self._denials.items() if not denial.over}

    @property
    def told(self) -> str:
        """Say what waits and why; empty where nothing does."""
        return "; ".join(f"jobs of {kind} wait: {self._denials[kind].why}" for kind in sorted(self.kinds))

    def waits(self, kind: str) -> bool:
        """Whether it is too early to ask for this kind again."""
        denial = self._denials.get(kind)
        return denial is not None and not denial.over and time.monotonic() < denial.again

    def doubts(self, kind: str) -> bool:
        """Whether to ask aside before the queues of this kind are read: some right is missing, and maybe this one."""
        return self._doubtful and kind not in self._proven

    def add(self, kind: str, why: Withheld) -> None:
        """Note that a kind can't be had, and say so where it is new."""
        before = self._denials.get(kind)
        pause = ASK_AGAIN if before is None else min(ASK_AGAIN_MOST, 2 * before.pause)
        if before is None or before.why != str(why):
            _log.warning("jobs of %s wait: %s", kind, why)
        self._denials[kind] = _Denial(str(why), time.monotonic() + pause, pause, over=False)
        self._proven.discard(kind)
        self._doubtful = self._doubtful or isinstance(why, Forbidden)

    def allow(self, kind: str, *, proven: bool = False) -> None:
        """Note that a kind can be had, as it seems; *proven* where it was."""
        denial = self._denials.get(kind)
        if proven:
            self._proven.add(kind)
        if denial is not None and proven:
            del self._denials[kind]
            _log.info("jobs of %s go on", kind)
        elif denial is not None:
            self._denials[kind] = denial._replace(over=True)
