"""Connections of the library's own: how they are opened, when they are broken, and how one is kept for control traffic.

No connection here is ever shared with user code. Keepalives and client-side timeouts are on, because a socket that
nobody answers looks exactly like an idle one.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PipelineStatus, TransactionStatus

from redrive.errors import NoDatabase
from redrive.statements import Statement, arun, named, run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
U = TypeVar("U")

CONNECT_TIMEOUT = 5
STATEMENT_TIMEOUT = 30.0
_ALIVE: dict[str, Any] = {
    "connect_timeout": CONNECT_TIMEOUT,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "client_encoding": "utf8",
}
# The server's side of the same: a session that nobody is left of must not keep the sentry's lock for hours.
_ALIVE_THERE = "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
# And a worker that is frozen between the lock of a kind and its claim must not keep that kind from all others.
_FROZEN_THERE = "-c idle_in_transaction_session_timeout=10s"
# Of the server: connections, shutdown, read-only after a failover, out of memory or disk.
_OUTAGE = ("08", "57P", "53", "25006", "58", "XX")
# What two statements did to each other, of which one was chosen to give way: it has done nothing.
_RIVALRY = ("40001", "40P01")
RIVALRY_PAUSES = (0.01, 0.03, 0.1, 0.3, 1.0)
_READ_COMMITTED = r"-c default_transaction_isolation=read\ committed"
# Worth another try as it is: serialization, deadlock, lock timeout, statement timeout, frozen within a transaction.
_TRANSIENT = ("40", "55P03", "57014", "25P03")
# What a row is refused for that others are not: a value, a constraint, the word of a trigger.
_REFUSAL = ("22", "23", "P0")


def is_outage(error: BaseException) -> bool:
    """Tell whether *error* says that the connection or the server is of no use now, by SQLSTATE and not by class."""
    if isinstance(error, NoDatabase | TimeoutError | ConnectionError):
        return True
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:
        # psycopg's own, not the server's: an answer that can't be, as of a COMMIT on which the server's end followed.
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError)
    return error.sqlstate.startswith(_OUTAGE)


def is_transient(error: BaseException) -> bool:
    """Tell whether the same statement may well succeed when it is said again."""
    return isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(_TRANSIENT)


def is_refusal(error: BaseException) -> bool:
    """Tell whether *error* is about a row that was given, so that the same may well be done to others."""
    return isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(_REFUSAL)


def persistent(conn: psycopg.Connection[Any], statement: Statement[T]) -> list[T]:
    """Run a statement that is a transaction of its own, again where a rival's was preferred to it.

    On a connection that is in a transaction it is run once: what was done before in it would be lost.
    """
    for pause in RIVALRY_PAUSES if _stands_alone(conn) else ():
        try:
            return run(conn, statement)
        except psycopg.Error as error:
            if error.sqlstate not in _RIVALRY:
                raise
        time.sleep(pause * random.uniform(0.5, 1.5))
    return run(conn, statement)


async def apersistent(conn: psycopg.AsyncConnection[Any], statement: Statement[T]) -> list[T]:
    """Run a statement that is a transaction of its own from async code; see :func:`persistent`."""
    for pause in RIVALRY_PAUSES if _stands_alone(conn) else ():
        try:
            return await arun(conn, statement)
        except psycopg.Error as error:
            if error.sqlstate not in _RIVALRY:
                raise
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))
    return await arun(conn, statement)


def _stands_alone(conn: Any) -> bool:
    """Whether a statement on *conn* is a transaction of its own; not known of a connection that isn't psycopg's."""
    return (
        isinstance(conn, psycopg.Connection | psycopg.AsyncConnection)
        and conn.autocommit
        and conn.info.transaction_status == TransactionStatus.IDLE
        and conn.info.pipeline_status == PipelineStatus.OFF
    )


def conninfo(dsn: str, *, application: str, nonce: str | None = None, settled: bool = False) -> str:
    """Complete *dsn* with keepalives, a name to be seen by, and the settings of a control connection.

    *settled* asks for READ COMMITTED alone, whatever the database's default is; not every pooler takes that.
    """
    given = conninfo_to_dict(dsn)
    options = [str(given["options"])] if given.get("options") else []
    if settled or nonce is not None:
        options.append(_READ_COMMITTED)
    if nonce is not None:
        options += ["-c jit=off", "-c lock_timeout=2s"]
        # Every statement of a worker has its index, whatever the statistics say, and locks rows in the order of that.
        # For the same reason each is planned once: to plan the survey anew costs five times what it does to run it.
        options += ["-c enable_seqscan=off", "-c enable_bitmapscan=off", "-c plan_cache_mode=force_generic_plan"]
        options += [f"-c redrive.session={nonce}", _FROZEN_THERE, _ALIVE_THERE]
    several = "," in str(given.get("host", ""))
    extra = {"target_session_attrs": "read-write"} if several else {}
    defaults = _ALIVE | extra | {"application_name": application}
    merged = defaults | {name: value for name, value in given.items() if value is not None}
    return make_conninfo(**(merged | ({"options": " ".join(options)} if options else {})))


@dataclass(frozen=True)
class Facts:
    """What a new connection found at the other end."""

    pid: int
    shared: bool
    """A pooler hands this session's server to others between transactions: nothing of the session may be relied on."""
    server_version: int
    encoding: str


class Control:
    """One connection of the engine's for its own statements, opened when needed and dropped when in doubt.

    Every statement has a timeout on this side: a frozen server answers nothing, not even an error. A statement that
    fails leaves no broken connection behind; when to try again is the caller's business.
    """

    def __init__(self, dsn: str, schema: str, name: str, *, timeout: float = STATEMENT_TIMEOUT) -> None:
        self.schema = schema
        self.facts: Facts | None = None
        self.outages: Callable[[], int] = lambda: 0
        """How often the database was lost so far. What was opened before the last time is opened anew: after a failover
        it may still lead to the old server, which answers, and knows nothing."""
        self._opened_in = 0
        self._dsn = dsn
        self._application = f"redrive {name}"
        self._timeout = timeout
        self._conn: psycopg.AsyncConnection[Any] | None = None
        self._lock = asyncio.Lock()

    @property
    def connection(self) -> psycopg.AsyncConnection[Any] | None:
        """The open connection, if there is one."""
        return self._conn if self._conn is not None and not self._conn.closed else None

    async def run(
        self,
        statement: Statement[T],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - not a cancel scope: on expiry the socket itself is closed
        given: Callable[[], bool] | None = None,
    ) -> list[T]:
        """Run one statement in a transaction of its own, READ COMMITTED whatever the database's default is.

        *given* is asked when the connection is there, which may be long after the call; where it is no longer so,
        nothing is said and nothing found.

        Raises:
            NoDatabase: when no writable server answers in time.
            psycopg.Error: what the server said.
        """
        async with self._lock:
            conn = await self.open()
            if given is not None and not given():
                return []
            rows: list[T] = await self._patiently(self._say(conn, statement), timeout or self._timeout)
            return rows

    async def run_both(
        self,
        first: Statement[T] | None,
        then: Callable[[list[T]], Statement[U] | None],
        last: Callable[[psycopg.AsyncConnection[Any], list[U]], Awaitable[object]] | None = None,
    ) -> list[U]:
        """Run two statements in one transaction: the second is made of the answer to the first, or None.

        *last* is awaited with the answer to the second before the commit, and undoes both by what it raises.

        Raises:
            As :meth:`run`.
        """

        async def work() -> list[U]:
            async with conn.transaction():
                second = then([] if first is None else await arun(conn, first))
                rows = [] if second is None else await arun(conn, second)
                if last is not None and rows:
                    await last(conn, rows)
                return rows

        async with self._lock:
            conn = await self.open()
            rows: list[U] = await self._patiently(work(), self._timeout)
            return rows

    async def _patiently(self, work: Any, seconds: float) -> Any:
        try:
            return await self._bounded(work, seconds)
        except BaseException as error:
            if not isinstance(error, psycopg.Error) or is_outage(error) or self.connection is None:
                self.drop()
            raise

    async def ready(self) -> None:
        """Open the connection ahead of a statement whose time is to be measured."""
        async with self._lock:
            await self.open()

    async def open(self) -> psycopg.AsyncConnection[Any]:
        """Give the open connection, opening it if need be."""
        if (conn := self.connection) is not None:
            if self._opened_in == self.outages() and _has_server(conn):
                return conn
            self.drop()
        self._opened_in = self.outages()
        try:
            opened: psycopg.AsyncConnection[Any] = await self._bounded(self._connect(), CONNECT_TIMEOUT + 5)
        except (TimeoutError, OSError) as error:
            raise NoDatabase(f"no answer from the database within {CONNECT_TIMEOUT + 5} s") from error
        return opened

    def drop(self) -> None:
        """Close the socket at once, without a word to a server that may not be listening."""
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.pgconn.finish()

    async def _say(self, conn: psycopg.AsyncConnection[Any], statement: Statement[T]) -> list[T]:
        if self.facts is None or not self.facts.shared:
            return await arun(conn, statement)
        # Behind a pooler the isolation level can't be a setting of the session.
        async with conn.transaction():
            return await arun(conn, statement)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        nonce = secrets.token_hex(8)
        try:
            conn = await psycopg.AsyncConnection.connect(
                conninfo(self._dsn, application=self._application, nonce=nonce), autocommit=True, prepare_threshold=1
            )
        except psycopg.OperationalError as error:
            if "startup parameter" not in str(error):
                raise
            conn = await psycopg.AsyncConnection.connect(
                conninfo(self._dsn, application=self._application), autocommit=True, prepare_threshold=None
            )
        try:
            self.facts = await self._look(conn, nonce)
        except BaseException:
            conn.pgconn.finish()
            raise
        # kept here and not by who asked: who is cancelled at this instant never hears of it, and nobody would close it
        self._conn = conn
        return conn

    async def _look(self, conn: psycopg.AsyncConnection[Any], nonce: str) -> Facts:
        await conn.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        [found] = await arun(conn, named("session_facts", self.schema))
        if found.read_only:
            raise NoDatabase("the server is read-only: a standby, or a primary on its way out")
        shared = found.nonce != nonce
        if shared:
            conn.prepare_threshold = None
        return Facts(found.pid, shared, found.server_version, found.encoding)

    async def _bounded(self, work: Any, seconds: float) -> Any:
        # Cancelling psycopg politely asks the server first, which a black-holed one never answers: close, then cancel.
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=seconds)
            if task.done():
                return task.result()
            raise TimeoutError(f"the database did not answer within {seconds:g} s")
        finally:
            if not task.done():
                self.drop()
                task.cancel()
                await asyncio.wait({task}, timeout=1.0)
            if task.done() and not task.cancelled():
                task.exception()  # seen: the caller has been told, asyncio need not tell it again


def _has_server(conn: psycopg.AsyncConnection[Any]) -> bool:
    """Tell whether an idle connection still has a server; a restart since its last use is no news of an outage."""
    try:
        conn.pgconn.consume_input()
        conn.pgconn.consume_input()  # the first may have read the server's last words, and this one the end
    except psycopg.OperationalError:
        return False
    return conn.pgconn.status == psycopg.pq.ConnStatus.OK
