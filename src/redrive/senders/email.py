"""Mail: a job that is one message, by a mail server or by any function that sends one, such as a provider's API.

::

    email = Email("Paperplane <billing@paperplane.example>", Smtp("mail.example", user="u", password="p"))
    send = email.register(queue)
    send.enqueue(Mail(to="ada@example.com", subject="Welcome", text="..."))

Message-ID and Date are those of the job at every attempt. What a server refuses for good is dead with the addresses
that it refused; who has got the mail gets it no second time because others have not. No template, no queue of its own.
"""

from __future__ import annotations

import inspect
import smtplib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redrive.backoff import exponential
from redrive.classify import Finding, classify
from redrive.errors import InvalidOption
from redrive.handlers import Handler
from redrive.job import ClaimedJob
from redrive.senders.identity import identity
from redrive.senders.mail import MOST_SIZE, BadMail, address, composed, domain_of
from redrive.text import storable
from redrive.words import one_line

if TYPE_CHECKING:
    from redrive.queue import Queue

MOST_NAMED = 5
"""Addresses that an error names."""
LATER = 60.0
"""Seconds after which those are tried again who were refused for now, while others were not."""
_NEVER = range(500, 600)
_SAID = smtplib.SMTPResponseException, smtplib.SMTPRecipientsRefused, smtplib.SMTPNotSupportedError

Send = Callable[..., Any]
"""Takes the message and its recipients; gives a mapping from those that were refused to code and words, or None.

Whatever else it gives, such as a provider's answer, tells of no recipient: it has returned, so the mail is sent.
"""


@dataclass
class Attachment:
    """A file that is looked up when the mail is sent."""

    ref: str
    """What `Email`'s *attach* is asked for: a path, a key in a store."""
    name: str = ""
    """What it is called in the mail; the last part of *ref* unless given."""
    type: str = ""
    """Such as application/pdf; by the name unless given."""


@dataclass
class Rest:
    """Who has not got a mail that others have got, and what its Message-ID and Date were."""

    recipients: list[str]
    message_id: str
    date: str


@dataclass
class Mail:
    """The payload of a mail's job."""

    to: list[str] | str
    """Addresses, as ``ada@example.com`` or ``Ada <ada@example.com>``."""
    subject: str
    text: str = ""
    html: str = ""
    cc: list[str] = field(default_factory=list)
    bcc: list[str] = field(default_factory=list)
    sender: str = ""
    """Whom it is from, where that isn't `Email`'s own."""
    reply_to: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    attachments: list[Attachment] = field(default_factory=list)
    rest: Rest | None = None
    """Set by the sender itself, in the job that follows one that not all of its recipients have got."""


class NotSent(Exception):
    """The mail was not sent; `recipients` are those that it names, with what the server said."""

    def __init__(self, message: str, recipients: Mapping[str, tuple[int, Any]], finding: Finding) -> None:
        super().__init__(message)
        self.recipients = dict(recipients)
        self.finding = finding


class Email:
    """Sends mail.

    Args:
        sender: whom it is from, as ``ada@example.com`` or ``Ada <ada@example.com>``.
        send: an :class:`redrive.senders.smtp.Smtp`, or a function, also an async one, of the message (an EmailMessage)
            and the list of its recipients, that gives None, or those of the list that were refused: see `Send`.
        attach: gives the bytes of an attachment by its ``ref``; :func:`files` makes one for a directory.
        headers: in every mail.
        most: bytes that the attachments of one mail may have together.

    Raises:
        InvalidOption: naming the value and the remedy.
    """

    def __init__(
        self,
        sender: str,
        send: Send,
        *,
        attach: Callable[[str], bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        most: int = MOST_SIZE,
    ) -> None:
        try:
            address(sender, "sender")
        except BadMail as error:
            raise InvalidOption(str(error)) from None
        if not callable(send):
            raise InvalidOption(
                f"send is {send!r:.80}: give an Smtp(...), or a function of a message and its recipients"
            )
        self._sender, self._send, self._attach = sender, send, attach
        self._headers, self._most = dict(headers or {}), most
        called = getattr(send, "__call__", None)  # noqa: B004 - asked for its kind, not whether it is there
        self.is_async = inspect.iscoroutinefunction(send) or inspect.iscoroutinefunction(called)
        """Whether *send* is to be awaited."""

    def register(self, queue: Queue, kind: str = "email", **options: Any) -> Handler[[Mail, ClaimedJob], Any]:
        """Make it the handler of *kind*; *options* are those of ``queue.handler`` and go before what is said here.

        That is: eight tries within half a day, and dead at once what will never be accepted.

        Raises:
            InvalidOption: for a kind that is taken, or a value that makes no sense.
        """
        if options.get("isolation"):
            raise InvalidOption("a mail is not sent in a child process: every step of it has a timeout of its own")
        patiently = exponential(60, 3, jitter=30, cap=6 * 3600)
        told = {"max_attempts": 8, "backoff": patiently, "timeout": 300, "dead_on": "permanent"}
        function: Any = self.deliver_async if self.is_async else self.deliver
        handler: Handler[[Mail, ClaimedJob], Any] = queue.handler(kind, **{**told, **options})(function)
        return handler

    def deliver(self, mail: Mail, job: ClaimedJob) -> dict[str, Any]:
        """Send it; gives who has got it, and who follows in another job.

        Raises:
            BadMail: when it can't be sent as it is.
            NotSent: when the server refused it, for everybody.
            OSError, smtplib.SMTPException: when there was no answer.
        """
        message, recipients = self._message(mail, job)
        try:
            refused = self._send(message, recipients)
        except _SAID as error:
            raise _not_sent(error, recipients) from error
        if inspect.iscoroutine(refused):
            refused.close()
            raise TypeError(
                "send gave a coroutine, and nothing was sent: make it an `async def`, so that it is awaited"
            )
        return self._judged(mail, job, message, recipients, _refused(refused, recipients))

    async def deliver_async(self, mail: Mail, job: ClaimedJob) -> dict[str, Any]:
        """Send it by an async function; see :meth:`deliver`."""
        message, recipients = self._message(mail, job)
        try:
            refused = await self._send(message, recipients)
        except _SAID as error:
            raise _not_sent(error, recipients) from error
        return self._judged(mail, job, message, recipients, _refused(refused, recipients))

    def _message(self, mail: Mail, job: ClaimedJob) -> tuple[EmailMessage, list[str]]:
        sender = mail.sender or self._sender
        rest = mail.rest or Rest(
            [], f"<{identity(job)}@{domain_of(sender)}>", format_datetime(job.created_at.astimezone(UTC))
        )
        files = [(each.name or each.ref, each.type, self._content(each)) for each in mail.attachments]
        if (size := sum(len(content) for _, _, content in files)) > self._most:
            raise BadMail(f"the attachments have {size} bytes: at most {self._most}; send a link to what is large")
        message, everybody = composed(
            sender=sender,
            to=[mail.to] if isinstance(mail.to, str) else mail.to,
            cc=mail.cc,
            bcc=mail.bcc,
            reply_to=mail.reply_to,
            subject=mail.subject,
            text=mail.text,
            html=mail.html,
            headers={**self._headers, **mail.headers},
            message_id=rest.message_id,
            date=rest.date,
            attachments=files,
        )
        wanted = rest.recipients or everybody
        return message, [each for each in everybody if each in wanted]

    def _content(self, attachment: Attachment) -> bytes:
        if self._attach is None:
            raise BadMail(f"attachment {attachment.ref!r:.80}: Email(attach=...) is to say how it is looked up")
        content = self._attach(attachment.ref)
        if not isinstance(content, bytes):
            raise BadMail(
                f"attachment {attachment.ref!r:.80}: attach gave {type(content).__name__}, and must give bytes"
            )
        return content

    def _judged(
        self,
        mail: Mail,
        job: ClaimedJob,
        message: EmailMessage,
        recipients: list[str],
        refused: Mapping[str, tuple[int, Any]],
    ) -> dict[str, Any]:
        """Say who has got it. Those who have not get a job of their own, in the same commit as this one's success."""
        accepted = [each for each in recipients if each not in refused]
        if not accepted:
            raise _not_sent(smtplib.SMTPRecipientsRefused(dict(refused)), recipients)
        never = [each for each in recipients if each in refused and refused[each][0] in _NEVER]
        later = [each for each in recipients if each in refused and each not in never]
        for who, delay in ((never, 0.0), (later, LATER)):
            if who:
                rest = Rest(who, str(message["Message-ID"]), str(message["Date"]))
                job.then(job.kind, asdict(replace(mail, rest=rest)), delay=delay)
        said = {each: _words(*answer) for each, answer in refused.items()}
        return {"message_id": str(message["Message-ID"]), "accepted": accepted, "refused": said}


def files(directory: str | Path) -> Callable[[str], bytes]:
    """Give a function that reads attachments from a *directory*, and from nowhere else."""
    top = Path(directory).resolve()

    def read(ref: str) -> bytes:
        path = (top / ref).resolve()
        if not path.is_relative_to(top) or path == top:
            raise BadMail(f"attachment {ref!r:.80} leads out of its directory")
        return path.read_bytes()

    return read


def _refused(given: Any, recipients: Sequence[str]) -> dict[str, tuple[int, Any]]:
    """Read who was refused out of what a stranger's function gave: the mail is out, so nothing here may fail."""
    if not isinstance(given, Mapping):
        return {}
    known = {each.casefold(): each for each in recipients}
    found: dict[str, tuple[int, Any]] = {}
    for who, said in given.items():
        if (name := known.get(str(who).casefold())) is not None:
            pair = said if isinstance(said, tuple | list) and len(said) == 2 else (said, "")  # noqa: PLR2004 - a pair
            found[name] = (pair[0], pair[1]) if isinstance(pair[0], int) else (0, pair[0])
    return found


def _not_sent(error: smtplib.SMTPException, recipients: list[str]) -> NotSent:
    """Put what a server said into a line that names the addresses; the finding is that of the list."""
    found = replace(classify(error), listed=False)
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        named = dict(error.recipients)
        shown = [f"{each}: {_words(*answer)}" for each, answer in list(named.items())[:MOST_NAMED]]
        return NotSent(_listing(shown, len(named)), named, found)
    if isinstance(error, smtplib.SMTPNotSupportedError):
        odd = [each for each in recipients if not each.isascii()] or [str(error)]
        return NotSent(f"the server takes no such address (no SMTPUTF8): {', '.join(odd[:MOST_NAMED])}", {}, found)
    code, words = getattr(error, "smtp_code", 0), getattr(error, "smtp_error", b"")
    if isinstance(error, smtplib.SMTPSenderRefused):
        return NotSent(f"{_words(code, words)}, of the sender {error.sender}", {}, found)
    if isinstance(error, smtplib.SMTPAuthenticationError | smtplib.SMTPConnectError | smtplib.SMTPHeloError):
        return NotSent(f"{type(error).__name__}: {_words(code, words)}", {}, found)
    to = _listing(recipients[:MOST_NAMED], len(recipients))
    return NotSent(f"{_words(code, words)}, to {to}", dict.fromkeys(recipients, (code, words)), found)


def _listing(shown: list[str], count: int) -> str:
    more = f" and {count - len(shown)} more" if count > len(shown) else ""
    return ", ".join(shown) + more


def _words(code: int, text: Any) -> str:
    said = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    return storable(one_line(f"{code} {said}" if code else said, 300)).strip()
