"""What tests of the engine share: an application, the traces of its jobs, and workers within the test's own process."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, NamedTuple, Self

import psycopg
from psycopg.rows import namedtuple_row

from redrive import Queue
from redrive.worker import Worker
from support import wait_for

# Every handler notes its start and its end through a connection of its own, so that executions are counted
# independently of the queue's bookkeeping.
APP = """
import asyncio, os, signal, time
import psycopg
from redrive import Queue, Retry

queue = Queue()


def note(job, event, pid=None):
    with psycopg.connect(os.environ["EFFECTS_URL"], autocommit=True) as conn:
        conn.execute(
            "insert into public.effects (job_id, attempt, pid, event) values (%s, %s, %s, %s)",
            (job.id, getattr(job, "attempt", 0), os.getpid(), event),
        )


@queue.handler("nap", timeout=None, max_attempts=3)
async def nap(payload, job):
    note(job, "start")
    await asyncio.sleep(payload.get("seconds", 0))
    note(job, "end")


@queue.handler("doze", timeout=None, max_attempts=3)
def doze(payload, job):
    if payload.get("quiet"):
        return
    note(job, "start")
    time.sleep(payload.get("seconds", 0))
    note(job, "end")


@queue.handler("apart", timeout=None, max_attempts=3, isolation="process")
def apart(payload, job):
    note(job, "start")
    time.sleep(payload.get("seconds", 0))
    note(job, "end")


@queue.handler("fall", timeout=None, max_attempts=3)
def fall(payload, job):
    note(job, "start")
    time.sleep(payload.get("seconds", 0))
    note(job, "end")
    raise RuntimeError("it failed")


@queue.handler("block", timeout=None)
async def block(payload, job):
    note(job, "start")
    time.sleep(payload["seconds"])
    note(job, "end")


@queue.handler("spin", timeout=None)
async def spin(payload, job):
    note(job, "start")
    end = time.monotonic() + payload["seconds"]
    while time.monotonic() < end:
        sum(range(1000))
    note(job, "end")


@queue.handler("stubborn", timeout=1, max_attempts=2)
def stubborn(payload, job):
    note(job, "start")
    try:
        time.sleep(payload["seconds"])
    except Exception:
        pass
    note(job, "end")


@queue.handler("attentive", timeout=None)
def attentive(payload, job):
    note(job, "start")
    while not job.should_stop:
        time.sleep(0.02)
    note(job, "asked")


@queue.handler("deadly", on_dead=lambda event: note(event, "on_dead: " + event.reason))
def deadly(payload, job):
    note(job, "start")
    time.sleep(payload.get("seconds", 0))
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Effect(NamedTuple):
    """One note of a job."""

    job_id: int
    attempt: int
    pid: int
    event: str


class Effects:
    """The notes of jobs, in the order in which they were made."""

    def __init__(self, dsn: str) -> None:
        self.env = {"EFFECTS_URL": dsn}
        self._conn = psycopg.connect(dsn, autocommit=True)
        self._conn.execute(
            "create table public.effects (n bigint generated always as identity, job_id bigint, attempt int, "
            "pid int, event text, at timestamptz default clock_timestamp())"
        )

    def all(self, event: str = "", job: int | None = None) -> list[Effect]:
        """List what was noted: all, or one event, or what one job noted."""
        rows = self._conn.execute(
            "select job_id, attempt, pid, event from public.effects "
            "where event like %s and job_id = coalesce(%s, job_id) order by n",
            (event + "%", job),
        )
        return [Effect(*row) for row in rows]

    def starts(self, job: int | None = None) -> list[Effect]:
        return self.all("start", job)

    def ends(self, job: int | None = None) -> list[Effect]:
        return self.all("end", job)

    def pause(self, earlier: str, later: str, job: int) -> float:
        """Seconds between a job's last note of one event and its last of another."""
        [row] = self._conn.execute(
            "select extract(epoch from max(at) filter (where event = %s) - max(at) filter (where event = %s))::float8 "
            "from public.effects where job_id = %s",
            (later, earlier, job),
        )
        return float(row[0])

    def close(self) -> None:
        self._conn.close()


def insert(conn: psycopg.Connection, kind: str, payload: str = "{}", **columns: Any) -> int:
    """Insert a job as any program could, and give its id."""
    names = ["kind", "payload", *columns]
    values = ", ".join(["%s"] * len(names))
    query = f"insert into redrive.jobs ({', '.join(names)}) values ({values}) returning id"
    return int(conn.execute(query, (kind, payload, *columns.values())).fetchone()[0])


def row(conn: psycopg.Connection, job: int) -> Any:
    """A job's row."""
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute("select * from redrive.jobs where id = %s", (job,)).fetchone()


def status(conn: psycopg.Connection, job: int) -> str:
    return str(row(conn, job).status)


def failures(conn: psycopg.Connection, job: int) -> list[Any]:
    """The history of a job's failed attempts."""
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute("select * from redrive.failures where job_id = %s order by id", (job,)).fetchall()


def states(conn: psycopg.Connection) -> dict[str, int]:
    """How many jobs there are in each state."""
    return dict(conn.execute("select status, count(*)::int from redrive.jobs group by status").fetchall())


def sessions(conn: psycopg.Connection, worker: str = "") -> dict[str, int]:
    """The server's processes that serve the workers' own sessions here, by what each is for."""
    rows = conn.execute(
        "select split_part(application_name, ' ', 2), pid from pg_stat_activity where datname = current_database() "
        "and application_name like %s",
        (f"redrive % {worker}%",),
    )
    return dict(rows.fetchall())


def sentries(conn: psycopg.Connection) -> list[str]:
    """Names of the workers that hold a sentry's lock here."""
    rows = conn.execute(
        "select split_part(a.application_name, ' ', 3) from pg_locks l join pg_stat_activity a using (pid) "
        "where l.locktype = 'advisory' and l.mode = 'ExclusiveLock' and l.granted and l.objsubid = 1 "
        "and a.datname = current_database() and a.application_name like 'redrive listen%'"
    )
    return [name for (name,) in rows]


def measured(text: str) -> None:
    """Show a figure in the report (pytest -rP), for whoever wants to know by how much a bar was held."""
    print(text)  # noqa: T201


class Inside:
    """Workers in a thread of this process, for tests that reach into them: ``with Inside(queue) as inside``."""

    def __init__(self, *those: Queue | Worker, **settings: Any) -> None:
        """Take queues, each for one worker of its own, or workers that are made already."""
        self.workers = [each if isinstance(each, Worker) else each.worker(**settings) for each in those]
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._turn, name="workers of a test")

    @property
    def worker(self) -> Worker:
        return self.workers[0]

    def __enter__(self) -> Self:
        self._thread.start()
        wait_for(lambda: self.error or all(hasattr(w, "watch") and w.fresh for w in self.workers))
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Stop them, for good where they don't want to."""
        for worker in self.workers:
            worker.stop()
        self._thread.join(10)
        for worker in self.workers:
            worker.stop()
        self._thread.join(20)
        assert not self._thread.is_alive()

    def ended(self, seconds: float = 20) -> bool:
        """Wait for all of them to end by themselves."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _turn(self) -> None:
        try:
            asyncio.run(self._all())
        except BaseException as error:  # noqa: BLE001 # raised in the test's own thread
            self.error = error

    async def _all(self) -> None:
        await asyncio.gather(*(worker.run() for worker in self.workers))
