"""OR-06 and the rest of a project: migrations, checks, settings, the command."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from unittest import mock

import psycopg
import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, connections, transaction
from django.db.migrations.exceptions import IrreversibleError
from django.db.migrations.loader import MigrationLoader
from django.test import override_settings
from psycopg.sql import SQL, Identifier

import redrive.django
import redrive.migrate
from redrive.django import DjangoQueue, install, queue
from redrive.django.install import Install
from redrive.django.models import Job
from redrive.django.options import options, url
from redrive.django.testing import clear
from redrive.migrate import applied
from redrive.sql import migrations
from redrive.worker import stop_signals

EXAMPLE = Path(import_module("shop").__file__).parent.parent


def said(*words, **how):
    out = io.StringIO()
    call_command(*words, stdout=out, **how)
    return out.getvalue()


def test_each_migration_of_redrives_has_its_twin():
    """A new file in sql/migrations wants one of the same name in django/migrations, with Install(number)."""
    found = MigrationLoader(None).disk_migrations
    twins = {name: migration for (app, name), migration in found.items() if app == "redrive"}
    assert sorted(twins) == [f"{step.version:04d}_{step.name}" for step in migrations()]
    before = None
    for name in sorted(twins):
        versions = [each.version for each in twins[name].operations if isinstance(each, Install)]
        assert versions == [int(name[:4])]
        assert list(twins[name].dependencies) == ([] if before is None else [("redrive", before)])
        before = name


def test_makemigrations_finds_nothing_to_do_or_06():
    """OR-06"""
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@pytest.fixture
def elsewhere():
    """Another schema, which nobody has installed into."""
    name = "else where"
    with override_settings(REDRIVE={"SCHEMA": name}):
        yield name
    with connection.cursor() as cursor:
        cursor.execute(SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(name)).as_string(None))


def migrate_all(name, forwards=True):
    for step in migrations():
        with connection.schema_editor() as editor:
            Install(step.version).database_forwards("redrive", editor, None, None)


def dump(schema):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, column_name, data_type, column_default IS NULL FROM information_schema.columns "
            "WHERE table_schema = %s ORDER BY 1, 2",
            [schema],
        )
        return cursor.fetchall()


def test_both_ways_lead_to_the_same_and_neither_repeats_the_other(elsewhere):
    assert applied(connection, elsewhere) == set()
    migrate_all(elsewhere)
    assert applied(connection, elsewhere) == {step.version for step in migrations()}
    assert dump(elsewhere) == dump("redrive")
    assert redrive.migrate.migrate(url("default"), elsewhere) == []
    migrate_all(elsewhere)


def test_what_redrive_migrate_has_done_is_not_done_again(elsewhere):
    redrive.migrate.migrate(url("default"), elsewhere)
    migrate_all(elsewhere)


def test_a_step_that_finds_a_lock_waits_and_tries_again(elsewhere, monkeypatch):
    """MG-03: nobody queues behind it meanwhile."""
    monkeypatch.setattr(install, "LOCK_TIMEOUT", "20ms")
    tries = []
    monkeypatch.setattr(install.time, "sleep", tries.append)
    for step in migrations()[:1]:
        with connection.schema_editor() as editor:
            Install(step.version).database_forwards("redrive", editor, None, None)
    with psycopg.connect(url("default")) as other:
        other.execute(SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(Identifier(elsewhere, "jobs")))
        with pytest.raises(OperationalError) as caught, connection.schema_editor() as editor:
            Install(4).database_forwards("redrive", editor, None, None)
    assert len(tries) == install.LOCK_TRIES - 1
    assert "end it, migrate again" in caught.value.__notes__[0]


def test_sqlmigrate_prints_what_will_be_run():
    text = said("sqlmigrate", "redrive", "0009")
    assert 'CREATE TABLE "redrive"."batches"' in text
    assert (text.count("BEGIN;"), text.count("COMMIT;")) == (1, 1)


def test_taking_one_back_leaves_the_tables_and_the_first_says_why_not():
    call_command("migrate", "redrive", "0008", verbosity=0)
    assert applied(connection, "redrive") == {step.version for step in migrations()}
    with pytest.raises(IrreversibleError, match="drop the schema"):
        call_command("migrate", "redrive", "zero", verbosity=0)
    call_command("migrate", "redrive", verbosity=0)
    assert queue.enqueue("a").created


def test_a_database_that_is_no_postgres_is_passed_over():
    from django.db import connections

    assert "redrive_job" not in connections["lite"].introspection.table_names()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"DATABASE": "nowhere"}, "DATABASES has no 'nowhere', only default, lite, other"),
        ({"DATABASE": "lite"}, "DATABASES['lite'] is SQLite"),
        ({"SCHEME": "x"}, "did you mean 'SCHEMA'?"),
        ({"LEASE": "soon"}, "lease is 'soon': give seconds"),
        ({"DATABASE_URL": "postgresql://"}, "name it with 'DATABASE'"),
        ({"AUTODISCOVER": 5}, "give names of modules, or False"),
        ("default", "give a dict"),
    ],
)
def test_wrong_settings_are_told_by_the_checks(given, words):
    with override_settings(REDRIVE=given):
        [error] = run_checks(tags=["redrive"])
    assert words in str(error.msg)
    assert run_checks(tags=["redrive"]) == []


def test_settings_are_those_of_redrive_in_capitals():
    with override_settings(REDRIVE={"CONCURRENCY": 3, "RETAIN_DEAD": "30d", "AUTODISCOVER": "handlers"}):
        found = options()
        made = DjangoQueue(found.database, **found.settings)
    assert (made.settings.concurrency, made.settings.retain_dead, found.autodiscover) == (3, 2_592_000, ("handlers",))
    place = psycopg.conninfo.conninfo_to_dict(made.settings.database_url)
    assert place["dbname"] == connection.settings_dict["NAME"]


def test_handlers_of_every_apps_jobs_are_known():
    assert {"confirm_order", "export_invoice", "remind"} <= set(queue.handlers.kinds())


@pytest.mark.parametrize(
    "deed",
    [
        lambda rows: rows.all().delete(),
        lambda rows: rows.update(status="dead"),
        lambda rows: rows.create(kind="x"),
        lambda rows: rows.bulk_create([Job(kind="x")]),
        lambda rows: rows.bulk_update([Job(pk=1, kind="x")], ["kind"]),
        lambda rows: Job(pk=1).delete(),
    ],
)
def test_jobs_are_not_written_through_the_orm_however_many(deed):
    with pytest.raises(TypeError, match="redrive's rows are not"):
        deed(Job.objects)


def test_the_commands_are_redrives_own_on_this_project(capsys):
    clear()
    job = queue.enqueue("nobody_knows")
    call_command("redrive", "jobs", "--json")
    assert f'"id": {job.id}' in capsys.readouterr().out
    with pytest.raises(CommandError, match="exit code 2"):
        call_command("redrive", "no-such-command")
    call_command("redrive", "--using", "other", "jobs")
    assert "no jobs" in capsys.readouterr().err
    with pytest.raises(CommandError, match="no 'nowhere'"):
        call_command("redrive", "--using=nowhere", "jobs")
    assert not {"REDRIVE_APP", "REDRIVE_DATABASE_URL", "REDRIVE_DJANGO_USING"} & os.environ.keys()


def test_manage_py_starts_worker_processes_that_find_the_project():
    """Each is a process that is started afresh, by redrive's own program: here one of them is, in its place."""
    clear()
    with transaction.atomic():
        from shop.models import Order

        order = Order.objects.create(email="ada@x.example", lines=4)
        job = queue.enqueue("export_invoice", {"order": order.pk})
    started = []

    class Started(Exception):
        pass

    def start(command, **how):
        started.append((command, dict(os.environ), how))
        raise Started

    before = {number: signal.getsignal(number) for number in (*stop_signals(), signal.SIGCHLD)}
    try:
        with mock.patch("redrive.cli.processes.subprocess.Popen", start), pytest.raises(Started):
            call_command("redrive", "worker", "--once", "--processes", "2")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    [(command, env, _)] = started
    words = command[command.index("-c") + 3 :]
    assert words == ["worker", "--once", "--processes", "2"]
    paths = os.pathsep.join(map(str, [EXAMPLE.parent.parent / "tests", EXAMPLE, os.environ.get("PYTHONPATH", "")]))
    one = [sys.executable, "-m", "redrive", "worker", "--once"]
    how = {"env": {**env, "PYTHONPATH": paths}, "capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run(one, check=False, **how)
    assert done.returncode == 0, done.stderr
    assert (queue.get(job.id).status, queue.get(job.id).result) == ("succeeded", {"pages": 4}), done.stderr


def test_the_package_has_what_a_wheel_must_have():
    names = {each.name for each in files("redrive.django").iterdir()}
    assert {"migrations", "management", "templates"} <= names


def test_without_django_the_extra_is_named(monkeypatch):
    class Missing:
        def find_spec(self, name, *_):
            if name == "redrive.django.ormqueue":
                raise ModuleNotFoundError("No module named 'django'", name="django")

    monkeypatch.delitem(sys.modules, "redrive.django.ormqueue")
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'redrive\[django\]'"):
        _ = redrive.django.queue


def test_an_unset_database_is_no_guess():
    with override_settings(REDRIVE={"DATABASE": ""}), pytest.raises(ImproperlyConfigured, match="give an alias"):
        options()


def test_a_worker_for_another_database_works_that_one():
    """The project's queue is made when its handlers are imported, which is before --using is read."""
    clear(using="other")
    job = queue.enqueue("export_invoice", {"order": 0}, using="other")
    paths = os.pathsep.join(map(str, [EXAMPLE.parent.parent / "tests", EXAMPLE, os.environ.get("PYTHONPATH", "")]))
    words = [sys.executable, EXAMPLE / "manage.py", "redrive", "--using", "other", "worker", "--once"]
    env = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(words, check=False, env=env, capture_output=True, text=True, timeout=60)
    with connections["other"].cursor() as cursor:
        cursor.execute("SELECT claims FROM redrive.jobs WHERE id = %s", [job.id])
        assert cursor.fetchone() == (1,), done.stderr
    clear(using="other")
