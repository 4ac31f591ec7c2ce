"""``redrive worker --processes N``: the parent of N worker processes, each a whole worker as if started by itself.

It starts them, passes stops on, replaces those that die and leaves none behind. It runs no job and asks no database.
A stop goes through a pipe, not as a signal: a service manager may signal the whole group, and two signals would mean
that the grace is to be skipped. The same pipe, closed by the kernel, tells a worker process that its parent is gone.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redrive.cli import SAID
from redrive.cli.exits import NOT_MIGRATED, OK, UNREACHABLE, USAGE
from redrive.notify import Manager
from redrive.words import counted
from redrive.worker import stop_signals

if TYPE_CHECKING:
    from collections.abc import Callable

START = "from redrive.cli.processes import member; member()"
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before a process that died is replaced; twice as long each time, unless it has lived for a while."""
A_WHILE = 60.0
IN_VAIN = (USAGE, UNREACHABLE, NOT_MIGRATED)
"""Exit codes of a worker that says why it can't work, or was told to end so: another would say the same."""
PATIENCE = 15.0
"""Seconds beyond the grace after which a process that was told to stop is killed."""
LOOK_EVERY = 5.0
_SIGNALLED = 128

_log = logging.getLogger("redrive")
_tethers: list[Tether] = []
_numbers: list[int] = []


@dataclass
class Member:
    """One place among the worker processes, and the process that has it."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    tether: int = -1
    started: float = 0.0
    deaths: int = 0
    due: float = math.inf
    """When to start another in its place."""


class Processes:
    """The worker processes."""

    def __init__(self, count: int, grace: float, *, once: bool) -> None:
        self._members = [Member(number) for number in range(1, count + 1)]
        self._grace, self._once = grace, once
        self._asked = 0
        self._kill_at = math.inf
        self._heard: queue.SimpleQueue[int] = queue.SimpleQueue()  # safe to put into from a signal's handler
        self._worst = OK
        self._manager = Manager()

    def run(self) -> int:
        """Run until all have ended, and none is to be replaced; gives the worst exit code."""
        stops = stop_signals()
        for number in (*stops, signal.SIGCHLD):
            signal.signal(number, lambda number, _frame: self._heard.put(number))
        for member in self._members:
            self._start(member)
        self._manager.say("READY=1")
        while any(member.process or member.due < math.inf for member in self._members):
            if self._wait() in stops:
                self._stop()
            self._look()
            running = sum(member.process is not None for member in self._members)
            self._manager.alive(counted(running, "worker process", "worker processes"))
        return self._worst

    def _wait(self) -> int:
        until = min(self._kill_at, *(member.due for member in self._members))
        try:
            every = min(LOOK_EVERY, self._manager.every)
            return self._heard.get(timeout=min(every, max(0.0, until - time.monotonic())))
        except queue.Empty:
            return 0

    def _stop(self) -> None:
        self._asked += 1
        self._manager.say("STOPPING=1")
        self._kill_at = time.monotonic() + PATIENCE + (self._grace if self._asked == 1 else 0.0)
        _log.info("the worker processes are told to stop%s", "" if self._asked == 1 else " at once")
        for member in self._members:
            member.due = math.inf
            if member.process is not None:
                with contextlib.suppress(BrokenPipeError):  # it has just ended
                    os.write(member.tether, b"!")

    def _look(self) -> None:
        now = time.monotonic()
        for member in self._members:
            if member.process is not None and (code := member.process.poll()) is not None:
                self._ended(member, code)
            elif member.process is not None and now >= self._kill_at:
                _log.error("worker process %s does not stop: killed", member.process.pid)
                member.process.kill()
                member.process.wait()
            elif member.due <= now:
                self._start(member)

    def _start(self, member: Member) -> None:
        theirs, member.tether = os.pipe()
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001 - as multiprocessing
        command = [sys.executable, *flags, "-c", START, f"{theirs}:{member.number}", *sys.argv[1:]]
        member.started, member.due = time.monotonic(), math.inf
        # Its own: what this process has said of the environment; not to it: where this process speaks.
        env = {name: value for name, value in {**os.environ, SAID: "1"}.items() if name != "NOTIFY_SOCKET"}
        try:  # in a group of its own: Ctrl-C is this process' to pass on, once
            member.process = subprocess.Popen(command, pass_fds=(theirs,), process_group=0, env=env)  # noqa: S603 - ourselves
        except OSError as error:  # the machine has no room for a process now
            os.close(member.tether)
            self._replace(member, f"worker process {member.number} can't be started ({error})")
        else:
            _log.info("worker process %s of %s: pid %s", member.number, len(self._members), member.process.pid)
        finally:
            os.close(theirs)

    def _ended(self, member: Member, code: int) -> None:
        what = f"worker process {member.process.pid if member.process else 0} ended"
        how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
        os.close(member.tether)
        member.process = None
        if not (self._asked or self._once or code in IN_VAIN):
            self._replace(member, f"{what} unasked, {how}")
            return
        self._worst = max(self._worst, code if code >= 0 else _SIGNALLED - code)
        if code != OK:
            _log.error("%s %s", what, how)
        if code in IN_VAIN and not (self._asked or self._once):
            self._stop()

    def _replace(self, member: Member, what: str) -> None:
        member.deaths = 1 if time.monotonic() - member.started > A_WHILE else member.deaths + 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (min(member.deaths, 10) - 1))
        member.due = time.monotonic() + pause
        _log.warning("%s: another starts in %.0f s", what, pause)


class Tether:
    """A worker process' end of the pipe: it stops as often as its parent or its own signals ask, whichever is more."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._stop: Callable[[], None] | None = None
        self._by_parent = self._by_signal = self._obeyed = 0
        self._lock = threading.RLock()  # a signal comes to the thread that may hold it
        threading.Thread(target=self._listen, name="redrive-parent", daemon=True).start()

    def attach(self, stop: Callable[[], None]) -> None:
        """Call *stop* for each time that it was asked for, until now and from now on."""
        self._stop = stop
        self._obey()

    def signalled(self) -> None:
        """Heed a signal."""
        self._by_signal += 1
        self._obey()

    def _obey(self) -> None:
        with self._lock:
            while self._stop is not None and self._obeyed < max(self._by_parent, self._by_signal):
                self._obeyed += 1
                self._stop()

    def _listen(self) -> None:
        while told := os.read(self._pipe, 16):
            self._by_parent += len(told)
            self._obey()
        self._by_parent += 2  # the parent is gone: hand back at once
        self._obey()
        time.sleep(PATIENCE)
        os.kill(os.getpid(), signal.SIGKILL)


def member() -> None:
    """Be one of the worker processes: the program of ``python -c``."""
    from redrive.cli import main

    pipe, number = sys.argv.pop(1).split(":")
    _tethers.append(Tether(int(pipe)))
    _numbers.append(int(number))
    main()


def is_member() -> bool:
    """Whether this process was started by a parent of this module."""
    return bool(_tethers)


def number() -> int:
    """Give the place of this process among those of its parent, counted from 1."""
    return _numbers[0] if _numbers else 1


def on_signal(stop: Callable[[], None]) -> Callable[[], None]:
    """Give what a signal is to call for *stop*: itself, or the tether that minds what the parent has asked for too."""
    if not _tethers:
        return stop
    _tethers[0].attach(stop)
    return _tethers[0].signalled
