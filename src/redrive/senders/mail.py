"""A message as mail programs read it, made of a job's payload; what could be read as more than it is, is refused.

Every text of a header is checked for control characters before the standard library sees it, every address is one
address, and domains are written in ASCII, so that only an address with other letters before the @ needs SMTPUTF8.
The library decodes what is encoded already (RFC 2047), line ends too, and writes it as it then is: so each header is
looked at once more as it will be sent.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Mapping, Sequence
from email import policy
from email.headerregistry import Address, HeaderRegistry, UnstructuredHeader
from email.message import EmailMessage
from pathlib import PurePosixPath
from typing import Any

from redrive.classify import Finding
from redrive.senders.addresses import TWO_NAMES

MOST_SIZE = 20 * 1024 * 1024
MOST_RECIPIENTS = 100
"""RFC 5321, 4.5.3.1.8: so many every server takes."""

MOST_LINE = 998
"""RFC 5322, 2.1.1: so long a line may be."""

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NAMED = re.compile(r"(?P<name>[^<>]*)<(?P<address>[^<>]+)>")
_LOCAL = re.compile(r"[^\s@<>,;:\"()\[\]\\]{1,64}")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,70}")
_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]{1,60}/[a-z0-9!#$&^_.+-]{1,100}")
_ENCODED = re.compile(r"=\?[^?]*\?[^?]*\?[^?]*\?=")
_ONE_HEADER = re.compile("[^\r\n\0]*(\r\n[ \t][^\r\n\0]*)*\r\n")
_ANY_FILE, _NO_FILE = "application/octet-stream", ("multipart/", "message/")
_OURS = {
    *("from", "to", "cc", "bcc", "reply-to", "subject", "date", "message-id", "sender", "return-path", "received"),
    "mime-version",
}


class BadMail(ValueError):
    """This can't be sent as it is: an address, a header or an attachment that makes no sense."""

    finding = Finding("permanent")


class _AsGiven(UnstructuredHeader):
    """A header of the application's: in ASCII one line, since a URL in it that were encoded would be none."""

    def fold(self, *, policy: Any) -> str:
        """Fold where a line may not be longer."""
        long = policy.clone(max_line_length=MOST_LINE) if str(self).isascii() else policy
        return str(super().fold(policy=long))  # type: ignore[misc] # of the other base that the registry gives it


_POLICY = policy.SMTP.clone(header_factory=HeaderRegistry(default_class=_AsGiven))
READABLE = _POLICY.clone(utf8=True)
"""For a server that takes all letters (SMTPUTF8)."""


def address(text: str, what: str) -> Address:
    """Read one address, as ``ada@example.com`` or ``Ada <ada@example.com>``; its domain comes back in ASCII.

    Raises:
        BadMail: naming *what* it is and the text.
    """
    plain = _plain(text, what).strip()
    if _ENCODED.search(plain):
        raise BadMail(f"{what} is {text!r:.80}: write the name as it is read, it is encoded when it is sent")
    match = _NAMED.fullmatch(plain)
    name, spec = (match["name"].strip().strip('"').strip(), match["address"].strip()) if match else ("", plain)
    local, at, domain = spec.rpartition("@")
    if not at or not _LOCAL.fullmatch(local) or local.startswith(".") or local.endswith(".") or ".." in local:
        raise BadMail(f"{what} is {text!r:.80}: must be one address, as ada@example.com or Ada <ada@example.com>")
    if odd := TWO_NAMES.search(domain):
        raise BadMail(
            f"{what} is {text!r:.80}: {odd[0]!r} leads to one domain by IDNA 2003, to another by 2008: use xn--"
        )
    try:
        host = domain.encode("idna").decode().lower()
    except UnicodeError:
        host = ""
    if not all(map(_LABEL.fullmatch, host.split("."))):
        raise BadMail(f"{what} is {text!r:.80}: {domain!r:.60} is no domain")
    return Address(name, local, host)


def domain_of(sender: str) -> str:
    """Give the domain of an address, in ASCII."""
    return address(sender, "sender").domain


def composed(
    *,
    sender: str,
    to: Sequence[str],
    cc: Sequence[str],
    bcc: Sequence[str],
    reply_to: str,
    subject: str,
    text: str,
    html: str,
    headers: Mapping[str, str],
    message_id: str,
    date: str,
    attachments: Sequence[tuple[str, str, bytes]],
) -> tuple[EmailMessage, list[str]]:
    """Make the message, and the list of all to whom it goes.

    Raises:
        BadMail: naming the value and what is wrong with it.
    """
    message = EmailMessage(policy=_POLICY)
    message["From"] = address(sender, "sender")
    everybody = _addressed(message, to, cc, bcc)
    if reply_to:
        message["Reply-To"] = address(reply_to, "reply_to")
    message["Subject"] = _plain(subject, "subject")
    message["Date"], message["Message-ID"] = date, _plain(message_id, "message_id")
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            raise BadMail(f"header {name!r:.80}: no name of a header")
        if name.lower() in _OURS or name.lower().startswith("content-"):
            raise BadMail(f"header {name!r} is set by redrive itself")
        try:
            message[name] = _plain(value, f"header {name}")
        except ValueError as error:  # one that the library knows, such as Resent-To
            raise BadMail(f"header {name} is {value!r:.80}: {error}") from error
    message.set_content(text, cte="quoted-printable")
    if html:
        message.add_alternative(html, subtype="html", cte="quoted-printable")
    for name, kind, content in attachments:
        _attach(message, name, kind, content)
    for part in message.walk():
        for name, value in part.items():
            _demand_one_header(name, value)
    return message, everybody


def _addressed(message: EmailMessage, to: Sequence[str], cc: Sequence[str], bcc: Sequence[str]) -> list[str]:
    """Say whom it is to, but for those of *bcc*; gives all of them."""
    several = {"To": to, "Cc": cc, "Bcc": bcc}
    found = {name: [address(each, name.lower()) for each in given] for name, given in several.items()}
    for name in ("To", "Cc"):
        if found[name]:
            message[name] = found[name]
    everybody = list(dict.fromkeys(each.addr_spec for given in found.values() for each in given))
    if not everybody:
        raise BadMail("the mail is to nobody: give to, cc or bcc")
    if len(everybody) > MOST_RECIPIENTS:
        raise BadMail(f"the mail is to {len(everybody)} recipients: at most {MOST_RECIPIENTS}; make a job for each")
    return everybody


def _attach(message: EmailMessage, name: str, kind: str, content: bytes) -> None:
    shown = PurePosixPath(_plain(name, "name of an attachment").replace("\\", "/")).name
    if not shown:
        raise BadMail(f"attachment {name!r:.80} has no name")
    if _ENCODED.search(shown):
        raise BadMail(f"attachment {shown!r:.80}: write the name as it is read, it is encoded when it is sent")
    if kind and (not _TYPE.fullmatch(kind.lower()) or kind.lower().startswith(_NO_FILE)):
        raise BadMail(f"attachment {shown!r:.80}: {kind!r:.60} is no type of a file, such as application/pdf")
    guessed = kind.lower() or mimetypes.guess_type(shown)[0] or _ANY_FILE
    main, _, sub = (_ANY_FILE if guessed.startswith(_NO_FILE) else guessed).partition("/")
    message.add_attachment(content, maintype=main, subtype=sub, filename=shown)


def _demand_one_header(name: str, value: Any) -> None:
    """Look at a header as it will be sent, to a server that takes ASCII alone and to one that takes all letters."""
    for how in (_POLICY, READABLE):
        try:
            whole = _ONE_HEADER.fullmatch(how.fold(name, value)) is not None
        except (ValueError, IndexError):  # newer versions of Python refuse it themselves
            whole = False
        if not whole:
            raise BadMail(f"header {name} is {str(value)!r:.80}: it would not be sent as one header")


def _plain(text: str, what: str) -> str:
    if not isinstance(text, str) or _CONTROL.search(text):
        raise BadMail(f"{what} is {text!r:.80}: must be text without line ends and control characters")
    return text
