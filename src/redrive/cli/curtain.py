"""The curtain of a command: which kinds are sensitive is known where the application is named.

The rest of it, :mod:`redrive.curtain`, is the same for the pages.
"""

from __future__ import annotations

from redrive.curtain import Curtain, gist, text

__all__ = ["Curtain", "curtain", "gist", "text"]


def curtain(app: str | None) -> Curtain:
    """Make the curtain of a command; the sensitive kinds are known where --app or REDRIVE_APP names the application."""
    if app is None:
        return Curtain()
    from redrive.cli.target import load_queue

    return Curtain.of(load_queue(app).handlers)
