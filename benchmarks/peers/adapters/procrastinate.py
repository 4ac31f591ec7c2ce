"""procrastinate, on its psycopg connector."""

from procrastinate import App, PsycopgConnector

from adapters import host

CONCURRENCY = host.tune("concurrency", 30)
POOL = host.tune("pool", 20)

INFO = {
    "settings": f"PsycopgConnector(min_size=4, max_size={POOL}), run_worker_async(concurrency={CONCURRENCY}), "
    f"listen_notify on, "
    "uvloop; bulk = Task.batch_defer_async, 1,000 a call",
    "keeps": "the row (delete_jobs=never, its default), and a row of events for each change",
    "versions": ["procrastinate", "psycopg", "uvloop"],
    "done": "select count(*) from procrastinate_jobs where status = 'succeeded' and queue_name = 'bench'",
    "states": "select status::text, count(*) from procrastinate_jobs where queue_name = 'bench' group by 1",
    "crash_tuned": "the documented periodic task that retries stalled jobs, every minute, seconds_since_heartbeat=15; "
    "update_heartbeat_interval=5, stalled_worker_timeout=15",
}

app = App(connector=PsycopgConnector(conninfo=host.DSN, min_size=4, max_size=POOL))

if host.KIND == "sync":

    @app.task(name="job", queue=host.QUEUE)
    def job(**payload):
        """Do nothing much."""
        host.handle_sync(payload)

else:

    @app.task(name="job", queue=host.QUEUE)
    async def job(**payload):
        """Do nothing much."""
        await host.handle(payload)


if host.PROFILE == "crash_tuned":

    @app.periodic(cron="* * * * *")
    @app.task(queueing_lock="retry_stalled_jobs", pass_context=True)
    async def retry_stalled_jobs(context, timestamp):
        """Retry what a dead worker left, as its documentation has it."""
        for stalled in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=15):
            await app.job_manager.retry_job(stalled)


async def setup():
    """Make the schema."""
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


class Producer:
    """Defers through the app."""

    async def connect(self):
        """Open the pool."""
        await app.open_async()

    async def one(self, payload):
        """Enqueue one."""
        await job.defer_async(**payload)

    async def bulk(self, payloads):
        """Enqueue many."""
        await job.batch_defer_async(*payloads)

    async def close(self):
        """Close the pool."""
        await app.close_async()


async def work():
    """Work until SIGTERM."""
    settings = {"concurrency": CONCURRENCY if host.PROFILE == "bench" else host.AT_ONCE}
    if host.PROFILE == "crash_tuned":
        settings |= {"update_heartbeat_interval": 5, "stalled_worker_timeout": 15}
    async with app.open_async():
        host.ready()
        await app.run_worker_async(**settings)
