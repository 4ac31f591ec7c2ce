"""A map against its table: what the table would refuse at the first claim is refused when the map is read."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

import support
from redrive.adopt.fit import fitted
from redrive.adopt.look import Table, listed, look
from redrive.adopt.mapping import parse
from redrive.errors import InvalidMap, InvalidOption
from shapes_of_tables import SHAPES, UUIDS
from test_adopt_mapping import changed

MORE = """
CREATE DOMAIN word AS varchar(12) CHECK (VALUE IN ('new', 'done'));
CREATE TABLE "Odd.Schema"."Mail.Jobs" (id bigint);
CREATE TABLE no_key (status text);
CREATE TABLE two_keys (a int, b int, PRIMARY KEY (a, b));
CREATE TABLE half_key (id int NOT NULL, status text);
CREATE UNIQUE INDEX ON half_key (id) WHERE status = 'x';
CREATE TABLE words (id text PRIMARY KEY, state word NOT NULL DEFAULT 'new', small smallint, code varchar(4),
  n numeric, flag boolean, double int GENERATED ALWAYS AS (small * 2) STORED, stamp text,
  "check" text CHECK (length("check") < 5));
CREATE VIEW a_view AS SELECT * FROM words;
"""


@pytest.fixture(scope="module")
def home(server_url: str) -> Iterator[psycopg.Connection]:
    """A database with a table of every shape, and no schema of redrive's."""
    with support.database(server_url) as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute('CREATE SCHEMA "Odd.Schema"')
        conn.execute(UUIDS)
        conn.execute(";".join([*SHAPES.values(), MORE]))
        yield conn


@pytest.fixture
def mail(home) -> Table:
    return look(home, "mail_jobs")


def refusal(table: Table, **changes: object) -> list[str]:
    with pytest.raises(InvalidMap) as caught:
        fitted(parse(changed(**changes)), table)
    return list(caught.value.problems)


# -- what a table is


def test_a_table_is_read_as_it_is(home, mail):
    assert (mail.schema, mail.name, mail.qualified, mail.key) == ("public", "mail_jobs", "public.mail_jobs", ("id",))
    status = mail.column("status")
    assert (status.type, status.base, status.width, status.nullable) == ("character varying(20)", "varchar", 20, True)
    assert status.vocabulary == ("pending", "processing", "sent", "failed", "deferred")
    assert mail.column("next_retry_at").base == "timestamp"
    hooks = look(home, "public.hook_delivery")
    assert hooks.column("status").labels == ("pending", "delivered", "failed", "abandoned")
    assert hooks.column("id").generated
    assert look(home, "mail_null").row_security


def test_a_domain_is_seen_through(home):
    state = look(home, "words").column("state")
    assert (state.base, state.width, state.vocabulary, state.nullable) == ("varchar", 12, ("new", "done"), False)


def test_a_name_is_found_as_postgres_would_find_it(home):
    assert look(home, '"Odd.Schema"."Mail.Jobs"').qualified == '"Odd.Schema"."Mail.Jobs"'
    assert look(home, "Public.MAIL_JOBS").name == "mail_jobs"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mail_job", "mail_jobs"),
        ("public.nothing", "give its schema"),
        ('"half', "in this database|schema.table"),
        ("a_view", "is a view"),
    ],
)
def test_a_name_that_is_no_table_is_refused_with_the_likely_one(home, name, said):
    with pytest.raises(InvalidOption, match=said):
        look(home, name)


@pytest.mark.parametrize(
    ("check", "texts"),
    [
        ("CHECK ((status = ANY (ARRAY['a'::text, 'it''s'::text])))", ("a", "it's")),
        (
            "CHECK (((status)::text = ANY ((ARRAY['a'::character varying, 'b'::character varying])::text[])))",
            ("a", "b"),
        ),
        (
            "CHECK (((status)::text = ANY (ARRAY[('a'::character varying)::text, ('b'::character varying)::text])))",
            ("a", "b"),
        ),
        ("CHECK ((\"Status x\" = ANY (ARRAY['a'::text]))) NOT VALID", ("a",)),
        ("CHECK (((status = ANY (ARRAY['a'::text])) OR (b > 0)))", None),
        ("CHECK ((NOT (status = ANY (ARRAY['a'::text]))))", None),
        ("CHECK ((lower(status) = ANY (ARRAY['a'::text])))", None),
        ("CHECK ((n > 0))", None),
    ],
)
def test_a_check_is_read_where_it_is_a_plain_list(check, texts):
    assert listed(check) == texts


# -- what suits it


def test_a_map_that_suits_its_table_is_given_back_with_what_the_table_says(home, mail):
    found = fitted(parse(changed(table="mail_jobs")), mail)
    assert found.table == "public.mail_jobs"
    assert found.error_width is None
    hooks = look(home, "words")
    more = fitted(
        parse(
            changed(
                key="id",
                created=None,
                due=None,
                times={},
                payload={"form": "row"},
                attempts={"column": "small", "max": 3},
                runnable={"column": "state", "values": ["new"]},
                error={"column": "code"},
                claimed={},
                waiting={},
                dead={},
                succeeded={"set": {"state": "done", "n": 1.5, "flag": True}},
            )
        ),
        hooks,
    )
    assert more.error_width == 4


@pytest.mark.parametrize(
    ("changes", "place", "remedy"),
    [
        ({"dead__set": {"status": "dead"}}, "dead.set", "its words are 'pending'"),
        ({"succeeded__set": {"status": "SENT"}}, "succeeded.set", "did you mean 'sent'?"),
        ({"dead__set": {"rcpt": "x" * 256}}, "dead.set", "255 characters fit"),
        ({"dead__set": {"retry_count": 2**31}}, "dead.set", "no number of that type"),
        ({"dead__set": {"retry_count": "3"}}, "dead.set", "without quotes"),
        ({"dead__set": {"status": 3}}, "dead.set", "in quotes"),
        ({"dead__set": {"status": True}}, "dead.set", "it is no flag"),
        ({"dead__set": {"id": "x"}}, "dead", "the key"),
        ({"dead__set": {"staus": "failed"}}, "dead.set", "did you mean status?"),
        ({"dead__null": ["rcpt"]}, "dead.null", "NOT NULL"),
        ({"dead__now": ["rcpt"]}, "dead.now", "[times]"),
        ({"dead__run_at": ["next_retry_at"]}, "dead.run_at", "has a next try"),
        ({"dead": {"delete": True}}, "dead.delete", "succeeded may be deleted"),
        ({"dead__set": {"status": "pending"}}, "dead.set", "values that wait"),
        ({"succeeded__set": {}, "succeeded__null": ["status"]}, "succeeded.null", "waits"),
        ({"waiting__set": {"status": "failed"}}, "waiting.set", "not one of the values that wait"),
        ({"runnable__values": ["pending", "deferred", "waiting"]}, "runnable.values", "its words are"),
        ({"runnable__where": "true; DROP TABLE x"}, "runnable.where", "one condition"),
        ({"key": "rcpt"}, "key", "name id"),
        ({"kind": None, "kind_column": "job_type"}, "kind_column", "no such column"),
        ({"times__processed_at": None}, "succeeded.now", 'form = "timestamp"'),
        ({"times__created_at": {"form": "timestamptz"}}, "times.created_at", "'timestamp'"),
        ({"payload": {"form": "json", "columns": ["rcpt"]}}, "payload.columns", "name a column of json"),
        ({"payload__columns": ["nobody"]}, "payload.columns", "no such column"),
        ({"attempts__column": "status"}, "attempts.column", "name a column of int2"),
        ({"error__column": "retry_count"}, "error.column", "text"),
        ({"error__column": "status", "dead__set": None}, "error.column", "takes nothing but"),
        ({"error": {"column": "rcpt", "width": 300}}, "error.width", "at most 255"),
        ({"priority": {"column": "status", "first": "low"}}, "priority.column", "priority.words"),
        ({"priority": {"column": "status", "words": {"high": 0}}}, "priority.words", "its words are"),
    ],
)
def test_what_the_table_would_refuse_is_refused_when_the_map_is_read_ad_03(mail, changes, place, remedy):
    """AD-03: enum 22P02, CHECK 23514 and varchar 22001 are told before the first claim, not by it."""
    [problem] = refusal(mail, **changes)
    assert problem.startswith(f"{place}: ")
    assert remedy in problem


def test_a_naive_column_must_have_its_zone_ad_01(mail):
    """AD-01: nothing is guessed from the session's TimeZone."""
    problems = refusal(mail, times={})
    assert [problem.partition(":")[0] for problem in problems] == ["due", "created", "waiting.run_at", "succeeded.now"]
    assert all("whose wall clock" in problem for problem in problems)


@pytest.mark.parametrize(
    ("name", "said"),
    [("no_key", "no primary key"), ("two_keys", "several columns"), ("half_key", "no primary key")],
)
def test_a_table_whose_rows_have_no_name_is_refused(home, name, said):
    assert any(problem.startswith("key: ") and said in problem for problem in refusal(look(home, name)))


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"double": 4}, "GENERATED ALWAYS"),
        ({"state": "sent"}, "its words are 'new', 'done'"),
        ({"code": "abandoned"}, "4 characters fit"),
        ({"flag": 1}, "can't hold 1"),
        ({"flag": "yes"}, "without quotes"),
    ],
)
def test_values_are_held_against_domains_widths_and_types(home, changes, remedy):
    problems = refusal(look(home, "words"), dead__set=changes)
    assert [problem for problem in problems if problem.startswith("dead.set: ") and remedy in problem]


def test_rights_that_are_missing_are_told_with_their_grant(home):
    """AD-05: a column that this role may not write fails now and not at the first failure of a job."""
    home.execute("CREATE ROLE adopt_reader; GRANT SELECT ON mail_jobs TO adopt_reader; SET ROLE adopt_reader")
    try:
        problems = refusal(look(home, "public.mail_jobs"))
    finally:
        home.execute("RESET ROLE; DROP OWNED BY adopt_reader; DROP ROLE adopt_reader")
    assert any("GRANT UPDATE (status) first" in problem for problem in problems)
