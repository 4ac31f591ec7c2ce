"""A RabbitMQ of one's own, to be stopped, killed, starved of memory and brought back: one node, or a cluster of three.

Everything about it is private: directory, ports on the loopback, name, cookie and the port mapper (epmd), so it never
meets the machine's own RabbitMQ, and it runs as whoever starts it. Its processes end with the one that started them,
however that ends. It asks for no durability on a lost machine: a SIGKILL is all that it is meant to survive.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from chaos.patience import wait_for
from chaos.programs import TETHER

CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{amqp}
management.tcp.ip = 127.0.0.1
management.tcp.port = {http}
default_user = {user}
default_pass = {password}
vm_memory_high_watermark.absolute = {memory}
disk_free_limit.absolute = 50MB
collect_statistics_interval = 1000
cluster_partition_handling = pause_minority
log.console = false
log.file.level = info
"""
SAMPLES = ",".join(f"{{{each},[{{65,1}}]}}" for each in ("global", "basic", "detailed"))
ERLANG = (
    "-rabbit quorum_tick_interval 500 -kernel inet_dist_use_interface {127,0,0,1} +S 2:2 "
    f"-rabbitmq_management_agent sample_retention_policies [{SAMPLES}]"
)
"""Queues tell their depth each half second and the API each second (5 s unless said); two schedulers anywhere."""
MEMORY = "768MB"
USER = "redrive"
PATIENCE = 180
"""Seconds for a start: it takes 8 s of one core, and the machine may have other things to do."""


@dataclass
class Node:
    """One node: its name, its ports and the process that runs it."""

    name: str
    directory: Path
    amqp: int
    http: int
    distribution: int
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """The Erlang machine itself: the scripts that start it are replaced by it."""
        if self.process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self.process.pid

    def log(self) -> str:
        """What it said."""
        found = [self.directory / "output", *sorted((self.directory / "log").glob("*.log"))]
        return "".join(each.read_text(errors="replace") for each in found if each.exists())


class Broker:
    """A broker that somebody holds: the ways to it, and what may be done to it while it runs."""

    def __init__(
        self, scripts: Path, base: Path, nodes: list[Node], mapper: int, *, password: str, memory: str
    ) -> None:
        self.base = base
        self.nodes = nodes
        self.password = password
        self.memory = memory
        self._scripts = scripts
        self._mapper_port = mapper

    @classmethod
    def read(cls, text: str) -> Broker:
        """Come to one that another process holds, by what it told."""
        told = json.loads(text)
        nodes = [Node(name, Path(place), *ports) for name, place, ports in told["nodes"]]
        where = (Path(told["scripts"]), Path(told["base"]))
        return Broker(*where, nodes, told["mapper"], password=told["password"], memory=told["memory"])

    def told(self) -> str:
        """Tell all that another process needs, the password too."""
        nodes = [(each.name, str(each.directory), (each.amqp, each.http, each.distribution)) for each in self.nodes]
        return json.dumps(
            {
                "scripts": str(self._scripts),
                "base": str(self.base),
                "nodes": nodes,
                "mapper": self._mapper_port,
                "password": self.password,
                "memory": self.memory,
            }
        )

    @property
    def amqp_url(self) -> str:
        """The first node's address, with the password; virtual host ``/``."""
        return self.url()

    @property
    def management_url(self) -> str:
        """The management API of the first node, with the password."""
        return self.management(0)

    def url(self, vhost: str = "/", node: int = 0) -> str:
        """Give the address of a virtual host at a node."""
        return f"amqp://{USER}:{self.password}@127.0.0.1:{self.nodes[node].amqp}/{quote(vhost, safe='')}"

    def management(self, node: int) -> str:
        """Give the address of a node's management API."""
        return f"http://{USER}:{self.password}@127.0.0.1:{self.nodes[node].http}"

    def answers(self, node: int = 0) -> bool:
        """Whether a node takes connections and its management API answers."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.nodes[node].amqp), 2):
            self.api("GET", "overview", node=node)
            return True
        return False

    def settle(self) -> None:
        """Have every node write down now which quorum queues it holds.

        RabbitMQ 3.10 does so some seconds after one is declared. A node killed before comes back with the queue, but
        empty: measured, all that was confirmed is lost.
        """
        for n, node in enumerate(self.nodes):
            if node.running:
                self.ctl("eval", "lists:foreach(fun dets:sync/1, dets:all()).", node=n)

    @contextlib.contextmanager
    def memory_alarm(self, node: int = 0) -> Iterator[None]:
        """Let a node, and so its cluster, take no messages meanwhile: connections that publish are blocked."""
        self.ctl("set_vm_memory_high_watermark", "absolute", "1MB", node=node)
        try:
            yield
        finally:
            self.ctl("set_vm_memory_high_watermark", "absolute", self.memory, node=node)

    def ctl(self, *words: str, node: int = 0) -> str:
        """Run rabbitmqctl, a second or two; gives what it printed.

        Raises:
            RuntimeError: with what it said, when it failed.
        """
        this = self.nodes[node]
        done = subprocess.run(
            [str(self._scripts / "rabbitmqctl"), "-q", "-n", this.name, *words],
            env=self._environment(this),
            cwd=this.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def version(self) -> str:
        """Say which RabbitMQ it is."""
        return str(self.api("GET", "overview")["rabbitmq_version"])

    @contextlib.contextmanager
    def vhost(self) -> Iterator[str]:
        """Make a virtual host, give its address, and drop it with all that is in it."""
        name = f"v-{secrets.token_hex(6)}"
        self.api("PUT", f"vhosts/{name}")
        self.api("PUT", f"permissions/{name}/{USER}", {"configure": ".*", "write": ".*", "read": ".*"})
        try:
            yield self.url(name)
        finally:
            with contextlib.suppress(OSError):  # the test has killed it, or left it down
                self.api("DELETE", f"vhosts/{name}")

    def purge(self, vhost: str = "/") -> None:
        """Throw away what is ready in every queue of a virtual host; unacknowledged messages stay."""
        host = quote(vhost, safe="")
        for queue in self.api("GET", f"queues/{host}"):
            self.api("DELETE", f"queues/{host}/{quote(queue['name'], safe='')}/contents")

    def api(self, method: str, path: str, body: object = None, *, node: int = 0) -> Any:
        """Ask the management API below ``/api/``; gives what came as JSON, or None.

        Raises:
            OSError: it could not be reached, or refused (:class:`urllib.error.HTTPError`).
        """
        word = base64.b64encode(f"{USER}:{self.password}".encode()).decode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.nodes[node].http}/api/{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Authorization": f"Basic {word}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - as above
            text = answer.read()
        return json.loads(text) if text else None

    def _environment(self, node: Node) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.base),
            "LC_ALL": "C.UTF-8",
            "RABBITMQ_NODENAME": node.name,
            "RABBITMQ_CONFIG_FILE": str(node.directory / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(node.directory / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(node.directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(node.directory / "log"),
            "RABBITMQ_DIST_PORT": str(node.distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERLANG,
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP_BYTES": "0",
            # its script is replaced by the machine then, rather than waiting for it: one process to kill
            "RUNNING_UNDER_SYSTEMD": "true",
        }


class Rabbit(Broker):
    """A broker of one's own: ``with Rabbit(find_rabbitmq()) as rabbit: connect(rabbit.amqp_url)``."""

    def __init__(self, scripts: Path, *, nodes: int = 1, within: Path | None = None, memory: str = MEMORY) -> None:
        """Make its directory; nothing runs yet.

        Args:
            scripts: the directory of rabbitmq-server and rabbitmqctl.
            nodes: how many; all run on this machine and form one cluster.
            within: where its directory is made; the machine's directory for temporary files unless said.
            memory: beyond which a node takes no more messages.
        """
        base = Path(tempfile.mkdtemp(prefix="redrive-rabbit-", dir=within))
        mapper, *ports = _free_ports(3 * nodes + 1)
        mark = secrets.token_hex(3)
        made = [
            Node(f"redrive{n}-{mark}@localhost", base / f"node{n}", ports.pop(), ports.pop(), ports.pop())
            for n in range(nodes)
        ]
        super().__init__(scripts, base, made, mapper, password=secrets.token_hex(8), memory=memory)
        self._mapper: subprocess.Popen[bytes] | None = None
        # its processes are tethered to the thread that starts them, so that lives as long as this does
        self._starter = ThreadPoolExecutor(1, "rabbit")
        cookie = self.base / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(10))
        cookie.chmod(0o400)
        for node in self.nodes:
            self._configure(node)

    def __enter__(self) -> Self:
        try:
            self._starter.submit(self._start_mapper).result()
            for n in range(len(self.nodes)):  # one by one: two that join at once may both found a cluster
                self.start(n)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything at once and leave nothing."""
        for process in (*(node.process for node in self.nodes), self._mapper):
            if process is not None:
                process.kill()
                process.wait()
        self._starter.shutdown()
        shutil.rmtree(self.base, ignore_errors=True)

    def start(self, *nodes: int) -> None:
        """Start nodes, the first unless said, as new or with what they had; return when they take connections.

        Those that were down together wait for each other: start them together.
        """
        for node in nodes or (0,):
            self._starter.submit(self._launch, self.nodes[node]).result()
        for node in nodes or (0,):
            self._await(node)

    def _launch(self, this: Node) -> None:
        with (this.directory / "output").open("ab") as output:
            this.process = subprocess.Popen(
                [*TETHER, str(self._scripts / "rabbitmq-server")],
                env=self._environment(this),
                cwd=this.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C is for the one who holds it
            )

    def _await(self, node: int) -> None:
        this = self.nodes[node]
        wait_for(lambda: not this.running or self.answers(node), PATIENCE, every=0.1)
        if not this.running:
            raise RuntimeError(f"{this.name} did not start: {this.log()[-2000:]}")

    def stop(self, node: int = 0) -> None:
        """End a node as an operator does: connections are closed, what lasts is on disk. Takes some seconds."""
        this = self.nodes[node]
        if this.process is not None:
            this.process.terminate()
            this.process.wait(60)

    def kill(self, *nodes: int) -> None:
        """SIGKILL to nodes, the first unless said."""
        for node in nodes or (0,):
            if (process := self.nodes[node].process) is not None:
                process.kill()
                process.wait()

    def restart(self, node: int = 0, *, kill: bool = False) -> None:
        """Stop or kill a node and bring it back with what it had."""
        if kill:
            self.kill(node)
        else:
            self.stop(node)
        self.start(node)

    def _configure(self, node: Node) -> None:
        node.directory.mkdir()
        text = CONFIGURATION.format(
            amqp=node.amqp, http=node.http, user=USER, password=self.password, memory=self.memory
        )
        if len(self.nodes) > 1:
            text += "cluster_formation.peer_discovery_backend = classic_config\n"
            text += "cluster_formation.randomized_startup_delay_range.min = 0\n"
            text += "cluster_formation.randomized_startup_delay_range.max = 1\n"
            text += f"cluster_formation.classic_config.nodes.1 = {self.nodes[0].name}\n"
        (node.directory / "rabbitmq.conf").write_text(text)
        (node.directory / "plugins").write_text("[rabbitmq_management].\n")

    def _start_mapper(self) -> None:
        """Start epmd ourselves: one that a node starts is a daemon, which outlives us."""
        program = shutil.which("epmd") or "epmd"
        self._mapper = subprocess.Popen(
            [*TETHER, program, "-address", "127.0.0.1", "-port", str(self._mapper_port)],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_for(lambda: _listens(self._mapper_port))


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_ports(count: int) -> list[int]:
    """Find ports that nobody listens on, all different: held until the last is found."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
