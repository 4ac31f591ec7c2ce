"""Who may look and who may act: passwords for roles, or a hook of the application's own that knows its users.

Nothing is open by default. A desk without a password and without a hook is refused, but on the machine itself, where it
has to be asked for by ``local=True`` and answers to no other name than the loopback's.
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from redrive.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    Hook = Callable[[Request], Any]

Role = Literal["look", "act"]
ROLES: tuple[Role, ...] = ("act", "look")
VARIABLES: dict[Role, str] = {"act": "REDRIVE_UI_PASSWORD", "look": "REDRIVE_UI_LOOK_PASSWORD"}
SHORTEST = 8
TRIES, TRIES_OF_ALL = 5, 60
"""Wrong passwords a minute: from one address, and from all together."""
ADDRESSES = 10_000


@dataclass(frozen=True)
class Operator:
    """Somebody at the desk."""

    name: str
    """As it stands in the audit."""
    acts: bool = True
    """Whether this operator may change something, or look only."""


@dataclass(frozen=True)
class Access:
    """How somebody gets in."""

    passwords: dict[Role, str] = field(default_factory=dict)
    hook: Hook | None = None
    local: bool = False
    """Whoever is on this machine may act; any other host's name is refused."""

    def __post_init__(self) -> None:
        """Refuse what is open to the world, or nearly so."""
        if not (self.passwords or self.hook or self.local):
            raise InvalidOption(
                f"the desk would be open to anybody: give password=, or set {VARIABLES['act']}, or user= with a "
                "function that knows your users; on a developer's machine local=True"
            )
        if self.passwords and self.hook:
            raise InvalidOption("password and user were both given: give one of them")
        for role, password in self.passwords.items():
            if len(password) < SHORTEST:
                raise InvalidOption(
                    f"the password for role {role} has {len(password)} characters: give at least {SHORTEST}"
                )
        if len(set(self.passwords.values())) < len(self.passwords):
            raise InvalidOption("the passwords of the roles look and act are the same: give each its own")

    @property
    def signs_in(self) -> bool:
        """Whether there is a page to sign in."""
        return bool(self.passwords)

    def role(self, password: str) -> Role | None:
        """Tell whose password it is; every one is compared, in a time that does not depend on it."""
        given = hashlib.sha256(password.encode(errors="replace")).digest()
        found: Role | None = None
        for role in ROLES:
            if role in self.passwords:
                own = hashlib.sha256(self.passwords[role].encode()).digest()
                found = role if hmac.compare_digest(own, given) else found
        return found

    def ask(self, request: Request) -> Any:
        """Ask the hook, or take whoever is on this machine; an async hook's answer is to be awaited."""
        if self.hook is not None:
            return self.hook(request)
        return Operator(_account()) if self.local and not self.passwords else None


def operator(who: Any) -> Operator | None:
    """Read what a hook answered: an Operator, a name, or None for nobody.

    Raises:
        TypeError: for anything else, which may not be taken for a yes.
    """
    if isinstance(who, str):
        return Operator(who) if who else None
    if who is None or isinstance(who, Operator):
        return who
    raise TypeError(f"the desk's user function gave a {type(who).__name__}: it must give an Operator, a name or None")


def given_passwords(password: str | None, look_password: str | None) -> dict[Role, str]:
    """Take the passwords that were given, else those of the environment."""
    said: dict[Role, str | None] = {"act": password, "look": look_password}
    found = {role: said[role] or os.environ.get(VARIABLES[role]) for role in ROLES}
    return {role: text for role, text in found.items() if text}


@dataclass
class Tries:
    """Counts wrong passwords, so that guessing takes for ever. Of this process alone."""

    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _of: OrderedDict[str, list[float]] = field(default_factory=OrderedDict)

    def wait(self, address: str) -> float:
        """Tell how many seconds *address* has to wait before it may try again."""
        with self._lock:
            return max(self._left(address, TRIES), self._left("", TRIES_OF_ALL))

    def failed(self, address: str) -> None:
        """Count a wrong password."""
        with self._lock:
            for name, most in ((address, TRIES), ("", TRIES_OF_ALL)):
                self._of[name] = [*self._of.get(name, [])[-most:], self.clock()]
                self._of.move_to_end(name)
            while len(self._of) > ADDRESSES:
                self._of.popitem(last=False)

    def succeeded(self, address: str) -> None:
        """Forget what an address got wrong."""
        with self._lock:
            self._of.pop(address, None)

    def _left(self, name: str, most: int) -> float:
        now = self.clock()
        recent = [when for when in self._of.get(name, []) if when > now - 60]
        return recent[-most] + 60 - now if len(recent) >= most else 0.0


def _account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody on this machine"
