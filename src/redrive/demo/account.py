"""The demo's last word, from three sources that know nothing of each other.

What was enqueued, what the table says, and what arrived at the mail server, at the endpoint and on disk: a job that one
of them misses is lost, whatever the others say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from redrive.demo.board import Board


@dataclass(frozen=True)
class Account:
    """How it ended, in numbers."""

    jobs_in: int
    succeeded: int
    retried: int
    """Jobs that failed and were tried again."""
    tries: int
    """Failed tries that were followed by another."""
    died: int
    requeued: int
    worker_deaths: int
    arrived: Mapping[str, int]
    """What was found outside, by where."""
    twice: int
    """Jobs whose work arrived more than once: their worker was killed after it and before it said so."""
    unfinished: Mapping[int, str]
    """Jobs that the table still has, in another state than succeeded: not lost, and not done."""
    lost: Mapping[int, str]
    """Jobs that are nowhere, or that say succeeded where nothing arrived."""

    def rows(self) -> list[tuple[str, str, str]]:
        """Give the numbers as name, value and remark."""
        arrived = ", ".join(f"{number} {where}" for where, number in self.arrived.items())
        twice = f"; {self.twice} of them twice, with the same idempotency key" if self.twice else ""
        return [
            ("jobs in", str(self.jobs_in), ""),
            ("succeeded", str(self.succeeded), f"{arrived}{twice}"),
            ("retried", str(self.retried), f"{self.tries} failed tries"),
            ("died", str(self.died), "each with its reason, for a human to see"),
            ("requeued", str(self.requeued), "after the fix, with a fresh budget and their history kept"),
            ("worker deaths", str(self.worker_deaths), "their jobs taken back by the others"),
            *([("unfinished", str(len(self.unfinished)), _reasons(self.unfinished))] if self.unfinished else []),
            ("lost", str(len(self.lost)), _reasons(self.lost)),
        ]

    def table(self) -> Table:
        """Draw the numbers."""
        table = Table(box=box.HORIZONTALS, show_header=False, border_style="bright_black", expand=True)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(style="bright_black", ratio=1)
        for name, value, remark in self.rows():
            style = "bold" if name != "lost" else "bold white on red" if self.lost else "bold green"
            table.add_row(name, Text(value, style=style), remark)
        return table


def settle(
    enqueued: Collection[int],
    board: Board,
    *,
    mails: Mapping[int, int],
    calls: Mapping[int, int],
    exports: Path,
    worker_deaths: int,
) -> Account:
    """Hold what was enqueued against the table and against what arrived."""
    written = {path.name for path in exports.glob("*.pdf") if _whole(path)}
    lost: dict[int, str] = {}
    unfinished: dict[int, str] = {}
    for each in enqueued:
        card = board.cards.get(each)
        if card is None:
            lost[each] = "it is not in the table"
        elif card.job.status != "succeeded":
            unfinished[each] = f"it is {card.state}"
        elif not (mails.get(each) or calls.get(each) or f"invoice-{card.about}.pdf" in written):
            lost[each] = "it says succeeded, and nothing arrived"
    cards = list(board.cards.values())
    return Account(
        jobs_in=len(enqueued),
        succeeded=board.count("succeeded"),
        retried=sum("retried" in card.way for card in cards),
        tries=sum(card.way.count("retried") for card in cards),
        died=sum("dead" in card.way for card in cards),
        requeued=sum(card.requeued for card in cards),
        worker_deaths=worker_deaths,
        arrived={"mails": sum(map(bool, mails.values())), "calls": len(calls), "PDFs": len(written)},
        twice=sum(number > 1 for number in (*mails.values(), *calls.values())),
        unfinished=unfinished,
        lost=lost,
    )


def _reasons(jobs: Mapping[int, str]) -> str:
    return "; ".join(f"job {each}: {why}" for each, why in jobs.items())


def _whole(path: Path) -> bool:
    content = path.read_bytes()
    return content.startswith(b"%PDF-") and content.rstrip().endswith(b"%%EOF")
