"""What Prometheus scrapes at the desk: how it stands with all workers and kinds. Behind the gate, as every page.

A scraper has no cookie: it brings a password with each request, see :data:`redrive.web.guard.BY_HEADER`.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

from starlette.responses import Response

from redrive.metrics import Fleet
from redrive.web.readings import at_broker

if TYPE_CHECKING:
    from starlette.requests import Request

    from redrive.amqp.management import Broker
    from redrive.web.app import Desk


def metrics(desk: Desk, request: Request) -> Response:
    """Answer a scrape."""
    fleet = desk.shared.get("fleet", math.inf, lambda: Fleet(desk.reader, broker=lambda: _broker(desk)))
    text, content_type = fleet.page(request.headers.get("accept", ""))
    return Response(text, headers={"content-type": content_type})


def _broker(desk: Desk) -> Broker | None:
    with contextlib.suppress(Exception):  # the database is away: which kinds go there is not known
        return at_broker(desk)
    return None
