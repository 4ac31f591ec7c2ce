"""Signing in and out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse, Response

from redrive.web.guard import address, visit
from redrive.web.page import Done, Form, Page
from redrive.words import clean

if TYPE_CHECKING:
    from starlette.requests import Request

    from redrive.web.app import Desk

LONGEST_NAME = 80


def login_page(desk: Desk, request: Request) -> Page | Response:
    """Show the page to sign in, where there is one."""
    if not desk.access.signs_in or visit(request).operator is not None:
        return RedirectResponse(desk.addresses(request)("now"), 303)
    return Page("login.html", {"onward": "", "said": ""})


def sign_in(desk: Desk, request: Request, form: Form) -> Page | Response:
    """Take a password."""
    whence = address(request)
    onward = form.text("onward")
    if not desk.access.signs_in:
        return RedirectResponse(desk.addresses(request)("now"), 303)
    if wait := desk.tries.wait(whence):
        said = f"Too many wrong passwords: try again in {math.ceil(wait)} s."
        return Page("login.html", {"onward": onward, "said": said}, 429)
    role = desk.access.role(form.text("password"))
    if role is None:
        desk.tries.failed(whence)
        return Page("login.html", {"onward": onward, "said": "That is not the password."}, 401)
    desk.tries.succeeded(whence)
    name = clean(form.text("name"))[:LONGEST_NAME]
    session = desk.sessions.new(f"{name} ({role})" if name else role, role)
    answer = RedirectResponse(_within(desk, request, onward), 303)
    answer.headers["Set-Cookie"] = desk.cookie(request, session)
    return answer


def sign_out(desk: Desk, request: Request, form: Form) -> Done | Response:  # noqa: ARG001 - as every action
    """End the session in this browser."""
    answer = RedirectResponse(desk.addresses(request)("login" if desk.access.signs_in else "now"), 303)
    answer.headers["Set-Cookie"] = desk.cookie(request, None)
    return answer


def _within(desk: Desk, request: Request, onward: str) -> str:
    """Go on to the page that was asked for, if it is one of the desk's: never to another site."""
    home = desk.addresses(request)("now")
    inert = not any(character in onward for character in "\\\r\n\t") and not onward.startswith(("//", "/\\"))
    return onward if inert and onward.startswith(home) and not onward.startswith(f"{home}/") else home
