"""A decorated function stays itself, and what can't run as a handler is refused where it is written."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from redrive import InvalidOption, Queue
from redrive.errors import UnknownKind
from redrive.executor import execute, execute_here
from redrive.outcome import Retried, Succeeded
from support_engine import claimed

if TYPE_CHECKING:
    from nowhere import Nothing  # an annotation for the type checker only


@dataclasses.dataclass
class Mail:
    to: str
    retries: int = 0


@pytest.fixture
def queue():
    return Queue("postgresql://nobody@nowhere/none")


def ran(handler: Any, payload: str = "{}", job: Any = None) -> Any:
    job = job or claimed(handler.kind, payload)
    if handler.is_async:
        return asyncio.run(execute(job, handler)).outcome
    return execute_here(job, handler).outcome


class TestDecoration:
    def test_a_handler_can_still_be_called_as_the_function_it_is(self, queue):
        @queue.handler("add")
        def add(payload, extra=1):
            """Add."""
            return payload + extra

        @queue.handler("add_async")
        async def add_async(payload):
            return payload

        assert (add(1), add(1, extra=4)) == (2, 5)
        assert asyncio.run(add_async(7)) == 7
        assert (add.__name__, add.__doc__, add.__wrapped__.__name__) == ("add", "Add.", "add")

    def test_without_a_kind_the_functions_name_is_the_kind(self, queue):
        """SD-05: and not its module's, so it may move, and stand in a program's own file."""

        @queue.handler()
        def send_email(payload):
            pass

        assert send_email.kind == "send_email"
        assert queue.handlers.kinds() == ("send_email",)

    def test_a_kind_has_one_handler(self, queue):
        queue.handler("mail", aliases=["email"])(lambda: None)
        for name in ("mail", "email"):
            with pytest.raises(InvalidOption, match=f"'{name}' already has a handler"):
                queue.handler(name)(lambda: None)
            with pytest.raises(InvalidOption, match=f"'{name}' already has a handler"):
                queue.handler("other", aliases=[name])(lambda: None)
        assert queue.handlers.kinds() == ("email", "mail")

    def test_an_alias_leads_to_the_same_handler(self, queue):
        """SD-04."""
        handler = queue.handler("mail", aliases=["email", "send"])(lambda: None)
        assert queue.handlers.get("email") is queue.handlers.demand("send") is handler
        assert list(queue.handlers) == [handler]

    def test_who_demands_an_unknown_kind_is_told_which_there_are(self, queue):
        with pytest.raises(UnknownKind, match="no handler for kind 'x'; there are none"):
            queue.handlers.demand("x")
        queue.handler("a")(lambda: None)
        queue.handler("b")(lambda: None)
        with pytest.raises(UnknownKind, match="a, b"):
            queue.handlers.demand("x")

    @pytest.mark.parametrize(
        "options",
        [
            {"max_attempts": 0},
            {"max_attempts": 1.5},
            {"max_attempts": True},
            {"priority": 10},
            {"priority": -1},
            {"timeout": 0},
            {"timeout": -1},
            {"timeout": float("nan")},
            {"timeout": timedelta(0)},
            {"timeout": "abc"},
            {"timeout": ()},
            {"backoff": 10},
            {"retry_on": "ValueError"},
            {"retry_on": (ValueError, 1)},
            {"dead_on": ValueError()},
            {"dead_on": int},
        ],
    )
    def test_an_option_that_makes_no_sense_is_refused_by_name(self, queue, options):
        [name] = options
        with pytest.raises(InvalidOption, match=name):
            queue.handler("k", **options)(lambda: None)

    def test_without_its_brackets_a_decorator_is_refused_and_not_lost(self, queue):
        """It would take the function for the kind, or the handler for the times, and register nothing."""

        def mail(payload): ...

        with pytest.raises(InvalidOption, match=r"above mail has no brackets: write @queue.handler\(\)"):
            queue.handler(mail)
        with pytest.raises(InvalidOption, match=r"@queue.schedule: cron is Handler\(kind='mail'"):
            queue.schedule(queue.handler("mail")(mail))
        with pytest.raises(InvalidOption, match="topic"):
            queue.subscribe(mail)

    def test_a_timeout_is_an_hour_unless_said_and_none_is_for_ever(self, queue):
        assert queue.handler("a")(lambda: None).timeout == 3600
        assert queue.handler("b", timeout=timedelta(minutes=2))(lambda: None).timeout == 120
        assert queue.handler("c", timeout=None)(lambda: None).timeout is None


class TestShapes:
    """Functions, methods, partials, callables and wrappers, sync and async."""

    def test_every_callable_runs_the_way_it_is_written(self, queue):
        class Mailer:
            def send(self, payload):
                return payload

            async def send_async(self, payload):
                return payload

            @staticmethod
            async def still(payload):
                return payload

        class Callable:
            def __call__(self, payload):
                return payload

        class AsyncCallable:
            async def __call__(self, payload):
                return payload

        def logged(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                return function(*args, **kwargs)

            return wrapper

        async def coroutine(fixed, payload):
            return payload

        sync = [Mailer().send, Callable(), functools.partial(lambda _fixed, payload: payload, 1), logged(lambda p: p)]
        coroutines = [
            Mailer().send_async,
            Mailer.still,
            AsyncCallable(),
            functools.partial(coroutine, 1),
            logged(AsyncCallable().__call__),
        ]
        for number, function in enumerate(sync + coroutines):
            handler = queue.handler(f"k{number}")(function)
            assert handler.is_async is (number >= len(sync)), function
            assert ran(handler, '"here"') == Succeeded('"here"'), function

    def test_the_second_parameter_gets_the_job_if_it_is_needed_or_is_called_job(self, queue):
        job = claimed("k", '"p"')
        given = []
        for number, function in enumerate(
            (
                lambda payload, anything: given.append(anything),
                lambda payload, job=None: given.append(job),
                lambda payload, other=None: given.append(other),
                lambda *args: given.append(args),
                lambda **kwargs: given.append(kwargs),
            )
        ):
            assert ran(queue.handler(f"k{number}")(function), job=job) == Succeeded()
        assert given == [job, job, None, ("p",), {}]

    def test_more_than_payload_and_job_is_refused(self, queue):
        with pytest.raises(InvalidOption, match=r"takes 3 arguments: write `def send\(payload, job\)`"):

            @queue.handler("k")
            def send(to, subject, body):
                pass

    def test_a_keyword_that_nobody_will_give_is_refused(self, queue):
        with pytest.raises(InvalidOption, match="keyword 'subject'"):
            queue.handler("k")(lambda payload, *, subject: None)
        assert ran(queue.handler("ok")(lambda payload, *, subject="none": subject)) == Succeeded('"none"')

    def test_a_generator_would_do_nothing_and_is_refused(self, queue):
        def lazily(payload):
            yield payload

        async def lazily_async(payload):
            yield payload

        for function in (lazily, lazily_async, functools.partial(lazily, 1)):
            with pytest.raises(InvalidOption, match="generator"):
                queue.handler("k")(function)

    def test_a_wrapper_of_an_async_function_may_give_a_future_or_what_came_of_it(self, queue):
        async def answer(payload):
            return payload

        @functools.wraps(answer)
        def future(payload):
            return asyncio.ensure_future(answer(payload))

        @functools.wraps(answer)
        def known(payload):
            return "known"

        assert ran(queue.handler("future")(future), "1") == Succeeded("1")
        assert ran(queue.handler("known")(known), "1") == Succeeded('"known"')

    def test_a_class_is_no_handler_but_its_instances_method_is(self, queue):
        class Task:
            def __init__(self, payload):
                self.payload = payload

        with pytest.raises(InvalidOption, match="class"):
            queue.handler("k")(Task)


class TestAnnotations:
    """An annotated payload arrives as what it is annotated with (SD-05)."""

    def test_a_dataclass_arrives_whole(self, queue):
        @queue.handler("mail")
        def mail(payload: Mail):
            return [type(payload).__name__, payload.to, payload.retries]

        assert ran(mail, '{"to": "a@example.com"}') == Succeeded('["Mail","a@example.com",0]')

    def test_a_payload_that_does_not_fit_is_a_failed_attempt_that_names_the_field(self, queue):
        """SD-05."""

        @queue.handler("mail")
        async def mail(payload: Mail):
            raise AssertionError("called")

        outcome = ran(mail, '{"retries": 1}')
        assert isinstance(outcome, Retried)
        assert "to" in outcome.failure.message
        assert "AssertionError" not in outcome.failure.error_type
        outcome = ran(mail, '{"to": "a", "retries": "many"}')
        assert isinstance(outcome, Retried)
        assert "retries" in outcome.failure.message

    def test_an_annotation_for_the_type_checker_only_leaves_the_payload_as_it_is(self, queue):
        @queue.handler("k")
        def lenient(payload: Nothing):
            return payload

        assert ran(lenient, '{"a": 1}') == Succeeded('{"a":1}')
