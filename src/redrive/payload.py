"""What a job carries, as JSON, and what its handler returned.

A payload is checked before any SQL: what `encode` lets through comes back from jsonb equal (only the order of
keys is not kept), anything else is refused with the path of the value at fault. Refusing is right there, as
the caller stands by; a result has no caller any more, so `encode_result` mends instead and never raises.
Dataclasses and models are the business of `typed`; nothing here guesses how to write a date.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from redrive.errors import InvalidPayload
from redrive.text import clip, storable

PAYLOAD_LIMIT = 1_000_000
"""Bytes of JSON. A job is a note about work to do; what the work is done on belongs elsewhere."""

RESULT_LIMIT = 64_000
"""Bytes of JSON that are kept of what a handler returned."""

MAX_DEPTH = 500
"""Lists and dicts within each other. Python's own reader gives up at about twice this."""

_MAX_DIGITS = 4300  # of an int that Python reads back, unless told otherwise
_TOO_LONG = 10**_MAX_DIGITS  # takes longer to compute than all the rest of a check
_RESULT_DEPTH = 100
_REPR_LIMIT = 500
_PATH_LIMIT = 200

# Without check_circular a cycle ends as RecursionError, which is found out below; without ASCII escapes the
# text is what is stored, its size is the true one, and it suits a database in SQL_ASCII.
_to_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False).encode
_from_json = json.JSONDecoder().raw_decode

# The quick way, for what is small and plain: where it finds anything to doubt, the slow one decides.
_quick_write = msgspec.json.Encoder().encode
_quick_read = msgspec.json.Decoder().decode
_QUICK_LIMIT = 2 * MAX_DEPTH  # of bytes: neither depth nor digits can be too many
_DOUBTFUL = re.compile(rb"\\u0000|\de\d").search  # NUL, or what may be a number that jsonb writes otherwise


def encode(payload: Any, *, limit: int = PAYLOAD_LIMIT) -> str:
    """Write *payload* as compact JSON, or raise `InvalidPayload` naming the path of what cannot be kept.

    Any JSON value may stand at the top. The plain case is two passes in C, out and back; only where the text
    looks odd or the two differ does Python walk through the values to find the one to name.
    """
    try:
        data = _quick_write(payload)
        if len(data) <= _QUICK_LIMIT and _quick_read(data) == payload and not _DOUBTFUL(data) and len(data) <= limit:
            return data.decode()
    except Exception:  # noqa: BLE001, S110 - said below, with its path
        pass
    trouble: Exception | None = None
    equal = False
    try:
        text = _to_json(payload)
        size = len(text) if text.isascii() else len(text.encode())
        if "\\u0000" in text or "e+" in text or (len(text) > 2 * MAX_DEPTH and _suspicious(text, payload)):
            _find_fault(payload)
        equal = size > limit or bool(_from_json(text)[0] == payload)
    except InvalidPayload:
        raise
    except Exception as error:  # noqa: BLE001 - what it was is said below, with its path
        trouble = error
    if not equal:
        _find_fault(payload)
        raise InvalidPayload(
            "payload would come back from JSON changed: pass plain text, numbers, lists and dicts"
        ) from trouble
    if size > limit:
        raise InvalidPayload(
            f"payload is {size:,} bytes of JSON and the limit is {limit:,}:"
            " store the data elsewhere and pass a reference to it"
        )
    return text


def decode(text: str) -> Any:
    """Read what Postgres wrote from jsonb.

    Raises:
        ValueError: when Python can't hold what a stranger wrote: a number of 5,000 digits.
        RecursionError: when it is nested too deep.
    """
    try:
        return _quick_read(text)
    except (msgspec.MsgspecError, RecursionError):
        return _from_json(text)[0]


def encode_result(value: Any, *, limit: int = RESULT_LIMIT) -> str | None:
    """Write what a handler returned as JSON that can be stored; mend what cannot, and never raise.

    The rule: NUL and lone surrogates become U+FFFD, NaN and the infinities null, tuples and sets lists; dates
    are written in ISO 8601, UUID, Decimal and paths as text, an Enum as its value; anything else as its repr,
    cut after 500 characters. Over *limit* bytes only ``{"redrive_truncated": {"type", "bytes", "limit"}}`` is
    kept. Nothing returned is nothing stored.
    """
    if value is None:
        return None
    try:
        text = _to_json(value)
        size = _size(text)
        clean = "\\u0000" not in text and not _is_deep(text, value)
    except BaseException:  # noqa: BLE001 - the job is done, whatever it returned
        clean = False
    if not clean:
        try:
            text = _to_json(_mended(value, 0))
        except BaseException:  # noqa: BLE001 - as above: say a dict that another thread is filling
            text = _to_json(_shown(value))
        size = _size(text)
    if size > limit:
        about = {"type": storable(type(value).__name__), "bytes": size, "limit": limit}
        return _to_json({"redrive_truncated": about})
    return text


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _is_deep(text: str, value: Any) -> bool:
    """Measure the depth of what became *text*, layer by layer, where it has brackets enough to be deep at all."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    layer = [value]
    for _ in range(MAX_DEPTH):
        inner = [each.values() if isinstance(each, dict) else each for each in layer if isinstance(each, (dict, list))]
        layer = [each for items in inner for each in items]
        if not layer:
            return False
    return any(isinstance(each, (dict, list)) for each in layer)


def _suspicious(text: str, value: Any) -> bool:
    """Suspect great depth, or an int that this process may write but no worker with Python's limit read."""
    unlimited = sys.get_int_max_str_digits() != _MAX_DIGITS
    return (unlimited and len(text) > _MAX_DIGITS) or _is_deep(text, value)


class _Node(NamedTuple):
    """A value on the walk, and the way back up from it."""

    value: Any
    key: str | int | None
    parent: _Node | None
    depth: int

    def path(self) -> str:
        steps = []
        node: _Node | None = self
        while node is not None:
            if isinstance(node.key, int):
                steps.append(f"[{node.key}]")
            elif node.key is not None:
                steps.append(f".{node.key}" if node.key.isidentifier() else f"[{_quoted(node.key)}]")
            node = node.parent
        return clip("payload" + "".join(reversed(steps)), _PATH_LIMIT)

    def holds_itself(self) -> bool:
        seen = set()
        node: _Node | None = self
        while node is not None:
            if id(node.value) in seen:
                return True
            seen.add(id(node.value))
            node = node.parent
        return False


def _find_fault(payload: Any) -> None:
    """Walk through *payload* in order and raise at the first value that would not come back; else return."""
    waiting = [_Node(payload, None, None, 1)]
    while waiting:
        node = waiting.pop()
        problem = _problem(node)
        if problem:
            path = node.path()
            raise InvalidPayload(f"{path} {problem}", path=path)
        waiting.extend(reversed(list(_children(node))))


def _children(node: _Node) -> Iterator[_Node]:
    if isinstance(node.value, dict):
        for key, value in node.value.items():
            yield _Node(value, str.__str__(key), node, node.depth + 1)
    elif isinstance(node.value, list):
        for index, value in enumerate(node.value):
            yield _Node(value, index, node, node.depth + 1)


def _problem(node: _Node) -> str | None:  # noqa: PLR0911 - one rule a line
    """Say what is wrong with one value and what to pass instead; None where it is fine."""
    value = node.value
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return _problem_of_text(value)
    if isinstance(value, int):
        if abs(value) >= _TOO_LONG:
            return f"is an int of over {_MAX_DIGITS} digits, which Python does not read back: pass it as text"
        return None
    if isinstance(value, float):
        return _problem_of_float(value)
    if isinstance(value, (dict, list)):
        if node.depth > MAX_DEPTH:
            return "holds itself" if node.holds_itself() else f"is nested deeper than {MAX_DEPTH} levels"
        return _problem_of_keys(value) if isinstance(value, dict) else None
    return f"is of type {type(value).__name__}, which JSON cannot carry: {_remedy(value)}"


def _problem_of_text(text: str) -> str | None:
    if "\x00" in text:
        return 'holds a NUL character, which Postgres cannot store: remove it, as in text.replace("\\0", "")'
    if storable(text) != text:
        return 'holds a lone surrogate, which is no text: decode its bytes with errors="replace"'
    return None


def _problem_of_float(number: float) -> str | None:
    if not math.isfinite(number):
        return f"is {float(number)!r}, which JSON does not know: pass None or text"
    # jsonb keeps numbers in decimal and writes them without an exponent, so from 1e16 on an int comes back
    if abs(number) >= 1e16 and int(Decimal(float.__repr__(number))) != number:  # noqa: PLR2004
        return f"is {float(number)!r}, which jsonb would hand back as another number: pass an int or text"
    return None


def _problem_of_keys(value: dict[Any, Any]) -> str | None:
    for key in value:
        if not isinstance(key, str):
            return f"has the key {_shown(key)} ({type(key).__name__}), which JSON turns into text: use str keys"
        problem = _problem_of_text(key)
        if problem:
            return f"has the key {_quoted(key)}, which {problem}"
    return None


def _remedy(value: Any) -> str:
    """Say what to pass instead."""
    for types, remedy in _REMEDIES:
        if isinstance(value, types):
            return remedy
    kind = type(value)
    if any(hasattr(kind, name) for name in ("__dataclass_fields__", "__struct_fields__", "model_dump")):
        return "pass it as the whole payload of a handler that is annotated with its class, or as a dict"
    if any(hasattr(kind, name) for name in ("_meta", "__mapper__", "__tablename__", "__table__", "pk")):
        return "pass its primary key and load it in the handler, where it is up to date"
    if hasattr(kind, "tolist"):
        return "pass value.tolist()"
    if kind.__name__ == "__proxy__":  # Django's lazy texts
        return "pass str(value), which is the text in the language of this moment"
    return "pass text, numbers, booleans, lists and dicts"


_REMEDIES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (datetime, "pass value.isoformat(), with its time zone"),
    ((date, time), "pass value.isoformat()"),
    (timedelta, "pass value.total_seconds()"),
    ((UUID, Decimal, PurePath), "pass str(value)"),
    ((bytes, bytearray, memoryview), "pass base64.b64encode(value).decode(), or where it is kept"),
    (tuple, "pass list(value), which is how it would come back"),
    ((set, frozenset), "pass sorted(value)"),
    (Enum, "pass value.value"),
    (complex, "pass [value.real, value.imag]"),
    (type({}.keys()), "pass list(value)"),
)


def _mended(value: Any, depth: int) -> Any:  # noqa: C901, PLR0911 - one rule a line
    """Copy a result into what JSON and Postgres can hold, as `encode_result` describes."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return storable(str.__str__(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if abs(value) < _TOO_LONG else f"<int of {value.bit_length()} bits>"
    if isinstance(value, Enum):
        return _mended(value.value, depth + 1)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (UUID, Decimal, PurePath)):
        return storable(str(value))
    if depth < _RESULT_DEPTH:
        if isinstance(value, dict):
            return {_mended_key(key): _mended(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [_mended(item, depth + 1) for item in value]
    return _shown(value)


def _mended_key(key: Any) -> str:
    mended = _mended(key, _RESULT_DEPTH)
    return mended if isinstance(mended, str) else _to_json(mended)


def _shown(value: Any) -> str:
    try:
        return storable(repr(value)[:_REPR_LIMIT])
    except BaseException:  # noqa: BLE001 - a repr of the user's own may do anything
        return f"<unprintable {storable(type(value).__name__)}>"


def _quoted(key: str) -> str:
    return json.dumps(key[:80])
