"""A mail server as tests want it: aiosmtpd on a real socket, that refuses whom it is told to, and counts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
import threading
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, Self

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session


class Mailbox:
    """Accepts all mail but what `refuse` says; by address, or MAIL or DATA, an answer such as ``550 5.1.1 no``."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, login: tuple[str, str] | None = None, **how: Any) -> None:
        self.refuse: dict[str, str] = {}
        self.received: list[tuple[list[str], EmailMessage]] = []
        self.raw: list[bytes] = []
        self.connections = 0
        self._how: dict[str, Any] = {"enable_SMTPUTF8": True, **how}
        if tls is not None:
            self._how |= {"tls_context": tls, "require_starttls": True}
        if login is not None:
            self._how |= {"authenticator": self._known, "auth_required": True, "auth_require_tls": tls is not None}
        self._login = login
        self._loop = asyncio.new_event_loop()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._sessions: list[SMTP] = []
        self._ready = threading.Event()

    def to(self, address: str) -> int:
        """How often *address* has got a mail."""
        return sum(address in recipients for recipients, _ in self.received)

    def hang_up(self) -> None:
        """Close all connections."""

        def close() -> None:
            for session in self._sessions:
                if session.transport is not None:
                    session.transport.close()

        self._loop.call_soon_threadsafe(close)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)

        def session() -> SMTP:
            self.connections += 1
            self._sessions.append(SMTP(self, hostname="mail.example", loop=self._loop, **self._how))
            return self._sessions[-1]

        server = self._loop.run_until_complete(self._loop.create_server(session, sock=self._listening))
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for one in self._sessions:
            if one.transport is not None:
                one.transport.abort()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def _known(self, _server: SMTP, _session: Session, _envelope: Envelope, _mechanism: str, data: Any) -> AuthResult:
        given = (data.login.decode(), data.password.decode()) if isinstance(data, LoginPassword) else None
        return AuthResult(success=given == self._login, handled=False)

    # -- aiosmtpd asks these

    async def handle_MAIL(self, _server: Any, _session: Any, envelope: Envelope, address: str, options: Any) -> str:  # noqa: N802 - aiosmtpd's name
        if "MAIL" in self.refuse:
            return self.refuse["MAIL"]
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 OK"

    async def handle_RCPT(self, _server: Any, _session: Any, envelope: Envelope, address: str, _options: Any) -> str:  # noqa: N802 - aiosmtpd's name
        if address in self.refuse:
            return self.refuse[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Envelope) -> str:  # noqa: N802 - aiosmtpd's name
        if "DATA" in self.refuse:
            return self.refuse["DATA"]
        self.raw.append(bytes(envelope.content))
        message = message_from_bytes(envelope.content, policy=policy.default)
        self.received.append((list(envelope.rcpt_tos), message))
        return "250 2.0.0 queued"


class Broken:
    """A server that goes wrong at one step, as no good one would: it is told the step and what it does there.

    Steps are the verbs, and GREETING, TEXT (within the mail) and END (after its last line). What it does: ``hang up``,
    ``a letter at a time``, ``for ever``, or an answer.
    """

    def __init__(self, step: str, does: str) -> None:
        self.mails = 0
        """That came whole."""
        self._step, self._does = step, does
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._closing = threading.Event()
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._listening.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listening.accept()
            self._connections.append(connection)
            with connection, connection.makefile("rb") as lines:
                self._say(connection, "GREETING", "220 mail.example")
                while line := lines.readline():
                    verb = line.split()[0].split(b":")[0].decode().upper()
                    self._say(connection, verb, "354 go on" if verb == "DATA" else "250 OK")
                    if verb == "DATA" and self._step != "DATA":
                        self._read(connection, lines)

    def _read(self, connection: socket.socket, lines: Any) -> None:
        while (line := lines.readline()) != b".\r\n":
            if not line or self._step == "TEXT":
                raise OSError
        self.mails += 1
        self._say(connection, "END", "250 queued")

    def _say(self, connection: socket.socket, step: str, words: str) -> None:
        if step != self._step:
            connection.sendall(f"{words}\r\n".encode())
        elif self._does == "hang up":
            raise OSError
        elif self._does in ("a letter at a time", "for ever"):
            piece = b"2" if self._does == "a letter at a time" else b"250-and\r\n" * 500
            for _ in itertools.takewhile(lambda _: not self._closing.wait(0.02), itertools.count()):
                connection.sendall(piece)
        else:
            connection.sendall(f"{self._does}\r\n".encode())
