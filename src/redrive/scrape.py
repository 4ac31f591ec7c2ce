"""The worker's own small web server: ``/metrics`` for Prometheus, ``/health`` for whoever restarts workers.

Off unless a port is set, and bound to this machine alone unless somebody says otherwise: it asks for no password. A
port that is taken is tried again and complained of; no worker stops working for it.
"""

from __future__ import annotations

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from redrive import figures, stats
from redrive.masking import mask_text
from redrive.metrics import Gauge, Kept, OfFleet, OfWorker, Page, demand
from redrive.service import FOR_EVER, Database, Service

if TYPE_CHECKING:
    from collections.abc import Callable

    from redrive.connections import Control
    from redrive.figures import Figures
    from redrive.settings import Settings
    from redrive.tally import Tally

PATIENCE = 5.0
"""Seconds for which a scrape waits for the database."""


class Scrape(Service):
    """Answers whoever scrapes this worker."""

    name = "metrics"

    def __init__(
        self,
        database: Database,
        control: Control,
        settings: Settings,
        tally: Tally,
        *,
        complaints: Callable[[], str],
        in_flight: Callable[[], int],
        unwritten: Callable[[], int],
        more: dict[str, Gauge],
    ) -> None:
        super().__init__(database)
        self._control = control
        self._address = (settings.metrics_host, settings.metrics_port)
        self._complaints = complaints
        self._server: ThreadingHTTPServer | None = None
        self._page: Page | None = None
        self._kept = Kept()
        self._loop: asyncio.AbstractEventLoop | None = None
        if settings.metrics_port:
            demand()
            about = {"worker": database.worker, "version": version("redrive"), "app_version": settings.app_version}
            worker = OfWorker(tally.totals, about)
            worker.gauges = {
                "slots": ("Handlers that this worker can run at once.", lambda: settings.concurrency),
                "jobs_in_flight": ("Jobs that this worker holds.", in_flight),
                "outcomes_waiting": ("Outcomes that are not written yet.", unwritten),
                "healthy": ("Whether its loops turn and its last sign of life is fresh.", lambda: not complaints()),
                **more,
            }
            self._page = Page(worker, OfFleet(self._figures), process=True)

    @property
    def port(self) -> int:
        """The port that is listened at; 0 where there is none."""
        return self._server.server_address[1] if self._server is not None else 0

    async def tick(self) -> float:
        """Listen, if that is wanted and not done yet."""
        if self._page is None or self._server is not None:
            return FOR_EVER
        self._loop = asyncio.get_running_loop()
        try:
            self._server = _Server(self._address, _handler(self._page, self._complaints))
        except OSError as error:  # no outage of the database, as which the loop would take it
            raise RuntimeError(f"can't listen at {self._address[0]}:{self._address[1]}: {error}") from error
        threading.Thread(target=self._server.serve_forever, name="redrive-metrics", daemon=True).start()
        return FOR_EVER

    def close(self) -> None:
        """Listen no more."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _figures(self) -> Figures | None:
        return self._kept.get(self._ask)

    def _ask(self) -> Figures:
        """Ask the database, from a thread of the web server's, over the worker's connection for outcomes."""
        if self._loop is None or self.database.away_since:
            raise RuntimeError("the database is away")
        asked = asyncio.run_coroutine_threadsafe(self._look(), self._loop)
        try:
            return asked.result(PATIENCE)
        finally:
            asked.cancel()

    async def _look(self) -> Figures:
        schema = self._control.schema
        depths = await self._control.run(stats.depths(schema), timeout=PATIENCE)
        return figures.figures(depths, await self._control.run(figures.fleet(schema), timeout=PATIENCE))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


def _handler(page: Page, complaints: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._say(200, *page.render(self.headers.get("Accept", "")))
            elif path == "/health":
                wrong = mask_text(complaints())
                self._say(503 if wrong else 200, ((wrong or "healthy") + "\n").encode(), "text/plain; charset=utf-8")
            else:
                self._say(404, b"/metrics, /health\n", "text/plain; charset=utf-8")

        do_HEAD = do_GET  # noqa: N815 - the standard library's name

        def _say(self, status: int, text: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        def log_message(self, *_args: Any) -> None:
            """Say nothing: a scrape every few seconds is no news."""

    return Handler
