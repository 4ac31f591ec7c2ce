"""Alembic beside redrive: it installs our tables by a revision, and proposes nothing for them."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from redrive import Queue, migrate
from redrive.testing import connected, run_pending
from ways import WAYS, url

ENV = """
    import sqlalchemy as sa
    from alembic import context

    from redrive.sqlalchemy import leave_alone

    metadata = sa.MetaData()
    sa.Table("users", metadata, sa.Column("id", sa.Integer, primary_key=True))

    with context.config.attributes["engine"].connect() as connection:
        options = context.config.attributes["options"]
        context.configure(connection=connection, target_metadata=metadata, **options)
        with context.begin_transaction():
            context.run_migrations()
"""
MAKO = """
    revision = ${repr(up_revision)}
    down_revision = ${repr(down_revision)}
    def upgrade():
        ${upgrades if upgrades else "pass"}
    def downgrade():
        pass
"""
INSTALL = """
    import sqlalchemy as sa
    from alembic import op

    from redrive.migrate import migrate_within

    revision, down_revision = "1", None

    def upgrade():
        op.create_table("users", sa.Column("id", sa.Integer, primary_key=True))
        migrate_within(op.get_bind(), INSTALLED)

    def downgrade():
        op.execute("DROP SCHEMA redrive CASCADE")
        op.drop_table("users")
"""
Project = Callable[..., Config]


@pytest.fixture
def project(empty_db: str, tmp_path: Path) -> Project:
    """A project with Alembic and one revision, which installs redrive into the schema that is named."""

    def made(schema: str, driver: str = "psycopg", **options: Any) -> Config:
        (tmp_path / "versions").mkdir()
        for name, text in {"env.py": ENV, "script.py.mako": MAKO, "versions/1_install.py": INSTALL}.items():
            (tmp_path / name).write_text(textwrap.dedent(text).replace("INSTALLED", repr(schema)))
        config = Config()
        config.set_main_option("script_location", str(tmp_path))
        config.set_main_option("path_separator", "os")
        config.attributes["engine"] = sa.create_engine(url(empty_db, driver), poolclass=NullPool)
        config.attributes["options"] = options
        return config

    return made


def proposed(config: Config) -> str:
    """The body of what autogenerate proposes."""
    made = command.revision(config, autogenerate=True, rev_id="2")
    body = Path(made.path).read_text().partition("def upgrade():")[2].partition("def downgrade")[0]
    return "\n".join(line.strip() for line in body.splitlines() if line.strip() and "#" not in line)


@pytest.mark.parametrize("schema", ["redrive", "public"])
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_revision_installs_it_and_autogenerate_proposes_nothing_or_06(schema, driver, project, empty_db):
    """OR-06: in a schema of its own as among the application's tables, with all schemas looked at."""
    from redrive.sqlalchemy import leave_alone  # noqa: PLC0415 - the module that is tested

    config = project(schema, driver, include_schemas=True, include_name=leave_alone(schema))
    command.upgrade(config, "head")
    assert migrate.pending(empty_db, schema) == []
    with psycopg.connect(empty_db) as conn:
        assert migrate.installed(conn, schema) == migrate.latest()
        conn.execute(
            f"CREATE TABLE {schema}.jobs_archive_203001 PARTITION OF {schema}.jobs_archive"
            " FOR VALUES FROM ('2030-01-01') TO ('2030-02-01')"
        )
    assert proposed(config) == "pass"


def test_without_it_autogenerate_would_drop_them(project):
    config = project("redrive", include_schemas=True)
    command.upgrade(config, "head")
    assert "op.drop_table('jobs', schema='redrive')" in proposed(config)


def test_the_projects_own_tables_and_filter_are_asked_as_before(project, empty_db):
    from redrive.sqlalchemy import leave_alone  # noqa: PLC0415 - the module that is tested

    asked = []
    mine = leave_alone("public", then=lambda name, sort, parents: bool(asked.append((sort, name))) or name != "legacy")
    config = project("public", include_name=mine)
    command.upgrade(config, "head")
    with psycopg.connect(empty_db) as conn:
        conn.execute("CREATE TABLE legacy (id int); CREATE TABLE forgotten (id int); DROP TABLE users")
    told = proposed(config)
    assert "op.drop_table('forgotten')" in told
    assert "op.create_table('users'" in told
    assert "legacy" not in told
    assert ("table", "jobs") not in asked


def test_a_revision_that_fails_leaves_nothing_and_one_that_is_undone_neither(project, empty_db):
    config = project("redrive", transaction_per_migration=True)
    broken = Path(config.get_main_option("script_location")) / "versions" / "2_broken.py"
    broken.write_text('revision, down_revision = "2", "1"\ndef upgrade():\n    raise RuntimeError("no")\n')
    with psycopg.connect(empty_db, autocommit=True) as conn:
        config.attributes["options"] = {"transaction_per_migration": False}
        with pytest.raises(RuntimeError, match="no"):
            command.upgrade(config, "head")
        assert migrate.installed(conn, "redrive") == 0
        broken.unlink()
        command.upgrade(config, "head")
        assert migrate.installed(conn, "redrive") == migrate.latest()
        command.downgrade(config, "base")
        assert migrate.installed(conn, "redrive") == 0


def test_it_installs_on_whatever_connection_and_again_is_nothing(empty_db):
    async def beneath_run_sync() -> None:
        engine = create_async_engine(url(empty_db, "asyncpg"), poolclass=NullPool)
        async with engine.begin() as connection:
            assert await connection.run_sync(lambda sync: migrate.migrate_within(sync, "one"))
            assert await connection.run_sync(lambda sync: migrate.migrate_within(sync, "one")) == []

    async def on(name: str) -> None:
        async with WAYS[name](empty_db) as way:
            assert migrate.migrate_within(way.connection, "two")
            assert migrate.migrate_within(way.connection, "two") == []
            await way.end(commit=False)

    asyncio.run(beneath_run_sync())
    for name in ("psycopg", "psycopg2", "Session over psycopg"):
        asyncio.run(on(name))
    assert migrate.pending(empty_db, "one") == []
    assert len(migrate.pending(empty_db, "two")) == migrate.latest()


def test_a_table_of_an_installation_is_known_as_one(conn):
    tables = [row[0] for row in conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'redrive'")]
    assert [name for name in tables if not migrate.is_ours(name)] == []
    assert not migrate.is_ours("users")


def test_a_test_of_the_applications_runs_jobs_in_the_session_it_rolls_back_or_07(db, conn):
    """OR-07: as docs/testing.md has it, by the connection beneath the Session."""
    queue = Queue(db)
    done = []

    @queue.handler("mail")
    def mail(payload):
        done.append(payload["n"])

    with Session(sa.create_engine(url(db, "psycopg"), poolclass=NullPool)) as session:
        session.execute(sa.text("CREATE TABLE mine (n int)"))
        mail.enqueue({"n": 1}, connection=session)
        beneath = session.connection().connection.driver_connection
        with connected(queue, beneath):
            mail.enqueue({"n": 2})
            assert [each.outcome for each in run_pending(queue)] == ["succeeded", "succeeded"]
        assert session.execute(sa.text("SELECT count(*) FROM mine, redrive.jobs")).scalar() == 0
        session.rollback()
    assert done == [1, 2]
    assert conn.execute("SELECT count(*) FROM redrive.jobs").fetchone() == (0,)
