"""The pictures of the desk in the documentation, taken from a database that real workers have worked on.

``make desk-pictures`` plays an hour of a small shop, minute by minute, on a clock that is moved: jobs are enqueued and
run, a mail server goes away for some minutes, one customer's webhook answers 410. Then Chromium looks at the desk.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import uvicorn
from psycopg.conninfo import make_conninfo

from redrive import Dead, Queue
from redrive.backoff import fixed
from redrive.dev_server import DevServer
from redrive.migrate import migrate
from redrive.web import desk

DOCS = Path(__file__).parents[1] / "docs"
MINUTES = 55
AWAY = range(24, 31)
"""Minutes ago in which the mail server was away."""
NEW_VERSION = 20
"""Minutes ago at which a new version of the application came."""
PICTURES: dict[str, tuple[str, str, int, int]] = {
    "desk-now.png": ("/", "light", 1200, 860),
    "desk-dead-letters.png": ("/dead", "light", 1200, 430),
    "desk-job.png": ("/jobs/{dead}", "dark", 1200, 800),
    "desk-phone.png": ("/", "dark", 390, 800),
}
"""Of each: the page, the colours, and its width and height."""

DEAD_AND_WORKED_ON = """
    SELECT max(id) FROM redrive.jobs WHERE status = 'dead' AND kind = 'export_invoice'
    HAVING max(id) > 0
       AND (SELECT count(*) FROM redrive.workers WHERE heartbeat_at > now() - interval '10 s') >= 2
       AND NOT EXISTS (SELECT FROM redrive.jobs WHERE status = 'pending' AND run_at < now())
"""

minute = 0
"""Which minute is played, counted back from now."""


class MailServerGone(ConnectionError):
    """The mail server does not answer."""


def shop(url: str, **settings: Any) -> Queue:
    """Make the application on a connection whose clock is moved, or not."""
    queue = Queue(url, **settings)

    @queue.handler("send_email", max_attempts=4, timeout=30, backoff=fixed(40))
    def send_email(payload: dict[str, Any]) -> None:
        time.sleep(random.uniform(0.001, 0.02))
        if minute in AWAY:
            raise MailServerGone(f"[Errno 111] connect to mail.example:25, for {payload['to']}: connection refused")

    @queue.handler("call_webhook", max_attempts=3, timeout=30, backoff=fixed(45))
    def call_webhook(payload: dict[str, Any]) -> None:
        time.sleep(random.uniform(0.002, 0.03))
        if payload["customer"] == 7:  # noqa: PLR2004 - the one that has gone
            raise Dead(f"410 Gone from https://hooks.customer-7.example/orders/{payload['order']}")

    @queue.handler("export_invoice", max_attempts=3, timeout=60, backoff=fixed(30))
    def export_invoice(payload: dict[str, Any]) -> None:
        time.sleep(random.uniform(0.02, 0.08))
        if payload["invoice"] % 41 == 0:
            raise ValueError(f"invoice {payload['invoice']}: page 3 of 4 has no lines")

    return queue


def main() -> int:
    """Play, and take the pictures."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("there is no Chromium here to take pictures with", file=sys.stderr)  # noqa: T201 - for whoever runs it
        return 1
    for name in [name for name in os.environ if name.startswith("REDRIVE_")]:
        del os.environ[name]
    os.environ["LOGNAME"] = "ada"  # who sits at the desk
    random.seed(7)
    with DevServer() as server:
        migrate(server.url)
        play(server.url)
        queue = shop(server.url, app_version="2.4.1")
        dead = live(queue, server.url)
        listening = socket.create_server(("127.0.0.1", 0))
        pages = desk(queue, local=True, title="production", user=None)
        serving = uvicorn.Server(uvicorn.Config(pages, log_level="warning", lifespan="off", ws="none"))
        threading.Thread(target=serving.run, kwargs={"sockets": [listening]}, daemon=True).start()
        photograph(chromium, f"http://localhost:{listening.getsockname()[1]}", dead)
        serving.should_exit = True
        queue.close()
    return 0


def play(url: str) -> None:
    """Play the hour."""
    global minute  # noqa: PLW0603 - the handlers look at it
    with psycopg.connect(url, autocommit=True) as conn:
        for ago in range(MINUTES, 0, -1):
            minute = ago
            moved = make_conninfo(url, options=f"-c redrive.clock_offset=-{ago}min")
            queue = shop(moved, app_version="2.4.1" if ago <= NEW_VERSION else "2.4.0", listen=False)
            enqueue(queue, MINUTES - ago)
            conn.execute("update redrive.jobs set created_at = run_at where attempts = 0 and created_at > run_at")
            queue.run(once=True)
            queue.close()
            print(".", end="", file=sys.stderr, flush=True)  # noqa: T201 - it takes a minute
    minute = 0


def enqueue(queue: Queue, number: int) -> None:
    """Enqueue what a minute brings."""
    for order in range(number * 20, number * 20 + random.randint(12, 20)):
        queue.enqueue(
            "send_email", {"to": f"user{order}@example.com", "subject": f"Order {order}"}, lane=f"shop-{order % 3}"
        )
        if order % 3 == 0:
            queue.enqueue("call_webhook", {"order": order, "customer": order % 11})
        if order % 4 == 0:
            queue.enqueue("export_invoice", {"invoice": order})


def live(queue: Queue, url: str) -> int:
    """Let workers live and something wait; gives a job that is dead."""
    for worker in range(2):
        threading.Thread(target=asyncio.run, args=(queue.worker(concurrency=4 + worker).run(),), daemon=True).start()
    queue.schedules.add(
        "nightly-report", "export_invoice", "0 3 * * *", timezone="Europe/Berlin", payload={"invoice": 1}
    )
    for order in range(5000, 5040):
        queue.enqueue("send_email", {"to": f"user{order}@example.com"}, delay=random.randint(60, 3600))
    queue.kinds.pause("newsletter", by="ada", reason="waits for the new template")
    with psycopg.connect(url, autocommit=True) as conn:
        found = None
        while found is None:
            time.sleep(1)
            found = conn.execute(DEAD_AND_WORKED_ON).fetchone()
    time.sleep(12)  # until the workers have written what they counted
    return int(found[0])


def photograph(chromium: str, address: str, dead: int) -> None:
    """Take the pictures."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only who takes pictures has it

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (path, colours, width, height) in PICTURES.items():
            size = {"width": width, "height": height}
            context = browser.new_context(color_scheme=colours, viewport=size)  # type: ignore[arg-type] # light or dark; both are whole numbers
            page = context.new_page()
            page.goto(address + path.format(dead=dead))
            page.wait_for_selector("text=Live")
            page.screenshot(path=DOCS / name)
            print(f"\n{name}: {(DOCS / name).stat().st_size // 1000} kB", file=sys.stderr)  # noqa: T201 - for whoever runs it
            context.close()
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
