"""Mail, by the standard library's smtplib."""

from __future__ import annotations

import os
import smtplib
from dataclasses import dataclass
from email.message import EmailMessage

SENDER = "billing@paperplane.example"
FOR_GOOD = 500


class Refused(Exception):
    """The server says no for good (5xx): another try can't help."""


class Busy(Exception):
    """The server says not now (4xx)."""


@dataclass
class Message:
    """A mail to be sent."""

    to: str
    subject: str
    text: str = ""


def send(message: Message, *, message_id: str) -> str:
    """Send *message* and give the server's answer.

    The Message-ID is the same at every try: a server or a reader that gets the mail twice can tell.
    """
    email = EmailMessage()
    email["From"], email["To"], email["Subject"] = SENDER, message.to, message.subject
    email["Message-ID"] = f"<{message_id}@paperplane.example>"
    email.set_content(message.text or message.subject)
    host, _, port = os.environ.get("SAAS_SMTP", "localhost:25").partition(":")
    try:
        with smtplib.SMTP(host, int(port), timeout=10) as server:
            server.send_message(email)
    except smtplib.SMTPRecipientsRefused as error:
        [answer] = error.recipients.values()
        raise _judged(*answer) from error
    except smtplib.SMTPResponseException as error:
        raise _judged(error.smtp_code, error.smtp_error) from error
    return "250 accepted"


def _judged(code: int, text: bytes | str) -> Exception:
    words = text.decode(errors="replace") if isinstance(text, bytes) else text
    return (Refused if code >= FOR_GOOD else Busy)(f"{code} {words}")
