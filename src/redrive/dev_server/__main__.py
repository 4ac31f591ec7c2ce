"""Run a command with DATABASE_URL set to a development server: ``python -m redrive.dev_server -- make test``.

Without a command it prints the URL and holds the server until it is interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from redrive.dev_server import DevServer
from redrive.errors import NoDatabase

ENDS = {signal.SIGINT, signal.SIGTERM}


def main() -> int:
    """Start the server, run the command, stop the server; the command's exit code is ours."""
    parser = argparse.ArgumentParser(prog="python -m redrive.dev_server", description=__doc__)
    parser.add_argument("--directory", type=Path, help="keep the cluster there; others may share it meanwhile")
    parser.add_argument("command", nargs="*", help="what to run, after --")
    given = parser.parse_args()
    try:
        with DevServer(given.directory) as server:
            if given.command:
                return _run(given.command, server.url)
            sys.stdout.write(f"DATABASE_URL={server.url}\n")
            sys.stdout.flush()
            # blocked only now: the server's process would have inherited it
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
            signal.sigwait(ENDS)
            return 0
    except NoDatabase as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _run(command: list[str], url: str) -> int:
    try:
        child = subprocess.Popen(command, env=os.environ | {"DATABASE_URL": url})
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127
    # The terminal sends Ctrl-C to the child as well, and the child decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
