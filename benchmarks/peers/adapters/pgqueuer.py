"""pgqueuer, on an asyncpg pool."""

import asyncio
import json
import signal
from datetime import timedelta

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

from adapters import host

BATCH = host.tune("batch", 100)
POOL = host.tune("pool", 10)
CHUNK = host.tune("chunk", 5_000)

INFO = {
    "settings": f"asyncpg pool of {POOL}, run(batch_size={BATCH}), durability=durable, the documented autovacuum "
    f"settings applied, "
    f"uvloop; bulk = Queries.enqueue of lists, {CHUNK:,} a call",
    "keeps": "a row of its log for each change, not the job; outcomes are buffered for up to 100 ms",
    "versions": ["pgqueuer", "asyncpg", "uvloop"],
    "done": "select count(*) from pgqueuer_log where status = 'successful'",
    "states": "select 'queue ' || status::text, count(*) from pgqueuer group by 1 union all "
    "select 'log ' || status::text, count(*) from pgqueuer_log group by 1",
    "crash_tuned": "heartbeat_timeout=10 s (default 30 s)",
    "sync_note": "takes async handlers only; the figure wraps them in asyncio.to_thread, as it documents",
}


async def setup():
    """Make the schema."""
    connection = await asyncpg.connect(host.DSN)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    await queries.optimize_autovacuum()
    await connection.close()


class Producer:
    """Enqueues on one connection."""

    chunk = CHUNK

    async def connect(self):
        """Open the connection."""
        self.connection = await asyncpg.connect(host.DSN)
        self.queries = Queries(AsyncpgDriver(self.connection))

    async def one(self, payload):
        """Enqueue one."""
        await self.queries.enqueue("job", json.dumps(payload).encode(), 0)

    async def bulk(self, payloads):
        """Enqueue many."""
        n = len(payloads)
        await self.queries.enqueue(["job"] * n, [json.dumps(payload).encode() for payload in payloads], [0] * n)

    async def close(self):
        """Close the connection."""
        await self.connection.close()


async def work():
    """Work until SIGTERM."""
    pgq = PgQueuer(AsyncpgPoolDriver(await asyncpg.create_pool(host.DSN, min_size=2, max_size=POOL)))

    if host.KIND == "sync":

        @pgq.entrypoint("job")
        async def job(each):
            await asyncio.to_thread(host.handle_sync, json.loads(each.payload))

    else:

        @pgq.entrypoint("job")
        async def job(each):
            await host.handle(json.loads(each.payload))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, pgq.shutdown.set)
    host.ready()
    # an entrypoint's concurrency_limit would hold for all workers together; of a worker's own it asks for two batches
    several = {"batch_size": host.AT_ONCE // 2, "max_concurrent_tasks": host.AT_ONCE}
    settings = {"batch_size": BATCH} if host.PROFILE == "bench" else several
    if host.PROFILE == "crash_tuned":
        settings["heartbeat_timeout"] = timedelta(seconds=10)
    await pgq.run(**settings)
