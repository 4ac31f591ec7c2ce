"""The world outside the application: a mail server and an HTTP endpoint, real ones, on bad days.

Both are overloaded when first asked and recover by themselves; both say no for good to one address until it is put
right. What they accept they write down by the job that sent it, as the evidence for the demo's last line.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import Counter
from email import message_from_bytes
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from aiosmtpd.smtp import SMTP

if TYPE_CHECKING:
    from aiosmtpd.smtp import Envelope, Session

    from redrive.demo.journal import Journal


class BadDay:
    """An outage that begins with the first to ask, so that somebody always meets it."""

    def __init__(self, seconds: float, journal: Journal, source: str, down: str, up: str) -> None:
        self._seconds = seconds
        self._journal = journal
        self._source = source
        self._down, self._up = down, up
        self._until: float | None = None
        self._over = False
        self._lock = threading.Lock()

    def lasts(self) -> bool:
        """Say whether the outage goes on; the first to ask begins it, the first to ask after it tells."""
        with self._lock:
            if self._until is None:
                self._until = time.monotonic() + self._seconds
                self._journal.tell(self._source, self._down, "wait")
            if time.monotonic() < self._until:
                return True
            if not self._over:
                self._over = True
                self._journal.tell(self._source, self._up, "good")
            return False


class MailServer:
    """An SMTP server: 421 while its bad day lasts, 550 for an address that has no mailbox."""

    def __init__(self, journal: Journal, *, unknown: str, outage: float) -> None:
        self.received: Counter[int] = Counter()
        """How often each job's mail was accepted."""
        self._unknown = {unknown}
        self._day = BadDay(outage, journal, "smtp", "overloaded, answers 421", "accepts mail again")
        self._loop = asyncio.new_event_loop()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, name="smtp", daemon=True)

    @property
    def address(self) -> str:
        """Host and port."""
        host, port = self._listening.getsockname()
        return f"{host}:{port}"

    def open_mailbox(self, address: str) -> None:
        """Accept mail for *address* from now on."""
        self._unknown.discard(address)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2)

    def _serve(self) -> None:
        def session() -> SMTP:
            return SMTP(self, hostname="mail.example", ident="ESMTP", loop=self._loop)

        server = self._loop.run_until_complete(self._loop.create_server(session, sock=self._listening))
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    # -- aiosmtpd asks these

    async def handle_MAIL(  # noqa: N802 - aiosmtpd's name
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        """Begin a mail, or be too busy for one."""
        if self._day.lasts():
            return "421 4.3.2 too busy, try again later"
        envelope.mail_from = address
        return "250 2.1.0 OK"

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        """Take a recipient who has a mailbox here."""
        if address in self._unknown:
            return f"550 5.1.1 no mailbox {address}"
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 OK"

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802 - as above
        """Take a mail."""
        content = envelope.content if isinstance(envelope.content, bytes) else b""
        sent_by = message_from_bytes(content)["Message-ID"].strip("<>").partition("@")[0]
        self.received[job_of(sent_by)] += 1
        return "250 2.0.0 queued"


class Endpoint:
    """A customer's HTTP endpoint: 502 while its bad day lasts, 410 for a path that is closed."""

    def __init__(self, journal: Journal, *, closed: str, outage: float) -> None:
        self.received: Counter[int] = Counter()
        """How often each job's call was accepted."""
        self._closed = {closed}
        self._day = BadDay(outage, journal, "http", "the receiver is down, answers 502", "the receiver is back")
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(endpoint.judge(self.path, self.headers.get("Idempotency-Key", "")))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing; the journal does."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="http", daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._server.socket.getsockname()
        return f"http://{host}:{port}"

    def reopen(self, path: str) -> None:
        """Take calls of *path* from now on."""
        self._closed.discard(path)

    def judge(self, path: str, key: str) -> HTTPStatus:
        """Say what becomes of a call."""
        if path in self._closed:
            return HTTPStatus.GONE
        if self._day.lasts():
            return HTTPStatus.BAD_GATEWAY
        self.received[job_of(key)] += 1
        return HTTPStatus.NO_CONTENT

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def job_of(idempotency_key: str) -> int:
    """Read the job's id in its idempotency key: schema, id, time of creation."""
    return int(idempotency_key.split("-")[-2])
