"""The two ways to show the demo: a picture that keeps changing, or lines for a pipe, a log, a terminal that can't."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from typing import TYPE_CHECKING, Any, Protocol, Self

from rich.live import Live
from rich.text import Text

from redrive.demo.screen import TONES, View, picture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console


class Display(Protocol):
    """Shows a view, as often as it is told to."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(self, *_: object) -> None:
        """End, and leave the last view to be read."""

    def show(self, view: View) -> None:
        """Show what is new."""

    def left(self) -> bool:
        """Say whether the reader has had enough."""


class Picture:
    """The whole window, redrawn in place; what it last showed stays in the terminal when it ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, screen=True, auto_refresh=False)
        self._view: View | None = None
        self._keys: int | None = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._modes: list[Any] = []

    def __enter__(self) -> Self:
        if self._keys is not None:
            self._modes = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if self._keys is not None:
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._modes)
        if self._view is not None:
            self._console.print(picture(self._view, self._console.width))

    def show(self, view: View) -> None:
        """Draw."""
        self._view = view
        width, height = self._console.size
        self._live.update(picture(view, width, height), refresh=True)

    def left(self) -> bool:
        """Look for a q; Ctrl-C is a signal and comes another way."""
        if self._keys is None or not select.select([self._keys], [], [], 0)[0]:
            return False
        return os.read(self._keys, 64).lower()[:1] == b"q"


class Lines:
    """A line for everything that happens."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._view: View | None = None
        self._shown = 0
        self._title = ""
        self._hints: Sequence[str] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._view is None or self._view.account is None:
            return
        self._console.print()
        for name, value, remark in self._view.account.rows():
            self._console.print(f"{name:>14}  {value:>3}  {remark}".rstrip(), highlight=False, soft_wrap=True)

    def show(self, view: View) -> None:
        """Print what has happened since."""
        self._view = view
        if view.title != self._title:
            self._title = view.title
            self._print(Text(f"\n{view.title}", style="bold").append(f"  {view.text}", style="not bold"))
        for line in view.journal.lines[self._shown :]:
            self._shown += 1
            self._print(Text(f"{line.at:6.1f}  {line.source:<9} ").append(line.text, style=TONES[line.tone]))
        if view.hints != self._hints:
            self._hints = view.hints
            self._print(Text("\n" + "\n".join(view.hints)))
        sys.stdout.flush()

    def left(self) -> bool:
        """Never: there are no keys."""
        return False

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True, highlight=False)
