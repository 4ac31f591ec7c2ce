"""A handler that runs in a child process of its own."""

from __future__ import annotations

import os

from redrive.django import queue
from shop.models import Order


@queue.handler("apart", isolation="process", timeout=60)
def apart(payload):
    return {"orders": Order.objects.filter(email=payload["email"]).count(), "pid": os.getpid()}
