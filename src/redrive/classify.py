"""What an error tells: of the job, which is worth another try or never will be, or of the service that the job calls.

One answer for the retry and for the breaker. An outage is what the next job would meet as well: no connection, a
timeout, 5xx, 429. No library is imported for it: errors are known by their class's name and by the attributes that
libraries share. Nothing here decides what becomes of a job: that is for the executor.
"""

from __future__ import annotations

import errno
import logging
import math
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal, TypeAlias, get_args

from redrive.errors import InvalidOption

Word = Literal["retryable", "permanent", "outage"]
WORDS: tuple[Word, ...] = get_args(Word)
MOST_HOLD = 3600.0
"""Seconds of a Retry-After that are believed: after an hour one job may ask again."""
DEPTH = 8
"""Causes of causes that are looked at."""

_log = logging.getLogger("redrive")


@dataclass(frozen=True, slots=True)
class Finding:
    """What an error tells."""

    word: Word
    after: float = 0.0
    """Seconds for which the service asks to be left alone; an hour at most is believed."""
    listed: bool = False
    """Said by the list below, and not by the error itself or the application."""

    def __post_init__(self) -> None:
        """Check.

        Raises:
            InvalidOption: naming the value and the remedy.
        """
        if self.word not in WORDS:
            raise InvalidOption(f"{self.word!r:.80} is no word for an error: must be one of {', '.join(WORDS)}")
        if not isinstance(self.after, int | float) or not math.isfinite(self.after):
            raise InvalidOption(f"after is {self.after!r:.80}: give seconds")


Classify: TypeAlias = Callable[[BaseException], "Word | Finding | None"] | Mapping[type[BaseException], Word | Finding]
"""The application's own word: a function that looks at an error first, None leaving it to others; or one by class."""

_UNKNOWN = Finding("retryable", listed=True)
_PERMANENT = Finding("permanent", listed=True)
_OUTAGE = Finding("outage", listed=True)

LISTED: dict[str, dict[Word, tuple[str, ...]]] = {
    "aiohttp": {
        "outage": ("ClientConnectionError", "ClientPayloadError"),
        "permanent": ("InvalidURL", "TooManyRedirects"),
    },
    "botocore": {
        "outage": ("ConnectionError", "HTTPClientError"),
        "permanent": ("ParamValidationError",),
    },
    "http": {
        "outage": ("BadStatusLine", "IncompleteRead"),
        "permanent": ("InvalidURL",),
    },
    "httpcore": {
        "outage": ("NetworkError", "ProxyError", "RemoteProtocolError", "TimeoutException"),
        "permanent": ("LocalProtocolError", "UnsupportedProtocol"),
    },
    "httpx": {
        "outage": ("NetworkError", "ProxyError", "RemoteProtocolError", "TimeoutException"),
        "permanent": ("InvalidURL", "LocalProtocolError", "TooManyRedirects", "UnsupportedProtocol"),
    },
    "requests": {
        "outage": ("ChunkedEncodingError", "ConnectionError", "Timeout"),
        "permanent": ("InvalidHeader", "InvalidSchema", "InvalidURL", "MissingSchema", "TooManyRedirects"),
    },
    "smtplib": {
        "outage": ("SMTPAuthenticationError", "SMTPConnectError", "SMTPHeloError", "SMTPServerDisconnected"),
        "permanent": ("SMTPNotSupportedError",),
    },
    "urllib3": {
        "permanent": ("LocationValueError",),
        "outage": ("HTTPError",),
    },
}
"""By library, the classes whose name tells; of those that inherit, the nearest one in the list."""
DATABASES = ("asyncpg", "django", "psycopg", "psycopg2", "sqlalchemy")
"""What these raise tells of the database or of ourselves, and no breaker mends that."""

_ALIASES = {"httpx2": "httpx", "httpcore2": "httpcore"}
_BY_NAME = {(library, name): word for library, how in LISTED.items() for word, names in how.items() for name in names}
_NETWORK = {
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENETUNREACH,
    errno.EPIPE,
    errno.ETIMEDOUT,
}
_FIRST, _REDIRECT, _TOO_MANY, _SERVER_ERROR, _LAST = 100, 300, 429, 500, 599
_COME_AGAIN = (408, 409, 423, 425)
"""Request Timeout, Conflict, Locked, Too Early: of this request, and of this moment."""
_BUSY = "Throttl", "TooManyRequests", "LimitExceeded", "ThroughputExceeded", "SlowDown"
"""In the code of an AWS error, whatever its status: too much was asked."""
_OF_THE_MOMENT = (
    "RequestTimeout",
    "PriorRequestNotComplete",
    "TransactionConflict",
    "TransactionInProgress",
    "ExpiredToken",
    "RequestExpired",
    "RequestTimeTooSkewed",
)
"""In the code of an AWS error, whatever its status: the next try comes with another token, at another time."""
_SMTP_LATER, _SMTP_NEVER = range(400, 500), range(500, 600)  # RFC 5321, 4.2.1
_SMTP_CLOSING = 421
_SMTP_STRANGERS = (530, 534, 535, 538)
"""RFC 4954: the server doesn't know us, and takes no other mail either."""
_WRONG_DATA = ("22", "23")
"""Classes of SQLSTATE: data exceptions, violated constraints."""


def classify(error: BaseException) -> Finding:
    """Say what *error* tells: itself, by its attribute ``finding``, or else the list; a cause of it may tell as well.

    What nobody knows is retryable.
    """
    for seen in _chain(error):
        own = getattr(seen, "finding", None)
        if isinstance(own, Finding):
            return own
        if isinstance(seen, BaseExceptionGroup):
            return _of_all([classify(each) for each in seen.exceptions])
        if (found := _listed(seen)) is not None:
            return found
    return _UNKNOWN


@dataclass(frozen=True)
class Rules:
    """Whose word counts for a handler's errors: its own, its queue's, and then what :func:`classify` says."""

    own: tuple[Classify, ...] = ()
    dead_on_permanent: bool = False
    """Also what only the list calls permanent is dead at once."""

    def find(self, error: BaseException) -> Finding:
        """Say what *error* tells. The application's functions may raise what they like: then others are asked."""
        for rule in self.own:
            if (said := _said(rule, error)) is not None:
                return replace(said, after=_believed(said.after))
        found = classify(error)
        return replace(found, after=_believed(found.after)) if found.after else found

    def hopeless(self, found: Finding) -> bool:
        """Whether no other try is to be made: the application has said so, or has said that the list's word will do."""
        return found.word == "permanent" and (self.dead_on_permanent or not found.listed)


def rules(*own: Any, dead_on_permanent: bool = False) -> Rules:
    """Make the rules of a handler out of what was given as ``classify=``, None where nothing was.

    Raises:
        InvalidOption: naming the value and the remedy.
    """
    for each in own:
        if isinstance(each, Mapping):
            for cls, word in each.items():
                if not (isinstance(cls, type) and issubclass(cls, BaseException)):
                    raise InvalidOption(f"classify has {cls!r:.80}: a mapping is from exception classes to words")
                if not isinstance(word, Finding):
                    Finding(word)
        elif each is not None and not callable(each):
            raise InvalidOption(
                f"classify is {each!r:.80}: give a function from an error to one of {', '.join(WORDS)} or None, "
                "or a mapping from exception classes to these"
            )
    return Rules(tuple(each for each in own if each is not None), dead_on_permanent)


def _said(rule: Classify, error: BaseException) -> Finding | None:
    try:
        if isinstance(rule, Mapping):
            said = next((rule[cls] for cls in type(error).__mro__ if cls in rule), None)
        else:
            said = rule(error)
        return said if said is None or isinstance(said, Finding) else Finding(said)
    except Exception as trouble:  # noqa: BLE001 - the user's code, and the job's own error is what counts
        _log.warning(
            "classify is unusable, asking others: %s: %s",
            type(trouble).__name__,
            str(trouble)[:200],
            extra={"problem": str(trouble)[:200]},
        )
        return None


def _believed(after: float) -> float:
    return min(MOST_HOLD, max(0.0, float(after)))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Give *error*, what caused it, and so on."""
    seen: BaseException | None = error
    for _ in range(DEPTH):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


def _listed(error: BaseException) -> Finding | None:
    if _root(type(error)) in DATABASES:
        return _of_database(error)
    response = getattr(error, "response", None)
    if isinstance(response, dict) and (code := _aws_code(response)):
        if any(part in code for part in _BUSY):
            return Finding("outage", retry_after(error, response), listed=True)
        if any(part in code for part in _OF_THE_MOMENT):
            return Finding("retryable", listed=True)
    if (status := _status(error, response)) is not None:
        word = of_status(status)
        return Finding(word, retry_after(error, response) if word == "outage" else 0.0, listed=True)
    named = next((_BY_NAME[key] for key in map(_key, type(error).__mro__) if key in _BY_NAME), None)
    if named is not None:
        return Finding(named, listed=True)
    return _of_smtp(error) or (_OUTAGE if _of_network(error) else None)


def of_status(status: int) -> Word:
    """Say what an HTTP status tells that is no success."""
    if status == _TOO_MANY or _SERVER_ERROR <= status <= _LAST:
        return "outage"
    return "retryable" if status < _REDIRECT or status in _COME_AGAIN else "permanent"


def _of_all(found: list[Finding]) -> Finding:
    """Give the word of a group of errors: that of all of them, where they have one."""
    if len({each.word for each in found}) > 1:
        return _UNKNOWN
    return replace(found[0], after=max(each.after for each in found), listed=any(each.listed for each in found))


def _of_smtp(error: BaseException) -> Finding | None:
    """Read the codes of an SMTP server's answer: of one to the mail, or to each recipient."""
    code, refused = getattr(error, "smtp_code", None), getattr(error, "recipients", None)
    if isinstance(refused, dict) and refused and _root(type(error)) == "smtplib":
        codes = [answer[0] for answer in refused.values()]
        if _SMTP_CLOSING in codes or not set(codes).isdisjoint(_SMTP_STRANGERS):
            return _OUTAGE
        return _PERMANENT if all(code in _SMTP_NEVER for code in codes) else _UNKNOWN
    if code in _SMTP_LATER or code in _SMTP_STRANGERS:
        return _OUTAGE
    return _PERMANENT if code in _SMTP_NEVER else None


def _of_network(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror | ssl.SSLError):
        return True
    if isinstance(error, OSError) and error.errno in _NETWORK:
        return True
    reason = getattr(error, "reason", None)  # urllib.error.URLError
    return isinstance(reason, BaseException) and reason is not error and _of_network(reason)


def _of_database(error: BaseException) -> Finding:
    for each in (error, getattr(error, "orig", None), error.__cause__):
        for name in ("sqlstate", "pgcode"):
            if isinstance(state := getattr(each, name, None), str) and state.startswith(_WRONG_DATA):
                return _PERMANENT
    return _UNKNOWN


def _aws_code(response: dict[str, Any]) -> str:
    said = response.get("Error")
    return str(said.get("Code", "")) if isinstance(said, dict) else ""


def _status(error: BaseException, response: Any) -> int | None:
    """Find the HTTP status that an error carries, wherever its library puts it."""
    if isinstance(response, dict):  # botocore
        response = response.get("ResponseMetadata")
        found = response.get("HTTPStatusCode") if isinstance(response, dict) else None
        return found if isinstance(found, int) else None
    for holder, name in ((response, "status_code"), (response, "status"), (error, "status_code"), (error, "status")):
        if (status := _http(getattr(holder, name, None))) is not None:
            return status
    of_urllib = any(_root(cls) == "urllib" for cls in type(error).__mro__)  # of others it may be what they regret
    return _http(getattr(error, "code", None)) if of_urllib else None


def _http(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and _FIRST <= value <= _LAST else None


def retry_after(error: BaseException | None, response: Any) -> float:
    """Read Retry-After (RFC 9110, 10.2.3), seconds or a date; 0 where there is none that makes sense."""
    headers = getattr(response, "headers", None)
    headers = getattr(error, "headers", None) if headers is None else headers
    if isinstance(response, dict):  # botocore
        headers = (response.get("ResponseMetadata") or {}).get("HTTPHeaders")
    get = getattr(headers, "get", None)
    if get is None:
        return 0.0
    try:
        text = str(get("Retry-After") or get("retry-after") or "").strip()
        if text.isdecimal():
            wait = float(text)
        else:
            when = parsedate_to_datetime(text)
            wait = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - datetime.now(UTC).timestamp()
    except Exception:  # noqa: BLE001 - headers are a stranger's object, and what a stranger wrote
        return 0.0
    return _believed(wait)


def _key(cls: type) -> tuple[str, str]:
    root = _root(cls)
    return _ALIASES.get(root, root), cls.__name__


def _root(cls: type) -> str:
    return cls.__module__.partition(".")[0]
