"""Pages of the admin's list of jobs, without counting millions of rows.

Up to 10,000 rows are counted and can be paged through; of a list without a filter the planner's estimate is told.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from django.core.paginator import Paginator

from redrive.django.ormqueue import project_queue
from redrive.statements import named

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST = 10_000


class BoundedPaginator(Paginator):
    """A paginator that never counts further than to the end of what it shows."""

    @cached_property
    def count(self) -> int:
        """How many can be paged through."""
        return min(self._counted, MOST)

    @property
    def said(self) -> str:
        """The number in words, with a + or an about; nothing where Django says it itself, since all can be paged."""
        if self._counted <= MOST:
            return ""
        if self.object_list.query.where:
            return f"{MOST:,}+ jobs; the newest {MOST:,} are listed"
        queue = project_queue()
        rows: Sequence[int] = [row.jobs for row in queue.ask(named("estimated_jobs", queue.schema))]
        return f"about {max([MOST, *rows]):,} jobs; the newest {MOST:,} are listed, filter or search for others"

    @cached_property
    def _counted(self) -> int:
        counted: int = self.object_list.order_by("-id")[: MOST + 1].values("id").count()
        return counted
