"""Mail over a real SMTP server: the same mail at every attempt, nobody gets it twice, and who is refused is named."""

from __future__ import annotations

import asyncio
import json
import smtplib
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from email.message import EmailMessage
from typing import Any

import pytest

from engine import failures, row
from postbox import Broken, Mailbox
from receiver import certified
from redrive import InvalidOption, Queue
from redrive.classify import Finding, classify
from redrive.executor import execute, execute_here
from redrive.job import Holder
from redrive.outcome import Died, Retried, Succeeded
from redrive.senders import email as email_module
from redrive.senders import smtp as smtp_module
from redrive.senders.email import Attachment, Email, Mail, NotSent, files
from redrive.senders.mail import BadMail, address, composed
from redrive.senders.smtp import NotReady, Smtp
from redrive.testing import run_pending
from support import wait_for
from support_engine import claimed

SENDER = "Paperplane <billing@paperplane.example>"
ADA, BOB, CYD = "ada@x.example", "bob@x.example", "cyd@x.example"


@pytest.fixture
def box():
    with Mailbox() as box:
        yield box


@pytest.fixture
def smtp(box):
    smtp = Smtp("127.0.0.1", box.port, security="none", timeout=5)
    yield smtp
    smtp.close()


def deliver(send: Any, mail: Mail, **how: Any) -> Any:
    return Email(SENDER, send, **how).deliver(mail, claimed())


def outcome(send: Any, mail: Mail | None = None, **how: Any) -> Any:
    """What becomes of a job with this *mail*."""
    handler = Email(SENDER, send, **how).register(Queue("postgresql://nobody@nowhere/none"))
    job = claimed(payload=json.dumps(asdict(mail or Mail([ADA, BOB], "Hello"))))
    if handler.is_async:
        return asyncio.run(execute(job, handler)).outcome
    return execute_here(job, handler).outcome


class TestTheMessage:
    def test_a_mail_arrives_as_it_was_meant(self, box, smtp):
        mail = Mail(
            to=["Ada Lovelace <ada@X.example>", "Zoë <zoe@bücher.example>"],
            cc=[BOB],
            bcc=["hidden@x.example"],
            subject="Grüße, 你好",
            text="Ünder\n.leading dot\n" + "long " * 300,
            html="<p>Ü</p>",
            reply_to="support@paperplane.example",
            headers={"X-Campaign": "welcome"},
        )
        kept = deliver(smtp, mail)
        [(recipients, message)] = box.received
        assert recipients == [ADA, "zoe@xn--bcher-kva.example", BOB, "hidden@x.example"] == kept["accepted"]
        assert (message["Subject"], message["X-Campaign"]) == (mail.subject, "welcome")
        assert message["From"] == SENDER
        assert [each.display_name for each in message["To"].addresses] == ["Ada Lovelace", "Zoë"]
        assert "hidden" not in message.as_string()
        text, html = message.get_body(("plain",)), message.get_body(("html",))
        assert text.get_content().replace("\r\n", "\n").strip() == mail.text.strip()
        assert html.get_content().strip() == mail.html

    def test_message_id_and_date_are_the_jobs_at_every_attempt(self, box, smtp):
        for attempt in (1, 2):
            Email(SENDER, smtp).deliver(Mail(ADA, "Hello"), claimed(attempts=attempt))
        first, second = (message for _, message in box.received)
        assert first["Message-ID"] == second["Message-ID"] == f"<{claimed().idempotency_key}@paperplane.example>"
        assert first["Date"] == second["Date"]
        assert first["Date"].datetime == claimed().created_at.replace(microsecond=0)

    def test_an_odd_name_of_the_schema_gives_a_message_id_all_the_same(self, box, smtp):
        odd = claimed(holder=Holder("w", "sch>\r\nBcc: evil@x.example"))
        Email(SENDER, smtp).deliver(Mail(ADA, "Hello"), odd)
        [(recipients, message)] = box.received
        assert (recipients, message["Bcc"]) == ([ADA], None)
        assert message["Message-ID"].startswith("<msg_")

    @pytest.mark.parametrize("line_end", ["\r\n", "\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\0"])
    def test_no_value_brings_a_header_with_it(self, smtp, box, line_end):
        evil = f"x{line_end}Bcc: evil@x.example"
        for mail in (
            Mail(ADA, evil),
            Mail(f"{evil} <{ADA}>", "s"),
            Mail(f"{ADA}{line_end}Bcc: evil@x.example", "s"),
            Mail(ADA, "s", cc=[f"{ADA}{line_end}"]),
            Mail(ADA, "s", sender=f"{evil} <{ADA}>"),
            Mail(ADA, "s", reply_to=f"{evil} <{ADA}>"),
            Mail(ADA, "s", headers={"X-A": evil}),
            Mail(ADA, "s", headers={f"X-A{line_end}Bcc": "evil@x.example"}),
            Mail(ADA, "s", attachments=[Attachment("a", name=evil)]),
        ):
            with pytest.raises(BadMail) as caught:
                deliver(smtp, mail, attach=lambda ref: b"")
            assert classify(caught.value).word == "permanent"
        assert box.connections == 0

    @pytest.mark.parametrize(
        "hidden",
        ["=?utf-8?q?x=0D=0ABcc=3A_evil=40x=2Eexample?=", "=?utf-8?b?eA0KQmNjOiBldmls?=", "=?l1?q?x=0A=0Abody?="],
    )
    def test_no_value_brings_a_header_with_it_in_a_wrapping(self, smtp, box, hidden):
        """The standard library decodes what is encoded already, and writes the line ends that come out of it."""
        for mail in (
            Mail(ADA, hidden),
            Mail(f"{hidden} <{ADA}>", "s"),
            Mail(ADA, "s", cc=[f"{hidden} <{BOB}>"]),
            Mail(ADA, "s", sender=f"{hidden} <{ADA}>"),
            Mail(ADA, "s", reply_to=f"{hidden} <{ADA}>"),
            Mail(ADA, "s", headers={"X-A": hidden}),
            Mail(ADA, "s", headers={"X-A": f"ä {hidden} ä"}),
            Mail(ADA, "s", headers={"Resent-To": f"{hidden} <{ADA}>"}),
            Mail(ADA, "s", attachments=[Attachment("a", name=f"{hidden}.pdf")]),
        ):
            with pytest.raises(BadMail):
                deliver(smtp, mail, attach=lambda ref: b"")
        assert box.connections == 0

    def test_a_subject_that_is_encoded_already_is_read_as_what_it_says(self, box, smtp):
        deliver(smtp, Mail(ADA, "=?utf-8?q?Gr=C3=BC=C3=9Fe?= an alle"))
        assert box.received[0][1]["Subject"] == "Grüße an alle"

    def test_a_long_url_in_a_header_stays_one(self):
        url = f"<https://x.example/u/{'a' * 300}>"
        how = {
            "sender": SENDER,
            "to": [ADA],
            "cc": [],
            "bcc": [],
            "reply_to": "",
            "subject": "s",
            "text": "",
            "html": "",
        }
        how |= {"message_id": f"<{'a' * 100}@b>", "date": "Thu, 01 Jan 2026 00:00:00 +0000", "attachments": []}
        message, _ = composed(**how, headers={"List-Unsubscribe": url})
        assert f"\r\nList-Unsubscribe: {url}\r\n".encode() in bytes(message)
        assert f"<{'a' * 100}@b>\r\n".encode() in bytes(message)

    @pytest.mark.parametrize("name", ["From", "bcc", "Message-ID", "Content-Type", "MIME-Version", "x y", "x:y", ""])
    def test_headers_that_are_none_or_ours_are_refused(self, smtp, name):
        with pytest.raises(BadMail, match="header"):
            deliver(smtp, Mail(ADA, "s", headers={name: "x"}))

    def test_a_domain_that_is_two_by_the_two_rules_for_letters_is_refused(self):
        with pytest.raises(BadMail, match="IDNA"):
            address("ada@stra\u00dfe.example", "to")

    @pytest.mark.parametrize(
        "wrong",
        [
            "",
            "ada",
            "ada@",
            "@x.example",
            "ada@x example",
            "ada@x..example",
            "ada@-x.example",
            "ada@[127.0.0.1]",
            "a,b@x.example",
            "ada@x.example, bob@x.example",
            "ada@x.example;bob@x.example",
            "<ada@x.example> <bob@x.example>",
            '"a b"@x.example',
            ".ada@x.example",
            "ada..l@x.example",
            "ada@x.example>",
            "ada@evil.example@x.example",
            "a" * 65 + "@x.example",
            7,
            None,
        ],
    )
    def test_what_is_not_one_address_is_refused(self, wrong):
        with pytest.raises(BadMail, match="to is"):
            address(wrong, "to")

    def test_a_mail_to_nobody_or_to_very_many_is_refused(self, smtp):
        with pytest.raises(BadMail, match="to nobody"):
            deliver(smtp, Mail([], "s"))
        with pytest.raises(BadMail, match="101 recipients: at most 100; make a job for each"):
            deliver(smtp, Mail([f"a{n}@x.example" for n in range(101)], "s"))
        with pytest.raises(InvalidOption, match="sender is 'nobody'"):
            Email("nobody", smtp)

    def test_it_is_as_mail_is_on_the_wire(self):
        how = {"sender": SENDER, "to": [ADA], "cc": [], "bcc": [], "reply_to": "", "subject": "Ü", "text": "a\nb\n"}
        how |= {"html": "", "headers": {}, "message_id": "<a@b>", "date": "Thu, 01 Jan 2026 00:00:00 +0000"}
        message, _ = composed(**how, attachments=[])
        assert b"\r\nSubject: =?utf-8?" in bytes(message)
        assert b"a\r\nb\r\n" in bytes(message)


class TestAttachments:
    def test_they_are_looked_up_when_the_mail_is_sent(self, box, smtp, tmp_path):
        (tmp_path / "7.pdf").write_bytes(b"%PDF")
        mail = Mail(
            ADA,
            "Invoice",
            attachments=[Attachment("7.pdf", "Rechnung für 7.pdf"), Attachment("7.pdf", type="text/x-a")],
        )
        deliver(smtp, mail, attach=files(tmp_path))
        [(_, message)] = box.received
        found = [(part.get_filename(), part.get_content_type()) for part in message.iter_attachments()]
        assert found == [("Rechnung für 7.pdf", "application/pdf"), ("7.pdf", "text/x-a")]
        assert [part.get_payload(decode=True) for part in message.iter_attachments()] == [b"%PDF"] * 2

    def test_a_mail_that_was_saved_is_a_file_like_others(self, box, smtp):
        deliver(smtp, Mail(ADA, "s", attachments=[Attachment("complaint.eml")]), attach=lambda ref: b"Subject: x\r\n")
        [part] = box.received[0][1].iter_attachments()
        assert (part.get_filename(), part.get_content_type()) == ("complaint.eml", "application/octet-stream")

    @pytest.mark.parametrize("ref", ["../secret", "/etc/passwd", "link", "", "a/../../secret"])
    def test_none_is_read_outside_its_directory(self, smtp, tmp_path, ref):
        (tmp_path / "secret").write_text("x")
        inside = tmp_path / "inside"
        inside.mkdir()
        (inside / "link").symlink_to(tmp_path / "secret")
        with pytest.raises(BadMail, match="leads out of its directory"):
            deliver(smtp, Mail(ADA, "s", attachments=[Attachment(ref)]), attach=files(inside))

    def test_one_that_is_not_there_may_come(self, smtp, tmp_path):
        found = outcome(smtp, Mail(ADA, "s", attachments=[Attachment("late.pdf")]), attach=files(tmp_path))
        assert isinstance(found, Retried)

    def test_without_a_word_how_none_is_looked_up(self, smtp):
        assert isinstance(outcome(smtp, Mail(ADA, "s", attachments=[Attachment("/etc/passwd")])), Died)

    @pytest.mark.parametrize(
        ("attachment", "content", "why"),
        [
            (Attachment("a"), b"x" * 2000, "at most 1000"),
            (Attachment("a"), "text", "gave str"),
            (Attachment("a", type="application"), b"", "no type of a file"),
            (Attachment("a", type="multipart/mixed"), b"", "no type of a file"),
            (Attachment("a", type="a/b\r\nX: y"), b"", "no type of a file"),
            (Attachment("a", name="/"), b"", "has no name"),
        ],
    )
    def test_what_can_be_none_is_refused(self, smtp, attachment, content, why):
        with pytest.raises(BadMail, match=why):
            deliver(smtp, Mail(ADA, "s", attachments=[attachment]), attach=lambda ref: content, most=1000)


class TestWhatTheServerSays:
    @pytest.mark.parametrize(
        ("refuse", "message"),
        [
            ({ADA: "550 5.1.1 no mailbox", BOB: "553 5.1.2 no"}, f"{ADA}: 550 5.1.1 no mailbox, {BOB}: 553 5.1.2 no"),
            ({"DATA": "554 5.7.1 spam"}, f"554 5.7.1 spam, to {ADA}, {BOB}"),
            ({"MAIL": "550 5.7.1 not you"}, "550 5.7.1 not you, of the sender billing@paperplane.example"),
        ],
    )
    def test_a_5xx_is_dead_at_once_with_the_addresses_named(self, box, smtp, refuse, message):
        box.refuse = refuse
        died = outcome(smtp)
        assert isinstance(died, Died)
        assert died.failure.message == message

    @pytest.mark.parametrize(
        ("refuse", "outage"),
        [
            ({ADA: "450 4.2.0 greylisted", BOB: "450 4.2.0 greylisted"}, None),
            ({ADA: "550 5.1.1 no mailbox", BOB: "450 4.2.0 greylisted"}, None),
            ({"DATA": "451 4.3.0 try again"}, 0.0),
            ({"MAIL": "421 4.3.2 too busy"}, 0.0),
            ({ADA: "421 4.3.2 closing"}, 0.0),
        ],
    )
    def test_a_4xx_is_tried_again_and_where_it_is_of_the_server_it_is_an_outage(self, box, smtp, refuse, outage):
        box.refuse = refuse
        found = outcome(smtp)
        assert isinstance(found, Retried)
        assert found.failure.outage == outage
        assert box.received == []

    def test_many_refused_addresses_are_counted(self, box, smtp):
        many = [f"a{n}@x.example" for n in range(8)]
        box.refuse = dict.fromkeys(many, "550 no")
        with pytest.raises(NotSent, match=r"a4@x\.example: 550 no and 3 more") as caught:
            deliver(smtp, Mail(many, "s"))
        assert list(caught.value.recipients) == many

    def test_no_server_is_an_outage(self):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
        assert outcome(Smtp("127.0.0.1", port, security="none")).failure.outage == 0.0

    def test_a_server_that_says_nothing_is_an_outage(self):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            smtp = Smtp("127.0.0.1", listening.getsockname()[1], security="none", timeout=0.2)
            assert outcome(smtp).failure.outage == 0.0

    @pytest.mark.parametrize("step", ["GREETING", "EHLO", "MAIL", "RCPT", "DATA", "TEXT", "END"])
    def test_a_server_that_hangs_up_is_an_outage_whenever_it_does(self, step):
        """Also after it had all of the mail: then it may have been sent, and is sent again."""
        with Broken(step, "hang up") as broken:
            found = outcome(Smtp("127.0.0.1", broken.port, security="none", timeout=5))
        assert (type(found), found.failure.outage, broken.mails) == (Retried, 0.0, int(step == "END"))

    @pytest.mark.parametrize("step", ["GREETING", "MAIL", "END"])
    @pytest.mark.parametrize("does", ["a letter at a time", "for ever"])
    def test_an_answer_without_an_end_is_over_when_the_timeout_is(self, step, does):
        with Broken(step, does) as broken:
            began = time.monotonic()
            found = outcome(Smtp("127.0.0.1", broken.port, security="none", timeout=0.3))
            assert time.monotonic() - began < 5
        assert (type(found), found.failure.outage) == (Retried, 0.0)

    @pytest.mark.parametrize("step", ["MAIL", "RCPT", "DATA", "END"])
    @pytest.mark.parametrize(
        ("says", "ends"), [("421 bye", "outage"), ("451 later", "later"), ("554 never", "dead"), ("nonsense", "later")]
    )
    def test_each_answer_counts_at_each_step(self, step, says, ends):
        with (
            Broken(step, says) as broken,
            closing(Smtp("127.0.0.1", broken.port, security="none", timeout=5)) as smtp,
        ):
            found = outcome(smtp)
        assert isinstance(found, Died if ends == "dead" else Retried)
        to_the_mail = says.startswith("451") and step != "RCPT"
        assert found.failure.outage == (0.0 if ends == "outage" or to_the_mail else None)

    def test_an_address_with_other_letters_needs_a_server_that_takes_such(self, box, smtp):
        deliver(smtp, Mail("jürgen@x.example", "s"))
        assert box.received[0][0] == ["jürgen@x.example"]
        with Mailbox(enable_SMTPUTF8=False) as old:
            died = outcome(Smtp("127.0.0.1", old.port, security="none"), Mail([ADA, "jürgen@x.example"], "s"))
        assert isinstance(died, Died)
        assert "no SMTPUTF8): jürgen@x.example" in died.failure.message


def test_an_address_with_other_letters_that_is_only_shown_is_sent_as_it_is(box, smtp):
    deliver(smtp, Mail(ADA, "Grüße", "Ü", reply_to="jürgen@x.example"))
    [(recipients, message)] = box.received
    assert (recipients, message["Reply-To"], message["Subject"]) == ([ADA], "jürgen@x.example", "Grüße")
    assert "jürgen@x.example".encode() in box.raw[0], "an encoded word is no part of an address"
    with Mailbox(enable_SMTPUTF8=False) as old:
        died = outcome(Smtp("127.0.0.1", old.port, security="none"), Mail(ADA, "s", reply_to="jürgen@x.example"))
    assert isinstance(died, Died)
    assert "no SMTPUTF8): jürgen@x.example" in died.failure.message


def test_who_was_refused_gets_a_job_and_who_has_got_it_gets_it_no_second_time(db, conn, box, smtp, monkeypatch):
    """One accepted, one has no mailbox, one is greylisted twice: three ends for three recipients."""
    monkeypatch.setattr(email_module, "LATER", 0.0)
    queue = Queue(db)
    email = Email(SENDER, smtp).register(queue, backoff=lambda _attempt: 0.1)
    box.refuse = {BOB: "550 5.1.1 no mailbox", CYD: "450 4.2.0 greylisted"}
    first = email.enqueue(Mail([ADA, BOB], "Hello", cc=[CYD])).id
    [result] = run_pending(queue)
    assert (result.id, result.outcome) == (first, "succeeded")
    kept = row(conn, first).result
    assert kept["accepted"] == [ADA]
    assert kept["refused"] == {BOB: "550 5.1.1 no mailbox", CYD: "450 4.2.0 greylisted"}

    assert sorted(result.outcome for result in run_pending(queue)) == ["died", "retried"]
    never, later = conn.execute("select id from redrive.jobs where id > %s order by id", (first,)).fetchall()
    assert failures(conn, never[0])[0].message == f"{BOB}: 550 5.1.1 no mailbox"
    del box.refuse[CYD]
    wait_for(lambda: [result.outcome for result in run_pending(queue)] == ["succeeded"])
    assert row(conn, later[0]).status == "succeeded"
    assert [box.to(each) for each in (ADA, BOB, CYD)] == [1, 0, 1]
    one, other = (message for _, message in box.received)
    assert one["Message-ID"] == other["Message-ID"] == kept["message_id"]
    assert (one["Date"], one["To"], one["Cc"]) == (other["Date"], other["To"], other["Cc"])
    queue.close()


class TestConnections:
    def test_a_connection_is_kept_for_the_next_mail_also_after_a_refusal(self, box, smtp):
        box.refuse = {BOB: "550 no"}
        for mail in (Mail(ADA, "1"), Mail(ADA, "2")):
            deliver(smtp, mail)
        with pytest.raises(NotSent):
            deliver(smtp, Mail(BOB, "3"))
        deliver(smtp, Mail(ADA, "4"))
        assert (box.connections, box.to(ADA)) == (1, 3)

    def test_one_that_the_server_has_closed_is_found_out_before_the_mail(self, box, smtp):
        deliver(smtp, Mail(ADA, "1"))
        box.hang_up()
        deliver(smtp, Mail(ADA, "2"))
        assert (box.connections, box.to(ADA)) == (2, 2)

    def test_an_old_one_is_not_used_nor_one_for_ever(self, box, smtp, monkeypatch):
        monkeypatch.setattr(smtp_module, "MOST_MAILS", 2)
        for _ in range(4):
            deliver(smtp, Mail(ADA, "s"))
        assert box.connections == 2
        monkeypatch.setattr(smtp_module, "IDLE", 0.0)
        deliver(smtp, Mail(ADA, "s"))
        assert box.connections == 3

    def test_threads_do_not_share_one(self, box, smtp):
        meet = threading.Barrier(4, timeout=10)

        def at_once(n: int) -> None:
            line = smtp._take()
            meet.wait()
            smtp._give_back(line)
            deliver(smtp, Mail(ADA, str(n)))

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(at_once, range(4)))
        assert (box.connections, box.to(ADA)) == (4, 4)

    def test_after_a_fork_the_parents_connections_are_left_alone(self, box, smtp, monkeypatch):
        deliver(smtp, Mail(ADA, "1"))
        [kept] = smtp._idle
        monkeypatch.setattr(smtp, "_pid", -1)
        deliver(smtp, Mail(ADA, "2"))
        assert (box.connections, kept.smtp.noop()[0]) == (2, 250)
        kept.smtp.close()


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """A server's context, and how a client comes to trust it."""
    key, cert = certified(tmp_path_factory.mktemp("tls"), "localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return context, lambda: ssl.create_default_context(cafile=cert)


class TestSecurity:
    def test_it_logs_in_over_starttls(self, tls):
        with Mailbox(tls=tls[0], login=("u", "p")) as box:
            smtp = Smtp("localhost", box.port, user="u", password="p", tls=tls[1])
            deliver(smtp, Mail(ADA, "s"))
            smtp.close()
            assert box.to(ADA) == 1

    def test_a_wrong_password_is_an_outage_since_no_mail_would_go(self, tls):
        with Mailbox(tls=tls[0], login=("u", "p")) as box:
            found = outcome(Smtp("localhost", box.port, user="u", password="wrong", tls=tls[1]))
        assert isinstance(found, Retried)
        assert found.failure.outage == 0.0
        assert found.failure.message.startswith("SMTPAuthenticationError: 535")
        assert "wrong" not in found.failure.message

    def test_a_certificate_that_nobody_vouches_for_is_not_trusted(self, tls):
        with Mailbox(tls=tls[0]) as box, pytest.raises(ssl.SSLCertVerificationError):
            deliver(Smtp("localhost", box.port), Mail(ADA, "s"))

    def test_without_tls_at_the_server_nothing_is_sent(self, box):
        with pytest.raises(NotReady, match="STARTTLS") as caught:
            deliver(Smtp("127.0.0.1", box.port), Mail(ADA, "s"))
        assert classify(caught.value).word == "outage"
        assert box.received == []

    @pytest.mark.parametrize(
        ("how", "why"),
        [
            ({"security": "ssl"}, "security is 'ssl': must be one of starttls, tls, none"),
            ({"user": "u"}, "user and password go together"),
            ({"security": "none", "user": "u", "password": "p"}, "not sent where others can read it"),
            ({"timeout": 0}, "timeout is 0"),
            ({"user": "u", "password": "pä"}, "ASCII"),
        ],
    )
    def test_options_that_make_no_sense_are_refused(self, how, why):
        with pytest.raises(InvalidOption, match=why):
            Smtp("mail.example", **how)

    def test_a_server_may_be_given_as_a_url(self):
        assert repr(Smtp.of_url("smtp://u:p%40@mail.example")) == "Smtp('mail.example', 587, security='starttls')"
        assert repr(Smtp.of_url("smtps://mail.example")) == "Smtp('mail.example', 465, security='tls')"
        assert repr(Smtp.of_url("smtp+plain://localhost:2525")) == "Smtp('localhost', 2525, security='none')"
        for wrong in ("mail.example", "http://mail.example", "smtp://", "smtp://u:secret@mail.example:x"):
            with pytest.raises(InvalidOption) as caught:
                Smtp.of_url(wrong)
            assert "secret" not in str(caught.value)


class TestAnyFunction:
    """A provider's API in place of a server."""

    def test_it_gets_the_message_and_the_recipients(self):
        sent: list[tuple[EmailMessage, list[str]]] = []
        kept = deliver(lambda message, recipients: sent.append((message, recipients)), Mail([ADA], "Hello"))
        [(message, recipients)] = sent
        assert (recipients, message["Subject"], message["Message-ID"]) == ([ADA], "Hello", kept["message_id"])

    def test_it_may_be_async(self):
        async def send(message: EmailMessage, recipients: list[str]) -> None:
            await asyncio.sleep(0)

        assert isinstance(outcome(send), Succeeded)

    def test_what_it_raises_has_the_word_that_every_error_has(self):
        class Limited(Exception):
            finding = Finding("outage", 900)

        def fails(error: Exception) -> Any:
            def send(message: EmailMessage, recipients: list[str]) -> None:
                raise error

            return outcome(send)

        assert fails(Limited()).delay == 900
        assert fails(ConnectionResetError()).failure.outage == 0.0
        assert isinstance(fails(smtplib.SMTPDataError(550, b"no")), Died)
        assert isinstance(fails(KeyError("x")), Retried)

    @pytest.mark.parametrize("gives", ["id-1", True, 1, [ADA], {"id": "x"}, {"z@x.example": (550, "no")}, object()])
    def test_a_providers_answer_is_not_taken_for_a_failure(self, gives):
        """The mail is out: to fail then would send it eight times."""
        ended = outcome(lambda message, recipients: gives)
        assert isinstance(ended, Succeeded)
        assert json.loads(ended.result)["accepted"] == [ADA, BOB]

    @pytest.mark.parametrize(
        ("said", "words"), [((550, "no"), "550 no"), ((550, b"no"), "550 no"), (550, "550"), ("no such", "no such")]
    )
    def test_who_was_refused_is_known_by_the_address_in_any_case(self, said, words):
        with pytest.raises(NotSent, match=f"^{ADA}: {words}$"):
            deliver(lambda message, recipients: {ADA.upper(): said}, Mail(ADA, "s"))

    def test_one_that_is_not_awaited_is_told_so_and_has_sent_nothing(self):
        async def send(message: EmailMessage, recipients: list[str]) -> None:
            raise AssertionError

        with pytest.raises(TypeError, match="async def"):
            deliver(lambda *given: send(*given), Mail(ADA, "s"))  # noqa: PLW0108 - is none by its looks

    def test_all_refused_is_not_sent(self):
        assert isinstance(outcome(lambda message, recipients: dict.fromkeys(recipients, (550, "no"))), Died)

    def test_none_is_sent_in_a_child_process_which_would_not_find_it(self, smtp):
        with pytest.raises(InvalidOption, match="not sent in a child process"):
            Email(SENDER, smtp).register(Queue("postgresql://nobody@nowhere/none"), isolation="process")

    def test_what_is_no_function_is_refused(self):
        with pytest.raises(InvalidOption, match="send is 'smtp"):
            Email(SENDER, "smtp://mail.example")


APP = """
import os, threading
from pathlib import Path

from redrive import Queue
from redrive.senders.email import Email
from redrive.senders.smtp import Smtp

queue = Queue()
smtp = Smtp("127.0.0.1", int(os.environ["SMTP_PORT"]), security="none")


def send(message, recipients):
    refused = smtp(message, recipients)
    Path(os.environ["ACCEPTED"]).touch()
    while not Path(os.environ["GO_ON"]).exists():
        threading.Event().wait(0.05)
    return refused


Email("billing@paperplane.example", send).register(queue)
"""


def test_a_worker_that_is_killed_after_the_server_accepted_sends_the_same_mail_again_un_07(
    db, conn, box, start_worker, tmp_path
):
    """The server tells the repeat by its Message-ID: one mail for the reader."""
    accepted, go_on = tmp_path / "accepted", tmp_path / "go on"
    env = {"SMTP_PORT": str(box.port), "ACCEPTED": str(accepted), "GO_ON": str(go_on)}
    job = Queue(db).enqueue("email", asdict(Mail(ADA, "Your invoice"))).id
    first = start_worker(APP, "--lease", "1.5", env=env)
    wait_for(accepted.exists, 20)
    first.kill()
    assert (box.to(ADA), row(conn, job).status) == (1, "running")
    go_on.touch()
    start_worker(APP, "--lease", "1.5", env=env)
    wait_for(lambda: row(conn, job).status == "succeeded", 20)
    (_, one), (_, other) = box.received
    assert (one["Message-ID"], one["Date"]) == (other["Message-ID"], other["Date"])
    assert len({message["Message-ID"] for _, message in box.received}) == 1
    assert row(conn, job).claims == 2
