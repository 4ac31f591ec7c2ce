"""Programs that a run may want and a machine may lack: found, or installed as root from Debian's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

TETHER = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
"""Where util-linux has it: what is started this way dies with the thread that started it, however that ends."""
LIBFAKETIME = "/usr/lib/*/faketime/libfaketime.so.1"


def find_pgbouncer() -> str | None:
    """Find pgbouncer, or install it as root; None where neither can be done."""
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    if not shutil.which("pgbouncer", path=search):
        _install("pgbouncer")
    return shutil.which("pgbouncer", path=search)


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
    for command in (["update"], ["install", "-y", "--no-install-recommends", package]):
        subprocess.run(
            [*apt, *command],
            env=env,
            check=False,
            timeout=300,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
