"""How the pages say things: times with their age, counts that admit their cap, strangers' text made harmless.

Jinja escapes whatever it is given; here is what must be done before: control characters are shown, not sent.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from redrive import words
from redrive.curtain import ends, gist
from redrive.job import moment
from redrive.masking import mask_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIRST, _LAST = moment(-(2**63)), moment(2**63)
MOST = 20_000
"""Characters of a document that a page shows."""
SIZES = ("bytes", "kB", "MB", "GB", "TB")


@cache
def environment() -> Environment:
    """Make the templates' world."""
    env = Environment(
        loader=PackageLoader("redrive.web"),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "when": when,
        "span": words.span,
        "exact": words.exact,
        "number": words.number,
        "jobs": words.jobs,
        "clean": lambda text: words.clean(str(text)),
        "line": lambda text, limit=0: words.one_line(str(text), limit),
        "gist": lambda text: words.one_line(gist(text), 300),
        "data": data,
        "cut": cut,
        "brief": brief,
        "size": size,
        "rate": rate,
        "quoted": quoted,
    }
    env.globals |= {"capped": capped, "masked": mask_text, "ends": ends}
    return env


def when(at: datetime | None, now: datetime, *, missing: str = "never") -> Markup:
    """Say how long ago, with the time itself for who asks."""
    if at is None:
        return Markup('<span class="none">{}</span>').format(missing)
    if at <= _FIRST or at >= _LAST:
        return Markup("<span>{}</span>").format("never" if at >= _LAST else "always")
    stamp = at.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        stamp.isoformat(), f"{stamp:%Y-%m-%d %H:%M:%S} UTC", words.ago(at, now)
    )


def data(value: Any) -> str:
    """Write JSON data, indented."""
    return words.clean(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def cut(text: str) -> str:
    """Leave the middle of a long text out, and say how much it was: a page of megabytes is of use to nobody."""
    if len(text) <= MOST:
        return text
    left = len(text) - MOST
    return f"{text[: MOST // 2]}\n... {words.number(left)} characters left out ...\n{text[-MOST // 2 :]}"


def brief(value: Any) -> str:
    """Write JSON data in a line of a list."""
    return words.one_line(json.dumps(value, ensure_ascii=False, default=str), 160)


def size(number: float) -> str:
    """Write a number of bytes."""
    for unit in SIZES[:-1]:
        if abs(number) < 1000:  # noqa: PLR2004 - a thousand of one is one of the next
            return f"{number:.0f} {unit}" if unit == "bytes" or number >= 10 else f"{number:.1f} {unit}"  # noqa: PLR2004 - two digits
        number /= 1000
    return f"{number:.1f} {SIZES[-1]}"


def rate(per_second: float) -> str:
    """Write a rate in the unit in which it is a number that people can read."""
    for unit, seconds in (("s", 1), ("min", 60), ("h", 3600), ("d", 86_400)):
        if per_second * seconds >= 1 or unit == "d":
            return f"{per_second * seconds:.3g}/{unit}"
    return ""


def capped(count: int, most: int) -> str:
    """Write a count that was broken off at a number as what it is: at least so many."""
    return f"{words.number(count)}+" if count >= most else words.number(count)


def quoted(text: str) -> str:
    """Write a value for the search box."""
    if text and not any(character.isspace() or character in '"\\,' for character in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Addresses:
    """The addresses of the pages, below wherever the desk is mounted."""

    def __init__(self, routes: Mapping[str, str], root: str) -> None:
        self._routes = routes
        self._root = root.rstrip("/")

    def __call__(self, page: str, /, query: Mapping[str, Any] | None = None, **params: Any) -> str:
        """Give the address of *page*, with what is not None as its query."""
        path = self._root + self._routes[page]
        for name, value in params.items():
            path = path.replace(f"{{{name}}}", quote(str(value)))
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return f"{path}?{urlencode(given, doseq=True, errors='replace')}" if given else path
