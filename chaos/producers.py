"""Threads that enqueue: each writes down what it means to do before, and what came of it after.

A commit whose answer never came is *unknown*: the job may be there or not, and both are right. What they fail to
enqueue they do not try again; an application would, under another number.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb

from chaos.ledger import Ledger
from chaos.orders import Order
from chaos.patience import wait_for
from redrive import Queue
from redrive.errors import RedriveError

THREADS = 6
INSERT = """
    INSERT INTO redrive.jobs (kind, payload, priority, lane, max_attempts, key, run_at)
    VALUES (%s, %s, %s, %s, %s, %s, now() + make_interval(secs => %s)) RETURNING id
"""
PATIENCE = 8


@dataclass(frozen=True)
class Ways:
    """How producers reach the database."""

    network: str
    direct: str
    pooled: str
    broker: str = ""
    """The broker's address, for what goes past the table."""


class Producers:
    """Work through the orders at a steady pace."""

    def __init__(self, orders: Iterator[Order], rate: float, ways: Ways, ledger: Ledger) -> None:
        self.acknowledged = 0
        """Jobs whose enqueue was confirmed so far."""
        self.error: BaseException | None = None
        self._orders, self._rate, self._ledger = orders, rate, ledger
        beside: dict[str, Any] = {"broker_url": ways.broker} if ways.broker else {}
        self._queues = {
            name: Queue(make_conninfo(dsn, connect_timeout=PATIENCE), **beside)
            for name, dsn in (
                ("api", ways.network),
                ("direct", ways.direct),
                ("pooled", ways.pooled or ways.network),
            )
        }
        self._dsns = (ways.network, ways.direct)
        self._prepare_after = None if ways.network == ways.pooled else 5
        """What is prepared on one session isn't on the next that a pooler gives."""
        self._lock = threading.Lock()
        self._given = 0
        self._over = threading.Event()
        self._began = 0.0
        self._threads = [threading.Thread(target=self._turn, args=(n,), daemon=True) for n in range(THREADS)]

    def start(self) -> None:
        """Begin."""
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Give no more, and wait for what is on its way."""
        self._over.set()
        wait_for(lambda: not any(thread.is_alive() for thread in self._threads), 60)
        for queue in self._queues.values():
            queue.close()

    @property
    def done(self) -> bool:
        """Whether all orders have been worked through."""
        return not any(thread.is_alive() for thread in self._threads)

    def _turn(self, number: int) -> None:
        conn: psycopg.Connection | None = None
        try:
            while (order := self._next()) is not None:
                conn = self._connected(conn, self._dsns[number % 2])
                if conn is not None:
                    self._place(order, conn)
        except BaseException as error:  # noqa: BLE001 - told by whoever leads the run
            self.error = self.error or error
        finally:
            if conn is not None:
                conn.close()

    def _next(self) -> Order | None:
        with self._lock:
            order = next(self._orders, None)
            if order is None:
                return None
            due = self._began + self._given / self._rate
            self._given += len(order.numbers)
        if self._over.wait(max(0.0, due - time.monotonic())):
            return None
        return order

    def _connected(self, conn: psycopg.Connection | None, dsn: str) -> psycopg.Connection | None:
        while conn is None or conn.closed:
            try:
                conn = psycopg.connect(
                    dsn, autocommit=True, connect_timeout=PATIENCE, prepare_threshold=self._prepare_after
                )
            except psycopg.Error:
                if self._over.wait(0.2):
                    return None
        return conn

    def _place(self, order: Order, conn: psycopg.Connection) -> None:
        about: dict[str, Any] = {"n": order.numbers, "road": order.road}
        self._ledger.write("meant", kind=order.kind, key=order.key, rolled_back=order.rolled_back, **about)
        try:
            ids = getattr(self, f"_by_{order.road}")(order, conn)
        except (psycopg.Error, RedriveError, OSError) as error:
            # Before the commit was asked for it is certain that nothing is there, but who knows which it was.
            self._ledger.write("unknown", error=type(error).__name__, **about)
            return
        what = "rolled back" if order.rolled_back else "acknowledged" if ids else "duplicate"
        self._ledger.write(what, ids=ids, **about)
        if what == "acknowledged":
            with self._lock:
                self.acknowledged += len(ids)

    def _by_api(self, order: Order, _conn: psycopg.Connection) -> list[int]:
        return self._enqueued(self._queues["api"], order)

    def _by_pooled(self, order: Order, _conn: psycopg.Connection) -> list[int]:
        return self._enqueued(self._queues["pooled"], order)

    def _by_straight(self, order: Order, _conn: psycopg.Connection) -> list[int]:
        """Send it past the table: no key, no delay."""
        options = {name: value for name, value in order.options.items() if name != "delay"}
        return [self._queues["direct"].enqueue(order.kind, order.payloads[0], direct=True, **options).id]

    @staticmethod
    def _enqueued(queue: Queue, order: Order, conn: psycopg.Connection | None = None) -> list[int]:
        made = queue.enqueue(order.kind, order.payloads[0], connection=conn, key=order.key, **order.options)
        return [made.id] if made.created else []

    def _by_many(self, order: Order, _conn: psycopg.Connection) -> list[int]:
        ids: list[int] = []
        self._queues["direct"].enqueue_many(order.kind, order.payloads, ids=ids, **order.options)
        return ids

    def _by_insert(self, order: Order, conn: psycopg.Connection) -> list[int]:
        options = order.options
        values = [order.kind, Jsonb(order.payloads[0]), options["priority"], options["lane"]]
        values += [options.get("max_attempts", 5), order.key, options.get("delay", 0)]
        try:
            return [row[0] for row in conn.execute(INSERT, values)]
        except psycopg.errors.UniqueViolation:
            return []

    def _by_order(self, order: Order, conn: psycopg.Connection) -> list[int]:
        """Enqueue in a transaction of the application's, of which some end in a rollback."""
        # Where the connection breaks over the rollback, Rollback itself comes out; the server rolls back either way.
        with contextlib.suppress(psycopg.Rollback), conn.transaction() as transaction:
            conn.execute("INSERT INTO chaos.orders (n) VALUES (%s)", [order.numbers[0]])
            ids = self._enqueued(self._queues["api"], order, conn)
            if order.rolled_back:
                raise psycopg.Rollback(transaction)
            return ids
        return []
