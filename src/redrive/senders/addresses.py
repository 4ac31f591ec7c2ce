"""Which network addresses a customer's URL may lead to: those of the public internet, and none of our own.

A URL that a stranger gave is asked for from inside our network, where it could reach what strangers can't: a database,
a metadata service with credentials. So a name is looked up once, all its addresses are checked, and whoever calls
connects to a checked address and not to the name. Nothing here connects.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from redrive.classify import Finding
from redrive.errors import InvalidOption

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

TWO_NAMES = re.compile("[\u00df\u1e9e\u03c2\u200c\u200d]")
"""sharp s, final sigma and the joiners: Python says strasse.de where browsers go to another owner's domain."""
REFUSED: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/8", "this host"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared by a provider's customers"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "metadata of a cloud"),
    ("169.254.0.0/16", "link-local, metadata of clouds"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved, metadata of a cloud"),
    ("192.0.2.0/24", "for documentation"),
    ("192.88.99.0/24", "6to4 relays"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "for measurements"),
    ("198.51.100.0/24", "for documentation"),
    ("203.0.113.0/24", "for documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved, broadcast"),
    ("2001::/23", "Teredo and other protocols"),
    ("2001:db8::/32", "for documentation"),
    ("2002::/16", "6to4, which holds an IPv4 address"),
    ("3fff::/20", "for documentation"),
)
"""What is not called, and why. Of IPv6 nothing outside 2000::/3 is, but for addresses that stand for an IPv4 one."""
_PUBLIC6 = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NETWORKS = tuple((ipaddress.ip_network(network), why) for network, why in REFUSED)
_LOW32 = 0xFFFF_FFFF

Lookup = Callable[..., list[Any]]


class AddressRefused(Exception):
    """The URL leads to an address that is not to be called; a human must look at the URL, or at ``allow``."""

    finding = Finding("permanent")


@dataclass(frozen=True)
class Place:
    """An address that was checked, to connect to."""

    family: int
    sockaddr: tuple[Any, ...]
    allowed: bool
    """It stands in *allow*."""

    @property
    def ip(self) -> str:
        """The address alone."""
        return str(self.sockaddr[0])


class Reach:
    """What may be called: the public internet, and *allow*; never *deny*, addresses or networks as text.

    Raises:
        InvalidOption: for text that is no address and no network.
    """

    def __init__(self, allow: Iterable[str] = (), deny: Iterable[str] = ()) -> None:
        self._allow, self._deny = _networks(allow, "allow"), _networks(deny, "deny")

    def check(self, address: str) -> bool:
        """Check an IP address; gives whether it stands in *allow*.

        Raises:
            AddressRefused: naming the address and the reason.
        """
        try:
            ip: IPAddress = ipaddress.ip_address(address)
        except ValueError as error:  # with a zone such as %eth0, which only link-local ones have
            raise AddressRefused(f"{address!r:.60} is no address that can be checked") from error
        meant = _meant(ip)
        if _within(meant, self._deny) or _within(ip, self._deny):
            raise AddressRefused(f"{_shown(ip, meant)} stands in deny")
        if _within(meant, self._allow) or _within(ip, self._allow):
            return True
        for network, why in _NETWORKS:
            if meant.version == network.version and meant in network:
                raise AddressRefused(f"{_shown(ip, meant)} is not called: {why} ({network}); allow= would let it")
        if isinstance(meant, ipaddress.IPv6Address) and meant not in _PUBLIC6:
            raise AddressRefused(f"{ip} is not called: it is not of the public internet; allow= would let it")
        return False

    def places(self, host: str, port: int, timeout: float, lookup: Lookup | None = None) -> list[Place]:
        """Look *host* up, once, within *timeout* seconds, and check every address that it has.

        Raises:
            AddressRefused: when one of them is not to be called; then none is.
            OSError: when the name has none, or nobody says so in time.
        """
        found = _looked_up(host, port, timeout, lookup or socket.getaddrinfo)
        places = []
        for family, _, _, _, sockaddr in found:
            if family in (socket.AF_INET, socket.AF_INET6):
                address = str(sockaddr[0])
                if len(sockaddr) == 4 and sockaddr[3]:  # noqa: PLR2004 - IPv6 with a scope: of this link alone
                    raise AddressRefused(f"{host} leads to {address}, which is not called: it is of one link")
                try:
                    allowed = self.check(address)
                except AddressRefused as error:
                    raise error if host in (address, f"[{address}]") else AddressRefused(f"{host}: {error}") from None
                places.append(Place(family, sockaddr, allowed))
        if not places:
            raise socket.gaierror(socket.EAI_NONAME, f"{host} has no address")
        return places


def _looked_up(host: str, port: int, timeout: float, lookup: Lookup) -> list[Any]:
    """Ask the resolver in a thread: there is no other way to stop waiting for it."""
    answer: list[Any] = []

    def ask() -> None:
        try:
            answer.append(lookup(host.strip("[]"), port, type=socket.SOCK_STREAM))
        except Exception as error:  # noqa: BLE001 - raised below, where somebody waits for it
            answer.append(error)

    thread = threading.Thread(target=ask, name="redrive-lookup", daemon=True)
    thread.start()
    thread.join(max(0.0, timeout))
    if not answer:
        raise TimeoutError(f"the name {host} was not resolved in time")
    if isinstance(answer[0], Exception):
        raise answer[0]
    found: list[Any] = answer[0]
    return found


def _meant(ip: IPAddress) -> IPAddress:
    """Give the IPv4 address for which an IPv6 one stands, where it does."""
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return ip.ipv4_mapped
        if ip in _NAT64:
            return ipaddress.IPv4Address(int(ip) & _LOW32)
    return ip


def _shown(ip: IPAddress, meant: IPAddress) -> str:
    return str(ip) if ip == meant else f"{ip} (that is {meant})"


def _within(ip: IPAddress, networks: tuple[Network, ...]) -> bool:
    return any(ip.version == network.version and ip in network for network in networks)


def _networks(given: Iterable[str], name: str) -> tuple[Network, ...]:
    if isinstance(given, str):
        raise InvalidOption(f"{name} is {given!r:.80}: give a list of networks, such as ['10.1.2.0/24']")
    networks = []
    for each in given:
        try:
            networks.append(ipaddress.ip_network(each))
        except ValueError as error:
            raise InvalidOption(f"{name} has {each!r:.80}: {error}; give networks, such as '10.1.2.0/24'") from error
    return tuple(networks)
