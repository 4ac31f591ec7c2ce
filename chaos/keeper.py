"""One RabbitMQ for all processes of a test run: the first of them has it started, it ends when the last is gone.

``python -m chaos.keeper DIRECTORY`` is the process that holds it. Users are counted by ``flock``, which a crash cannot
leave stale: the keeper waits for a lock that it can have only when nobody uses the directory any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from chaos.patience import wait_for
from chaos.rabbit import Broker, Rabbit

READY, STARTING, LOG = "ready", "starting", "keeper.log"


@contextlib.contextmanager
def shared(scripts: Path, directory: Path) -> Iterator[Broker]:
    """Use the broker of *directory*, started by whoever comes first.

    Raises:
        RuntimeError: with what it said, when it did not start.
    """
    with contextlib.ExitStack() as using:
        wait_for(lambda: _joins(directory, using), 60)  # the last one's keeper may be about to leave
        with (directory / STARTING).open("ab") as one_at_a_time:
            fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
            if not (directory / READY).exists():
                _start(scripts, directory)
        yield Broker.read((directory / READY).read_text())


def _joins(directory: Path, using: contextlib.ExitStack) -> bool:
    directory.mkdir(mode=0o700, exist_ok=True)
    with contextlib.ExitStack() as opened:
        try:
            users = os.open(directory, os.O_RDONLY)
            opened.callback(os.close, users)
            fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if directory.stat().st_ino != os.fstat(users).st_ino:
                return False
        except OSError:  # a keeper has the lock, or has just taken the directory away
            return False
        using.enter_context(opened.pop_all())
        return True


def _start(scripts: Path, directory: Path) -> None:
    log = directory / LOG
    with log.open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", "chaos.keeper", str(scripts), str(directory)],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            check=False,
        )
    if done.returncode:
        said = log.read_text()
        shutil.rmtree(directory)
        raise RuntimeError(f"the broker did not start: {said}")


def keep_apart(scripts: Path, directory: Path) -> int:
    """Let a process of its own hold the broker, and return when it is there: nobody has to wait for its end."""
    if not (keeper := os.fork()):
        keep(scripts, directory)
        return 0
    while not (directory / READY).exists():
        ended, _status = os.waitpid(keeper, os.WNOHANG)
        if ended:
            return 1
        time.sleep(0.05)
    return 0


def keep(scripts: Path, directory: Path) -> None:
    """Hold the broker for as long as somebody uses the directory."""
    users = os.open(directory, os.O_RDONLY)
    with Rabbit(scripts, within=directory) as rabbit:
        coming = directory / f"{READY}.new"
        coming.touch(mode=0o600)
        coming.write_text(rabbit.told())
        coming.rename(directory / READY)
        fcntl.flock(users, fcntl.LOCK_EX)
        rabbit.close()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(keep_apart(Path(sys.argv[1]), Path(sys.argv[2])))
