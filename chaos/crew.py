"""The workers of a run: real processes, one a slot, started as a user starts them and started again when they end.

A slot is a way to the database and a version of redrive. What happens to each process (when it began, that it was
killed, frozen, told to stop, how it ended) goes to the ledger: nothing else can explain why a job ran twice.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from chaos.ledger import Ledger
from chaos.patience import wait_for
from chaos.programs import TETHER

ROOT = Path(__file__).parents[1]
APPLICATION = "chaos.application:queue"
LEASE = 5.0
GRACE = 1.0
CONCURRENCY = 5
POLL = 1.0
WORKER = ("worker", APPLICATION, "--grace", str(GRACE), "--concurrency", str(CONCURRENCY))
AGAIN_AFTER = 0.2
"""Seconds after which a worker that ended is started again, as systemd would."""
LAST_GRACE = 30.0


@dataclass
class Slot:
    """A place for one worker process."""

    name: str
    way: str
    """direct, network or pooled."""
    dsn: str
    listen_dsn: str = ""
    command: tuple[str, ...] = ()
    """What the process is told, in place of what an ordinary worker is."""
    path: str = ""
    """Where another version of redrive is, for PYTHONPATH."""
    env: dict[str, str] = field(default_factory=dict)
    clock: Path | None = None
    """The file that says what libfaketime tells this worker of the time."""
    process: subprocess.Popen[bytes] | None = None
    frozen: bool = False

    @property
    def pid(self) -> int:
        """The worker's process id, 0 where none runs."""
        return self.process.pid if self.process is not None and self.process.poll() is None else 0


class Crew:
    """Keeps a worker in every slot until it is told to stop."""

    def __init__(self, slots: list[Slot], ledger: Ledger, directory: Path, direct: str) -> None:
        self.slots = slots
        self._ledger, self._notes, self._direct = ledger, directory, direct
        self._over, self._released = threading.Event(), threading.Event()
        self._idle = False
        # Its processes are tethered to the thread that starts them, so it lives as long as the run.
        self._keeper = threading.Thread(target=self._keep, name="crew")

    def start(self) -> None:
        """Fill the slots."""
        self._keeper.start()

    def muster(self, beating: Callable[[], int]) -> None:
        """Wait until a worker of every slot has been heard.

        Raises:
            RuntimeError: with the last words of the one that ended instead.
        """
        end = time.monotonic() + 60
        while beating() < len(self.slots):
            for slot in self.slots:
                log = self._notes / f"worker-{slot.name}.log"
                if time.monotonic() > end or (slot.process is not None and slot.process.poll()):
                    said = log.read_text(errors="replace")[-2000:] if log.exists() else ""
                    raise RuntimeError(f"worker {slot.name} did not start: {said}")
            time.sleep(0.05)

    def up(self) -> list[Slot]:
        """List the slots whose worker runs and is not frozen."""
        return [slot for slot in self.slots if slot.pid and not slot.frozen]

    def kill(self, slot: Slot) -> None:
        """SIGKILL to the worker and its children, as the kernel does where memory ends."""
        self._note("killed", slot)
        self._signal(slot, signal.SIGKILL)

    def freeze(self, slot: Slot) -> None:
        """SIGSTOP."""
        slot.frozen = True
        self._note("frozen", slot)
        self._signal(slot, signal.SIGSTOP)

    def thaw(self, slot: Slot) -> None:
        """SIGCONT."""
        self._signal(slot, signal.SIGCONT)
        self._note("thawed", slot)
        slot.frozen = False

    def terminate(self, slot: Slot) -> None:
        """SIGTERM, to the worker alone: it stops its children itself."""
        self._note("told to stop", slot)
        if slot.process is not None:
            slot.process.terminate()

    def stop(self) -> list[int]:
        """Stop all in good order, and give their exit codes; who does not stop is killed."""
        self._over.set()
        wait_for(lambda: self._idle)
        running = [slot for slot in self.slots if slot.process is not None]
        for slot in running:
            self.thaw(slot)
            self.terminate(slot)
        codes = []
        for slot in running:
            assert slot.process is not None  # noqa: S101 - by the list's own condition
            with contextlib.suppress(subprocess.TimeoutExpired):
                slot.process.wait(LAST_GRACE)
            self._signal(slot, signal.SIGKILL)
            codes.append(slot.process.wait())
            self._note("ended", slot, code=codes[-1])
            slot.process = None
        return codes

    def close(self) -> None:
        """Leave none behind, however the run ended."""
        self._over.set()
        self._released.set()
        if self._keeper.is_alive():
            self._keeper.join()
        for slot in self.slots:
            if slot.process is not None:
                self._signal(slot, signal.SIGKILL)
                slot.process.wait()

    def _keep(self) -> None:
        while not self._over.wait(0.02):
            for slot in self.slots:
                if slot.process is None:
                    self._start(slot)
                elif (code := slot.process.poll()) is not None:
                    self._note("ended", slot, code=code)
                    self._signal(slot, signal.SIGKILL)  # the rest of its group: children of isolated handlers
                    slot.frozen, slot.process = False, None
                    self._over.wait(AGAIN_AFTER)
        self._idle = True
        self._released.wait()

    def _start(self, slot: Slot) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "REDRIVE_"))}
        paths = [slot.path, str(ROOT / "src"), str(ROOT), env.get("PYTHONPATH")]
        env |= slot.env | {
            "DATABASE_URL": slot.dsn,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "CHAOS_LEDGER": str(self._notes),
            "CHAOS_SLOT": slot.name,
            "CHAOS_DIRECT": self._direct,
            "CHAOS_LEASE": str(LEASE),
        }
        command = [*TETHER, sys.executable, "-m", "redrive", *(slot.command or WORKER)]
        command += ["--lease", str(LEASE), "--poll", str(POLL)]
        if slot.listen_dsn:
            env["REDRIVE_LISTEN_DSN"] = slot.listen_dsn
        with (self._notes / f"worker-{slot.name}.log").open("ab") as log:
            slot.process = subprocess.Popen(
                command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._note("started", slot)

    def _note(self, what: str, slot: Slot, **facts: object) -> None:
        if slot.process is not None:
            self._ledger.write(what, slot=slot.name, pid=slot.process.pid, **facts)

    @staticmethod
    def _signal(slot: Slot, number: signal.Signals) -> None:
        if slot.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(slot.process.pid, number)


def ages(slot: Slot) -> float:
    """Give the age of a slot's process, in seconds."""
    if not slot.pid:
        return 0.0
    with contextlib.suppress(OSError):
        ticks = int(Path(f"/proc/{slot.pid}/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return 0.0
