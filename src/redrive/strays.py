"""Jobs that are this worker's by the table and in nobody's hands: the answer of a claim was lost on its way."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from redrive.statements import named

if TYPE_CHECKING:
    from collections.abc import Callable

    from redrive.connections import Control
    from redrive.job import Holder

AGAIN_AFTER = (1.0, 5.0, 20.0, 60.0)
"""Seconds after a claim without an answer at which to look again: a slow server may commit it after the first look."""
SETTLE = 0.05
"""Seconds between two lists of what is in this worker's hands: what a thread was just moving is in one of them."""


class Strays:
    """Looks for them after a claim without an answer, and gives them back."""

    def __init__(self, control: Control, holder: Holder, known: Callable[[], list[int]]) -> None:
        self.in_doubt = False
        """A claim is under way, or was and had no answer."""
        self._control = control
        self._holder = holder
        self._known = known
        self._looks: list[float] = []
        """When to look again, monotonic seconds, the first last."""

    async def hand_back(self) -> None:
        """Give them back, where there may be any. No claim of this worker's may be under way meanwhile."""
        now = time.monotonic()
        if not self.in_doubt and not (self._looks and now >= self._looks[-1]):
            return
        known = set(self._known())
        await asyncio.sleep(SETTLE)
        known.update(self._known())
        await self._control.run(
            named("hand_back_strays", self._control.schema, worker=self._holder.name, known=list(known))
        )
        if self.in_doubt:
            self.in_doubt, self._looks = False, [now + after for after in reversed(AGAIN_AFTER)]
        else:
            del self._looks[-1]
