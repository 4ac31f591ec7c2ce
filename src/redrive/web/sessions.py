"""Who is signed in, in a cookie that only this desk can have written, and the token that a form must bring back.

The cookie says who and since when; there is nothing to keep on the server. The key is made from the passwords, so a new
password ends every session, and several processes that know the same passwords know each other's sessions.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redrive.web.operators import Role

COOKIE = "redrive_desk"
LASTS = 12 * 3600
"""Seconds after which one has to sign in anew."""


@dataclass(frozen=True)
class Session:
    """What the cookie says."""

    nonce: str
    name: str = ""
    role: str = ""
    """Empty where nobody has signed in by a password."""
    since: int = 0


class Sessions:
    """Writes and reads the cookie."""

    def __init__(self, passwords: Mapping[Role, str], salt: str, secret: str) -> None:
        """Make the key; slow on purpose, since a cookie that somebody finds must not tell the password.

        Without passwords it is made from *secret*: then the cookie says nothing of who somebody is, and only ties a
        form to the browser that got it.
        """
        words = json.dumps([sorted(passwords.items()), secret]).encode()
        self._key = hashlib.scrypt(words, salt=salt.encode(), n=2**14, r=8, p=1, maxmem=2**26)

    def new(self, name: str = "", role: str = "") -> Session:
        """Begin a session."""
        return Session(secrets.token_urlsafe(16), name, role, int(time.time()))

    def write(self, session: Session) -> str:
        """Give the cookie's value."""
        body = base64.urlsafe_b64encode(json.dumps(vars(session)).encode()).decode().rstrip("=")
        return f"{body}.{self._sign('session', body)}"

    def read(self, cookie: str) -> Session | None:
        """Read a cookie; None for one that is forged, damaged or too old."""
        body, _, signature = cookie.partition(".")
        if not hmac.compare_digest(self._sign("session", body).encode(), signature.encode(errors="replace")):
            return None
        said: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        session = Session(**said)
        return session if 0 <= time.time() - session.since < LASTS else None

    def token(self, session: Session) -> str:
        """Give the token that a form of this session carries."""
        return self._sign("form", session.nonce)

    def matches(self, session: Session, token: str) -> bool:
        """Tell whether a form brought back this session's token."""
        return hmac.compare_digest(self.token(session).encode(), token.encode(errors="replace"))

    def seal(self, text: str) -> str:
        """Wrap a text that goes through the browser and back."""
        body = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        return f"{body}.{self._sign('note', body)}"

    def unseal(self, sealed: str) -> str:
        """Give the text, empty where it is not one of ours."""
        body, _, signature = sealed.partition(".")
        if not hmac.compare_digest(self._sign("note", body).encode(), signature.encode(errors="replace")):
            return ""
        return base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode()

    def _sign(self, what: str, text: str) -> str:
        return hmac.new(self._key, f"{what}:{text}".encode(), hashlib.sha256).hexdigest()
