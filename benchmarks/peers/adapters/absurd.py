"""absurd: its SDK, and its schema from absurdctl."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
from absurd_sdk import Absurd, AsyncAbsurd

from adapters import host

CONCURRENCY = host.tune("concurrency", 500)
POLL = host.tune("poll", 0.25)
SYNC = {"concurrency": host.tune("sconc", 1), "batch_size": host.tune("sbatch", 100), "poll_interval": POLL}

INFO = {
    "settings": f"AsyncAbsurd (one connection, as it is made), start_worker(concurrency={CONCURRENCY}, "
    f"poll_interval={POLL}), uvloop; sync: "
    "Absurd.start_worker(concurrency=1, batch_size=100), faster here than its threads; no bulk call: bulk = 1,000 "
    "spawn() a transaction",
    "keeps": "the rows of task and run",
    "versions": ["absurd-sdk", "absurdctl", "psycopg", "uvloop"],
    "done": "select count(*) from absurd.t_bench where state = 'completed'",
    "states": "select state, count(*) from absurd.t_bench group by 1",
    "crash_tuned": "start_worker(claim_timeout=10) (default 120 s)",
}


def setup():
    """Make the schema and the queue."""
    subprocess.run([str(Path(sys.executable).with_name("absurdctl")), "init", "-d", host.DSN], check=True)
    absurd = Absurd(host.DSN, queue_name=host.QUEUE)
    absurd.create_queue(host.QUEUE)
    absurd.close()


class Producer:
    """Spawns on a connection of its own."""

    async def connect(self):
        """Open the connection."""
        self.connection = await psycopg.AsyncConnection.connect(host.DSN, autocommit=True)
        self.absurd = AsyncAbsurd(self.connection, queue_name=host.QUEUE)

    async def one(self, payload):
        """Enqueue one."""
        await self.absurd.spawn("job", payload, queue=host.QUEUE)

    async def bulk(self, payloads):
        """Enqueue many."""
        async with self.connection.transaction():
            for payload in payloads:
                await self.one(payload)

    async def close(self):
        """Close the connection."""
        await self.connection.close()


async def work():
    """Work until SIGTERM."""
    loop = asyncio.get_running_loop()
    if host.KIND == "sync":
        absurd = Absurd(host.DSN, queue_name=host.QUEUE)

        @absurd.register_task("job")
        def job(payload, context):
            host.handle_sync(payload)

        loop.add_signal_handler(signal.SIGTERM, absurd.stop_worker)
        host.ready()
        await asyncio.to_thread(lambda: absurd.start_worker(**SYNC))
        return
    absurd = AsyncAbsurd(host.DSN, queue_name=host.QUEUE)

    @absurd.register_task("job")
    async def job_async(payload, context):
        await host.handle(payload)

    loop.add_signal_handler(signal.SIGTERM, absurd.stop_worker)
    settings = (
        {"concurrency": CONCURRENCY, "poll_interval": POLL}
        if host.PROFILE == "bench"
        else {"concurrency": host.AT_ONCE}
    )
    if host.PROFILE == "crash_tuned":
        settings["claim_timeout"] = 10
    host.ready()
    await absurd.start_worker(**settings)
    await absurd.close()
