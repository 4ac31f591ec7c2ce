"""chancy, with its default plugins."""

import logging

from chancy import Chancy, Job, Queue, Worker
from chancy.plugins.leadership import Leadership
from chancy.plugins.recovery import Recovery

from adapters import host

THREADS = host.tune("threads", 32)
CONCURRENCY = host.tune("concurrency", 1000)

INFO = {
    "settings": f"Queue(concurrency={CONCURRENCY}, executor=Async, eager_polling=True, polling_interval=1), "
    f"notifications on, pool of "
    f"10, default plugins, uvloop; sync: ThreadedExecutor, concurrency={THREADS}; bulk = push_many, 1,000 a call",
    "keeps": "the row; outcomes are buffered for up to a second",
    "versions": ["chancy", "psycopg", "uvloop"],
    "done": "select count(*) from chancy_jobs where state = 'succeeded'",
    "states": "select state, count(*) from chancy_jobs group by 1",
    "crash_tuned": "Worker(heartbeat_poll_interval=5, heartbeat_timeout=15), Leadership(poll_interval=5, timeout=15), "
    "Recovery(poll_interval=5)",
}


async def job_async(*, payload):
    """Do nothing much; chancy finds it by its name."""
    await host.handle(payload)


def job_sync(*, payload):
    """Do nothing much; chancy finds it by its name."""
    host.handle_sync(payload)


def _chancy(plugins=None):
    log = logging.getLogger("chancy quiet")
    log.setLevel(logging.WARNING)
    return Chancy(host.DSN, log=log, plugins=plugins)


def _queue():
    if host.PROFILE != "bench":
        return Queue(host.QUEUE, concurrency=host.AT_ONCE, executor=Chancy.Executor.Async)
    threads = host.KIND == "sync"
    return Queue(
        host.QUEUE,
        concurrency=THREADS if threads else CONCURRENCY,
        executor=Chancy.Executor.Threaded if threads else Chancy.Executor.Async,
        eager_polling=True,
        polling_interval=1,
    )


async def setup():
    """Make the schema and the queue."""
    async with _chancy() as chancy:
        await chancy.migrate()
        await chancy.declare(_queue(), upsert=True)


class Producer:
    """Pushes through an app of its own."""

    async def connect(self):
        """Open the pool."""
        self.chancy = _chancy()
        await self.chancy.__aenter__()

    def _job(self, payload):
        return Job(func=f"adapters.chancy.job_{host.KIND}", queue=host.QUEUE, kwargs={"payload": payload})

    async def one(self, payload):
        """Enqueue one."""
        await self.chancy.push(self._job(payload))

    async def bulk(self, payloads):
        """Enqueue many."""
        async for _ in self.chancy.push_many([self._job(payload) for payload in payloads], batch_size=1000):
            pass

    async def close(self):
        """Close the pool."""
        await self.chancy.__aexit__(None, None, None)


async def work():
    """Work until SIGTERM."""
    plugins, settings = None, {}
    if host.PROFILE == "crash_tuned":
        plugins = [Leadership(poll_interval=5, timeout=15), Recovery(poll_interval=5)]
        settings = {"heartbeat_poll_interval": 5, "heartbeat_timeout": 15}
    async with _chancy(plugins) as chancy, Worker(chancy, **settings) as worker:
        host.ready()
        await worker.wait_for_shutdown()
