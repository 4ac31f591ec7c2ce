"""What tests of an application need: run what is due, see what was enqueued, move the clock; on the test's connection.

Nothing is simulated. Jobs stand in the real table and are claimed, judged and written by a worker's own statements and
rules, one after the other, within whatever transaction the test is in: a test that rolls back leaves nothing. No worker
is started here, and nothing is committed.
"""

from redrive.testing.clock import AsyncClock, Clock, clock
from redrive.testing.demands import assert_enqueued, assert_enqueued_async, enqueued, enqueued_async
from redrive.testing.lent import connected
from redrive.testing.pending import Result, run_pending, run_pending_async

__all__ = [
    "AsyncClock",
    "Clock",
    "Result",
    "assert_enqueued",
    "assert_enqueued_async",
    "clock",
    "connected",
    "enqueued",
    "enqueued_async",
    "run_pending",
    "run_pending_async",
]
