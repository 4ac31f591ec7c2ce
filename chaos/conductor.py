"""Lets the faults of a plan strike in their order, the grand ones alone, the small ones side by side."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chaos.faults import STRIKE, Strike
from chaos.plan import Planned
from chaos.scene import Scene, Skipped

IN_THE_BACKGROUND = {"snapshot"}
"""What goes on under everything else, and nobody waits for."""
MOST_AT_ONCE = 4


@dataclass
class Struck:
    """A fault that struck, or could not."""

    fault: Planned
    at: float
    """Seconds after the beginning."""
    recovery: float | None = None
    """Seconds until all was well again, where something had to recover."""
    skipped: str = ""
    over: bool = False


class Conductor:
    """One run through a plan."""

    def __init__(
        self,
        scene: Scene,
        plan: Sequence[Planned],
        seconds: float,
        tell: Callable[[str], None],
        *,
        strike: Mapping[str, Strike] = STRIKE,
    ) -> None:
        self.struck: list[Struck] = []
        self.error: BaseException | None = None
        self._scene, self._plan, self._seconds, self._tell = scene, plan, seconds, tell
        self._strikes = strike
        self._threads: list[tuple[threading.Thread, Struck]] = []
        self._began = time.monotonic()

    @property
    def at_work(self) -> list[str]:
        """Name the faults that are on now."""
        return [struck.fault.name for _, struck in self._threads if not struck.over]

    def run(self, stopping: threading.Event) -> None:
        """Go through the plan until its end, the end of the time, or until told to stop; all faults are lifted then."""
        self._began = time.monotonic()
        for fault in self._plan:
            if stopping.wait(max(0.0, fault.at - (time.monotonic() - self._began))):
                break
            self._wait(0 if fault.grand else MOST_AT_ONCE - 1)
            if stopping.is_set() or self.error or time.monotonic() - self._began > self._seconds:
                break
            struck = Struck(fault, time.monotonic() - self._began)
            self.struck.append(struck)
            thread = threading.Thread(target=self._strike, args=(struck,), name=fault.name, daemon=True)
            self._threads.append((thread, struck))
            thread.start()
            if fault.grand:
                self._wait(0)
        for thread, _ in self._threads:
            thread.join()

    def _wait(self, most: int) -> None:
        """Wait until no more than so many are at work, those in the background not counted."""
        while True:
            self._threads = [(thread, struck) for thread, struck in self._threads if thread.is_alive()]
            if sum(struck.fault.name not in IN_THE_BACKGROUND for _, struck in self._threads) <= most:
                return
            time.sleep(0.02)

    def _strike(self, struck: Struck) -> None:
        fault = struck.fault
        try:
            struck.recovery = self._strikes[fault.name](self._scene, fault)
        except Skipped as why:
            struck.skipped = str(why)
        except BaseException as error:  # noqa: BLE001 - ends the run: the fault was not the one that was meant
            self.error = self.error or error
            self._tell(traceback.format_exc())
        struck.over = True
        self._scene.ledger.write("fault", name=fault.name, began=self._began + struck.at, recovery=struck.recovery)
        word = f"skipped: {struck.skipped}" if struck.skipped else ""
        if struck.recovery is not None:
            word = f"recovered in {struck.recovery:.1f} s"
        self._tell(f"{struck.at:6.1f} s  {fault.name}  {word}".rstrip())
