"""What an error tells is one word, for the retry and for the breaker; asked of the libraries' own errors."""

from __future__ import annotations

import asyncio
import re
import smtplib
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import aiohttp
import botocore.exceptions
import botocore.session
import httpx2
import psycopg
import pytest
import requests
from botocore.config import Config

from pages import ROOT
from redrive import Breaker, InvalidOption, Queue, Retry
from redrive.classify import DATABASES, LISTED, Finding, classify, of_status, rules
from redrive.executor import execute_here
from redrive.outcome import Died, Retried
from support_engine import claimed


class Answers(BaseHTTPRequestHandler):
    """Answers with the status that the path names; or hangs up."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        word = self.path.partition("?")[0].strip("/").split("/")[-1]
        if word == "cut":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            self.close_connection = True
            return
        if not word.isdecimal():
            self.close_connection = True
            return
        self.send_response(int(word))
        if "later" in self.path:
            self.send_header("Retry-After", "17")
        if word == "302":
            self.send_header("Location", "/302")
        body = b""
        if self.command == "POST":  # as AWS says it
            code = self.path.strip("/").split("/")[0]
            body = f"<ErrorResponse><Error><Code>{code}</Code></Error></ErrorResponse>".encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - http.server's name

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture(scope="module")
def closed() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"http://127.0.0.1:{listening.getsockname()[1]}"


def by_urllib(url: str) -> None:
    urllib.request.urlopen(url, timeout=0.2).read()  # noqa: S310 - of a server of this test's


def by_requests(url: str) -> None:
    requests.get(url, timeout=0.2).raise_for_status()


def by_httpx(url: str) -> None:
    httpx2.get(url, timeout=0.2, follow_redirects=True, trust_env=False).raise_for_status()


def by_aiohttp(url: str) -> None:
    async def get() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(0.2)) as session, session.get(url) as answer:
            answer.raise_for_status()
            await answer.read()

    asyncio.run(get())


LIBRARIES = [by_urllib, by_requests, by_httpx, by_aiohttp]


def error_of(call: Any, *args: Any) -> BaseException:
    """What *call* raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whichever it is, is the question
        call(*args)
    if isinstance(caught.value, urllib.error.HTTPError):
        caught.value.close()
    return caught.value


@pytest.mark.parametrize("call", LIBRARIES)
class TestOverHttp:
    """Each library has errors of its own, and they tell the same."""

    @pytest.mark.parametrize(
        ("path", "word"),
        [
            ("/404", "permanent"),
            ("/422", "permanent"),
            ("/302", "permanent"),
            ("/408", "retryable"),
            ("/425", "retryable"),
            ("/429", "outage"),
            ("/500", "outage"),
            ("/503", "outage"),
            ("/gone away", "outage"),
            ("/cut", "outage"),
        ],
    )
    def test_the_status_tells(self, call, web, path, word):
        assert classify(error_of(call, web + path.replace(" ", "%20"))).word == word

    def test_retry_after_is_read(self, call, web):
        assert classify(error_of(call, web + "/503?later")) == Finding("outage", 17.0, listed=True)

    def test_nobody_listening_and_nobody_answering_are_outages(self, call, closed, silent):
        assert classify(error_of(call, closed + "/")).word == "outage"
        assert classify(error_of(call, silent + "/")).word == "outage"

    def test_a_name_that_is_not_known_is_an_outage(self, call):
        assert classify(error_of(call, "http://nobody.invalid/")).word == "outage"


@pytest.mark.parametrize(
    ("call", "url"),
    [
        (by_requests, "nowhere"),
        (by_requests, "ftp://x.example/"),
        (by_httpx, "ftp://x.example/"),
        (by_aiohttp, "http:///x"),
    ],
)
def test_a_url_that_is_none_is_wrong_for_good(call, url):
    assert classify(error_of(call, url)).word == "permanent"


AWS = botocore.session.Session()


def by_botocore(endpoint: str, **what: str) -> None:
    config = Config(connect_timeout=0.2, read_timeout=0.2, retries={"total_max_attempts": 1})
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    client = AWS.create_client("sts", "eu-west-1", endpoint_url=endpoint, config=config, **keys)
    client.assume_role(**{"RoleArn": "arn:aws:iam::123456789012:role/x", "RoleSessionName": "session", **what})


class TestAws:
    """botocore says what it means by a code, whatever the status."""

    @pytest.mark.parametrize(
        ("path", "word"),
        [
            ("404", "permanent"),
            ("503", "outage"),
            ("ThrottlingException/400", "outage"),
            ("ExpiredTokenException/403", "retryable"),
        ],
    )
    def test_status_and_code_tell(self, web, path, word):
        error = error_of(by_botocore, f"{web}/{path}")
        assert isinstance(error, botocore.exceptions.ClientError)
        assert classify(error).word == word

    def test_no_connection_and_no_answer_are_outages(self, closed, silent):
        for endpoint in (closed, silent):
            assert classify(error_of(by_botocore, endpoint)).word == "outage"

    def test_a_parameter_that_makes_no_sense_is_wrong_for_good(self, web):
        error = error_of(lambda: by_botocore(web, RoleArn=""))
        assert classify(error).word == "permanent"

    @pytest.mark.parametrize("code", ["ThrottlingException", "ProvisionedThroughputExceededException", "SlowDown"])
    def test_throttling_is_an_outage_though_its_status_is_400(self, code):
        about = {"HTTPStatusCode": 400, "HTTPHeaders": {"retry-after": "3"}}
        error = botocore.exceptions.ClientError({"Error": {"Code": code}, "ResponseMetadata": about}, "Put")
        assert classify(error) == Finding("outage", 3.0, listed=True)
        plain = botocore.exceptions.ClientError({"Error": {"Code": "NoSuchKey"}, "ResponseMetadata": about}, "Get")
        assert classify(plain).word == "permanent"


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (smtplib.SMTPServerDisconnected("gone"), "outage"),
        (smtplib.SMTPConnectError(554, b"no"), "outage"),
        (smtplib.SMTPAuthenticationError(535, b"who?"), "outage"),
        (smtplib.SMTPDataError(451, b"later"), "outage"),
        (smtplib.SMTPDataError(554, b"spam"), "permanent"),
        (smtplib.SMTPSenderRefused(530, b"log in first", "a@x"), "outage"),
        (smtplib.SMTPSenderRefused(550, b"you?", "a@x"), "permanent"),
        (smtplib.SMTPNotSupportedError("SMTPUTF8"), "permanent"),
        (smtplib.SMTPRecipientsRefused({"a@x": (550, b"no"), "b@x": (553, b"no")}), "permanent"),
        (smtplib.SMTPRecipientsRefused({"a@x": (550, b"no"), "b@x": (450, b"grey")}), "retryable"),
        (smtplib.SMTPRecipientsRefused({"a@x": (421, b"closing")}), "outage"),
        (ConnectionResetError(), "outage"),
        (BrokenPipeError(), "outage"),
        (TimeoutError(), "outage"),
        (OSError(113, "no route"), "outage"),
        (socket.gaierror(-2, "unknown"), "outage"),
        (ssl.SSLCertVerificationError("expired"), "outage"),
        (urllib.error.URLError(ConnectionRefusedError()), "outage"),
        (FileNotFoundError(2, "no file"), "retryable"),
        (KeyError("to"), "retryable"),
        (SimpleNamespace, "retryable"),
        (psycopg.OperationalError("connection refused"), "retryable"),
        (psycopg.errors.lookup("40001")("again"), "retryable"),
        (psycopg.errors.lookup("42P01")("no table"), "retryable"),
        (psycopg.errors.lookup("23505")("twice"), "permanent"),
        (psycopg.errors.lookup("22003")("too large"), "permanent"),
    ],
    ids=repr,
)
def test_what_the_standard_library_and_the_driver_raise_has_its_word(error, word):
    error = error if isinstance(error, BaseException) else Exception()
    assert classify(error).word == word


def chained(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def test_an_error_of_yours_tells_by_its_cause_and_the_first_that_knows_counts():
    assert classify(chained(ValueError("no mail"), ConnectionResetError())).word == "outage"
    answered = chained(smtplib.SMTPDataError(554, b"spam"), ConnectionResetError())
    assert classify(chained(ValueError("no mail"), answered)).word == "permanent"
    assert classify(chained(psycopg.OperationalError("x"), ConnectionResetError())).word == "retryable"


def test_a_group_of_errors_has_the_word_of_all_of_them():
    limited = Exception()
    limited.finding = Finding("outage", 9)
    group = ExceptionGroup("tasks", [ConnectionResetError(), ExceptionGroup("more", [TimeoutError(), limited])])
    assert classify(chained(ValueError(), group)) == Finding("outage", 9, listed=True)
    assert classify(ExceptionGroup("tasks", [ConnectionResetError(), KeyError()])).word == "retryable"


def test_an_error_may_carry_its_own_word():
    class QuotaUsed(Exception):
        finding = Finding("outage", 90)

    assert classify(QuotaUsed()) == Finding("outage", 90)
    assert classify(chained(ValueError(), QuotaUsed())).after == 90


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("7", 7), ("999999", 3600), ("-3", 0), ("nonsense", 0), ("", 0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0)],
)
def test_only_a_retry_after_that_makes_sense_is_believed_and_an_hour_at_most(said, seconds):
    error = Exception()
    error.response = SimpleNamespace(status_code=503, headers={"Retry-After": said})
    assert classify(error).after == seconds


def test_a_retry_after_may_be_a_date():
    error = Exception()
    error.response = SimpleNamespace(
        status_code=503, headers={"Retry-After": formatdate(time.time() + 60, usegmt=True)}
    )
    assert 55 < classify(error).after <= 60


# -- what becomes of the job


class Down(Exception):
    """Nothing in the list."""


class Moved(requests.HTTPError):
    """A 404 of one library."""

    def __init__(self) -> None:
        super().__init__(response=SimpleNamespace(status_code=404, headers={}))


def outcome(error: BaseException, queue: Queue | None = None, **options: Any) -> Any:
    """What becomes of a job whose handler raises *error*."""
    queue = queue or Queue("postgresql://nobody@nowhere/none")

    @queue.handler("k", backoff=lambda _attempt: 7, **options)
    def handler(payload):
        raise error

    return execute_here(claimed(), handler).outcome


def test_what_the_list_calls_permanent_is_retried_unless_the_handler_says_that_it_is_to_die():
    assert isinstance(outcome(Moved()), Retried)
    assert isinstance(outcome(Moved(), dead_on="permanent"), Died)
    assert isinstance(outcome(Moved(), dead_on=(KeyError, "permanent")), Died)
    assert isinstance(outcome(KeyError(), dead_on=(KeyError, "permanent")), Died)
    assert isinstance(outcome(ConnectionError(), dead_on="permanent"), Retried)


def test_what_the_application_calls_permanent_is_dead_at_once():
    assert isinstance(outcome(Down(), classify=lambda error: "permanent"), Died)
    assert isinstance(outcome(Down(), classify={Down: "permanent"}), Died)
    error = Down()
    error.finding = Finding("permanent")
    assert isinstance(outcome(error), Died)


def test_a_handler_that_says_retry_is_retried_whatever_made_it_say_so():
    assert isinstance(outcome(chained(Retry("it may come back"), Moved()), dead_on="permanent"), Retried)


def test_the_breaker_and_the_retry_go_by_the_same_word():
    for how in (
        {"classify": {Down: "outage"}},
        {"classify": lambda error: Finding("outage", 90)},
        {"queue": Queue("postgresql://nobody@nowhere/none", classify={Down: "outage"})},
        {"breaker": Breaker(outage=lambda error: True)},
    ):
        assert outcome(Down(), **how).failure.outage is not None, how
    assert outcome(Down(), classify=lambda error: Finding("outage", 90)).delay == 90
    assert outcome(Down(), classify={Down: "outage"}, breaker=False).failure.outage is None
    assert outcome(ConnectionError(), classify={ConnectionError: "retryable"}).failure.outage is None


def test_without_a_breaker_retry_after_still_holds_the_job():
    error = requests.HTTPError(response=SimpleNamespace(status_code=429, headers={"Retry-After": "60"}))
    assert outcome(error, breaker=False).delay == 60


def test_the_handlers_word_goes_before_the_queues_and_that_before_the_list():
    queue = Queue("postgresql://nobody@nowhere/none", classify={Down: "permanent", ConnectionError: "permanent"})
    assert isinstance(outcome(Down(), queue, classify={Down: "retryable"}), Retried)
    queue = Queue("postgresql://nobody@nowhere/none", classify={Down: "permanent", ConnectionError: "permanent"})
    assert isinstance(outcome(ConnectionResetError(), queue, classify={Down: "retryable"}), Died)


@pytest.mark.parametrize("rule", [lambda error: 1 / 0, lambda error: "outtage", lambda error: 5])
def test_a_rule_that_fails_is_told_of_in_the_log_and_the_list_is_asked(rule, caplog):
    assert rules(rule).find(ConnectionError()).word == "outage"
    assert "classify is unusable" in caplog.text


@pytest.mark.parametrize("wrong", [7, {"x": "outage"}, {Down: "outtage"}, {Down: None}])
def test_rules_that_make_no_sense_are_refused_where_they_are_given(wrong):
    with pytest.raises(InvalidOption, match=r"classify is 7|classify has 'x'|is no word for an error"):
        Queue("postgresql://nobody@nowhere/none", classify=wrong)


def test_dead_on_takes_no_other_word():
    with pytest.raises(InvalidOption, match="dead_on is 'outage': the one word that it takes is 'permanent'"):
        Queue("postgresql://nobody@nowhere/none").handler("k", dead_on="outage")


# -- the table of the docs


def table() -> str:
    """The table of the docs, from the list itself."""
    by_word: dict[str, list[str]] = {}
    for status in range(300, 600):
        by_word.setdefault(of_status(status), []).append(str(status))
    again = ", ".join(by_word["retryable"])
    lines = [
        "| error of | outage | permanent | retryable |",
        "|---|---|---|---|",
        f"| HTTP, any library | 429, 500 to 599 | 300 to 499 but for those beside | {again} |",
    ]
    for library, words in LISTED.items():
        name = "http.client" if library == "http" else library
        cells = [", ".join(f"`{each}`" for each in sorted(words.get(word, ()))) for word in ("outage", "permanent")]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | |")
    network = "`ConnectionError`, `TimeoutError`, `socket.gaierror`, `ssl.SSLError`, an `OSError` of the network"
    of_smtp = "4xx to the mail, 421 to any, 530, 534, 535, 538", "5xx to the mail or to all its recipients"
    lines += [
        f"| an SMTP server | {of_smtp[0]} | {of_smtp[1]} | 4xx to a recipient |",
        f"| the standard library | {network} | | |",
        f"| {', '.join(DATABASES)} | | SQLSTATE 22 and 23 | all else |",
        "| anybody else | | | all |",
    ]
    return "\n".join(lines)


def test_the_table_of_the_docs_is_the_list():
    text = (ROOT / "docs" / "handlers.md").read_text()
    assert table() in text, f"put this into docs/handlers.md:\n\n{table()}"
    statuses = {word: [s for s in range(300, 600) if of_status(s) == word] for word in ("outage", "permanent")}
    assert statuses["outage"] == [429, *range(500, 600)]
    beside = re.search(r"those beside \| ([\d, ]+) \|", table())[1].split(", ")
    assert statuses["permanent"] == [s for s in range(300, 500) if s != 429 and str(s) not in beside]
