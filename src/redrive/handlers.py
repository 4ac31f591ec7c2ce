"""Which function runs which kind of job, and how: the registry behind ``@queue.handler``.

A decorated function stays a plain callable; it gains ``.enqueue``. Nothing here runs a job or knows a connection.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypeVar, Unpack, get_type_hints

from redrive.backoff import Backoff, quadratic
from redrive.breaker import DEFAULT, Breaker
from redrive.classify import Rules
from redrive.drivers import AsyncBorrowed, Borrowed
from redrive.errors import InvalidOption, UnknownKind
from redrive.instruments import wrapped
from redrive.isolation import Isolated, Isolation
from redrive.store import Wishes
from redrive.store import name as store_name
from redrive.typed import decoder_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from redrive.job import ClaimedJob, Enqueued

P = ParamSpec("P")
R = TypeVar("R")

HOUR = 3600.0
Exceptions = type[BaseException] | tuple[type[BaseException], ...]
Permanent = Literal["permanent"]
DeadOn = Exceptions | Permanent | tuple[type[BaseException] | Permanent, ...]


class Enqueuer(Protocol):
    """The queue as a handler sees it."""

    def follower(self, kind: Any, payload: Any, key: str | None, options: Mapping[str, Any]) -> str:
        """Check a job that is to follow another, and give it as JSON text."""

    def enqueue(
        self,
        kind: str,
        payload: Any = None,
        *,
        connection: Borrowed | None = None,
        key: str | None = None,
        **options: Unpack[Wishes],
    ) -> Enqueued:
        """Enqueue a job."""

    async def enqueue_async(
        self,
        kind: str,
        payload: Any = None,
        *,
        connection: AsyncBorrowed | None = None,
        key: str | None = None,
        **options: Unpack[Wishes],
    ) -> Enqueued:
        """Enqueue a job from async code."""

    def enqueue_many(
        self,
        kind: str,
        payloads: Iterable[Any],
        *,
        connection: Borrowed | None = None,
        key: Callable[[Any], str] | None = None,
        ids: list[int] | None = None,
        on_chunk: Callable[[int], object] | None = None,
        **options: Unpack[Wishes],
    ) -> int:
        """Enqueue a job for each payload."""

    async def enqueue_many_async(
        self,
        kind: str,
        payloads: Iterable[Any],
        *,
        connection: AsyncBorrowed | None = None,
        key: Callable[[Any], str] | None = None,
        ids: list[int] | None = None,
        on_chunk: Callable[[int], object] | None = None,
        **options: Unpack[Wishes],
    ) -> int:
        """Enqueue a job for each payload from async code."""


@dataclass(eq=False)
class Handler(Generic[P, R]):
    """A function that runs the jobs of one kind. Calling it calls the function."""

    kind: str
    function: Callable[P, R]
    queue: Enqueuer
    max_attempts: int = 5
    timeout: float | None = HOUR
    """Seconds that a job may run; None for no limit."""
    backoff: Backoff = field(default_factory=quadratic)
    retry_on: tuple[type[BaseException], ...] = ()
    dead_on: tuple[type[BaseException], ...] = ()
    priority: int = 5
    sensitive: bool = False
    """Hide the whole payload wherever jobs are shown."""
    aliases: tuple[str, ...] = ()
    """Former names of the kind, so that jobs enqueued under them still run."""
    on_dead: Callable[[Any], None] | None = None
    """Called with the JobDied event in the process that saw the death, after it was written."""
    isolation: Isolation | None = None
    """Run it in a child process, which can be killed."""
    rules: Rules = field(default_factory=Rules)
    """What its errors tell."""
    breaker: Breaker | None = DEFAULT
    """When to hold its jobs back, since what they call is down; None for never."""
    target: Callable[[Any], str] | None = None
    """Gives the name of the service that a job with this payload calls, such as a host: its lane."""
    topics: tuple[str, ...] = ()
    """What it subscribes to."""
    registered_in: str = ""
    """The module whose import registers it, where that isn't the function's own."""
    is_async: bool = field(init=False)
    """Whether a worker awaits it."""
    call: Callable[[ClaimedJob], Any] = field(init=False, repr=False)
    call_here: Callable[[ClaimedJob], Any] = field(init=False, repr=False)
    """Call the function in this process, however a worker would."""
    bare: Callable[[ClaimedJob], Any] = field(init=False, repr=False)
    """As *call*, without the instruments around it."""

    def __post_init__(self) -> None:
        """Look at the function once, so that no job pays for it."""
        self.is_async = _is_async(self.kind, self.function)
        self.call = self.call_here = _caller(self.kind, self.function)
        if self.isolation is not None:
            self.call, self.is_async = Isolated(self, self.isolation, self.registered_in), True
        self.bare = self.call
        functools.update_wrapper(self, self.function, updated=())

    def demand(self, payload: Any) -> None:
        """Check that the function takes *payload*, without calling it.

        Raises:
            InvalidPayload: with the path of the value that isn't as its parameter is annotated.
        """
        parameters = [*inspect.signature(self.function).parameters.values()]
        decode = _decoder(self.function, parameters[0]) if parameters else None
        if decode is not None:
            decode(payload)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, as if it had not been decorated."""
        return self.function(*args, **kwargs)

    def target_of(self, payload: Any) -> str:
        """Name the target of a job with this *payload*, a JSON value; '' where it has none.

        Raises:
            InvalidOption: when the function fails, or gives what can't be a lane.
        """
        if self.target is None:
            return ""
        try:
            name = self.target(payload)
        except Exception as error:
            raise InvalidOption(
                f"target of kind {self.kind!r} raised {type(error).__name__}: {error!s:.200} for {payload!r:.80}"
            ) from error
        return store_name("" if name is None else name, f"target of kind {self.kind!r}", empty=True)

    def enqueue(
        self,
        payload: Any = None,
        *,
        connection: Borrowed | None = None,
        key: str | None = None,
        **options: Unpack[Wishes],
    ) -> Enqueued:
        """Enqueue a job of this kind; see :meth:`redrive.Queue.enqueue`."""
        return self.queue.enqueue(self.kind, payload, connection=connection, key=key, **options)

    async def enqueue_async(
        self,
        payload: Any = None,
        *,
        connection: AsyncBorrowed | None = None,
        key: str | None = None,
        **options: Unpack[Wishes],
    ) -> Enqueued:
        """Enqueue a job of this kind from async code."""
        return await self.queue.enqueue_async(self.kind, payload, connection=connection, key=key, **options)

    def enqueue_many(
        self,
        payloads: Iterable[Any],
        *,
        connection: Borrowed | None = None,
        key: Callable[[Any], str] | None = None,
        ids: list[int] | None = None,
        on_chunk: Callable[[int], object] | None = None,
        **options: Unpack[Wishes],
    ) -> int:
        """Enqueue a job of this kind for each payload; see :meth:`redrive.Queue.enqueue_many`."""
        how: dict[str, Any] = {"connection": connection, "key": key, "ids": ids, "on_chunk": on_chunk, **options}
        return self.queue.enqueue_many(self.kind, payloads, **how)

    async def enqueue_many_async(
        self,
        payloads: Iterable[Any],
        *,
        connection: AsyncBorrowed | None = None,
        key: Callable[[Any], str] | None = None,
        ids: list[int] | None = None,
        on_chunk: Callable[[int], object] | None = None,
        **options: Unpack[Wishes],
    ) -> int:
        """Enqueue a job of this kind for each payload, from async code."""
        how: dict[str, Any] = {"connection": connection, "key": key, "ids": ids, "on_chunk": on_chunk, **options}
        return await self.queue.enqueue_many_async(self.kind, payloads, **how)


class Handlers:
    """The kinds that a queue knows, by name and by alias."""

    def __init__(self) -> None:
        self._by_kind: dict[str, Handler[Any, Any]] = {}
        self._known: dict[str, Handler[Any, Any]] = {}

    def add(self, handler: Handler[Any, Any]) -> None:
        """Register *handler* under its kind and its aliases.

        Raises:
            InvalidOption: when a name is taken.
        """
        for name in (handler.kind, *handler.aliases):
            if (other := self._known.get(name)) is not None:
                where = getattr(other.function, "__qualname__", other.function)
                raise InvalidOption(
                    f"kind {name!r} already has a handler, {where}: give each function a kind of its own"
                )
        self._by_kind[handler.kind] = handler
        for name in (handler.kind, *handler.aliases):
            self._known[name] = handler

    def get(self, kind: str) -> Handler[Any, Any] | None:
        """Give the handler that runs *kind*, if there is one."""
        return self._known.get(kind)

    def demand(self, kind: str) -> Handler[Any, Any]:
        """Give the handler that runs *kind*.

        Raises:
            UnknownKind: listing what there is.
        """
        if (handler := self._known.get(kind)) is None:
            known = f"there are handlers for: {', '.join(sorted(self._known))}" if self._known else "there are none"
            raise UnknownKind(f"no handler for kind {kind!r}; {known}")
        return handler

    def demand_findable(self) -> None:
        """Look whether every isolated handler can be found again by a child process.

        Raises:
            InvalidOption: for one that can't.
        """
        for handler in self._by_kind.values():
            if isinstance(handler.bare, Isolated):
                handler.bare.demand_findable()

    def instrument(self) -> None:
        """Put the instruments that there are by now around the handlers."""
        for handler in self._by_kind.values():
            handler.call = wrapped(handler.kind, handler.bare, is_async=handler.is_async)

    def kinds(self) -> tuple[str, ...]:
        """List the names that jobs of this queue go by, aliases included."""
        return tuple(sorted(self._known))

    def follower(self, job: ClaimedJob, kind: Any, payload: Any, key: str | None, options: dict[str, Any]) -> str:
        """Check what is to follow *job*, as the queue does that its handler belongs to."""
        return self.demand(job.kind).queue.follower(kind, payload, key, options)

    def __iter__(self) -> Any:
        return iter(self._by_kind.values())


def exceptions(value: Exceptions | None, name: str) -> tuple[type[BaseException], ...]:
    """Read ``retry_on`` or ``dead_on``: an exception class or a tuple of them.

    Raises:
        InvalidOption: when it is something else.
    """
    classes = () if value is None else value if isinstance(value, tuple) else (value,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise InvalidOption(f"{name} is {each!r}: give an exception class or a tuple of them")
    return classes


def dead_on(value: DeadOn | None) -> tuple[tuple[type[BaseException], ...], bool]:
    """Read ``dead_on``: exception classes, and whether ``"permanent"`` stands among them.

    Raises:
        InvalidOption: when it is something else.
    """
    given = () if value is None else value if isinstance(value, tuple) else (value,)
    classes = tuple(each for each in given if each != "permanent")
    for each in classes:
        if isinstance(each, str):
            raise InvalidOption(f"dead_on is {each!r:.80}: the one word that it takes is 'permanent'")
    return exceptions(classes, "dead_on"), len(classes) < len(given)


def timeout_seconds(value: float | timedelta | None) -> float | None:
    """Read a timeout: seconds, a timedelta, or None for no limit.

    Raises:
        InvalidOption: when it is not positive.
    """
    if value is None:
        return None
    try:
        limit = value.total_seconds() if isinstance(value, timedelta) else float(value)
    except (TypeError, ValueError):
        raise InvalidOption(f"timeout is {value!r:.80}: give seconds, a timedelta, or None for no limit") from None
    if not limit > 0:
        raise InvalidOption(f"timeout is {limit:g} s: must be more than 0, or None for no limit")
    return limit


def _is_async(kind: str, function: Callable[..., Any]) -> bool:
    if isinstance(function, type):
        raise InvalidOption(
            f"the handler of {kind!r} is the class {function.__qualname__}: give a method of an instance"
        )
    inner = inspect.unwrap(function, stop=inspect.iscoroutinefunction)
    while isinstance(inner, functools.partial):
        inner = inner.func
    called = getattr(inner, "__call__", None)  # noqa: B004 - asked for its kind, not whether it is there
    if any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in (inner, called)):
        # Calling it would run nothing of it, and the job would have "succeeded".
        raise InvalidOption(f"the handler of {kind!r} is a generator: return what it yields, or loop over it inside")
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(called)


def _caller(kind: str, function: Callable[..., Any]) -> Callable[[ClaimedJob], Any]:
    """Make the one-argument call of *function*: with nothing, the payload, or the payload and the job."""
    signature = inspect.signature(function).parameters.values()
    parameters = [each for each in signature if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    for each in signature:
        if each.kind is each.KEYWORD_ONLY and each.default is each.empty:
            raise InvalidOption(
                f"the handler of {kind!r} needs the keyword {each.name!r}: write `def {_name(function)}(payload, job)`"
            )
    needed = sum(parameter.default is parameter.empty for parameter in parameters)
    if needed > 2:  # noqa: PLR2004 - payload and job
        raise InvalidOption(
            f"the handler of {kind!r} takes {needed} arguments: write `def {_name(function)}(payload, job)`, "
            "or without job"
        )
    if not parameters:
        if any(each.kind is each.VAR_POSITIONAL for each in signature):  # a wrapper that hides what it wraps
            return lambda job: function(job.payload)
        return lambda _job: function()
    decode = _decoder(function, parameters[0])
    wants_job = len(parameters) > 1 and (needed > 1 or parameters[1].name == "job")
    if wants_job:
        return lambda job: function(decode(job.payload), job) if decode else function(job.payload, job)
    if decode is None:
        return lambda job: function(job.payload)
    return lambda job: function(decode(job.payload))


def _decoder(function: Callable[..., Any], parameter: inspect.Parameter) -> Callable[[Any], Any] | None:
    if parameter.annotation is inspect.Parameter.empty:
        return None
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):  # an annotation that exists for the type checker only
        return None
    annotation = hints.get(parameter.name)
    return None if annotation is None else decoder_for(annotation)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "handler")
