"""``redrive ui``: the web desk, served from this machine, and to this machine alone unless a password is set."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.exits import Trouble
from redrive.cli.options import application, connected, database, examples
from redrive.cli.target import load_queue

if TYPE_CHECKING:
    from redrive.queue import Queue

PORT = 8100


@click.command(
    short_help="Serve the web desk.",
    epilog=examples(
        "redrive ui                                        # http://127.0.0.1:8100, for this machine alone",
        "redrive ui --app app.jobs:queue                   # knows timeouts, and which kinds are sensitive",
        "REDRIVE_UI_PASSWORD=... redrive ui --host 0.0.0.0",
        "redrive ui --read-only --title production",
    ),
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=PORT, show_default=True, help="0 for any free one.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="Answer to this name alone, or these.")
@click.option("--root-path", default="", metavar="PATH", help="Where a proxy has it: /redrive.")
@click.option("--title", default="", metavar="TEXT", help="Shown beside the name: production.")
@click.option("--read-only", is_flag=True, help="Let nobody act.")
@application
@database
def ui(
    *,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    root_path: str,
    title: str,
    read_only: bool,
    app: str | None,
    database_url: str | None,
    schema: str | None,
) -> None:
    """Serve the web desk: what the jobs do, what failed and why, and what can be done about it.

    It listens on this machine alone. Beyond it, it does not start without a password in REDRIVE_UI_PASSWORD for those
    who may act; REDRIVE_UI_LOOK_PASSWORD is for those who may look. Put TLS in front of it, as of any page with a
    password.
    """
    try:
        import uvicorn

        from redrive.web import desk
        from redrive.web.operators import VARIABLES
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("redrive"):
            raise
        raise Trouble(f"{error.name} is not installed: pip install 'redrive[web]'") from error
    queue = _queue(app, database_url, schema)
    local = not any(os.environ.get(variable) for variable in VARIABLES.values())
    if local and not loopback(host):
        raise click.UsageError(
            f"--host {host} lets others in: set REDRIVE_UI_PASSWORD to a password of at least 8 characters, and if you "
            "like REDRIVE_UI_LOOK_PASSWORD for those who may only look"
        )
    pages = desk(queue, local=local, hosts=hosts, read_only=read_only, title=title)
    how: dict[str, Any] = {"log_level": "warning", "server_header": False, "lifespan": "off", "ws": "none"}
    config = uvicorn.Config(pages, root_path=root_path, **how)
    with _listen(host.strip("[]"), port) as listening:
        shown = f"[{host.strip('[]')}]" if ":" in host else host
        click.echo(f"the desk is at http://{shown}:{listening.getsockname()[1]}{root_path}/")
        # uvicorn ends well, and then says each signal again to whoever had it before.
        signal.signal(signal.SIGTERM, lambda *_: None)
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])
    queue.close()


def _listen(host: str, port: int) -> socket.socket:
    """Listen before anybody is told where."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise Trouble(
            f"can't listen on {host} at port {port}: {os.strerror(error.errno or 0)}; --port 0 takes a free one"
        ) from error


def loopback(host: str) -> bool:
    """Tell whether an address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _queue(app: str | None, database_url: str | None, schema: str | None) -> Queue:
    if app is None:
        return connected(database_url, schema)
    queue = load_queue(app)
    if database_url or schema:
        given = {"database_url": database_url, "schema": schema}
        from redrive.settings import load

        queue.settings = load({**vars(queue.settings), **{name: value for name, value in given.items() if value}})
    return queue
