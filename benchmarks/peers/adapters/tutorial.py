"""The loop that every article shows: one connection, one job at a time, psycopg2."""

import json
import signal
import time

import psycopg2
import psycopg2.extras

from adapters import host

UVLOOP = False
POLL = 0.1

INFO = {
    "settings": f"one connection; claims one job and commits, runs it, writes the result and commits; sleeps {POLL} "
    f"s when there is none; "
    "bulk = execute_values, 1,000 a page",
    "keeps": "the row",
    "versions": ["psycopg2-binary"],
    "done": "select count(*) from jobs where status = 'succeeded'",
    "states": "select status, count(*) from jobs group by 1",
    "no_async": "it has no async handlers; its drain is the sync one",
    "no_crash_tuned": "nothing recovers its jobs",
}

TABLE = """
create table jobs (
  id bigserial primary key,
  queue text not null default 'default',
  payload jsonb not null,
  status text not null default 'queued',
  attempts int not null default 0,
  created_at timestamptz not null default now(),
  started_at timestamptz,
  finished_at timestamptz
);
create index jobs_queued on jobs (queue, id) where status = 'queued';
"""

CLAIM = """
with next as (
  select id from jobs where status = 'queued' and queue = %s
  order by id for update skip locked limit 1
)
update jobs set status = 'running', started_at = now(), attempts = attempts + 1
from next where jobs.id = next.id
returning jobs.id, jobs.payload
"""


def setup():
    """Make the table."""
    with psycopg2.connect(host.DSN) as connection, connection.cursor() as cursor:
        cursor.execute(TABLE)


class Producer:
    """Inserts on one connection."""

    def connect(self):
        """Open the connection."""
        self.connection = psycopg2.connect(host.DSN)

    def one(self, payload):
        """Enqueue one."""
        with self.connection, self.connection.cursor() as cursor:
            cursor.execute("insert into jobs (queue, payload) values (%s, %s)", (host.QUEUE, json.dumps(payload)))

    def bulk(self, payloads):
        """Enqueue many."""
        rows = [(host.QUEUE, json.dumps(payload)) for payload in payloads]
        with self.connection, self.connection.cursor() as cursor:
            psycopg2.extras.execute_values(cursor, "insert into jobs (queue, payload) values %s", rows, page_size=1000)


def work():
    """Work until SIGTERM."""
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    connection = psycopg2.connect(host.DSN)
    host.ready()
    while not stop:
        with connection.cursor() as cursor:
            cursor.execute(CLAIM, (host.QUEUE,))
            row = cursor.fetchone()
        connection.commit()
        if row is None:
            time.sleep(POLL)
            continue
        host.handle_sync(row[1])
        with connection.cursor() as cursor:
            cursor.execute("update jobs set status = 'succeeded', finished_at = now() where id = %s", (row[0],))
        connection.commit()
