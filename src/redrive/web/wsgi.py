"""The desk for Flask and other WSGI applications, by way of a2wsgi.

Its event loop is begun in the process that answers, at the first request: one that was begun before a fork, as
gunicorn's ``--preload`` would have it, is in no child, and the desk would be silent there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from redrive.errors import RedriveError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Wsgi:
    """A WSGI application of the desk's *pages*."""

    def __init__(self, pages: Any) -> None:
        try:
            import a2wsgi  # noqa: PLC0415 - needed for WSGI only
        except ImportError as error:
            raise RedriveError("the desk under WSGI needs a2wsgi: pip install a2wsgi") from error
        self._bridge: Any = a2wsgi.ASGIMiddleware
        self._pages = pages
        self._bridges: dict[int, Any] = {}

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer a request."""
        bridge = self._bridges.get(os.getpid()) or self._bridges.setdefault(os.getpid(), self._bridge(self._pages))
        answer: Iterable[bytes] = bridge(environ, start_response)
        return answer


def as_wsgi(pages: Any) -> Wsgi:
    """Give ``desk(queue, ...)`` as a WSGI application, which any server may load before it forks.

    Raises:
        RedriveError: when a2wsgi is not installed.
    """
    return Wsgi(pages)
