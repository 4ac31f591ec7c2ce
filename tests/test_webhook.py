"""Webhooks over real sockets: signed, bounded in time and size, to no address of ours; and what each answer means."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

import pytest
import standardwebhooks

from engine import Inside, failures, row
from pages import ROOT
from receiver import Receiver, Request, answer, certified
from redrive import InvalidOption, Queue
from redrive.classify import classify
from redrive.executor import execute_here
from redrive.outcome import Died, Retried, Succeeded
from redrive.senders.addresses import REFUSED, AddressRefused, Reach
from redrive.senders.request import AnswerTooLong, BadRequest, Deadline, Limits, Lines, _Channel, destination
from redrive.senders.signature import InvalidSignature, new_secret, sign, verify
from redrive.senders.webhook import MEANINGS, Delivery, Gone, NotDelivered, Webhook, meaning_of
from support import wait_for
from support_engine import claimed

SECRET = new_secret()
HERE = ["127.0.0.0/8"]


@pytest.fixture
def receiver():
    with Receiver() as receiver:
        yield receiver


def webhook(**how: Any) -> Webhook:
    return Webhook(SECRET, **{"allow": HERE, **how})


def deliver(url: str, data: Any = None, *, hook: Webhook | None = None, **delivery: Any) -> dict[str, Any]:
    return (hook or webhook()).deliver(Delivery(url, data, **delivery), claimed())


def outcome(receiver: Receiver, **how: Any) -> Any:
    """What becomes of a job that is answered so."""
    handler = webhook(**how).register(Queue("postgresql://nobody@nowhere/none"))
    return execute_here(claimed(payload=json.dumps(asdict(Delivery(receiver.url, {})))), handler).outcome


class TestWhatIsSent:
    def test_a_delivery_is_one_signed_post_that_the_reference_library_takes(self, receiver):
        kept = deliver(receiver.url, {"order": 7, "name": "Zoë"}, type="order.placed", headers={"X-Shop": "1"})
        [request] = receiver.requests
        taken = standardwebhooks.Webhook(SECRET).verify(request.body, dict(request.headers))
        assert taken == {
            "type": "order.placed",
            "timestamp": "2026-01-01T00:00:00+00:00",
            "data": {"order": 7, "name": "Zoë"},
        } | {"timestamp": claimed().created_at.isoformat()}
        assert request.line == "POST /hooks HTTP/1.1"
        assert request.header("webhook-id") == claimed().idempotency_key
        assert (request.header("host"), request.header("x-shop")) == (f"127.0.0.1:{receiver.port}", "1")
        assert (request.header("content-type"), request.header("accept-encoding")) == ("application/json", "identity")
        assert (kept["status"], kept["ip"], kept["to"]) == (204, "127.0.0.1", f"127.0.0.1:{receiver.port}")

    def test_without_a_type_the_data_is_the_body(self, receiver):
        deliver(receiver.url, ["any", 1])
        assert receiver.requests[0].json == ["any", 1]

    def test_each_try_has_the_same_id_and_its_own_time(self, receiver):
        for attempt in (1, 2):
            webhook().deliver(Delivery(receiver.url, 1), claimed(attempts=attempt))
        first, second = receiver.requests
        assert first.header("webhook-id") == second.header("webhook-id")
        assert abs(int(second.header("webhook-timestamp")) - time.time()) < 5

    def test_while_secrets_are_changed_it_is_signed_with_both(self, receiver):
        new = new_secret()
        Webhook([new, SECRET], allow=HERE).deliver(Delivery(receiver.url, 1), claimed())
        [request] = receiver.requests
        for secret in (new, SECRET):
            verify(request.body, dict(request.headers), secret)

    def test_a_function_gives_each_receivers_own_secret(self, receiver):
        own = new_secret()
        hook = Webhook(lambda delivery: {"ep_1": own}[delivery.endpoint], allow=HERE)
        hook.deliver(Delivery(receiver.url, 1, endpoint="ep_1"), claimed())
        verify(receiver.requests[0].body, dict(receiver.requests[0].headers), own)

    def test_an_id_that_would_be_no_header_is_hashed(self, receiver):
        from redrive.job import Holder  # noqa: PLC0415 - for this alone

        odd = claimed(holder=Holder("w", "sch\r\nX-Evil: 1"))
        webhook().deliver(Delivery(receiver.url, 1), odd)
        assert re.fullmatch("msg_[0-9a-f]{40}", receiver.requests[0].header("webhook-id"))
        assert "X-Evil" not in dict(receiver.requests[0].headers)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("X-A\r\nX-Evil", "1"),
            ("X-A", "1\r\nX-Evil: 1"),
            ("X-A", "1\nX-Evil: 1"),
            ("X A", "1"),
            ("X-A", "\0"),
            ("", "1"),
        ],
    )
    def test_no_header_brings_another(self, receiver, name, value):
        with pytest.raises(BadRequest, match="header"):
            deliver(receiver.url, headers={name: value})
        with pytest.raises(InvalidOption, match="header"):
            webhook(headers={name: value})
        assert receiver.connections == 0

    @pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding", "Webhook-Id", "webhook-signature"])
    def test_what_redrive_says_itself_is_not_said_over(self, receiver, name):
        with pytest.raises(BadRequest, match="is set by redrive itself"):
            deliver(receiver.url, headers={name: "1"})


class TestSignature:
    def test_what_was_signed_is_verified_and_its_id_and_time_given(self):
        headers = sign(SECRET, "id-1", 1_700_000_000, b"{}")
        received = verify(b"{}", {name.title(): value for name, value in headers.items()}, SECRET, now=1_700_000_010)
        assert (received.id, received.sent_at.timestamp()) == ("id-1", 1_700_000_000)

    def test_the_reference_library_signs_as_we_do(self):
        from datetime import UTC, datetime  # noqa: PLC0415 - for this alone

        when = datetime(2026, 1, 1, tzinfo=UTC)
        theirs = standardwebhooks.Webhook(SECRET).sign("id-1", when, '{"a":1}')
        assert sign(SECRET, "id-1", int(when.timestamp()), b'{"a":1}')["webhook-signature"] == theirs

    @pytest.mark.parametrize(
        "changed",
        [
            {"body": b"{ }"},
            {"webhook-id": "id-2"},
            {"webhook-timestamp": "1700000001"},
            {"webhook-timestamp": "1700000000.5"},
            {"webhook-timestamp": "٣"},
            {"webhook-signature": "v1,AAAA"},
            {"webhook-signature": "v1a,AAAA v2,BBBB"},
            {"webhook-signature": "v1,é"},
            {"webhook-signature": "v1,\udcff"},
            {"webhook-id": "\udcff"},
            {"body": "\udcff"},
            {"webhook-signature": ""},
            {"now": 1_700_000_301},
            {"now": 1_699_999_699},
        ],
    )
    def test_what_was_changed_or_is_old_is_refused(self, changed):
        headers = sign(SECRET, "id-1", 1_700_000_000, b"{}")
        body, now = changed.pop("body", b"{}"), changed.pop("now", 1_700_000_010)
        with pytest.raises(InvalidSignature):
            verify(body, headers | changed, SECRET, now=now)

    def test_another_secret_is_refused_and_one_of_several_is_enough(self):
        headers = sign([new_secret(), SECRET], "id", int(time.time()), b"")
        verify(b"", headers, [new_secret(), SECRET])
        with pytest.raises(InvalidSignature, match="no signature is right"):
            verify(b"", headers, new_secret())

    @pytest.mark.parametrize("secret", ["", "whsec_", "whsec_****", b"short", "whsec_c2hvcnQ=", b"x" * 65, []])
    def test_a_secret_that_is_none_is_refused_and_not_repeated(self, secret):
        with pytest.raises(InvalidOption) as caught:
            Webhook(secret)
        assert "c2hvcnQ" not in str(caught.value)


def fake_dns(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Answer each look-up of a name with the next list of addresses; gives the names that were asked for."""
    asked: list[str] = []
    real, left = socket.getaddrinfo, list(answers)

    def lookup(host: str, port: int, *args: Any, **how: Any) -> Any:
        if re.fullmatch(r"[0-9.]+|.*:.*", host):
            return real(host, port, *args, **how)
        asked.append(host)
        addresses = left.pop(0) if len(left) > 1 else left[0]
        found = [(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip) for ip in addresses]
        return [(family, 1, 6, "", (ip, port, 0, 0) if ":" in ip else (ip, port)) for family, ip in found]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    return asked


class TestAddresses:
    @pytest.mark.parametrize(
        "address",
        [
            *[network.split("/")[0] for network, _ in REFUSED],
            "127.0.0.1",
            "169.254.169.254",
            "100.100.100.200",
            "192.168.255.255",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b::7f00:1",
            "64:ff9b:1::7f00:1",
            "2002:7f00:1::",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fe80::1%eth0",
            "fec0::1",
            "ff02::1",
            "100::1",
            "5f00::1",
            "4000::1",
        ],
    )
    def test_no_address_of_ours_is_called_however_it_is_written(self, address):
        with pytest.raises(AddressRefused):
            Reach().check(address)

    @pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822", "::ffff:1.1.1.1"])
    def test_public_ones_are(self, address):
        assert Reach().check(address) is False

    def test_what_is_allowed_is_called_and_what_is_denied_is_not(self):
        reach = Reach(allow=["10.1.2.0/24", "fd00::/8"], deny=["93.184.216.0/24", "10.1.2.9"])
        assert [reach.check(ip) for ip in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1", "1.1.1.1")] == [True] * 3 + [False]
        for ip in ("93.184.216.34", "::ffff:93.184.216.34", "64:ff9b::5db8:d822", "10.1.2.9", "10.1.3.1"):
            with pytest.raises(AddressRefused):
                reach.check(ip)

    @pytest.mark.parametrize("wrong", ["10.0.0.0/8", ["10.0.0.1/8"], ["example.com"]])
    def test_a_network_that_is_none_is_refused(self, wrong):
        with pytest.raises(InvalidOption, match="allow"):
            webhook(allow=wrong)

    @pytest.mark.parametrize(
        "host",
        [
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "0177.0.0.1",
            "127.1",
            "127.0.1",
            "0",
            "1.2.3.4.5",
            "x.0x1",
            "1.2.3.999",
        ],
    )
    def test_odd_spellings_of_addresses_are_refused(self, host):
        with pytest.raises(BadRequest, match="four plain numbers"):
            destination(f"https://{host}/")

    @pytest.mark.parametrize(
        "host", ["\uff11\uff12\uff17.\uff10.\uff10.\uff11", "127\u30020\u30020\u30021", "\u2460\u2461\u2466.0.0.1"]
    )
    def test_an_address_in_other_digits_is_read_as_the_address_that_it_is(self, host):
        assert destination(f"https://{host}/").host == "127.0.0.1"

    @pytest.mark.parametrize(
        "url",
        [
            "ftp://x.example/",
            "file:///etc/passwd",
            "//x.example/",
            "x.example",
            "",
            "https://",
            "https:///x",
            "https://user:secret@x.example/",
            "https://x.example@169.254.169.254/",
            "https://x.example\\@169.254.169.254/",
            "https://x.example/a b",
            "https://x.example/\r\nX-Evil: 1",
            "https://x.example\t/",
            "https://x.example:99999/",
            "https://x.example:0/",
            "https://x.example:a/",
            "https://[::1%25eth0]/",
            "https://[::1/",
            "https://x_.example.-a/",
            "https://a%2eexample/",
            "https://" + "a" * 300 + ".example/",
            "https://x.example/" + "a" * 5000,
            7,
        ],
    )
    def test_a_url_that_is_none_or_could_be_read_in_two_ways_is_refused(self, url):
        with pytest.raises(BadRequest) as caught:
            destination(url)
        assert classify(caught.value).word == "permanent"
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize(
        "url",
        [
            "https://user:s3cret@x.example:a/",
            "https://user:s3cret@x.example:99999/",
            "https://user:s3cret@[::1/",
            "https://user:s3cret@x.example/a b",
            "ftp://user:s3cret@x.example/",
            "https://user:s3cret@/x",
            "https://user:s3cret/@x.example/",
            "https://user:1 s3cret@x.example/",
            "https://x.example:a/?api_key=s3cret",
        ],
    )
    def test_what_is_said_of_a_refused_url_holds_no_secret_of_it(self, url):
        with pytest.raises(BadRequest) as caught:
            destination(url)
        assert "s3cret" not in str(caught.value)

    def test_a_good_url_is_taken_apart(self):
        to = destination("https://Hooks.Bücher.Example:8443/a/%7Eb?c=d&e=é#f")
        assert (to.tls, to.host, to.port) == (True, "hooks.xn--bcher-kva.example", 8443)
        assert (to.path, to.name) == ("/a/%7Eb?c=d&e=%C3%A9", "hooks.xn--bcher-kva.example:8443")
        assert destination("https://x.example").path == "/"
        assert destination("https://x.example:443/").name == "x.example"
        assert destination("http://[::1]:80/").name == "[::1]"

    def test_nothing_is_sent_into_our_network(self, receiver):
        for url in (receiver.url, f"http://localhost:{receiver.port}/", f"http://[::ffff:127.0.0.1]:{receiver.port}/"):
            with pytest.raises(AddressRefused, match="is not called: loopback"):
                deliver(url, hook=Webhook(SECRET, plain_http=True))
        assert receiver.connections == 0

    def test_every_address_of_a_name_is_checked(self, monkeypatch, receiver):
        fake_dns(monkeypatch, ["93.184.216.34", "10.0.0.7"])
        with pytest.raises(AddressRefused, match=r"two\.example: 10\.0\.0\.7 is not called: private"):
            deliver("https://two.example/", hook=Webhook(SECRET))

    def test_a_name_that_changes_its_answer_is_asked_once_and_the_checked_address_is_called(
        self, monkeypatch, receiver
    ):
        """DNS rebinding: the second answer would lead elsewhere, if anybody asked for it."""
        asked = fake_dns(monkeypatch, ["127.0.0.1"], ["169.254.169.254"])
        kept = deliver(f"http://changing.example:{receiver.port}/")
        assert asked == ["changing.example"]
        assert (kept["status"], kept["ip"]) == (204, "127.0.0.1")
        assert receiver.requests[0].header("host") == f"changing.example:{receiver.port}"

    def test_the_next_address_is_tried_where_one_does_not_answer(self, monkeypatch, receiver):
        fake_dns(monkeypatch, ["127.0.0.2", "127.0.0.1"])
        assert deliver(f"http://two.example:{receiver.port}/")["ip"] == "127.0.0.1"

    def test_an_address_of_ipv6_is_called_and_named_as_the_host(self):
        try:
            receiver = Receiver(host="::1")
        except OSError as error:
            pytest.skip(f"there is no IPv6 here: {error}")
        with receiver:
            assert deliver(f"http://[0:0::1]:{receiver.port}/", hook=webhook(allow=["::1"]))["ip"] == "::1"
            with pytest.raises(AddressRefused):
                deliver(f"http://[::1]:{receiver.port}/")
        assert [request.header("host") for request in receiver.requests] == [f"[::1]:{receiver.port}"]

    def test_a_resolver_that_says_nothing_is_not_waited_for(self, monkeypatch):
        asleep = threading.Event()
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **how: asleep.wait(10))
        with pytest.raises(TimeoutError, match=r"slow\.example was not resolved in time"):
            deliver("https://slow.example/", hook=webhook(connect=0.1))
        asleep.set()

    def test_plain_http_is_for_what_is_allowed_unless_it_is_asked_for(self, monkeypatch):
        fake_dns(monkeypatch, ["93.184.216.34"])
        with pytest.raises(AddressRefused, match="others could read along"):
            deliver("http://x.example/")

    def test_no_proxy_of_the_environment_is_asked(self, monkeypatch, receiver):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        assert deliver(receiver.url)["status"] == 204


class TestRedirects:
    METADATA = answer(302, b"", "Location: http://169.254.169.254/latest/meta-data/")

    def test_a_redirect_is_not_followed_and_the_job_is_dead(self, receiver):
        receiver.reply = self.METADATA
        died = outcome(receiver)
        assert isinstance(died, Died)
        assert died.failure.message == f"127.0.0.1:{receiver.port} answered 302 Found"
        assert "169.254.169.254" in died.failure.traceback
        assert receiver.connections == 1

    @pytest.mark.parametrize(
        ("location", "error"),
        [
            ("//169.254.169.254/", AddressRefused),
            ("http://[::ffff:a9fe:a9fe]/", AddressRefused),
            ("http://2130706433/", BadRequest),
            ("ftp://x.example/", BadRequest),
            ("http://user:s3cret@x.example/", BadRequest),
        ],
    )
    def test_nor_by_another_spelling(self, receiver, location, error):
        receiver.reply = answer(308, b"", f"Location: {location}")
        with pytest.raises(error) as caught:
            deliver(receiver.url, hook=webhook(redirects=3))
        assert "s3cret" not in str(caught.value)

    @pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 305])
    def test_those_that_do_not_keep_the_method_are_never_followed(self, receiver, status):
        receiver.reply = answer(status, b"", f"Location: {receiver.url}")
        with pytest.raises(NotDelivered, match=str(status)):
            deliver(receiver.url, hook=webhook(redirects=3))
        assert receiver.connections == 1

    def test_a_chain_has_no_longer_than_one_answer(self, receiver):
        def slowly(_request: Request, connection: socket.socket) -> None:
            threading.Event().wait(0.15)
            connection.sendall(answer(307, b"", "Location: /again"))

        receiver.reply = slowly
        with pytest.raises(TimeoutError):
            deliver(receiver.url, hook=webhook(redirects=10, total=0.4))
        assert receiver.connections < 5

    def test_not_even_where_some_are_followed_does_one_lead_into_our_network(self, receiver):
        receiver.reply = answer(307, b"", "Location: http://169.254.169.254/latest/meta-data/")
        with pytest.raises(AddressRefused, match=r"169\.254\.169\.254 is not called: link-local"):
            deliver(receiver.url, hook=webhook(redirects=3))

    def test_one_that_keeps_the_method_is_followed_where_asked_for_without_what_was_for_the_first_host_alone(
        self, receiver
    ):
        with Receiver() as other:
            receiver.reply = answer(308, b"", f"Location: {other.url}")
            hook = webhook(redirects=1, headers={"Authorization": "Bearer x"})
            assert deliver(receiver.url, {"a": 1}, hook=hook)["to"] == f"127.0.0.1:{other.port}"
        assert receiver.requests[0].header("authorization") == "Bearer x"
        [request] = other.requests
        assert "authorization" not in {name.lower() for name, _ in request.headers}
        verify(request.body, dict(request.headers), SECRET)

    def test_one_that_leads_nowhere_is_not_followed(self, receiver):
        receiver.reply = answer(307)
        with pytest.raises(NotDelivered, match="307"):
            deliver(receiver.url, hook=webhook(redirects=2))
        assert receiver.connections == 1

    @pytest.mark.parametrize("written", ["/grüße?q=Ån".encode(), "/gr\xfc\xdfe?q=\xc5n".encode("latin-1")])
    def test_one_that_is_written_in_raw_letters_is_followed_to_what_it_means(self, receiver, written):
        hop = answer(307, b"", "Location: X").replace(b"X", written)
        receiver.reply = lambda request, connection: connection.sendall(answer() if "gr" in request.path else hop)
        assert deliver(receiver.url, hook=webhook(redirects=1))["status"] == 204
        assert receiver.requests[1].path == "/gr%C3%BC%C3%9Fe?q=%C3%85n"

    def test_a_circle_ends(self, receiver):
        receiver.reply = answer(307, b"", "Location: /again")
        with pytest.raises(NotDelivered, match="307"):
            deliver(receiver.url, hook=webhook(redirects=2))
        assert [request.path for request in receiver.requests] == ["/hooks", "/again", "/again"]


def drip(*pieces: bytes, every: float = 0.03) -> Any:
    """Write pieces one after the other, the last again and again."""

    def reply(_request: Request, connection: socket.socket) -> None:
        for piece in pieces[:-1]:
            connection.sendall(piece)
        for _ in range(400):
            connection.sendall(pieces[-1])
            threading.Event().wait(every)

    return reply


class TestBounds:
    @pytest.mark.parametrize(
        "reply",
        [
            drip(b"H"),
            drip(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"),
            drip(b"HTTP/1.1 100 Continue\r\n\r\n"),
            lambda request, connection: threading.Event().wait(1),
        ],
        ids=["a letter at a time", "a header at a time", "continue for ever", "silence"],
    )
    def test_a_slow_answer_is_over_when_the_total_is(self, receiver, reply):
        receiver.reply = reply
        began = time.monotonic()
        with pytest.raises(TimeoutError) as caught:
            deliver(receiver.url, hook=webhook(read=10, total=0.4))
        assert time.monotonic() - began < 3
        assert classify(caught.value).word == "outage"

    @pytest.mark.parametrize(
        "reply",
        [
            drip(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"x"),
            drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
            answer(200, b"")[:-4] + b"\r\nContent-Length: 50\r\n\r\nshort",
        ],
        ids=["slow", "chunked and slow", "cut"],
    )
    def test_a_status_that_has_come_stands_whatever_becomes_of_the_body(self, receiver, reply):
        receiver.reply = reply
        assert deliver(receiver.url, hook=webhook(read=0.3, total=0.4))["status"] == 200

    def test_of_a_huge_body_the_beginning_is_read_and_the_rest_is_not(self, receiver):
        sent = []

        def reply(_request: Request, connection: socket.socket) -> None:
            connection.sendall(b"HTTP/1.1 500 Oops\r\nContent-Length: 1000000000\r\n\r\n")
            with suppress(OSError):
                for _ in range(1000):
                    connection.sendall(b"x" * 1_000_000)
                    sent.append(1)

        receiver.reply = reply
        with pytest.raises(NotDelivered) as caught:
            deliver(receiver.url)
        assert sum(len(note) for note in caught.value.__notes__) < 1200
        assert len(sent) < 100

    @pytest.mark.parametrize("endless", [b"X-A: " + b"y" * 1000 + b"\r\n", b"y" * 1000])
    def test_a_head_without_an_end_is_cut_off(self, receiver, endless):
        receiver.reply = drip(b"HTTP/1.1 200 OK\r\n", endless * 200, every=0)
        with pytest.raises(Exception, match="more than") as caught:
            deliver(receiver.url)
        assert classify(caught.value).word in ("retryable", "outage")

    def test_a_promise_of_an_answer_is_not_read_for_ever(self, receiver):
        receiver.reply = drip(b"HTTP/1.1 100 Continue\r\n\r\n" * 400, every=0)
        with pytest.raises(AnswerTooLong, match="an answer of more than 65536 bytes") as caught:
            deliver(receiver.url)
        assert classify(caught.value).word == "retryable"

    @pytest.mark.parametrize("status", [100, 102, 103, 199])
    def test_what_comes_before_the_answer_is_none(self, receiver, status):
        receiver.reply = f"HTTP/1.1 {status} Hints\r\nLink: </a>\r\n\r\n".encode() * 3 + answer(201, b"ok")
        kept = deliver(receiver.url)
        assert (kept["status"], kept["body"]) == (201, "ok")

    def test_who_asks_for_another_protocol_has_not_answered(self, receiver):
        receiver.reply = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n"
        assert isinstance(outcome(receiver), Retried)

    def test_a_gzip_bomb_stays_packed(self, receiver):
        bomb = gzip.compress(b"\0" * 5_000_000)
        receiver.reply = answer(200, bomb, "Content-Encoding: gzip")
        assert deliver(receiver.url)["body"] == "(1024 bytes or more, packed though that was not asked for)"

    def test_an_answer_that_comes_before_all_was_sent_is_heard(self):
        with socket.create_server(("127.0.0.1", 0)) as listening:

            def refuse() -> None:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(10)
                    connection.sendall(answer(413))  # and hangs up on the rest

            thread = threading.Thread(target=refuse, daemon=True)
            thread.start()
            with pytest.raises(NotDelivered, match="413"):
                deliver(f"http://127.0.0.1:{listening.getsockname()[1]}/", "x" * 1_000_000)
            thread.join(5)

    def test_a_body_that_is_too_large_is_refused_before_anything_is_sent(self, receiver):
        with pytest.raises(BadRequest, match="send a link to what is large"):
            deliver(receiver.url, "x" * 2_000_000)
        assert receiver.connections == 0

    def test_what_is_no_http_is_a_failure(self, receiver):
        receiver.reply = b"\x16\x03\x01 nonsense\r\n\r\n"
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whichever http.client raises
            deliver(receiver.url)
        assert classify(caught.value).word == "outage"

    @pytest.mark.parametrize(
        "wrong", [{"total": 0}, {"read": "5"}, {"connect": True}, {"keep": -1}, {"redirects": 1.5}]
    )
    def test_limits_that_make_no_sense_are_refused(self, wrong):
        with pytest.raises(InvalidOption, match=next(iter(wrong))):
            webhook(**wrong)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A key and a certificate for hooks.example that nobody has signed but itself."""
    return certified(tmp_path_factory.mktemp("tls"), "hooks.example")


class TestTls:
    def test_the_name_is_what_tls_and_the_host_header_are_told(self, certificate, monkeypatch):
        key, cert = certificate
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(cert, key)
        asked: list[str] = []
        context.sni_callback = lambda _socket, name, _context: asked.append(name)
        fake_dns(monkeypatch, ["127.0.0.1"], ["169.254.169.254"])
        with Receiver(tls=context) as receiver:
            hook = webhook(tls=lambda: ssl.create_default_context(cafile=cert))
            assert deliver(f"https://hooks.example:{receiver.port}/", hook=hook)["status"] == 204
            assert asked == ["hooks.example"]
            assert receiver.requests[0].header("host") == f"hooks.example:{receiver.port}"

            fake_dns(monkeypatch, ["127.0.0.1"])
            with pytest.raises(ssl.SSLCertVerificationError):
                deliver(f"https://other.example:{receiver.port}/", hook=hook)
            with pytest.raises(ssl.SSLCertVerificationError) as caught:
                deliver(f"https://hooks.example:{receiver.port}/")
            assert classify(caught.value).word == "outage"
        assert len(receiver.requests) == 1

    @pytest.fixture
    def talking(self, certificate):
        """A client and a server over TLS, whose small buffers hide nothing."""
        key, cert = certificate
        of_server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        of_server.load_cert_chain(cert, key)
        of_client = ssl.create_default_context(cafile=cert)
        one, other = socket.socketpair()
        for end in (one, other):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        wrapped: list[ssl.SSLSocket] = []
        thread = threading.Thread(target=lambda: wrapped.append(of_server.wrap_socket(other, server_side=True)))
        thread.start()
        client = of_client.wrap_socket(one, server_hostname="hooks.example")
        thread.join(5)
        yield client, wrapped[0]
        client.close()
        wrapped[0].close()

    def test_a_receiver_that_reads_slowly_has_no_longer_than_the_total(self, talking):
        """Each record of TLS may be in time, and all of them not."""
        client, server = talking
        over = threading.Event()

        def read_slowly() -> None:
            with suppress(OSError):
                while server.recv(16_384) and not over.wait(0.2):
                    pass

        thread = threading.Thread(target=read_slowly)
        thread.start()
        with pytest.raises(TimeoutError):
            _Channel(client, Limits(read=10), Deadline(0.5)).sendall(b"x" * 400_000)
        over.set()
        client.close()
        thread.join(5)

    def test_who_hangs_up_leaves_the_encryption_on(self, talking):
        client, server = talking
        lines = Lines()
        lines.hold(client)
        lines.hang_up()
        assert client.cipher() is not None, "what another thread sends at this moment would go out in the clear"
        server.close()

    def test_an_answer_that_comes_before_all_was_sent_is_heard_over_tls(self, certificate, monkeypatch):
        key, cert = certificate
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(cert, key)
        fake_dns(monkeypatch, ["127.0.0.1"])
        with socket.create_server(("127.0.0.1", 0)) as listening:

            def refuse() -> None:
                connection, _ = listening.accept()
                with suppress(OSError), context.wrap_socket(connection, server_side=True) as over_tls:
                    over_tls.recv(10)
                    over_tls.sendall(answer(413))  # and hangs up on the rest

            thread = threading.Thread(target=refuse, daemon=True)
            thread.start()
            hook = webhook(tls=lambda: ssl.create_default_context(cafile=cert))
            with pytest.raises(NotDelivered, match="413"):
                deliver(f"https://hooks.example:{listening.getsockname()[1]}/", "x" * 900_000, hook=hook)
            thread.join(5)


class TestWhatAnswersMean:
    @pytest.mark.parametrize(("status", "ends"), [(200, Succeeded), (204, Succeeded), (400, Retried), (404, Retried)])
    def test_a_job_is_delivered_or_tried_again(self, receiver, status, ends):
        receiver.reply = answer(status)
        assert isinstance(outcome(receiver), ends)

    @pytest.mark.parametrize("status", [301, 405, 410, 413, 422])
    def test_or_is_dead_at_once(self, receiver, status):
        receiver.reply = answer(status)
        assert isinstance(outcome(receiver), Died)

    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_or_waits_for_the_end_of_an_outage_as_long_as_it_is_asked_to(self, receiver, status):
        receiver.reply = answer(status, b"", "Retry-After: 120")
        found = outcome(receiver)
        assert (found.failure.outage, found.delay) == (120.0, 120.0)

    def test_the_application_may_see_it_otherwise(self, receiver):
        receiver.reply = answer(404)
        assert isinstance(outcome(receiver, answers={404: "permanent"}), Died)
        assert isinstance(outcome(receiver, answers={404: "delivered"}), Succeeded)
        with pytest.raises(InvalidOption, match="answers has 404: 'dead'"):
            webhook(answers={404: "dead"})

    def test_nobody_listening_is_an_outage(self):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
        with pytest.raises(ConnectionRefusedError) as caught:
            deliver(f"http://127.0.0.1:{port}/")
        assert classify(caught.value).word == "outage"

    def test_an_address_of_ours_is_dead_at_once(self):
        handler = Webhook(SECRET).register(Queue("postgresql://nobody@nowhere/none"))
        payload = json.dumps(asdict(Delivery("https://169.254.169.254/latest/meta-data/", {})))
        assert isinstance(execute_here(claimed(payload=payload), handler).outcome, Died)

    def test_what_was_answered_is_kept_with_secrets_masked(self, receiver):
        receiver.reply = answer(400, b'{"error": "bad", "api_key": "hunter2"}', "X-Request-Id: r1", "Set-Cookie: a=b")
        failure = outcome(receiver).failure
        assert failure.message == f"127.0.0.1:{receiver.port} answered 400 Bad Request"
        assert '{"error": "bad", "api_key": "***"}' in failure.last_error
        assert "'x-request-id': 'r1'" in failure.last_error
        assert "hunter2" not in failure.traceback
        assert "a=b" not in failure.traceback
        receiver.reply = answer(200, b"token=abc \x00\xff", "X-Request-Id: r2")
        kept = json.loads(outcome(receiver).result)
        assert (kept["body"], kept["headers"]) == ("token=*** \ufffd\ufffd", {"x-request-id": "r2"})

    def test_answers_that_differ_in_their_words_alone_are_one_group_of_failures(self, receiver):
        receiver.reply = answer(400, b"request 1 is bad", reason="Bad day")
        first = outcome(receiver).failure.fingerprint
        receiver.reply = answer(400, b"no such thing", reason="Another")
        assert outcome(receiver).failure.fingerprint == first

    def test_each_host_has_its_breaker_and_each_endpoint_that_is_named(self):
        assert Webhook.target(asdict(Delivery("https://Api.Example.com/x", 1))) == "api.example.com"
        assert Webhook.target(asdict(Delivery("https://api.example.com:8443/x", 1))) == "api.example.com:8443"
        assert Webhook.target(asdict(Delivery("https://api.example.com/x", 1, endpoint="ep_7"))) == "ep_7"
        assert Webhook.target({"url": "nonsense"}) == Webhook.target({}) == ""
        assert Webhook.target(None) == Webhook.target(["by hand"]) == ""

    def test_none_is_sent_in_a_child_process_which_would_not_find_it(self):
        with pytest.raises(InvalidOption, match="not sent in a child process"):
            webhook().register(Queue("postgresql://nobody@nowhere/none"), isolation="process")

    def test_one_webhook_is_for_one_queue(self):
        hook = webhook()
        hook.register(Queue("postgresql://nobody@nowhere/none"))
        with pytest.raises(InvalidOption, match="another queue"):
            hook.register(Queue("postgresql://nobody@nowhere/none"))


class TestAsync:
    def test_an_async_handler_may_send_as_well(self, receiver):
        hook = webhook()
        kept = asyncio.run(hook.deliver_async(Delivery(receiver.url, 1), claimed()))
        assert (kept["status"], len(receiver.requests)) == (204, 1)

    def test_after_a_fork_it_sends_in_threads_of_its_own(self, receiver, monkeypatch):
        """As under gunicorn --preload: those of the parent are not there, and nothing would ever be sent."""
        hook = webhook()
        asyncio.run(hook.deliver_async(Delivery(receiver.url, 1), claimed()))
        threads = hook._threads
        threads.shutdown()
        monkeypatch.setattr(hook, "_pid", -1)
        asyncio.run(asyncio.wait_for(hook.deliver_async(Delivery(receiver.url, 2), claimed()), 5))
        assert hook._threads is not threads
        assert len(receiver.requests) == 2

    def test_when_it_is_cancelled_the_connection_is_cut(self, receiver):
        ended = threading.Event()

        def reply(_request: Request, connection: socket.socket) -> None:
            with suppress(OSError):
                if connection.recv(1) == b"":
                    ended.set()

        receiver.reply = reply

        async def begin_and_leave() -> None:
            task = asyncio.create_task(webhook().deliver_async(Delivery(receiver.url, 1), claimed()))
            while not receiver.requests:  # noqa: ASYNC110 - of another thread
                await asyncio.sleep(0.005)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        asyncio.run(begin_and_leave())
        assert ended.wait(5)


def test_a_worker_delivers_holds_for_a_busy_receiver_and_switches_off_one_that_is_gone(db, conn):
    def by_path(request: Request, connection: socket.socket) -> None:
        status = {"/ok": 200, "/gone": 410}.get(request.path, 503)
        connection.sendall(answer(status, b'{"took": true}', *["Retry-After: 900"] * (status == 503)))

    gone: list[Gone] = []
    with Receiver(by_path) as receiver:
        base = receiver.url.removesuffix("/hooks")
        queue = Queue(db, poll=1)
        hook = webhook(on_gone=gone.append).register(queue, max_attempts=2)
        taken = hook.enqueue(Delivery(f"{base}/ok", 1, endpoint="ep_ok")).id
        first = hook.enqueue(Delivery(f"{base}/busy", 1, endpoint="ep_busy")).id
        dead = hook.enqueue(Delivery(f"{base}/gone", 1, endpoint="ep_gone")).id
        with Inside(queue, concurrency=1):
            wait_for(lambda: (row(conn, taken).status, row(conn, dead).status) == ("succeeded", "dead"))
            wait_for(lambda: {state.target for state in queue.breakers.list()} == {"ep_busy", "ep_gone"})
            later = [hook.enqueue(Delivery(f"{base}/{name}", 2, endpoint=f"ep_{name}")).id for name in ("busy", "gone")]
            last = hook.enqueue(Delivery(f"{base}/ok", 2, endpoint="ep_ok")).id
            wait_for(lambda: row(conn, last).status == "succeeded")
        assert row(conn, taken).result["body"] == '{"took": true}'
        assert sorted(request.path for request in receiver.requests) == ["/busy", "/gone", "/ok", "/ok"]
        assert [(row(conn, job).status, row(conn, job).attempts) for job in later] == [("pending", 0)] * 2
        assert row(conn, first).status == "pending"
        assert [(one.delivery.endpoint, one.job_id) for one in gone] == [("ep_gone", dead)]
        assert "answered 410 Gone" in failures(conn, dead)[0].message
        states = {state.target: state for state in queue.breakers.list()}
        assert (states["ep_gone"].by_hand, states["ep_busy"].by_hand) == (True, False)
        assert "answered 410 Gone" in states["ep_gone"].reason
        queue.close()


# -- the tables of the docs


def statuses_table() -> str:
    """What statuses mean, from the code's own table."""
    words = {
        "delivered": "succeeded",
        "gone": "dead; `on_gone` is called, and the endpoint's breaker opened",
        "permanent": "dead at once",
        "outage": "tried again, held while the breaker of the target is open",
        "retryable": "tried again",
    }
    lines = ["| status | the job is | for |", "|---|---|---|"]
    for statuses, meaning, why in MEANINGS:
        shown = f"{statuses[0]}" if len(statuses) == 1 else f"{statuses[0]} to {statuses[-1]}"
        other = ", else" if statuses == range(400, 500) else ""
        lines.append(f"| {shown}{other} | {words[meaning]} | {why} |")
    return "\n".join(lines)


def addresses_table() -> str:
    """What is not called, from the code's own table."""
    lines = ["| not called | since it is |", "|---|---|", *(f"| `{network}` | {why} |" for network, why in REFUSED)]
    return "\n".join(lines)


@pytest.mark.parametrize("table", [statuses_table, addresses_table])
def test_the_tables_of_the_docs_are_those_of_the_code(table):
    assert table() in (ROOT / "docs" / "senders.md").read_text(), f"put this into docs/senders.md:\n\n{table()}"


def test_each_status_does_to_a_job_what_the_table_of_the_docs_says(receiver):
    """Walks the page, and not the code's own table: one answer each, over a socket."""
    page = (ROOT / "docs" / "senders.md").read_text()
    rows = re.findall(r"^\| (\d+)(?: to (\d+))?(, else)? \| (.+?) \| .+ \|$", page, re.MULTILINE)
    assert len(rows) == len(MEANINGS)
    said = {
        int(status): words
        for first, last, _, words in reversed(rows)
        for status in range(int(first), int(last or first) + 1)
    }
    edges = {int(edge) for first, last, *_ in rows for edge in (first, last or first)}
    gone: list[Gone] = []
    found = {}
    for status in sorted((edges | set(HTTPStatus) | {101, 299, 520}) - {100, 102, 103, 199}):
        receiver.reply = answer(status)
        ended, before = outcome(receiver, on_gone=gone.append), len(gone)
        failure = getattr(ended, "failure", None)
        held = failure is not None and failure.outage is not None
        found[int(status)] = {
            Succeeded: "succeeded",
            Died: "dead; `on_gone` is called, and the endpoint's breaker opened" if before else "dead at once",
            Retried: "tried again, held while the breaker of the target is open" if held else "tried again",
        }[type(ended)]
        gone.clear()
    assert found == {status: said[status] for status in found}
    assert len(found) > 60


def test_every_status_has_a_meaning():
    assert [status for status in range(100, 600) if not any(status in each for each, _, _ in MEANINGS)] == []
    assert (meaning_of(418), meaning_of(410), meaning_of(307), meaning_of(599)) == (
        "retryable",
        "gone",
        "permanent",
        "outage",
    )


@pytest.mark.parametrize("name", ["stra\u00dfe.example", "\u03b1\u03c2.example", "a\u200db.example"])
def test_a_name_that_is_two_hosts_by_the_two_rules_for_letters_is_refused(name):
    with pytest.raises(BadRequest, match="IDNA"):
        destination(f"https://{name}/hooks")
