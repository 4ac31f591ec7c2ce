"""Programs that a run may want and a machine may lack: found, or installed as root from Debian's packages."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

TETHER = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
"""Where util-linux has it: what is started this way dies with the thread that started it, however that ends."""
LIBFAKETIME = "/usr/lib/*/faketime/libfaketime.so.1"
RABBITMQ = ("/usr/lib/rabbitmq/bin", "/opt/homebrew/opt/rabbitmq/sbin", "/usr/local/opt/rabbitmq/sbin")
POLICY = Path("/usr/sbin/policy-rc.d")
"""What Debian's packages ask before they start a service: 101 says no."""


def find_pgbouncer() -> str | None:
    """Find pgbouncer, or install it as root; None where neither can be done."""
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    if not shutil.which("pgbouncer", path=search):
        _install("pgbouncer")
    return shutil.which("pgbouncer", path=search)


def find_rabbitmq() -> Path | None:
    """Find the directory of RabbitMQ's own scripts, or install it as root; None where neither can be done.

    Not the commands in /usr/sbin: those of Debian are for the service's user alone.
    """
    if not _rabbitmq():
        _install("rabbitmq-server")
    return _rabbitmq()


def _rabbitmq() -> Path | None:
    return next((each for each in map(Path, RABBITMQ) if (each / "rabbitmq-server").exists()), None)


def find_libfaketime() -> str | None:
    """Find the library that gives a process another clock, or install it as root; None where neither can be done."""
    if not _libfaketime():
        _install("libfaketime")
    return _libfaketime()


def _libfaketime() -> str | None:
    return next(map(str, Path("/").glob(LIBFAKETIME.lstrip("/"))), None)


def _install(package: str) -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
    # RUNLEVEL: install the program, don't start the service
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    with _no_services():
        for command in (["update"], ["install", "-y", "--no-install-recommends", package]):
            subprocess.run(
                [*apt, *command],
                env=env,
                check=False,
                timeout=300,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """Let packages start no service meanwhile: systemd looks at no run level. A rule that is there is kept."""
    try:
        POLICY.touch(mode=0o755, exist_ok=False)
    except OSError:
        yield
        return
    try:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        yield
    finally:
        POLICY.unlink()
