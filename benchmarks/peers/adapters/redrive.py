"""redrive: its queue, in the checkout's own version; finished rows are updated in place and kept."""

import subprocess
import sys

from adapters import host
from redrive import Queue
from redrive.events import WorkerStarted, subscribe

UVLOOP = host.VARIANT == "uvloop"
SLOTS = host.tune("concurrency", 100)
THREADS = host.tune("threads", 32)
CONCURRENCY = host.AT_ONCE if host.PROFILE != "bench" else THREADS if host.KIND == "sync" else SLOTS
RECOVERY = {"lease": 6} if host.PROFILE == "crash_tuned" else {}

LOOP = "uvloop" if UVLOOP else "plain asyncio, as `redrive worker` runs"

INFO = {
    "settings": f"Queue(concurrency={SLOTS}), all else default, {LOOP}; sync: concurrency={THREADS}, a thread each; "
    "bulk = one enqueue_many_async() of all payloads",
    "keeps": "the row for 7 days, updated in place; outcomes are written in batches every few ms",
    "versions": ["redrive", "psycopg", "uvloop"],
    "done": "select count(*) from redrive.jobs where status = 'succeeded'",
    "states": "select status::text, count(*) from redrive.jobs group by 1",
    "crash_tuned": "lease=6 (default 30 s)",
}

queue = Queue(host.DSN, concurrency=CONCURRENCY, **RECOVERY)

if host.KIND == "sync":
    queue.handler("job")(host.handle_sync)
else:
    queue.handler("job")(host.handle)


def setup():
    """Make the schema."""
    subprocess.run([sys.executable, "-m", "redrive", "migrate", "--database-url", host.DSN], check=True)


class Producer:
    """Enqueues on the queue's own connection."""

    chunk = host.tune("chunk", 1_000_000)

    async def connect(self):
        """Open the connection."""
        await queue.enqueue_many_async("job", [])

    async def one(self, payload):
        """Enqueue one."""
        await queue.enqueue_async("job", payload)

    async def bulk(self, payloads):
        """Enqueue many."""
        await queue.enqueue_many_async("job", payloads)

    def close(self):
        """Close the queue's connections."""
        queue.close()


async def work():
    """Work until SIGTERM."""
    subscribe(lambda _: host.ready(), WorkerStarted)
    await queue.run_async()
