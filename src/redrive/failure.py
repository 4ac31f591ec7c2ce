"""An exception as text: short, storable, and never the reason that a job cannot finish.

Whatever a handler raises, `describe` answers: with a ``__str__`` that raises itself, with a message of 50 MB,
after a thousand frames of recursion. It does its own formatting, for traceback.format_exception copies a long
message several times before anybody can cut it. Secrets are left in (see `masking`); what the database's
encoding cannot hold is the store's business.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from types import FrameType

from redrive.text import clip, storable

__all__ = ["FailureText", "describe", "storable"]

TRACEBACK_LIMIT = 8_000
"""Characters of a traceback that are kept, from its head and its tail."""

MESSAGE_LIMIT = 2_000
"""Characters of a message that are kept, from its head and its tail."""

LAST_ERROR_LIMIT = 2_000
"""Characters of ``jobs.last_error``: the tail of the traceback, as in ``traceback.format_exc()[-2000:]``."""

_LINE_LIMIT = 1_200  # of the line "Type: message" in last_error, so that some of the stack is left beside it
_HEAD_FRAMES, _TAIL_FRAMES = 20, 40
# How a handler is called is nobody's question at night.
_MACHINERY = (
    "redrive.executor",
    "redrive.handlers",
    "redrive.child",
    "redrive.isolation",
    "redrive.testing.trial",
    "redrive.django.upkeep",
    "redrive.django.running",
)
_CHAIN_LIMIT = 8  # causes of causes
_GROUP_LIMIT = 5  # members of a group that are shown in full

_OUTSIDE = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


@dataclass(frozen=True, slots=True)
class FailureText:
    """What is kept of a failure. All of it can be stored: no NUL, no lone surrogates, nothing long."""

    error_type: str
    """The class, with its module unless that is builtins: ``ValueError``, ``smtplib.SMTPDataError``."""

    message: str
    """What the exception says of itself; at most `MESSAGE_LIMIT` characters."""

    traceback: str
    """The stack and the chain of causes, the error itself last; at most `TRACEBACK_LIMIT` characters."""

    last_error: str
    """The end of it, at most `LAST_ERROR_LIMIT` characters, which always has the type and the message."""

    fingerprint: str
    """16 hex digits, the same for the same fault: by type, message without its particulars, and place."""

    outage: float | None = None
    """Where it tells of the service that the job calls, and not of the job: the seconds for which that asks, 0 if for
    none."""


def describe(error: BaseException) -> FailureText:
    """Put *error* into words; never raises."""
    try:
        return _describe(error)
    except BaseException as trouble:  # noqa: BLE001 - a job must end even where its error defies description
        name = storable(type(error).__name__)
        text = f"{name}: <cannot be described: {type(trouble).__name__}>"
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        return FailureText(name, text, text, text, digest)


def _describe(error: BaseException) -> FailureText:
    error_type, message = _name(error), _message(error)
    text = "\n".join(_lines(error, _CHAIN_LIMIT, set()))
    line = f"{error_type}: {clip(message, _LINE_LIMIT)}" if message else error_type
    return FailureText(
        error_type=error_type,
        message=message,
        traceback=clip(text, TRACEBACK_LIMIT),
        last_error=_last_error(error, text, line),
        fingerprint=_fingerprint(error, error_type, message),
    )


def _last_error(error: BaseException, text: str, line: str) -> str:
    """Take the tail of *text*; put *line* back where a long message, notes or a group push it out."""
    tail = text[-LAST_ERROR_LIMIT:]
    if line in tail:
        return tail
    room = LAST_ERROR_LIMIT - len(line) - 5
    if isinstance(error, BaseExceptionGroup):
        return f"{line}\n...\n{text[-room:]}"
    stack = "\n".join(_stack(error))
    return f"{stack[-room:]}\n{line}"


def _name(error: BaseException) -> str:
    kind = type(error)
    module = kind.__module__
    return storable(clip(kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}", 200))


def _message(error: BaseException) -> str:
    try:
        return storable(clip(str(error), MESSAGE_LIMIT))
    except BaseException as trouble:  # noqa: BLE001 - __str__ is the user's own code
        return f"<no message: its __str__ raised {type(trouble).__name__}>"


def _lines(error: BaseException, depth: int, seen: set[int]) -> Iterator[str]:
    """Write stack and message of *error* after those of its cause, as Python does."""
    seen.add(id(error))
    cause, link = error.__cause__, "The above exception was the direct cause of the following exception:"
    if cause is None and not error.__suppress_context__:
        cause, link = error.__context__, "During handling of the above exception, another exception occurred:"
    if cause is not None and id(cause) not in seen:
        if depth:
            yield from _lines(cause, depth - 1, seen)
        else:
            yield "[... earlier causes left out ...]"
        yield f"\n{link}\n"
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):"
        yield from _stack(error)
    message = _message(error)
    yield f"{_name(error)}: {message}" if message else _name(error)
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        yield from (storable(clip(note, 500)) for note in notes[:10] if isinstance(note, str))
    if isinstance(error, BaseExceptionGroup) and depth:
        for number, member in enumerate(error.exceptions[:_GROUP_LIMIT], 1):
            yield f"  [{number} of {len(error.exceptions)}]"
            for line in _lines(member, min(depth - 1, 2), seen):
                yield "  " + line.replace("\n", "\n  ")


def _stack(error: BaseException) -> Iterator[str]:
    frames = list(traceback.walk_tb(error.__traceback__))
    theirs = list(itertools.dropwhile(lambda frame: frame[0].f_globals.get("__name__") in _MACHINERY, frames))
    frames = theirs or frames
    left_out = len(frames) - _HEAD_FRAMES - _TAIL_FRAMES
    if left_out <= 0:
        yield _frames(frames)
        return
    yield _frames(frames[:_HEAD_FRAMES])
    yield f"  [... {left_out} more frames ...]"
    yield _frames(frames[-_TAIL_FRAMES:])


def _frames(frames: list[tuple[FrameType, int]]) -> str:
    return storable("".join(traceback.StackSummary.extract(iter(frames)).format()).rstrip("\n"))


_FOLDS = tuple(
    (re.compile(pattern), mark)
    for pattern, mark in (
        (r"(?<!\w)'[^'\n]{0,200}'(?!\w)|\"[^\"\n]{0,200}\"", "<value>"),
        (r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b", "<uuid>"),
        (r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}", "<email>"),
        (r"\b0x[0-9a-fA-F]+\b|\b(?=[a-f]*[0-9])[0-9a-f]{8,}\b|\b(?=[A-F]*[0-9])[0-9A-F]{8,}\b", "<hex>"),
        (r"\d+(?:[.,:]\d+)*", "<n>"),
        (r"\s+", " "),
    )
)


def _fingerprint(error: BaseException, error_type: str, message: str) -> str:
    """Hash type, message and place; without line numbers, so that a release does not make old faults new."""
    folded = message[:500]
    for pattern, mark in _FOLDS:
        folded = pattern.sub(mark, folded)
    return hashlib.sha256(f"{error_type}\n{folded}\n{_place(error)}".encode()).hexdigest()[:16]


def _place(error: BaseException) -> str:
    """Name module and function of the innermost frame in the user's own code, or of the innermost at all."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = next(filter(_is_own, reversed(frames)), None)
    frame = own or next(reversed(frames), None)
    if frame is None:
        return ""
    return storable(f"{frame.f_globals.get('__name__', '')}:{frame.f_code.co_qualname}")


def _is_own(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    path = frame.f_code.co_filename
    return not (
        module.partition(".")[0] == "redrive"
        or path.startswith(("<frozen", *_OUTSIDE))
        or not {"site-packages", "dist-packages"}.isdisjoint(PurePath(path).parts)
    )
