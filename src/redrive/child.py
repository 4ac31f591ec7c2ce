"""What runs in the child process of an isolated handler: it imports the application, runs jobs, tells their outcomes.

It was started afresh, not forked: nothing of its worker's threads, locks and connections is here. It decides outcomes
by the same rules as a worker, and writes none. It ends when its worker does, however that ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import logging
import logging.handlers
import os
import pickle
import queue
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from redrive.errors import HandlerCrashed, MemoryLimitExceeded
from redrive.executor import execute_here
from redrive.job import Holder
from redrive.payload import encode_result

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BufferedReader

    from redrive.backoff import Backoff
    from redrive.breaker import Breaker
    from redrive.classify import Rules
    from redrive.job import ClaimedJob

START = (
    "import pickle, socket, sys; channel = socket.socket(fileno=int(sys.argv[1])); inbox = channel.makefile('rb'); "
    "sys.argv, sys.path, worker = pickle.load(inbox); from redrive.child import serve; serve(channel, inbox, worker)"
)
"""The program of a child, for ``python -c``: redrive itself may be found on its worker's path alone."""
SIZE = struct.Struct("!I")
"""Goes before each message of a child: its length in bytes."""
MAIN = "__redrive_main__"
"""What a program that was started as a script is called in a child, so that its ``__main__`` part doesn't run."""
PROGRESS_EVERY = 0.1
FORKED = 70
MEGABYTE = 1 << 20
_PR_SET_PDEATHSIG = 1
_HALF = 2

registered: WeakValueDictionary[tuple[str, str, str], Any] = WeakValueDictionary()
"""The isolated handlers of this process by module, qualified name and kind."""
loading = threading.Event()
"""Set in a child while it imports the application: what would start a worker at that time must not."""


@dataclass(frozen=True)
class Order:
    """A job for a child, and how to find its handler there."""

    job: ClaimedJob
    handler: tuple[str, str, str]
    modules: tuple[str, ...]
    main: str
    """The script that the worker's program is, if it is one."""
    settings: Any
    """Those of the queue: what the handler enqueues goes where its job came from."""
    complete: Callable[[ClaimedJob, Any, Any], Any] | None
    memory_limit: int | None
    log_level: int


def serve(channel: socket.socket, inbox: BufferedReader, worker: int) -> None:
    """Work for the process *worker* until it says that it is enough."""
    _die_with(worker)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A service manager may signal the whole group: when this job ends is for the worker to say. Not SIG_IGN, which
        # programs that the handler starts would inherit.
        signal.signal(number, lambda *_: None)
    Child(channel, inbox).run()


def _die_with(worker: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker:
        os._exit(FORKED)


class Child:
    """One job at a time, on the main thread; another thread hears the worker."""

    def __init__(self, channel: socket.socket, inbox: BufferedReader) -> None:
        self._channel, self._inbox = channel, inbox
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._job: ClaimedJob | None = None
        self._pid = os.getpid()
        self._progress = Progress(lambda value: self.say("progress", value))

    def run(self) -> None:
        """Obey orders until the end."""
        threading.Thread(target=self._listen, name="redrive-worker", daemon=True).start()
        while (order := self._orders.get()) is not None:
            self._obey(order)

    def say(self, *message: Any) -> None:
        """Send a message to the worker."""
        data = pickle.dumps(message)
        with self._sending, contextlib.suppress(OSError):  # the worker is gone, and so is this process
            self._channel.sendall(SIZE.pack(len(data)) + data)

    def _listen(self) -> None:
        with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
            while True:
                heard = pickle.load(self._inbox)  # noqa: S301 - its own worker's
                if isinstance(heard, Order):
                    self._job = heard.job  # at once: a stop may come before the application is imported
                    self._orders.put(heard)
                elif heard is None:
                    self._orders.put(None)
                elif self._job is not None:
                    self._job.stop(heard, told=False)
        os.killpg(0, signal.SIGKILL)  # the worker is gone; whatever the handler has started goes too

    def _obey(self, order: Order) -> None:
        try:
            handler = self._load(order)
        except BaseException as error:  # noqa: BLE001 - the application's code, which may also call sys.exit()
            self.say("broken", f"{type(error).__name__}: {error}", traceback.format_exc())
            return
        job = order.job
        complete = None if order.complete is None else self._complete(order.complete)
        job.holder = Holder(
            job.worker,
            job.schema,
            lambda _job, value: self._progress.put(value),
            complete,
            lambda _job, *what: str(handler.queue.follower(*what)),
        )
        limited = Limited(handler, order.memory_limit)
        self.say("begun")
        finished = execute_here(job, limited)
        if os.getpid() != self._pid:
            os._exit(FORKED)  # the handler forked and came back twice: this one is not the worker's child
        self._progress.flush()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # replaced or closed by the handler
                stream.flush()
        self.say("done", finished.outcome, limited.fit)

    def _load(self, order: Order) -> Any:
        """Import what registers the handler; a second time costs nothing."""
        loading.set()
        try:
            for name in order.modules:
                if name == MAIN:
                    _load_main(order.main)
                else:
                    importlib.import_module(name)
        finally:
            loading.clear()
        handler = registered.get(order.handler)
        if handler is None:
            module, function, kind = order.handler
            raise LookupError(
                f"{function} of {module} is not registered as the isolated handler of {kind!r} when that is imported: "
                "register it at the top level of a module, not under `if __name__ == '__main__'`"
            )
        if getattr(handler.queue, "settings", None) != order.settings:
            handler.queue.settings = order.settings
        root = logging.getLogger()
        if not root.handlers:  # the application configures no logging by itself: its worker's will do
            root.addHandler(Forward(self.say))
            root.setLevel(order.log_level)
        return handler

    def _complete(self, complete: Callable[[ClaimedJob, Any, Any], Any]) -> Callable[[ClaimedJob, Any, Any], Any]:
        def completed(job: ClaimedJob, connection: Any, result: Any) -> Any:
            answer = complete(job, connection, result)
            if answer is not None:
                return afterwards(job, answer)
            self.say("completed")  # before the commit, so that it is known to whoever finds this process dead
            return None

        async def afterwards(_job: ClaimedJob, answer: Any) -> None:
            await answer
            self.say("completed")

        return completed


class Limited:
    """A handler as the executor sees it: within its memory limit, and unable to end its process by an exception."""

    def __init__(self, handler: Any, limit: int | None) -> None:
        self.timeout: float | None = handler.timeout
        self.backoff: Backoff = handler.backoff
        self.retry_on: tuple[type[BaseException], ...] = handler.retry_on
        self.dead_on: tuple[type[BaseException], ...] = handler.dead_on
        self.breaker: Breaker | None = handler.breaker
        self.rules: Rules = handler.rules
        self.fit = True
        """Whether the process will do for another job."""
        self._call, self._limit = handler.call_here, limit

    def call(self, job: ClaimedJob) -> Any:
        """Call the handler."""
        before = _memory()
        try:
            with _limit(self._limit):
                return self._call(job)
        except MemoryError as error:
            self.fit = False
            if self._limit is None:
                raise
            raise MemoryLimitExceeded(
                f"the handler went over its memory_limit of {_megabytes(self._limit)}; "
                f"before it began, its process had {_megabytes(before)}"
            ) from error
        except Exception:
            raise
        except BaseException as error:
            self.fit = False
            code = error.code if isinstance(error, SystemExit) else None
            said = f"sys.exit({code!r})" if isinstance(error, SystemExit) else type(error).__name__
            raise HandlerCrashed(
                f"the handler raised {said}", exit_code=code if isinstance(code, int) else None
            ) from error
        finally:
            if self._limit is not None and _memory() > self._limit / _HALF:
                self.fit = False  # what it has kept is not the next one's fault


class Progress:
    """The newest progress on its way: at most ten times a second, and the last one always."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._waits: list[str | None] = []
        self._sent = 0.0

    def put(self, value: Any) -> None:
        """Take a value."""
        text = encode_result(value)
        with self._lock:
            pause = self._sent + PROGRESS_EVERY - time.monotonic()
            first = not self._waits
            self._waits[:] = [text]
        if pause <= 0:
            self.flush()
        elif first:
            timer = threading.Timer(pause, self.flush)
            timer.daemon = True
            timer.start()

    def flush(self) -> None:
        """Send what waits."""
        with self._lock:
            for text in self._waits:
                self._send(None if text is None else json.loads(text))
                self._sent = time.monotonic()
            self._waits.clear()


class Forward(logging.handlers.QueueHandler):
    """Hands log records to the worker, whose logging is configured."""

    def __init__(self, say: Callable[..., None]) -> None:
        super().__init__(queue.SimpleQueue())
        self._say = say

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send the record, without the fields that can't be sent where there are such."""
        try:
            self._say("log", vars(record))
        except Exception:  # noqa: BLE001 - whatever a __reduce__ raises
            plain = (str, int, float, type(None))
            self._say("log", {name: value for name, value in vars(record).items() if isinstance(value, plain)})


def _load_main(path: str) -> None:
    if MAIN in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(MAIN, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"the program {path} can't be imported in a child: put its handlers into a module")
    module = sys.modules[MAIN] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[MAIN]
        raise


@contextlib.contextmanager
def _limit(size: int | None) -> Any:
    """Bound the private memory of this process.

    RLIMIT_DATA, not RLIMIT_AS: address space that is only reserved (arenas of malloc, what V8 and Arrow map, files) is
    no use of memory, and under RLIMIT_AS programs fail with gigabytes to spare. Not a watch over the resident size: a
    limit of the kernel's fails the very allocation that goes over it, with a traceback that names the line, and can't
    be outrun.
    """
    if size is None or sys.platform != "linux":
        yield
        return
    import resource  # noqa: PLC0415 - there is none on Windows

    before = resource.getrlimit(resource.RLIMIT_DATA)
    hard = before[1]
    most = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _memory() -> int:
    """Give the private memory of this process in bytes, as RLIMIT_DATA counts it; 0 where nothing tells."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _megabytes(size: int) -> str:
    return f"{size / MEGABYTE:.0f} MB"
