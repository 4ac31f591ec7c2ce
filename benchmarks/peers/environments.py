"""Each peer's own environment, with pinned versions, made at first use and kept in a cache.

It installs with pip and npm as they are configured here. What can't be had is a reason to report, not an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.catalog import CHECKOUT, Environment

PATIENCE = 900.0
"""Seconds that one installation may take."""


class Unavailable(Exception):
    """A peer can't run here; the message is the reason."""


def cache() -> Path:
    """Say where environments are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "redrive-bench"


def program(environment: Environment) -> list[str]:
    """Give the interpreter of *environment*, and make the environment where it isn't there as it should be.

    Raises:
        Unavailable: with the reason.
    """
    home = cache() / environment.name
    interpreter = _node() if environment.node else str(_python(environment.python))
    # What this checkout needs may have changed since.
    own = [CHECKOUT.joinpath("pyproject.toml").read_text()] if f"--editable={CHECKOUT}" in environment.requires else []
    wanted = "\n".join([interpreter, *environment.requires, *own]) + "\n"
    ready = home / "ready"
    if not ready.exists() or ready.read_text() != wanted:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        for command in _commands(environment, interpreter, home):
            _run(command, home)
        ready.write_text(wanted)
    return [interpreter] if environment.node else [str(home / "bin" / "python")]


def _commands(environment: Environment, interpreter: str, home: Path) -> Iterator[list[str]]:
    if environment.node:
        npm = shutil.which("npm")
        if npm is None:
            raise Unavailable("npm is not installed")
        # --ignore-scripts: nothing but the packages' own files is wanted
        quiet = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(home)]
        yield [npm, "install", *quiet, *environment.requires]
    else:
        yield [interpreter, "-m", "venv", str(home)]
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        yield [*pip, *environment.requires]


def _run(command: list[str], home: Path) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, cwd=home, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"its installation took more than {PATIENCE:g} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        errors = [line for line in said if "error" in line.lower()] or said or ["no word why"]
        raise Unavailable(f"its installation failed: {errors[0].strip()[:200]}")


def _node() -> str:
    found = shutil.which("node")
    if found is None:
        raise Unavailable("node is not installed")
    return found


def _python(oldest: tuple[int, int]) -> Path:
    """Find an interpreter that is new enough: ours, else the oldest that will do."""
    if sys.version_info[:2] >= oldest:
        return Path(sys.executable).resolve()
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for minor in range(oldest[1], oldest[1] + 4):
        on_path = shutil.which(f"python3.{minor}")
        kept = sorted(versions.glob(f"3.{minor}.*/bin/python"), reverse=True)
        for candidate in ([Path(on_path)] if on_path else []) + kept:
            # a version manager's shim is on the path whether or not there is a Python behind it
            probe = [str(candidate), "-c", "import ensurepip, venv"]
            if subprocess.run(probe, capture_output=True, timeout=30, check=False).returncode == 0:
                return candidate
    raise Unavailable(f"it needs Python {oldest[0]}.{oldest[1]} or newer, and there is none here")
