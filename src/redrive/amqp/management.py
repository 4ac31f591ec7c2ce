"""How it stands at the broker, as RabbitMQ's management API tells: what waits there, who takes it, what is wrong.

It only looks, within a time that it keeps whatever happens, and what can't be had is said in words: no error leaves
:func:`seen`. No address that it gives has a password in it. It needs no extra.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, unquote, urlencode, urlsplit

from redrive.amqp.names import prefix, queue_names, strays_name
from redrive.sql import AMQP
from redrive.words import counted, one_line, span

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from redrive.kinds import Kind
    from redrive.settings import Settings

TIMEOUT = 1.5
"""Seconds for all of a look."""
MOST = 20_000_000
"""Bytes of an answer."""
PAGE = 500
"""Queues asked for at once."""
COLUMNS = (
    "name,state,type,messages_ready,messages_unacknowledged,consumers,head_message_timestamp,leader,online,members,"
    "message_stats.publish_details.rate,message_stats.ack_details.rate,message_stats.redeliver_details.rate"
)
LATE = 300.0
"""Seconds that the first message may wait."""
AWAY, LOOKED_AT = "redrive worker app.jobs:queue --broker URL", "see the broker's own pages"
UNSET = "broker_management_url is not set (REDRIVE_BROKER_MANAGEMENT_URL): what is at the broker is not known"
EMPTIED = "look at them in the broker's own pages: their headers say why; move or purge them there"
_REFUSED = {
    401: "it refuses this user for the {}: its rights there or the tag `management` or `monitoring` are missing, or "
    "the password is wrong",
    403: "this user may not look at the {}",
    404: "there is no {}, or it is no management API",
}


@dataclass(frozen=True, kw_only=True)
class Queued:
    """How it stands with a kind at the broker, its bands of priority together."""

    kind: str
    routed: bool
    """Whether its jobs go there; where not, what is left there is still run."""
    queues: int = 0
    """So many are there; none before the first job was sent."""
    ready: int = 0
    """Jobs that wait for a consumer."""
    unacknowledged: int = 0
    """Jobs that consumers hold: they run, or wait in a worker."""
    consumers: int = 0
    comes: float = 0.0
    """Jobs a second that are sent there; as *goes*, over the last seconds."""
    goes: float = 0.0
    """Jobs a second that are acknowledged."""
    redelivered: float = 0.0
    """Jobs a second that are delivered again, since a consumer was lost."""
    oldest: float | None = None
    """Seconds for which the first message waits, where the broker says: for quorum queues it does not."""
    trouble: str = ""
    """What is wrong with its queues."""

    @property
    def messages(self) -> int:
        """All that is there of it."""
        return self.ready + self.unacknowledged

    @property
    def deserted(self) -> bool:
        """Whether jobs wait there and nobody takes them."""
        return self.ready > 0 and not self.consumers

    @property
    def drains(self) -> float | None:
        """Seconds until nothing waits, if all goes on as it does; None where it doesn't get less."""
        return self.ready / (self.goes - self.comes) if self.goes > self.comes else None if self.ready else 0.0


@dataclass(frozen=True, kw_only=True)
class Broker:
    """How it stands at the broker."""

    kinds: list[Queued] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    """What is wrong with it: alarms, nodes that are away."""
    why: str = ""
    """Why it is not known; empty where it is."""
    where: str = ""
    """The API's address, without user and password."""
    strays: int = 0
    """Messages that were no jobs, and wait for people."""
    strays_in: str = ""
    """The queue where they are."""

    @property
    def strays_in_words(self) -> str:
        """Say how many there are and where; empty where there are none."""
        if not self.strays:
            return ""
        many = counted(self.strays, "message that is no job waits", "messages that are no jobs wait")
        return f"{many} in the queue {self.strays_in} for somebody to look"

    @property
    def up(self) -> bool:
        """Whether it answered."""
        return not self.why

    def of(self, kind: str) -> Queued | None:
        """Give what is known of a kind."""
        return next((each for each in self.kinds if each.kind == kind), None)


@dataclass(frozen=True)
class Ailment:
    """Something that is wrong at the broker."""

    level: Literal["bad", "note"]
    text: str
    kind: str = ""
    remedy: str = LOOKED_AT


def ails(now: Broker) -> list[Ailment]:
    """Judge how it stands; what is not known is in :attr:`Broker.why`."""
    found = [Ailment("bad", trouble) for trouble in now.troubles]
    if now.strays:
        found.append(Ailment("bad", now.strays_in_words, remedy=EMPTIED))
    for each in now.kinds:
        waits = counted(each.ready, f"job of kind {each.kind} waits", f"jobs of kind {each.kind} wait")
        waits += " at the broker"
        if each.deserted:
            left = "" if each.routed else ", to which it is not routed"
            them = "it" if each.ready == 1 else "them"
            found.append(Ailment("bad", f"{waits}{left}, and no worker takes {them}", each.kind, AWAY))
        elif each.oldest is not None and each.oldest > LATE:
            found.append(Ailment("bad", f"{waits}, the first for {span(each.oldest)}", each.kind, "more workers"))
        elif each.drains is not None and each.drains > LATE:
            need = "needs" if each.ready == 1 else "need"
            found.append(Ailment("note", f"{waits}, and {need} {span(each.drains)}", each.kind, "more workers"))
        if each.trouble:
            found.append(Ailment("bad", f"kind {each.kind}: {each.trouble}", each.kind))
    return found


def routed(kinds: Iterable[Kind]) -> set[str]:
    """Give those of these kinds whose jobs go to the broker."""
    return {each.kind for each in kinds if each.route == AMQP}


def seen(settings: Settings, routed: Collection[str], known: Iterable[str] = (), *, timeout: float = TIMEOUT) -> Broker:
    """Look at the broker, for no longer than *timeout* seconds.

    Args:
        settings: with broker_management_url; user and virtual host are taken from broker_url where it names none.
        routed: the kinds whose jobs go there.
        known: other kinds, of which something may be left there.
        timeout: seconds for all of it.
    """
    if not settings.broker_management_url:
        return Broker(why=UNSET)
    answers: list[Broker] = []
    api = _Api(settings, time.monotonic() + timeout)

    def ask() -> None:
        answers.append(_asked(api, settings.schema, routed, known))

    # A name that resolves slowly, or a peer that sends a byte a second, keeps no deadline of a socket's.
    thread = threading.Thread(target=ask, name="redrive-broker", daemon=True)
    thread.start()
    thread.join(timeout + 0.1)
    if not answers:
        return Broker(why=f"{api.where} does not answer within {timeout:g} s", where=api.where)
    return answers[0]


def _asked(api: _Api, schema: str, routed: Collection[str], known: Iterable[str]) -> Broker:
    try:
        queues = list(api.queues(schema))
        nodes = api.nodes()
    except TimeoutError:
        return Broker(why=f"{api.where} does not answer in time", where=api.where)
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
        said = one_line(str(error), 200) or type(error).__name__
        return Broker(why=f"{api.where} can't be asked: {said}", where=api.where)
    strays_in = strays_name(schema)
    theirs = [each for each in queues if each["name"] == strays_in]
    return Broker(
        kinds=_by_kind(schema, [each for each in queues if each not in theirs], set(routed), set(known)),
        strays=sum((each.get("messages_ready") or 0) + (each.get("messages_unacknowledged") or 0) for each in theirs),
        strays_in=strays_in,
        troubles=[trouble for node in nodes for trouble in _ails(node)],
        where=api.where,
    )


def _by_kind(schema: str, queues: list[dict[str, Any]], routed: set[str], known: set[str]) -> list[Queued]:
    owner = {name: kind for kind in routed | known for name in queue_names(schema, kind)}
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for queue in queues:
        # of a kind that nobody here knows: by the name of its queue
        found[owner.get(queue["name"], queue["name"].removeprefix(prefix(schema)))].append(queue)
    rows = [_summed(kind, found.get(kind, []), routed=kind in routed) for kind in {*routed, *found}]
    return sorted((row for row in rows if row.routed or row.messages), key=lambda row: (-row.ready, row.kind))


def _summed(kind: str, queues: list[dict[str, Any]], *, routed: bool) -> Queued:
    heads = [each["head_message_timestamp"] for each in queues if each.get("head_message_timestamp")]
    return Queued(
        kind=kind,
        routed=routed,
        queues=len(queues),
        ready=sum(each.get("messages_ready") or 0 for each in queues),
        unacknowledged=sum(each.get("messages_unacknowledged") or 0 for each in queues),
        # one worker takes from all bands
        consumers=max((each.get("consumers") or 0 for each in queues), default=0),
        comes=sum(_rate(each, "publish_details") for each in queues),
        goes=sum(_rate(each, "ack_details") for each in queues),
        redelivered=sum(_rate(each, "redeliver_details") for each in queues),
        oldest=max(0.0, time.time() - min(heads)) if heads else None,
        trouble="; ".join(filter(None, map(_fails, queues))),
    )


def _rate(queue: dict[str, Any], name: str) -> float:
    return float(((queue.get("message_stats") or {}).get(name) or {}).get("rate") or 0.0)


def _fails(queue: dict[str, Any]) -> str:
    """Say what is wrong with a queue."""
    members, online = queue.get("members"), queue.get("online")
    if queue.get("type", "quorum") != "quorum":
        return f"{queue['name']} is no quorum queue: it does not survive the loss of its node"
    if isinstance(members, list) and isinstance(online, list):
        if 2 * len(online) <= len(members):
            return f"{queue['name']} has no majority: {len(online)} of its {len(members)} nodes are there"
        if len(online) < len(members):
            return f"{queue['name']} is on {len(online)} of {len(members)} nodes"
    if queue.get("state", "running") not in ("running", "flow", "idle"):
        return f"{queue['name']} is {queue['state']}"
    return ""


def _ails(node: dict[str, Any]) -> list[str]:
    """Say what is wrong with a node."""
    name = one_line(str(node.get("name", "")), 100)
    if node.get("running") is False:
        return [f"node {name} is away"]
    found = []
    if node.get("mem_alarm"):
        found.append(f"node {name} has no memory left: nothing can be sent to the broker")
    if node.get("disk_free_alarm"):
        found.append(f"node {name} has no disk left: nothing can be sent to the broker")
    if node.get("partitions"):
        found.append(f"node {name} is cut off from {counted(len(node['partitions']), 'other')}")
    return found


class _Api:
    """Asks the API over HTTP, until a time."""

    def __init__(self, settings: Settings, until: float) -> None:
        given = urlsplit(settings.broker_management_url)
        broker = urlsplit(settings.broker_url)
        self._secure = given.scheme == "https"
        self._plausible = given.scheme in ("http", "https") and bool(given.hostname)
        self._host = given.hostname or ""
        self._port = _port(given.netloc) or (443 if self._secure else 80)
        self._path = given.path.rstrip("/").removesuffix("/api")
        self._until = until
        who = given if given.username else broker
        self._word = f"{unquote(who.username or 'guest')}:{unquote(who.password or 'guest')}"
        self.vhost = unquote(broker.path[1:]) or "/"
        self._asked = f"virtual host {self.vhost}" + (
            "" if settings.broker_url else ", as broker_url (REDRIVE_BROKER_URL) is not set, which names another"
        )
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.where = f"{given.scheme}://{host}:{self._port}{self._path}" if self._plausible else "broker_management_url"

    def queues(self, schema: str) -> Iterable[dict[str, Any]]:
        """Give the queues of an installation."""
        pages, page = 1, 1
        while page <= pages:
            asked = {"page": page, "page_size": PAGE, "name": prefix(schema), "use_regex": "false", "columns": COLUMNS}
            answer = self._get(f"queues/{quote(self.vhost, safe='')}?{urlencode(asked)}")
            yield from (each for each in answer["items"] if each["name"].startswith(prefix(schema)))
            pages, page = int(answer["page_count"]), page + 1

    def nodes(self) -> list[dict[str, Any]]:
        """Give the nodes; none where this user may not see them."""
        try:
            answer = self._get("nodes?columns=name,running,mem_alarm,disk_free_alarm,partitions")
        except PermissionError:
            return []
        return [each for each in answer if isinstance(each, dict)]

    def _get(self, path: str) -> Any:
        if not self._plausible:
            raise ValueError("must be as http://user:password@host:15672")
        if self._secure:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._left(), context=ssl.create_default_context()
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._left())
        word = base64.b64encode(self._word.encode()).decode()
        try:
            connection.request("GET", f"{self._path}/api/{path}", headers={"Authorization": f"Basic {word}"})
            answer = connection.getresponse()
            if answer.status in (401, 403):
                raise PermissionError(_REFUSED[answer.status].format(self._asked))
            if answer.status != 200:  # noqa: PLR2004 - OK
                refused = _REFUSED.get(answer.status, "").format(self._asked)
                raise ValueError(refused or f"it answers {answer.status} {answer.reason}")
            text = bytearray()
            while part := answer.read1(65536):
                text += part
                self._left()
                if len(text) > MOST:
                    raise ValueError("its answer is too large")
        finally:
            connection.close()
        return json.loads(bytes(text))

    def _left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def _port(netloc: str) -> int | None:
    port = netloc.rpartition("@")[2].rpartition(":")[2]
    return int(port) if port.isdecimal() else None
