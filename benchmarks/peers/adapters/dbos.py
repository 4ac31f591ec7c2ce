"""DBOS: jobs are workflows on one of its queues."""

import signal
import threading

import sqlalchemy
from dbos import DBOS, DBOSClient

from adapters import host

UVLOOP = False
CONCURRENCY = host.tune("concurrency", 200)
POLL = host.tune("poll", 0.05)
POOL = host.tune("pool", 20)

INFO = {
    "settings": f"register_queue(worker_concurrency={CONCURRENCY}, polling_interval_sec={POLL}), "
    f"sys_db_pool_size={POOL}; sync: its thread "
    "pool; no bulk call: bulk = 1,000 enqueue_in_transaction a transaction",
    "keeps": "the workflow's row",
    "versions": ["dbos", "psycopg", "SQLAlchemy"],
    "done": "select count(*) from dbos.workflow_status where status = 'SUCCESS'",
    "states": "select status, count(*) from dbos.workflow_status group by 1",
    "no_crash_tuned": "it recovers what its executor left as it starts: nothing to tune",
}

if host.DSN:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": host.DSN,
            "sys_db_pool_size": POOL,
            "log_level": "WARNING",
            "application_version": "bench",
        }
    )

    if host.KIND == "sync":

        @DBOS.workflow(name="job")
        def job(payload):
            """Do nothing much."""
            host.handle_sync(payload)

    else:

        @DBOS.workflow(name="job")
        async def job(payload):
            """Do nothing much."""
            await host.handle(payload)


def _register():
    settings = {"worker_concurrency": CONCURRENCY, "polling_interval_sec": POLL}
    if host.PROFILE != "bench":
        settings = {"worker_concurrency": host.AT_ONCE}
    DBOS.register_queue(host.QUEUE, on_conflict="always_update", **settings)


def setup():
    """Make the schema, which launching does."""
    DBOS.launch()
    _register()
    DBOS.destroy()


class Producer:
    """Enqueues through a client."""

    def connect(self):
        """Open the connections."""
        self.client = DBOSClient(system_database_url=host.DSN)
        self.engine = sqlalchemy.create_engine(host.DSN.replace("postgresql://", "postgresql+psycopg://"))
        self.options = {"queue_name": host.QUEUE, "workflow_name": "job"}

    def one(self, payload):
        """Enqueue one."""
        self.client.enqueue(self.options, payload)

    def bulk(self, payloads):
        """Enqueue many."""
        with self.engine.begin() as connection:
            for payload in payloads:
                self.client.enqueue_in_transaction(connection, self.options, payload)

    def close(self):
        """Close the connections."""
        self.client.destroy()


def work():
    """Work until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    DBOS.launch()
    _register()
    host.ready()
    stop.wait()
    DBOS.destroy(workflow_completion_timeout_sec=2)
