"""saq, on its Postgres queue."""

import asyncio

from saq import Worker
from saq.queue.postgres import PostgresQueue

from adapters import host

CONCURRENCY = host.tune("concurrency", 50)
POOL = host.tune("pool", 50)

INFO = {
    "settings": f"PostgresQueue(min_size=4, max_size={POOL}), Worker(concurrency={CONCURRENCY}), uvloop; no bulk "
    f"insert: "
    "bulk = asyncio.gather of 1,000 enqueue()",
    "keeps": "the row for the job's ttl, 600 s",
    "versions": ["saq", "psycopg", "uvloop"],
    "done": "select count(*) from saq_jobs where status = 'complete'",
    "states": "select status, count(*) from saq_jobs group by 1",
    "crash_tuned": "jobs enqueued with retries=5 (default 1), Worker(timers={sweep: 5})",
}


def _queue():
    return PostgresQueue(url=host.DSN, name=host.QUEUE, min_size=4, max_size=POOL)


async def setup():
    """Make the schema, which connecting does."""
    queue = _queue()
    await queue.connect()
    await queue.disconnect()


class Producer:
    """Enqueues on the queue."""

    async def connect(self):
        """Open the pool."""
        self.queue = _queue()
        await self.queue.connect()
        self.options = {"retries": 5} if host.PROFILE == "crash_tuned" else {}

    async def one(self, payload):
        """Enqueue one."""
        await self.queue.enqueue("job", payload=payload, **self.options)

    async def bulk(self, payloads):
        """Enqueue many."""
        await asyncio.gather(*map(self.one, payloads))

    async def close(self):
        """Close the pool."""
        await self.queue.disconnect()


async def _async(context, *, payload):
    await host.handle(payload)


def _sync(context, *, payload):
    host.handle_sync(payload)


async def work():
    """Work until SIGTERM."""
    queue = _queue()
    await queue.connect()
    settings = {"timers": {"sweep": 5}} if host.PROFILE == "crash_tuned" else {}
    at_once = CONCURRENCY if host.PROFILE == "bench" else host.AT_ONCE
    functions = [("job", _sync if host.KIND == "sync" else _async)]
    worker = Worker(queue, functions=functions, concurrency=at_once, **settings)
    host.ready()
    await worker.start()
    await queue.disconnect()
