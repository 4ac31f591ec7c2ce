"""How kinds come to have handlers, and what is known of a kind when a job of it is enqueued.

Nothing here runs a statement: a queue is this, and its tables.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from redrive import store
from redrive.backoff import Backoff, quadratic
from redrive.breaker import Breaker
from redrive.breaker import breaker as read_breaker
from redrive.classify import Classify, rules
from redrive.errors import InvalidOption
from redrive.handlers import HOUR, DeadOn, Enqueuer, Exceptions, Handler, Handlers, P, R, exceptions, timeout_seconds
from redrive.handlers import dead_on as read_dead_on
from redrive.instruments import noted
from redrive.isolation import isolation as isolated
from redrive.settings import unknown
from redrive.topic import pattern
from redrive.typed import dump

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import timedelta


class Registry(Enqueuer):
    """The handlers of a queue, by kind."""

    imported_first: tuple[str, ...] = ()
    """Modules that the child process of an isolated handler imports before the application's own."""

    def __init__(self, classify: Classify | None = None) -> None:
        rules(classify)
        self.handlers = Handlers()
        self.classify = classify
        """What errors tell, where the handler does not say."""

    def handler(
        self,
        kind: str | None = None,
        *,
        max_attempts: int = 5,
        timeout: float | timedelta | None = HOUR,
        backoff: Backoff | None = None,
        retry_on: Exceptions | None = None,
        dead_on: DeadOn | None = None,
        classify: Classify | None = None,
        priority: int = 5,
        sensitive: bool = False,
        aliases: Iterable[str] = (),
        on_dead: Callable[[Any], None] | None = None,
        isolation: Literal["process"] | None = None,
        memory_limit: int | str | None = None,
        jobs_per_child: int | None = None,
        breaker: bool | Breaker = True,
        target: Callable[[Any], str] | None = None,
    ) -> Callable[[Callable[P, R]], Handler[P, R]]:
        """Register a function as the handler of *kind*; without a kind, its own name is the kind.

        With ``isolation="process"`` it runs in a child process, which is killed at its timeout; *memory_limit* is in
        bytes, or text like 512MB, and *jobs_per_child* how many jobs one child runs at most (100). While a service that
        it calls is down, its jobs wait without spending attempts, as *breaker* says; *target* is a function from the
        payload to the name of that service, such as a host, where jobs of the kind call several. *classify* says what
        an error tells (see :mod:`redrive.classify`); what it calls permanent is dead at once, and with
        ``dead_on="permanent"`` also what the list of known errors does.

        Raises:
            InvalidOption: for a kind that is taken, or a value that makes no sense.
        """
        if callable(kind):
            raise InvalidOption(
                f"@queue.handler above {getattr(kind, '__name__', kind)!s:.80} has no brackets: "
                "write @queue.handler(), or a kind in them"
            )
        store.options(priority=priority, max_attempts=max_attempts)
        if backoff is not None and not callable(backoff):
            raise InvalidOption(
                f"backoff is {backoff!r}: give a callable attempt -> seconds, e.g. redrive.backoff.exponential()"
            )
        apart = isolated(isolation, memory_limit, jobs_per_child)
        breaks = read_breaker(breaker)
        fatal, permanent = read_dead_on(dead_on)
        by_breaker = breaks.classify if breaks is not None and breaks.outage is not None else None
        found = rules(classify, by_breaker, self.classify, dead_on_permanent=permanent)
        if target is not None and not callable(target):
            raise InvalidOption(f"target is {target!r:.80}: give a function from a payload to the name of a service")
        registered_in = _caller()

        def register(function: Callable[P, R]) -> Handler[P, R]:
            handler = Handler(
                kind=store.name(function.__name__ if kind is None else kind, "kind"),
                function=function,
                queue=self,
                max_attempts=max_attempts,
                timeout=timeout_seconds(timeout),
                backoff=backoff or quadratic(),
                retry_on=exceptions(retry_on, "retry_on"),
                dead_on=fatal,
                rules=found,
                priority=priority,
                sensitive=sensitive,
                aliases=tuple(store.name(alias, "alias") for alias in aliases),
                on_dead=on_dead,
                isolation=apart,
                registered_in=registered_in,
                breaker=breaks,
                target=target,
            )
            self.handlers.add(handler)
            return handler

        return register

    def subscribe(
        self, *topics: str, kind: str | None = None, **options: Any
    ) -> Callable[[Callable[P, R]], Handler[P, R]]:
        """Subscribe a function to *topics*: each publish of one of them is a job of *kind*, which the function handles.

        In a topic ``*`` stands for one word and ``#`` for any number, none included: ``invoice.*``, ``audit.#``.
        However many of them fit, a publish is one job. *options* are those of :meth:`handler`; put above
        ``@queue.handler``, or above another ``@queue.subscribe``, it takes none and adds its topics to that handler's.

        Raises:
            InvalidOption: for a topic or another value that makes no sense.
        """
        checked = tuple(pattern(topic) for topic in topics)
        if not checked:
            raise InvalidOption("subscribe: say to what, as in @queue.subscribe('invoice.paid', kind='send_receipt')")

        def register(function: Callable[P, R]) -> Handler[P, R]:
            if not isinstance(function, Handler):
                handler = self.handler(kind, **options)(function)
            elif kind is None and not options:
                handler = function
            else:
                said = ", ".join(["kind"] * (kind is not None) + [*options])
                raise InvalidOption(
                    f"{said}: {function.kind!r} has a handler, where that belongs; give topics alone here"
                )
            handler.topics = tuple(dict.fromkeys((*checked, *handler.topics)))
            return handler

        return register

    def follower(self, kind: Any, payload: Any, key: str | None, options: Mapping[str, Any]) -> str:
        """Check a job that is to follow another, and give it as JSON text.

        Raises:
            InvalidPayload: with the path of the value that can't be stored as it is.
            InvalidOption: naming the value and the remedy.
        """
        name = kind.kind if isinstance(kind, Handler) else kind
        payload = {} if payload is None else payload
        if said := [each for each in store.ABOUT_KEYS if each in options]:
            raise InvalidOption(f"{said[0]} is for queue.enqueue: of what follows a job the key is all that counts")
        if "batch" in options:
            raise InvalidOption("batch is for queue.enqueue: what follows a job is part of no batch; open one in it")
        return store.follower(name, payload, key, self._in_lane(name, payload, options))

    def _options(self, kind: str, options: Mapping[str, Any]) -> store.Options:
        """Check how jobs of *kind* are to run, with what its handler says of that."""
        if (handler := self._handler_of(kind)) is not None:
            options = {"priority": handler.priority, "max_attempts": handler.max_attempts, **options}
        for name in options:
            if name not in store.Wishes.__annotations__:
                raise unknown(name, [*store.Wishes.__annotations__, "connection", "key"])
            if name in store.ABOUT_KEYS:
                raise InvalidOption(f"{name} is for one job: enqueue each by itself")
        return store.options(**noted(kind, options))

    def _in_lane(self, kind: str, payload: Any, options: Mapping[str, Any]) -> store.Options:
        """As :meth:`_options`, of one job: in the lane of what it calls, where its handler tells and none is given."""
        plain = {name: value for name, value in options.items() if name not in store.ABOUT_KEYS}
        how, lane = self._options(kind, plain), self._lane_of(kind, options)
        return how if lane is None else replace(how, lane=lane(dump(payload)))

    def _lane_of(self, kind: str, options: Mapping[str, Any]) -> Callable[[Any], str] | None:
        handler = self._handler_of(kind)
        return None if handler is None or handler.target is None or "lane" in options else handler.target_of

    def _handler_of(self, kind: Any) -> Handler[Any, Any] | None:
        return self.handlers.get(kind) if isinstance(kind, str) else None


def _caller() -> str:
    """Name the module from which this one was called."""
    frame = sys._getframe(1)  # noqa: SLF001 - as logging finds its caller
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))
