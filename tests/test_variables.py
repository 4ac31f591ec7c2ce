"""REDRIVE_* variables that nothing reads are named, with what was probably meant; and Ctrl-C is no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from redrive.cli import COMMANDS, cli
from redrive.cli.variables import OTHERS, strangers
from shell import redrive

SOURCE = Path(sys.modules["redrive"].__file__ or "").parent


def said(**environment: str) -> dict[str, str | None]:
    return dict(strangers({f"REDRIVE_{name}": value for name, value in environment.items()}, cli))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CONCURENCY", "CONCURRENCY"),
        ("JOBS_LIMT", "JOBS_LIMIT"),
        ("SCHEDULES_NEXT_CUONT", "SCHEDULES_NEXT_COUNT"),
        ("DATABASE_URI", "DATABASE_URL"),
        ("XYZZY", None),
    ],
)
def test_a_slip_of_the_pen_is_named_with_what_was_meant(name, meant):
    assert said(**{name: "1"}) == {f"REDRIVE_{name}": meant and f"REDRIVE_{meant}"}


def test_what_is_read_is_not_named():
    flags = {"JOBS_LIMIT": "4", "SCHEDULES_NEXT_COUNT": "2", "LEASE": "30", "ALERT_SLACK": "x"}
    assert said(**flags, **dict.fromkeys(OTHERS, "x")) == {}


def test_what_kubernetes_puts_there_is_not_named():
    """Where a Service is called redrive, or redrive-desk."""
    found = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR")
    assert said(**{f"{service}{each}": "x" for service in ("", "DESK_") for each in found}) == {}


def test_all_that_is_read_by_name_is_known():
    """A variable that some module reads, and that is neither a setting nor listed, would be called unknown."""
    read = {"REDRIVE_" + name for name in OTHERS}
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        for line in text.splitlines():
            if "environ" in line and "REDRIVE_" in line:
                assert any(name in line for name in read) or '"REDRIVE_"' in line or "startswith" in line, (path, line)


def test_a_command_says_it_and_goes_on():
    done = redrive(None, "schedules", "next", "@daily", env={"REDRIVE_CONCURENCY": "4"})
    assert done.stderr.splitlines() == [
        "note: nothing reads the variable REDRIVE_CONCURENCY: did you mean REDRIVE_CONCURRENCY?"
    ]


@pytest.mark.parametrize("where", ["click", "redrive.cli"])
def test_an_interrupt_while_it_is_imported_is_no_traceback(tmp_path, where):
    """Python's own start is a tenth of it; the rest is imports, in which Ctrl-C comes as anywhere."""
    hook = "import sys\nclass Finder:\n  def find_spec(self, name, *_):\n"
    hook += f"    if name == {where!r}: raise KeyboardInterrupt\n"
    (tmp_path / "sitecustomize.py").write_text(hook + "sys.meta_path.insert(0, Finder())\n")
    search = os.pathsep.join([str(tmp_path), str(SOURCE.parent)])
    done = subprocess.run(
        [sys.executable, "-m", "redrive", "--version"],
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "Aborted!\n")


def test_the_command_and_the_module_begin_alike():
    """The package itself imports next to nothing: what comes before the entry can't be caught there."""
    code = "import sys, redrive; print(sorted({'typing', 'click', 'psycopg', 'importlib.metadata'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"
    assert len(COMMANDS) > 20
