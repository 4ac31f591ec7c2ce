"""Handlers that run in a child process: their options, how a child finds them again, and what its death means.

To a worker such a handler is an async one, which it awaits, or cancels. What the child decided is passed on as it is.
"""

from __future__ import annotations

import copy
import logging
import math
import os
import re
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redrive.child import MAIN, Order, registered
from redrive.children import Children, of_this_loop
from redrive.errors import HandlerCrashed, InvalidOption
from redrive.job import Holder
from redrive.outcome import Judged, Outcome

if TYPE_CHECKING:
    from redrive.job import ClaimedJob

JOBS_PER_CHILD = 100
START_WITHIN = 60.0
"""Seconds that a child may take to start and to import the application, before the handler's own time begins."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True)
class Isolation:
    """How the child of a handler is kept."""

    memory_limit: int | None = None
    """Bytes of private memory that a job may make its child use."""
    jobs_per_child: int = JOBS_PER_CHILD
    """Jobs after which a child is replaced."""


def isolation(how: str | None, memory_limit: int | str | None, jobs_per_child: int | None) -> Isolation | None:
    """Read the options of a handler.

    Raises:
        InvalidOption: for a value that makes no sense, or one that goes with isolation and there is none.
    """
    if how is None:
        if memory_limit is not None or jobs_per_child is not None:
            raise InvalidOption('memory_limit and jobs_per_child are for handlers with isolation="process"')
        return None
    if how != "process":
        raise InvalidOption(f'isolation is {how!r}: give "process", or leave it out')
    jobs = JOBS_PER_CHILD if jobs_per_child is None else jobs_per_child
    if not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1:
        raise InvalidOption(f"jobs_per_child is {jobs!r}: give a whole number, at least 1")
    return Isolation(None if memory_limit is None else _bytes(memory_limit), jobs)


def _bytes(value: int | str) -> int:
    match = _SIZE.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    size = float(match[1]) * _UNITS[match[2].lower()] if match else math.nan
    if not 1 <= size <= 1 << 62:
        raise InvalidOption(f"memory_limit is {value!r}: give bytes, or text with a unit like 512MB or 2GB")
    return int(size)


class Isolated:
    """The call of a handler that sends its jobs to a child; to be awaited, and cancelled to kill the child."""

    def __init__(self, handler: Any, how: Isolation, registered_in: str) -> None:
        function = handler.function
        name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", None)
        if handler.is_async:
            raise InvalidOption(
                f"the handler of {handler.kind!r} is async: with isolation write a plain function, which has a process "
                "to itself"
            )
        if not name or "<" in name or not module:
            raise InvalidOption(
                f"the handler of {handler.kind!r} is {name or function!r}, which a child process can't find again: "
                "define it at the top level of a module (its decorators with functools.wraps)"
            )
        self._handler, self._how = handler, how
        first = getattr(handler.queue, "imported_first", ())
        self._modules = tuple(dict.fromkeys((*first, registered_in or module, module)))
        registered[module, name, handler.kind] = handler

    def demand_findable(self) -> None:
        """Look whether a child can import what registers the handler.

        Raises:
            InvalidOption: when it stands in a program that has no file.
        """
        if MAIN in map(_importable, self._modules) and not _main():
            raise InvalidOption(
                f"the handler of {self._handler.kind!r} stands in a program without a file, which a child process "
                "can't import: put it into a module"
            )

    async def __call__(self, job: ClaimedJob) -> Any:
        """Run the job in a child.

        Raises:
            Judged: with the outcome.
            HandlerCrashed: when the child died under the job.
        """
        here, limits = of_this_loop(), (self._how.memory_limit, self._how.jobs_per_child)
        order, called = self._order(job), job.started
        job.started += START_WITHIN  # from there its timeout counts, unless the child says before that it has begun
        try:
            raise Judged(await self._outcome(here, limits, order, job))
        finally:
            if job.started > time.monotonic():
                job.started = called

    async def _outcome(self, here: Children, limits: tuple[int | None, int], order: Order, job: ClaimedJob) -> Outcome:
        while True:
            child = here.take(*limits) or await here.start()
            try:
                done = await child.run(order, job)
            except BaseException:
                await here.end(child)
                raise
            if done is None:
                code = await here.end(child)
                if not child.begun and child.jobs > 1:
                    continue  # it died of something else, as it was taken
                raise self._crashed(code, begun=child.begun)
            outcome, fit = done
            here.give_back(child, *limits, fit=fit)
            return outcome

    def _order(self, job: ClaimedJob) -> Order:
        bare = copy.copy(job)
        bare.holder = Holder(job.worker, job.schema)
        function, handler = self._handler.function, self._handler
        return Order(
            job=bare,
            handler=(_importable(function.__module__), function.__qualname__, handler.kind),
            modules=tuple(map(_importable, self._modules)),
            main=_main(),
            settings=getattr(handler.queue, "settings", None),
            complete=job.holder.complete,  # a function of redrive's, which the child finds by its name
            memory_limit=self._how.memory_limit,
            log_level=logging.getLogger().level,
        )

    def _crashed(self, code: int | None, *, begun: bool) -> HandlerCrashed:
        if code is None:
            how = "was killed and has not ended yet"
        elif code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else "a signal"
            how = f"was killed by {name} (signal {-code})"
            if -code == signal.SIGKILL:
                how += ", by hand or because the machine ran out of memory"
        else:
            how = f"ended with exit code {code}"
        limit = self._how.memory_limit
        about = f"; its memory_limit is {limit >> 20} MB" if limit and code and code < 0 else ""
        when = "while it ran the job" if begun else "before the job could begin"
        return HandlerCrashed(f"the handler's process {how} {when}{about}", exit_code=code)


def _importable(module: str) -> str:
    """Name a module as a child is to import it: a program's own name is not ``__main__`` there."""
    if module != "__main__":
        return module
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return MAIN if spec is None else str(spec.name)


def _main() -> str:
    path = getattr(sys.modules["__main__"], "__file__", None)
    return os.path.abspath(path) if path else ""  # noqa: PTH100 - as it was when the program began
