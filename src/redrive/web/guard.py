"""Stands before every page: which host was asked, who asks, whether they may, and what the browser is told to refuse.

It decides by method and operator alone, so a new page is closed without being told so. A form has to come from the
desk's own pages: the browser says from where (Origin, Sec-Fetch-Site), and the token proves it.
"""

from __future__ import annotations

import base64
import inspect
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from redrive.web.operators import Access, Operator, Tries, operator
from redrive.web.sessions import COOKIE, LASTS, Session, Sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
OPEN = ("/login", "/static")
"""Paths that need no operator: the page to sign in, and what it looks like."""
BY_HEADER = ("/metrics",)
"""Paths for programs, which bring a password with each request (HTTP Basic) and can't sign in."""
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # no-referrer would turn the Origin of our own forms into null
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Robots-Tag": "noindex, nofollow",
}
VISIT = "redrive.desk"
"""Where in the scope a request's visit is."""


@dataclass
class Visit:
    """Who asks, and in which session."""

    session: Session
    token: str
    operator: Operator | None = None


def visit(request: Request) -> Visit:
    """Give the visit that a request belongs to."""
    found: Visit = request.scope[VISIT]
    return found


def address(request: Request) -> str:
    """Give the address that a request comes from; empty where the server does not say."""
    if request.client is not None:
        return request.client.host
    return str(request.scope.get("wsgi_environ", {}).get("REMOTE_ADDR", ""))  # through a2wsgi, of many servers


class Guard:
    """The gate, as an ASGI application around the pages."""

    def __init__(
        self,
        pages: ASGIApp,
        *,
        access: Access,
        sessions: Sessions,
        refused: Callable[[Request, int, str], Response],
        tries: Tries,
        hosts: Iterable[str] = (),
    ) -> None:
        self._tries = tries
        self._pages = pages
        self._access = access
        self._sessions = sessions
        self._refused = refused
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._pages(scope, receive, send)
            return  # no websockets here
        request = Request(scope, receive)
        fresh = False
        if (session := self._session(request)) is None:
            session, fresh = self._sessions.new(), True
        path = _path(scope)
        scope[VISIT] = Visit(session, self._sessions.token(session))

        async def decorated(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                # What the pages look like is asked for anew, and mostly answered by "not modified".
                headers.setdefault("Cache-Control", "no-cache" if path.startswith("/static/") else "no-store")
                if fresh and "set-cookie" not in headers and not path.startswith("/static"):
                    headers.append("Set-Cookie", self.cookie(request, session))
            await send(message)

        answer = await self._judge(request, path)
        await (answer or self._pages)(scope, receive, decorated)

    def cookie(self, request: Request, session: Session | None) -> str:
        """Write the header that sets the cookie, or takes it away."""
        response = Response()
        response.set_cookie(
            COOKIE,
            self._sessions.write(session) if session else "",
            max_age=LASTS if session else 0,
            path=request.scope.get("root_path") or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="lax",
        )
        return response.headers["set-cookie"]

    def _session(self, request: Request) -> Session | None:
        cookie = request.cookies.get(COOKIE)
        return self._sessions.read(cookie) if cookie else None

    async def _judge(self, request: Request, path: str) -> Response | None:
        if (why := self._wrong_host(request)) is not None:
            return PlainTextResponse(f"{why}\n", 421)
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("the desk knows GET and POST\n", 405)
        is_open = path in OPEN or path.startswith("/static/")
        who = visit(request).operator = await self._operator(request)
        if who is None and not is_open:
            return self._refused(request, 401, "Sign in to see this page.")
        if request.method == "POST":
            if (why := _foreign(request)) is not None:
                return self._refused(request, 403, why)
            if who is not None and not who.acts and path not in ("/login", "/logout"):
                return self._refused(request, 403, f"{who.name} may look, and not act.")
        return None

    async def _operator(self, request: Request) -> Operator | None:
        if self._access.signs_in:
            if _path(request.scope) in BY_HEADER and (given := _basic(request)) is not None:
                return self._scraper(request, given)
            session = visit(request).session
            if session.role not in self._access.passwords:
                return None
            return Operator(session.name or session.role, acts=session.role == "act")
        who = self._access.ask(request)
        return operator(await who if inspect.isawaitable(who) else who)

    def _scraper(self, request: Request, password: str) -> Operator | None:
        """Take the password of a program that can't sign in; it may look, whoever's it is."""
        whence = address(request)
        if self._tries.wait(whence):
            return None
        if self._access.role(password) is None:
            self._tries.failed(whence)
            return None
        return Operator("a program", acts=False)

    def _wrong_host(self, request: Request) -> str | None:
        host = request.headers.get("host", "")
        name = (urlsplit(f"//{host}").hostname or "").lower() if _well_formed(host) else ""
        if self._hosts and name not in self._hosts | set(LOOPBACK):
            return f"this desk is not {name!r}: name the host with --allow-host"
        if self._access.local and not self._access.passwords:
            if not _from_here(request):
                return "this desk answers to its own machine only: it needs no password"
            if name not in LOOPBACK and not name.endswith(".localhost"):
                return f"this desk answers to localhost only, not to {name!r}: it needs no password"
            if any(header in request.headers for header in FORWARDED):
                return (
                    "this desk answers to its own machine only, and this request came through a proxy: set a password"
                )
        return None


def _path(scope: Scope) -> str:
    """Give the path below where the desk is mounted, as the router sees it."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _from_here(request: Request) -> bool:
    """Tell whether a request comes from this machine; its Host alone is only what it says."""
    try:
        return ipaddress.ip_address(address(request)).is_loopback
    except ValueError:
        return False


def _basic(request: Request) -> str | None:
    """Give the password of the Authorization header, None where there is none that can be read."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(given, validate=True).decode().partition(":")[2]
    except ValueError:
        return None


def _well_formed(host: str) -> bool:
    return bool(host) and not any(character in host for character in "/?#@\\ ")


def _foreign(request: Request) -> str | None:
    """Say why a form did not come from a page of ours, None where it did."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is None and origin is None:
        return "The browser does not say from which page this form came, so it is refused."
    if site is not None and site != "same-origin":
        return "This form came from another site, so it is refused."
    if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower():
        return "This form came from another site, so it is refused."
    return None
