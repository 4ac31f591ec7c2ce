"""Secrets out of sight: in payloads and results by their keys, in texts by their shape.

Used where something is shown or logged, never where it is stored: a handler needs its password, a reader of
the dashboard does not. It errs on the side of hiding. It is no proof against a secret under an innocent name;
for that there is ``sensitive=True`` on the handler, which hides everything.

Which keys: they are split into words at ``_``, ``-``, ``.``, spaces and camelCase, and looked up in the sets
below. A number under a key that also counts (``tokens_used: 5``, ``max_tokens: 4096``) is shown, and so are
None and booleans (``has_password: true``): none of these is a secret.
"""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

HIDDEN = "***"

_MAX_DEPTH = 200

# fmt: off
_WORDS = frozenset({
    "apikey", "authorization", "bearer", "cookie", "cookies", "credential", "credentials",
    "creds", "csc", "csrf", "cvc", "cvv", "dsn", "jwt", "otp", "passcode", "passphrase", "passwd", "password",
    "passwords", "pin", "pwd", "secret", "secrets", "session", "sessionid", "sessionkey", "ssn", "token",
    "tokens", "totp", "xsrf",
})
_PAIRS = frozenset({
    ("access", "key"), ("account", "number"), ("api", "key"), ("auth", "header"), ("auth", "key"),
    ("basic", "auth"), ("card", "number"), ("connection", "string"), ("credit", "card"), ("deploy", "key"),
    ("encryption", "key"), ("license", "key"), ("master", "key"), ("private", "key"), ("secret", "key"),
    ("security", "code"), ("signing", "key"), ("ssh", "key"),
})
_WHOLE = frozenset({"auth", "card", "pass", "pw"})  # innocent as a part: auth_method, pass_rate, card_type
_PARTS = re.compile(
    "password|passwd|passphrase|credential|apikey|privatekey|accesskey|secretkey|cardnumber|creditcard"
    "|(?:secrets?|token|cookie|pwd)$"  # only at the end: secretary, tokenizer
)
_COUNTS = frozenset({
    "age", "budget", "completion", "cookies", "count", "counts", "expires", "expiry", "input", "left",
    "length", "limit", "max", "min", "ms", "output", "per", "prompt", "remaining", "seconds", "secrets",
    "size", "timeout", "tokens", "total", "ttl", "usage", "used",
})
# fmt: on

_SPLIT = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@functools.lru_cache(maxsize=4096)
def _judged(key: str) -> tuple[bool, bool]:
    """Judge a key by its words: is it secret, and does it count something?"""
    words = [word.lower() for word in _SPLIT.findall(key)]
    secret = (
        not _WORDS.isdisjoint(words)
        or "".join(words) in _WHOLE
        or not _PAIRS.isdisjoint(itertools.pairwise(words))
        or any(_PARTS.search(word) for word in words)
    )
    return secret, not _COUNTS.isdisjoint(words)


def is_secret(key: str) -> bool:
    """Judge by its name whether what stands under *key* is to be hidden."""
    return _judged(key[:200])[0]


def mask(value: Any, *, sensitive: bool = False) -> Any:
    """Copy JSON data with every secret replaced by ``***``; with *sensitive*, nothing but that is left.

    Under a secret key everything goes, whatever it is; texts elsewhere go through `mask_text`. Also known are
    ``{"name": "password", "value": ...}`` and ``["Authorization", "..."]``, the two ways to write headers and
    environments as lists.
    """
    return HIDDEN if sensitive else _masked(value, 0)


def _masked(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return mask_text(value)
    if not isinstance(value, (dict, list, tuple)):
        return value
    if depth > _MAX_DEPTH:
        return HIDDEN
    if isinstance(value, dict):
        named = value.get("name", value.get("key"))
        hide_value = isinstance(named, str) and is_secret(named)
        return {
            key: HIDDEN if hide_value and key == "value" else _under(str(key), item, depth)
            for key, item in value.items()
        }
    if len(value) == 2 and isinstance(value[1], str) and isinstance(value[0], str) and is_secret(value[0]):  # noqa: PLR2004
        return [value[0], HIDDEN]
    return [_masked(item, depth + 1) for item in value]


def _under(key: str, item: Any, depth: int) -> Any:
    secret, counts = _judged(key[:200])
    if not secret or item is None or isinstance(item, bool):
        return _masked(item, depth + 1)
    return item if counts and isinstance(item, (int, float)) else HIDDEN


# Every repetition is bounded, or starts where a word does: a long text costs linear time. A DSN may have been
# cut by `text.clip` in the middle of its password.

_SHAPES = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
    r"|\beyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*"  # a JWT
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\b(?:ghp|gho|ghs|ghu|github_pat|glpat|sk|pk|rk|whsec|xox[a-z])[_-][\w-]{16,}",
    re.DOTALL,
)
_URL = re.compile(
    r"(?<!\w)([A-Za-z][\w+.-]{0,30}://)([^\s:/?#@\"'<>]{0,200}):([^\s\"'<>]{1,2000})(?:@|(?= \[\.{3} \d))"
)
_HEADER = re.compile(
    r"\b((?:proxy-)?authorization|(?:set-)?cookie)(\\?[\"']?\s{0,3}[:=,]\s{0,3}(?:[bu]?\\?[\"'])?)[^\r\n\"'\\]+",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer\s{1,3})(?=\S{0,100}\d|\S{20})[\w.~+/=-]+", re.IGNORECASE)
_FLAG = re.compile(r"(?<!\S)(--?)([A-Za-z][\w-]{0,60})(\s{1,3})([^\s=-]\S*)")
_KEY = re.compile(r"(?<!\w)([A-Za-z_][\w-]{0,60})(?:\\?[\"']?\]?\s{0,3}(?:=>|[=:])\s{0,3}|\)=\()")
_VALUE = re.compile(
    r"([bru]?)(?:([\"'])(?:\\.|(?!\2)[^\n])*(\2|$)"
    r"|(\\[\"'])(?:(?!\4).)*(\4|$))"  # JSON within a text
    r"|[^\s,;&\"'(){}\[\]<>\\]+",
    re.MULTILINE | re.IGNORECASE,
)


def mask_text(text: str) -> str:
    """Replace what looks like a secret in an error, a traceback or any other text by ``***``.

    That is: the password of a URL or DSN, the value of an ``Authorization`` or ``Cookie`` header,
    ``password=...``, ``token: ...`` and the like by the names that `mask` knows, ``--password ...``, private
    keys, JWTs and the tokens of well-known services.
    """
    text = _SHAPES.sub(HIDDEN, text)
    if "://" in text:
        text = _URL.sub(_hide_password, text)
    text = _HEADER.sub(rf"\1\2{HIDDEN}", text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _FLAG.sub(_hide_flag, text)
    return _hide_pairs(text)


def _hide_password(match: re.Match[str]) -> str:
    scheme, user, password = match.groups()
    if scheme[:4].lower() == "http" and re.search("[/?#]", password):
        return match[0]  # a port and, in the query, an address
    return f"{scheme}{user}:{HIDDEN}" + "@" * match[0].endswith("@")


def _hide_flag(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}{match[3]}{HIDDEN}" if is_secret(match[2]) else match[0]


def _hide_pairs(text: str) -> str:
    """Hide the values of secret keys; the value of another key is text like any and may hold such pairs."""
    parts, done = [], 0
    for match in _KEY.finditer(text):
        secret, counts = _judged(match[1])
        secret = secret and not match[1].endswith(("Error", "Exception", "Warning"))  # TokenError: expired
        value = _VALUE.match(text, match.end()) if secret and match.start() >= done else None
        if value is None or _harmless(value[0], counts=counts):
            continue
        parts += [text[done : match.end()], value[1] or "", value[2] or value[4] or "", HIDDEN]
        parts += [value[3] or value[5] or ""]
        done = value.end()
    return "".join([*parts, text[done:]])


def _harmless(value: str, *, counts: bool) -> bool:
    return value in {"None", "null", "True", "False", "true", "false", HIDDEN} or (counts and value.isdecimal())
