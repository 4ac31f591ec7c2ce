"""Secrets are hidden in data by their keys and in texts by their shape, and the rest stays readable."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.masking import is_secret, mask, mask_text

# fmt: off
SECRET = [
    "password", "passwd", "PASSWORD", "dbPassword", "DB_PASSWORD", "mypassword2", "user-password", "pwd",
    "passphrase", "secret", "client_secret", "clientSecret", "SECRET_KEY", "token", "accessToken",
    "access_token", "csrf_token", "api_key", "apikey", "apiKey", "API-KEY", "X-Api-Key", "Authorization",
    "proxy-authorization", "credentials", "aws.credentials", "private_key", "privateKey", "ssh_key", "cookie",
    "Set-Cookie", "session", "session_id", "sessionid", "card_number", "cardNumber", "creditCard", "cvv",
    "pin", "pin_code", "jwt", "dsn", "auth", "pass", "pw", "PGPASSWORD",
]
# fmt: on

# fmt: off
PLAIN = [
    "to", "name", "key", "id", "public_key", "monkey", "spin", "pinned", "author", "authority", "auth_method",
    "passenger", "compass", "pass_rate", "passport", "secretary", "tokenizer", "tokenize", "keyword",
    "card_type", "cards", "description", "kind", "user_id", "email", "account", "sessions",
]
# fmt: on


@pytest.mark.parametrize("key", SECRET)
def test_a_secret_key_hides_whatever_stands_under_it_op_04(key):
    assert is_secret(key)
    assert mask({key: "x"}) == {key: "***"}
    assert mask({"a": [{key: {"deep": ["x"]}}]}) == {"a": [{key: "***"}]}


@pytest.mark.parametrize("key", PLAIN)
def test_an_innocent_key_hides_nothing(key):
    assert mask({key: "x"}) == {key: "x"}


def test_a_number_is_shown_under_a_key_that_also_counts():
    usage = {"tokens_used": 5, "max_tokens": 4096, "tokens": 7, "promptTokens": 1.5, "secrets_count": 3}
    assert mask(usage) == usage
    assert mask({"pin": 1234, "token": 5, "cardNumber": 4111}) == {"pin": "***", "token": "***", "cardNumber": "***"}
    assert mask({"tokens": ["a"], "max_tokens": "abc"}) == {"tokens": "***", "max_tokens": "***"}


def test_none_and_booleans_are_no_secrets():
    assert mask({"password": None, "has_password": True}) == {"password": None, "has_password": True}


def test_headers_and_environments_as_lists_are_known_op_04():
    assert mask([["Authorization", "x"], ["Accept", "y"]]) == [["Authorization", "***"], ["Accept", "y"]]
    assert mask([{"name": "DB_PASSWORD", "value": "x"}]) == [{"name": "DB_PASSWORD", "value": "***"}]
    assert mask([{"name": "HOST", "value": "x"}]) == [{"name": "HOST", "value": "x"}]


def test_texts_within_data_are_searched_too_op_04():
    assert mask({"url": "postgresql://u:hunter2@h/db"}) == {"url": "postgresql://u:***@h/db"}


def test_sensitive_hides_all_op_04():
    assert mask({"to": "user@example.com"}, sensitive=True) == "***"
    assert mask(None, sensitive=True) == "***"


def test_data_is_copied_and_never_changed():
    data = {"password": "x", "list": [1, (2, "a")], "n": None}
    assert mask(data) == {"password": "***", "list": [1, [2, "a"]], "n": None}
    assert data["password"] == "x"


def test_data_without_end_is_cut_somewhere():
    loop = []
    loop.append(loop)
    assert "***" in str(mask(loop))


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("connect to postgresql://app:hunter2@db:5432/x failed", "connect to postgresql://app:***@db:5432/x failed"),
        ("postgresql://u:hun@t/er2:x@h/db", "postgresql://u:***@h/db"),
        ("a://u:hunter2@h and b://v:hunter2@h", "a://u:***@h and b://v:***@h"),
        ("https://user:hunter2@h/x", "https://user:***@h/x"),
        ("redis://:hunter2@h", "redis://:***@h"),
        ("postgresql://u:hunte [... 90 more characters ...] x", "postgresql://u:*** [... 90 more characters ...] x"),
        ("Authorization: Bearer hunter2", "Authorization: ***"),
        ("{'Authorization': 'Basic aHVudGVyMg==', 'a': 1}", "{'Authorization': '***', 'a': 1}"),
        ('"authorization": "hunter2"', '"authorization": "***"'),
        ("[('Authorization', 'Bearer hunter2')]", "[('Authorization', '***')]"),
        ("Cookie: sid=hunter2; b=hunter2", "Cookie: ***"),
        ("sent Bearer hunter2 to", "sent Bearer *** to"),
        ("host=h password=hunter2 user=u", "host=h password=*** user=u"),
        ("password='hun ter2' x", "password='***' x"),
        (r"password='hun\'ter2' x", "password='***' x"),
        ("password=b'hunter2')", "password=b'***')"),
        ('password="hunter2 without an end', 'password="***'),
        ("token: hunter2", "token: ***"),
        ("{'api_key': 'hunter2', 'a': 1}", "{'api_key': '***', 'a': 1}"),
        ('{"user":{"password":"hun\\"ter2"}}', '{"user":{"password":"***"}}'),
        (r'"{\"password\": \"hun ter2\"}"', r'"{\"password\": \"***\"}"'),
        ('query="password=hunter2"', 'query="password=***"'),
        ("os.environ['DB_PASSWORD'] = 'hunter2'", "os.environ['DB_PASSWORD'] = '***'"),
        ("GET /x?api_key=hunter2&a=1", "GET /x?api_key=***&a=1"),
        ("Key (token)=(hunter2) already exists.", "Key (token)=(***) already exists."),
        ("pg_dump --password hunter2 -d x", "pg_dump --password *** -d x"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJodW50ZXIyIjoxfQ.hunter2", "***"),
        ("key AKIAIOSFODNN7EXAMPLE", "key ***"),
        ("sk_live_hunter2hunter2hunter2", "***"),
        ("-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\nx", "***\nx"),
        ("-----BEGIN RSA PRIVATE KEY-----\nhunter2 and cut", "***"),
    ],
)  # fmt: skip
def test_a_secret_in_a_text_is_hidden_op_04(text, masked):
    assert mask_text(text) == masked
    assert mask_text(masked) == masked
    assert "hunter2" not in mask_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'token'",
        "TokenExpiredError: expired at noon",
        "bearer authentication failed",
        "http://h:8080/path?email=a@b.example",
        "user@example.com: mailbox full",
        "max_tokens=4096, tokens_used: 12",
        "def f(password=None, token=None): ...",
        'File "app.py", line 3, in secretary',
        "",
    ],
)
def test_a_harmless_text_stays_as_it_is(text):
    assert mask_text(text) == text


@given(st.text(st.sampled_from("ab:/@='\"\\ \n-.password token")))
def test_masking_twice_is_masking_once(text):
    once = mask_text(text)
    assert mask_text(once) == once


@pytest.mark.parametrize(
    "piece",
    ["a", "a.", "a-", "a:", "password=", "x='", "\\'", "http://a:", "-----BEGIN PRIVATE KEY-----", "--a ", "a@"],
)
def test_a_long_text_takes_time_in_proportion(piece):
    """Not a benchmark: a quadratic pattern would take minutes."""
    began = time.process_time()
    mask_text(piece * (100_000 // len(piece)))
    assert time.process_time() - began < 5
