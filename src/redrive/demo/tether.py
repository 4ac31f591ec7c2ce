"""Run ``redrive …`` for as long as somebody holds the other end of standard input.

The kernel closes that pipe however its holder ends, so no worker of the demo outlives a ``kill -9`` of it:
``python -m redrive.demo.tether worker app.jobs:queue``.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def _end_with_holder() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_holder, daemon=True).start()
    runpy.run_module("redrive", run_name="__main__", alter_sys=True)
