"""The demo's picture: what is going on, every job in a line, and what has just happened. It only draws."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from redrive.demo.account import Account
    from redrive.demo.board import Board, Card, State, Step
    from redrive.demo.crew import Crew
    from redrive.demo.journal import Journal, Line

STATES: dict[State, str] = {
    "waiting": "bright_black",
    "delayed": "blue",
    "running": "cyan",
    "retrying": "yellow",
    "taken back": "magenta",
    "requeued": "blue",
    "succeeded": "green",
    "dead": "bold red",
    "failed": "red",
}
STEPS: dict[Step, tuple[str, str]] = {
    "retried": ("↻", "yellow"),
    "held": ("‖", "yellow"),
    "reclaimed": ("†", "magenta"),
    "dead": ("✗", "bold red"),
    "failed": ("✗", "red"),
    "requeued": ("»", "bold blue"),
    "succeeded": ("✓", "bold green"),
}
TONES = {"plain": "default", "good": "green", "bad": "red", "wait": "yellow", "work": "cyan", "back": "magenta"}
CREW = {
    "starting": ("○", "yellow"),
    "working": ("●", "green"),
    "killed": ("✗", "bold red"),
}
LEGEND = {
    "↻": "failed, tried again",
    "‖": "held, the service is down",
    "†": "worker killed",
    "✗": "dead",
    "»": "sent back",
    "✓": "succeeded",
}
ROOMY = 100
"""Columns from which a row has room for everything."""
AIRY = 34
"""Lines from which there is room for empty ones."""
FEWEST_LINES, MOST_LINES = 3, 12


@dataclass
class View:
    """All there is to draw."""

    journal: Journal
    board: Board | None = None
    crew: Crew | None = None
    title: str = ""
    text: str = ""
    account: Account | None = None
    hints: Sequence[str] = ()
    """What to try now; a line that begins with two spaces is to be typed."""


def picture(view: View, width: int, height: int | None = None) -> Group:
    """Draw *view*, in *height* lines at most if one is given."""
    console = Console(width=width, file=io.StringIO(), color_system=None)

    def lines(part: RenderableType) -> int:
        return len(console.render_lines(part, console.options.update(width=width)))

    airy = height is None or height >= AIRY
    air = [Text()] if airy else []
    above: list[RenderableType] = [_header(view, width), *air, _scene(view), *air]
    if view.board is not None and view.board.cards:
        above += [_states(view.board, width), *air]
    below: list[RenderableType] = []
    if view.account is not None:
        below.append(view.account.table() if airy else _in_a_line(view.account))
    if view.hints:
        below += [*air, *map(_hint, view.hints)]
    if view.board is not None and width >= ROOMY and airy:
        below.append(_legend())
    room = None if height is None else height - sum(map(lines, above + below)) - 2
    cards = sorted(view.board.cards.values(), key=lambda card: card.job.id) if view.board else []
    jobs, shown = _jobs(cards, width, None if room is None else room - FEWEST_LINES)
    left = len(view.journal.lines) if room is None else max(FEWEST_LINES, room - shown)
    happened = _lines(view.journal.lines[-min(left, MOST_LINES) :])
    middle: list[RenderableType] = [jobs, Rule(style="bright_black"), happened] if cards else [happened]
    return Group(*above, *middle, *below)


def _header(view: View, width: int) -> Table:
    grid = Table.grid(expand=True, padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    name = Text("redrive demo", style="bold")
    if width >= ROOMY:
        name.append("  background jobs on Postgres", style="not bold bright_black")
    right = Text()
    if view.crew is not None:
        right.append("workers ", style="bright_black")
        for member in view.crew.members:
            glyph, style = CREW[member.condition]
            right.append(f"{glyph} ", style=style)
            if width >= ROOMY:
                right.append(
                    f"{member.condition if member.condition != 'working' else member.pid}  ", style="bright_black"
                )
    right.append(f"{view.journal.elapsed:6.1f} s", style="bold")
    grid.add_row(name, right)
    return grid


def _scene(view: View) -> Text:
    text = Text(view.title, style="bold cyan")
    if view.text:
        text.append(f"  {view.text}", style="not bold default")
    return text


def _states(board: Board, width: int) -> Group:
    """Draw all jobs as one bar, a piece each, and count them."""
    bar, counts = Text(no_wrap=True), Text(no_wrap=True)
    whole, drawn, seen = len(board.cards), 0, 0
    for state, style in STATES.items():
        if number := board.count(state):
            seen += number
            bar.append("━" * (width * seen // whole - drawn), style=style)
            drawn = width * seen // whole
            counts.append(f"{number} ", style=style).append(f"{state}   ", style="bright_black")
    return Group(bar, counts)


def _jobs(cards: Sequence[Card], width: int, room: int | None) -> tuple[RenderableType, int]:
    """Draw the jobs, those that need eyes first to have a place; give the number of lines too."""
    shown = _chosen(cards, None if room is None else max(4, room - 1))
    table = Table(box=None, expand=True, padding=(0, 1), header_style="bright_black", show_edge=False)
    table.add_column("#", justify="right", style="bright_black", no_wrap=True)
    table.add_column("job", no_wrap=True, max_width=width * 2 // 5, overflow="ellipsis")
    table.add_column("state", no_wrap=True, min_width=14)
    if width >= ROOMY:
        table.add_column("try", no_wrap=True, justify="right", min_width=4)
    table.add_column("so far", no_wrap=True, min_width=6)
    table.add_column("what happens", no_wrap=True, ratio=1, overflow="ellipsis")
    for card in shown:
        cells: list[RenderableType] = [str(card.job.id), _name(card, width), _state(card)]
        if width >= ROOMY:
            cells.append(Text(f"{card.job.attempts}/{card.job.max_attempts}", style="bright_black"))
        table.add_row(*cells, _way(card.way), _said(card))
    left_out = len(cards) - len(shown)
    if not left_out:
        return table, len(shown) + 1
    return Group(table, Text(f"     and {left_out} more that succeeded or wait", style="bright_black")), len(shown) + 2


def _chosen(cards: Sequence[Card], room: int | None) -> Sequence[Card]:
    if room is None or len(cards) <= room:
        return cards
    order = ("dead", "failed", "running", "taken back", "retrying", "requeued", "delayed", "waiting", "succeeded")
    by_need = sorted(cards, key=lambda card: (order.index(card.state), -card.job.updated_at.timestamp()))
    return sorted(by_need[: room - 1], key=lambda card: card.job.id)


def _name(card: Card, width: int) -> Text:
    kind = card.job.kind if width >= ROOMY else card.job.kind.split("_")[-1]
    name = Text(f"{kind} ", style="bold" if card.state == "running" else "default")
    return name.append(card.about, style="not bold bright_black" if card.state == "waiting" else "not bold")


def _state(card: Card) -> Text:
    text = Text(card.state, style=STATES[card.state])
    if card.state in ("retrying", "delayed") and card.due_in > 0:
        text.append(f" {card.due_in:.1f} s", style="not bold")
    return text


def _way(way: Iterable[Step]) -> Text:
    return Text(" ").join(Text(*STEPS[step]) for step in way)


def _said(card: Card) -> Text:
    if card.progress:
        page, pages = card.progress
        done = round(12 * page / pages)
        return (
            Text("━" * done, style="cyan").append("━" * (12 - done), "bright_black").append(f" page {page} of {pages}")
        )
    return Text(
        card.said, style={"dead": "red", "retrying": "yellow", "taken back": "magenta"}.get(card.state, "default")
    )


def _lines(lines: Sequence[Line]) -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(justify="right", style="bright_black", no_wrap=True, width=6)
    grid.add_column(style="bright_black", no_wrap=True, width=9)
    grid.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
    for line in lines:
        grid.add_row(f"{line.at:.1f}", line.source, Text(line.text, style=TONES[line.tone]))
    return grid


def _legend() -> RenderableType:
    text = Text()
    styles = dict(STEPS.values())
    for glyph, meaning in LEGEND.items():
        text.append(f"  {glyph} ", style=styles[glyph]).append(meaning, style="bright_black")
    return Padding(text, (1, 0, 0, 0))


def _hint(line: str) -> Text:
    return Text(line, style="bold cyan" if line.startswith("  ") else "bright_black", overflow="fold")


def _in_a_line(account: Account) -> Text:
    text = Text()
    for name, value, _ in account.rows():
        style = "bold" if name != "lost" else "bold red" if account.lost else "bold green"
        text.append(f"{value} ", style=style).append(f"{name}  ", style="bright_black")
    return text
