"""One HTTP request to a URL that a stranger gave: to a checked address, within a time, with a bounded answer.

The connection is made here to an address and http.client is handed it, so that nothing looks the name up again; the
name is what TLS is told and the Host header. No proxy, no redirect, no cookie, no compression, no second request.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from redrive.classify import Finding
from redrive.masking import mask_text
from redrive.senders.addresses import TWO_NAMES, AddressRefused, Place, Reach

MOST_ANSWER = 64 * 1024
"""Bytes of an answer that are read at the most, its head included."""
MOST_URL = 4096
MOST_PLACES = 4
"""Addresses of a name that are tried."""

_INTERIM = set(range(100, 200)) - {101}
"""101 is final: it would go on in another protocol, that nobody asked for."""
_CONTROL = re.compile("[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff\\\\]")
_BEFORE_HOST = re.compile("//.*@", re.DOTALL)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile("[\t\x20-\x7e\xa0-\xff]*")


class BadRequest(ValueError):
    """This can't be sent as it is: a URL or a header that makes no sense."""

    finding = Finding("permanent")


class AnswerTooLong(http.client.HTTPException):
    """The receiver sends more than any answer needs before it has said its status."""

    finding = Finding("retryable")


@dataclass(frozen=True)
class Destination:
    """A URL, taken apart and checked."""

    tls: bool
    host: str
    """In ASCII and lower case; of IPv6 in brackets."""
    port: int
    path: str
    """With the query."""

    @property
    def name(self) -> str:
        """The host, with its port where that isn't the usual one: what stands in the Host header."""
        return self.host if self.port == (443 if self.tls else 80) else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Limits:
    """How long a request may take, in seconds, and how much of its answer is kept, in bytes."""

    connect: float = 5.0
    """To look the name up, and again to connect and agree on TLS."""
    read: float = 10.0
    """Without a byte sent or received."""
    total: float = 15.0
    """For all of it, however it is spread."""
    kept: int = 1024


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes
    """The beginning of it."""
    ip: str
    seconds: float


class Deadline:
    """A time by which all must be over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at = time.monotonic() + seconds

    def left(self, most: float) -> float:
        """Give the seconds that the next step may take.

        Raises:
            TimeoutError: when there are none.
        """
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"not answered within {self._seconds:g} s in all")
        return min(most, left)


class Lines:
    """The socket of a request under way, so that who gives up on it can hang up."""

    def __init__(self) -> None:
        self.cut = False
        self._socket: socket.socket | None = None

    def hold(self, sock: socket.socket) -> None:
        """Remember a socket; one that comes after the end is ended."""
        self._socket = sock
        if self.cut:
            self.hang_up()

    def hang_up(self) -> None:
        """End the request; whoever reads or writes gets an error."""
        self.cut = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # not the method of an SSLSocket: it takes the encryption off first, while another thread may be sending
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def destination(url: str) -> Destination:
    """Take a URL apart.

    Raises:
        BadRequest: for one that is none, or that programs could read in different ways.
    """
    if not isinstance(url, str) or len(url) > MOST_URL or _CONTROL.search(url):
        raise _odd(url, f"must be text of at most {MOST_URL} characters, without space or control")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _odd(url, str(error)) from None
    if "@" in parts.netloc:
        raise BadRequest("url has a user or a password before the host: credentials don't belong there")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _odd(url, "must begin with https:// and a host")
    try:
        port = parts.port
    except ValueError:  # whose words may be a part of a password that has a slash in it
        raise _odd(url, "its port must be a number from 1 to 65535") from None
    if port == 0:
        raise _odd(url, "there is no port 0")
    tls = parts.scheme == "https"
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    query = "?" + quote(parts.query, safe="/?%:@!$&'()*+,;=~[]") if parts.query else ""
    return Destination(tls, _host(parts.hostname), port or (443 if tls else 80), path + query)


def _odd(url: Any, why: str) -> BadRequest:
    """Show a URL that is refused without the secrets that may be in it."""
    shown = mask_text(_BEFORE_HOST.sub("//***@", url)) if isinstance(url, str) else url
    return BadRequest(f"url is {shown!r:.80}: {why}")


def _host(name: str) -> str:
    if odd := TWO_NAMES.search(name):
        raise BadRequest(
            f"host is {name!r:.80}: {odd[0]!r} leads to one host by IDNA 2003, to another by 2008: use xn--"
        )
    if ":" in name:
        try:
            if "%" in name:  # a zone: of one link alone
                raise ValueError("an address with a zone is of one link")  # noqa: TRY301 - as those of the library
            return f"[{ipaddress.IPv6Address(name)}]"
        except ValueError as error:
            raise BadRequest(f"host is {name!r:.80}: {error}") from None
    try:
        host = name.encode("idna").decode().lower().removesuffix(".")
    except UnicodeError as error:
        raise BadRequest(f"host is {name!r:.80}: {error}") from None
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):  # some read 0177.1, 2130706433 or 0x7f000001 as an address, others as a name
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise BadRequest(f"host is {name!r:.80}: write an address as four plain numbers") from None
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):  # noqa: PLR2004 - RFC 1035
        raise BadRequest(f"host is {name!r:.80}: no name of a host")
    return host


def header(name: str, value: str) -> tuple[str, str]:
    """Check a header.

    Raises:
        BadRequest: for what could be read as more than one header.
    """
    if not isinstance(name, str) or not _HEADER.fullmatch(name):
        raise BadRequest(f"header {name!r:.80}: no name of a header")
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise BadRequest(f"header {name}: its value must be text without control characters")
    return name, value


def post(
    to: Destination,
    body: bytes,
    headers: Mapping[str, str],
    *,
    reach: Reach,
    limits: Limits,
    deadline: Deadline,
    tls: Callable[[], ssl.SSLContext],
    plain_http: bool,
    lines: Lines | None = None,
) -> Answer:
    """Post *body*; an answer of any status is an answer.

    Raises:
        AddressRefused: when the host has an address that is not to be called; nothing was sent.
        OSError, http.client.HTTPException: when there was none.
    """
    began = time.monotonic()
    places = reach.places(to.host, to.port, deadline.left(limits.connect))
    if not to.tls and not plain_http and not all(place.allowed for place in places):
        raise AddressRefused(f"{to.name}: http:// is not called, others could read along; plain_http=True would let it")
    sock, ip = _connected(places[:MOST_PLACES], limits, deadline)
    try:
        if lines is not None:
            lines.hold(sock)
        if to.tls:
            sock.settimeout(deadline.left(limits.connect))
            sock = tls().wrap_socket(sock, server_hostname=to.host.strip("[]"), do_handshake_on_connect=False)
            if lines is not None:
                lines.hold(sock)
            sock.do_handshake()
        channel = _Channel(sock, limits, deadline)
        connection = http.client.HTTPConnection(to.host, to.port)
        connection.response_class = _Final
        connection.sock = channel  # the three methods of a socket that it uses
        response = _exchanged(connection, to, body, headers)
        head = {name.lower(): _as_meant(value) for name, value in response.getheaders()}
        begin = _beginning(response, limits.kept)
    finally:
        sock.close()
    return Answer(response.status, response.reason, head, begin, ip, time.monotonic() - began)


def _connected(places: list[Place], limits: Limits, deadline: Deadline) -> tuple[socket.socket, str]:
    trouble: OSError | None = None
    for place in places:
        sock = socket.socket(place.family, socket.SOCK_STREAM)
        try:
            sock.settimeout(deadline.left(limits.connect))
            sock.connect(place.sockaddr)
        except OSError as error:
            sock.close()
            trouble = error
        else:
            return sock, place.ip
    raise trouble or OSError("no address")


def _as_meant(value: str) -> str:
    """Read a header's value as UTF-8 where it is some: http.client takes each byte for a letter of Latin 1."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def _exchanged(
    connection: http.client.HTTPConnection, to: Destination, body: bytes, headers: Mapping[str, str]
) -> http.client.HTTPResponse:
    connection.putrequest("POST", to.path, skip_host=True, skip_accept_encoding=True)
    own = {"Host": to.name, "Content-Length": str(len(body)), "Accept-Encoding": "identity", "Connection": "close"}
    for name, value in {**own, **headers}.items():
        connection.putheader(*header(name, value))
    try:
        connection.endheaders(body)
    except OSError as error:  # it may have answered before it had all: 413
        try:
            return connection.getresponse()
        except (OSError, http.client.HTTPException):
            raise error from None
    return connection.getresponse()


def _beginning(response: http.client.HTTPResponse, size: int) -> bytes:
    """Read the beginning of the body; the status has come and stands, whatever becomes of the rest."""
    body = b""
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        while len(body) < size and (more := response.read1(size - len(body))):
            body += more
    return body


class _Final(http.client.HTTPResponse):
    """The answer itself: what comes before it, such as 103 Early Hints, is none (RFC 9110, 15.2)."""

    def begin(self) -> None:
        """Read the head of the first that is final; the bound of all that is read holds for these, too."""
        super().begin()
        while self.status in _INTERIM:
            self.headers = self.msg = None  # type: ignore[assignment] # as before its own first
            super().begin()


class _Channel:
    """A socket as http.client uses it: every call is within the deadline, and what is read is bounded."""

    def __init__(self, sock: socket.socket, limits: Limits, deadline: Deadline) -> None:
        self._sock, self._limits, self._deadline = sock, limits, deadline

    def sendall(self, data: Any) -> None:
        """Send it all, each piece within the time that a read may take.

        Not by the socket's own sendall: under TLS that takes its timeout for each record, 16 kB, anew.
        """
        rest = memoryview(data)
        while rest:
            self._sock.settimeout(self._deadline.left(self._limits.read))
            rest = rest[self._sock.send(rest) :]

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Give what the answer is read from."""
        return io.BufferedReader(Reader(self._sock, self._limits, self._deadline))

    def close(self) -> None:
        """Leave that to whoever opened it."""


class Reader(io.RawIOBase):
    """What comes over a socket, within a deadline, and so many bytes."""

    def __init__(self, sock: socket.socket, limits: Limits, deadline: Deadline) -> None:
        self._sock, self._limits, self._deadline = sock, limits, deadline
        self._left = MOST_ANSWER

    def renew(self, deadline: Deadline) -> None:
        """Begin with another answer."""
        self._deadline, self._left = deadline, MOST_ANSWER

    def readable(self) -> bool:
        """Say yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what there is."""
        if self._left <= 0:
            raise AnswerTooLong(f"an answer of more than {MOST_ANSWER} bytes")
        self._sock.settimeout(self._deadline.left(self._limits.read))
        count = self._sock.recv_into(buffer, min(len(buffer), self._left))
        self._left -= count
        return count
