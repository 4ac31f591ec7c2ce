"""Every way out of a handler has an outcome, decided without a database."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
from typing import Any

import pytest

from redrive import Discard, Queue, Retry, Snooze, backoff
from redrive.errors import Dead
from redrive.executor import CANCELLED, SHUTDOWN, TIMED_OUT, execute, execute_here
from redrive.outcome import Crashed, Died, Failed, HandedBack, Outcome, Retried, Snoozed, Succeeded
from support_engine import claimed

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="untouched")


class Unreachable(ConnectionError):
    """One step down from what is given in retry_on or dead_on."""


class Hostile(Exception):
    """An error that cannot be put into words."""

    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


class Exit(BaseException):
    """Neither an Exception nor one of the interpreter's own."""


def handler(function: Any, **options: Any) -> Any:
    """Register *function* with a queue that has no database."""
    queue = Queue("postgresql://nobody@nowhere/none")
    return queue.handler("k", **({"backoff": backoff.fixed(7)} | options))(function)


def repr_of(value: Any) -> str:
    return type(value).__name__


def outcome_of(function: Any, job: Any = None, **options: Any) -> Outcome:
    """Run *function* as the slots would, sync or async, and give what becomes of the job."""
    job = job or claimed()
    registered = handler(function, **options)
    if registered.is_async:
        return asyncio.run(execute(job, registered)).outcome
    return execute_here(job, registered).outcome


def both(body: Any) -> list[Any]:
    """Give *body*, a function of payload and job, as a sync and as an async handler."""

    def sync(payload, job):
        return body(payload, job)

    async def coroutine(payload, job):
        await asyncio.sleep(0)
        return body(payload, job)

    return [sync, coroutine]


def raising(error: BaseException) -> list[Any]:
    def body(payload, job):
        raise error

    return both(body)


class TestReturning:
    """A handler that comes back has succeeded, whatever it brings."""

    @pytest.mark.parametrize(
        ("value", "stored"),
        [
            (None, None),
            (0, "0"),
            (False, "false"),
            ("", '""'),
            ([], "[]"),
            ({"sent": 3, "to": ["ä"]}, '{"sent":3,"to":["ä"]}'),
            (float("nan"), "null"),
            ({"x": "\x00"}, '{"x":"�"}'),
            ("\ud800", '"�"'),
            ({1}, "[1]"),
        ],
    )
    def test_what_a_handler_returns_is_kept_as_json_that_can_be_stored(self, value, stored):
        """PE-04."""
        for function in both(lambda _payload, _job: value):
            assert outcome_of(function) == Succeeded(stored)

    def test_a_result_that_no_json_can_hold_never_fails_the_job(self):
        """PE-02."""
        for value in (object(), Hostile(), {"self": Hostile()}, lambda: None, "x" * 10**7):
            for function in both(lambda _payload, _job, value=value: value):
                outcome = outcome_of(function)
                assert isinstance(outcome, Succeeded)
                assert outcome.result is not None
                assert len(outcome.result) < 70_000

    def test_a_sync_handler_that_returns_a_coroutine_has_done_nothing_and_fails(self):
        async def forgotten():
            raise AssertionError("never awaited")

        outcome = outcome_of(lambda _payload: forgotten())
        assert isinstance(outcome, Retried)
        assert "async def" in outcome.failure.message

    def test_a_handler_gets_nothing_the_payload_or_the_payload_and_the_job(self):
        seen = []
        job = claimed(payload='{"a": 1}')
        for function in (
            lambda: seen.append(()),
            seen.append,
            lambda payload, job: seen.append((payload, job)),
            lambda payload, again=2: seen.append((payload, again)),
        ):
            assert outcome_of(function, job) == Succeeded()
        assert seen == [(), {"a": 1}, ({"a": 1}, job), ({"a": 1}, 2)]


class TestFailing:
    """What a handler raises decides between another try, an end on purpose, and a human."""

    @pytest.mark.parametrize("function", raising(ValueError("bad news")))
    def test_an_exception_is_tried_again_after_the_back_off_of_its_kind(self, function):
        outcome = outcome_of(function, claimed(attempts=2), backoff=lambda attempt: attempt * 100)
        assert isinstance(outcome, Retried)
        assert outcome.delay == 200
        assert (outcome.failure.error_type, outcome.failure.message) == ("ValueError", "bad news")
        assert "ValueError: bad news" in outcome.failure.last_error
        assert "test_executor" in outcome.failure.traceback

    @pytest.mark.parametrize("function", raising(ValueError("bad news")))
    @pytest.mark.parametrize(("attempts", "most"), [(5, 5), (1, 1), (7, 5)])
    def test_the_last_attempt_ends_dead(self, function, attempts, most):
        outcome = outcome_of(function, claimed(attempts=attempts, max_attempts=most))
        assert isinstance(outcome, Died)

    @pytest.mark.parametrize("answer", [float("nan"), -1, None, 1e18, "soon", RuntimeError("broken")])
    def test_a_back_off_that_misbehaves_still_reschedules_the_job(self, answer):
        """RB-01."""

        def misbehaving(attempt):
            if isinstance(answer, Exception):
                raise answer
            return answer

        for function in raising(ValueError()):
            outcome = outcome_of(function, backoff=misbehaving)
            assert isinstance(outcome, Retried)
            assert 10 <= outcome.delay <= 15

    @pytest.mark.parametrize("attempt", [1, 63, 64, 1024, 100_000])
    def test_no_attempt_number_overflows_a_back_off(self, attempt):
        """RB-01."""
        job = claimed(attempts=attempt, max_attempts=2**31 - 1)
        for curve in (backoff.exponential(cap=3600, jitter=5), backoff.quadratic(cap=3600), backoff.fixed(3600)):
            for function in raising(ValueError()):
                outcome = outcome_of(function, job, backoff=curve)
                assert isinstance(outcome, Retried)
                assert 10 <= outcome.delay <= 3605
                if attempt > 1:
                    assert outcome.delay >= 3600

    def test_a_back_off_of_nothing_waits_a_second(self):
        """RB-03."""
        for function in raising(ValueError()):
            assert outcome_of(function, backoff=lambda _attempt: 0).delay == 1

    @pytest.mark.parametrize(
        "error", [Hostile(), ValueError("a\x00b"), ValueError("\ud800"), ValueError("x" * 50_000_000)]
    )
    def test_an_error_that_resists_description_is_a_failure_like_any_other(self, error):
        """PE-02."""
        for function in raising(error):
            outcome = outcome_of(function)
            assert isinstance(outcome, Retried)
            for text in (outcome.failure.message, outcome.failure.traceback, outcome.failure.last_error):
                assert len(text) <= 8_000
                assert "\x00" not in text
                text.encode()

    def test_endless_recursion_is_a_failure_of_bounded_size(self):
        """PE-05."""

        def endless(payload):
            return endless(payload)

        outcome = outcome_of(endless)
        assert isinstance(outcome, Retried)
        assert outcome.failure.error_type == "RecursionError"
        assert len(outcome.failure.traceback) <= 8_000

    def test_a_payload_that_python_cannot_read_fails_its_own_job(self):
        """CN-07."""
        for function in both(lambda payload, _job: payload):
            outcome = outcome_of(function, claimed(payload="9" * 5000))
            assert isinstance(outcome, Retried)
            assert outcome.failure.error_type == "ValueError"


class TestChosenExceptions:
    """retry_on and dead_on name classes, and mean their subclasses (RB-06)."""

    @pytest.mark.parametrize("error", [ConnectionError(), Unreachable()])
    def test_an_exception_of_dead_on_or_below_it_is_dead_at_the_first_attempt(self, error):
        """RB-06."""
        for function in raising(error):
            assert isinstance(outcome_of(function, dead_on=ConnectionError), Died)
            assert isinstance(outcome_of(function, dead_on=(KeyError, ConnectionError)), Died)

    def test_dead_on_leaves_other_exceptions_their_tries(self):
        """RB-06."""
        for function in raising(OSError()):
            assert isinstance(outcome_of(function, dead_on=ConnectionError), Retried)

    @pytest.mark.parametrize("error", [ConnectionError(), Unreachable()])
    def test_an_exception_of_retry_on_or_below_it_is_tried_again(self, error):
        """RB-06."""
        for function in raising(error):
            assert isinstance(outcome_of(function, retry_on=(ConnectionError, KeyError)), Retried)

    def test_with_retry_on_any_other_exception_is_dead_at_once(self):
        """RB-06."""
        for function in raising(OSError()):
            assert isinstance(outcome_of(function, retry_on=ConnectionError), Died)

    def test_dead_on_wins_over_retry_on_where_both_match(self):
        for function in raising(Unreachable()):
            outcome = outcome_of(function, retry_on=ConnectionError, dead_on=Unreachable)
            assert isinstance(outcome, Died)

    def test_retry_raised_by_the_handler_is_tried_again_whatever_retry_on_says(self):
        for function in raising(Retry("later")):
            assert isinstance(outcome_of(function, retry_on=ConnectionError), Retried)


class TestVerdicts:
    """What a handler says outright is obeyed."""

    def test_retry_without_after_waits_as_after_any_failure(self):
        for function in raising(Retry("try later")):
            outcome = outcome_of(function)
            assert isinstance(outcome, Retried)
            assert outcome.delay == 7
            assert outcome.failure.message == "try later"

    def test_retry_after_waits_what_it_was_told_and_not_less(self):
        """RB-06."""
        for function in raising(Retry("429", after=90)):
            outcome = outcome_of(function, backoff=backoff.fixed(1, jitter=60))
            assert isinstance(outcome, Retried)
            assert outcome.delay == 90

    @pytest.mark.parametrize("verdict", [Retry("no more"), Retry("no more", after=90)])
    def test_a_retry_at_the_last_attempt_is_death(self, verdict):
        for function in raising(verdict):
            outcome = outcome_of(function, claimed(attempts=5))
            assert isinstance(outcome, Died)
            assert outcome.failure.message == "no more"

    def test_snooze_comes_back_without_a_failure_even_at_the_last_attempt(self):
        for function in raising(Snooze(60)):
            assert outcome_of(function, claimed(attempts=5)) == Snoozed(60)

    def test_discard_ends_the_job_as_failed_with_its_reason_first(self):
        for function in raising(Discard("user is gone")):
            outcome = outcome_of(function)
            assert isinstance(outcome, Failed)
            assert outcome.failure.last_error == "discarded: user is gone"
        for function in raising(Discard()):
            assert outcome_of(function).failure.last_error == "discarded"

    def test_dead_calls_a_human_at_the_first_attempt(self):
        for function in raising(Dead("410 Gone")):
            outcome = outcome_of(function)
            assert isinstance(outcome, Died)
            assert outcome.failure.message == "410 Gone"

    def test_a_reason_that_cannot_be_stored_is_mended(self):
        """PE-02."""
        for function in raising(Discard("a\x00b\ud800")):
            assert outcome_of(function).failure.last_error == "discarded: a�b�"

    def test_a_verdict_stands_although_the_worker_is_stopping(self):
        def body(payload, job):
            job.stop(SHUTDOWN, told=True)
            raise Dead("decided")

        for function in both(body):
            assert isinstance(outcome_of(function), Died)


class TestLeaving:
    """What would end the process is no failure of the work, and is counted apart (RB-06)."""

    @pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), Exit()])
    def test_trying_to_leave_is_a_crash_and_not_a_failure(self, error, caplog):
        """RB-06."""
        for function in raising(error):
            with caplog.at_level(logging.ERROR, "redrive"):
                outcome = outcome_of(function, claimed(attempts=5, crashes=1), dead_on=ValueError, retry_on=KeyError)
            assert isinstance(outcome, Crashed)
            assert outcome.failure.error_type.endswith(type(error).__name__)
            assert outcome.delay == 7
            assert type(error).__name__ in caplog.text

    def test_sys_exit_in_a_handler_leaves_the_worker_running(self):
        def leave(payload):
            sys.exit("bye")

        async def leave_async(payload):
            await asyncio.sleep(0)
            sys.exit("bye")

        for function in (leave, leave_async):
            assert isinstance(outcome_of(function), Crashed)

    def test_the_cancellation_of_a_task_that_a_handler_waits_for_is_no_order_to_stop(self):
        async def waits_for_a_cancelled_task(payload):
            task = asyncio.create_task(asyncio.sleep(10))
            asyncio.get_running_loop().call_soon(task.cancel)
            await task

        assert isinstance(outcome_of(waits_for_a_cancelled_task), Crashed)


class TestNotRun:
    """Some jobs must not begin at all."""

    def test_past_its_deadline_a_job_is_dead_and_its_handler_not_called(self):
        """RB-04."""
        for function in raising(AssertionError("called")):
            outcome = outcome_of(function, claimed(expires_in=-1.0))
            assert isinstance(outcome, Died)
            assert outcome.failure.last_error.startswith("deadline")

    def test_without_an_attempt_left_a_job_is_dead_and_its_handler_not_called(self):
        """RB-07."""
        for function in raising(AssertionError("called")):
            outcome = outcome_of(function, claimed(attempts=8, max_attempts=5))
            assert isinstance(outcome, Died)
            assert "7 of 5" in outcome.failure.last_error

    def test_what_did_not_run_has_no_duration(self):
        finished = execute_here(claimed(expires_in=-1.0), handler(lambda: None))
        assert finished.duration is None
        assert execute_here(claimed(), handler(lambda: None)).duration >= 0


class TestStopped:
    """A handler that ends because it was told to has stopped, not finished."""

    @staticmethod
    def stopping(reason):
        def returns(payload, job):
            job.stop(reason, told=False)
            assert job.should_stop

        def raises(payload, job):
            job.stop(reason, told=False)
            assert job.should_stop
            raise ConnectionError("interrupted")

        return [*both(returns), *both(raises)]

    def test_by_a_shutdown_is_handed_back(self):
        for function in self.stopping(SHUTDOWN):
            assert outcome_of(function, claimed(attempts=5)) == HandedBack()

    def test_by_a_cancel_is_failed_and_says_so(self):
        for function in self.stopping(CANCELLED):
            outcome = outcome_of(function)
            assert isinstance(outcome, Failed)
            assert outcome.failure.last_error.startswith("cancelled")

    def test_by_its_timeout_is_a_failed_attempt(self):
        for function in self.stopping(TIMED_OUT):
            outcome = outcome_of(function, timeout=30)
            assert isinstance(outcome, Retried)
            assert outcome.failure.error_type == "TimeoutError"
            assert "30 s" in outcome.failure.message
            assert isinstance(outcome_of(function, claimed(attempts=5)), Died)

    def test_by_its_timeout_is_tried_again_although_retry_on_names_other_errors(self):
        for function in self.stopping(TIMED_OUT):
            assert isinstance(outcome_of(function, retry_on=ConnectionError), Retried)
            assert isinstance(outcome_of(function, dead_on=TimeoutError), Died)

    def test_a_handler_that_never_looked_has_finished(self):
        def body(payload, job):
            job.stop(SHUTDOWN, told=False)
            return "done"

        for function in both(body):
            assert outcome_of(function) == Succeeded('"done"')

    def test_a_lost_lease_stops_a_handler_that_looks_and_nothing_is_made_of_it(self):
        def body(payload, job):
            job.lost = True
            assert job.should_stop

        for function in both(body):
            assert outcome_of(function) == HandedBack()


class TestAsyncHandlers:
    """A handler on the loop has all that a task of its own would have."""

    @staticmethod
    def run(function, job=None, **options):
        async def in_a_slot():
            return (await execute(job or claimed(), handler(function, **options))).outcome

        return asyncio.run(in_a_slot())

    def test_asyncio_timeout_works_inside(self):
        async def impatient(payload):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(10)
            return asyncio.current_task().cancelling()

        assert self.run(impatient) == Succeeded("0")

    def test_wait_for_gather_and_task_groups_work_inside(self):
        async def busy(payload):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(asyncio.sleep(0.001, n)) for n in range(3)]
            more = await asyncio.gather(*(asyncio.sleep(0, n) for n in (3, 4)))
            last = await asyncio.wait_for(asyncio.to_thread(lambda: 5), 5)
            return [*(task.result() for task in tasks), *more, last]

        assert self.run(busy) == Succeeded("[0,1,2,3,4,5]")

    def test_an_error_in_a_task_group_is_a_failure(self):
        async def failing():
            raise ValueError("inner")

        async def busy(payload):
            async with asyncio.TaskGroup() as group:
                group.create_task(failing())

        outcome = self.run(busy)
        assert isinstance(outcome, Retried)
        assert "inner" in outcome.failure.traceback

    def test_stop_iteration_is_a_failure_and_no_return(self):
        async def odd(payload):
            raise StopIteration("not a result")

        assert isinstance(self.run(odd), Retried)

    def test_async_generators_and_context_managers_close_inside(self):
        closed = []

        async def numbers():
            try:
                yield 1
                await asyncio.sleep(0)
                yield 2
            finally:
                await asyncio.sleep(0)
                closed.append(True)

        async def reader(payload):
            return [n async for n in numbers()]

        assert self.run(reader) == Succeeded("[1,2]")
        assert closed == [True]

    def test_a_cancellation_reaches_the_handler_and_its_clean_up_runs(self):
        cleaned = []

        async def scenario():
            job = claimed()

            async def long(payload):
                try:
                    await asyncio.sleep(10)
                finally:
                    await asyncio.sleep(0.001)
                    cleaned.append(True)

            task = asyncio.create_task(execute(job, handler(long)))
            await asyncio.sleep(0.01)
            job.stop(CANCELLED, told=True)
            task.cancel()
            return (await task).outcome

        assert isinstance(asyncio.run(scenario()), Failed)
        assert cleaned == [True]


class TestContext:
    """No job sees what another has set (and none leaks into the worker)."""

    def test_a_variable_set_by_an_async_handler_is_gone_with_it(self):
        async def sets(payload):
            found = VARIABLE.get()
            VARIABLE.set("mine")
            await asyncio.sleep(0)
            assert VARIABLE.get() == "mine"
            inner = asyncio.create_task(asyncio.sleep(0, VARIABLE.get()))
            assert await inner == "mine"
            return found

        async def slot():
            outcomes = [(await execute(claimed(), handler(sets))).outcome for _ in range(3)]
            return outcomes, VARIABLE.get()

        assert asyncio.run(slot()) == ([Succeeded('"untouched"')] * 3, "untouched")

    def test_handlers_that_take_turns_do_not_see_each_others_variables(self):
        async def sets(payload):
            VARIABLE.set(payload)
            for _ in range(5):
                await asyncio.sleep(0)
                assert VARIABLE.get() == payload

        async def slots():
            jobs = [claimed(payload=f'"{n}"') for n in range(5)]
            return [done.outcome for done in await asyncio.gather(*(execute(job, handler(sets)) for job in jobs))]

        assert asyncio.run(slots()) == [Succeeded()] * 5

    def test_a_variable_can_be_reset_by_the_token_that_set_it(self):
        async def resets(payload):
            token = VARIABLE.set("for a while")
            await asyncio.sleep(0)
            VARIABLE.reset(token)
            return VARIABLE.get()

        assert outcome_of(resets) == Succeeded('"untouched"')

    def test_a_variable_set_by_a_sync_handler_is_gone_with_it(self):
        def sets(payload):
            found = VARIABLE.get()
            VARIABLE.set("mine")
            return found

        def thread():
            outcomes.extend(execute_here(claimed(), handler(sets)).outcome for _ in range(3))
            outcomes.append(VARIABLE.get())

        outcomes: list[Any] = []
        worker = threading.Thread(target=thread)
        worker.start()
        worker.join()
        assert outcomes == [Succeeded('"untouched"')] * 3 + ["untouched"]
