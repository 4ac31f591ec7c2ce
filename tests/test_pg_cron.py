"""pg_cron as the trigger instead of our scheduler: the real extension, on Debian's server, in a database of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from redrive import Queue
from redrive.dev_server import DevServer
from redrive.migrate import migrate
from support import wait_for

BINARIES = Path("/usr/lib/postgresql/15/bin")
EXTENSION = Path("/usr/share/postgresql/15/extension/pg_cron.control")
SETTINGS = {
    "shared_preload_libraries": "pg_cron",
    "cron.database_name": "postgres",
    "cron.use_background_workers": "on",  # no connection, so no password
}


@pytest.fixture
def server_with_cron() -> Iterator[str]:
    """The URL of a server with pg_cron, installed if need be and possible."""
    if not EXTENSION.exists() and os.geteuid() == 0 and shutil.which("apt-get"):
        env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # no service is to be started
        apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
        for command in (["update"], ["install", "-y", "--no-install-recommends", "postgresql-15-cron"]):
            subprocess.run([*apt, *command], env=env, check=False, timeout=300, capture_output=True)
    if not (EXTENSION.exists() and (BINARIES / "postgres").exists()):
        pytest.skip("no postgresql-15-cron here, and no root with a Debian 12 to install it")
    with DevServer(bindir=BINARIES, settings=SETTINGS) as server:
        yield server.url


@pytest.mark.proof
def test_pg_cron_enqueues_by_sql_and_a_key_keeps_runs_from_piling_up(server_with_cron):
    """It knows minutes only, so this waits for two of them; and no worker is there to have a scheduler."""
    migrate(server_with_cron)
    queue = Queue(server_with_cron)
    with psycopg.connect(server_with_cron, autocommit=True) as conn:
        conn.execute("CREATE EXTENSION pg_cron")
        conn.execute(
            "SELECT cron.schedule('often', '* * * * *', $$SELECT redrive.enqueue('often', '{\"by\": \"pg_cron\"}')$$)"
        )
        conn.execute(
            "SELECT cron.schedule('single', '* * * * *', $$SELECT redrive.enqueue('single', key => 'single')$$)"
        )
        count = "select count(*) from redrive.jobs where kind = %s"
        runs = "select count(*) from cron.job_run_details where status = 'succeeded'"
        wait_for(lambda: conn.execute(count, ("often",)).fetchone()[0] == 2, 150, every=0.5)
        wait_for(lambda: conn.execute(runs).fetchone()[0] == 4, 20, every=0.2)
        assert conn.execute(count, ("single",)).fetchone() == (1,), "the first still waits"
        conn.execute("SELECT cron.unschedule('often'), cron.unschedule('single')")
        ran = []
        queue.handler("often")(ran.append)
        queue.handler("single")(ran.append)
        queue.run(once=True)
        assert sorted(ran, key=len) == [{}, {"by": "pg_cron"}, {"by": "pg_cron"}]
        assert conn.execute("select distinct status::text from redrive.jobs").fetchall() == [("succeeded",)]
    queue.close()
