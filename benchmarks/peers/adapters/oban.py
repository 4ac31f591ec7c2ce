"""oban for Python."""

import asyncio
import signal

from oban import Oban, worker
from oban.schema import install

from adapters import host

LIMIT = host.tune("limit", 500)
POOL = host.tune("pool", 10)

INFO = {
    "settings": f"Oban(queues={{bench: {LIMIT}}}), pool 2..{POOL}, uvloop, all else default; bulk = enqueue_many, "
    f"1,000 a call",
    "keeps": "the row, until its pruner takes it after a day; outcomes are buffered for a moment",
    "versions": ["oban", "psycopg", "uvloop"],
    "done": "select count(*) from oban_jobs where state = 'completed'",
    "states": "select state::text, count(*) from oban_jobs group by 1",
    "crash_tuned": "lifeline={interval: 5, rescue_after: 10} (defaults 60 s and 300 s)",
    "no_sync": "its plain functions run on the event loop, with no thread: there is no other figure than the async one",
}


@worker(queue=host.QUEUE)
class BenchJob:
    """The job."""

    async def process(self, job):
        """Do nothing much."""
        await host.handle(job.args)


async def setup():
    """Make the schema."""
    pool = await Oban.create_pool(host.DSN)
    await install(pool)
    await pool.close()


class Producer:
    """Enqueues through a client."""

    async def connect(self):
        """Open the pool."""
        self.pool = await Oban.create_pool(host.DSN, min_size=1, max_size=POOL)
        self.oban = Oban(pool=self.pool)

    async def one(self, payload):
        """Enqueue one."""
        await self.oban.enqueue(BenchJob.new(payload))

    async def bulk(self, payloads):
        """Enqueue many."""
        await self.oban.enqueue_many([BenchJob.new(payload) for payload in payloads])

    async def close(self):
        """Close the pool."""
        await self.pool.close()


async def work():
    """Work until SIGTERM."""
    pool = await Oban.create_pool(host.DSN, min_size=2, max_size=POOL)
    settings = {"lifeline": {"interval": 5.0, "rescue_after": 10.0}} if host.PROFILE == "crash_tuned" else {}
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    limit = LIMIT if host.PROFILE == "bench" else host.AT_ONCE
    async with Oban(pool=pool, queues={host.QUEUE: limit}, **settings):
        host.ready()
        await stop.wait()
    await pool.close()
