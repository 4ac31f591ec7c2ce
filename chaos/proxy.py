"""A network that can be made to fail: a TCP proxy which cuts, freezes, delays, half-closes, or swallows an answer."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

CHUNK = 1 << 16
APPLICATION = b"application_name\0"


class Link:
    """One client's connection through the proxy."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.application = ""
        """What the client called itself, as pg_stat_activity shows it."""
        self.swallowing = False
        """The server's next answer is not delivered, and the line is cut."""
        self.dead = False
        """Nothing comes through any more, and neither end is told."""
        self._lock, self._directions = threading.Lock(), 2

    def ended(self) -> bool:
        """Learn that one direction has come to its end; gives whether both have."""
        with self._lock:
            self._directions -= 1
            return not self._directions

    def cut(self) -> None:
        """End it at both ends, without a goodbye."""
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give both sockets back."""
        self.client.close()
        self.server.close()


class Proxy:
    """Stands in front of a server: ``with Proxy(dsn) as proxy: connect(proxy.dsn)``."""

    def __init__(self, dsn: str) -> None:
        self.lead_to(dsn)
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        port = self._listening.getsockname()[1]
        self.dsn = make_conninfo(dsn, host="127.0.0.1", port=port, sslmode="disable", gssencmode="disable")
        self.links: list[Link] = []
        self.delay = 0.0
        """Seconds that each packet takes."""
        self.refusing = False
        self.refused = 0
        """How often somebody was."""
        self.swallowed = threading.Event()
        self._swallow: tuple[str, bytes, bytes] | None = None
        self._flows = threading.Event()
        self._flows.set()
        self._speaks = threading.Event()
        self._speaks.set()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._run(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._flows.set()
        self._speaks.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()
        for thread in self._threads:
            thread.join(5)
        for link in list(self.links):
            link.close()

    def lead_to(self, dsn: str) -> None:
        """Lead new connections to another server, as an address does that moves in a failover."""
        to = conninfo_to_dict(dsn)
        self._to = (str(to["host"]), int(str(to["port"])))

    def of(self, role: str) -> list[Link]:
        """Links of the workers' sessions for *role*: claim, outcome, heartbeat or listen."""
        return [link for link in list(self.links) if link.application.startswith(f"redrive {role} ")]

    def cut(self, role: str = "") -> int:
        """End every connection, or those of one role; gives how many there were."""
        links = self.of(role) if role else list(self.links)
        for link in links:
            link.cut()
        return len(links)

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Cut all connections and refuse new ones meanwhile."""
        self.refusing = True
        self.cut()
        try:
            yield
        finally:
            self.refusing = False

    @contextlib.contextmanager
    def black_hole(self) -> Iterator[None]:
        """Let nothing through meanwhile, neither data nor the end of a connection; connections are still taken."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Let the server hear all and say nothing meanwhile: what is asked for is done, and nobody is told."""
        self._speaks.clear()
        try:
            yield
        finally:
            self._speaks.set()

    def half_close(self, role: str) -> int:
        """Say to the clients that the server says no more, while still hearing them out; gives how many there were."""
        links = self.of(role)
        for link in links:
            with contextlib.suppress(OSError):
                link.client.shutdown(socket.SHUT_WR)
        return len(links)

    def swallow_answer(self, role: str, *, to: bytes = b"", of: bytes = b"") -> None:
        """Cut the line of *role* in place of its next answer *to* a statement with these bytes, or matched by *of*."""
        self.swallowed.clear()
        self._swallow = (role, to, of)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if self.refusing:
                self.refused += 1
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
                continue
            try:
                server = self._reach()
            except OSError:
                client.close()
                continue
            link = Link(client, server)
            self.links.append(link)
            self._run(self._upstream, link)
            self._run(self._downstream, link)

    def _reach(self) -> socket.socket:
        return socket.create_connection(self._to)

    def _run(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        thread.start()

    def _upstream(self, link: Link) -> None:
        with self._told(link):
            while data := link.client.recv(CHUNK):
                if not link.application and APPLICATION in data:
                    link.application = data.split(APPLICATION, 1)[1].split(b"\0", 1)[0].decode()
                self._pass()
                wanted = self._swallow  # taken once: another link's thread may be done with it meanwhile
                if wanted and wanted[1] and link in self.of(wanted[0]):
                    link.swallowing = wanted[1] in data
                if not link.dead:
                    link.server.sendall(data)
            self._pass()
            if not link.dead:
                link.server.shutdown(socket.SHUT_WR)

    def _downstream(self, link: Link) -> None:
        with self._told(link):
            while data := link.server.recv(CHUNK):
                self._pass()
                self._speaks.wait()
                wanted = self._swallow
                if wanted and wanted[2] and link in self.of(wanted[0]):
                    link.swallowing = re.search(wanted[2], data) is not None
                if link.swallowing:
                    self._swallow = None
                    link.cut()
                    self.swallowed.set()
                    return
                if not link.dead:
                    link.client.sendall(data)
            self._pass()
            if not link.dead:
                link.client.shutdown(socket.SHUT_WR)

    @contextlib.contextmanager
    def _told(self, link: Link) -> Iterator[None]:
        """Let a reset at one end be one at the other, as it is where nobody stands between them."""
        try:
            yield
        except OSError:
            self._pass()
            if not link.dead:
                link.cut()
        finally:
            if link.ended():  # an hour has more connections than a process may have open
                self.links.remove(link)
                link.close()

    def _pass(self) -> None:
        self._flows.wait()
        if self.delay:
            time.sleep(self.delay)
