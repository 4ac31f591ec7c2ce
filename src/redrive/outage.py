"""Does this error tell of the job, or of the service that the job calls? Told by its type alone; nothing is asked here.

An outage is what the next job would meet as well: no connection, a timeout, 5xx, 429. No library is imported for that:
what HTTP clients and mailers raise is known by the attributes that they share.
"""

from __future__ import annotations

import errno
import socket
import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

MOST_HOLD = 3600.0
"""Seconds of a Retry-After that are believed: after an hour one job may ask again."""
DEPTH = 8
"""Causes of causes that are looked at."""

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
_NAMES = {  # by module and class, of libraries whose errors are no OSError
    ("aiohttp", "ClientConnectionError"),
    ("aiohttp", "ClientPayloadError"),
    ("botocore", "HTTPClientError"),
    ("httpcore", "NetworkError"),
    ("httpcore", "TimeoutException"),
    ("httpx", "NetworkError"),
    ("httpx", "RemoteProtocolError"),
    ("httpx", "TimeoutException"),
    ("requests", "ConnectionError"),
    ("requests", "Timeout"),
    ("smtplib", "SMTPConnectError"),
    ("smtplib", "SMTPServerDisconnected"),
    ("urllib3", "HTTPError"),
}
_OURS = ("psycopg", "psycopg2", "asyncpg", "sqlalchemy", "django")
"""What these raise tells of the database or of ourselves, and no breaker mends that."""
_TOO_MANY, _SERVER_ERROR, _LAST = 429, 500, 599
_SMTP_LATER = range(400, 500)  # RFC 5321, 4.2.1: a transient negative completion reply


def outage_of(error: BaseException) -> float | None:
    """Say whether *error* is an outage's: None if not, else the seconds for which the service asks, 0 if for none."""
    seen: BaseException | None = error
    for _ in range(DEPTH):
        if seen is None or _root(type(seen)) in _OURS:
            break
        if (asked := _asked(seen)) is not None:
            return asked
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return None


def _asked(error: BaseException) -> float | None:
    response = getattr(error, "response", None)
    status = _status(error, response)
    if status is not None:
        if status == _TOO_MANY or _SERVER_ERROR <= status <= _LAST:
            return retry_after(error, response)
        return None  # it has answered, and said what is wrong with this request
    if getattr(error, "smtp_code", None) in _SMTP_LATER:
        return 0.0
    return 0.0 if _of_network(error) else None


def _of_network(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror | ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return True
    if isinstance(error, OSError) and error.errno in _NETWORK:
        return True
    if isinstance(getattr(error, "reason", None), BaseException):  # urllib.error.URLError
        return _of_network(error.reason)  # type: ignore[attr-defined] # looked at in the line above
    return any((_root(each), each.__name__) in _NAMES for each in type(error).__mro__)


def _status(error: BaseException, response: Any) -> int | None:
    """Find the HTTP status that an error carries, wherever its library puts it."""
    if isinstance(response, dict):  # botocore
        response = response.get("ResponseMetadata")
        found = response.get("HTTPStatusCode") if isinstance(response, dict) else None
        return found if isinstance(found, int) else None
    for holder, name in ((response, "status_code"), (response, "status"), (error, "status_code"), (error, "status")):
        value = getattr(holder, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    code = getattr(error, "code", None)  # urllib.error.HTTPError
    return code if isinstance(code, int) and hasattr(error, "headers") else None


def retry_after(error: BaseException, response: Any) -> float:
    """Read Retry-After (RFC 9110, 10.2.3), seconds or a date; 0 where there is none that makes sense."""
    headers = getattr(response, "headers", None)
    headers = getattr(error, "headers", None) if headers is None else headers
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
    return min(MOST_HOLD, max(0.0, wait))


def _root(cls: type) -> str:
    return cls.__module__.partition(".")[0]
