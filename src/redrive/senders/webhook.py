"""Webhooks: a job that is one signed POST to a customer's URL, and what each answer means for it.

::

    webhook = Webhook(secret="whsec_...").register(queue)
    webhook.enqueue(Delivery("https://example.com/hooks", {"order": 7}, type="order.placed"))

Signed as Standard Webhooks has it, so that receivers need nothing of ours. A URL that leads into our own network is
refused, and so is a redirect. Secrets never stand in a payload: they are given to `Webhook`, or looked up by it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import urljoin

import psycopg

from redrive.backoff import exponential
from redrive.classify import Finding, Word, retry_after
from redrive.errors import InvalidOption
from redrive.handlers import Handler
from redrive.job import ClaimedJob
from redrive.masking import mask_text
from redrive.senders.addresses import Reach
from redrive.senders.identity import identity
from redrive.senders.request import Answer, BadRequest, Deadline, Destination, Limits, Lines, destination, header, post
from redrive.senders.signature import Secret, keys, sign
from redrive.text import clip, storable

if TYPE_CHECKING:
    from redrive.queue import Queue

Meaning = Literal["delivered", "gone"] | Word

MEANINGS: tuple[tuple[range, Meaning, str], ...] = (
    (range(100, 200), "retryable", "no answer by itself: the one that follows counts"),
    (range(200, 300), "delivered", "taken"),
    (
        range(300, 400),
        "permanent",
        "a redirect, which is not followed: the receiver has moved, the URL must be put right",
    ),
    (range(405, 406), "permanent", "the URL takes no POST"),
    (range(410, 411), "gone", "the receiver wants no more: the endpoint is switched off"),
    (range(411, 412), "permanent", "the request itself is refused"),
    (range(413, 416), "permanent", "too large, too long, or JSON is not taken"),
    (range(422, 423), "permanent", "understood and refused"),
    (range(429, 430), "outage", "too many; Retry-After holds for all jobs of the target"),
    (range(431, 432), "permanent", "the headers are too large"),
    (range(400, 500), "retryable", "a receiver that is set up wrongly is mended, often on the same day"),
    (range(500, 600), "outage", "the receiver is down; Retry-After holds for all jobs of the target"),
    (range(600, 1000), "retryable", "no status that HTTP knows"),
)
"""What each status means, the first that fits; ``Webhook(answers={404: "permanent"})`` goes before it."""
KEPT_HEADERS = ("content-type", "location", "retry-after", "server", "x-request-id", "cf-ray")
MOST_BODY = 1024 * 1024
MOST_VALUE = 300
LONGEST = 3600.0
THREADS = 32
NOTE = 480
"""Characters of a note: a traceback shows no more of one."""

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_FOLLOWED = (HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT)
_PLAIN = {"content-type": "application/json", "user-agent": "redrive"}
_OURS = {"host", "content-length", "content-type", "transfer-encoding", "connection", "accept-encoding", "expect"}

_log = logging.getLogger("redrive")


@dataclass
class Delivery:
    """The payload of a webhook's job."""

    url: str
    data: Any
    """Any JSON value: the body, or its ``data`` where a *type* is given."""
    type: str = ""
    """The event, such as ``order.placed``: then the body is ``{"type", "timestamp", "data"}``."""
    endpoint: str = ""
    """The application's own name of whom it is for. Each has its breaker, and a 410 switches it off."""
    headers: dict[str, str] = field(default_factory=dict)
    """Sent as well. They stand in the payload for all to see: no place for secrets."""


@dataclass(frozen=True)
class Gone:
    """A receiver has answered 410: it wants no more."""

    delivery: Delivery
    job_id: int


class NotDelivered(Exception):
    """The receiver has not taken it; `status` is what it answered."""

    def __init__(self, message: str, *, status: int, finding: Finding) -> None:
        super().__init__(message)
        self.status = status
        self.finding = finding


SecretOf: TypeAlias = "Secret | Iterable[Secret] | Callable[[Delivery], Secret | Iterable[Secret]]"


class Webhook:
    """Sends webhooks.

    Args:
        secret: one, several while they are being changed, or a function that gives the receiver's by its `Delivery`.
        headers: sent with each, such as a User-Agent of yours.
        answers: what statuses mean, where :data:`MEANINGS` is not to your mind.
        allow: networks of your own that may be called, such as ``["10.1.2.0/24"]``; also by http://.
        deny: networks that are not to be called, though they are public, such as your own.
        plain_http: call http:// as well, which others on the way can read.
        redirects: so many of 307 and 308 are followed, each checked like the URL itself.
        connect, read, total: seconds to connect, without a byte, and for all of it.
        keep: bytes of the answer's body that are kept, masked.
        keep_headers: headers of the answer that are kept.
        tls: gives the SSL context; by default certificates are checked against the system's authorities.
        on_gone: called when a receiver answers 410, to note that it wants no more; if it raises, the try has failed.

    Raises:
        InvalidOption: naming the value and the remedy.
    """

    def __init__(
        self,
        secret: SecretOf,
        *,
        headers: Mapping[str, str] | None = None,
        answers: Mapping[int, Meaning] | None = None,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        plain_http: bool = False,
        redirects: int = 0,
        connect: float = 5.0,
        read: float = 10.0,
        total: float = 15.0,
        keep: int = 1024,
        keep_headers: Iterable[str] = KEPT_HEADERS,
        tls: Callable[[], ssl.SSLContext] | None = None,
        on_gone: Callable[[Gone], object] | None = None,
    ) -> None:
        for name, seconds in (("connect", connect), ("read", read), ("total", total)):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST:
                raise InvalidOption(
                    f"{name} is {seconds!r:.80}: must be seconds, more than 0 and at most {LONGEST:.0f}"
                )
        for name, count, most in (("redirects", redirects, 10), ("keep", keep, 16 * 1024)):
            if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= most:
                raise InvalidOption(f"{name} is {count!r:.80}: must be a whole number from 0 to {most}")
        self._secret = secret if callable(secret) else keys(secret)
        self._headers = _extra(headers or {}, error=InvalidOption)
        self._answers = {status: _meaning(status, said) for status, said in (answers or {}).items()}
        self._reach = Reach(allow, deny)
        self._plain_http, self._redirects = plain_http, redirects
        self._limits = Limits(connect, read, total, keep)
        self._keep_headers = tuple(name.lower() for name in keep_headers)
        self._tls = tls or ssl.create_default_context
        self._context: ssl.SSLContext | None = None
        self._on_gone = on_gone
        self._queue: Queue | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def register(self, queue: Queue, kind: str = "webhook", **options: Any) -> Handler[[Delivery, ClaimedJob], Any]:
        """Make it the handler of *kind*; *options* are those of ``queue.handler`` and go before what is said here.

        That is: eight tries within a day, and as target, for the breaker, the endpoint or else the host.

        Raises:
            InvalidOption: for a kind that is taken, or a value that makes no sense.
        """
        if self._queue is not None and self._queue is not queue:
            raise InvalidOption("this Webhook is registered with another queue: make one for each")
        if options.get("isolation"):
            raise InvalidOption("a webhook is not sent in a child process: it is bounded in time and size as it is")
        told = {
            "target": self.target,
            "max_attempts": 8,
            "backoff": exponential(30, 4, jitter=30, cap=12 * 3600),
            "timeout": self._limits.total + 60,
            "dead_on": "permanent",
        }
        handler = queue.handler(kind, **{**told, **options})(self.deliver)
        self._queue = queue
        return handler

    @staticmethod
    def target(payload: Any) -> str:
        """Name whose breaker counts for a job with this *payload*: the endpoint, or else the host of the URL."""
        said = payload if isinstance(payload, dict) else getattr(payload, "__dict__", {})
        if endpoint := said.get("endpoint"):
            return str(endpoint)
        try:
            return destination(said.get("url", "")).name
        except BadRequest:
            return ""  # its handler will say so

    def deliver(self, delivery: Delivery, job: ClaimedJob) -> dict[str, Any]:
        """Send it; gives what was answered.

        Raises:
            NotDelivered: when it was not taken, with what that means for the job.
            BadRequest, AddressRefused: when it can't or must not be sent.
            OSError, http.client.HTTPException: when there was no answer.
        """
        return self._deliver(delivery, job, None)

    async def deliver_async(self, delivery: Delivery, job: ClaimedJob) -> dict[str, Any]:
        """Send it from an async handler, in a thread of 32; when the handler is cancelled the connection is cut."""
        with self._lock:
            if self._threads is None or self._pid != os.getpid():  # forked: a child has no thread of its parent's
                self._pid = os.getpid()
                self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="redrive-webhook")
        lines = Lines()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._deliver, delivery, job, lines)
        except asyncio.CancelledError:
            lines.hang_up()
            raise

    def _deliver(self, delivery: Delivery, job: ClaimedJob, lines: Lines | None) -> dict[str, Any]:
        first, body, own = self._prepared(delivery, job)
        to, deadline, left = first, Deadline(self._limits.total), self._redirects
        while True:
            # what was given for one host, such as an Authorization, is for that one alone
            own = self._headers | own if to.name == first.name else {}
            answer = self._posted(to, body, self._signed(delivery, job, body) | own, deadline, lines)
            if answer.status not in _FOLLOWED or not left or not answer.headers.get("location"):
                return self._judged(delivery, job, to, answer)
            to, left = self._next(to, answer), left - 1

    def _prepared(self, delivery: Delivery, job: ClaimedJob) -> tuple[Destination, bytes, dict[str, str]]:
        document = delivery.data
        if delivery.type:
            document = {"type": delivery.type, "timestamp": job.created_at.isoformat(), "data": delivery.data}
        body = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        if len(body) > MOST_BODY:
            raise BadRequest(f"the body has {len(body)} bytes: at most {MOST_BODY}; send a link to what is large")
        return destination(delivery.url), body, _extra(delivery.headers)

    def _signed(self, delivery: Delivery, job: ClaimedJob, body: bytes) -> dict[str, str]:
        given = keys(self._secret(delivery)) if callable(self._secret) else self._secret
        return _PLAIN | sign(given, identity(job), int(time.time()), body)

    def _posted(
        self, to: Destination, body: bytes, headers: dict[str, str], deadline: Deadline, lines: Lines | None
    ) -> Answer:
        return post(
            to,
            body,
            headers,
            reach=self._reach,
            limits=self._limits,
            deadline=deadline,
            tls=self._trusted,
            plain_http=self._plain_http,
            lines=lines,
        )

    def _trusted(self) -> ssl.SSLContext:
        with self._lock:
            if self._context is None:
                self._context = self._tls()
            return self._context

    def _next(self, to: Destination, answer: Answer) -> Destination:
        scheme = "https" if to.tls else "http"
        further = destination(urljoin(f"{scheme}://{to.name}{to.path}", answer.headers["location"]))
        if to.tls and not further.tls:
            raise BadRequest(f"{to.name} redirects to http://, which others could read")
        return further

    def _judged(self, delivery: Delivery, job: ClaimedJob, to: Destination, answer: Answer) -> dict[str, Any]:
        meaning = self._answers.get(answer.status) or meaning_of(answer.status)
        kept = self._kept(to, answer)
        if meaning == "delivered":
            return kept
        message = f"{to.name} answered {answer.status} {_PHRASES.get(answer.status, '')}".rstrip()
        after = retry_after(None, answer) if meaning == "outage" else 0.0
        finding = Finding("permanent" if meaning == "gone" else meaning, after)
        error = NotDelivered(message, status=answer.status, finding=finding)
        error.add_note(f"headers: {kept['headers']}"[:NOTE])
        for start in range(0, len(kept["body"]), NOTE):
            error.add_note(("body: " if not start else "") + kept["body"][start : start + NOTE])
        if meaning == "gone":
            self._switched_off(delivery, job, error)
        raise error

    def _kept(self, to: Destination, answer: Answer) -> dict[str, Any]:
        if answer.headers.get("content-encoding", "identity").lower() != "identity":
            body = f"({len(answer.body)} bytes or more, packed though that was not asked for)" if answer.body else ""
        else:
            body = mask_text(storable(answer.body.decode(errors="replace")))
        headers = {name: answer.headers[name] for name in self._keep_headers if name in answer.headers}
        return {
            "status": answer.status,
            "reason": mask_text(storable(clip(answer.reason, 100))),
            "headers": {name: mask_text(storable(clip(value, MOST_VALUE))) for name, value in headers.items()},
            "body": body,
            "to": to.name,
            "ip": answer.ip,
            "seconds": round(answer.seconds, 3),
        }

    def _switched_off(self, delivery: Delivery, job: ClaimedJob, error: NotDelivered) -> None:
        if self._on_gone is not None:
            self._on_gone(Gone(delivery, job.id))
        if not delivery.endpoint:  # the target is a host, which others may share
            return
        if self._queue is None:
            error.add_note("the endpoint is not switched off: Webhook.register() was not used, so no queue is known")
            return
        try:
            self._queue.breakers.open(job.kind, delivery.endpoint, by="webhook", reason=str(error))
        except psycopg.Error as trouble:
            _log.warning("endpoint could not be switched off", extra={"job_id": job.id, "job_kind": job.kind})
            error.add_note(f"the endpoint could not be switched off: {trouble}"[:NOTE])


def meaning_of(status: int) -> Meaning:
    """Say what a status means by :data:`MEANINGS`."""
    return next((meaning for statuses, meaning, _ in MEANINGS if status in statuses), "retryable")


def _meaning(status: int, said: Any) -> Meaning:
    words = ("delivered", "gone", "retryable", "permanent", "outage")
    if said not in words or isinstance(status, bool) or not isinstance(status, int):
        raise InvalidOption(f"answers has {status!r}: {said!r:.80}; give statuses with one of {', '.join(words)}")
    meaning: Meaning = said
    return meaning


def _extra(headers: Mapping[str, str], error: type[ValueError] = BadRequest) -> dict[str, str]:
    """Check headers that are sent as well."""
    for name, value in headers.items():
        try:
            header(name, value)
        except BadRequest as trouble:
            raise error(str(trouble)) from None
        if name.lower() in _OURS or name.lower().startswith("webhook-"):
            raise error(f"header {name!r} is set by redrive itself")
    return {name.lower(): value for name, value in headers.items()}
