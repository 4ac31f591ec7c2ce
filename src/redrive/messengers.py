"""How news get to people: Slack, any webhook, e-mail. Each is one function that sends or raises, in a few seconds.

What is sent is plain data made of a message; nothing here decides what is worth sending. Addresses that are secrets by
themselves, as Slack's are, never stand in an error.
"""

from __future__ import annotations

import json
import smtplib
import socket
import ssl
import urllib.error
import urllib.request
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from redrive.errors import InvalidOption
from redrive.words import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from redrive.settings import Settings

    Send = Callable[[dict[str, Any]], None]

TIMEOUT = 10.0
SIGNS = {"new": "🔴", "worse": "🔴", "over": "🟢"}
LONGEST = 30
"""Lines of a message; of more it is said how many there are."""


class NotSent(Exception):
    """A message could not be sent; the text says why, without secrets."""


def messengers(settings: Settings) -> dict[str, Send]:
    """Give the channels that are set up, by name.

    Raises:
        InvalidOption: for an address that can't be one.
    """
    found: dict[str, Send] = {}
    if settings.alert_slack:
        _demand_http(settings.alert_slack, "alert_slack")
        found["slack"] = lambda message: _post(settings.alert_slack, {"text": slack_text(message)})
    if settings.alert_webhook:
        _demand_http(settings.alert_webhook, "alert_webhook")
        found["webhook"] = lambda message: _post(settings.alert_webhook, message)
    if settings.alert_email:
        if urlsplit(settings.alert_smtp).scheme not in ("smtp", "smtps"):
            raise InvalidOption(
                "alert_email needs alert_smtp, as smtp://user:password@host:587 or smtps://user:password@host"
            )
        found["email"] = lambda message: _mail(settings, message)
    return found


def plain_text(message: dict[str, Any]) -> str:
    """Write a message as text."""
    lines = [message["title"], ""]
    lines += [f"{SIGNS.get(line['what'], '•')} {line['text']}" + _at(line) for line in message["lines"][:LONGEST]]
    if (left := len(message["lines"]) - LONGEST) > 0:
        lines.append(f"… and {left} more")
    if message.get("desk"):
        lines += ["", message["desk"]]
    return "\n".join(lines) + "\n"


def slack_text(message: dict[str, Any]) -> str:
    """Write a message as Slack marks it up; what a stranger wrote marks nothing up."""

    def escaped(text: str) -> str:
        for mark, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
            text = text.replace(mark, name)
        return text

    lines = [f"*{escaped(message['title'])}*"]
    for line in message["lines"][:LONGEST]:
        link = f" <{line['link']}|look>" if line.get("link") else ""
        lines.append(f"{SIGNS.get(line['what'], '•')} {escaped(line['text'])}{link}")
    if (left := len(message["lines"]) - LONGEST) > 0:
        lines.append(f"… and {left} more")
    if message.get("desk"):
        lines.append(f"<{message['desk']}|the desk>")
    return "\n".join(lines)


def _at(line: dict[str, Any]) -> str:
    return f"\n  {line['link']}" if line.get("link") else ""


def _demand_http(url: str, name: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidOption(f"{name} is no URL that begins with https:// or http://")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A message is for whoever was named, and goes nowhere else."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        """Follow none."""


def _post(url: str, document: dict[str, Any]) -> None:
    request = urllib.request.Request(  # noqa: S310 - http and https alone: see _demand_http
        url,
        data=json.dumps(document, ensure_ascii=False).encode(),
        headers={"Content-Type": "application/json; charset=utf-8", "User-Agent": "redrive"},
        method="POST",
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT) as answer:
            answer.read(1000)
    except urllib.error.HTTPError as error:
        raise NotSent(f"{urlsplit(url).hostname} answered {error.code} {one_line(str(error.reason), 100)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise NotSent(f"{urlsplit(url).hostname} can't be reached: {one_line(str(reason), 200)}") from None


def _mail(settings: Settings, message: dict[str, Any]) -> None:
    server = urlsplit(settings.alert_smtp)
    sender = settings.alert_from or f"redrive@{socket.getfqdn()}"
    mail = EmailMessage()
    mail["Subject"] = one_line(message["title"], 150)
    mail["From"], mail["To"] = sender, ", ".join(settings.alert_email)
    mail["Date"], mail["Message-ID"] = formatdate(), make_msgid(domain=sender.rpartition("@")[2] or None)
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(plain_text(message))
    host = server.hostname or "localhost"
    try:
        if server.scheme == "smtps":
            with smtplib.SMTP_SSL(host, server.port or 465, timeout=TIMEOUT) as smtp:
                _deliver(smtp, server, mail)
        else:
            with smtplib.SMTP(host, server.port or 25, timeout=TIMEOUT) as smtp:
                smtp.ehlo()
                if smtp.has_extn("starttls"):
                    smtp.starttls(context=ssl.create_default_context())
                    smtp.ehlo()
                elif server.password:
                    raise NotSent(f"{host} offers no TLS, and the password is not sent without")
                _deliver(smtp, server, mail)
    except smtplib.SMTPException as error:
        raise NotSent(f"{host} refused: {one_line(str(error), 200)}") from None
    except OSError as error:
        raise NotSent(f"{host} can't be reached: {one_line(str(error), 200)}") from None


def _deliver(smtp: smtplib.SMTP, server: Any, mail: EmailMessage) -> None:
    if server.username:
        smtp.login(unquote(server.username), unquote(server.password or ""))
    refused = smtp.send_message(mail)
    if refused:
        raise NotSent(f"refused for {', '.join(refused)}")
