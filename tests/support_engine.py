"""What tests of the engine hold: a claimed job without a database, a worker in a thread, and what became of jobs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row, namedtuple_row

from redrive import Queue, claims
from redrive.events import Event, subscribe
from redrive.job import EPOCH, ClaimedJob, Holder
from redrive.lanes import HEAD, Lane, Lanes, Plan
from redrive.statements import Statement, run
from redrive.worker import Worker
from support import wait_for

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
WORKER = Holder("here:1:abcdef", "redrive", None, None)


def add(conn: psycopg.Connection, kind: str, jobs: int = 1, **columns: Any) -> None:
    """Insert jobs as anybody might."""
    named_ = "".join(f", {name}" for name in columns)
    given = "".join(", %s" for _ in columns)
    conn.execute(
        f"insert into redrive.jobs (kind{named_}) select %s{given} from generate_series(1, %s)",
        [kind, *columns.values(), jobs],
    )


def claim(conn: psycopg.Connection, *kinds: str, limit: int = 100, alone: bool = False) -> list[Any]:
    """Claim as a worker does: what has no limit, then what has, in one transaction with the lock of its kind."""
    lanes = Lanes(kinds)
    lanes.surveyed(run(conn, claims.survey("redrive", **lanes.look())), 0.0, 1.0)
    jobs = run(conn, claims.claim(WORKER, **lanes.plan(limit, lambda _kind: limit, 1.0).params()))
    with conn.transaction():
        locked = run(conn, claims.lock_limits("redrive", list(lanes.limits)))
        if alone:
            return run(conn, claims.claim_alone(WORKER, kinds=list(kinds), locked=locked))
        plan = lanes.plan(limit, lambda _kind: limit, 1.0, limited=True)
        return jobs + run(conn, claims.claim_limited(WORKER, locked=locked, **plan.params()))


def claimed(kind: str = "k", payload: str = "{}", *, holder: Holder | None = None, **columns: Any) -> ClaimedJob:
    """Make a job as a claim would, without a database; *columns* go over those of a first try."""
    row: dict[str, Any] = {
        "id": 1,
        "kind": kind,
        "payload": payload,
        "attempts": 1,
        "max_attempts": 5,
        "claims": 1,
        "crashes": 0,
        "priority": 5,
        "lane": "",
        "run_at": NOW,
        "created_at": NOW,
        "metadata": None,
        "expires_in": None,
        "alone": False,
        "reclaims": 0,
    } | columns
    for name in ("run_at", "created_at"):
        row[name] = (row[name] - EPOCH) // timedelta(microseconds=1)
    holder = Holder("here:1:abcdef", "redrive") if holder is None else holder
    *plain, alone, reclaims = row.values()
    return ClaimedJob.on_trial(holder, [*plain, reclaims]) if alone else ClaimedJob(holder, plain)


def claim_of(holder: Holder, lanes: Iterable[tuple[str, int, str]], quota: int, limit: int) -> Statement[ClaimedJob]:
    """Claim from the heads of *lanes* as a worker does, at most *quota* jobs of each."""
    known = [Lane(*lane) for lane in lanes]
    plan = Plan(known, [quota] * len(known), [HEAD] * len(known), limit)
    return claims.claim(holder, **plan.params())


def drain(queue: Queue, **settings: Any) -> None:
    """Run what is due, in this process, and return."""
    queue.run(once=True, **settings)


class Running:
    """A worker in a thread of the test's own process."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="test worker", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self.worker.run())
        except BaseException as error:  # noqa: BLE001 - the test's to see
            self.error = error

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, seconds: float = 20) -> None:
        """Stop as SIGTERM does, and wait for the end."""
        self.worker.stop()
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the worker did not end"
        if self.error is not None:
            raise self.error


@contextlib.contextmanager
def working(queue: Queue, **settings: Any) -> Iterator[Running]:
    """Run a worker of *queue* beside the test until the block ends."""
    running = Running(queue.worker(**({"grace": 5.0} | settings)))
    try:
        yield running
    finally:
        running.stop()


@contextlib.contextmanager
def hearing(*types: type[Event]) -> Iterator[list[Any]]:
    """Collect the events of *types*."""
    heard: list[Any] = []
    end = subscribe(heard.append, *types)
    try:
        yield heard
    finally:
        end()


def row(conn: psycopg.Connection, job_id: int) -> Any:
    """Fetch a job's row by attribute."""
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute("select * from redrive.jobs where id = %s", [job_id]).fetchone()


def history(conn: psycopg.Connection, job_id: int) -> list[Any]:
    """Fetch a job's failures by attribute, oldest first."""
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute("select * from redrive.failures where job_id = %s order by id", [job_id]).fetchall()


def states(conn: psycopg.Connection, kind: str | None = None) -> dict[str, int]:
    """Count jobs by state."""
    query = "select status::text, count(*) from redrive.jobs where kind = coalesce(%s, kind) group by 1"
    return dict(conn.execute(query, [kind]).fetchall())


def until_state(conn: psycopg.Connection, job_id: int, *wanted: str, seconds: float = 10) -> Any:
    """Wait for the job to be in one of the states, and give its row."""

    def look() -> Any:
        found = row(conn, job_id)
        return found if found is not None and found.status in wanted else None

    return wait_for(look, seconds)


def plain_insert(conn: psycopg.Connection, kind: str, payload: str = "{}", **columns: Any) -> int:
    """Insert a job by hand, as another language would; *columns* hold SQL values."""
    names = ["kind", "payload", *columns]
    marks = ["%s", "%s::jsonb", *["%s"] * len(columns)]
    [(job_id,)] = conn.execute(
        f"insert into redrive.jobs ({', '.join(names)}) values ({', '.join(marks)}) returning id",
        [kind, payload, *columns.values()],
    ).fetchall()
    return job_id


def due_now(conn: psycopg.Connection, *job_ids: int) -> None:
    """Bring retries forward: what waits is due."""
    conn.execute(
        "update redrive.jobs set run_at = now() - interval '1 s' where status = 'pending' and id = any(%s)",
        [list(job_ids)],
    )


def rows(conn: psycopg.Connection, query: str, *params: Any) -> list[dict[str, Any]]:
    """Ask, and get dicts."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, params).fetchall()
