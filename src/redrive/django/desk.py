"""redrive's desk behind the project's own login: who may view jobs may look, who may send back and cancel may act.

It is a view like any other, under WSGI and ASGI alike: the project's middleware comes first, and its users are the
operators. The desk checks its forms itself. It needs ``redrive[web]``.
"""

from __future__ import annotations

import asyncio
from functools import cache
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.views.decorators.csrf import csrf_exempt

from redrive.django.ormqueue import plain_queue
from redrive.web import Operator, desk

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Scope

LOOK, ACT = ("redrive.view_job",), ("redrive.requeue_job", "redrive.cancel_job")
OPERATOR = "redrive.django.operator"


@csrf_exempt
def page(request: HttpRequest, below: str = "") -> HttpResponse:
    """Show a page of the desk, or do what a form of it asks for.

    Raises:
        PermissionDenied: for a user who may not view jobs.
    """
    user: Any = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return redirect_to_login(request.get_full_path())
    if not user.has_perms(LOOK):
        raise PermissionDenied("redrive's desk is for users with the permission to view jobs")
    home = request.path[: len(request.path) - len(below)]
    if not home.endswith("/"):
        return HttpResponseRedirect(f"{request.path}/")
    return async_to_sync(_answer)(_scope(request, home.rstrip("/"), user), request.body)


async def _answer(scope: Scope, body: bytes) -> HttpResponse:
    response = HttpResponse()
    parts: list[bytes] = []

    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    answered = asyncio.Event()

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await answered.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            response.status_code = message["status"]
            for name, value in message["headers"]:
                _write_header(response, name.decode("latin-1"), value.decode("latin-1"))
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                answered.set()

    await _desk()(scope, receive, send)
    response.content = b"".join(parts)
    return response


def _write_header(response: HttpResponse, name: str, value: str) -> None:
    if name.lower() == "set-cookie":
        response.cookies.update(SimpleCookie(value))
    elif name.lower() != "content-length":  # Django's own middleware writes it
        response.headers[name] = value


def _scope(request: HttpRequest, root: str, user: Any) -> Scope:
    # The host as the project sees it, which behind a proxy may be another: the browser's Origin is compared with it.
    said = {**{name.lower(): value for name, value in request.headers.items()}, "host": request.get_host()}
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in said.items()]
    whence = request.META.get("REMOTE_ADDR")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1"),
        "root_path": root,
        "headers": headers,
        "client": (whence, 0) if whence else None,
        "server": None,
        OPERATOR: Operator(user.get_username(), acts=user.has_perms(ACT)),
    }


@cache
def _desk() -> ASGIApp:
    return desk(plain_queue(), user=lambda request: request.scope[OPERATOR])
