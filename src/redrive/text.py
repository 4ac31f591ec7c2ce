"""Text that Postgres can store.

What every text from outside goes through before it is written: no NUL, no lone surrogates, no more than so
many characters. It hides no secrets (see `masking`) and knows nothing of the database's encoding.
"""

from __future__ import annotations

import re

REPLACEMENT = "\ufffd"
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def storable(text: str) -> str:
    """Replace what no text column can hold, NUL and lone surrogates, by U+FFFD."""
    if text.isascii():
        return text.replace("\x00", REPLACEMENT) if "\x00" in text else text
    return _UNSTORABLE.sub(REPLACEMENT, text)


def ascii_only(text: str) -> str:
    """Spell *text* in ASCII, for a database whose encoding has no room for it."""
    return text.encode("ascii", "backslashreplace").decode()


def clip(text: str, limit: int) -> str:
    """Keep head and tail of a long text, which is where errors say what they are, and note how much went.

    The result is never longer than *limit* characters. Only slices are copied: 50 MB cost what 5 kB do.
    """
    if len(text) <= limit:
        return text
    mark = f" [... {len(text) - limit} more characters ...] "
    room = limit - len(mark)
    if room < 2:  # noqa: PLR2004 - no room for a head and a tail
        return text[:limit]
    return text[: room - room // 2] + mark + text[len(text) - room // 2 :]
