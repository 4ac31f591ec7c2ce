"""News get to people: over real HTTP and real SMTP, once from all workers together, and again until they are taken."""

from __future__ import annotations

import asyncio
import email
import json
import threading
from collections.abc import Iterator
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from aiosmtpd.controller import Controller

from engine import Inside, insert
from redrive import InvalidOption, Queue, alerter
from redrive.alerter import Alerter
from redrive.messengers import NotSent, messengers, plain_text, slack_text
from redrive.migrate import migrate
from redrive.settings import load
from redrive.statements import named, run
from shell import answer, beat, complaint, redrive
from support import database, wait_for
from test_metrics import free_port


class Endpoint:
    """A web server that takes what is posted, and answers as it is told."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.status = 200
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if endpoint.status == 200:
                    endpoint.taken.append(body)
                self.send_response(endpoint.status)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.end_headers()

            def log_message(self, *_args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/secret-path"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.server.shutdown()
    endpoint.server.server_close()


class Postbox:
    """A mail server."""

    def __init__(self) -> None:
        self.mails: list[Any] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        self.mails.append(email.message_from_bytes(envelope.content, policy=default))
        return "250 OK"


@pytest.fixture
def postbox() -> Iterator[tuple[Postbox, str]]:
    box = Postbox()
    controller = Controller(box, hostname="127.0.0.1", port=free_port())
    controller.start()
    yield box, f"smtp://127.0.0.1:{controller.port}"
    controller.stop()


def soon(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.05) -> None:
    monkeypatch.setattr("redrive.alerter.EVERY", seconds)


MESSAGE = {
    "title": "redrive: 2 new",
    "desk": "https://desk.example.com/",
    "lines": [
        {"what": "new", "text": "3 dead jobs of kind <b>&x", "link": "https://desk.example.com/jobs?q=1"},
        {"what": "over", "text": "recovered", "link": ""},
    ],
}


def test_a_death_is_told_to_all_channels_by_one_of_several_workers_and_its_end_too(
    db, conn, endpoint, postbox, monkeypatch
):
    soon(monkeypatch, 1.0)
    box, smtp = postbox
    setup: dict[str, Any] = {
        "alert_slack": endpoint.url,
        "alert_webhook": endpoint.url,
        "alert_email": "ops@example.com,dev@example.com",
        "alert_smtp": smtp,
        "alert_from": "redrive@example.com",
        "alert_desk": "https://desk.example.com/redrive/",
    }
    queues = [Queue(db, **setup) for _ in range(3)]
    for queue in queues:

        @queue.handler("mail", max_attempts=1)
        def mail(_payload):
            raise ValueError("password=hunter2")

    with Inside(*queues):
        wait_for(lambda: conn.execute("select looked_at is not null from redrive.alert_state").fetchone() == (True,))
        queues[0].enqueue("mail")
        wait_for(lambda: len(endpoint.taken) == 2 and box.mails, 20)
        conn.execute("delete from redrive.jobs")
        wait_for(lambda: len(endpoint.taken) == 4 and len(box.mails) == 2, 20)
    slack, hook = sorted(endpoint.taken[:2], key=len)
    assert "1 dead job of kind mail" in slack["text"]
    assert "<https://desk.example.com/redrive/dead?kind=mail|look>" in slack["text"]
    [line] = hook["lines"]
    assert (hook["sort"], line["what"], line["rule"], line["subject"], line["value"]) == (
        "alert",
        "new",
        "died",
        "mail",
        1,
    )
    first, second = box.mails
    assert first["Subject"].startswith("redrive: 1 dead job of kind mail")
    assert first["To"] == "ops@example.com, dev@example.com"
    assert "recovered" in second.get_content()
    assert "hunter2" not in json.dumps(endpoint.taken) + first.as_string()
    assert conn.execute("select count(*), count(sent_at) from redrive.alert_messages").fetchone() == (6, 6)
    assert conn.execute("select count(*) from redrive.alerts").fetchone() == (0,)
    for queue in queues:
        queue.close()


def test_a_channel_that_fails_is_tried_again_complained_of_and_holds_up_no_other(
    db, conn, endpoint, postbox, monkeypatch
):
    soon(monkeypatch)
    box, smtp = postbox
    endpoint.status = 500
    queue = Queue(db, alert_slack=endpoint.url, alert_email="ops@example.com", alert_smtp=smtp)
    queue.handler("mail")(lambda _payload: None)
    insert(conn, "old", status="dead")
    with Inside(queue) as inside:
        wait_for(lambda: box.mails and "alerts by slack are not sent" in inside.worker.complaints(), 20)
        assert inside.worker.ailment() == "", "to start it anew would not mend Slack"
        complained = inside.worker.complaints()
        assert "127.0.0.1 answered 500" in complained
        assert "secret-path" not in complained
        shown = answer(db, "alerts")
        assert shown["channels"]["slack"]["waiting"] == 1
        assert "answered 500" in shown["channels"]["slack"]["error"]
        assert shown["channels"]["email"]["error"] is None
        endpoint.status = 200
        conn.execute("update redrive.alert_messages set due_at = now()")
        wait_for(lambda: endpoint.taken, 20)
        wait_for(lambda: not inside.worker.complaints())
    queue.close()


def test_without_a_channel_nothing_is_asked(db, conn):
    queue = Queue(db)
    queue.handler("mail")(lambda _payload: None)
    insert(conn, "old", status="dead")
    with Inside(queue) as inside:
        wait_for(lambda: inside.worker.alerter.due_by > 60)
    assert conn.execute("select looked_at from redrive.alert_state").fetchone() == (None,)
    queue.close()


def test_the_digest_of_the_day_is_sent(db, conn, endpoint):
    insert(conn, "mail", status="dead")
    conn.execute(
        "insert into redrive.stats (minute, kind, worker, succeeded, died, ran) "
        "values (date_trunc('minute', now()), 'mail', 'a', 40, 2, 42)"
    )
    conn.execute("update redrive.alert_state set digest_at = now() - interval '1 day'")
    [(now,)] = conn.execute("select to_char(now() at time zone 'UTC' - interval '1 minute', 'HH24:MI')").fetchall()
    env = {"REDRIVE_ALERT_WEBHOOK": endpoint.url, "REDRIVE_ALERT_DIGEST": now, "REDRIVE_ALERT_RULES": "-died"}
    redrive(db, "alerts", "check", env=env)
    [digest] = endpoint.taken
    assert digest["title"] == "redrive: the last day: 42 jobs ended, 2 of them died"
    texts = [line["text"] for line in digest["lines"]]
    assert "mail: 40 succeeded, 2 failed tries, 2 died" in texts
    assert "1 dead job of kind mail waits for somebody" in texts
    conn.execute("update redrive.alert_state set looked_at = null")
    redrive(db, "alerts", "check", env=env)
    assert len(endpoint.taken) == 1


class TestALookThatTakesLong:
    """What two have found is told once, by whoever looks at the end."""

    @pytest.fixture
    def look(self, db, conn, monkeypatch):
        """Look, on a clock that is moved by so many seconds before each statement of it; others may look then."""
        insert(conn, "mail", status="dead")
        settings = load({"database_url": db, "alert_webhook": "http://127.0.0.1:1/"})
        clock = [0.0]
        monkeypatch.setattr("redrive.alerter.time", SimpleNamespace(monotonic=lambda: clock[0]))

        async def look(each: float = 0.0, others: Any = None) -> Any:
            async def ask(statement: Any) -> list[Any]:
                clock[0] += each
                conn.execute(f"set redrive.clock_offset = '{clock[0]} s'")
                if others is not None:
                    await others()
                return run(conn, statement)

            return await alerter.look(ask, settings, messengers(settings), every=27.0)

        return look

    def test_who_was_overtaken_tells_nothing(self, conn, look):
        others: list[Any] = []

        async def overtake() -> None:
            if len(others) == 1:  # between its first statement and its second
                conn.execute("update redrive.alert_state set looked_at = looked_at - interval '28 s'")
                others[0] = await look()
            others.append(None)

        assert asyncio.run(look(others=overtake)) is None
        assert others[0].changes
        assert conn.execute("select count(*) from redrive.alert_messages").fetchone() == (1,)
        assert conn.execute("select count(*) from redrive.alerts").fetchone() == (1,)

    def test_while_it_goes_on_nobody_else_begins_one(self, conn, look):
        begun: list[Any] = []

        async def try_to() -> None:
            if begun:
                begun.append(await look())
            begun.append(None)

        assert asyncio.run(look(each=10.0, others=try_to)).changes
        assert len(begun) > 20
        assert set(begun) == {None}
        assert conn.execute("select count(*) from redrive.alert_messages").fetchone() == (1,)


def test_what_a_database_has_no_letters_for_keeps_no_alert_back(server_url):
    """In LATIN1: neither a text that was cut, nor what somebody says who refuses it."""
    taken: list[Any] = []

    def refuse(message: dict[str, Any]) -> None:
        taken.append(message)
        raise NotSent("日本")

    with database(server_url, "template0 encoding 'LATIN1' lc_collate 'C' lc_ctype 'C'") as dsn:
        migrate(dsn)
        settings = load({"database_url": dsn})

        async def scenario() -> list[str]:
            with psycopg.connect(dsn, autocommit=True, client_encoding="utf8") as conn:
                insert(conn, "mäil" * 200, status="dead")

                async def ask(statement: Any) -> list[Any]:
                    return run(conn, statement)

                news = await alerter.look(ask, settings, {"pager": refuse}, every=27.0)
                assert news is not None
                return await alerter.deliver(ask, "redrive", {"pager": refuse})

        assert asyncio.run(scenario()) == ["alerts by pager are not sent: 日本"]
    [message] = taken
    assert len(message["title"]) == 150
    assert [(line["rule"], len(line["text"])) for line in message["lines"]] == [("died", 500)]


def test_a_message_is_sent_by_one_however_long_it_takes_and_tried_again_soon_where_it_was_not(conn):
    conn.execute(
        "insert into redrive.alert_messages (channel, sort, message, created_at, due_at)"
        " values ('slack', 'alert', '{}', now(), now())"
    )

    def claim(later: int) -> list[Any]:
        conn.execute(f"set redrive.clock_offset = '{later} s'")
        return run(conn, named("claim_alert_message", "redrive", channels=["slack"]))

    [row] = claim(0)
    assert claim(240) == []
    run(conn, named("settle_alert_message", "redrive", id=row.id, error="it answered 500"))
    assert claim(265) == []
    assert [row.tries for row in claim(275)] == [2]


class TestCommand:
    def test_a_rehearsal_shows_the_message_and_changes_nothing(self, db, conn, endpoint):
        assert "no news" in redrive(db, "alerts", "--dry-run").stderr
        insert(conn, "mail\x1b[2J", status="dead")
        shown = redrive(db, "alerts", "--dry-run", env={"REDRIVE_ALERT_WEBHOOK": endpoint.url}).stdout
        assert "1 dead job of kind mail" in shown
        assert "\x1b" not in shown
        assert answer(db, "alerts", "--dry-run")["message"]["lines"][0]["rule"] == "died"
        assert endpoint.taken == []
        assert conn.execute("select count(*) from redrive.alerts").fetchone() == (0,)

    def test_a_test_goes_over_each_channel_and_says_which_fails(self, db, endpoint, postbox):
        _, smtp = postbox
        env = {"REDRIVE_ALERT_SLACK": endpoint.url, "REDRIVE_ALERT_EMAIL": "a@b.c", "REDRIVE_ALERT_SMTP": smtp}
        assert redrive(db, "alerts", "test", env=env).stdout.split() == ["slack:", "sent", "email:", "sent"]
        assert endpoint.taken[0]["text"].startswith("*redrive: a test*")
        endpoint.status = 302
        assert "slack: 127.0.0.1 answered 302" in redrive(db, "alerts", "test", env=env, code=1).stdout
        assert "no channel is set up" in complaint(redrive(db, "alerts", "test", code=1))

    def test_a_look_from_cron_sends_at_once_and_the_list_says_what_is_the_matter(self, db, conn, endpoint):
        insert(conn, "mail", status="dead")
        conn.execute(
            "insert into redrive.alert_messages (channel, sort, message, created_at, due_at) "
            "select 'webhook', 'alert', '{\"old\": true}', at, at from (select now() - interval '25 hours' as at) t"
        )
        env = {"REDRIVE_ALERT_WEBHOOK": endpoint.url}
        assert redrive(db, "alerts", "check", env=env).stdout.strip() == "1 news"
        assert len(endpoint.taken) == 1
        assert redrive(db, "alerts", "check", env=env).stdout.strip() == "somebody has just looked"
        shown = redrive(db, "alerts", env={**env, "REDRIVE_ALERT_RULES": "-worker,oldest_due=10m"}).stdout
        assert "died: 1 dead job of kind mail" in shown
        assert "webhook: last sent now" in shown
        rules = {line.split()[0]: line.split()[1:3] for line in shown.splitlines() if line}
        assert rules["worker"][0] == "off"
        assert rules["oldest_due"] == ["10", "min"]

    def test_a_relay_that_is_missed_is_told_and_that_nobody_takes_a_kind_from_the_broker(self, db, conn, endpoint):
        redrive(db, "route", "mail", "amqp")
        beat(conn)
        insert(conn, "mail", run_at="2020-01-01")
        env = {"REDRIVE_ALERT_WEBHOOK": endpoint.url}
        for told in (["relay"], ["relay", "taker"]):
            assert redrive(db, "alerts", "check", env=env).stdout.strip() == "1 news"
            [line] = endpoint.taken[-1]["lines"]
            assert (line["what"], line["rule"], line["subject"]) == ("new", told[-1], "mail")
            assert sorted(row["rule"] for row in answer(db, "alerts")["alerts"]) == told
            conn.execute("update redrive.alerts set began_at = now() - interval '61 s' where rule = 'taker'")
            conn.execute("update redrive.alert_state set looked_at = now() - interval '61 s'")


class TestMessengers:
    def test_text_of_strangers_marks_nothing_up(self):
        text = slack_text(MESSAGE)
        assert "3 dead jobs of kind &lt;b&gt;&amp;x <https://desk.example.com/jobs?q=1|look>" in text
        assert "https://desk.example.com/jobs?q=1" in plain_text(MESSAGE)
        many = {**MESSAGE, "lines": MESSAGE["lines"] * 40}
        assert "and 50 more" in slack_text(many)
        assert "and 50 more" in plain_text(many)

    @pytest.mark.parametrize(
        ("wrong", "why"),
        [
            ({"alert_slack": "file:///etc/passwd"}, "alert_slack is no URL"),
            ({"alert_webhook": "example.com"}, "alert_webhook is no URL"),
            ({"alert_email": "a@b.c"}, "alert_email needs alert_smtp"),
            ({"alert_email": "a@b.c", "alert_smtp": "mail.example.com"}, "alert_email needs alert_smtp"),
        ],
    )
    def test_an_address_that_can_be_none_is_refused_before_anything_runs(self, db, wrong, why):
        with pytest.raises(InvalidOption, match=why):
            messengers(load(wrong, {}))
        queue = Queue(db, **wrong)
        queue.handler("mail")(lambda _payload: None)
        with pytest.raises(InvalidOption, match=why):
            queue.run(once=True)
        queue.close()

    def test_a_password_is_not_sent_without_tls(self, postbox):
        _, smtp = postbox
        settings = load({"alert_email": "a@b.c", "alert_smtp": smtp.replace("//", "//me:hunter2@")}, {})
        with pytest.raises(NotSent, match="offers no TLS") as caught:
            messengers(settings)["email"](MESSAGE)
        assert "hunter2" not in str(caught.value) + repr(settings)

    def test_who_is_not_there_is_named_without_the_secret(self):
        settings = load(
            {
                "alert_slack": "http://127.0.0.1:1/secret",
                "alert_email": "a@b.c",
                "alert_smtp": "smtps://me:hunter2@127.0.0.1:1",
            },
            {},
        )
        for send in messengers(settings).values():
            with pytest.raises(NotSent, match=r"127\.0\.0\.1 can't be reached") as caught:
                send(MESSAGE)
            assert "secret" not in str(caught.value)


def test_a_look_by_two_at_once_is_one_look(db, conn, endpoint):
    import asyncio  # noqa: PLC0415 - here alone

    from redrive.connections import Control  # noqa: PLC0415 - as above
    from redrive.service import Database  # noqa: PLC0415 - as above

    insert(conn, "mail", status="dead")
    settings = load({"database_url": db, "alert_webhook": endpoint.url}, {})

    async def both() -> None:
        controls = [Control(db, "redrive", name) for name in "ab"]
        await asyncio.gather(*(Alerter(Database(control.schema), control, settings).tick() for control in controls))
        for control in controls:
            control.drop()

    asyncio.run(both())
    assert conn.execute("select count(*) from redrive.alert_messages").fetchone() == (1,)
    assert len(endpoint.taken) == 1
