"""Jobs that keep their row while they are at the broker, and whose message is gone from there: they are sent again.

That it is gone is for an operator to say, who has purged a queue, or for the doctor, who has seen it empty: here no
broker is asked. What is there after all is run twice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redrive import store
from redrive.audit import signed
from redrive.statements import Statement, Steps, named

BATCH = 1000


@dataclass(frozen=True, kw_only=True)
class AtBroker:
    """Which jobs an operator means. What isn't given doesn't matter."""

    until: datetime
    """Those that went to the broker before that."""
    ids: Sequence[int] | None = None
    kind: str | None = None

    def params(self) -> dict[str, Any]:
        """Give it as parameters."""
        ids = None if self.ids is None else [store.number(each, "id") for each in self.ids]
        return {"ids": ids, "kind": store.said(self.kind, "kind"), "until": self.until}

    def written(self) -> str:
        """Write it as JSON, without what isn't given."""
        given = {name: value for name, value in self.params().items() if value is not None}
        return json.dumps({"at": "broker", **given, "until": self.until.isoformat()}, ensure_ascii=False)


def preview(schema: str, which: AtBroker) -> Statement[Any]:
    """Count what :func:`resend` would send again, with a sample and their kinds."""
    return named("at_broker", schema, **which.params())


def resend(schema: str, which: AtBroker, *, by: str = "", reason: str = "") -> Steps[list[int]]:
    """Let them be sent again, batch by batch; lists those that moved. What was to be cancelled has ended."""
    how = {"filter": which.written(), "limit": BATCH, **signed(by, reason), **which.params()}
    moved: list[int] = []
    act = None
    while True:
        rows = yield named("send_again", schema, **how, act=act)
        if not rows:
            return moved
        moved += [row.id for row in rows]
        act = rows[0].act
        yield named("wake", schema)
