"""One Postgres for the whole run, a fresh database for each test.

DATABASE_URL names another server to use; REDRIVE_PG_BIN other binaries for ours.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import settings
from psycopg.conninfo import conninfo_to_dict

import support
from chaos.keeper import shared
from chaos.pooler import pooler
from chaos.programs import find_pgbouncer, find_rabbitmq
from chaos.rabbit import Broker, Rabbit
from chaos.server import OwnServer
from engine import Effects
from redrive.dev_server import DevServer

# a hundred times as many examples as in `make test`, and others at each run
settings.register_profile("model", max_examples=10_000, deadline=None)

collect_ignore = ["djangos"]
"""A process has one Django: test_django runs these in a process of their own, with a conftest of their own."""

# A suite of processes: what one has compiled, the next need not compile again. A test's assertions are rewritten before
# that, which makes it ten times as dear.
sys.dont_write_bytecode = False

GIVEN_URL = os.environ.get("DATABASE_URL")
RUN = (os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex)[:12]
BINARIES = Path(os.environ["REDRIVE_PG_BIN"]) if os.environ.get("REDRIVE_PG_BIN") else None
SETTINGS = {
    "log_line_prefix": "%m [%p] %d %a ",  # support.ServerLog reads the database's name from it
    "max_connections": "300",
    "max_prepared_transactions": "10",
    # of make matrix
    **dict(each.split("=", 1) for each in os.environ.get("MATRIX_SETTINGS", "").split(";") if each),
}

# `make matrix` lets the workers go through a pooler
WORKERS_DATABASE = "pgbouncer" if os.environ.get("MATRIX_POOLER") else "db"

# a crash of the server must not lose what it has confirmed
LASTING = {"synchronous_commit": "on"}


def pytest_configure() -> None:
    """Take Ctrl-C, and let programs of the tests take it, also where a script has begun the run in its background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the slow ones go first: begun last, one keeps a single worker busy at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the developer's own settings out of the tests."""
    for name in list(os.environ):
        if name == "DATABASE_URL" or name.startswith(("PG", "REDRIVE_")):
            monkeypatch.delenv(name)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # as above, for the programs of the tests


@pytest.fixture(scope="session")
def server() -> Iterator[DevServer | None]:
    """The run's server, which all workers of pytest-xdist share; None where DATABASE_URL names another."""
    if GIVEN_URL:
        yield None
        return
    directory = support.clusters() / f"redrive-tests-{RUN}"
    with DevServer(directory, keep=False, bindir=BINARIES, settings=SETTINGS) as started:
        if not started.attached:
            support.cheap_logins(started.url)
        yield started


@pytest.fixture(scope="session")
def server_url(server: DevServer | None) -> Iterator[str]:
    """A superuser's URL of the run's server."""
    with support.kept(server.url if server else GIVEN_URL or "") as url:
        yield url


@pytest.fixture(scope="session")
def template(server_url: str) -> Iterator[str]:
    """A migrated database that nobody uses, for `db` to copy."""
    from redrive.migrate import migrate  # noqa: PLC0415 # tests that need no schema run while it is broken

    with support.database(server_url) as dsn:
        migrate(dsn)
        yield str(conninfo_to_dict(dsn)["dbname"])


@pytest.fixture
def db(server_url: str, template: str) -> Iterator[str]:
    """The DSN of a migrated database of the test's own."""
    with support.database(server_url, template, keep=True) as dsn:
        yield dsn


@pytest.fixture
def empty_db(server_url: str) -> Iterator[str]:
    """The DSN of an empty database of the test's own."""
    with support.database(server_url, keep=True) as dsn:
        yield dsn


@pytest.fixture
def conn(db: str) -> Iterator[psycopg.Connection]:
    """An autocommit connection to `db`, with the search path it came with."""
    with psycopg.connect(db, autocommit=True) as connection:
        yield connection


@pytest.fixture
def wait_for() -> Callable[..., object]:
    """`support.wait_for`, for tests that import nothing else from there."""
    return support.wait_for


@pytest.fixture
def start_worker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., support.Worker]]:
    """Start workers on `db`, killed after the test: ``start_worker(source, "--concurrency", "4", env={})``.

    The app's source (or module, or ``module:queue``) finds `db` in DATABASE_URL; ``dsn=`` names another one.
    """
    workers: list[support.Worker] = []
    directory = tmp_path_factory.mktemp("worker")

    def start(app: str, *flags: str, env: dict[str, str] | None = None, dsn: str | None = None) -> support.Worker:
        url = dsn or request.getfixturevalue(WORKERS_DATABASE)
        worker = support.Worker(app, flags, {**os.environ, "DATABASE_URL": url, **(env or {})}, directory)
        workers.append(worker)
        return worker

    if "db" in request.fixturenames:  # made first, so dropped after the workers are gone
        request.getfixturevalue(WORKERS_DATABASE)
    yield start
    for worker in workers:
        worker.kill()
        print(f"--- {worker.path.name}\n{worker.log()}")  # noqa: T201 # pytest shows it when the test failed


@pytest.fixture
def effects(db: str) -> Iterator[Effects]:
    """What the handlers of engine.APP have done, as they wrote it down in a table."""
    made = Effects(db)
    yield made
    made.close()


@pytest.fixture
def server_log(server: DevServer | None, db: str) -> support.ServerLog:
    """What the server logged about `db` since the test began: ``assert server_log.errors() == []``."""
    if server is None:
        pytest.skip("the log of the server that DATABASE_URL names is out of reach")
    return support.ServerLog(server.log, str(conninfo_to_dict(db)["dbname"]))


@pytest.fixture(scope="session")
def seed(server: DevServer | None) -> Iterator[Path]:
    """A cluster that nobody runs, for `support.plant` to copy."""
    # beneath the run's own server, which takes it along, should pytest be killed
    directory = (server.directory if server else support.clusters()) / f"redrive-seed-{uuid.uuid4().hex[:12]}"
    with DevServer(directory, keep=True, bindir=BINARIES) as started:
        support.cheap_logins(started.url)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def own_server(seed: Path) -> Iterator[OwnServer]:
    """A private server to stop, crash and freeze. Its database is empty: migrate `own_server.url`."""
    directory = support.plant(seed, support.clusters() / f"redrive-own-{uuid.uuid4().hex[:12]}")
    with DevServer(directory, keep=False, bindir=BINARIES, settings=SETTINGS | LASTING) as started:
        own = OwnServer(started)
        yield own
        own.close()


@pytest.fixture(scope="session")
def pgbouncer_program() -> str:
    """Pgbouncer's program, installed if need be and possible."""
    program = find_pgbouncer()
    if program is None:
        pytest.skip("no pgbouncer here, and no root with apt-get to install it")
    return program


@pytest.fixture
def pgbouncer(pgbouncer_program: str, db: str) -> Iterator[str]:
    """A DSN of `db` through pgbouncer in transaction mode with two server connections."""
    with pooler(pgbouncer_program, db) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def rabbitmq_scripts() -> Path:
    """The directory of RabbitMQ's scripts, installed if need be and possible."""
    pytest.importorskip("aio_pika", reason="the extra amqp is not installed")
    scripts = find_rabbitmq()
    if scripts is None:
        pytest.skip("no RabbitMQ here, and no root with apt-get to install it")
    return scripts


@pytest.fixture(scope="session")
def rabbit(rabbitmq_scripts: Path) -> Iterator[Broker]:
    """The run's RabbitMQ, which all workers of pytest-xdist share: not to be stopped, killed or alarmed."""
    with shared(rabbitmq_scripts, support.clusters() / f"redrive-rabbit-{RUN}") as broker:
        yield broker


@pytest.fixture
def vhost(rabbit: Broker) -> Iterator[str]:
    """The AMQP URL of a virtual host of the test's own."""
    with rabbit.vhost() as url:
        yield url


@pytest.fixture
def own_rabbit(rabbitmq_scripts: Path) -> Iterator[Rabbit]:
    """A RabbitMQ to stop, kill and alarm. A start takes 8 s of one core: for what a proxy before `rabbit` can't do."""
    with Rabbit(rabbitmq_scripts, within=support.clusters()) as started:
        yield started
