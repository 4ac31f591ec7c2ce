"""The command ``redrive`` for tests that start it by the hundred: a process for each, whose imports are made already.

A process that has imported the command line forks for each command, with the streams, the directory and the environment
of who asked; the program in its place on the PATH only asks for that and passes the exit code on. It takes commands
that look, change something and end; any other (a worker, the pages) is the real program.
"""

from __future__ import annotations

import atexit
import contextlib
import marshal
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path

ENDS = {
    *("adopt", "alerts", "audit", "batches", "breakers", "cancel", "dead", "doctor", "enqueue", "explain", "health"),
    *("jobs", "kinds", "limit", "migrate", "pause", "prune", "replay", "requeue", "requeues", "resume", "schedules"),
    *("show", "topics", "workers"),
}

# Without `socket`, and without looking at what is installed: it begins in a hundredth of a second.
ASK = """
import _socket, marshal, os, sys

if sys.argv[2:3] and sys.argv[2] in {ends!r}:
    ask = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    ask.connect({door!r})
    order = marshal.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)])
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    ask.sendmsg([len(order).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    while order:
        order = order[ask.send(order):]
    code = ask.recv(1)
    os._exit(code[0] if code else 70)
os.execv(sys.argv[1], sys.argv[1:])
"""

_kept: list[Path] = []


def directory() -> Path:
    """Give a directory with a ``redrive`` for the head of a PATH; the first call in a process starts what forks."""
    if not _kept:
        _kept.append(_start())
    return _kept[0]


def _start() -> Path:
    here = Path(tempfile.mkdtemp(prefix="redrive-forks-"))
    door, real = here / "door", Path(sys.executable).parent / "redrive"
    held = subprocess.Popen([sys.executable, __file__, door], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    (here / "ask.py").write_text(ASK.format(ends=ENDS, door=str(door)))
    program = here / "redrive"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{here}/ask.py" "{real}" "$@"\n')
    program.chmod(0o755)
    assert held.stdout.read(1) == b"."

    def end() -> None:
        held.communicate()
        shutil.rmtree(here, ignore_errors=True)

    atexit.register(end)
    return here


def _serve(door: str) -> None:
    for each in ("redrive.cli", "redrive.queue", "redrive.store", "redrive.worker"):
        import_module(each)
    for name in ENDS:
        import_module(sys.modules["redrive.cli"].COMMANDS[name])
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(door)
    listener.listen(50)
    os.write(1, b".")
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:  # who started this has ended
            return
        asked, _ = listener.accept()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            listener.close()
            os._exit(_run(asked))
        asked.close()


def _run(asked: socket.socket) -> int:
    head, streams, _, _ = socket.recv_fds(asked, 4, 3)
    with asked.makefile("rb") as file:
        words, where, env = marshal.loads(file.read(int.from_bytes(head, "big")))  # noqa: S302 # of our own program
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(where)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    sys.argv = words
    code = _code()
    with contextlib.suppress(OSError):  # nobody reads it any more
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        asked.send(bytes([code]))
    return code


def _code() -> int:
    try:
        import_module("redrive.__main__").main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 255
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:  # noqa: BLE001 # as an interpreter does at the end of a program
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    _serve(sys.argv[1])
