"""Mislaid jobs: this worker's by the table and in nobody's hands, as the answer of a claim was lost."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from redrive.statements import named

if TYPE_CHECKING:
    from collections.abc import Callable

    from redrive.connections import Control
    from redrive.job import Holder

AGAIN_AFTER = (1.0, 5.0, 20.0, 60.0)
"""Seconds after a claim without an answer at which to look again: a slow server may commit it after the first look."""
AUDIT_EVERY = 60.0
"""Seconds between two looks of a worker that has nothing in its hands: the net under what nobody has thought of."""
SETTLE = 0.05
"""Seconds between two lists of what is in this worker's hands: what a thread was just moving is in one of them."""
SHOWN = 5
"""Jobs that are named when such a look finds some."""

_log = logging.getLogger("redrive")


class Mislaid:
    """Looks for such jobs after a claim without an answer, and gives them back."""

    def __init__(self, control: Control, holder: Holder, known: Callable[[], list[int]]) -> None:
        self.in_doubt = False
        """A claim is under way, or was and had no answer."""
        self._control = control
        self._holder = holder
        self._known = known
        self._looks: list[float] = []
        """When to look again, monotonic seconds, the first last."""
        self._audit_at = time.monotonic() + AUDIT_EVERY

    async def hand_back(self) -> None:
        """Give them back, where there may be any. No claim of this worker's may be under way meanwhile."""
        now = time.monotonic()
        again = bool(self._looks) and now >= self._looks[-1]
        if not self.in_doubt and not again and (now < self._audit_at or self._known()):
            return
        known = set(self._known())
        await asyncio.sleep(SETTLE)
        known.update(self._known())
        if known and not self.in_doubt and not again:
            return  # an audit is for idle hands
        found = await self._control.run(
            named("hand_back_mislaid", self._control.schema, worker=self._holder.name, known=list(known))
        )
        self._audit_at = time.monotonic() + AUDIT_EVERY
        if found and not self.in_doubt and not again:
            ids = ", ".join(str(row.id) for row in found[:SHOWN])
            _log.warning(
                "%d jobs were held by this worker and in nobody's hands, they are given back: %s", len(found), ids
            )
        if self.in_doubt:
            self.in_doubt, self._looks = False, [now + after for after in reversed(AGAIN_AFTER)]
        elif again:
            del self._looks[-1]
