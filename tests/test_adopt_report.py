"""The report of the silently lost: every row of limbo in its bucket, on any table, reading and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL

import support
from redrive.adopt import census, limbo
from redrive.adopt.look import asked
from redrive.adopt.mapping import parse
from redrive.adopt.page import document, page
from redrive.adopt.report import Report, report
from redrive.adopt.survey import survey
from redrive.errors import InvalidOption
from shapes_of_tables import SHAPES, UUIDS
from test_adopt_mapping import changed

NOW = "now() AT TIME ZONE 'utc'"
SEED = f"""
INSERT INTO mail_jobs (rcpt, status, created_at, processed_at)
  SELECT 'sent' || i, 'sent', {NOW} - i * interval '1 minute', {NOW} FROM generate_series(1, 2000) i;
INSERT INTO mail_jobs (rcpt, status, created_at)
  SELECT 'stuck', 'processing', {NOW} - interval '3 days' FROM generate_series(1, 7);
INSERT INTO mail_jobs (rcpt, status, created_at) VALUES ('busy', 'processing', {NOW});
INSERT INTO mail_jobs (rcpt, status, retry_count, next_retry_at, last_error, created_at)
  SELECT 'retry', 'failed', 2, {NOW} - interval '5 days', 'smtp://bob:hunter2@mx refused', {NOW} - interval '6 days'
  FROM generate_series(1, 5);
INSERT INTO mail_jobs (rcpt, status, retry_count, created_at)
  SELECT 'spent', 'failed', 5, {NOW} - interval '9 days' FROM generate_series(1, 4);
INSERT INTO mail_jobs (rcpt, status, retry_count, created_at)
  SELECT 'failed', 'failed', 1, {NOW} - interval '9 days' FROM generate_series(1, 3);
INSERT INTO mail_jobs (rcpt, status, retry_count, next_retry_at, created_at)
  VALUES ('soon', 'failed', 1, {NOW} + interval '1 hour', {NOW} - interval '9 days');
INSERT INTO mail_jobs (rcpt, status, created_at)
  SELECT 'null', NULL, {NOW} - interval '9 days' FROM generate_series(1, 2);
INSERT INTO mail_jobs (rcpt, status, created_at, processed_at)
  SELECT 'done', 'pending', {NOW} - interval '9 days', {NOW} - interval '8 days' FROM generate_series(1, 6);
INSERT INTO mail_jobs (rcpt, status, created_at)
  SELECT 'forgotten', 'pending', {NOW} - interval '9 days' FROM generate_series(1, 8);
INSERT INTO mail_jobs (rcpt, status, created_at, next_retry_at)
  SELECT 'overdue', 'deferred', {NOW} - interval '9 days', {NOW} - interval '8 days' FROM generate_series(1, 9);
INSERT INTO mail_jobs (rcpt, status, created_at, next_retry_at)
  SELECT 'fine', 'pending', {NOW}, {NOW} + interval '1 hour' FROM generate_series(1, 10);
"""
LOST = {
    "done_but_open": 6,
    "no_state": 2,
    "out_of_attempts": 4,
    "stuck": 7,
    "retry_never_came": 5,
    "failed": 3,
    "overdue": 9,
    "forgotten": 8,
}
OTHERS = """
INSERT INTO mail_flag (sent, attempts, send_after, created_at)
  SELECT i % 10 > 0, 0, now() - interval '9 days', now() - interval '9 days' FROM generate_series(1, 100) i;
INSERT INTO mail_flag (sent) VALUES (NULL), (NULL);
INSERT INTO mail_null (template, scheduled_at, sent_at)
  SELECT 't', now() - interval '9 days', CASE WHEN i % 10 > 0 THEN now() END FROM generate_series(1, 100) i;
INSERT INTO mail_simple (status, attempts, last_attempt_at, created_at)
  SELECT s, 1, now() - interval '2 days', now() - interval '9 days'
  FROM unnest(ARRAY['queued', 'sending', 'sending', 'sent', 'failed', 'Queued', 'queued ', 'queued', 'limbo']) s;
INSERT INTO hook_delivery (event, payload, status, next_attempt_at)
  SELECT 'e', '{"token": "s3cret", "a": [1]}', s::hook_status, NULL
  FROM unnest(ARRAY['delivered', 'failed', 'abandoned', 'pending']) s;
UPDATE hook_delivery SET created_at = now() - interval '3 days';
INSERT INTO bg_jobs (job_type, status, attempts, scheduled_at, locked_at, locked_by)
  SELECT 'a', s, 3, now() - interval '3 days', now() - interval '2 days', 'w1'
  FROM unnest(ARRAY['processing', 'completed']) s;
INSERT INTO outbox (status, created_at)
  SELECT s, now() - interval '3 days' FROM unnest(ARRAY['PENDING', 'PUBLISHED', 'FAILED']) s;
INSERT INTO mail_delete (created_at, attempts)
  SELECT extract(epoch FROM now() - interval '3 days') * 1000, 0 FROM generate_series(1, 3);
CREATE TABLE copies (rcpt text, status text, created_at timestamptz);
INSERT INTO copies SELECT 'a', 'pending', now() - interval '3 days' FROM generate_series(1, 3);
INSERT INTO copies SELECT i::text, 'pending', now() - interval '3 days' FROM generate_series(1, 3) i;
CREATE TABLE parted (id int, status text, made_at timestamptz, created_at timestamptz, PRIMARY KEY (id))
  PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (1) TO (50);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (50) TO (500);
INSERT INTO parted SELECT i, 'failed', now(), now() FROM generate_series(1, 99) i;
CREATE TABLE numbers (id int PRIMARY KEY, status smallint, created_at text, run_at bigint);
INSERT INTO numbers SELECT i, i % 3, '2026-01-01T00:00:00Z', 1700000000 FROM generate_series(1, 30) i;
CREATE TABLE "Odd Names" ("Key" text PRIMARY KEY, "jobState" text, "createdAt" timestamptz, "100% of it" int);
INSERT INTO "Odd Names" VALUES ('%s', 'inProgress', 'infinity', 1), ('<b>', 'In Progress', '-infinity', 2);
"""


@pytest.fixture(scope="module")
def dsn(server_url: str) -> Iterator[str]:
    with support.database(server_url) as url:
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(UUIDS)
            for ddl in SHAPES.values():
                conn.execute(ddl)
            conn.execute(SEED)
            conn.execute(OTHERS)
        yield url


@pytest.fixture
def home(dsn) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn


def look(conn: psycopg.Connection, name: str, **how: object) -> Report:
    return report(conn, survey(conn, name), **how)


def lost(made: Report) -> dict[str, int]:
    return {bucket.rule.name: bucket.rows for bucket in made.buckets}


@pytest.fixture(scope="module")
def mail(dsn) -> Report:
    """The report on mail_jobs with its two questions answered."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return look(conn, "mail_jobs", zone="UTC", most=5)


# -- the buckets


def test_every_row_in_limbo_is_in_its_bucket_with_its_age_a_sample_and_what_to_do_ad_08(mail):
    """AD-08: classified, counted, and nothing touched."""
    made = mail
    assert lost(made) == LOST
    assert made.lost == sum(LOST.values())
    assert made.census.rows == 2056
    ages = {bucket.rule.name: made.survey.place.now - bucket.oldest for bucket in made.buckets}
    assert {name: round(age / timedelta(days=1)) for name, age in ages.items()} == {
        "done_but_open": 9,
        "no_state": 9,
        "out_of_attempts": 9,
        "stuck": 3,
        "retry_never_came": 5,
        "failed": 9,
        "overdue": 8,
        "forgotten": 9,
    }
    recipients = {bucket.rule.name: {sample["rcpt"] for sample in bucket.samples} for bucket in made.buckets}
    assert recipients == {
        "done_but_open": {"done"},
        "no_state": {"null"},
        "out_of_attempts": {"spent"},
        "stuck": {"stuck"},
        "retry_never_came": {"retry"},
        "failed": {"failed"},
        "overdue": {"overdue"},
        "forgotten": {"forgotten"},
    }
    assert all(bucket.rule.action for bucket in made.buckets)


@pytest.mark.parametrize("name", LOST)
def test_a_bucket_as_a_condition_of_sql_finds_the_rows_that_were_counted(mail, home, name):
    condition = limbo.condition(name, mail.census.terms)
    rows = asked(home, SQL("SELECT DISTINCT rcpt, count(*) OVER () FROM mail_jobs WHERE {}").format(condition), 5)
    assert [row[1] for row in rows] == [LOST[name]]


def test_the_values_of_each_column_of_states_are_counted_null_too(mail):
    values = mail.census.values("status")
    assert values == {"sent": 2000, "pending": 24, "failed": 13, "deferred": 9, "processing": 8, None: 2}


def test_a_secret_in_a_sample_is_hidden(mail, home):
    texts = page(mail) + str(document(mail))
    assert "hunter2" not in texts
    assert "bob:***@mx" in texts
    hooks = str(document(look(home, "hook_delivery")))
    assert "s3cret" not in hooks
    assert "***" in hooks


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("mail_flag", {"no_state": 2, "overdue": 10}),
        ("mail_null", {"overdue": 10}),
        ("mail_simple", {"misspelt": 2, "stuck": 2, "failed": 1, "forgotten": 2}),
        ("hook_delivery", {"failed": 2, "forgotten": 1}),
        ("bg_jobs", {"out_of_attempts": 1}),
        ("outbox", {"failed": 1, "forgotten": 1}),
        ("mail_delete", {"forgotten": 3}),
        ("copies", {"forgotten": 6}),
        ("parted", {"failed": 99}),
        ('"Odd Names"', {"misspelt": 1, "stuck": 1}),
    ],
)
def test_the_lost_are_found_in_tables_of_every_shape(home, table, expected):
    assert lost(look(home, table)) == expected


def test_a_table_without_a_key_is_told_its_copies(home):
    made = look(home, "copies")
    assert made.copies == 2
    assert [bucket.rows for bucket in made.buckets] == [6]
    assert any("no primary key" in remark.text and remark.level == "bad" for remark in made.remarks)


def test_words_and_numbers_that_nobody_knows_are_told_and_not_guessed(home):
    made = look(home, "mail_simple")
    assert any("'limbo' (1)" in remark.text for remark in made.remarks)
    numbers = look(home, "numbers")
    assert any("'0' (10)" in remark.text for remark in numbers.remarks)
    assert lost(numbers) == {}


# -- times


def test_days_are_the_same_in_every_session(dsn):
    """AD-01: the session's TimeZone has no say."""
    found = []
    for zone in ("UTC", "America/New_York", "Asia/Tokyo"):
        with psycopg.connect(make_conninfo(dsn, options=f"-c TimeZone={zone}"), autocommit=True) as conn:
            made = look(conn, "mail_jobs", zone="UTC", most=5)
            found.append((lost(made), [bucket.oldest for bucket in made.buckets]))
    assert found[0] == found[1] == found[2]


def test_without_a_zone_nothing_counts_as_old_that_is_not_so_in_every_zone(home):
    """AD-01: nothing is guessed; the zone is asked for, with what the rows give as a hint."""
    home.execute("CREATE TABLE naive (id int PRIMARY KEY, status text, created_at timestamp)")
    home.execute(
        f"INSERT INTO naive SELECT h, 'pending', {NOW} - (h - 0.5) * interval '1 hour' FROM generate_series(1, 48) h"
    )
    try:
        made = look(home, "naive")
        assert lost(made) == {"forgotten": 48 - 24 - 14}
        assert lost(look(home, "naive", zone="UTC")) == {"forgotten": 48 - 24}
        assert lost(look(home, "naive", zone="Asia/Tokyo")) == {"forgotten": 48 - 24 + 9}
    finally:
        home.execute("DROP TABLE naive")
    [question] = [remark for remark in made.remarks if "Whose wall clock" in remark.text]
    assert "30 min behind UTC now" in question.text
    assert "--zone" in question.remedy
    assert not made.reading.certain("created_at")


def test_times_that_python_cannot_hold_are_told_all_the_same(home):
    made = look(home, '"Odd Names"')
    assert document(made)["lost"][0]["oldest"] in ("infinity", "-infinity")


def test_a_text_that_is_no_time_leaves_its_column_out_and_the_rest_in(home):
    home.execute("CREATE TABLE odd (id int PRIMARY KEY, status text, created_at text, locked_at timestamptz)")
    home.execute("INSERT INTO odd VALUES (1, 'running', '2026-99-99', now() - interval '9 days')")
    try:
        made = look(home, "odd")
    finally:
        home.execute("DROP TABLE odd")
    assert lost(made) == {"stuck": 1}
    assert any("created_at hold what is no time" in remark.text for remark in made.remarks)


# -- a map goes over what names promise


def test_the_map_says_what_words_mean_and_how_many_tries_there_are_rb_07(home):
    mapping = parse(changed(attempts__max=2, runnable={"column": "status", "values": ["pending"]}, waiting=None))
    made = look(home, "mail_jobs", mapping=mapping)
    assert lost(made)["out_of_attempts"] == 9  # the four that were, and five that have tried twice
    assert made.census.terms.meanings["pending"] == "waiting"
    assert not any("Whose wall clock" in remark.text for remark in made.remarks)
    with_null = look(home, "mail_jobs", mapping=parse(changed()))
    assert "no_state" not in lost(with_null)
    assert lost(with_null)["forgotten"] == LOST["forgotten"] + LOST["no_state"]


def test_a_map_of_a_time_or_of_the_row_itself_is_understood(home):
    times = {"scheduled_at": {"form": "timestamptz"}, "created_at": {"form": "timestamptz"}}
    map_of_null = changed(
        table="mail_null",
        due="scheduled_at",
        times=times,
        runnable={"column": "sent_at", "null": True},
        error=None,
        attempts={"max": 3},
        payload=None,
        claimed=None,
        waiting=None,
        succeeded=None,
        dead=None,
    )
    assert lost(look(home, "mail_null", mapping=parse(map_of_null))) == {"overdue": 10}


# -- it reads, and does nothing else


def test_nothing_that_the_application_does_has_to_wait(dsn, home):
    """EXCLUSIVE conflicts with every lock but ACCESS SHARE: a look goes on beside it, and writes nothing."""
    with psycopg.connect(dsn) as other:
        other.execute("LOCK TABLE mail_jobs IN EXCLUSIVE MODE")
        assert lost(look(home, "mail_jobs", zone="UTC", most=5)) == LOST


def test_a_role_that_may_only_read_is_enough(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE ROLE adopt_looker; GRANT SELECT ON mail_jobs TO adopt_looker; SET ROLE adopt_looker")
        conn.execute("SET default_transaction_read_only = on")
        try:
            made = look(conn, "public.mail_jobs", zone="UTC", most=5)
            with pytest.raises(InvalidOption, match=r'GRANT SELECT ON "public"\."outbox" TO "adopt_looker"'):
                look(conn, "outbox")
        finally:
            conn.execute("RESET ROLE; SET default_transaction_read_only = off")
            conn.execute("DROP OWNED BY adopt_looker; DROP ROLE adopt_looker")
    assert lost(made) == LOST
    assert any("needs UPDATE and TRIGGER as well" in remark.text for remark in made.remarks)


def test_a_column_that_may_not_be_read_is_left_out_and_told(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE ROLE adopt_half; GRANT SELECT (id, status, created_at) ON mail_jobs TO adopt_half")
        conn.execute("SET ROLE adopt_half")
        try:
            made = look(conn, "mail_jobs", zone="UTC")
        finally:
            conn.execute("RESET ROLE; DROP OWNED BY adopt_half; DROP ROLE adopt_half")
    assert lost(made)["stuck"] == 7
    assert all(len(bucket.samples) == min(bucket.rows, 3) for bucket in made.buckets)
    assert any("may not read rcpt, subject" in remark.text for remark in made.remarks)
    assert set(made.buckets[0].samples[0]) == {"id", "status", "created_at"}


@pytest.mark.parametrize(
    ("policy", "seen", "said"),
    [
        ("", 0, "hides every row from role adopt_tenant, without an error"),
        ("CREATE POLICY mine ON mail_null TO adopt_tenant USING (sent_at IS NULL)", 10, "only what mine lets through"),
    ],
)
def test_rows_that_security_hides_are_not_passed_over_in_silence_ad_05(dsn, policy, seen, said):
    """AD-05: RLS gives zero rows and no error."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE adopt_tenant; GRANT SELECT ON mail_null TO adopt_tenant; {policy}")
        conn.execute("SET ROLE adopt_tenant")
        try:
            made = look(conn, "mail_null")
        finally:
            conn.execute("RESET ROLE; DROP POLICY IF EXISTS mine ON mail_null")
            conn.execute("DROP OWNED BY adopt_tenant; DROP ROLE adopt_tenant")
        owner = look(conn, "mail_null")
    assert made.census.rows == seen
    [remark] = [remark for remark in made.remarks if "row-level security" in remark.text]
    assert said in remark.text
    assert remark.level == "bad"
    assert "BYPASSRLS" in remark.remedy
    assert 'CREATE POLICY redrive ON "public"."mail_null" TO "adopt_tenant"' in remark.remedy
    assert owner.census.rows == 100
    assert any("another would see no rows" in remark.text for remark in owner.remarks)


# -- large tables


def test_a_part_stands_for_the_whole_when_the_time_is_up_and_the_counts_say_so(home, monkeypatch):
    if home.info.server_version < census.STRETCHES:
        pytest.skip("this server can't read a stretch of pages")
    monkeypatch.setattr(census, "STRETCH", 4)
    shares: list[float] = []
    made = look(home, "mail_jobs", zone="UTC", seconds=0, on_progress=shares.append)
    assert len(shares) == 1
    assert made.census.share == shares[0] < 1
    assert document(made)["estimated"]
    assert 500 < made.census.rows < 10_000
    whole = look(home, "mail_jobs", zone="UTC", most=5, on_progress=shares.append)
    assert shares[-1] == 1
    assert len(shares) > 5
    assert (whole.census.rows, lost(whole)) == (2056, LOST)


@pytest.mark.parametrize("table", ["mail_jobs", "parted"])
def test_an_older_server_reads_the_table_as_one(home, mail, monkeypatch, table):
    """Before version 14 there are no scans of a range of pages."""
    there = mail if table == "mail_jobs" else look(home, table)
    monkeypatch.setattr(census, "STRETCHES", 10**9)
    made = look(home, table, zone="UTC", most=5)
    assert lost(made) == lost(there)
    assert made.census.rows == there.census.rows
    if table == "mail_jobs":
        assert [len(bucket.samples) for bucket in made.buckets] == [2] * len(LOST)


def test_an_older_server_that_is_too_slow_for_the_whole_reads_a_sample(home, monkeypatch):
    asked_for: list[str] = []

    def slow(conn, text, seconds):
        asked_for.append(text.as_string(None))
        if "TABLESAMPLE" not in asked_for[-1] and "GROUP BY" in asked_for[-1]:
            raise psycopg.errors.QueryCanceled
        return asked(conn, text, seconds)

    monkeypatch.setattr(census, "STRETCHES", 10**9)
    monkeypatch.setattr(census, "SHARE", 60.0)
    monkeypatch.setattr(census, "asked", slow)
    made = look(home, "mail_jobs", zone="UTC", most=5)
    assert made.census.share == 0.6
    assert 500 < made.census.rows < 4000


# -- the page


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_one_whole_file_and_what_came_from_the_table_is_escaped(home):
    made = look(home, '"Odd Names"')
    text = page(made)
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert "&lt;b&gt;" in text
    assert "<b>" not in text.replace("<b>Proposed:</b>", "")
    assert "src=" not in text
    assert "http" not in text
    assert "2 of 2 rows" in tags.text


def test_the_oldest_is_told_as_it_stands_where_its_zone_is_not_known(home):
    told = {bucket["bucket"]: bucket["oldest"] for bucket in document(look(home, "mail_jobs"))["lost"]}
    stuck = datetime.fromisoformat(told["stuck"])
    assert stuck.tzinfo is None
    assert abs(datetime.now(UTC).replace(tzinfo=None) - timedelta(days=3) - stuck) < timedelta(minutes=10)
