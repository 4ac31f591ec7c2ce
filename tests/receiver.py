"""A receiver of webhooks as tests want it: a real socket that notes what came, and answers in any way, also badly."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest


@dataclass(frozen=True)
class Request:
    """What came."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def path(self) -> str:
        return self.line.split(" ")[1]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str:
        [value] = [value for each, value in self.headers if each.lower() == name]
        return value


def answer(status: int = 204, body: bytes = b"", *headers: str, reason: str = "Whatever") -> bytes:
    """Write an answer as it goes over the wire."""
    head = [f"HTTP/1.1 {status} {reason}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def certified(where: Path, name: str) -> tuple[str, str]:
    """Make a key, and a certificate for *name* that nobody has signed but itself."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    key, cert = str(where / "key.pem"), str(where / "cert.pem")
    curve = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        f"/CN={name}",
    ]
    more = [f"subjectAltName=DNS:{name}", "keyUsage=critical,digitalSignature,keyCertSign"]
    told = [part for each in more for part in ("-addext", each)]
    made = ["openssl", "req", "-x509", "-subj", f"/CN={name}", *curve, *told, "-keyout", key, "-out", cert]
    subprocess.run(made, check=True, capture_output=True)
    return key, cert


Reply = bytes | Callable[[Request, socket.socket], None]


class Receiver:
    """Listens on a port of this machine until the test ends. `reply` is bytes, or a function that writes."""

    def __init__(self, reply: Reply | None = None, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.reply = answer() if reply is None else reply
        self.requests: list[Request] = []
        self.connections = 0
        self.closing = threading.Event()
        self._tls = tls
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, 0), family=family)
        self.port = self._listening.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in (self._thread, *self._threads):
            thread.join(5)

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), contextlib.closing(connection):
            connection.settimeout(5)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with contextlib.closing(connection), connection.makefile("rb") as came:
                line = came.readline().decode().strip()
                headers = []
                while text := came.readline().decode().strip():
                    name, _, value = text.partition(": ")
                    headers.append((name, value))
                size = int({name.lower(): value for name, value in headers}.get("content-length", 0))
                request = Request(line, headers, came.read(size))
                self.requests.append(request)
                if callable(self.reply):
                    self.reply(request, connection)
                else:
                    connection.sendall(self.reply)
