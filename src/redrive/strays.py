"""Jobs that are this worker's by the table and in nobody's hands: the answer of a claim was lost on its way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from redrive.statements import named

if TYPE_CHECKING:
    from collections.abc import Callable

    from redrive.connections import Control
    from redrive.job import Holder

AUDIT_EVERY = 60.0
AUDITS = 2
"""A claim whose answer was lost may be committed after the look for strays, by a server that was slow: look again."""
AUDIT_AGE = 45.0
"""Age from which a job in nobody's hands is a stray for certain: more than the longest statement takes."""


class Strays:
    """Looks for them after a claim without an answer, and gives them back."""

    def __init__(self, control: Control, holder: Holder, known: Callable[[], list[int]]) -> None:
        self.in_doubt = False
        """A claim is under way, or was and had no answer."""
        self._control = control
        self._holder = holder
        self._known = known
        self._audits, self._audit_at = 0, float("inf")

    async def hand_back(self) -> None:
        """Give them back, where there may be any."""
        now = time.monotonic()
        if not self.in_doubt and now < self._audit_at:
            return
        age = 0.0 if self.in_doubt else AUDIT_AGE
        await self._control.run(
            named("hand_back_strays", self._control.schema, worker=self._holder.name, known=self._known(), age=age)
        )
        self._audits = AUDITS if self.in_doubt else self._audits - 1
        self.in_doubt, self._audit_at = False, now + AUDIT_EVERY if self._audits > 0 else float("inf")
