"""awa, whose worker is a Rust runtime of its own."""

import asyncio
import signal
from dataclasses import asdict, dataclass

import awa

from adapters import host

UVLOOP = False
WORKERS = host.tune("workers", 500)
POOL = host.tune("pool", 20)
RECOVERY = {
    "heartbeat_interval_ms": 2000,
    "heartbeat_staleness_ms": 10000,
    "heartbeat_rescue_interval_ms": 2000,
    "leader_election_interval_ms": 2000,
}

INFO = {
    "settings": f"AsyncClient(max_connections={POOL}), start([(bench, max_workers={WORKERS})]), its default queue "
    f"storage; "
    "bulk = enqueue_many_copy, 1,000 a call",
    "keeps": "the row for some seconds, in a ring of partitions, then a counter",
    "versions": ["awa-pg"],
    "done": "select coalesce((select sum(completed_count) from awa.receipt_completion_batches), 0)::bigint"
    " + (select count(*) from awa.done_entries where state = 'completed')"
    " + coalesce((select sum(pruned_completed_count) from awa.queue_terminal_rollups), 0)::bigint",
    "states": "select state::text, count(*) from awa.jobs group by 1 union all "
    "select 'completed, rolled up', sum(pruned_completed_count)::bigint from awa.queue_terminal_rollups",
    "crash_tuned": "start(" + ", ".join(f"{name}={value}" for name, value in RECOVERY.items()) + ")",
    "sync_note": "plain functions are not accepted; the figure wraps the call in asyncio.to_thread",
}


@dataclass
class BenchJob:
    """Its payload, which has to be a type."""

    to: str
    i: int
    ts: float | None = None
    sleep: float | None = None


def _client():
    return awa.AsyncClient(host.DSN, max_connections=POOL)


async def setup():
    """Make the schema; the first worker to start completes its storage."""
    client = _client()
    await client.migrate()

    @client.task(BenchJob, queue=host.QUEUE)
    async def job(each):
        pass

    await client.start([(host.QUEUE, 1)])
    for _ in range(50):
        if "queue_storage" in str(await client.storage_status()):
            break
        await asyncio.sleep(0.1)
    await client.shutdown()


class Producer:
    """Inserts through a client."""

    async def connect(self):
        """Make the client."""
        self.client = _client()

    async def one(self, payload):
        """Enqueue one."""
        await self.client.insert(BenchJob(**payload), queue=host.QUEUE)

    async def bulk(self, payloads):
        """Enqueue many."""
        await self.client.enqueue_many_copy([BenchJob(**payload) for payload in payloads], queue=host.QUEUE)


async def work():
    """Work until SIGTERM."""
    client = _client()

    if host.KIND == "sync":

        @client.task(BenchJob, queue=host.QUEUE)
        async def job(each):
            await asyncio.to_thread(host.handle_sync, asdict(each.args))

    else:

        @client.task(BenchJob, queue=host.QUEUE)
        async def job(each):
            await host.handle(asdict(each.args))

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    at_once = WORKERS if host.PROFILE == "bench" else host.AT_ONCE
    await client.start([(host.QUEUE, at_once)], **(RECOVERY if host.PROFILE == "crash_tuned" else {}))
    host.ready()
    await stop.wait()
    await client.shutdown()
