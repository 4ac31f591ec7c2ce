"""Every file in examples/ is run here: an example that doesn't work teaches the wrong thing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

from postbox import Mailbox
from receiver import Receiver
from redrive.demo.journal import Journal
from redrive.demo.outside import Endpoint, MailServer
from redrive.senders.signature import new_secret, verify

EXAMPLES = Path(__file__).parent.parent / "examples"
RUN_HERE = {
    "quickstart.py",
    "senders.py",
    "fastapi/app.py",  # by test_inside.py, as those of Flask
    "flask/app.py",
    "flask/gunicorn.conf.py",
    *(f"saas/{name}.py" for name in ("__init__", "invoices", "jobs", "mail", "shop", "webhooks")),
}

RUN_ELSEWHERE = ("django_shop/",)
"""By test_django.py."""


def run(*command: str, dsn: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=EXAMPLES,
        env={**os.environ, "DATABASE_URL": dsn, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_every_example_is_run_by_a_test() -> None:
    found = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py")}
    assert {path for path in found if not path.startswith(RUN_ELSEWHERE)} == RUN_HERE


def test_the_quickstart_greets(db: str) -> None:
    done = run("quickstart.py", dsn=db)
    assert (done.stdout, done.returncode) == ("hello world\n", 0), done.stderr


def test_the_senders_send_a_mail_with_its_invoice_and_a_signed_webhook(db: str, tmp_path: Path) -> None:
    (tmp_path / "invoice-7.txt").write_text("one paper plane")
    secret = new_secret()
    with Mailbox() as box, Receiver() as receiver:
        env = {"SMTP_URL": f"smtp+plain://127.0.0.1:{box.port}", "INVOICES": str(tmp_path)}
        env |= {"WEBHOOK_URL": receiver.url, "WEBHOOK_SECRET": secret, "WEBHOOK_ALLOW": "127.0.0.0/8"}
        done = run("senders.py", "ada@x.example", dsn=db, **env)
    assert done.returncode == 0, done.stderr
    [(recipients, mail)] = box.received
    [request] = receiver.requests
    assert (recipients, mail["Subject"]) == (["ada@x.example"], "Your order 7")
    assert [part.get_content().strip() for part in mail.iter_attachments()] == ["one paper plane"]
    verify(request.body, dict(request.headers), secret)
    assert request.json["data"] == {"order": 7}


@pytest.fixture
def shop(db: str, conn: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The web side, in this process, as in the application's."""
    monkeypatch.setenv("DATABASE_URL", db)
    monkeypatch.syspath_prepend(EXAMPLES)
    from saas import shop  # noqa: PLC0415 - found since the line before

    shop.install(conn)
    return shop


@pytest.fixture
def outside() -> Iterator[tuple[MailServer, Endpoint]]:
    journal = Journal()
    with (
        MailServer(journal, unknown="typo@x.example", outage=0) as smtp,
        Endpoint(journal, closed="/gone", outage=0) as endpoint,
    ):
        yield smtp, endpoint


def order(shop: ModuleType, endpoint: Endpoint, path: str = "/hooks", **values: Any) -> Any:
    return shop.Order(
        **{
            "number": 7,
            "customer": "Ada",
            "email": "ada@x.example",
            "webhook": endpoint.url + path,
            "lines": 50,
            **values,
        }
    )


def drain(db: str, outside: tuple[MailServer, Endpoint], exports: Path, **env: str) -> None:
    smtp, _ = outside
    worker = ("-m", "redrive", "worker", "saas.jobs:queue", "--once")
    done = run(*worker, dsn=db, SAAS_SMTP=smtp.address, SAAS_EXPORTS=str(exports), **env)
    assert done.returncode == 0, done.stderr


def states(conn: psycopg.Connection[Any]) -> dict[str, str]:
    return dict(conn.execute("SELECT kind, status FROM redrive.jobs").fetchall())


def test_an_order_sends_a_mail_calls_a_webhook_and_writes_a_pdf(db, conn, shop, outside, tmp_path: Path) -> None:
    smtp, endpoint = outside
    placed = shop.place(conn, order(shop, endpoint))
    drain(db, outside, tmp_path)
    assert states(conn) == dict.fromkeys(("send_email", "call_webhook", "export_invoice"), "succeeded")
    mail, call, _ = (each.id for each in placed)
    assert smtp.received == {mail: 1}
    assert endpoint.received == {call: 1}
    [pdf] = tmp_path.iterdir()
    assert pdf.name == "invoice-7.pdf"
    assert pdf.read_bytes().startswith(b"%PDF-")


def test_an_order_that_is_rolled_back_leaves_no_job(conn, shop, outside) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        shop.place(conn, order(shop, outside[1], lines=0))
    with conn.transaction(force_rollback=True):
        shop.place(conn, order(shop, outside[1]))
    assert states(conn) == {}


def test_a_refused_address_and_a_closed_webhook_are_dead_at_once(db, conn, shop, outside, tmp_path: Path) -> None:
    """Each with the reason that a human needs; a requeue after the fix delivers them."""
    smtp, endpoint = outside
    shop.place(conn, order(shop, endpoint, "/gone", email="typo@x.example"))
    drain(db, outside, tmp_path)
    assert states(conn) == {"send_email": "dead", "call_webhook": "dead", "export_invoice": "succeeded"}
    errors = dict(conn.execute("SELECT kind, last_error FROM redrive.jobs").fetchall())
    assert "Refused: 550 5.1.1 no mailbox typo@x.example" in errors["send_email"]
    assert "410 Gone" in errors["call_webhook"]
    smtp.open_mailbox("typo@x.example")
    endpoint.reopen("/gone")
    assert run("-m", "redrive", "requeue", "--kind", "send_email", "--yes", dsn=db).returncode == 0
    assert run("-m", "redrive", "requeue", "--error", "410", "--yes", dsn=db).returncode == 0
    drain(db, outside, tmp_path)
    assert set(states(conn).values()) == {"succeeded"}


def test_a_reminder_waits_for_its_time_and_a_report_is_one_job_however_often_asked_for(conn, shop) -> None:
    reminder = shop.remind(conn, "eve@x.example", after=timedelta(hours=1))
    first, second = (shop.report(conn, "team@x.example") for _ in range(2))
    assert (first.created, second.created, first.id) == (True, False, second.id)
    ahead = "SELECT run_at > now() + interval '59 minutes' FROM redrive.jobs WHERE id = %s"
    assert conn.execute(ahead, [reminder.id]).fetchone() == (True,)
