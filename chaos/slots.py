"""Which workers a run has: by every way to the database, one of an earlier version, one whose clock is wrong."""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

from chaos.crew import ROOT, Slot
from chaos.programs import find_libfaketime
from chaos.stage import Stage

EARLIER = "78cd8a9"
"""The commit whose build works beside the present one."""


def fill(stage: Stage, *, pooled: bool = False) -> list[Slot]:
    """Give the slots, all behind the pooler where asked; what can't be had here is told in the stage's notes."""
    network = stage.network.dsn
    slots = [
        Slot("one", "network", network),
        Slot("two", "network", network),
        Slot("three", "direct", stage.direct),
    ]
    if path := earlier(stage.base):
        slots.append(Slot("earlier", "network", network, path=path))
    else:
        stage.missing["workers of an earlier version"] = "this checkout has no history"
    if stage.pooled:
        slots.append(Slot("pooled", "pooled", stage.pooled, listen_dsn=stage.direct))
    clock = find_libfaketime()
    if clock:
        file = stage.base / "clock"
        file.write_text("+0s")
        env = {"LD_PRELOAD": clock, "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_CACHE_DURATION": "1"}
        env |= {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
        slots.append(Slot("skewed", "direct", stage.direct, env=env, clock=file))
    else:
        stage.missing["libfaketime"] = "not here, and no root with apt-get to install it"
    if pooled:
        slots = [replace(slot, way="pooled", dsn=stage.pooled, listen_dsn=stage.direct) for slot in slots]
    return slots


def earlier(base: Path) -> str:
    """Unpack the sources of the earlier version; empty where this checkout has no history."""
    made = subprocess.run(["git", "archive", EARLIER, "src"], cwd=ROOT, capture_output=True, check=False)
    if made.returncode:
        return ""
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        archive.extractall(base / "earlier", filter="data")
    return str(base / "earlier" / "src")
