"""The names of topics: words between dots; and in what subscribes to them ``*`` for one word and ``#`` for any number.

As the routing and binding keys of AMQP, 255 bytes included, so that a topic is the same on a broker's topic exchange.
Postgres matches for itself when something is published; :func:`matches` says here what it will find there.
"""

from __future__ import annotations

from typing import Any

from redrive.errors import InvalidOption

MOST = 255
"""Bytes."""
_ONE, _ANY = "*", "#"


def topic(value: Any) -> str:
    """Check a topic to be published.

    Raises:
        InvalidOption: naming the value and the remedy.
    """
    return _words(value, "topic", wild=False)


def pattern(value: Any) -> str:
    """Check a topic, or a pattern of topics, to subscribe to.

    Raises:
        InvalidOption: naming the value and the remedy.
    """
    return _words(value, "topic", wild=True)


def matches(pattern: str, topic: str) -> bool:
    """Tell whether who subscribes to *pattern* gets what is published as *topic*."""
    words, wanted = topic.split("."), pattern.split(".")
    reached = {0}
    for one in wanted:
        if one == _ANY:
            reached = set(range(min(reached), len(words) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(words) and one in (_ONE, words[at])}
        if not reached:
            return False
    return len(words) in reached


def _words(value: Any, what: str, *, wild: bool) -> str:
    if not isinstance(value, str):
        raise InvalidOption(f"{what} is {value!r:.80}: give text such as 'invoice.paid'")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidOption(f"{what} is {value!r:.80}: NUL and lone surrogates can't be stored")
    if (size := len(value.encode())) > MOST:
        raise InvalidOption(f"{what} is {value[:40]!r}… of {size} bytes: at most {MOST}, as a broker takes them")
    for word in value.split("."):
        if not word:
            raise InvalidOption(f"{what} is {value!r}: write words with one dot between them, such as 'invoice.paid'")
        if (_ONE in word or _ANY in word) and not wild:
            raise InvalidOption(f"{what} is {value!r}: * and # are for who subscribes; publish one topic by its name")
        if (_ONE in word or _ANY in word) and word not in (_ONE, _ANY):
            raise InvalidOption(
                f"{what} is {value!r}: * and # each stand for whole words, as in 'invoice.*' or 'audit.#'"
            )
    return value
