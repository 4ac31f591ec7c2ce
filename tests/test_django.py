"""redrive.django. Its tests are in djangos/: a process has one Django, so they have a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

import support
from chaos.pooler import pooler
from chaos.programs import find_pgbouncer

ROOT = Path(__file__).parent.parent
pytest.importorskip("django")


def run_inside(*words: str, urls: tuple[str, str], **env: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on djangos/, without the fixtures of these tests."""
    paths = f"pythonpath={ROOT / 'tests'} {ROOT / 'examples/django_shop'}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:django", "-o", paths]
    command += ["-o", "python_files=case_*.py", f"--confcutdir={ROOT / 'tests/djangos'}", f"--rootdir={ROOT}"]
    given = {**os.environ, "DATABASE_URL": urls[0], "OTHER_URL": urls[1], **env}
    return subprocess.run(
        [*command, *words], cwd=ROOT, env=given, capture_output=True, text=True, check=False, timeout=110
    )


@pytest.mark.slow
def test_it_is_at_home_in_a_django_project_also_behind_a_pooler_ln_03(empty_db, server_url):
    """Its other database goes through pgbouncer in transaction mode, where there is one."""
    program = find_pgbouncer()
    with support.database(server_url) as other, pooler(program, other) if program else nullcontext(other) as through:
        done = run_inside("tests/djangos", urls=(empty_db, through))
    print(done.stdout)  # noqa: T201 # pytest shows it when the test failed
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
