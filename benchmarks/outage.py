"""A mail provider's two-hour outage at five jobs a second, played twice: with the breaker and without.

``make outage`` plays it on redrive's own statements, with the worker's own judge of failures, in a time that is moved
on step by step, so that hours pass in minutes. What is simulated is the clock and the provider. Figures on standard
output, as JSON, and a picture.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psycopg

from benchmarks.soak.picture import Panel, sheet
from redrive import Queue, claims
from redrive.dev_server import DevServer
from redrive.executor import execute_here
from redrive.guard import Guard
from redrive.job import Holder
from redrive.lanes import Lanes
from redrive.migrate import migrate
from redrive.outcome import Finished, parameters
from redrive.service import Database
from redrive.statements import Statement, arun, named

if TYPE_CHECKING:
    from collections.abc import Callable

WORKER = "here:1:abcdef"
TICKS = 5
"""Steps of a second while the backlog goes out at a rate, when a worker looks as often; one a second otherwise."""
LIMIT = 1000
WINDOW = 10
"""Seconds over which a rate is taken."""
ENQUEUE = """
    INSERT INTO redrive.jobs (kind, run_at, created_at)
    SELECT 'mail', redrive.clock(), redrive.clock() FROM generate_series(1, %s)
"""
ENDED = "SELECT status, count(*)::int FROM redrive.jobs GROUP BY status"


class Provider:
    """What the jobs call: it is down for a while, and counts who calls."""

    def __init__(self, down_from: float, down_until: float) -> None:
        self.now = 0.0
        self.calls: list[float] = []
        self._down = (down_from, down_until)

    def send(self, _payload: Any) -> None:
        """Take a mail, or don't."""
        self.calls.append(self.now)
        if self._down[0] <= self.now < self._down[1]:
            raise ConnectionRefusedError("nobody listens there")


class Wire:
    """The one connection, as the parts of a worker know theirs."""

    schema = "redrive"

    def __init__(self, conn: psycopg.AsyncConnection[Any]) -> None:
        self.conn = conn

    async def run(self, statement: Statement[Any]) -> list[Any]:
        """Say it."""
        return await arun(self.conn, statement)


class Play:
    """One run of the story."""

    def __init__(self, conn: psycopg.AsyncConnection[Any], provider: Provider, *, breaker: bool) -> None:
        self.queue = Queue("postgresql:///nowhere")
        self.queue.handler("mail", breaker=breaker)(provider.send)
        self._conn, self._provider = conn, provider
        self._wire = cast("Any", Wire(conn))  # as its control connection is to a worker
        self._done: list[Finished] = []
        self._lanes = Lanes(["mail"])
        self._guard = Guard(Database(WORKER), self._wire, self.queue.handlers, lambda: provider.now)
        self._guard.put = self._done.append

    @property
    def closing(self) -> bool:
        """Whether the backlog is going out."""
        return "closing" in self._lanes.limits.breakers

    async def turn(self) -> None:
        """Claim what is due and may go, run it, and write what came of it: as a worker does."""
        lanes, now = self._lanes, self._provider.now
        rows = await self._wire.run(claims.survey("redrive", **lanes.look()))
        survey = lanes.surveyed(rows, 0.0, now)
        lanes.limits.broken = self._guard.learn(lanes.limits.breakers, now)
        lanes.limits.arrived()
        if survey.due or lanes.asks_limits(now):
            for job in await self._claim(now):
                finished = execute_here(job, self.queue.handlers.demand(job.kind))
                job.started = now  # as the story has it, and not this machine
                self._guard.take(finished)
            await self._write()
        await asyncio.sleep(0)
        await self._guard.tick()

    async def _claim(self, now: float) -> list[Any]:
        holder, lanes = Holder(WORKER, "redrive"), self._lanes
        plan = lanes.plan(LIMIT, lambda _kind: LIMIT, now)
        jobs = await self._wire.run(claims.claim(holder, **plan.params())) if plan.lanes else []
        plan = lanes.plan(LIMIT, lambda _kind: LIMIT, now, limited=True)
        if plan.lanes:
            async with self._conn.transaction():
                locked = await self._wire.run(claims.lock_limits("redrive", ["mail"]))
                jobs += await self._wire.run(claims.claim_limited(holder, locked=locked, **plan.params()))
        return jobs

    async def _write(self) -> None:
        batch = sorted(self._done, key=lambda one: one.job.id)
        self._done.clear()
        plain, others = [one for one in batch if one.plain], [one for one in batch if not one.plain]
        if plain:
            ids, claims = [one.job.id for one in plain], [one.job.claim for one in plain]
            await self._wire.run(named("succeed_jobs", "redrive", ids=ids, claims=claims, worker=WORKER))
        if others:
            await self._wire.run(named("finish_jobs", "redrive", worker=WORKER, max_crashes=3, **parameters(others)))
        self._guard.count(batch)


async def play(
    url: str, *, breaker: bool, rate: float, before: float, outage: float, after: float, tell: Callable[[float], object]
) -> dict[str, Any]:
    """Play it on a database of its own; gives how it ended, and the calls and what waited, second by second."""
    provider = Provider(before, before + outage)
    end, made = before + outage + after, 0
    waiting: list[int] = []
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        await conn.execute("set synchronous_commit = off; set jit = off")
        run = Play(conn, provider, breaker=breaker)
        ticks = 0
        while provider.now < end:
            ticks += 1 if run.closing else TICKS - ticks % TICKS
            provider.now = ticks / TICKS
            await conn.execute("select set_config('redrive.clock_offset', %s, false)", [f"{provider.now} s"])
            due = int(provider.now * rate) - made
            if due:
                await conn.execute(ENQUEUE, [due])
                made += due
            await run.turn()
            if provider.now % 1 == 0:
                alive = "select count(*)::int from redrive.jobs where status = 'pending'"
                waiting.append((await (await conn.execute(alive)).fetchone() or [0])[0])
            if provider.now % 600 == 0:
                tell(provider.now / end)
        states: dict[str, int] = dict(await (await conn.execute(ENDED)).fetchall())
    return _figures(provider.calls, waiting, states, rate=rate, before=before, outage=outage, end=end)


def _figures(calls: list[float], waiting: list[int], states: dict[str, int], **story: float) -> dict[str, Any]:
    down, up = story["before"], story["before"] + story["outage"]
    seconds = [0] * (int(story["end"]) + 1)
    for call in calls:
        seconds[int(call)] += 1
    rates = [sum(seconds[max(0, now - WINDOW + 1) : now + 1]) / WINDOW for now in range(len(seconds))]
    tripped = down + 60  # by then it is open
    back = next((now for now in range(int(up), len(waiting)) if waiting[now] <= story["rate"] * 2), None)
    return {
        "jobs": sum(states.values()),
        "dead": states.get("dead", 0),
        "succeeded": states.get("succeeded", 0),
        "calls_during_outage": sum(down <= call < up for call in calls),
        "probes_a_second": round(sum(tripped <= call < up for call in calls) / max(1.0, up - tripped), 4),
        "peak_rate_after": max(rates[int(up) :]),
        "usual_rate": story["rate"],
        "backlog_gone_after_s": None if back is None else back - int(up),
        "calls": rates[1:],
        "waiting": waiting,
    }


def picture(with_one: dict[str, Any], without: dict[str, Any], *, outage: float) -> str:
    """Draw both runs over one axis of time."""
    at = [float(second + 1) for second in range(len(with_one["waiting"]))]
    usual = with_one["usual_rate"]
    title = f"An outage of {outage / 3600:g} h at {usual:g} jobs a second: with the breaker, and without"
    said = (
        f"with: {with_one['dead']:,} dead, at most {with_one['peak_rate_after']:g} calls/s afterwards · "
        f"without: {without['dead']:,} dead of {without['jobs']:,} · axis: minutes"
    )

    def lines(name: str) -> list[tuple[str, list[float]]]:
        return [("with", with_one[name][: len(at)]), ("without", without[name][: len(at)])]

    shown = [
        Panel("Calls that the provider gets", "a second, over 10 s", lines("calls"), 2 * usual),
        Panel("Jobs that wait", "", lines("waiting")),
    ]
    return sheet(title, said, shown, at, made_by="make outage")


def main() -> int:
    """Play both, tell, draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outage", description=__doc__)
    parser.add_argument("--rate", type=float, default=5.0, help="jobs a second")
    parser.add_argument("--before", type=float, default=600.0, help="seconds before the outage")
    parser.add_argument("--outage", type=float, default=7200.0, help="seconds of outage")
    parser.add_argument("--after", type=float, default=3000.0, help="seconds after it")
    parser.add_argument("--picture", type=Path, help="where to put the picture")
    given = parser.parse_args()
    story = {"rate": given.rate, "before": given.before, "outage": given.outage, "after": given.after}
    runs = {}
    for breaker in (True, False):
        name = "with" if breaker else "without"

        def tell(share: float, name: str = name) -> None:
            sys.stderr.write(f"\r{name} the breaker: {share:.0%} ")

        with DevServer() as server:
            migrate(server.url)
            runs[name] = asyncio.run(play(server.url, breaker=breaker, tell=tell, **story))
    sys.stderr.write("\n")
    if given.picture:
        given.picture.write_text(picture(runs["with"], runs["without"], outage=given.outage), encoding="utf-8")
    short = {
        name: {key: value for key, value in run.items() if not isinstance(value, list)} for name, run in runs.items()
    }
    sys.stdout.write(json.dumps(short, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
