"""A Django project, set up once for this process, on two databases that `tests/test_django.py` has made for it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import django
import pytest

os.environ["DJANGO_SETTINGS_MODULE"] = "djangos.settings"


def pytest_configure() -> None:
    django.setup()


@pytest.fixture(scope="session", autouse=True)
def _project() -> Iterator[None]:
    from django.core.management import call_command
    from django.db import connections
    from django.test.utils import setup_test_environment

    setup_test_environment()
    call_command("migrate", verbosity=0)
    for app in ("redrive", "shop"):
        call_command("migrate", app, database="other", verbosity=0)
    call_command("migrate", "redrive", database="lite", verbosity=0)
    yield
    connections.close_all()
