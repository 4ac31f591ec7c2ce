"""Makes the desk: an ASGI application out of a queue, its pages behind the guard."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import psycopg
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from redrive import situation
from redrive.connections import is_outage
from redrive.curtain import Curtain
from redrive.errors import InvalidOption, NoDatabase, RedriveError
from redrive.masking import mask_text
from redrive.web import shown
from redrive.web.guard import Guard, visit
from redrive.web.operators import Access, Tries, given_passwords
from redrive.web.page import Done, Form, Page, Refused
from redrive.web.reader import Place, Reader, Shared
from redrive.web.sessions import Session, Sessions
from redrive.words import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from redrive.queue import Queue
    from redrive.web.operators import Hook

LARGEST_FORM = 4_000_000
MOST_FIELDS = 5_000
NOTE = "redrive_desk_note"
_NO_TABLES = ("42P01", "3F000", "42883", "42703")


class Desk:
    """The desk: an ASGI application."""

    def __init__(self, queue: Queue, access: Access, *, hosts: Iterable[str], read_only: bool, title: str) -> None:
        from redrive.web.routes import routes  # noqa: PLC0415 - the pages know the desk, and it knows them when it is made

        self.queue = queue
        self.access = access
        self.title = title
        self.reader = Reader(queue)
        self.shared = Shared()
        self.tries = Tries()
        self.curtain = Curtain.of(queue.handlers)
        self.timeouts = situation.timeouts(queue.handlers)
        # Of several processes each has to know the others' forms, and all of them have the same database.
        self.sessions = Sessions(access.passwords, f"redrive desk {queue.schema}", queue.settings.database_url)
        self._read_only = read_only
        static = StaticFiles(directory=str(files("redrive.web").joinpath("static")))
        own = routes(self)
        self._routes = {route.name: route.path for route in own} | {"static": "/static/{path}"}
        self.app = Starlette(
            routes=[*own, Mount("/static", static, name="static")],
            exception_handlers={HTTPException: self._http_error, Exception: self._error},
        )
        self._guard = Guard(
            self.app, access=access, sessions=self.sessions, refused=self.refused, tries=self.tries, hosts=hosts
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._guard(scope, receive, send)

    # -- what pages and actions are made of

    def view(self, view: Callable[[Desk, Request], Page | Response]) -> Callable[[Request], Response]:
        """Make an endpoint of a page."""

        def endpoint(request: Request) -> Response:
            return self._answered(request, partial(view, self, request))

        return endpoint

    def action(
        self, action: Callable[[Desk, Request, Form], Done | Page | Response], *, writes: bool = True
    ) -> Callable[[Request], Any]:
        """Make an endpoint of an action: its form carries the session's token, and where it *writes*, the desk may."""

        def carried_out(request: Request, form: Form) -> Done | Page | Response:
            if writes:
                self._demand_writable()
            return action(self, request, form)

        async def endpoint(request: Request) -> Response:
            form = await self._form(request)
            if form is None:
                return self.refused(request, 413, "This form is larger than the desk takes.")
            if not self.sessions.matches(visit(request).session, form.text("token")):
                return self.refused(request, 403, "This form is from an older session: go back, reload and try again.")
            return await run_in_threadpool(self._answered, request, partial(carried_out, request, form))

        return endpoint

    def place(self) -> Place:
        """Look where the desk is, and whether it may write there."""
        return self.shared.get("place", 30.0, self.reader.place)

    def now(self) -> datetime:
        """Give the time by the database's clock, carried on from when it was read."""
        place = self.place()
        return place.now + timedelta(seconds=time.monotonic() - place.read_at)

    def addresses(self, request: Request) -> shown.Addresses:
        """Give what knows the address of each page."""
        return shown.Addresses(self._routes, request.scope.get("root_path", ""))

    def cookie(self, request: Request, session: Session | None) -> str:
        """Write the header that begins or ends a session in the browser."""
        return self._guard.cookie(request, session)

    def by(self, request: Request) -> str:
        """Name who acts, for the audit."""
        who = visit(request).operator
        return who.name if who else ""

    def refused(self, request: Request, status: int, why: str) -> Response:
        """Answer a request that may not pass."""
        if status == 401 and self.access.signs_in:  # noqa: PLR2004 - the page to sign in
            query = f"?{request.url.query}" if request.url.query else ""
            here = request.url.path + query if request.method == "GET" else ""
            return self._render(request, Page("login.html", {"onward": here, "said": ""}, 401))
        return self._render(request, Page("message.html", {"title": "Not allowed", "text": why}, status))

    # -- how

    def _demand_writable(self) -> None:
        """Refuse to act where the desk can only look.

        Raises:
            Refused: saying why.
        """
        if self._read_only:
            raise Refused("This desk is for looking only.")
        if not (place := self.place()).writable:
            raise Refused(f"This desk can only look: {place.why_not}.")

    async def _form(self, request: Request) -> Form | None:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > LARGEST_FORM:
                return None
        try:
            text = body.decode()
            return Form(parse_qs(text, keep_blank_values=True, max_num_fields=MOST_FIELDS))
        except ValueError:
            return None

    def _answered(self, request: Request, work: Callable[[], Any]) -> Response:
        try:
            made = work()
        except (InvalidOption, RedriveError, Refused) as error:
            made = self._trouble(error)
        except psycopg.Error as error:
            made = self._of_database(error)
        if isinstance(made, Done):
            self.shared.forget()
            to = self.addresses(request)(made.page, made.query, **made.params)
            answer: Response = RedirectResponse(to, 303)
            note = self.sessions.seal(("!" if made.bad else "") + made.said)
            answer.set_cookie(NOTE, note, max_age=60, path=_root(request), httponly=True, samesite="lax")
            return answer
        return made if isinstance(made, Response) else self._render(request, made)

    def _render(self, request: Request, page: Page) -> Response:
        said = self.sessions.unseal(request.cookies.get(NOTE, ""))
        here = visit(request)
        context = {
            "path": self.addresses(request),
            "operator": here.operator,
            "token": here.token,
            "signs_in": self.access.signs_in,
            "title_of_desk": self.title,
            "here": request.url.path,
            "note": said.removeprefix("!"),
            "note_bad": said.startswith("!"),
            "place": None,
            "may_act": False,
            "looks_only": "",
            "nav": "",
            "back": _back(request) if page.status == 400 else "",  # noqa: PLR2004 - what was asked can be asked better
            "knows_handlers": bool(self.timeouts or self.curtain.sensitive or list(self.queue.handlers)),
            **page.context,
        }
        if here.operator is not None and (place := self._place_if_any()) is not None:
            why = "this desk is for looking only" if self._read_only else place.why_not
            may_act = here.operator.acts and not why
            context |= {"place": place, "looks_only": why, "may_act": may_act, "now": context.get("now", self.now())}
        template = shown.environment().get_template(page.template)
        answer = HTMLResponse(template.render(context), page.status)
        if said:
            answer.delete_cookie(NOTE, path=_root(request))
        return answer

    def _place_if_any(self) -> Place | None:
        """Look where the desk is; a page that tells of trouble with the database is shown all the same."""
        try:
            return self.place()
        except (psycopg.Error, RedriveError):
            return None

    def _trouble(self, error: Exception) -> Page:
        if isinstance(error, NoDatabase):
            return Page("message.html", {"title": "No database", "text": one_line(mask_text(str(error)))}, 503)
        return Page("message.html", {"title": "That can't be done", "text": one_line(mask_text(str(error)))}, 400)

    def _of_database(self, error: psycopg.Error) -> Page:
        state = error.sqlstate or ""
        text = one_line(mask_text(str(error)))
        if isinstance(error, psycopg.errors.QueryCanceled):
            return Page(
                "message.html",
                {"title": "That took too long", "text": "The database did not answer in time; nothing was changed."},
                504,
            )
        if state in _NO_TABLES:
            text = f'Schema "{self.queue.schema}" is missing in this database, or too old: run redrive migrate.'
            return Page("message.html", {"title": "Not installed", "text": text}, 503)
        if isinstance(error, psycopg.errors.InsufficientPrivilege | psycopg.errors.ReadOnlySqlTransaction):
            return Page("message.html", {"title": "Not allowed", "text": f"The database refused: {text}"}, 503)
        title = "The database can't be reached" if is_outage(error) else "The database refused"
        return Page("message.html", {"title": title, "text": text}, 503)

    def _http_error(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        title, text = "That is not how", str(getattr(error, "detail", ""))
        if status == 404:  # noqa: PLR2004 - not found
            title, text = "Not found", "There is no such page." if text in ("", "Not Found") else text
        return self._render(request, Page("message.html", {"title": title, "text": text}, status))

    def _error(self, request: Request, error: Exception) -> Response:
        """Answer after a fault of our own; the server logs it, with its traceback."""
        kind = type(error).__name__
        text = f"A fault of the desk's own ({kind}); the log of its process says where."
        return self._render(request, Page("message.html", {"title": "Something broke here", "text": text}, 500))


def desk(
    queue: Queue,
    *,
    password: str | None = None,
    look_password: str | None = None,
    user: Hook | None = None,
    local: bool = False,
    hosts: Iterable[str] = (),
    read_only: bool = False,
    title: str = "",
) -> ASGIApp:
    """Make the desk of *queue*, an ASGI application to be served or mounted.

    Args:
        queue: whose jobs; the kinds that its handlers call sensitive are hidden.
        password: of those who may act; REDRIVE_UI_PASSWORD where it is not given.
        look_password: of those who may look only; REDRIVE_UI_LOOK_PASSWORD where it is not given.
        user: instead of passwords, a function of the request, sync or async, that gives an :class:`Operator`, a name,
            or None for somebody who may not enter.
        local: let in whoever asks from this machine, under the name localhost; for development.
        hosts: names that the desk answers to, where it is not to answer to all.
        read_only: let nobody act.
        title: shown beside the name, such as production.

    Raises:
        InvalidOption: when nothing says who may enter, or a password is too short.
    """
    passwords = {} if user is not None and password is None else given_passwords(password, look_password)
    access = Access(passwords=passwords, hook=user, local=local)
    return Desk(queue, access, hosts=hosts, read_only=read_only, title=title)


def _back(request: Request) -> str:
    """Tell from which page of the desk a form came; nothing that leads elsewhere."""
    came = urlsplit(request.headers.get("referer", ""))
    if came.netloc != request.url.netloc or not came.path.startswith("/") or came.path.startswith("//"):
        return ""
    return f"{came.path}?{came.query}" if came.query else came.path


def _root(request: Request) -> str:
    root: str = request.scope.get("root_path", "")
    return root or "/"
