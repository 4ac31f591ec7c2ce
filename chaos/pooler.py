"""Pgbouncer in transaction mode, as hosted databases put it in front of their servers."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from chaos.patience import wait_for
from chaos.programs import TETHER
from redrive.dev_server.supervisor import account

PGBOUNCER = """\
[databases]
* = {server}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
server_login_retry = {retry}
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
"""


@contextlib.contextmanager
def pooler(program: str, dsn: str, *, size: int = 2, retry: int = 15) -> Iterator[str]:
    """Run pgbouncer in transaction mode, *size* server connections a database, in front of *dsn*'s server.

    Args:
        program: where pgbouncer is.
        dsn: the server.
        size: as default_pool_size.
        retry: seconds after which it tries anew where the server did not answer; 15 is its own default.

    It ignores the one startup parameter that the common drivers send unasked; `options` it refuses, as many a
    pooler in production does.
    """
    to = conninfo_to_dict(dsn)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    who = account()
    directory = Path(tempfile.mkdtemp(prefix="redrive-pgbouncer-"))  # pytest's own are closed to the account
    config = directory / "pgbouncer.ini"
    server = make_conninfo("", **{key: to[key] for key in ("host", "port", "user", "password") if to.get(key)})
    config.write_text(PGBOUNCER.format(server=server, port=port, size=size, retry=retry))
    if who:
        for path in (directory, config):
            os.chown(path, who["user"], who["group"])
    through = make_conninfo("", host="127.0.0.1", port=port, user=to.get("user") or "postgres", dbname=to["dbname"])
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([*TETHER, program, "-q", config], stdout=log, stderr=log, cwd="/", **who)
    try:
        wait_for(lambda: process.poll() is not None or _listens(port))
        if process.poll() is not None:
            raise RuntimeError((directory / "log").read_text())
        yield through
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
