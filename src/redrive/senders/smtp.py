"""A mail server, as a function: it takes a message and the recipients, and gives those that it refused.

Connections are kept for the next mail. TLS is demanded unless it was said that there is none, and a password never goes
without it. Nothing here decides what a refusal means, and nothing is sent a second time.
"""

from __future__ import annotations

import contextlib
import io
import os
import smtplib
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from typing import Literal, get_args
from urllib.parse import unquote, urlsplit

from redrive.errors import InvalidOption
from redrive.senders.mail import READABLE
from redrive.senders.request import AnswerTooLong, Deadline, Limits, Reader

Security = Literal["starttls", "tls", "none"]
PORTS = {"starttls": 587, "tls": 465, "none": 25}
IDLE = 20.0
"""Seconds after which a connection is not used again: servers hang up on who says nothing."""
MOST_MAILS = 100
"""Mails over one connection."""
LONGEST = 600.0

Refused = dict[str, tuple[int, bytes]]
"""By recipient, the code and the words of the server."""


class NotReady(ConnectionError):
    """The server is there and can't be used: no TLS, no way to log in. The next mail would meet the same."""


class Smtp:
    """A mail server.

    Args:
        host: its name, which its certificate must have.
        port: 587, 465 or 25 unless given, by *security*.
        security: ``starttls`` or ``tls``; ``none`` only where nobody can read along, and then without a password.
        user, password: to log in with, where both are given.
        timeout: seconds for each step: to connect, and for every answer.
        tls: gives the SSL context; by default certificates are checked against the system's authorities.

    Raises:
        InvalidOption: naming the value and the remedy.
    """

    def __init__(
        self,
        host: str,
        port: int | None = None,
        *,
        security: Security = "starttls",
        user: str = "",
        password: str = "",
        timeout: float = 10.0,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        if security not in get_args(Security):
            raise InvalidOption(f"security is {security!r:.80}: must be one of {', '.join(get_args(Security))}")
        if bool(user) != bool(password):
            raise InvalidOption("user and password go together: give both or none")
        if password and security == "none":
            raise InvalidOption("a password is not sent where others can read it: use security='starttls' or 'tls'")
        if not (user + password).isascii():
            raise InvalidOption("user and password must be of ASCII alone: Python's smtplib can't send others")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= LONGEST:
            raise InvalidOption(f"timeout is {timeout!r:.80}: must be seconds, more than 0 and at most {LONGEST:.0f}")
        self.host, self.port = host, port or PORTS[security]
        self._security, self._user, self._password, self._timeout = security, user, password, timeout
        self._tls = tls or ssl.create_default_context
        self._idle: deque[_Line] = deque()
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @classmethod
    def of_url(cls, url: str, *, timeout: float = 10.0) -> Smtp:
        """Read ``smtp://user:password@host:587``, ``smtps://...`` or, without TLS, ``smtp+plain://host``.

        Raises:
            InvalidOption: when it is none; the password is not in the message.
        """
        schemes: dict[str, Security] = {"smtp": "starttls", "smtps": "tls", "smtp+plain": "none"}
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise InvalidOption("the URL of the mail server is none: write smtp://user:password@host:587") from None
        if parts.scheme not in schemes or not parts.hostname:
            raise InvalidOption(
                f"the URL of the mail server begins with {parts.scheme!r:.40}: must begin with smtp://, smtps:// or "
                "smtp+plain:// and have a host"
            )
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        security = schemes[parts.scheme]
        return cls(parts.hostname, port, security=security, user=user, password=password, timeout=timeout)

    def __repr__(self) -> str:
        return f"Smtp({self.host!r}, {self.port}, security={self._security!r})"

    def __call__(self, message: EmailMessage, recipients: Sequence[str]) -> Refused:
        """Send *message*; gives the recipients that were refused while others were not.

        Raises:
            smtplib.SMTPException: when it was not sent to anybody, as far as the server has said.
            OSError: when there is no connection, or none any more.
        """
        sender = message["From"].addresses[0].addr_spec
        line = self._take()
        try:
            refused = _sent(line.smtp, message, sender, list(recipients))
        except smtplib.SMTPRecipientsRefused:
            self._give_back(line)
            raise
        except BaseException:
            line.smtp.close()
            raise
        self._give_back(line)
        return refused

    def close(self) -> None:
        """Hang up what waits for the next mail."""
        while (line := self._pop()) is not None:
            with contextlib.suppress(OSError, smtplib.SMTPException):
                line.smtp.quit()

    def _take(self) -> _Line:
        while (line := self._pop()) is not None:
            if time.monotonic() - line.since < IDLE and line.mails < MOST_MAILS and line.answers():
                return line
            line.smtp.close()
        return _Line(self._connected())

    def _pop(self) -> _Line | None:
        with self._lock:
            if self._pid != os.getpid():  # forked: what its parent has open is its parent's
                self._idle, self._pid = deque(), os.getpid()
            return self._idle.pop() if self._idle else None

    def _give_back(self, line: _Line) -> None:
        if line.smtp.sock is None:  # as after 421
            return
        line.since, line.mails = time.monotonic(), line.mails + 1
        with self._lock:
            self._idle.append(line)

    def _connected(self) -> smtplib.SMTP:
        context = None if self._security == "none" else self._tls()
        if self._security == "tls":
            smtp: smtplib.SMTP = _OverTls(self.host, self.port, timeout=self._timeout, context=context)
        else:
            smtp = _Plain(self.host, self.port, timeout=self._timeout)
        try:
            smtp.ehlo_or_helo_if_needed()
            if self._security == "starttls":
                smtp.starttls(context=context)
                smtp.ehlo()
            if self._user:
                smtp.login(self._user, self._password)
        except smtplib.SMTPResponseException:
            smtp.close()
            raise
        except smtplib.SMTPException as error:  # of this server, and not of the mail
            smtp.close()
            raise NotReady(f"{self.host}: {error}") from error
        except BaseException:
            smtp.close()
            raise
        return smtp


def _sent(smtp: smtplib.SMTP, message: EmailMessage, sender: str, recipients: list[str]) -> Refused:
    """Send it; in all letters where an address has others than ASCII, also one that is only shown, as in Reply-To."""
    headers = [message[name] for name in ("From", "To", "Cc", "Reply-To") if message[name] is not None]
    odd = [each.addr_spec for header in headers for each in header.addresses if not each.addr_spec.isascii()]
    if not odd:  # smtplib itself looks at the recipients, of which Bcc may have some more
        return smtp.send_message(message, sender, recipients)
    if not smtp.has_extn("smtputf8"):
        raise smtplib.SMTPNotSupportedError(", ".join(odd))
    content = message.as_bytes(policy=READABLE)
    return smtp.sendmail(sender, recipients, content, ["SMTPUTF8", "BODY=8BITMIME"])


class _Plain(smtplib.SMTP):
    """Each answer is over within the timeout and of bounded size, also one that comes a letter at a time."""

    _reader: Reader

    def getreply(self) -> tuple[int, bytes]:
        """Read one answer."""
        if self.file is not None:
            self._reader.renew(Deadline(self.timeout))
        elif self.sock is not None:  # at first, and again under TLS
            self._reader = Reader(self.sock, Limits(read=self.timeout), Deadline(self.timeout))
            self.file = io.BufferedReader(self._reader)
        try:
            return super().getreply()
        except AnswerTooLong as error:
            self.close()
            raise smtplib.SMTPServerDisconnected(str(error)) from error


class _OverTls(_Plain, smtplib.SMTP_SSL):
    """The same, with TLS from the start."""


class _Line:
    """A connection, and when it was last of use."""

    def __init__(self, smtp: smtplib.SMTP) -> None:
        self.smtp, self.since, self.mails = smtp, time.monotonic(), 0

    def answers(self) -> bool:
        """Ask whether the server is still there."""
        try:
            return self.smtp.noop()[0] == 250  # noqa: PLR2004 - OK
        except (OSError, smtplib.SMTPException):
            return False
