"""The public names: these and no others, each explained, and typed so that a checker sees a mistake."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import redrive
from redrive import Queue, store
from redrive.handlers import Handler

NAMES = [
    "Breaker",
    "ClaimedJob",
    "Dead",
    "Discard",
    "Enqueued",
    "InvalidOption",
    "InvalidPayload",
    "Job",
    "LeaseLost",
    "NoBroker",
    "Published",
    "Queue",
    "RedriveError",
    "Retry",
    "Snooze",
]
TYPING = Path(__file__).parent / "typing" / "api.py"


def test_the_public_names_are_these_and_no_others():
    assert sorted(redrive.__all__) == NAMES
    assert all(getattr(redrive, name).__name__ == name for name in NAMES)
    with pytest.raises(AttributeError, match="module 'redrive' has no attribute 'Quue'"):
        redrive.Quue  # noqa: B018 - asked for, to be refused


def test_a_star_import_brings_them_all():
    found: dict[str, object] = {}
    exec("from redrive import *", found)  # noqa: S102 - what it is about
    assert set(NAMES) <= set(found)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_explained_and_so_are_its_methods(name):
    public = getattr(redrive, name)
    assert inspect.getdoc(public)
    for method, value in vars(public).items():
        if not method.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            assert inspect.getdoc(value), f"{name}.{method}"


def test_the_annotations_can_be_read_at_run_time():
    for function in (Queue.handler, Queue.enqueue, Queue.enqueue_many, Handler.enqueue):
        assert inspect.signature(function).parameters
    said = {*inspect.signature(store.options).parameters, *store.ABOUT_KEYS}
    assert set(typing.get_type_hints(store.Wishes)) == said


def test_rows_and_answers_travel_between_processes():
    answer = redrive.Enqueued(id=1, created=True, kind="mail")
    assert pickle.loads(pickle.dumps(answer)) == answer  # noqa: S301 - our own


def test_importing_redrive_is_light():
    """Not the driver, not a web framework: `redrive --help` should not wait for them."""
    heavy = {"psycopg", "asyncio", "rich", "click", "msgspec", "pydantic"}
    code = f"import sys, redrive; print(*({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.slow
def test_a_type_checker_sees_what_users_write():
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", TYPING.parents[2] / "pyproject.toml", TYPING]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TYPING.parents[2], check=False)
    assert done.returncode == 0, done.stdout
