"""What strangers write, rows with every column odd, payloads, errors, words at the shell: nothing falls over it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from redrive import Discard, InvalidOption, InvalidPayload, Queue, claims, store
from redrive.cli import cli
from redrive.ended import Ended, requeue_preview
from redrive.failure import describe
from redrive.job import Holder
from redrive.outcome import Crashed, Finished, Retried, Snoozed, parameters
from redrive.reaper import OWN_NAME
from redrive.statements import named, run
from support_engine import claim_of, drain

MANY = settings.default.max_examples // 100  # 1, and 100 by `make model`


def examples(count: int) -> settings:
    return settings(
        max_examples=count * MANY,
        derandomize=MANY == 1,
        database=None,
        deadline=None,
        phases=[Phase.generate] if MANY == 1 else list(Phase),
        suppress_health_check=list(HealthCheck),
    )


# -- what a column can hold

numbers = st.sampled_from((0, 1, -1, 2, 5, 2**31 - 1, -(2**31)))
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)
times = st.sampled_from(
    (
        "infinity",
        "-infinity",
        "4713-01-01 00:00+00 BC",
        "0001-01-01 00:00+00",
        "2020-06-01 00:00:00.123456+15:59",
        "now",
        "10000-01-01 00:00+00",
        "294276-12-31 23:59:59+00",
    )
)
documents = st.sampled_from(
    (
        "null",
        "[]",
        '""',
        '{"a": {"b": [1, null, "\\u2028"]}}',
        "1e400",
        "9" * 5000,
        '{"": 0}',
        "-0.0",
        '"' + "x" * 5000 + '"',
    )
)
KINDS = {"kind": st.sampled_from(("known", "known", "unknown", "", "%s; drop table", "ä €", "k" * 900))}
COLUMNS = {
    "payload": documents,
    "status": st.sampled_from(("pending", "running", "succeeded", "failed", "dead")),
    "attempts": numbers,
    "max_attempts": numbers,
    "run_at": times,
    "locked_at": st.none() | times,
    "locked_by": st.none() | texts | st.just("here:1:aaaaaa"),
    "last_error": st.none() | texts,
    "created_at": times,
    "updated_at": times,
    "priority": st.integers(0, 9),
    "lane": texts,
    "key": st.none() | texts,
    "claims": numbers,
    "crashes": numbers,
    "alone": st.booleans(),
    "expires_at": st.none() | times,
    "cancel_requested_at": st.none() | times,
    "progress": st.none() | documents,
    "result": st.none() | documents,
    "metadata": st.none() | documents,
    "counted": st.booleans(),
    "fingerprint": st.none() | texts,
    "superseded": st.booleans(),
    "batch": st.none() | numbers,
}
ROWS = st.fixed_dictionaries(KINDS, optional=COLUMNS)


LEFT = "select count(*) from redrive.jobs where kind = 'known' and status = 'pending' and run_at <= now()"
FAILURE = describe(ValueError("it failed"))


def empty(conn: psycopg.Connection[Any]) -> None:
    conn.execute("delete from redrive.jobs; delete from redrive.failures; delete from redrive.jobs_archive")


def lanes_of(conn: psycopg.Connection[Any]) -> list[tuple[str, int, str]]:
    return conn.execute("select distinct kind, priority, lane from redrive.jobs where kind = 'known'").fetchall()


def written(conn: psycopg.Connection[Any], rows: list[dict[str, Any]]) -> list[int]:
    """Write rows as a stranger does; gives the ids of those that the table takes."""
    ids = []
    for each in rows:
        names = ", ".join(each)
        marks = ", ".join(["%s"] * len(each))
        try:
            query = f"insert into redrive.jobs ({names}) values ({marks}) returning id"
            ids += [row[0] for row in conn.execute(query, list(each.values()))]
        except (psycopg.errors.UniqueViolation, psycopg.errors.UntranslatableCharacter):  # not every encoding has all
            continue
    return ids


class TestOddRows:
    def test_have_every_column_odd(self, conn):
        there = conn.execute("select * from redrive.jobs limit 0").description
        assert {"id", *KINDS, *COLUMNS} == {each.name for each in there}

    @pytest.fixture
    def queue(self, db):
        queue = Queue(db, lease=1.0)
        queue.handler("known")(lambda payload: None)
        yield queue
        queue.close()

    def test_are_read_claimed_reaped_and_pruned_like_any_other(self, conn, queue):
        holder = Holder("there:1:bbbbbb", "redrive")

        @given(
            st.lists(ROWS, min_size=1, max_size=8),
            st.sampled_from((Retried(FAILURE, 0.0), Snoozed(1e9), Crashed(FAILURE, 0.0))),
        )
        @examples(25)
        def holds(rows, outcome):
            empty(conn)
            ids = written(conn, rows)
            for job in ids:
                assert queue.get(job).id == job
            assert {job.id for job in queue.ask(store.list_jobs("redrive"))} == set(ids)
            for look in (store.counts, store.workers, store.oldest_due):
                queue.ask(look("redrive"))
            queue.ask(requeue_preview("redrive", Ended()))
            orphaned = {"orphaned": ["here:1:aaaaaa"], "lease": 1.0, "foreign_age": 600.0, "kinds": []}
            reap = named("reap_jobs", "redrive", own_name=OWN_NAME, judge="", max_crashes=3, **orphaned)
            run(conn, reap)
            assert run(conn, reap) == []
            run(conn, named("bury_hopeless", "redrive", kinds=[]))
            assert run(conn, named("bury_hopeless", "redrive", kinds=[])) == []
            jobs = run(conn, claim_of(holder, lanes_of(conn), 100, 1000))
            while alone := run(conn, claims.claim_alone(holder, kinds=["known"], locked=[])):
                jobs += alone
            assert conn.execute(LEFT).fetchone() == (0,)
            batch = sorted((Finished(job, outcome, 0.1) for job in jobs), key=lambda one: one.job.id)
            told = run(conn, named("finish_jobs", "redrive", worker=holder.name, max_crashes=3, **parameters(batch)))
            assert len(told) == len(batch)
            assert all(job.run_at and job.created_at and job.idempotency_key for job in jobs)
            queue.cancel(kind="unknown")
            queue.requeue(Ended(statuses=("dead", "failed")))

        holds()

    def test_are_run_by_a_worker_to_their_end(self, conn, queue):
        @given(st.lists(ROWS, min_size=30, max_size=60))
        @examples(1)
        def holds(rows):
            empty(conn)
            written(conn, [row | {"kind": "known"} for row in rows])
            drain(queue)
            assert conn.execute(LEFT).fetchone() == (0,)
            held = (
                "select count(*) from redrive.jobs where locked_by ~ %s and status = 'running' and locked_by !~ '^here'"
            )
            assert conn.execute(held, [OWN_NAME]).fetchone() == (0,)

        holds()

    def test_are_shown_at_the_shell(self, conn, db, monkeypatch):
        monkeypatch.setenv("DATABASE_URL", db)

        @given(st.lists(ROWS, min_size=1, max_size=4))
        @examples(6)
        def holds(rows):
            empty(conn)
            ids = written(conn, rows)
            for words in (
                ["jobs"],
                ["jobs", "--json"],
                ["jobs", "--counts"],
                ["dead"],
                ["dead", "--json"],
                ["health"],
                ["requeue", "--all", "--dry-run"],
            ):
                said(*words, codes=(0, 1))
            for job in ids:
                said("show", str(job))
                document = json.loads(said("show", str(job), "--json"))
                assert job in (document.get("id"), document.get("job", {}).get("id"))

        holds()

    @pytest.mark.parametrize("style", ["SQL, DMY", "German", "Postgres, MDY"])
    def test_are_read_whatever_the_database_calls_a_date(self, conn, db, monkeypatch, style):
        name = conn.info.dbname
        conn.execute(f"alter database {name} set datestyle = '{style}'")
        conn.execute(f"alter database {name} set intervalstyle = 'sql_standard'")
        monkeypatch.setenv("DATABASE_URL", db)
        [job] = written(
            conn, [{"kind": "k", "status": "dead", "updated_at": "infinity", "run_at": "2020-01-31 09:00+00"}]
        )
        for words in (["jobs"], ["dead"], ["show", str(job)], ["workers"], ["health"], ["requeue", str(job)]):
            said(*words, codes=(0, 1))
        queue = Queue(db)
        queue.handler("k")(lambda payload: None)
        assert queue.get(job).status == "pending"
        drain(queue)
        queue.close()


REFUSED = (InvalidOption, psycopg.errors.UntranslatableCharacter)
"""The last by a database whose encoding has no such letter: see `make matrix`."""


def said(*words: str, codes: tuple[int, ...] = (0,)) -> str:
    """What a command says; no traceback, and one of the exit codes."""
    result = CliRunner().invoke(cli, list(words), prog_name="redrive")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"redrive {words} fell over {result.exception!r}") from result.exception
    assert result.exit_code in codes, (words, result.output)
    return result.output


WORDS = st.text(st.characters(exclude_characters="\0"), max_size=12) | st.sampled_from(
    (
        "\udcff",
        "%",
        "_",
        "\\",
        "'; drop table redrive.jobs; --",
        '"',
        "{}",
        "%s",
        "%(kind)s",
        "$1",
        "e\u0301",
        "-1",
        "9" * 30,
    )
)
COMMANDS = st.sampled_from(
    (
        ("jobs", "--kind="),
        ("jobs", "--key="),
        ("jobs", "--error="),
        ("jobs", "--before="),
        ("dead", "--kind="),
        ("dead", "--since="),
        ("requeue", "--dry-run", "--kind="),
        ("requeue", "--yes", "--error="),
        ("requeue", "--since="),
        ("requeue", "--yes", "--", ""),
        ("cancel", "--yes", "--kind="),
        ("cancel", "--yes", "--key="),
        ("cancel", "--yes", "--kind=mail", "--reason="),
        ("cancel", "--yes", "--", ""),
        ("show", "--", ""),
        ("enqueue", "--", ""),
        ("enqueue", "mail", "--", ""),
        ("enqueue", "mail", "--key="),
        ("enqueue", "mail", "--lane="),
        ("enqueue", "mail", "--delay="),
        ("enqueue", "mail", "--run-at="),
        ("enqueue", "mail", "--max-attempts="),
        ("jobs", "--schema="),
    )
)
LASTING = st.sampled_from(
    (
        ("schedules", "add", "--", "nightly", "mail", ""),
        ("schedules", "add", "nightly", "mail", "--every="),
        ("schedules", "add", "nightly", "mail", "--at="),
        ("schedules", "add", "nightly", "mail", "0 3 * * *", "--timezone="),
        ("schedules", "add", "nightly", "mail", "0 3 * * *", "--payload="),
        ("schedules", "add", "nightly", "mail", "0 3 * * *", "--age="),
        ("schedules", "add", "0 3 * * *", "--", ""),
        ("schedules", "preview", "--", ""),
        ("schedules", "preview", "0 3 * * *", "--after="),
        ("schedules", "pause", "nightly", "--reason="),
        ("schedules", "run", "--", ""),
        ("schedules", "slots", "--", ""),
        ("schedules", "remove", "--", ""),
        ("pause", "--", ""),
        ("pause", "mail", "--until="),
        ("resume", "--", ""),
        ("limit", "mail", "--rate="),
        ("limit", "--running=1", "--", ""),
        ("explain", "--", ""),
        ("breakers", "open", "--", "mail", ""),
        ("breakers", "open", "mail", "--hold="),
        ("breakers", "close", "--", ""),
        ("topics", "add", "--", "invoice.paid", ""),
        ("topics", "publish", "--", ""),
        ("topics", "publish", "--", "invoice.paid", ""),
        ("topics", "list", "--kind="),
    )
)
"""Commands whose words last."""
SHOWN = ("schedules list", "kinds", "breakers list", "topics list", "audit", "health", "doctor")
"""Where they are shown."""
TIMES = st.sampled_from(
    ("", "0", "5m", "-1", "1e400", "nan", "inf", "9" * 30, "294276-01-01", "0001-01-01", "2030-02-30")
)


class TestHostileWords:
    def test_at_the_shell_are_data_or_refused_in_a_line(self, conn, db, monkeypatch):
        monkeypatch.setenv("DATABASE_URL", db)
        [victim] = written(conn, [{"kind": "other", "status": "dead"}])
        before = conn.execute("select * from redrive.jobs").fetchall()

        @given(COMMANDS, WORDS)
        @examples(80)
        def holds(command, word):
            said(*command[:-1], command[-1] + word, codes=(0, 1, 2, 4))

        holds()
        assert conn.execute("select * from redrive.jobs where id = %s", [victim]).fetchall() == before

    def test_that_last_are_data_or_refused_in_a_line_and_shown_wherever_one_looks(self, conn, db, monkeypatch):
        monkeypatch.setenv("DATABASE_URL", db)
        [victim] = written(conn, [{"kind": "other", "status": "dead"}])
        before = conn.execute("select * from redrive.jobs").fetchall()

        @given(LASTING, WORDS | TIMES)
        @examples(60)
        def holds(command, word):
            said(*command[:-1], command[-1] + word, codes=(0, 1, 2, 4))

        holds()
        for command in SHOWN:
            said(*command.split(), codes=(0, 1))
            json.loads(said(*command.split(), "--json", codes=(0, 1)))
        assert conn.execute("select * from redrive.jobs where id = %s", [victim]).fetchall() == before

    def test_that_no_locale_can_read_are_refused_in_a_line(self, db):
        """As a shell hands them over: bytes that are no text."""
        command = [sys.executable.encode(), b"-m", b"redrive", b"requeue", b"--error", b"\xff"]
        done = subprocess.run(
            command, env=os.environ | {"DATABASE_URL": db}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) == 1

    def test_in_filters_are_no_sql_and_no_patterns(self, conn, db):
        queue = Queue(db)

        @given(st.text(max_size=12) | WORDS)
        @examples(60)
        def holds(word):
            empty(conn)
            written(conn, [{"kind": "k", "status": "dead", "last_error": "plain words"}])
            try:
                found = queue.ask(store.list_jobs("redrive", error=word))
                moved = queue.requeue(Ended(error=word))
                cancelled = queue.cancel(kind=word, key=word, reason=word)
            except REFUSED:
                return
            matches = word.casefold() in "plain words"
            assert bool(found) == bool(moved) == matches
            assert cancelled == {}

        holds()
        queue.close()

    def test_as_names_are_stored_as_they_are_or_refused(self, conn, db):
        queue = Queue(db)

        @given(WORDS, WORDS, WORDS)
        @examples(60)
        def holds(kind, key, lane):
            try:
                made = queue.enqueue(kind, key=key, lane=lane)
            except REFUSED:
                return
            row = queue.get(made.id)
            assert row.key == key
            assert (row.kind, row.lane) == (kind, lane) or not made.created
            assert queue.enqueue(kind, key=key).id == made.id

        holds()
        queue.close()


class TestHostileValues:
    def test_as_payloads_come_back_as_they_went_or_are_refused(self, conn, db):
        queue = Queue(db)
        leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=3)
        values = st.recursive(
            leaves,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
            max_leaves=8,
        )

        @given(values)
        @examples(60)
        def holds(value):
            try:
                made = queue.enqueue("k", {"value": value})
            except (InvalidPayload, *REFUSED):
                return
            found = queue.get(made.id).payload["value"]
            assert json.loads(json.dumps(value)) == found

        holds()
        queue.close()

    def test_as_errors_never_keep_a_job_running(self, conn, db):
        queue = Queue(db)
        raised: list[BaseException] = []

        @queue.handler("k", max_attempts=1)
        def k(payload):
            raise raised[0]

        types = st.sampled_from(
            (
                ValueError,
                KeyError,
                Discard,
                UnicodeError,
                type("Odd\u202e", (Exception,), {"__str__": lambda self: 1 / 0}),
            )
        )

        @given(types, st.text() | st.binary() | st.integers())
        @examples(12)
        def holds(kind, text):
            empty(conn)
            raised[:] = [kind(text) if kind is not Discard else Discard(str(text))]
            made = queue.enqueue("k")
            drain(queue)
            assert queue.get(made.id).status == ("failed" if kind is Discard else "dead")

        holds()
        queue.close()
