"""The demo's desk: the web pages on the demo's own database, for as long as it lasts, where the extra is installed."""

from __future__ import annotations

import importlib.util
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from redrive.queue import Queue

NEEDED = ("jinja2", "starlette", "uvicorn")


def serve(queue: Queue) -> tuple[str, Callable[[], None]] | None:
    """Serve it on a free port of this machine; gives its address and what ends it, None without the extra."""
    if any(importlib.util.find_spec(module) is None for module in NEEDED):
        return None
    import uvicorn

    from redrive.web import desk

    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(desk(queue, local=True, title="demo"), log_level="critical", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="desk", daemon=True)
    thread.start()

    def stop() -> None:
        server.should_exit = server.force_exit = True
        thread.join(5)
        listening.close()

    return f"http://127.0.0.1:{listening.getsockname()[1]}/", stop
