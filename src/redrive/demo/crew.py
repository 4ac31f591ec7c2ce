"""The demo's worker processes: started, restarted when something kills them, replaced at a deploy.

What systemd, Docker or a platform does for a real one. It judges no job: what becomes of a dead worker's jobs is for
the living workers to say.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from redrive.demo.journal import Journal

RESTART_AFTER = 0.6
"""Seconds between a worker's death and its successor's start, for eyes to see it."""
PATIENCE = 6.0
"""Seconds that a worker gets to stop in good order at the end of the demo."""

Condition = Literal["starting", "working", "leaving", "gone", "killed"]


class WorkerFailed(Exception):
    """A worker ended for a reason that is not in the script; the end of its log is the message."""


@dataclass
class Member:
    """One place in the crew, and the process that has it."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    condition: Condition = "starting"
    ended_at: float = 0.0

    @property
    def pid(self) -> int:
        """The process."""
        return self.process.pid


class Crew:
    """A few workers on the same queue."""

    def __init__(
        self, size: int, command: list[str], *, directory: Path, env: Mapping[str, str], logs: Path, journal: Journal
    ) -> None:
        self.deaths = 0
        """How many workers were killed."""
        self._command = command
        self._directory = directory
        self._env = dict(env)
        self._logs = logs
        self._journal = journal
        self._leaving: list[Member] = []
        self.members = [self._hire(number) for number in range(1, size + 1)]

    @property
    def all_working(self) -> bool:
        """Whether everybody is there and those of the last release have left."""
        return not self._leaving and all(member.condition == "working" for member in self.members)

    def watch(self, alive: Collection[int]) -> None:
        """Look after everybody; *alive* are the pids of the workers that the database has heard of.

        Raises:
            WorkerFailed: when one ended that nobody killed.
        """
        for member in self.members:
            if member.condition != "killed":
                self._look_at(member, alive)
            elif time.monotonic() - member.ended_at > RESTART_AFTER:
                self._let_go(member)
                member.process, member.condition = self._spawn(member.log), "starting"
        for member in list(self._leaving):
            self._look_at(member, alive)
            if member.condition in ("gone", "killed"):
                self._let_go(member)
                self._leaving.remove(member)
                self._journal.tell(
                    f"worker {member.number}", "of the old release has left, nothing in its hands", "work"
                )
            elif member.condition != "leaving" and all(each.condition == "working" for each in self.members):
                member.condition = "leaving"
                member.process.terminate()

    def deploy(self, env: Mapping[str, str], *flags: str) -> None:
        """Start a new release, with *env* and *flags* on top; the old one leaves when the new one works."""
        self._env |= env
        self._command = [*self._command, *flags]  # of an option given twice the last counts
        self._journal.tell("crew", "the new release starts; the old one works until it is there", "work")
        self._leaving = self.members
        self.members = [self._hire(member.number) for member in self._leaving]

    def stop(self) -> None:
        """End all of them, in good order where they can."""
        everybody = [*self.members, *self._leaving]
        for member in everybody:
            if member.process.poll() is None:
                member.process.terminate()
        end = time.monotonic() + PATIENCE
        for member in everybody:
            try:
                member.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
            self._let_go(member)

    def _look_at(self, member: Member, alive: Collection[int]) -> None:
        code = member.process.poll()
        if code is None:
            if member.condition == "starting" and member.pid in alive:
                member.condition = "working"
        elif code == 0 and member.condition == "leaving":
            member.condition = "gone"
        elif code == -signal.SIGKILL:
            member.condition, member.ended_at = "killed", time.monotonic()
            self.deaths += 1
            self._journal.tell(f"worker {member.number}", "killed by signal 9 in the middle of its work", "bad")
        else:
            tail = member.log.read_text(errors="replace")[-2000:]
            raise WorkerFailed(f"worker {member.number} ended with code {code}:\n{tail}")

    @staticmethod
    def _let_go(member: Member) -> None:
        if member.process.stdin is not None:
            member.process.stdin.close()

    def _hire(self, number: int) -> Member:
        log = self._logs / f"worker-{number}.log"
        return Member(number, self._spawn(log), log)

    def _spawn(self, log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            return subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-m", "redrive.demo.tether", *self._command],
                cwd=self._directory,
                env=self._env,
                stdin=subprocess.PIPE,  # never written to: the end of it is the end of the worker, see tether
                stdout=out,
                stderr=out,
                process_group=0,  # Ctrl-C is the demo's to judge
            )


def environment(**values: str) -> dict[str, str]:
    """Make a worker's environment: ours, with *values*."""
    return {**os.environ, **values}
