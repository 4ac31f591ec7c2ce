"""Invoices as PDF, by fpdf2."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fpdf import FPDF

TOO_LARGE = 100_000_000
LINES_A_PAGE = 40


@dataclass
class Invoice:
    """An invoice to be written."""

    number: int
    customer: str
    lines: int
    logo_pixels: int = 0


def path(invoice: Invoice) -> Path:
    """Say where the finished PDF of *invoice* is."""
    return Path(os.environ.get("SAAS_EXPORTS", "exports")) / f"invoice-{invoice.number}.pdf"


def write(invoice: Invoice) -> Iterator[tuple[int, int]]:
    """Write the PDF; yields (page, pages) as it goes. It is there when the last page is, whole or not at all."""
    _draw_logo(invoice)
    from fpdf import FPDF  # noqa: PLC0415 - half a second, which only those who export should wait for

    pdf = FPDF()
    pages = -(-invoice.lines // LINES_A_PAGE)
    for page in range(1, pages + 1):
        pdf.add_page()
        if page == 1:
            _letterhead(pdf, invoice)
        pdf.set_font("helvetica", size=9)
        for line in _lines(invoice, page):
            pdf.cell(0, 6, line, new_x="LMARGIN", new_y="NEXT")
        yield page, pages
    final = path(invoice)
    final.parent.mkdir(parents=True, exist_ok=True)
    draft = final.with_suffix(f".{os.getpid()}.part")
    pdf.output(str(draft))
    draft.replace(final)


def _letterhead(pdf: FPDF, invoice: Invoice) -> None:
    pdf.set_font("helvetica", style="B", size=18)
    pdf.cell(0, 12, f"Invoice {invoice.number}: {invoice.customer}", new_x="LMARGIN", new_y="NEXT")


def _draw_logo(invoice: Invoice) -> None:
    if invoice.logo_pixels > TOO_LARGE and not os.environ.get("SAAS_SMALL_LOGOS"):
        # An image decoder takes all the memory there is and the kernel kills its process: no exception, no finally.
        # Played here with the signal that the kernel sends. SAAS_SMALL_LOGOS is the release that has it mended.
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)


def _lines(invoice: Invoice, page: int) -> list[str]:
    """Read a page's lines; a query, in a service with more than one customer."""
    time.sleep(0.1)
    first = (page - 1) * LINES_A_PAGE
    return [
        f"{number + 1:>6}   paper planes, folded" for number in range(first, min(first + LINES_A_PAGE, invoice.lines))
    ]
