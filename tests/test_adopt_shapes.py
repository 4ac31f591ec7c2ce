"""What is proposed for tables of every shape: recognised, mapped in their own words, asked where nobody knows."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

import psycopg
import pytest

import support
from redrive.adopt import mapfile
from redrive.adopt.bridge import Plan, Wanted
from redrive.adopt.document import UNANSWERED
from redrive.adopt.fit import fitted
from redrive.adopt.mapping import Attempts, Clock, Mapping, Payload, Priority, Runnable, Write, parse
from redrive.adopt.proof import prove
from redrive.adopt.proposal import Draft, propose
from redrive.adopt.report import report
from redrive.adopt.survey import survey
from redrive.errors import InvalidMap
from shapes_of_tables import PEERS, SHAPES, UUIDS
from test_adopt_mapping import changed

TABLES = {**SHAPES, **PEERS}
ANSWERS = {
    "zone": "UTC",
    "max": 5,
    "first": "high",
    "form": "epoch s",
    "claimed": "sending",
    "succeeded": "sent",
    "dead": "failed",
}


@pytest.fixture(scope="module")
def home(server_url: str) -> Iterator[psycopg.Connection]:
    with support.database(server_url) as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(UUIDS)
        for ddl in TABLES.values():
            conn.execute(ddl)
        yield conn


def drafted(conn: psycopg.Connection, name: str, **how: object) -> Draft:
    return propose(report(conn, survey(conn, name), **how))


def answered(draft: Draft) -> Mapping:
    """The file with an answer for each of its questions."""
    document = tomllib.loads(draft.text())
    for place in draft.questions:
        *path, name = mapfile._split(place)
        part = document
        for step in path:
            part = part[step]
        assert part[name] == UNANSWERED
        part[name] = ANSWERS.get(name, ANSWERS.get(path[0] if path else ""))
    return parse(document)


# -- the shapes of section 15


@pytest.mark.parametrize(
    ("name", "title", "questions"),
    [
        ("mail_jobs", "states, a count of tries and a time for the next", {"zone", "max"}),
        ("mail_flag", "a flag that is set", {"zone", "max"}),
        ("mail_null", "a time that is set", set()),
        ("mail_simple", "without a due time", {"zone", "max", "claimed", "succeeded", "dead"}),
        ("hook_delivery", "webhook deliveries", {"max"}),
        ("bg_jobs", "background jobs", {"first"}),
        ("outbox", "outbox", {"zone"}),
        ("mail_delete", "deleted when they are done", {"first", "form", "max"}),
    ],
)
def test_a_table_made_by_hand_is_recognised_and_asked_what_only_a_human_knows(home, name, title, questions):
    draft = drafted(home, name)
    assert title in draft.title
    asked = {place.split(".")[0] if ".set." in place else place.rpartition(".")[2] for place in draft.questions}
    assert asked == questions
    if questions:
        with pytest.raises(InvalidMap, match="is not answered"):
            parse(tomllib.loads(draft.text()))


@pytest.mark.parametrize("name", TABLES)
def test_once_its_questions_are_answered_a_proposal_suits_its_table(home, name):
    """AD-03: nothing is proposed that the table would refuse; Postgres itself is asked, too."""
    draft = drafted(home, name)
    table = survey(home, name).table
    if len(table.key) > 1:
        with pytest.raises(InvalidMap, match="a key of several columns can't be adopted"):
            fitted(answered(draft), table)
        return
    mapping = fitted(answered(draft), table)
    prove(home, mapping, table)
    assert Plan(home, "redrive", mapping, Wanted(legacy_stopped=True)).script()


def test_every_line_of_a_proposal_has_its_reason(home):
    for name in TABLES:
        lines = drafted(home, name).text().splitlines()
        silent = [
            line
            for before, line in zip(["", *lines], lines, strict=False)
            if re.match(r"\w+ = ", line) and "#" not in line and not before.startswith(("#", "["))
        ]
        assert [line for line in silent if "{ form = " not in line and not line.startswith("columns")] == [], name


def test_the_words_of_the_table_are_used_and_no_others(home):
    draft = drafted(home, "mail_jobs", zone="UTC", most=5)
    assert draft.questions == {}
    found = draft.mapping
    assert found.runnable == Runnable(column="status", values=("pending", "deferred"))
    assert found.claimed == Write(values={"status": "processing"})
    assert found.waiting == Write(values={"status": "deferred"}, run_at=("next_retry_at",))
    assert found.succeeded == Write(values={"status": "sent"}, now=("processed_at",))
    assert found.dead == Write(values={"status": "failed"})
    assert found.payload == Payload(form="columns", columns=("rcpt", "subject", "body_html"))
    assert found.attempts == Attempts(column="retry_count", most=5)
    assert found.clock("next_retry_at") == Clock(form="timestamp", zone="UTC")
    assert (found.kind, found.created, found.due, found.error) == (
        "mail_jobs",
        "created_at",
        "next_retry_at",
        "last_error",
    )


def test_each_shape_is_worked_in_its_own_way(home):
    flag = drafted(home, "mail_flag").mapping
    assert flag.runnable == Runnable(column="sent", values=(False,))
    assert (flag.succeeded, flag.claimed, flag.dead) == (Write(values={"sent": True}), Write(), Write())
    null = drafted(home, "mail_null").mapping
    assert null.runnable == Runnable(column="sent_at", null=True)
    assert null.succeeded == Write(now=("sent_at",))
    assert null.payload.columns == ("user_id", "template")
    hook = drafted(home, "hook_delivery").mapping
    assert hook.dead == Write(values={"status": "abandoned"})
    assert hook.waiting == Write(values={"status": "pending"}, run_at=("next_attempt_at",))
    assert hook.payload.columns == ("hook_id", "event", "payload")
    jobs = drafted(home, "bg_jobs").mapping
    assert jobs.claimed.values == {"status": "processing", "locked_by": "redrive"}
    assert jobs.claimed.now == ("locked_at", "updated_at")
    assert jobs.waiting.values == {"status": "retrying"}
    assert set(jobs.succeeded.null) == {"locked_by", "locked_at"}
    assert jobs.payload == Payload(form="columns", columns=("job_type", "payload"))
    assert jobs.attempts == Attempts(column="attempts", most_column="max_attempts")
    box = drafted(home, "outbox", zone="UTC").mapping
    assert box.dead == Write(values={"status": "FAILED"})
    assert box.attempts == Attempts(most=5)
    gone = drafted(home, "mail_delete").mapping
    assert gone.runnable == Runnable()
    assert gone.succeeded == Write(delete=True)


def test_the_kinds_in_use_are_those_of_the_column_where_it_has_any(home):
    home.execute("INSERT INTO bg_jobs (job_type) VALUES ('export'), ('mail'), ('mail')")
    try:
        draft = drafted(home, "bg_jobs")
    finally:
        home.execute("TRUNCATE bg_jobs")
    assert (draft.mapping.kind, draft.mapping.kind_column) == (None, "job_type")
    assert draft.mapping.payload == Payload(form="json", columns=("payload",))
    assert "register a handler for mail, export" in draft.text()
    assert drafted(home, "bg_jobs").mapping.kind == "bg_jobs"


def test_numbers_that_count_milliseconds_are_seen_to_do_so(home):
    home.execute("INSERT INTO mail_delete (created_at) VALUES (1764470000000)")
    try:
        draft = drafted(home, "mail_delete")
    finally:
        home.execute("TRUNCATE mail_delete")
    assert draft.mapping.clock("created_at") == Clock(form="epoch ms")


def test_words_that_were_only_ever_seen_are_taken_from_the_rows(home):
    home.execute("INSERT INTO mail_simple (status) SELECT unnest(ARRAY['sending', 'sent', 'failed', ''])")
    try:
        draft = drafted(home, "mail_simple", zone="UTC", most=3)
    finally:
        home.execute("TRUNCATE mail_simple")
    assert draft.questions == {}
    assert draft.mapping.claimed.values == {"status": "sending"}
    assert draft.mapping.runnable.values == ("queued",)


# -- the tables of others


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("background_task", "django-background-tasks"),
        ("django_q_ormq", "django-q2"),
        ("procrastinate_jobs", "procrastinate"),
        ("delayed_jobs", "delayed_job"),
        ("pgboss.job", "pg-boss 10"),
        ("pgboss9.job", "pg-boss 9"),
        ("graphile_worker._private_jobs", "graphile-worker"),
    ],
)
def test_the_table_of_another_queue_is_recognised(home, name, title):
    draft = drafted(home, name)
    assert title in draft.title


def test_what_another_queue_writes_is_read_as_it_means_it(home):
    home.execute(
        "INSERT INTO delayed_jobs (handler, run_at, locked_at, failed_at, created_at, updated_at) VALUES"
        " ('waits', now(), NULL, NULL, now(), now()),"
        " ('stuck', now(), now() - interval '3 days', NULL, now(), now()),"
        " ('dead', now(), NULL, now() - interval '3 days', now(), now());"
        "INSERT INTO django_q_task VALUES ('a', 'n', 'f', NULL, NULL, NULL, NULL, NULL, now(), now(), false, 1)"
    )
    home.execute(
        "INSERT INTO procrastinate_jobs (queue_name, task_name, status, scheduled_at)"
        " SELECT 'q', 't', unnest(ARRAY['todo', 'doing', 'failed', 'succeeded']::procrastinate_job_status[]),"
        " now() - interval '2 days'"
    )

    def lost(name: str) -> dict[str, int]:
        return {bucket.rule.name: bucket.rows for bucket in report(home, survey(home, name), zone="UTC").buckets}

    try:
        assert lost("delayed_jobs") == {"stuck": 1, "failed": 1}
        assert lost("django_q_task") == {"failed": 1}
        assert lost("procrastinate_jobs") == {"failed": 1, "overdue": 1}
    finally:
        home.execute("TRUNCATE delayed_jobs, django_q_task, procrastinate_jobs")


# -- what only Postgres can judge


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"runnable__where": "no_such_column = 1"}, 'runnable: Postgres refuses it: column "no_such_column"'),
        (
            {"runnable__where": "nextval('mail_flag_id_seq') > 0"},
            "runnable: Postgres refuses it: cannot execute nextval",
        ),
        ({"runnable__where": "rcpt ="}, "runnable: Postgres refuses it: syntax error"),
        ({"dead": {"set": {"status": "failed"}}}, "dead: 2 of 50 rows would violate told"),
        (
            {"dead": {"set": {"status": "failed", "id": "x"}}},
            "dead: Postgres refuses it: invalid input syntax for type uuid",
        ),
    ],
)
def test_a_map_is_tried_on_rows_without_writing(home, changes, said):
    """AD-03: a CHECK of several columns too, which no list of words tells."""
    home.execute("ALTER TABLE mail_jobs ADD CONSTRAINT told CHECK (status <> 'failed' OR last_error IS NOT NULL)")
    home.execute("INSERT INTO mail_jobs (rcpt) VALUES ('a'), ('b')")
    table = survey(home, "mail_jobs").table
    try:
        prove(home, parse(changed(dead={"set": {"status": "failed", "last_error": "told"}})), table)
        with pytest.raises(InvalidMap) as caught:
            prove(home, parse(changed(**changes)), table)
        rows = home.execute("SELECT DISTINCT status, last_error FROM mail_jobs").fetchall()
    finally:
        home.execute("ALTER TABLE mail_jobs DROP CONSTRAINT told; TRUNCATE mail_jobs")
    assert [problem for problem in caught.value.problems if problem.startswith(said)]
    assert rows == [("pending", None)]


def test_words_are_given_their_ranks_and_numbers_are_asked_for(home):
    home.execute(
        "CREATE TABLE ranked (id int PRIMARY KEY, status text DEFAULT 'new', urgency text"
        " CHECK (urgency IN ('low', 'normal', 'urgent')))"
    )
    try:
        draft = drafted(home, "ranked")
    finally:
        home.execute("DROP TABLE ranked")
    assert draft.mapping.priority == Priority(column="urgency", words={"low": 8, "normal": 5, "urgent": 0})
