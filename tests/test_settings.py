"""Settings: the same names as arguments and REDRIVE_* variables, read strictly, and what would lose jobs is refused."""

from __future__ import annotations

import math
from dataclasses import fields
from datetime import timedelta

import pytest

from redrive import InvalidOption, Queue
from redrive.settings import DAY, Settings, load, seconds


def test_defaults_make_sense_by_themselves():
    settings = load({}, {})
    assert settings == Settings()
    assert (settings.schema, settings.lease, settings.beat_every) == ("redrive", 30.0, 10.0)


def test_an_argument_wins_over_the_environment_and_that_over_the_default():
    environment = {"REDRIVE_CONCURRENCY": "3", "REDRIVE_GRACE": "5"}
    settings = load({"concurrency": 7}, environment)
    assert (settings.concurrency, settings.grace, settings.poll) == (7, 5.0, Settings.poll)


def test_none_is_not_given_and_an_empty_variable_is_not_set():
    environment = {"REDRIVE_CONCURRENCY": "3", "REDRIVE_GRACE": ""}
    settings = load({"concurrency": None, "schema": None}, environment)
    assert (settings.concurrency, settings.grace, settings.schema) == (3, 25.0, "redrive")


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        ({}, {}, ""),
        ({}, {"DATABASE_URL": "dbname=a"}, "dbname=a"),
        ({}, {"DATABASE_URL": "dbname=a", "REDRIVE_DATABASE_URL": "dbname=b"}, "dbname=b"),
        ({"database_url": "dbname=c"}, {"DATABASE_URL": "dbname=a", "REDRIVE_DATABASE_URL": "dbname=b"}, "dbname=c"),
    ],
)
def test_where_the_jobs_are(given, environment, expected):
    assert load(given, environment).database_url == expected


def test_every_setting_has_its_variable(monkeypatch):
    samples = {bool: ("off", False), int: ("7", 7), float: ("1m", 60.0), tuple: ("a, b,", ("a", "b")), str: ("x", "x")}
    for field in fields(Settings):
        text, value = samples[type(getattr(Settings, field.name))]
        # the lease lets a heartbeat of a minute through
        environment = {"REDRIVE_LEASE": "1h"} | {f"REDRIVE_{field.name.upper()}": text}
        assert getattr(load({}, environment), field.name) == value


def test_a_queue_takes_its_settings_from_the_environment(monkeypatch):
    monkeypatch.setenv("REDRIVE_SCHEMA", "billing")
    assert Queue().schema == "billing"
    assert Queue(schema="mail").schema == "mail"


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(InvalidOption, match=r"unknown option 'concurency': did you mean 'concurrency'\?"):
        Queue("dbname=x", concurency=4)
    with pytest.raises(InvalidOption, match=r"^unknown option 'zzz'$"):
        Queue("dbname=x", zzz=4)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (90, 90.0),
        (1.5, 1.5),
        ("90", 90.0),
        ("90s", 90.0),
        ("1.5m", 90.0),
        ("250ms", 0.25),
        ("2h", 7200.0),
        ("7d", 7 * DAY),
        ("1w", 7 * DAY),
        (" 5s ", 5.0),
        ("1e3", 1000.0),
        (timedelta(minutes=2), 120.0),
        (0, 0.0),
    ],
)
def test_a_duration_is_seconds_a_timedelta_or_a_number_with_a_unit(value, expected):
    assert seconds(value, "x") == expected


@pytest.mark.parametrize(
    "value", ["", "s", "5 parsecs", "5y", "nan", "inf", "1e999", math.nan, math.inf, True, None, [5]]
)
def test_what_is_no_duration_is_refused_by_name_and_value(value):
    with pytest.raises(InvalidOption, match=r"lease is .*: give seconds, or a number with a unit"):
        seconds(value, "lease")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"concurrency": 0}, "concurrency is 0: must be at least 1"),
        ({"concurrency": 2.5}, "concurrency is 2.5: give a whole number"),
        ({"concurrency": True}, "concurrency is True: give a whole number"),
        ({"concurrency": "many"}, "concurrency is 'many': give a whole number"),
        ({"max_crashes": 0}, "max_crashes is 0: must be at least 1"),
        ({"lease": 0}, "lease is 0 s: must be more than 0"),
        ({"lease": -1}, "lease is -1 s: must be more than 0"),
        ({"grace": -1}, "grace is -1 s: must not be negative"),
        ({"retain_dead": "-1d"}, "retain_dead is -86400 s: must not be negative"),
        ({"listen": "maybe"}, "listen is 'maybe': give true or false"),
        ({"kinds": [1, 2]}, r"kinds is \[1, 2\]: give names"),
        ({"kinds": 5}, "kinds is 5: give names"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name_and_value(given, complaint):
    with pytest.raises(InvalidOption, match=f"^{complaint}"):
        load(given, {})


def test_a_bad_variable_is_named_as_it_is_written_there():
    with pytest.raises(InvalidOption, match=r"^REDRIVE_LEASE is 'soon': give seconds"):
        load({}, {"REDRIVE_LEASE": "soon"})
    with pytest.raises(InvalidOption, match=r"^REDRIVE_LISTEN is 'x': give true or false"):
        load({}, {"REDRIVE_LISTEN": "x"})


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_truth_is_spelled_in_several_ways(text):
    assert load({}, {"REDRIVE_ARCHIVE": text}).archive is True


def test_a_heartbeat_must_fit_three_times_into_the_lease():
    with pytest.raises(InvalidOption, match=r"heartbeat is 11 s and lease 30 s: .* set heartbeat to 10 s or less"):
        load({"heartbeat": 11}, {})
    assert load({"heartbeat": 0.4, "lease": 1.2}, {}).beat_every == 0.4
    assert load({"lease": 3}, {}).beat_every == 1.0


@pytest.mark.parametrize("schema", ["my-Queue", 'we"ird', "naïve", "x" * 63, "ü" * 31])
def test_a_schema_may_have_any_name_that_postgres_keeps(schema):
    assert load({"schema": schema}, {}).schema == schema


@pytest.mark.parametrize("schema", ["", "x" * 64, "ü" * 32, "a\0b", "\ud800", "100%", "pg_jobs"])
def test_a_schema_that_postgres_would_cut_or_refuse_is_refused_first(schema):
    with pytest.raises(InvalidOption, match=r"^schema "):
        load({"schema": schema}, {})


def test_passwords_are_not_shown():
    shown = repr(load({"database_url": "postgresql://u:hunter2@h/d", "listen_dsn": "postgresql://u:hunter2@h/d"}, {}))
    assert "hunter2" not in shown


@pytest.mark.parametrize("lease", ["1ms", "0.99", 0.5])
def test_a_lease_too_short_for_any_database_is_refused(lease):
    """CR-06: a worker that lives would be taken for dead."""
    with pytest.raises(InvalidOption, match=r"lease is .* at least 1 s"):
        load({"lease": lease})
